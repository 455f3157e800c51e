"""wmma: matrices between memory and the fragments of a warp, and their MMAs (PTX ISA 9.1 section 9.7.14.4).

PTX does not say which elements a register has. Here, as in ptxas's code for sm_90, wmma.mma of 256 results is two
mma.sync, and the registers of a fragment are those of the mma.sync: tiles of 16 rows of A, 8 columns of B and 16 × 8
of C and D, one after the other. m8n32k16 is the transposed m32n8k16: A and B change places. Fragments of f16 have more
registers than elements: the registers repeat. Of 64 results, lane 4g + q has row g of A, column g of B and elements
(g, 2q) and (g, 2q + 1) of C and D.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from warpwright.isa.operands import bits_of, extents_of
from warpwright.vgpu.jit import mma, record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.memory import address, translate
from warpwright.vgpu.jit.state import LANES, OFFSETS
from warpwright.vgpu.program.program import Inst

__all__ = ["access_bytes", "places"]

Ints = NDArray[np.int64]
ALIGNED = 16  # bytes: lines of a matrix begin at multiples of them (CUDA C++ Programming Guide, load_matrix_sync)


def places(matrix: str, extents: tuple[int, int, int], bits: int) -> Ints:
    """The index of each element of matrix a, b, c or d among the elements of its registers; ``extents``: M, N and K."""
    m, n, k = extents
    if m < n:
        return places({"a": "b", "b": "a"}.get(matrix, matrix), (n, m, k), bits).T
    if m == 8:
        return _places_small(matrix, k)
    if matrix == "a":
        return _tiles(mma.places_a(k, bits), m // 16, 0)
    if matrix == "b":
        return _tiles(mma.places_b(k, bits), n // 8, 1)
    return _tiles(mma.places_d("f16" if bits == 16 else "f32"), 2, 1 if n == 16 else 0)


def _places_small(matrix: str, k: int) -> Ints:
    lines = np.arange(8 * k).reshape(8, k)
    if matrix in "ab":
        return lines if matrix == "a" else lines.T
    row, column = np.arange(8)[:, None], np.arange(8)
    return LANES * (column % 2) + 4 * row + column // 2


def _tiles(tile: Ints, count: int, axis: int) -> Ints:
    return np.concatenate([tile + number * tile.size for number in range(count)], axis)


def _lines(inst: Inst) -> tuple[Ints, int]:
    """The places of a matrix, by the lines in which memory has it, and the bits of an element."""
    bits = bits_of(inst["type"])
    found = places(inst["matrix"], extents_of(inst["shape"]), bits)
    return (found if inst["layout"] == "row" else found.T), bits


def access_bytes(inst: Inst) -> int:
    """The bytes of each lane's part of a matrix; the lanes' parts are consecutive, once or twice."""
    lines, bits = _lines(inst)
    return min(ALIGNED, lines.size * bits // 8 // LANES)


def _parts(lanes: Lanes, inst: Inst) -> list[str]:
    """Host addresses of the lanes' parts of a matrix in memory. A lane that has exited reads or writes its part too,
    as long as another lane executes the instruction."""
    lines, bits = _lines(inst)
    count, nbytes = lines.shape[1], access_bytes(inst)
    converge(lanes, "-1")
    mask = lanes.mask
    lanes.narrow(lanes.op(f"select i1 {lanes.op(f'icmp eq i32 {mask}, 0')}, i32 0, i32 -1"))
    start, stride = address(lanes, inst.operand("a")), inst.find("stride")
    step = lanes.splat(count, 64) if stride is None else lanes.resize(lanes.integer(stride, 32), 32, 64)
    found = []
    for first in range(0, lines.size * bits // 8 // nbytes, LANES):
        line, inside = np.divmod((first + np.arange(LANES)) * nbytes * 8, count * bits)
        offset = lanes.op(f"mul <32 x i64> {step}, {_constant(line * bits, 64)}")
        offset = lanes.op(f"add <32 x i64> {offset}, {_constant(inside, 64)}")
        offset = lanes.op(f"lshr <32 x i64> {offset}, {lanes.splat(3, 64)}")
        translate(lanes, inst, lanes.op(f"add <32 x i64> {start}, {offset}"), inst["space"], nbytes)
        found.append(lanes.load("<32 x i64>", OFFSETS["addr"]))
    lanes.narrow(mask)
    return found


def _constant(values: Ints, bits: int) -> str:
    return "<" + ", ".join(f"i{bits} {value}" for value in values.tolist()) + ">"


def _registers(inst: Inst) -> Iterator[list[tuple[int, int, Ints]]]:
    """The pieces of each register: first bit in the register, bits, and for each lane the byte in the matrix."""
    lines, bits = _lines(inst)
    at = np.empty(lines.size, np.int64)
    at[lines] = np.arange(lines.size).reshape(lines.shape) * bits
    each = max(1, 32 // bits)
    for register in at.reshape(-1, LANES, each):
        if (np.diff(register) == bits).all():
            yield [(0, max(32, bits), register[:, 0] // 8)]
        else:
            yield [(number * bits, bits, register[:, number] // 8) for number in range(each)]


def _set_addresses(lanes: Lanes, inst: Inst, parts: list[str], at: Ints) -> None:
    """Store the addresses of bytes of the matrix, one a lane, to the ``addr`` field."""
    part, byte = np.divmod(at, access_bytes(inst))
    base = f"shufflevector <32 x i64> {parts[0]}, <32 x i64> {parts[-1]}, <32 x i32> {_constant(part, 32)}"
    lanes.store("<32 x i64>", lanes.op(f"add <32 x i64> {lanes.op(base)}, {_constant(byte, 64)}"), OFFSETS["addr"])


@meaning("wmma.load")
def load(lanes: Lanes, inst: Inst) -> None:
    parts, values = _parts(lanes, inst), list[str]()
    size = max(32, bits_of(inst["type"]))
    for pieces in _registers(inst):
        value = "zeroinitializer"
        for shift, bits, at in pieces:
            _set_addresses(lanes, inst, parts, at)
            part = lanes.op(f"call <32 x i{bits}> @gather{bits}(ptr %w, i32 {lanes.mask}, i64 0)")
            part = lanes.op(f"shl <32 x i{size}> {lanes.resize(part, bits, size)}, {lanes.splat(shift, size)}")
            value = lanes.op(f"or <32 x i{size}> {value}, {part}")
        values.append(value)
    for number, register in enumerate(inst.items("d")):
        lanes.write(register, values[number % len(values)], f"b{size}")


@meaning("wmma.store")
def store(lanes: Lanes, inst: Inst) -> None:
    parts, size = _parts(lanes, inst), max(32, bits_of(inst["type"]))
    for register, pieces in zip(inst.items("b"), _registers(inst), strict=True):
        value = lanes.integer(register, size)
        for shift, bits, at in pieces:
            _set_addresses(lanes, inst, parts, at)
            part = lanes.op(f"lshr <32 x i{size}> {value}, {lanes.splat(shift, size)}")
            part = lanes.resize(part, size, bits)
            lanes.emit(f"call void @scatter{bits}(ptr %w, i32 {lanes.mask}, i64 0, <32 x i{bits}> {part})")


@meaning("wmma.mma")
def multiply(lanes: Lanes, inst: Inst) -> None:
    converge(lanes, "-1")
    type = inst["atype"] or "f16"
    if type == "f64":
        mma.multiply_double(lanes, inst, 4, inst["rnd"] or "rn")
    elif inst["shape"].startswith("m8n8"):
        _multiply_small(lanes, inst, type)
    else:
        _multiply_tiles(lanes, inst, type)
    record.row(lanes, inst)


def _multiply_tiles(lanes: Lanes, inst: Inst, type: str) -> None:
    """Sums of f16 in f32 where C or D is f32: ptxas converts C before and D after (`HADD2.F32`, `F2FP.F16.F32`)."""
    m, n, k = extents_of(inst["shape"])
    c_type, d_type = inst["ctype"], inst["dtype"]
    kind = "f32" if "f32" in (c_type, d_type) else d_type
    a, b, c = ([lanes.integer(register, 32) for register in inst.items(name)] for name in ("a", "b", "c"))
    a, b = (a, b) if m >= n else (b, a)
    c = [half for value in c for half in _halves(lanes, value)] if c_type != kind else c
    depth = k * bits_of(type) // 128  # registers of eight rows or columns
    plan, size = mma.plan(lanes, k, [kind, type, type, kind], inst.has("satfinite")), len(c) // 2
    results = []
    for tile in (0, 1):
        rows, columns = (0, tile * depth) if m == n else (2 * tile * depth, 0)
        parts = a[rows : rows + 2 * depth], b[columns : columns + depth], c[tile * size : (tile + 1) * size]
        results += mma.multiply(lanes, plan, *parts)
    if d_type != kind:
        results = [_pair(lanes, *results[at : at + 2]) for at in range(0, len(results), 2)]
    for register, value in zip(inst.items("d"), results, strict=True):
        lanes.write(register, value, "b32")


def _halves(lanes: Lanes, value: str) -> list[str]:
    """The f16 values of a register as f32, low half first."""
    halves = lanes.op(f"bitcast <32 x i32> {value} to <64 x half>")
    wide = lanes.op(f"fpext <64 x half> {halves} to <64 x float>")
    whole = lanes.op(f"bitcast <64 x float> {wide} to <64 x i32>")
    return [
        lanes.op(f"shufflevector <64 x i32> {whole}, <64 x i32> poison, <32 x i32> {_constant(order, 32)}")
        for order in (np.arange(0, 64, 2), np.arange(1, 64, 2))
    ]


def _pair(lanes: Lanes, low: str, high: str) -> str:
    """Two f32 values as the f16 values of a register."""
    order = _constant(np.arange(64) // 2 + np.arange(64) % 2 * 32, 32)
    both = lanes.op(f"shufflevector <32 x i32> {low}, <32 x i32> {high}, <64 x i32> {order}")
    narrow = lanes.op(f"fptrunc <64 x float> {lanes.op(f'bitcast <64 x i32> {both} to <64 x float>')} to <64 x half>")
    return lanes.op(f"bitcast <64 x half> {narrow} to <32 x i32>")


def _multiply_small(lanes: Lanes, inst: Inst, type: str) -> None:
    """Rows and columns of four words of 32 bits: elements of 4 bits, or bits."""
    a, b = (lanes.integer(inst.items(name)[0], 32) for name in ("a", "b"))
    saturated = "call <32 x i32> @llvm.sadd.sat.v32i32(<32 x i32> {}, <32 x i32> {})"
    add, results = saturated if inst.has("satfinite") else "add <32 x i32> {}, {}", []
    for column, register in enumerate(inst.items("c")):
        total = "zeroinitializer"
        for word in range(4):
            left = mma.permute(lanes, a, [lane // 4 * 4 + word for lane in range(LANES)], "i32")
            right = mma.permute(lanes, b, [4 * (2 * (lane % 4) + column) + word for lane in range(LANES)], "i32")
            part = _count(lanes, inst, left, right) if type == "b1" else _dot(lanes, type, left, right)
            total = lanes.op(f"add <32 x i32> {total}, {part}")
        results.append(lanes.op(add.format(lanes.integer(register, 32), total)))
    for register, value in zip(inst.items("d"), results, strict=True):
        lanes.write(register, value, "s32")


def _count(lanes: Lanes, inst: Inst, left: str, right: str) -> str:
    same = lanes.op(f"{inst['action']} <32 x i32> {left}, {right}")
    return lanes.op(f"call <32 x i32> @llvm.ctpop.v32i32(<32 x i32> {same})")


def _dot(lanes: Lanes, type: str, left: str, right: str) -> str:
    """The sum of the products of eight pairs of 4-bit integers."""
    kind, word, total = "<256 x i4>", "sext" if type == "s4" else "zext", "zeroinitializer"
    values = [lanes.op(f"bitcast <32 x i32> {each} to {kind}") for each in (left, right)]
    wide = [lanes.op(f"{word} {kind} {each} to <256 x i32>") for each in values]
    products = lanes.op(f"mul <256 x i32> {wide[0]}, {wide[1]}")
    for at in range(8):
        order = _constant(np.arange(at, 256, 8), 32)
        part = lanes.op(f"shufflevector <256 x i32> {products}, <256 x i32> poison, <32 x i32> {order}")
        total = lanes.op(f"add <32 x i32> {total}, {part}")
    return total
