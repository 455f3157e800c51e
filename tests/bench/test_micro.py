"""The micro-benchmarks on the virtual H200, everything once and tiny; every kernel of theirs is accepted by ptxas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from micro import PARTS, line
from probes.harness import Bench, Measured, each, measured

from warpwright import targets
from warpwright.assemble import assemble, find_ptxas
from warpwright.lang import Traced

STORED = Path(__file__).parents[2] / "bench" / "measured" / "h200_micro.json"


class Recording(Bench):
    """A virtual H200 that remembers a text of every kernel."""

    def __init__(self) -> None:
        super().__init__("h200", small=True)
        self.texts: dict[str, str] = {}

    def prepared(self, kernel: Any, grid: int, args: Any) -> Any:
        traced = kernel if isinstance(kernel, Traced) else kernel.trace()
        self.texts[traced.entry] = traced.ptx
        return super().prepared(kernel, grid, args)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_and_its_kernels_assemble(part: str) -> None:
    bench = Recording()
    found = list(PARTS[part](bench))
    assert found and bench.texts
    assert len({each.name for each in found}) == len(found)
    for result in found:
        assert math.isfinite(result.value) and result.unit and result.how, result
    if find_ptxas() is not None:
        refused = {entry: made.log for entry, text in bench.texts.items() if not (made := assemble(text, "sm_90a")).ok}
        assert refused == {}


def test_a_result_is_the_median_with_half_of_the_range() -> None:
    found = measured("x", [10.0, 12.0, 11.0], "cycles", "three times")
    assert found == Measured("x", 11.0, "cycles", 0.0909, "three times")
    assert line(found).split() == ["x", "11", "cycles", "±", "9.1", "%", "three", "times"]


def test_no_rate_where_no_time_passed() -> None:
    assert each(64, [2.0, 0.0]) == [32.0, 0.0]


def test_a_slope_is_the_cost_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("h200", small=True)
    spans = {1: 130.0, 2: 160.0}  # 100 cycles around the loop, 30 a round
    monkeypatch.setattr(bench, "spans", lambda kernel, grid, args, cold: np.full((1, 3), spans[args[0]]))
    assert bench.slope(None, per=10) == [3.0]


def results() -> dict[str, float]:
    return {row["name"]: row["value"] for row in json.loads(STORED.read_text(encoding="utf-8"))["results"]}


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("try_wait", lambda of: of["mbarrier.ready"]),
        ("arrive", lambda of: of["mbarrier.signal"] - of["mbarrier.ready"]),
        ("arrive_remote", lambda of: of["mbarrier.remote_signal.cta"] - of["mbarrier.ready"]),
        ("bar", lambda of: of["bar.sync.128"]),
        ("cluster_barrier", lambda of: of["cluster.sync.2x128.relaxed"]),
        ("fence_cluster", lambda of: of["fence.fence_cluster"]),
        ("ld_l2", lambda of: of["global.l2.latency"] - 8),
        ("ld_hbm", lambda of: of["global.hbm.latency"] - 8),
        ("shared_latency", lambda of: of["shared.load.latency"]),
        ("shared_bytes", lambda of: 512 / of["shared.load.quad.16_warps"]),
        ("dsmem_latency", lambda of: of["dsmem.neighbour.latency"]),
        ("sm_bytes", lambda of: of["tma.load.l2.16384x4.1_sms"]),
        ("l2_bytes", lambda of: 132 * of["tma.load.l2.32768x4.132_sms"]),
        ("hbm_share", lambda of: of["hbm.read"] / 4800),
        ("hbm_mixed_share", lambda of: of["hbm.copy"] / 4800),
        ("mma_flops", lambda of: 4 * 2 * 64 * 256 * 16 / of["wgmma.n256.shared.2_groups"] / 4),
        ("mma_least", lambda of: of["wgmma.n8.shared.1_groups"]),
        ("cta_start", lambda of: of["launch.smem.wave"] * 1980 - 4000),
        ("launch_us", lambda of: of["launch.plain"] - of["launch.plain.inside"]),
        ("tensor_mhz", lambda of: of["clock.zeros.rounds_256.30_ms"]),
        ("idle_watts", lambda of: of["power.idle.watts"]),
    ],
)
def test_a_constant_of_the_h200_is_what_was_measured(constant: str, expected: Any) -> None:
    timing = targets.timing_of("h200")
    assert timing.source[constant].startswith("measured: bench/micro.py")
    assert getattr(timing, constant) == pytest.approx(expected(results()), rel=0.08)
