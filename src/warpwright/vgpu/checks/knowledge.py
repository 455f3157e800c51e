"""The knowledge about one cluster up to a row of its stream: clocks, accesses, mbarriers, and the findings.

The meaning of an instruction for order and memory is a function of `meanings`. `meaning` registers the function under
the name of the instruction; `watch` calls the function with the knowledge and the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.facts import Facts
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.checks.memory.accesses import ATOMIC, ENGINE, WRITE, Accesses, Cells, Ids, Shadow
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES, Footprints
from warpwright.vgpu.checks.order.barriers import Arrival, Mbarrier, Named, Operation, Whole
from warpwright.vgpu.checks.order.clocks import GENERIC, Clock, Clocks, Lanes
from warpwright.vgpu.checks.order.contexts import Contexts
from warpwright.vgpu.checks.order.flags import Flags
from warpwright.vgpu.checks.order.shared_flags import SharedFlags
from warpwright.vgpu.checks.rules import EVIDENCE, RULES
from warpwright.vgpu.checks.steps import step_of
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.uses import Use
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.warpgroup import WARPS

__all__ = ["BITS", "MEANINGS", "Knowledge", "Row", "WarpRegisters", "meaning"]

BITS = np.arange(32)


@lru_cache(maxsize=4096)
def _lanes(warp: int, mask: int) -> Lanes:
    found: Lanes = warp * 32 + BITS[(mask >> BITS) & 1 == 1]
    return found


class Row:
    """What lanes of a warp executed: the number of the instruction, the lanes (``mask``: of the warp), and two words
    that depend on the instruction.

    ``places`` are bytes from the start of the cluster's shared memory, one a lane; ``packed`` the operands of an
    mbarrier operation: count, expected and completed bytes in 20, 22 and 22 bits.
    """

    __slots__ = ("a", "b", "extra", "inst", "lanes", "mask", "packed", "places", "warp")

    def __init__(self, words: Sequence[int]) -> None:
        head, lanes, self.a, self.b = words
        self.inst, self.warp, self.extra = head & 0xFFFF_FFFF, head >> 32, lanes >> 36
        self.mask = lanes & 0xFFFF_FFFF
        self.lanes: Lanes = _lanes(self.warp, self.mask)
        self.places: NDArray[np.int64] = BITS
        self.packed: NDArray[np.int64] = BITS


Meaning = Callable[["Knowledge", Row], None]
MEANINGS: dict[str, Meaning] = {}


def meaning(*names: str) -> Callable[[Meaning], Meaning]:
    """Register the function for rows of these instructions."""

    def register(function: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass(slots=True)
class WarpRegisters:
    """The registers of one warp. ``flight``: group, instruction and registers of each wgmma that the warp has not
    waited for; ``since``: registers used since the last wgmma.fence, and by which instruction; ``fresh``: no wgmma
    was issued since then; ``written``: the lanes (a mask) that have written each register that may be unwritten."""

    flight: list[tuple[int, int, Use]] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    fenced: bool = False
    fresh: bool = False
    written: dict[str, int] = field(default_factory=dict)


class Knowledge:
    """The knowledge about one cluster. ``at`` counts its rows; ``live`` lanes and ``running`` warps have not exited.

    ``columns`` are those of `Clocks` that belong to no lane and no mbarrier, by kind and owner; ``counts``: how many of
    a kind were issued or committed. ``in_flight``: copies that have not delivered: what was known at their issue, and
    their accesses by delivery, in order, the write last. ``commits``: what an engine's arrival will tell an mbarrier,
    who issued it and what that lane knew.
    """

    def __init__(self, cluster: Cluster, facts: Facts, meanings: Sequence[Meaning | None]) -> None:
        self.cluster, self.facts, self.meanings = cluster, facts, meanings
        self.insts, self.names, self.globals = cluster.insts, facts.names, facts.globals
        self.clocks = Clocks(cluster.count * 32)
        self.accesses = Accesses(self.clocks)
        self.contexts = Contexts(self.clocks, self.globals.synchronises, bool(self.globals.depends))
        self.flags = Flags(self.contexts, self.clocks)
        self.shared_flags = SharedFlags(self.clocks, 32 * cluster.per_cta)
        self.footprints = Footprints(cluster)
        self.shared = Shadow(self.accesses, self.footprints.shared_cells)
        self.tensor = Shadow(self.accesses, self.footprints.tensor_cells)
        self.columns: dict[tuple[str, int], int] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.findings: dict[tuple[Any, ...], Finding] = {}
        self.doubts: set[int] = set()  # loads that read what no thread has written, stores that race with stores
        self.stored: dict[int, tuple[int, int]] = {}  # by access of a doubted store: its bytes and values
        self.storing: dict[int, tuple[int, int]] = {}  # by lane of the store that is judged: the same
        self._begin_rows()
        self._begin_barriers()
        self._begin_engines()

    def _begin_rows(self) -> None:
        """Where the walk through the rows stands."""
        count = self.cluster.count
        self.issued = self.at = 0
        self.records: Iterator[list[int]] = iter(())
        self.last: list[Row | None] = [None] * count
        self.live = self.settled_live = np.zeros(count, np.uint32)
        self.running = np.ones(count, np.bool_)
        self.registers: dict[int, WarpRegisters] = {}  # by warp
        self.unmet: dict[int, set[Mbarrier]] = defaultdict(set)  # by warp: for which it waited since its last meeting
        self.uncommitted: dict[int, set[Mbarrier]] = defaultdict(set)  # by warp: the same since its last commit
        self.remote_uses: dict[tuple[int, int, int], int] = {}  # by CTA used, instruction, lane: the lane's clock
        self.entered: set[tuple[int, int]] = set()  # lane and CTA: the lane knows that the CTA has started

    def _begin_barriers(self) -> None:
        """Barriers, and what is known through them."""
        self.mbarriers: dict[int, Mbarrier] = {}  # by place
        self.mbarrier_words = np.zeros(self.footprints.shared_bytes // BARRIER_BYTES, np.bool_)  # where mbarriers live
        self.remote_arrivals: dict[
            int, tuple[Mbarrier, int, int, int]
        ] = {}  # by place: the last of another CTA's engine
        self.deliveries: dict[int, tuple[Mbarrier, int, int, int]] = {}  # by place: the last of a copy, its lane
        self.sources: dict[tuple[int, int], tuple[Mbarrier, int, int]] = {}  # by place and CTA that copies to it
        self.named: dict[tuple[int, int], Named] = {}  # by CTA and number
        self.whole = Whole(self.clocks.lanes)
        self.fenced: dict[int, Clock] = {}  # by lane: what a relaxed arrival releases
        self.late_fences: dict[int, Clock] = {}  # by lane: what it knew at its last fence.proxy.async
        self.setmaxnregs: dict[int, list[int]] = defaultdict(list)  # by warp: accesses that stand for its setmaxnreg

    def _begin_engines(self) -> None:
        """Asynchronous operations: copies, tensor cores, wgmma."""
        self.in_flight: dict[int, tuple[Clock, list[list[int]]]] = {}
        self.commits: dict[tuple[int, int], tuple[Clock, int, Clock]] = {}  # by operation and place
        self.lane_groups: dict[int, list[int]] = {}  # by lane: its copies by the time of each cp.async.commit_group
        self.bulk_reads: dict[int, tuple[int, int]] = {}  # by lane: group and instruction of its last bulk read
        self.last_mma: dict[int, Clock] = {}  # by lane: what was known when the lane issued its last MMA
        self.pipes: dict[int, dict[str, int]] = {}  # by CTA: operations of each pipeline of its tensor core
        self.issued_ops: dict[int, dict[str, int]] = {}  # by lane: its last operation in each of them
        self.committed: dict[int, dict[str, int]] = {}  # the same at the CTA's last tcgen05.commit
        self.loads: dict[tuple[int, int], int] = {}  # by warp and tcgen05.ld: its last one among the loads
        self.allocs: dict[int, int] = {}  # by CTA: its last tcgen05.alloc
        self.frees: list[int] = []  # accesses that stand for a tcgen05.dealloc
        self.acquired = [np.zeros(0, np.uint32)] * self.cluster.count  # by warp: what tcgen05.fence made visible to it
        self.wgmma_groups: dict[tuple[int, int], Clock | None] = {}  # by warpgroup and group: what its warps knew
        self.wgmma_waits: dict[int, list[tuple[Lanes, int]]] = {}  # by warpgroup: who waits for which group

    def is_repetition(self, row: Row) -> bool:
        """Returns whether the warp's last row had the same lanes and meaning: the lanes learned nothing since."""
        last = self.last[row.warp]
        return last is not None and last.lanes is row.lanes and self.meanings[last.inst] is self.meanings[row.inst]

    def meet(self, row: Row) -> None:
        """The lanes of a warp have waited for one another in elect.sync, shfl.sync, vote.sync, match.sync or redux.sync
        (PTX ISA 9.7.9.6, 9.7.13.9 to 9.7.13.14): each has passed its waits for mbarriers when another goes on. ptxas
        makes WARPSYNC of it, as of bar.warp.sync. PTX orders no accesses by it."""
        waits = self.unmet.pop(row.warp, ())
        if not waits:
            return
        clocks = self.clocks.now(row.lanes)
        for mbarrier in waits:
            for lane in row.lanes[mbarrier.saw[row.lanes] >= 0].tolist():
                mbarrier.witness(lane, row.lanes, clocks)
        self.clocks.table[GENERIC, row.lanes, row.lanes] += 1

    def running_threads(self, rank: int) -> int:
        """Returns the threads of a CTA's warps that have not exited."""
        per_cta = self.cluster.per_cta
        return 32 * int(np.count_nonzero(self.running[rank * per_cta : (rank + 1) * per_cta]))

    def warpgroup(self, warp: int) -> range:
        """Returns the warps of a warp's warpgroup."""
        per_cta = self.cluster.per_cta
        first = warp - warp % per_cta % WARPS
        return range(first, min(first + WARPS, warp - warp % per_cta + per_cta))

    def op(self) -> Op:
        """Returns the next operation that a row issued."""
        self.issued += 1
        return self.cluster.op_of(next(self.records), self.issued - 1)

    def lane(self, op: Op) -> int:
        """Returns the lane of the cluster that issued an operation."""
        return (op.rank * self.cluster.per_cta + op.warp) * 32 + op.lane

    def column(self, kind: str, of: int) -> int:
        """Returns the column of ``kind`` that belongs to a lane, warp, warpgroup or CTA."""
        key = kind, of
        if key not in self.columns:
            self.columns[key] = self.clocks.column()
        return self.columns[key]

    def count(self, kind: str, of: int, more: int = 1) -> int:
        """Count ``more`` of a kind and return how many there are."""
        key = kind, of
        self.counts[key] = self.counts.get(key, 0) + more
        return self.counts[key]

    def tensor_columns(self) -> Lanes:
        """Returns the columns of operations on tensor memory."""
        return np.array([column for (kind, _), column in self.columns.items() if kind.startswith("tensor")], np.int64)

    def signal(self, number: int, inst: int, cta: int, rank: int, offset: int, count: int, nbytes: int) -> None:
        """An engine arrives on an mbarrier, or delivers bytes for it."""
        place = rank * self.cluster.shared_stride + offset
        mbarrier = self.mbarriers.get(place)
        if mbarrier is None:
            return
        clock, lane, knows = self.commits.pop((number, place), (None, -1, None))
        if number in self.in_flight:
            clock, writes = self.in_flight[number]
            parts = writes.pop(0)
            self.accesses.rows["column"][parts] = mbarrier.column
            self.accesses.complete(parts, mbarrier.phase + 1)
            self.deliveries[place] = mbarrier, mbarrier.phase + 1, inst, int(self.accesses.rows["lane"][parts[-1]])
            if parts[1:]:
                self.sources[place, cta] = mbarrier, mbarrier.phase + 1, inst
            if not writes:
                del self.in_flight[number]
        if cta != rank:
            self.remote_arrivals[place] = mbarrier, mbarrier.phase + 1, inst, cta
        if knows is not None:
            self._witness_waits(mbarrier, lane, knows)
        if clock is not None and knows is not None:
            self.check_arrival(mbarrier, knows, Arrival(inst, lane, int(clock[GENERIC, lane])))
        self.arrive(mbarrier, inst, -1, clock, count, 0, nbytes)

    def _witness_waits(self, mbarrier: Mbarrier, committer: int, knows: NDArray[np.uint32]) -> None:
        """A commit arrives: the end of the phase comes after all waits that its thread knew of when it committed."""
        mbarrier.commit(knows)
        waits, first = self.uncommitted[committer // 32], committer - committer % 32
        column, value = np.array([mbarrier.column]), np.array([mbarrier.phase + 1])
        for other in list(waits):
            lanes = first + np.flatnonzero(other.saw[first : first + 32] >= 0)
            known = knows[lanes] >= other.waited[lanes]
            for lane in lanes[known].tolist():
                other.witness(lane, column, value)
            if known.all():
                waits.remove(other)

    def check_entry(self, lane: int, rank: int, inst: int) -> None:
        """A lane uses shared memory of a CTA: another CTA must be known to have started."""
        threads = 32 * self.cluster.per_cta
        if rank == lane // threads or (lane, rank) in self.entered:
            return
        if self.clocks.table[GENERIC, lane, rank * threads : (rank + 1) * threads].any():
            self.entered.add((lane, rank))
            return
        text = f"nothing orders the use after the start of CTA {self.cta(rank)}"
        self.find("cluster-entry", (self.step("uses its memory", inst, lane),), text)

    def check_arrival(self, mbarrier: Mbarrier, knows: NDArray[np.uint32], arrival: Arrival) -> None:
        """An arrival counts for the open phase: its thread must know that the phase before has ended."""
        other = mbarrier.unknown_arrival(knows)
        if other is not None:
            first = self.step("arrives in the phase before", other.inst, other.lane)
            second = self.step("arrives", arrival.inst, arrival.lane)
            where = self.names.places[int(self.accesses.rows["inst"][mbarrier.init])]
            text = f"the mbarrier counts {mbarrier.expected} arrivals a phase ({where})"
            self.find("mbarrier-count", (first, second), text)
        mbarrier.arrivals[arrival.lane] = arrival

    def arrive(
        self, mbarrier: Mbarrier, inst: int, lane: int, clock: Clock | None, count: int, expect: int, complete: int
    ) -> None:
        """Apply one operation to an mbarrier. If it completes a phase, it must be ordered after each lane's wait for
        the phase before; otherwise this is a finding."""
        mbarrier.operations.append(Operation(inst, lane, count, expect, complete))
        if mbarrier.arrive(self.clocks, clock, count, expect, complete):
            mbarrier.end_phase()
            for late in mbarrier.overtaken().tolist()[:1]:
                first = self.step("waits for the phase before", int(mbarrier.wait_inst[late]), late)
                second = self.step("ends the next phase", inst, max(lane, 0))
                self.find("mbarrier-lapped", (first, second), "the wait may find the phase gone")

    def judge(
        self,
        shadow: Shadow,
        cells: Cells,
        lanes: Ids | int,
        inst: int,
        write: bool,
        engine: bool = False,
        pipes: tuple[int, ...] = (),
        acquired: NDArray[np.uint32] | None = None,
        atomic: bool = False,
    ) -> bool:
        """Find accesses that nothing orders before this one. Returns whether all the cells were written before.

        ``pipes`` are columns of engines that do one operation after the other, the access's own first: what those did
        is over. ``acquired``: what tcgen05.fence made visible to the warp, for accesses of tensor memory.
        """
        flags = write * WRITE | engine * ENGINE | atomic * ATOMIC
        own = pipes[0] if pipes else -1
        seen = shadow.quiet(cells, lanes, flags, own, acquired) if isinstance(lanes, int) else 0
        if seen and not (self.frees and shadow is self.tensor):
            return seen == 1
        ids, who = shadow.before(cells, lanes, write, atomic)
        others = ~np.isin(self.accesses.rows["column"][ids], pipes)
        unread = shadow.unread(cells) if engine and write else None
        self._find_unordered(ids[others], who[others], inst, engine, acquired, unread)
        written = shadow.writer[cells]
        freed = bool(self.frees) and shadow is self.tensor and bool(np.isin(written, self.frees).any())
        return bool((written >= 0).all()) and not freed

    def _find_unordered(
        self,
        ids: Ids,
        who: Ids,
        inst: int,
        engine: bool,
        acquired: NDArray[np.uint32] | None,
        unread: Ids | None,
    ) -> None:
        """Add findings for pairs of an access and a lane that comes after it; notes where evidence says that the chip
        keeps the order. ``unread``: writes of which no read is known; None for an operation that reads."""
        late = self.accesses.unknown(ids, who)
        hidden = ~late & engine & self.accesses.unseen(ids, who)
        freed = np.isin(ids, self.frees) | (inst in self.accesses.rows["inst"][self.frees])
        missed = ~late & ~freed & self.accesses.unacquired(ids, who, acquired)
        read = np.zeros(len(ids), np.bool_) if unread is None else ~np.isin(ids, unread)
        fenced = hidden & ~read & self._fenced_late(ids, who)
        equal = late.copy()
        equal[late] = self._are_equal(ids[late], who[late], inst)
        proxies = "they are ordered, but the proxies differ"
        for rule, chosen, text, evidence in (
            ("race", late & ~equal & ~freed, "nothing orders the second after the first", ""),
            ("tmem-freed", late & freed, "nothing orders the second after the first", ""),
            ("race", equal, "nothing orders the two", EVIDENCE["equal"]),
            ("proxy-fence", hidden & ~read & ~fenced, proxies, ""),
            ("proxy-fence", hidden & read, proxies, EVIDENCE["overwrite"]),
            ("proxy-fence", fenced, "the fence is behind the barrier, in the second's thread", EVIDENCE["late fence"]),
            ("tcgen05-fence", missed, "they are ordered, but not for the tensor core", EVIDENCE["fence"]),
        ):
            for access, lane in zip(ids[chosen].tolist(), who[chosen].tolist(), strict=True):
                self.find_pair(rule, access, inst, lane, text, evidence)

    def _are_equal(self, ids: Ids, who: Ids, inst: int) -> NDArray[np.bool_]:
        """Returns which accesses store the value that a store writes; stores whose values are unknown are doubted."""
        same = np.zeros(len(ids), np.bool_)
        if self.insts[inst].name != "st":
            return same
        stores = {other for other in self.accesses.rows["inst"][ids].tolist() if self.insts[other].name == "st"}
        self.doubts |= stores | ({inst} if stores else set())
        for at, (access, lane) in enumerate(zip(ids.tolist(), who.tolist(), strict=True)):
            same[at] = access in self.stored and self.stored[access] == self.storing.get(lane)
        return same

    def _fenced_late(self, ids: Ids, who: Ids) -> NDArray[np.bool_]:
        """Returns which accesses the lanes knew of when they executed fence.proxy.async."""
        columns, values = self.accesses.rows["column"][ids].tolist(), self.accesses.rows["value"][ids].tolist()
        fences = [self.late_fences.get(lane, ()) for lane in who.tolist()]
        given = zip(fences, columns, values, strict=True)
        return np.array([column < len(fence) and fence[column] >= value for fence, column, value in given], np.bool_)

    def check_overwrite(self, words: Ids, lanes: Ids | int, inst: int) -> None:
        """Something is written to words of 8 bytes: no live mbarrier may be there."""
        struck = self.mbarrier_words[words]
        if np.count_nonzero(struck):
            place = int(words[struck][0]) * BARRIER_BYTES
            lane = lanes if isinstance(lanes, int) else int(lanes[struck][0])
            text = "the mbarrier lives until mbarrier.inval"
            self.find_pair("mbarrier-live", self.mbarriers[place].init, inst, lane, text)

    def find_pair(self, rule: str, access: int, inst: int, lane: int, message: str, evidence: str = "") -> None:
        """Add a finding about an earlier access and a later one."""
        rows = self.accesses.rows
        first = self.step("first", int(rows["inst"][access]), int(rows["lane"][access]))
        self.find(rule, (first, self.step("second", inst, lane)), message, evidence)

    def find(self, rule: str, steps: tuple[Step, ...], message: str, evidence: str = "") -> None:
        """Add a finding, or a note if there is evidence, once for the same instructions: a finding replaces a note. A
        race is the same whichever access came first."""
        lines = [(step.where, step.opcode) for step in steps]
        key = rule, *(sorted(lines) if rule == "race" else lines)
        known = self.findings.get(key)
        if rule not in self.facts.off and (known is None or (known.evidence and not evidence)):
            self.findings[key] = Finding(RULES[rule], steps, message, evidence=evidence)

    def step(self, what: str, inst: int, lane: int) -> Step:
        rank, thread = divmod(lane, 32 * self.cluster.per_cta)
        return step_of(self.names, what, self.insts[inst], self.cta(rank), thread)

    def cta(self, rank: int) -> tuple[int, int, int]:
        """Returns the coordinates of a CTA of the cluster in the grid."""
        return self.cluster.launch.cta_of(self.cluster.first, rank)

    def finish(self) -> None:
        """Finish the cluster: a CTA may exit only after it knows that uses of its memory are complete."""
        per = self.cluster.per_cta * 32
        for (rank, inst, lane), value in self.remote_uses.items():
            if self.clocks.table[GENERIC, rank * per : (rank + 1) * per, lane].max() < value:
                step = self.step("uses another CTA's memory", inst, lane)
                self.find("exit-early", (step,), f"CTA {self.cta(rank)} may have exited by then")
        for place, (mbarrier, phase, inst, rank) in self.remote_arrivals.items():
            if not self._is_awaited(place // self.cluster.shared_stride, mbarrier, phase):
                step = self.step("arrives at another CTA's mbarrier", inst, rank * per)
                to = self.cta(place // self.cluster.shared_stride)
                self.find("exit-early", (step,), f"CTA {to} may have exited by then: nobody there waits for the phase")
        for place, (mbarrier, phase, inst, lane) in self.deliveries.items():
            own = place // self.cluster.shared_stride
            if place not in self.remote_arrivals and not self._is_awaited(own, mbarrier, phase):
                step = self.step("writes shared memory", inst, lane)
                self.find("exit-early", (step,), "the CTA exits without waiting for the copy")
        for (_, rank), (mbarrier, phase, inst) in self.sources.items():
            if not self._is_awaited(rank, mbarrier, phase):
                step = self.step("reads shared memory", inst, rank * per)
                self.find("exit-early", (step,), "the CTA exits while its memory is copied")
        for lane, (group, inst) in self.bulk_reads.items():
            if self.clocks.table[GENERIC, lane, self.column("bulk read", lane)] < group:
                step, evidence = self.step("reads shared memory", inst, lane), EVIDENCE["exit"]
                stores = self.insts[inst]["dst"] == "global"
                text = "the CTA exits without waiting for the copy's group"
                self.find("exit-early", (step,), text, evidence if stores else "")
        self._finish_warpgroups()

    def _is_awaited(self, rank: int, mbarrier: Mbarrier, phase: int) -> bool:
        """Returns whether a thread of a CTA knows that a phase has ended."""
        per = self.cluster.per_cta * 32
        return bool(self.clocks.table[GENERIC, rank * per : (rank + 1) * per, mbarrier.column].max() >= phase)

    def _finish_warpgroups(self) -> None:
        """The warps of a warpgroup have executed the same number of setmaxnreg."""
        for warp, changes in list(self.setmaxnregs.items()):
            for other in self.warpgroup(warp):
                for access in changes[len(self.setmaxnregs[other]) :]:
                    step = self.step("changes registers", int(self.accesses.rows["inst"][access]), warp * 32)
                    text = f"warp {other % self.cluster.per_cta} of its warpgroup exits without it"
                    self.find("setmaxnreg", (step,), text, EVIDENCE["registers"])
