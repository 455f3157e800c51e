"""Conversions between types: cvt and cvt.pack (PTX ISA 9.1 sections 9.7.9.21 and 9.7.9.22)."""

from __future__ import annotations

from warpwright.vgpu.jit.ir import call, cast, choose, has, is_float, repeat, shift_left, shift_right
from warpwright.vgpu.jit.lanes import Lanes, bits_of, meaning
from warpwright.vgpu.jit.minifloat import MINIS, decode, encode, scale_decode, scale_encode
from warpwright.vgpu.jit.outline import outlined
from warpwright.vgpu.jit.rounding import (
    FORMATS,
    clamp01,
    directed,
    finite,
    load,
    narrow,
    pack,
    relu,
    round_bits,
    store,
    two_sum,
)
from warpwright.vgpu.program.program import Inst, Operand

__all__: list[str] = []

I32, F32, F64 = "<32 x i32>", "<32 x float>", "<32 x double>"
INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@meaning("cvt")
@outlined
def cvt(lanes: Lanes, inst: Inst) -> None:
    dtype, atype = inst["dtype"], inst["atype"]
    if inst["rnd"] == "rs":
        raise lanes.unsupported("stochastic rounding")
    if "x2" in dtype + atype:
        packed(lanes, inst)
    elif dtype == "tf32":
        tf32(lanes, inst)
    else:
        SCALAR[is_float(atype), is_float(dtype)](lanes, inst)


def limits(kind: str) -> tuple[int, int]:
    """The smallest and largest number of an integer type."""
    bits = bits_of(kind)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind.startswith("s") else (0, (1 << bits) - 1)


def clamp(lanes: Lanes, value: str, source_type: str, target_type: str) -> str:
    """Clamp a value of integer type ``source_type`` to the range of ``target_type``."""
    bits, sign = bits_of(source_type), source_type[0]
    (least, most), (low, high) = limits(source_type), limits(target_type)
    lane_type = f"<32 x i{bits}>"
    if low > least:
        value = call(lanes, f"{sign}max", lane_type, value, repeat(low, bits))
    if high < most:
        value = call(lanes, f"{sign}min", lane_type, value, repeat(high, bits))
    return value


def integer_to_integer(lanes: Lanes, inst: Inst) -> None:
    dtype, atype = inst["dtype"], inst["atype"]
    value = lanes.integer(inst.operand("a"), bits_of(atype))
    if has(inst, "sat"):
        value = clamp(lanes, value, atype, dtype)
    lanes.write(inst.operand("d"), lanes.resize(value, bits_of(atype), bits_of(dtype), atype[0] == "s"), dtype)


def integer_to_float(lanes: Lanes, inst: Inst) -> None:
    """All integers that fit f16 are exact in float; other conversions with directed rounding go through double."""
    dtype, atype, mode = inst["dtype"], inst["atype"], inst["rnd"] or "rn"
    bits, sign = bits_of(atype), atype[0]
    value = lanes.integer(inst.operand("a"), bits)
    word, lane_type = f"{sign}itofp", f"<32 x i{bits}>"
    if dtype == "f16" or (dtype == "f32" and mode == "rn"):
        number = lanes.op(f"{word} {lane_type} {value} to {F32}")
    elif bits < 64 or (dtype == "f64" and mode == "rn"):
        number = lanes.op(f"{word} {lane_type} {value} to {F64}")
    else:
        number = long_to_double(lanes, value, sign, mode if dtype == "f64" else "odd")
    if dtype == "f32" and mode != "rn":
        number = narrow(lanes, number, F64, F32, mode)
    if dtype == "bf16":
        number = narrow(lanes, number, F64, F32, "odd")
    write_float(lanes, inst, number, mode)


def long_to_double(lanes: Lanes, value: str, sign: str, mode: str) -> str:
    """Emit the conversion of 64-bit integers to double with directed rounding: the exact sum of two exact halves."""
    high = lanes.op(f"{'ashr' if sign == 's' else 'lshr'} <32 x i64> {value}, {repeat(32, 64)}")
    upper = lanes.op(f"{sign}itofp <32 x i64> {high} to {F64}")
    upper = lanes.op(f"fmul {F64} {upper}, splat (double 0x41f0000000000000)")
    low = lanes.op(f"and <32 x i64> {value}, {repeat(0xFFFFFFFF, 64)}")
    total, error = two_sum(lanes, F64, upper, lanes.op(f"uitofp <32 x i64> {low} to {F64}"))
    return directed(lanes, F64, total, error, F64, mode)


def write_float(lanes: Lanes, inst: Inst, value: str, mode: str) -> None:
    """Clamp a value in the work type of ``dtype`` if the instruction asks for it, round it by ``mode``, write it."""
    dtype = inst["dtype"]
    work = FORMATS[dtype].work
    if has(inst, "sat"):
        value = clamp01(lanes, value, work)
    if has(inst, "relu"):
        value = relu(lanes, value, work)
    bits = pack(lanes, value, dtype, mode)
    if has(inst, "satfinite"):
        bits = finite(lanes, bits, dtype)
    store(lanes, inst.operand("d"), bits, dtype, has(inst, "ftz") and dtype == "f32")


def float_to_integer(lanes: Lanes, inst: Inst) -> None:
    """Out-of-range values clamp. NaN gives 0, but the sign bit alone from .f64 or to a 64-bit type."""
    dtype, atype = inst["dtype"], inst["atype"]
    work, bits = FORMATS[atype].work, max(bits_of(dtype), 32)
    value = load(lanes, inst.operand("a"), atype, has(inst, "ftz") and atype == "f32")
    if inst["rnd"] != "rzi":
        value = call(lanes, INTEGRAL[inst["rnd"]], work, value)
    source_type, lane_type = f"{dtype[0]}{bits}", f"<32 x i{bits}>"
    number = call(lanes, f"fpto{dtype[0]}i.sat", work, value, result=lane_type)
    number = clamp(lanes, number, source_type, dtype)
    if atype == "f64" or bits == 64:
        unordered = lanes.op(f"fcmp uno {work} {value}, zeroinitializer")
        number = choose(lanes, unordered, lane_type, repeat(1 << (bits_of(dtype) - 1), bits), number)
    lanes.write(inst.operand("d"), lanes.resize(number, bits, bits_of(dtype)), dtype)


def float_to_float(lanes: Lanes, inst: Inst) -> None:
    dtype, atype, mode = inst["dtype"], inst["atype"], inst["rnd"] or "rn"
    source, target = FORMATS[atype].work, FORMATS[dtype].work
    value = load(lanes, inst.operand("a"), atype, has(inst, "ftz") and atype == "f32")
    if mode in INTEGRAL:
        value = call(lanes, INTEGRAL[mode], source, value)
        mode = "rn"
    if dtype == "f64":
        value = cast(lanes, "fpext", value, source, target)
    else:
        value = narrow(lanes, value, source, target, mode if dtype == "f32" else "odd")
    write_float(lanes, inst, value, mode)


SCALAR = {
    (False, False): integer_to_integer,
    (False, True): integer_to_float,
    (True, False): float_to_integer,
    (True, True): float_to_float,
}


def tf32(lanes: Lanes, inst: Inst) -> None:
    """A float with the low 13 bits of its fraction cleared. NaN becomes 0x7FFFE000; ``.rna`` clears only its low bits,
    and ``.satfinite`` subtracts one more unit (seen on an H200)."""
    value = load(lanes, inst.operand("a"), "f32")
    if has(inst, "relu"):
        value = relu(lanes, value, F32)
    bits = round_bits(lanes, lanes.bitcast(value, F32, I32), 32, 13, inst["rnd"])
    unordered = lanes.op(f"fcmp uno {F32} {value}, zeroinitializer")
    nan = lanes.bitcast(value, F32, I32) if inst["rnd"] == "rna" else repeat(0x7FFFE000, 32)
    bits = choose(lanes, unordered, I32, nan, bits)
    bits = lanes.op(f"and {I32} {bits}, {repeat(-1 << 13, 32)}")
    if has(inst, "satfinite"):
        bits = largest_tf32(lanes, bits)
    lanes.write(inst.operand("d"), bits, "b32")


def largest_tf32(lanes: Lanes, bits: str) -> str:
    """``.satfinite``: infinity becomes the largest number, 0x7F7FE000; NaN changes too."""
    size = lanes.op(f"and {I32} {bits}, {repeat(0x7FFFFFFF, 32)}")
    infinite = lanes.op(f"icmp uge {I32} {size}, {repeat(0x7F800000, 32)}")
    return choose(lanes, infinite, I32, lanes.op(f"sub {I32} {bits}, {repeat(1 << 13, 32)}"), bits)


def packed(lanes: Lanes, inst: Inst) -> None:
    """Two elements in one register; of two sources the first becomes the upper element."""
    dtype, atype = inst["dtype"], inst["atype"]
    if atype == "f32":
        elements = [load(lanes, source, atype) for source in inst.named("b", "a")]
    else:
        elements = halves(lanes, inst.operand("a"), atype)
    if has(inst, "relu"):
        elements = [relu(lanes, element, F32) for element in elements]
    codes = [element_code(lanes, inst, element) for element in elements]
    each = element_bits(dtype)
    whole = lanes.op(f"or {I32} {codes[0]}, {shift_left(lanes, codes[1], each)}")
    lanes.write(inst.operand("d"), lanes.resize(whole, 32, 2 * each), f"b{2 * each}")


def halves(lanes: Lanes, operand: Operand, atype: str) -> list[str]:
    """The low and the high element of a packed operand as float lanes."""
    value = lanes.integer(operand, 32)
    each = element_bits(atype)
    mask = repeat((1 << each) - 1, 32)
    codes = [lanes.op(f"and {I32} {code}, {mask}") for code in (value, shift_right(lanes, value, each))]
    return [element_value(lanes, atype, code) for code in codes]


def element_bits(kind: str) -> int:
    """The bits of one of the two elements of a packed type in its register."""
    return FORMATS[kind].bits if kind in FORMATS else MINIS[kind].container if kind in MINIS else 8


def element_value(lanes: Lanes, kind: str, code: str) -> str:
    """The float value of one element, from i32 lanes with zero high bits."""
    if kind == "ue8m0x2":
        return scale_decode(lanes, code)
    if kind in MINIS:
        return decode(lanes, MINIS[kind], code)
    if kind == "bf16x2":
        return lanes.bitcast(shift_left(lanes, code, 16), I32, F32)
    half = lanes.bitcast(lanes.resize(code, 32, 16), "<32 x i16>", "<32 x half>")
    return lanes.op(f"fpext <32 x half> {half} to {F32}")


def element_code(lanes: Lanes, inst: Inst, value: str) -> str:
    """One element of ``dtype`` as i32 lanes with zero high bits."""
    dtype, mode = inst["dtype"], inst["rnd"]
    if dtype == "ue8m0x2":
        return scale_encode(lanes, value, mode, has(inst, "satfinite"))
    if dtype in MINIS:
        return encode(lanes, MINIS[dtype], value)
    scalar = dtype.removesuffix("x2")
    bits = pack(lanes, value, scalar, mode)
    if has(inst, "satfinite"):
        bits = finite(lanes, bits, scalar)
    return lanes.resize(bits, 16, 32)


@meaning("cvt.pack")
@outlined
def cvt_pack(lanes: Lanes, inst: Inst) -> None:
    """Pack a above b, and the low bits of c above both."""
    dtype, c = inst["dtype"], inst.find("c")
    bits = int(dtype[1:])
    mask = repeat((1 << bits) - 1, 32)
    high, low = (clamp_small(lanes, lanes.read(x, "s32"), dtype) for x in inst.named("a", "b"))
    value = lanes.op(f"or {I32} {shift_left(lanes, high, bits)}, {lanes.op(f'and {I32} {low}, {mask}')}")
    if c:
        pair = lanes.op(f"and {I32} {value}, {repeat((1 << 2 * bits) - 1, 32)}")
        value = lanes.op(f"or {I32} {pair}, {shift_left(lanes, lanes.read(c, 'b32'), 2 * bits)}")
    lanes.write(inst.operand("d"), value, "b32")


def clamp_small(lanes: Lanes, value: str, dtype: str) -> str:
    return clamp(lanes, value, "s32", dtype)
