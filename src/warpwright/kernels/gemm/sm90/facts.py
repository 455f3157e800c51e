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

from warpwright.kernels.gemm.sm90.plan import HopperConfig

__all__ = ["CONFIGS", "FACTS", "FP8_FACTS", "Fact", "choose", "in_one_launch"]

NARROW = HopperConfig((64, 128), stages=8, consumers=1, share=(1, 1))
SMALL = HopperConfig((64, 64), depth=2, stages=6, consumers=1, share=(1, 1))
SPLIT = replace(SMALL, once="b", persistent=False)
FP8_SQUARE = HopperConfig((128, 128), depth=2, stages=3, promoted=128, partials=2)
FP8_NARROW = replace(NARROW, depth=2, stages=4, promoted=128, partials=2)
FP8_SMALL = replace(SMALL, promoted=64, partials=2)

CONFIGS = {
    "128x256": HopperConfig(),
    "128x256 alone": HopperConfig(share=(1, 1)),
    "128x128": HopperConfig((128, 128), stages=6),
    "128x128 alone": HopperConfig((128, 128), stages=6, share=(1, 1)),
    "128x128 stream": HopperConfig((128, 128), stages=6, once="b"),
    "128x64": HopperConfig((128, 64), stages=8, share=(1, 1)),
    "64x128": NARROW,
    "64x128 pair": replace(NARROW, share=(2, 1)),
    "64x128 stream": replace(NARROW, once="b"),
    "64x128 stream rotated": replace(NARROW, once="b", rotate=True),
    "64x64": SMALL,
    "64x64 stream": replace(SMALL, once="b"),
    "64x64 stream rotated": replace(SMALL, once="b", rotate=True),
    "64x64 a CTA a tile": replace(SMALL, depth=1, stages=2, persistent=False),
    "64x64 split 2": replace(SPLIT, stages=5, split=2),
    "64x64 split 4": replace(SPLIT, stages=5, split=4),
    "64x64 split 6": replace(SPLIT, stages=4, split=6),
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
SLICED = {"64x64 stream": (2, 4, 8, 16, 32), "64x64 stream rotated": (4,), "64x128 stream": (2, 4)}
CONFIGS |= {
    f"{name}, {count} slices": replace(CONFIGS[name], slices=count)
    for name, counts in SLICED.items()
    for count in counts
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
    batches: int = 1


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


def choose(m: int, n: int, k: int, in_bytes: int = 2, *, batches: int = 1, tuned: Sequence[Known] = ()) -> HopperConfig:
    """The configuration for ``batches`` D (m, n) = A (m, k) · B (n, k)ᵀ: that of the nearest fact, extents compared as
    ratios.

    ``in_bytes`` is the size of an element of A and B: 2, or 1 for FP8, which has facts of its own. ``tuned`` are the
    user's own facts for such elements; of two at the same distance theirs counts.
    """
    facts: list[Known] = [each for each in tuned if each.config in CONFIGS]
    facts += FACTS if in_bytes > 1 else FP8_FACTS

    def distance(fact: Known) -> float:
        count = fact.batches if isinstance(fact, Fact) else 1
        ratios = m / fact.m, n / fact.n, k / fact.k, batches / count
        return sum(log2(ratio) ** 2 for ratio in ratios)

    return CONFIGS[min(facts, key=distance).config]


def in_one_launch(config: HopperConfig) -> HopperConfig:
    """``config``, or where it cuts K into slices one whose clusters share out K."""
    shares = {1: 1, 2: 2, 4: 4}.get(config.slices, 6)
    return config if shares == 1 else CONFIGS[f"64x64 split {shares}"]


FACTS = (
    Fact(16, 1024, 1024, "64x64 split 2", 8.2, 1.10),
    Fact(16, 1024, 4096, "64x64 split 4", 11.7, 1.15),
    Fact(16, 1024, 8192, "64x64 split 4", 14.6, 1.17),
    Fact(16, 2048, 2048, "64x64 split 2", 10.3, 1.02),
    Fact(16, 2048, 7168, "64x128 stream, 4 slices", 18.7, 1.16),
    Fact(16, 2048, 8192, "64x64 stream rotated, 4 slices", 20.0, 1.15),
    Fact(16, 4096, 1024, "64x64", 9.2, 1.03),
    Fact(16, 4096, 4096, "64x128 stream, 4 slices", 19.5, 1.08),
    Fact(16, 4096, 14336, "64x128 stream, 4 slices", 43.1, 1.10),
    Fact(16, 8192, 1024, "64x128 stream", 11.8, 1.06),
    Fact(16, 8192, 8192, "64x128 stream rotated", 45.2, 1.07),
    Fact(16, 14336, 4096, "64x128 stream", 41.3, 1.08),
    Fact(32, 1024, 1024, "64x64 split 2", 7.9, 1.11),
    Fact(32, 1024, 4096, "64x64 split 4", 10.9, 1.13),
    Fact(32, 1024, 8192, "64x64 split 4", 14.8, 1.19),
    Fact(32, 2048, 2048, "64x64 split 2", 10.5, 1.10),
    Fact(32, 2048, 7168, "64x64 stream, 4 slices", 18.4, 1.14),
    Fact(32, 2048, 8192, "64x64 stream, 4 slices", 19.8, 1.13),
    Fact(32, 4096, 1024, "64x64 stream rotated", 9.8, 1.10),
    Fact(32, 4096, 4096, "64x64 split 2", 19.7, 1.10),
    Fact(32, 4096, 14336, "64x64 split 2", 43.8, 1.09),
    Fact(32, 8192, 1024, "64x64 stream rotated", 11.7, 1.08),
    Fact(32, 8192, 8192, "64x128 stream rotated", 45.2, 1.08),
    Fact(32, 14336, 4096, "64x128 stream", 41.4, 1.09),
    Fact(64, 64, 65536, "64x64 stream, 32 slices", 15.5, 1.21),
    Fact(64, 512, 8192, "64x64 stream, 8 slices", 12.4, 1.15),
    Fact(64, 1024, 1024, "64x64 split 2", 8.2, 1.11),
    Fact(64, 1024, 4096, "64x64 split 4", 12.1, 1.25),
    Fact(64, 1024, 8192, "64x64 split 4", 14.9, 1.19),
    Fact(64, 2048, 2048, "64x64 split 2", 9.9, 1.04),
    Fact(64, 2048, 7168, "64x64 stream, 4 slices", 18.9, 1.16),
    Fact(64, 2048, 8192, "64x64 stream, 4 slices", 20.0, 1.16),
    Fact(64, 4096, 1024, "64x64", 8.9, 1.01),
    Fact(64, 4096, 4096, "64x64 split 2", 17.7, 1.13),
    Fact(64, 4096, 14336, "64x64 split 2", 45.4, 1.19),
    Fact(64, 7168, 4096, "64x64 stream", 25.5, 1.14),
    Fact(64, 8192, 1024, "64x64 stream rotated", 11.8, 1.07),
    Fact(64, 8192, 8192, "64x64 stream", 46.5, 1.12),
    Fact(64, 14336, 4096, "64x64 stream", 42.6, 1.14),
    Fact(128, 128, 128, "64x64", 5.3, 1.04),
    Fact(128, 128, 4096, "64x64 split 4", 10.6, 1.28),
    Fact(128, 128, 14336, "64x64 stream, 16 slices", 11.2, 1.11),
    Fact(128, 128, 16384, "64x64 stream, 16 slices", 11.6, 1.10),
    Fact(128, 128, 65536, "64x64 stream, 32 slices", 20.8, 1.10),
    Fact(128, 512, 8192, "64x64 split 4", 13.2, 1.17),
    Fact(128, 1024, 1024, "64x64 stream", 8.2, 1.07),
    Fact(128, 1024, 4096, "64x64 stream rotated, 4 slices", 12.5, 1.17),
    Fact(128, 1024, 8192, "64x64 stream, 4 slices", 15.7, 1.15),
    Fact(128, 2048, 2048, "64x64 split 2", 10.3, 1.05),
    Fact(128, 2048, 7168, "64x64 stream, 2 slices", 20.4, 1.16),
    Fact(128, 2048, 8192, "64x64 stream, 2 slices", 22.3, 1.18),
    Fact(128, 4096, 1024, "64x64 stream rotated", 10.0, 1.11),
    Fact(128, 4096, 4096, "64x64 stream rotated", 20.0, 1.23),
    Fact(128, 4096, 14336, "64x64 stream", 46.5, 1.13),
    Fact(128, 8192, 1024, "64x128 stream rotated", 12.5, 1.12),
    Fact(128, 8192, 8192, "64x128 stream", 46.9, 1.08),
    Fact(128, 14336, 4096, "64x128 stream", 42.7, 1.09),
    Fact(256, 256, 256, "64x64", 5.6, 1.02),
    Fact(256, 256, 2048, "64x64 split 4", 9.2, 1.22),
    Fact(256, 256, 4096, "64x64 split 6", 11.6, 1.28),
    Fact(256, 256, 7168, "64x64 stream, 8 slices", 13.0, 1.25),
    Fact(256, 256, 16384, "64x64 stream, 8 slices", 15.7, 1.17),
    Fact(256, 512, 16384, "64x64 stream, 4 slices", 19.4, 1.10),
    Fact(256, 1024, 1024, "64x64", 8.9, 1.16),
    Fact(256, 1024, 4096, "64x64 split 2", 13.2, 1.14),
    Fact(256, 1024, 8192, "64x128 stream, 4 slices", 18.0, 1.13),
    Fact(256, 2048, 2048, "64x64", 10.7, 1.02),
    Fact(256, 2048, 7168, "64x64 stream", 21.7, 1.04),
    Fact(256, 2048, 8192, "64x64 stream", 24.3, 1.06),
    Fact(256, 4096, 1024, "64x128", 10.4, 1.05),
    Fact(256, 4096, 4096, "64x128 stream", 24.4, 1.30),
    Fact(256, 4096, 14336, "64x128 stream", 53.7, 1.06),
    Fact(256, 8192, 1024, "128x128 stream", 13.4, 1.03),
    Fact(256, 8192, 8192, "128x128 stream", 52.9, 1.04),
    Fact(256, 14336, 4096, "128x128 stream", 48.4, 1.01),
    Fact(512, 512, 512, "64x64", 7.4, 1.14),
    Fact(512, 512, 2048, "64x64 split 2", 10.0, 1.07),
    Fact(512, 512, 4096, "64x64 split 2", 12.9, 1.06),
    Fact(512, 512, 8192, "64x128 stream, 4 slices", 17.6, 1.17),
    Fact(512, 1024, 1024, "64x64", 8.9, 1.13),
    Fact(512, 1024, 4096, "64x64", 13.9, 0.97),
    Fact(512, 1024, 8192, "64x128 stream, 2 slices", 22.5, 1.04),
    Fact(512, 2048, 2048, "64x128", 12.7, 1.03),
    Fact(512, 2048, 7168, "64x128 stream", 30.5, 1.17),
    Fact(512, 2048, 8192, "64x128 stream", 33.3, 1.15),
    Fact(512, 4096, 1024, "128x128 alone", 13.1, 1.05),
    Fact(512, 4096, 4096, "128x128 stream", 29.4, 1.07),
    Fact(512, 4096, 14336, "128x128 stream", 81.4, 0.99),
    Fact(512, 8192, 1024, "128x128 alone", 18.7, 1.05),
    Fact(512, 8192, 8192, "128x256 alone", 93.1, 1.02),
    Fact(512, 14336, 4096, "128x256", 93.4, 1.03),
    Fact(1024, 1024, 256, "64x128 pair", 7.8, 1.09),
    Fact(1024, 1024, 1024, "64x128", 9.9, 1.06),
    Fact(1024, 1024, 4096, "64x128 stream", 18.9, 1.05),
    Fact(1024, 1024, 8192, "64x128 stream", 31.7, 1.08),
    Fact(1024, 2048, 2048, "128x128", 17.8, 1.03),
    Fact(1024, 4096, 4096, "128x256", 48.1, 1.01),
    Fact(1024, 4096, 14336, "128x256 alone", 154.0, 1.01),
    Fact(1024, 8192, 1024, "128x128", 29.7, 1.04),
    Fact(1024, 8192, 8192, "128x256", 174.9, 1.01),
    Fact(1024, 14336, 4096, "128x128 alone", 157.7, 0.97),
    Fact(2048, 1024, 1024, "128x128", 12.5, 1.04),
    Fact(2048, 1024, 8192, "128x128", 48.2, 1.01),
    Fact(2048, 2048, 512, "128x128", 13.3, 1.03),
    Fact(2048, 2048, 2048, "128x128", 27.7, 1.01),
    Fact(2048, 2048, 16384, "128x256 alone", 184.0, 1.00),
    Fact(2048, 4096, 4096, "128x256", 90.3, 1.01),
    Fact(2048, 4096, 14336, "128x256", 295.7, 1.01),
    Fact(2048, 8192, 1024, "128x128", 57.2, 1.04),
    Fact(2048, 8192, 8192, "128x256", 343.3, 1.01),
    Fact(2048, 14336, 4096, "128x256", 319.3, 1.01),
    Fact(4096, 1024, 1024, "128x128", 18.8, 1.03),
    Fact(4096, 1024, 8192, "128x256", 88.6, 1.00),
    Fact(4096, 2048, 2048, "128x256", 50.2, 1.01),
    Fact(4096, 4096, 64, "128x128 alone", 15.7, 1.11),
    Fact(4096, 4096, 128, "128x128", 18.4, 1.15),
    Fact(4096, 4096, 512, "128x128", 33.1, 1.06),
    Fact(4096, 4096, 4096, "128x256", 183.5, 1.01),
    Fact(4096, 4096, 65536, "128x256", 2920.3, 0.97),
    Fact(4096, 7168, 2048, "128x256", 164.3, 1.01),
    Fact(4096, 8192, 1024, "128x256", 100.4, 1.01),
    Fact(4096, 24576, 1536, "128x256", 428.0, 1.02),
    Fact(6144, 6144, 6144, "128x256", 651.9, 1.01),
    Fact(8192, 64, 1024, "128x64", 11.7, 1.02),
    Fact(8192, 4096, 7168, "128x256", 715.7, 1.00),
    Fact(8192, 8192, 256, "128x128 alone", 66.2, 1.05),
    Fact(8192, 8192, 8192, "128x256", 1633.3, 1.03),
    Fact(12288, 12288, 12288, "128x256", 5508.6, 1.03),
    Fact(16384, 128, 512, "128x128", 12.7, 1.07),
    Fact(16384, 256, 256, "128x128", 11.5, 1.10),
    Fact(16384, 8192, 1024, "128x128", 413.8, 1.06),
    Fact(16384, 16384, 16384, "128x256", 13302.3, 1.03),
    Fact(65536, 64, 64, "128x64", 10.7, 1.07),
    Fact(1024, 1024, 1024, "128x128", 13.3, 1.06, batches=2),
    Fact(4096, 4096, 4096, "128x256", 374.8, 1.01, batches=2),
    Fact(512, 512, 512, "128x64", 8.7, 1.06, batches=4),
    Fact(4096, 4096, 4096, "128x256 alone", 798.2, 1.03, batches=4),
    Fact(16, 4096, 4096, "64x128", 77.9, 1.02, batches=8),
    Fact(128, 4096, 4096, "128x256 alone", 85.0, 1.02, batches=8),
    Fact(512, 4096, 4096, "128x256 alone", 192.1, 1.02, batches=8),
    Fact(2048, 2048, 2048, "128x256", 186.8, 1.01, batches=8),
    Fact(128, 128, 1024, "64x64", 9.2, 1.04, batches=16),
    Fact(512, 2048, 512, "128x256 alone", 38.8, 1.03, batches=16),
    Fact(1024, 1024, 1024, "128x256", 54.1, 1.02, batches=16),
    Fact(256, 256, 256, "128x128 alone", 10.0, 1.03, batches=32),
    Fact(1024, 128, 1024, "128x128 alone", 31.8, 1.06, batches=32),
    Fact(1024, 1024, 128, "128x128", 29.9, 1.06, batches=32),
    Fact(4096, 64, 4096, "128x64", 298.9, 1.07, batches=32),
    Fact(4096, 128, 4096, "64x128 pair", 299.3, 1.01, batches=32),
    Fact(4096, 4096, 64, "128x64", 323.7, 1.02, batches=32),
    Fact(4096, 4096, 128, "128x128", 342.5, 1.04, batches=32),
    Fact(128, 2048, 128, "128x256 alone", 25.8, 1.15, batches=64),
    Fact(512, 512, 512, "128x256 alone", 36.8, 1.03, batches=64),
    Fact(1024, 64, 1024, "128x64", 52.4, 1.10, batches=64),
    Fact(1024, 1024, 64, "128x64", 46.5, 1.03, batches=64),
    Fact(16, 128, 4096, "64x128", 47.9, 0.98, batches=128),
    Fact(16, 4096, 128, "64x128", 46.9, 0.95, batches=128),
    Fact(128, 128, 128, "64x128 pair", 9.5, 1.02, batches=128),
    Fact(64, 64, 64, "64x64 a CTA a tile", 7.4, 0.95, batches=256),
    Fact(256, 256, 256, "128x256", 33.3, 1.03, batches=256),
    Fact(16, 64, 64, "64x64 a CTA a tile", 8.8, 0.96, batches=512),
    Fact(64, 64, 128, "64x64", 18.8, 1.00, batches=1024),
    Fact(128, 128, 64, "128x128 alone", 24.1, 1.03, batches=1024),
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
