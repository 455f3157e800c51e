"""Every synchronising instruction is needed: the checks find each removal and change, or a reason says why not.

The module ``expected`` has the rules and the reasons, ``lines`` the lines. Tests take memory_flow, and some edits of
other kernels and of examples; ``python -m tests.races.test_removals --jobs 16 [KERNEL …]`` takes all edits of all or
some kernels, prints the judgement on each, and exits with status 1 if one is not as expected.
"""

from __future__ import annotations

import argparse
import linecache
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import pytest

from tests.races.edits import Edit
from tests.races.lines import has_right_lines
from tests.races.pairs import barriers
from tests.races.removals import KERNELS, ladder_gemm
from tests.races.verdicts import FOUND, REDUNDANT, UNLIKE, Judgement, findings, judge_edit, unedited_kernel
from tests.samples import sampled
from warpwright.vgpu.checks.findings import Finding, Step

# kernel: the tests take each n-th edit of it
SOME = {
    "memory_flow": 5,
    "blackwell 7": 45,
    "hopper 8": 26,
    "hopper split": 34,
    "hopper fp8 split": 30,
    "hopper sum": 1,
    "mma.sync cp.async": 33,
    "mma.sync gemm 7": 20,
    "mma.sync scaled": 30,
    "mma.sync v3": 35,
    "mma.sync fewer-syncs": 19,
    "mma.sync registers": 50,
    "attention sm90": 150,
    "attention sm90 fp8": 150,
    "fp8 values": 7,
    "backward sm90": 100,
    "backward sm90 of 96": 100,
    "backward sm90 long": 100,
    "backward sm90 ordered": 100,
    "backward sm90 wide": 100,
    "backward sm90 prepare": 4,
    "backward sm90 convert": 2,
    "backward sm100 convert": 2,
    "few queries, combine": 1,
    "few queries paged": 50,
    "few queries paged, combine": 1,
    "latent rows": 70,
    "latent rows, combine": 1,
    "chunks paged": 60,
    "example 03": 5,
    "example 04": 7,
    "example 05": 11,
    "example 07": 8,
    "example 08": 18,
    "example 09": 63,
}
FEW = [
    "memory_flow",
    "hopper sum",
    "backward sm90 convert",
    "few queries, combine",
    "few queries paged, combine",
    "example 03",
    "example 05",
]


@sampled(("name", "every"), SOME.items(), keep=[(name, SOME[name]) for name in FEW])
def test_the_checks_find_an_edit_or_it_is_redundant(name: str, every: int) -> None:
    found = {str(edit): judge_edit(name, edit) for edit in unedited_kernel(name).edits[::every]}
    assert {edit: each.words for edit, each in found.items() if each.kind == UNLIKE} == {}


@pytest.mark.long
def test_a_commit_before_a_wait_does_not_know_of_the_wait() -> None:
    """The commit ends the phase that a wait of the same thread, for the other parity, may then find gone."""
    name, edited = "attention sm100 one tile", "multiply mbarrier.try_wait.parity.shared::cta.b64 #6: the other phase"
    (edit,) = [edit for edit in unedited_kernel(name).edits if str(edit) == edited]
    assert judge_edit(name, edit) == Judgement(FOUND, "mbarrier-lapped, race")


@pytest.mark.long
def test_a_copy_to_another_cta_has_read_its_source_when_its_bytes_arrive() -> None:
    """Without the wait for the other CTA, which has the bytes, threads overwrite what the copy may still read."""
    name, edited = "backward sm90 wide", "key_gradients mbarrier.try_wait.parity.shared::cta.b64 #3"
    (edit,) = [edit for edit in unedited_kernel(name).edits if str(edit) == edited]
    assert judge_edit(name, edit) == Judgement(FOUND, "race")


# kernel, and an edit of it: the rule, and the lines that conflict, stop or wait
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
        "tma.load(tile[:, left",
    ),
    ("backward sm90 prepare", "kernel mbarrier.try_wait.parity.shared::cta.b64 #0"): (
        "race",
        "tma.load(tile[:, left",
        "ld(first",
    ),
    ("backward sm90 convert", "kernel fence.proxy.async.shared::cta #0"): (
        "proxy-fence",
        "stmatrix(",
        "tma.store(target",
    ),
    ("backward sm90 convert", "kernel bar.sync #0"): ("race", "stmatrix(", "tma.store(target"),
    ("hopper sum", "kernel griddepcontrol.wait #0"): ("grid-dependency", "ld(parts"),
    ("few queries, combine", "kernel griddepcontrol.wait #0"): ("grid-dependency", "pairs = [ld(self.pairs"),
    ("example 04", "kernel barrier.cluster.wait.acquire.aligned #1"): ("race", "own[tid.x] =", "neighbours["),
    ("example 04", "kernel barrier.cluster.arrive.release.aligned #2: relaxed"): ("exit-early", "neighbours["),
}


@pytest.mark.parametrize(("name", "removed"), LINES)
def test_the_finding_has_the_right_lines(name: str, removed: str) -> None:
    (edit,) = [edit for edit in unedited_kernel(name).edits if str(edit) == removed]
    rule, *parts = LINES[name, removed]
    found = [
        [linecache.getline(path, int(line)) for path, line in (step.where.rsplit(":", 1) for step in finding.steps)]
        for finding in KERNELS[name](edit).verdicts[0].findings
        if finding.rule.id == rule
    ]
    assert any(len(lines) == len(parts) and all(map(str.__contains__, lines, parts)) for lines in found), found


UNORDERED = ("race", "tmem-freed", "proxy-fence", "tcgen05-fence")
CUTS = (
    ("memory_flow", "kernel mbarrier.try_wait.parity.shared::cta.b64 #0"),
    ("memory_flow", "kernel mbarrier.try_wait.parity.shared::cta.b64 #1"),
    ("memory_flow", "kernel tcgen05.fence::after_thread_sync #1"),
    ("memory_flow", "kernel fence.proxy.async.shared::cta #0"),
    ("hopper split", "multiply mapa.shared::cluster.u32 #0: no peer"),
)


@sampled(("name", "removed"), CUTS, keep=CUTS[:-1])
def test_only_the_reported_pairs_of_lines_are_right(name: str, removed: str) -> None:
    """`has_right_lines` accepts the pairs of lines that the checks report, and no other pair of the kernel."""
    kernel, (edit,) = unedited_kernel(name), [e for e in unedited_kernel(name).edits if str(e) == removed]
    reported = [each for each in findings(KERNELS[name](edit), kernel.text) if each.rule.id in UNORDERED]
    execution = kernel.executions[0]
    reached = [
        execution.insts[inst]
        for inst in execution.rows
        if any(len(each.cells) for event in execution.events_of(inst) for each in execution.accesses(event))
    ]
    steps = dict.fromkeys(
        (inst.opcode, execution.names.places[inst.index], execution.names.roles[inst.index]) for inst in reached
    )
    pairs = {
        frozenset(pair)
        for pair in combinations_with_replacement(steps, 2)
        if has_right_lines(
            [execution], edit, replace(reported[0], steps=tuple(_step(reported[0], *each) for each in pair))
        )
    }
    assert pairs == {frozenset((step.opcode, step.where, step.role) for step in each.steps) for each in reported}


def test_accesses_have_the_right_cta() -> None:
    """CTAs send sums to other CTAs; all other memory and mbarriers that they use are their own."""
    execution, own = unedited_kernel("hopper split").executions[0], dict[str, set[bool]]()
    for event in (event for inst in execution.rows for event in execution.events_of(inst)):
        for access in (*execution.accesses(event), *barriers(execution, event)):
            found = np.unique(access.ranks == execution.rank_of(access.lanes))
            own.setdefault(event.inst.opcode, set()).update(found.tolist())
    assert own.pop("st.shared::cluster.v4.f32") == {False}
    assert set().union(*own.values()) == {True}


def _step(finding: Finding, opcode: str, where: str, role: str) -> Step:
    return replace(finding.steps[0], opcode=opcode, where=where, role=role)


LADDERS = [("b200", level, (512, 384, 256)) for level in (1, 4, 5, 6, 8)]
LADDERS += [("h200", level, (256, 512, 256)) for level in (3, 5, 6, 7)]


@sampled(("device", "level", "shape"), LADDERS, every=3)
def test_an_unedited_level_has_no_findings(device: str, level: int, shape: tuple[int, int, int]) -> None:
    """These levels are not the unedited kernel of another test here."""
    assert not ladder_gemm(device, level, shape, 4).verdicts[0].findings


class Part(NamedTuple):
    """``count`` edits of a kernel from ``first`` on, and about how many seconds they take."""

    name: str
    first: int
    count: int
    seconds: float


def cost(name: str) -> Part:
    """Returns the part with all edits of a kernel."""
    begin = time.perf_counter()
    count = len(unedited_kernel(name).edits)
    return Part(name, 0, count, (time.perf_counter() - begin) * count)


def run(part: Part) -> tuple[str, list[tuple[str, Judgement]]]:
    """Returns the kernel's name, and the judgement on each edit of the part."""
    chosen = unedited_kernel(part.name).edits[part.first : part.first + part.count]
    return part.name, [(str(edit), try_edit(part.name, edit)) for edit in chosen]


def try_edit(name: str, edit: Edit) -> Judgement:
    """Judges one edit; an exception is a judgement too, so that the other edits are judged."""
    try:
        return judge_edit(name, edit)
    except Exception as error:
        return Judgement(UNLIKE, f"{type(error).__name__}: {error}")


def split(whole: Part, most: float) -> Iterator[Part]:
    """Yields parts of at most ``most`` seconds; none for a kernel without edits."""
    count = max(1, int(whole.count * most / whole.seconds)) if whole.count else 1
    for first in range(0, whole.count, count):
        some = min(count, whole.count - first)
        yield Part(whole.name, first, some, whole.seconds * some / whole.count)


def test_split_has_each_edit_once() -> None:
    """A kernel without synchronisation has no part."""
    assert list(split(Part("example 01", 0, 0, 0.0), 90.0)) == []
    parts = list(split(Part("memory_flow", 0, 40, 120.0), 50.0))
    assert [number for part in parts for number in range(part.first, part.first + part.count)] == list(range(40))
    assert [part.seconds for part in parts] == [48.0, 48.0, 24.0]


def summary(name: str, kinds: Counter[str]) -> str:
    """Returns the line of a kernel: its edits by kind of judgement."""
    return (
        f"## {name}: {kinds.total()} edits, {kinds[FOUND]} found with the right lines, "
        f"{kinds[REDUNDANT]} redundant with a reason, {kinds[UNLIKE]} unlike"
    )


_PART = 90.0  # seconds as `cost` measures them, compilation included: an edit takes a third


def main(jobs: int, names: list[str]) -> int:
    """Judge the edits in processes, the longest parts first; returns the number of edits that are not as expected."""
    kinds: dict[str, Counter[str]] = {name: Counter() for name in names}
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        parts = [part for whole in pool.imap(cost, names) for part in split(whole, _PART)]
        for name, results in pool.imap_unordered(run, sorted(parts, key=lambda part: -part.seconds)):
            kinds[name].update(kind for _, (kind, _) in results)
            print(*(f"{name} | {edit} | {kind}: {words}" for edit, (kind, words) in results), sep="\n", flush=True)
    total = sum(kinds.values(), Counter())
    print(*(summary(*item) for item in kinds.items()), summary("all", total), sep="\n")
    return total[UNLIKE]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Judges every edit of the kernels.")
    parser.add_argument("--jobs", type=int, default=1, help="processes (about 1 GiB of memory each)")
    parser.add_argument(
        "kernels", nargs="*", default=list(KERNELS), help="kernels whose edits are judged (default: all)"
    )
    options = parser.parse_args()
    sys.exit(main(options.jobs, options.kernels) > 0)
