"""Collective instructions of a warp whose members have exited, or that lanes execute which are no members."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright.vgpu.checks.findings import Verdict

START = "mov.u32 %r5, %laneid; setp.ge.u32 %p0, %r5, 16;"
EXIT, SKIP = "@%p0 ret;", "@%p0 bra END;"
ALL, HALF = "0xffffffff", "0xffff"
STORE = "st.global.u32 [%o], %r4; END: ret;"


def checked(code: str, threads: int = 32) -> Verdict:
    words = np.zeros(64, np.uint32)
    kernel = ww.load_ptx(text(f"mov.u32 %r4, 0; {START}\n{code}\n{STORE}", (words,)))["k"]
    return ww.check(kernel, grid=1, block=threads, args=[words])


@pytest.mark.parametrize(
    "code",
    [
        f"{EXIT}\nshfl.sync.down.b32 %r4, %r5, 16, 31, {ALL};",
        f"{SKIP}\nshfl.sync.down.b32 %r4, %r5, 16, 31, {HALF};",
        f"{SKIP}\nshfl.sync.idx.b32 %r4, %r5, 20, 31, {HALF};",
        f"{EXIT}\nshfl.sync.bfly.b32 %r4, %r5, 16, 31, {ALL};",
    ],
)
def test_a_value_of_an_absent_lane_is_found(code: str) -> None:
    (finding,) = checked(code).findings
    assert finding.rule.id == "inactive-lane" and finding.steps[0].opcode.startswith("shfl.sync")
    assert finding.message == "the lane whose value it takes has exited, or is no member"


@pytest.mark.parametrize("code", ["shfl.sync.idx.b32 %r4, %r5, 0, 31, 0xffff;", "vote.sync.ballot.b32 %r4, %p0, 1;"])
def test_a_lane_that_is_no_member_is_found(code: str) -> None:
    messages = {finding.message for finding in checked(code).findings if finding.rule.id == "inactive-lane"}
    assert messages == {"the lane is not in the member mask that it gives"}


@pytest.mark.parametrize("code", ["bar.warp.sync", "elect.sync %r4|%p1,"])
def test_exited_members_of_a_barrier_are_noted(code: str) -> None:
    verdict = checked(f"{EXIT}\n{code} {ALL};")
    assert verdict.kind == "notes"
    assert [note.message for note in verdict.notes] == ["lane 16 of its member mask has exited"]


@pytest.mark.parametrize(
    ("code", "threads"),
    [
        (f"{EXIT}\nshfl.sync.down.b32 %r4, %r5, 8, 15, {ALL};", 32),
        (f"{SKIP}\nshfl.sync.down.b32 %r4, %r5, 8, 0x100f, {HALF};", 32),
        (f"{EXIT}\nvote.sync.ballot.b32 %r4, %p0, {ALL};", 32),
        (f"bar.warp.sync {ALL};", 16),
    ],
)
def test_lanes_that_only_name_absent_lanes_are_right(code: str, threads: int) -> None:
    assert checked(code, threads).kind == "clean"
