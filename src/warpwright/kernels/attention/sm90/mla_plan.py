"""The configuration of the Hopper decoding of multi-head latent attention as data, and its launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from warpwright.kernels.attention.problem import LATENT_DIM, LATENT_VALUES, Problem
from warpwright.kernels.attention.sm90 import decode_plan
from warpwright.kernels.attention.sm90.decode_plan import COMBINE_THREADS, QUAD, DecodeConfig
from warpwright.kernels.attention.sm90.plan import CONTROL_BYTES, STRIP

__all__ = ["CONFIG", "REGISTERS", "MlaConfig", "MlaPlan", "plan"]

REGISTERS = 64, 128, 160  # of a thread that loads, one of scores, one of values: with two groups of these all 512
COMBINE_CTAS = 1320  # of the second launch: ten an SM, two waves of the five that are resident


@dataclass(frozen=True, slots=True)
class MlaConfig(DecodeConfig):
    """One configuration of `warpwright.kernels.attention.sm90.mla.attention_mla`.

    ``head_dim`` is that of O and of the values, the first columns of rows of ``latent`` columns. ``keys`` are those of
    a block, ``stages`` those of the ring of latent rows, ``weight_stages`` those of the ring of weights P. ``places``
    as for `DecodeConfig`. The first ``q_steps`` blocks of 16 columns of Q are in registers, where wgmma reads no shared
    memory for them, the others in shared memory. A second launch combines the parts of tiles.
    """

    latent: ClassVar[int] = LATENT_DIM

    head_dim: int = LATENT_VALUES
    keys: int = 32
    stages: int = 4
    places: int = 1
    last: bool = False
    weight_stages: int = 2
    q_steps: int = 6

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes."""
        of_rows = self.latent * (STRIP + self.stages * self.keys)
        return 2 * CONTROL_BYTES + 2 * (of_rows + self.weight_stages * STRIP * self.keys)


CONFIG = MlaConfig()


@dataclass(frozen=True, slots=True)
class MlaPlan:
    """One launch of ``kernel_of(config)`` of `sm90.mla`, and where ``combine_grid`` says so one of
    ``combine_of(config)`` configured with ``by_tile``; both configured with ``causal``, ``dtype`` and the size of a
    page.

    Arguments in order, of the first: the map of q (sequences, 1, heads, q_len, 576), the ragged map of the latent rows
    (1, rows, 576); of both: the address of O, its strides of sequence, head and row in elements; the address of the
    log-sum-exp, or 0; that of a workspace of ``words`` of 32 bits; those of the block table, and of the lengths or 0;
    pages of a sequence, or its rows; the number of pages, rows from one page to the next; then ``scalars``, of the
    second launch without the last one.
    """

    config: MlaConfig
    causal: bool
    grid: tuple[int, int, int]
    combine_grid: tuple[int, int, int] | None
    by_tile: bool
    words: int
    scalars: tuple[int | float, ...]


def plan(problem: Problem, *, sms: int, equal: bool = False, config: MlaConfig = CONFIG) -> MlaPlan:
    """Returns the launches; ``problem.kv_len`` is the longest length, that of all sequences if they are ``equal``.

    The CTAs of the second launch belong to the tiles, or to the cuts between shares, whichever are fewer.
    """
    found = replace(config, places=min(config.rows, 1 << (problem.q_len - 1).bit_length()))
    dense = decode_plan.plan(problem, sms=sms, config=found)
    (count, *_), (rows, ctas, reserve, scale) = dense.grid, dense.scalars[8:]
    busy = min(dense.tiles, count - 1)
    pieces = -(-int(rows) * found.head_dim // (QUAD * COMBINE_THREADS))
    whole = count == 1 or (equal and dense.tiles % count == 0)
    return MlaPlan(
        config=found,
        causal=dense.bounds[1],
        grid=dense.grid,
        combine_grid=None if whole else (busy, max(1, min(pieces, COMBINE_CTAS // busy)), 1),
        by_tile=dense.tiles < count,
        words=dense.words,
        scalars=(problem.batch, problem.q_len, problem.heads, rows, ctas, reserve, scale),
    )
