"""What a replay notes of the first cluster that it runs: where time goes, and the timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warpwright.vgpu.program.names import Names
from warpwright.vgpu.timing.result import Role, Span, Stall
from warpwright.vgpu.timing.slots import Copied, Multiplied, Slots

if TYPE_CHECKING:
    from warpwright.vgpu.timing.steps import Step

__all__ = ["Journal"]

MOST_SPANS = 50_000
_REASONS = {
    "bar_sync": "barrier",
    "cluster_wait": "cluster barrier",
    "tmem_load": "tensor memory",
    "tmem_store": "tensor memory",
    "tmem_wait": "tensor memory",
    "group_wait": "waits wgmma",
    "warp_product": "waits mma",
    "group_product": "issues",
    "product": "issues",
    "copy_wait": "waits copies",
    "shared_access": "shared memory",
    "remote_access": "distributed shared memory",
    "global_access": "global memory",
    "load_box": "issues",
    "store_box": "issues",
    "add_box": "issues",
    "alloc": "tensor memory",
}


@dataclass(slots=True)
class _Lane:
    """Time of one warp in one role."""

    busy: float = 0.0
    total: float = 0.0


class Journal:
    """``stride``: bytes from one CTA's shared memory to the next; ``sources``: of instructions whose results are waited
    for, what these come from, where it is not global memory."""

    def __init__(self, names: Names, stride: int, sources: Mapping[int, str]) -> None:
        self.names, self.stride, self.sources = names, stride, sources
        self.lanes: dict[tuple[str, int], _Lane] = defaultdict(_Lane)
        self.stalls: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.spans: list[Span] = []
        self.shown: dict[tuple[str, int], int] = {}
        self.last: dict[tuple[str, int], int] = {}
        self.doing: dict[int, str] = {}
        self.copies: list[Copied] = []
        self.products: list[Multiplied] = []
        self.phases: list[tuple[int, float]] = []
        self.end = 0.0

    def busy(self, warp: Any, step: Step, start: float, end: float, queued: float) -> None:
        """A warp executed what lies before a step; for ``queued`` of the cycles others had its scheduler."""
        role = self.role(warp, step)
        lane = self.lanes[role, warp.number]
        lane.total += end - start
        lane.busy += end - start - queued
        if queued:
            self.stalls[role, "issue slots"][step.inst] += queued
        self.show(role, warp, "issues", start, end, step.inst)

    def stalled(self, warp: Any, step: Step, start: float, end: float) -> None:
        role = self.role(warp, step)
        reason = self.reason(step)
        lane = self.lanes[role, warp.number]
        lane.total += end - start
        if reason == "issues":
            lane.busy += end - start
        else:
            self.stalls[role, reason][step.inst] += end - start
        self.show(role, warp, reason, start, end, step.inst)

    def role(self, warp: Any, step: Step) -> str:
        """What a warp is doing: a step that needs what was loaded has the number of the load, maybe of another role."""
        if step.kind != "need":
            self.doing[warp.number] = self.names.roles[step.inst]
        return self.doing.get(warp.number, self.names.roles[step.inst])

    def reason(self, step: Step) -> str:
        if step.kind == "wait":
            return self.names.waits(step.inst, step.what % self.stride)
        if step.kind == "need":
            return self.sources.get(step.number, "global memory")
        return _REASONS.get(step.kind, "issues")

    def show(self, track: str, warp: Any, name: str, start: float, end: float, inst: int) -> None:
        """A span of a role, of the first warp of each CTA that is seen in it; neighbours of one name are joined."""
        if self.shown.setdefault((track, warp.rank), warp.number) != warp.number or end <= start:
            return
        last = self.last.get((track, warp.rank), -1)
        if last >= 0 and self.spans[last].name == name and start <= self.spans[last].end:
            self.spans[last] = replace(self.spans[last], end=float(end))
        elif len(self.spans) < MOST_SPANS:
            self.last[track, warp.rank] = len(self.spans)
            self.spans.append(Span(track, warp.rank, name, float(start), float(end), self.names.places[inst]))

    def copied(self, warp: Any, step: Step, start: float, end: float) -> None:
        if len(self.copies) < MOST_SPANS:
            self.copies.append(Copied(step.what, warp.rank, float(start), float(end), self.names.places[step.inst]))

    def multiplied(self, warp: Any, step: Step, start: float, end: float) -> None:
        if len(self.products) < MOST_SPANS:
            self.products.append(Multiplied(step.what, float(start), float(end), self.names.places[step.inst]))

    def phase(self, place: int, end: float) -> None:
        """The end of a phase of the mbarrier at a place."""
        if len(self.phases) < MOST_SPANS:
            self.phases.append((place, float(end)))

    def ended(self, now: float) -> None:
        self.end = now

    def roles(self) -> tuple[Role, ...]:
        """The roles, those with most time first."""
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
                cycles, worst = sum(places.values()), max(places, key=lambda inst: places[inst])
                found.append(Stall(reason, cycles / warps, cycles / total, self.names.places[worst]))
        return tuple(sorted(found, key=lambda stall: -stall.cycles))

    def slots(self, waits: dict[int, int]) -> list[Span]:
        """Engines and slots of rings. ``waits``: for the place of a barrier, an instruction that waits for it."""
        names = self.names
        barriers = {place: (names.barriers.get(inst, ""), names.places[inst]) for place, inst in waits.items()}
        return list(Slots(barriers, self.stride, self.copies, self.products, self.phases).spans())
