"""Operands of block-scaled MMAs: values of every type as bytes of memory, and scale factors in tensor memory.

Written from PTX ISA 9.1 sections 9.7.16.10.4 and 9.7.16.10.7, and from the formats of the OCP Microscaling
specification, not from the package.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import Cluster

# exponent bits, fraction bits, bias
MINI = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}


def value_of(code: int, type: str) -> float:
    """Returns the value of a code by sign, exponent and fraction; codes of infinities and NaN are not given."""
    exponent_bits, fraction_bits, bias = MINI[type]
    sign = -1.0 if code >> exponent_bits + fraction_bits else 1.0
    exponent = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (code & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    return sign * (2.0 ** (1 - bias) * fraction if not exponent else 2.0 ** (exponent - bias) * (1 + fraction))


def scale_value(code: int, type: str) -> float:
    return 2.0 ** (code - 127) if type == "ue8m0" else value_of(code, "e4m3")


def random_codes(random: np.random.Generator, shape: tuple[int, int], type: str) -> NDArray[np.uint8]:
    """Returns codes of all finite values of a type."""
    bits = 1 + sum(MINI[type][:2])
    codes = random.integers(0, 1 << bits, shape).astype(np.uint8)
    bad = {"e4m3": codes & 0x7F == 0x7F, "e5m2": codes & 0x7C == 0x7C}.get(type, codes < 0)
    return np.where(bad, 0x21, codes).astype(np.uint8)


def values(codes: NDArray[np.uint8], type: str) -> NDArray[np.float64]:
    table = np.array([value_of(code, type) for code in range(1 << 1 + sum(MINI[type][:2]))])
    return table[codes]


def pack(codes: NDArray[np.uint8], type: str, major: str, *, padded: bool) -> NDArray[np.uint8]:
    """Returns (rows, K) bytes: 16 elements in the low bits of 16 bytes, along K or along the rows, or without padding
    two 4-bit elements a byte."""
    bits = 1 + sum(MINI[type][:2])
    if bits == 8:
        return codes
    if major == "mn":
        return pack(codes.T, type, "k", padded=padded).T
    slots = codes.reshape(len(codes), -1, 16)
    out = np.zeros((*slots.shape[:2], 16 if padded else 8), np.uint8)
    for at in np.ndindex(slots.shape[:2]):
        number = sum(int(code) << bits * i for i, code in enumerate(slots[at]))
        filled = np.frombuffer(number.to_bytes(2 * bits, "little"), np.uint8)
        out[at][: len(filled)] = filled
        out[at][len(filled) :] = 0xA5
    return out.reshape(len(codes), -1)


def put_scales(cluster: Cluster, rank: int, column: int, codes: NDArray[np.uint8], first: int) -> None:
    """Write the scale factors (rows, count) of a CTA, four copies, from byte ``first`` of each cell on."""
    for row, factors in enumerate(codes):
        for quarter in range(4):
            cell = cluster.tmem[rank, column + row // 32 : column + row // 32 + 1, 32 * quarter + row % 32]
            word = int(cell.astype(np.int64)[0]) & 0xFFFF_FFFF
            for i, factor in enumerate(factors.tolist()):
                word = word & ~(0xFF << 8 * (first + i)) | factor << 8 * (first + i)
            cell[:] = np.uint32(word).astype(np.int32)


def scaled(codes: NDArray[np.uint8], type: str, factors: NDArray[np.uint8], kind: str) -> NDArray[np.float64]:
    """Returns the values of a matrix (rows, K) times its scale factors (rows, blocks)."""
    table = np.array([scale_value(code, kind) for code in range(255 if kind == "ue8m0" else 127)])
    return values(codes, type) * np.repeat(table[factors], codes.shape[1] // factors.shape[1], axis=1)
