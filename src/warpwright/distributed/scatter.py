"""The engines of matmul and reduce-scatter: each rank gets its rows of the sum of x times weight of all ranks.

An engine is a function of a workspace, a problem, and the tensors; `ENGINES` has their names.

in turn    a matmul, then NCCL's reduce-scatter
parts      matmuls of the rows of one rank after the other; copy engines send each sum to the next rank, which adds
           its own
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor

from warpwright.distributed.gather import multiply
from warpwright.distributed.problem import Problem
from warpwright.distributed.workspace import Workspace

__all__ = ["ENGINES"]

TILE_M, TILE_N = 128, 256  # of a matmul
CHUNKS = 4  # of a rank's rows, at most
Engine = Callable[[Workspace, Problem, Tensor, Tensor, Tensor], None]


def scatter_in_turn(shared: Workspace, problem: Problem, x: Tensor, weight: Tensor, out: Tensor) -> None:
    shared.digest(problem)
    sums = x.new_empty(x.shape[0], problem.columns[0])
    multiply(x, weight, sums)
    dist.reduce_scatter_tensor(out, sums, group=shared.group)


def chunk_rows(problem: Problem, sms: int) -> int:
    """Returns the rows of a chunk: its tiles fill the SMs almost, or it is all rows of a rank."""
    across = -(-problem.columns[0] // TILE_N)
    full = max(1, sms // across) * TILE_M
    return min(problem.rows, max(full, -(-problem.rows // (CHUNKS * full)) * full))


def scatter_parts(shared: Workspace, problem: Problem, x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Step s multiplies the rows of rank ``rank - s``; the sums of the steps before come from rank ``rank - 1``."""
    stream = shared.stream()
    n, ranks, itemsize = problem.columns[0], problem.ranks, x.itemsize
    chunk = chunk_rows(problem, shared.gpu.spec.sms)
    firsts, nbytes = range(0, problem.rows, chunk), problem.rows * n * itemsize
    shared.reserve((ranks - 1) * nbytes)
    shared.start(shared.digest(problem), (ranks - 1) * len(firsts), stream)
    sums, events = torch.empty_like(out), count()
    received = shared.view(0, (ranks - 1, problem.rows, n), problem.dtype)
    following = (shared.rank + 1) % ranks
    shared.order(stream, shared.receives, next(events))
    for step in range(1, ranks + 1):
        rows = x.view(ranks, problem.rows, -1)[(shared.rank - step) % ranks]
        part = sums if step == 1 else received[step - 2] if step < ranks else out
        for number, first in enumerate(firsts):
            last = min(first + chunk, problem.rows)
            own, offset, size = part[first:last], first * n * itemsize, (last - first) * n * itemsize
            flag = (step - 2) * len(firsts) + number
            if step == 1:
                multiply(rows[first:last], weight, own)
            else:
                if step == ranks:
                    shared.wait(flag, 1, shared.receives)
                    source = shared.pointers[shared.rank] + (step - 2) * nbytes + offset
                    shared.copy(out.data_ptr() + offset, source, size, shared.receives)
                    shared.order(shared.receives, stream, next(events))
                else:
                    shared.wait(flag, 1, stream)
                own.addmm_(rows[first:last], weight)
            if step < ranks:
                shared.order(stream, shared.sends, next(events))
                target = shared.pointers[following] + (step - 1) * nbytes + offset
                shared.copy(target, own.data_ptr(), size, shared.sends)
                shared.signal(following, (step - 1) * len(firsts) + number, 1, shared.sends)
    shared.order(shared.sends, stream, next(events))
    shared.order(shared.receives, stream, next(events))


ENGINES: dict[str, Engine] = {"in turn": scatter_in_turn, "parts": scatter_parts}
