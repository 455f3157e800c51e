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
    Fact(16, 1024, 1024, "64x64 stream rotated", 7.5, 1.02),
    Fact(16, 1024, 8192, "64x64 stream", 13.8, 0.73),
    Fact(16, 2048, 2048, "64x64 stream", 9.7, 0.99),
    Fact(16, 4096, 4096, "64x128 stream rotated", 18.9, 1.04),
    Fact(16, 4096, 14336, "64x64 stream rotated", 43.1, 1.03),
    Fact(16, 8192, 1024, "64x128 stream", 12.3, 1.12),
    Fact(16, 8192, 8192, "64x128 stream rotated", 45.0, 1.09),
    Fact(16, 14336, 4096, "64x128 stream", 40.7, 1.08),
    Fact(32, 1024, 1024, "64x64", 8.4, 1.07),
    Fact(32, 1024, 8192, "64x64 stream", 14.0, 0.74),
    Fact(32, 2048, 2048, "64x64", 10.4, 1.04),
    Fact(32, 4096, 4096, "64x64 stream", 19.2, 1.13),
    Fact(32, 4096, 14336, "64x64 stream rotated", 43.8, 1.11),
    Fact(32, 8192, 1024, "64x128 stream", 12.1, 1.09),
    Fact(32, 8192, 8192, "64x128 stream rotated", 44.8, 1.07),
    Fact(32, 14336, 4096, "64x128 stream", 41.9, 1.10),
    Fact(64, 1024, 1024, "64x64", 8.4, 1.10),
    Fact(64, 1024, 8192, "64x64 stream", 13.6, 0.70),
    Fact(64, 2048, 2048, "64x64", 10.3, 1.02),
    Fact(64, 4096, 4096, "64x64 stream rotated", 18.7, 1.15),
    Fact(64, 4096, 14336, "64x64 stream", 44.8, 1.13),
    Fact(64, 7168, 4096, "64x64 stream", 25.3, 1.18),
    Fact(64, 8192, 1024, "64x128 stream", 12.5, 1.11),
    Fact(64, 8192, 8192, "64x64 stream rotated", 46.3, 1.10),
    Fact(64, 14336, 4096, "64x64 stream", 42.8, 1.14),
    Fact(128, 1024, 1024, "64x64 stream rotated", 8.6, 1.10),
    Fact(128, 1024, 8192, "64x64 stream", 15.2, 0.77),
    Fact(128, 2048, 2048, "64x64 stream rotated", 10.7, 1.05),
    Fact(128, 4096, 4096, "64x64 stream rotated", 18.9, 1.14),
    Fact(128, 4096, 14336, "64x64 stream", 45.9, 1.10),
    Fact(128, 8192, 1024, "64x128 stream rotated", 12.4, 1.05),
    Fact(128, 8192, 8192, "64x128 stream", 47.1, 1.10),
    Fact(128, 14336, 4096, "64x128 stream", 42.8, 1.07),
    Fact(256, 1024, 1024, "64x64 stream", 8.5, 1.05),
    Fact(256, 1024, 8192, "64x64 stream", 18.4, 0.91),
    Fact(256, 2048, 2048, "64x64 stream", 10.8, 1.03),
    Fact(256, 4096, 4096, "64x128 stream", 24.2, 1.22),
    Fact(256, 4096, 14336, "64x128 stream", 54.0, 1.07),
    Fact(256, 8192, 1024, "64x128 stream", 14.2, 1.04),
    Fact(256, 8192, 8192, "128x128", 52.7, 1.00),
    Fact(256, 14336, 4096, "128x256 stream", 48.0, 1.02),
    Fact(512, 1024, 1024, "64x64 stream", 9.3, 1.13),
    Fact(512, 1024, 8192, "64x64", 23.7, 0.99),
    Fact(512, 2048, 2048, "64x128 stream", 14.2, 1.14),
    Fact(512, 4096, 4096, "128x128", 28.7, 0.97),
    Fact(512, 4096, 14336, "128x128", 81.1, 0.98),
    Fact(512, 8192, 1024, "128x256 stream", 18.6, 1.04),
    Fact(512, 8192, 8192, "128x256 stream", 103.7, 1.00),
    Fact(512, 14336, 4096, "128x256 stream", 93.4, 1.01),
    Fact(1024, 1024, 1024, "64x128", 9.5, 1.05),
    Fact(1024, 1024, 8192, "64x128", 33.2, 1.03),
    Fact(1024, 2048, 2048, "128x128", 18.0, 1.02),
    Fact(1024, 4096, 4096, "128x256", 47.6, 1.01),
    Fact(1024, 4096, 14336, "128x256", 151.1, 1.00),
    Fact(1024, 8192, 1024, "128x128", 30.0, 1.03),
    Fact(1024, 8192, 8192, "128x256", 175.4, 1.01),
    Fact(1024, 14336, 4096, "128x128", 158.2, 0.96),
    Fact(2048, 1024, 1024, "128x128", 13.0, 1.02),
    Fact(2048, 1024, 8192, "128x128", 51.2, 1.00),
    Fact(2048, 2048, 2048, "128x256", 28.1, 1.01),
    Fact(2048, 4096, 4096, "128x256", 91.5, 1.00),
    Fact(2048, 4096, 14336, "128x256", 302.7, 1.00),
    Fact(2048, 8192, 1024, "128x128", 55.2, 1.03),
    Fact(2048, 8192, 8192, "128x256", 350.3, 1.01),
    Fact(2048, 14336, 4096, "128x256", 332.4, 1.01),
    Fact(4096, 1024, 1024, "128x128", 18.5, 1.02),
    Fact(4096, 1024, 8192, "128x256", 92.9, 1.00),
    Fact(4096, 2048, 2048, "128x256 stream", 50.6, 1.00),
    Fact(4096, 4096, 4096, "128x256", 177.2, 1.01),
    Fact(4096, 4096, 65536, "128x256", 3207.5, 1.00),
    Fact(4096, 7168, 2048, "128x256", 181.6, 1.00),
    Fact(4096, 8192, 1024, "128x256", 100.4, 1.01),
    Fact(4096, 24576, 1536, "128x128", 437.5, 1.02),
    Fact(6144, 6144, 6144, "128x256", 657.5, 1.00),
    Fact(8192, 4096, 7168, "128x256", 680.5, 1.00),
    Fact(8192, 8192, 8192, "128x256 stream", 1622.6, 1.02),
    Fact(12288, 12288, 12288, "128x256 stream", 5452.1, 1.02),
    Fact(16384, 8192, 1024, "128x256 stream", 390.8, 1.01),
    Fact(16384, 16384, 16384, "128x256 stream", 13508.1, 1.04),
)
