"""Flags in shared memory order other accesses, as far as their semantics and scopes reach."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text

# Thread 0 of warp 0 writes data and sets a flag; warp 1 waits for the flag and reads the data.
PASS = """
  .shared .align 8 .b32 data[32], flag[2];
  setp.ne.u32 %p0, %t, 0; @%p0 bra READY; st.shared.u32 [flag], 0; st.shared.u32 [flag+4], 0;
READY: bar.sync 0; setp.eq.u32 %p1, %warp, 1; @%p1 bra TAKE;
  @%p0 ret; st.shared.u32 [data], 7; {give} ret;
TAKE: {take} @!%p2 bra TAKE; {after} ld.shared.u32 %r4, [data]; ret;
"""
TAKE = "ld.{}.shared.u32 %r3, [flag]; setp.eq.u32 %p2, %r3, 1;"
ORDERED = {
    "release": ("st.release.cta.shared.u32 [flag], 1;", TAKE.format("acquire.cta"), ""),
    "fences": ("fence.acq_rel.cta; st.relaxed.cta.shared.u32 [flag], 1;", TAKE.format("relaxed.cta"), "fence.sc.cta;"),
    "volatile": ("membar.cta; st.volatile.shared.u32 [flag], 1;", TAKE.format("volatile"), "membar.cta;"),
    "fence and acquire": ("membar.gl; st.relaxed.gpu.shared.u32 [flag], 1;", TAKE.format("acquire.sys"), ""),
    "generic": ("cvta.shared.u64 %d2, flag; st.release.gpu.u32 [%d2], 1;", TAKE.format("acquire.gpu"), ""),
    "red": ("red.release.cta.shared.add.u32 [flag], 1;", TAKE.format("acquire.cta"), ""),
    "atom": ("fence.sc.cta; atom.shared.exch.b32 %r3, [flag], 1;", TAKE.format("relaxed.cta"), "fence.sc.cta;"),
    "read by atom": (
        "st.release.cta.shared.u32 [flag], 1;",
        "atom.acquire.cta.shared.cas.b32 %r3, [flag], 1, 1; setp.eq.u32 %p2, %r3, 1;",
        "",
    ),
    "release sequence": (
        "st.release.cta.shared.u32 [flag], 2; red.relaxed.cta.shared.add.u32 [flag], -1;",
        TAKE.format("acquire.cta"),
        "",
    ),
}  # fmt: skip
UNORDERED = {
    "relaxed": ("st.relaxed.cta.shared.u32 [flag], 1;", TAKE.format("acquire.cta"), ""),
    "no fence": ("st.release.cta.shared.u32 [flag], 1;", TAKE.format("relaxed.cta"), ""),
    "fence before": ("st.volatile.shared.u32 [flag], 1; membar.cta;", TAKE.format("volatile"), "membar.cta;"),
    "other flag": (
        "st.release.cta.shared.u32 [flag+4], 1; st.relaxed.cta.shared.u32 [flag], 1;",
        TAKE.format("acquire.cta"),
        "",
    ),
    "overwritten": (
        "st.release.cta.shared.u32 [flag], 2; st.relaxed.cta.shared.u32 [flag], 1;",
        TAKE.format("acquire.cta"),
        "",
    ),
}


def findings(body: str, grid: int = 1, threads: int = 64, heads: str = "") -> list[tuple[str, ...]]:
    """Returns the rules of the findings, each with the opcodes of its two instructions."""
    words = np.zeros(128, np.uint32)
    kernel = ww.load_ptx(text(body, (words,), target="sm_90a", heads=heads))["k"]
    verdict = ww.check(kernel, args=[words], grid=grid, block=threads, device="h200", limit=100_000)
    return [(found.rule.id, *(step.opcode for step in found.steps)) for found in verdict.findings]


@pytest.mark.parametrize("name", ORDERED)
def test_a_flag_orders_what_was_before_it(name: str) -> None:
    give, take, after = ORDERED[name]
    assert findings(PASS.format(give=give, take=take, after=after)) == []


@pytest.mark.parametrize("name", UNORDERED)
def test_a_flag_that_does_not_release_and_acquire_orders_nothing(name: str) -> None:
    give, take, after = UNORDERED[name]
    assert findings(PASS.format(give=give, take=take, after=after)) == [("race", "st.shared.u32", "ld.shared.u32")]


def test_a_weak_flag_is_a_race_itself() -> None:
    give, take = "membar.cta; st.shared.u32 [flag], 1;", TAKE.format("volatile")
    found = findings(PASS.format(give=give, take=take, after="membar.cta;"))
    assert ("race", "st.shared.u32", "ld.volatile.shared.u32") in found


# Every warp's first lane adds to a sum under a lock.
LOCK = """
  .shared .align 8 .b32 sum, lock;
  setp.ne.u32 %p0, %t, 0; @%p0 bra READY; st.shared.u32 [sum], 0; st.shared.u32 [lock], 0;
READY: bar.sync 0; setp.ne.u32 %p1, %lane, 0; @%p1 bra DONE;
AGAIN: {lock} setp.ne.u32 %p2, %r3, 0; @%p2 bra AGAIN; {locked}
  ld.shared.u32 %r4, [sum]; add.u32 %r4, %r4, 1; st.shared.u32 [sum], %r4; {unlock}
DONE: bar.sync 0; ld.shared.u32 %r4, [sum]; st.global.u32 [%o], %r4; ret;
"""
LOCKS = {
    "acquire and release": (
        "atom.acquire.cta.shared.cas.b32 %r3, [lock], 0, 1;", "", "st.release.cta.shared.u32 [lock], 0;",
    ),
    "fences": (
        "atom.relaxed.cta.shared.exch.b32 %r3, [lock], 1;",
        "fence.acq_rel.cta;",
        "fence.acq_rel.cta; atom.relaxed.cta.shared.exch.b32 %r3, [lock], 0;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_orders_what_it_protects(name: str) -> None:
    lock, locked, unlock = LOCKS[name]
    assert findings(LOCK.format(lock=lock, locked=locked, unlock=unlock), threads=128) == []
    found = findings(LOCK.format(lock=lock, locked=locked, unlock="st.relaxed.cta.shared.u32 [lock], 0;"), threads=128)
    assert {rule for rule, *_ in found} == {"race"}


# The last warp to count reads what all have written; then the counter is used again.
LAST = """
  .shared .align 8 .b32 parts[4], count;
  setp.ne.u32 %p0, %t, 0; @%p0 bra READY; st.shared.u32 [count], 0;
READY: bar.sync 0; mul.lo.u32 %r3, %warp, 4; mov.u32 %r4, parts; add.u32 %r3, %r3, %r4;
  setp.ne.u32 %p1, %lane, 0; @%p1 ret; st.shared.u32 [%r3], %warp;
  {count} %r5, [count], 1; setp.ne.u32 %p2, %r5, 3; @%p2 ret;
  ld.shared.v4.u32 {{%r6, %r7, %r8, %r9}}, [parts]; st.shared.u32 [count], 0; ret;
"""


def test_the_last_of_several_sees_what_the_others_did() -> None:
    assert findings(LAST.format(count="atom.acq_rel.cta.shared.add.u32"), threads=128) == []
    assert findings(LAST.format(count="fence.acq_rel.cta; atom.shared.add.u32"), threads=128) == []
    found = findings(LAST.format(count="atom.acquire.cta.shared.add.u32"), threads=128)
    assert ("race", "st.shared.u32", "ld.shared.v4.u32") in found


# All threads write and fence; after a barrier one of them sets the flag.
TOGETHER = """
  .shared .align 8 .b32 data[32], flag; setp.ne.u32 %p0, %t, 0; @%p0 bra READY; st.shared.u32 [flag], 0;
READY: bar.sync 0; setp.ge.u32 %p1, %t, 32; @%p1 bra TAKE;
  shl.b32 %r3, %t, 2; mov.u32 %r4, data; add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], 7; {fence} bar.warp.sync -1;
  @%p0 ret; st.volatile.shared.u32 [flag], 1; ret;
TAKE: ld.acquire.cta.shared.u32 %r3, [flag]; setp.ne.u32 %p2, %r3, 1; @%p2 bra TAKE; ld.shared.u32 %r4, [data+124]; ret;
"""


def test_a_fence_before_a_barrier_counts_for_a_write_after_it() -> None:
    assert findings(TOGETHER.format(fence="membar.cta;")) == []
    assert findings(TOGETHER.format(fence="")) == [("race", "st.shared.u32", "ld.shared.u32")]


# CTA 0 of a cluster writes to CTA 1 and sets a flag there; CTA 1 answers when it has read the data, which CTA 0 then
# overwrites.
PEERS = """
  .shared .align 8 .b32 data, flag, answer;
  setp.ne.u32 %p0, %r2, 0; @%p0 bra READY; st.shared.u32 [flag], 0; st.shared.u32 [answer], 0;
READY: barrier.cluster.arrive; barrier.cluster.wait; @%p0 bra DONE;
  mov.u32 %r3, %cluster_ctarank; mapa.shared::cluster.u32 %r4, data, 1; mapa.shared::cluster.u32 %r5, flag, 1;
  mapa.shared::cluster.u32 %r6, answer, 0; setp.eq.u32 %p1, %r3, 1; @%p1 bra TAKE;
  st.shared::cluster.u32 [%r4], 7; st.release.{scope}.shared::cluster.u32 [%r5], 1;
BACK: ld.acquire.cluster.shared.u32 %r7, [answer]; setp.ne.u32 %p2, %r7, 1; @%p2 bra BACK;
  st.shared::cluster.u32 [%r4], 8; bra DONE;
TAKE: ld.acquire.{scope}.shared.u32 %r7, [flag]; setp.ne.u32 %p2, %r7, 1; @%p2 bra TAKE;
  ld.shared.u32 %r7, [data]; st.{answer}.cluster.shared::cluster.u32 [%r6], 1;
DONE: barrier.cluster.arrive; barrier.cluster.wait; ret;
"""


@pytest.mark.parametrize(
    ("scope", "answer", "expected"),
    [
        ("cluster", "release", []),
        ("gpu", "release", []),
        (
            "cta",
            "release",
            [
                ("race", "st.release.cta.shared::cluster.u32", "ld.acquire.cta.shared.u32"),
                ("race", "st.shared::cluster.u32", "ld.shared.u32"),
            ],
        ),
        ("cluster", "relaxed", [("race", "ld.shared.u32", "st.shared::cluster.u32")]),
    ],
)
def test_flags_of_other_ctas_need_the_scope_of_the_cluster(
    scope: str, answer: str, expected: list[tuple[str, ...]]
) -> None:
    body, heads = PEERS.format(scope=scope, answer=answer), ".explicitcluster .reqnctapercluster 2, 1, 1"
    assert findings(body, grid=2, threads=32, heads=heads) == expected


# All threads add to a sum, which a bulk copy then stores.
STORED = """
  .shared .align 16 .b32 sums[4]; setp.ne.u32 %p0, %t, 0; @%p0 bra READY;
  st.shared.v4.u32 [sums], {{%t, %t, %t, %t}};
READY: bar.sync 0; red.shared.add.u32 [sums], 1; {fence} bar.sync 0; @%p0 ret;
  cp.async.bulk.global.shared::cta.bulk_group [%a0], [sums], 16;
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;
"""


def test_a_proxy_fence_covers_atomic_operations() -> None:
    assert findings(STORED.format(fence="fence.proxy.async.shared::cta;")) == []
    found = findings(STORED.format(fence=""))
    assert ("proxy-fence", "red.shared.add.u32", "cp.async.bulk.global.shared::cta.bulk_group") in found


def test_a_flag_in_global_memory_orders_shared_memory() -> None:
    for names, expected in ((("release", "acquire"), 0), (("relaxed", "acquire"), 1), (("release", "relaxed"), 1)):
        give, take = (f"{op}.{name}.gpu.global.u32" for op, name in zip(("st", "ld"), names, strict=True))
        body = PASS.format(give=f"{give} [%a0+4], 1;", take=f"{take} %r3, [%a0+4]; setp.eq.u32 %p2, %r3, 1;", after="")
        assert len(findings(body)) == expected
