"""Start and exit of CTAs: uses of their memory by peers and engines must come between the two."""

from __future__ import annotations

from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.missing import EQUAL_REGISTERS
from warpwright.vgpu.checks.order.barriers import Mbarrier, RemoteArrival
from warpwright.vgpu.checks.order.clocks import GENERIC
from warpwright.vgpu.checks.rules import EVIDENCE

__all__ = ["check_entry", "finish"]

_SYNCHRONISE = "put barrier.cluster.arrive and barrier.cluster.wait, in all threads of the cluster, after the last use"
_WAIT_LOAD = "wait for the phase of the copy's mbarrier before the CTA exits"
_WAIT_GROUP = "put cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0 before the exit of the issuing thread"


def check_entry(known: Knowledge, lane: int, rank: int, inst: int) -> None:
    """A lane uses shared memory of a CTA: another CTA must be known to have started."""
    threads = 32 * known.cluster.per_cta
    if rank == lane // threads or (lane, rank) in known.entered:
        return
    if known.clocks.table[GENERIC, lane, rank * threads : (rank + 1) * threads].any():
        known.entered.add((lane, rank))
        return
    text = f"no barrier.cluster orders the use after the start of CTA {known.cta(rank)}"
    known.find("cluster-entry", (known.step("uses its memory", inst, lane),), text)


def finish(known: Knowledge) -> None:
    """Finish the cluster: a CTA may exit only after it knows that uses of its memory are complete."""
    per = known.cluster.per_cta * 32
    for (rank, inst, lane), value in known.remote_uses.items():
        if known.clocks.table[GENERIC, rank * per : (rank + 1) * per, lane].max() < value:
            step = known.step("uses another CTA's memory", inst, lane)
            known.find("exit-early", (step,), f"CTA {known.cta(rank)} may have exited by then", "", _SYNCHRONISE)
    for place, arrival in known.remote_arrivals.items():
        own = place // known.cluster.shared_stride
        if not _is_awaited(known, own, arrival.mbarrier, arrival.phase):
            step, to = known.step("arrives at another CTA's mbarrier", arrival.inst, arrival.cta * per), known.cta(own)
            text = f"CTA {to} may have exited by then: none of its threads waits for the phase"
            evidence = EVIDENCE["commits"] if _is_followed(known, own, arrival) else ""
            repair = f"let a thread of CTA {to} wait for the phase before it exits"
            known.find("exit-early", (step,), text, evidence, repair)
    for place, (mbarrier, phase, inst, lane) in known.deliveries.items():
        own = place // known.cluster.shared_stride
        if place not in known.remote_arrivals and not _is_awaited(known, own, mbarrier, phase):
            step = known.step("writes shared memory", inst, lane)
            known.find("exit-early", (step,), "the CTA exits without waiting for the copy", "", _WAIT_LOAD)
    for (_, rank), (mbarrier, phase, inst) in known.sources.items():
        if not _is_awaited(known, rank, mbarrier, phase):
            step = known.step("reads shared memory", inst, rank * per)
            known.find("exit-early", (step,), "the CTA exits while its memory is copied", "", _SYNCHRONISE)
    for lane, (group, inst) in known.bulk_reads.items():
        if known.clocks.table[GENERIC, lane, known.column("bulk read", lane)] < group:
            step, evidence = known.step("reads shared memory", inst, lane), EVIDENCE["exit"]
            stores = known.insts[inst]["dst"] == "global"
            text = "the CTA exits without waiting for the copy's group"
            known.find("exit-early", (step,), text, evidence if stores else "", _WAIT_GROUP)
    _finish_warpgroups(known)


def _is_followed(known: Knowledge, rank: int, arrival: RemoteArrival) -> bool:
    """Returns whether a CTA waits for a later commit of the thread whose commit arrives there."""
    return arrival.lane >= 0 and any(
        place // known.cluster.shared_stride == rank
        and later.lane == arrival.lane
        and later.number > arrival.number
        and _is_awaited(known, rank, later.mbarrier, later.phase)
        for place, later in known.remote_arrivals.items()
    )


def _is_awaited(known: Knowledge, rank: int, mbarrier: Mbarrier, phase: int) -> bool:
    """Returns whether a thread of a CTA knows that a phase has ended."""
    per = known.cluster.per_cta * 32
    return bool(known.clocks.table[GENERIC, rank * per : (rank + 1) * per, mbarrier.column].max() >= phase)


def _finish_warpgroups(known: Knowledge) -> None:
    """Find warps that exit with fewer setmaxnreg executed than another warp of their warpgroup."""
    for warp, changes in list(known.setmaxnregs.items()):
        for other in known.warpgroup(warp):
            for access in changes[len(known.setmaxnregs[other]) :]:
                step = known.step("changes registers", int(known.accesses.rows["inst"][access]), warp * 32)
                text = f"warp {other % known.cluster.per_cta} of its warpgroup exits without it"
                known.find("setmaxnreg", (step,), text, EVIDENCE["registers"], EQUAL_REGISTERS)
