"""The command: results, exit status and one-line errors, through Click's own runner."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.samples import sampled
from warpwright import UnsupportedInstruction
from warpwright.cli import main, matmul_runs
from warpwright.cli.ladder import ladder_of
from warpwright.cuda.driver import NO_GPU
from warpwright.errors import Deadlock, LimitReached, UsageError
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

ERRORS = ["max_err", "mean_err", "cos_sim", "max_ulp", "verified", "wall_s"]
PREDICTED = ["time_us", "tflops", "tensor", "wasted", "ctas_per_sm", "parts_us", "largest_loss", "main_stall"]
KEYS = ["level", "stages", "size", "device", *PREDICTED, "why_faster", *ERRORS]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def result_of(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error_of(*words: object) -> tuple[int, str]:
    result = run(*words)
    assert result.stdout == ""
    return result.exit_code, result.stderr.strip().removeprefix("warpwright: error: ")


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Path]:
    """A.npy (40, 24) and B.npy (24, 56), bfloat16 as numpy saves it."""
    random = np.random.default_rng(0)
    paths = {}
    for name, shape in (("a", (40, 24)), ("b", (24, 56))):
        paths[name] = tmp_path / f"{name}.npy"
        np.save(paths[name], random.standard_normal(shape).astype(ml_dtypes.bfloat16))
    return paths


def test_devices_lists_the_virtual_boards() -> None:
    rows = result_of("devices")
    assert [(row["name"], row["target"], row["sms"]) for row in rows] == [
        ("b200", "sm_100a", 148),
        ("gb200", "sm_100a", 152),
        ("b300", "sm_103a", 148),
        ("gb300", "sm_103a", 152),
        ("h200", "sm_90a", 132),
        ("h100", "sm_90a", 132),
        ("h100_pcie", "sm_90a", 114),
        ("h20", "sm_90a", 78),
        ("gh200", "sm_90a", 132),
        ("rtx5090", "sm_120a", 170),
        ("rtx5080", "sm_120a", 84),
        ("rtx5070ti", "sm_120a", 70),
        ("rtx_pro_6000", "sm_120a", 188),
    ]
    assert rows[2]["source"]["sms"] == "device query (QuickRunCUDA)"
    assert "QuickRunCUDA" not in run("devices").stdout


def test_ladder_has_the_rows_that_were_asked_for() -> None:
    rows = result_of("ladder", "--size", 136, "--levels", "1,3")
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert [(row["level"], row["verified"]) for row in rows] == [(1, True), (3, True)]


def test_a_fast_ladder_only_predicts(tmp_path: Path) -> None:
    chart = tmp_path / "ladder.svg"
    rows = result_of("ladder", "--size", 256, "--levels", "6-7", "--fast", "--plot", chart)
    assert [list(row) for row in rows] == [[*KEYS[:13], "wall_s"]] * 2
    assert rows[0]["wasted"] == pytest.approx(0.5)  # both CTAs of a cluster compute the same tile
    assert rows[1]["wasted"] == pytest.approx(0.5)  # half of the tile is beyond the matrix
    for row in rows:
        assert row["tflops"] == pytest.approx(2 * 256**3 / row["time_us"] / 1e6)
    assert chart.read_text(encoding="utf-8").startswith("<?xml")
    text = run("ladder", "--size", 256, "--levels", "6-7", "--fast").stdout
    assert "\n    slower: tail " in text and "against float64" not in text


def test_the_number_of_stages_is_an_option_of_the_ladder() -> None:
    rows = result_of("ladder", "--size", 256, "--levels", "2-3", "--stages", "1,2", "--fast")
    assert [(row["level"], row["stages"]) for row in rows] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert rows[0]["tflops"] < rows[1]["tflops"] and rows[2]["tflops"] < rows[3]["tflops"]
    text = run("ladder", "--size", 256, "--levels", "2", "--stages", "1-2", "--fast").stdout
    assert " stages " in text and "    stages 2: faster: " in text
    assert error_of("ladder", "--stages", "0")[1] == (
        "--stages '0'; expected a number, a range or a list: 2, 1-4 or 2,4,8"
    )


def test_the_improved_levels_share_an_sm() -> None:
    rows = result_of("ladder", "--size", 1280, "--levels", "1-2", "--improved", "--fast")
    assert [row["ctas_per_sm"] for row in rows] == [4, 4]
    text = run("ladder", "--size", 64, "--levels", "1", "--improved", "--fast").stdout
    assert "levels 1 to 3 improved: CTAs share an SM, and a store has 16 bytes" in text
    assert error_of("ladder", "--improved", "--device", "h200") == (
        2,
        "given --improved for h200; it is of levels 1, 2, 3 and 5 of Blackwell: leave it out",
    )


def test_ladder_runs_every_rung_of_the_device() -> None:
    rows = result_of("ladder", "--size", 136, "--device", "h200")
    assert [(row["level"], row["verified"]) for row in rows] == [(level, True) for level in range(1, 9)]
    assert [row["level"] for row in result_of("ladder", "--size", 64)] == list(range(1, 11))


@sampled("device", ["rtx5090", "h200"], keep=["rtx5090"])
def test_the_ladder_of_mma_sync_runs_on_any_device(device: str) -> None:
    rows = result_of("ladder", "--size", 136, "--device", device, *["--mma-sync"] * (device == "h200"))
    assert [(row["level"], row["stages"], row["verified"]) for row in rows] == [
        (level, 1 if level == 1 else 2, True) for level in range(1, 9)
    ]


def test_the_ladder_of_block_scales() -> None:
    rows = result_of("ladder", "--scaled", "nvfp4", "--size", 160, "--levels", "1,6,7")
    assert [(row["level"], row["verified"]) for row in rows] == [(1, True), (6, True), (7, True)]
    assert all(row["of_peak"] == row["tflops"] / 9000 for row in rows)
    text = run("ladder", "--scaled", "mxfp8", "--size", 160, "--levels", "1", "--fast").stdout
    assert "GEMM ladder: mxfp8 in, bf16 out" in text
    assert "of peak: of the data sheet's dense mxfp8 rate, twice that of bf16" in text


def test_the_ladder_of_block_scales_of_consumer_blackwell() -> None:
    (row,) = result_of("ladder", "--scaled", "nvfp4", "--size", 160, "--levels", "5", "--device", "rtx5090")
    assert row["verified"] and row["of_peak"] == row["tflops"] / 1676
    text = run("ladder", "--scaled", "mxfp8", "--size", 64, "--levels", 1, "--fast", "--device", "rtx5090").stdout
    assert "of peak: of the data sheet's dense mxfp8 rate, four times that of bf16" in text


@pytest.mark.parametrize("option", ["--device h200", "--mma-sync"])
def test_the_ladder_of_block_scales_is_of_virtual_blackwell_alone(option: str) -> None:
    assert error_of("ladder", "--scaled", "mxfp8", *option.split()) == (
        2,
        f"given --scaled with {option}; the ladder of block scales is of Blackwell: expected --device b200, b300 or "
        "rtx5090, virtual, and no --mma-sync",
    )


def test_a_device_without_a_ladder_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        ladder_of(Device(replace(DEVICES["rtx5090"], arch="sm_120")))
    assert str(caught.value) == (
        "no GEMM ladder for rtx5090 (sm_120); expected --device b200, gb200, h200, rtx5090 or cuda"
    )


@pytest.mark.parametrize("text", ["11", "0-2", "3-1", "two", "1-", ""])
def test_ladder_refuses_levels_that_are_not_there(text: str) -> None:
    status, message = error_of("ladder", "--levels", text)
    assert status == 2
    assert message.count("\n") == 0


def test_matmul_reads_and_writes_npy(saved: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "d.npy"
    row = result_of("matmul", saved["a"], saved["b"], "-o", output)
    a, b, d = (np.load(path).view(ml_dtypes.bfloat16).astype(np.float64) for path in (saved["a"], saved["b"], output))
    assert (row["m"], row["n"], row["k"], row["dtype"], row["verified"]) == (40, 56, 24, "bfloat16", True)
    assert np.abs(d - a @ b).max() <= row["max_err"] < 0.05


def test_matmul_says_how_it_read_two_byte_records(saved: dict[str, Path], tmp_path: Path) -> None:
    result = run("matmul", saved["a"], saved["b"], "-o", tmp_path / "d.npy")
    assert result.exit_code == 0
    assert f"{saved['a']} has two-byte records (V2), as NumPy saves bfloat16: read as bfloat16" in result.stderr


def test_matmul_says_that_it_rounds_float32(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32))
    result = run("matmul", path, path, "-o", tmp_path / "d.npy")
    assert result.exit_code == 0
    assert result.stderr.count("matmul rounds float32 inputs to bfloat16") == 1


def test_a_truncated_file_is_one_line(saved: dict[str, Path], tmp_path: Path) -> None:
    path = saved["a"]
    path.write_bytes(path.read_bytes()[:-100])
    status, message = error_of("matmul", path, saved["b"], "-o", tmp_path / "d.npy")
    assert status == 2
    assert message.startswith(f"{path} is not a complete .npy file: ")
    assert message.endswith("; write it again with np.save")
    assert "\n" not in message


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"garbage" * 9, bytes(range(256))])
def test_garbage_is_one_line(content: bytes, saved: dict[str, Path], tmp_path: Path) -> None:
    saved["a"].write_bytes(content)
    status, message = error_of("matmul", saved["a"], saved["b"], "-o", tmp_path / "d.npy")
    assert (status, "\n" in message) == (2, False)
    assert message.startswith(f"{saved['a']} is not a complete .npy file: ")


def test_an_archive_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros(3))
    assert error_of("matmul", path, saved["b"], "-o", tmp_path / "d.npy") == (
        2,
        f"{path} is an archive of arrays (.npz); expected one array in a .npy file written by np.save",
    )


def test_a_missing_file_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "none.npy"
    assert error_of("matmul", path, saved["b"], "-o", tmp_path / "d.npy") == (
        2,
        f"cannot read {path}: No such file or directory; expected a .npy file written by np.save",
    )


def test_an_unknown_device_is_refused() -> None:
    status, message = error_of("flow", "--device", "b400")
    assert status == 2
    assert message == f"given device 'b400'; expected one of {', '.join(DEVICES)}, cuda"


@pytest.mark.parametrize("command", ["ladder", "flow", "selftest"])
def test_cuda_on_a_machine_without_it_is_one_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise UsageError(NO_GPU.format(reason="this machine has no CUDA driver"))

    monkeypatch.setattr(importlib.import_module("warpwright.cuda.device"), "require", absent)
    assert error_of(command, "--device", "cuda") == (
        2,
        "device 'cuda' needs an NVIDIA GPU, and this machine has no CUDA driver; use a virtual GPU, such as "
        "device='h200'",
    )


def test_an_output_that_cannot_be_written_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "d.npy"
    result = run("matmul", saved["a"], saved["b"], "-o", path)
    assert result.exit_code == 2
    assert f"cannot write {path}: No such file or directory; name a file in a folder that exists" in result.stderr


def test_a_matmul_of_nan_is_not_verified(tmp_path: Path) -> None:
    """One NaN in a row is compared as NaN; where all is NaN nothing was compared."""
    path, a, b = tmp_path / "a.npy", np.ones((16, 16), np.float16), tmp_path / "b.npy"
    np.save(b, a)
    a[0, 0] = np.nan
    np.save(path, a)
    result = run("matmul", path, b, "-o", tmp_path / "d.npy")
    assert result.exit_code == 0
    assert "warpwright: 16 of 256 elements are NaN or infinite, as in the reference\n" in result.stderr
    np.save(path, np.full_like(a, np.nan))
    result = run("matmul", path, b, "-o", tmp_path / "d.npy")
    assert result.exit_code == 1
    assert result.stderr == (
        "warpwright: not verified: no element of the result is finite, and a NaN or an infinity agrees with any error\n"
    )


def test_ptx_prints_the_level() -> None:
    report = result_of("ptx", "gemm", "--level", 2)
    assert (report["entry"], report["arch"], report["smem_bytes"]) == ("gemm_level2", "sm_100a", 50_176)
    assert run("ptx", "gemm", "--level", 2).stdout.strip() == report["ptx"].strip()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("gemm",), ("gemm_halves", "sm_100a", 256)),
        (("gemm", "--device", "h200", "--level", 3), ("gemm", "sm_90a", 256)),
        (("gemm", "--device", "h200"), ("gemm_two_widths", "sm_90a", 384)),
        (("attention",), ("attention", "sm_100a", 512)),
        (("attention", "--device", "h200", "--size", "1x16x1x4096x128"), ("attention", "sm_90a", 256)),
        (("attention", "--step", "v3"), ("attention_meeting", "sm_120a", 384)),
        (("attention", "--step", "fewer-syncs", "--device", "h200"), ("attention_shared", "sm_90a", 384)),
    ],
)
def test_ptx_prints_the_kernel_that_a_call_launches(words: tuple[object, ...], facts: tuple[str, str, int]) -> None:
    report = result_of("ptx", *words)
    assert (report["entry"], report["arch"], report["threads"][0]) == facts
    assert f".target {report['arch']}" in report["ptx"] and f".entry {report['entry']}" in report["ptx"]


def test_ptx_refuses_what_it_does_not_have() -> None:
    assert error_of("ptx", "softmax") == (2, "unknown kernel 'softmax'; expected one of gemm, attention, memory_flow")
    for words in (("memory_flow", "--level", 2), ("gemm", "--step", "v3"), ("attention", "--level", 2)):
        sentence = f"given {words[1]}; the option does not apply to {words[0]}; leave it out"
        assert error_of("ptx", *words) == (2, sentence)
    assert error_of("ptx", "attention", "--step", "v4") == (
        2,
        "given step v4; expected one of v3, rows, helpers, two-ten, fewer-syncs, registers, two-ctas; choose an "
        "existing step",
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Deadlock("all wait"), 1),
        (UnsupportedInstruction("wgmma"), 3),
        (LimitReached("too long"), 3),
        (MemoryError("Unable to allocate 7 TiB"), 2),
    ],
)
def test_the_exit_status_tells_findings_from_incomplete(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(matmul_runs, "launches", fail)
    assert error_of("ladder", "--size", 8, "--levels", 1)[0] == status


def test_a_wrong_result_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    right = matmul_runs.launches

    def wrong(*given: Any, **options: Any) -> Any:
        call = right(*given, **options)
        call.finish.append(lambda: call.result.__iadd__(call.result.dtype.type(1)))
        return call

    monkeypatch.setattr(matmul_runs, "launches", wrong)
    result = run("ladder", "--size", 64, "--levels", 1, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["verified"] is False
    assert "not verified" in result.stderr


def test_an_unknown_command_is_one_line() -> None:
    assert error_of("levitate") == (2, "No such command 'levitate'.")
