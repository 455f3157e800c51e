"""Locks that threads acquire in different orders, found from the default schedule, which does not deadlock."""

from __future__ import annotations

import re
from itertools import count

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright.vgpu.checks.findings import Verdict

CAS = "{n}: atom.acquire.cta.shared.cas.b32 %r3, [{x}], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra {n};"
GIVE = "st.release.cta.shared.u32 [{x}], 0;"
WAYS = {  # to acquire a lock, and to release it
    "cas": (CAS, GIVE),
    "exch": (
        "{n}: atom.relaxed.cta.shared.exch.b32 %r3, [{x}], 1; membar.cta; setp.ne.u32 %p2, %r3, 0; @%p2 bra {n};",
        "membar.cta; atom.relaxed.cta.shared.exch.b32 %r3, [{x}], 0;",
    ),
    "with a load first": (
        "{n}: ld.relaxed.cta.shared.u32 %r3, [{x}]; setp.ne.u32 %p2, %r3, 0; @%p2 bra {n};"
        "atom.acquire.cta.shared.cas.b32 %r3, [{x}], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra {n};",
        GIVE,
    ),
    "with a pause": (
        "mov.u32 %r9, 8; {n}: atom.acquire.cta.shared.cas.b32 %r3, [{x}], 0, 1; setp.eq.u32 %p2, %r3, 0;"
        "@%p2 bra {n}E; nanosleep.u32 %r9; add.u32 %r9, %r9, %r9; bra {n}; {n}E:",
        GIVE,
    ),
    "through a shuffle": (
        "{n}: atom.acquire.cta.shared.cas.b32 %r3, [{x}], 0, 1; shfl.sync.idx.b32 %r3, %r3, 0, 31, 1;"
        "setp.ne.u32 %p2, %r3, 0; @%p2 bra {n};",
        GIVE,
    ),
    "through memory": (
        "{n}: atom.acquire.cta.shared.cas.b32 %r3, [{x}], 0, 1; st.shared.u32 [told], %r3; ld.shared.u32 %r4, [told];"
        "setp.ne.u32 %p2, %r4, 0; @%p2 bra {n};",
        GIVE,
    ),
    "by number": (
        "{n}: add.u32 %r8, %t, 1; atom.acquire.cta.shared.cas.b32 %r3, [{x}], 0, %r8; setp.ne.u32 %p2, %r3, 0;"
        "@%p2 bra {n};",
        GIVE,
    ),
}  # fmt: skip
# One lane each of up to three warps, in CTAs of one warp or more.
BODY = """
  .shared .align 8 .b32 a, b, c, told;
  setp.ne.u32 %p0, %r2, 0; @%p0 bra READY;
  st.shared.u32 [a], 0; st.shared.u32 [b], 0; st.shared.u32 [c], 0; st.shared.u32 [told], 0;
READY: bar.sync 0; setp.ne.u32 %p1, %lane, 0; @%p1 bra DONE;
  setp.eq.u32 %p1, %warp, 1; @%p1 bra ONE; setp.eq.u32 %p1, %warp, 2; @%p1 bra TWO;
  {0} bra DONE;
ONE: {1} bra DONE;
TWO: {2}
DONE: {end} ret;
"""


def steps(order: str, way: str = "cas", **words: str) -> str:
    """Returns code: ``+a`` acquires a lock, ``-a`` releases it; other words are code of ``words``."""
    numbers, found = count(), []
    take, give = WAYS[way]
    for word in order.split():
        form = take if word[0] == "+" else give if word[0] == "-" else words[word]
        found.append(form.format(x=word[1:], n=f"L{next(numbers)}"))
    return " ".join(found)


def check(*orders: str, way: str = "cas", seed: int = 0, **words: str) -> Verdict:
    """Returns the verdict on warps that acquire locks in these orders."""
    codes = [re.sub(r"\bL\d+", rf"\g<0>_{warp}", steps(order, way, **words)) for warp, order in enumerate(orders)]
    kernel = ww.load_ptx(text(BODY.format(*codes, *[""] * 3, end=""), (WORDS,), target="sm_90a"))["k"]
    return ww.check(kernel, args=[WORDS], grid=1, block=32 * len(orders), device="h200", seed=seed, limit=100_000)


WORDS = np.zeros(128, np.uint32)


@pytest.mark.parametrize("way", WAYS)
def test_two_orders_of_two_locks_are_found(way: str) -> None:
    verdict = check("+a +b -b -a", "+b +a -a -b", way=way)
    (found,) = verdict.findings
    assert found.rule.id == "lock-order"
    assert [(step.what, step.thread) for step in found.steps] == [
        ("acquires lock A", 0),
        ("acquires lock B meanwhile", 0),
        ("acquires lock B", 32),
        ("acquires lock A meanwhile", 32),
    ]
    assert found.message == (
        "each may have its first lock and wait for the other's; A is a of CTA (0, 0, 0), B is b of CTA (0, 0, 0)"
    )
    assert check("+a +b -b -a", "+a +b -b -a", way=way).kind == "clean"


def test_a_cycle_of_three_threads_is_found() -> None:
    (found,) = check("+a +b -b -a", "+b +c -c -b", "+c +a -a -c").findings
    assert [step.thread for step in found.steps] == [0, 0, 32, 32, 64, 64]
    assert check("+a +b -b -a", "+b +c -c -b", "+a +c -c -a").kind == "clean"


@pytest.mark.parametrize(
    ("one", "two"),
    [("+c +a -c +b -b -a", "+b +a -a -b"), ("+a +b -a -b", "+b +a -b -a"), ("+a +b -b -a", "+b -b +b +a -a -b")],
    ids=["three locks", "the first lock is released first", "a section of the lock before"],
)
def test_other_sections_of_the_locks_order_nothing(one: str, two: str) -> None:
    (found,) = check(one, two).findings
    assert found.message.endswith("A is a of CTA (0, 0, 0), B is b of CTA (0, 0, 0)")


STORED = "st.relaxed.cta.shared.u32 [a], 2; st.relaxed.cta.shared.u32 [b], 2;"
# Code that is right in every schedule, or waits for no lock; the other thread has the locks in the other order.
ORDERED = {
    "one order": ("+a +b -b -a", "+a +b -a -b", {}),
    "one after the other": ("+a -a +b -b", "+b -b +a -a", {}),
    "under a third lock": ("+c +a +b -b -a -c", "+c +b +a -a -b -c", {}),
    "barrier": ("+a +b -b -a bar", "bar +b +a -a -b", {"bar": "bar.sync 1, 64;"}),
    "barrier, after another lock": ("+a +b -b -a bar +c -c", "+c -c bar +b +a -a -b", {"bar": "bar.sync 1, 64;"}),
    "one thread": ("+a +b -b -a +b +a -a -b", "", {}),
}  # fmt: skip
TRIES = {
    "gives up and starts again": (
        "AGAIN: atom.acquire.cta.shared.cas.b32 %r3, [{0}], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra AGAIN;"
        "atom.acquire.cta.shared.cas.b32 %r3, [{1}], 0, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra BOTH;"
        "st.release.cta.shared.u32 [{0}], 0; bra AGAIN; BOTH:"
        "st.release.cta.shared.u32 [{1}], 0; st.release.cta.shared.u32 [{0}], 0;"
    ),
    "tries so often": (
        "FIRST: atom.acquire.cta.shared.cas.b32 %r3, [{0}], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra FIRST;"
        "mov.u32 %r8, 0; AGAIN: atom.acquire.cta.shared.cas.b32 %r3, [{1}], 0, 1; setp.eq.u32 %p2, %r3, 0;"
        "@%p2 bra BOTH; add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 100; @%p3 bra AGAIN; bra LEFT;"
        "BOTH: st.release.cta.shared.u32 [{1}], 0; LEFT: st.release.cta.shared.u32 [{0}], 0;"
    ),
    "tries one lock after the other": (
        "mov.u32 %r8, {0}; mov.u32 %r7, {1}; sub.u32 %r7, %r7, %r8;"
        "AGAIN: atom.acquire.cta.shared.cas.b32 %r3, [%r8], 0, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra ONE;"
        "add.u32 %r8, %r8, %r7; bra AGAIN; ONE:"
        "mov.u32 %r9, {1}; MORE: atom.acquire.cta.shared.cas.b32 %r3, [%r9], 0, 1; setp.eq.u32 %p2, %r3, 0;"
        "@%p2 bra BOTH; sub.u32 %r9, %r9, %r7; bra MORE; BOTH:"
        "st.release.cta.shared.u32 [%r9], 0; st.release.cta.shared.u32 [%r8], 0;"
    ),
    "adds by compare and swap": (
        "ld.relaxed.cta.shared.u32 %r3, [{0}]; FIRST: add.u32 %r4, %r3, 1; mov.u32 %r5, %r3;"
        "atom.relaxed.cta.shared.cas.b32 %r3, [{0}], %r5, %r4; setp.ne.u32 %p2, %r3, %r5; @%p2 bra FIRST;"
        "ld.relaxed.cta.shared.u32 %r3, [{1}]; AGAIN: add.u32 %r4, %r3, 1; mov.u32 %r5, %r3;"
        "atom.relaxed.cta.shared.cas.b32 %r3, [{1}], %r5, %r4; setp.ne.u32 %p2, %r3, %r5; @%p2 bra AGAIN;" + STORED
    ),
    "reads by compare and swap": (
        "st.relaxed.cta.shared.u32 [{0}], 1; st.relaxed.cta.shared.u32 [{1}], 1;"
        "FIRST: atom.relaxed.cta.shared.cas.b32 %r3, [{0}], 1, 1; setp.ne.u32 %p2, %r3, 1; @%p2 bra FIRST;"
        "AGAIN: atom.relaxed.cta.shared.cas.b32 %r3, [{1}], 1, 1; setp.ne.u32 %p2, %r3, 1; @%p2 bra AGAIN;" + STORED
    ),
    "exchanges in a loop": (
        "mov.u32 %r8, 0; FIRST: atom.relaxed.cta.shared.exch.b32 %r3, [{0}], 1; add.u32 %r8, %r8, 1;"
        "setp.lt.u32 %p2, %r8, 3; @%p2 bra FIRST; AGAIN: atom.relaxed.cta.shared.exch.b32 %r3, [{1}], 1;"
        "add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 6; @%p2 bra AGAIN;" + STORED
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_threads_that_cannot_wait_for_each_other_are_not_found(name: str) -> None:
    one, two, words = ORDERED[name]
    assert not check(one, two, **words).findings


@pytest.mark.parametrize("name", TRIES)
def test_attempts_that_wait_for_no_lock_are_not_found(name: str) -> None:
    one, two = (
        re.sub(r"\b(FIRST|AGAIN|MORE|ONE|BOTH|LEFT)\b", rf"\1_{order}", TRIES[name].format(*order))
        for order in ("ab", "ba")
    )
    kernel = ww.load_ptx(text(BODY.format(one, two, "", end=""), (WORDS,), target="sm_90a"))["k"]
    verdict = ww.check(kernel, args=[WORDS], grid=1, block=64, device="h200", limit=100_000)
    assert "lock-order" not in {found.rule.id for found in verdict.findings}, str(verdict)


GRID = """
  setp.ne.u32 %p1, %r2, 0; @%p1 ret; and.b32 %r4, %r0, 1; mov.u32 %r5, 0; {first}
  mul.wide.u32 %d3, %r4, 4; add.u64 %d3, %d3, %a0; xor.b32 %r4, %r4, 1;
  mul.wide.u32 %d4, %r4, 4; add.u64 %d4, %d4, %a0;
A: atom.acquire.gpu.global.cas.b32 %r3, [%d3], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra A;
B: atom.acquire.gpu.global.cas.b32 %r3, [%d4], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra B;
  st.release.gpu.global.u32 [%d4], 0; st.release.gpu.global.u32 [%d3], 0; {last} ret;
"""
# CTA 1 waits until CTA 0 has released its locks.
PASS = "setp.ne.u32 %p3, %r0, 0; @%p3 ret; st.release.gpu.global.u32 [%a0+64], 1;"
WAIT = """setp.eq.u32 %p3, %r0, 0; @%p3 bra GO;
W: ld.acquire.gpu.global.u32 %r6, [%a0+64]; setp.eq.u32 %p3, %r6, 0; @%p3 bra W; GO:"""
LOCKED = (
    "L: atom.acquire.gpu.global.cas.b32 %r3, [%a0+4], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra L;"
    "st.release.gpu.global.u32 [%a0+4], 0;"
)


@pytest.mark.parametrize(
    ("first", "last", "rules"),
    [("", "", ["lock-order"]), (LOCKED, "", ["lock-order"]), (WAIT, PASS, []), ("mov.u32 %r4, 0;", "", [])],
    ids=["unordered", "after another section of the lock", "ordered by a flag", "one order"],
)
@pytest.mark.parametrize("grid", [2, 4])
def test_locks_in_global_memory(first: str, last: str, rules: list[str], grid: int) -> None:
    words = np.zeros(128, np.uint32)
    kernel = ww.load_ptx(text(GRID.format(first=first, last=last), (words,), target="sm_90a"))["k"]
    verdict = ww.check(kernel, args=[words], grid=2 if last else grid, block=32, device="h200", limit=100_000)
    assert [found.rule.id for found in verdict.findings] == rules
    for found in verdict.findings:
        assert [step.cta[0] for step in found.steps] == [0, 0, 1, 1]
        assert found.message == (
            "each may have its first lock and wait for the other's; A is byte 0 of a0, B is byte 4 of a0"
        )


CLUSTER = """
  .shared .align 8 .b32 lock;
  setp.ne.u32 %p0, %r2, 0; @%p0 bra READY; st.shared.u32 [lock], 0;
READY: barrier.cluster.arrive; barrier.cluster.wait; @%p0 bra DONE;
  mov.u32 %r3, %cluster_ctarank; {order} xor.b32 %r4, %r3, 1;
  mapa.shared::cluster.u32 %r5, lock, %r3; mapa.shared::cluster.u32 %r6, lock, %r4;
A: atom.acquire.cluster.shared::cluster.cas.b32 %r7, [%r5], 0, 1; setp.ne.u32 %p2, %r7, 0; @%p2 bra A;
B: atom.acquire.cluster.shared::cluster.cas.b32 %r7, [%r6], 0, 1; setp.ne.u32 %p2, %r7, 0; @%p2 bra B;
  st.release.cluster.shared::cluster.u32 [%r6], 0; st.release.cluster.shared::cluster.u32 [%r5], 0;
DONE: barrier.cluster.arrive; barrier.cluster.wait; ret;
"""


def test_locks_of_the_ctas_of_a_cluster() -> None:
    heads = ".explicitcluster .reqnctapercluster 2, 1, 1"
    for order, kind in (("", "findings"), ("mov.u32 %r3, 0;", "clean")):
        kernel = ww.load_ptx(text(CLUSTER.format(order=order), (WORDS,), target="sm_90a", heads=heads))["k"]
        verdict = ww.check(kernel, args=[WORDS], grid=4, block=32, device="h200", limit=100_000)
        assert verdict.kind == kind
        for found in verdict.findings:
            assert found.message.endswith("A is lock of CTA (0, 0, 0), B is lock of CTA (1, 0, 0)")
