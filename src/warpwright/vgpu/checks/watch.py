"""One cluster is judged: what it did, row by row in the order in which it happened, and what it knows by then.

Lane code leaves a row for every access, barrier, fence and asynchronous operation (`watch.ll`), the machine tells when
an engine arrives on an mbarrier. What an instruction means for order and memory is a function of `threads`, `copies`
and `tensor`, found by its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, DeviceError
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.checks.meanings.registers import Registers
from warpwright.vgpu.checks.memory.accesses import ATOMIC, ENGINE, WRITE, Accesses, Cells, Ids, Shadow
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES, Footprints
from warpwright.vgpu.checks.order.barriers import Came, Heard, Mbarrier, Named, Whole
from warpwright.vgpu.checks.order.clocks import GENERIC, Clock, Clocks, Lanes
from warpwright.vgpu.checks.order.contexts import Contexts
from warpwright.vgpu.checks.order.flags import Flags
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.stream import Block
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.record import TOUCH

if TYPE_CHECKING:
    from warpwright.vgpu.checks.watcher import Watcher
    from warpwright.vgpu.machine.cluster import Cluster

__all__ = ["MEANINGS", "Row", "Watch", "meaning"]

_BITS = np.arange(32)


@lru_cache(maxsize=4096)
def _lanes(warp: int, mask: int) -> Lanes:
    found: Lanes = warp * 32 + _BITS[(mask >> _BITS) & 1 == 1]
    return found


class Row:
    """What lanes of a warp executed: the instruction's number, the lanes (``mask``: of the warp), and words that depend
    on it.

    ``places`` are bytes from the start of the cluster's shared memory, a lane each; ``packed`` the operands of an
    mbarrier operation: count, expected and completed bytes in 20, 22 and 22 bits.
    """

    __slots__ = ("a", "b", "extra", "inst", "lanes", "mask", "packed", "places", "warp")

    def __init__(self, words: Sequence[int]) -> None:
        head, lanes, self.a, self.b = words
        self.inst, self.warp, self.extra = head & 0xFFFF_FFFF, head >> 32, lanes >> 36
        self.mask = lanes & 0xFFFF_FFFF
        self.lanes: Lanes = _lanes(self.warp, self.mask)
        self.places: NDArray[np.int64] = _BITS
        self.packed: NDArray[np.int64] = _BITS


Meaning = Callable[["Watch", Row], None]
MEANINGS: dict[str, Meaning] = {}


def meaning(*names: str) -> Callable[[Meaning], Meaning]:
    """Register what rows of these instructions mean."""

    def register(function: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(names, function))
        return function

    return register


class Watch:
    """The checks of one cluster. ``at`` counts its rows; ``live`` lanes and ``running`` warps have not exited by then.

    ``columns`` are those of `Clocks` that belong to no lane and no mbarrier, by kind and owner; ``counts`` what has
    been issued or committed of a kind. ``flying`` holds copies that have not delivered yet: what was known when they
    were issued, and the writes in the order of delivery; ``commits`` what a tcgen05.commit will tell an mbarrier, who
    issued it and what that lane knew.
    """

    def __init__(self, cluster: Cluster, watcher: Watcher) -> None:
        self.cluster, self.watcher = cluster, watcher
        self.names = watcher.names
        self.insts = cluster.launch.insts
        self.meanings = watcher.meanings
        self.clocks = Clocks(cluster.count * 32)
        self.accesses = Accesses(self.clocks)
        self.globals = watcher.globals
        self.contexts = Contexts(self.clocks, self.globals.synchronises, bool(self.globals.depends))
        self.flags = Flags(self.contexts, self.clocks)
        self.prints = Footprints(cluster)
        self.shared = Shadow(self.accesses, self.prints.shared_cells)
        self.tensor = Shadow(self.accesses, self.prints.tensor_cells)
        self.registers = Registers(watcher.uses)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.held = np.zeros(self.prints.shared_bytes // BARRIER_BYTES, np.bool_)  # where mbarriers live
        self.named: dict[tuple[int, int], Named] = {}
        self.whole = Whole(self.clocks.lanes)
        self.columns: dict[tuple[str, int], int] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.flying: dict[int, tuple[Clock, list[int]]] = {}
        self.commits: dict[tuple[int, int], tuple[Clock, int, Clock]] = {}
        self.behind: dict[int, tuple[int, Clock]] = {}  # by CTA: who issued its last product, and what was known then
        self.pipes: dict[
            int, dict[str, int]
        ] = {}  # by CTA: how many operations each of its tensor core's pipelines got
        self.committed: dict[int, dict[str, int]] = {}
        self.sent: dict[int, tuple[Mbarrier, int, int, int]] = {}  # by place: what engines of another CTA did last
        self.groups: dict[tuple[int, int], Clock | None] = {}
        self.waiting: dict[int, list[tuple[Lanes, int]]] = {}
        self.fenced: dict[int, Clock] = {}
        self.taken = [np.zeros(0, np.uint32)] * cluster.count
        self.remote: dict[tuple[int, int, int], int] = {}
        self.stores: dict[int, tuple[int, int]] = {}
        self.issued = self.at = 0
        self.last: list[Row | None] = [None] * cluster.count
        self.live = self.stayed = np.zeros(cluster.count, np.uint32)
        self.running = np.ones(cluster.count, np.bool_)
        self.lane_groups: dict[int, list[int]] = {}  # by lane: its copies by the time of each cp.async.commit_group
        self.changes: dict[int, list[int]] = {}  # by warp: its setmaxnreg
        self.allocated: dict[int, int] = {}  # by CTA: its last tcgen05.alloc
        self.records: Iterator[list[int]] = iter(())
        self.findings: dict[tuple[Any, ...], Finding] = {}

    def follow(self, blocks: Iterable[Block], most: int | None = None) -> None:
        """Go through all that the cluster did, or so many rows of it. An address or a descriptor that the device
        refuses ends it: the machine says so."""
        with suppress(DeviceError, DescriptorError):
            for block in blocks:
                self._block(block, most)
                if self.at == most:
                    return

    def _block(self, block: Block, most: int | None) -> None:
        heads, signals = block.heads.tolist(), block.signals.tolist()
        places, packed = iter(block.places), iter(block.packed)
        self.records = iter(block.records.tolist())
        first = told = 0
        for (rows, _, signalled), self.live, self.running in zip(
            block.steps.tolist(), block.live, block.running, strict=True
        ):
            last: Row | None = None
            for before, head in itertools.pairwise(
                [[], *heads[first : first + (rows if most is None else min(rows, most - self.at))]]
            ):
                row = Row(head)
                tables = head[1] >> 32 & 15
                if tables:
                    row.places = next(places)[row.lanes - 32 * row.warp]
                if tables > 1:
                    row.packed = next(packed)[row.lanes - 32 * row.warp]
                if last is None or head != before or not self._again(row, last):
                    self._row(row)
                self.at, last = self.at + 1, row
            self.contexts.settle()
            self._exits()
            for signal in signals[told : told + signalled]:
                self.signal(*signal)
            first, told = first + rows, told + signalled
            if self.at == most:
                return

    def _exits(self) -> None:
        """Who has exited is not waited for."""
        for (rank, _), held in self.named.items():
            held.settle(self.clocks, self.everyone(rank))
        if not np.array_equal(self.live, self.stayed):
            self.stayed = self.live
            self.whole.stay(self.clocks, (self.live[:, None] >> _BITS & 1 == 1).ravel())

    def _again(self, row: Row, last: Row) -> bool:
        """Whether a warp's load is the one before it once more, as of a flag that it polls: that tells nothing new."""
        same = row.places is not _BITS and bool((row.places == last.places).all() and (row.places >= 0).all())
        return same and self.insts[row.inst].name == "ld"

    def _row(self, row: Row) -> None:
        if row.extra & TOUCH:
            self.registers.touch(self, row)
            return
        found = self.meanings[row.inst]
        if self.globals.kinds[row.inst] is None:
            self.contexts.settle()
        if found is not None:
            found(self, row)
            self.last[row.warp] = row

    def again(self, row: Row) -> bool:
        """Whether the warp's last row was the same lanes' for the same purpose: they know nothing new since."""
        last = self.last[row.warp]
        return last is not None and last.lanes is row.lanes and self.meanings[last.inst] is self.meanings[row.inst]

    def everyone(self, rank: int) -> int:
        """Threads of a CTA's warps that have not exited."""
        per_cta = self.cluster.per_cta
        return 32 * int(np.count_nonzero(self.running[rank * per_cta : (rank + 1) * per_cta]))

    def signal(self, number: int, inst: int, cta: int, rank: int, offset: int, count: int, nbytes: int) -> None:
        """What the machine did by itself: an engine arrives on an mbarrier or delivers bytes for it."""
        place = rank * self.cluster.shared_stride + offset
        held = self.mbarriers.get(place)
        if held is None:
            return
        clock, lane, knows = self.commits.pop((number, place), (None, -1, None))
        if number in self.flying:
            clock, writes = self.flying[number]
            access = writes.pop(0)
            self.accesses.rows["column"][access] = held.column
            self.accesses.complete([access], held.phase + 1)
            if not writes:
                del self.flying[number]
        if cta != rank:
            self.sent[place] = held, held.phase + 1, inst, cta
        if clock is not None and knows is not None:
            self.counts_for(held, knows, Heard(inst, lane, int(clock[GENERIC, lane])))
        self.arrive(held, inst, -1, clock, count, 0, nbytes)

    def counts_for(self, held: Mbarrier, knows: NDArray[np.uint32], came: Heard) -> None:
        """An arrival counts for the open phase: its thread must know that the one before it has ended."""
        other = held.strange(knows)
        if other is not None:
            first = self.step("arrives in the phase before", other.inst, other.lane)
            second = self.step("arrives", came.inst, came.lane)
            made = self.names.places[int(self.accesses.rows["inst"][held.init])]
            text = f"the mbarrier counts {held.expected} arrivals a phase ({made})"
            self.find("mbarrier-count", (first, second), text)
        held.heard[came.lane] = came

    def arrive(
        self, held: Mbarrier, inst: int, lane: int, clock: Clock | None, count: int, expect: int, complete: int
    ) -> None:
        """One operation on an mbarrier. When it ends a phase, everyone who saw the last one end must be heard of."""
        held.came.append(Came(inst, lane, count, expect, complete))
        if held.arrive(self.clocks, clock, count, expect, complete):
            held.ended()
            for late in held.overtaken().tolist()[:1]:
                first = self.step("waits for the phase before", int(held.wait_inst[late]), late)
                second = self.step("ends the next phase", inst, max(lane, 0))
                self.find("mbarrier-lapped", (first, second), "the wait may find the phase gone")

    def column(self, kind: str, of: int) -> int:
        """The column of ``kind`` that belongs to a lane, warp, warpgroup or CTA."""
        key = kind, of
        if key not in self.columns:
            self.columns[key] = self.clocks.column()
        return self.columns[key]

    def count(self, kind: str, of: int, more: int = 1) -> int:
        """Count ``more`` of a kind; gives how many there are."""
        key = kind, of
        self.counts[key] = self.counts.get(key, 0) + more
        return self.counts[key]

    def tensor_columns(self) -> Lanes:
        """Columns of what works on tensor memory."""
        return np.array([column for (kind, _), column in self.columns.items() if kind.startswith("tensor")], np.int64)

    def op(self) -> Op:
        """The next operation that a row issued."""
        self.issued += 1
        return self.cluster.op_of(next(self.records), self.issued - 1)

    def lane(self, op: Op) -> int:
        return (op.rank * self.cluster.per_cta + op.warp) * 32 + op.lane

    def judge(
        self,
        shadow: Shadow,
        cells: Cells,
        lanes: Ids | int,
        inst: int,
        write: bool,
        engine: bool = False,
        pipes: tuple[int, ...] = (),
        taken: NDArray[np.uint32] | None = None,
        atomic: bool = False,
    ) -> bool:
        """Findings for an access that comes after others that nothing orders before it; gives whether all the cells
        were written before.

        ``pipes`` are columns of engines that do one operation after the other, its own first: what those did is over.
        ``taken``: what the warp has taken up with tcgen05.fence, for accesses of tensor memory.
        """
        flags = write * WRITE | engine * ENGINE | atomic * ATOMIC
        own = pipes[0] if pipes else -1
        seen = shadow.quiet(cells, lanes, flags, own, taken) if isinstance(lanes, int) else 0
        if seen:
            return seen == 1
        ids, who = shadow.before(cells, lanes, write, atomic)
        others = ~np.isin(self.accesses.rows["column"][ids], pipes)
        self._unordered(ids[others], who[others], inst, engine, taken)
        return bool((shadow.writer[cells] >= 0).all())

    def _unordered(self, ids: Ids, who: Ids, inst: int, engine: bool, taken: NDArray[np.uint32] | None) -> None:
        """Findings for pairs of an access and a lane that comes after it."""
        late = self.accesses.unknown(ids, who)
        hidden = ~late & engine & self.accesses.unseen(ids, who)
        missed = ~late & self.accesses.untaken(ids, who, taken)
        for rule, chosen, text in (
            ("race", late, "nothing orders the second behind the first"),
            ("proxy-fence", hidden, "they are ordered, but the proxies differ"),
            ("tcgen05-fence", missed, "they are ordered, but not for the tensor core"),
        ):
            for access, lane in zip(ids[chosen].tolist(), who[chosen].tolist(), strict=True):
                self.clash(rule, access, inst, lane, text)

    def overwritten(self, words: Ids, lanes: Ids | int, inst: int) -> None:
        """Something is written to words of 8 bytes: no live mbarrier may be there."""
        struck = self.held[words]
        if np.count_nonzero(struck):
            place = int(words[struck][0]) * BARRIER_BYTES
            lane = lanes if isinstance(lanes, int) else int(lanes[struck][0])
            self.clash(
                "mbarrier-live", self.mbarriers[place].init, inst, lane, "the mbarrier lives until mbarrier.inval"
            )

    def clash(self, rule: str, access: int, inst: int, lane: int, message: str) -> None:
        """A finding about an earlier access and a later one."""
        rows = self.accesses.rows
        first = self.step("first", int(rows["inst"][access]), int(rows["lane"][access]))
        self.find(rule, (first, self.step("second", inst, lane)), message)

    def find(self, rule: str, steps: tuple[Step, ...], message: str) -> None:
        """A finding, once for the same instructions; of a race in whichever order they came first."""
        found = [(step.where, step.opcode) for step in steps]
        key = rule, *(sorted(found) if rule == "race" else found)
        if rule not in self.watcher.off and key not in self.findings:
            self.findings[key] = Finding(RULES[rule], steps, message)

    def step(self, what: str, inst: int, lane: int) -> Step:
        warp, found = lane // 32, self.insts[inst]
        rank, inside = divmod(warp, self.cluster.per_cta)
        cta = self.cluster.launch.cta_of(self.cluster.first, rank)
        return Step(what, found.opcode, self.names.places[inst], self.names.roles[inst], cta, inside * 32 + lane % 32)

    def finish(self) -> None:
        """The cluster is done: nobody may have used the memory of a CTA that did not know of it when it left."""
        per = self.cluster.per_cta * 32
        for (rank, inst, lane), value in self.remote.items():
            if self.clocks.table[GENERIC, rank * per : (rank + 1) * per, lane].max() < value:
                cta = self.cluster.launch.cta_of(self.cluster.first, rank)
                step = self.step("uses another CTA's memory", inst, lane)
                self.find("exit-early", (step,), f"CTA {cta} may have exited by then")
        for place, (held, phase, inst, rank) in self.sent.items():
            to = place // self.cluster.shared_stride
            if self.clocks.table[GENERIC, to * per : (to + 1) * per, held.column].max() < phase:
                cta = self.cluster.launch.cta_of(self.cluster.first, to)
                step = self.step("arrives at another CTA's mbarrier", inst, rank * per)
                self.find("exit-early", (step,), f"CTA {cta} may have exited by then: nobody there waits for the phase")
        for lane, (group, inst) in self.stores.items():
            if self.clocks.table[GENERIC, lane, self.column("bulk read", lane)] < group:
                step = self.step("reads shared memory", inst, lane)
                self.find("exit-early", (step,), "the CTA exits without waiting for the copy's group")
