"""Attention measured on a real GPU beside torch's backends, for ``warpwright bench attention`` and ``bench/``.

All kernels read the same Q, K and V. Each result is verified first, that of our kernels over an output of NaN; then all
kernels are timed alternately, from cold L2.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright import cuda, targets
from warpwright.arrays.device import DeviceArray
from warpwright.cuda.driver import call, require
from warpwright.cuda.memory import Transfers
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.plan import COUNTER, choose, setting
from warpwright.ops.binding import Plan, bind, layouts_of, start, values_of
from warpwright.ops.matmul.trials import NAN_BYTE, tensor_at, torch_of
from warpwright.report.verdict import Verdict, judge_attention

__all__ = ["PEERS", "Trial", "backend", "measure", "peer", "plans", "run_of"]

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array]
Run = Callable[[], Any]

PEERS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}  # torch's names of its backends
NO_KERNEL = "No available kernel"  # torch's words if a backend does not compute a problem
COMPARED = 2**25  # pairs of a query and a key of a head that are compared with float64


@dataclass(frozen=True, slots=True)
class Trial:
    """The kernel, whether it is ours, its times, and how its result differs from float64."""

    kernel: str
    ours: bool
    times: cuda.Times
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays on the host, the output and its log-sum-exp among them, and their copies on the GPU."""

    device: cuda.Device
    problem: Problem
    given: Inputs
    o: Array
    lse: Array
    workspace: Array
    transfers: Transfers

    def address(self, array: Array) -> int:
        return int(self.transfers.value(array))

    def on_gpu(self, array: Array) -> DeviceArray:
        where = self.address(array)
        return DeviceArray(where, array.shape, array.strides, array.dtype, self.device.ordinal, None)


def plans(problem: Problem, spec: targets.Device) -> dict[str, Plan]:
    """Returns the plans of ``problem``, by kernel and tile: the one that `warpwright.attention` chooses, those of the
    other settings of WARPWRIGHT_ATTENTION_TMA, and those without a workspace."""
    found: dict[str, Plan] = {}
    for tma, workspace in ((setting(), True), (True, True), (True, False), (False, True)):
        plan = choose(problem, spec.arch, spec.sms, tma, workspace)
        found.setdefault(f"{plan.kernel} {' × '.join(map(str, plan.config.tile))}", plan)
    return found


def run_of(
    plan: Plan, views: Sequence[DeviceArray], device: cuda.Device, *, lse: int = 0, workspace: int = 0, stream: int = 0
) -> Run:
    """Returns a function that only starts ``plan`` for Q, K, V and O; ``lse`` and ``workspace`` are addresses."""
    memory = {"lse": lse, "workspace": workspace if plan.words else 0}
    values: dict[str, Any] = {**dict(zip("qkvo", views, strict=True)), **memory}
    return partial(start, bind(plan, layouts_of(values), device)(values_of(values), stream))


def measure(
    device: cuda.Device,
    problem: Problem,
    given: Inputs,
    chosen: Mapping[str, Plan] | None = None,
    *,
    rounds: int = 30,
    describe: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """Verify and time the plans ``chosen``, or all `plans` of ``problem``, first the one that `warpwright.attention`
    chooses, and then torch's backends that compute it; ``describe`` is called with the text of each step."""
    found = plans(problem, device.spec) if chosen is None else chosen
    with on_gpu(device, problem, given, max(plan.words or COUNTER for plan in found.values())) as arrays:
        verdicts: dict[str, Verdict] = {}
        runs: dict[str, Run] = {}
        for name, plan in found.items():
            describe(f"{name}: compiled and verified")
            runs[name], verdicts[name] = run_ours(plan, arrays)
        mine = len(runs)
        for name, run in peers(arrays).items():
            describe(f"{name}: verified")
            runs[name], verdicts[name] = run, judge_output(problem, given, to_host(run(), problem), None)
        describe(f"{rounds} rounds of {len(runs)}, timed")
        times = cuda.times(runs, device=device, rounds=rounds)
        return [Trial(name, i < mine, times[name], verdicts[name]) for i, name in enumerate(runs)]


@contextlib.contextmanager
def on_gpu(device: cuda.Device, problem: Problem, given: Inputs, words: int) -> Iterator[Arrays]:
    """Yields the arrays of ``problem`` on the GPU, with a workspace of ``words`` zeros."""
    call(require().cuCtxSetCurrent(device.context))
    for array in given:
        array.flags.writeable = False
    o, workspace = np.empty_like(given[0]), np.zeros(words, np.uint32)
    lse = np.empty((problem.batch, problem.heads, problem.q_len), np.float32)
    with Transfers("attention", 0, (*given, o, lse, workspace)) as transfers:
        yield Arrays(device, problem, given, o, lse, workspace, transfers)


def run_ours(plan: Plan, arrays: Arrays) -> tuple[Run, Verdict]:
    """Returns a function that only starts ``plan``, and the verdict on its result, every element of which it must
    write."""
    views = [arrays.on_gpu(array) for array in (*arrays.given, arrays.o)]
    lse, workspace = arrays.address(arrays.lse), arrays.address(arrays.workspace)
    for array in (arrays.o, arrays.lse):
        call(require().cuMemsetD8Async(arrays.address(array), NAN_BYTE, array.nbytes, 0))
    run_of(plan, views, arrays.device, lse=lse, workspace=workspace)()
    arrays.transfers.download()
    verdict = judge_output(arrays.problem, arrays.given, arrays.o, arrays.lse)
    return run_of(plan, views, arrays.device, workspace=workspace), verdict


def judge_output(problem: Problem, given: Inputs, o: Array, lse: Array | None) -> Verdict:
    """Returns how the first and the last head differ from a float64 reference. With many queries it compares only the
    last ones. All elements of O must be finite."""
    heads = sorted({(0, 0), (problem.batch - 1, problem.heads - 1)})
    count = min(problem.q_len, max(1, COMPARED // problem.kv_len))

    def last(array: Array) -> Array:
        return np.stack([array[head][-count:] for head in heads])[:, None]

    q, (k, v) = last(given[0]), (np.stack([x[b, h // problem.group] for b, h in heads])[:, None] for x in given[1:])
    part = replace(problem, batch=len(heads), heads=1, kv_heads=1, q_len=count, scale=problem.factor)
    verdict = judge_attention(part, (q, k, v), last(o), None if lse is None else last(lse))
    return replace(verdict, verified=verdict.verified and bool(np.isfinite(o).all()))


def peers(arrays: Arrays) -> dict[str, Run]:
    """Returns torch's backends that compute the problem, by name: none if torch is not installed, cannot use the GPU
    or masks other keys (its causal mask is aligned top left), or if there is a window."""
    torch, problem, device = torch_of(), arrays.problem, arrays.device
    aligned = not problem.causal or problem.q_len == problem.kv_len
    if torch is None or problem.window is not None or not aligned:
        return {}
    tensors = [tensor_at(torch, arrays.address(array), array.shape, array.dtype, device.name) for array in arrays.given]
    runs = {f"torch {name}": partial(peer, name, problem, tensors) for name in PEERS}
    return {name: run for name, run in runs.items() if has_kernel(run)}


def has_kernel(run: Run) -> bool:
    """Returns whether a backend of torch has a kernel for the problem."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the reason for every backend
            run()
    except RuntimeError as error:
        if NO_KERNEL not in str(error):
            raise
        return False
    return True


def peer(name: str, problem: Problem, tensors: Sequence[Any]) -> Any:
    """Returns attention by a backend of torch, which raises if it has no kernel."""
    import torch

    options = {"is_causal": problem.causal, "scale": problem.factor, "enable_gqa": problem.group > 1}
    with backend(name):
        return torch.nn.functional.scaled_dot_product_attention(*tensors, **options)


def backend(name: str) -> Any:
    """Returns the context in which torch uses the backend ``name`` of `PEERS`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, PEERS[name]))


def to_host(tensor: Any, problem: Problem) -> Array:
    """Returns the array of a tensor of 16-bit elements."""
    import torch

    array: Array = tensor.contiguous().view(torch.int16).cpu().numpy().view(problem.dtype)
    return array
