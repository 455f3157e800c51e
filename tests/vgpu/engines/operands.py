"""Matrices written into shared and tensor memory element by element, by the canonical layouts of the PTX ISA.

Written from PTX ISA 9.1 sections 9.7.16.3 (shared memory) and 9.7.16.10.5 (accumulators), not from the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import Cluster
from warpwright.layout import ATOM_32B, SmemDescriptor

DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "u8": np.uint8, "s8": np.int8,
}  # fmt: skip
# mode: bytes of a row, address bit that starts the XOR's source, bit and number of its target bits
PATTERNS: dict[int | str, tuple[int, int, int, int]] = {
    0: (16, 7, 4, 0), 32: (32, 7, 4, 1), 64: (64, 7, 4, 2), 128: (128, 7, 4, 3), ATOM_32B: (128, 7, 5, 2),
}  # fmt: skip


def swizzle_address(address: int, mode: int | str) -> int:
    _, source, target, bits = PATTERNS[mode]
    return address ^ (address >> source & (1 << bits) - 1) << target


def canonical_offset(row: int, k: int, size: int, major: str, mode: int | str, lbo: int, sbo: int) -> int:
    """Returns the byte offset of an element: in 8 × 16-byte core matrices without swizzle, in 8-row atoms with it."""
    width = PATTERNS[mode][0]
    along, across = (k * size, row) if major == "k" else (row * size, k)
    if mode == 0:
        leading, stride = (along // 16, across // 8) if major == "k" else (across // 8, along // 16)
        return leading * lbo + stride * sbo + across % 8 * 16 + along % 16
    lines = 4 if mode == ATOM_32B else 8
    return along // width * lbo + along % width + across % lines * width + across // lines * sbo


def write_operand(
    cluster: Cluster, rank: int, start: int, matrix: NDArray[Any], major: str, mode: int | str, lbo: int, sbo: int
) -> int:
    """Write rows × K into a CTA's shared memory. Returns the descriptor."""
    size = matrix.dtype.itemsize
    for (row, k), value in np.ndenumerate(matrix):
        at = swizzle_address(start + canonical_offset(row, k, size, major, mode, lbo, sbo), mode)
        cluster.shared[rank, at : at + size].view(matrix.dtype)[0] = value
    return SmemDescriptor(start, lbo, sbo, mode).encode()


def operand_strides(rows: int, size: int, k: int, major: str, mode: int | str) -> tuple[int, int, int]:
    """Returns the byte offsets LBO and SBO of a dense operand, and its bytes."""
    width = PATTERNS[mode][0]
    lines = 4 if mode == ATOM_32B else 8
    if major == "k":
        lbo, sbo = (rows * 16, 128) if mode == 0 else (16, 8 * width)
    elif mode == 0:
        lbo, sbo = 128, 128 * (k // 8)
    else:
        lbo, sbo = lines * width * (k // lines), lines * width
    return lbo, sbo, max(rows * size * k, rows // 8 * 8 * width if major == "k" and mode else 0)


def accumulator(m: int, group: int, n: int, ws: bool = False, upper: bool = False) -> Iterator[tuple[int, ...]]:
    """Yields the row and column of every element, and its place: CTA of the group, lane, column."""
    for i in range(m):
        for j in range(n):
            if (m, group) == (256, 2):
                yield i, j, i // 128, i % 128, j
            elif (m, group) == (128, 2):
                yield i, j, i // 64, i % 64 + (64 if j >= n // 2 else 0), j % (n // 2)
            elif m == 128:
                yield i, j, 0, i, j
            elif m == 64 and ws:
                yield i, j, 0, i + (64 if j >= n // 2 else 0), j % (n // 2)
            elif m == 64:
                yield i, j, 0, i % 16 + 32 * (i // 16) + (16 if upper else 0), j
            else:
                yield i, j, 0, i + 32 * (j // (n // 4)), j % (n // 4)


def cells(m: int, group: int, n: int, column: int, **layout: bool) -> tuple[NDArray[np.int64], ...]:
    """Returns index arrays into tensor memory, each M × N."""
    table = np.array(list(accumulator(m, group, n, **layout))).reshape(m, n, 5)
    return table[:, :, 2], table[:, :, 4] + column, table[:, :, 3]


def small_integers(random: np.random.Generator, shape: tuple[int, int], type: str) -> NDArray[Any]:
    """Returns values whose products and sums are exact in every format, so that a misplaced element changes the
    result."""
    low, high = {"u8": (0, 8), "e5m2": (-3, 4)}.get(type, (-4, 5))
    return random.integers(low, high, shape).astype(DTYPES[type])


def wide(random: np.random.Generator, shape: tuple[int, int], type: str) -> NDArray[Any]:
    """Returns values of widely spread exponents, with a few zeros and subnormals."""
    scale = 2.0 ** random.integers(-12, 12, shape) if type != "bf16" else 2.0 ** random.integers(-40, 40, shape)
    values = random.normal(size=shape) * scale
    values[random.random(shape) < 0.05] = 0
    values[random.random(shape) < 0.05] = 6e-8 if type == "f16" else 1e-39
    return values.astype(DTYPES[type])
