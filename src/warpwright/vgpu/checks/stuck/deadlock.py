"""The finding of a deadlock: waiting threads, missing arrivals, completed phases, and the repair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from warpwright.vgpu.checks.findings import Finding
from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.missing import phase_text
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.stuck.blocked import hang_of
from warpwright.vgpu.checks.stuck.graph import Edge, Graph
from warpwright.vgpu.checks.stuck.repairs import repair
from warpwright.vgpu.checks.stuck.waits import GATHERS, NOWHERE, SPINS, Wait
from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_CLUSTER, WAIT_MBARRIER
from warpwright.vgpu.machine.faults import fields
from warpwright.vgpu.machine.waits import waits_for

__all__ = ["deadlock"]

_SHOWN = 6  # waits, and barriers, that are listed


def deadlock(known: Knowledge) -> Finding:
    """Returns the finding for a cluster in which nothing can run and nothing is in flight."""
    graph = Graph(known.cluster, known.names)
    cycle = graph.cycle()
    shown = _distinct(known, [*cycle, *_roots(graph), *graph.reported_waits()])
    steps = tuple(known.step(_waits(known, graph, wait), wait.inst.index, wait.lanes[0]) for wait in shown[:_SHOWN])
    lines = [_circle(known, graph, cycle)] if cycle else []
    lines += [line for wait in cycle or _roots(graph) or shown for line in _describe_barrier(known, graph, wait)]
    rest = sum(len(wait.lanes) for wait in graph.reported_waits()) - sum(len(wait.lanes) for wait in shown[:_SHOWN])
    if rest:
        lines.append(f"{rest} more threads wait, at these lines in other warps or at others")
    rule = RULES["deadlock"]
    text = "\n".join(list(dict.fromkeys(lines))[: 2 * _SHOWN])
    page = hang_of(known, graph, shown, lines[0] if cycle else "", _situations(known, graph))
    return Finding(replace(rule, repair=repair(known, graph, cycle) or rule.repair), steps, text, hang=page)


def _situations(known: Knowledge, graph: Graph) -> dict[Wait, str]:
    """Returns for each wait the text of what it waits for."""
    return {wait: _waits(known, graph, wait) for wait in graph.waits}


def _roots(graph: Graph) -> list[Wait]:
    """Returns the waits that no other waiting thread would release: without a cycle, the others depend on them."""
    return [wait for wait in graph.reported_waits() if not any(edge.by for edge in graph.edges(wait))]


def _distinct(known: Knowledge, waits: list[Wait]) -> list[Wait]:
    """Returns one of the waits at the same line for the same barrier, in any CTA."""
    size, first = known.cluster.shared_stride, dict[tuple[int, ...], Wait]()
    for wait in waits:
        place = wait.target % size if wait.kind == WAIT_MBARRIER else 0
        first.setdefault((wait.kind, wait.inst.index, place), wait)
    return list(first.values())


def _waits(known: Knowledge, graph: Graph, wait: Wait) -> str:
    match wait.kind:
        case k if k == WAIT_MBARRIER:
            return f"waits for {_phase(known, wait)} of {graph.name(wait.target)}"
        case k if k == SPINS:
            return "runs in circles" + ("" if wait.target == NOWHERE else f", tests {graph.name(wait.target)}")
        case k if k == GATHERS:
            return "waits for the other lanes of its warp"
    return waits_for(known.cluster, wait.lanes[0] // 32, wait.lanes[0] % 32).partition(" (")[0]


def _phase(known: Knowledge, wait: Wait) -> str:
    mbarrier = known.mbarriers.get(wait.target)
    return f"parity {wait.parity}" if mbarrier is None else f"phase {mbarrier.phase} (parity {wait.parity})"


def _circle(known: Knowledge, graph: Graph, cycle: list[Wait]) -> str:
    """``cycle: load → ab.empty[0] → mma → ab.full[1] → load``."""
    words = [word for wait in cycle for word in (_who(known, graph, cycle, wait), _thing(known, graph, wait))]
    return "cycle: " + " → ".join([*words, words[0]])


def _who(known: Knowledge, graph: Graph, cycle: list[Wait], wait: Wait) -> str:
    """Returns who waits, distinct from others of the same role."""
    who = graph.who(wait)
    same = [each for each in cycle if graph.who(each) == who]
    if len(same) > 1 and len({each.rank for each in same}) == len(same):
        return f"{who} of CTA {known.cta(wait.rank)}"
    return who if len(same) == 1 else f"warp {wait.lanes[0] // 32 % known.cluster.per_cta}"


def _thing(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """Returns what a wait is for, in a word or two."""
    match wait.kind:
        case k if k in (WAIT_MBARRIER, SPINS):
            return graph.name(wait.target) if wait.target != NOWHERE else "what it reads"
        case k if k == WAIT_BAR:
            return f"barrier {wait.target}"
        case k if k == WAIT_CLUSTER:
            return "the cluster's barrier"
        case k if k == GATHERS:
            return "lanes of its warp"
    return _waits(known, graph, wait).removeprefix("waits for ")


def _describe_barrier(known: Knowledge, graph: Graph, wait: Wait) -> Iterator[str]:
    """Yields the missing arrivals of a barrier, the threads that owe them, and the instructions that ended phases."""
    if wait.kind == GATHERS or (wait.kind == SPINS and wait.target == NOWHERE):
        return
    lacks = _lacks(known, graph, wait)
    yield f"{lacks}; {_missing_arrivals(known, graph, wait)}"
    mbarrier = known.mbarriers.get(wait.target) if wait.kind in (WAIT_MBARRIER, SPINS) else None
    if mbarrier is not None and mbarrier.ends:
        first = mbarrier.phase - len(mbarrier.ends)
        ends = {end.inst: first + i for i, end in enumerate(mbarrier.ends)}  # the last by each
        texts = [f"phase {phase} was ended by {graph.at(inst)}" for inst, phase in ends.items()]
        yield f"{graph.name(wait.target)}: {', '.join(texts)}"


def _lacks(known: Knowledge, graph: Graph, wait: Wait) -> str:
    if wait.kind not in (WAIT_MBARRIER, SPINS):
        text = waits_for(known.cluster, wait.lanes[0] // 32, wait.lanes[0] % 32)
        return text.removeprefix("waits at ").removeprefix("waits for ")
    _, pending, expected, nbytes = fields(known.cluster, *divmod(wait.target, known.cluster.shared_stride))
    mbarrier = known.mbarriers.get(wait.target)
    phase = f"phase {mbarrier.phase}" if mbarrier else "its phase"
    arrived = [each.inst for each in mbarrier.operations if each.count] if mbarrier else []
    had = f" after {', '.join(graph.at(inst) for inst in dict.fromkeys(arrived))}" if arrived else ""
    return f"{graph.name(wait.target)}: {phase} {phase_text(pending, expected, nbytes, had)}"


def _missing_arrivals(known: Knowledge, graph: Graph, wait: Wait) -> str:
    """Returns the threads whose arrival is missing, and where they are."""
    edges = graph.edges(wait)
    waiting = [edge for edge in edges if edge.by is not None]
    if waiting:
        texts = dict.fromkeys(f"{graph.at(edge.inst.index)} would arrive, but {_stays(wait, edge)}" for edge in waiting)
    else:
        texts = dict.fromkeys(f"{graph.at(edge.inst.index)} arrives no more, its threads have exited" for edge in edges)
    return "; ".join(list(texts)[:3]) or "no thread that could still run arrives at it"


def _stays(wait: Wait, edge: Edge) -> str:
    return "only after this wait" if edge.by is wait else "waits itself"
