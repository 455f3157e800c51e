"""Which configuration of the Hopper GEMM multiplies a problem: the fastest one at the nearest measured problem.

The facts are medians on one H200 (132 SMs, 700 W), bf16, A (M, K) and B (N, K) of standard normal numbers, L2 filled
with other data before each launch, every candidate and cuBLAS (torch.matmul) launched in random order in one process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from warpwright.kernels.gemm.sm90_plan import HopperConfig

__all__ = ["CONFIGS", "FACTS", "Fact", "choose"]

NARROW = HopperConfig((64, 128), stages=8, consumers=1, share=(1, 1))
SMALL = HopperConfig((64, 64), depth=2, stages=6, consumers=1, share=(1, 1))

CONFIGS = {
    "128x256": HopperConfig(),
    "128x256 stream": HopperConfig(once="b"),
    "128x128": HopperConfig((128, 128), stages=6),
    "128x128 stream": HopperConfig((128, 128), stages=6, once="b"),
    "64x128": NARROW,
    "64x128 stream": replace(NARROW, once="b"),
    "64x128 stream rotated": replace(NARROW, once="b", rotate=True),
    "64x64": SMALL,
    "64x64 stream": replace(SMALL, once="b"),
    "64x64 stream rotated": replace(SMALL, once="b", rotate=True),
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


def choose(m: int, n: int, k: int) -> HopperConfig:
    """The configuration for D (m, n) = A (m, k) · B (n, k)ᵀ: that of the nearest fact, extents compared as ratios."""
    nearest = min(FACTS, key=lambda fact: log2(m / fact.m) ** 2 + log2(n / fact.n) ** 2 + log2(k / fact.k) ** 2)
    return CONFIGS[nearest.config]


FACTS = (
    Fact(16, 1024, 1024, "64x64", 7.4, 1.02),
    Fact(16, 1024, 8192, "64x64 stream", 13.4, 0.66),
    Fact(16, 2048, 2048, "64x64", 9.6, 0.96),
    Fact(16, 4096, 4096, "64x128 stream", 19.1, 0.96),
    Fact(16, 4096, 14336, "64x64 stream rotated", 42.5, 0.90),
    Fact(16, 8192, 1024, "64x64 stream", 11.9, 1.07),
    Fact(16, 8192, 8192, "64x128 stream rotated", 44.4, 1.08),
    Fact(16, 14336, 4096, "64x128 stream", 41.1, 1.09),
    Fact(32, 1024, 1024, "64x64", 8.1, 1.05),
    Fact(32, 1024, 8192, "64x64", 13.5, 0.64),
    Fact(32, 2048, 2048, "64x64", 10.1, 0.98),
    Fact(32, 4096, 4096, "64x64 stream", 19.5, 1.12),
    Fact(32, 4096, 14336, "64x64 stream", 43.2, 0.97),
    Fact(32, 8192, 1024, "64x128 stream", 12.1, 1.08),
    Fact(32, 8192, 8192, "64x128 stream", 44.9, 1.05),
    Fact(32, 14336, 4096, "64x128 stream", 40.9, 1.08),
    Fact(64, 1024, 1024, "64x64 stream", 8.2, 1.12),
    Fact(64, 1024, 8192, "64x64 stream", 13.7, 0.71),
    Fact(64, 2048, 2048, "64x64", 10.2, 1.01),
    Fact(64, 4096, 4096, "64x64 stream", 18.5, 1.13),
    Fact(64, 4096, 14336, "64x64 stream", 44.6, 1.13),
    Fact(64, 7168, 4096, "64x64 stream", 25.2, 1.17),
    Fact(64, 8192, 1024, "64x64 stream", 12.2, 1.12),
    Fact(64, 8192, 8192, "64x64 stream", 46.6, 1.13),
    Fact(64, 14336, 4096, "64x64 stream", 42.7, 1.17),
    Fact(128, 1024, 1024, "64x64 stream", 8.3, 1.13),
    Fact(128, 1024, 8192, "64x64 stream", 15.3, 0.79),
    Fact(128, 2048, 2048, "64x64", 10.5, 1.04),
    Fact(128, 4096, 4096, "64x64 stream", 18.6, 1.12),
    Fact(128, 4096, 14336, "64x64 stream", 46.3, 1.13),
    Fact(128, 8192, 1024, "64x64 stream rotated", 12.3, 1.08),
    Fact(128, 8192, 8192, "64x128 stream", 47.0, 1.09),
    Fact(128, 14336, 4096, "64x128 stream", 42.6, 1.11),
    Fact(256, 1024, 1024, "64x64", 8.3, 1.05),
    Fact(256, 1024, 8192, "64x64 stream", 18.0, 0.89),
    Fact(256, 2048, 2048, "64x64", 10.6, 1.00),
    Fact(256, 4096, 4096, "64x128 stream", 24.1, 1.25),
    Fact(256, 4096, 14336, "64x128 stream", 52.8, 1.05),
    Fact(256, 8192, 1024, "128x128", 13.8, 1.04),
    Fact(256, 8192, 8192, "128x128 stream", 52.6, 1.05),
    Fact(256, 14336, 4096, "128x256 stream", 48.1, 1.01),
    Fact(512, 1024, 1024, "64x64 stream", 8.8, 1.16),
    Fact(512, 1024, 8192, "64x64 stream", 22.3, 0.94),
    Fact(512, 2048, 2048, "64x128 stream", 13.0, 1.07),
    Fact(512, 4096, 4096, "128x128 stream", 28.1, 1.04),
    Fact(512, 4096, 14336, "128x128 stream", 80.2, 1.00),
    Fact(512, 8192, 1024, "128x256", 18.4, 1.03),
    Fact(512, 8192, 8192, "128x256", 109.4, 1.00),
    Fact(512, 14336, 4096, "128x256", 92.2, 1.02),
    Fact(1024, 1024, 1024, "64x128", 9.3, 1.07),
    Fact(1024, 1024, 8192, "64x128", 31.6, 1.01),
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
