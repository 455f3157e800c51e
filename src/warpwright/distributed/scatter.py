"""The engines of matmul and reduce-scatter: each rank gets its rows of the sum of x times weight of all ranks.

An engine is a function of a workspace and a problem; what it returns runs calls of that problem. `ENGINES` has their
names.

in turn    a matmul of torch, then NCCL's reduce-scatter
parts      matmuls of the rows of one rank after the other; copy engines send the sums of all ranks so far to the next
           rank, whose matmul adds its own to them
adds …     matmuls of the rows of one rank after the other; copy engines send each to its rank, which adds all of them
halves …   as ``adds``, but a rank multiplies its own rows in two halves: it adds the sums of others to the first half
           while it multiplies the second, whose matmul begins with the sums of others
whole …    one matmul; then copy engines send the sums as in ``adds``, for so few rows that parts of them leave SMs idle
kernel …   one kernel: its tiles go to their ranks from the registers, and each rank adds those of others to its own
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from warpwright import cuda, types
from warpwright.distributed.gather import Multiply, multiply, multiply_by_torch
from warpwright.distributed.launches import DTYPES, dense_map, launch_at, strided_map
from warpwright.distributed.problem import Problem
from warpwright.distributed.workspace import Workspace
from warpwright.kernels.gemm.sm90 import CONFIGS, Config, plan_gemm
from warpwright.kernels.gemm.sm90.reduce_scatter import gemm_reduce_scatter

__all__ = ["ENGINES"]

TILE_M, TILE_N = 128, 256  # of a matmul
CHUNKS = 4  # of a rank's rows, at most
KEPT_LAUNCHES = 256
Run = Callable[[Tensor, Tensor, Tensor], None]
Engine = Callable[[Workspace, Problem], Run]


def scatter_in_turn(shared: Workspace, problem: Problem) -> Run:
    def run(x: Tensor, weight: Tensor, out: Tensor) -> None:
        sums = x.new_empty(x.shape[0], problem.columns[0])
        multiply_by_torch(x, weight, sums)
        dist.reduce_scatter_tensor(out, sums, group=shared.group)

    return run


def chunk_rows(problem: Problem, sms: int) -> int:
    """Returns the rows of a chunk: its tiles fill the SMs almost, or it is all rows of a rank."""
    across = -(-problem.columns[0] // TILE_N)
    full = max(1, sms // across) * TILE_M
    return min(problem.rows, max(full, -(-problem.rows // (CHUNKS * full)) * full))


class Exchange:
    """The sums that ranks send one another in a call: ``chunk`` rows at a time, to one of ranks - 1 slots of a rank."""

    def __init__(self, shared: Workspace, problem: Problem, chunk: int) -> None:
        self.shared, self.problem, self.main, self.events = shared, problem, 0, count()
        self.chunks = [slice(first, min(first + chunk, problem.rows)) for first in range(0, problem.rows, chunk)]
        self.row_bytes, self.slots = problem.columns[0] * problem.dtype.itemsize, problem.ranks - 1
        shared.reserve(self.slots * problem.rows * self.row_bytes)
        self.received = shared.view(0, (self.slots, problem.rows, problem.columns[0]), problem.dtype)

    def start(self) -> None:
        """Start a call on torch's current stream."""
        self.main, self.events = self.shared.stream(), count()
        flags = self.slots * len(self.chunks)
        self.shared.start(self.shared.digest(self.problem), flags, self.main, beside=True)

    def order(self, before: int, after: int) -> None:
        self.shared.order(before, after, next(self.events))

    def address(self, rank: int, slot: int, chunk: slice) -> int:
        """Returns the address of a chunk of sums in a slot of a rank."""
        offset: int = (slot * self.problem.rows + chunk.start) * self.row_bytes
        return self.shared.pointers[rank] + offset

    def send(self, sums: Tensor, rank: int, slot: int, number: int) -> None:
        """Send a chunk of sums after the work of the main stream so far."""
        chunk, stream = self.chunks[number], self.shared.sends
        self.order(self.main, stream)
        self.shared.copy(self.address(rank, slot, chunk), sums.data_ptr(), sums.numel() * sums.itemsize, stream)
        self.shared.signal(rank, slot * len(self.chunks) + number, 1, stream)

    def wait(self, slot: int, number: int, sender: int, stream: int) -> None:
        """Let a stream wait for a chunk of sums of a rank in a slot of this rank."""
        self.shared.wait(slot * len(self.chunks) + number, 1, sender, stream)

    def receive(self, out: Tensor, slot: int, number: int, sender: int) -> None:
        """Copy a chunk of sums to ``out``, which a stream of its own does when it has come; the main stream waits."""
        stream = self.shared.receives
        self.wait(slot, number, sender, stream)
        source = self.address(self.shared.rank, slot, self.chunks[number])
        self.shared.copy(out.data_ptr(), source, out.numel() * out.itemsize, stream)
        self.order(stream, self.main)

    def end(self) -> None:
        """Let the main stream wait for the copies to other ranks, which read tensors of this call."""
        self.order(self.shared.sends, self.main)


def scatter_parts(shared: Workspace, problem: Problem) -> Run:
    """Step s multiplies the rows of rank ``rank - s``; the sums of the steps before come from rank ``rank - 1``."""
    ranks = problem.ranks
    before, following = (shared.rank - 1) % ranks, (shared.rank + 1) % ranks
    exchange = Exchange(shared, problem, chunk_rows(problem, shared.gpu.spec.sms))

    def add(step: int, number: int, part: Tensor, rows: Tensor, weight: Tensor) -> None:
        """Multiply a chunk of rows, and add the sums that come from the rank before."""
        if step == 1:
            multiply(rows, weight, part)
            return
        if step == ranks:
            exchange.receive(part, step - 2, number, before)
        else:
            shared.ready(exchange.main)
            exchange.wait(step - 2, number, before, exchange.main)
        part.addmm_(rows, weight)

    def run(x: Tensor, weight: Tensor, out: Tensor) -> None:
        exchange.start()
        shared.ready(shared.receives)
        targets, every = [torch.empty_like(out), *exchange.received[: ranks - 2], out], x.view(ranks, problem.rows, -1)
        for step, target in enumerate(targets, 1):
            rows = every[(shared.rank - step) % ranks]
            for number, chunk in enumerate(exchange.chunks):
                add(step, number, target[chunk], rows[chunk], weight)
                if step < ranks:
                    exchange.send(target[chunk], following, step - 1, number)
        exchange.end()

    return run


def scatter_adds(multiply: Multiply, whole: bool, shared: Workspace, problem: Problem) -> Run:
    """Step s multiplies the rows of rank ``rank + s``, or with ``whole`` has them; this rank's own come last."""
    ranks, exchange = problem.ranks, Exchange(shared, problem, problem.rows)

    def run(x: Tensor, weight: Tensor, out: Tensor) -> None:
        exchange.start()
        every, sums = x.view(ranks, problem.rows, -1), out.new_empty(ranks, *out.shape)
        if whole:
            multiply(x, weight, sums.view(x.shape[0], -1))
        for step in range(1, ranks):
            rank = (shared.rank + step) % ranks
            if not whole:
                multiply(every[rank], weight, sums[rank])
            exchange.send(sums[rank], rank, step - 1, 0)
        if not whole:
            multiply(every[shared.rank], weight, sums[shared.rank])
        shared.ready(exchange.main)
        for slot in range(ranks - 1):
            exchange.wait(slot, 0, (shared.rank - 1 - slot) % ranks, exchange.main)
            torch.add(out if slot else sums[shared.rank], exchange.received[slot], out=out)
        exchange.end()

    return run


def half_rows(problem: Problem) -> int:
    """Returns the rows of the first half of a rank's rows, a multiple of a tile's."""
    return -(-problem.rows // (2 * TILE_M)) * TILE_M


class Halves:
    """An engine: step s multiplies the rows of rank ``rank + s``; then come the halves of this rank's own rows."""

    def __init__(self, multiply: Multiply, shared: Workspace, problem: Problem) -> None:
        self.multiply, self.shared, self.problem = multiply, shared, problem
        self.exchange = Exchange(shared, problem, half_rows(problem))
        *self.first, self.last = range(len(self.exchange.chunks))  # of few rows all are the last half

    def __call__(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        exchange, (beside, after, *_) = self.exchange, self.shared.side
        exchange.start()
        for stream in (beside, after):
            self.shared.ready(stream)
        every, sums = x.view(self.problem.ranks, self.problem.rows, -1), out.new_empty(self.problem.ranks, *out.shape)
        self._send_others(every, weight, sums)
        own, own_sums, rows = every[self.shared.rank], sums[self.shared.rank], exchange.chunks[self.last]
        with self.shared.beside(0):
            self._add_others(self.last, None, out[rows])
        for number in self.first:
            part = exchange.chunks[number]
            self.multiply(own[part], weight, own_sums[part])
            exchange.order(exchange.main, after)
            with self.shared.beside(1):
                self._add_others(number, own_sums[part], out[part])
        exchange.order(beside, exchange.main)
        out[rows].addmm_(own[rows], weight)
        exchange.order(after, exchange.main)
        exchange.end()

    def _send_others(self, every: Tensor, weight: Tensor, sums: Tensor) -> None:
        """Multiply the rows of the other ranks and send them the sums, first the half that they need first."""
        for step in range(1, self.problem.ranks):
            rank = (self.shared.rank + step) % self.problem.ranks
            self.multiply(every[rank], weight, sums[rank])
            for number in (self.last, *self.first):
                self.exchange.send(sums[rank][self.exchange.chunks[number]], rank, step - 1, number)

    def _add_others(self, number: int, start: Tensor | None, out: Tensor) -> None:
        """Write to ``out`` the sums of other ranks of a half, and ``start``, on torch's current stream."""
        rank, ranks = self.shared.rank, self.problem.ranks
        for slot in range(ranks - 1):
            self.exchange.wait(slot, number, (rank - 1 - slot) % ranks, self.shared.stream())
            received = self.exchange.received[slot, self.exchange.chunks[number]]
            if slot == 0 and start is None:
                out.copy_(received)
            else:
                torch.add(out if slot else start, received, out=out)


def entries_of(config: Config, problem: Problem) -> int:
    """Returns the number of tiles that other ranks send to a rank."""
    tiles = -(-problem.rows // config.tile[0]) * -(-problem.columns[0] // config.tile[1])
    return (problem.ranks - 1) * tiles


def partial_bytes(config: Config, problem: Problem) -> int:
    itemsize: int = problem.dtype.itemsize
    return entries_of(config, problem) * config.tile[0] * config.tile[1] * itemsize


class Fused:
    """An engine with the kernel of GEMM and reduce-scatter; `launch` lacks only addresses."""

    def __init__(self, config: Config, shared: Workspace, problem: Problem) -> None:
        self.shared, self.problem, self.config = shared, problem, config
        shared.reserve(partial_bytes(config, problem))
        self.entries = entries_of(config, problem)
        self.launch = functools.lru_cache(KEPT_LAUNCHES)(self._bind)

    def __call__(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        stream = self.shared.stream()
        self.shared.start(self.shared.digest(self.problem), self.entries, stream)
        self.launch(x.data_ptr(), weight.data_ptr(), weight.stride(1), out.data_ptr(), stream)()

    def _bind(self, x: int, weight: int, step: int, out: int, stream: int) -> cuda.Launch:
        problem, shared, dtype = self.problem, self.shared, DTYPES[self.problem.dtype]
        ranks, rows, k, n, sms = problem.ranks, problem.rows, problem.k, problem.columns[0], shared.gpu.spec.sms
        scalar, kernel = types.of_dtype(dtype), gemm_reduce_scatter
        config: dict[str, Any] = {"config": self.config, "dtype": scalar, "out": scalar, "partial": scalar}
        traced, found = kernel.trace(**config), plan_gemm(self.config, rows, n, k, sms=sms)
        tiles = ranks * found.tiles[0] * found.tiles[1]
        values = {
            "a": dense_map(traced, "a", x, (ranks, rows, k), dtype),
            "b": strided_map(traced, "b", weight, (n, k), (step * dtype.itemsize, dtype.itemsize), dtype),
            "d": dense_map(traced, "d", out, (rows, n), dtype),
            "partials": shared.block(shared.pointers),
            "arrived": shared.block(shared.flags),
            "begun": shared.block(shared.begun),
            "calls": shared.calls,
            **shared.limit,
            "scale_a": 0,
            "scale_b": 0,
            "alpha": 1.0,
            **dict(zip(("tiles_m", "tiles_n", "tiles_k"), found.tiles, strict=False)),
        }
        grid = -(-tiles // -(-tiles // sms)), 1, 1
        return launch_at(shared.gpu, kernel, grid, values, stream, **config)


TILES = ("128x256", "128x192", "128x128")
ENGINES: dict[str, Engine] = {
    "in turn": scatter_in_turn,
    "parts": scatter_parts,
    "adds": functools.partial(scatter_adds, multiply, False),
    "adds torch": functools.partial(scatter_adds, multiply_by_torch, False),
    "halves": functools.partial(Halves, multiply),
    "halves torch": functools.partial(Halves, multiply_by_torch),
    "whole": functools.partial(scatter_adds, multiply, True),
    "whole torch": functools.partial(scatter_adds, multiply_by_torch, True),
    **{f"kernel {tile}": functools.partial(Fused, CONFIGS[f"{tile} alone"]) for tile in TILES},
}
