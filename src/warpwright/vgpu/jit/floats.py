"""Floating-point arithmetic of f64, f32, f16, bf16 and their packed types (PTX ISA 9.1 sections 9.7.3 to 9.7.5).

Correctly rounded operations are exact to the bit, except NaN payloads. Approximate operations use the host's library,
which is more accurate than PTX requires. f64 rounds to nearest only.
"""

from __future__ import annotations

from warpwright.vgpu.jit.ir import arithmetic, call, choose, has, number, repeat
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.outline import outlined
from warpwright.vgpu.jit.rounding import (
    FORMATS,
    Format,
    clamp01,
    directed,
    load,
    minimum_maximum,
    narrow,
    pack,
    raw,
    relu,
    store,
    two_sum,
)
from warpwright.vgpu.program.program import Inst

__all__: list[str] = []


def rounding(lanes: Lanes, inst: Inst) -> str:
    """The rounding mode of a correctly rounded operation."""
    mode = inst["rnd"] or "rn"
    if mode != "rn" and inst["type"] == "f64":
        raise lanes.unsupported(f"rounding .{mode} of .f64")
    return mode


# Powers of two that scale a result to be rounded as if its exponent had no lower end.
ENLARGED = {"f32": 32, "f32x2": 32, "f16": 5, "f16x2": 5}


def enlarge(lanes: Lanes, inst: Inst, value: str) -> str:
    form = FORMATS[inst["type"]]
    return lanes.op(f"fmul {form.work} {value}, {number(2.0 ** ENLARGED[inst['type']], form.element)}")


def flush_tiny(lanes: Lanes, inst: Inst, bits: str, large: str) -> str:
    """``.ftz``: zero for a result that is below the smallest normal number before it is rounded to a subnormal's fewer
    bits, even if those would round it up to a normal number (seen on an H200). ``large``: the same result, scaled."""
    kind = inst["type"]
    form = FORMATS[kind]
    least = form.tiny * (1 + ENLARGED[kind])
    size = lanes.op(f"and {form.ints} {pack(lanes, large, kind)}, {repeat(sign_bit(form) - 1, form.bits)}")
    small = lanes.op(f"icmp ult {form.ints} {size}, {repeat(least, form.bits)}")
    zero = lanes.op(f"and {form.ints} {bits}, {repeat(sign_bit(form), form.bits)}")
    return choose(lanes, small, form.ints, zero, bits)


def finish(lanes: Lanes, inst: Inst, value: str, large: str = "") -> None:
    """Clamp a result in the work type if the instruction asks for it, round it to its format, write it. ``large`` as
    for `flush_tiny`."""
    kind = inst["type"]
    work = FORMATS[kind].work
    if has(inst, "sat"):
        value = clamp01(lanes, value, work)
    if has(inst, "relu"):
        value = relu(lanes, value, work)
    bits = pack(lanes, value, kind)
    if large:
        bits = flush_tiny(lanes, inst, bits, large)
    store(lanes, inst.operand("d"), bits, kind, has(inst, "ftz"))


def sources(lanes: Lanes, inst: Inst, *kinds: str) -> list[str]:
    """The source operands in the work type; ``kinds``: their types if they differ from the instruction's."""
    operands = [operand for name in ("a", "b", "c") if (operand := inst.find(name))]
    kinds = kinds or (inst["type"],) * len(operands)
    return [load(lanes, operand, kind, has(inst, "ftz")) for operand, kind in zip(operands, kinds, strict=True)]


def double(form: Format) -> str:
    return f"<{form.count} x double>"


def widen(lanes: Lanes, value: str, form: Format) -> str:
    return lanes.op(f"fpext {form.work} {value} to {double(form)}")


def sum_to_odd(lanes: Lanes, work: str, a: str, b: str) -> str:
    """a + b rounded to odd, so that a second rounding to fewer bits is the only visible one."""
    total, error = two_sum(lanes, work, a, b)
    return directed(lanes, work, total, error, work, "odd")


def directed_sum(lanes: Lanes, form: Format, a: str, b: str, mode: str) -> str:
    """The sum of two doubles rounded to float by rz, rm or rp. An exact zero is -0 for rm unless both are +0."""
    wide = double(form)
    total = sum_to_odd(lanes, wide, a, b)
    if mode == "rm":
        ints = f"<{form.count} x i64>"
        both = lanes.op(f"or {ints} {lanes.bitcast(a, wide, ints)}, {lanes.bitcast(b, wide, ints)}")
        sign = lanes.bitcast(lanes.op(f"and {ints} {both}, {repeat(1 << 63, 64)}"), ints, wide)
        zero = lanes.op(f"fcmp oeq {wide} {total}, zeroinitializer")
        total = choose(lanes, zero, wide, sign, total)
    return narrow(lanes, total, wide, form.work, mode)


@arithmetic("add", "sub", floating=True)
@outlined
def add(lanes: Lanes, inst: Inst) -> None:
    kind, mode = inst["type"], rounding(lanes, inst)
    form = FORMATS[kind]
    x, y = sources(lanes, inst, inst["atype"] or kind, kind)
    if mode == "rn":
        value = lanes.op(f"f{inst.name} {form.work} {x}, {y}")
    else:
        if inst.name == "sub":
            y = lanes.op(f"fneg {form.work} {y}")
        value = directed_sum(lanes, form, widen(lanes, x, form), widen(lanes, y, form), mode)
    finish(lanes, inst, value)


@arithmetic("mul", floating=True)
@outlined
def mul(lanes: Lanes, inst: Inst) -> None:
    x, y = sources(lanes, inst)
    large = product(lanes, inst, enlarge(lanes, inst, x), y) if has(inst, "ftz") else ""
    finish(lanes, inst, product(lanes, inst, x, y), large)


def product(lanes: Lanes, inst: Inst, x: str, y: str) -> str:
    mode, form = rounding(lanes, inst), FORMATS[inst["type"]]
    if mode == "rn":
        return lanes.op(f"fmul {form.work} {x}, {y}")
    exact = lanes.op(f"fmul {double(form)} {widen(lanes, x, form)}, {widen(lanes, y, form)}")
    return narrow(lanes, exact, double(form), form.work, mode)


@meaning("fma")
@outlined
def fma(lanes: Lanes, inst: Inst) -> None:
    if has(inst, "oob"):
        raise lanes.unsupported("the out-of-bounds NaN of .oob")
    kind = inst["type"]
    source = inst["atype"] or kind
    multiply_add(lanes, inst, *sources(lanes, inst, source, source, kind))


@arithmetic("mad", floating=True)
@outlined
def mad(lanes: Lanes, inst: Inst) -> None:
    multiply_add(lanes, inst, *sources(lanes, inst))


def multiply_add(lanes: Lanes, inst: Inst, x: str, y: str, z: str) -> None:
    large = ""
    if has(inst, "ftz"):
        large = fma_value(lanes, inst, enlarge(lanes, inst, x), y, enlarge(lanes, inst, z))
    finish(lanes, inst, fma_value(lanes, inst, x, y, z), large)


def fma_value(lanes: Lanes, inst: Inst, x: str, y: str, z: str) -> str:
    """x*y + z rounded once. A product of two f16 is exact in float, one of two bf16 or f32 in double."""
    kind, mode = inst["type"], rounding(lanes, inst)
    form = FORMATS[kind]
    if kind.startswith("f16"):
        return sum_to_odd(lanes, form.work, lanes.op(f"fmul {form.work} {x}, {y}"), z)
    if kind.startswith("bf16") or mode != "rn":
        x, y, z = (widen(lanes, each, form) for each in (x, y, z))
        exact = lanes.op(f"fmul {double(form)} {x}, {y}")
        if mode == "rn":
            return narrow(lanes, sum_to_odd(lanes, double(form), exact, z), double(form), form.work, "odd")
        return directed_sum(lanes, form, exact, z, mode)
    return call(lanes, "fma", form.work, x, y, z)


def quotient(lanes: Lanes, inst: Inst, x: str, y: str) -> None:
    exact = has(inst, "ftz") and inst["rnd"] in ("rn", "rz", "rm", "rp")
    large = divided(lanes, inst, enlarge(lanes, inst, x), y) if exact else ""
    finish(lanes, inst, divided(lanes, inst, x, y), large)


def divided(lanes: Lanes, inst: Inst, x: str, y: str) -> str:
    """x / y. In double a quotient of floats that is not a float never rounds to a float: 48 bits suffice."""
    mode, form = rounding(lanes, inst), FORMATS[inst["type"]]
    if mode in ("rz", "rm", "rp"):
        value = lanes.op(f"fdiv {double(form)} {widen(lanes, x, form)}, {widen(lanes, y, form)}")
        return narrow(lanes, value, double(form), form.work, mode)
    return lanes.op(f"fdiv {form.work} {x}, {y}")


@arithmetic("div", floating=True)
@outlined
def div(lanes: Lanes, inst: Inst) -> None:
    x, y = sources(lanes, inst)
    if inst["rnd"] == "approx":
        y = overflowing(lanes, y)
    quotient(lanes, inst, x, y)


def overflowing(lanes: Lanes, divisor: str) -> str:
    """div.approx treats a divisor above 2^126 as infinity (PTX 9.7.3.8)."""
    work = FORMATS["f32"].work
    size = call(lanes, "fabs", work, divisor)
    huge = lanes.op(f"fcmp ogt {work} {size}, {number(2.0**126, 'float')}")
    infinity = call(lanes, "copysign", work, number(float("inf"), "float"), divisor)
    return choose(lanes, huge, work, infinity, divisor)


@meaning("rcp")
@outlined
def rcp(lanes: Lanes, inst: Inst) -> None:
    form = FORMATS[inst["type"]]
    (x,) = sources(lanes, inst)
    if has(inst, "approx") and inst["type"] == "f64":
        upper_half(lanes, inst, lanes.op(f"fdiv {form.work} {number(1.0, form.element)}, {x}"))
    else:
        quotient(lanes, inst, number(1.0, form.element), x)


def upper_half(lanes: Lanes, inst: Inst, value: str) -> None:
    """The approximations of .f64 with .ftz give 20 bits of fraction; the lower word is zero (PTX 9.7.3.14)."""
    bits = pack(lanes, value, "f64")
    bits = lanes.op(f"and <32 x i64> {bits}, {repeat(0xFFFFFFFF << 32, 64)}")
    store(lanes, inst.operand("d"), bits, "f64", ftz=True)


@meaning("sqrt")
@outlined
def sqrt(lanes: Lanes, inst: Inst) -> None:
    """Directed roundings go through double, as for a quotient."""
    mode, form = rounding(lanes, inst), FORMATS[inst["type"]]
    (x,) = sources(lanes, inst)
    if mode in ("rz", "rm", "rp"):
        root = call(lanes, "sqrt", double(form), widen(lanes, x, form))
        finish(lanes, inst, narrow(lanes, root, double(form), form.work, mode))
    else:
        finish(lanes, inst, call(lanes, "sqrt", form.work, x))


@meaning("rsqrt")
@outlined
def rsqrt(lanes: Lanes, inst: Inst) -> None:
    form = FORMATS[inst["type"]]
    (x,) = sources(lanes, inst)
    value = lanes.op(f"fdiv {form.work} {number(1.0, form.element)}, {call(lanes, 'sqrt', form.work, x)}")
    if inst["type"] == "f64" and has(inst, "ftz"):
        upper_half(lanes, inst, value)
    else:
        finish(lanes, inst, value)


FUNCTIONS = {"sin": "sin", "cos": "cos", "lg2": "log2", "ex2": "exp2", "tanh": "tanh"}


@meaning(*FUNCTIONS)
@outlined
def function(lanes: Lanes, inst: Inst) -> None:
    (x,) = sources(lanes, inst)
    finish(lanes, inst, call(lanes, FUNCTIONS[inst.name], FORMATS[inst["type"]].work, x))


def sign_bit(form: Format) -> int:
    return 1 << (form.bits - 1)


@arithmetic("neg", "abs", floating=True)
def sign(lanes: Lanes, inst: Inst) -> None:
    kind = inst["type"]
    form = FORMATS[kind]
    bits = raw(lanes, inst.operand("a"), kind)
    word, mask = ("xor", sign_bit(form)) if inst.name == "neg" else ("and", sign_bit(form) - 1)
    value = lanes.op(f"{word} {form.ints} {bits}, {repeat(mask, form.bits)}")
    store(lanes, inst.operand("d"), value, kind, has(inst, "ftz"))


@meaning("copysign")
@outlined
def copysign(lanes: Lanes, inst: Inst) -> None:
    kind = inst["type"]
    work = FORMATS[kind].work
    signed, size = sources(lanes, inst)
    store(lanes, inst.operand("d"), pack(lanes, call(lanes, "copysign", work, size, signed), kind), kind)


@arithmetic("min", "max", floating=True)
@outlined
def min_max(lanes: Lanes, inst: Inst) -> None:
    kind = inst["type"]
    form = FORMATS[kind]
    values = sources(lanes, inst)
    if has(inst, "abs"):
        values = [call(lanes, "fabs", form.work, value) for value in values]
    best = values[0]
    for value in values[1:]:
        best = minimum_maximum(lanes, inst.name, form.work, best, value, has(inst, "NaN"))
    bits = pack(lanes, best, kind)
    if has(inst, "xorsign"):
        bits = product_sign(lanes, form, bits, *(raw(lanes, x, kind) for x in inst.named("a", "b")))
    store(lanes, inst.operand("d"), bits, kind, has(inst, "ftz"))


def product_sign(lanes: Lanes, form: Format, size: str, a: str, b: str) -> str:
    """``size`` with the sign of the product of a and b."""
    sign = lanes.op(f"and {form.ints} {lanes.op(f'xor {form.ints} {a}, {b}')}, {repeat(sign_bit(form), form.bits)}")
    return lanes.op(f"or {form.ints} {size}, {sign}")


# The classes of llvm.is.fpclass. A zero counts as normal (PTX 9.7.3.1).
CLASSES = {
    "finite": 0x1F8,
    "infinite": 0x204,
    "number": 0x3FC,
    "notanumber": 0x003,
    "normal": 0x168,
    "subnormal": 0x090,
}


@meaning("testp")
def testp(lanes: Lanes, inst: Inst) -> None:
    form, operand = FORMATS[inst["type"]], inst.operand("a")
    value = load(lanes, operand, inst["type"])
    test = f"{form.work} {value}, i32 {CLASSES[inst['op']]}"
    suffix = "v32f64" if inst["type"] == "f64" else "v32f32"
    lanes.write(inst.operand("p"), lanes.op(f"call <32 x i1> @llvm.is.fpclass.{suffix}({test})"), "pred")
