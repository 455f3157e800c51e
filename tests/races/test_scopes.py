"""A race for want of a scope names the scope: of two strong accesses, and of a flag between two plain ones."""

from __future__ import annotations

import numpy as np
import pytest

from warpwright.lang import Break, Global, If, Pointer, atom, cluster, ctaid, kernel, ld, loop, smem, st, tid, u32
from warpwright.run.check import check
from warpwright.vgpu.checks.findings import Verdict


@kernel("sm_90a", threads=32)
def count_all(x: Global[u32], *, scope: str = "gpu") -> None:
    """All threads of all CTAs count in one place."""
    atom.add(x, 1, scope=scope)


@kernel("sm_90a", threads=32)
def hand_over(x: Global[u32], *, scope: str = "gpu") -> None:
    """One CTA writes, another one waits for a flag and reads."""
    with If((ctaid.x == 0) & (tid.x == 0)):
        x[0] = 7
        st(x + 1, 1, sem="release", scope=scope)
    with If((ctaid.x == 1) & (tid.x == 0)):
        for _ in loop():
            Break(when=ld(x + 1, sem="acquire", scope=scope) == 1)
        x[2] = x[0]


@kernel("sm_90a", threads=32, cluster=2)
def hand_over_to_peer(x: Global[u32], *, scope: str = "gpu") -> None:
    """The same through shared memory of the other CTA of a cluster."""
    cell = smem.array(u32, 2)
    cell[tid.x & 1] = 0
    cluster.sync()
    with If((cluster.rank == 0) & (tid.x == 0)):
        there = Pointer(u32, cluster.map(cell.address, 1), space="shared::cluster")
        st(there, 7)
        st(there + 1, 1, sem="release", scope=scope)
    with If((cluster.rank == 1) & (tid.x == 0)):
        for _ in loop():
            Break(when=ld(cell + 1, sem="acquire", scope=scope) == 1)
        x[0] = cell[0]
    cluster.sync()


KERNELS = {each.name: each for each in (count_all, hand_over, hand_over_to_peer)}
FLAG = "a flag that one thread releases and the other acquires is between them, but in scope {}, which does not include"
FLAG += " both threads"
STRONG = "both are strong, but scope {} does not include both threads"
CASES = [
    ("count_all", "cta", STRONG.format(".cta"), "give both scope .gpu"),
    (
        "count_all",
        "cluster",
        STRONG.format(".cluster"),
        "give both scope .gpu",
    ),
    ("hand_over", "cta", FLAG.format(".cta"), "give the release and the acquire of the flag scope .gpu"),
    ("hand_over", "cluster", FLAG.format(".cluster"), "give the release and the acquire of the flag scope .gpu"),
    ("hand_over_to_peer", "cta", FLAG.format(".cta"), "give the release and the acquire of the flag scope .cluster"),
]


def _check(name: str, scope: str) -> Verdict:
    return check(KERNELS[name].configure(scope=scope), 2, args=[np.zeros(64, np.uint32)])


@pytest.mark.parametrize(("name", "scope", "message", "repair"), CASES)
def test_a_scope_that_is_too_small_is_named(name: str, scope: str, message: str, repair: str) -> None:
    found = [(finding.message, finding.rule.repair) for finding in _check(name, scope).findings]
    assert (message, repair) in found


@pytest.mark.parametrize(("name", "scope"), [*((name, "gpu") for name in KERNELS), ("hand_over_to_peer", "cluster")])
def test_the_scope_of_the_repair_is_clean(name: str, scope: str) -> None:
    """The branch of the loop that polls counts nowhere: whether it repeats depends on the schedule."""
    verdict = _check(name, scope)
    assert verdict.kind == "clean", str(verdict)
    assert verdict.untaken == ()
