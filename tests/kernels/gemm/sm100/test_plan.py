"""Launch plans as data: every tile once, the kernel's boxes, refused sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm100 import LEVELS, SMALLER, config_for, config_of, kernel_of, plan_gemm
from warpwright.lang import bf16, f32
from warpwright.ptx.ptxas import assemble

FIRST = (1, 2, 3, 4)  # a cluster for each tile
sizes = st.integers(1, 20_000)


@given(
    level=st.sampled_from(FIRST),
    m=sizes,
    n=sizes,
    k=sizes.map(lambda k: 8 * k),
    out_bytes=st.sampled_from([2, 4]),
)
def test_the_grid_covers_d_once_and_the_loop_covers_k(level, m, n, k, out_bytes) -> None:
    found = plan_gemm(LEVELS[level], m, n, k, out_bytes=out_bytes)
    rows, columns, pitch, tiles_n, tiles_k = found.scalars
    tiles_m, rest = divmod(found.grid[0], 2 * tiles_n)
    assert (rows, columns, rest, found.grid[1:]) == (m, n, 0, (1, 1))
    assert 128 * (tiles_m - 1) < m <= 128 * tiles_m
    assert 128 * (tiles_n - 1) < n <= 128 * tiles_n
    assert 64 * (tiles_k - 1) < k <= 64 * tiles_k
    assert pitch == found.pitch and n <= pitch < n + 16 // out_bytes and pitch * out_bytes % 16 == 0


@pytest.mark.parametrize("level", FIRST)
def test_plan_and_kernel_agree(level) -> None:
    config = config_of(level)
    found, traced = plan_gemm(config, 300, 200, 72), kernel_of(config).trace()
    assert found.block == traced.threads
    assert found.cluster == traced.cluster
    assert found.smem == traced.smem_bytes
    assert (found.a_box, found.swizzle) == (traced.maps["a"].box, traced.maps["a"].swizzle)
    assert (found.b_box, found.swizzle) == (traced.maps["b"].box, traced.maps["b"].swizzle)
    assert [name for name, _ in traced.params] == ["a", "b", "d", "m", "n", "pitch", "tiles_n", "tiles_k"]
    assert found.scalars == (300, 200, 200, 2, 2)


@pytest.mark.parametrize(
    ("level", "shape", "sms", "clusters"),
    [
        (5, (4096, 4096), 148, 74),
        (7, (4096, 4096), 148, 74),
        (7, (4096, 4096), 7, 3),
        (7, (512, 128), 148, 1),  # one area: two tiles
        (7, (1, 1), 148, 1),  # one tile: the published grid is 1 // 2 * 2 = 0
        (7, (513, 128), 148, 2),  # three blocks of rows
        (9, (1, 1), 1, 1),  # no pair fits; the launch is refused, not the plan
        (10, (8192, 8192), 152, 76),
    ],
)
def test_persistent_clusters_are_as_many_as_fit_and_no_more_than_areas(level, shape, sms, clusters) -> None:
    assert plan_gemm(LEVELS[level], *shape, 64, sms=sms).grid == (2 * clusters, 1, 1)


def test_launch_control_has_a_cluster_for_each_area() -> None:
    assert plan_gemm(replace(LEVELS[10], scheduler="clc"), 4096, 4096, 64).grid == (2 * 128, 1, 1)
    four = replace(LEVELS[10], share=(2, 1))
    assert [plan_gemm(four, 8192, 8192, 64, clusters=fit).grid[0] for fit in (None, 34)] == [148, 136]


def test_the_kernel_of_a_level_is_cached() -> None:
    assert kernel_of(config_of(3)) is kernel_of(config_of(3))


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        ((0, 8, 8), "given M=0, N=8, K=8; expected each at least 1; an empty GEMM needs no kernel"),
        ((8, 8, -8), "given M=8, N=8, K=-8; expected each at least 1; an empty GEMM needs no kernel"),
        ((8, 8, 12), "given K=12; expected a multiple of 8 (rows of 16 bytes); pad A and B with zeros to K=16"),
        (
            (1 << 22, 1 << 24, 8),
            "given D of 4194304 × 16777216, 4294967296 tiles; expected at most 1073741823; split the GEMM along M or N",
        ),
    ],
)
def test_refused_problems(problem, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        plan_gemm(LEVELS[1], *problem)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((8192, 8192), (256, 256)),  # 512 areas, seven rounds of 74 pairs
        ((4096, 4096), (256, 256)),
        ((2048, 2048), (128, 256)),  # 64 areas of 256 × 256: one round of half the time
        ((1024, 1024), (128, 64)),
        ((1, 1), (128, 64)),
        ((512, 18944), (256, 256)),  # 74 areas
        ((512, 18945), (128, 256)),
    ],
)
def test_the_best_level_takes_tiles_that_fill_the_chip(shape, tile) -> None:
    assert config_for(10, *shape, sms=148).tile[:2] == tile
    assert config_for(9, *shape, sms=148) is LEVELS[9]


def test_cycles_of_a_k_block() -> None:
    """The tensor core's, except for small tiles: those are bound by shared memory."""
    assert [each.cycles for each in (LEVELS[10], *SMALLER)] == [1024, 512, 384, 320]
    assert [LEVELS[level].cycles for level in (7, 8, 9)] == [704, 384, 1024]


@pytest.mark.parametrize("config", SMALLER)
def test_smaller_tiles_of_the_best_level_fit(config) -> None:
    for out in (bf16, f32):
        traced = kernel_of(config).trace(out=out)
        assert traced.smem_bytes == config.smem_bytes <= 232_448
        result = assemble(traced.ptx, "sm_100a", "-v")
        assert result.errors == {} and "0 bytes stack frame, 0 bytes spill stores" in result.log


def test_unknown_level() -> None:
    with pytest.raises(UsageError) as caught:
        config_of(11)
    assert (
        str(caught.value) == "given level 11; expected one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10; choose an existing level"
    )
