"""The Hopper GEMM on the virtual H200 where a CTA computes several tiles, or a ring wraps several times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.helpers import BF16, SENTINEL, normal
from warpwright.kernels.gemm.sm90 import CONFIGS, LEVELS, Config, kernel_of, plan_gemm
from warpwright.report.verdict import judge
from warpwright.run.launch import launch

FEW_SMS = [
    (Config(group=2), (1290, 520, 200), 4),
    (Config((64, 64), consumers=1, share=(1, 2), stages=3, group=3), (330, 330, 328), 4),
    (Config((64, 64), consumers=1, share=(2, 2), stages=2, group=1), (250, 400, 136), 8),
    (CONFIGS["64x64 stream rotated"], (65, 321, 1032), 3),
    (LEVELS[5], (300, 700, 72), 2),
    (CONFIGS["64x64 stream rotated, 16 rows"], (13, 321, 3000), 2),
    *((CONFIGS["128x256"], (520, 520, k), 2) for k in (64, 128, 200, 328)),  # of 1, 2, 4 and 6 k-blocks
    (replace(CONFIGS["128x128"], delayed=True), (300, 700, 456), 2),
    (replace(CONFIGS["128x192"], delayed=True, early=True), (300, 800, 72), 2),  # an odd number of blocks
    (replace(CONFIGS["192x128"], delayed=True, early=True), (500, 600, 328), 2),
]


def gemm(config: Config, a: np.ndarray, b: np.ndarray, sms: int) -> np.ndarray:
    """D (M + 1, pitch), filled with SENTINEL before the launch."""
    plan = plan_gemm(config, a.shape[0], b.shape[0], a.shape[1], sms=sms)
    d = np.full((a.shape[0] + 1, plan.pitch), SENTINEL, BF16)
    launch(kernel_of(config), plan.grid, args=[a, b, d[:-1], *plan.scalars], device="h200")
    return d


@pytest.mark.parametrize(("config", "shape", "sms"), FEW_SMS)
def test_persistent_clusters_cover_every_tile(config: Config, shape: tuple[int, int, int], sms: int) -> None:
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, n, k)
    d = gemm(config, a, b, sms)
    assert judge(np.ascontiguousarray(d[:-1, :n]), a, b.T).verified
    assert (d[-1] == SENTINEL).all()


@pytest.mark.parametrize("name", ["64x64 split 2", "64x64 split 4"])
@pytest.mark.parametrize("shape", [(16, 200, 1032), (70, 136, 72), (129, 72, 2056)])
def test_a_cluster_splits_k(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = normal(5, m, k), normal(6, n, k)
    d = gemm(CONFIGS[name], a, b, 132)
    assert judge(np.ascontiguousarray(d[:-1, :n]), a, b.T).verified
    assert (d[-1] == SENTINEL).all()


def test_a_launch_on_fewer_sms_gives_the_same_bits() -> None:
    a, b = normal(3, 600, 264), normal(4, 520, 264)
    config = replace(Config(), group=2)
    assert np.array_equal(gemm(config, a, b, 132)[:-1], gemm(config, a, b, 2)[:-1])
