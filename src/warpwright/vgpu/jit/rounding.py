"""Floating-point values in registers, and every rounding that LLVM has no instruction for.

Arithmetic runs in the *work* type: float for the 16-bit formats and f32, double for f64. A result of a 16-bit format is
first rounded to float; that is harmless for sums and products, because float has more than 2p + 2 bits of precision
(Figueroa, "When is double rounding innocuous?", 1995). Otherwise the intermediate is rounded to odd (Boldo and
Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.vgpu.jit.ir import call, cast, choose, number, repeat
from warpwright.vgpu.jit.lanes import Lanes
from warpwright.vgpu.program.program import Operand

__all__ = [
    "FORMATS",
    "Format",
    "bfloat",
    "clamp01",
    "directed",
    "finite",
    "flush",
    "load",
    "minimum_maximum",
    "narrow",
    "pack",
    "raw",
    "relu",
    "round_bits",
    "store",
    "two_sum",
]


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point type in registers: ``count`` elements a warp of ``bits`` each, the element type of its
    arithmetic, the bits of its smallest normal number and of infinity."""

    count: int
    bits: int
    element: str
    tiny: int
    infinity: int

    @property
    def storage(self) -> str:
        """The PTX type of the register."""
        return f"b{self.bits * self.count // 32}"

    @property
    def ints(self) -> str:
        return f"<{self.count} x i{self.bits}>"

    @property
    def work(self) -> str:
        return f"<{self.count} x {self.element}>"


FORMATS = {
    "f64": Format(32, 64, "double", 1 << 52, 0x7FF << 52),
    "f32": Format(32, 32, "float", 1 << 23, 0x7F800000),
    "f32x2": Format(64, 32, "float", 1 << 23, 0x7F800000),
    "f16": Format(32, 16, "float", 1 << 10, 0x7C00),
    "f16x2": Format(64, 16, "float", 1 << 10, 0x7C00),
    "bf16": Format(32, 16, "float", 1 << 7, 0x7F80),
    "bf16x2": Format(64, 16, "float", 1 << 7, 0x7F80),
}


def raw(lanes: Lanes, operand: Operand, type: str) -> str:
    """The bits of an operand, one integer an element."""
    form = FORMATS[type]
    bits = form.bits * form.count // 32
    return lanes.bitcast(lanes.integer(operand, bits), f"<32 x i{bits}>", form.ints)


def flush(lanes: Lanes, bits: str, form: Format) -> str:
    """Flush subnormal numbers to zeros of their sign."""
    sign = 1 << (form.bits - 1)
    size = lanes.op(f"and {form.ints} {bits}, {repeat(sign - 1, form.bits)}")
    small = lanes.op(f"icmp ult {form.ints} {size}, {repeat(form.tiny, form.bits)}")
    zero = lanes.op(f"and {form.ints} {bits}, {repeat(sign, form.bits)}")
    return choose(lanes, small, form.ints, zero, bits)


def load(lanes: Lanes, operand: Operand, type: str, ftz: bool = False) -> str:
    """An operand in the work type of its format."""
    form = FORMATS[type]
    bits = raw(lanes, operand, type)
    if ftz:
        bits = flush(lanes, bits, form)
    if type.startswith("bf16"):
        wide = lanes.op(f"zext {form.ints} {bits} to <{form.count} x i32>")
        high = lanes.op(f"shl <{form.count} x i32> {wide}, {repeat(16, 32)}")
        return lanes.op(f"bitcast <{form.count} x i32> {high} to {form.work}")
    if type.startswith("f16"):
        half = lanes.op(f"bitcast {form.ints} {bits} to <{form.count} x half>")
        return lanes.op(f"fpext <{form.count} x half> {half} to {form.work}")
    return lanes.op(f"bitcast {form.ints} {bits} to {form.work}")


def pack(lanes: Lanes, value: str, type: str, mode: str = "rn") -> str:
    """The bits of a result, rounded from the work type to its format."""
    form = FORMATS[type]
    if type.startswith("bf16"):
        return bfloat(lanes, value, form.count, mode)
    if type.startswith("f16"):
        half = f"<{form.count} x half>"
        return lanes.bitcast(narrow(lanes, value, form.work, half, mode), half, form.ints)
    return lanes.bitcast(value, form.work, form.ints)


def store(lanes: Lanes, operand: Operand, bits: str, type: str, ftz: bool = False) -> None:
    """Write the bits of a result."""
    form = FORMATS[type]
    if ftz:
        bits = flush(lanes, bits, form)
    lanes.write(operand, lanes.bitcast(bits, form.ints, f"<32 x i{form.storage[1:]}>"), form.storage)


def clamp01(lanes: Lanes, value: str, work: str) -> str:
    """``.sat``: into [0, 1], NaN and -0 to +0."""
    zero, one = "zeroinitializer", number(1.0, work[1:-1].split()[-1])
    above = lanes.op(f"fcmp ogt {work} {value}, {zero}")
    value = choose(lanes, above, work, value, zero)
    below = lanes.op(f"fcmp olt {work} {value}, {one}")
    return choose(lanes, below, work, value, one)


def relu(lanes: Lanes, value: str, work: str) -> str:
    """Emit ``.relu``: values that are not positive become +0; NaN stays."""
    below = lanes.op(f"fcmp ole {work} {value}, zeroinitializer")
    return choose(lanes, below, work, "zeroinitializer", value)


def two_sum(lanes: Lanes, work: str, a: str, b: str) -> tuple[str, str]:
    """Returns the rounded sum and its exact error (Knuth)."""
    total = lanes.op(f"fadd {work} {a}, {b}")
    b_part = lanes.op(f"fsub {work} {total}, {a}")
    a_part = lanes.op(f"fsub {work} {total}, {b_part}")
    b_error = lanes.op(f"fsub {work} {b}, {b_part}")
    a_error = lanes.op(f"fsub {work} {a}, {a_part}")
    return total, lanes.op(f"fadd {work} {a_error}, {b_error}")


def _bits_type(work: str) -> str:
    count, element = work[1:-1].split(" x ")
    integer = {"half": "i16", "float": "i32", "double": "i64"}[element]
    return f"<{count} x {integer}>"


def directed(lanes: Lanes, work: str, nearest: str, error: str, error_type: str, mode: str) -> str:
    """Round the exact value ``nearest + error`` by ``mode``: rz, rm, rp, or odd.

    ``nearest`` is that value rounded to nearest in ``work``; ``error``, of ``error_type``, must have the right sign, be
    zero if the rounding was exact, and NaN if there is nothing to correct.
    """
    ints = _bits_type(work)
    flags = f"<{work[1:].split()[0]} x i1>"
    pattern = lanes.op(f"bitcast {work} {nearest} to {ints}")
    inexact = lanes.op(f"fcmp one {error_type} {error}, zeroinitializer")
    negative = lanes.op(f"icmp slt {ints} {pattern}, zeroinitializer")
    lower = lanes.op(f"fcmp olt {error_type} {error}, zeroinitializer")
    overshot = lanes.op(f"and {flags} {inexact}, {lanes.op(f'xor {flags} {negative}, {lower}')}")
    towards_zero = lanes.op(f"add {ints} {pattern}, {lanes.op(f'sext {flags} {overshot} to {ints}')}")
    if mode == "odd":
        pattern = lanes.op(f"or {ints} {towards_zero}, {lanes.op(f'zext {flags} {inexact} to {ints}')}")
    elif mode == "rz":
        pattern = towards_zero
    else:
        side = negative if mode == "rm" else lanes.op(f"xor {flags} {negative}, splat (i1 true)")
        away = lanes.op(f"and {flags} {inexact}, {side}")
        pattern = lanes.op(f"add {ints} {towards_zero}, {lanes.op(f'zext {flags} {away} to {ints}')}")
    return lanes.op(f"bitcast {ints} {pattern} to {work}")


def narrow(lanes: Lanes, value: str, source: str, target: str, mode: str) -> str:
    """Round to a narrower LLVM type; modes rn, rz, rm, rp and odd."""
    if source == target:
        return value
    nearest = cast(lanes, "fptrunc", value, source, target)
    if mode == "rn":
        return nearest
    back = cast(lanes, "fpext", nearest, target, source)
    error = lanes.op(f"fsub {source} {value}, {back}")
    return directed(lanes, target, nearest, error, source, mode)


def round_bits(lanes: Lanes, bits: str, count: int, drop: int, mode: str) -> str:
    """Round the bits of float numbers so that a shift can drop their low ``drop`` bits. Wrong for NaN."""
    ints = f"<{count} x i32>"
    if mode == "rz":
        return bits
    if mode == "rna":
        return lanes.op(f"add {ints} {bits}, {repeat(1 << (drop - 1), 32)}")
    if mode == "rn":
        last = lanes.op(f"and {ints} {lanes.op(f'lshr {ints} {bits}, {repeat(drop, 32)}')}, {repeat(1, 32)}")
        most = lanes.op(f"add {ints} {bits}, {repeat((1 << (drop - 1)) - 1, 32)}")
        return lanes.op(f"add {ints} {most}, {last}")
    side = lanes.op(f"icmp {'slt' if mode == 'rm' else 'sge'} {ints} {bits}, zeroinitializer")
    step = choose(lanes, side, ints, repeat((1 << drop) - 1, 32), "zeroinitializer")
    return lanes.op(f"add {ints} {bits}, {step}")


def bfloat(lanes: Lanes, value: str, count: int, mode: str = "rn") -> str:
    """The bf16 bits of float lanes. NaN becomes 0x7FFF."""
    work, ints, shorts = f"<{count} x float>", f"<{count} x i32>", f"<{count} x i16>"
    rounded = round_bits(lanes, lanes.op(f"bitcast {work} {value} to {ints}"), count, 16, mode)
    high = lanes.op(f"lshr {ints} {rounded}, {repeat(16, 32)}")
    unordered = lanes.op(f"fcmp uno {work} {value}, zeroinitializer")
    return lanes.op(f"trunc {ints} {choose(lanes, unordered, ints, repeat(0x7FFF, 32), high)} to {shorts}")


def finite(lanes: Lanes, bits: str, type: str) -> str:
    """``.satfinite``: infinities become the largest number."""
    form = FORMATS[type]
    size = lanes.op(f"and {form.ints} {bits}, {repeat((1 << (form.bits - 1)) - 1, form.bits)}")
    infinite = lanes.op(f"icmp eq {form.ints} {size}, {repeat(form.infinity, form.bits)}")
    return lanes.op(f"add {form.ints} {bits}, {lanes.op(f'sext <{form.count} x i1> {infinite} to {form.ints}')}")


def minimum_maximum(lanes: Lanes, name: str, work: str, a: str, b: str, propagate_nan: bool) -> str:
    """min or max with -0 < +0; a NaN loses, or wins if ``propagate_nan`` (PTX 9.7.3.11)."""
    return call(lanes, f"{name}imum" + ("" if propagate_nan else "num"), work, a, b)
