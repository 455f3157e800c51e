"""One sum with the rounding of a tensor core, in exact fractions, one term at a time: the reference of
numerics="hardware".
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

# fraction bits of the significand, least exponent of a normal number
EXPONENTS = {
    "f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0, "f32": -126,
}  # fmt: skip
Term = tuple[Fraction, int]


def term(value: float, type: str) -> Term | None:
    """Returns a number as significand and exponent, subnormals with the least exponent; None for zero."""
    if value == 0:
        return None
    exponent = max(math.frexp(value)[1] - 1, EXPONENTS[type])
    return Fraction(value) / Fraction(2) ** exponent, exponent


def sum_aligned(terms: list[Term | None], bits: int) -> Fraction:
    """Returns the sum of all terms, each truncated at ``bits`` fraction bits of the largest exponent."""
    present = [found for found in terms if found]
    if not present:
        return Fraction(0)
    unit = Fraction(2) ** (max(exponent for _, exponent in present) - bits)
    return sum(int(s * Fraction(2) ** e / unit) for s, e in present) * unit


def truncate(value: Fraction, keep: int) -> float:
    """Returns a value rounded toward zero to ``keep`` fraction bits, and to float32."""
    if value == 0:
        return 0.0
    exponent = math.frexp(float(value))[1] - 1
    exponent += abs(value) >= Fraction(2) ** (exponent + 1)
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - keep, -149)
    return float(int(value / unit) * unit)


def step(a: list[float], b: list[float], c: float, types: tuple[str, str, str], bits: int, keep: int = 23) -> float:
    """Returns one element of D after one instruction."""
    terms = [term(c, types[2])]
    for x, y in zip(a, b, strict=True):
        left, right = term(x, types[0]), term(y, types[1])
        terms.append((left[0] * right[0], left[1] + right[1]) if left and right else None)
    total = sum_aligned(terms, bits)
    return float(np.float64(total).astype(np.float16)) if types[2] == "f16" else truncate(total, keep)


def steps(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, k: int, types: tuple[str, str, str], bits: int, keep: int = 23
) -> np.ndarray:
    """Returns A · Bᵀ + C, ``k`` elements an instruction; an infinite sum stays infinite."""
    out = c.astype(np.float64)
    for (i, j), value in np.ndenumerate(out):
        for first in range(0, a.shape[1], k):
            rows = (x[first : first + k].astype(np.float64).tolist() for x in (a[i], b[j]))
            value = step(*rows, float(value), types, bits, keep) if math.isfinite(value) else value
        out[i, j] = value
    return out


def scale_factor(code: int, type: str) -> tuple[Fraction, int]:
    """Returns significand and exponent of a scale factor; the exponent of zero is -126 (MMA-Sim)."""
    if type == "ue8m0":
        return Fraction(1), code - 127
    exponent = max((code >> 3) - 7, -6)
    significand = Fraction(code & 7, 8) + (code >> 3 > 0)
    return (significand, exponent) if code else (Fraction(0), -126)


def scaled_sums(
    operands: tuple[np.ndarray, np.ndarray], c: np.ndarray, factors: tuple[np.ndarray, np.ndarray],
    case: tuple[str, str, str, str, str, int],
) -> np.ndarray:  # fmt: skip
    """Returns D of one block-scaled instruction, as MMA-Sim models it."""
    one = eight_bit_sum if case[0] == "mxf8f6f4" else four_bit_sum
    out = np.zeros(c.shape)
    for i, j in np.ndindex(c.shape):
        scales = [[scale_factor(int(code), case[4]) for code in row] for row in (factors[0][i], factors[1][j])]
        out[i, j] = one(operands[0][i].tolist(), operands[1][j].tolist(), float(c[i, j]), scales, case)
    return out


def eight_bit_sum(a: list[float], b: list[float], c: float, scales: list, case: tuple) -> float:
    """The exponents of the scale factors are added to those of the products."""
    terms, more = [term(c, "f32")], scales[0][0][1] + scales[1][0][1]
    for x, y in zip(a, b, strict=True):
        left, right = term(x, case[2]), term(y, case[3])
        terms.append((left[0] * right[0], left[1] + right[1] + more) if left and right else None)
    return truncate(sum_aligned(terms, 25), 23)


def four_bit_sum(a: list[float], b: list[float], c: float, scales: list, case: tuple) -> float:
    """Sixteen products are added exactly; zero sums take part in the largest exponent too."""
    start = term(c, "f32") or (Fraction(0), -126)
    terms: list[Term | None] = [start]
    for first in range(0, len(a), 16):
        total = sum(Fraction(a[k]) * Fraction(b[k]) for k in range(first, first + 16))
        (left, up), (right, more) = (each[first // case[5]] for each in scales)
        terms.append((total * left * right, up + more))
    return truncate(sum_aligned(terms, 35), 23)
