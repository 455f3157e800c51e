"""``check`` of kernels that stop: the cycle as it is printed, in JSON and SARIF; schedules, and how to replay one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from warpwright.cli import main

KERNEL = """
from warpwright.lang import If, bar, kernel, loop, mbarrier, role, tid, u32, warp


@kernel("sm_90a", threads=96)
def turns(count: u32, *, first: int = 1, all_heard: bool = False):
    full, empty = mbarrier(1, name="full"), mbarrier(2 if all_heard else 1, name="empty")
    with If(tid.x == 0):
        full.init()
        empty.init()
    bar.sync()

    @role(warp=0, elect=True)
    def signal():
        for turn in loop(count):
            empty.wait((turn & 1) ^ first)
            full.arrive()

    @role(warps=(1, 2), elect=True)
    def watch():
        for turn in loop(count):
            full.wait(turn & 1)
            with If((warp.id == 1) | all_heard):
                empty.arrive()
"""
LAUNCH = 'kernel = "turns.py:turns"\ngrid = 1\nexplore = {}\n[config]\n{}\n[[args]]\nvalue = 5\n'


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, words)])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "turns.py").write_text(KERNEL)
    for name, explore, config in (("stuck", 0, "first = 0"), ("lapped", 0, ""), ("heard", 12, "all_heard = true")):
        (tmp_path / f"{name}.toml").write_text(LAUNCH.format(explore, config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cycle_is_seen_at_a_glance(folder) -> None:
    result = run("stuck.toml")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "turns on h200: findings; 31 of 41 instructions reached",
        "",
        "1. deadlock: no thread can go on, and nothing is in flight",
        "   3 warps of CTA 0 wait; the launch of 1 CTA ended there",
        "   A  signal, CTA 0, warp 0 (1 thread) waits for phase 0 (parity 0) of empty",
        "         turns.py:16  empty.wait((turn & 1) ^ first)",
        "         PTX line 44: mbarrier.try_wait.parity.shared::cta.b64",
        "      empty: offset 0x408 of CTA 0, initialised at turns.py:10",
        "      phase 0 is open; it lacks 1 of 1 arrivals",
        "      arrives there",
        "         turns.py:24  empty.arrive()",
        "            not executed; warp 1 waits at B",
        "   B  watch, CTA 0, warps 1-2 (1 thread each) wait for phase 0 (parity 0) of",
        "      full",
        "         turns.py:22  full.wait(turn & 1)",
        "         PTX line 71: mbarrier.try_wait.parity.shared::cta.b64",
        "      full: offset 0x400 of CTA 0, initialised at turns.py:9",
        "      phase 0 is open; it lacks 1 of 1 arrivals",
        "      arrives there",
        "         turns.py:17  full.arrive()",
        "            not executed; warp 0 waits at A",
        "   cycle: signal → empty → watch → full → signal",
        "   last operation of each warp",
        "      warp 0 waits at A: turns.py:11  bar.sync()",
        "      warps 1-2 wait at B: turns.py:11  bar.sync()",
        "   Repair: let the role that starts pass its first wait: on a fresh mbarrier parity 1 passes, parity 0 waits "
        "(PTX ISA 9.7.13.15)",
    ]


def test_json_and_sarif_have_the_waits(folder) -> None:
    (finding,) = json.loads(run("stuck.toml", "--json", "--sarif", "found.sarif").stdout)["findings"]
    assert [each["warps"] for each in finding["hang"]["blocked"]] == [[0], [1, 2]]
    assert [(step["role"], step["cta"], step["thread"]) for step in finding["steps"]] == [
        ("signal", [0, 0, 0], 0),
        ("watch", [0, 0, 0], 32),
    ]
    (result,) = json.loads((folder / "found.sarif").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 16}
    assert "Cycle: signal → empty → watch → full → signal" in result["message"]["text"]


def test_what_a_schedule_shows_says_how_to_run_it_again(folder) -> None:
    assert "deadlock" not in run("lapped.toml").stdout
    text = run("lapped.toml", "--off", "race", "--explore", 12).stdout
    (line,) = (line for line in text.splitlines() if line.startswith("   Replay: "))
    command = line.removeprefix("   Replay: warpwright ").split()
    assert command[:-1] == ["check", "lapped.toml", "--off", "race", "--seed"]
    head = "turns on h200: findings; 42 of 42 instructions reached"
    assert text.startswith(f"{head}; 13 schedules with 6 orders of synchronisation\n")
    again = CliRunner().invoke(main, command).stdout
    assert again.startswith(
        f"turns on h200: findings; 42 of 42 instructions reached; the schedule of seed {command[-1]}"
    )
    assert [text[text.index("deadlock:") :]] == [again[again.index("deadlock:") :]]


def test_a_launch_file_says_how_many_schedules_run(folder) -> None:
    result = run("heard.toml")
    assert (result.exit_code, result.stdout) == (
        0,
        "turns on h200: clean; 41 of 41 instructions reached; 13 schedules with 1 order of synchronisation\n",
    )
    assert json.loads(run("heard.toml", "--explore", 2, "--seed", 7, "--json").stdout)["seeds"] == [7, 8]
    assert json.loads(run("heard.toml", "--explore", 0, "--json").stdout)["seeds"] == [0]


def test_a_limit_makes_an_endless_kernel_incomplete(folder) -> None:
    """The loop counts down from four thousand million."""
    text = (
        "from warpwright.lang import *\n\n\n@kernel('sm_90a', threads=32)\ndef long(n: u32):\n    left = var(u32, n)\n"
    )
    text += "    for _ in loop():\n        left.set(left - 1)\n        Break(when=left == 0)\n"
    (folder / "long.py").write_text(text)
    (folder / "long.toml").write_text('kernel = "long.py:long"\ngrid = 1\n[[args]]\nvalue = 4000000000\n')
    result = run("long.toml", "--limit", 100_000)
    assert result.exit_code == 3
    assert "Incomplete: kernel long did not end within 100,000 jumps of a warp; give" in result.stdout
