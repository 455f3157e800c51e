"""Rounding of tensor cores, bit for bit as far as it is known: ``numerics="hardware"``.

In one instruction every product and the old accumulator are aligned to the largest exponent among them and truncated
toward zero at a fixed number of fraction bits; the aligned terms are added exactly and rounded once. That is the model
of MMA-Sim (arXiv 2511.10909) and of Khattak and Mikaitis (arXiv 2512.07004). It agrees with their recorded outputs of
H100, H200 and B200, and with all outputs of an H200 in ``tests/conformance``: wgmma and mma.sync of every type, with an
accumulator and without, infinities and NaN included. For tcgen05 it is a model; for block scales it is MMA-Sim's.
``jit/hardware.ll`` has the arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.operand import buffer
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.tensor_core import Model

__all__ = ["accumulate", "accumulate_scaled", "model_of"]

Floats = NDArray[np.float32]


_FRACTION = 25  # of aligned terms on Hopper and Blackwell
_GROUP = 16  # products of a 4-bit kind that are added exactly
_FOUR_FRACTION = 35  # of their aligned sums
_FP8_FRACTION = 13  # of Hopper's wgmma with 8-bit floats, whose results have as many bits


def model_of(a_type: str, b_type: str, d_type: str, arch: str) -> Model:
    """The rounding model of wgmma (on sm_90a) or tcgen05.mma for operands of these types."""
    narrow = arch == "sm_90a" and a_type in ("e4m3", "e5m2")
    fraction = _FP8_FRACTION if narrow else _FRACTION
    keep = 10 if d_type == "f16" else min(fraction, 23)
    return Model(fraction, a_type, b_type, d_type, keep)


def accumulate(d: Floats, a: Floats, b: Floats, k: int, model: Model) -> None:
    """Add A (M by K) times B transposed (N by K) to D (M by N, in place), one instruction of ``k`` after the other.

    D of f16 is stored as float32. N and M × K must be multiples of 8; D must be contiguous.
    """
    _accumulate(d, a, b.T, k, model, 0, 0)


def _accumulate(d: Floats, a: Floats, b: Floats, k: int, model: Model, powers_a: int, powers_b: int) -> None:
    """As `accumulate`, B (K by N); ``powers_a``, ``powers_b``: addresses of int32 exponents that are added to those of
    A and B, or 0."""
    left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
    _, scratch = buffer("hardware", 2 * (left.size + right.size))
    words = model.words()
    places = (d.ctypes.data, left.ctypes.data, right.ctypes.data, scratch, powers_a, powers_b)
    function("hardware_multiply")(*places, d.shape[0], d.shape[1], left.shape[1], k, words.ctypes.data)


def accumulate_scaled(d: Floats, a: Floats, b: Floats, scales: tuple[Floats, Floats], k: int, model: Model) -> None:
    """As `accumulate`, for operands with scale factors of A (M by blocks) and of B (N by blocks).

    Those of 8-bit kinds are powers of two, whose exponents are added to the elements' own. 4-bit kinds add 16 products
    exactly, multiply the sum by the significands of both scale factors, and align it by their exponents (MMA-Sim).
    """
    if model.a_type == "e2m1x2":
        return _accumulate_fours(d, a, b, scales, k)
    left, right = (_with_nan(matrix, factors) for matrix, factors in zip((a, b), scales, strict=True))
    powers = [
        np.repeat(np.frexp(np.nan_to_num(factors, nan=1.0))[1].astype(np.int32) - 1, k, axis=1) for factors in scales
    ]
    rows, columns = np.ascontiguousarray(powers[0]), np.ascontiguousarray(powers[1].T)
    _accumulate(d, left, right.T, k, model, rows.ctypes.data, columns.ctypes.data)


def _with_nan(matrix: Floats, scales: Floats) -> Floats:
    """The matrix, with NaN in the blocks whose scale factor is NaN."""
    bad = np.isnan(scales)
    if not bad.any():
        return matrix
    return np.where(bad.repeat(matrix.shape[1] // scales.shape[1], axis=1), np.float32(np.nan), matrix)


def _accumulate_fours(d: Floats, a: Floats, b: Floats, scales: tuple[Floats, Floats], k: int) -> None:
    """4-bit kinds, one instruction of ``k`` after the other."""
    groups = [matrix.reshape(len(matrix), -1, _GROUP).astype(np.float64) for matrix in (a, b)]
    factors = [each.repeat(groups[0].shape[1] // each.shape[1], axis=1).astype(np.float64) for each in scales]
    products = np.matmul(groups[0].swapaxes(0, 1), groups[1].transpose(1, 2, 0))
    bad = np.isnan(factors[0]).any(axis=1, keepdims=True) | np.isnan(factors[1]).any(axis=1) | np.isnan(d)
    (left, up_left), (right, up_right) = (_significands(each) for each in factors)
    for first in range(0, len(products), k // _GROUP):
        step = slice(first, first + k // _GROUP)
        terms = products[step] * left[:, step].T[:, :, None] * right[:, step].T[:, None, :]
        powers = up_left[:, step].T[:, :, None] + up_right[:, step].T[:, None, :]
        d[...] = _round_once(d, terms, powers)
    d[bad] = np.uint32(0x7FFF_FFFF).view(np.float32)


def _significands(factors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Significands and exponents of scale factors; exponents of ue4m3 are at least -6, that of zero is -126."""
    powers = np.where(factors == 0, -126, np.frexp(np.nan_to_num(factors, nan=1.0))[1].astype(np.int64) - 1)
    return np.ldexp(factors, -powers), powers


def _round_once(c: Floats, terms: NDArray[np.float64], powers: NDArray[np.int64]) -> Floats:
    """C plus terms with exponents, (groups, M, N): aligned to the largest exponent, truncated, added, truncated."""
    exponents = np.where(c == 0, -126, np.maximum(np.frexp(c)[1].astype(np.int64) - 1, -126))
    top = np.maximum(powers.max(axis=0), exponents)
    total = np.trunc(np.ldexp(terms, _FOUR_FRACTION + powers - top)).sum(axis=0)
    total += np.trunc(np.ldexp(c.astype(np.float64), _FOUR_FRACTION - top))
    return _toward_zero(np.ldexp(total, top - _FOUR_FRACTION))


def _toward_zero(values: NDArray[np.float64]) -> Floats:
    """Doubles truncated to float32; those from 2^128 on are infinite."""
    nearest = values.astype(np.float32)
    beyond = (np.abs(nearest) > np.abs(values)) & (np.abs(values) < 2.0**128)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
