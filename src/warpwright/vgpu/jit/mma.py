"""mma.sync: MMAs on matrices in the registers of a warp (PTX ISA 9.1 section 9.7.14.5).

Products are exact and summed in double precision, rounded once to the type of D; with ``numerics="hardware"`` sums are
the tensor core's (`engines.hardware`). Before sm_120, mma.sync emulates 8-bit floats by two f16 MMAs from zero, each of
every other pair of k, and an addition.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from warpwright.isa.operands import extents_of
from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.ir import call
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.rounding import directed, two_sum
from warpwright.vgpu.jit.state import OFFSETS
from warpwright.vgpu.jit.tensor_core import PADDED, TYPES, Model, byte_values, container_values
from warpwright.vgpu.program.program import Inst

__all__ = ["multiply", "multiply_double", "permute", "places_a", "places_b", "places_d", "plan"]

_SHAPES = {"m16n8k4": 4, "m16n8k8": 8, "m16n8k16": 16, "m16n8k32": 32}
_KINDS = {"f16": 0, "bf16": 1, "tf32": 2}
_RESULTS = {"f32": 0, "f16": 1, "s32": 2}
_NARROW = ("e4m3", "e5m2")
_A_AT, _B_AT, _C_AT, _SCALE_A_AT, _SCALE_B_AT = 0, 512, 768, 1280, 1408  # bytes into the operands field


def places_a(k: int, bits: int) -> NDArray[np.int64]:
    """The index of element (row, k) of A among the elements of its registers, (16, K).

    Register 2c + h of lane 4g + q has row 8h + g and 32 bits of k from (4c + q) × 32 bits on.
    """
    each = 32 // bits
    row, at = np.arange(16)[:, None], np.arange(k)
    register = row // 8 + 2 * (at // (4 * each))
    lane = 4 * (row % 8) + at // each % 4
    return (32 * register + lane) * each + at % each


def places_b(k: int, bits: int) -> NDArray[np.int64]:
    """The index of element (k, n) of B among the elements of its registers, (K, 8): as A's, with column n for the
    row."""
    each = 32 // bits
    column, at = np.arange(8), np.arange(k)[:, None]
    return (32 * (at // (4 * each)) + 4 * column + at // each % 4) * each + at % each


def places_d(type: str) -> NDArray[np.int64]:
    """The index of element (row, n) of C and D among 32-bit registers, or halves of registers for f16, (16, 8)."""
    row, column = np.arange(16)[:, None], np.arange(8)
    lane = 4 * (row % 8) + column // 2
    if type == "f16":
        return 2 * (32 * (row // 8) + lane) + column % 2
    return 32 * (2 * (row // 8) + column % 2) + lane


@meaning("mma")
def mma_sync(lanes: Lanes, inst: Inst) -> None:
    words = inst.opcode.split(".")
    shape, types = words[words.index("aligned") + 1], [word for word in words if word in {*TYPES, "f32", "s32", "f64"}]
    converge(lanes, "-1")
    if types == ["f64"] * 4:
        return multiply_double(lanes, inst, extents_of(shape)[2], "rn")
    a, b, c = ([lanes.integer(register, 32) for register in inst.items(name)] for name in ("a", "b", "c"))
    if "block_scale" in words:
        results = _multiply_scaled(lanes, inst, a, b, c)
    elif shape not in _SHAPES or len(types) != 4 or types[0] != types[3]:
        raise lanes.unsupported("this shape or these types")
    else:
        results = multiply(lanes, plan(lanes, _SHAPES[shape], types, "satfinite" in words), a, b, c)
    record.row(lanes, inst)
    for register, value in zip(inst.items("d"), results, strict=True):
        lanes.write(register, value, "b32")


def multiply(lanes: Lanes, plan: int, a: list[str], b: list[str], c: list[str]) -> list[str]:
    """The registers of D, from those of A, B and C; all are ``<32 x i32>``."""
    _store(lanes, (a, _A_AT), (b, _B_AT), (c, _C_AT))
    lanes.emit(f"call void @mma_sync(ptr %w, ptr {lanes.base(plan)})")
    return _results(lanes, len(c))


def _store(lanes: Lanes, *operands: tuple[list[str], int]) -> None:
    """Store registers where the routine reads them."""
    for values, start in operands:
        for number, value in enumerate(values):
            lanes.store("<32 x i32>", value, OFFSETS["operands"] + start + 128 * number)


def _results(lanes: Lanes, count: int) -> list[str]:
    return [lanes.load("<32 x i32>", OFFSETS["operands"] + _C_AT + 128 * number) for number in range(count)]


def _multiply_scaled(lanes: Lanes, inst: Inst, a: list[str], b: list[str], c: list[str]) -> list[str]:
    """The registers of D of an MMA with block scales. Lane 0 gives the selectors, which all lanes have alike."""
    factors = [[lanes.integer(inst.items(name)[0], 32)] for name in ("scale_a", "scale_b")]
    _store(lanes, (a, _A_AT), (b, _B_AT), (c, _C_AT), (factors[0], _SCALE_A_AT), (factors[1], _SCALE_B_AT))
    selectors = []
    for operand in (*inst.items("select_a"), *inst.items("select_b")):
        first = lanes.op(f"extractelement <32 x i16> {lanes.integer(operand, 16)}, i32 0")
        selectors.append(f"i64 {lanes.op(f'zext i16 {first} to i64')}")
    plan = lanes.base(_scaled_plan(lanes, inst))
    lanes.emit(f"call void @mma_scaled(ptr %w, ptr {plan}, {', '.join(selectors)})")
    return _results(lanes, len(c))


def _scaled_plan(lanes: Lanes, inst: Inst) -> int:
    """The address of a plan: the words that `scaled.ll` reads."""
    k, a_type, b_type, scale = extents_of(inst["shape"])[2], inst["atype"], inst["btype"], inst["stype"]
    narrow = k == 64
    types = ["e2m1x2"] * 2 if narrow else [a_type, b_type]
    count = 4 if inst["scale"] == "scale_vec::4X" else k // 32
    bits = 4 if narrow else 8
    return lanes.table(
        [
            *(lanes.table(container_values(type).ravel().view(np.int64).tolist()) for type in types),
            k,
            lanes.table(places_a(k, bits).ravel().tolist()),
            lanes.table(places_b(k, bits).ravel().tolist()),
            lanes.table(places_d("f32").ravel().tolist()),
            count,
            lanes.table(_scale_words(scale)),
            lanes.table([] if narrow else _model(["f32", a_type, b_type], emulated=False)),
        ]
    )


def _scale_words(type: str) -> list[int]:
    """256 significands and 256 exponents of scale factors; zero has the exponent -126 (MMA-Sim), NaN 0."""
    values = byte_values(type).astype(np.float64)
    powers = np.frexp(np.nan_to_num(values, nan=1.0))[1] - 1
    powers = np.where(values == 0, -126, np.maximum(powers, -6) if type == "ue4m3" else powers)
    words: list[int] = np.append(
        np.ldexp(values, -powers).astype(np.float32).view(np.int64), powers.astype(np.int32).view(np.int64)
    ).tolist()
    return words


def plan(lanes: Lanes, k: int, types: list[str], saturate: bool) -> int:
    """The address of a plan: the words that mma.ll reads. ``types`` of D, A, B and C."""
    d_type, a_type, b_type = types[:3]
    bits = 8 * TYPES[a_type]
    emulated = a_type in _NARROW and b_type not in PADDED and not lanes.arch.startswith("sm_12")
    order = _pairs(k) if emulated else np.arange(k)
    registers = k * bits // 128
    return lanes.table(
        [
            2 * registers, registers, *_conversion(lanes, a_type), *_conversion(lanes, b_type), k,
            lanes.table(places_a(k, bits)[:, order].ravel().tolist()),
            lanes.table(places_b(k, bits)[order].ravel().tolist()),
            lanes.table(places_d(d_type).ravel().tolist()),
            3 if saturate else _RESULTS[d_type],
            k // 2 if emulated else k,
            int(emulated),
            lanes.table(_model(types, emulated)),
        ]
    )  # fmt: skip


def _pairs(k: int) -> NDArray[np.int64]:
    """k in the order of the f16 MMAs: k % 4 of 0 and 1 before 2 and 3."""
    at = np.arange(k)
    return np.concatenate([at[at % 4 < 2], at[at % 4 >= 2]])


def _conversion(lanes: Lanes, type: str) -> tuple[int, int]:
    """The conversion of elements to float32: a kind, and the table of 256 values for 8-bit types."""
    if type in _KINDS:
        return _KINDS[type], 0
    return 3, lanes.table(_bytes(type))


@cache
def _bytes(type: str) -> list[int]:
    values: list[int] = container_values(type).view(np.int64).tolist()
    return values


def _model(types: list[str], emulated: bool) -> list[int]:
    d_type, a_type, b_type = types[:3]
    if d_type == "s32":
        return []
    a, b = ("f16", "f16") if emulated else (a_type, b_type)
    words = np.append(Model(25, a, b, d_type, 10 if d_type == "f16" else 23).words(), np.int32(0))
    packed: list[int] = words.view(np.int64).tolist()
    return packed


def multiply_double(lanes: Lanes, inst: Inst, depth: int, mode: str) -> None:
    """Lane 4g + q has, in register h + r·i of A, row g + 8h and k = q + 4i (r halves of rows); in register i of B,
    k = q + 4i of column g; in register 2h + p of C and D, row g + 8h of column 2q + p. fma in the order of k."""
    a, b = ([lanes.read(register, "f64") for register in inst.items(name)] for name in ("a", "b"))
    halves, results = len(inst.items("c")) // 2, []
    for number, register in enumerate(inst.items("c")):
        half, column = divmod(number, 2)
        total = lanes.read(register, "f64")
        for k in range(depth):
            left = permute(lanes, a[half + halves * (k // 4)], [lane // 4 * 4 + k % 4 for lane in range(32)], "double")
            right = permute(lanes, b[k // 4], [4 * (2 * (lane % 4) + column) + k % 4 for lane in range(32)], "double")
            total = _fused(lanes, left, right, total, mode)
        results.append(total)
    for register, value in zip(inst.items("d"), results, strict=True):
        lanes.write(register, value, "f64")


def _fused(lanes: Lanes, x: str, y: str, z: str, mode: str) -> str:
    """x·y + z, rounded once; the error of the nearest value is from Boldo and Muller, "Exact and approximated error of
    the FMA", 2011."""
    kind = "<32 x double>"
    nearest = call(lanes, "fma", kind, x, y, z)
    if mode == "rn":
        return nearest
    high = lanes.op(f"fmul {kind} {x}, {y}")
    low = call(lanes, "fma", kind, x, y, lanes.op(f"fneg {kind} {high}"))
    middle, least = two_sum(lanes, kind, z, low)
    top, rest = two_sum(lanes, kind, high, middle)
    error = lanes.op(f"fadd {kind} {lanes.op(f'fsub {kind} {top}, {nearest}')}, {rest}")
    return directed(lanes, kind, nearest, lanes.op(f"fadd {kind} {error}, {least}"), kind, mode)


def permute(lanes: Lanes, value: str, order: list[int], type: str) -> str:
    """The values of the lanes ``order``; elements of an LLVM type."""
    mask = ", ".join(f"i32 {lane}" for lane in order)
    return lanes.op(f"shufflevector <32 x {type}> {value}, <32 x {type}> poison, <32 x i32> <{mask}>")
