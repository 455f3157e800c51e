"""Rows of loops that only poll: a warp that repeats the same accesses and fences tells nothing new."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.access_kinds import WEAK, accesses_by_lane, fence_of
from warpwright.vgpu.machine.events import Rows
from warpwright.vgpu.program.program import Inst

__all__ = ["kept_rows", "may_repeat"]

_LONGEST = 8  # rows of an iteration
_FEW = 64  # rows that are not looked at
_FACTORS = np.random.default_rng(0).integers(1 << 62, size=36) | 1

Bools = NDArray[np.bool_]


def may_repeat(inst: Inst) -> bool:
    """Whether an instruction that a warp repeats at once orders nothing more: an access of lanes, a fence, an exchange
    between lanes."""
    return (accesses_by_lane(inst) and not inst.form.queued) or fence_of(inst) > WEAK or inst.traits.queue == "warp"


def kept_rows(heads: Rows, tables: Rows, may: Bools) -> Bools:
    """Returns which rows of a turn to keep, so that the last iterations of a polling loop go. ``tables``: the addresses
    of each row, 0 where there is none; ``may``: the rows whose instruction may repeat."""
    kept = np.ones(len(heads), np.bool_)
    if len(heads) < _FEW:
        return kept
    with np.errstate(over="ignore"):
        keys = (heads * _FACTORS[:4]).sum(axis=1) + (tables * _FACTORS[4:]).sum(axis=1)
    for period in range(1, _LONGEST + 1):
        rows = np.flatnonzero(kept)
        kept[rows[_repeated(keys[rows], heads[rows, 0] >> 32, may[rows], period)]] = False
    return kept


def _repeated(keys: Rows, warps: Rows, may: Bools, period: int) -> Rows:
    """Returns the rows of whole iterations of ``period`` rows that equal the iteration before."""
    same = (keys[period:] == keys[:-period]) & may[period:] & (warps[period:] == warps[period - 1 : -1])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    marks = np.zeros(len(same) + 1, np.int64)
    np.add.at(marks, starts, 1)
    np.add.at(marks, starts + lengths // period * period, -1)
    return period + np.flatnonzero(np.cumsum(marks)[:-1])
