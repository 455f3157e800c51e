"""Correct rounding by rational arithmetic: the reference for the lanes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from warpwright.selftest.probes.values import DTYPES

# precision in bits, exponents of the smallest and the largest normal number
FORMATS = {
    "f64": (53, -1022, 1023),
    "f32": (24, -126, 127),
    "tf32": (11, -126, 127),
    "bf16": (8, -126, 127),
    "f16": (11, -14, 15),
}


def round_to(value: Fraction, kind: str, mode: str = "rn", lowest: int | None = None) -> float:
    """Returns ``value`` (not zero) rounded to format ``kind``; modes rn, rna, rz, rm, rp. ``lowest`` replaces the least
    exponent."""
    precision, least, most = FORMATS[kind]
    least = least if lowest is None else lowest
    size, negative = abs(value), value < 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole, rest = divmod(size, quantum)
    half = quantum / 2
    up = {
        "rn": rest > half or (rest == half and whole % 2 == 1),
        "rna": rest >= half,
        "rz": False,
        "rm": rest > 0 and negative,
        "rp": rest > 0 and not negative,
    }[mode]
    size = (whole + up) * quantum
    top = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** most
    if size > top:
        inwards = mode == "rz" or mode == ("rp" if negative else "rm")
        size = float(top) if inwards else math.inf
    return math.copysign(float(size), -1 if negative else 1)


def exact(function, kind: str, mode: str = "rn", sign_of_zero=None, flushing: bool = False):
    """Returns a reference: ``function`` computes with Fractions if all values are finite, otherwise with float64.

    Zeros take their sign from float64, which is right for everything but an exact zero sum rounded by rm. With
    ``flushing`` a result is zero if it is below the normal numbers after rounding to full precision.
    """

    def one(lane):
        wide = [np.float64(x) for x in lane]
        if all(map(math.isfinite, wide)):
            try:
                value = function(*(Fraction(float(x)) for x in wide))
            except ZeroDivisionError:
                value = 0
            if value and flushing and abs(round_to(value, kind, mode, -1000)) < 2.0 ** FORMATS[kind][1]:
                return math.copysign(0.0, value)
            if value:
                return round_to(value, kind, mode)
        if mode == "rm" and sign_of_zero and function(*wide) == 0:
            return sign_of_zero(*wide)
        return function(*wide)

    def reference(*arrays):
        with np.errstate(all="ignore"):
            shape = arrays[0].shape
            lanes = zip(*(array.reshape(-1) for array in arrays), strict=True)
            return np.array([one(lane) for lane in lanes]).astype(DTYPES[kind]).reshape(shape)

    if not flushing:
        reference.flushing = exact(function, kind, mode, sign_of_zero, flushing=True)
    return reference


def flush(array: np.ndarray) -> np.ndarray:
    """Flush subnormal numbers to zeros of their sign."""
    tiny = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}.get(array.dtype.name)
    if tiny is None:
        return array
    with np.errstate(invalid="ignore"):
        small = np.abs(array.astype(np.float64)) < tiny
    return np.where(
        small, np.copysign(np.zeros_like(array, np.float32), array.astype(np.float32)).astype(array.dtype), array
    )


def ftz(function):
    inner = getattr(function, "flushing", function)
    return lambda *arrays: flush(inner(*map(flush, arrays)))


def sat(function):
    def reference(*arrays):
        value = function(*arrays)
        return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0)).astype(value.dtype)

    return reference


def relu(function):
    def reference(*arrays):
        value = function(*arrays)
        return np.where(value <= 0, value.dtype.type(0), value)

    return reference


def within(relative: float = 0.0, absolute: float = 0.0):
    """Returns a comparison of approximate results; infinities, NaN and zeros of tiny numbers must agree."""

    def close(got, expected):
        with np.errstate(invalid="ignore"):
            got, expected = got.astype(np.float64), expected.astype(np.float64)
            near = np.abs(got - expected) <= np.abs(expected) * relative + absolute
        return near | (got == expected) | (np.isnan(got) & np.isnan(expected))

    return close
