"""``warpwright bench``: tables of predictions and measurements, exit status, one-line errors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from warpwright import cuda
from warpwright.cli import bench, main
from warpwright.cli.problems import parse_heads
from warpwright.kernels.attention import Problem
from warpwright.kernels.gemm import sm90
from warpwright.ops.attention import trials as attention_trials
from warpwright.ops.attention.plan import SETTING
from warpwright.ops.attention.trials import Trial
from warpwright.ops.matmul import measurements, trials
from warpwright.ops.matmul.trials import Trials
from warpwright.report.verdict import Verdict
from warpwright.targets import DEVICES


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["bench", *(str(word) for word in words)])


class Measured:
    """Stands for `attention_trials.measure`: our kernel is ``right`` and takes 2 µs; that of torch is wrong and takes 3
    µs."""

    def __init__(self) -> None:
        self.right, self.asked = True, []

    def __call__(self, device: Any, problem: Problem, given: Any, *, rounds: int, describe: Any) -> list[Trial]:
        describe("one thing")
        self.asked.append((problem, [x.shape for x in given], rounds))
        mine, theirs = Verdict(0.001, 0.0001, 1.0, 0.5, self.right), Verdict(0.002, 0.0002, 1.0, 0.5, False)
        return [
            Trial("sm90.attention 128 × 128", True, cuda.Times(2e-6, 1.9e-6, 2.2e-6, 1699.7), mine),
            Trial("torch cudnn", False, cuda.Times(3e-6, 2.9e-6, 3.5e-6, 1650.2), theirs),
        ]


@pytest.fixture
def measured(monkeypatch) -> Measured:
    made, gpu = Measured(), object.__new__(cuda.Device)
    gpu.ordinal, gpu.spec = 0, DEVICES["h200"]
    monkeypatch.setattr(bench.devices, "device", lambda name: gpu)
    monkeypatch.setattr(attention_trials, "measure", made)
    return made


def test_a_real_gpu_is_measured_beside_torch(measured: Measured) -> None:
    words = ("attention", "--size", "1x4x20x40x128", "--kv-heads", 2, "--window", "9,-", "--rounds", 7)
    result = run(*words, "--device", "cuda", "--json")
    assert result.exit_code == 0, result.output
    (problem, shapes, rounds) = measured.asked[0]
    assert problem == Problem(1, 4, 2, 20, 40, 128, window=(9, None)) and rounds == 7
    assert shapes == [(1, 4, 20, 128), (1, 2, 40, 128), (1, 2, 40, 128)]
    assert json.loads(result.stdout) == [
        {
            "kernel": "sm90.attention 128 × 128",
            "ours": True,
            "us": 2.0,
            "low_us": 1.9,
            "high_us": 2.2,
            "tflops": 0.4,
            "speed": 1.0,
            "clock_mhz": 1700,
            "verified": True,
            "max_err": 0.001,
            "mean_err": 0.0001,
        },
        {
            "kernel": "torch cudnn",
            "ours": False,
            "us": 3.0,
            "low_us": 2.9,
            "high_us": 3.5,
            "tflops": 0.3,
            "speed": 0.667,
            "clock_mhz": 1650,
            "verified": False,
            "max_err": 0.002,
            "mean_err": 0.0002,
        },
    ]
    shown = " ".join(run(*words, "--device", "cuda").stdout.split())
    title = (
        "attention of 1 × 4 heads of 128, 20 × 40, 2 heads of keys, mask window 9,-, bfloat16, TFLOPS count the "
        "visible 49 % of S²; h200, medians of 7 from"
    )
    for text in (title, "sm90.attention 128 × 128 2 1.9 – 2.2 0.4", "torch cudnn 3 2.9 – 3.5"):
        assert text in shown


def test_by_default_a_real_gpu_gets_more_to_do(measured: Measured) -> None:
    assert run("attention", "--causal", "--size", "1x1x8x64", "--dtype", "float16").exit_code == 0
    assert measured.asked[0][0] == Problem(1, 1, 1, 8, 8, 64, np.dtype(np.float16), causal=True)
    assert parse_heads(bench.REAL_SIZE).flops > 30 * parse_heads(bench.SIZE).flops


def test_a_wrong_result_of_ours_is_a_finding(measured: Measured) -> None:
    measured.right = False
    result = run("attention", "--size", "1x1x8x64")
    assert result.exit_code == 1
    assert result.stderr == (
        "warpwright: not verified: a result differs from the float64 reference by more than the bound\n"
    )


def test_a_virtual_gpu_predicts_each_way(monkeypatch) -> None:
    words = ("attention", "--size", "1x2x64x64", "--device", "h200")
    first, second, third = json.loads(run(*words, "--json").stdout)
    assert [each["kernel"] for each in (first, second, third)] == [
        "sm120.attention_cp_async 64 × 64",
        "sm90_decode.attention 64 × 128",
        "sm90.attention 128 × 128",
    ]
    assert first["speed"] == 1.0 and 0 < first["us"] < 100 and "verified" not in first
    assert second["speed"] == round(first["us"] / second["us"], 3)
    assert first["tflops"] == round(4 * 2 * 64 * 64 * 64 / first["us"] / 1e6, 1)
    monkeypatch.setenv(SETTING, "1")
    shown = " ".join(run(*words).stdout.split())
    title = "attention of 1 × 2 heads of 64, 64 × 64, mask none, bfloat16, TFLOPS count all of S²"
    assert f"{title}; virtual h200, predicted" in shown
    assert shown.index("sm90_decode.attention") < shown.index("sm120.attention_cp_async")


@pytest.fixture
def gemms(monkeypatch, measured: Measured) -> list[Any]:
    """The arguments of `trials.measure`; our kernel takes 2 µs, torch 3 µs."""
    asked: list[Any] = []

    def trial(device: Any, m: int, n: int, k: int, configs: Any, *, rounds: int, seed: int, describe: Any) -> Trials:
        asked.append((m, n, k, dict(configs), rounds, seed))
        verdict = Verdict(0.001, 0.0001, 1.0, 0.5, measured.right)
        each = {name: trials.Trial(cuda.Times(2e-6, 1.9e-6, 2.2e-6, 1699.7), verdict) for name in configs}
        return Trials(each, cuda.Times(3e-6, 2.9e-6, 3.5e-6, 1650.2))

    monkeypatch.setattr(trials, "measure", trial)
    known = measurements.Choice(64, 64, 64, "bfloat16", "128x128", 1.0, "2026")
    monkeypatch.setattr(measurements, "choices", lambda gpu: [known])
    return asked


def test_a_gemm_is_measured_beside_torch(gemms: list[Any], measured: Measured) -> None:
    words = ("gemm", "--size", "64x128x64", "--rounds", 5, "--seed", 3, "--device", "cuda")
    ours, theirs = json.loads(run(*words, "--json").stdout)
    assert gemms == [(64, 128, 64, {"128x128": sm90.CONFIGS["128x128"]}, 5, 3)]
    assert ours == {
        "kernel": "gemm 128x128",
        "ours": True,
        "us": 2.0,
        "low_us": 1.9,
        "high_us": 2.2,
        "tflops": 0.5,
        "speed": 1.0,
        "clock_mhz": 1700,
        "verified": True,
        "max_err": 0.001,
        "mean_err": 0.0001,
    }
    assert (theirs["kernel"], theirs["us"], theirs["speed"], theirs["verified"]) == ("torch matmul", 3.0, 0.667, None)
    shown = " ".join(run(*words).stdout.split())
    assert "gemm of 64 × 128 × 64, bfloat16; h200, medians of 5 from cold L2" in shown
    assert "torch matmul 3 2.9 – 3.5 0.3 0.667 1,650 – – –" in shown
    measured.right = False
    assert run(*words).exit_code == 1


def test_a_gemm_is_predicted() -> None:
    (row,) = json.loads(run("gemm", "--size", "256", "--device", "h200", "--json").stdout)
    assert row["kernel"] == "gemm" and row["tflops"] == round(2 * 256**3 / row["us"] / 1e6, 1)
    shown = " ".join(run("gemm", "--size", "256", "--device", "h200").stdout.split())
    assert "gemm of 256 × 256 × 256, bfloat16; virtual h200, predicted" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--size", "4096"),
            "given --size 4096; expected HEADSxLENGTHxDIM, BATCHxHEADSxLENGTHxDIM, or BATCHxHEADSxQUERIESxKEYSxDIM, "
            "such as 16x1024x128",
        ),
        (
            ("--size", "1x1x8x64", "--window", "9"),
            "given --window 9; expected LEFT,RIGHT, numbers of keys or - for all, such as 128,0",
        ),
        (
            ("--size", "1x4x8x64", "--kv-heads", "3"),
            "attention: q has 4 heads and k has 3; expected a multiple of those of k, so that each of its heads serves "
            "as many heads of q",
        ),
        (
            ("--rounds", "0"),
            "Invalid value for '--rounds': 0 is not in the range x>=1.",
        ),
    ],
)
def test_what_it_does_not_take_is_one_line(words: tuple[str, ...], message: str) -> None:
    result = run("attention", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"warpwright: error: {message}\n"
