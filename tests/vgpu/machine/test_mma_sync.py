"""mma.sync: fragments of PTX ISA 9.1 section 9.7.14.5, sums, and the rounding of tensor cores."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.operands import DTYPES, small_integers, wide
from tests.vgpu.engines.rounding import step, steps
from tests.vgpu.machine.warp_text import run_warp

SHAPES = [
    ("m16n8k8", "f16", "f16", "f32"), ("m16n8k8", "f16", "f16", "f16"), ("m16n8k8", "bf16", "bf16", "f32"),
    ("m16n8k16", "f16", "f16", "f32"), ("m16n8k16", "f16", "f16", "f16"), ("m16n8k16", "bf16", "bf16", "f32"),
    ("m16n8k4", "tf32", "tf32", "f32"), ("m16n8k8", "tf32", "tf32", "f32"), ("m16n8k16", "s8", "u8", "s32"),
    ("m16n8k32", "u8", "s8", "s32"), ("m16n8k32", "e4m3", "e5m2", "f32"), ("m16n8k32", "e5m2", "e5m2", "f16"),
    ("m16n8k16", "e4m3", "e4m3", "f32"),
]  # fmt: skip
KINDS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "s32": np.int32}


def a_place(k: int, each: int, i: int, g: int, q: int) -> tuple[int, int]:
    """Returns the row and column of element i of a thread's A, by the figures of section 9.7.14.5."""
    if each == 1:
        return g + 8 * (i & 1), q + 4 * (i >> 1)
    if k * 32 // each == 8 * 16:
        return g + 8 * (i // each), each * q + i % each
    return g + 8 * (i // each & 1), each * q + i % each + 4 * each * (i // (2 * each))


def b_place(each: int, i: int, g: int, q: int) -> tuple[int, int]:
    return each * q + i % each + 4 * each * (i // each), g


def c_place(i: int, g: int, q: int) -> tuple[int, int]:
    return g + 8 * (i >> 1), 2 * q + (i & 1)


def words_of(values: NDArray[Any]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def fragments(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], d_type: str) -> tuple[NDArray[np.uint32], ...]:
    """Returns A (16 × K), B (8 × K, so transposed) and C (16 × 8) as registers of 32 lanes."""
    each, k = 4 // a.dtype.itemsize, a.shape[1]
    lanes = [(lane // 4, lane % 4) for lane in range(32)]
    left = [[a[a_place(k, each, i, g, q)] for i in range(k // 2)] for g, q in lanes]
    right = [[b[b_place(each, i, g, q)[::-1]] for i in range(k // 4)] for g, q in lanes]
    sums = [[c[c_place(i, g, q)] for i in range(4)] for g, q in lanes]
    return (
        words_of(np.array(left, a.dtype)),
        words_of(np.array(right, b.dtype)),
        words_of(np.array(sums, KINDS[d_type])),
    )


def multiply(case: tuple[str, str, str, str], a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], word: str = "",
             **options: Any) -> NDArray[Any]:  # fmt: skip
    shape, a_type, b_type, d_type = case
    parts = fragments(a, b, c, d_type)
    starts = np.cumsum([0, *[part.shape[1] for part in parts]])
    left, right, sums = (
        "{" + ", ".join(f"%r{i}" for i in range(first, last)) + "}" for first, last in pairwise(starts)
    )
    results = parts[2].shape[1]
    target = "{" + ", ".join(f"%o{i}" for i in range(results)) + "}"
    line = (
        f"mma.sync.aligned.{shape}.row.col{word}.{d_type}.{a_type}.{b_type}.{d_type} {target}, {left}, {right}, {sums};"
    )
    found = run_warp(line, np.concatenate(parts, axis=1), results, **options).view(KINDS[d_type])
    out = np.empty((16, 8), KINDS[d_type])
    for lane in range(32):
        for i in range(4):
            out[c_place(i, lane // 4, lane % 4)] = found[lane, i]
    return out


def depth(case: tuple[str, str, str, str]) -> int:
    return int(case[0].rpartition("k")[2])


@pytest.mark.parametrize("case", SHAPES, ids="-".join)
@pytest.mark.parametrize("numerics", ["exact", "hardware"])
def test_mma_sync_places_every_element(case: tuple[str, str, str, str], numerics: str) -> None:
    random, k = np.random.default_rng(depth(case)), depth(case)
    a, b = small_integers(random, (16, k), case[1]), small_integers(random, (8, k), case[2])
    c = random.integers(-9, 9, (16, 8))
    found = multiply(case, a, b, c, numerics=numerics)
    assert np.array_equal(found, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize("case", [case for case in SHAPES if case[3] != "s32"], ids="-".join)
def test_mma_sync_rounds_the_sum_once(case: tuple[str, str, str, str]) -> None:
    random, k = np.random.default_rng(9), depth(case)
    a, b = random.normal(size=(16, k)).astype(DTYPES[case[1]]), random.normal(size=(8, k)).astype(DTYPES[case[2]])
    c = random.normal(size=(16, 8)).astype(KINDS[case[3]])
    left, right = (truncate(x, case[1]).astype(np.float64) for x in (a, b))
    assert np.array_equal(multiply(case, a, b, c), (left @ right.T + c).astype(KINDS[case[3]]))


def truncate(values: NDArray[Any], type: str) -> NDArray[Any]:
    return (values.view(np.uint32) & 0xFFFFE000).view(np.float32) if type == "tf32" else values.astype(np.float32)


def reference(case: tuple[str, str, str, str], a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    types = (case[1], case[2], case[3])
    if case[1] not in ("e4m3", "e5m2"):
        return steps(truncate(a, case[1]), truncate(b, case[2]), c, depth(case), types, 25)
    order = np.arange(depth(case))
    order = np.concatenate([order[order % 4 < 2], order[order % 4 > 1]])
    a, b = a[:, order].astype(np.float32), b[:, order].astype(np.float32)
    products = steps(a, b, np.zeros((16, 8)), 16, ("f16", "f16", case[3]), 25)
    return (products + c.astype(np.float64)).astype(KINDS[case[3]])


@pytest.mark.parametrize("case", [case for case in SHAPES if case[3] != "s32"], ids="-".join)
def test_mma_sync_rounds_as_hardware(case: tuple[str, str, str, str]) -> None:
    """8-bit floats on sm_90 are two f16 MMAs from zero, and an addition; these are exact for many values."""
    random, k = np.random.default_rng(10), depth(case)
    a, b = wide(random, (16, k), case[1]), wide(random, (8, k), case[2])
    if case[1] in ("f16", "e4m3", "e5m2"):
        a, b = random.normal(size=(16, k)).astype(DTYPES[case[1]]), random.normal(size=(8, k)).astype(DTYPES[case[2]])
    c = random.normal(size=(16, 8)).astype(KINDS[case[3]])
    found = multiply(case, a, b, c, numerics="hardware")
    assert np.array_equal(found, reference(case, a, b, c))
    if case[3] == "f32" and np.dtype(DTYPES[case[1]]).itemsize > 1:
        assert (found != multiply(case, a, b, c)).any()


def test_sm_120_multiplies_bytes_in_one_step() -> None:
    case, random = ("m16n8k32", "e4m3", "e4m3", "f32"), np.random.default_rng(11)
    a, b = (random.normal(size=(rows, 32)).astype(DTYPES["e4m3"]) for rows in (16, 8))
    c = random.normal(size=(16, 8)).astype(np.float32)
    found = multiply(case, a, b, c, numerics="hardware", target="sm_120a")
    assert np.array_equal(found, steps(a, b, c, 32, ("e4m3", "e4m3", "f32"), 25))
    assert (found != multiply(case, a, b, c, numerics="hardware")).any()


@pytest.mark.parametrize(("word", "expected"), [("", 2**31 - 9 + 32 * 127**2 - 2**32), (".satfinite", 2**31 - 1)])
def test_mma_sync_wraps_or_saturates_integers(word: str, expected: int) -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    found = multiply(("m16n8k32", "s8", "s8", "s32"), a, b, np.full((16, 8), 2**31 - 9), word)
    assert (found == expected).all()


def test_mma_sync_sums_double_precision_in_order() -> None:
    """A chain of fma in the order of k: lane 4g + q has A (g, q), B (q, g) and columns 2q, 2q + 1 of row g."""
    random = np.random.default_rng(12)
    a, b, c = random.normal(size=(8, 4)), random.normal(size=(4, 8)), random.normal(size=(8, 8))
    registers = np.column_stack([a.reshape(32), b.T.reshape(32), c.reshape(32, 2)])
    line = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%o0, %o1}, {%q0}, {%q1}, {%q2, %q3};"
    found = run_warp(line, registers, 2, wide=True).view(np.float64).reshape(8, 8)
    assert np.allclose(found, a @ b + c, rtol=1e-14, atol=1e-14)
    first = (np.arange(32) % 4 == 0).astype(np.float64)
    one = np.column_stack([first * (1 + 2.0**-30), first * (1 - 2.0**-30), np.full((32, 2), -1.0)])
    fused = run_warp(line, one, 2, wide=True).view(np.float64)
    assert (fused == -(2.0**-60)).all()


def test_hardware_handles_infinities_and_nans() -> None:
    a, b, c = np.ones((16, 16), np.float16), np.ones((8, 16), np.float16), np.zeros((16, 8), np.float32)
    a[2, 3], a[5, 1], b[4, 1] = np.inf, np.inf, 0
    found = multiply(("m16n8k16", "f16", "f16", "f32"), a, b, c, numerics="hardware")
    assert np.isposinf(found[2]).all() and np.isposinf(np.delete(found[5], 4)).all()
    assert found.view(np.uint32)[5, 4] == 0x7FFF_FFFF and (found[0, :4] == 16).all()


def test_the_reference_truncates_as_computed_by_hand() -> None:
    """1 + 2^-25 keeps the last bit in the aligned sum and loses it in the result."""
    types = ("bf16", "bf16", "f32")
    assert step([1.0, 2.0**-25], [1.0, 1.0], 0.0, types, 25) == 1.0
    assert step([1.0, 2.0**-24, 2.0**-25, 2.0**-25], [1.0] * 4, 0.0, types, 25) == 1 + 2.0**-23
    assert step([1.0, 2.0**-26, 2.0**-26], [1.0] * 3, 2.0**-24 + 2.0**-25, types, 25) == 1.0
