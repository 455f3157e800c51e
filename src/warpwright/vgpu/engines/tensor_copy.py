"""Copies of boxes between tensors and shared memory: cp.async.bulk.tensor and cp.reduce.async.bulk.tensor.

PTX ISA 9.1 sections 9.7.9.27.1.2 and 9.7.9.27.1.3, tile mode.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import MemoryFault, ProtocolError, UnsupportedInstruction
from warpwright.types import tf32
from warpwright.vgpu.engines.box import CHUNK, Chunks, Extents, Geometry, chunks, elements, geometry, window
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.place import barrier, check_inside, ctas_of, locate
from warpwright.vgpu.engines.reduce import TENSOR_TYPES, combine, dtype_of
from warpwright.vgpu.jit.runtime import function

__all__ = ["ALIGNMENT", "TensorForm", "coordinates", "copy_box", "form_of", "reduce_box"]

ALIGNMENT = 128
_ADDRESSES = 1 << 64  # an address is a sum modulo this


class TensorForm(NamedTuple):
    """The fields of an opcode."""

    load: bool
    dims: int
    pair: bool
    own: bool
    mode: str
    op: str


@cache
def form_of(opcode: str) -> TensorForm:
    """The form of an opcode of cp.async.bulk.tensor or cp.reduce.async.bulk.tensor."""
    match = isa.match(opcode)
    assert match is not None
    load = match["dst"] != "global"
    return TensorForm(
        load=load,
        dims=int(match["dim"][0]),
        pair=load and match["group"] == "cta_group::2",
        own=match["dst"] == "shared::cta",
        mode=match["mode"],
        op=match["op"] if match.form.name.startswith("cp.reduce") else "",
    )


def coordinates(op: Op) -> list[int]:
    """The coordinates of the box in the tensor, innermost dimension first; negative coordinates are outside."""
    return [((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000 for word in op.vector("coords")]


class _Box(NamedTuple):
    """One copy, resolved. ``data``: memory that has every byte of the tensor that the copy touches, at ``host``;
    ``origin``: bytes from there to the box, which may begin outside the tensor."""

    data: NDArray[np.uint8]
    host: int
    geometry: Geometry
    extents: Extents | None
    origin: int
    rank: int
    offset: int
    phase: int


def copy_box(fabric: Fabric, op: Op) -> None:
    """Complete a tensor load or store: data first, then complete_tx on the mbarrier of every destination."""
    form = form_of(op.inst.opcode)
    box = _resolve(fabric, op, form)
    if not form.load:
        return _store(fabric, op, box)
    mbar_rank, mbar = barrier(fabric, op, op["mbar"])
    _check_barrier(fabric, op, form, box.rank, mbar_rank)
    ranks = ctas_of(fabric, op, op["mask"]) if "mask" in op else (box.rank,)
    for rank in ranks:
        _load(fabric, op, box, rank)
        owner = (rank & ~1) | (mbar_rank & 1) if form.pair else rank
        fabric.complete_tx(op, owner, mbar, box.geometry.nbytes)
    return None


def _resolve(fabric: Fabric, op: Op, form: TensorForm) -> _Box:
    if form.mode not in ("", "tile"):
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"mode .{form.mode} is not executed by the virtual GPU; expected .tile; use one tile copy for each row",
        )
    bound = fabric.tensor_map(op, op["map"])
    box = geometry(bound.map)
    if box.rank != form.dims:
        raise fabric.failure(
            ProtocolError,
            op,
            f".{form.dims}d is given a tensor map of {box.rank} dimensions; expected .{box.rank}d and "
            f"{box.rank} coordinates, or a map of {form.dims} dimensions",
        )
    if box.interleave != "none":
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"the tensor map has interleave {box.interleave!r}; expected 'none'; the virtual GPU executes no other",
        )
    coords = coordinates(op)
    _check_start(fabric, op, form, box, coords)
    rank, offset = locate(fabric, op, op["dst_mem" if form.load else "src_mem"], "address of the box")
    _check_place(fabric, op, form, box, rank, offset)
    origin = sum([coord * pitch for coord, pitch in zip(coords, box.pitches, strict=True)])
    extents, phase = window(box, coords), offset % box.period
    data, host = bound.data, bound.host
    if box.reach > len(data):
        low, data = _touched(fabric, op, chunks(box, phase, extents), bound.address + origin)
        origin, host = -low, data.ctypes.data
    return _Box(data, host, box, extents, origin, rank, offset, phase)


def _touched(fabric: Fabric, op: Op, plan: Chunks, start: int) -> tuple[int, NDArray[np.uint8]]:
    """Returns the memory that a box at address ``start`` touches, and its place relative to the box, for a map that
    describes more than is allocated. Raises MemoryFault if that memory is not inside one allocation."""
    places = np.concatenate([plan.tensor * CHUNK, plan.tensor * CHUNK + CHUNK - 1, plan.tensor_bytes])
    if not len(places):
        return 0, np.empty(0, np.uint8)
    low, end = int(places.min()), int(places.max()) + 1
    return low, fabric.global_memory(op, (start + low) % _ADDRESSES, end - low)


def _check_start(fabric: Fabric, op: Op, form: TensorForm, box: Geometry, coords: list[int]) -> None:
    """Check the start coordinates: an H200 stops with an illegal instruction, PTX does not specify it."""
    if coords[0] * box.size % CHUNK:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the innermost coordinate is {coords[0]}, {coords[0] * box.size} bytes; expected a multiple of {CHUNK} "
            f"bytes, {CHUNK // box.size} elements",
        )
    if not form.load and min(coords) < 0:
        raise fabric.failure(
            ProtocolError,
            op,
            f"a box is stored at coordinates {tuple(coords)}, innermost first; expected none below 0; only loads "
            "may start outside the tensor",
        )


def _check_place(fabric: Fabric, op: Op, form: TensorForm, box: Geometry, rank: int, offset: int) -> None:
    what = "destination" if form.load else "source"
    if offset % ALIGNMENT:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the {what} of the box is at offset {offset} of shared memory; expected a multiple of {ALIGNMENT}; "
            "align the buffer",
        )
    if box.nbytes > fabric.shared_limit:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the box has {box.nbytes} bytes; expected at most the {fabric.shared_limit} bytes of shared memory; use a "
            "smaller box",
        )
    if (form.own or not form.load) and rank != op.rank:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the {what} is shared memory of CTA {rank}; expected that of CTA {op.rank}, which .shared::cta names; "
            + ("use .shared::cluster" if form.load else "store from the CTA's own shared memory"),
        )


def _check_barrier(fabric: Fabric, op: Op, form: TensorForm, rank: int, mbar_rank: int) -> None:
    if mbar_rank == rank or (form.pair and mbar_rank == rank ^ 1):
        return
    raise fabric.failure(
        ProtocolError,
        op,
        f"the mbarrier is in CTA {mbar_rank} and the destination in CTA {rank}; expected the mbarrier in "
        + (
            f"CTA {rank} or {rank ^ 1}, a pair" if form.pair else "the same CTA; use .cta_group::2 for that of the pair"
        ),
    )


def _load(fabric: Fabric, op: Op, box: _Box, rank: int) -> None:
    plan = chunks(box.geometry, box.phase, box.extents)
    base = box.offset - box.phase
    check_inside(fabric, op, "destination of the box", rank, base + plan.low, plan.high - plan.low)
    if not fabric.computes:
        return
    to = fabric.shared_host + rank * fabric.shared_stride + base
    copy = function("copy_chunks")
    if plan.count:
        copy(to, plan.shared_at, box.host + box.origin, plan.tensor_at, plan.count)
    if len(plan.fill):
        copy(to, plan.fill_at, box.geometry.pattern_at, plan.same_at, len(plan.fill))
        if len(plan.shared_bytes):
            fabric.shared[rank][base + plan.shared_bytes] = box.data[box.origin + plan.tensor_bytes]
    if box.geometry.dtype is tf32:
        _round_to_tf32(fabric.shared[rank][base : base + plan.high], plan)


def _round_to_tf32(data: NDArray[np.uint8], plan: Chunks) -> None:
    """Round float32 to the nearest tf32, ties to even; every NaN becomes the same NaN (seen on an H200)."""
    floats = data.view(np.uint32)
    whole = plan.shared[:, None] * (CHUNK // 4) + np.arange(CHUNK // 4)
    inside = np.union1d(whole, plan.shared_bytes // 4)
    words = floats[inside]
    nearest = (words + (0xFFF + (words >> 13 & 1))) & 0xFFFFE000
    floats[inside] = np.where(words & 0x7FFFFFFF > 0x7F800000, 0x7FFFE000, nearest)


def _store(fabric: Fabric, op: Op, box: _Box) -> None:
    plan = chunks(box.geometry, box.phase, box.extents)
    base = box.offset - box.phase
    check_inside(fabric, op, "source of the box", box.rank, base + plan.low, plan.high - plan.low)
    if not fabric.computes:
        return
    source = fabric.shared_host + box.rank * fabric.shared_stride + base
    if plan.count:
        function("copy_chunks")(box.host + box.origin, plan.tensor_at, source, plan.shared_at, plan.count)
    if len(plan.shared_bytes):
        box.data[box.origin + plan.tensor_bytes] = fabric.shared[box.rank][base + plan.shared_bytes]


def reduce_box(fabric: Fabric, op: Op) -> None:
    """Complete a tensor reduction; elements outside the tensor keep their values."""
    form = form_of(op.inst.opcode)
    box = _resolve(fabric, op, form)
    type = box.geometry.dtype.name
    if type not in TENSOR_TYPES[form.op]:
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f".{form.op} is given a tensor map of {type} elements; expected {', '.join(TENSOR_TYPES[form.op])}",
        )
    plan = elements(box.geometry, box.phase, box.extents)
    base = box.offset - box.phase
    check_inside(fabric, op, "source of the box", box.rank, base + plan.low, plan.high - plan.low)
    if not fabric.computes:
        return
    values, first = _as_elements(fabric.shared[box.rank], base, dtype_of(type))
    target, origin = _as_elements(box.data, box.origin, dtype_of(type))
    with fabric.global_lock:
        for source, cells in plan.rounds:
            at = origin + cells
            target[at] = combine(form.op, target[at], values[first + source])


def _as_elements(data: NDArray[np.uint8], offset: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """Memory as elements, and the number of the element at ``offset``, which may precede the first."""
    usable = len(data) // dtype.itemsize * dtype.itemsize
    return data[:usable].view(dtype), offset // dtype.itemsize
