"""Integer arithmetic and bit operations against Python's and NumPy's integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.alu.harness import COUNT, Bench, Row, check, load_lanes, store_lanes
from warpwright.selftest.probes import values

O = object  # noqa: E741  (Python's own integers: no width, no overflow)


def big(*arrays):
    return [array.astype(O) for array in arrays]


def wrap(value, kind):
    """Returns unbounded integers reduced to a type."""
    bits = values.bits_of(kind)
    return (value % (1 << bits)).astype(f"u{bits // 8}").view(values.DTYPES[kind])


def limits(kind):
    info = np.iinfo(values.DTYPES[kind])
    return int(info.min), int(info.max)


def sat(value, kind):
    return np.clip(value, *limits(kind)).astype(values.DTYPES[kind])


def multiply(kind, mode, a, b):
    a, b = big(a, b)
    bits = values.bits_of(kind)
    full = a * b
    if mode == "wide":
        return wrap(full, f"{kind[0]}{2 * bits}")
    return wrap(full >> bits if mode == "hi" else full, kind)


def quotient(kind):
    def reference(a, b):
        rows = [
            (-1 if y == 0 else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1))
            for x, y in zip(*big(a, b), strict=True)
        ]
        return wrap(np.array(rows, O), kind)

    return reference


def remainder(kind):
    def reference(a, b):
        rows = [(-1 if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)) for x, y in zip(*big(a, b), strict=True)]
        return wrap(np.array(rows, O), kind)

    return reference


def each(function, dtype=np.uint32):
    """Returns a reference from a function of Python integers."""

    def reference(*arrays):
        return np.array([function(*(int(x) for x in lane)) for lane in zip(*arrays, strict=True)], O).astype(dtype)

    return reference


def pairs16(function, kind):
    return lambda a, b: wrap(function(a.astype(O), b.astype(O)), kind)


INTS = ("u16", "u32", "u64", "s16", "s32", "s64")
ROWS = [Row(f"add.{t}", lambda a, b: a + b) for t in INTS]
ROWS += [Row(f"sub.{t}", lambda a, b: a - b) for t in INTS]
ROWS += [Row(f"mul.{m}.{t}", lambda a, b, t=t, m=m: multiply(t, m, a, b)) for t in INTS for m in ("lo", "hi")]
ROWS += [Row(f"mul.wide.{t}", lambda a, b, t=t: multiply(t, "wide", a, b)) for t in ("u16", "u32", "s16", "s32")]
ROWS += [Row(f"mad.{m}.{t}", lambda a, b, c, t=t, m=m: multiply(t, m, a, b) + c) for t in INTS for m in ("lo", "hi")]
ROWS += [Row(f"mad.wide.{t}", lambda a, b, c, t=t: multiply(t, "wide", a, b) + c) for t in ("u16", "u32", "s16", "s32")]
ROWS += [Row(f"div.{t}", quotient(t)) for t in INTS]
ROWS += [Row(f"rem.{t}", remainder(t)) for t in INTS]
ROWS += [Row(f"min.{t}", np.minimum) for t in (*INTS, "u16x2", "s16x2")]
ROWS += [Row(f"max.{t}", np.maximum) for t in (*INTS, "u16x2", "s16x2")]
ROWS += [Row(f"add.{t}", lambda a, b: a + b) for t in ("u16x2", "s16x2")]
ROWS += [Row(f"sad.{t}", lambda a, b, c, t=t: wrap(abs(a.astype(O) - b.astype(O)) + c.astype(O), t)) for t in INTS]
ROWS += [Row(f"abs.{t}", lambda a, t=t: wrap(abs(a.astype(O)), t)) for t in ("s16", "s32", "s64")]
ROWS += [Row(f"neg.{t}", lambda a: -a) for t in ("s16", "s32", "s64")]


def low24(x, kind):
    x = x.astype(O) & 0xFFFFFF
    return np.where(x >= 1 << 23, x - (1 << 24), x) if kind == "s32" else x


def multiply24(kind, mode, a, b):
    full = low24(a, kind) * low24(b, kind)
    return wrap(full >> 16 if mode == "hi" else full, kind)


ROWS += [
    Row("add.sat.s32", lambda a, b: sat(a.astype(O) + b.astype(O), "s32")),
    Row("sub.sat.s32", lambda a, b: sat(a.astype(O) - b.astype(O), "s32")),
    Row("mad.hi.sat.s32", lambda a, b, c: sat((a.astype(O) * b.astype(O) >> 32) + c.astype(O), "s32")),
    Row("min.relu.s32", lambda a, b: np.maximum(np.minimum(a, b), 0)),
    Row("max.relu.s16x2", lambda a, b: np.maximum(np.maximum(a, b), 0)),
    *(
        Row(f"mul24.{m}.{t}", lambda a, b, t=t, m=m: multiply24(t, m, a, b))
        for t in ("u32", "s32")
        for m in ("lo", "hi")
    ),
    *(
        Row(f"mad24.{m}.{t}", lambda a, b, c, t=t, m=m: multiply24(t, m, a, b) + c)
        for t in ("u32", "s32")
        for m in ("lo", "hi")
    ),
    Row("mad24.hi.sat.s32", lambda a, b, c: sat(multiply24("s32", "hi", a, b).astype(O) + c.astype(O), "s32")),
]


def most_significant(bits, signed, shift):
    def reference(x):
        x = ~x if signed and x < 0 else x
        found = x.bit_length() - 1
        return (0xFFFFFFFF if found < 0 else bits - 1 - found if shift else found) & 0xFFFFFFFF

    return each(reference)


def reverse(bits):
    return each(lambda x: int(f"{x:0{bits}b}"[::-1], 2), f"u{bits // 8}")


def bfe(kind):
    bits = values.bits_of(kind)

    def reference(a, start, width):
        start, width = (start, width) if bits == 64 else (start & 0xFF, width & 0xFF)  # as an H200 does
        sign = (a >> min(start + width - 1, bits - 1)) & 1 if kind[0] == "s" and width else 0
        field = [(a >> (start + i)) & 1 if i < width and start + i < bits else sign for i in range(bits)]
        return sum(bit << i for i, bit in enumerate(field))

    return lambda a, b, c: wrap(each(reference, O)(a, b, c), kind)


def bfi(bits):
    def reference(a, b, start, width):
        start, width = (start, width) if bits == 64 else (start & 0xFF, width & 0xFF)  # as an H200 does
        for i in range(min(width, bits)):
            if start + i < bits:
                b = b & ~(1 << (start + i)) | ((a >> i) & 1) << (start + i)
        return b

    return each(reference, f"u{bits // 8}")


def szext(kind, wrapped):
    def reference(a, width):
        width = width & 31 if wrapped else min(width, 32)
        field = a & ((1 << width) - 1)
        return field - (1 << width) if kind == "s32" and width and field >> (width - 1) else field

    return lambda a, b: wrap(each(reference, O)(a, b), kind)


def bmsk(wrapped):
    def reference(start, width):
        start, width = (x & 31 if wrapped else min(x, 32) for x in (start, width))
        return (((1 << width) - 1) << start) & 0xFFFFFFFF

    return each(reference)


def dot4(signs):
    types = [np.int8 if s == "s32" else np.uint8 for s in signs]
    return lambda a, b, c: (
        (a.view(types[0]).reshape(-1, 4).astype(np.int64) * b.view(types[1]).reshape(-1, 4).astype(np.int64)).sum(
            axis=1
        )
        + c.astype(np.int64)
    ).astype(np.uint32)


def dot2(signs, upper):
    first, second = (np.int16 if signs[0] == "s32" else np.uint16), (np.int8 if signs[1] == "s32" else np.uint8)

    def reference(a, b, c):
        part = b.view(second).reshape(-1, 4)[:, 2:] if upper else b.view(second).reshape(-1, 4)[:, :2]
        total = (a.view(first).reshape(-1, 2).astype(np.int64) * part.astype(np.int64)).sum(axis=1)
        return (total + c.astype(np.int64)).astype(np.uint32)

    return reference


SIGNS = [(a, b) for a in ("u32", "s32") for b in ("u32", "s32")]
ROWS += [Row(f"popc.b{n}", each(lambda x: x.bit_count())) for n in (32, 64)]
ROWS += [Row(f"clz.b{n}", each(lambda x, n=n: n - x.bit_length())) for n in (32, 64)]
ROWS += [Row(f"bfind.{t}", most_significant(values.bits_of(t), t[0] == "s", False)) for t in INTS if "16" not in t]
ROWS += [
    Row(f"bfind.shiftamt.{t}", most_significant(values.bits_of(t), t[0] == "s", True)) for t in INTS if "16" not in t
]
ROWS += [Row(f"brev.b{n}", reverse(n)) for n in (32, 64)]
ROWS += [Row(f"bfe.{t}", bfe(t)) for t in INTS if "16" not in t]
ROWS += [Row(f"bfi.b{n}", bfi(n)) for n in (32, 64)]
ROWS += [Row(f"szext.{m}.{t}", szext(t, m == "wrap")) for t in ("u32", "s32") for m in ("clamp", "wrap")]
ROWS += [Row(f"bmsk.{m}.b32", bmsk(m == "wrap")) for m in ("clamp", "wrap")]
ROWS += [Row(f"dp4a.{a}.{b}", dot4((a, b))) for a, b in SIGNS]
ROWS += [Row(f"dp2a.{m}.{a}.{b}", dot2((a, b), m == "hi")) for a, b in SIGNS for m in ("lo", "hi")]


def shift(kind, left):
    bits = values.bits_of(kind)

    def reference(a, n):
        n = min(n, bits)
        return (a << n if left else a >> n) % (1 << bits)

    return lambda a, b: wrap(each(reference, O)(a, b), kind)


def funnel(left, clamp):
    def reference(a, b, n):
        n = min(n, 32) if clamp else n & 31
        both = b << 32 | a
        return (both << n >> 32 if left else both >> n) & 0xFFFFFFFF

    return each(reference)


def lop3(table):
    def reference(a, b, c):
        value = np.zeros_like(a)
        for i in range(8):
            if table >> i & 1:
                value |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return value

    return reference


def prmt(a, b, selector):
    data = (b << 32 | a).to_bytes(8, "little")
    chosen = [selector >> (4 * i) & 15 for i in range(4)]
    return int.from_bytes([(255 * (data[s & 7] >> 7) if s & 8 else data[s]) for s in chosen], "little")


MODES = {
    "f4e": lambda i: [i, i + 1, i + 2, i + 3],
    "b4e": lambda i: [i, (i - 1) % 8, (i - 2) % 8, (i - 3) % 8],
    "rc8": lambda i: [i] * 4,
    "ecl": lambda i: [max(i, k) for k in range(4)],
    "ecr": lambda i: [min(i, k) for k in range(4)],
    "rc16": lambda i: [i % 2 * 2, i % 2 * 2 + 1] * 2,
}


def prmt_mode(mode):
    return each(lambda a, b, c: prmt(a, b, sum(s << 4 * k for k, s in enumerate(MODES[mode](c & 3)))))


ROWS += [
    Row(f"{n}.b{w}", f)
    for n, f in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor))
    for w in (16, 32, 64)
]
ROWS += [Row(f"{n}.pred", f) for n, f in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor))]
ROWS += [Row("not.pred", np.logical_not, "p:pred, a:pred")]
ROWS = [
    Row(row.opcode, row.reference, "p:pred, a:pred, b:pred")
    if row.opcode.endswith(".pred") and not row.operands
    else row
    for row in ROWS
]
ROWS += [Row(f"not.b{w}", np.bitwise_not) for w in (16, 32, 64)]
ROWS += [Row(f"cnot.b{w}", lambda a: a == 0) for w in (16, 32, 64)]
ROWS += [Row(f"shl.b{w}", shift(f"b{w}", True)) for w in (16, 32, 64)]
ROWS += [Row(f"shr.{t}", shift(t, False)) for t in (*INTS, "b16", "b32", "b64")]
ROWS += [Row("shl.b32", lambda a, n=n: a << n if n < 32 else a * 0, f"d, a, ={n}") for n in (0, 5, 31, 32, 33)]
ROWS += [Row(f"shf.{d}.{m}.b32", funnel(d == "l", m == "clamp")) for d in "lr" for m in ("clamp", "wrap")]
ROWS += [
    Row("lop3.b32", lop3(t), f"d, a, b, c, ={t}")
    for t in (0, 0xFF, 0x80, 0xE8, 0x96, 0xCA, 0x1B, 0xF0, 0xCC, 0xAA, 0x0F, 0x6A, 0xB4, 0x2D, 0xFE)
]
ROWS += [
    Row(
        "lop3.or.b32",
        lambda a, b, c, q: (lop3(0x80)(a, b, c), (lop3(0x80)(a, b, c) != 0) | q),
        "d|p:pred, a, b, c, =128, r:pred",
    ),
    Row("prmt.b32", each(prmt)),
    *(
        Row("prmt.b32", each(lambda a, b, s=s: prmt(a, b, s)), f"d, a, b, ={s}")
        for s in (0x5410, 0x7632, 0x3210, 0x8F01, 0x9ABC, 0x0123, 0x4444)
    ),
    *(Row(f"prmt.b32.{mode}", prmt_mode(mode)) for mode in MODES),
    Row("prmt.b32.b4e", lambda a, b: prmt_mode("b4e")(a, b, np.full_like(a, 2)), "d, a, b, =2"),
]
ROWS += [
    *(Row(f"mov.{t}", lambda a: a) for t in ("b16", "u32", "f32", "b64", "f64")),
    Row("mov.pred", lambda a: a, "p:pred, a:pred"),
    Row("mov.f32", lambda: np.full(COUNT, 1.5, np.float32), "d, =1.5"),
    Row("mov.u64", lambda: np.full(COUNT, 2**64 - 3, np.uint64), "d, =-3"),
    Row("mov.b64", lambda a, b: a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32), "d:b64, {a:b32, b:b32}"),
    Row("mov.b32", lambda a, b: a.astype(np.uint32) | b.astype(np.uint32) << 16, "d:b32, {a:b16, b:b16}"),
    Row("mov.b64", lambda a: (a, a >> 16, a >> 32, a >> 48), "{d0:b16, d1:b16, d2:b16, d3:b16}, a:b64"),
    Row("mov.b64", lambda a: a >> 32, "{_, d:b32}, a:b64"),
    Row("mov.b128", lambda a, b: np.stack([a, b], axis=1).view("V16").reshape(-1), "d:b128, {a:b64, b:b64}"),
]
ROWS += [Row("add.u32", lambda a, b: a + b, guarded=True), Row("div.s32", quotient("s32"), guarded=True)]

BENCH = Bench(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_arithmetic_matches_the_reference(row):
    check(BENCH, row)


CARRIES = {
    "add.cc": lambda a, b, carry: (a + b, 0),
    "addc.cc": lambda a, b, carry: (a + b + carry, 0),
    "addc": lambda a, b, carry: (a + b + carry, None),
    "sub.cc": lambda a, b, carry: (a - b, 0),
    "subc.cc": lambda a, b, carry: (a - b - carry, 0),
    "subc": lambda a, b, carry: (a - b - carry, None),
    "mad.lo.cc": lambda a, b, c, carry: (a * b % 2**32 + c, 0),
    "madc.hi.cc": lambda a, b, c, carry: ((a * b >> 32) + c + carry, 0),
    "madc.lo": lambda a, b, c, carry: (a * b % 2**32 + c + carry, None),
}
CARRY_ROWS = [Row(f"{name}.u32", function) for name, function in CARRIES.items()]
CARRY_BENCH = Bench(CARRY_ROWS)


@pytest.mark.parametrize("row", CARRY_ROWS, ids=str)
def test_carry_belongs_to_each_lane(row):
    """Each lane reads and writes its own carry flag, and only in the instructions that name it."""
    generator = np.random.default_rng(7)
    slots = CARRY_BENCH.slots[row]
    file = CARRY_BENCH.file(row, generator)
    inputs = values.inputs(["u32"] * len(row.sources), COUNT, generator)
    for name, data in zip(row.sources, inputs, strict=True):
        store_lanes(file, slots, name, "u32", data)
    before = load_lanes(file, slots, "%cc", "pred")
    CARRY_BENCH.run(row, file)
    total, changes = row.reference(*big(*inputs), before.astype(O))
    assert np.array_equal(load_lanes(file, slots, "%d", "u32"), wrap(total, "u32"))
    outside = ((total < 0) | (total >= 2**32)).astype(bool)
    assert np.array_equal(load_lanes(file, slots, "%cc", "pred"), before if changes is None else outside)
