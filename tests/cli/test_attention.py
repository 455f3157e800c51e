"""``warpwright attention``, and attention under ``profile`` and ``check``: results, exit status, one-line errors."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from warpwright.cli import attention_runs, main
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.plan import EARLIER, STEPS
from warpwright.ops.attention import trials
from warpwright.ops.attention.plan import SETTING
from warpwright.run.devices import device

RTX = ("--device", "rtx5090")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_problem_is_computed_and_verified() -> None:
    words = ("--size", "1x4x20x40x80", "--kv-heads", 2, "--causal", "--window", "9,-", "--dtype", "float16", *RTX)
    row = json.loads(run("attention", *words, "--json").stdout)
    extents = [row[name] for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "dtype", "causal")]
    assert extents == [1, 4, 2, 20, 40, 80, "float16", True]
    assert row["verified"] is True and 0 < row["max_err"] < 1e-2
    assert row["ran"].startswith("sm120.attention_cp_async on rtx5090: ")
    shown = run("attention", *words)
    assert shown.exit_code == 0
    for text in ("1 × 4 × 20 × 80", "1 × 2 × 40 × 80", "causal, window 9,-", row["ran"]):
        assert text in " ".join(shown.stdout.split())


def test_a_size_may_lack_the_batch() -> None:
    row = json.loads(run("attention", "--size", "3x20x64", "--json", *RTX).stdout)
    assert [row[name] for name in ("batch", "heads", "q_len", "kv_len", "head_dim")] == [1, 3, 20, 20, 64]


def spoil(monkeypatch, change: Callable[[Any, Any], None]) -> None:
    """Have ``change`` alter O and the log-sum-exp after the last launch."""
    right = attention_runs.launches

    def wrong(*given: Any, **options: Any) -> Any:
        call = right(*given, **options)
        call.finish.append(lambda: change(*call.result[:2]))
        return call

    monkeypatch.setattr(attention_runs, "launches", wrong)


def test_a_wrong_result_is_a_finding(monkeypatch) -> None:
    def change(out: Any, lse: Any) -> None:
        out[0, 0, 3, 5] += np.asarray(0.1, out.dtype)

    spoil(monkeypatch, change)
    result = run("attention", "--size", "1x1x20x64", *RTX)
    assert result.exit_code == 1
    assert "not verified: the result differs from the float64 reference by more than the bound" in result.stderr


def test_a_wrong_log_sum_exp_is_a_finding(monkeypatch) -> None:
    def change(out: Any, lse: Any) -> None:
        lse *= np.float32(1.0001)

    spoil(monkeypatch, change)
    assert run("attention", "--size", "1x1x20x64", *RTX).exit_code == 1


def test_shared_memory_of_the_configurations() -> None:
    rows = {row["name"]: row for row in json.loads(run("attention", "--smem", "--json").stdout)}
    assert list(rows) == [*EARLIER, *STEPS]
    assert [(rows[name]["sum"] // 1024, rows[name]["ctas"]) for name in EARLIER] == [(201, 0), (161, 0)]
    assert (rows["v1"]["left"], rows["v1"]["scores"]) == (101_376 - 201 * 1024, 24 * 1024)
    v3, last = rows["v3"], rows["two-ctas"]
    assert (v3["Q"], v3["K"], v3["V"], v3["scores"], v3["O"], v3["rest"]) == (8192, 32768, 32768, 8192, 16384, 1024)
    assert (v3["sum"], v3["left"], v3["ctas"], last["ctas"]) == (99_328, 2048, 1, 2)
    assert all(
        row["sum"] == sum(row[piece] for piece in ("Q", "K", "V", "scores", "O", "rest")) for row in rows.values()
    )
    printed = run("attention", "--smem").stdout.splitlines()
    assert printed[2].split()[-1] == "CTAs" and "4+8" in printed[4]  # whole at 120 columns


def test_profile() -> None:
    made = json.loads(run("profile", "attention", "--size", "1x2x70x64", "--causal", "--json", *RTX).stdout)
    assert made["kernel"] == (
        "sm120.attention_cp_async, 1 × 2 heads of 64, 70 × 70, causal (TFLOPS count the visible 51 % of S²)"
    )
    assert made["tflops"] == pytest.approx(4 * 2 * 64 * 70 * 71 / 2 / made["time_us"] / 1e6)
    assert made["roles"][0]["name"] == "compute"
    full = json.loads(run("profile", "attention", "--size", "1x1x20x64", "--full", "--json", *RTX).stdout)
    assert full["verified"] is True


def test_two_launches(monkeypatch) -> None:
    """A profile is that of the longest launch and names the time of the other; a benchmark adds both."""
    words = ("--size", "1x2x64x300x64", "--kv-heads", 1, "--device", "h200")
    made = json.loads(run("profile", "attention", *words, "--json").stdout)
    first, second = made["kernel"].split("; ")
    title = "sm90_decode.attention, 1 × 2 heads of 64, 64 × 300, 1 head of keys"
    assert first == f"{title} (TFLOPS count all of S²)"
    other = float(second.removeprefix("a second launch takes ").removesuffix(" µs"))
    assert 0 < other < made["time_us"]
    plans = trials.plans
    monkeypatch.setattr(trials, "plans", lambda *given: dict(list(plans(*given).items())[:1]))
    (row,) = json.loads(run("bench", "attention", *words, "--json").stdout)
    assert row["us"] == pytest.approx(made["time_us"] + other, rel=0.01)  # without the log-sum-exp


def test_a_step_is_profiled_and_checked_on_the_rtx5090() -> None:
    made = json.loads(run("profile", "attention", "--size", "2x64x128", "--step", "rows", "--full", "--json").stdout)
    title = "sm120 step rows, 1 × 2 heads of 128, 64 × 64 (TFLOPS count all of S²)"
    assert (made["kernel"], made["device"], made["verified"]) == (title, "rtx5090", True)
    result = run("check", "attention", "--size", "2x128x128", "--causal", "--step", "v3")
    assert result.exit_code == 0, result.output
    assert "sm120 step v3, 1 × 2 heads of 128, 128 × 128, causal on rtx5090: clean" in result.stdout


def test_check(monkeypatch) -> None:
    monkeypatch.setenv(SETTING, "1")
    words = ("--size", "1x2x40x100x64", "--kv-heads", 1, "--window", "50,30", "--scale", 0.3, "--dtype", "float16")
    result = run("check", "attention", *words, *RTX)
    assert result.exit_code == 0, result.output
    title = "sm120.attention, 1 × 2 heads of 64, 40 × 100, 1 head of keys, window 50,30, float16 on rtx5090: clean"
    assert title in " ".join(result.stdout.split())


def test_a_check_has_tiles_from_a_counter() -> None:
    """Also without a mask, for which calls pass no counter: unreached lines make a verdict incomplete."""
    _, call = attention_runs.call_of(Problem(1, 67, 67, 65, 70, 64), device("h200"), None)
    (launch,) = call
    at = [name for name, _ in launch.kernel.params].index("counter")
    given, made = list(launch.args), list(attention_runs.with_counter(launch).args)
    assert (given.pop(at), made.pop(at).tolist()) == (0, [0])
    assert all(map(operator.is_, given, made))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["attention", "--size", "4x4"],
            "given --size 4x4; expected HEADSxLENGTHxDIM, BATCHxHEADSxLENGTHxDIM, or BATCHxHEADSxQUERIESxKEYSxDIM, "
            "such as 16x1024x128",
        ),
        (
            ["attention", "--window", "5"],
            "given --window 5; expected LEFT,RIGHT, numbers of keys or - for all, such as 128,0",
        ),
        (
            ["attention", "--size", "1x3x8x64", "--kv-heads", 2],
            "attention: q has 3 heads and k has 2; expected a multiple of those of k, so that each of its heads serves "
            "as many heads of q",
        ),
        (["profile", "attention", "--level", 3], "given --level; the option does not apply to attention; leave it out"),
        (["profile", "gemm", "--step", "v3"], "given --step; the option does not apply to gemm; leave it out"),
        (["check", "gemm", "--step", "v3"], "given --step; the option does not apply to gemm; leave it out"),
        (["check", "x.toml", "--step", "v3"], "given --step; the option does not apply to x.toml; leave it out"),
        (
            ["profile", "attention", "--step", "v4"],
            "given step v4; expected one of v3, rows, helpers, two-ten, fewer-syncs, registers, two-ctas; choose an "
            "existing step",
        ),
        (["check", "gemm", "--causal"], "given --causal; the option does not apply to gemm; leave it out"),
        (["check", "gemm", "--kv-heads", 2], "given --kv-heads; the option does not apply to gemm; leave it out"),
        (["profile", "attention", "--grid", 3], "given --grid; the option does not apply to attention; leave it out"),
    ],
)
def test_mistakes_are_one_line_and_status_2(words, sentence) -> None:
    result = run(*words)
    assert (result.exit_code, result.stderr) == (2, f"warpwright: error: {sentence}\n")


def test_a_real_gpu_has_profilers_of_its_own(monkeypatch) -> None:
    monkeypatch.setattr("warpwright.run.devices.device", lambda name: SimpleNamespace(name="cuda:0"))
    result = run("profile", "attention", "--device", "cuda")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "warpwright: error: given device cuda:0; expected a virtual one, such as h200: a profile is predicted; on a "
        "real one let a profiler watch a launch: ncu --set full warpwright attention --device cuda\n"
    )
