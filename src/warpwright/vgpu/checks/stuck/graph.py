"""The wait-for graph of a cluster in which nothing can run: which waiting lanes would release which others.

An edge is an instruction that lanes may execute after their own wait, as far as the text shows (`wait_forms`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.stuck.wait_forms import Forms, Places, definitions
from warpwright.vgpu.checks.stuck.waits import GATHERS, NOWHERE, SPINS, Wait, waits
from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_CLUSTER, WAIT_MBARRIER, WAIT_SERVICE, WAIT_WGMMA
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.program.names import APART, WHOLE, Names, Variables
from warpwright.vgpu.program.program import Inst, Operand

__all__ = ["Edge", "Graph", "brings_bytes"]

_FREES = {"setmaxnreg": "dec", "tcgen05.alloc": "dealloc"}  # a modifier of the service that ends the wait of another


@dataclass(frozen=True, slots=True)
class Edge:
    """``by`` would release the waiting lanes at ``inst``; None if the lanes that might have done so have exited."""

    inst: Inst
    rank: int
    by: Wait | None


def brings_bytes(inst: Inst) -> bool:
    """Whether an instruction delivers bytes that an mbarrier counts."""
    return "complete_tx" in inst.opcode


def _arrives(inst: Inst) -> bool:
    """Whether an instruction arrives on an mbarrier, or delivers bytes for it."""
    return "arrive" in inst.opcode or brings_bytes(inst)


def _is_named(inst: Inst) -> bool:
    """Whether an instruction arrives at a named barrier, or waits there."""
    return inst.traits.queue == "barrier" and inst.find("a") is not None


def _arrives_at_cluster(inst: Inst) -> bool:
    return inst.traits.queue == "barrier" and inst.has("cluster") and not inst.traits.blocks


class Graph:
    """``waits`` are the nodes; `edges` returns which lanes would release a wait, `cycle` waits for each other.
    ``originals``: each wait as the machine has it, where a spin has no mbarrier."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self.cluster, self.names = cluster, names
        self.program = cluster.launch.kernel.program
        self.defined = definitions(self.program)
        self.variables = Variables(self.program)
        self.found: dict[Wait, list[Edge]] = {}
        self.known: dict[int, Forms] = {}
        self.ahead: dict[tuple[int, int], dict[int, Inst]] = {}
        users = [inst for inst in self.program.insts if inst.find("mbar")]
        self.signals = [inst for inst in users if _arrives(inst) or "wait" in inst.name]
        found = [self._forms(0).places(inst.operand("mbar")) for inst in self.signals]
        self.starts = sorted({places.start for places in found if places})
        self.originals = {self._with_mbarrier(wait) if wait.kind == SPINS else wait: wait for wait in waits(cluster)}
        self.waits = list(self.originals)

    def _forms(self, lane: int) -> Forms:
        """Returns the forms of registers in a lane of the cluster."""
        if lane not in self.known:
            launch, cluster = self.cluster.launch, self.cluster
            rank, warp = divmod(lane // 32, cluster.per_cta)
            specials = launch.fixed_specials(rank, warp) | launch.grid_specials(cluster.first, rank)
            values = {name: int(np.broadcast_to(value, 32)[lane % 32]) for name, value in specials.items()}
            self.known[lane] = Forms(self.program, self.defined, values, rank)
        return self.known[lane]

    def number(self, lane: int, operand: Operand) -> int | None:
        """Returns the value of an operand in a lane, None if the text does not show it."""
        form = self._forms(lane).of(operand)
        return form.constant if form.known else None

    def _ahead(self, lane: int, block: int) -> dict[int, Inst]:
        """Returns the instructions that a lane may execute from a block on."""
        key = lane, block
        if key not in self.ahead:
            self.ahead[key] = self._forms(lane).reachable(block)
        return self.ahead[key]

    def ahead_of(self, wait: Wait) -> dict[int, Inst]:
        """Returns the instructions that the lanes of a wait may execute after it."""
        return self._ahead(wait.lanes[0], wait.block)

    def _with_mbarrier(self, wait: Wait) -> Wait:
        """Returns a spin with the mbarrier that it tests, if there is one."""
        lane, blocks = wait.lanes[0], {inst.index: block.index for block in self.program.blocks for inst in block.insts}
        for inst in self.signals:
            if "wait" in inst.name and inst.index in self._ahead(lane, wait.block):
                places = self._forms(lane).places(inst.operand("mbar"))
                back = wait.inst.index in self._ahead(lane, blocks[inst.index])
                if back and places and places.rank is not None and not places.strided:
                    return replace(wait, inst=inst, target=places.rank * self.cluster.shared_stride + places.start)
        return wait

    def reported_waits(self) -> list[Wait]:
        """Returns the waits to report: without lanes that only wait for others of their warp, which wait elsewhere."""
        busy = {warp for wait in self.waits if wait.kind != GATHERS for warp in wait.warps}
        return [wait for wait in self.waits if wait.kind != GATHERS or not wait.warps <= busy]

    def edges(self, wait: Wait) -> list[Edge]:
        """Returns the lanes that could release the lanes of a wait."""
        if wait not in self.found:
            self.found[wait] = self._edges(wait)
        return self.found[wait]

    def _edges(self, wait: Wait) -> list[Edge]:
        awaited = wait.kind == WAIT_MBARRIER or (wait.kind == SPINS and wait.target != NOWHERE)
        ranks = range(self.cluster.ranks) if awaited or wait.kind == WAIT_CLUSTER else (wait.rank,)
        found = [
            Edge(inst, other.rank, other)
            for other in self.waits
            if other.rank in ranks and (other is not wait or awaited)
            for inst in self._releases(wait, other)
        ]
        if awaited:
            found += [Edge(inst, lane // 32 // self.cluster.per_cta, None) for lane in self.exited_lanes()
                      for inst in self.signalling(lane, 0, wait)]  # fmt: skip
        return list({(edge.inst.index, edge.rank, edge.by): edge for edge in found}.values())

    def _releases(self, wait: Wait, other: Wait) -> Iterator[Inst]:
        """Yields the instructions of ``other`` that would release a wait."""
        lane = other.lanes[0]
        match wait.kind:
            case k if k == WAIT_MBARRIER or (k == SPINS and wait.target != NOWHERE):
                yield from self.signalling(lane, other.block, wait)
            case k if k == WAIT_BAR:
                if (other.kind, other.target) != (WAIT_BAR, wait.target) or other.warps & wait.warps:
                    yield from self._first(lane, other.block, _is_named)
            case k if k == WAIT_CLUSTER:
                late = not self.cluster.cluster_barrier.has_arrived(*divmod(lane, 32))
                yield from self._first(lane, other.block, _arrives_at_cluster) if late else ()
            case k if k in (GATHERS, WAIT_WGMMA):
                apart = other.warps & wait.warps if wait.kind == GATHERS else other.warps
                yield from (i for i in [other.inst] if apart)
            case k if k == WAIT_SERVICE:
                word, ahead = _FREES.get(wait.inst.name, ""), self._ahead(lane, other.block).values()
                yield from (i for i in ahead if i.traits.queue == "service" and i.has(word))

    def _first(self, lane: int, block: int, kind: Callable[[Inst], bool]) -> list[Inst]:
        """Returns the first instruction of a kind that a lane may execute."""
        ahead = self._ahead(lane, block)
        return [ahead[index] for index in sorted(ahead) if kind(ahead[index])][:1]

    def signalling(self, lane: int, block: int, wait: Wait) -> Iterator[Inst]:
        """Yields the instructions ahead of a lane that arrive on the mbarrier of a wait or deliver bytes for it."""
        ahead = self._ahead(lane, block)
        rank, offset = divmod(wait.target, self.cluster.shared_stride)
        for inst in self.signals:
            if inst.index in ahead and _arrives(inst):
                places = self._forms(lane).places(inst.operand("mbar"))
                if places and "multicast" in inst.opcode:  # in CTAs that the text may not show
                    places = replace(places, rank=None)
                if places and self._matches(places, rank, offset):
                    yield inst

    def _matches(self, places: Places, rank: int, offset: int) -> bool:
        if places.rank not in (None, rank):
            return False
        if not places.strided:
            return places.start == offset
        after = self.starts[bisect_right(self.starts, places.start) :]
        return places.start <= offset < (after[0] if after else self.cluster.shared_limit)

    def at(self, inst: int) -> str:
        """``mma (kernel.py:12)``; outside of roles the line alone."""
        role, place = self.names.roles[inst], self.names.places[inst]
        return place if role in (WHOLE, APART) else f"{role} ({place})"

    def who(self, wait: Wait) -> str:
        """Returns the role of the lanes that wait; outside of roles, their warp."""
        role = self.names.roles[wait.inst.index]
        return f"warp {wait.lanes[0] // 32 % self.cluster.per_cta}" if role in (WHOLE, APART) else role

    def name(self, place: int) -> str:
        """Returns the name of an mbarrier: ``ab.full[2]``, by the label of a wait or by its variable, or its offset."""
        rank, offset = divmod(place, self.cluster.shared_stride)
        first = rank * self.cluster.per_cta * 32
        for inst in self.signals:
            word = self.names.barriers.get(inst.index)
            places = self._forms(first).places(inst.operand("mbar")) if word else None
            if word and places and self._matches(places, rank, offset):
                return f"{word}[{(offset - places.start) // BARRIER_BYTES}]" if places.strided else word
        return self.variables.name(offset) or f"the mbarrier at 0x{offset:x}"

    def exited_lanes(self) -> list[int]:
        """Returns an exited lane of every warp that has one."""
        cluster = self.cluster
        found = []
        for index, live in enumerate(cluster.warps["live"].tolist()):
            gone = cluster.launch.live_mask(index % cluster.per_cta) & ~live
            if gone:
                found.append(32 * index + (gone & -gone).bit_length() - 1)
        return found

    def cycle(self) -> list[Wait]:
        """Returns the shortest cycle of waits, in order; empty if there is none."""
        after = {wait: [edge.by for edge in self.edges(wait) if edge.by] for wait in self.waits}
        found = [path for wait in self.waits if (path := _shortest_cycle(wait, after))]
        return min(found, key=len, default=[])


def _shortest_cycle(start: Wait, after: dict[Wait, list[Wait]]) -> list[Wait]:
    """Returns the shortest path from a wait back to itself."""
    ways, seen = [[start]], {start}
    for way in ways:
        for other in after[way[-1]]:
            if other == start:
                return way
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []
