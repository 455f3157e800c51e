"""The knowledge about one cluster up to a row of its stream: clocks, accesses, mbarriers, and the findings.

The meaning of an instruction for order and memory is a function of `meanings`. `meaning` registers the function under
the name of the instruction; `watch` calls the function with the knowledge and the row.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.facts import Facts
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.checks.memory.accesses import (
    ENGINE,
    WRITE,
    Accesses,
    Acquired,
    Ids,
    Repeated,
    Shadow,
    SharedShadow,
)
from warpwright.vgpu.checks.memory.cells import Cells
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES, Footprints, TensorGroup
from warpwright.vgpu.checks.memory.globals import Judged
from warpwright.vgpu.checks.missing import (
    FENCED_LATE,
    LAPPED,
    SERVED,
    TENSOR_CORE,
    UNORDERED,
    Missing,
    count_text,
    missing,
    not_fenced,
    too_narrow,
)
from warpwright.vgpu.checks.order.access_kinds import CLUSTER, CTA
from warpwright.vgpu.checks.order.barriers import Arrival, Mbarrier, NamedBarriers, Operation, RemoteArrival, Whole
from warpwright.vgpu.checks.order.clocks import GENERIC, Clock, Clocks, Lanes, mask_of
from warpwright.vgpu.checks.order.contexts import Contexts
from warpwright.vgpu.checks.order.flags import Flags
from warpwright.vgpu.checks.order.locks import Locks
from warpwright.vgpu.checks.order.proxy_fences import ProxyFences
from warpwright.vgpu.checks.order.shared_flags import SharedFlags
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.checks.rules import EVIDENCE, RULES
from warpwright.vgpu.checks.steps import step_of
from warpwright.vgpu.checks.warp_registers import WarpRegisters
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.record import VALUED
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.warpgroup import WARPS

__all__ = [
    "BAR", "COPIES", "LOADS", "MEANINGS", "MULTIPLIES", "PROXY", "READ", "STORES", "SYNC", "WAIT_LOADS", "WAIT_STORES",
    "WRITTEN", "Knowledge", "compiled_meanings", "meaning",
]  # fmt: skip

_MEETINGS = 64  # of a warp that are remembered


Meaning = Callable[["Knowledge", Row], None]
MEANINGS: dict[str, Meaning] = {}
READ, WRITTEN, SYNC, WAIT_LOADS, WAIT_STORES, LOADS, STORES, BAR, PROXY = range(1, 10)  # those that `rows.ll` has
MULTIPLIES, COPIES = -1, -2
_COMPILED: dict[str, int] = {}


def meaning(*names: str, compiled: int = 0) -> Callable[[Meaning], Meaning]:
    """Register the function for rows of these instructions, and the compiled meaning that does the same for most.
    A number below 0 compiles nothing: consecutive rows of this meaning, of the same lanes, are one row."""

    def register(function: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(names, function))
        _COMPILED.update(dict.fromkeys(names, compiled))
        return function

    return register


def compiled_meanings(facts: Facts) -> NDArray[np.int8]:
    """Returns the compiled meaning of each instruction, 0 for none. Strong accesses and doubted values have none, nor
    proxy fences after which more is seen than what the lanes have done themselves."""
    insts = facts.program.insts
    more = facts.synchronises or any(inst.traits.queue == "lane-copy" for inst in insts)
    found = [_COMPILED.get(inst.name, 0) for inst in insts]
    for at, meaning in enumerate(found):
        wide = meaning == PROXY and (more or not insts[at]["space"].startswith("shared"))
        local = meaning == COPIES and facts.globals.kinds[at] is None  # its rows settle contexts, one by one
        found[at] = 0 if wide or local or facts.strong[at] or at in facts.doubted else meaning
    return np.array(found, np.int8)


class Knowledge:
    """The knowledge about one cluster. ``at`` counts its rows; ``live`` lanes have not exited.

    ``columns`` are those of `Clocks` that belong to no lane and no mbarrier, by kind and owner; ``counts``: how many of
    a kind were issued or committed. ``in_flight``: copies that have not delivered: what was known at their issue, and
    their accesses by delivery, in order, the write last. ``commits``: what an engine's arrival will tell an mbarrier,
    who issued it and what that lane knew. ``meanings`` by instruction; ``compiled``: those of `compiled_meanings`.
    ``apart``: places of locks that order nothing here.
    """

    def __init__(
        self,
        cluster: Cluster,
        facts: Facts,
        meanings: Sequence[Meaning | None],
        compiled: NDArray[np.int8],
        apart: frozenset[int] = frozenset(),
    ) -> None:
        self.cluster, self.facts, self.meanings, self.compiled = cluster, facts, meanings, compiled
        self.insts, self.names, self.globals = cluster.insts, facts.names, facts.globals
        self.clocks = Clocks(cluster.count * 32)
        self.accesses = Accesses(self.clocks)
        self.contexts = Contexts(self.clocks, self.globals.synchronises, bool(self.globals.depends))
        self.flags = Flags(self.contexts, self.clocks)
        self.shared_flags = SharedFlags(self.clocks, 32 * cluster.per_cta)
        self.locks, self.apart = Locks(facts.acquires), apart
        self.footprints = Footprints(cluster)
        self.mbarrier_marks = bytearray(self.footprints.shared_bytes // BARRIER_BYTES)  # 1 where mbarriers live
        self.mbarrier_words = np.frombuffer(self.mbarrier_marks, np.bool_)
        cells, shift = self.footprints.shared_cells, self.footprints.shift
        self.shared = SharedShadow(self.accesses, cells, shift, self.mbarrier_words)
        self.tensor = Shadow(self.accesses, self.footprints.tensor_cells)
        self.columns: dict[str, dict[int, int]] = defaultdict(dict)
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
        self.issued = self.first_record = self.at = 0
        self.records = np.empty((0, 0), np.uint64)  # of the operations from ``first_record`` on
        self.ops: dict[tuple[bytes, int], Op] = {}  # by record and tensor map
        self.writes: dict[tuple[int, int], Repeated] = {}  # by copy, and host address of its cells
        self.tensor_ops: dict[bytes, list[TensorGroup]] = {}  # by the records of a row
        self.last: list[Row | None] = [None] * count
        self.live = self.settled_live = np.zeros(count, np.uint32)
        self.registers: dict[int, WarpRegisters] = {}  # by warp
        self.unmet: dict[int, set[Mbarrier]] = defaultdict(set)  # by warp: for which it waited since its last meeting
        self.loaded: set[int] = set()  # warps that have read shared memory since then
        self.meetings: dict[int, deque[tuple[Lanes, Lanes]]] = defaultdict(lambda: deque(maxlen=_MEETINGS))  # by warp
        # By warp: the mbarriers that its lanes waited for since its last commit, and a mask of these lanes.
        self.uncommitted: dict[int, dict[Mbarrier, int]] = defaultdict(dict)
        self.remote_uses: dict[tuple[int, int, int], int] = {}  # by CTA used, instruction, lane: the lane's clock
        self.entered: set[tuple[int, int]] = set()  # lane and CTA: the lane knows that the CTA has started

    def _begin_barriers(self) -> None:
        """Barriers, and what is known through them."""
        self.mbarriers: dict[int, Mbarrier] = {}  # by place
        self.met = 0  # a sum of hashes of all arrivals and waits with their phases
        self.remote_arrivals: dict[int, RemoteArrival] = {}  # by place: the last of another CTA's engine
        self.deliveries: dict[int, tuple[Mbarrier, int, int, int]] = {}  # by place: the last of a copy, its lane
        self.sources: dict[tuple[int, int], tuple[Mbarrier, int, int]] = {}  # by place and CTA that copies to it
        self.named = NamedBarriers(self.clocks, self.cluster.ranks)
        self.whole = Whole(self.clocks.lanes)
        self.fenced: dict[int, Clock] = {}  # by lane: what a relaxed arrival releases
        self.proxy_fences = ProxyFences(self.clocks)
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
        count = self.cluster.count
        self.moves = np.zeros((2, count, 2), np.int64)  # column and number of each warp's loads, and stores
        self.loads = np.zeros(
            (count, len(self.insts)), np.int64
        )  # by warp and tcgen05.ld: its last one among the loads
        self.allocs: dict[int, int] = {}  # by CTA: its last tcgen05.alloc
        self.frees: list[int] = []  # accesses that stand for a tcgen05.dealloc
        self.acquired = [Acquired(np.zeros(0, np.uint32))] * count  # by warp
        self.acquired_at = np.array([[self.acquired[0].where, 0]] * count, np.int64)  # the same, for `rows.ll`
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
        if not waits and row.warp not in self.loaded:
            return
        clocks = self.clocks.now(row.lanes)
        self.loaded.discard(row.warp)
        self.meetings[row.warp].append((row.lanes, clocks))
        for mbarrier in waits:
            lanes = row.lanes[mbarrier.saw[row.lanes] >= 0]
            if len(lanes):
                mbarrier.witness(row.warp, mask_of(lanes)[1], row.lanes, clocks)
        self.clocks.tick(row.lanes)

    def warpgroup(self, warp: int) -> range:
        """Returns the warps of a warp's warpgroup."""
        per_cta = self.cluster.per_cta
        first = warp - warp % per_cta % WARPS
        return range(first, min(first + WARPS, warp - warp % per_cta + per_cta))

    def op(self) -> Op:
        """Returns the next operation that a row issued: the same object for the same record and tensor map."""
        record, number = self.records[self.issued - self.first_record], self.issued
        self.issued += 1
        key = record.tobytes(), (self.cluster.map_numbers or {}).get(number, -1)
        op = self.ops.get(key)
        if op is None:
            op = self.ops[key] = self.cluster.op_of(record.tolist(), number)
        op.number = number
        return op

    def next_records(self, count: int) -> bytes:
        """Returns the records of the next operations."""
        first = self.issued - self.first_record
        return self.records[first : first + count].tobytes()

    def lane(self, op: Op) -> int:
        """Returns the lane of the cluster that issued an operation."""
        return (op.rank * self.cluster.per_cta + op.warp) * 32 + op.lane

    def column(self, kind: str, of: int) -> int:
        """Returns the column of ``kind`` that belongs to a lane, warp, warpgroup or CTA."""
        columns = self.columns[kind]
        if of not in columns:
            columns[of] = self.clocks.column()
        return columns[of]

    def count(self, kind: str, of: int, more: int = 1) -> int:
        """Count ``more`` of a kind and return how many there are."""
        key = kind, of
        self.counts[key] = self.counts.get(key, 0) + more
        return self.counts[key]

    def tensor_columns(self) -> Lanes:
        """Returns the columns of operations on tensor memory."""
        of_kinds = (columns.values() for kind, columns in self.columns.items() if kind.startswith("tensor"))
        return np.array([*itertools.chain(*of_kinds)], np.int64)

    def signal(self, number: int, inst: int, cta: int, rank: int, offset: int, count: int, nbytes: int) -> None:
        """An engine arrives on an mbarrier, or delivers bytes for it."""
        place = rank * self.cluster.shared_stride + offset
        mbarrier = self.mbarriers.get(place)
        if mbarrier is None:
            return
        clock, lane, knows = self.commits.pop((number, place), (None, -1, None))
        if number in self.in_flight:
            clock, writes = self.in_flight[number]
            parts, rows = writes.pop(0), self.accesses.rows
            some = parts if parts[1:] else parts[0]
            rows["column"][some], rows["value"][some] = mbarrier.column, mbarrier.phase + 1
            self.deliveries[place] = mbarrier, mbarrier.phase + 1, inst, int(rows["lane"][parts[-1]])
            if parts[1:]:
                self.sources[place, cta] = mbarrier, mbarrier.phase + 1, inst
            if not writes:
                del self.in_flight[number]
        if cta != rank:
            self.remote_arrivals[place] = RemoteArrival(mbarrier, mbarrier.phase + 1, inst, cta, lane, number)
        if knows is not None:
            self._witness_waits(mbarrier, lane, knows)
        if clock is not None and knows is not None:
            self.check_arrival(mbarrier, knows, Arrival(inst, lane, int(clock[GENERIC, lane])))
        self.arrive(mbarrier, inst, -1, clock, count, 0, nbytes)

    def _witness_waits(self, mbarrier: Mbarrier, committer: int, knows: NDArray[np.uint32]) -> None:
        """A commit arrives: the phase that it ends is later than every wait that its thread knew of at the commit."""
        mbarrier.commit(knows)
        warp, column, value = committer // 32, np.array([mbarrier.column]), np.array([mbarrier.phase + 1])
        waits = self.uncommitted[warp]
        for other, mask in list(waits.items()):
            known = other.known_waits(warp, mask, knows)
            if known:
                other.witness(warp, known, column, value)
            if known == mask:
                del waits[other]

    def check_arrival(self, mbarrier: Mbarrier, knows: NDArray[np.uint32], arrival: Arrival) -> None:
        """An arrival counts for the open phase: its thread must know that the phase before has ended."""
        other = mbarrier.unknown_arrival(knows)
        if other is not None:
            first = self.step("arrives in the phase before", other.inst, other.lane)
            second = self.step("arrives", arrival.inst, arrival.lane)
            where = self.names.places[int(self.accesses.rows["inst"][mbarrier.init])]
            text = f"the mbarrier counts {count_text(mbarrier.expected, 'arrival')} a phase ({where})"
            self.find("mbarrier-count", (first, second), text)
        mbarrier.arrivals[arrival.lane] = arrival

    def arrive(
        self, mbarrier: Mbarrier, inst: int, lane: int, clock: Clock | None, count: int, expect: int, complete: int
    ) -> None:
        """Apply one operation to an mbarrier. If it completes a phase, it must be ordered after each lane's wait for
        the phase before; otherwise this is a finding."""
        self.met += hash((mbarrier.place, mbarrier.phase, inst, lane, count, complete))
        mbarrier.operations.append(Operation(inst, lane, count, expect, complete))
        if mbarrier.arrive(self.clocks, clock, count, expect, complete):
            mbarrier.end_phase()
            for left, late in mbarrier.overtaken():
                first = self.step("waits for the phase before", int(mbarrier.wait_inst[late]), late)
                second = self.step("ends the next phase", inst, max(lane, 0))
                evidence = EVIDENCE["spin"] if left else ""
                self.find("mbarrier-lapped", (first, second), LAPPED, evidence)

    def touch(
        self,
        shadow: Shadow,
        cells: Cells,
        lane: int,
        inst: int,
        access: int,
        write: bool,
        engine: bool = False,
        pipes: tuple[int, ...] = (),
        acquired: Acquired | None = None,
    ) -> bool:
        """Find accesses that nothing orders before one of a lane, and store it as number ``access`` unless that is
        below 0. Returns whether all the cells were written before.

        ``pipes`` are columns of engines that do one operation after the other, the access's own first: what those did
        is over. ``acquired``: what tcgen05.fence made visible to the warp, for accesses of tensor memory.
        """
        if not (self.frees and shadow is self.tensor):
            flags, own = write * WRITE | engine * ENGINE, pipes[0] if pipes else -1
            seen = shadow.touch(cells, lane, flags, own, acquired, access)
            if seen:
                return seen == 1
        numbers = cells.numbers
        written = self.judge(shadow, numbers, lane, inst, write, engine, pipes, acquired)
        if access >= 0 and write:
            shadow.write(numbers, access)
        elif access >= 0:
            shadow.read(cells, access)
        return written

    def judge(
        self,
        shadow: Shadow,
        cells: Ids,
        lanes: Ids | int,
        inst: int,
        write: bool,
        engine: bool = False,
        pipes: tuple[int, ...] = (),
        acquired: Acquired | None = None,
        atomic: bool = False,
    ) -> bool:
        """Do the same for cells by their numbers, each of a lane, and store nothing. Cells that were freed by a dealloc
        that is ordered before the access were not written before."""
        ids, who = shadow.before(cells, lanes, write, atomic)
        if shadow is self.shared:
            ids, who = self.accesses.separate(ids, who, cells)
        others = ~np.isin(self.accesses.rows["column"][ids], pipes)
        unread = shadow.unread(cells) if engine and write else None
        self._find_unordered(ids[others], who[others], inst, engine, acquired, unread)
        freed = np.isin(ids, self.frees) if self.frees and shadow is self.tensor else np.zeros(len(ids), np.bool_)
        return bool((shadow.writer[cells] >= 0).all() and self.accesses.unknown(ids[freed], who[freed]).all())

    def _find_unordered(
        self,
        ids: Ids,
        who: Ids,
        inst: int,
        engine: bool,
        acquired: Acquired | None,
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
        served = late.copy()
        served[late] = self._are_served(ids[late], who[late])
        for rule, chosen, what, evidence in (
            ("race", late & ~equal & ~served & ~freed, None, ""),
            ("race", served, SERVED, EVIDENCE["served"]),
            ("tmem-freed", late & freed, UNORDERED, ""),
            ("race", equal, UNORDERED, EVIDENCE["equal"]),
            ("proxy-fence", hidden & ~read & ~fenced, None, ""),
            ("proxy-fence", hidden & read, None, EVIDENCE["overwrite"]),
            ("proxy-fence", fenced, FENCED_LATE, EVIDENCE["late fence"]),
            ("tcgen05-fence", missed, TENSOR_CORE, EVIDENCE["fence"]),
        ):
            for access, lane in zip(ids[chosen].tolist(), who[chosen].tolist(), strict=True):
                message, repair = what or self._missing(rule, access, lane)
                self.find_pair(rule, access, inst, lane, message, evidence, repair)

    def _missing(self, rule: str, access: int, lane: int) -> Missing:
        """Returns what is missing between an access and one of a lane."""
        first = self.insts[int(self.accesses.rows["inst"][access])]
        if rule == "proxy-fence":
            return not_fenced(first)
        rows, refused = self.accesses.rows, self.shared_flags.refused
        column = rows["column"][access]
        if refused is not None and column < refused.shape[1] and refused[GENERIC, column] >= rows["value"][access]:
            return too_narrow(CTA, CLUSTER, flag=True)
        return missing(first, (int(rows["lane"][access]), lane), 32 * self.cluster.per_cta)

    def _are_equal(self, ids: Ids, who: Ids, inst: int) -> NDArray[np.bool_]:
        """Returns which accesses store the value that a store writes; stores whose values are unknown are doubted."""
        same = np.zeros(len(ids), np.bool_)
        if self.insts[inst].name not in VALUED:
            return same
        stores = {other for other in self.accesses.rows["inst"][ids].tolist() if self.insts[other].name in VALUED}
        self.doubts |= stores | ({inst} if stores else set())
        for at, (access, lane) in enumerate(zip(ids.tolist(), who.tolist(), strict=True)):
            same[at] = access in self.stored and self.stored[access] == self.storing.get(lane)
        return same

    def _are_served(self, ids: Ids, who: Ids) -> NDArray[np.bool_]:
        """Returns which accesses are loads of the CTA's own shared memory before a collective of their warp, where the
        lanes know of a lane after it."""
        rows, found = self.accesses.rows, np.zeros(len(ids), np.bool_)
        remote = {inst for _, inst, _ in self.remote_uses}
        for at, (access, lane) in enumerate(zip(ids.tolist(), who.tolist(), strict=True)):
            reader, value, knows = int(rows["lane"][access]), rows["value"][access], self.clocks.table[GENERIC, lane]
            inst = int(rows["inst"][access])
            if rows["column"][access] == reader and inst not in remote and self.insts[inst].traits.access == "read":
                found[at] = any(
                    (clocks[lanes == reader] >= value).any() and (knows[lanes] >= clocks).any()
                    for lanes, clocks in self.meetings.get(reader // 32, ())
                )
        return found

    def _fenced_late(self, ids: Ids, who: Ids) -> NDArray[np.bool_]:
        """Returns which accesses the lanes knew of when they executed fence.proxy.async."""
        given = (each.tolist() for each in (who, self.accesses.rows["column"][ids], self.accesses.rows["value"][ids]))
        known = [self.proxy_fences.knew(lane, column) >= value > 0 for lane, column, value in zip(*given, strict=True)]
        return np.array(known, np.bool_)

    def check_overwrite(self, words: Ids, lanes: Ids | int, inst: int) -> None:
        """Something is written to words of 8 bytes: no live mbarrier may be there."""
        struck = self.mbarrier_words[words]
        if np.count_nonzero(struck):
            place = int(words[struck][0]) * BARRIER_BYTES
            lane = lanes if isinstance(lanes, int) else int(lanes[struck][0])
            text = "the mbarrier lives until mbarrier.inval"
            self.find_pair("mbarrier-live", self.mbarriers[place].init, inst, lane, text)

    def find_pair(
        self, rule: str, access: int, inst: int, lane: int, message: str, evidence: str = "", repair: str = ""
    ) -> None:
        """Add a finding about an earlier access and a later one."""
        rows = self.accesses.rows
        first = self.step("first", int(rows["inst"][access]), int(rows["lane"][access]))
        self.find(rule, (first, self.step("second", inst, lane)), message, evidence, repair)

    def find(self, rule: str, steps: tuple[Step, ...], message: str, evidence: str = "", repair: str = "") -> None:
        """Add a finding, or a note if there is evidence, once for the same instructions: a finding replaces a note. A
        race is the same whichever access came first. ``repair``: what cures this kernel, if the rule's is wider."""
        lines = [(step.where, step.opcode) for step in steps]
        key = rule, *(sorted(lines) if rule == "race" else lines)
        known = self.findings.get(key)
        if rule not in self.facts.off and (known is None or (known.evidence and not evidence)):
            found = replace(RULES[rule], repair=repair) if repair else RULES[rule]
            self.findings[key] = Finding(found, steps, message, evidence=evidence)

    def step(self, what: str, inst: int, lane: int) -> Step:
        rank, thread = divmod(lane, 32 * self.cluster.per_cta)
        return step_of(self.names, what, self.insts[inst], self.cta(rank), thread)

    def cta(self, rank: int) -> tuple[int, int, int]:
        """Returns the coordinates of a CTA of the cluster in the grid."""
        return self.cluster.launch.cta_of(self.cluster.first, rank)

    def judged(self) -> Judged:
        """Returns what checks of the whole launch take from a cluster."""
        self.contexts.finish(self.accesses.rows["column"], self.accesses.rows["value"])
        return Judged(self.contexts, self.flags, self.at)
