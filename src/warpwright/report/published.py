"""Published TFLOPS of the nine levels of the Blackwell BF16 GEMM ladder, M = N = K, on a GB200 of their authors.

Source: the write-up of each level. Where the write-up of a later level quotes another figure, the level's own is used.
``CUBLAS`` is the rate of cuBLAS that those write-ups measured; of several figures, the newest. None of these figures
was measured by this project.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["ATTENTION", "CUBLAS", "DISAGREEMENTS", "FASTEST", "PUBLISHED", "beyond_published"]

Sizes = Mapping[int, float]

# The fastest published GEMM of 16 bits of a board: TFLOPS and source. cuBLAS had 1763 there in the same series.
FASTEST: Mapping[str, tuple[float, str]] = {
    "b200": (1772, "Modular, Matrix Multiplication on Blackwell, part 4"),
}

PUBLISHED: Mapping[int, Sizes] = {
    1: {4096: 100, 8192: 91.5},  # about 100, in the write-up of level 2
    2: {4096: 193.2, 6144: 166.4, 8192: 147.0, 10240: 139.5, 12288: 144.0},
    3: {4096: 296, 6144: 326, 8192: 403, 10240: 399, 12288: 417},
    4: {4096: 529, 6144: 560, 8192: 493, 10240: 467, 12288: 483},
    5: {4096: 525, 6144: 582, 8192: 558, 10240: 565, 12288: 577},
    6: {4096: 754, 6144: 716, 8192: 650, 10240: 628, 12288: 634},
    7: {4096: 1242, 6144: 1414, 8192: 1277, 10240: 1267, 12288: 1215},
    8: {4096: 1428, 6144: 1449, 8192: 1290, 10240: 1240, 12288: 1157},
    9: {4096: 1559, 6144: 1590, 8192: 1480, 10240: 1425, 12288: 1463},
}

CUBLAS: Sizes = {4096: 1589, 6144: 1510, 8192: 1471, 10240: 1427, 12288: 1504}

DISAGREEMENTS: Mapping[int, Sizes] = {
    3: {6144: 417, 10240: 364, 12288: 384},
    6: {4096: 624, 6144: 700, 8192: 700},
    7: {4096: 1245, 6144: 1463, 8192: 1321, 12288: 1221},
}
"""Figures for the same levels that the write-up of the next level quotes or measures."""

ATTENTION: Mapping[int, Mapping[str, float]] = {
    512: {"FA2": 7245, "FA3": 6827, "TMA": 6611},
    1024: {"FA2": 25136, "FA3": 25939, "TMA": 25845},
    2048: {"FA2": 96982, "FA3": 97640, "TMA": 99221},
    4096: {"FA2": 388437, "FA3": 394461, "TMA": 387519},
}
"""Published microseconds of causal attention, 32 heads of 128, on an RTX 5090, by length and column of the table. All
columns are times of the first kernel (docs/errata.md)."""


def beyond_published(device: str, tflops: float) -> str:
    """Returns a sentence if 16-bit MMAs are predicted faster than any published GEMM of the board, else ""."""
    fastest, source = FASTEST.get(device, (math.inf, ""))
    if tflops <= fastest:
        return ""
    return f"no published GEMM of 16 bits is so fast on a {device}: the fastest has {fastest:,.0f} TFLOPS ({source})"
