"""Common code of the micro-benchmarks: the clock inside a kernel, launches, repeats, and results.

A probe is a kernel ``probe(out, rounds, …)`` that writes the SM's clock before and after a loop of ``rounds`` rounds, a
pair a warp. The cost of a round is the slope between two numbers of rounds, which cancels the code around the loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import warpwright as ww
from warpwright import cuda
from warpwright.lang import Global, If, Kernel, Traced, bar, clock64, ctaid, u64, warp
from warpwright.lang.context import current
from warpwright.run.launch import entry_point

FLUSH_BYTES = 256 << 20
NUMPY = {"u32": np.uint32, "u64": np.uint64, "f32": np.float32, "bf16": np.dtype("bfloat16")}
Run = Callable[[], Any]


@dataclass(frozen=True)
class Measurement:
    """One result: the median, its unit, and the spread of the repeats (half of the range over the median)."""

    name: str
    value: float
    unit: str
    spread: float
    how: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(name: str, values: Sequence[float], unit: str, how: str) -> Measurement:
    middle = statistics.median(values)
    spread = (max(values) - min(values)) / 2 / abs(middle) if middle else 0.0
    return Measurement(name, float(f"{middle:.5g}"), unit, round(spread, 4), how)


def each(amount: float, cycles: Sequence[float]) -> list[float]:
    """Returns ``amount`` a cycle; 0 if no time passed, as on a virtual GPU, whose clock counts its readings."""
    return [amount / c if c else 0.0 for c in cycles]


@contextmanager
def time_block(out: Global[u64]) -> Iterator[None]:
    """Write the clock of every warp before and after the block, at ``out``."""
    bar.sync()
    start = clock64()
    yield
    stop = clock64()
    pair = (ctaid.x * (current().threads[0] // 32) + warp.id) * 2
    with If(warp.lane == 0):
        out[pair] = start
        out[pair + 1] = stop


class Bench:
    """A device to measure, real or virtual; ``small`` runs every probe once and tiny, as a test."""

    def __init__(self, device: str, *, small: bool = False) -> None:
        self.device, self.small = ww.device(device), small
        self.real = device.startswith("cuda")
        self.repeats = 1 if small else 7
        self.sms = 2 if small else self.device.spec.sms
        self._flush = self.array((FLUSH_BYTES,), "u8") if self.real else None

    def pick(self, full: Any, small: Any) -> Any:
        return small if self.small else full

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Returns zeros on the device."""
        if not self.real:
            return np.zeros(shape, NUMPY[dtype])
        import torch

        types = {"u8": torch.uint8, "u32": torch.int32, "u64": torch.int64, "f32": torch.float32}
        return torch.zeros(shape, dtype=types.get(dtype, torch.bfloat16), device="cuda")

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Returns standard normal bfloat16 on the device."""
        if not self.real:
            return np.random.default_rng(0).standard_normal(shape).astype(np.dtype("bfloat16"))
        import torch

        generator = torch.Generator(device="cuda").manual_seed(0)
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).bfloat16()

    def noise(self, words: int) -> Any:
        """Returns random u32 on the device."""
        if not self.real:
            return np.random.default_rng(0).integers(0, 1 << 32, words, np.uint32)
        import torch

        return torch.randint(-(1 << 31), 1 << 31, (words,), dtype=torch.int32, device="cuda")

    def upload(self, values: Any) -> Any:
        """Returns a NumPy array of u32 on the device."""
        if not self.real:
            return values.astype(np.uint32)
        import torch

        return torch.from_numpy(values.astype(np.int32)).cuda()

    def read(self, array: Any) -> Any:
        return array.cpu().numpy() if self.real else array

    def flush(self) -> None:
        """Fill the L2 with other data."""
        if self._flush is not None:
            self._flush.fill_(1)

    def prepare(
        self, kernel: Kernel | Traced, grid: int | tuple[int, int, int], args: Sequence[Any], *, aside: bool = False
    ) -> Run:
        """Returns a call that starts the kernel (a virtual GPU runs it); ``aside``: concurrently with later ones."""
        traced = kernel if isinstance(kernel, Traced) else kernel.trace()
        if not self.real:
            return lambda: ww.launch(traced, grid, args=list(args), device=self.device)
        entry = entry_point(traced)
        function = self.device.function(entry.module, entry.name, traced.threads, traced.cluster, traced.smem_bytes)
        values = [self._value(traced, name, value) for (name, _), value in zip(traced.params, args, strict=True)]
        stream = self._aside() if aside else None
        launch = function.at(
            (grid, 1, 1) if isinstance(grid, int) else grid, values, stream.cuda_stream if stream else 0
        )
        return lambda: (launch(), args, stream)

    def _aside(self) -> Any:
        import torch

        return torch.cuda.Stream()

    def _value(self, traced: Any, name: str, value: Any) -> Any:
        if isinstance(value, ww.TensorMap):
            return cuda.encode(value, value.array.pointer)
        if not hasattr(value, "data_ptr"):
            return value
        use = traced.maps.get(name)
        if use is None:
            return value.data_ptr()
        return cuda.encode(ww.TensorMap(value, use.box, swizzle=use.swizzle), value.data_ptr())

    def wait(self) -> None:
        if self.real:
            import torch

            torch.cuda.synchronize()

    def seconds(self, run: Run, *, cold: bool = True, repeats: int = 0) -> list[float]:
        """Returns the seconds of launches, by events, each after a flush of L2; zeros on a virtual GPU."""
        repeats = repeats or 3 * self.repeats
        if not self.real:
            run()
            return [1e-6]
        return cuda.measure(run, rounds=repeats, warmup=2, cold=cold)

    def spans(self, kernel: Kernel, grid: int, args: Sequence[Any], *, cold: bool = False, repeats: int = 0) -> Any:
        """Returns the cycles of each CTA, (repeats, CTAs): from the first warp's start to the last warp's end."""
        warps = kernel.trace().threads[0] // 32
        out = self.array((grid * warps * 2,), "u64")
        run, cycles = self.prepare(kernel, grid, [out, *args]), []
        for _ in range((repeats or self.repeats) + 1):
            if cold:
                self.flush()
            run()
            self.wait()
            clocks = self.read(out).astype(np.int64).reshape(grid, warps, 2)
            cycles.append(clocks[:, :, 1].max(axis=1) - clocks[:, :, 0].min(axis=1))
        return np.array(cycles[1:])

    def by_role(self, kernel: Kernel, args: Sequence[Any], roles: dict[str, range]) -> dict[str, list[float]]:
        """Returns the cycles of the last warp of each role of one CTA, one value a repeat."""
        warps = kernel.trace().threads[0] // 32
        out, cycles = self.array((2 * warps,), "u64"), []
        run = self.prepare(kernel, 1, [out, *args])
        for _ in range(self.repeats + 1):
            run()
            self.wait()
            clocks = self.read(out).astype(np.int64).reshape(warps, 2)
            cycles.append(clocks[:, 1] - clocks[:, 0])
        return {name: [float(each[own].max()) for each in cycles[1:]] for name, own in roles.items()}

    def slope(
        self,
        kernel: Kernel,
        args: Sequence[Any] = (),
        *,
        rounds: tuple[int, int] = (8, 40),
        grid: int = 1,
        per: float = 1,
        cold: bool = False,
    ) -> list[float]:
        """Returns the cycles of a round, divided by ``per``: mean of the CTAs, one value a repeat."""
        few, many = (1, 2) if self.small else rounds
        short, long = (self.spans(kernel, grid, [n, *args], cold=cold).mean(axis=1) for n in (few, many))
        return [float(x) for x in (long - short) / (many - few) / per]


class ModelBench(Bench):
    """The timing model in place of a GPU, for probes whose result is a slope or the time of roles."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.repeats = 1

    def spans(self, kernel: Kernel, grid: int, args: Sequence[Any], *, cold: bool = False, repeats: int = 0) -> Any:
        warps = kernel.trace().threads[0] // 32
        out = self.array((grid * warps * 2,), "u64")
        return np.full((1, grid), ww.profile(kernel, grid, args=[out, *args], device=self.device).cycles)

    def by_role(self, kernel: Kernel, args: Sequence[Any], roles: dict[str, range]) -> dict[str, list[float]]:
        out = self.array((2 * kernel.trace().threads[0] // 32,), "u64")
        found = ww.profile(kernel, 1, args=[out, *args], device=self.device).roles
        return {role.name: [role.cycles] for role in found if role.name in roles}
