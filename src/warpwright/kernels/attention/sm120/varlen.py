"""Attention with mma.sync for packed sequences of any lengths: rows ``cu_q[i]`` to ``cu_q[i + 1]`` of Q are the queries
of sequence i, rows ``cu_k[i]`` to ``cu_k[i + 1]`` of K and V its keys. The roles are those of `sm120.kernel`.
"""

from __future__ import annotations

from functools import cache

from warpwright.kernels.attention.sequences import find_sequence, rows_of
from warpwright.kernels.attention.sm120.kernel import forward
from warpwright.kernels.attention.sm120.plan import CONFIGS, UNBOUNDED, Config
from warpwright.kernels.attention.sm120.steps import Mask, RaggedCopies
from warpwright.lang import (
    Global,
    If,
    Kernel,
    bf16,
    ctaid,
    f32,
    kernel,
    nctaid,
    s32,
    select,
    tma,
    u32,
    u64,
)
from warpwright.layout.tensor_map import RAGGED_ROWS
from warpwright.types import Scalar

__all__ = ["attention_varlen", "kernel_of"]


@kernel("sm_120a", threads=160)
def attention_varlen(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    cu_q: u64,
    cu_k: u64,
    sequences: u32,
    total_q: u32,
    total_k: u32,
    left: s32,
    right: s32,
    group: u32,
    factor: f32,
    *,
    config: Config = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 160,
) -> None:
    """A CTA for each tile of queries of a sequence, the last tiles first; a CTA without a tile exits.

    The maps are ragged (`warpwright.layout.tensor_map.ragged`), so that no tile reads or writes rows of the next
    sequence.
    """
    rows, head, number = config.tile[0], ctaid.y, nctaid.x - 1 - ctaid.x
    index = find_sequence(Global(u32, cu_q), sequences, total_q, rows, number)
    first_query, stop_query = rows_of(Global(u32, cu_q), index, total_q)
    first_key, stop_key = rows_of(Global(u32, cu_k), index, total_k)
    queries, keys = stop_query - first_query, stop_key - first_key
    top = (number - (first_query // rows + index)) * rows
    with If(top < queries):
        window = [bound if given else UNBOUNDED for bound, given in zip((left, right), bounds, strict=True)]
        of_q, of_k = (RAGGED_ROWS, stop_query, head), (RAGGED_ROWS, stop_key, head // group)
        source = RaggedCopies(
            {"q": q, "k": k, "v": v, "o": o},
            {"q": of_q, "k": of_k, "v": of_k, "o": of_q},
            {"q": queries, "k": keys, "v": keys, "o": queries},
        )
        place = (head * total_q + first_query).to(u64) * f32.nbytes
        mask = Mask(queries.to(s32), keys.to(s32), *window)
        forward(source, mask, top.to(s32), select(lse != 0, lse + place, 0), factor, config, dtype)


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention_varlen.configure(config=config, threads=config.threads)
