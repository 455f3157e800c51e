"""CTAs that exit before the last use of their memory."""

from __future__ import annotations

import pytest

import warpwright as ww
from tests.races.corpus.tensor import operands
from tests.races.parts import ctas, prepare
from warpwright.lang import If, elect_one, f32, kernel, mbarrier, tcgen05, tmem, warp
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.rules import EVIDENCE


@kernel("sm_100a", cluster=2, threads=128)
def exit_of_a_pair(*, released_first: bool = True, waits: bool = False) -> None:
    """The leader's commits reach both CTAs; both wait for `done` and exit, for `released` only if `waits`."""
    (a, b), acc = operands(128, 32), tmem.tile(f32, (128, 64), cta_group=2)
    done, released = mbarrier(1, name="done"), mbarrier(1, name="released")
    prepare((a, b), done, released)
    with If((ctas.rank == 0) & (warp.id == 0) & elect_one()):
        tcgen05.mma(acc, a, b, accumulate=False, cta_group=2)
        for barrier in (released, done) if released_first else (done, released):
            tcgen05.commit(barrier, cta_group=2, multicast=3)
    done.wait(0)
    if waits:
        released.wait(0)
    tcgen05.fence_before_thread_sync()
    ctas.sync()
    tcgen05.fence_after_thread_sync()
    with If(warp.id == 1):
        tmem.dealloc()
    ctas.sync()


def check(strict: bool = False, **options: bool) -> Verdict:
    return ww.check(exit_of_a_pair.configure(**options), grid=2, strict=strict)


def test_a_commit_that_nobody_waits_for_before_one_that_the_cta_waits_for() -> None:
    (note,) = check().notes
    assert (note.rule.id, note.evidence) == ("exit-early", EVIDENCE["commits"])
    assert [finding.rule.id for finding in check(strict=True).findings] == ["exit-early"]
    assert check(strict=True, waits=True).kind == "clean"


@pytest.mark.parametrize("strict", [True, False])
def test_a_commit_after_the_one_that_the_cta_waits_for(strict: bool) -> None:
    assert [finding.rule.id for finding in check(strict, released_first=False).findings] == ["exit-early"]
