"""Operators and arithmetic: their instructions, constant folding, and errors of types."""

from __future__ import annotations

import operator

import pytest

from tests.lang.helpers import code, misuse
from warpwright.errors import KernelError
from warpwright.lang import (
    Global,
    bf16,
    bf16x2,
    bitcast,
    brev,
    clz,
    cvt,
    div,
    ex2,
    f16,
    f32,
    f32x2,
    f64,
    fma,
    kernel,
    max,
    min,
    mul_hi,
    mul_wide,
    pack,
    popc,
    prmt,
    rcp,
    rem,
    rsqrt,
    s32,
    s64,
    select,
    sqrt,
    tanh,
    u8,
    u16,
    u32,
    u64,
    unpack,
)
from warpwright.lang import b32 as bits32


def apply(function, type, result=None):
    """Returns the instructions of ``function(x, y)`` on two parameters of ``type``, without the store of its result."""
    result = result or type

    @kernel("sm_90a", threads=32)
    def probe(x: type, y: type, out: Global[result]):
        out[0] = function(x, y)

    *computed, stored = code(probe)
    assert stored.startswith("st.global")
    return computed


OPERATORS = [
    (operator.add, u32, "add.u32 %r2, %r0, %r1"),
    (operator.sub, s32, "sub.s32 %r2, %r0, %r1"),
    (operator.mul, u64, "mul.lo.u64 %rd3, %rd0, %rd1"),
    (operator.floordiv, u32, "div.u32 %r2, %r0, %r1"),
    (operator.mod, u16, "rem.u16 %rs2, %rs0, %rs1"),
    (operator.truediv, f32, "div.rn.f32 %f2, %f0, %f1"),
    (operator.add, f32, "add.rn.f32 %f2, %f0, %f1"),
    (operator.sub, f64, "sub.rn.f64 %fd2, %fd0, %fd1"),
    (operator.mul, bf16, "mul.rn.bf16 %h2, %h0, %h1"),
    (operator.add, f16, "add.rn.f16 %h2, %h0, %h1"),
    (operator.add, bf16x2, "add.rn.bf16x2 %r2, %r0, %r1"),
    (operator.and_, u32, "and.b32 %r2, %r0, %r1"),
    (operator.or_, s64, "or.b64 %rd3, %rd0, %rd1"),
    (operator.xor, bits32, "xor.b32 %r2, %r0, %r1"),
    (operator.lshift, u32, "shl.b32 %r2, %r0, %r1"),
    (operator.rshift, u32, "shr.u32 %r2, %r0, %r1"),
    (div, s32, "div.s32 %r2, %r0, %r1"),
    (rem, s32, "rem.s32 %r2, %r0, %r1"),
    (mul_hi, u32, "mul.hi.u32 %r2, %r0, %r1"),
    (min, s32, "min.s32 %r2, %r0, %r1"),
    (max, f32, "max.f32 %f2, %f0, %f1"),
]


@pytest.mark.parametrize(("function", "type", "expected"), OPERATORS)
def test_a_binary_operator_is_one_instruction(function, type, expected):
    assert apply(function, type) == [expected]


UNARY = [
    (lambda x, y: -x, s32, s32, ["neg.s32 %r1, %r0"]),
    (lambda x, y: ~x, u32, u32, ["not.b32 %r1, %r0"]),
    (lambda x, y: abs(x), f32, f32, ["abs.f32 %f1, %f0"]),
    (lambda x, y: ex2(x), f32, f32, ["ex2.approx.ftz.f32 %f1, %f0"]),
    (lambda x, y: rcp(x), f32, f32, ["rcp.approx.ftz.f32 %f1, %f0"]),
    (lambda x, y: rsqrt(x), f32, f32, ["rsqrt.approx.ftz.f32 %f1, %f0"]),
    (lambda x, y: sqrt(x), f32, f32, ["sqrt.rn.f32 %f1, %f0"]),
    (lambda x, y: tanh(x), f32, f32, ["tanh.approx.f32 %f1, %f0"]),
    (lambda x, y: popc(x), u64, u32, ["popc.b64 %r0, %rd0"]),
    (lambda x, y: clz(x), u32, u32, ["clz.b32 %r1, %r0"]),
    (lambda x, y: brev(x), u32, u32, ["brev.b32 %r1, %r0"]),
    (lambda x, y: mul_wide(x, y), u32, u64, ["mul.wide.u32 %rd1, %r0, %r1"]),
    (lambda x, y: mul_wide(x, -3), s32, s64, ["mul.wide.s32 %rd1, %r0, -3"]),
    (lambda x, y: fma(x, y, 2.0), f32, f32, ["fma.rn.f32 %f2, %f0, %f1, 0f40000000"]),
    (lambda x, y: fma(x, y, 2.0, sat=True), f32, f32, ["fma.rn.sat.f32 %f2, %f0, %f1, 0f40000000"]),
    (lambda x, y: prmt(x, y, 0x5410), bits32, bits32, ["prmt.b32 %r2, %r0, %r1, 21520"]),
]


@pytest.mark.parametrize(("function", "type", "result", "expected"), UNARY)
def test_a_named_operation_is_one_instruction(function, type, result, expected):
    assert apply(function, type, result) == expected


FOLDED = [
    (lambda x, y: x + 0, []),
    (lambda x, y: 0 + x, []),
    (lambda x, y: x * 1, []),
    (lambda x, y: x // 1, []),
    (lambda x, y: x << 0, []),
    (lambda x, y: x * 8, ["shl.b32 %r1, %r0, 3"]),
    (lambda x, y: 8 * x, ["shl.b32 %r1, %r0, 3"]),
    (lambda x, y: x // 64, ["shr.u32 %r1, %r0, 6"]),
    (lambda x, y: x % 32, ["and.b32 %r1, %r0, 31"]),
    (lambda x, y: x * 3 + y, ["mad.lo.u32 %r2, %r0, 3, %r1"]),
    (lambda x, y: y + x * 8, ["mad.lo.u32 %r2, %r0, 8, %r1"]),
    (lambda x, y: (x + 1) * (x + 1), ["add.u32 %r1, %r0, 1", "mul.lo.u32 %r2, %r1, %r1"]),
    (lambda x, y: 7 - x, ["sub.u32 %r1, 7, %r0"]),
    (lambda x, y: x + (2**32 - 1), ["add.u32 %r1, %r0, 4294967295"]),
    (lambda x, y: min(3, 5) + x, ["add.u32 %r1, %r0, 3"]),
]


@pytest.mark.parametrize(("function", "expected"), FOLDED)
def test_constants_fold_and_powers_of_two_are_shifts(function, expected):
    assert apply(function, u32) == expected


COMPARISONS = [
    (operator.lt, u32, "setp.lt.u32 %p0, %r0, %r1"),
    (operator.ge, s32, "setp.ge.s32 %p0, %r0, %r1"),
    (operator.eq, u64, "setp.eq.u64 %p0, %rd0, %rd1"),
    (operator.eq, bits32, "setp.eq.b32 %p0, %r0, %r1"),
    (operator.ne, f32, "setp.neu.f32 %p0, %f0, %f1"),
    (operator.gt, f16, "setp.gt.f16 %p0, %h0, %h1"),
    (operator.le, bf16, "setp.le.bf16 %p0, %h0, %h1"),
]


@pytest.mark.parametrize(("function", "type", "expected"), COMPARISONS)
def test_comparisons_are_predicates(function, type, expected):
    compared, selected = apply(lambda x, y: function(x, y).to(u32), type, u32)
    assert compared == expected
    assert selected.startswith("selp.u32 ")


def test_a_constant_on_the_left_swaps_the_comparison():
    assert apply(lambda x, y: (x > 3).to(u32), u32) == ["setp.gt.u32 %p0, %r0, 3", "selp.u32 %r1, 1, 0, %p0"]


PREDICATES = [
    (lambda p, q: p & q, ["and.pred"]),
    (lambda p, q: p | q, ["or.pred"]),
    (lambda p, q: p ^ q, ["xor.pred"]),
    (lambda p, q: p != q, ["xor.pred"]),
    (lambda p, q: p & ~q, ["not.pred", "and.pred"]),
    (lambda p, q: p & True, []),
    (lambda p, q: False | p, []),
    (lambda p, q: ~~p, []),
    (lambda p, q: p == True, []),  # noqa: E712
]


@pytest.mark.parametrize(("function", "expected"), PREDICATES)
def test_predicates_combine(function, expected):
    lines = apply(lambda x, y: function(x < 5, y < 6).to(u32), u32)
    names = [line.partition(" ")[0] for line in lines]
    assert [name for name in names if not name.startswith(("setp", "selp"))] == expected


def test_constant_predicates_become_python_bools():
    seen = []

    @kernel("sm_90a")
    def probe(n: u32):
        p = n > 3
        seen.extend([p & False, True | p, select(True, n, 7)])

    assert code(probe) == []
    assert seen[:2] == [False, True]


CONVERSIONS = [
    (u32, s32, []),
    (u32, u64, ["cvt.u64.u32 %rd1, %r0"]),
    (s32, s64, ["cvt.s64.s32 %rd1, %r0"]),
    (u64, u32, ["cvt.u32.u64 %r0, %rd0"]),
    (u8, u32, ["cvt.u32.u8 %r0, %rs0"]),
    (u32, u8, ["cvt.u8.u32 %rs0, %r0"]),
    (u32, f32, ["cvt.rn.f32.u32 %f0, %r0"]),
    (f32, s32, ["cvt.rzi.s32.f32 %r0, %f0"]),
    (f32, bf16, ["cvt.rn.bf16.f32 %h0, %f0"]),
    (bf16, f32, ["cvt.f32.bf16 %f0, %h0"]),
    (f16, bf16, ["cvt.f32.f16 %f0, %h0", "cvt.rn.bf16.f32 %h1, %f0"]),
    (f64, f32, ["cvt.rn.f32.f64 %f0, %fd0"]),
    (f32, f64, ["cvt.f64.f32 %fd0, %f0"]),
    (s32, f16, ["cvt.rn.f16.s32 %h0, %r0"]),
    (u32, bf16, ["cvt.rn.bf16.u32 %h0, %r0"]),
]


@pytest.mark.parametrize(("source", "target", "expected"), CONVERSIONS)
def test_to_converts_the_number(source, target, expected):
    assert apply(lambda x, y: x.to(target), source, target) == expected


def test_cvt_takes_rounding_and_saturation():
    assert apply(lambda x, y: cvt(x, u8, rnd="rni", sat=True), f32, u8) == ["cvt.rni.sat.u8.f32 %rs0, %f0"]


def test_bitcast_between_registers_of_one_class_costs_nothing():
    assert apply(lambda x, y: x.bitcast(bits32), s32, bits32) == []
    assert apply(lambda x, y: bitcast(x, u32), f32, u32) == ["mov.b32 %r0, %f0"]


def test_pack_and_unpack_join_halves():
    assert apply(lambda x, y: pack(bf16x2, x, y), f32, bf16x2) == ["cvt.rn.bf16x2.f32 %r0, %f1, %f0"]
    assert apply(lambda x, y: pack(u64, x, y), u32, u64) == ["mov.b64 %rd1, {%r0, %r1}"]
    assert apply(lambda x, y: unpack(x, f16)[1], bits32, f16) == ["mov.b32 {%h0, %h1}, %r0"]


def test_a_pair_of_f32_has_packed_arithmetic() -> None:
    """A constant is both halves of the pair."""

    @kernel("sm_100a", threads=32)
    def probe(x: f32, y: f32, out: Global[f32]) -> None:
        out[0] = unpack(fma(pack(f32x2, x, y), 2.0, pack(f32x2, y, x)), f32)[1]

    assert code(probe)[:-1] == [
        "mov.b64 %rd1, {%f0, %f1}",
        "mov.b64 %rd2, {%f1, %f0}",
        "mov.b64 %rd3, 0x4000000040000000",
        "fma.rn.f32x2 %rd4, %rd1, %rd3, %rd2",
        "mov.b64 {%f2, %f3}, %rd4",
    ]


def test_an_extreme_of_three_floats_is_one_instruction_from_sm_100_on() -> None:
    def probe(x: f32, y: f32, out: Global[f32]) -> None:
        out[0] = max(x, y, x, y)

    assert code(kernel("sm_100a", threads=32)(probe))[:-1] == ["max.f32 %f2, %f0, %f1, %f0", "max.f32 %f3, %f2, %f1"]
    assert len(code(kernel("sm_90a", threads=32)(probe))[:-1]) == 3


def test_rounding_to_a_pair_may_apply_relu():
    assert apply(lambda x, y: pack(bf16x2, x, y, relu=True), f32, bf16x2) == ["cvt.rn.relu.bf16x2.f32 %r0, %f1, %f0"]


def test_extremes_may_keep_nan():
    assert apply(lambda x, y: max(x, 0.0, nan=True), f32) == ["max.NaN.f32 %f1, %f0, 0f00000000"]
    assert apply(lambda x, y: min(x, y, nan=True), bf16) == ["min.NaN.bf16 %h2, %h0, %h1"]


def test_select_chooses_in_one_instruction():
    assert apply(lambda x, y: select(~(x < y), x, 7), u32) == [
        "setp.lt.u32 %p0, %r0, %r1",
        "selp.u32 %r2, 7, %r0, %p0",
    ]


def test_the_same_expression_twice_is_computed_once():
    assert apply(lambda x, y: (x * y) ^ (x * y), u32) == ["mul.lo.u32 %r2, %r0, %r1", "xor.b32 %r3, %r2, %r2"]


def test_constants_of_every_float_type_are_exact():
    assert apply(lambda x, y: x * 0.1, f32) == ["mul.rn.f32 %f1, %f0, 0f3DCCCCCD"]
    assert apply(lambda x, y: x * 0.1, f64) == ["mul.rn.f64 %fd1, %fd0, 0d3FB999999999999A"]
    assert apply(lambda x, y: x * 1.5, bf16) == ["mov.b16 %h1, 0x3FC0", "mul.rn.bf16 %h2, %h0, %h1"]


REFUSED = [
    (
        lambda a, b, f, h: a + b,
        "given u32 + s32; expected one type on both sides: write y.to(u32) or x.to(s32)",
    ),
    (
        lambda a, b, f, h: a < f,
        "given u32 < f32; expected one type on both sides: write y.to(u32) or x.to(f32)",
    ),
    (
        lambda a, b, f, h: a + 1.5,
        "given 1.5 where u32 is expected; write an int, or convert the other side with x.to(f32)",
    ),
    (
        lambda a, b, f, h: a + 2**32,
        "given 4294967296; expected a constant of u32, from 0 to 4294967295",
    ),
    (
        lambda a, b, f, h: b + 2**31,
        "given 2147483648; expected a constant of s32, from -2147483648 to 2147483647",
    ),
    (
        lambda a, b, f, h: a - -1,
        "given -1; expected a constant of u32, from 0 to 4294967295",
    ),
    (
        lambda a, b, f, h: a / a,
        "given u32 / u32; integers divide with //, and x.to(f32) / y.to(f32) divides as floats",
    ),
    (
        lambda a, b, f, h: b // 2,
        "given s32 // s32; Python rounds down and PTX toward zero, so the operator is for unsigned types: "
        "write div(x, y) for PTX's",
    ),
    (
        lambda a, b, f, h: b % b,
        "given s32 % s32; Python rounds down and PTX toward zero, so the operator is for unsigned types: "
        "write rem(x, y) for PTX's",
    ),
    (
        lambda a, b, f, h: a // 0,
        "given %r0 (u32) // 0; the divisor must not be zero",
    ),
    (
        lambda a, b, f, h: f // f,
        "given f32 // f32; PTX has no such operation on f32",
    ),
    (
        lambda a, b, f, h: a.bitcast(bits32) + 1,
        "given b32 + b32; bit types have no arithmetic: write x.bitcast(u32) first",
    ),
    (
        lambda a, b, f, h: h / h,
        "given bf16 / bf16; PTX divides f32 and f64: write x.to(f32) / y.to(f32)",
    ),
    (
        lambda a, b, f, h: a.to(u8) + 1,
        "given u8 + u8; u8 is a storage type without arithmetic: convert with x.to(u32) first",
    ),
    (
        lambda a, b, f, h: -a,
        "given neg of u32; PTX has no such operation: write x.to(s32) first",
    ),
    (
        lambda a, b, f, h: (a < 1) < (b < 1),
        "given pred < pred; PTX has no such operation on pred",
    ),
    (
        lambda a, b, f, h: a + "1",
        "given %r0 (u32) + '1'; expected two u32 values or Python numbers",
    ),
    (
        lambda a, b, f, h: fma(a, a, a),
        "given u32 to fma; expected a float; write a * b + c for integers",
    ),
    (
        lambda a, b, f, h: fma(h, h, h, sat=True),
        "given bf16 to fma with sat=True; expected f32, f16 or f16x2; write max(min(x, 1.0), 0.0) for other floats",
    ),
    (
        lambda a, b, f, h: f.bitcast(u64),
        "given f32.bitcast(u64), 32 and 64 bits; expected types of one size: write x.to(u64) to convert the number",
    ),
    (
        lambda a, b, f, h: select(a, a, 1),
        "given %r0 (u32) to select; expected a pred: write x != 0",
    ),
    (
        lambda a, b, f, h: select(a < 1, a, f),
        "given u32 or f32; expected one type on both sides: write y.to(u32) or x.to(f32)",
    ),
    (
        lambda a, b, f, h: ex2(h),
        "given bf16 to ex2; expected f32: write x.to(f32)",
    ),
    (
        lambda a, b, f, h: pack(u64, h, h),
        "given two bf16 to pack into u64; expected halves of 32 bits",
    ),
    (
        lambda a, b, f, h: pack(bf16x2, h, h, relu=True),
        "given two bf16 to pack with relu=True; expected f32: max(x, 0.0, nan=True) of others",
    ),
    (
        lambda a, b, f, h: max(a, 1, nan=True),
        "given u32 to max with nan=True; expected f32, f16, bf16 or a pair",
    ),
]


@pytest.mark.parametrize(("function", "expected"), REFUSED)
def test_an_operation_that_ptx_lacks_is_an_error_with_an_edit(function, expected):
    @kernel("sm_90a")
    def probe(a: u32, b: s32, f: f32, h: bf16):
        function(a, b, f, h)

    with pytest.raises(KernelError) as caught:
        probe.ptx()
    assert caught.value.where.startswith(f"{__file__}:")
    assert str(caught.value).removeprefix(f"{caught.value.where}: ") == expected


def test_an_error_points_at_the_users_line():
    @kernel("sm_90a")
    def probe(a: u32, b: s32):
        a + b  # wrong

    assert misuse(probe).startswith("given u32 + s32")
