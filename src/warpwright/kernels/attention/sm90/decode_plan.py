"""Configurations of the Hopper attention for few queries as data, and the parameters of a launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90.plan import CONTROL_BYTES, STRIP, WARPGROUP

__all__ = [
    "AT_ONCE",
    "COMBINE_THREADS",
    "CONFIGS",
    "MOST",
    "PAIRS",
    "QUAD",
    "Q_STAGES",
    "DecodeConfig",
    "DecodePlan",
    "choose",
    "plan",
    "suits",
]

Q_STAGES = 2  # so that keys of the next tile are loaded while this one is computed
SLOTS = 2  # of the workspace, a CTA
PER_SM = 2  # CTAs, at most
PAIR = 2  # shift and sum of weights of a row
QUAD = 4  # columns of a row that a thread combines
COMBINE_THREADS = 128
ENOUGH = 0.9  # of the SMs, if these have equal work
WORTH = 4  # parts that are combined in the time of one key block
LAST = 6  # rounds of reads, a latency each, take as long as another launch
AT_ONCE, MANY = 8, 32  # parts that are read at a time, in one latency
MOST = 2**31  # tiles times CTAs, a u32


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """One configuration of `warpwright.kernels.attention.sm90.decode.attention`.

    ``head_dim`` is that of the tiles, a multiple of 32; arrays may have fewer columns. ``keys`` are those of a block,
    ``stages`` those of the rings of K and of V. A tile has ``places`` neighbouring queries, a power of two up to 64, of
    each of 64 / ``places`` heads that share keys. With ``last`` the CTA that stores the last part of a tile combines
    the parts, else a second launch does, which reads ``at_once`` parts at a time. ``ctas_per_sm`` CTAs fit on an SM.
    """

    rows: ClassVar[int] = STRIP  # of a tile

    head_dim: int = 128
    keys: int = 64
    stages: int = 6
    places: int = 1
    last: bool = True
    at_once: int = AT_ONCE
    ctas_per_sm: int = 1

    @property
    def tile(self) -> tuple[int, int]:
        """Rows of queries, and keys of a block."""
        return self.rows, self.keys

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes."""
        return CONTROL_BYTES + 2 * self.head_dim * (Q_STAGES * STRIP + 2 * self.stages * self.keys)

    @property
    def keywords(self) -> dict[str, Any]:
        """Every option by name, for reports."""
        return asdict(self)


CONFIGS: Mapping[int, DecodeConfig] = {
    64: DecodeConfig(64, 128, 3),
    96: DecodeConfig(96, 64, 4),
    128: DecodeConfig(128, 64, 3),
    192: DecodeConfig(192, 64, 2),
    256: DecodeConfig(256, 64, 2),
}
# Where each of two CTAs an SM has whole tiles. While one computes, the other one loads: an SM that is late catches up.
PAIRS: Mapping[int, DecodeConfig] = {128: DecodeConfig(128, 64, 2, ctas_per_sm=PER_SM)}


def choose(problem: Problem, known: Mapping[int, DecodeConfig] = CONFIGS) -> DecodeConfig:
    """Returns the one of the ``known`` for the head dimension of ``problem``, with ``places`` for its queries.

    More stages are no faster: about 100 KB in flight to each SM saturate memory, and the last stages to arrive remain
    to be computed.
    """
    found = next(config for width, config in known.items() if width >= problem.head_dim)
    return replace(found, places=min(found.rows, 1 << (problem.q_len - 1).bit_length()))


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """One launch of ``kernel_of(config)``, and where ``combine_grid`` says so one of ``combine_of(config)``, both
    configured with ``bounds`` and ``dtype``.

    Arguments in order, of the first: maps of q (batch, kv_heads, group, rows, head_dim), and of k and v (batch, heads,
    rows, head_dim), of any strides with dense rows, in the boxes that the traced kernel names; of both: the address of
    O, its strides of batch, head and row in elements, and head_dim; the address of the log-sum-exp
    (batch, heads, q_len) of float32, or 0; the address of a workspace of ``words`` of 32 bits, of which the first
    4 · ``sms`` are 0 before the launch and after it; then ``scalars``, of the second launch without the last one. The
    CTAs of ``grid`` split the work of ``tiles`` tiles evenly.
    """

    config: DecodeConfig
    bounds: tuple[bool, bool]
    tiles: int
    grid: tuple[int, int, int]
    combine_grid: tuple[int, int, int] | None
    words: int
    scalars: tuple[int | float, ...]


def plan(
    problem: Problem,
    *,
    sms: int,
    config: DecodeConfig | None = None,
    ctas: int | None = None,
    known: Mapping[int, DecodeConfig] = CONFIGS,
    pairs: Mapping[int, DecodeConfig] = PAIRS,
) -> DecodePlan:
    """Returns the launch for ``problem`` on a device of ``sms`` SMs, by ``config`` and ``ctas`` CTAs, or else by the
    fastest of ``known`` and ``pairs``."""
    found = config or choose(problem, known)
    bounds = _bounds(problem)
    begin, end = problem.offset - (problem.left or 0) * bounds[0], problem.offset + (problem.right or 0) * bounds[1] + 1
    heads = found.rows // found.places
    across, strips = -(-problem.group // heads), -(-problem.q_len // found.places)
    tiles = strips * across * problem.kv_heads * problem.batch
    rows = found.places * min(heads, problem.group)
    if config is None and found.head_dim in pairs and _largest_divisor(tiles, PER_SM * sms) >= ENOUGH * PER_SM * sms:
        found = replace(pairs[found.head_dim], places=found.places)
    blocks, most = _blocks(problem, found, bounds), sms * found.ctas_per_sm
    count = min(ctas or _ctas(tiles, blocks, most), most, tiles * blocks)
    pieces = -(-rows * found.head_dim // (QUAD * COMBINE_THREADS))
    if config is None:
        last = pieces * -(-count // (tiles * AT_ONCE)) <= LAST
        found = replace(found, last=last, at_once=MANY if not last and count >= tiles * MANY else AT_ONCE)
    reserve = -(-SLOTS * PER_SM * sms // QUAD) * QUAD
    extents = problem.q_len, problem.kv_len, begin, end, problem.kv_heads, problem.group, strips, tiles, rows
    return DecodePlan(
        config=found,
        bounds=bounds,
        tiles=tiles,
        grid=(count, 1, 1),
        combine_grid=(count - 1, pieces, 1) if tiles % count and not found.last else None,
        words=reserve + SLOTS * count * rows * (found.head_dim + PAIR),
        scalars=(*extents, count, reserve, problem.factor * math.log2(math.e)),
    )


def _largest_divisor(tiles: int, most: int) -> int:
    """Returns the largest divisor of ``tiles`` up to ``most``: as many CTAs have equally many whole tiles."""
    return max(count for count in range(1, most + 1) if tiles % count == 0)


def _ctas(tiles: int, blocks: int, sms: int) -> int:
    """Returns how many CTAs split ``tiles`` tiles of at least ``blocks`` key blocks.

    One CTA an SM, or a few less if each then has whole tiles or an equal part of one. A tile is not cut into more parts
    than pay off: to load and compute a block takes as long as to combine `WORTH` parts.
    """
    most = min(sms, tiles * max(1, math.isqrt(WORTH * blocks)))
    even = [count for count in range(1, most + 1) if tiles % count == 0 or count % tiles == 0]
    return even[-1] if even[-1] >= ENOUGH * most else most


def _bounds(problem: Problem) -> tuple[bool, bool]:
    """Returns whether some query does not see all keys to its left, and to its right."""
    return (
        problem.left is not None and problem.left < problem.kv_len - 1,
        problem.right is not None and problem.right < problem.q_len - 1,
    )


def _blocks(problem: Problem, config: DecodeConfig, bounds: tuple[bool, bool]) -> int:
    """Returns the smallest number of key blocks of a tile, from those of its first and last query; at least one."""
    top = np.arange(0, problem.q_len, config.places, dtype=np.int64) + problem.offset
    stop = np.full_like(top, problem.kv_len)
    if bounds[1]:
        stop = np.clip(top + config.places + (problem.right or 0), 1, problem.kv_len)
    last, first = (stop - 1) // config.keys, np.zeros_like(top)
    if bounds[0]:
        first = np.minimum(np.clip(top - (problem.left or 0), 0, problem.kv_len) // config.keys, last)
    return int((last + 1 - first).min())


def suits(problem: Problem, *, sms: int) -> bool:
    """Returns whether this kernel is faster than `sm90.forward` on a device of ``sms`` SMs: if the queries that share a
    head of keys fit into one tile, or if `sm90.forward` has tiles for at most half of the SMs."""
    together = problem.q_len * problem.group <= STRIP
    tiles = -(-problem.q_len // WARPGROUP) * problem.heads * problem.batch
    return (together or 2 * tiles <= sms) and plan(problem, sms=sms).tiles * PER_SM * sms < MOST
