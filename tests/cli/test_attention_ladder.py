"""``warpwright ladder attention``: the steps, their gains, and the published times."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.report.timelines import profile
from warpwright import cuda
from warpwright.cli import attention_ladder, main
from warpwright.kernels.attention.sm120.kernel import kernel_of
from warpwright.kernels.attention.sm120.plan import OVER, STEPS
from warpwright.ops.attention.trials import Trial
from warpwright.report.verdict import Verdict
from warpwright.run import devices

TIMES = {"v3": 1200.0, "rows": 400.0, "helpers": 380.0, "two-ten": 420.0, "fewer-syncs": 320.0, "registers": 160.0}
TIMES |= {"two-ctas": 150.0}


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["ladder", *map(str, words)])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The problems that are predicted; each step takes the time of `TIMES`, for each thousand queries."""
    asked: list[Any] = []

    def predict(device: Any, problem: Any, fast: bool, step: str) -> tuple[Any, None]:
        asked.append((device.name, problem, fast))
        return replace(profile(), time_us=TIMES[step] * problem.q_len / 1000, ctas_per_sm=2), None

    monkeypatch.setattr(attention_ladder, "attention_profile", predict)
    return asked


def test_each_step_has_its_gain_over_the_step_that_it_changes(engine: list[Any]) -> None:
    rows = json.loads(run("attention", "--json").stdout)
    assert [row["step"] for row in rows] == list(STEPS) and len(engine) == len(STEPS)
    name, problem, fast = engine[0]
    extents = (problem.batch, problem.heads, problem.q_len, problem.kv_len, problem.head_dim, problem.causal)
    assert (name, fast, *extents) == ("rtx5090", True, 1, 32, 1024, 1024, 128, False)
    for row in rows[1:]:
        assert row["gain"] == pytest.approx(TIMES[OVER[row["step"]]] / TIMES[row["step"]])
    facts = [(row["expected"], row["barriers"], row["smem_bytes"], row["threads"]) for row in rows]
    assert facts[0] == ("", 6, 99_328, 384) and facts[4] == ("1.2–1.5×", 3, 99_328, 384)
    assert facts[-1] == ("", 0, 50_176, 160)
    assert rows[0]["tflops"] == pytest.approx(4 * 32 * 1024**2 * 128 / rows[0]["time_us"] / 1e6)
    assert rows[0]["of_peak"] == pytest.approx(rows[0]["tflops"] / 209.5)


def test_the_published_times_stand_beside_v3_with_a_warning(engine: list[Any]) -> None:
    words = ("attention", "--steps", "v3,rows", "--size", "512,1024,2048,4096")
    rows = json.loads(run(*words, "--json").stdout)
    assert [row["published_us"].get("TMA") for row in rows] == [6611, None, 25845, None, 99221, None, 387519, None]
    text = " ".join(run(*words).stdout.split())
    assert "v3 beside the published times. TFLOPS count all of S²; published: all of S²" in text
    assert "All three published columns are one kernel, FA2, and none is v3: the switch of the script had no" in text
    for each in ("0.65", "0.66", "0.69", "0.71"):  # as published
        assert each in text


def test_the_layouts_before_v3_are_named(engine: list[Any]) -> None:
    text = run("attention", "--steps", "v3").stdout
    assert "  v1: published before v3, 205,824 bytes of shared memory; does not fit: rtx5090 has 101,376\n" in text
    text = run("attention", "--steps", "v3", "--device", "h200").stdout
    assert "  v2: published before v3, 164,864 bytes of shared memory; fits: h200 has 232,448\n" in text


def test_every_title_says_which_pairs_count(engine: list[Any]) -> None:
    text = " ".join(run("attention", "--causal", "--size", 512).stdout.split())
    assert "causal; virtual rtx5090, predicted; TFLOPS count the visible 50 % of S²" in text
    assert "v3 beside the published times. TFLOPS count the visible 50 % of S²; published: all of S²" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit(engine: list[Any], monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    monkeypatch.setattr(attention_ladder, "show", lambda *parts: [console.print(part) for part in parts])
    assert run("attention", "--size", 4096).exit_code == 0
    text = console.export_text()
    assert "…" not in text
    assert "waits ab.full 78 %" in text


def test_a_step_is_really_predicted() -> None:
    (row,) = json.loads(run("attention", "--steps", "two-ctas", "--size", 64, "--json").stdout)
    assert 3 < row["time_us"] < 12 and row["ctas_per_sm"] == 2 and row["stall"].startswith("compute waits ")
    assert row["gain"] is None and row["published_us"] == {}


@pytest.mark.parametrize(("step", "barriers"), [("v3", 6), ("fewer-syncs", 3), ("registers", 0)])
def test_barriers_of_a_block(step: str, barriers: int) -> None:
    assert attention_ladder.barriers_of(kernel_of(STEPS[step]).trace().ptx) == barriers


@pytest.mark.parametrize("right", [True, False])
def test_a_real_gpu_measures_and_verifies(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    asked: list[Any] = []

    def measure(device: Any, problem: Any, given: Any, plans: Any, rounds: int, describe: Any) -> list[Trial]:
        asked.append((rounds, list(plans), plans["rows"].launches[0].kernel.arch))
        verdict = Verdict(0.01, 0.001, 1.0, 1.0, right)
        times = {name: SimpleNamespace(median=TIMES[name] * 1e-6) for name in plans}
        return [Trial(name, True, times[name], verdict) for name in plans] + [
            Trial("cudnn", False, times["v3"], verdict)
        ]

    monkeypatch.setattr(attention_ladder.trials, "measure", measure)
    gpu = object.__new__(cuda.Device)
    gpu.ordinal, gpu.spec = 0, devices.device("h200").spec
    monkeypatch.setattr(attention_ladder.devices, "device", lambda name: gpu)
    result = run("attention", "--steps", "v3,rows", "--size", 512, "--device", "cuda", "--rounds", 7)
    assert asked == [(7, ["v3", "rows"], "sm_90a")]
    assert result.exit_code == (0 if right else 1)
    text = " ".join(result.stdout.split())
    assert "h200, measured; TFLOPS count all of S²" in text
    assert "longest stall" not in text and "published times" not in text
    assert f"rows 400 10.7 1.1 % v3 3.00× 8–32× {'yes' if right else 'no'}" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("attention", "--steps", "v3,v4"),
            "given --steps v3,v4; expected some of v3,rows,helpers,two-ten,fewer-syncs,registers,two-ctas; choose "
            "existing steps",
        ),
        (("attention", "--size", "0"), "given --size 0; expected a length or a list of lengths, such as 512,1024"),
        (("attention", "--size", "a"), "given --size a; expected a length or a list of lengths, such as 512,1024"),
        (
            ("--size", "512", "attention"),
            "given --size 512 before attention; write the options after it: ladder attention …",
        ),
    ],
)
def test_mistakes_are_one_line_and_status_2(words: tuple[str, ...], sentence: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stderr) == (2, f"warpwright: error: {sentence}\n")
