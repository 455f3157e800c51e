"""The journal of a replay's first cluster: stalls by role, and the timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from warpwright.vgpu.jit.costs import WARP_MMAS, is_memory
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.timing.result import Role, Span, Stall
from warpwright.vgpu.timing.slots import CopySpan, MmaSpan, Slots

if TYPE_CHECKING:
    from warpwright.vgpu.machine.launch import Launch
    from warpwright.vgpu.timing.steps import Step

__all__ = ["Journal", "PhaseCause", "journal_of"]

MOST_SPANS = 50_000
_REASONS = {
    "bar_sync": "barrier",
    "cluster_wait": "cluster barrier",
    "tmem_load": "tensor memory",
    "tmem_store": "tensor memory",
    "tmem_wait": "tensor memory",
    "group_wait": "waits wgmma",
    "warp_mma": "waits mma",
    "wgmma": "issues",
    "mma": "issues",
    "tmem_copy": "issues",
    "copy_wait": "waits copies",
    "shared_access": "shared memory",
    "remote_access": "distributed shared memory",
    "global_access": "global memory",
    "load_box": "issues",
    "store_box": "issues",
    "add_box": "issues",
    "alloc": "tensor memory",
}


_ENGINES = {"load_box": "TMA", "send": "TMA", "commit": "tensor core"}  # by kind of step, else a role


class PhaseCause(NamedTuple):
    """The number of a phase, and the operation that ended it: its track, CTA, cycle of issue and line."""

    number: int
    track: str
    rank: int
    issued: float
    where: str


@dataclass(slots=True)
class _Lane:
    """Time of one warp in one role."""

    busy: float = 0.0
    total: float = 0.0


@dataclass(slots=True)
class _OpenSpan:
    """A span of a role whose end may still move."""

    track: str
    cta: int
    name: str
    start: float
    end: float
    where: str
    phase: int
    released: int

    @property
    def span(self) -> Span:
        start, end = float(self.start), float(self.end)
        return Span(self.track, self.cta, self.name, start, end, self.where, 0, self.phase, self.released)


class Journal:
    """``stride``: bytes from one CTA's shared memory to the next; ``sources``: the stall reason of instructions whose
    results warps wait for, where it is not global memory."""

    def __init__(self, names: Names, stride: int, sources: Mapping[int, str]) -> None:
        self.names, self.stride, self.sources = names, stride, sources
        self.lanes: dict[tuple[str, int], _Lane] = defaultdict(_Lane)
        self.stalls: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.open: list[_OpenSpan] = []
        self.shown: dict[tuple[str, int], int] = {}
        self.last: dict[tuple[str, int], _OpenSpan] = {}
        self.doing: dict[int, str] = {}
        self.copies: list[CopySpan] = []
        self.mmas: list[MmaSpan] = []
        self.phases: list[tuple[int, float]] = []
        self.causes: list[PhaseCause] = []
        self.ended: dict[int, list[int]] = defaultdict(list)
        self.end = 0.0

    def add_busy(self, warp: Any, step: Step, start: float, end: float, queued: float) -> None:
        """Add the time in which a warp issued up to a step; for ``queued`` of the cycles other warps had its
        scheduler."""
        role = self.role(warp, step)
        lane = self.lanes[role, warp.number]
        lane.total += end - start
        lane.busy += end - start - queued
        if queued:
            self.stalls[role, "issue slots"][step.inst] += queued
        self.add_span(role, warp, "issues", start, end, step.inst)

    def add_stall(self, warp: Any, step: Step, start: float, end: float) -> None:
        role = self.role(warp, step)
        reason = self.reason(step)
        lane = self.lanes[role, warp.number]
        lane.total += end - start
        if reason == "issues":
            lane.busy += end - start
        else:
            self.stalls[role, reason][step.inst] += end - start
        self.add_span(role, warp, reason, start, end, step.inst, *self._release(step, start))

    def _release(self, step: Step, start: float) -> tuple[int, int]:
        """Returns number and index of the phase whose end released a wait that began at ``start``; -1 for none."""
        for index in reversed(self.ended[step.what][-2:] if step.kind == "wait" else []):
            number = self.causes[index].number
            if number & 1 == step.number:
                return number, index if self.phases[index][1] > start else -1
        return -1, -1

    def role(self, warp: Any, step: Step) -> str:
        """The role of a warp at a step. A "need" step has the number of a load, maybe of another role, and keeps the
        last role."""
        if step.kind != "need":
            self.doing[warp.number] = self.names.roles[step.inst]
        return self.doing.get(warp.number, self.names.roles[step.inst])

    def reason(self, step: Step) -> str:
        if step.kind == "wait":
            return self.names.waits(step.inst, step.what % self.stride)
        if step.kind == "need":
            return self.sources.get(step.number, "global memory")
        return _REASONS.get(step.kind, "issues")

    def add_span(
        self, track: str, warp: Any, name: str, start: float, end: float, inst: int, phase: int = -1, released: int = -1
    ) -> None:
        """Add a span of a role, for the first warp of each CTA in that role; adjacent spans of one name are merged."""
        if self.shown.setdefault((track, warp.rank), warp.number) != warp.number or end <= start:
            return
        last = self.last.get((track, warp.rank))
        if last is not None and last.name == name and start <= last.end:
            last.end, last.phase, last.released = end, phase, released
        elif len(self.open) < MOST_SPANS:
            span = _OpenSpan(track, warp.rank, name, start, end, self.names.places[inst], phase, released)
            self.last[track, warp.rank] = span
            self.open.append(span)

    @property
    def spans(self) -> list[Span]:
        """The spans of the roles, in the order in which they began."""
        return [each.span for each in self.open]

    def add_copy(self, warp: Any, step: Step, start: float, end: float) -> None:
        if len(self.copies) < MOST_SPANS:
            self.copies.append(CopySpan(step.what, warp.rank, float(start), float(end), self.names.places[step.inst]))

    def add_mma(self, warp: Any, step: Step, start: float, end: float) -> None:
        if len(self.mmas) < MOST_SPANS:
            self.mmas.append(MmaSpan(step.what, float(start), float(end), self.names.places[step.inst]))

    def add_phase(self, place: int, end: float, cause: tuple[Any, Step, float]) -> None:
        """Add the end of a phase of the mbarrier at ``place``. ``cause``: warp and step of the operation that ended it,
        and when it was issued."""
        if len(self.phases) < MOST_SPANS:
            warp, step, issued = cause
            track = _ENGINES.get(step.kind) or self.names.roles[step.inst]
            number = len(self.ended[place])
            self.ended[place].append(len(self.phases))
            self.phases.append((place, float(end)))
            self.causes.append(PhaseCause(number, track, warp.rank, float(issued), self.names.places[step.inst]))

    def set_end(self, now: float) -> None:
        self.end = now

    def roles(self) -> tuple[Role, ...]:
        """Returns the roles of the CTA's warps, in order of their time, the longest first."""
        found = []
        for role in dict.fromkeys(name for name, _ in self.lanes):
            lanes = [lane for (name, _), lane in self.lanes.items() if name == role]
            total = sum(lane.total for lane in lanes)
            if total:
                busy = sum(lane.busy for lane in lanes) / total
                found.append(Role(role, len(lanes), total / len(lanes), busy, self._stalls(role, total, len(lanes))))
        return tuple(sorted(found, key=lambda role: -role.cycles))

    def _stalls(self, role: str, total: float, warps: int) -> tuple[Stall, ...]:
        found = []
        for (name, reason), places in self.stalls.items():
            if name == role:
                cycles, lines = sum(places.values()), self._lines(places, warps)
                found.append(Stall(reason, cycles / warps, cycles / total, lines[0][0], lines))
        return tuple(sorted(found, key=lambda stall: -stall.cycles))

    def _lines(self, places: Mapping[int, float], warps: int) -> tuple[tuple[str, float], ...]:
        """Returns the source lines of a stall with their cycles, the longest first."""
        cycles: dict[str, float] = defaultdict(float)
        for inst, waited in places.items():
            cycles[self.names.places[inst]] += waited / warps
        return tuple(sorted(cycles.items(), key=lambda line: -line[1]))

    def slots(self, waits: dict[int, int]) -> list[Span]:
        """Spans of engines and ring slots. ``waits``: for the address of a barrier, an instruction that waits for
        it."""
        names = self.names
        barriers = {place: (names.barriers.get(inst, ""), names.places[inst]) for place, inst in waits.items()}
        return list(Slots(barriers, self.stride, self.copies, self.mmas, self.phases).spans())


def journal_of(launch: Launch) -> Journal:
    """Returns an empty journal for a replay of a launch."""
    return Journal(Names(launch.kernel.program), launch.shared_stride, _sources(launch))


def _sources(launch: Launch) -> dict[int, str]:
    """The stall reason of each instruction whose results warps wait for, by instruction number."""
    shared = ("shared", "ldmatrix")
    spaces = {inst.index: inst["space"] or inst.name for inst in launch.insts if is_memory(inst)}
    loads = {number: "shared memory" for number, space in spaces.items() if space.startswith(shared)}
    return loads | {inst.index: "waits mma" for inst in launch.insts if inst.name in WARP_MMAS}
