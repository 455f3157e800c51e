"""Many tensor loads of one instruction at once: the stages of a ring that are in flight together.

Loads complete in no particular order, so those of one instruction and tensor map are taken together when all is as
usual: whole boxes inside the tensor, the same place in the swizzle pattern, legal addresses. Whatever is not as usual
goes back to `tensor_copy`, one by one, which also says what is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.box import Geometry, chunks, geometry
from warpwright.vgpu.engines.op import BoundMap, Fabric, Op
from warpwright.vgpu.engines.tensor_copy import ALIGNMENT, TensorForm, copy_box, form_of
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import RANK_SHIFT, RESERVED_SHARED

__all__ = ["complete_loads", "is_plain_load"]

_OFFSET = (1 << RANK_SHIFT) - 1
IntArray = NDArray[np.int64]


class _Places(NamedTuple):
    """Ranks and offsets of shared addresses, one a load."""

    rank: IntArray
    offset: IntArray


def is_plain_load(op: Op) -> bool:
    """Whether an operation is a tile load to one CTA."""
    if op.inst.name != "cp.async.bulk.tensor":
        return False
    form = form_of(op.inst.opcode)
    return form.load and not form.mask and form.mode in ("", "tile")


def complete_loads(fabric: Fabric, ops: list[Op]) -> None:
    """Complete plain loads. Raises what `tensor_copy.copy_box` raises."""
    groups: dict[tuple[int, int], list[Op]] = {}
    for op in ops:
        groups.setdefault((op.inst.index, op.words[form_of(op.inst.opcode).map]), []).append(op)
    for group in groups.values():
        if len(group) == 1 or not _together(fabric, group):
            for op in group:
                copy_box(fabric, op)


def _together(fabric: Fabric, ops: list[Op]) -> bool:
    """Complete the loads of one instruction and map; False, with nothing done, when one is out of the ordinary."""
    form = form_of(ops[0].inst.opcode)
    words: IntArray = np.array([op.words for op in ops], np.uint64).view(np.int64)
    bound = fabric.tensor_map(ops[0], ops[0].words[form.map])
    box = geometry(bound.map)
    if box.rank != form.dims or box.reach > len(bound.data) or box.map.interleave != "none":
        return False
    coords = words[:, form.coords].astype(np.int32).astype(np.int64)
    to, mbar = (_Places(words[:, at] >> RANK_SHIFT, words[:, at] & _OFFSET) for at in (form.shared, form.mbar))
    phase = int(to.offset[0]) % box.period
    inside = (coords >= 0).all() and (coords <= np.array(box.latest)).all()
    if not (inside and (to.offset % box.period == phase).all() and _legal(fabric, form, box, phase, ops, to, mbar)):
        return False
    _copy(fabric, box, phase, bound, coords, to)
    owners = (to.rank & ~1) | (mbar.rank & 1) if form.pair else to.rank
    fabric.complete_tx_all(ops, owners, mbar.offset, box.nbytes)
    return True


def _legal(
    fabric: Fabric, form: TensorForm, box: Geometry, phase: int, ops: list[Op], to: _Places, mbar: _Places
) -> bool:
    """Whether every destination and barrier is a place that the instruction may name."""
    plan = chunks(box, phase, None)
    first, last = to.offset.min() - phase + plan.low, to.offset.max() - phase + plan.high
    pair = mbar.rank ^ 1 if form.pair else mbar.rank
    return bool(
        phase % ALIGNMENT == 0
        and (to.rank < fabric.ranks).all()
        and (mbar.rank < fabric.ranks).all()
        and RESERVED_SHARED <= min(first, mbar.offset.min())
        and max(last, mbar.offset.max() + 8) <= fabric.shared_limit
        and (mbar.offset % 8 == 0).all()
        and ((mbar.rank == to.rank) | (pair == to.rank)).all()
        and not (form.own and any(rank != op.rank for rank, op in zip(to.rank.tolist(), ops, strict=True)))
    )


def _copy(fabric: Fabric, box: Geometry, phase: int, bound: BoundMap, coords: IntArray, to: _Places) -> None:
    plan = chunks(box, phase, None)
    targets = fabric.shared_host - phase + to.rank * fabric.shared_stride + to.offset
    sources = bound.host + coords @ np.array(box.pitches, np.int64)
    copy = function("copy_boxes")
    copy(targets.ctypes.data, sources.ctypes.data, len(targets), plan.shared_at, plan.tensor_at, plan.count)
