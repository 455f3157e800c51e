"""The micro-benchmarks on the virtual H200, everything once and tiny; every kernel of theirs is accepted by ptxas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import FORMULAS, derive, lines
from micro import PARTS, line
from probes import among
from probes.harness import Bench, Measurement, ModelBench, each, summarise

from tests.samples import sampled
from warpwright import targets
from warpwright.lang import Traced
from warpwright.ptx.ptxas import assemble, find_ptxas

STORED = Path(__file__).parents[2] / "bench" / "measured" / "h200_micro.json"


class Recording(Bench):
    """A virtual H200 that remembers a text of every kernel."""

    def __init__(self) -> None:
        super().__init__("h200", small=True)
        self.texts: dict[str, str] = {}

    def prepare(self, kernel: Any, grid: int, args: Any, *, aside: bool = False) -> Any:
        traced = kernel if isinstance(kernel, Traced) else kernel.trace()
        self.texts[traced.entry] = traced.ptx
        return super().prepare(kernel, grid, args, aside=aside)


@sampled("part", PARTS, keep=["sync", "clocks", "mma", "traffic"])
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
    found = summarise("x", [10.0, 12.0, 11.0], "cycles", "three times")
    assert found == Measurement("x", 11.0, "cycles", 0.0909, "three times")
    assert line(found).split() == ["x", "11", "cycles", "±", "9.1", "%", "three", "times"]


def test_no_rate_where_no_time_passed() -> None:
    assert each(64, [2.0, 0.0]) == [32.0, 0.0]


def test_a_slope_is_the_cost_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("h200", small=True)
    spans = {1: 130.0, 2: 160.0}  # 100 cycles around the loop, 30 a round
    monkeypatch.setattr(bench, "spans", lambda kernel, grid, args, cold: np.full((1, 3), spans[args[0]]))
    assert bench.slope(None, per=10) == [3.0]


def test_the_timing_model_answers_probes() -> None:
    bench = ModelBench("h200")
    (cycles,) = bench.slope(among.chain, [0x3F800001, 0, bench.array((1024,), "u32")], per=among.LINKS)
    assert cycles == pytest.approx(targets.timing_of("h200").latency["mma"], abs=0.5)


def test_the_timing_model_says_how_long_roles_take() -> None:
    bench, sink = ModelBench("h200"), ModelBench("h200").array((1024,), "u32")
    roles = {"multiply": range(4), "calculate": range(4, 8)}
    short, long = (bench.by_role(among.split, [n, 8, 0x3F800001, sink], roles) for n in (8, 16))
    (few,), (many,) = short["multiply"], long["multiply"]
    assert many - few == pytest.approx(8 * among.GROUP * targets.timing_of("h200").slots["mma"], rel=0.1)
    assert short["calculate"][0] == pytest.approx(long["calculate"][0], rel=0.1)


def results() -> dict[str, float]:
    return {row["name"]: row["value"] for row in json.loads(STORED.read_text(encoding="utf-8"))["results"]}


@pytest.mark.parametrize("constant", FORMULAS)
def test_a_constant_of_the_h200_is_what_was_measured(constant: str) -> None:
    timing = targets.timing_of("h200")
    assert timing.source[constant].startswith("measured: bench/micro.py")
    assert getattr(timing, constant) == pytest.approx(derive(results())[constant], rel=0.15)


def test_the_constants_are_printed_with_their_units() -> None:
    (text,) = lines({"launch.plain": 3.6, "launch.plain.inside": 0.3})
    assert text == "launch_us              3.3  (now 3.3)  microseconds of an empty kernel among others in a stream"
