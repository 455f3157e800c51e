"""Messages and repairs for two accesses that nothing orders, by the kind of the first one."""

from __future__ import annotations

from typing import NamedTuple

from warpwright.vgpu.checks.order.access_kinds import SCOPES
from warpwright.vgpu.program.program import Inst

__all__ = [
    "BETWEEN", "EQUAL_REGISTERS", "FENCED_LATE", "LAPPED", "SERVED", "TENSOR_CORE", "UNFENCED", "UNORDERED",
    "UNWRITTEN", "Missing", "count_text", "missing", "not_fenced", "phase_text", "too_narrow",
]  # fmt: skip


class Missing(NamedTuple):
    """The sentence of a finding, and its repair; "" for the repair of the rule."""

    message: str
    repair: str = ""


UNWRITTEN = "no thread and no operation has written it in this run"
LAPPED = (
    "if the second comes before the wait has returned, the wait takes the next phase, by its parity, for one that has "
    "not ended, and waits on"
)
UNORDERED = Missing("nothing orders the second after the first")
UNFENCED = "a barrier of the cluster is between them, whose arrival is relaxed and releases no initialisation"
SERVED = Missing("lanes of a warp wait for one another between the two, without bar.warp.sync")
FENCED_LATE = Missing(
    "the fence.proxy.async comes after the barrier, in the thread of the second",
    "move fence.proxy.async before the barrier, into the thread of the first",
)
TENSOR_CORE = Missing("they are ordered for threads only: a tcgen05.fence is missing before or after the barrier")
EQUAL_REGISTERS = "let all four warps of the warpgroup execute the same setmaxnreg"
BETWEEN = "put a barrier of the four warps of the warpgroup between one setmaxnreg and the next"

# By the queue of the first access (`isa.traits`); "group": a bulk copy that a bulk group completes.
_UNFINISHED = {
    "copy": Missing(
        "the first may not be complete: no wait for the phase of its mbarrier comes before the second",
        "let the thread of the second wait for the phase that the first completes, or for a thread that has waited",
    ),
    "group": Missing(
        "the first may not be complete: no wait for its bulk group comes before the second",
        "put cp.async.bulk.commit_group and cp.async.bulk.wait_group 0 after the first, in the thread that issued it "
        "(.read is enough to write its source again), and a barrier before the second if that is in another thread",
    ),
    "lane-copy": Missing(
        "the first may not be complete: no wait that covers it comes before the second",
        "put cp.async.wait_group 0 (or cp.async.mbarrier.arrive and a wait for the mbarrier) after the first, in the "
        "thread that issued it, and a barrier before the second if that is in another thread",
    ),
    "tensor": Missing(
        "the first may not be complete: no wait for a tcgen05.commit that follows it comes before the second",
        "put tcgen05.commit on an mbarrier after the first, in the thread that issued it, and a wait for that phase "
        "before the second",
    ),
    "wgmma": Missing(
        "the first may not be complete: no wgmma.wait_group for its group comes before the second",
        "put wgmma.commit_group and wgmma.wait_group after the first, in its warps, before they arrive at what the "
        "second waits for",
    ),
    "tmem": Missing(
        "the first may not be complete, or the warp of the second does not know that it is",
        "put tcgen05.wait::ld or tcgen05.wait::st after the first, in its warp, and then a barrier (or an arrive and a "
        "wait) before the second if that is in another warp",
    ),
}

# By the nearest of warp, CTA and cluster that has both threads.
_UNORDERED = {
    "warp": "put bar.warp.sync between the two; lanes of a warp need not run in step",
    "CTA": "put a barrier of both threads between the two (bar.sync), or let the thread of the first arrive on an "
    "mbarrier after it, and the thread of the second wait for that phase before it",
    "cluster": "put barrier.cluster.arrive and barrier.cluster.wait between the two, in both CTAs, or let the thread "
    "of the first arrive on an mbarrier after it (.release.cluster), and the thread of the second wait for that phase "
    "before it (.acquire.cluster)",
}


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def phase_text(pending: int, expected: int, nbytes: int, after: str = "") -> str:
    """Returns what the open phase of an mbarrier lacks, by the fields of its word. ``after``: the arrivals it had."""
    lacks = [f"{pending} of {expected} arrivals"] * bool(pending) + [f"{nbytes:,} bytes"] * (nbytes > 0)
    states = [f"lacks {' and '.join(lacks)}{after}"] * bool(lacks)
    states += [f"has {-nbytes:,} bytes too many"] * (nbytes < 0)
    return ", and ".join(states) or "never ends: arrive_drop has dropped all arrivals"


def missing(first: Inst, lanes: tuple[int, int], lanes_a_cta: int) -> Missing:
    """Returns what is missing between accesses of two lanes of a cluster, by the instruction of the first."""
    queue = first.traits.queue
    kind = "group" if queue == "copy" and "dst" in first.form.slots and first["dst"] == "global" else queue
    if kind in _UNFINISHED:
        return _UNFINISHED[kind]
    one, other = lanes
    near = "warp" if one // 32 == other // 32 else "CTA" if one // lanes_a_cta == other // lanes_a_cta else "cluster"
    return Missing(UNORDERED.message, _UNORDERED[near])


def too_narrow(scope: int, needed: int, flag: bool) -> Missing:
    """Returns that a scope does not include both threads, and the scope that does: of two strong accesses, or of the
    ``flag`` between two."""
    given, wide = SCOPES[scope], SCOPES[needed]
    if flag:
        return Missing(
            f"a flag that one thread releases and the other acquires is between them, but in scope {given}, which does "
            "not include both threads",
            f"give the release and the acquire of the flag scope {wide}",
        )
    return Missing(f"both are strong, but scope {given} does not include both threads", f"give both scope {wide}")


def not_fenced(first: Inst) -> Missing:
    """Returns what is missing between an access by a thread and a later one by the async proxy that are ordered."""
    if first.traits.queue == "lane-copy":
        return Missing(
            "no fence.proxy.async follows the wait for the first",
            "put fence.proxy.async after cp.async.wait_group, in the thread that issued the copy: a fence before the "
            "copy is complete does not include it",
        )
    return Missing(
        "they are ordered for threads only: no fence.proxy.async follows the first in its thread, before the barrier"
    )
