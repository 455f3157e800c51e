"""`virtual` and ``warpwright run`` in a process without the libraries of others: kernels of the language."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import warpwright as ww
from warpwright.cli import main
from warpwright.interop import virtual
from warpwright.lang import Global, If, ctaid, f32, kernel, ntid, tid, u32


@kernel("sm_90a", threads=128)
def double(x: Global[f32], count: u32) -> None:
    i = ctaid.x * ntid.x + tid.x
    with If(i < count):
        x[i] = x[i] * 2.0


@kernel("sm_90a", threads=128)
def mark(x: Global[f32]) -> None:
    x[0] = 1.0  # by all warps: a note in the PTX of others


SCRIPT = """
import sys
import numpy as np
from tests.interop.test_virtual import double

x = np.ones(1000, np.float32)
double[8](x, 1000)
assert (x == 2).all()
print(sys.argv[1])
{last}
"""


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_is_installed", {"triton"}.__contains__)  # without torch nothing runs on it
    monkeypatch.setattr(virtual, "_open", lambda *given: None)


def test_launches_are_run_checked_and_predicted() -> None:
    x = np.ones(1000, np.float32)
    with ww.virtual("h200", check=True, profile=True) as session:
        double[8](x, 1000)
        ww.launch(double, 8, args=[x, 1000], device="cuda:0")  # the session takes the place of a real GPU
        ww.launch(double, 8, args=[x, 1000], device="gh200")
        with pytest.raises(ww.LaunchError, match="device b200 is sm_100a: compile it for that, or launch it on device"):
            ww.launch(double, 8, args=[x, 1000], device="b200")
    double[8](x, 1000)
    assert (x == 16).all()
    assert [(each.name, each.grid, each.verdict.device) for each in session.launches] == [
        ("double", (8, 1, 1), "h200"),
        ("double", (8, 1, 1), "h200"),
        ("double", (8, 1, 1), "gh200"),
    ]
    assert all(each.verdict.kind == "clean" and each.time_us > 1 for each in session.launches)


def test_a_kernel_of_the_language_is_checked_strictly_and_ptx_is_not() -> None:
    x = np.zeros(1, np.float32)
    with ww.virtual("h200", check=True) as session:
        mark[1](x)
        ww.load_ptx(mark.ptx())["mark"][1](x)
    assert [each.verdict.kind for each in session.launches] == ["findings", "notes"]


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(last=""))
    found = tmp_path / "found.json"
    asked = ["run", "--device", "h200", "--check", "--profile", "--json", str(found), str(script), "word"]
    done = CliRunner().invoke(main, asked)
    assert (done.exit_code, done.stdout) == (0, "word\n"), done.stderr
    kernels = json.loads(found.read_text())["kernels"]
    assert [(each["kernel"], each["launches"], each["verdict"]) for each in kernels] == [("double", 1, "clean")]


def test_a_script_that_fails_shows_its_own_frames(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(last="raise ValueError('no')"))
    done = CliRunner().invoke(main, ["run", "--device", "h200", str(script), "word"])
    assert done.exit_code == 1
    assert done.stderr == (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 10, in <module>\n'
        "    raise ValueError('no')\n"
        "ValueError: no\n"
    )
