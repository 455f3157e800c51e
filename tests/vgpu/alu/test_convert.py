"""cvt and cvt.pack against exact rounding and against ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.samples import sampled
from tests.vgpu.alu.harness import COUNT, Bench, Row, check, emit, emitter, load_lanes, store_lanes
from tests.vgpu.alu.reference import exact, flush, ftz, relu, round_to, sat
from warpwright import isa
from warpwright.errors import UnsupportedInstruction
from warpwright.selftest.probes import values
from warpwright.vgpu.program.program import Inst

INTS = [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)]
FLOATS = ("f16", "bf16", "f32", "f64")


def same_value(x):
    return x


def dtype(kind):
    return values.DTYPES[kind]


def clip(kind):
    info = np.iinfo(dtype(kind))
    return lambda a: np.clip(a.astype(object), int(info.min), int(info.max)).astype(dtype(kind))


ROWS = [Row(f"cvt.{d}.{a}", lambda x, d=d: x.astype(dtype(d))) for d in INTS for a in INTS]
ROWS += [Row(f"cvt.sat.{d}.{a}", clip(d)) for d in INTS for a in INTS]


def round_integers(kind, mode):
    def reference(a):
        return np.array([round_to(Fraction(int(x)), kind, mode) if x else 0.0 for x in a]).astype(dtype(kind))

    return reference


ROWS += [
    Row(f"cvt.{m}.{d}.{a}", round_integers(d, m))
    for d in ("f32", "f64")
    for a in INTS
    for m in ("rn", "rz", "rm", "rp")
]
ROWS += [
    Row(f"cvt.{m}.f16.{a}", round_integers("f16", m)) for a in ("s8", "u16", "s32", "u64") for m in ("rn", "rz", "rp")
]
ROWS += [Row(f"cvt.rn.bf16.{a}", round_integers("bf16", "rn")) for a in INTS]
ROWS += [Row(f"cvt.rm.bf16.{a}", round_integers("bf16", "rm")) for a in ("s32", "s64")]
ROWS += [Row("cvt.rn.sat.f32.s32", sat(round_integers("f32", "rn")))]

TO_INTEGER = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def integers(kind, source, mode):
    info = np.iinfo(dtype(kind))
    least, most, bits = int(info.min), int(info.max), info.bits
    nan = 0 if source != "f64" and bits < 64 else 1 << (bits - 1)

    def round_one(x):
        if math.isnan(x):
            return nan - (1 << bits) * (nan > most)
        if math.isinf(x):
            return most if x > 0 else least
        return min(max(TO_INTEGER[mode](x), least), most)

    return lambda a: np.array([round_one(float(x)) for x in a], object).astype(dtype(kind))


ROWS += [Row(f"cvt.{m}.{d}.{a}", integers(d, a, m)) for d in INTS for a in ("f32", "f64") for m in TO_INTEGER]
ROWS += [Row(f"cvt.rzi.{d}.{a}", integers(d, a, "rzi")) for d in INTS for a in ("f16", "bf16")]
ROWS += [Row("cvt.rpi.ftz.s32.f32", lambda a: integers("s32", "f32", "rpi")(flush(a)))]

NARROWER = [("f32", "f64"), ("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64")]
ROWS += [Row(f"cvt.{m}.{d}.{a}", exact(same_value, d, m)) for d, a in NARROWER for m in ("rn", "rz", "rm", "rp")]
ROWS += [Row(f"cvt.rn.{d}.{a}", exact(same_value, d)) for d, a in (("bf16", "f16"), ("f16", "bf16"))]
ROWS += [
    Row(f"cvt.{d}.{a}", lambda x, d=d: x.astype(dtype(d)))
    for d, a in (("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"))
]
ROWS += [
    Row("cvt.ftz.f64.f32", lambda a: flush(a).astype(np.float64)),
    Row("cvt.rn.ftz.f32.f64", lambda a: flush(exact(same_value, "f32")(a))),
    Row("cvt.rn.ftz.f16.f32", lambda a: exact(same_value, "f16")(flush(a))),
    Row("cvt.rn.sat.f16.f32", sat(exact(same_value, "f16"))),
    Row("cvt.sat.f32.f32", sat(same_value)),
    Row("cvt.rni.f32.f32", np.rint),
    Row("cvt.rzi.f64.f64", np.trunc),
    Row("cvt.rmi.f32.f32", np.floor),
    Row("cvt.rpi.ftz.f32.f32", ftz(np.ceil)),
    Row("cvt.rmi.f16.f16", np.floor),
    *(Row(f"cvt.rn.relu.{d}.f32", relu(exact(same_value, d))) for d in ("f16", "bf16")),
    *(Row(f"cvt.rz.relu.{d}.f32", relu(exact(same_value, d, "rz"))) for d in ("f16", "bf16")),
]


def finite(kind, function):
    """Returns the reference of ``.satfinite``: infinities become the largest number."""
    top = float(ml_dtypes.finfo(dtype(kind)).max)
    return lambda a: np.clip(function(a).astype(np.float64), -top, top).astype(dtype(kind))


ROWS += [Row(f"cvt.rn.satfinite.{d}.f32", finite(d, exact(same_value, d))) for d in ("f16", "bf16")]


def tf32(mode, clamp=False, positive=False):
    def round_one(x):
        raw, x = int(x.view(np.uint32)), float(x)
        if math.isnan(x):  # as on an H200
            return (raw if mode == "rna" else 0x7FFFE000) - 0x2000 * clamp & ~0x1FFF
        if positive and x <= 0:
            return 0
        value = round_to(Fraction(x), "tf32", mode) if math.isfinite(x) and x else x
        if clamp and math.isinf(value):
            value = math.copysign(float.fromhex("0x1.ffcp+127"), value)
        return int(np.float32(value).view(np.uint32))

    return lambda a: np.array([round_one(x) for x in a], np.uint32)


ROWS += [Row(f"cvt.{m}.tf32.f32", tf32(m)) for m in ("rn", "rna", "rz")]
ROWS += [Row("cvt.rna.satfinite.tf32.f32", tf32("rna", True)), Row("cvt.rn.relu.tf32.f32", tf32("rn", positive=True))]


def pair(kind, function):
    """Returns the reference of a packed result: the first source becomes the upper element."""
    return lambda a, b: np.stack([function(b), function(a)], axis=1)


for name in ("f16", "bf16"):
    ROWS += [Row(f"cvt.{m}.{name}x2.f32", pair(name, exact(same_value, name, m))) for m in ("rn", "rz")]
    ROWS.append(Row(f"cvt.rn.relu.{name}x2.f32", pair(name, relu(exact(same_value, name)))))
    ROWS.append(Row(f"cvt.rn.satfinite.{name}x2.f32", pair(name, finite(name, exact(same_value, name)))))

MINI = {
    "e4m3x2": (ml_dtypes.float8_e4m3fn, 448.0, 0x7F),
    "e5m2x2": (ml_dtypes.float8_e5m2, 57344.0, 0x7F),
    "e2m3x2": (ml_dtypes.float6_e2m3fn, 7.5, 0x1F),
    "e3m2x2": (ml_dtypes.float6_e3m2fn, 28.0, 0x1F),
    "e2m1x2": (ml_dtypes.float4_e2m1fn, 6.0, 0x07),
}


def codes(kind, a, positive=False):
    small, top, nan = MINI[kind]
    a = a.astype(np.float32)
    a = np.where(a <= 0, np.float32(0), a) if positive else a
    small_a = np.clip(np.nan_to_num(a, nan=0.0, posinf=top, neginf=-top), -top, top).astype(small)
    return np.where(np.isnan(a), nan, small_a.view(np.uint8)).astype(np.uint32)


def join_codes(kind, low, high):
    return low | high << (4 if kind == "e2m1x2" else 8)


def mini_pair(kind, positive=False):
    return lambda a, b: join_codes(kind, codes(kind, b, positive), codes(kind, a, positive))


def mini_from_pair(kind):
    return lambda a: join_codes(kind, codes(kind, a[:, 0]), codes(kind, a[:, 1]))


def values_of(kind):
    small = MINI[kind][0]
    mask, step = (15, 4) if kind == "e2m1x2" else (63 if ("m3" in kind and "2m3" in kind) or "3m2" in kind else 255, 8)

    def reference(a):
        both = np.stack([a & mask, a >> step & mask], axis=1).astype(np.uint8)
        return both.view(small).astype(np.float32).astype(np.float16)

    return reference


for name in MINI:
    ROWS.append(Row(f"cvt.rn.satfinite.{name}.f32", mini_pair(name)))
    ROWS.append(Row(f"cvt.rn.satfinite.relu.{name}.f32", mini_pair(name, True)))
    ROWS.append(Row(f"cvt.rn.f16x2.{name}", values_of(name)))
ROWS += [Row(f"cvt.rn.satfinite.{name}.f16x2", mini_from_pair(name)) for name in ("e4m3x2", "e5m2x2")]
ROWS.append(Row("cvt.rn.relu.f16x2.e4m3x2", relu(values_of("e4m3x2"))))


def scale(mode, clamp):
    def round_one(x):
        x = abs(float(x))
        if math.isnan(x):
            return 0xFF
        if math.isinf(x):
            return 0xFE if clamp else 0xFF
        if x < 2.0**-127:
            return 0
        fraction, exponent = math.frexp(x)
        up = mode == "rp" and fraction > 0.5
        return min(exponent - 1 + 127 + up, 0xFE if clamp else 0xFF)

    return lambda a, b: np.array([round_one(x) << 8 | round_one(y) for x, y in zip(a, b, strict=True)], np.uint16)


ROWS += [Row(f"cvt.{m}.satfinite.ue8m0x2.f32", scale(m, True)) for m in ("rz", "rp")]
ROWS += [Row("cvt.rp.ue8m0x2.f32", scale("rp", False))]
ROWS += [
    Row("cvt.rz.satfinite.ue8m0x2.bf16x2", lambda a: scale("rz", True)(a[:, 1], a[:, 0])),
    Row(
        "cvt.rn.bf16x2.ue8m0x2",
        lambda a: (
            np.stack([a & 255, a >> 8], axis=1).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(values.BF16)
        ),
    ),
]


def saturate(kind, a):
    bits = int(kind[1:])
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return np.clip(a.astype(np.int64), least, most) & ((1 << bits) - 1)


for name in ("u16", "s16"):
    ROWS.append(Row(f"cvt.pack.sat.{name}.s32", lambda a, b, k=name: saturate(k, a) << 16 | saturate(k, b)))
for name in ("u2", "s2", "u4", "s4", "u8", "s8"):
    n = int(name[1:])
    ROWS.append(
        Row(
            f"cvt.pack.sat.{name}.s32.b32",
            lambda a, b, c, k=name, n=n: (
                (saturate(k, a) << n | saturate(k, b) | c.astype(np.int64) << 2 * n) & 0xFFFFFFFF
            ),
        )
    )

ROWS = [row for row in ROWS if isa.match(row.opcode)]  # not every pair of types has every modifier
BENCH = Bench(ROWS)


@sampled("row", ROWS, ids=str, every=2)
def test_convert_matches_the_reference(row):
    check(BENCH, row)


@pytest.mark.parametrize("kind", ["e4m3x2", "e5m2x2"])
def test_cvt_restores_every_fp8_code(kind):
    """Through f16 and back, all 65536 pairs of FP8 codes; NaN becomes the canonical NaN, infinity the largest
    number."""
    pairs = np.arange(65536).astype(np.uint16)
    small = MINI[kind][0]
    with np.errstate(all="ignore"):
        back = codes(kind, pairs.view(np.uint8).view(small).astype(np.float32))
    rows = [Row(f"cvt.rn.f16x2.{kind}", None), Row(f"cvt.rn.satfinite.{kind}.f16x2", None)]
    bench = Bench(rows)
    generator = np.random.default_rng(1)
    for start in range(0, 65536, COUNT):
        chunk = pairs[start : start + COUNT]
        for row, source, result in zip(rows, (kind, "f16x2"), ("f16x2", kind), strict=True):
            file = bench.file(row, generator)
            store_lanes(file, bench.slots[row], "%a", source, chunk)
            bench.run(row, file)
            chunk = load_lanes(file, bench.slots[row], "%d", result)
        assert np.array_equal(np.ascontiguousarray(chunk).view(np.uint8), back[2 * start : 2 * (start + COUNT)])


def test_stochastic_rounding_is_refused():
    row = Row("cvt.rs.f16x2.f32", None)
    lanes, _ = emitter(row)
    with pytest.raises(UnsupportedInstruction) as refusal:
        emit(lanes, Inst(0, row.opcode, row.match, tuple(row.operand_nodes), line=3))
    assert str(refusal.value) == (
        "PTX line 3: `cvt.rs.f16x2.f32`: the virtual GPU does not execute stochastic rounding."
    )
