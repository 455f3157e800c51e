"""The mma.sync GEMM: ptxas on every shipped configuration, its launch, the choice of a configuration."""

from __future__ import annotations

import re
from itertools import product
from typing import NamedTuple

import pytest

from tests.lang.ops.emission import instructions
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm import Epilogue
from warpwright.kernels.gemm.sm120 import CONFIGS, LEVELS, Config, choose, config_of, kernel_of
from warpwright.lang import bf16, e4m3, e5m2, f16, f32
from warpwright.ptx.ptxas import assemble
from warpwright.targets import ARCHS

SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
WHOLE = [name for name, config in SHIPPED.items() if config.slices == 1]
ALL = Epilogue(scaled=True, bias=bf16, activation="gelu")
CONSUMER = ARCHS["sm_120a"]


def assert_clean(config: Config, arch: str = "sm_120a", **keywords: object) -> None:
    """ptxas accepts the kernel, and no register is spilled."""
    result = assemble(kernel_of(config).trace(arch, **keywords).ptx, arch, "-v")
    assert result.errors == {}
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log


@sampled(("name", "arch"), list(product(WHOLE, ("sm_120a", "sm_90a"))), every=3)
def test_no_spills_in_any_shipped_configuration(name: str, arch: str) -> None:
    assert_clean(SHIPPED[name], arch, epilogue=ALL)


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
def test_no_spills_in_the_other_layouts(majors: tuple[str, str]) -> None:
    assert_clean(CONFIGS["128x128"], majors=majors)


@pytest.mark.parametrize(("dtype", "b_dtype", "out"), [(f16, f16, f32), (e4m3, e5m2, bf16), (e5m2, e5m2, f16)])
def test_no_spills_for_other_types(dtype: type, b_dtype: type, out: type) -> None:
    assert_clean(CONFIGS["160x128"], dtype=dtype, b_dtype=b_dtype, out=out, batched="abd")


@pytest.mark.parametrize("name", WHOLE)
def test_a_configuration_knows_its_launch(name: str) -> None:
    config = SHIPPED[name]
    traced = kernel_of(config).trace()
    assert traced.smem_bytes == config.smem_bytes
    assert config.ctas <= CONSUMER.fitting_ctas(config.threads, config.smem_bytes + CONSUMER.smem_reserved_per_block)
    assert traced.threads == (config.threads, 1, 1)


@pytest.mark.parametrize("name", WHOLE)
def test_each_warp_multiplies_its_part_of_the_tile(name: str) -> None:
    config = SHIPPED[name]
    (rows, columns), (down, across) = config.tile, config.warps
    lines = instructions(kernel_of(config).ptx())
    multiplied = [line for line in lines if line.startswith("mma.sync.aligned.m16n8k16")]
    assert len(multiplied) == rows // down // 16 * (columns // across // 8) * 4


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        config_of(9)
    assert str(caught.value) == "given level 9; expected one of 1, 2, 3, 4, 5, 6, 7, 8; choose an existing level"


class Measured(NamedTuple):
    m: int
    n: int
    k: int
    config: str


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 4096, 4096), "160x128"),
        ((16, 32768, 1024), "16x128"),
        ((16, 128, 16384), "32x64"),
        ((1024, 1024, 1024), "64x128"),
    ],
)
def test_the_estimate_chooses_the_tile(shape: tuple[int, int, int], expected: str) -> None:
    assert choose(*shape).tile == CONFIGS[expected].tile


def test_few_tiles_and_a_long_k_are_cut_into_slices() -> None:
    assert choose(16, 128, 16384).slices > 1
    assert choose(16, 128, 16384, slices=False).slices == 1
    assert choose(4096, 4096, 4096).slices == 1


def test_a_measurement_decides_for_its_problem_and_near_ones() -> None:
    tuned = [Measured(4096, 4096, 4096, "64x64"), Measured(64, 64, 64, "no such")]
    assert choose(4096, 4096, 4096, tuned=tuned) == choose(4000, 4100, 4096, tuned=tuned) == CONFIGS["64x64"]
    assert choose(8192, 4096, 4096, tuned=tuned) != CONFIGS["64x64"]
    assert choose(4096, 4096, 4096, tuned=tuned, batches=2) != CONFIGS["64x64"]


def test_a_tile_of_160_rows_has_no_panels_of_64() -> None:
    assert choose(4096, 4096, 4096, majors=("mn", "k")).tile[0] % 64 == 0


@pytest.mark.parametrize(
    ("level", "arch", "ctas"),
    [(1, "sm_120a", 2), (2, "sm_120a", None), (4, "sm_120a", None), (4, "sm_90a", 2), (5, "sm_90a", None)],
)
def test_one_tile_a_cta_leaves_registers_for_two_where_shared_memory_does(
    level: int, arch: str, ctas: int | None
) -> None:
    text = kernel_of(LEVELS[level], arch).trace(arch).ptx
    assert re.findall(r"\.minnctapersm (\d+)", text) == ([str(ctas)] if ctas else [])
    assert "0 bytes spill stores, 0 bytes spill loads" in assemble(text, arch, "-v").log
