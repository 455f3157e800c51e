"""The report of a hang is one page by source line: each wait, what should have ended it, the last operations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

import warpwright as ww
from tests.races.compile import HANGS, compile_hangs
from tests.samples import sampled
from tests.vgpu.helpers import text
from warpwright.report.findings import verdict_lines
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.hang import Hang, page_lines

IN, OUT = np.zeros(1024, np.int32), np.zeros(4096, np.int32)
RING = "_Z4ringILi{}EEvPKiPiii"

# page: entry, CTAs, threads, arguments
PAGES: dict[str, tuple[Any, ...]] = {
    "too_many_bytes": ("_Z14too_many_bytesPKiPi", 4, 128, [IN, OUT]),
    "wrong_parity": (RING.format(0), 4, 160, [IN, OUT, 4, 0]),
    "early_exit": (RING.format(1), 4, 160, [IN, OUT, 4, 1]),
    "missing_warp": ("_Z12missing_warpPi", 4, 128, [OUT]),
    "missing_peer": ("_Z12missing_peerPi", 4, 64, [OUT]),
    "unset_flag": ("_Z10unset_flagPKiPi", 60, 96, [IN, OUT]),
}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the source: its name in the PTX has no folder."""
    monkeypatch.chdir(HANGS)


@cache
def check(name: str) -> Verdict:
    entry, grid, block, args = PAGES[name]
    return ww.check(ww.load_ptx(HANGS / "hangs.ptx")[entry], grid=grid, block=block, args=args)


def hang_of(verdict: Verdict) -> Hang:
    (found,) = [finding.hang for finding in verdict.findings if finding.hang is not None]
    return found


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_a_hang(name: str, check_golden: Callable[[Path, str], None]) -> None:
    verdict = check(name)
    lines = [Text.from_markup(line).plain for line in verdict_lines(verdict)]
    check_golden(HANGS / f"{name}.txt", "\n".join(lines) + "\n")
    assert str(verdict).count("last operation of each warp") == 1


@pytest.mark.parametrize("name", PAGES)
def test_json_has_the_page(name: str) -> None:
    (found,) = [each["hang"] for each in check(name).as_dict()["findings"] if "hang" in each]
    assert json.loads(json.dumps(found)) and found["blocked"][0]["step"]["ptx_line"]


def test_equal_waits_of_all_ctas_are_one_row() -> None:
    (blocked,) = hang_of(check("unset_flag")).blocked
    assert blocked.ctas == tuple((x, 0, 0) for x in range(60)) and blocked.warps == (0, 1, 2)


MANY = """mov.u32 %r3, bar; shl.b32 %r4, %warp, 3; add.u32 %r3, %r3, %r4;
  setp.eq.u32 %p0, %lane, 0; @%p0 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0;
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
  mbarrier.arrive.shared.b64 _, [%r3]; ret;"""


@sampled("block", [32, 128, 320, 1024], long=[1024])
def test_a_page_has_at_most_60_lines_of_77_columns(block: int) -> None:
    top = ".shared .align 8 .b64 bar[32];"
    kernel = ww.load_ptx(text(MANY, (OUT,), top=top))["k"]
    found = hang_of(ww.check(kernel, grid=8, block=block, cluster=8, args=[OUT]))
    lines = list(page_lines(found))
    assert len(found.blocked) == block // 32
    assert len(lines) <= 60 and max(map(len, lines)) <= 77
    assert lines[0] == f"{block // 4} warps of 8 CTAs wait; the launch of 8 CTAs ended there"


DROPPED = """setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;
  @%p1 mbarrier.arrive_drop.shared.b64 _, [bar];
FIRST: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra FIRST;
SECOND: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 1; @!%p2 bra SECOND; ret;"""


def test_a_phase_without_arrivals() -> None:
    kernel = ww.load_ptx(text(DROPPED, (OUT,), top=".shared .align 8 .b64 bar;"))["k"]
    (found,) = ww.check(kernel, grid=1, block=32, args=[OUT]).findings
    state = "never ends: arrive_drop has dropped all arrivals"
    assert f"bar: phase 1 {state}; no thread that could still run arrives at it" in found.message.splitlines()
    assert f"phase 1 is open; it {state}" in [line.strip() for line in str(found).splitlines()]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_the_ptx_is_that_of_the_source(tmp_path: Path) -> None:
    compile_hangs(tmp_path / "hangs.ptx")
    new, stored = ((folder / "hangs.ptx").read_text().splitlines()[6:] for folder in (tmp_path, HANGS))
    assert new == stored
