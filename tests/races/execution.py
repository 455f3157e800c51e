"""The execution of an unchanged kernel, event by event: rows, operations and arrivals of one clean run.

The events are the rows that the checks read, recorded independently of the checks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tests.races.removals import KERNELS
from warpwright.vgpu.checks import watch, watcher
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.memory.footprints import Footprints
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.record import TOUCH
from warpwright.vgpu.program.program import Inst, Program, mentions

__all__ = ["COPIES", "NUMBERS", "Access", "Event", "Execution", "Signal", "executions"]

Ints = NDArray[np.int64]


class Access(NamedTuple):
    """Cells that are read or written, the lane that makes or issues the access, and the CTA of the cells. Lanes and
    CTAs are one for each cell, or one for all cells. ``tensor``: the cells are in tensor memory."""

    cells: Ints
    lanes: Ints | int
    write: bool
    ranks: Ints | int
    tensor: bool = False


@dataclass(eq=False)
class Event:
    """A row, with the operations that it issued. ``alive``: lanes of each warp that have not exited; ``cta_threads``:
    running threads of each CTA; ``use``: the row only says that registers are used, the instruction's own row
    follows."""

    row: Row
    inst: Inst
    alive: NDArray[np.uint32]
    cta_threads: list[int]
    ops: list[Op] = field(default_factory=list)

    @property
    def use(self) -> bool:
        return bool(self.row.extra & TOUCH)


class Signal(NamedTuple):
    """An engine arrives on an mbarrier or counts bytes at it: operation, instruction and CTA; the mbarrier's CTA and
    offset; arrivals and bytes."""

    number: int
    inst: int
    cta: int
    rank: int
    offset: int
    arrivals: int
    nbytes: int


class Execution:
    """One cluster's events in order. ``rows`` has the numbers of each instruction's rows, ``uses`` also the numbers of
    rows that only say that it uses registers; ``tensor`` is the first cell of tensor memory, after all of shared
    memory."""

    def __init__(self, known: Knowledge) -> None:
        self.footprints: Footprints = known.footprints
        self.tensor = self.footprints.shared_cells
        self.per_cta, self.stride = known.cluster.per_cta, known.cluster.shared_stride
        self.ranks, self.lanes = known.cluster.ranks, known.cluster.count * 32
        self.names, self.insts = known.names, known.insts
        self.events: list[Event | Signal] = []
        self.rows: dict[int, list[int]] = defaultdict(list)
        self.uses: dict[int, list[int]] = defaultdict(list)
        self.synchronises: set[int] = set()
        self.numbers: dict[str, int] = {}
        self.by_offset: dict[int, list[Event]] = defaultdict(list)

    def add(self, event: Event) -> None:
        for rows in (self.uses,) if event.use else (self.uses, self.rows):
            rows[event.inst.index].append(len(self.events))
        self.events.append(event)

    def event(self, number: int) -> Event:
        """Returns the event of a number in ``uses``."""
        event = self.events[number]
        assert isinstance(event, Event)
        return event

    @cached_property
    def cells(self) -> int:
        """An upper bound of the numbers of cells of memory, of barriers, and of registers of all warps."""
        names = {name for inst in self.insts for part in mentions(inst) for name in part}
        memory = self.tensor + self.footprints.tensor_cells
        return max(memory, self.ranks * (self.stride // 8 + NUMBERS), len(names) * self.lanes // 32) + 1

    def events_of(self, inst: int) -> Iterator[Event]:
        """Returns the events of an instruction."""
        return (self.event(number) for number in self.rows.get(inst, ()))

    def passes(self, *insts: set[int]) -> bool:
        """Returns whether a warp executes an instruction of each set, in this order."""
        reached = defaultdict[int, int](int)
        for number in sorted(number for inst in set().union(*insts) for number in self.rows.get(inst, ())):
            event = self.event(number)
            reached[event.row.warp] += event.inst.index in insts[reached[event.row.warp]]
            if reached[event.row.warp] == len(insts):
                return True
        return False

    def instructions(self, opcode: str) -> set[int]:
        """Returns the instructions of an opcode's name."""
        return {inst.index for inst in self.insts if inst.name == opcode}

    def events_at(self, offset: int) -> list[Event]:
        """Returns the events at mbarriers of an offset in their CTA."""
        if not self.by_offset:
            for event in map(self.event, sorted(chain.from_iterable(self.rows.values()))):
                for place in {place % self.stride for place in self.barriers(event)}:
                    self.by_offset[place].append(event)
        return self.by_offset[offset]

    def registers(self, inst: int) -> list[int]:
        """Returns the numbers of the registers that an instruction mentions."""
        reads, writes = mentions(self.insts[inst])
        return [self.numbers.setdefault(name, len(self.numbers)) for name in dict.fromkeys(reads + writes)]

    def rank_of(self, lanes: Ints | int) -> Ints | int:
        """Returns the CTAs of lanes."""
        return lanes // (32 * self.per_cta)

    def memory(self, cells: Ints, lanes: Ints | int, write: bool) -> Access:
        """Returns an access to cells that are all in shared or all in tensor memory."""
        if not len(cells) or cells[0] < self.tensor:
            return Access(cells, lanes, write, cells * self.footprints.cell // self.stride)
        return Access(
            cells, lanes, write, (cells - self.tensor) * self.ranks // self.footprints.tensor_cells, tensor=True
        )

    def in_own_cta(self, access: Access) -> Access:
        """Returns the same access, made to the shared memory of the lanes' own CTAs."""
        if access.tensor:
            return access
        size, own = self.stride // self.footprints.cell, self.rank_of(access.lanes)
        return access._replace(cells=access.cells % size + own * size, ranks=own)

    def steps(self, extra: set[int]) -> list[int]:
        """Returns the numbers of all synchronising events and of the events ``extra``, in order."""
        if not self.synchronises:
            self.synchronises = {
                i
                for i, event in enumerate(self.events)
                if isinstance(event, Signal) or (SYNCHRONISES.match(event.inst.name) and not event.use)
            }
        return sorted(self.synchronises | extra)

    def accesses(self, event: Event) -> Iterator[Access]:
        """Yields an event's reads and writes of shared and tensor memory."""
        row, name = event.row, event.inst.name
        if name in _LANES:
            yield from self._of_lanes(row, name)
        elif name in ("tcgen05.ld", "tcgen05.st"):
            cells = self.footprints.quarter(event.inst, row.warp, row.b)
            yield self.memory(cells.numbers + self.tensor, int(row.lanes[0]), name == "tcgen05.st")
        elif name == "wgmma.mma_async":
            for cells in self.footprints.of_wgmma(event.inst, row.warp // self.per_cta, row.a, row.b):
                yield self.memory(cells.numbers, int(row.lanes[0]), False)
        for op in event.ops:
            lane = (op.rank * self.per_cta + op.warp) * 32 + op.lane
            yield from (self.memory(cells, lane, write) for cells, write in self._of_op(op))

    def _of_lanes(self, row: Row, name: str) -> Iterator[Access]:
        inside = (row.places >= 0) & (row.places < self.ranks * self.stride)
        if inside.any():
            nbytes = 8 if name == "mbarrier.init" else row.a
            cells, lanes = self.footprints.of_lanes(row.places[inside], row.lanes[inside], nbytes)
            yield self.memory(cells, lanes, name not in ("ld", "ldmatrix"))

    def _of_op(self, op: Op) -> Iterator[tuple[Ints, bool]]:
        footprints, name = self.footprints, op.inst.name
        if name.startswith(("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")):
            matmul = footprints.of_tensor_op(op)
            yield from ((cells.numbers, False) for cells in matmul.shared_reads)
            yield from ((cells.numbers + self.tensor, False) for cells in matmul.tensor_reads)
            yield from ((cells.numbers + self.tensor, True) for cells in matmul.accumulators)
        elif name == "tcgen05.alloc":
            yield footprints.span(*footprints.place(op, "dst"), 4).numbers, True
        elif name == "tcgen05.dealloc":
            cells = footprints.columns(op.rank, op["taddr"] & 0xFFFF, op["ncols"] & 0xFFFF_FFFF)
            yield cells.numbers + self.tensor, True
        elif name == "cp.async":
            yield footprints.span(*footprints.place(op, "dst_mem"), op["size"]).numbers, True
        elif name in COPIES:
            yield from ((cells.numbers, False) for cells in footprints.reads(op))
            yield from ((cells.numbers, True) for cells in footprints.writes(op))

    def barriers(self, event: Event) -> Iterator[int]:
        """Yields the mbarriers that an event initialises, waits for or arrives at, or where its bytes are counted."""
        if event.inst.name.startswith("mbarrier."):
            yield from dict.fromkeys(event.row.places.tolist())
        for op in event.ops:
            if op.inst.name == "tcgen05.commit":
                yield from self.footprints.barriers(op)
            elif op.inst.name.startswith("cp.async.mbarrier"):
                rank, offset = self.footprints.place(op, "mbar")
                yield rank * self.stride + offset
            elif op.inst.name in COPIES and self.footprints.writes(op):
                yield from self.footprints.barriers(op)


NUMBERS = 16  # named barriers of a CTA
SYNCHRONISES = re.compile(
    r"mbarrier|bar|fence|membar|cp\.|.*commit|.*wait|tcgen05\.(mma|cp|shift|fence)|wgmma|st\.async|red\.async|cluster"
)
_LANES = ("ld", "st", "ldmatrix", "stmatrix", "atom", "red", "mbarrier.init")
COPIES = (
    "cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor", "st.async",
    "red.async", "clusterlaunchcontrol.try_cancel.async",
)  # fmt: skip


class _RecordedKnowledge(Knowledge):
    """The knowledge of the checks, which also records its rows, operations and signals as an `Execution`."""

    executions: list[tuple[Program, Execution]]

    def __init__(self, cluster: Any, *args: Any) -> None:
        super().__init__(cluster, *args)
        self.compiled = np.zeros_like(self.compiled)  # every access is a row of its own
        self.execution = Execution(self)
        self.executions.append((cluster.launch.kernel.program, self.execution))

    def add(self, row: Row) -> None:
        self.execution.add(Event(row, self.insts[row.inst], self.live, self.named.everyone.tolist()))

    def op(self) -> Op:
        op = super().op()
        self.execution.event(len(self.execution.events) - 1).ops.append(replace(op))
        return op

    def next_records(self, count: int) -> bytes:
        self.tensor_ops.clear()  # so that each operation is asked for
        return super().next_records(count)

    def signal(self, number: int, inst: int, cta: int, rank: int, offset: int, count: int, nbytes: int) -> None:
        event = Signal(number, inst, cta, rank, offset, count, nbytes)
        self.execution.events.append(event)
        super().signal(*event)


def executions(name: str) -> tuple[str, list[Execution], list[Verdict]]:
    """Returns the text of a kernel, the executions of its clusters in all its launches, and the verdicts."""
    recorded: list[tuple[Program, Execution]] = []
    recorder = type("_Recorder", (_RecordedKnowledge,), {"executions": recorded})
    apply_row = watch.apply_row

    def add_and_apply(knowledge: Any, row: Row) -> None:
        knowledge.add(row)
        apply_row(knowledge, row)

    with mock.patch.object(watcher, "Knowledge", recorder), mock.patch.object(watch, "apply_row", add_and_apply):
        watched = KERNELS[name](str)  # parsed from text, so that instructions know their lines
    return (
        watched.texts[0],
        [execution for program, execution in recorded if program is recorded[0][0]],
        watched.verdicts,
    )
