"""What is said of kernels that stop: who waits for what, the cycle, who would have to come, what to write."""

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
    "astray": ([BOX], 1),
    "unexpected": ([BOX], 1),
    "each_first": ([4], 1),
    "unreleased": ([5], 1),
    "ends_early": ([4], 1),
    "apart": ([WORDS], 2),
}

# kernel: what each step does, what the message says (of lines, their text), what to write
CASES: dict[str, tuple[list[str], list[str], str]] = {
    "each_first": (
        ["load waits for phase 0 (parity 0) of empty", "use waits for phase 0 (parity 0) of full"],
        [
            "cycle: load → empty → use → full → load",
            "empty: phase 0 lacks 1 of 1 arrivals; use (empty.arrive()) would arrive, but waits itself",
            "full: phase 0 lacks 1 of 1 arrivals; load (full.arrive()) would arrive, but waits itself",
        ],
        "let the role that starts pass its first wait: on a fresh mbarrier parity 1 passes, parity 0 waits",
    ),
    "unreleased": (
        ["load waits for phase 0 (parity 0) of ab.empty[0]", "use waits for phase 1 (parity 1) of ab.full[0]"],
        ["ab.empty[0]: phase 0 lacks 1 of 1 arrivals; no thread that could still run arrives at it"],
        "arrive at ab.empty[0]: threads with mbarrier.arrive, asynchronous operations with a commit",
    ),
    "too_high": (
        ["kernel waits for phase 0 (parity 0) of ready"],
        [
            "ready: phase 0 lacks 31 of 32 arrivals after ready.arrive(); ready.arrive() arrives no "
            "more, its threads have exited"
        ],
        "initialise ready with a count of 1, as many as arrive, or let 31 more arrive",
    ),
    "ends_early": (
        ["use waits for phase 3 (parity 1) of full"],
        [
            "full: phase 3 lacks 1 of 1 arrivals; load (full.arrive()) arrives no more, its threads have exited",
            "full: phase 2 was ended by load (full.arrive())",
        ],
        "let load run as many iterations as use: it exits after phase 2",
    ),
    "astray": (
        ["kernel waits for phase 0 (parity 0) of full"],
        [
            "full: phase 0 lacks 4,096 bytes after full.arrive_expect_tx(tile.nbytes); no thread that could "
            "still run arrives at it"
        ],
        "count the bytes of the copy at full: other received bytes that it does not expect",
    ),
    "unexpected": (
        ["kernel waits for phase 0 (parity 0) of full"],
        [
            "full: phase 0 lacks 1 of 2 arrivals after full.arrive(), and has 4,096 bytes that none expected"
            "; no thread that could still run arrives at it"
        ],
        "expect the 4,096 bytes at full (mbarrier.arrive.expect_tx) in their phase",
    ),
    "divided": (
        ["kernel waits at barrier 1", "kernel waits at barrier 1", "kernel waits for phase 0 (parity 0) of done"],
        ["barrier 1 (32 of 64 threads have arrived); no thread that could still run arrives at it"],
        "let all lanes of warp 0 execute barrier 1: move it out of the branch",
    ),
    "crossed": (
        ["left waits at barrier 1", "turned waits at barrier 2"],
        [
            "cycle: left → barrier 1 → turned → barrier 2 → left",
            "barrier 1 (32 of 64 threads have arrived); turned (bar.sync(first if not right else 2, 64)) would arrive, "
            "but waits itself",
            "barrier 2 (32 of 64 threads have arrived); left (bar.sync(second if not right else 2, 64)) would arrive, "
            "but waits itself",
        ],
        "let the same threads execute barriers 1 and 2 in the same order, or give each barrier the number of threads "
        "that arrive at it",
    ),
    "apart": (
        ["kernel waits for phase 0 (parity 0) of ready", "kernel waits at the barrier of the cluster"],
        [
            "cycle: warp 0 of CTA (0, 0, 0) → ready → warp 0 of CTA (1, 0, 0) → the cluster's barrier → warp 0 of CTA "
            "(0, 0, 0)",
            "ready: phase 0 lacks 1 of 1 arrivals; ready.at(0).arrive() would arrive, but waits itself",
            "the barrier of the cluster (32 of 64 threads have arrived); cluster.sync() would arrive, but waits itself",
        ],
        "let CTA (0, 0, 0) arrive at the cluster's barrier (barrier.cluster) before it waits",
    ),
    "hungry": (
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
    "asks": (
        ["ask runs in circles, tests the mbarrier at 0x400", "answer waits at barrier 1"],
        [
            "cycle: ask → the mbarrier at 0x400 → answer → barrier 1 → ask",
            "the mbarrier at 0x400: phase 0 lacks 1 of 1 arrivals; answer (done.arrive()) would arrive, but waits "
            "itself",
            "barrier 1 (32 of 64 threads have arrived); ask (bar.sync(1, 64)) would arrive, but waits itself",
        ],
        "break the cycle: let one of the roles arrive, or commit, before it waits",
    ),
    "polls": (
        ["look runs in circles", "tell waits at barrier 1"],
        [],
        "write what the loop tests from a thread that does not wait for this one",
    ),
}


def _checked(name: str, **config: bool) -> Verdict:
    args, grid = ARGUMENTS.get(name, ([WORDS], 1))
    return check(getattr(deadlock_kernels, name).configure(**config), grid=grid, args=args, off="race")


def _deadlock(verdict: Verdict) -> Finding:
    (found,) = (finding for finding in verdict.findings if finding.rule.id == "deadlock")
    return found


def _read(text: str, module: ModuleType = deadlock_kernels) -> list[str]:
    """Lines of a message, with the text of the kernel's lines for their numbers."""
    source = inspect.getsource(module).splitlines()
    return re.sub(r"/[^\s()]*\.py:(\d+)", lambda at: source[int(at[1]) - 1].strip(), text).splitlines()


@pytest.mark.parametrize("name", CASES)
def test_a_deadlock_is_explained(name: str) -> None:
    steps, message, repair = CASES[name]
    found = _deadlock(_checked(name, right=False))
    assert [f"{step.role} {step.what}" for step in found.steps] == steps
    assert _read(found.message) == message
    assert found.rule.repair == repair


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
        "lane ended a phase of 1",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_mends_a_published_mistake_is_said(name: str) -> None:
    args, grid, repair = PUBLISHED[name]
    found = _deadlock(check(getattr(published, name).configure(right=False), grid, args=args))
    assert _read(found.rule.repair, published) == [repair]


@pytest.mark.parametrize("name", CASES)
def test_the_mended_kernel_ends(name: str) -> None:
    verdict = _checked(name, right=True)
    assert verdict.kind == "clean", str(verdict)


def test_a_fault_names_its_thread() -> None:
    """Line, role, CTA and thread are a step, the message is the reason alone."""
    verdict = check(deadlock_kernels.outside, grid=2, args=[WORDS])
    (found,) = verdict.findings
    (step,) = found.steps
    source = inspect.getsource(deadlock_kernels).splitlines()
    assert found.rule.id == "fault"
    assert (step.what, step.role, step.cta, step.thread) == ("stops at", "reach", (1, 0, 0), 32)
    assert source[int(step.where.rsplit(":", 1)[1]) - 1].strip() == "x[tid.x * 16 * ctaid.x] = 1"
    assert re.fullmatch(r"address 0x[0-9a-f]+ is outside global memory: .*\.", found.message)


def test_loops_that_write_memory_are_compared_with_it() -> None:
    (found,) = check(deadlock_kernels.locked, 1, args=[np.zeros(64, np.uint32)], off=["race", "grid-race"]).findings
    assert (found.rule.id, found.steps[0].what) == ("deadlock", "runs in circles")
    verdict = check(deadlock_kernels.beats, 1, args=[np.zeros(64, np.uint32)], off=["race", "grid-race"], limit=20_000)
    assert [reason.partition(";")[0] for reason in verdict.reasons] == [
        "kernel beats did not end within 20,000 jumps of a warp that does not wait"
    ]
