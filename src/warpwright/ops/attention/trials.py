"""Attention measured on a real GPU beside torch's backends: ``warpwright bench attention``, and what ``bench/`` shares.

All read the same Q, K and V. Each is verified first, ours over an output of NaN; then all are timed in turns, from cold
L2.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from warpwright.ops.attention.plan import COUNTER, Job, geometry, job_of, ready, setting
from warpwright.ops.matmul.trials import NAN_BYTE, tensor_at, torch_of
from warpwright.report.verdict import Verdict, judge_attention

__all__ = ["PEERS", "Trial", "backend", "measured", "peer", "started", "ways"]

Array = NDArray[Any]
Arrays = tuple[Array, Array, Array]
Run = Callable[[], Any]

PEERS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}  # torch's names of its backends
NO_KERNEL = "No available kernel"  # what torch says of a backend that does not do a problem
COMPARED = 2**25  # pairs of a query and a key of a head that are compared with float64


@dataclass(frozen=True, slots=True)
class Trial:
    """The kernel that ran, whether it is ours, its seconds, and how its result differs from float64."""

    kernel: str
    ours: bool
    times: cuda.Times
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Held:
    """Arrays of the host, the output and its log-sum-exp among them, and where they are on the GPU."""

    device: cuda.Device
    problem: Problem
    given: Arrays
    o: Array
    lse: Array
    memory: Array
    transfers: Transfers

    def address(self, array: Array) -> int:
        return int(self.transfers.value(array))

    def on_gpu(self, array: Array) -> DeviceArray:
        where = self.address(array)
        return DeviceArray(where, array.shape, array.strides, array.dtype, self.device.ordinal, None)


def ways(problem: Problem, spec: targets.Device) -> dict[str, Job]:
    """The launches that do ``problem``, by kernel and tile: what `warpwright.attention` takes, and with the other
    setting of WARPWRIGHT_ATTENTION_TMA, or without memory of its own."""
    found: dict[str, Job] = {}
    for tma, memory in ((setting(), True), (True, True), (True, False), (False, True)):
        job = job_of(problem, spec.arch, spec.sms, tma, memory)
        found.setdefault(f"{job.choice.kernel} {' × '.join(map(str, job.config.tile))}", job)
    return found


def started(job: Job, views: Sequence[DeviceArray], gpu: str, *, lse: int = 0, memory: int = 0, stream: int = 0) -> Run:
    """A call that only starts ``job`` for Q, K, V and O; ``lse`` and ``memory`` are addresses, 0 for none."""
    places = tuple(view.pointer for view in views)
    return ready(job, tuple(map(geometry, views)), gpu)(places, lse, memory if job.words else 0, stream)


def measured(
    device: cuda.Device,
    problem: Problem,
    given: Arrays,
    *,
    rounds: int = 30,
    describe: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """Verify and time all `ways` of ``problem``, what `warpwright.attention` takes first, and then torch's backends
    that do it; ``describe`` is told what is being done."""
    jobs = ways(problem, device.spec)
    with held(device, problem, given, max(job.words or COUNTER for job in jobs.values())) as arrays:
        verdicts: dict[str, Verdict] = {}
        runs: dict[str, Run] = {}
        for name, job in jobs.items():
            describe(f"{name}: compiled and verified")
            runs[name], verdicts[name] = ours(job, arrays)
        mine = len(runs)
        for name, run in peers(arrays).items():
            describe(f"{name}: verified")
            runs[name], verdicts[name] = run, judged(problem, given, host(run(), problem), None)
        describe(f"{rounds} rounds of {len(runs)}, timed")
        times = cuda.times(runs, rounds=rounds)
        return [Trial(name, i < mine, times[name], verdicts[name]) for i, name in enumerate(runs)]


@contextlib.contextmanager
def held(device: cuda.Device, problem: Problem, given: Arrays, words: int) -> Iterator[Held]:
    """The arrays of ``problem`` on the GPU, and memory of so many ``words`` of 0."""
    call(require().cuCtxSetCurrent(device.context))
    for array in given:
        array.flags.writeable = False
    o, memory = np.empty_like(given[0]), np.zeros(words, np.uint32)
    lse = np.empty((problem.batch, problem.heads, problem.q_len), np.float32)
    with Transfers("attention", 0, (*given, o, lse, memory)) as transfers:
        yield Held(device, problem, given, o, lse, memory, transfers)


def ours(job: Job, arrays: Held) -> tuple[Run, Verdict]:
    """A call that only starts ``job``, and how its result differs, in which every element was written."""
    views = [arrays.on_gpu(array) for array in (*arrays.given, arrays.o)]
    lse, memory = arrays.address(arrays.lse), arrays.address(arrays.memory)
    for array in (arrays.o, arrays.lse):
        call(require().cuMemsetD8Async(arrays.address(array), NAN_BYTE, array.nbytes, 0))
    started(job, views, arrays.device.name, lse=lse, memory=memory)()
    arrays.transfers.download()
    return started(job, views, arrays.device.name, memory=memory), judged(
        arrays.problem, arrays.given, arrays.o, arrays.lse
    )


def judged(problem: Problem, given: Arrays, o: Array, lse: Array | None) -> Verdict:
    """How the first and the last head differ from float64; of many queries the last ones are compared. All elements
    must be finite."""
    heads = sorted({(0, 0), (problem.batch - 1, problem.heads - 1)})
    count = min(problem.q_len, max(1, COMPARED // problem.kv_len))

    def last(array: Array) -> Array:
        return np.stack([array[head][-count:] for head in heads])[:, None]

    q, (k, v) = last(given[0]), (np.stack([x[b, h // problem.group] for b, h in heads])[:, None] for x in given[1:])
    part = replace(problem, batch=len(heads), heads=1, kv_heads=1, q_len=count, scale=problem.factor)
    verdict = judge_attention(part, (q, k, v), last(o), None if lse is None else last(lse))
    return replace(verdict, verified=verdict.verified and bool(np.isfinite(o).all()))


def peers(arrays: Held) -> dict[str, Run]:
    """Torch's backends that do the problem, by name: none where torch is not installed or cannot use the GPU, where it
    would mask other keys, for it aligns top left, or where there is a window."""
    torch, problem, device = torch_of(), arrays.problem, arrays.device
    aligned = not problem.causal or problem.q_len == problem.kv_len
    if torch is None or problem.window is not None or not aligned:
        return {}
    tensors = [tensor_at(torch, arrays.address(array), array.shape, array.dtype, device.name) for array in arrays.given]
    runs = {f"torch {name}": partial(peer, name, problem, tensors) for name in PEERS}
    return {name: run for name, run in runs.items() if does(run)}


def does(run: Run) -> bool:
    """Whether a backend of torch has a kernel for what it is given."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says of every backend why not
            run()
    except RuntimeError as error:
        if NO_KERNEL not in str(error):
            raise
        return False
    return True


def peer(name: str, problem: Problem, tensors: Sequence[Any]) -> Any:
    """Attention by a backend of torch, which raises rather than take another."""
    import torch

    options = {"is_causal": problem.causal, "scale": problem.factor, "enable_gqa": problem.group > 1}
    with backend(name):
        return torch.nn.functional.scaled_dot_product_attention(*tensors, **options)


def backend(name: str) -> Any:
    """The context in which torch takes that one of `PEERS`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, PEERS[name]))


def host(tensor: Any, problem: Problem) -> Array:
    """The array of a tensor of 16 bits."""
    import torch

    array: Array = tensor.contiguous().view(torch.int16).cpu().numpy().view(problem.dtype)
    return array
