"""Floating-point arithmetic against exact rational arithmetic rounded once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.samples import sampled
from tests.vgpu.alu.harness import Bench, Row, check, emit, emitter
from tests.vgpu.alu.reference import exact, flush, ftz, relu, sat, within
from warpwright.errors import UnsupportedInstruction
from warpwright.vgpu.program.program import Inst


def plus(a, b):
    return a + b


def minus(a, b):
    return a - b


def times(a, b):
    return a * b


def over(a, b):
    return a / b


def fma(a, b, c):
    if isinstance(c, float) and math.isinf(c) and math.isfinite(a) and math.isfinite(b):
        return c
    return a * b + c


def zero_sum(a, b):
    return 0.0 if math.copysign(1, a) > 0 and math.copysign(1, b) > 0 else -0.0


def zero_difference(a, b):
    return zero_sum(a, -b)


def zero_fma(a, b, c):
    return zero_sum(a * b, c)


def root(x):
    return np.sqrt(x)


BASIC = {
    "add": (plus, zero_sum),
    "sub": (minus, zero_difference),
    "mul": (times, None),
    "fma": (fma, zero_fma),
}
EVERY = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
SCALAR_OF = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
ROWS = []
for name, (function, zero) in BASIC.items():
    ROWS += [Row(f"{name}.rn.{kind}", exact(function, SCALAR_OF.get(kind, kind))) for kind in EVERY]
    ROWS += [Row(f"{name}.{mode}.f32", exact(function, "f32", mode, zero)) for mode in ("rz", "rm", "rp")]
    ROWS.append(Row(f"{name}.rm.f32x2", exact(function, "f32", "rm", zero)))
    ROWS.append(Row(f"{name}.rn.ftz.f32", ftz(exact(function, "f32"))))
    ROWS.append(Row(f"{name}.rn.ftz.f16", ftz(exact(function, "f16"))))
    ROWS.append(Row(f"{name}.rn.ftz.f32x2", ftz(exact(function, "f32"))))
    ROWS.append(Row(f"{name}.rn.sat.f32", sat(exact(function, "f32"))))
    ROWS.append(Row(f"{name}.rn.sat.f16x2", sat(exact(function, "f16"))))
ROWS += [
    Row(f"{name}.f32", exact(function, "f32")) for name, function in (("add", plus), ("sub", minus), ("mul", times))
]
ROWS += [Row(f"fma.rn.relu.{kind}", relu(exact(fma, SCALAR_OF.get(kind, kind)))) for kind in ("f16", "bf16", "bf16x2")]
ROWS += [Row("mad.rn.f32", exact(fma, "f32")), Row("mad.rz.ftz.f32", ftz(exact(fma, "f32", "rz")))]
ROWS += [
    Row("add.f32.f16", exact(plus, "f32"), "d:f32, a:f16, b:f32"),
    Row("sub.rz.f32.bf16", exact(minus, "f32", "rz"), "d:f32, a:bf16, b:f32"),
    Row("fma.rn.sat.f32.f16", sat(exact(fma, "f32")), "d:f32, a:f16, b:f16, c:f32"),
]
for mode in ("rn", "rz", "rm", "rp"):
    ROWS.append(Row(f"div.{mode}.f32", exact(over, "f32", mode)))
    ROWS.append(Row(f"rcp.{mode}.f32", exact(lambda x: 1 / x, "f32", mode)))
ROWS += [
    Row("div.rn.f64", over),
    Row("div.rn.ftz.f32", ftz(exact(over, "f32"))),
    Row("rcp.rn.f64", lambda x: 1 / x),
    Row("sqrt.rn.f64", root),
    Row("sqrt.rn.f32", root),
    Row("sqrt.rn.ftz.f32", ftz(root)),
]


def directed_root(mode):
    """Returns the reference of a square root rounded in direction ``mode``, found by exact comparison of squares."""

    def root_of_lane(x):
        near = np.sqrt(x)
        if not np.isfinite(near) or near == 0:
            return near
        square, value = float(near) ** 2, float(x)
        if mode == "rp" and square < value:
            return np.nextafter(near, np.float32(np.inf))
        if mode in ("rz", "rm") and square > value:
            return np.nextafter(near, np.float32(0))
        return near

    return lambda a: np.array([root_of_lane(x) for x in a], np.float32)


ROWS += [Row(f"sqrt.{mode}.f32", directed_root(mode)) for mode in ("rz", "rm", "rp")]


def extremum(function, propagate=False, absolute=False, xorsign=False):
    """Returns the reference of min or max: -0 < +0, a NaN loses unless it propagates."""

    def extremum_of_lane(*lane):
        wide = [abs(float(x)) if absolute else float(x) for x in lane]
        numbers = [x for x in wide if not math.isnan(x)]
        if not numbers or (propagate and len(numbers) < len(wide)):
            return math.nan
        best = function(numbers, key=lambda x: (x, math.copysign(1, x)))
        odd = sum(math.copysign(1, float(x)) < 0 for x in lane) % 2
        return -best if xorsign and odd else best

    def reference(*arrays):
        flat = [extremum_of_lane(*lane) for lane in zip(*(a.reshape(-1) for a in arrays), strict=True)]
        return np.array(flat).astype(arrays[0].dtype).reshape(arrays[0].shape)

    return reference


for name, function in (("min", min), ("max", max)):
    ROWS += [Row(f"{name}.{kind}", extremum(function)) for kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")]
    ROWS += [Row(f"{name}.NaN.{kind}", extremum(function, True)) for kind in ("f32", "f16x2", "bf16")]
    ROWS.append(Row(f"{name}.ftz.f32", ftz(extremum(function))))
    ROWS.append(Row(f"{name}.xorsign.abs.f32", extremum(function, False, True, True)))
    ROWS.append(Row(f"{name}.NaN.xorsign.abs.bf16x2", extremum(function, True, True, True)))
    ROWS.append(Row(f"{name}.f32", extremum(function), "d, a, b, c"))
    ROWS.append(Row(f"{name}.NaN.abs.f32", extremum(function, True, True), "d, a, b, c"))

SIGNED = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
ROWS += [Row(f"neg.{kind}", lambda a: -a) for kind in SIGNED]
ROWS += [Row(f"abs.{kind}", lambda a: np.abs(a)) for kind in SIGNED]
ROWS += [Row("abs.ftz.f32", lambda a: flush(np.abs(a))), Row("neg.ftz.f16x2", lambda a: flush(-a))]
ROWS += [Row(f"copysign.{kind}", lambda a, b: np.copysign(b, a)) for kind in ("f32", "f64")]


def subnormal(x):
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)


TESTS = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & ~subnormal(x),
    "subnormal": subnormal,
}
ROWS += [Row(f"testp.{name}.{kind}", function) for name, function in TESTS.items() for kind in ("f32", "f64")]


def wide(function):
    """Returns ``function`` in float64, rounded to the type of its argument."""
    return lambda *arrays: function(*(a.astype(np.float64) for a in arrays)).astype(arrays[0].dtype)


def by_approximate_reciprocal(a, b):
    """Returns a quotient as div.approx computes it: a divisor above 2^126 counts as infinite."""
    return wide(over)(a, np.where(np.abs(b) > 2.0**126, np.copysign(np.float32(np.inf), b), b))


# The bounds are those of PTX ISA 9.1; absolute bounds cover the precision that a subnormal result loses.
TINY = 2.0**-148
ROWS += [
    Row("div.approx.f32", by_approximate_reciprocal, close=within(2.0**-22, TINY)),
    Row("div.full.f32", wide(over), close=within(2.0**-22, TINY)),
    Row("rcp.approx.f32", wide(lambda x: 1 / x), close=within(2.0**-23, TINY)),
    Row("rcp.approx.ftz.f32", ftz(wide(lambda x: 1 / x)), close=within(2.0**-23)),
    Row(
        "rcp.approx.ftz.f64",
        lambda x: 1 / np.where(np.abs(x) < 2.0**-1022, np.copysign(0.0, x), x),
        close=within(2.0**-20, 2.0**-1022),
    ),
    Row("sqrt.approx.f32", wide(root), close=within(2.0**-23, TINY)),
    Row("rsqrt.approx.f32", wide(lambda x: 1 / np.sqrt(x)), close=within(2.0**-22.9)),
    Row("rsqrt.approx.f64", lambda x: 1 / np.sqrt(x), close=within(2.0**-50)),
    Row("sin.approx.f32", wide(np.sin), close=within(2.0**-20, 2.0**-20.5)),
    Row("cos.approx.ftz.f32", ftz(wide(np.cos)), close=within(2.0**-20, 2.0**-20.5)),
    Row("lg2.approx.f32", wide(np.log2), close=within(2.0**-22, 2.0**-22)),
    Row("lg2.approx.ftz.f32", ftz(wide(np.log2)), close=within(2.0**-22, 2.0**-22)),
    Row("ex2.approx.f32", wide(np.exp2), close=within(2.0**-22, TINY)),
    Row("ex2.approx.ftz.f32", ftz(wide(np.exp2)), close=within(2.0**-22)),
    Row("ex2.approx.f16x2", wide(np.exp2), close=within(2.0**-9.9, 2.0**-24)),
    Row("ex2.approx.ftz.bf16", ftz(wide(np.exp2)), close=within(2.0**-7)),
    Row("tanh.approx.f32", wide(np.tanh), close=within(2.0**-11)),
    Row("tanh.approx.f16", wide(np.tanh), close=within(0, 2.0**-10.987)),
    Row("tanh.approx.bf16x2", wide(np.tanh), close=within(2.0**-8, TINY)),
]
ROWS += [
    Row("add.f32", lambda a: a + np.float32(0.1), "d, a, =0.1"),
    Row("fma.rn.f16x2", exact(fma, "f16"), guarded=True),
]

BENCH = Bench(ROWS)


@sampled("row", ROWS, ids=str, every=2)
def test_arithmetic_matches_the_reference(row):
    check(BENCH, row)


REFUSED = {
    "add.rz.f64": "rounding .rz of .f64",
    "fma.rp.f64": "rounding .rp of .f64",
    "sqrt.rm.f64": "rounding .rm of .f64",
    "fma.rn.oob.f16": "the out-of-bounds NaN of .oob",
}


@pytest.mark.parametrize("opcode", REFUSED)
def test_an_unsupported_opcode_is_refused(opcode):
    row = Row(opcode, None)
    lanes, _ = emitter(row)
    with pytest.raises(UnsupportedInstruction) as refusal:
        emit(lanes, Inst(0, opcode, row.match, tuple(row.operand_nodes), line=12))
    assert str(refusal.value) == f"PTX line 12: `{opcode}`: the virtual GPU does not execute {REFUSED[opcode]}."
