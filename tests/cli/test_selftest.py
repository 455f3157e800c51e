"""``warpwright selftest``: reports, what differs, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.cli.test_cli import error_of, run
from tests.conformance.golden import golden
from warpwright import cuda, vgpu
from warpwright.cli import selftest
from warpwright.report.verdict import Verdict
from warpwright.selftest import kernels, rules
from warpwright.selftest.answers import Answers, answers, some_cases
from warpwright.selftest.probes import PAGE, Probe, find_probe, probes_of
from warpwright.vgpu.engines import box

NAMES = ("elections", "fills", "tokens", "refused_boxes")
H200 = {
    "name": "NVIDIA H200",
    "arch": "sm_90a",
    "sms": 132,
    "clock_mhz": 1980,
    "hbm_gbps": 4814.8,
    "l2_bytes": 62914560,
}
RIGHT, FALSE = (Verdict(0.1, 0.1, 1.0, 1.0, verified=verified) for verified in (True, False))


def recorded(folder: Path, changes: dict[str, str] | None = None, **fields: Any) -> Path:
    """Returns a report with what an H200 answered to a few probes; in the cases of ``changes`` one bit differs."""
    asked: dict[str, tuple[Answers, list[str]]] = {name: (golden(find_probe(name)), []) for name in NAMES}
    for name, case in (changes or {}).items():
        answer = asked[name][0][case].copy()
        answer[-1] ^= 1
        asked[name][0][case] = answer
    report = {
        "format": 1,
        "device": H200,
        "real": True,
        "board": "h200",
        "answers": rules.pack(asked),
        "kernels": [{"kernel": "matmul nn", "status": "verified", "max_err": 0.1, "max_ulp": 1.0}],
        "ladder": [],
        **fields,
    }
    path = folder / "report.json"
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


def test_the_virtual_h200_agrees_with_the_report_of_an_h200(tmp_path: Path) -> None:
    result = run("selftest", "--compare", recorded(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {row["rule"]: row["status"] for row in report["rules"]} == dict.fromkeys(NAMES, "same")
    assert report["device"] == H200 and report["board"] == "h200"
    assert "answers" not in report


def test_a_changed_answer_is_named_with_its_rule_and_page(tmp_path: Path) -> None:
    case = next(find_probe("elections").cases()).name
    result = run("selftest", "--compare", recorded(tmp_path, {"elections": case}))
    assert result.exit_code == 1
    assert "NVIDIA H200 beside the virtual h200" in result.stdout
    assert result.stderr.splitlines()[:3] == [
        f"warpwright: rule elections differs in 1 of 6 cases: {PAGE}#instructions-of-a-warp",
        "warpwright:   it asks: The lane that elect.sync chooses.",
        "warpwright:   0xffffffff: word 31 is 0x1000000 on the board, 0x0 on the virtual GPU (1 bytes differ)",
    ]


def test_a_wrong_rule_of_the_virtual_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "NAN", 0x7FFF_7FFF_7FFF_7FFF)
    result = run("selftest", "--compare", recorded(tmp_path))
    assert result.exit_code == 1
    differing = [line for line in result.stderr.splitlines() if " differs in " in line]
    assert differing == [f"warpwright: rule fills differs in 5 of 6 cases: {PAGE}#tensor-copies"]


def test_a_refusal_that_the_board_does_not_share_is_named(tmp_path: Path) -> None:
    path = recorded(tmp_path, {"refused_boxes": "coordinate of 2 bytes"})
    result = run("selftest", "--compare", path)
    assert result.exit_code == 1
    assert "  coordinate of 2 bytes: the board goes on, the virtual GPU faults" in result.stderr


def test_a_case_without_an_answer_makes_the_verdict_incomplete(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    report = json.loads(path.read_text(encoding="utf-8"))
    report["answers"]["tokens"]["unanswered"] = ["1: arrive: no answer in 60 s"]
    path.write_text(json.dumps(report), encoding="utf-8")
    result = run("selftest", "--compare", path)
    assert result.exit_code == 3
    assert "warpwright: rule tokens has no answer to 1: arrive: no answer in 60 s" in result.stderr


def test_another_board_can_be_named(tmp_path: Path) -> None:
    report = json.loads(run("selftest", "--compare", recorded(tmp_path), "--device", "h20", "--json").stdout)
    assert report["board"] == "h20" and report["status"] == 0


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert error_of("selftest", "--compare", path) == (
        2,
        f"cannot read {path}: 'format'; expected a report of warpwright selftest -o FILE",
    )
    recorded(tmp_path, format=7).rename(path)
    assert error_of("selftest", "--compare", path)[1] == (
        f"{path} has format 7; expected 1: record it with this version"
    )


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual H200 in the place of a real GPU: its answers to a case of few probes, two kernels, and two levels."""
    gpu, few = ww.device("h200", numerics="hardware"), [find_probe(name) for name in NAMES]
    monkeypatch.setattr(cuda, "Device", vgpu.Device)
    monkeypatch.setattr(selftest, "version", lambda: "13.0")
    monkeypatch.setattr(rules, "probes_of", lambda arch: few)
    monkeypatch.setattr(rules, "collect", lambda probe, name: (answers(some_cases(probe, 1), gpu)[0], []))
    checks = {"matmul nn": lambda: RIGHT, "attention window": lambda: FALSE}
    monkeypatch.setattr(kernels, "checks", lambda device: checks)
    rows = [{"level": level, "size": 4096, "us": 200.0, "tflops": 687.2, "torch_tflops": 700.0} for level in (1, 8)]
    monkeypatch.setattr(selftest, "measure_levels", lambda *_: [dict(row) for row in rows])
    predicted = [{"level": level, "time_us": 220.0} for level in (1, 8)]
    monkeypatch.setattr(selftest, "predict_levels", lambda *_, **options: predicted)


@pytest.mark.usefixtures("real")
def test_a_report_of_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    result = run("selftest", "--device", "h200", "-o", path)
    assert result.exit_code == 1  # one kernel is wrong
    assert (
        "warpwright: kernel attention window is wrong: it differs from float64 by more than the bound" in result.stderr
    )
    assert "warpwright: predicted beside measured: 10 % off in the mean" in result.stderr
    report = json.loads(path.read_text(encoding="utf-8"))
    assert [row["status"] for row in report["rules"]] == ["same"] * len(NAMES)
    assert [row["error"] for row in report["ladder"]] == [0.1, 0.1]
    monkeypatch.undo()
    report["kernels"], report["ladder"] = [], []
    path.write_text(json.dumps(report), encoding="utf-8")
    assert run("selftest", "--compare", path).exit_code == 0


@pytest.mark.usefixtures("real")
def test_without_torch_the_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [{"level": 1, "size": 4096, "us": 200.0, "tflops": 687.2}]
    monkeypatch.setattr(selftest, "measure_levels", lambda *_: [dict(row) for row in alone])
    text = run("selftest", "--device", "h200").stderr
    assert "warpwright: torch is not installed, or sees no GPU: cuBLAS was not measured" in text


def test_a_kernel_of_each_kind_is_checked_on_a_virtual_board() -> None:
    found = {board: kernels.checks(ww.device(board)) for board in ("h200", "b200", "rtx5090")}
    assert [len([name for name in each if "level" in name]) for each in found.values()] == [8, 10, 8]
    assert kernels.row_of("matmul nn", found["b200"]["matmul nn"])["status"] == "verified"


def test_a_kernel_that_a_board_has_not_is_absent() -> None:
    def refuse() -> Verdict:
        raise ww.errors.UsageError("attention: given gradients on b50 (sm_20a)")

    row = {"kernel": "k", "status": "absent", "why": "attention: given gradients on b50 (sm_20a)"}
    assert kernels.row_of("k", refuse) == row


def test_a_kernel_that_stops_is_wrong() -> None:
    def stop() -> Verdict:
        raise ww.errors.MemoryFault("kernel k, line 3: read outside every allocation")

    assert kernels.row_of("k", stop) == {
        "kernel": "k",
        "status": "wrong",
        "why": "kernel k, line 3: read outside every allocation",
    }
    assert np.isfinite(kernels.row_of("right", lambda: RIGHT)["max_err"])


def test_every_probe_of_a_board_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Probe] = []
    monkeypatch.setattr(rules, "_few", lambda probe, *_: asked.append(probe) or {})
    rules.ask_board(ww.device("b300"), lambda text: None)
    assert asked == probes_of("sm_103a")
