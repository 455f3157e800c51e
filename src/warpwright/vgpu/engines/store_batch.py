"""Batches of tensor stores of one instruction: those of all warps that are in flight together.

Bulk stores complete in any order. Of those in flight, machine code completes the plain ones: a whole box inside the
tensor, from the CTA's own shared memory, at a legal address, through the map and at the offset in the swizzle pattern
of the first one. `tensor_copy` completes the others one by one, and raises their errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.layout.tensor_map_bytes import MAP_BYTES
from warpwright.vgpu.engines.box import chunks, geometry
from warpwright.vgpu.engines.box_batch import BRIEF_BYTES, first_op, last_address
from warpwright.vgpu.engines.copy import ENGINES
from warpwright.vgpu.engines.op import Fabric
from warpwright.vgpu.engines.tensor_copy import ALIGNMENT, copy_box, form_of
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.program.memory_map import RESERVED_SHARED
from warpwright.vgpu.program.operation import HEAD_WORDS
from warpwright.vgpu.program.program import Inst

__all__ = ["Stores", "is_plain_store"]

_MOST = 64  # plans
_LONGEST_PERIOD = 1024  # bytes after which any swizzle repeats
IntArray = NDArray[np.int64]


def is_plain_store(inst: Inst) -> bool:
    """Whether an instruction stores boxes of tile mode."""
    stores = ENGINES.get(inst.name) is copy_box and "src_mem" in inst.columns
    return stores and inst["mode"] in ("", "tile")


class _Plan(NamedTuple):
    """What stores of one instruction, map and offset in the swizzle pattern share. ``place``: the bytes of the map in
    memory, which were ``raw``; ``words`` of `store_boxes`, at ``words_at``, which name ``kept``."""

    place: NDArray[np.uint8]
    raw: bytes
    nbytes: int
    kept: tuple[Any, ...]
    words: IntArray
    words_at: int


class Stores:
    """Completes plain stores and caches their plans. ``left``: room for the numbers of stores that are not plain."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int, int], _Plan] = {}
        self.left = np.empty(0, np.int64)

    def complete(self, fabric: Fabric, inst: Inst, rows: NDArray[np.uint64], numbers: IntArray) -> IntArray:
        """Complete the plain stores among those of one instruction, one record and number each. Returns which of them
        are not plain; nothing has been done for these."""
        address, source = (rows.item(0, HEAD_WORDS + inst.columns[name].start) for name in ("map", "src_mem"))
        key = inst.index, address, source % _LONGEST_PERIOD
        plan = self.plans.get(key)
        if plan is None or plan.place.tobytes() != plan.raw:
            plan = _resolve(fabric, inst, rows, numbers.item(0))
            if plan is None:
                return np.arange(len(rows))
            if len(self.plans) >= _MOST:
                self.plans.clear()
            self.plans[key] = plan
        left = self._store(fabric, plan, rows)
        if fabric.tells_updates:
            fabric.note_maps(np.delete(numbers, left), address)
        return left

    def _store(self, fabric: Fabric, plan: _Plan, rows: NDArray[np.uint64]) -> IntArray:
        """Complete the stores that the plan fits. Returns the numbers of the others."""
        if len(self.left) < len(rows):
            self.left = np.empty(len(rows), np.int64)
        store, places = function("store_boxes", len(rows) * plan.nbytes <= BRIEF_BYTES), (rows, self.left)
        at, left = (each.ctypes.data for each in places)
        return self.left[: store(at, len(rows), plan.words_at, fabric.computes, left)]


def _resolve(fabric: Fabric, inst: Inst, rows: NDArray[np.uint64], number: int) -> _Plan | None:
    op, form = first_op(inst, rows, number), form_of(inst.opcode)
    bound, place = fabric.tensor_map(op, op["map"]), fabric.global_memory(op, op["map"], MAP_BYTES)
    box = geometry(bound.map)
    if box.rank != form.dims or box.corners or box.packed or box.interleave != "none":
        return None
    phase = op["src_mem"] % box.period
    copies = chunks(box, phase, None)
    if phase % ALIGNMENT:
        return None
    coords, where, source = (inst.columns[name].start + HEAD_WORDS for name in ("coords", "map", "src_mem"))
    tensor = box.rank, coords, box.size, bound.host, last_address(bound, box, copies)
    operands = where, op["map"], source
    shared = fabric.shared_host, fabric.shared_stride, phase, box.period - 1
    limits = RESERVED_SHARED + phase - copies.low, fabric.shared_limit + phase - copies.high
    indices = copies.shared_at, copies.tensor_at, copies.count
    words = np.array([*tensor, *operands, *shared, *limits, *indices, *box.latest, *box.pitches], np.int64)
    return _Plan(place, place.tobytes(), box.nbytes, (copies, bound), words, words.ctypes.data)
