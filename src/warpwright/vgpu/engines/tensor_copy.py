"""Copies of boxes between tensors and shared memory: cp.async.bulk.tensor and cp.reduce.async.bulk.tensor.

PTX ISA 9.1 sections 9.7.9.27.1.2 and 9.7.9.27.1.3, modes tile, tile::gather4, tile::scatter4, im2col
and im2col_no_offs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import MemoryFault, ProtocolError, UnsupportedInstruction
from warpwright.types import tf32
from warpwright.vgpu.engines.box import CHUNK, Chunks, Extents, Geometry, Lines, chunks, elements, geometry
from warpwright.vgpu.engines.op import BoundMap, Fabric, Op
from warpwright.vgpu.engines.pixels import offset_limit, outside_corners, part_inside
from warpwright.vgpu.engines.place import barrier, check_inside, ctas_of, locate
from warpwright.vgpu.engines.reduce import TENSOR_TYPES, combine, dtype_of
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.program.operation import FOUR_ROWS, box_count

__all__ = ["ALIGNMENT", "TensorForm", "copy_box", "filter_offsets", "form_of", "reduce_box", "starts"]

ALIGNMENT = 128
MODES = ("", "tile", *FOUR_ROWS, "im2col", "im2col_no_offs")
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


def starts(op: Op, box: Geometry) -> list[list[int]]:
    """Returns the coordinates of every box of a copy, innermost dimension first, of packed types in bytes; negative
    coordinates are outside."""
    first, *rest = _coordinates(op)
    first = first * box.packed // 8 if box.packed else first
    return [[first, row] for row in rest] if op.inst["mode"] in FOUR_ROWS else [[first, *rest]]


def _coordinates(op: Op) -> list[int]:
    return [((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000 for word in op.vector("coords")]


def filter_offsets(op: Op) -> list[int]:
    """Returns the offsets of the filter in im2col mode, innermost dimension first; [] in tile mode."""
    if op.inst["mode"] == "im2col_no_offs":
        return [0] * (len(op.vector("coords")) - 2)
    return [word & 0xFFFF for word in op.vector("offsets")]


class _Box(NamedTuple):
    """One box of a copy, resolved. ``data``: memory that has every byte of the tensor that the box touches, at
    ``host``; ``origin``: bytes from there to the box, which may begin outside the tensor."""

    data: NDArray[np.uint8]
    host: int
    geometry: Geometry
    part: Extents | Lines | None
    origin: int
    rank: int
    offset: int
    phase: int


def copy_box(fabric: Fabric, op: Op) -> None:
    """Complete a tensor load or store: data first, then complete_tx on the mbarrier of every destination."""
    form = form_of(op.inst.opcode)
    boxes = _resolve(fabric, op, form)
    if form.load:
        _load(fabric, op, form, boxes)
    else:
        for box in boxes:
            _store_box(fabric, op, box)


def _resolve(fabric: Fabric, op: Op, form: TensorForm) -> list[_Box]:
    if form.mode not in MODES:
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"mode .{form.mode} is not executed by the virtual GPU; expected .{', .'.join(MODES[1:])}; load the pixels "
            "by .im2col",
        )
    bound = fabric.tensor_map(op, op["map"])
    box = geometry(bound.map)
    _check_map(fabric, op, form, box)
    if box.packed:
        _check_packed(fabric, op, form, box)
    rank, offset = locate(fabric, op, op["dst_mem" if form.load else "src_mem"], "address of the box")
    _check_place(fabric, op, form, box, rank, offset)
    return [
        _locate_box(fabric, op, form, bound, coords, rank, offset + i * box.row)
        for i, coords in enumerate(starts(op, box))
    ]


def _locate_box(
    fabric: Fabric, op: Op, form: TensorForm, bound: BoundMap, coords: list[int], rank: int, offset: int
) -> _Box:
    """Returns the box at some coordinates that is at ``offset`` of a CTA's shared memory."""
    box = geometry(bound.map)
    _check_start(fabric, op, form, box, coords)
    part, phase = part_inside(box, coords, filter_offsets(op)), offset % box.period
    pitches = () if box.corners else box.pitches
    origin = sum([coord * pitch for coord, pitch in zip(coords, pitches, strict=False)])
    data, host = bound.data, bound.host
    if box.reach > len(data):
        low, data = _touched(fabric, op, chunks(box, phase, part), bound.address + origin)
        origin, host = -low, data.ctypes.data
    return _Box(data, host, box, part, origin, rank, offset, phase)


def _check_map(fabric: Fabric, op: Op, form: TensorForm, box: Geometry) -> None:
    if box.rank != form.dims:
        raise fabric.failure(
            ProtocolError,
            op,
            f".{form.dims}d is given a tensor map of {box.rank} dimensions; expected .{box.rank}d and "
            f"{box.rank} coordinates, or a map of {form.dims} dimensions",
        )
    wanted, given = ("im2col" if found else "tile" for found in (form.mode.startswith("im2col"), box.corners))
    if wanted != given:
        name, corners = ("Im2col", "corners=…") if wanted == "im2col" else ("Tiled", "no corners")
        raise fabric.failure(
            ProtocolError,
            op,
            f".{form.mode or 'tile'} is given a tensor map of {given} mode; expected one of {wanted} mode; encode it "
            f"by cuTensorMapEncode{name}, or by ww.TensorMap with {corners}",
        )
    if box.interleave != "none":
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"the tensor map has interleave {box.interleave!r}; expected 'none'; the virtual GPU executes no other",
        )
    if form.mode in FOUR_ROWS and box.counts[1] != 1:
        raise fabric.failure(
            ProtocolError,
            op,
            f".{form.mode} is given a tensor map with boxes of {box.counts[1]} rows; expected boxes of 1 row, four of "
            "which it copies; encode the map with a box of 1 row",
        )


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
    if box.corners:
        _check_pixels(fabric, op, form, box, coords)


def _check_packed(fabric: Fabric, op: Op, form: TensorForm, box: Geometry) -> None:
    """Check the limits of packed types (PTX ISA 9.1 section 9.7.9.27.1.1)."""
    first, name = _coordinates(op)[0], box.dtype.name
    values = 128 if box.unit < CHUNK else CHUNK * 8 // box.packed
    if first % values:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the innermost coordinate is {first}; expected a multiple of {values} values of type {name}",
        )
    if not form.load and box.unit < CHUNK:
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"a box of type {name} is stored; expected a load, or a map of b4x16; the virtual GPU does not remove the "
            "padding of stores",
        )


def _check_pixels(fabric: Fabric, op: Op, form: TensorForm, box: Geometry, coords: list[int]) -> None:
    """Check the limits of im2col mode (PTX ISA 9.1 sections 5.5.4.1 and 9.7.9.27.1.1)."""
    outside, limit, (lower, upper) = outside_corners(box, coords), offset_limit(box.rank), box.corners
    if outside:
        raise fabric.failure(
            ProtocolError,
            op,
            f"im2col mode is given coordinates {tuple(coords)}, innermost first; expected a pixel between the map's "
            f"corners, {' and '.join(outside)}; mend the coordinates or the corners",
        )
    if max(filter_offsets(op)) >= limit:
        raise fabric.failure(
            ProtocolError,
            op,
            f"im2col mode is given offsets {tuple(filter_offsets(op))}; expected 0 to {limit - 1} with {box.rank} "
            "dimensions; add the rest to the coordinates",
        )
    if not form.load and (min(lower) < 0 or max(upper) > 0):
        raise fabric.failure(
            ProtocolError,
            op,
            f"pixels are stored through a map with corners {lower} and {upper}, innermost first; expected none outside "
            "the image; encode a map without the padding for stores",
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
    nbytes = box.nbytes * box_count(op.inst)
    if nbytes > fabric.shared_limit:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the box has {nbytes} bytes; expected at most the {fabric.shared_limit} bytes of shared memory; use a "
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
    where = f"CTA {rank} or {rank ^ 1}, a pair" if form.pair else "the same CTA; use .cta_group::2 for that of the pair"
    text = f"the mbarrier is in CTA {mbar_rank} and the destination in CTA {rank}; expected the mbarrier in {where}"
    raise fabric.failure(ProtocolError, op, text)


def _load(fabric: Fabric, op: Op, form: TensorForm, boxes: list[_Box]) -> None:
    mbar_rank, mbar = barrier(fabric, op, op["mbar"])
    _check_barrier(fabric, op, form, boxes[0].rank, mbar_rank)
    for rank in ctas_of(fabric, op, op["mask"]) if "mask" in op else (boxes[0].rank,):
        for box in boxes:
            _load_box(fabric, op, box, rank)
        owner = (rank & ~1) | (mbar_rank & 1) if form.pair else rank
        fabric.complete_tx(op, owner, mbar, sum(box.geometry.nbytes for box in boxes))


def _load_box(fabric: Fabric, op: Op, box: _Box, rank: int) -> None:
    plan = chunks(box.geometry, box.phase, box.part)
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


def _store_box(fabric: Fabric, op: Op, box: _Box) -> None:
    plan = chunks(box.geometry, box.phase, box.part)
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
    (box,) = _resolve(fabric, op, form)
    type = box.geometry.dtype.name
    if type not in TENSOR_TYPES[form.op]:
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f".{form.op} is given a tensor map of {type} elements; expected {', '.join(TENSOR_TYPES[form.op])}",
        )
    plan = elements(box.geometry, box.phase, box.part)
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
