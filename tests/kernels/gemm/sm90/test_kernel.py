"""The Hopper GEMM: ptxas on every shipped configuration, the protocol in PTX, plans, the choice of a configuration."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.lang.ops.emission import instructions
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm import Epilogue
from warpwright.kernels.gemm.slices import add_slices
from warpwright.kernels.gemm.sm90 import (
    CONFIGS,
    FACTS,
    FP8_FACTS,
    LEVELS,
    Config,
    choose,
    config_of,
    kernel_of,
    plan_gemm,
    with_registers,
    worthwhile,
)
from warpwright.kernels.gemm.sm90 import plan as sm90_plan
from warpwright.kernels.gemm.sm90.facts import Fact
from warpwright.lang import bf16, e4m3, e5m2, f16, f32, tma
from warpwright.ptx.ptxas import assemble
from warpwright.types import Scalar

SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
BEST = Config()
MAJORS = [("k", "mn"), ("mn", "k"), ("mn", "mn")]
SMEM_LIMIT = 232_448
BATCHED = ["abd", "ad", "bd"]
ALL = Epilogue(scaled=True, bias=bf16, activation="gelu")


def dtype_of(config: Config) -> type[Scalar]:
    """The type of the operands of a configuration."""
    return e4m3 if config.promoted else bf16


def report(config: Config, **keywords: object) -> str:
    """The log of ptxas; an error fails."""
    result = assemble(kernel_of(config).trace(**keywords).ptx, "sm_90a", "-v")
    assert result.errors == {}
    return result.log


def lines_of(config: Config, **keywords: object) -> list[str]:
    return instructions(kernel_of(config).trace(**keywords).ptx)


def assert_clean(log: str) -> None:
    """No local memory; no remark such as C7510 (wgmma serialised) or C7508 (setmaxnreg ignored)."""
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert not re.search(r"C75\d\d|warning", log)


def kernels() -> list[str]:
    """Configurations of one launch."""
    return [name for name, config in SHIPPED.items() if config.slices == 1]


@sampled("name", kernels(), every=3)
def test_no_spills_and_no_serialised_wgmma_in_any_shipped_configuration(name: str) -> None:
    assert_clean(report(SHIPPED[name], dtype=dtype_of(SHIPPED[name])))


@sampled("name", [name for name in kernels() if with_registers(SHIPPED[name]) == SHIPPED[name]], every=7)
def test_no_spills_with_a_whole_epilogue(name: str) -> None:
    assert_clean(report(SHIPPED[name], dtype=dtype_of(SHIPPED[name]), epilogue=ALL))


@pytest.mark.parametrize(
    "epilogue", [Epilogue(scaled=True), Epilogue(bias=f32), Epilogue(activation="relu"), Epilogue(True, f16, "silu")]
)
@sampled("name", ["128x256", "fp8 128x256", "fp8 192x128", "fp8 128x128"], keep=["128x256", "fp8 192x128"])
@sampled("out", [bf16, f32], every=2)
def test_no_spills_with_parts_of_an_epilogue(name: str, epilogue: Epilogue, out: type[Scalar]) -> None:
    assert_clean(report(CONFIGS[name], dtype=dtype_of(CONFIGS[name]), epilogue=epilogue, out=out))


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("name", ["128x256", "128x128", "64x128", "64x64", "64x64 split 2"])
def test_no_spills_in_the_other_layouts(name: str, majors: tuple[str, str]) -> None:
    assert_clean(report(CONFIGS[name], majors=majors))


@pytest.mark.parametrize("batched", BATCHED)
@pytest.mark.parametrize("name", ["level 1", "level 2", "128x256", "128x128 alone", "64x64", "64x64 split 6"])
def test_no_spills_of_batches(name: str, batched: str) -> None:
    assert_clean(report(SHIPPED[name], batched=batched))


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.slices == 2])
def test_no_spills_of_slices(name: str) -> None:
    assert_clean(report(CONFIGS[name], batched="d", out=f32))


@pytest.mark.parametrize("slices", [2, 32])
@pytest.mark.parametrize("out", [bf16, f16, f32])
@pytest.mark.parametrize("epilogue", [Epilogue(), ALL])
def test_no_spills_of_the_sum_of_slices(out: type, slices: int, epilogue: Epilogue) -> None:
    result = assemble(add_slices.trace(slices=slices, out=out, epilogue=epilogue).ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert_clean(result.log)


@pytest.mark.parametrize(("dtype", "out"), [(f16, f16), (bf16, f32), (f16, bf16)])
def test_no_spills_for_other_types(dtype: type, out: type) -> None:
    assert_clean(report(BEST, dtype=dtype, out=out))


@pytest.mark.parametrize(("a", "b"), [(e4m3, e5m2), (e5m2, e4m3), (e5m2, e5m2)])
def test_no_spills_for_mixed_types_of_8_bits(a: type[Scalar], b: type[Scalar]) -> None:
    config = CONFIGS["fp8 128x256"]
    assert_clean(report(config, dtype=a, b_dtype=b))
    wgmmas = [line for line in lines_of(config, dtype=a, b_dtype=b) if line.startswith("wgmma.mma_async")]
    assert len(wgmmas) == 2 * 4 and all(f".m64n128k32.f32.{a.name}.{b.name} " in line for line in wgmmas)


def test_the_report_of_a_kernel_that_is_too_large_is_not_clean() -> None:
    log = assemble(kernel_of(BEST).ptx().replace(".minnctapersm 1", ".maxnreg 128"), "sm_90a", "-v").log
    with pytest.raises(AssertionError):
        assert_clean(log)


@pytest.mark.parametrize("name", kernels())
def test_a_configuration_knows_its_launch(name: str) -> None:
    config = SHIPPED[name]
    traced = kernel_of(config).trace(dtype=dtype_of(config))
    assert traced.smem_bytes == config.smem_bytes <= SMEM_LIMIT
    assert traced.threads == (config.threads, 1, 1)
    assert traced.cluster == (config.cluster, 1, 1)


def test_each_cta_of_a_pair_loads_its_a_and_half_of_b_for_both() -> None:
    lines = lines_of(BEST)
    loads = [line for line in lines if line.startswith("cp.async.bulk.tensor.2d.shared::cluster")]
    assert [".multicast::cluster" in line for line in loads] == [False, True]
    maps = kernel_of(BEST).trace().maps
    assert (maps["a"], maps["b"]) == (tma.MapUse((128, 64), 128, bf16), tma.MapUse((128, 64), 128, bf16))
    assert maps["d"] == tma.MapUse((16, 64), 128, bf16)
    mask = loads[1].rsplit(" ", 1)[1]
    assert f"mov.b16 {mask}, 3" in lines
    assert [line.rsplit(" ", 1)[1] for line in lines if "expect_tx" in line] == ["49152"]


def test_each_warpgroup_of_each_cta_that_reads_a_slot_arrives_at_its_empty_barrier() -> None:
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines_of(BEST) if line.startswith("mbarrier.init")]
    assert counts == [1] * 4 + [2 * 2] * 4
    alone = [int(line.rsplit(" ", 1)[1]) for line in lines_of(CONFIGS["64x128"]) if line.startswith("mbarrier.init")]
    assert alone == [1] * 8 + [1] * 8


def test_no_arrival_in_the_loop_has_cluster_scope() -> None:
    arrivals = [line for line in lines_of(BEST) if "mbarrier.arrive" in line and "expect_tx" not in line]
    assert arrivals and all("mbarrier.arrive.shared::cluster.b64 _" in line for line in arrivals)


def test_four_wgmmas_a_k_block_and_only_the_first_of_a_tile_overwrites() -> None:
    wgmmas = [line for line in lines_of(BEST) if line.startswith("wgmma.mma_async")]
    assert len(wgmmas) == 4
    assert all(".m64n256k16.f32.bf16.bf16 " in line and line.endswith(", 1, 1, 0, 0") for line in wgmmas)
    scales = [line.split("}, ")[1].split(", ")[2] for line in wgmmas]
    assert scales[0].startswith("%p") and scales[1:] == ["1"] * 3


@pytest.mark.parametrize("majors", MAJORS)
def test_wgmmas_of_transposed_operands_have_the_transpose_flags(majors: tuple[str, str]) -> None:
    tail = ", ".join("1" if major == "mn" else "0" for major in majors)
    wgmmas = [line for line in lines_of(BEST, majors=majors) if line.startswith("wgmma.mma_async")]
    assert len(wgmmas) == 4 and all(line.endswith(f", 1, 1, {tail}") for line in wgmmas)


def test_a_kernel_without_an_epilogue_has_no_instruction_for_one() -> None:
    text = kernel_of(BEST).ptx()
    assert not any(word in text for word in ("ld.global", "ex2", "rcp", "mul.rn.f32", "fma.rn.f32"))
    assert all(f"[{name}]" not in text for name in ("columns", "bias", "scale_a", "scale_b", "alpha"))


def positions(config: Config, word: str, **keywords: object) -> list[int]:
    """The numbers of the instructions that begin with ``word``."""
    return [i for i, line in enumerate(lines_of(config, **keywords)) if line.startswith(word)]


@pytest.mark.parametrize(("out", "epilogue"), [(bf16, Epilogue()), (f16, Epilogue(bias=bf16, activation="relu"))])
def test_a_delayed_tile_is_stored_between_wgmmas_and_their_wait(out: type, epilogue: Epilogue) -> None:
    config, how = replace(BEST, delayed=True), {"out": out, "epilogue": epilogue}
    stores = positions(config, "cp.async.bulk.tensor.2d.global", **how)
    commits, waits = (positions(config, f"wgmma.{word}_group", **how) for word in ("commit", "wait"))
    assert len(stores) == 2 * len(positions(BEST, "cp.async.bulk.tensor.2d.global"))
    assert commits[0] < stores[0] < stores[3] < waits[0] and stores[4] > waits[-1]


@pytest.mark.parametrize("how", [{"out": f32}, *({"epilogue": Epilogue(activation=word)} for word in ("gelu", "silu"))])
def test_tiles_of_float32_gelu_and_silu_are_stored_at_once(how: dict[str, object]) -> None:
    assert lines_of(replace(BEST, delayed=True), **how) == lines_of(BEST, **how)


def test_the_first_loads_of_an_early_ring_come_before_the_cluster_barrier_and_without_multicast() -> None:
    config = replace(BEST, early=True)
    loads = positions(config, "cp.async.bulk.tensor.2d.shared::cluster")
    (arrive,) = positions(config, "barrier.cluster.arrive")
    lines = lines_of(config)
    early = [lines[i] for i in loads if i < arrive]
    assert len(early) == 1 + 2 and not any(".multicast" in line for line in early)  # A, and both halves of B
    assert [".multicast" in lines[i] for i in loads if i > arrive] == [False, True]
    assert kernel_of(config).trace().maps == kernel_of(BEST).trace().maps


def test_a_stage_of_16_rows_holds_no_more_of_a() -> None:
    config = CONFIGS["64x64 stream rotated, 16 rows"]
    assert kernel_of(config).trace().maps["a"] == tma.MapUse((16, 64), 128, bf16)
    assert [line.rsplit(" ", 1)[1] for line in lines_of(config) if "expect_tx" in line] == [str((16 + 64) * 256)]
    assert not worthwhile(config, 17, 8192, sms=132) and worthwhile(config, 16, 8192, sms=132)
    for name in ("64x64 stream rotated, 16 rows", "fp8 64x128 stream, 16 rows"):
        assert choose(16, 8192, 8192, 1 if "fp8" in name else 2) is CONFIGS[name]
        assert not choose(17, 8192, 8192, 1 if "fp8" in name else 2).rows
    assert not choose(16, 8192, 8192, majors=("mn", "k")).rows


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.startswith("fp8")])
def test_every_fp8_partial_sum_starts_at_zero(name: str) -> None:
    """128 of K: four wgmmas of 32, of which the first overwrites."""
    wgmmas = [line for line in lines_of(CONFIGS[name], dtype=e4m3) if line.startswith("wgmma.mma_async")]
    scales = [line.split("}, ")[1].split(", ")[2] for line in wgmmas]
    assert scales == ["0", "1", "1", "1"] * (len(scales) // 4)


def test_float32_output_does_not_use_stmatrix() -> None:
    assert not any(line.startswith("stmatrix") for line in lines_of(BEST, out=f32))
    assert sum(line.startswith("stmatrix") for line in lines_of(BEST)) == 16


@pytest.mark.parametrize(("batched", "ranks"), [("", "222"), ("abd", "333"), ("ad", "323"), ("bd", "233")])
def test_only_a_batch_has_a_third_coordinate(batched: str, ranks: str) -> None:
    lines = [line for line in lines_of(BEST, batched=batched) if line.startswith("cp.async.bulk.tensor")]
    assert [line.split(".")[4][0] for line in lines[:3]] == list(ranks)
    used = [kernel.box for kernel in kernel_of(BEST).trace(batched=batched).maps.values()]
    assert [len(box) for box in used] == [int(rank) for rank in ranks]


def test_a_gemm_without_a_batch_has_no_division_for_batches() -> None:
    plain = lines_of(BEST)
    assert (
        sum(line.startswith("div") for line in plain)
        == sum(line.startswith("div") for line in lines_of(BEST, batched="abd")) - 2
    )


@pytest.mark.parametrize(("tile_n", "out", "waits"), [(64, bf16, [0]), (128, bf16, [1, 1]), (64, f32, [1, 1])])
def test_a_block_of_the_epilogue_is_not_overwritten_before_tma_has_read_it(
    tile_n: int, out: type, waits: list[int]
) -> None:
    """A warp has two blocks; a strip of one block starts with the block of the strip before."""
    lines = lines_of(Config((64, tile_n), consumers=1, share=(1, 1)), out=out)
    found = [int(line.split()[-1]) for line in lines if "wait_group.read" in line]
    assert found == [*waits, 0]


def test_each_cta_of_a_cluster_adds_up_its_strips() -> None:
    """A tile of 64 rows has four strips; CTAs beyond the fourth own none."""
    for split, owned in ((2, 2), (3, 2), (4, 1), (6, 1)):
        config = Config((64, 64), depth=2, stages=4, consumers=1, share=(1, 1), split=split, persistent=False)
        kernel = kernel_of(config).trace()
        assert kernel.smem_bytes == config.smem_bytes == 1024 + 4 * 32768 + owned * (4096 + (split - 1) * 4096)


def test_streamed_operands_are_loaded_to_be_evicted_first() -> None:
    loads = [line for line in lines_of(CONFIGS["64x128 stream"]) if "::bytes" in line and "cp.async" in line]
    assert [".L2::cache_hint" in line for line in loads] == [False, True]


@pytest.mark.parametrize(
    ("config", "shape", "grid", "tiles"),
    [
        (BEST, (4096, 4096, 4096), 128, (32, 16, 64)),
        (BEST, (12288, 12288, 4096), 132, (96, 48, 64)),
        (BEST, (129, 1, 8), 2, (2, 1, 1)),
        (BEST, (1, 257, 72), 4, (1, 2, 2)),
        (LEVELS[4], (4096, 4096, 4096), 512, (32, 16, 64)),
        (LEVELS[2], (129, 129, 64), 4, (2, 2, 1)),
        (CONFIGS["64x64"], (64, 7168, 4096), 112, (1, 112, 32)),
        (CONFIGS["64x64 split 4"], (65, 1024, 4096), 128, (2, 16, 32)),
    ],
)
def test_plan(config: Config, shape: tuple[int, int, int], grid: int, tiles: tuple[int, int, int]) -> None:
    plan = plan_gemm(config, *shape, sms=132)
    assert (plan.grid, plan.tiles) == ((grid, 1, 1), (*tiles, 1))
    assert plan.pitch == -(-shape[1] // 8) * 8


def test_a_plan_for_8_bits_counts_128_columns_a_row() -> None:
    plan = plan_gemm(CONFIGS["fp8 128x128"], 300, 300, 528, sms=132, in_bytes=1)
    assert plan.tiles == (3, 3, 3, 1)
    assert plan.scalars == (3, 3, 3, 1, 0, 0, 0, 0, 1.0)
    assert plan.arguments(300, 4096, 8192, 0, 0.5) == (3, 3, 3, 1, 300, 4096, 8192, 0, 0.5)
    with pytest.raises(UsageError) as caught:
        plan_gemm(CONFIGS["fp8 128x128"], 300, 300, 520, sms=132, in_bytes=1)
    assert str(caught.value) == (
        "given K=520 along the rows of A in memory; expected a multiple of 16 (16 bytes); pad A with zeros to K=528"
    )


@pytest.mark.parametrize(
    ("config", "batches", "shape", "grid"),
    [
        (BEST, 16, (1024, 1024, 64), 128),
        (BEST, 3, (129, 257, 64), 12),
        (CONFIGS["64x64"], 256, (64, 64, 64), 128),
        (CONFIGS["64x64 a CTA a tile"], 256, (64, 64, 64), 256),
        (CONFIGS["64x64 split 4"], 3, (65, 64, 4096), 24),
    ],
)
def test_plan_of_a_batch(config: Config, batches: int, shape: tuple[int, int, int], grid: int) -> None:
    plan = plan_gemm(config, *shape, sms=132, batches=batches)
    assert (plan.grid, plan.tiles[3]) == ((grid, 1, 1), batches)


def test_slices_are_worth_measuring_where_tiles_are_few() -> None:
    config = CONFIGS["64x64 stream, 8 slices"]
    assert worthwhile(config, 256, 512, sms=132) and not worthwhile(config, 512, 512, sms=132)
    assert worthwhile(BEST, 16384, 16384, sms=132)


def test_pitch_of_float32() -> None:
    assert plan_gemm(BEST, 8, 5, 8, sms=132, out_bytes=4).pitch == 8
    assert plan_gemm(BEST, 8, 5, 8, sms=132, out_bytes=2).pitch == 8
    assert plan_gemm(BEST, 8, 4, 8, sms=132, out_bytes=4).pitch == 4


@pytest.mark.parametrize(
    ("shape", "majors", "expected"),
    [
        (
            (0, 8, 8),
            ("k", "k"),
            "given M=0, N=8, K=8; expected each at least 1; an empty GEMM needs no kernel",
        ),
        (
            (8, 8, 12),
            ("k", "k"),
            "given K=12 along the rows of A in memory; expected a multiple of 8 (16 bytes); pad A with zeros to K=16",
        ),
        (
            (8, 9, 8),
            ("k", "mn"),
            "given N=9 along the rows of B in memory; expected a multiple of 8 (16 bytes); pad B with zeros to N=16",
        ),
    ],
)
def test_plan_refuses(shape: tuple[int, int, int], majors: tuple[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_gemm(BEST, *shape, sms=132, majors=majors)
    assert str(caught.value) == expected


def test_levels() -> None:
    assert config_of(8) == LEVELS[8]
    assert len({config.summary for config in LEVELS.values()}) == len(LEVELS) == 8
    with pytest.raises(UsageError) as caught:
        config_of(9)
    assert str(caught.value) == "given level 9; expected one of 1, 2, 3, 4, 5, 6, 7, 8; choose an existing level"


def test_a_measured_problem_gets_its_fastest_configuration() -> None:
    for facts, in_bytes in ((FACTS, 2), (FP8_FACTS, 1)):
        assert len({(fact.m, fact.n, fact.k, fact.batches) for fact in facts}) == len(facts)
        for fact in facts:
            chosen = choose(fact.m, fact.n, fact.k, in_bytes, batches=fact.batches)
            assert chosen is CONFIGS[fact.config]
            assert bool(chosen.promoted) == (in_bytes == 1)


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((1, 8192, 8192), "64x64 stream rotated, 16 rows"),
        ((17, 8192, 8192), "64x128 stream rotated"),
        ((64, 7000, 4000), "64x64 stream"),
        ((1, 1, 1), "64x64"),
        ((100, 100, 50000), "64x64 stream, 32 slices"),
        ((4200, 4000, 4096), "128x256 two widths"),
    ],
)
def test_few_rows_and_near_problems_get_the_configuration_of_the_nearest_fact(
    shape: tuple[int, int, int], config: str
) -> None:
    assert choose(*shape) is CONFIGS[config]


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((3072, 3072, 3072), "128x192"),  # three rounds of three quarters, not three of 128 x 256
        ((1024, 6144, 4096), "128x192"),
        ((10496, 384, 9600), "128x128"),
        ((7548, 7080, 2248), "128x256 pair two widths"),  # rows of 4,496 bytes: multicast saves L2's bandwidth
        ((1288, 384, 4672), "64x64"),
        ((20000, 30000, 9000), "128x256 pair two widths"),
        ((1424, 328, 15472), "128x128 stream, 3 slices"),
        ((9088, 768, 1600), "128x256 pair two widths"),
        ((4096, 4096, 4072), "128x256 pair two widths"),  # rows of 8,144 bytes; there is a fact of 4096
    ],
)
def test_other_problems_get_the_fastest_by_the_estimate(shape: tuple[int, int, int], config: str) -> None:
    assert choose(*shape) is CONFIGS[config]


def test_a_configuration_without_scratch_memory_has_no_slices() -> None:
    assert choose(1424, 328, 15472, slices=False).slices == choose(100, 100, 50000, slices=False).slices == 1


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("shape", [(1024, 6144, 4096), (2432, 1280, 1408), (411, 3072, 13440), (8192, 8192, 8192)])
def test_the_chosen_configuration_has_a_kernel_for_every_layout(
    shape: tuple[int, int, int], majors: tuple[str, str]
) -> None:
    """A part of 96 rows of a shared operand is no whole panel of 64 where rows are dense in memory."""
    config = choose(*shape, majors=majors)
    assert kernel_of(config).trace(majors=majors, batched="d" if config.slices > 1 else "").ptx


def test_a_fact_decides_only_where_its_configuration_can_share_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of 128 x 192 halves B by 96 rows, which are no whole panels of 64 where rows are dense in memory."""
    facts = Fact(8192, 8192, 8192, "128x192", 1700.0, 1.05), Fact(8192, 8192, 8192, "128x256", 1700.0, 1.03)
    monkeypatch.setattr(sm90_plan, "FACTS", facts)
    assert choose(8192, 8192, 8192) is CONFIGS["128x192"]
    assert choose(8192, 8192, 8192, majors=("k", "mn")) is CONFIGS["128x256"]


def test_fewer_sms_take_more_rounds() -> None:
    assert choose(1000, 3000, 2000) is not choose(1000, 3000, 2000, sms=78)
