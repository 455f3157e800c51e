"""The command ``flow``, and ``profile`` and ``check`` of ``memory_flow``: figures, text, exit status."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from warpwright.cli import console, main

HEADING = """\
D = A · Bᵀ, 128 × 128 × 64, float16 in, float32 out: one CTA
global → shared → tensor memory → registers → shared → global memory

Shared memory: 99,328 bytes (the write-up: 163,840)
   A 16,384, B 16,384, D 65,536, mbarriers and padding 1,024
Tensor memory: 65,536 bytes, 128 of 512 columns
Threads: 128, 4 warps
"""
WRONG = "warpwright: not verified: the result differs from the float64 reference by more than the bound\n"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def text() -> str:
    result = run("flow")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def report() -> Any:
    return json.loads(run("flow", "--json").stdout)


def test_shared_memory_and_threads_come_first(text: str) -> None:
    assert text.startswith(HEADING)


def test_the_mma_overwrites_once_and_accumulates_three_times(text: str) -> None:
    lines = text.splitlines()
    (python,) = (number for number, line in enumerate(lines) if line.startswith("line 73:  tcgen05.mma(acc, "))
    first, others = lines[python + 1 : python + 3]
    assert first.startswith("    tcgen05.mma.cta_group::1.kind::f16 ") and first.endswith(", 0;")
    assert others.startswith("3 × tcgen05.mma.cta_group::1.kind::f16 ") and others.endswith(", 1;")
    assert text.count("tcgen05.mma.cta_group") == 2


def test_the_threads_that_work_and_that_are_idle_stand_at_every_step(text: str) -> None:
    assert text.count("\n   works: ") == text.count("\n   idle:  ") == 7
    assert (
        "issues both copies (issues in 3.1 % of the cycles)\n   idle:  all 128 threads wait at the mbarrier\n" in text
    )
    assert max(map(len, text.splitlines()[: text.splitlines().index("5  clean-up")])) <= 120


def test_the_text_has_the_figures_of_the_report(text: str, report: Any) -> None:
    load = report["steps"][1]
    assert f"32,768 bytes in {load['cycles']:,.0f} cycles, {load['bytes_per_cycle']:.1f} bytes a cycle" in text
    assert "bank conflicts at memory_flow.py:83: 4,096 wavefronts, 512 without them" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "shared", "32,768", f"{load['cycles']:,.0f}", "12.5", "24.5", "3.2", "1.34", "10"] in rows
    assert ["4b", "tma_store_bytes", "32", "assumed:", "as", "measured", "on", "the", "H200"] in rows
    assert ["1", "shared", "940", "300-500", "published", "6.7", "4-8", "published"] in rows


@pytest.mark.parametrize("width", [80, 120])
def test_no_table_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = console.Console
    monkeypatch.setattr(console, "Console", lambda **how: real(**{**how, "width": width}))
    lines = run("flow").stdout.splitlines()
    tables = lines[lines.index(next(line for line in lines if line.startswith("predicted time on b200"))) :]
    assert not [line for line in tables if "…" in line]
    assert [line.split()[-1] for line in tables if line.startswith("  all ")] == ["23.5"]
    assert [line.split()[-1] for line in tables if line.startswith("  4b global ")] == ["10", "assumed"]
    assert max(map(len, tables[:-1])) <= width


def test_the_report_has_memory_threads_and_figures(report: Any) -> None:
    assert (report["threads"], report["smem_bytes"], report["tensor_memory_bytes"]) == (128, 99_328, 65_536)
    assert report["shared_memory"] == {"a": 16_384, "b": 16_384, "d": 65_536, "mbarriers": 1024}
    assert (report["d_row0"], report["d_row1"], report["verified"]) == (20.1592, 20.7993, True)
    assert report["random"]["verified"]
    assert [step["nbytes"] for step in report["steps"]] == [0, 32_768, 65_536, 65_536, 65_536, 65_536, 0]
    timed = report["steps"][:-1]
    assert sum(step["cycles"] for step in timed) < report["predicted"]["cycles"]
    assert [step["all_sms_tb_s"] for step in timed[1:]] == pytest.approx([6.75, 37.23, 74.45, 37.23, 9.31], abs=0.01)
    assert [step["write_up"]["time_us"] for step in timed] == [0, 10, 2, 0.5, 1, 10]
    sources = {each["name"]: each["source"] for step in timed for each in step["constants"]}
    assert sources["tma_store_bytes"] == "assumed: as measured on the H200"
    assert sources["tmem_alloc"] == "published: 253 cycles each (QuickRunCUDA)"


def test_each_instruction_of_the_report_has_its_python_line(report: Any) -> None:
    (_, load, mma, *_) = report["steps"]
    assert [(each["row"], each["python"]) for each in load["instructions"][1:3]] == [
        (64, "loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)"),
        (65, "tma.load(a_tile, a[0, 0], loaded)"),
    ]
    flags = [(each["times"], each["text"][-2:]) for each in mma["instructions"] if "tcgen05.mma" in each["text"]]
    assert flags == [(1, "0;"), (3, "1;")]


def test_the_ptx_and_a_drawing_on_request(tmp_path: Path) -> None:
    result = run("flow", "--svg", tmp_path / "flow.svg", "--ptx")
    assert result.exit_code == 0
    assert ".target sm_100a" in result.stdout
    drawing = (tmp_path / "flow.svg").read_text(encoding="utf-8")
    assert drawing.startswith("<svg") and drawing.count("tcgen05.mma") == 2
    assert "Verified on the virtual b200" in drawing and "cycles predicted for b200" in drawing


@pytest.mark.parametrize("launch", [0, 1], ids=["known", "random"])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_one_wrong_element_is_status_1(launch: int, form: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """D is wrong in one element, by 1e-4, in one of the two launches."""
    results: list[np.ndarray] = []

    def wrong(right: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def launched(*args: Any) -> np.ndarray:
            results.append(right(*args))
            if len(results) == launch + 1:
                results[-1][77, 5] += 1e-4
            return results[-1]

        return launched

    flow = importlib.import_module("warpwright.cli.flow")
    monkeypatch.setattr(flow, "run", wrong(flow.run))
    result = run("flow", *form)
    assert len(results) == 2 and result.exit_code == 1
    if form:
        assert json.loads(result.stdout)["verified"] is False
    else:
        assert result.stdout.splitlines()[-1].startswith("NOT verified on the virtual b200: D[0, ·] = 20.1592")


@pytest.mark.parametrize(("name", "where"), [("gb200", "the virtual gb200"), ("cuda:0", "cuda:0")])
def test_only_a_virtual_gpu_is_called_virtual(name: str, where: str) -> None:
    flow = importlib.import_module("warpwright.cli.flow")
    result = {"verified": True, "d_row0": 20.1592, "d_row1": 20.7993, "random": {"max_err": 1e-5}}
    assert flow.conclusion(SimpleNamespace(name=name), result) == (
        f"Verified on {where}: D[0, ·] = 20.1592, D[1, ·] = 20.7993; "
        "random A and B differ from float64 by at most 1e-05"
    )


def test_check_finds_the_memory_flow_clean_and_right() -> None:
    report = json.loads(run("check", "memory_flow", "--json").stdout)
    assert (report["verdict"], report["kernel"], report["result"]["verified"]) == ("clean", "memory_flow", True)
    assert report["result"]["max_err"] < 1e-4
    assert "memory_flow on gb200: clean" in run("check", "memory_flow", "--device", "gb200").stdout


def test_profile_predicts_the_memory_flow_and_verifies_a_full_run() -> None:
    fast, full = (json.loads(run("profile", "memory_flow", *how, "--json").stdout) for how in ([], ["--full"]))
    assert (fast["kernel"], fast["grid"], fast["flops"]) == ("memory_flow", [1, 1, 1], 2 * 128 * 128 * 64)
    assert (fast["cycles"], "verified" in fast, full["verified"]) == (full["cycles"], False, True)


@pytest.mark.parametrize("words", [("check", "memory_flow"), ("profile", "memory_flow", "--full")])
def test_one_wrong_element_of_memory_flow_is_status_1(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"warpwright.cli.{'check' if words[0] == 'check' else 'flow_runs'}")
    error = np.zeros((128, 128), np.float32)
    error[127, 0] = 1e-4
    judge = module.judge
    monkeypatch.setattr(module, "judge", lambda d, a, b: judge(d + error, a, b))
    result = run(*words)
    assert (result.exit_code, result.stderr) == (1, WRONG)


@pytest.mark.parametrize("command", ["check", "profile"])
@pytest.mark.parametrize(
    "option", [("--size", 256), ("--level", 3), ("--grid", 4), ("--arg", 1), ("--causal",)], ids=lambda words: words[0]
)
def test_options_of_other_kernels_are_refused(command: str, option: tuple[object, ...]) -> None:
    result = run(command, "memory_flow", *option)
    sentence = f"given {option[0]}; the option does not apply to memory_flow; leave it out"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"warpwright: error: {sentence}\n")
