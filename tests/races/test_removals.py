"""Every synchronising instruction is needed as it is, and what is taken out or changed is found, or there is a reason.

The module ``expected`` says which. Tests go through memory_flow, and some of other kernels and of examples;
``python -m tests.races.test_removals`` takes all of every kernel (or those of its arguments) and prints the table.
"""

from __future__ import annotations

import functools
import linecache
import sys
from itertools import islice

import pytest

from tests.races.edits import Edit, edits
from tests.races.expected import expected
from tests.races.removals import KERNELS, outcome, product


def _outcome(name: str, edit: Edit) -> frozenset[str]:
    return outcome(KERNELS[name](edit))


@functools.cache
def _text(name: str) -> str:
    watched = KERNELS[name]()
    assert watched.verdicts[0].kind == "clean", str(watched.verdicts[0])
    return watched.texts[0]


def _unlike(name: str, edit: Edit) -> str:
    """What does not come out as it should, in words; nothing where all is well."""
    rules, reason = expected(name, edit)
    found = _outcome(name, edit)
    good = not found if reason else bool(found & rules)
    wanted = reason or " or ".join(sorted(rules))
    return "" if good else f"{name}: {edit}: {', '.join(sorted(found)) or 'clean'}; expected {wanted or 'a rule'}"


# of which kernels some are taken out or changed, each so-and-so-manyth
SOME = {
    "memory_flow": 5,
    "blackwell 7": 45,
    "hopper 8": 26,
    "hopper split": 33,
    "hopper fp8 split": 33,
    "hopper sum": 1,
    "mma.sync cp.async": 33,
    "mma.sync v3": 35,
    "mma.sync fewer-syncs": 19,
    "mma.sync registers": 50,
    "attention sm90": 150,
    "backward sm90": 100,
    "backward sm90 prepare": 4,
    "backward sm90 convert": 2,
    "few queries, combine": 1,
    "example 03": 5,
    "example 04": 7,
    "example 05": 11,
    "example 07": 8,
}


@pytest.mark.parametrize(("name", "every"), SOME.items())
def test_what_is_taken_out_or_changed_is_found_or_redundant(name: str, every: int) -> None:
    chosen = islice(edits(_text(name)), 0, None, every)
    assert [text for edit in chosen if (text := _unlike(name, edit))] == []


# kernel, and an instruction of it that is taken out or changed: the rule, and the lines that clash, stop or wait
LINES = {
    ("memory_flow", "init fence.mbarrier_init.release.cluster #0"): (
        "mbarrier-init",
        "loaded.init()",
        "tma.load(a_tile",
    ),
    ("memory_flow", "alloc tcgen05.alloc #0"): ("uninitialised", "tmem.open()"),
    ("memory_flow", "kernel bar.sync #0"): ("race", "tmem.open()", "tmem.alloc()"),
    ("memory_flow", "load mbarrier.arrive.expect_tx.shared::cta.b64 #0"): ("deadlock", "loaded.wait(0)"),
    ("memory_flow", "kernel mbarrier.try_wait.parity.shared::cta.b64 #0"): ("race", "tma.load(b_tile", "tcgen05.mma("),
    ("memory_flow", "kernel mbarrier.try_wait.parity.shared::cta.b64 #1"): ("race", "tcgen05.mma(", "tcgen05.ld("),
    ("memory_flow", "kernel tcgen05.fence::after_thread_sync #1"): ("tcgen05-fence", "tcgen05.mma(", "tcgen05.ld("),
    ("memory_flow", "kernel tcgen05.wait::ld.sync.aligned #0"): ("tmem-registers", "tcgen05.ld(", "st(line + column"),
    ("memory_flow", "kernel fence.proxy.async.shared::cta #0"): ("proxy-fence", "st(line + column", "tma.store("),
    ("memory_flow", "kernel bar.sync #1"): ("race", "st(line + column", "tma.store("),
    ("memory_flow", "store cp.async.bulk.wait_group #0"): ("exit-early", "tma.store("),
    ("memory_flow", "free tcgen05.dealloc #0"): ("fault", "tmem.alloc()"),
    ("backward sm90 prepare", "kernel fence.mbarrier_init.release.cluster #0"): (
        "mbarrier-init",
        "full.init()",
        "tma.load(tile[:, column",
    ),
    ("backward sm90 prepare", "kernel mbarrier.try_wait.parity.shared::cta.b64 #0"): (
        "race",
        "tma.load(tile[:, column",
        "ld(first",
    ),
    ("backward sm90 convert", "kernel fence.proxy.async.shared::cta #0"): ("proxy-fence", "stmatrix(", "tma.store(dq"),
    ("backward sm90 convert", "kernel bar.sync #0"): ("race", "stmatrix(", "tma.store(dq"),
    ("hopper split", "multiply wgmma.wait_group.sync.aligned #0"): ("race", "wgmma.mma(", "tma.load("),
    ("hopper split", "kernel barrier.cluster.wait.acquire.aligned #1"): ("race", "st(there", "ld(mine"),
    ("hopper sum", "kernel griddepcontrol.wait #0"): ("grid-dependency", "ld(parts"),
    ("few queries, combine", "kernel griddepcontrol.wait #0"): ("grid-dependency", "pairs = [ld(self.pairs"),
    ("mma.sync cp.async", "load cp.async.mbarrier.arrive.noinc.shared::cta.b64 #1: arrives at once"): (
        "race",
        "cp_async.copy(",
        "ldmatrix(",
    ),
    ("mma.sync fewer-syncs", "compute fence.proxy.async.shared::cta #0"): ("proxy-fence", "ldmatrix(", "tma.load("),
    ("mma.sync fewer-syncs", "compute mbarrier.try_wait.parity.shared::cta.b64 #1"): ("race", "tma.load(", "ldmatrix("),
    ("example 07", "kernel bar.warp.sync #0"): ("race", "ldmatrix(keys", "tma.load(keys"),
    ("example 04", "kernel barrier.cluster.wait.acquire.aligned #1"): ("race", "own[tid.x] =", "neighbours["),
    ("example 04", "kernel barrier.cluster.arrive.release.aligned #2: relaxed"): ("exit-early", "neighbours["),
    ("blackwell 7", "init mbarrier.init.shared::cta.b64 #10: one arrival less"): (
        "mbarrier-count",
        "empty.arrive()",
        "empty.arrive()",
    ),
    ("attention sm100 one tile", "multiply mbarrier.try_wait.parity.shared::cta.b64 #5"): (
        "race",
        "mma(result, left[",
        "mma(result, queries[",
    ),
}


@pytest.mark.parametrize(("name", "removed"), LINES)
def test_the_finding_has_the_right_lines(name: str, removed: str) -> None:
    (edit,) = [edit for edit in edits(_text(name)) if str(edit) == removed]
    rule, *parts = LINES[name, removed]
    found = [
        [linecache.getline(path, int(line)) for path, line in (step.where.rsplit(":", 1) for step in finding.steps)]
        for finding in KERNELS[name](edit).verdicts[0].findings
        if finding.rule.id == rule
    ]
    assert any(len(lines) == len(parts) and all(map(str.__contains__, lines, parts)) for lines in found), found


LADDERS = [("b200", level, (512, 384, 256)) for level in (1, 4, 5, 6, 8)]
LADDERS += [("h200", level, (256, 512, 256)) for level in (3, 5, 6, 7)]


@pytest.mark.parametrize(("device", "level", "shape"), LADDERS)
def test_nothing_is_found_in_a_level_as_it_is(device: str, level: int, shape: tuple[int, int, int]) -> None:
    """Those that no other test here begins with."""
    assert not product(device, level, shape, 4).verdicts[0].findings


def main(names: list[str]) -> None:
    for name in names or KERNELS:
        watched = KERNELS[name]()
        missed = watched.verdicts[0].coverage.missed
        for edit in edits(watched.texts[0]):
            rules, reason = expected(name, edit)
            found = _outcome(name, edit)
            if not found and edit.place in missed:
                rules, reason = set(), "not reached by this problem"
            wrong = "" if (not found if reason else found & rules) else "  <- not as expected"
            words = ", ".join(sorted(found)) or f"clean ({reason})"
            print(f"{name} | {edit} | {words}{wrong}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
