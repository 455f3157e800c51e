"""Lane values that are hard for arithmetic, by PTX type, as NumPy arrays."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.selftest.probes.cases import Array

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, np.dtype[Any]] = {
    **{f"b{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "bf16": BF16,
    "f32": np.dtype(np.float32),
    "tf32": np.dtype(np.uint32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(bool),
}
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32", "u16x2": "u16", "s16x2": "s16"}
MINI = {"e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "ue8m0x2": 16, "e2m1x2": 8}

# fraction bits and exponent bits of the types of `float_specials`
LAYOUT = {"f16": (10, 5), "bf16": (7, 8), "f32": (23, 8), "f64": (52, 11)}


def bits_of(kind: str) -> int:
    if kind == "pred":
        return 1
    if kind in PACKED:
        return 2 * DTYPES[PACKED[kind]].itemsize * 8
    return MINI[kind] if kind in MINI else 32 if kind == "tf32" else int(kind.lstrip("bus f"))


def as_type(raw: Array, kind: str) -> Array:
    """Returns integers of the register's width as the type's array: packed types are [n, 2], low element first."""
    if kind in PACKED:
        return raw.view(DTYPES[PACKED[kind]]).reshape(-1, 2)
    if kind in MINI or kind == "b128":
        return raw
    return raw.view(DTYPES[kind])


def integer_specials(kind: str) -> list[int]:
    bits = bits_of(kind)
    top = 1 << (bits - 1)
    edge = [0, 1, 2, 7, 31, 32, 33, 63, 64, 255, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 0x80, 0x7F, 0x5410]
    return sorted({value % (2 * top) for value in [*edge, 0xFFFF, 0x8000, 0x80000000, 0x7FFFFFFF, 0x10000, 24, 8, 16]})


def float_specials(kind: str) -> list[int]:
    """Returns bit patterns of zeros, subnormals, the least normal numbers, ones and their neighbours, halves, the
    largest, inf, NaN."""
    fraction, exponent = LAYOUT[kind]
    one = ((1 << (exponent - 1)) - 1) << fraction
    infinity = ((1 << exponent) - 1) << fraction
    unit = 1 << fraction
    positive = [0, 1, 3, unit - 1, unit, unit + 1, one - unit, one - 1, one, one + 1, one + unit // 2, one + unit]
    positive += [
        one + 2 * unit + unit // 4,
        one + 10 * unit,
        infinity - unit,
        infinity - 1,
        infinity,
        infinity + unit // 2,
    ]
    return positive + [value | (infinity + unit) for value in positive]


def random_bits(kind: str, count: int, generator: np.random.Generator) -> Array:
    """Returns a third random bits, a third small magnitudes, a third (of floats) near one with few fraction bits, which
    make halfway cases."""
    bits = bits_of(kind)
    any_: Array
    if bits < 64:
        any_ = generator.integers(0, 2**bits, count, np.uint64, endpoint=False)
    else:
        any_ = np.frombuffer(generator.bytes(8 * count), np.uint64)
    shifted = any_ >> generator.integers(0, bits, count).astype(np.uint64)
    pick = generator.integers(0, 3, count)
    if kind in LAYOUT:
        fraction, exponent = LAYOUT[kind]
        near = generator.integers(-fraction, fraction + 1, count) + (1 << (exponent - 1)) - 1
        coarse = (any_ & np.uint64((1 << fraction) - 1)) & ~np.uint64((1 << (fraction // 2)) - 1)
        sign = (any_ >> np.uint64(bits - 1)) << np.uint64(bits - 1)
        shifted = sign | near.astype(np.uint64) << np.uint64(fraction) | coarse
        full = sign | near.astype(np.uint64) << np.uint64(fraction) | (any_ & np.uint64((1 << fraction) - 1))
        return np.where(pick == 0, any_, np.where(pick == 1, shifted, full))
    return np.where(pick == 0, any_, shifted)


def random_values(kind: str, count: int, generator: np.random.Generator) -> Array:
    """Returns random values with a good share of specials, as raw integers."""
    specials = np.array(float_specials(kind) if kind in LAYOUT else integer_specials(kind), np.uint64)
    raw = np.where(
        generator.integers(0, 3, count) == 0, generator.choice(specials, count), random_bits(kind, count, generator)
    )
    return raw.astype(f"u{bits_of(kind) // 8}")


def array(kind: str, count: int, generator: np.random.Generator) -> Array:
    if kind == "pred":
        return generator.integers(0, 2, count).astype(bool)
    if kind in PACKED:
        return np.ascontiguousarray(array(PACKED[kind], 2 * count, generator).reshape(-1, 2))
    if kind in MINI:
        return generator.integers(0, 1 << MINI[kind], count).astype(f"u{MINI[kind] // 8}")
    return as_type(random_values("b32" if kind == "tf32" else kind, count, generator), kind)


def inputs(kinds: list[str], count: int, generator: np.random.Generator) -> list[Array]:
    """Returns one array for each source. The first half of two equal sources is a grid of the specials of their
    type."""
    arrays = [array(kind, count, generator) for kind in kinds]
    if len(kinds) >= 2 and kinds[0] == kinds[1] and kinds[0] in DTYPES and kinds[0] != "pred":
        kind = kinds[0]
        specials = float_specials(kind) if kind in LAYOUT else integer_specials(kind)
        pairs = np.array(list(product(specials, specials)), np.uint64)
        pairs = pairs[generator.permutation(len(pairs))[: count // 2]]
        for source in (0, 1):
            grid = np.ascontiguousarray(pairs[:, source].astype(f"u{bits_of(kind) // 8}"))
            arrays[source][: len(grid)] = as_type(grid, kind)
    elif len(kinds) == 1 and kinds[0] in LAYOUT:
        alone = np.array(float_specials(kinds[0]), np.uint64).astype(f"u{bits_of(kinds[0]) // 8}")
        arrays[0][: len(alone)] = as_type(alone, kinds[0])
    return arrays
