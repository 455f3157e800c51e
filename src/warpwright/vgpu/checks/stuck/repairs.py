"""What to write against a deadlock whose pattern is known."""

from __future__ import annotations

from collections.abc import Callable

from warpwright.ptx import nodes
from warpwright.vgpu.checks.decisions import Decision, parameter_of
from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.missing import count_text
from warpwright.vgpu.checks.order.barriers import Mbarrier
from warpwright.vgpu.checks.stuck.graph import Graph
from warpwright.vgpu.checks.stuck.waits import GATHERS, NOWHERE, SPINS, Wait
from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_CLUSTER, WAIT_MBARRIER, WAIT_SERVICE, WAIT_WGMMA
from warpwright.vgpu.machine import faults
from warpwright.vgpu.program.program import Inst, Register

__all__ = ["repair"]

Pattern = Callable[[Knowledge, Graph, Wait], str]


def repair(known: Knowledge, graph: Graph, cycle: list[Wait]) -> str:
    """Returns the repair of the first pattern that a wait matches, "" if none matches."""
    for kind, pattern in _PATTERNS:
        for wait in [*cycle, *graph.reported_waits()]:
            text = pattern(known, graph, wait) if wait.kind == kind else ""
            if text:
                return text
    return _break_cycle(known, graph, cycle) if cycle else ""


def _mbarrier(known: Knowledge, wait: Wait) -> Mbarrier | None:
    return known.mbarriers.get(wait.target)


def _bytes(known: Knowledge, wait: Wait) -> tuple[int, int]:
    """Returns the arrivals and bytes that an mbarrier lacks."""
    _, pending, _, nbytes = faults.fields(known.cluster, *divmod(wait.target, known.cluster.shared_stride))
    return pending, nbytes


def _same_parity(known: Knowledge, graph: Graph, wait: Wait) -> str:
    mbarrier, lane = _mbarrier(known, wait), wait.lanes[0]
    if mbarrier is None or mbarrier.saw[lane] < 0 or mbarrier.parity[lane] != wait.parity:
        return ""
    name = graph.name(wait.target)
    return (
        f"alternate the parity of the waits for {name}: two in a row wait for parity {wait.parity}, and the second "
        "passes at once"
    )


def _passed_twice(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """Some wait passed twice for one phase: it never waits for the next."""
    for place, mbarrier in known.mbarriers.items():
        if mbarrier.repeated >= 0:
            at = graph.at(mbarrier.repeated)
            return f"alternate the parity of the waits for {graph.name(place)} at {at}: two passed for one phase"
    return ""


def _every_lane(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """Lanes of one warp that arrive together end a phase each."""
    mbarrier = _mbarrier(known, wait)
    ends = [] if mbarrier is None else list(mbarrier.ends)
    if (
        mbarrier is None
        or len({(end.inst, end.lane // 32) for end in ends}) != 1
        or len({end.lane for end in ends}) < 2
    ):
        return ""
    return (
        f"let one thread arrive at {graph.name(wait.target)} (elect_one), or initialise it with the number of threads "
        f"that arrive: each lane ended a phase of {count_text(mbarrier.expected, 'arrival')}"
    )


def _missed_phase(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """Returns the repair of a wait that missed its phase: that phase and the next one ended before the lane tested
    it."""
    mbarrier, lane = _mbarrier(known, wait), wait.lanes[0]
    if mbarrier is None:
        return ""
    due = mbarrier.late.get(lane, max(int(mbarrier.saw[lane]), 0))
    if lane not in mbarrier.late and (mbarrier.phase < due + 2 or due & 1 != wait.parity):
        return ""
    name = graph.name(wait.target)
    late = f"phase {due + 1} had ended when {graph.who(wait)} tested phase {due}"
    return f"let phase {due + 1} of {name} end only after {graph.who(wait)} has seen phase {due} end: {late}"


def _too_many_bytes(known: Knowledge, graph: Graph, wait: Wait) -> str:
    pending, nbytes = _bytes(known, wait)
    mbarrier = _mbarrier(known, wait)
    if pending or nbytes <= 0 or mbarrier is None:
        return ""
    name, copied = graph.name(wait.target), sum(each.complete for each in mbarrier.operations)
    astray = [place for place, other in known.mbarriers.items() if other.bytes < 0]
    if astray:
        return f"count the bytes of the copy at {name}: {graph.name(astray[0])} received bytes that it does not expect"
    if copied:
        return f"expect {copied:,} bytes at {name}, as many as are copied: {copied + nbytes:,} are expected"
    return f"issue the copy of the {nbytes:,} bytes that {name} expects, with {name} as its mbarrier"


def _unexpected_bytes(known: Knowledge, graph: Graph, wait: Wait) -> str:
    _, nbytes = _bytes(known, wait)
    if nbytes >= 0:
        return ""
    mbarrier = _mbarrier(known, wait)
    copied = sum(each.complete for each in mbarrier.operations) if mbarrier else 0
    if copied + nbytes > 0:
        name = graph.name(wait.target)
        return f"expect {copied:,} bytes at {name}, as many as are copied: {copied + nbytes:,} are expected"
    return f"expect the {-nbytes:,} bytes at {graph.name(wait.target)} (mbarrier.arrive.expect_tx) in their phase"


def _no_arrival(known: Knowledge, graph: Graph, wait: Wait) -> str:
    pending, _ = _bytes(known, wait)
    if not pending or graph.edges(wait):
        return ""
    name = graph.name(wait.target)
    mbarrier = _mbarrier(known, wait)
    if mbarrier is not None and (mbarrier.operations or mbarrier.ends):
        return ""
    return f"arrive at {name}: threads with mbarrier.arrive, asynchronous operations with a commit"


def _exited(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """All threads that would arrive have exited."""
    pending, _ = _bytes(known, wait)
    edges, mbarrier = graph.edges(wait), _mbarrier(known, wait)
    if not pending or mbarrier is None or any(edge.by for edge in edges):
        return ""
    name, arrived = graph.name(wait.target), sum(each.count for each in mbarrier.operations)
    counted = [graph.at(each.inst) for each in mbarrier.operations if _counts_itself(known.insts[each.inst])]
    if counted:
        return f"write .noinc at {counted[0]}: without it the arrival is one more than {name} was initialised with"
    if arrived and not mbarrier.phase:
        return f"initialise {name} with a count of {arrived}, as many as arrive, or let {pending} more arrive"
    if not edges:
        return ""
    gone = graph.at(edges[0].inst.index).partition(" (")[0]
    if mbarrier.phase:
        return f"let {gone} run as many iterations as {graph.who(wait)}: it exits after phase {mbarrier.phase - 1}"
    return f"let {gone} arrive at {name} before its threads exit, on every path through its branches"


def _counts_itself(inst: Inst) -> bool:
    """Whether an arrival of copies adds itself to the arrivals that the phase waits for."""
    return inst.traits.queue == "lane-copy" and "noinc" in inst.form.slots and not inst["noinc"]


def _divided_warp(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """Lanes of a warp wait at a named barrier while other lanes of the warp wait elsewhere, not for memory."""
    if any(other.warps & wait.warps and other is not wait and other.kind != SPINS for other in graph.waits):
        warp = wait.lanes[0] // 32 % known.cluster.per_cta
        return f"let all lanes of warp {warp} execute barrier {wait.target}: move it out of the branch"
    return ""


def _missing_threads(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """No other thread can arrive at a named barrier, or those that could wait at another barrier."""
    arrivers = [edge.by for edge in graph.edges(wait) if edge.by]
    others = [each for each in arrivers if each.kind == WAIT_BAR and each.target != wait.target]
    if others:
        return (
            f"let the same threads execute barriers {wait.target} and {others[0].target} in the same order, or give "
            "each barrier the number of threads that arrive at it"
        )
    if arrivers:
        return ""
    for other in graph.reported_waits():
        if other.kind == WAIT_BAR and other.rank == wait.rank and other.target != wait.target:
            return (
                f"let {graph.who(wait)} and {graph.who(other)} execute the same barrier: one waits at barrier "
                f"{wait.target}, the other at barrier {other.target}, and neither has all its threads"
            )
    arrived = known.cluster.named_barriers.arrived(wait.rank, wait.target)
    return f"give barrier {wait.target} the {arrived} threads that arrive at it, or let the others arrive"


def _split_warp(known: Knowledge, graph: Graph, wait: Wait) -> str:
    others = [each for each in graph.waits if each.warps & wait.warps and each is not wait]
    return "let all lanes of the mask execute the instruction, or remove the others from the mask" if others else ""


def _warpgroup(known: Knowledge, graph: Graph, wait: Wait) -> str:
    missing = known.cluster.warpgroups.missing(wait.lanes[0] // 32)
    return f"let all four warps of the warpgroup execute each wgmma: {missing}"


def _polling(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """A loop polls memory that no thread will change: its writers wait, or have been there."""
    row = known.last[wait.lanes[0] // 32]
    if wait.target != NOWHERE or row is None:
        return ""
    poll = known.insts[row.inst]
    read, lane = _pointers(graph, poll, wait.lanes[0]), wait.lanes[0]
    stores = [inst for inst in known.insts if inst is not poll and inst.traits.access in ("write", "update")]
    writers = [inst for inst in stores if _pointers(graph, inst, lane) & read]
    for other in graph.reported_waits():
        late = [inst for inst in writers if other is not wait and inst.index in graph.ahead_of(other)]
        if late:
            what = f"what the loop at {graph.at(poll.index)} tests"
            return f"let {graph.at(late[0].index)} write {what} before {graph.at(other.inst.index)} waits for the loop"
    if writers:
        places = " and ".join(dict.fromkeys(graph.at(inst.index) for inst in writers))
        return (
            f"keep the value that the loop at {graph.at(poll.index)} waits for until all threads that poll have read "
            f"it: {places} changed it, and no thread that can still run does so again"
        )
    return f"let a thread that does not wait for this one write what the loop at {graph.at(poll.index)} tests"


def _pointers(graph: Graph, inst: Inst, lane: int) -> set[str | int]:
    """Returns what the address of an access comes from: its number, if the text shows it, or parameters."""
    address = inst.find("a")
    if not isinstance(address, nodes.Address):
        return set()
    number = graph.number(lane, address)
    if number is not None:
        return {number}
    if not isinstance(address.base, Register):
        return set()
    names: set[str | int] = {parameter_of(read) for read in Decision(address.base, graph.defined).reads}
    return names - {""}


def _service(known: Knowledge, graph: Graph, wait: Wait) -> str:
    return _SERVICES.get(wait.inst.name, "")


def _cluster(known: Knowledge, graph: Graph, wait: Wait) -> str:
    arrivers = [edge.by for edge in graph.edges(wait) if edge.by]
    if not arrivers:
        return ""
    cta = known.cta(arrivers[0].rank)
    return f"let CTA {cta} arrive at the cluster's barrier (barrier.cluster) before it waits"


def _break_cycle(known: Knowledge, graph: Graph, cycle: list[Wait]) -> str:
    """A cycle: in the first phase the role that starts need not wait; later, a role must arrive before it waits."""
    mbarriers = [_mbarrier(known, wait) for wait in cycle if wait.kind == WAIT_MBARRIER]
    if len(mbarriers) == len(cycle) and all(each is not None and not each.phase for each in mbarriers):
        return "let the role that starts pass its first wait: on a fresh mbarrier parity 1 passes, parity 0 waits"
    return "break the cycle: let one of the roles arrive, or commit, before it waits"


_SERVICES = {
    "setmaxnreg": "let warps that need fewer registers release them (setmaxnreg.dec) before others request more",
    "tcgen05.alloc": "free tensor memory (tcgen05.dealloc) before more is allocated, in both CTAs of a pair, or "
    "allocate fewer columns",
}
_PATTERNS: tuple[tuple[int, Pattern], ...] = (
    (WAIT_BAR, _divided_warp),
    (WAIT_MBARRIER, _same_parity),
    (WAIT_MBARRIER, _every_lane),
    (WAIT_MBARRIER, _passed_twice),
    (WAIT_MBARRIER, _missed_phase),
    (WAIT_MBARRIER, _too_many_bytes),
    (WAIT_MBARRIER, _unexpected_bytes),
    (WAIT_MBARRIER, _no_arrival),
    (WAIT_MBARRIER, _exited),
    (WAIT_BAR, _missing_threads),
    (WAIT_SERVICE, _service),
    (WAIT_CLUSTER, _cluster),
    (GATHERS, _split_warp),
    (WAIT_WGMMA, _warpgroup),
    (SPINS, _polling),
)
