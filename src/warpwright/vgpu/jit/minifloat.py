"""Numbers of 4 to 8 bits: the element types of FP8, FP6 and FP4 matrices and of block scales.

A minifloat with m bits of fraction and bias b is the float with the same bits moved up by 23 - m, times 2^(127 - b).
That holds for its subnormal numbers too, since they then are subnormal floats.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.vgpu.jit.ir import call, choose, number, repeat, shift_left, shift_right
from warpwright.vgpu.jit.lanes import Lanes

__all__ = ["MINIS", "Mini", "decode", "encode", "scale_decode", "scale_encode"]

I32, F32 = "<32 x i32>", "<32 x float>"


@dataclass(frozen=True, slots=True)
class Mini:
    """``bits`` wide in a ``container``; ``largest`` finite number; ``nan``: the code of NaN; ``infinite``: codes from
    this one on, without the sign, are not finite."""

    bits: int
    container: int
    fraction: int
    bias: int
    largest: float
    nan: int
    infinite: int

    @property
    def shift(self) -> int:
        return 23 - self.fraction


MINIS = {
    "e4m3x2": Mini(8, 8, 3, 7, 448.0, 0x7F, 0x7F),
    "e5m2x2": Mini(8, 8, 2, 15, 57344.0, 0x7F, 0x7C),
    "e2m3x2": Mini(6, 8, 3, 1, 7.5, 0x1F, 0x20),
    "e3m2x2": Mini(6, 8, 2, 3, 28.0, 0x1F, 0x20),
    "e2m1x2": Mini(4, 4, 1, 1, 6.0, 0x07, 0x08),
}


def encode(lanes: Lanes, mini: Mini, value: str) -> str:
    """The codes of float lanes: nearest even, clamped to the largest number (``.satfinite``).

    Adding and subtracting 2^(e + 23 - m), e the exponent of the result, rounds to m bits of fraction.
    """
    size = call(lanes, "fabs", F32, value)
    below = lanes.op(f"fcmp olt {F32} {size}, {number(mini.largest, 'float')}")
    size = choose(lanes, below, F32, size, number(mini.largest, "float"))
    exponent = lanes.op(f"and {I32} {lanes.bitcast(size, F32, I32)}, {repeat(0x7F800000, 32)}")
    exponent = call(lanes, "umax", I32, exponent, repeat((128 - mini.bias) << 23, 32))
    magic = lanes.bitcast(lanes.op(f"add {I32} {exponent}, {repeat(mini.shift << 23, 32)}"), I32, F32)
    rounded = lanes.op(f"fsub {F32} {lanes.op(f'fadd {F32} {size}, {magic}')}, {magic}")
    scaled = lanes.op(f"fmul {F32} {rounded}, {number(2.0 ** (mini.bias - 127), 'float')}")
    code = shift_right(lanes, lanes.bitcast(scaled, F32, I32), mini.shift)
    sign = shift_left(lanes, shift_right(lanes, lanes.bitcast(value, F32, I32), 31), mini.bits - 1)
    unordered = lanes.op(f"fcmp uno {F32} {value}, zeroinitializer")
    return choose(lanes, unordered, I32, repeat(mini.nan, 32), lanes.op(f"or {I32} {code}, {sign}"))


def decode(lanes: Lanes, mini: Mini, code: str) -> str:
    """The float value of codes in i32 lanes; bits above the code are ignored."""
    sign_bit = 1 << (mini.bits - 1)
    size = lanes.op(f"and {I32} {code}, {repeat(sign_bit - 1, 32)}")
    scaled = lanes.bitcast(shift_left(lanes, size, mini.shift), I32, F32)
    value = lanes.op(f"fmul {F32} {scaled}, {number(2.0 ** (127 - mini.bias), 'float')}")
    special = lanes.op(f"icmp uge {I32} {size}, {repeat(mini.infinite, 32)}")
    past = lanes.op(f"or {I32} {shift_left(lanes, size, mini.shift)}, {repeat(0x7F800000, 32)}")
    bits = choose(lanes, special, I32, past, lanes.bitcast(value, F32, I32))
    sign = shift_left(lanes, lanes.op(f"and {I32} {code}, {repeat(sign_bit, 32)}"), 32 - mini.bits)
    return lanes.bitcast(lanes.op(f"or {I32} {bits}, {sign}"), I32, F32)


def scale_encode(lanes: Lanes, value: str, mode: str, satfinite: bool) -> str:
    """ue8m0: the exponent of the absolute value, of the next power of two for ``rp``; 0xFF for NaN and infinity."""
    bits = lanes.bitcast(call(lanes, "fabs", F32, value), F32, I32)
    code = shift_right(lanes, bits, 23)
    if mode == "rp":
        up = shift_right(lanes, lanes.op(f"add {I32} {bits}, {repeat(0x7FFFFF, 32)}"), 23)
        least = lanes.op(f"icmp ule {I32} {bits}, {repeat(0x400000, 32)}")
        code = choose(lanes, least, I32, "zeroinitializer", up)
    if satfinite:
        code = call(lanes, "umin", I32, code, repeat(0xFE, 32))
    unordered = lanes.op(f"fcmp uno {F32} {value}, zeroinitializer")
    return choose(lanes, unordered, I32, repeat(0xFF, 32), code)


def scale_decode(lanes: Lanes, code: str) -> str:
    """2^(code - 127); NaN for 0xFF."""
    normal = shift_left(lanes, code, 23)
    least = lanes.op(f"icmp eq {I32} {code}, zeroinitializer")
    bits = choose(lanes, least, I32, repeat(0x400000, 32), normal)
    last = lanes.op(f"icmp eq {I32} {code}, {repeat(0xFF, 32)}")
    return lanes.bitcast(choose(lanes, last, I32, repeat(0x7FC00000, 32), bits), I32, F32)
