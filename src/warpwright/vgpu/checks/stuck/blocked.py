"""The report of a hang from the graph of waits: equal waits of warps and CTAs together, and who should have arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from warpwright.vgpu.checks.hang import Barrier, Blocked, Hang, Situations, cta_text, letter
from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.steps import Step
from warpwright.vgpu.checks.stuck.graph import Graph
from warpwright.vgpu.checks.stuck.waits import NOWHERE, SPINS, Wait, waits
from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_CLUSTER, WAIT_MBARRIER
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.faults import fields
from warpwright.vgpu.machine.waits import warp_text

__all__ = ["hang_of", "situations"]

Key = tuple[int, ...]
_PAST = "do not come here again"


def situations(cluster: Cluster) -> Situations:
    """Returns the CTAs of a cluster in which nothing can run, by the keys of their waits."""
    found: Situations = {}
    for wait in waits(cluster):
        key = _key(cluster, wait)
        found[key] = (*found.get(key, ()), cluster.launch.cta_of(cluster.first, wait.rank))
    return found


def _key(cluster: Cluster, wait: Wait) -> Key:
    """Returns what equal waits of different CTAs have in common: line, warps, barrier, and the state of the barrier."""
    place: Key = (wait.target, wait.parity)
    if wait.kind == WAIT_MBARRIER:
        rank, offset = divmod(wait.target, cluster.shared_stride)
        place = rank - wait.rank, offset, wait.parity, *fields(cluster, rank, offset)
    warps = {warp % cluster.per_cta for warp in wait.warps}
    return wait.kind, wait.inst.index, wait.block, len(wait.lanes), *place, *sorted(warps)


def hang_of(known: Knowledge, graph: Graph, first: Iterable[Wait], cycle: str, what: dict[Wait, str]) -> Hang:
    """Returns the report of a hang. ``first``: the waits to show first; ``what`` each wait waits for, in words."""
    return _Report(known, graph, first).hang(cycle, what)


class _Report:
    """The waits of a cluster by their situations; ``numbers``: the number of the situation of each wait."""

    def __init__(self, known: Knowledge, graph: Graph, first: Iterable[Wait]) -> None:
        self.known, self.graph, self.cluster = known, graph, known.cluster
        reported = graph.reported_waits()
        self.groups: dict[Key, list[Wait]] = {}
        for wait in dict.fromkeys([*first, *reported]):
            self.groups.setdefault(_key(self.cluster, graph.originals.get(wait, wait)), []).append(wait)
        self.numbers = {wait: number for number, group in enumerate(self.groups.values()) for wait in group}
        self.blocks = {inst.index: block.index for block in graph.program.blocks for inst in block.insts}

    def hang(self, cycle: str, what: dict[Wait, str]) -> Hang:
        """Returns the report."""
        blocked = (self._blocked(key, group, what[group[0]]) for key, group in self.groups.items())
        x, y, z = self.cluster.launch.grid
        ctas = self.cluster.launch.spec.gpus * x * y * z
        return Hang(ctas, tuple(blocked), cycle, tuple(self._last_operations()))

    def _blocked(self, key: Key, group: list[Wait], what: str) -> Blocked:
        wait, per_cta = group[0], self.cluster.per_cta
        step = self.known.step(what, wait.inst.index, wait.lanes[0])
        on_mbarrier = wait.kind == WAIT_MBARRIER or (wait.kind == SPINS and wait.target != NOWHERE)
        signals = self._signals(wait) if on_mbarrier else self._absent(wait)
        warps = sorted(warp % per_cta for warp in wait.warps)
        ctas = tuple(self.known.cta(each.rank) for each in group)
        barrier = self._barrier(wait) if on_mbarrier else None
        return Blocked(ctas, tuple(warps), len(wait.lanes) // len(warps), step, barrier, tuple(signals), key)

    def _barrier(self, wait: Wait) -> Barrier:
        rank, offset = divmod(wait.target, self.cluster.shared_stride)
        _, pending, expected, nbytes = fields(self.cluster, rank, offset)
        mbarrier, known = self.known.mbarriers.get(wait.target), self.known
        init, ends, phase = None, [], 0
        if mbarrier is not None:
            rows, row = known.accesses.rows, mbarrier.init
            init, phase = known.step("initialises", int(rows["inst"][row]), int(rows["lane"][row])), mbarrier.phase
            ends = [known.step("ends a phase", end.inst, max(end.lane, 0)) for end in mbarrier.ends]
        name = self.graph.name(wait.target)
        return Barrier(name, known.cta(rank), offset, init, phase, pending, expected, nbytes, tuple(ends))

    def _signals(self, wait: Wait) -> Iterator[Step]:
        """Yields the instructions that arrive on the mbarrier of a wait, or deliver its bytes, and what became of
        them; copies of one source line once."""
        mbarrier = self.known.mbarriers.get(wait.target)
        found: dict[object, list[int]] = {}
        lanes: dict[object, int] = {}
        states: dict[object, dict[str, set[int]]] = {}
        for operation in (*mbarrier.operations, *mbarrier.ends) if mbarrier else ():
            found.setdefault(self._line(operation.inst), []).append(operation.inst)
            lanes.setdefault(self._line(operation.inst), max(operation.lane, 0))
        for lane, other in self._everyone():
            for inst, cta in self._signalling(lane, wait):
                line = self._line(inst)
                found.setdefault(line, []).append(inst)
                lanes.setdefault(line, lane)
                state = f"arrive at the one in {cta}" if cta else self._state(inst, wait, other)
                states.setdefault(line, {}).setdefault(state, set()).add(lane // 32)
        for line, insts in found.items():
            by_state = states.get(line, {})
            texts = [self._clause(warps, state) for state, warps in by_state.items() if state != _PAST]
            copies = (inst.index for inst in self.graph.signals if self._line(inst.index) == line)
            if not any(self.cluster.launch.marks[self.blocks[inst]] for inst in copies):
                texts.insert(0, "not executed")
            past = self._clause(by_state[_PAST], _PAST) if _PAST in by_state else "arrived in an earlier phase"
            text = self._arrived(wait, set(insts)) or "; ".join(texts) or past
            yield self.known.step(text, insts[0], lanes[line])

    def _line(self, inst: int) -> object:
        names = self.known.names
        return names.calls[inst], names.places[inst], self.known.insts[inst].opcode

    def _signalling(self, lane: int, wait: Wait) -> Iterator[tuple[int, str]]:
        """Yields the instructions by which a lane arrives on the mbarrier of a wait, and those by which it arrives on
        the same one of another CTA only, with that CTA."""
        own = {inst.index for inst in self.graph.signalling(lane, 0, wait)}
        yield from ((inst, "") for inst in sorted(own))
        rank, offset = divmod(wait.target, self.cluster.shared_stride)
        for other in range(self.cluster.ranks):
            target = replace(wait, target=other * self.cluster.shared_stride + offset)
            if other != rank:
                found = {inst.index for inst in self.graph.signalling(lane, 0, target)} - own
                yield from ((inst, cta_text([self.known.cta(other)])) for inst in sorted(found))

    def _everyone(self) -> Iterator[tuple[int, Wait | None]]:
        """Yields a lane of each warp of each wait, and of each warp that has exited."""
        for wait in self.numbers:
            firsts = {lane // 32: lane for lane in reversed(wait.lanes)}
            yield from ((lane, wait) for lane in firsts.values())
        busy = {warp for wait in self.graph.waits for warp in wait.warps}
        yield from ((lane, None) for lane in self.graph.exited_lanes() if lane // 32 not in busy)

    def _state(self, inst: int, wait: Wait, other: Wait | None) -> str:
        """Returns why lanes that could execute an instruction do not: they wait as ``other``, or have exited."""
        if other is None:
            return "have exited"
        ahead = inst in self.graph.ahead_of(other)
        if self.numbers.get(other) == self.numbers[wait]:
            return "would come here only after this wait" if ahead else _PAST
        return self._waiting(other) if ahead else _PAST

    def _waiting(self, wait: Wait) -> str:
        return f"wait at {letter(self.numbers[wait])}" if wait in self.numbers else "wait for other lanes"

    def _clause(self, warps: Iterable[int], state: str) -> str:
        """Returns ``"warp 4 waits at B"``, ``"warps 0-3 wait at A"``."""
        several = len(set(warps)) > 1
        forms = {"wait ": "waits ", "have ": "has ", "arrive ": "arrives ", "do not": "does not"}
        for plural, single in () if several else forms.items():
            state = state.replace(plural, single)
        return f"{self._warps(warps)} {state}"

    def _arrived(self, wait: Wait, insts: set[int]) -> str:
        """Returns what instructions did for the open phase of an mbarrier, in words."""
        mbarrier = self.known.mbarriers.get(wait.target)
        own = [each for each in mbarrier.operations if each.inst in insts] if mbarrier else []
        count, expect, complete = (sum(getattr(each, name) for each in own) for name in ("count", "expect", "complete"))
        threads = {each.lane // 32 for each in own if each.lane >= 0}
        texts = [f"{count} arrival{'s' * (count > 1)}{f' of {self._warps(threads)}' if threads else ''}"] * bool(count)
        texts += [f"{expect:,} bytes expected"] * bool(expect) + [f"{complete:,} bytes delivered"] * bool(complete)
        return f"in this phase: {', '.join(texts)}" if texts else ""

    def _absent(self, wait: Wait) -> Iterator[Step]:
        """Yields the last operation of each warp that has not arrived at a barrier other than an mbarrier."""
        edges = [edge.by for edge in self.graph.edges(wait) if edge.by]
        if wait.kind == WAIT_BAR:
            edges = [each for each in self.graph.waits if each.rank == wait.rank]
        for other in dict.fromkeys(edges):
            if (other.kind, other.target) != (wait.kind, wait.target) or other.kind not in (WAIT_BAR, WAIT_CLUSTER):
                yield self.known.step(self._clause(other.warps, self._waiting(other)), other.inst.index, other.lanes[0])
        if wait.kind == WAIT_BAR:
            yield from (step for step in self._last_operations(wait.rank) if "exited" in step.what)

    def _last_operations(self, rank: int | None = None) -> Iterator[Step]:
        """Yields the last operation of each group of warps, of one CTA or all."""
        rows: dict[tuple[int, str], list[int]] = {}
        live = self.cluster.warps["live"].tolist()
        at = {warp: self._waiting(wait) for wait in reversed(self.numbers) for warp in wait.warps}
        for warp, row in enumerate(self.known.last):
            if row is not None and rank in (None, warp // self.cluster.per_cta):
                state = at.get(warp, "wait for other lanes") if live[warp] else "have exited"
                rows.setdefault((row.inst, state), []).append(warp)
        for (inst, state), warps in rows.items():
            yield self.known.step(self._clause(warps, state), inst, 32 * warps[0])

    def _warps(self, warps: Iterable[int]) -> str:
        """Returns ``"CTA 0-1, warps 0-3"``; only the warps if the cluster has one CTA."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.cluster.ranks):
            own = tuple(sorted({warp % self.cluster.per_cta for warp in warps if warp // self.cluster.per_cta == rank}))
            found.setdefault(own, []).append(rank)
        found.pop((), None)
        texts = {own: cta_text([self.known.cta(rank) for rank in ranks]) for own, ranks in found.items()}
        return "; ".join(
            f"{texts[own]}, {warp_text(own)}" if self.cluster.ranks > 1 else warp_text(own) for own in found
        )
