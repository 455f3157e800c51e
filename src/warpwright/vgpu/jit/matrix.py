"""Matrices between shared memory and the fragments of a warp (PTX ISA 9.1 sections 9.7.14.5.15 to 9.7.14.5.17).

Lane 4g + q. Every register of a fragment consists of pieces: for each lane, the lane with the row's address and the
byte offset of the piece in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.memory import address, translate
from warpwright.vgpu.jit.state import OFFSETS
from warpwright.vgpu.program.program import Inst, Operand

__all__ = ["Piece", "pieces"]

ROW_BYTES = 16
Piece = tuple[int, list[int], list[int]]  # bits, and for each lane the row's lane and the byte offset in the row

# (row, byte) of piece p of register r in lane 4g + q; rows count over all matrices
_PIECES: dict[str, tuple[int, Callable[[int, int, int, int], tuple[int, int]]]] = {
    "m8n8": (32, lambda r, p, g, q: (8 * r + g, 4 * q)),
    "m8n8.trans": (16, lambda r, p, g, q: (8 * r + 2 * q + p, 2 * g)),
    "m16n16.trans": (8, lambda r, p, g, q: (16 * (r // 2) + 4 * q + p, g + 8 * (r % 2))),
    "m16n8.trans": (8, lambda r, p, g, q: (8 * r + 2 * q + p % 2, g + 8 * (p // 2))),
}


def pieces(shape: str, register: int) -> Iterator[Piece]:
    """The pieces of a register, lowest bits first; ``shape`` with ``.trans`` where the opcode has it."""
    bits, place = _PIECES[shape]
    for piece in range(32 // bits):
        spots = [place(register, piece, lane // 4, lane % 4) for lane in range(32)]
        yield bits, [row for row, _ in spots], [byte for _, byte in spots]


def _shape(lanes: Lanes, inst: Inst) -> str:
    words = inst.opcode.split(".")
    shape = inst["shape"] + (".trans" if "trans" in words else "")
    if shape not in _PIECES or "b8x16" in words:
        raise lanes.unsupported("this shape")
    return shape


def _rows(lanes: Lanes, inst: Inst, where: Operand, count: int) -> str:
    """Host addresses of the ``count`` rows, in the lanes that provide them; the other lanes' addresses are ignored.

    A lane that has exited provides what its register holds: the hardware does not say, and every row is checked.
    """
    converge(lanes, "-1")
    mask = lanes.mask
    lanes.narrow(str((1 << count) - 1 if count < 32 else -1))
    translate(lanes, inst, address(lanes, where), inst["space"], ROW_BYTES)
    rows = lanes.load("<32 x i64>", OFFSETS["addr"])
    lanes.narrow(mask)
    return rows


def _set_addresses(lanes: Lanes, rows: str, piece: Piece) -> None:
    """Store the addresses of a piece to the ``addr`` field."""
    _, row, byte = piece
    order, offsets = _constant(row, 32), _constant(byte, 64)
    shuffled = lanes.op(f"shufflevector <32 x i64> {rows}, <32 x i64> poison, <32 x i32> {order}")
    lanes.store("<32 x i64>", lanes.op(f"add <32 x i64> {shuffled}, {offsets}"), OFFSETS["addr"])


def _constant(values: list[int], bits: int) -> str:
    return "<" + ", ".join(f"i{bits} {value}" for value in values) + ">"


@meaning("ldmatrix")
def ldmatrix(lanes: Lanes, inst: Inst) -> None:
    shape, registers = _shape(lanes, inst), inst.items("d")
    rows = _rows(lanes, inst, inst.operand("a"), 8 * len(registers))
    for number, register in enumerate(registers):
        value = "zeroinitializer"
        for place, piece in enumerate(pieces(shape, number)):
            bits = piece[0]
            _set_addresses(lanes, rows, piece)
            part = lanes.op(f"call <32 x i{bits}> @gather{bits}(ptr %w, i32 {lanes.mask}, i64 0)")
            part = lanes.resize(part, bits, 32)
            part = lanes.op(f"shl <32 x i32> {part}, {lanes.splat(place * bits, 32)}")
            value = lanes.op(f"or <32 x i32> {value}, {part}")
        lanes.write(register, value, "b32")


@meaning("stmatrix")
def stmatrix(lanes: Lanes, inst: Inst) -> None:
    shape, values = _shape(lanes, inst), [lanes.integer(register, 32) for register in inst.items("b")]
    if inst.index in lanes.doubted:
        record.stored(lanes, inst, _row_values(lanes, shape, values), 32)
    rows = _rows(lanes, inst, inst.operand("a"), 8 * len(values))
    for number, value in enumerate(values):
        for place, piece in enumerate(pieces(shape, number)):
            bits = piece[0]
            _set_addresses(lanes, rows, piece)
            part = lanes.op(f"lshr <32 x i32> {value}, {lanes.splat(place * bits, 32)}")
            part = lanes.resize(part, 32, bits)
            lanes.emit(f"call void @scatter{bits}(ptr %w, i32 {lanes.mask}, i64 0, <32 x i{bits}> {part})")


def _row_values(lanes: Lanes, shape: str, values: Sequence[str]) -> list[str]:
    """The pieces of each row, in order of their bytes, in the lanes that provide the rows' addresses."""
    found: dict[int, str] = {}
    for number, value in enumerate(values):
        for place, (bits, rows, offsets) in enumerate(pieces(shape, number)):
            part = lanes.op(f"lshr <32 x i32> {value}, {lanes.splat(place * bits, 32)}")
            for byte in sorted(set(offsets)):
                sources = {row: lane for lane, row in enumerate(rows) if offsets[lane] == byte}
                order = _constant([sources.get(lane, 0) for lane in range(32)], 32)
                kept = _constant([(1 << bits) - 1 if lane in sources else 0 for lane in range(32)], 32)
                moved = lanes.op(f"shufflevector <32 x i32> {part}, <32 x i32> poison, <32 x i32> {order}")
                moved = lanes.op(f"and <32 x i32> {moved}, {kept}")
                found[byte] = lanes.op(f"or <32 x i32> {found[byte]}, {moved}") if byte in found else moved
    return [found[byte] for byte in sorted(found)]


@meaning("movmatrix")
def movmatrix(lanes: Lanes, inst: Inst) -> None:
    """Half h of lane 4g + q is element (2q + h, g) of the source: half g % 2 of lane 4 (2q + h) + g / 2."""
    converge(lanes, "-1")
    source = lanes.integer(inst.operand("a"), 32)
    value = "zeroinitializer"
    for half in (0, 1):
        order = _constant([4 * (2 * (lane % 4) + half) + lane // 8 for lane in range(32)], 32)
        shift = _constant([lane // 4 % 2 * 16 for lane in range(32)], 32)
        shuffled = lanes.op(f"shufflevector <32 x i32> {source}, <32 x i32> poison, <32 x i32> {order}")
        shuffled = lanes.op(f"lshr <32 x i32> {shuffled}, {shift}")
        shuffled = lanes.op(f"and <32 x i32> {shuffled}, {lanes.splat(0xFFFF, 32)}")
        shuffled = lanes.op(f"shl <32 x i32> {shuffled}, {lanes.splat(16 * half, 32)}")
        value = lanes.op(f"or <32 x i32> {value}, {shuffled}")
    lanes.write(inst.operand("d"), value, "b32")
