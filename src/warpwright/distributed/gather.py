"""The engines of all-gather and matmul: D of each weight is x of all ranks times the weight.

An engine is a function of a workspace, a problem, and the tensors; `ENGINES` has their names. ``outs`` are matrices for
each rank: (ranks, rows, N).

in turn    NCCL's all-gather, then a matmul
parts      copy engines send the rows; a matmul of this rank's rows, then one for those of each other rank
copies …   copy engines send the rows; one kernel multiplies this rank's rows first, the others as they arrive
sends …    one kernel, which also sends the rows, by TMA
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from warpwright import cuda, types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.distributed.problem import Problem
from warpwright.distributed.workspace import Workspace, function_of
from warpwright.kernels.gemm.sm90 import CONFIGS, L2_PROMOTION, Config
from warpwright.kernels.gemm.sm90.all_gather import SENDING, kernel_of, plan_gather
from warpwright.layout.peers import pack_peers
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.matmul import call as operator

__all__ = ["ENGINES", "multiply"]

CHUNKS = 4  # of a rank's rows, each with a flag, at most
CHUNK_BYTES = 4 << 20  # at least, of a chunk of several
KEPT_LAUNCHES = 256
DTYPES = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float16: np.dtype(np.float16)}
Engine = Callable[[Workspace, Problem, Tensor, list[Tensor], list[Tensor]], None]


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``out = a @ b``, of 16-bit floats by `warpwright.matmul`."""
    if a.dtype.itemsize == 2:
        operator.matmul(a, b, out=out)
    else:
        torch.mm(a, b, out=out)


def gather_in_turn(shared: Workspace, problem: Problem, x: Tensor, weights: list[Tensor], outs: list[Tensor]) -> None:
    shared.digest(problem)
    gathered = x.new_empty(problem.ranks * problem.rows, problem.k)
    dist.all_gather_into_tensor(gathered, x, group=shared.group)
    for weight, out in zip(weights, outs, strict=True):
        multiply(gathered, weight, out.view(-1, out.shape[-1]))


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


def gather_parts(shared: Workspace, problem: Problem, x: Tensor, weights: list[Tensor], outs: list[Tensor]) -> None:
    stream = shared.stream()
    chunk = problem.rows
    shared.reserve(problem.ranks * problem.rows * problem.k * x.itemsize)
    shared.start(shared.digest(problem), problem.ranks, stream)
    shared.order(stream, shared.sends, 0)
    send_by_copies(shared, problem, x, chunk, 1, 1)
    gathered = shared.view(0, (problem.ranks, problem.rows, problem.k), problem.dtype)
    for step in range(problem.ranks):
        source = (shared.rank + step) % problem.ranks
        if step:
            shared.wait(source, 1, stream)
        for weight, out in zip(weights, outs, strict=True):
            multiply(gathered[source] if step else x, weight, out[source])
    shared.order(shared.sends, stream, 1)


def gather_fused(
    config: Config,
    send: bool,
    shared: Workspace,
    problem: Problem,
    x: Tensor,
    weights: list[Tensor],
    outs: list[Tensor],
) -> None:
    stream = shared.stream()
    shared.reserve(problem.ranks * problem.rows * problem.k * x.itemsize)
    make = functools.partial(Fused, shared, problem, config, send)
    fused: Fused = shared.remember((problem, config, send), make)
    shared.start(shared.digest(problem), problem.ranks * fused.tiles_m, stream)
    if not send:
        shared.order(stream, shared.sends, 0)
        send_by_copies(shared, problem, x, fused.chunk * config.tile[0], fused.tiles_m, fused.tiles_k)
    for number, (weight, out) in enumerate(zip(weights, outs, strict=True)):
        fused.launch(number, x.data_ptr(), weight.data_ptr(), weight.stride(), out.data_ptr(), stream)()
    if not send:
        shared.order(shared.sends, stream, 1)


class Fused:
    """The kernel of all-gather and GEMM for a problem, one launch for each weight; `launch` lacks only addresses.

    Of several weights the first launch sends the rows.
    """

    def __init__(self, shared: Workspace, problem: Problem, config: Config, send: bool) -> None:
        self.shared, self.problem, self.config, self.send = shared, problem, config, send
        sms, rows, k = shared.gpu.spec.sms, problem.rows, problem.k
        self.plans = [plan_gather(config, problem.ranks, rows, n, k, sms=sms) for n in problem.columns]
        _, (self.tiles_m, _, self.tiles_k), _ = self.plans[0]
        self.chunk = 1 if send else chunk_rows(problem, config.tile[0]) // config.tile[0]
        self.launch = functools.lru_cache(KEPT_LAUNCHES)(self._bind)

    def _bind(self, number: int, x: int, weight: int, steps: tuple[int, int], out: int, stream: int) -> cuda.Launch:
        problem, shared, (grid, tiles, group) = self.problem, self.shared, self.plans[number]
        rows, k, n, major = problem.rows, problem.k, problem.columns[number], problem.majors[number]
        dtype = DTYPES[problem.dtype]
        kernel = kernel_of(self.config, self.send and number == 0)
        function, traced = function_of(shared.gpu, kernel, major=major, dtype=types.of_dtype(dtype))

        def encode(name: str, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
            use, array = traced.maps[name], DeviceArray(pointer, shape, strides, dtype, None, None)
            return cuda.encode(TensorMap(array, use.box, swizzle=use.swizzle, l2_promotion=L2_PROMOTION), pointer)

        def dense(name: str, pointer: int, *shape: int) -> bytes:
            return encode(name, pointer, shape, dense_strides(shape, dtype.itemsize))

        def gathered() -> bytes:
            maps = [dense("gathered", pointer, problem.ranks, rows, k) for pointer in shared.pointers]
            return pack_peers(maps, shared.rank)

        far = steps[1 if major == "k" else 0] * dtype.itemsize
        values = {
            "a": dense("a", x, rows, k),
            "gathered": shared.remember((problem, traced.maps["gathered"].box), gathered),
            "arrived": shared.block(shared.flags),
            "b": encode("b", weight, (n, k) if major == "k" else (k, n), (far, dtype.itemsize)),
            "d": dense("d", out, problem.ranks, rows, n),
            "tiles_m": tiles[0],
            "tiles_n": tiles[1],
            "tiles_k": tiles[2],
            "chunk": self.chunk,
            "group": group,
        }
        return function.at(grid, [values[name] for name, _ in traced.params], stream)


TILES = ("128x256", "128x192", "128x128")
ENGINES: dict[str, Engine] = {
    "in turn": gather_in_turn,
    "parts": gather_parts,
    **{f"copies {tile}": functools.partial(gather_fused, CONFIGS[tile], False) for tile in TILES},
    "sends 128x256": functools.partial(gather_fused, SENDING, True),
}
