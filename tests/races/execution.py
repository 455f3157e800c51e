"""The execution of an unchanged kernel, event by event: rows, operations and arrivals of one clean run.

It is recorded from the rows that the checks take, independently of the checks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tests.races.removals import KERNELS
from warpwright.vgpu.checks import watch, watcher
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.knowledge import Knowledge, Row
from warpwright.vgpu.checks.memory.footprints import Footprints
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.record import TOUCH
from warpwright.vgpu.program.program import Inst, Program, mentions

__all__ = ["COPIES", "NUMBERS", "Access", "Event", "Execution", "Signal", "executions"]

Ints = NDArray[np.int64]


class Access(NamedTuple):
    """Cells that are read or written, the lane that does it or asks for it and the CTA that has them: one each, or one
    for all. ``tensor``: they are tensor memory's."""

    cells: Ints
    lanes: Ints | int
    write: bool
    ranks: Ints | int
    tensor: bool = False


@dataclass(eq=False)
class Event:
    """A row, with the operations that it issued. ``alive``: lanes of each warp that have not exited, ``everyone``:
    threads of each CTA's warps; ``use``: it only says that registers are used, the instruction's own row follows."""

    row: Row
    inst: Inst
    alive: NDArray[np.uint32]
    everyone: list[int]
    ops: list[Op] = field(default_factory=list)

    @property
    def use(self) -> bool:
        return bool(self.row.extra & TOUCH)


class Signal(NamedTuple):
    """An engine arrives on an mbarrier or delivers bytes for it: operation, instruction and CTA, the mbarrier's CTA and
    offset, arrivals and bytes."""

    number: int
    inst: int
    cta: int
    rank: int
    offset: int
    arrivals: int
    nbytes: int


class Execution:
    """One cluster's events in order. ``rows``: numbers of the rows of each instruction, ``uses`` those that only say
    that it uses registers too; ``tensor``: the first cell of tensor memory, behind all of shared memory."""

    def __init__(self, known: Knowledge) -> None:
        self.prints: Footprints = known.footprints
        self.tensor = self.prints.shared_cells
        self.per_cta, self.stride = known.cluster.per_cta, known.cluster.shared_stride
        self.ranks, self.lanes = known.cluster.ranks, known.cluster.count * 32
        self.names, self.insts = known.names, known.insts
        self.events: list[Event | Signal] = []
        self.rows: dict[int, list[int]] = defaultdict(list)
        self.uses: dict[int, list[int]] = defaultdict(list)
        self.synchronises: set[int] = set()
        self.numbers: dict[str, int] = {}
        self.met: dict[int, list[Event]] = defaultdict(list)

    def add(self, event: Event) -> None:
        for rows in (self.uses,) if event.use else (self.uses, self.rows):
            rows[event.inst.index].append(len(self.events))
        self.events.append(event)

    def event(self, number: int) -> Event:
        """One of ``uses``."""
        event = self.events[number]
        assert isinstance(event, Event)
        return event

    @cached_property
    def cells(self) -> int:
        """More than there are of memory, of barriers, and of registers of all warps."""
        names = {name for inst in self.insts for part in mentions(inst) for name in part}
        memory = self.tensor + self.prints.tensor_cells
        return max(memory, self.ranks * (self.stride // 8 + NUMBERS), len(names) * self.lanes // 32) + 1

    def of(self, inst: int) -> Iterator[Event]:
        """The events of an instruction."""
        return (self.event(number) for number in self.rows.get(inst, ()))

    def named(self, opcode: str) -> set[int]:
        """The instructions of a kind."""
        return {inst.index for inst in self.insts if inst.name == opcode}

    def at(self, offset: int) -> list[Event]:
        """The events at mbarriers of an offset in their CTA."""
        if not self.met:
            for event in map(self.event, sorted(chain.from_iterable(self.rows.values()))):
                for place in {place % self.stride for place in self.barriers(event)}:
                    self.met[place].append(event)
        return self.met[offset]

    def registers(self, inst: int) -> list[int]:
        """Numbers of the registers that an instruction mentions."""
        used, made = mentions(self.insts[inst])
        return [self.numbers.setdefault(name, len(self.numbers)) for name in dict.fromkeys(used + made)]

    def rank_of(self, lanes: Ints | int) -> Ints | int:
        """The CTAs of lanes."""
        return lanes // (32 * self.per_cta)

    def memory(self, cells: Ints, lanes: Ints | int, write: bool) -> Access:
        """An access to cells, all of them of shared or all of tensor memory."""
        if not len(cells) or cells[0] < self.tensor:
            return Access(cells, lanes, write, cells * self.prints.cell // self.stride)
        return Access(cells, lanes, write, (cells - self.tensor) * self.ranks // self.prints.tensor_cells, tensor=True)

    def at_home(self, access: Access) -> Access:
        """The same in the shared memory of the lanes' own CTAs."""
        if access.tensor:
            return access
        size, own = self.stride // self.prints.cell, self.rank_of(access.lanes)
        return access._replace(cells=access.cells % size + own * size, ranks=own)

    def steps(self, also: set[int]) -> list[int]:
        """Events in order: those that synchronise, and ``also`` some others."""
        if not self.synchronises:
            self.synchronises = {
                i
                for i, event in enumerate(self.events)
                if isinstance(event, Signal) or (SYNCHRONISES.match(event.inst.name) and not event.use)
            }
        return sorted(self.synchronises | also)

    def accesses(self, event: Event) -> Iterator[Access]:
        """What an event reads and writes of shared and tensor memory."""
        row, name = event.row, event.inst.name
        if name in _LANES:
            yield from self._of_lanes(row, name)
        elif name in ("tcgen05.ld", "tcgen05.st"):
            cells = self.prints.quarter(event.inst, row.warp, row.b)
            yield self.memory(cells + self.tensor, int(row.lanes[0]), name == "tcgen05.st")
        elif name == "wgmma.mma_async":
            for cells in self.prints.of_wgmma(event.inst, row.warp // self.per_cta, row.a, row.b):
                yield self.memory(cells, int(row.lanes[0]), False)
        for op in event.ops:
            lane = (op.rank * self.per_cta + op.warp) * 32 + op.lane
            yield from (self.memory(cells, lane, write) for cells, write in self._of(op))

    def _of_lanes(self, row: Row, name: str) -> Iterator[Access]:
        inside = (row.places >= 0) & (row.places < self.ranks * self.stride)
        if inside.any():
            nbytes = 8 if name == "mbarrier.init" else row.a
            cells, lanes = self.prints.of_lanes(row.places[inside], row.lanes[inside], nbytes)
            yield self.memory(cells, lanes, name not in ("ld", "ldmatrix"))

    def _of(self, op: Op) -> Iterator[tuple[Ints, bool]]:
        prints, name = self.prints, op.inst.name
        if name.startswith(("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")):
            touched = prints.of_tensor_op(op)
            yield from ((cells, False) for cells in touched.operands)
            yield from ((cells + self.tensor, False) for cells in touched.tensor_reads)
            yield from ((cells + self.tensor, True) for cells in touched.accumulators)
        elif name == "tcgen05.alloc":
            yield prints.span(*prints.place(op, 0), 4), True
        elif name == "tcgen05.dealloc":
            yield prints.columns(op.rank, op.words[0] & 0xFFFF, op.words[1] & 0xFFFF_FFFF) + self.tensor, True
        elif name == "cp.async":
            yield prints.span(*prints.place(op, 0), op.words[2]), True
        elif name in COPIES:
            yield from ((cells, False) for cells in prints.reads(op))
            yield from ((cells, True) for cells in prints.writes(op))

    def barriers(self, event: Event) -> Iterator[int]:
        """Places of the mbarriers that an event initialises, waits for, arrives at or has bytes counted at."""
        if event.inst.name.startswith("mbarrier."):
            yield from dict.fromkeys(event.row.places.tolist())
        for op in event.ops:
            if op.inst.name == "tcgen05.commit":
                yield from (rank * self.stride + offset for rank, offset in self.prints.signals(op))
            elif op.inst.name.startswith("cp.async.mbarrier"):
                rank, offset = self.prints.place(op, 0)
                yield rank * self.stride + offset
            elif op.inst.name in COPIES and self.prints.writes(op):
                yield self.prints.barrier(op)


NUMBERS = 16  # of named barriers
SYNCHRONISES = re.compile(
    r"mbarrier|bar|fence|membar|cp\.|.*commit|.*wait|tcgen05\.(mma|cp|shift|fence)|wgmma|st\.async|red\.async|cluster"
)
_LANES = ("ld", "st", "ldmatrix", "stmatrix", "atom", "red", "mbarrier.init")
COPIES = (
    "cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor", "st.async",
    "red.async", "clusterlaunchcontrol.try_cancel.async",
)  # fmt: skip


class _Written(Knowledge):
    """Writes down what it is told."""

    told: list[tuple[Program, Execution]]

    def __init__(self, cluster: Any, *given: Any) -> None:
        super().__init__(cluster, *given)
        self.execution = Execution(self)
        self.told.append((cluster.launch.kernel.program, self.execution))

    def add(self, row: Row) -> None:
        everyone = [self.running_threads(rank) for rank in range(self.execution.ranks)]
        self.execution.add(Event(row, self.insts[row.inst], self.live, everyone))

    def op(self) -> Op:
        op = super().op()
        self.execution.event(len(self.execution.events) - 1).ops.append(op)
        return op

    def signal(self, number: int, inst: int, cta: int, rank: int, offset: int, count: int, nbytes: int) -> None:
        given = Signal(number, inst, cta, rank, offset, count, nbytes)
        self.execution.events.append(given)
        super().signal(*given)


def executions(name: str) -> tuple[str, list[Execution], list[Verdict]]:
    """The text of a kernel, what its clusters do in all launches of it, and the verdicts."""
    taken: list[tuple[Program, Execution]] = []
    written = type("_Written", (_Written,), {"told": taken})
    apply_row = watch.apply_row

    def add_and_apply(knowledge: Any, row: Row) -> None:
        knowledge.add(row)
        apply_row(knowledge, row)

    with mock.patch.object(watcher, "Knowledge", written), mock.patch.object(watch, "apply_row", add_and_apply):
        watched = KERNELS[name](str)  # as it is, but parsed, so that instructions know their lines of PTX
    return watched.texts[0], [execution for program, execution in taken if program is taken[0][0]], watched.verdicts
