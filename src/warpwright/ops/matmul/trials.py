"""Configurations of the GEMM measured against each other on a real GPU: ``warpwright ladder`` and ``warpwright tune``.

One problem, D = A·Bᵀ of random normal A (M, K) and B (N, K). Each configuration is verified first, over a D of NaN;
then all of them, and torch.matmul or torch._scaled_mm (cuBLAS) where torch is installed, are timed in turns, from cold
L2.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright import cuda
from warpwright.arrays.device import DeviceArray
from warpwright.cuda.driver import call, require
from warpwright.cuda.memory import Transfers
from warpwright.gpu import Dim3
from warpwright.kernels import gemm
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.matmul.plan import geometry, loaded, product_of, round_up, slices_of, start
from warpwright.report.verdict import Verdict, judge
from warpwright.run.arguments import typed_arguments
from warpwright.run.launch import entry_point

__all__ = ["NAN_BYTE", "PEER", "Trial", "Trials", "measured", "started", "tensor_at", "torch_of"]

Array = NDArray[Any]
Run = Callable[[], object]
Config = gemm.HopperConfig | gemm.GemmConfig

PEER = "torch"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WHOLE = 4096**3  # larger products are compared with float64 on some rows only
SOME_ROWS = 512
NAN_BYTE = 0xFF
SUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration's seconds, and how its result differs from float64."""

    times: cuda.Times
    verdict: Verdict

    @property
    def seconds(self) -> float:
        """The median."""
        return self.times.median


@dataclass(frozen=True, slots=True)
class Trials:
    """What was measured; ``torch`` are the seconds of torch, None without it."""

    each: dict[str, Trial]
    torch: cuda.Times | None

    @property
    def peer(self) -> float | None:
        """The median of torch."""
        return None if self.torch is None else self.torch.median


@dataclass(frozen=True, slots=True)
class Problem:
    """Matrices of the host and where they are on the GPU."""

    device: cuda.Device
    a: Array
    b: Array
    d: Array
    transfers: Transfers

    def on_gpu(self, array: Array) -> DeviceArray:
        return DeviceArray(
            self.transfers.value(array), array.shape, array.strides, array.dtype, self.device.ordinal, None
        )


def measured(
    device: cuda.Device,
    m: int,
    n: int,
    k: int,
    configs: Mapping[str, Config],
    *,
    dtype: np.dtype[Any] = BFLOAT16,
    rounds: int = 30,
    seed: int = 0,
    describe: Callable[[str], None] = lambda _: None,
) -> Trials:
    """Verify and time ``configs`` for operands of ``dtype`` on ``device``; ``describe`` is told what is being done."""
    with problem(device, m, n, k, dtype, seed) as given, contextlib.ExitStack() as held:
        runs: dict[str, Run] = {}
        verdicts: dict[str, Verdict] = {}
        known: dict[bytes, Verdict] = {}
        for name, config in configs.items():
            describe(f"{name}: compiled and verified")
            runs[name] = run_of(config, given, held)
            verdicts[name] = verified(runs[name], given, known)
        describe(f"{rounds} rounds of {len(runs)}, timed")
        peer = torch_matmul(given)
        times = cuda.times({**runs, **({PEER: peer} if peer else {})}, rounds=rounds)
        return Trials({name: Trial(times[name], verdicts[name]) for name in runs}, times.get(PEER))


@contextlib.contextmanager
def problem(device: cuda.Device, m: int, n: int, k: int, dtype: np.dtype[Any], seed: int) -> Iterator[Problem]:
    """Random normal A and B, zeros in what K lacks to whole 16 bytes, and room for D with rows that begin at such."""
    call(require().cuCtxSetCurrent(device.context))
    random = np.random.default_rng(seed)
    a, b = (np.zeros((rows, round_up(k, dtype.itemsize)), dtype) for rows in (m, n))
    for operand in (a, b):
        operand[:, :k] = random.standard_normal((len(operand), k), np.float32)
        operand.flags.writeable = False
    d = np.zeros((m, round_up(n)), BFLOAT16)
    with Transfers(f"{m} × {n} × {k}", 0, (a, b, d)) as transfers:
        yield Problem(device, a, b, d[:, :n], transfers)


def run_of(config: Config, given: Problem, held: contextlib.ExitStack) -> Run:
    """A call that only starts ``config``; ``held`` is the memory that it takes."""
    if isinstance(config, gemm.GemmConfig):
        return started(*blackwell_launch(config, given), given.device)
    a, b, d = (given.on_gpu(array) for array in (given.a, given.b, given.d))
    layouts = geometry(a), geometry(b), geometry(d)
    fitting = replace(config, slices=slices_of(a.shape[1], config.slices))
    run = loaded(product_of(fitting, *layouts, ("k", "k"), given.device.spec.sms), layouts[2], given.device)
    scratch = 0
    if run.scratch:
        scratch = int(call(require().cuMemAlloc(prod(run.scratch) * SUM_BYTES), "memory for slices of K"))
        held.callback(require().cuMemFree, scratch)
    return partial(start, run.launches(a.pointer, b.pointer, d.pointer, 0, scratch=scratch))


def blackwell_launch(config: gemm.GemmConfig, given: Problem) -> tuple[Traced, Dim3, list[Any]]:
    """Kernel, grid and arguments for ``config``."""
    (m, k), n, kernel = given.a.shape, given.b.shape[0], gemm.kernel_of(config).trace()
    plan = gemm.plan(config, m, n, k, sms=given.device.spec.sms)
    operands = {"a": given.on_gpu(given.a), "b": given.on_gpu(given.b), "d": given.on_gpu(given.d)}
    mapped = [
        TensorMap(array, kernel.maps[name].box, swizzle=kernel.maps[name].swizzle, l2_promotion=plan.l2_promotion)
        if name in kernel.maps
        else array
        for name, array in operands.items()
    ]
    return kernel, plan.grid, [*mapped, *plan.scalars]


def started(kernel: Traced, grid: Dim3, args: Sequence[Any], device: cuda.Device, stream: int = 0) -> Run:
    """A call that only starts ``kernel``, whose arrays are on ``device``."""
    entry = entry_point(kernel)
    function = device.function(entry.module, entry.name, kernel.threads, kernel.cluster, kernel.smem_bytes)
    values = [_value(argument) for argument in typed_arguments(kernel.params, kernel.maps, args)]
    return function.at(grid, values, stream)


def _value(argument: Any) -> Any:
    if isinstance(argument, TensorMap):
        return cuda.encode(argument, argument.array.pointer)
    return argument.pointer if isinstance(argument, DeviceArray) else argument


def verified(run: Run, given: Problem, known: dict[bytes, Verdict]) -> Verdict:
    """How D differs from float64 after ``run``, in which every element was written; the same bits are judged once."""
    d = given.d
    call(require().cuMemsetD8Async(given.transfers.value(d), NAN_BYTE, d.shape[0] * d.strides[0], 0))
    run()
    given.transfers.download()
    key = hashlib.sha256(d.tobytes()).digest()
    if key not in known:
        some = chosen_rows(d.shape[0], d.shape[1], given.a.shape[1])
        verdict = judge(d[some], given.a[some], given.b.T)
        known[key] = replace(verdict, verified=verdict.verified and bool(np.isfinite(d).all()))
    return known[key]


def chosen_rows(m: int, n: int, k: int) -> Any:
    """The rows that are compared with float64: all of them, of a large product some all over it."""
    if m * n * k <= WHOLE:
        return slice(None)
    return np.unique(np.linspace(0, m - 1, SOME_ROWS).astype(int))


def torch_of() -> Any:
    """The module torch; None where it is not installed, or cannot use the GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None


def tensor_at(torch: Any, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Any:
    """The tensor of a dense array that lies at an address of ``device``."""
    memory = {"data": (pointer, False), "shape": shape, "typestr": f"<i{dtype.itemsize}", "strides": None, "version": 3}
    bits = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=memory), device=device)
    return bits.view(getattr(torch, dtype.name))


def torch_matmul(given: Problem) -> Run | None:
    """The product of the same matrices by torch, where there is one for the GPU."""
    torch, device = torch_of(), given.device.name
    if torch is None:
        return None
    a, b = (tensor_at(torch, given.transfers.value(x), x.shape, x.dtype, device) for x in (given.a, given.b))
    if given.a.itemsize == 1:
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    d = torch.empty(given.d.shape, dtype=torch.bfloat16, device=device)
    return lambda: torch.matmul(a, b.T, out=d)
