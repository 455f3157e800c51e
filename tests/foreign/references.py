"""The arithmetic of the foreign kernels in NumPy and in Python's own integers and fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import inf
from typing import Any

import ml_dtypes
import numpy as np

EPS32 = 2.0**-23
DOUBLE = np.float64


def fma(a: Any, b: Any, c: Any) -> np.ndarray:
    """Returns a * b + c in float32; the product is exact in float64, the sum nearly always."""
    return (np.asarray(a, DOUBLE) * np.asarray(b, DOUBLE) + np.asarray(c, DOUBLE)).astype(np.float32)


def widen(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


def to_bf16(exact: np.ndarray) -> np.ndarray:
    """Rounds float64 once to bfloat16, returned as float32: through float32 rounded to odd, which keeps ties."""
    near = exact.astype(np.float32)
    near = np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    odd = (near.view(np.uint32) | (near != exact)).view(np.float32)
    return odd.astype(ml_dtypes.bfloat16).astype(np.float32)


def s32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def s64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def u32(value: int) -> int:
    return value % (1 << 32)


def u64(value: int) -> int:
    return value % (1 << 64)


def s8(value: int) -> int:
    return (value + 128) % 256 - 128


def quotient(a: int, b: int) -> int:
    """C's division: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - b * quotient(a, b)


def rows(of: Callable[[int, int], list[int]], x: np.ndarray, y: np.ndarray, dtype: Any) -> np.ndarray:
    """Returns one row of results a pair, wrapped to ``dtype``."""
    bits = 8 * np.dtype(dtype).itemsize
    table = [[value % (1 << bits) for value in of(int(a), int(b))] for a, b in zip(x, y, strict=True)]
    return np.array(table, f"u{bits // 8}").view(dtype)


def integer(x: int, y: int) -> list[int]:
    y = y or 1
    u, v = u32(x), u32(y)
    p, q = x * 1000003 + y, y * 77777 + 1
    overflow = x == -(1 << 31) and y == -1
    return [
        0 if overflow else quotient(x, y),
        0 if overflow else remainder(x, y),
        u // v,
        u % v,
        quotient(p, q),
        remainder(p, q),
        u64(p) // u64(q),
        x * y >> 32,
        u64(p) * u64(q) >> 64,
        p * q + (p >> 7) - (q << 5),
        quotient(x, 7) + remainder(x, 1000) + u // 12345,
        (min(x, y) << 32) ^ max(u, v),
        u32(abs(x >> 1) + abs(x - y) + 5),
        ((x + 0x8000) % 0x10000 - 0x8000) * s8(y),
        s32((x & 0x3FFFF) * (y & 0xFFF)),
        (x > y) + 2 * (u > v) + 4 * (p <= q),
    ]


def bits(x: int, y: int) -> list[int]:
    both = y << 32 | x
    chars = [both >> 8 * i & 255 for i in range(8)]
    invert = 0xFFFFFFFF ^ x
    lanes = [((x >> s & 0xFFFF) + (y >> s & 0xFFFF) & 0xFFFF) << s for s in (0, 16)]
    largest = sum(max(x >> s & 255, y >> s & 255) << s for s in (0, 8, 16, 24))
    return [
        x.bit_count(),
        32 - x.bit_length(),
        int(f"{x:032b}"[::-1], 2),
        (x & -x).bit_length(),
        both << (y & 31) >> 32,
        both >> min(y & 63, 32),
        sum(chars[x >> 16 + 4 * i & 7] << 8 * i for i in range(4)),
        7 + sum(s8(x >> s) * s8(y >> s) for s in (0, 8, 16, 24)),
        (x & y) | (invert & 0x0F0F0F0F ^ y),
        64 - (x << 16 | y >> 31).bit_length(),
        (x >> 5 & 0x7FF) + (s32(x << 9) >> 22),
        sum(lanes) ^ largest,
    ]


def atomics_global(values: np.ndarray, ints: Any, words: Any, wide: Any, expect: Any) -> dict[int, Any]:
    numbers, before, count = values.tolist(), ints.tolist(), len(values)
    mask = np.bitwise_or.reduce(np.uint32(1) << (values.astype(np.uint32) & np.uint32(31)))
    total = sum(numbers)
    summed = [s32(before[0] + total), s32(before[1] - total), min(*numbers, before[2]), max(*numbers, before[3])]
    logic = [words[0] & ~mask, words[1] | mask, words[2] ^ np.bitwise_xor.reduce(values.view(np.uint32))]
    counted = [(int(words[3]) + count) % 100, (int(words[4]) - count) % 100]
    wides = [u64(int(wide[0]) + total * 1000000007), max(u32(number) << 20 for number in numbers)]
    return {1: expect(summed), 2: expect([*map(int, logic), *counted]), 3: expect(np.array(wides, np.uint64))}


def halvings(values: np.ndarray) -> np.ndarray:
    """Returns the steps of each number to 1 by n / 2 for even and 3 n + 1 for odd n; at most 63."""
    numbers, steps = values.astype(np.uint32), np.zeros(values.shape, np.int64)
    for _ in range(63):
        going = numbers > 1
        following = np.where(numbers & 1, numbers * np.uint32(3) + np.uint32(1), numbers // 2)
        numbers = np.where(going, following, numbers)
        steps += going
    return steps


def calls(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    twice = np.where(a & 1, (a * b + 3) + (b * 2 * a + 3), 0)
    return np.stack([a * b + 3, np.abs(a - b), twice], axis=1)


WEIGHTS = (3, 1, 4, 1, 5, 9, 2, 6)


def dispatch(programs: np.ndarray) -> np.ndarray:
    runs = [run_program(thread, [int(word) for word in program]) for thread, program in enumerate(programs)]
    return np.array([run[0] for run in runs] + [run[1] for run in runs], np.uint32)


def run_program(x: int, program: list[int]) -> tuple[int, int]:
    y, saved, summed = 1, 0, 0
    for pc, word in enumerate(program):
        if word == 7:
            break
        if word == 3:
            saved, x = x, y
        x = {0: x + y, 2: x * WEIGHTS[y & 7], 5: (x >> 3) + saved, 9: ~x}.get(word, x) % (1 << 32)
        changed = {1: x ^ saved, 4: y + 5 * (x & 1), 6: y - WEIGHTS[pc & 7]}
        y = changed.get(word, -y if word > 9 else y) % (1 << 32)
        summed += x if word == 8 else 0
    return u32(x + 31 * y + 7 * saved), u32(summed)


def float_math(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns twelve columns in float64, with the error that CUDA states for each full-precision function."""
    a, b = x.astype(DOUBLE), y.astype(DOUBLE)
    tenth, power, fifth = (np.float32(factor) * x for factor in (0.1, 0.3, 0.2))
    with np.errstate(all="ignore"):
        mixed = np.fmin(np.fmax(x, np.float32(-2)), y) + np.floor(x) - np.trunc(y) + np.rint(x)
        product = fma(x, y, -x) + np.abs(x) + np.copysign(y, x)
        powers, logarithm = np.exp2(fifth.astype(DOUBLE)), np.log2(b)
        columns = [np.sin(a), np.cos(a), np.exp(tenth.astype(DOUBLE)), np.log(b), np.sqrt(y), x / y, 1 / np.sqrt(b)]
        columns += [np.tanh(a), np.power(b, power.astype(DOUBLE)), powers + logarithm, mixed, product]
        value = np.stack([column.astype(np.float32) for column in columns], axis=1)
        scale = np.where(np.isfinite(powers), powers, 0) + np.abs(logarithm)
    rtol = EPS32 * np.array([2, 2, 2, 2, 0, 0, 3, 2, 8, 2, 0, 1])
    atol = np.zeros(value.shape)
    atol[:, [2, 8]] = 2.0**-126
    atol[:, 9] = 4 * EPS32 * scale
    return value, rtol, atol


def double_math(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    fused = [float(Fraction(float(a)) * Fraction(float(b)) - 1) for a, b in zip(x, y, strict=True)]
    with np.errstate(over="ignore"):
        value = np.stack([x / y, np.sqrt(y), np.exp(0.1 * x), fused], axis=1)
    return value, np.array([0, 0, 2.0**-51, 0])


def directed(exact: Fraction, towards: float) -> float:
    """Returns ``exact`` rounded to float32 towards ``towards`` (0, inf or -inf)."""
    near = np.float32(float(exact))
    side = Fraction(float(near)) - exact
    beyond = abs(Fraction(float(near))) > abs(exact) if towards == 0 else side * (1 if towards > 0 else -1) < 0
    return float(np.nextafter(near, np.float32(towards))) if beyond else float(near)


def clamp(value: float, low: int, high: int) -> int:
    """Returns a rounded float as a saturated integer; NaN becomes 0 (PTX ISA 9.7.9.21)."""
    if value != value:
        return 0
    return int(min(max(value, low), high))


def float_convert(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = -(1 << 31), (1 << 31) - 1
    ints, floats = [], []
    for number, up, down, near, short in zip(x.tolist(), np.ceil(x), np.floor(x), np.rint(x), np.trunc(x), strict=True):
        special = (number != number) + 2 * (abs(number) == inf) + 4 * bool(np.signbit(number))
        whole = clamp(float(short), low, high)
        natural = s32(clamp(float(down), 0, 2**32 - 1))
        ints.append([whole, clamp(float(near), low, high), clamp(float(up), low, high), natural, s8(whole), special])
        floats.append([min(max(number, 0.0), 1.0) if number == number else 0.0, *rounded(number)])
    return np.array(ints, np.int32), np.array(floats, np.float32)


def rounded(number: float) -> list[float]:
    if number != number or abs(number) == inf:
        return [number] * 3
    exact = Fraction(number)
    tiny, factor = (Fraction(float(np.float32(value))) for value in (1e-7, 1.1))
    product = Fraction(float(np.float64(number) * 1.0000000001))
    return [directed(exact + tiny, 0), directed(exact * factor, inf), directed(product, -inf)]


def warp_ops(warp: np.ndarray) -> np.ndarray:
    lanes, values = range(32), [int(value) for value in warp]
    odd = [lane for lane in lanes if values[lane] & 1]
    ballot = sum(1 << lane for lane in odd)
    verdict = (max(values) > 90) + 2 * (min(values) >= 0)
    equal = [sum(1 << other for other in lanes if (values[other] ^ value) & 3 == 0) for value in values]
    together = 0xFFFFFFFF ^ 1 if len(set(values)) == 1 else 0
    joined = max(values) ^ int(np.bitwise_or.reduce(warp)) << 16
    segment = [values[lane & ~7 | values[lane] & 7] for lane in lanes]
    shifted = [values[lane - 3 if lane > 2 else lane] for lane in lanes]
    ranks = [odd.index(lane) + 100 * min(values[o] for o in odd) if lane in odd else 0 for lane in lanes]
    swapped = [ranks[lane ^ 1] for lane in lanes]
    same = [[ballot, verdict, equal[lane], together, sum(values), joined] for lane in lanes]
    each = [segment, shifted, ranks, swapped]
    return np.array([[*same[lane], *(column[lane] for column in each)] for lane in lanes], np.uint32)


def barriers(block: np.ndarray) -> np.ndarray:
    value = block.copy()
    value[64:] += 2 * block[63::-1]
    return value + 1000 * (block & 1).sum() + (1 << 20) * (block > 95).any() + (1 << 21) * (block < 99).all()
