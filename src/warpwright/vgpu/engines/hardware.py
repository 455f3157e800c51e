"""Rounding of tensor cores, bit for bit as far as it is known: ``numerics="hardware"``.

In one instruction every product and the old accumulator are aligned to the largest exponent among them and truncated
toward zero at a fixed number of fraction bits; the aligned terms are added exactly and rounded once. That is the model
of MMA-Sim (arXiv 2511.10909) and of Khattak and Mikaitis (arXiv 2512.07004). It agrees with their recorded outputs of
H100, H200 and B200, and with all outputs of an H200 in ``tests/conformance``: wgmma and mma.sync of every type, with an
accumulator and without, infinities and NaN included. For tcgen05 it is a model. ``jit/hardware.ll`` has the arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.operand import buffer
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.tensor_core import Model

__all__ = ["accumulate", "model_of"]

Floats = NDArray[np.float32]


_FRACTION = 25  # of aligned terms on Hopper and Blackwell
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
    left, right = np.ascontiguousarray(a), np.ascontiguousarray(b.T)
    _, scratch = buffer("hardware", 2 * (left.size + right.size))
    words = model.words()
    places = (d.ctypes.data, left.ctypes.data, right.ctypes.data, scratch)
    function("hardware_multiply")(*places, d.shape[0], d.shape[1], left.shape[1], k, words.ctypes.data)
