"""``warpwright ladder``, ``warpwright tune`` and ``warpwright bench`` on a real GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import warpwright as ww
from warpwright.cli import main
from warpwright.kernels.attention.sm120.plan import STEPS
from warpwright.kernels.gemm import sm90
from warpwright.ops.matmul import measurements, plan
from warpwright.ops.memo import MEMO


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fresh() -> None:
        measurements.choices.cache_clear()
        plan.choose.cache_clear()
        MEMO.clear()

    monkeypatch.setenv("WARPWRIGHT_CONFIG", str(tmp_path))
    fresh()
    yield
    fresh()


def rows_of(*words: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_ladder_is_measured_beside_cublas() -> None:
    rows = rows_of("ladder", "--device", "cuda", "--size", 1024, "--rounds", 10)
    assert [row["level"] for row in rows] == list(sm90.LEVELS)
    assert all(row["verified"] and 1 < row["us"] < 1000 and row["torch_tflops"] > 50 for row in rows)
    assert rows[-1]["tflops"] > rows[0]["tflops"]


def test_the_steps_of_the_published_attention_are_measured() -> None:
    rows = rows_of("ladder", "attention", "--device", "cuda", "--size", 256, "--rounds", 5)
    assert [row["step"] for row in rows] == list(STEPS)
    assert all(row["verified"] and 1 < row["time_us"] < 1000 for row in rows)
    assert rows[1]["gain"] > 1.5


@pytest.mark.parametrize("words", [(), ("--causal", "--kv-heads", 2), ("--window", "70,-", "--dtype", "float16")])
def test_attention_is_measured_beside_torchs(words: tuple[object, ...]) -> None:
    rows = rows_of("bench", "attention", "--device", "cuda", "--size", "2x4x640x64", "--rounds", 5, *words)
    names = [row["kernel"].split(" ")[0] for row in rows]
    assert {"sm90.attention", "sm120.attention_cp_async"} <= set(names)
    assert names.count("torch") == (0 if "--window" in words else 2)
    assert all(1 < row["low_us"] <= row["us"] <= row["high_us"] < 1000 for row in rows)
    assert all(row["verified"] and 0 < row["max_err"] < 0.02 for row in rows if row["ours"])
    assert all(row["mean_err"] < 1.1 * rows[0]["mean_err"] for row in rows)


def test_a_product_is_measured_beside_torchs() -> None:
    ours, theirs = rows_of("bench", "gemm", "--size", "1024x512x2048", "--device", "cuda", "--rounds", 5)
    assert ours["verified"] and ours["kernel"].removeprefix("gemm ") in sm90.CONFIGS
    assert theirs["kernel"] == "torch matmul" and 1 < theirs["low_us"] <= theirs["us"] <= theirs["high_us"] < 1000
    assert all(500 < row["clock_mhz"] <= 1.01 * ww.device("cuda").spec.clock_mhz for row in (ours, theirs))


def test_tune_keeps_what_matmul_then_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = (row for row in rows_of("tune", "136x200x1000", "--rounds", 5) if row["kept"])
    assert kept["verified"] and rows_of("tune", "--list")[0]["config"] == kept["config"]
    gpu, (choice,) = ww.device("cuda").spec.name, measurements.choices(ww.device("cuda").spec.name)
    slow = next(name for name in sm90.CONFIGS if name != choice.config and "fp8" not in name)
    measurements.store(gpu, [measurements.Choice(136, 200, 1000, "bfloat16", slow, 1.0, "2026-11-21")])
    used: list[Any] = []
    original = plan.sm90.kernel_of
    monkeypatch.setattr(plan.sm90, "kernel_of", lambda config: used.append(config) or original(config))
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((136, 1000), (1000, 200)))
    error = (ww.matmul(a, b).double() - a.double() @ b.double()).abs().max()
    assert error < 0.5 and used == [sm90.CONFIGS[slow]]
