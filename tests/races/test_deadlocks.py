"""The explanation of a deadlock: the waiting threads and their barriers, the cycle, the missing arrivals, the
repair."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.races import deadlock_kernels, published
from warpwright.run.check import check
from warpwright.vgpu.checks.findings import Finding, Verdict

WORDS, BOX = np.zeros(512, np.uint32), np.zeros((32, 32), np.float32)
ARGUMENTS: dict[str, tuple[list[Any], int]] = {
    "bytes_at_wrong_mbarrier": ([BOX], 1),
    "unexpected_bytes": ([BOX], 1),
    "mutual_wait": ([4], 1),
    "unreleased_stage": ([5], 1),
    "short_loop": ([4], 1),
    "arrive_after_cluster_sync": ([WORDS], 2),
    "grid_barrier": ([WORDS], 2),
}

VOLATILE = 'sem="volatile"'

# kernel: role and wait of each step, the lines of the message, the repair
CASES: dict[str, tuple[list[str], list[str], str]] = {
    "mutual_wait": (
        ["load waits for phase 0 (parity 0) of empty", "use waits for phase 0 (parity 0) of full"],
        [
            "cycle: load → empty → use → full → load",
            "empty: phase 0 lacks 1 of 1 arrivals; use (empty.arrive()) would arrive, but waits itself",
            "full: phase 0 lacks 1 of 1 arrivals; load (full.arrive()) would arrive, but waits itself",
        ],
        "let the role that starts pass its first wait: on a fresh mbarrier parity 1 passes, parity 0 waits",
    ),
    "unreleased_stage": (
        ["load waits for phase 0 (parity 0) of ab.empty[0]", "use waits for phase 1 (parity 1) of ab.full[0]"],
        ["ab.empty[0]: phase 0 lacks 1 of 1 arrivals; no thread that could still run arrives at it"],
        "arrive at ab.empty[0]: threads with mbarrier.arrive, asynchronous operations with a commit",
    ),
    "count_too_high": (
        ["kernel waits for phase 0 (parity 0) of ready"],
        [
            "ready: phase 0 lacks 31 of 32 arrivals after ready.arrive(); ready.arrive() arrives no "
            "more, its threads have exited"
        ],
        "initialise ready with a count of 1, as many as arrive, or let 31 more arrive",
    ),
    "short_loop": (
        ["use waits for phase 3 (parity 1) of full"],
        [
            "full: phase 3 lacks 1 of 1 arrivals; load (full.arrive()) arrives no more, its threads have exited",
            "full: phase 2 was ended by load (full.arrive())",
        ],
        "let load run as many iterations as use: it exits after phase 2",
    ),
    "bytes_at_wrong_mbarrier": (
        ["kernel waits for phase 0 (parity 0) of full"],
        [
            "full: phase 0 lacks 4,096 bytes after full.arrive_expect_tx(tile.nbytes); no thread that could "
            "still run arrives at it"
        ],
        "count the bytes of the copy at full: other received bytes that it does not expect",
    ),
    "unexpected_bytes": (
        ["kernel waits for phase 0 (parity 0) of full"],
        [
            "full: phase 0 lacks 1 of 2 arrivals after full.arrive(), and has 4,096 bytes too many"
            "; no thread that could still run arrives at it"
        ],
        "expect the 4,096 bytes at full (mbarrier.arrive.expect_tx) in their phase",
    ),
    "barrier_in_branch": (
        ["kernel waits at barrier 1", "kernel waits at barrier 1", "kernel waits for phase 0 (parity 0) of done"],
        ["barrier 1 (32 of 64 threads have arrived); no thread that could still run arrives at it"],
        "let all lanes of warp 0 execute barrier 1: move it out of the branch",
    ),
    "crossed_barriers": (
        ["forward waits at barrier 1", "reverse waits at barrier 2"],
        [
            "cycle: forward → barrier 1 → reverse → barrier 2 → forward",
            "barrier 1 (32 of 64 threads have arrived); reverse (bar.sync(first if not right else 2, 64)) would "
            "arrive, but waits itself",
            "barrier 2 (32 of 64 threads have arrived); forward (bar.sync(second if not right else 2, 64)) would "
            "arrive, but waits itself",
        ],
        "let the same threads execute barriers 1 and 2 in the same order, or give each barrier the number of threads "
        "that arrive at it",
    ),
    "arrive_after_cluster_sync": (
        ["kernel waits for phase 0 (parity 0) of ready", "kernel waits at the barrier of the cluster"],
        [
            "cycle: warp 0 of CTA (0, 0, 0) → ready → warp 0 of CTA (1, 0, 0) → the cluster's barrier → warp 0 of CTA "
            "(0, 0, 0)",
            "ready: phase 0 lacks 1 of 1 arrivals; ready.at(0).arrive() would arrive, but waits itself",
            "the barrier of the cluster (32 of 64 threads have arrived); cluster.sync() would arrive, but waits itself",
        ],
        "let CTA (0, 0, 0) arrive at the cluster's barrier (barrier.cluster) before it waits",
    ),
    "too_many_registers": (
        ["kernel waits for 1024 registers"],
        ["1024 registers (0 are free); no thread that could still run arrives at it"],
        "let warps that need fewer registers release them (setmaxnreg.dec) before others request more",
    ),
    "one_parity": (
        ["kernel waits for phase 2 (parity 0) of full", "kernel waits at barrier 0"],
        [
            "full: phase 2 lacks 1 of 1 arrivals; no thread that could still run arrives at it",
            "full: phase 0 was ended by full.arrive(), phase 1 was ended by full.arrive()",
        ],
        "alternate the parity of the waits for full: two in a row wait for parity 0, and the second passes at once",
    ),
    "poll_waiting_warp": (
        ["ask runs in circles, tests the mbarrier at 0x400", "answer waits at barrier 1"],
        [
            "cycle: ask → the mbarrier at 0x400 → answer → barrier 1 → ask",
            "the mbarrier at 0x400: phase 0 lacks 1 of 1 arrivals; answer (done.arrive()) would arrive, but waits "
            "itself",
            "barrier 1 (32 of 64 threads have arrived); ask (bar.sync(1, 64)) would arrive, but waits itself",
        ],
        "break the cycle: let one of the roles arrive, or commit, before it waits",
    ),
    "poll_flag": (
        ["poll runs in circles", "publish waits at barrier 1"],
        [],
        f"let publish (st(flag, 1, {VOLATILE})) write what the loop at poll (Break(when=ld(flag, {VOLATILE}) != 0)) "
        "tests before publish (bar.sync(1, 64)) waits for the loop",
    ),
    "grid_barrier": (
        ["kernel runs in circles", "kernel waits at barrier 0"],
        [],
        'keep the value that the loop at Break(when=ld(count, sem="acquire", scope="gpu") == nctaid.x) waits for until '
        'all threads that poll have read it: ticket = atom.add(count, 1) and st(count, 0, sem="relaxed", scope="gpu") '
        "changed it, and no thread that can still run does so again",
    ),
    "numbers_differ": (
        ["kernel waits at barrier 1", "kernel waits at barrier 2"],
        [
            "barrier 1 (32 of 64 threads have arrived); no thread that could still run arrives at it",
            "barrier 2 (32 of 64 threads have arrived); no thread that could still run arrives at it",
        ],
        "let warp 0 and warp 1 execute the same barrier: one waits at barrier 1, the other at barrier 2, and neither "
        "has all its threads",
    ),
}


def _check(name: str, **config: bool) -> Verdict:
    args, grid = ARGUMENTS.get(name, ([WORDS], 1))
    return check(getattr(deadlock_kernels, name).configure(**config), grid=grid, args=args, off="race")


def _deadlock(verdict: Verdict) -> Finding:
    (found,) = (finding for finding in verdict.findings if finding.rule.id == "deadlock")
    return found


def _message_lines(text: str, module: ModuleType = deadlock_kernels) -> list[str]:
    """Returns the lines of a message, with the kernel's text in place of line numbers."""
    source = inspect.getsource(module).splitlines()
    return re.sub(r"/[^():]*\.py:(\d+)", lambda at: source[int(at[1]) - 1].strip(), text).splitlines()


@pytest.mark.parametrize("name", CASES)
def test_the_finding_explains_a_deadlock(name: str) -> None:
    steps, message, repair = CASES[name]
    found = _deadlock(_check(name, right=False))
    assert [f"{step.role} {step.what}" for step in found.steps] == steps
    assert _message_lines(found.message) == message
    assert _message_lines(found.rule.repair) == [repair]


PUBLISHED: dict[str, tuple[list[Any], int, str]] = {
    "expected_twice": ([BOX], 1, "expect 4,096 bytes at full, as many as are copied: 8,192 are expected"),
    "lonely_multicast": (
        [BOX],
        2,
        "issue the copy of the 4,096 bytes that full expects, with full as its mbarrier",
    ),
    "one_phase": (
        [np.ones((32, 256), np.float32), 4],
        1,
        "alternate the parity of the waits for full at read (full.wait(k & 1 if right else 0)): two passed for one "
        "phase",
    ),
    "all_arrive": (
        [WORDS],
        1,
        "let one thread arrive at ready (elect_one), or initialise it with the number of threads that arrive: each "
        "lane ended a phase of 1 arrival",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_finding_repairs_a_published_deadlock(name: str) -> None:
    args, grid, repair = PUBLISHED[name]
    found = _deadlock(check(getattr(published, name).configure(right=False), grid, args=args))
    assert _message_lines(found.rule.repair, published) == [repair]


@pytest.mark.parametrize("name", CASES)
def test_the_correct_kernel_is_clean(name: str) -> None:
    verdict = _check(name, right=True)
    assert verdict.kind == "clean", str(verdict)


def test_a_fault_names_its_thread() -> None:
    """The step has line, role, CTA and thread; the message is the reason alone."""
    verdict = check(deadlock_kernels.store_out_of_bounds, grid=2, args=[WORDS])
    (found,) = verdict.findings
    (step,) = found.steps
    source = inspect.getsource(deadlock_kernels).splitlines()
    assert found.rule.id == "fault"
    assert (step.what, step.role, step.cta, step.thread) == ("stops at", "reach", (1, 0, 0), 32)
    assert source[int(step.where.rsplit(":", 1)[1]) - 1].strip() == "x[tid.x * 16 * ctaid.x] = 1"
    assert re.fullmatch(r"address 0x[0-9a-f]+ is outside global memory: .*\.", found.message)


def test_a_polling_loop_is_a_deadlock_unless_it_changes_memory() -> None:
    (found,) = check(
        deadlock_kernels.unreleased_lock, 1, args=[np.zeros(64, np.uint32)], off=["race", "grid-race"]
    ).findings
    assert (found.rule.id, found.steps[0].what) == ("deadlock", "runs in circles")
    verdict = check(
        deadlock_kernels.publish_polls, 1, args=[np.zeros(64, np.uint32)], off=["race", "grid-race"], limit=20_000
    )
    assert [reason.partition(";")[0] for reason in verdict.reasons] == [
        "kernel publish_polls did not end within 20,000 jumps of a warp"
    ]
