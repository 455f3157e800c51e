"""Powers of two of a row of scores: by the special-function unit, and some of them by polynomials on the FMA units.

The special-function unit of an SM has 16 results a cycle, and the tensor cores multiply a block of scores in the time
in which it computes their exponentials. The FMA units compute packed pairs (``fma.rn.f32x2``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpwright.lang import Expr, b32, ex2, f32, f32x2, fma, max, pack, u32, unpack

__all__ = ["add_pairs", "max_of", "sum_of", "weights_of"]

# The polynomial of degree 4 that is nearest to 2^f from f = -1/2 to 1/2 (Remez): its relative error is at most 2.6e-6.
# Degree 3 has 7.5e-5, which the log-sum-exp would show.
COEFFICIENTS = 0.009570102014629326, 0.05591786030632565, 0.24024744824991692, 0.6931218147429867, 0.9999992614469312
# x + `ROUND` rounds x to an integer n: floats near 1.5 · 2^23 are integers. With `BIAS` added, the low bits of the sum
# are the exponent field of 2^n.
ROUND, BIAS, EXPONENT = 1.5 * 2.0**23, 127, 23
CHAINS = 4


def weights_of(scores: Sequence[Expr], scale: Any, shift: Expr, polynomials: int) -> list[Expr]:
    """Returns 2^(score · ``scale`` - ``shift``) of each score, as pairs of f32; ``polynomials`` of the pairs, evenly
    spread, without the special-function unit."""
    pairs, found = len(scores) // 2, []
    scales, shifts = pack(f32x2, scale, scale), pack(f32x2, -shift, -shift)
    for i in range(pairs):
        powers = fma(pack(f32x2, *scores[2 * i : 2 * i + 2]), scales, shifts)
        spread = (i + 1) * polynomials // pairs > i * polynomials // pairs
        found.append(_ex2_by_polynomial(powers) if spread else pack(f32x2, *map(ex2, unpack(powers, f32))))
    return found


def _ex2_by_polynomial(powers: Expr) -> Expr:
    """Returns 2 to the power of each of a pair: 2^n · 2^f, n an integer and f at most 1/2. Results below 2^-126.5 are
    0, and NaN stays NaN; ``powers`` are less than 128."""
    x = pack(f32x2, *(max(power, -float(BIAS), nan=True) for power in unpack(powers, f32)))
    rounded = x + (ROUND + BIAS)
    f = x - (rounded - (ROUND + BIAS))
    result: Any = COEFFICIENTS[0]
    for coefficient in COEFFICIENTS[1:]:
        result = fma(f, result, coefficient)
    exponents = [(each.bitcast(u32) << EXPONENT).bitcast(b32).bitcast(f32) for each in unpack(rounded, f32)]
    product: Expr = result * pack(f32x2, *exponents)
    return product


def add_pairs(pairs: Sequence[Expr]) -> list[Expr]:
    """Adds pairs of f32, by `CHAINS` chains side by side; returns a pair for each chain."""
    sums = list(pairs[:CHAINS])
    for i, pair in enumerate(pairs[CHAINS:]):
        sums[i % CHAINS] = sums[i % CHAINS] + pair
    return sums


def sum_of(sums: Sequence[Expr]) -> Expr:
    """Returns the sum of the numbers in the pairs of all chains."""
    low, high = unpack((sums[0] + sums[1]) + (sums[2] + sums[3]), f32)
    return low + high


def max_of(scores: Sequence[Expr]) -> Any:
    """Returns the maximum of a row, by `CHAINS` chains of instructions with three operands."""
    return max(*(max(*scores[i::CHAINS]) for i in range(CHAINS)))
