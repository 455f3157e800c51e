"""Sums with the rounding of tensor cores, against one sum at a time in exact fractions; and the known differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.engines.operands import DTYPES, wide
from tests.vgpu.engines.rounding import steps
from warpwright.vgpu.engines import hardware
from warpwright.vgpu.jit import tensor_core

F32 = np.float32
CASES = [
    ("f16", "f16", "f32", "sm_90a", 16, 25, 23),
    ("f16", "f16", "f16", "sm_100a", 16, 25, 10),
    ("bf16", "bf16", "f32", "sm_100a", 16, 25, 23),
    ("tf32", "tf32", "f32", "sm_90a", 8, 25, 23),
    ("e4m3", "e4m3", "f32", "sm_90a", 32, 13, 13),
    ("e5m2", "e4m3", "f32", "sm_90a", 32, 13, 13),
    ("e4m3", "e5m2", "f16", "sm_90a", 32, 13, 10),
    ("e4m3", "e5m2", "f32", "sm_100a", 32, 25, 23),
]


def narrow(values: np.ndarray, type: str) -> np.ndarray:
    """Returns values of a type as float32, tf32 without its low bits."""
    single = values.astype(F32)
    return (single.view(np.uint32) & 0xFFFFE000).view(F32) if type == "tf32" else single


def operands(types: tuple[str, str, str], k: int, seed: int, m: int = 8, n: int = 16) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        a, b = (narrow(wide(random, (rows, k), type), type) for rows, type in ((m, types[0]), (n, types[1])))
    c = random.normal(size=(m, n)) * 2.0 ** random.integers(-12, 8, (m, n))
    a, b = (np.where(np.isfinite(x), x, 1).astype(F32) for x in (a, b))
    return a, b, c.astype(np.float16 if types[2] == "f16" else F32).astype(F32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("seed", [0, 1])
def test_sums_equal_the_reference(case: tuple[str, str, str, str, int, int, int], seed: int) -> None:
    types, arch, k, bits, keep = case[:3], *case[3:]
    a, b, c = operands(types, 3 * k, seed)
    found = c.copy()
    hardware.accumulate(found, a, b, k, hardware.model_of(*types, arch))
    with np.errstate(over="ignore"):
        expected = steps(a, b, c, k, types, bits, keep)
    finite = np.isfinite(expected)
    assert finite.mean() > 0.1 and np.array_equal(found[finite], expected[finite])


@pytest.mark.parametrize(("bits", "k"), [(24, 16), (26, 16), (25, 8)])
def test_the_operands_distinguish_models(bits: int, k: int) -> None:
    """Other fraction bits, or two steps of 8, change the results of the same operands."""
    types = ("bf16", "bf16", "f32")
    a, b, c = operands(types, 16, 2, m=16)
    found = c.copy()
    hardware.accumulate(found, a, b, 16, hardware.model_of(*types, "sm_90a"))
    assert (found != steps(a, b, c, k, types, bits)).any()


def test_subnormal_operands_keep_their_exponent() -> None:
    """2^-24 is the least f16: with exponent -14 its product with 1 has the largest exponent, and the other terms lose
    bits."""
    a, b = np.zeros((8, 16), F32), np.zeros((8, 16), F32)
    a[:, 0], b[:, 0] = 2.0**-24, 1.0
    a[:, 1], b[:, 1] = 1 + 2.0**-10, 2.0**-14 * (1 + 2.0**-10)
    found = np.zeros((8, 8), F32)
    hardware.accumulate(found, a, b, 16, hardware.model_of("f16", "f16", "f32", "sm_90a"))
    assert np.array_equal(found, steps(a, b, 0 * found, 16, ("f16", "f16", "f32"), 25))


def test_subnormal_results_are_truncated() -> None:
    a, b = np.full((8, 8), 2.0**-70 * 1.5, F32), np.full((8, 8), 2.0**-70 * 1.5, F32)
    found = np.zeros((8, 8), F32)
    hardware.accumulate(found, a, b, 8, hardware.model_of("tf32", "tf32", "f32", "sm_90a"))
    assert (
        np.array_equal(found, steps(a, b, 0 * found, 8, ("tf32", "tf32", "f32"), 25))
        and found[0, 0] == 2.0**-136 * 1.125
    )


@pytest.mark.parametrize(
    ("x", "y", "c", "expected"),
    [
        (np.inf, 1.0, 0.0, 0x7F80_0000), (-np.inf, 1.0, 0.0, 0xFF80_0000), (np.inf, 0.0, 0.0, 0x7FFF_FFFF),
        (np.nan, 1.0, 0.0, 0x7FFF_FFFF), (np.inf, 1.0, -np.inf, 0x7FFF_FFFF), (1.0, 1.0, np.nan, 0x7FFF_FFFF),
        (1.0, 1.0, np.inf, 0x7F80_0000), (3e38, 3e38, 0.0, 0x7F80_0000), (3e38, -3e38, 0.0, 0xFF80_0000),
    ],
)  # fmt: skip
def test_infinities_and_nans(x: float, y: float, c: float, expected: int) -> None:
    a, b, found = np.zeros((8, 16), F32), np.zeros((8, 16), F32), np.full((8, 8), 2.0, F32)
    a[3, 5], b[4, 5], found[3, 4] = x, y, c
    hardware.accumulate(found, a, b, 16, hardware.model_of("bf16", "bf16", "f32", "sm_90a"))
    assert found.view(np.uint32)[3, 4] == expected
    untouched = np.delete(found.ravel(), [3 * 8 + i for i in range(8)] + [i * 8 + 4 for i in range(8)])
    assert (untouched == 2).all()


def test_types_have_the_codes_of_the_descriptor() -> None:
    assert set(tensor_core.FORMATS) >= {type for type in DTYPES if type not in ("s8", "u8")}
