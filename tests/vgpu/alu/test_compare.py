"""set, setp, selp and slct."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from tests.vgpu.alu.harness import Bench, Row, check
from tests.vgpu.alu.reference import flush
from warpwright.selftest.probes import values

BASIC = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
JOIN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def unordered(a, b):
    return np.isnan(a) | np.isnan(b)


def ordered(function):
    return lambda a, b: function(a, b) & ~unordered(a, b)


FLOATING = {
    **{name: ordered(function) for name, function in BASIC.items()},
    **{name + "u": lambda a, b, f=function: f(a, b) | unordered(a, b) for name, function in BASIC.items()},
    "num": lambda a, b: ~unordered(a, b),
    "nan": unordered,
}

ROWS = [
    Row(f"setp.{name}.{kind}", f) for name, f in BASIC.items() for kind in ("s16", "s32", "s64", "u16", "u32", "u64")
]
ROWS += [Row(f"setp.{name}.{kind}", f) for name, f in UNSIGNED.items() for kind in ("u32", "u64")]
ROWS += [Row(f"setp.{name}.b{bits}", BASIC[name]) for name in ("eq", "ne") for bits in (16, 32, 64)]
ROWS += [Row(f"setp.{name}.{kind}", f) for name, f in FLOATING.items() for kind in ("f32", "f64", "f16", "bf16")]
ROWS += [Row("setp.eq.ftz.f32", lambda a, b: FLOATING["eq"](flush(a), flush(b)))]


def pack(function):
    return lambda a, b: (function(a, b)[:, 0], function(a, b)[:, 1])


ROWS += [
    Row(f"setp.{name}.{kind}", pack(FLOATING[name]), "p:pred|q:pred, a, b")
    for name in ("lt", "neu", "nan")
    for kind in ("f16x2", "bf16x2")
]
ROWS += [
    Row("setp.gt.s32", lambda a, b: (a > b, a <= b), "p:pred|q:pred, a, b"),
    Row("setp.gt.f32", lambda a, b: (a > b, ~(a > b)), "p:pred|q:pred, a, b"),
    Row("setp.gt.s32", lambda a, b: a <= b, "_|q:pred, a, b"),
    Row("setp.gt.s32", lambda a: a > -7, "p:pred, a, =-7"),
    Row("setp.lt.f32", lambda a: a < 0.5, "p:pred, a, =0.5"),
]
ROWS += [Row(f"setp.lt.{j}.u32", lambda a, b, c, f=f: f(a < b, c)) for j, f in JOIN.items()]
ROWS += [
    Row(f"setp.lt.{j}.f32", lambda a, b, c, f=f: (f(a < b, c), f(~(a < b), c)), "p:pred|q:pred, a, b, c:pred")
    for j, f in JOIN.items()
]
ROWS += [
    Row(
        "setp.ge.and.f16x2",
        lambda a, b, c: ((a >= b)[:, 0] & c, (a >= b)[:, 1] & c),
        "p:pred|q:pred, a, b, c:pred",
    )
]


def number(kind):
    """Returns a conversion of true to a type: all ones for integers, 1.0 for floating point."""
    if kind in values.PACKED:
        return lambda true: true.astype(values.DTYPES[values.PACKED[kind]])
    if kind.startswith(("f", "bf")):
        return lambda true: true.astype(values.DTYPES[kind])
    return lambda true: -true.astype(np.int64)


ROWS += [
    Row(f"set.{c}.{d}.{t}", lambda a, b, f=f, d=d: number(d)(f(a, b)))
    for d in ("u32", "s32", "f32")
    for c, f, t in (("lt", BASIC["lt"], "s32"), ("hi", UNSIGNED["hi"], "u64"), ("geu", FLOATING["geu"], "f32"))
]
ROWS += [Row(f"set.gt.{d}.f16", lambda a, b, d=d: number(d)(a > b)) for d in ("u16", "s32", "f16")]
ROWS += [Row(f"set.gt.{d}.{d}", lambda a, b, d=d: number(d)(a > b)) for d in ("bf16", "f16x2", "bf16x2")]
ROWS += [
    Row("set.eq.u32.f16x2", lambda a, b: (65535 * (a == b).astype(np.uint16)).view(np.uint32).reshape(-1)),
    Row("set.lt.and.u32.s32", lambda a, b, c: -((a < b) & c).astype(np.int64)),
]

KINDS = ("b16", "b32", "b64", "u32", "s64", "f32", "f64")
ROWS += [Row(f"selp.{kind}", lambda a, b, c: np.where(c, a, b)) for kind in KINDS]
ROWS += [Row("selp.b32", lambda c: np.where(c, 3, 2**32 - 1), "d, =3, =-1, c:pred")]
ROWS += [Row(f"slct.{kind}.s32", lambda a, b, c: np.where(c >= 0, a, b)) for kind in KINDS]
ROWS += [Row(f"slct.{kind}.f32", lambda a, b, c: np.where(c >= 0, a, b)) for kind in ("u32", "f64")]
ROWS += [Row("slct.ftz.u32.f32", lambda a, b, c: np.where(flush(c) >= 0, a, b))]
ROWS += [Row("setp.lt.u32", np.less, guarded=True)]

BENCH = Bench(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_compare_matches_the_reference(row):
    check(BENCH, row)
