"""The command ``profile``: its arguments for the engine, output, files and errors."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.report import timelines
from tests.report.test_trace import SCHEMA
from tests.run.test_launch_file import SCALE
from warpwright.cli import main
from warpwright.lang.trace import Traced

LAUNCH = """
kernel = "scale.ptx"
grid = [3, 1, 1]
block = 64
device = "rtx5090"

[[args]]
value = 32
[[args]]
value = 2.0
[[args]]
shape = [32]
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, words)])


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of the engine, which returns a fixed profile and computes nothing."""
    asked: list[dict[str, Any]] = []

    def engine(kernel, grid, block=None, cluster=None, smem=None, args=(), device=None, fast=True, **how):
        asked.append({"kernel": kernel, "grid": grid, "block": block, "cluster": cluster, "smem": smem, "args": args})
        asked[-1] |= {"device": getattr(device, "name", device), "fast": fast, **how}
        state = {"fast": fast, "warm": how.get("warm", False)}
        return replace(timelines.profile(wasted=0.5), kernel=getattr(kernel, "name", "gemm"), **state)

    monkeypatch.setattr(importlib.import_module("warpwright.run.profile"), "profile", engine)
    return asked


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "scale.ptx").write_text(SCALE)
    (tmp_path / "launch.toml").write_text(LAUNCH)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_gemm_profiles_the_level_that_it_is_told(calls) -> None:
    result = run("gemm", "--level", 3, "--size", 256)
    assert result.exit_code == 0, result.output
    (call,) = calls
    assert isinstance(call["kernel"], Traced)
    assert (
        call["grid"] == (8, 1, 1) and call["kernel"].cluster == (2, 1, 1) and call["device"] == "b200" and call["fast"]
    )
    assert "gemm level 3, 256 × 256 × 256 on b200, predicted (one representative wave)" in result.stdout
    assert "waits ab.full" in result.stdout and "wasted work (up to 2.0 times as fast)" in result.stdout


def test_gemm_takes_three_extents_and_another_device(calls) -> None:
    assert run("gemm", "--size", "128x256x64", "--device", "h200").exit_code == 0
    assert calls[0]["device"] == "h200"
    shapes = sorted(each.array.shape for each in calls[0]["args"][:2])
    assert shapes == [(128, 64), (256, 64)]


@pytest.mark.parametrize("name", ["sustained", "warm"])
def test_the_state_of_the_board_reaches_the_engine(calls, folder, name) -> None:
    for words in (("gemm", "--size", 64), ("launch.toml",)):
        assert run(*words).exit_code == run(*words, f"--{name}").exit_code == 0
    assert [call[name] for call in calls] == [False, True, False, True]


def test_a_warm_profile_says_so(calls) -> None:
    result = run("gemm", "--level", 3, "--size", 256, "--warm")
    assert "on b200, predicted (one representative wave, in a warm loop)" in result.stdout


def test_json_holds_the_profile_its_parts_and_the_advice(calls) -> None:
    value = json.loads(run("gemm", "--level", 3, "--size", 128, "--json").stdout)
    assert (
        value["kernel"] == "gemm level 3, 128 × 128 × 128"
        and value["usage"]["tensor"] == 0.29
        and len(value["roles"]) == 3
    )
    assert sum(value["parts_us"].values()) == pytest.approx(value["time_us"])
    assert value["advice"][0].keys() == {"topic", "text", "where", "gain"}
    assert "verified" not in value


def test_a_full_run_is_verified_and_a_wrong_result_is_a_finding(calls) -> None:
    result = run("gemm", "--level", 3, "--size", 128, "--full")
    assert "the result, against float64" in result.stdout
    assert result.exit_code == 1  # the engine of this test leaves D empty
    assert (
        "warpwright: not verified: the result differs from the float64 reference by more than the bound"
        in result.stderr
    )


def test_trace_and_plot_are_written(calls, folder) -> None:
    assert run("gemm", "--size", 128, "--trace", "t.json", "--plot", "t.svg", "--html", "t.html").exit_code == 0
    assert "<h1>gemm, 128 × 128 × 128 on b200, predicted</h1>" in (folder / "t.html").read_text(encoding="utf-8")
    assert json.loads((folder / "t.json").read_text())["traceEvents"]
    assert (folder / "t.svg").read_text().startswith("<?xml")


def test_a_real_run_names_barriers_slots_and_waste(folder) -> None:
    """The engine itself, on both families."""
    words = ("--size", 512, "--trace", "t.json", "--plot", "t.svg", "--json")
    blackwell, hopper = (
        json.loads(run("gemm", *more, *words).stdout) for more in (("--level", 3), ("--level", 8, "--device", "h200"))
    )
    stalls = {(role["name"], stall["reason"]) for role in blackwell["roles"] for stall in role["stalls"]}
    assert {("mma", "waits ab.full"), ("loads", "waits ab.empty")} <= stalls
    assert blackwell["wasted_flops"] == blackwell["flops"] / 2 and hopper["wasted_flops"] == 0
    assert "wasted work" in [hint["topic"] for hint in blackwell["advice"]]
    tracks = {span["track"] for span in hopper["spans"]}
    assert {"load", "multiply", "TMA", "tensor core", "ab[0]", "ab[3]"} <= tracks
    events = json.loads((folder / "t.json").read_text())
    jsonschema.validate(events, SCHEMA)
    assert [event for event in events["traceEvents"] if event["ph"] == "s"]


def test_a_full_run_computes_what_a_fast_one_predicts() -> None:
    fast, full = (
        json.loads(run("gemm", "--level", 7, "--size", 256, mode, "--json").stdout) for mode in ("--fast", "--full")
    )
    assert full["verified"] and full["time_us"] == pytest.approx(fast["time_us"], rel=0.03)


def test_a_ptx_file_with_its_launch_in_words(calls, folder) -> None:
    words = ("--grid", "4", "--block", "64,2", "--arg", "32", "--arg", "2.5", "--arg", "f32[32]", "--device", "h200")
    assert run("scale.ptx", *words).exit_code == 0
    (call,) = calls
    assert (call["kernel"].name, call["grid"], call["block"], call["device"]) == ("scale", (4,), (64, 2), "h200")
    number, factor, array = call["args"]
    assert (number, factor) == (32, 2.5) and array.shape == (32,) and array.dtype == np.float32


def test_a_launch_file(calls, folder) -> None:
    assert run("launch.toml").exit_code == 0
    assert (calls[0]["grid"], calls[0]["block"], calls[0]["device"]) == ([3, 1, 1], 64, "rtx5090")
    assert run("launch.toml", "--device", "h200").exit_code == 0
    assert calls[1]["device"] == "h200"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["other"], "given other; expected gemm, attention, memory_flow, a PTX file (.ptx) or a launch file (.toml)"),
        (["scale.ptx"], "given scale.ptx without --grid; expected the CTAs of the launch, such as --grid 148"),
        (["scale.ptx", "--grid", "a"], "given --grid a; expected a number, or up to three: grid 4,2,1"),
        (
            ["scale.ptx", "--grid", 1, "--level", 2],
            "given --level; the option does not apply to scale.ptx; leave it out",
        ),
        (["launch.toml", "--block", 32], "given --block; the option does not apply to launch.toml; leave it out"),
        (["gemm", "--grid", 32], "given --grid; the option does not apply to gemm; leave it out"),
        (
            ["gemm", "--size", "12x3"],
            "given --size 12x3; expected M = N = K such as 4096, or MxNxK such as 4096x512x8192",
        ),
        (
            ["gemm", "--size", 128, "--html", "no/t.html"],
            "cannot write no/t.html: No such file or directory; name a file in a folder that exists",
        ),
        (["gemm", "--plot", "t.jpg"], "given --plot t.jpg; expected a file name that ends with .svg, .png, .pdf"),
        (
            ["gemm", "--size", 128, "--trace", "no/t.json"],
            "cannot write no/t.json: No such file or directory; name a file in a folder that exists",
        ),
    ],
)
def test_mistakes_are_one_line_and_status_2(calls, folder, words, sentence) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"warpwright: error: {sentence}\n"
