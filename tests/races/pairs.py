"""Pairs of accesses of an execution, and whether an edited instruction orders them.

The two accesses of a pair touch the same cells, and either the unedited kernel orders them and the kernel in which the
edited instruction publishes nothing does not (`orders`); or they touch the same cells only by an address that the edit
changes, and nothing orders them (`unknown_arrival`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tests.races.edits import Edit
from tests.races.execution import NUMBERS, Access, Event, Execution
from tests.races.happens_before import Cut, Pair, Source, pair_orders
from warpwright.ptx import nodes
from warpwright.vgpu.checks.findings import Step
from warpwright.vgpu.program.program import Inst, mentions, registers_of

__all__ = [
    "Edited",
    "Touches",
    "bar_numbers",
    "barriers",
    "distinct_pairs",
    "initialisations",
    "lanes_of",
    "memory",
    "of_step",
    "orders",
    "pairs",
    "per_cell",
    "registers",
    "sample",
    "tensor_columns",
    "unknown_arrival",
]

Ints = NDArray[np.int64]
SAMPLED = 200  # pairs of two instructions: the first ones, and about as many of the others
OF_WARPS = 1000  # of two warps
NEXT = 8  # bytes from an mbarrier to the next
_ENGINES = (
    *("tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "wgmma.mma_async", "cp.async.bulk", "cp.reduce.async.bulk"),
    "clusterlaunchcontrol.try_cancel",
)
_EARLY = "bytes too few, one arrival less, twice the bytes, one arrival more, two arrivals"


class Edited:
    """The edited instruction in an execution: ``insts`` (for an edited address, the instructions that use it), the
    ``offsets`` of its mbarriers in a CTA, those that it acts on by the edit (``next_offsets``), and the ``numbers`` of
    its named barriers. ``early`` are the offsets of mbarriers that may complete a phase early."""

    def __init__(self, execution: Execution, edit: Edit, early: frozenset[int] = frozenset()) -> None:
        self.execution, self.edit, self.early = execution, edit, early
        self.insts = {inst.index for inst in execution.insts if inst.line == edit.line + 1}
        if self.replaces_peer:
            self.insts = _users(execution, self.insts)
        self.offsets = set().union(*(self.offsets_of(inst) for inst in self.insts))
        self.next_offsets = {offset + NEXT for offset in self.offsets} if "next barrier" in edit.what else set()
        self.numbers = {number for inst in self.insts for number in bar_numbers(execution, inst)}

    def offsets_of(self, inst: int) -> set[int]:
        """Returns the offsets of the mbarriers that an instruction of the unedited kernel acts on."""
        return {
            place % self.execution.stride
            for event in self.execution.events_of(inst)
            for place in self.execution.barriers(event)
        }

    def edited_offsets_of(self, inst: int) -> set[int]:
        """Returns the offsets of the mbarriers that an instruction acts on, with those of the edit."""
        return self.offsets_of(inst) | (self.next_offsets if inst in self.insts else set())

    def memory(self, execution: Execution, event: Event) -> Iterator[Access]:
        """Yields an event's accesses at the edited address; without the peer's address they are in the CTA's own
        memory."""
        next_offsets = self.replaces_peer and event.inst.index in self.insts
        yield from map(execution.in_own_cta, execution.accesses(event)) if next_offsets else execution.accesses(event)

    @property
    def replaces_peer(self) -> bool:
        """Whether the edit replaces an address in a peer's memory by the CTA's own."""
        return self.edit.what == "no peer"

    @property
    def cut(self) -> Cut:
        """What the edited instruction no longer publishes. An mbarrier with too many arrivals or too few expected bytes
        may complete a phase early."""
        early: set[int] = set(self.early)
        if self.edit.what in _EARLY or self.replaces_peer:
            early = self.offsets
        elif self.next_offsets and "wait" not in self.edit.opcode:
            early = self.next_offsets
        stride, ranks = self.execution.stride, range(self.execution.ranks)
        places = frozenset(rank * stride + offset for rank in ranks for offset in early)
        return Cut(frozenset(self.insts), places, self.edit.what == "arrives at once")


def bar_numbers(execution: Execution, inst: int) -> set[int]:
    """Returns the numbers of the named barriers that an instruction arrives at."""
    if not execution.insts[inst].name.startswith(("bar.sync", "bar.arrive", "bar.red", "barrier.sync", "barrier.cta")):
        return set()
    return {event.row.a for event in execution.events_of(inst)}


def _users(execution: Execution, insts: set[int]) -> set[int]:
    """Returns the instructions that access an address written by ``insts``, or an address computed from it."""
    addresses: set[str] = set()
    more = {name for inst in insts for name in mentions(execution.insts[inst])[1]}
    while more > addresses:
        addresses = more
        readers = [inst for inst in execution.insts if addresses & set(mentions(inst)[0]) and not _bases(inst)]
        more = addresses | {name for inst in readers for name in mentions(inst)[1]}
    return {inst.index for inst in execution.insts if addresses & _bases(inst)}


def _bases(inst: Inst) -> set[str]:
    """Returns the registers of the addresses that an instruction accesses."""
    operands = (inst.find(operand.names[0]) for operand in inst.match.spelling.named) if inst.match else ()
    bases = (operand.base for operand in operands if isinstance(operand, nodes.Address))
    return {register.name for base in bases for register in registers_of(base)}


def of_step(execution: Execution, step: Step) -> set[int]:
    """Returns the instructions with the line, the opcode and the role of a step."""
    names, place = execution.names, (step.opcode, step.where, step.role)
    return {i.index for i in execution.insts if (i.opcode, names.places[i.index], names.roles[i.index]) == place}


Touches = Callable[[Execution, Event], Iterator[Access]]


def memory(execution: Execution, event: Event) -> Iterator[Access]:
    """Cells of shared and tensor memory."""
    yield from execution.accesses(event)


def barriers(execution: Execution, event: Event) -> Iterator[Access]:
    """mbarriers and named barriers, as if each lane that uses one wrote to it."""
    lanes = {int(event.row.lanes[0]), int(event.row.lanes[-1])}  # a lane may know alone what others learn
    if event.ops:
        lanes = {(op.rank * execution.per_cta + op.warp) * 32 + op.lane for op in event.ops}
    cells = [(place // NEXT, place // execution.stride) for place in execution.barriers(event)]
    rank = event.row.warp // execution.per_cta
    first = execution.stride * execution.ranks // NEXT + NUMBERS * rank
    cells += [(first + number, rank) for number in bar_numbers(execution, event.inst.index)]
    for (cell, owner), lane in product(cells, sorted(lanes)):
        yield Access(np.array([cell]), lane, True, owner)


def initialisations(execution: Execution, event: Event) -> Iterator[Access]:
    """mbarriers, whose initialisation engines must see."""
    yield from barriers(execution, event)


def registers(execution: Execution, event: Event) -> Iterator[Access]:
    """Registers of a warp."""
    numbers, lane = execution.registers(event.inst.index), int(event.row.lanes[0])
    cells = np.array(numbers, np.int64) * (execution.lanes // 32) + event.row.warp
    yield Access(cells, lane, True, execution.rank_of(lane))


def tensor_columns(execution: Execution, event: Event) -> Iterator[Access]:
    """Tensor memory as a whole, as one cell that is allocated, used and freed."""
    lane = int(event.row.lanes[0])
    if event.inst.name.startswith("tcgen05."):
        yield Access(np.zeros(1, np.int64), lane, True, execution.rank_of(lane))


def lanes_of(execution: Execution, event: Event) -> Iterator[Access]:
    """One cell that each lane of the warp writes."""
    lanes = event.row.lanes.astype(np.int64)
    yield Access(np.zeros(len(lanes), np.int64), lanes, True, execution.rank_of(lanes))


Warps = tuple["int | None", "int | None"]
ANY: Warps = (None, None)


def pairs(execution: Execution, first: set[int], second: set[int], touches: Touches, warps: Warps = ANY) -> list[Pair]:
    """Returns each access by an instruction of ``first`` with the next access by one of ``second`` to the same cells;
    at least one of the two writes. ``warps``: those of a CTA whose accesses count, for each of the two."""
    found: dict[Pair, None] = {}
    sources: list[Source] = []
    last = {write: np.full(execution.cells, -1, np.int64) for write in (True, False)}
    rows = execution.uses if touches is registers else execution.rows
    for number in sorted({number for inst in first | second for number in rows.get(inst, ())}):
        event = execution.event(number)
        accesses = [access for access in touches(execution, event) if len(access.cells)]
        earlier_warp, later_warp = (warp in (None, event.row.warp % execution.per_cta) for warp in warps)
        if event.inst.index in second and later_warp:
            for access in accesses:
                for earlier in (last[True], last[False])[: 2 if access.write else 1]:
                    for source, lane in distinct_pairs(earlier[access.cells], per_cell(access.lanes, access)):
                        if source >= 0 and sources[source].event != number:
                            found[_pair(execution, sources[source], number, lane, touches)] = None
        if event.inst.index in first and earlier_warp:
            for access in accesses:
                last[access.write][access.cells] = _add_sources(number, access, sources)
    return list(found)


def per_cell(values: Ints | int, access: Access) -> Ints:
    """Returns an array with one value for each cell of an access."""
    return np.broadcast_to(np.asarray(values, np.int64), access.cells.shape)


def distinct_pairs(left: Ints, right: Ints) -> list[tuple[int, int]]:
    """Returns the distinct pairs of an element of ``left`` and that of ``right`` at the same place."""
    packed = np.unique(left << 20 | right)
    return list(zip((packed >> 20).tolist(), (packed & 0xFFFFF).tolist(), strict=True))


def _add_sources(number: int, access: Access, sources: list[Source]) -> Ints:
    """Add a source for each lane and CTA of an access; returns the number of each cell's source."""
    lanes, ranks = per_cell(access.lanes, access), per_cell(access.ranks, access)
    packed, which = np.unique(lanes << 4 | ranks, return_inverse=True)
    first = len(sources)
    sources += [Source(number, key >> 4, key & 15, access.tensor, access.write) for key in packed.tolist()]
    numbers: Ints = first + which
    return numbers


def _pair(execution: Execution, source: Source, number: int, lane: int, touches: Touches) -> Pair:
    issuer, name = execution.event(source.event).inst.name, execution.event(number).inst.name
    crosses = not source.tensor and name.startswith(_ENGINES) and not issuer.startswith(_ENGINES)
    fenced = source.tensor and source.lane // 32 != lane // 32 and name != "tcgen05.dealloc"
    return Pair(source, number, lane, crosses and touches in (memory, initialisations), fenced and touches is memory)


def orders(edited: Edited, first: set[int], second: set[int], touches: Touches, warps: Warps = ANY) -> bool:
    """Returns whether an access by ``second`` is ordered after one by ``first`` in the unedited kernel, but not
    without the edited instruction."""
    found = sample(pairs(edited.execution, first, second, touches, warps), SAMPLED if warps == ANY else OF_WARPS)
    return any(uncut and not cut for _, uncut, cut in pair_orders(edited.execution, found, edited.cut))


def unknown_arrival(edited: Edited, first: set[int], second: set[int]) -> bool:
    """Returns whether an access by ``second`` reaches cells of one by ``first`` only because of the edit, and
    nothing orders it after that access."""
    before = {_identity(pair) for pair in pairs(edited.execution, first, second, memory)}
    found = sample(
        [pair for pair in pairs(edited.execution, first, second, edited.memory) if _identity(pair) not in before]
    )
    return not all(cut for _, _, cut in pair_orders(edited.execution, found, edited.cut))


def _identity(pair: Pair) -> tuple[int, int, int, int]:
    """Returns the two events and their lanes."""
    return pair.source.event, pair.source.lane, pair.event, pair.lane


def sample(found: list[Pair], most: int = SAMPLED) -> list[Pair]:
    """Returns the first ``most`` pairs and a sample of about as many of the others."""
    return found[:most] + found[most :: max(1, len(found) // most)]
