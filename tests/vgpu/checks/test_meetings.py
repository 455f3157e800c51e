"""Lanes that wait for one another in a collective of their warp."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.races.parts import prepare, store_first_sum
from tests.vgpu.helpers import text
from warpwright.lang import Global, If, bf16, elect_one, f32, kernel, mbarrier, smem, tcgen05, tmem, warp

# Warp 1 waits for `bar`, all lanes; its first lane arrives at `bar+8`, for which thread 0 waits.
LOOP = """
  .shared .align 8 .b64 bar[2]; setp.ne.u32 %p0, %t, 0; @%p0 bra READY;
  mbarrier.init.shared.b64 [bar], 1; mbarrier.init.shared.b64 [bar+8], 1;
READY: bar.sync 0; mov.u32 %r3, 0; setp.eq.u32 %p1, %warp, 0; @%p1 bra PRODUCER;
NEXT: and.b32 %r4, %r3, 1;
FULL: mbarrier.try_wait.parity.shared.b64 %p2, [bar], %r4; @!%p2 bra FULL;
  {meeting}
  setp.ne.u32 %p3, %lane, 0; @%p3 bra AFTER; mbarrier.arrive.shared.b64 _, [bar+8];
AFTER: add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 6; @%p3 bra NEXT; ret;
PRODUCER: @%p0 ret;
AGAIN: and.b32 %r4, %r3, 1; xor.b32 %r4, %r4, 1;
EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [bar+8], %r4; @!%p2 bra EMPTY;
  mbarrier.arrive.shared.b64 _, [bar];
  add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 6; @%p3 bra AGAIN; ret;
"""
MEETINGS = [
    "elect.sync _|%p4, -1;",
    "shfl.sync.idx.b32 %r5, %lane, 0, 31, -1;",
    "vote.sync.ballot.b32 %r5, %p2, -1;",
    "redux.sync.add.u32 %r5, %lane, -1;",
    "match.any.sync.b32 %r5, %lane, -1;",
    "mov.u32 %r6, -1; shfl.sync.bfly.b32 %r5, %lane, 1, 31, %r6; elect.sync _|%p4, %r6;",
    "bar.warp.sync -1;",
]
ALONE = ["", "activemask.b32 %r5;"]


def rules(body: str, threads: int = 64) -> set[str]:
    """Returns the rules of findings and notes."""
    kernel = ww.load_ptx(text(body, (np.zeros(64, np.uint32),)))["k"]
    verdict = ww.check(kernel, args=[np.zeros(64, np.uint32)], grid=1, block=threads, device="b200", strict=True)
    return {finding.rule.id for finding in verdict.findings}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_a_lane_that_met_the_others_arrives_for_all(meeting: str) -> None:
    assert rules(LOOP.format(meeting=meeting)) == set()


@pytest.mark.parametrize("meeting", ALONE)
def test_a_lane_alone_does_not(meeting: str) -> None:
    assert rules(LOOP.format(meeting=meeting)) == {"mbarrier-lapped"}


def test_lanes_that_are_no_members_have_not_met() -> None:
    body = LOOP.format(meeting="@!%p3 bra OUT; elect.sync _|%p4, 0xfffffffe; OUT:")
    body = body.replace("FULL:", "setp.ne.u32 %p3, %lane, 0; FULL:", 1)
    assert rules(body) == {"mbarrier-lapped"}


@pytest.mark.parametrize("meeting", MEETINGS[:-1])
def test_a_meeting_orders_no_accesses(meeting: str) -> None:
    """PTX orders the accesses of lanes by bar.warp.sync alone."""
    body = """.shared .align 4 .b32 x[32]; shl.b32 %r3, %lane, 2; mov.u32 %r4, x; add.u32 %r4, %r4, %r3;
      setp.eq.u32 %p2, %lane, 0; st.shared.u32 [%r4], %t; {meeting} xor.b32 %r3, %r3, 4; mov.u32 %r4, x;
      add.u32 %r4, %r4, %r3; ld.shared.u32 %r5, [%r4]; st.global.u32 [%o], %r5; ret;"""
    assert rules(body.format(meeting=meeting), threads=32) == {"race"}


@kernel("sm_100a", threads=128)
def committed(d: Global[f32], *, meets: bool = False) -> None:
    """All lanes of warp 0 wait for `empty`; one of them then commits for `full`, and warp 1 ends the next phase."""
    a_tile, b_tile = smem.tile(bf16, (128, 16), swizzle=32), smem.tile(bf16, (64, 16), swizzle=32)
    sums, full, empty = tmem.tile(f32, (128, 64)), mbarrier(1, name="full"), mbarrier(1, name="empty")
    prepare((a_tile, b_tile), full, empty)
    with If(warp.id == 0):
        with If(warp.lane == 0):
            tcgen05.mma(sums, a_tile, b_tile, accumulate=False)
        empty.wait(1)
        if meets:
            elect_one()
        with If(warp.lane == 0):
            tcgen05.commit(full)
    with If((warp.id == 1) & elect_one()):
        full.wait(0)
        empty.arrive()
    store_first_sum(d, sums, full)


@pytest.mark.parametrize("meets", [True, False])
def test_a_lane_that_met_the_others_commits_for_all(meets: bool) -> None:
    verdict = ww.check(committed.configure(meets=meets), grid=1, args=[np.zeros(128, np.float32)])
    assert {finding.rule.id for finding in verdict.findings} == (set() if meets else {"mbarrier-lapped"}), str(verdict)
    loose = ww.check(committed.configure(meets=meets), grid=1, args=[np.zeros(128, np.float32)], strict=False)
    assert loose.kind == ("clean" if meets else "notes")
