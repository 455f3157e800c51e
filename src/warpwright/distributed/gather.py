"""The engines of all-gather and matmul: D of each weight is x of all ranks times the weight.

An engine is a function of a workspace and a problem; what it returns runs calls of that problem, with ``outs`` of a
matrix for each rank: (ranks, rows, N). `ENGINES` has their names.

in turn    NCCL's all-gather, then a matmul of torch
parts …    copy engines send the rows; a matmul of this rank's rows, then one for those of each other rank
copies …   copy engines send the rows; one kernel multiplies this rank's rows first, the others as they arrive
sends …    the kernel also sends the rows, by TMA; of several weights with the first
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from warpwright import cuda, types
from warpwright.distributed.launches import DTYPES, dense_map, launch_at, strided_map
from warpwright.distributed.problem import Problem
from warpwright.distributed.workspace import Workspace
from warpwright.kernels.gemm.sm90 import CONFIGS, Config
from warpwright.kernels.gemm.sm90.all_gather import SENDING, kernel_of, plan_gather
from warpwright.lang.trace import Traced
from warpwright.layout.peers import pack_peers
from warpwright.ops.matmul import call as operator

__all__ = ["ENGINES", "Multiply", "multiply", "multiply_by_torch"]

CHUNKS = 4  # of a rank's rows, each with a flag, at most
CHUNK_BYTES = 4 << 20  # at least, of a chunk of several
KEPT_LAUNCHES = 256
Run = Callable[[Tensor, list[Tensor], list[Tensor]], Tensor | None]  # returns x of all ranks if the engine has it
Engine = Callable[[Workspace, Problem], Run]
Multiply = Callable[[Tensor, Tensor, Tensor], None]


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``out = a @ b``, of 16-bit floats by `warpwright.matmul`."""
    if a.dtype.itemsize == 2:
        operator.matmul(a, b, out=out)
    else:
        multiply_by_torch(a, b, out)


def multiply_by_torch(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def gather_in_turn(shared: Workspace, problem: Problem) -> Run:
    def run(x: Tensor, weights: list[Tensor], outs: list[Tensor]) -> Tensor:
        gathered = x.new_empty(problem.ranks * problem.rows, problem.k)
        dist.all_gather_into_tensor(gathered, x, group=shared.group)
        for weight, out in zip(weights, outs, strict=True):
            multiply_by_torch(gathered, weight, out.view(-1, out.shape[-1]))
        return gathered

    return run


def row_bytes(problem: Problem) -> int:
    """Returns the bytes of a row of x."""
    itemsize: int = problem.dtype.itemsize
    return problem.k * itemsize


def chunk_rows(problem: Problem, unit: int) -> int:
    """Returns the rows of a chunk, a multiple of ``unit``."""
    least = -(-CHUNK_BYTES // row_bytes(problem))
    return -(-max(least, -(-problem.rows // CHUNKS)) // unit) * unit


def send_by_copies(shared: Workspace, problem: Problem, x: Tensor, chunk: int, stride: int, value: int) -> None:
    """Start copies of ``x`` to all other ranks, chunk by chunk, those that need it first before others; each chunk's
    flag becomes ``value``. Flags of a rank begin at multiples of ``stride``."""
    row = row_bytes(problem)
    own = shared.rank * problem.rows * row
    for number, first in enumerate(range(0, problem.rows, chunk)):
        offset, nbytes = first * row, min(chunk, problem.rows - first) * row
        for step in range(1, problem.ranks):
            peer = (shared.rank - step) % problem.ranks
            target = shared.pointers[peer] + own + offset
            shared.copy(target, x.data_ptr() + offset, nbytes, shared.sends)
            shared.signal(peer, shared.rank * stride + number, value, shared.sends)


def gather_parts(multiply: Multiply, shared: Workspace, problem: Problem) -> Run:
    shared.reserve(problem.ranks * problem.rows * row_bytes(problem))

    def run(x: Tensor, weights: list[Tensor], outs: list[Tensor]) -> None:
        stream = shared.stream()
        shared.start(shared.digest(problem), problem.ranks, stream)
        shared.order(stream, shared.sends, 0)
        send_by_copies(shared, problem, x, problem.rows, 1, 1)
        for weight, out in zip(weights, outs, strict=True):
            multiply(x, weight, out[shared.rank])
        for source in others(shared):
            shared.wait(source, 1, source, stream)
        multiply_others(multiply, shared, problem, weights, outs)
        shared.order(shared.sends, stream, 1)

    return run


def others(shared: Workspace) -> list[int]:
    """Returns the other ranks in the order in which their rows arrive."""
    return [(shared.rank + step) % shared.ranks for step in range(1, shared.ranks)]


def multiply_others(
    multiply: Multiply, shared: Workspace, problem: Problem, weights: list[Tensor], outs: list[Tensor]
) -> None:
    """Multiply the rows of all other ranks, which have arrived."""
    gathered = shared.view(0, (problem.ranks, problem.rows, problem.k), problem.dtype)
    for source in others(shared):
        for weight, out in zip(weights, outs, strict=True):
            multiply(gathered[source], weight, out[source])


class Fused:
    """An engine with the kernel of all-gather and GEMM, one launch for each weight; `launch` lacks only addresses."""

    def __init__(self, config: Config, send: bool, shared: Workspace, problem: Problem) -> None:
        self.shared, self.problem, self.config, self.send = shared, problem, config, send
        shared.reserve(problem.ranks * problem.rows * row_bytes(problem))
        sms, rows, k = shared.gpu.spec.sms, problem.rows, problem.k
        self.plans = [plan_gather(config, problem.ranks, rows, n, k, sms=sms) for n in problem.columns]
        _, (self.tiles_m, _, self.tiles_k), _ = self.plans[0]
        self.chunk = 1 if send else chunk_rows(problem, config.tile[0]) // config.tile[0]
        self.launch = functools.lru_cache(KEPT_LAUNCHES)(self._bind)

    def __call__(self, x: Tensor, weights: list[Tensor], outs: list[Tensor]) -> None:
        shared, stream, send = self.shared, self.shared.stream(), self.send
        shared.start(shared.digest(self.problem), self.problem.ranks * self.tiles_m, stream)
        if not send:
            shared.order(stream, shared.sends, 0)
            send_by_copies(shared, self.problem, x, self.chunk * self.config.tile[0], self.tiles_m, self.tiles_k)
        for number, (weight, out) in enumerate(zip(weights, outs, strict=True)):
            if send and number:
                multiply(x, weight, out[shared.rank])
            else:
                self.launch(number, x.data_ptr(), weight.data_ptr(), weight.stride(), out.data_ptr(), stream)()
        if not send:
            shared.order(shared.sends, stream, 1)
        elif len(weights) > 1:
            multiply_others(multiply, shared, self.problem, weights[1:], outs[1:])

    def _bind(self, number: int, x: int, weight: int, steps: tuple[int, int], out: int, stream: int) -> cuda.Launch:
        problem, shared, (grid, tiles, group) = self.problem, self.shared, self.plans[number]
        rows, k, n, major = problem.rows, problem.k, problem.columns[number], problem.majors[number]
        dtype, kernel = DTYPES[problem.dtype], kernel_of(self.config, self.send)
        config: dict[str, Any] = {"major": major, "dtype": types.of_dtype(dtype)}
        traced, far = kernel.trace(**config), steps[1 if major == "k" else 0] * dtype.itemsize
        extents = (n, k) if major == "k" else (k, n)
        values = {
            "a": dense_map(traced, "a", x, (rows, k), dtype),
            "gathered": self._gathered(traced),
            "arrived": shared.block(shared.flags),
            "begun": shared.block(shared.begun),
            "calls": shared.calls,
            **shared.limit,
            "b": strided_map(traced, "b", weight, extents, (far, dtype.itemsize), dtype),
            "d": dense_map(traced, "d", out, (problem.ranks, rows, n), dtype),
            "chunk": self.chunk,
            "group": group,
            **dict(zip(("tiles_m", "tiles_n", "tiles_k"), tiles, strict=True)),
        }
        return launch_at(shared.gpu, kernel, grid, values, stream, **config)

    def _gathered(self, traced: Traced) -> bytes:
        """Returns the tensor maps over the gathered rows of all ranks."""
        problem = self.problem
        shape, dtype = (problem.ranks, problem.rows, problem.k), DTYPES[problem.dtype]
        maps = [dense_map(traced, "gathered", pointer, shape, dtype) for pointer in self.shared.pointers]
        return pack_peers(maps, self.shared.rank)


TILES = ("128x256", "128x192", "128x128")
ENGINES: dict[str, Engine] = {
    "in turn": gather_in_turn,
    "parts": functools.partial(gather_parts, multiply),
    "parts torch": functools.partial(gather_parts, multiply_by_torch),
    **{f"copies {tile}": functools.partial(Fused, CONFIGS[tile], False) for tile in TILES},
    "sends 128x256": functools.partial(Fused, SENDING, True),
}
