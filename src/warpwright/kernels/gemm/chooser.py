"""Which configuration of the Hopper GEMM multiplies a problem: the fastest one at the nearest measured problem.

The facts are medians on one H200 (132 SMs, 700 W), bf16, A (M, K) and B (N, K) of standard normal numbers, L2 filled
with other data before each launch, every candidate and cuBLAS (torch.matmul) launched in random order in one process.
Those of FP8 are of e4m3 with a scale for each matrix and D of bf16; there cuBLAS is ``torch._scaled_mm`` with
``use_fast_accum=False``, whose sums are in float32 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Protocol

from warpwright.kernels.gemm.sm90_plan import HopperConfig

__all__ = ["CONFIGS", "FACTS", "FP8_FACTS", "Fact", "choose"]

NARROW = HopperConfig((64, 128), stages=8, consumers=1, share=(1, 1))
SMALL = HopperConfig((64, 64), depth=2, stages=6, consumers=1, share=(1, 1))
FP8_SQUARE = HopperConfig((128, 128), depth=2, stages=3, promoted=128, partials=2)
FP8_NARROW = replace(NARROW, depth=2, stages=4, promoted=128, partials=2)
FP8_SMALL = replace(SMALL, promoted=64, partials=2)

CONFIGS = {
    "128x256": HopperConfig(),
    "128x128": HopperConfig((128, 128), stages=6),
    "128x128 stream": HopperConfig((128, 128), stages=6, once="b"),
    "64x128": NARROW,
    "64x128 stream": replace(NARROW, once="b"),
    "64x128 stream rotated": replace(NARROW, once="b", rotate=True),
    "64x64": SMALL,
    "64x64 stream": replace(SMALL, once="b"),
    "64x64 stream rotated": replace(SMALL, once="b", rotate=True),
    "64x64 split 2": replace(SMALL, once="b", stages=5, split=2, persistent=False),
    "64x64 split 4": replace(SMALL, once="b", stages=4, split=4, persistent=False),
    "fp8 192x128": HopperConfig((192, 128), stages=4, consumers=3, share=(1, 2), promoted=128),
    "fp8 128x256": HopperConfig(promoted=128),
    "fp8 128x128": FP8_SQUARE,
    "fp8 128x128 stream": replace(FP8_SQUARE, once="b"),
    "fp8 128x64 stream": HopperConfig((128, 64), depth=2, share=(1, 1), once="b", promoted=64, partials=2),
    "fp8 64x128 stream": replace(FP8_NARROW, once="b"),
    "fp8 64x128 stream rotated": replace(FP8_NARROW, once="b", rotate=True),
    "fp8 64x64": FP8_SMALL,
    "fp8 64x64 stream": replace(FP8_SMALL, once="b"),
    "fp8 64x64 deep stream": replace(FP8_SMALL, depth=4, stages=3, once="b"),
    "fp8 64x64 split 2": replace(FP8_SMALL, once="b", stages=5, split=2, persistent=False),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """What was fastest for one problem, cuBLAS' time in microseconds, and that time over ours."""

    m: int
    n: int
    k: int
    config: str
    cublas_us: float
    ratio: float


class Known(Protocol):
    """A problem, and the name of the configuration that was fastest for it."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def config(self) -> str: ...


def choose(m: int, n: int, k: int, in_bytes: int = 2, *, tuned: Sequence[Known] = ()) -> HopperConfig:
    """The configuration for D (m, n) = A (m, k) · B (n, k)ᵀ: that of the nearest fact, extents compared as ratios.

    ``in_bytes`` is the size of an element of A and B: 2, or 1 for FP8, which has facts of its own. ``tuned`` are the
    user's own facts for such elements; of two at the same distance theirs counts.
    """
    facts: list[Known] = [each for each in tuned if each.config in CONFIGS]
    facts += FACTS if in_bytes > 1 else FP8_FACTS
    nearest = min(facts, key=lambda fact: log2(m / fact.m) ** 2 + log2(n / fact.n) ** 2 + log2(k / fact.k) ** 2)
    return CONFIGS[nearest.config]


FACTS = (
    Fact(16, 1024, 1024, "64x64 stream", 8.3, 1.08),
    Fact(16, 1024, 4096, "64x64 split 4", 11.2, 1.03),
    Fact(16, 1024, 8192, "64x64 split 4", 14.2, 1.07),
    Fact(16, 2048, 2048, "64x64 split 2", 10.2, 1.01),
    Fact(16, 2048, 7168, "64x64 split 2", 18.2, 0.91),
    Fact(16, 2048, 8192, "64x64 split 4", 19.5, 0.87),
    Fact(16, 4096, 1024, "64x64", 8.8, 1.02),
    Fact(16, 4096, 4096, "64x64 split 2", 19.0, 0.95),
    Fact(16, 4096, 14336, "64x64 split 2", 42.8, 1.02),
    Fact(16, 8192, 1024, "64x128 stream", 11.5, 1.03),
    Fact(16, 8192, 8192, "64x128 stream rotated", 44.4, 1.04),
    Fact(16, 14336, 4096, "64x128 stream", 41.5, 1.10),
    Fact(32, 1024, 1024, "64x64 stream", 7.7, 1.04),
    Fact(32, 1024, 4096, "64x64 split 4", 11.3, 1.03),
    Fact(32, 1024, 8192, "64x64 split 4", 13.8, 1.05),
    Fact(32, 2048, 2048, "64x64 split 2", 9.7, 0.96),
    Fact(32, 2048, 7168, "64x64 split 2", 18.6, 0.97),
    Fact(32, 2048, 8192, "64x64 split 2", 19.4, 0.98),
    Fact(32, 4096, 1024, "64x64", 9.2, 1.00),
    Fact(32, 4096, 4096, "64x64 stream rotated", 18.9, 1.04),
    Fact(32, 4096, 14336, "64x64 split 2", 42.9, 1.08),
    Fact(32, 8192, 1024, "64x64 stream rotated", 11.6, 1.07),
    Fact(32, 8192, 8192, "64x128 stream rotated", 44.5, 1.06),
    Fact(32, 14336, 4096, "64x128 stream", 40.2, 1.08),
    Fact(64, 1024, 1024, "64x64", 7.6, 1.02),
    Fact(64, 1024, 4096, "64x64 split 4", 11.4, 1.03),
    Fact(64, 1024, 8192, "64x64 split 4", 14.4, 1.06),
    Fact(64, 2048, 2048, "64x64 split 2", 9.7, 1.00),
    Fact(64, 2048, 7168, "64x64 split 2", 18.6, 1.07),
    Fact(64, 2048, 8192, "64x64 split 2", 20.0, 1.08),
    Fact(64, 4096, 1024, "64x64", 8.9, 1.04),
    Fact(64, 4096, 4096, "64x64 stream rotated", 17.9, 1.13),
    Fact(64, 4096, 14336, "64x64 split 2", 44.3, 1.18),
    Fact(64, 7168, 4096, "64x64 stream", 25.7, 1.17),
    Fact(64, 8192, 1024, "64x64 stream rotated", 11.7, 1.08),
    Fact(64, 8192, 8192, "64x64 stream", 46.1, 1.12),
    Fact(64, 14336, 4096, "64x128 stream", 42.1, 1.13),
    Fact(128, 128, 65536, "64x64 split 4", 19.6, 0.40),
    Fact(128, 1024, 1024, "64x64 stream", 8.1, 1.09),
    Fact(128, 1024, 4096, "64x64 split 2", 11.9, 1.01),
    Fact(128, 1024, 8192, "64x64 split 2", 15.6, 0.89),
    Fact(128, 2048, 2048, "64x64 stream", 10.3, 1.04),
    Fact(128, 2048, 7168, "64x64 split 2", 20.2, 1.06),
    Fact(128, 2048, 8192, "64x64 stream", 23.3, 1.08),
    Fact(128, 4096, 1024, "64x64", 9.5, 1.10),
    Fact(128, 4096, 4096, "64x64 stream rotated", 19.3, 1.19),
    Fact(128, 4096, 14336, "64x64 stream", 45.8, 1.11),
    Fact(128, 8192, 1024, "64x128 stream", 11.9, 1.07),
    Fact(128, 8192, 8192, "64x128 stream", 46.3, 1.09),
    Fact(128, 14336, 4096, "64x128 stream", 41.9, 1.09),
    Fact(256, 256, 16384, "64x64 split 4", 14.7, 0.81),
    Fact(256, 1024, 1024, "64x64 stream", 8.4, 1.13),
    Fact(256, 1024, 4096, "64x64 split 2", 12.8, 1.06),
    Fact(256, 1024, 8192, "64x64 split 2", 18.1, 0.95),
    Fact(256, 2048, 2048, "64x64 stream", 10.8, 1.06),
    Fact(256, 2048, 7168, "64x64 stream", 22.1, 1.03),
    Fact(256, 2048, 8192, "64x64 stream", 25.3, 1.11),
    Fact(256, 4096, 1024, "64x128 stream", 10.6, 1.05),
    Fact(256, 4096, 4096, "64x128 stream", 24.2, 1.26),
    Fact(256, 4096, 14336, "64x128 stream", 52.7, 1.05),
    Fact(256, 8192, 1024, "128x128 stream", 13.1, 1.03),
    Fact(256, 8192, 8192, "128x128 stream", 53.6, 1.06),
    Fact(256, 14336, 4096, "128x128 stream", 50.2, 1.04),
    Fact(512, 512, 8192, "64x64 stream", 18.1, 0.90),
    Fact(512, 1024, 1024, "64x64", 8.9, 1.09),
    Fact(512, 1024, 4096, "64x64", 14.7, 0.99),
    Fact(512, 1024, 8192, "64x64 stream", 22.5, 0.97),
    Fact(512, 2048, 2048, "64x128", 13.1, 1.05),
    Fact(512, 2048, 7168, "64x128 stream", 30.3, 1.16),
    Fact(512, 2048, 8192, "64x128 stream", 34.6, 1.19),
    Fact(512, 4096, 1024, "128x128", 12.8, 1.04),
    Fact(512, 4096, 4096, "128x128 stream", 29.3, 1.07),
    Fact(512, 4096, 14336, "128x128 stream", 80.8, 1.01),
    Fact(512, 8192, 1024, "128x256", 18.8, 1.03),
    Fact(512, 8192, 8192, "128x256", 92.4, 1.00),
    Fact(512, 14336, 4096, "128x256", 91.7, 1.02),
    Fact(1024, 1024, 1024, "64x128", 10.2, 1.04),
    Fact(1024, 1024, 8192, "64x128 stream", 32.3, 1.08),
    Fact(1024, 2048, 2048, "128x128", 17.2, 0.99),
    Fact(1024, 4096, 4096, "128x256", 47.6, 1.01),
    Fact(1024, 4096, 14336, "128x256", 150.2, 0.99),
    Fact(1024, 8192, 1024, "128x128", 29.7, 1.04),
    Fact(1024, 8192, 8192, "128x256", 174.9, 1.01),
    Fact(1024, 14336, 4096, "128x128", 156.3, 0.97),
    Fact(2048, 1024, 1024, "128x128", 12.6, 1.05),
    Fact(2048, 1024, 8192, "128x128", 50.4, 1.00),
    Fact(2048, 2048, 2048, "128x128", 28.1, 1.02),
    Fact(2048, 4096, 4096, "128x256", 90.8, 1.00),
    Fact(2048, 4096, 14336, "128x256", 295.7, 1.01),
    Fact(2048, 8192, 1024, "128x128", 57.2, 1.04),
    Fact(2048, 8192, 8192, "128x256", 343.3, 1.01),
    Fact(2048, 14336, 4096, "128x256", 319.3, 1.01),
    Fact(4096, 1024, 1024, "128x128", 18.8, 1.03),
    Fact(4096, 1024, 8192, "128x256", 90.8, 0.99),
    Fact(4096, 2048, 2048, "128x256", 50.2, 1.01),
    Fact(4096, 4096, 4096, "128x256", 176.7, 1.02),
    Fact(4096, 4096, 65536, "128x256", 2920.3, 0.97),
    Fact(4096, 7168, 2048, "128x256", 193.6, 1.01),
    Fact(4096, 8192, 1024, "128x256", 100.4, 1.01),
    Fact(4096, 24576, 1536, "128x256", 428.0, 1.02),
    Fact(6144, 6144, 6144, "128x256", 579.9, 1.01),
    Fact(8192, 4096, 7168, "128x256", 671.1, 1.00),
    Fact(8192, 8192, 8192, "128x256", 1633.3, 1.03),
    Fact(12288, 12288, 12288, "128x256", 5508.6, 1.03),
    Fact(16384, 8192, 1024, "128x128", 413.8, 1.06),
    Fact(16384, 16384, 16384, "128x256", 13302.3, 1.03),
)

FP8_FACTS = (
    Fact(16, 1024, 1024, "fp8 64x64 stream", 7.4, 1.04),
    Fact(16, 2048, 2048, "fp8 64x64 deep stream", 8.3, 1.02),
    Fact(16, 2048, 7168, "fp8 64x64 split 2", 13.2, 1.05),
    Fact(16, 4096, 1024, "fp8 64x64 stream", 8.0, 1.07),
    Fact(16, 4096, 4096, "fp8 64x64 split 2", 12.8, 0.98),
    Fact(16, 4096, 14336, "fp8 64x64 split 2", 27.8, 1.01),
    Fact(16, 8192, 1024, "fp8 64x64", 9.7, 1.05),
    Fact(16, 8192, 8192, "fp8 64x128 stream rotated", 27.4, 1.10),
    Fact(16, 14336, 4096, "fp8 64x128 stream", 24.9, 1.10),
    Fact(32, 1024, 1024, "fp8 64x64 deep stream", 7.5, 1.06),
    Fact(32, 2048, 2048, "fp8 64x64 deep stream", 9.0, 1.03),
    Fact(32, 2048, 7168, "fp8 64x64 split 2", 14.3, 1.09),
    Fact(32, 4096, 1024, "fp8 64x64 stream", 8.2, 1.06),
    Fact(32, 4096, 4096, "fp8 64x64 stream", 12.6, 1.03),
    Fact(32, 4096, 14336, "fp8 64x64 split 2", 25.9, 1.03),
    Fact(32, 8192, 1024, "fp8 64x64 stream", 9.6, 1.07),
    Fact(32, 8192, 8192, "fp8 64x128 stream rotated", 27.9, 1.13),
    Fact(32, 14336, 4096, "fp8 64x128 stream", 25.7, 1.13),
    Fact(64, 1024, 1024, "fp8 64x64", 6.8, 1.05),
    Fact(64, 2048, 2048, "fp8 64x64 deep stream", 9.2, 1.05),
    Fact(64, 2048, 7168, "fp8 64x64 split 2", 12.1, 1.00),
    Fact(64, 4096, 1024, "fp8 64x64 stream", 8.3, 1.02),
    Fact(64, 4096, 4096, "fp8 64x64 stream", 12.2, 1.07),
    Fact(64, 4096, 14336, "fp8 64x64 split 2", 26.7, 1.14),
    Fact(64, 8192, 1024, "fp8 64x64 stream", 9.8, 1.11),
    Fact(64, 8192, 8192, "fp8 64x64 deep stream", 30.0, 1.21),
    Fact(64, 14336, 4096, "fp8 64x128 stream", 26.4, 1.19),
    Fact(128, 1024, 1024, "fp8 64x64 stream", 7.1, 1.04),
    Fact(128, 2048, 2048, "fp8 64x64 deep stream", 9.0, 1.11),
    Fact(128, 2048, 7168, "fp8 64x64 split 2", 13.9, 1.05),
    Fact(128, 4096, 1024, "fp8 64x64 stream", 8.5, 1.09),
    Fact(128, 4096, 4096, "fp8 64x64 stream", 13.4, 1.10),
    Fact(128, 4096, 14336, "fp8 64x64 stream", 27.8, 1.16),
    Fact(128, 8192, 1024, "fp8 64x128 stream", 10.4, 1.11),
    Fact(128, 8192, 8192, "fp8 64x128 stream", 30.8, 1.19),
    Fact(128, 14336, 4096, "fp8 64x128 stream", 27.1, 1.13),
    Fact(256, 1024, 1024, "fp8 64x64", 7.4, 1.14),
    Fact(256, 2048, 2048, "fp8 64x64 deep stream", 9.5, 1.10),
    Fact(256, 2048, 7168, "fp8 64x64 deep stream", 15.0, 1.01),
    Fact(256, 4096, 1024, "fp8 128x64 stream", 9.6, 1.10),
    Fact(256, 4096, 4096, "fp8 128x64 stream", 15.7, 1.10),
    Fact(256, 4096, 14336, "fp8 128x64 stream", 35.6, 1.14),
    Fact(256, 8192, 1024, "fp8 128x128 stream", 11.7, 1.08),
    Fact(256, 8192, 8192, "fp8 128x128 stream", 33.7, 1.07),
    Fact(256, 14336, 4096, "fp8 128x128 stream", 30.6, 1.00),
    Fact(512, 1024, 1024, "fp8 64x64", 8.3, 1.17),
    Fact(512, 2048, 7168, "fp8 128x64 stream", 19.6, 1.05),
    Fact(512, 4096, 1024, "fp8 128x128", 10.9, 1.14),
    Fact(512, 4096, 4096, "fp8 128x128 stream", 19.0, 1.03),
    Fact(512, 4096, 14336, "fp8 128x128 stream", 46.0, 1.02),
    Fact(512, 8192, 8192, "fp8 128x128 stream", 52.7, 1.03),
    Fact(512, 14336, 4096, "fp8 128x128 stream", 49.2, 0.98),
    Fact(1024, 1024, 1024, "fp8 128x64 stream", 9.6, 1.14),
    Fact(1024, 2048, 7168, "fp8 128x128 stream", 26.0, 1.01),
    Fact(1024, 4096, 1024, "fp8 128x128 stream", 14.3, 1.10),
    Fact(1024, 4096, 4096, "fp8 128x128 stream", 30.0, 1.03),
    Fact(1024, 4096, 14336, "fp8 128x128 stream", 85.0, 0.99),
    Fact(1024, 8192, 8192, "fp8 128x128 stream", 101.4, 1.02),
    Fact(1024, 14336, 4096, "fp8 128x128 stream", 91.7, 1.03),
    Fact(1536, 1536, 1536, "fp8 192x128", 12.8, 0.96),
    Fact(2048, 1024, 1024, "fp8 128x128", 10.4, 1.09),
    Fact(2048, 2048, 2048, "fp8 128x128", 20.1, 1.06),
    Fact(2048, 2048, 7168, "fp8 128x128 stream", 45.9, 1.01),
    Fact(2048, 4096, 1024, "fp8 128x128", 22.5, 1.15),
    Fact(2048, 4096, 4096, "fp8 128x128 stream", 54.0, 1.04),
    Fact(2048, 4096, 14336, "fp8 128x128 stream", 178.7, 1.00),
    Fact(2048, 8192, 8192, "fp8 128x128 stream", 199.5, 1.00),
    Fact(2048, 14336, 4096, "fp8 128x128 stream", 181.9, 1.02),
    Fact(3072, 3072, 3072, "fp8 192x128", 47.9, 1.07),
    Fact(4096, 1024, 1024, "fp8 128x128 stream", 14.3, 1.12),
    Fact(4096, 2048, 7168, "fp8 128x128 stream", 87.9, 1.01),
    Fact(4096, 4096, 1024, "fp8 128x128", 36.7, 1.11),
    Fact(4096, 4096, 4096, "fp8 128x128 stream", 103.9, 1.02),
    Fact(4096, 4096, 14336, "fp8 128x128", 357.9, 1.00),
    Fact(4096, 4096, 16384, "fp8 128x128", 415.0, 1.00),
    Fact(4096, 7168, 2048, "fp8 128x256", 104.6, 1.04),
    Fact(4096, 8192, 8192, "fp8 128x128 stream", 399.2, 0.98),
    Fact(4096, 14336, 4096, "fp8 192x128", 358.9, 1.01),
    Fact(4096, 24576, 1536, "fp8 192x128", 258.9, 1.05),
    Fact(6144, 6144, 6144, "fp8 192x128", 356.5, 1.02),
    Fact(8192, 4096, 7168, "fp8 128x128 stream", 368.6, 1.00),
    Fact(8192, 8192, 8192, "fp8 192x128", 823.7, 1.01),
    Fact(12288, 12288, 12288, "fp8 192x128", 2913.2, 1.02),
    Fact(16384, 8192, 1024, "fp8 192x128", 243.7, 1.06),
    Fact(16384, 16384, 16384, "fp8 192x128", 6839.0, 1.01),
)
