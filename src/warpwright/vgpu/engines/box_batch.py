"""Batches of tensor loads of one instruction: the stages of a ring that are in flight together.

Loads complete in any order, so the loads of one instruction are batched if they are plain: one tensor map, whole boxes
inside the tensor, the same offset in the swizzle pattern, legal addresses. `tensor_copy` completes all other loads one
by one, and raises their errors. Only the coordinates differ between the rounds of a ring: addresses from the other
words are cached.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.layout.tensor_map_bytes import MAP_BYTES
from warpwright.types import tf32
from warpwright.vgpu.engines.box import CHUNK, Chunks, Geometry, chunks, geometry
from warpwright.vgpu.engines.op import BoundMap, Fabric, Op
from warpwright.vgpu.engines.tensor_copy import ALIGNMENT, TensorForm, form_of
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import RECORD_WORDS
from warpwright.vgpu.program.memory_map import RANK_SHIFT, RESERVED_SHARED
from warpwright.vgpu.program.operation import HEAD_WORDS, values
from warpwright.vgpu.program.program import Inst

__all__ = ["BRIEF_BYTES", "Loads", "first_op", "is_plain_load", "last_address"]

_OFFSET = (1 << RANK_SHIFT) - 1
_MOST = 256
BRIEF_BYTES = 1 << 19  # are copied within `runtime.BRIEF`
IntArray = NDArray[np.int64]


def is_plain_load(inst: Inst) -> bool:
    """Whether an instruction is a tile load to one CTA."""
    if "map" not in inst.columns or "dst_mem" not in inst.columns:
        return False
    return not inst["multicast"] and inst["mode"] in ("", "tile")


class _Addresses(NamedTuple):
    """What loads share whose words but the coordinates are equal. ``place``: the bytes of the tensor map in memory,
    which were ``raw``; ``barriers``: host addresses; ``plan``: words of `load_boxes`, at ``plan_at``, which name
    ``arrays``."""

    place: NDArray[np.uint8]
    raw: bytes
    nbytes: int
    barriers: IntArray
    arrays: tuple[Any, ...]
    plan: IntArray
    plan_at: int


class Loads:
    """Completes plain loads and caches their addresses."""

    def __init__(self) -> None:
        self.cache: dict[bytes, _Addresses] = {}
        self.fixed: dict[int, NDArray[np.uint64]] = {}

    def complete(self, fabric: Fabric, inst: Inst, rows: NDArray[np.uint64], numbers: IntArray) -> bool:
        """Complete the loads of one instruction, one record and number each; returns False, without effects, if a load
        is not plain."""
        key = (rows & self._fixed_words(inst)).tobytes()
        addresses = self._lookup(fabric, inst, rows, numbers, key)
        if addresses is None:
            return False
        brief = len(rows) * addresses.nbytes <= BRIEF_BYTES
        done = function("load_boxes", brief)(rows.ctypes.data, len(rows), addresses.plan_at, fabric.computes)
        if done < 0:
            return False
        if done < len(rows):
            fabric.refuse_update(inst, rows[done], int(addresses.barriers[done]), nbytes=addresses.nbytes)
        if fabric.tells_updates:
            heads = rows[:, :HEAD_WORDS].astype(np.int64)
            fabric.note_maps(numbers, _column(inst, rows, "map").item(0))
            fabric.tell_updates(heads[:, 0], numbers, heads[:, 1] >> 32, addresses.barriers, 0, addresses.nbytes)
        return True

    def _fixed_words(self, inst: Inst) -> NDArray[np.uint64]:
        """Returns a mask of the words of a record on which the addresses depend."""
        mask = self.fixed.get(inst.index)
        if mask is None:
            mask = self.fixed[inst.index] = np.zeros(RECORD_WORDS, np.uint64)
            words = [HEAD_WORDS + inst.columns[name].start for name in ("map", "dst_mem", "mbar")]
            mask[[*range(HEAD_WORDS), *words]] = ~np.uint64(0)
        return mask

    def _lookup(
        self, fabric: Fabric, inst: Inst, rows: NDArray[np.uint64], numbers: IntArray, key: bytes
    ) -> _Addresses | None:
        addresses = self.cache.get(key)
        if addresses is None or addresses.place.tobytes() != addresses.raw:
            addresses = _resolve(fabric, form_of(inst.opcode), inst, rows, numbers.item(0))
            if addresses is not None:
                if len(self.cache) >= _MOST:
                    self.cache.clear()
                self.cache[key] = addresses
        return addresses


def _column(inst: Inst, rows: NDArray[np.uint64], name: str) -> IntArray:
    """Returns an operand of every record."""
    column: IntArray = values(inst, rows.view(np.int64), name)[:, 0]
    return column


def last_address(bound: BoundMap, box: Geometry, plan: Chunks) -> int:
    """Returns the last host address at which a box is in memory, whole. A map may describe more than is allocated."""
    if box.reach <= len(bound.data):
        return np.iinfo(np.int64).max
    return bound.host + len(bound.data) - (int(plan.tensor.max()) + 1) * CHUNK


def first_op(inst: Inst, rows: NDArray[np.uint64], number: int) -> Op:
    """Returns an operation with the first of some records and the number ``number``."""
    issuer, *words = rows[0, 1:].tolist()
    return Op(inst, issuer >> 32, issuer >> 8 & 0xFFFFFF, issuer & 0xFF, words, number)


def _resolve(fabric: Fabric, form: TensorForm, inst: Inst, rows: NDArray[np.uint64], number: int) -> _Addresses | None:
    issuer = rows.view(np.int64)[:, 1] >> 32
    maps = _column(inst, rows, "map")
    if (maps != maps[0]).any():
        return None
    op = first_op(inst, rows, number)
    bound = fabric.tensor_map(op, op["map"])
    place = fabric.global_memory(op, op["map"], MAP_BYTES)
    box = geometry(bound.map)
    if box.rank != form.dims or box.corners or box.packed or box.interleave != "none" or box.dtype is tf32:
        return None
    (rank, offset), (owner, barrier) = (_place(_column(inst, rows, name)) for name in ("dst_mem", "mbar"))
    phase = int(offset[0]) % box.period
    same = (offset % box.period == phase).all() and not (form.own and (rank != issuer).any())
    if not (same and _is_legal(fabric, form, box, phase, (rank, offset), (owner, barrier))):
        return None
    signalled = (rank & ~1) | (owner & 1) if form.pair else rank
    host, stride = fabric.shared_host, fabric.shared_stride
    targets, barriers = host - phase + rank * stride + offset, host + signalled * stride + barrier
    sources, copies = np.empty_like(targets), chunks(box, phase, None)
    words = inst.columns["coords"].start + HEAD_WORDS, box.size, bound.host, last_address(bound, box, copies)
    arrays = targets.ctypes.data, sources.ctypes.data, barriers.ctypes.data
    indices = copies.shared_at, copies.tensor_at, copies.count
    plan = np.array([box.rank, *words, *arrays, box.nbytes, *indices, *box.latest, *box.pitches], np.int64)
    keep = targets, sources, copies, bound
    return _Addresses(place, place.tobytes(), box.nbytes, barriers, keep, plan, plan.ctypes.data)


def _place(addresses: IntArray) -> tuple[IntArray, IntArray]:
    """Ranks and offsets of shared addresses."""
    return addresses >> RANK_SHIFT, addresses & _OFFSET


def _is_legal(
    fabric: Fabric,
    form: TensorForm,
    box: Geometry,
    phase: int,
    to: tuple[IntArray, IntArray],
    barrier: tuple[IntArray, IntArray],
) -> bool:
    """Whether the instruction may address every destination and barrier."""
    plan = chunks(box, phase, None)
    (rank, offset), (owner, at) = to, barrier
    first, last = offset.min() - phase + plan.low, offset.max() - phase + plan.high
    pair = owner ^ 1 if form.pair else owner
    return bool(
        phase % ALIGNMENT == 0
        and (rank < fabric.ranks).all()
        and (owner < fabric.ranks).all()
        and min(first, at.min()) >= RESERVED_SHARED
        and max(last, at.max() + 8) <= fabric.shared_limit
        and (at % 8 == 0).all()
        and ((owner == rank) | (pair == rank)).all()
    )
