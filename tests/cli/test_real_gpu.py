"""``warpwright tune``, and ``warpwright ladder`` on a real GPU: output and stored choices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from warpwright import cuda
from warpwright.cli import ladder, main
from warpwright.cuda.driver import NO_GPU
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm90
from warpwright.ops.matmul import measurements, trials
from warpwright.ops.matmul.trials import Trial, Trials
from warpwright.report.verdict import Verdict
from warpwright.targets import DEVICES

RIGHT, WRONG = (Verdict(0.001, 0.0001, 1.0, 0.5, verified) for verified in (True, False))


def run(*words: object, input: str = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=input)


def error_of(*words: object) -> tuple[int, str]:
    result = run(*words)
    assert result.stdout == ""
    return result.exit_code, result.stderr.strip().removeprefix("warpwright: error: ")


def times(median: float) -> cuda.Times:
    return cuda.Times(median, 0.9 * median, 1.1 * median, 1700.0)


class Measured:
    """Stands for `trials.measure`: ``fastest`` takes 1 µs, all others 2, torch.matmul 1.5; ``wrong`` are wrong."""

    def __init__(self) -> None:
        self.fastest, self.wrong, self.asked, self.peer = "64x64", set(), [], 1.5e-6

    def __call__(self, device: Any, m: int, n: int, k: int, configs: Any, **options: Any) -> Trials:
        self.asked.append((m, n, k, list(configs)))
        options["describe"]("one thing")
        each = {
            name: Trial(times(1e-6 if name == self.fastest else 2e-6), WRONG if name in self.wrong else RIGHT)
            for name in configs
        }
        return Trials(each, self.peer and times(self.peer))


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    made, gpu = Measured(), object.__new__(cuda.Device)
    gpu.ordinal, gpu.spec = 0, DEVICES["h200"]
    monkeypatch.setenv("WARPWRIGHT_CONFIG", str(tmp_path))
    monkeypatch.setattr(trials, "measure", made)
    monkeypatch.setattr(cuda, "device", lambda name: gpu)
    monkeypatch.setattr(ladder.devices, "device", lambda name: gpu)
    measurements.choices.cache_clear()
    yield made
    measurements.choices.cache_clear()


def test_tune_keeps_the_fastest_and_says_what_was_chosen_before(measured: Measured) -> None:
    result = run("tune", "4096x4096x4096", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    plain = {name: config for name, config in sm90.CONFIGS.items() if not config.promoted and config.slices == 1}
    names = [name for name, config in plain.items() if not config.rows]
    assert measured.asked == [(4096, 4096, 4096, names)]
    assert rows[0] == {
        "m": 4096,
        "n": 4096,
        "k": 4096,
        "dtype": "bfloat16",
        "config": "64x64",
        "us": 1.0,
        "tflops": 137439.0,
        "torch_tflops": 91626.0,
        "of_torch": 1.5,
        "chosen_before": False,
        "kept": True,
        "verified": True,
    }
    assert [row["config"] for row in rows if row["chosen_before"]] == ["128x256 two widths"]
    assert sum(row["kept"] for row in rows) == 1
    (choice,) = measurements.choices("h200")
    assert (choice.problem, choice.config, choice.us) == ((4096, 4096, 4096, "bfloat16"), "64x64", 1.0)
    again = json.loads(run("tune", "4096x4096x4096", "--json").stdout)
    assert [row["config"] for row in again if row["chosen_before"]] == ["64x64"]


def test_float8_has_candidates_and_facts_of_its_own(measured: Measured) -> None:
    measured.fastest = "fp8 64x64"
    rows = json.loads(run("tune", "4096x4096x4096", "--dtype", "float8_e4m3fn", "--json").stdout)
    assert all(row["config"].startswith("fp8") and row["dtype"] == "float8_e4m3fn" for row in rows)
    assert (
        measurements.choices("h200") == ()
        and measurements.choices("h200", 1)[0].config == rows[0]["config"] == "fp8 64x64"
    )


def test_a_wrong_result_is_a_finding_and_is_not_kept(measured: Measured) -> None:
    measured.wrong = {"64x64"}
    result = run("tune", "64x64x64", "--json")
    assert result.exit_code == 1
    assert "not verified: a result differs from the float64 reference by more than the bound" in result.stderr
    rows = json.loads(result.stdout)
    assert rows[-1]["config"] == "64x64" and not rows[-1]["kept"]
    assert measurements.choices("h200")[0].config != "64x64"


def test_shapes_of_a_file_and_of_standard_input(measured: Measured, tmp_path: Path) -> None:
    measured.peer = None
    path = tmp_path / "shapes"
    path.write_text("# decode\n16x8192x8192\n\n128 × 4096 × 4096  # prefill\n16, 8192, 8192\n")
    assert run("tune", "8x8x8", "--file", path).exit_code == 0
    assert [shape[:3] for shape in measured.asked] == [(8, 8, 8), (16, 8192, 8192), (128, 4096, 4096)]
    result = run("tune", "--file", "-", "--json", input="1 2 3\n")
    assert (json.loads(result.stdout)[0]["m"], "of_torch" in result.stdout) == (1, False)


def test_list_and_forget() -> None:
    nothing = "nothing was tuned on this machine; warpwright tune 4096x4096x4096 measures a problem\n"
    assert run("tune", "--list").stdout == run("tune", "--forget").stdout == nothing
    run("tune", "64x64x64", "128x64x64")
    (first, second) = json.loads(run("tune", "--list", "--json").stdout)
    assert (first["gpu"], first["m"], second["m"], first["config"]) == ("h200", 64, 128, "64x64")
    assert "64x64" in run("tune", "--list").stdout
    assert run("tune", "--forget").stdout == "forgot 2 problems\n"
    assert json.loads(run("tune", "--forget", "--json").stdout) == {"forgotten": 0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no problem is given; expected M, N and K of at least one: warpwright tune 4096x4096x4096"),
        (["4096"], "given '4096'; expected M, N and K of a matmul, such as 4096x4096x4096"),
        (["1x0x1"], "given '1x0x1'; expected M, N and K of a matmul, such as 4096x4096x4096"),
        (["--list", "1x1x1"], "given --list or --forget with other arguments; expected only one of both"),
        (["--list", "--forget"], "given --list or --forget with other arguments; expected only one of both"),
        (
            ["--file", "/nowhere"],
            "cannot read shapes from /nowhere: No such file or directory; expected lines such as 4096x4096x4096",
        ),
    ],
)
def test_what_tune_does_not_take_is_one_line(words: list[str], message: str) -> None:
    assert error_of("tune", *words) == (2, message)


def test_tune_without_a_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise UsageError(NO_GPU.format(reason="this machine has no CUDA driver"))

    monkeypatch.setattr(cuda, "device", absent)
    assert error_of("tune", "64x64x64") == (
        2,
        "device 'cuda' needs an NVIDIA GPU, and this machine has no CUDA driver; use a virtual GPU, such as "
        "device='h200'",
    )


def test_tune_is_for_targets_with_a_gemm(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.device("cuda").spec = replace(DEVICES["rtx5090"], arch="sm_120")
    assert error_of("tune", "64x64x64") == (
        2,
        "rtx5090 is sm_120; expected one of sm_90a, sm_100a, sm_120a: other targets have no GEMM kernel",
    )


def test_a_table_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WARPWRIGHT_CONFIG", str(tmp_path / "file"))
    assert error_of("tune", "64x64x64") == (
        2,
        f"cannot write {tmp_path / 'file' / 'tuned.json'}: File exists; name another folder in WARPWRIGHT_CONFIG",
    )


def test_ladder_measures_a_real_gpu(measured: Measured) -> None:
    measured.fastest = "level 8, stages 4"
    result = run("ladder", "--device", "cuda", "--levels", "7-8", "--json")
    assert result.exit_code == 0, result.output
    assert measured.asked == [(4096, 4096, 4096, ["level 7, stages 4", "level 8, stages 4"])]
    assert json.loads(result.stdout)[1] == {
        "level": 8,
        "stages": 4,
        "size": 4096,
        "device": "cuda:0",
        "us": 1.0,
        "tflops": 137439.0,
        "torch_tflops": 91626.0,
        "of_torch": 1.5,
        "verified": True,
        "max_err": 0.001,
        "max_ulp": 0.5,
    }
    measured.wrong = {"level 2, stages 2"}
    assert run("ladder", "--device", "cuda", "--size", "64", "--levels", "1-2").exit_code == 1
    assert measured.asked[-1][:3] == (64, 64, 64)


def test_a_real_gpu_is_measured_from_cold_l2_alone(measured: Measured) -> None:
    assert error_of("ladder", "--device", "cuda", "--warm") == (
        2,
        "given --warm for a real GPU; launches there are measured from cold L2: leave it out",
    )
