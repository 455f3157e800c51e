"""GEMM configurations measured on a real GPU, for ``warpwright ladder``, ``warpwright tune`` and ``warpwright bench``.

One problem, D = A·Bᵀ of standard normal A (M, K) and B (N, K). Each configuration is verified first, over a D of NaN;
then all of them, and torch.matmul or torch._scaled_mm (cuBLAS) if torch is installed, are timed alternately, from cold
L2.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright import cuda
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.cuda.driver import call, require
from warpwright.cuda.memory import Transfers
from warpwright.kernels.gemm import sm100, sm120
from warpwright.ops import binding
from warpwright.ops.matmul import plan
from warpwright.ops.matmul.plan import Config
from warpwright.report.verdict import Verdict, judge

__all__ = ["NAN_BYTE", "PEER", "Trial", "Trials", "measure", "tensor_at", "torch_of"]

Array = NDArray[Any]
Run = Callable[[], object]

PEER = "torch"
BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
WHOLE = 4096**3  # of larger problems only some rows are compared with float64
SOME_ROWS = 512
NAN_BYTE = 0xFF


@dataclass(frozen=True, slots=True)
class Trial:
    """The times of a configuration, and how its result differs from float64."""

    times: cuda.Times
    verdict: Verdict

    @property
    def seconds(self) -> float:
        """The median."""
        return self.times.median


@dataclass(frozen=True, slots=True)
class Trials:
    """The measured configurations; ``torch`` are the times of torch, None without it."""

    each: dict[str, Trial]
    torch: cuda.Times | None

    @property
    def peer(self) -> float | None:
        """The median of torch."""
        return None if self.torch is None else self.torch.median


@dataclass(frozen=True, slots=True)
class Problem:
    """Matrices on the host and their copies on the GPU."""

    device: cuda.Device
    a: Array
    b: Array
    d: Array
    transfers: Transfers

    @property
    def arrays(self) -> dict[str, Array]:
        return {"a": self.a, "b": self.b, "d": self.d}

    def on_gpu(self, array: Array) -> DeviceArray:
        return DeviceArray(
            self.transfers.value(array), array.shape, array.strides, array.dtype, self.device.ordinal, None
        )


def measure(
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
    """Verify and time ``configs`` for operands of ``dtype``; ``describe`` is called with the text of each step."""
    with problem_on_gpu(device, m, n, k, dtype, seed) as problem, contextlib.ExitStack() as memory:
        runs: dict[str, Run] = {}
        verdicts: dict[str, Verdict] = {}
        known: dict[bytes, Verdict] = {}
        for name, config in configs.items():
            describe(f"{name}: compiled and verified")
            runs[name] = run_of(config, problem, memory)
            verdicts[name] = verify(runs[name], problem, known)
        describe(f"{rounds} rounds of {len(runs)}, timed")
        peer = torch_matmul(problem)
        times = cuda.times({**runs, **({PEER: peer} if peer else {})}, device=device, rounds=rounds)
        return Trials({name: Trial(times[name], verdicts[name]) for name in runs}, times.get(PEER))


@contextlib.contextmanager
def problem_on_gpu(device: cuda.Device, m: int, n: int, k: int, dtype: np.dtype[Any], seed: int) -> Iterator[Problem]:
    """Yields standard normal A and B, K padded with zeros to whole 16 bytes, and a D whose rows begin at such."""
    call(require().cuCtxSetCurrent(device.context))
    random = np.random.default_rng(seed)
    a, b = (np.zeros((rows, plan.round_up(k, dtype.itemsize)), dtype) for rows in (m, n))
    for operand in (a, b):
        operand[:, :k] = random.standard_normal((len(operand), k), np.float32)
        operand.flags.writeable = False
    d = np.zeros((m, plan.round_up(n)), BFLOAT16)
    with Transfers(f"{m} × {n} × {k}", 0, (a, b, d)) as transfers:
        yield Problem(device, a, b, d[:, :n], transfers)


def run_of(config: Config, problem: Problem, memory: contextlib.ExitStack) -> Run:
    """Returns a function that only starts ``config``; ``memory`` frees its scratch memory."""
    chosen = plan_of(config, problem)
    values: dict[str, Any] = {name: problem.on_gpu(array) for name, array in problem.arrays.items()}
    values |= {"bias": 0, "scale_a": 0, "scale_b": 0, "alpha": 1.0, plan.SCRATCH: 0}
    for name, shape in chosen.scratch.items():
        address = int(call(require().cuMemAlloc(prod(shape) * FLOAT32.itemsize), "memory for slices of K"))
        memory.callback(require().cuMemFree, address)
        strides = dense_strides(shape, FLOAT32.itemsize)
        values[name] = DeviceArray(address, shape, strides, FLOAT32, problem.device.ordinal, None)
    bound = binding.bind(chosen, binding.layouts_of(values), problem.device)
    return partial(binding.start, bound(binding.values_of(values), 0))


def plan_of(config: Config, problem: Problem) -> binding.Plan:
    """Returns the plan of ``config``."""
    a, b, d = (binding.geometry(array) for array in problem.arrays.values())
    sms, arch = problem.device.spec.sms, problem.device.spec.arch
    if isinstance(config, sm100.Tiling):
        return plan.plan_tiling(config, a, b, d, ("k", "k"), sms, arch)
    if isinstance(config, sm100.Config):
        return plan.plan_sm100(config, a, b, d, sms, arch)
    if isinstance(config, sm120.Config):
        return plan.plan_sm120(config, a, b, d, ("k", "k"), sms, arch)
    return plan.plan_sm90(config, a, b, d, ("k", "k"), sms)


def verify(run: Run, problem: Problem, known: dict[bytes, Verdict]) -> Verdict:
    """Returns how D differs from float64 after ``run``, which must write every element; equal bits are judged once."""
    d = problem.d
    call(require().cuMemsetD8Async(problem.transfers.value(d), NAN_BYTE, d.shape[0] * d.strides[0], 0))
    run()
    problem.transfers.download()
    key = hashlib.sha256(d.tobytes()).digest()
    if key not in known:
        some = compared_rows(d.shape[0], d.shape[1], problem.a.shape[1])
        verdict = judge(d[some], problem.a[some], problem.b.T)
        known[key] = replace(verdict, verified=verdict.verified and bool(np.isfinite(d).all()))
    return known[key]


def compared_rows(m: int, n: int, k: int) -> Any:
    """Returns the rows that are compared with float64: all, or of a large problem some at even distances."""
    if m * n * k <= WHOLE:
        return slice(None)
    return np.unique(np.linspace(0, m - 1, SOME_ROWS).astype(int))


def torch_of() -> Any:
    """Returns the module torch; None if it is not installed or cannot use the GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None


def tensor_at(torch: Any, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Any:
    """Returns the tensor of a dense array at an address of ``device``."""
    memory = {"data": (pointer, False), "shape": shape, "typestr": f"<i{dtype.itemsize}", "strides": None, "version": 3}
    bits = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=memory), device=device)
    return bits.view(getattr(torch, dtype.name))


def torch_matmul(problem: Problem) -> Run | None:
    """Returns a function that multiplies the same matrices by torch; None without torch."""
    torch, device = torch_of(), problem.device.name
    if torch is None:
        return None
    a, b = (tensor_at(torch, problem.transfers.value(x), x.shape, x.dtype, device) for x in (problem.a, problem.b))
    if problem.a.itemsize == 1:
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    d = torch.empty(problem.d.shape, dtype=torch.bfloat16, device=device)
    return lambda: torch.matmul(a, b.T, out=d)
