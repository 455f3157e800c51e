"""The happens-before order of accesses in an execution, and whether one instruction alone establishes it.

A few accesses are followed through the execution, from the access to every lane that learns of its completion: once
with the kernel unchanged, once with an instruction that publishes nothing (`Cut`). A barrier, an arrival, a fence or a
wait publishes what the PTX ISA 9.1 defines (chapter 8, sections 9.7.13, 9.7.15 and 9.7.16).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.races.execution import COPIES, Event, Execution, Signal
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.sync import BAR_ARRIVE

__all__ = ["Cut", "Pair", "Source", "pair_orders"]

Words = NDArray[np.uint64]  # (2, 2): without and with the cut; known and seen
UNCUT, CUT = 0, 1
KNOWN, SEEN = 0, 1
BATCH = 64  # sources of one pass, a bit each
_TENSOR_CORE = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")
_ASYNCHRONOUS = (
    *COPIES, *_TENSOR_CORE, "cp.async", "tcgen05.ld", "tcgen05.st", "tcgen05.commit", "wgmma.mma_async",
)  # fmt: skip


def _empty_words() -> Words:
    return np.zeros((2, 2), np.uint64)


@dataclass(frozen=True)
class Cut:
    """The instruction that publishes nothing: rows of ``insts``, phases of the mbarriers at ``places``. With ``early``,
    tcgen05.commit and cp.async.mbarrier.arrive publish what their thread knows, but not their asynchronous
    operations."""

    insts: frozenset[int] = frozenset()
    places: frozenset[int] = frozenset()
    early: bool = False


class Source(NamedTuple):
    """An access: its event, the lane that makes or issues it, the CTA of the memory, whether the memory is tensor
    memory, and whether the access is a write."""

    event: int
    lane: int
    rank: int
    tensor: bool
    write: bool


class Pair(NamedTuple):
    """A source, and a later event in which a lane touches the same cells; the number of all events denotes the exit.
    ``crosses``: from a thread to the async proxy; ``fenced``: in tensor memory, by another warp."""

    source: Source
    event: int
    lane: int
    crosses: bool
    fenced: bool


@dataclass
class _Phases:
    """An mbarrier: pending arrivals and bytes, and what the open and the last completed phase publish."""

    expected: int
    pending: int
    nbytes: int = 0
    open: Words = field(default_factory=_empty_words)
    last: Words = field(default_factory=_empty_words)

    def arrive(self, word: Words, count: int, nbytes: int) -> None:
        self.open |= word
        self.pending -= count
        self.nbytes += nbytes
        if not self.pending and not self.nbytes:
            self.last, self.open, self.pending = self.open, _empty_words(), self.expected


@dataclass
class _Round:
    """One round of a barrier of threads: what it publishes, the number of threads and the lanes that have arrived, and
    the lanes that wait."""

    word: Words = field(default_factory=_empty_words)
    count: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[NDArray[np.int64], bool]] = field(default_factory=list)
    lanes: set[int] = field(default_factory=set)


class _Groups:
    """Asynchronous operations by commit group, the last group open; without and with the cut."""

    def __init__(self) -> None:
        self.by_state: list[list[np.uint64]] = [[np.uint64(0)], [np.uint64(0)]]

    def add(self, bits: np.uint64) -> None:
        for groups in self.by_state:
            groups[-1] |= bits

    def commit(self, cut: bool) -> None:
        for groups in self.by_state[: 1 if cut else 2]:
            groups.append(np.uint64(0))

    def complete_except(self, newest: int) -> Words:
        """Returns the operations that are complete when all but the ``newest`` groups are."""
        complete = (groups[: max(0, len(groups) - 1 - newest)] for groups in self.by_state)
        return np.array([[reduce(np.bitwise_or, groups, np.uint64(0)), 0] for groups in complete], np.uint64)


class _Propagation:
    """Knowledge of the sources, one bit each, as it spreads through the events.

    ``knowledge[lane]`` is what a lane knows (without or with the cut; known, or also seen by the async proxy or
    released by tcgen05.fence). ``acquired[warp]`` is what a warp has acquired by tcgen05.fence, ``own[lane]`` the
    lane's own accesses, ``tokens`` what the completion of an asynchronous operation publishes at its mbarrier, by the
    operation's number. ``tensor_core`` has the accesses of a CTA's tensor core, ``issuer_knowledge`` the knowledge of
    the last thread that issued one. ``group_knowledge`` is what a wait for a group of wgmma learns;
    ``committed_groups`` and ``waited_groups`` count a warp's groups.
    """

    def __init__(self, execution: Execution, sources: list[Source], cut: Cut) -> None:
        self.execution, self.cut = execution, cut
        self.bits = {source: np.uint64(1 << i) for i, source in enumerate(sources)}
        self.by_event: dict[int, list[Source]] = defaultdict(list)
        for source in sources:
            self.by_event[source.event].append(source)
        self.tensor = self._all(source for source in sources if source.tensor)
        self.knowledge = np.zeros((execution.lanes, 2, 2), np.uint64)
        self.acquired = np.zeros((execution.lanes // 32, 2), np.uint64)
        self.own = np.zeros(execution.lanes, np.uint64)
        self.phases: dict[int, _Phases] = {}
        self.rounds: dict[tuple[int, int], _Round] = defaultdict(_Round)
        self.cluster_rounds: list[_Round] = [_Round()]
        self.groups: dict[tuple[str, int], _Groups] = defaultdict(_Groups)
        self.tokens: dict[int, tuple[Words, list[Source]]] = {}
        self.tensor_core: dict[int, np.uint64] = defaultdict(lambda: np.uint64(0))  # of a CTA's tensor core
        self.issuer_knowledge: dict[int, Words] = {}
        self.committed_groups: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # of a warp, without and with the cut
        self.waited_groups: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.group_knowledge: dict[tuple[int, int], dict[int, Words]] = defaultdict(dict)
        self.fence_knowledge: dict[int, Words] = {}

    def _all(self, sources: Iterable[Source]) -> np.uint64:
        return reduce(np.bitwise_or, (self.bits[source] for source in sources), np.uint64(0))

    def knows(self, pair: Pair) -> tuple[bool, bool]:
        """Returns whether the second lane of a pair knows that the first access is complete, without and with the
        cut."""
        word = self.knowledge[pair.lane, :, KNOWN] & self.bits[pair.source]
        if pair.crosses:
            word = word & self.knowledge[pair.lane, :, SEEN]
        if pair.fenced:
            word = word & self.acquired[pair.lane // 32]
        return bool(word[UNCUT]), bool(word[CUT])

    def step(self, number: int, event: Event | Signal) -> None:
        """Update the knowledge by one event."""
        if isinstance(event, Signal):
            self._signal(event)
            return
        cut, sources = event.inst.index in self.cut.insts, self.by_event.get(number, [])
        name = event.inst.name
        if event.use or not name.startswith(_ASYNCHRONOUS):
            for source in sources:  # complete at once, for the lane
                self.own[source.lane] |= self.bits[source]
                self.knowledge[source.lane, :, KNOWN] |= self.bits[source]
        if event.use:
            return
        if name in _ROWS:
            _ROWS[name](self, event, cut)
        elif name.startswith("mbarrier."):
            self._arrive(event, cut)
        elif name.startswith(("bar.", "barrier.sync", "barrier.cta", "barrier.arrive", "barrier.red")):
            self._named_barrier(event, cut)
        self._issue(event, name, sources, cut)

    def _issue(self, event: Event, name: str, sources: list[Source], cut: bool) -> None:
        """Start the asynchronous operations of an event."""
        if name in COPIES:
            self._copy(event, sources, cut)
        elif name == "cp.async":
            for source in sources:
                self.groups["copies", source.lane].add(self.bits[source])
        elif name.startswith(_TENSOR_CORE):
            for op in event.ops:
                lane = self._lane(op)
                self.tensor_core[op.rank] |= self._all(s for s in sources if s.lane == lane)
                self.issuer_knowledge[op.rank] = self.knowledge[lane].copy()
        elif name in ("tcgen05.ld", "tcgen05.st"):
            self.groups[name, event.row.warp].add(self._all(sources))
        elif name == "wgmma.mma_async":
            self._wgmma(event, sources)
        elif name in ("tcgen05.commit", "cp.async.mbarrier.arrive"):
            for op in event.ops:
                self.tokens[op.number][0][:, KNOWN] |= self._all(sources)

    def _lane(self, op: Op) -> int:
        return (op.rank * self.execution.per_cta + op.warp) * 32 + op.lane

    def _publish(self, lanes: NDArray[np.int64], cut: bool) -> Words:
        """Returns what some lanes know together; nothing of it with the cut."""
        word: Words = np.bitwise_or.reduce(self.knowledge[lanes], axis=0)
        if cut:
            word = word.copy()
            word[CUT] = 0
        return word

    def _learn(self, lanes: NDArray[np.int64], word: Words, cut: bool = False) -> None:
        self.knowledge[lanes, : 1 if cut else 2] |= word[: 1 if cut else 2]

    def _copy(self, event: Event, sources: list[Source], cut: bool) -> None:
        for op in event.ops:
            lane = self._lane(op)
            mine = [source for source in sources if source.lane == lane]
            # The bytes that arrive in another CTA have also been read; other reads are complete with the bulk group.
            delivers = bool(self.execution.footprints.writes(op))
            self.groups["bulk", lane].add(self._all(() if delivers else mine))
            self.tokens[op.number] = self._publish(np.array([lane]), cut), mine if delivers else []

    def _signal(self, signal: Signal) -> None:
        word, complete = self.tokens.get(signal.number, (_empty_words(), []))
        word = word.copy()
        word[:, KNOWN] |= self._all(each for each in complete if not each.write or each.rank == signal.rank)
        if signal.inst in self.cut.insts and not self.cut.early:
            word[CUT] = 0
        place = signal.rank * self.execution.stride + signal.offset
        if place in self.phases:
            self.phases[place].arrive(word, signal.arrivals, -signal.nbytes)

    def _arrive(self, event: Event, cut: bool) -> None:
        """Count the arrivals and the expected bytes of lanes."""
        row, name = event.row, event.inst.name
        silent = "relaxed" in event.inst.opcode or not name.startswith("mbarrier.arrive")
        for place, lane, packed in zip(row.places.tolist(), row.lanes.tolist(), row.packed.tolist(), strict=True):
            if place in self.phases:
                word = _empty_words() if silent else self._publish(np.array([lane]), cut)
                expects = (packed >> 20 & 0x3FFFFF) - (packed >> 42 & 0x3FFFFF)
                self.phases[place].arrive(word, packed & 0xFFFFF, expects)

    def _init(self, event: Event, cut: bool) -> None:
        for place, packed in zip(event.row.places.tolist(), event.row.packed.tolist(), strict=True):
            self.phases[place] = _Phases(packed & 0xFFFFF, packed & 0xFFFFF)

    def _wait(self, event: Event, cut: bool) -> None:
        row = event.row
        if "relaxed" in event.inst.opcode:
            return
        for place, lane in zip(row.places.tolist(), row.lanes.tolist(), strict=True):
            if place in self.phases:
                self._learn(np.array([lane]), self.phases[place].last, cut or place in self.cut.places)

    def _named_barrier(self, event: Event, cut: bool) -> None:
        row = event.row
        rank = row.warp // self.execution.per_cta
        barrier, live = self.rounds[rank, row.a], int(event.alive[row.warp]).bit_count()
        barrier.word |= self._publish(row.lanes, cut)
        if row.b >> 32 & 0xFF != BAR_ARRIVE:
            barrier.waiting.append((row.lanes, cut))
        barrier.parts[row.warp] = barrier.parts.get(row.warp, 0) + len(row.lanes)
        if barrier.parts[row.warp] >= live:
            barrier.count += 32
            del barrier.parts[row.warp]
        if barrier.count >= (row.b & 0xFFFF_FFFF or event.cta_threads[rank]):
            self.rounds.pop((rank, row.a))
            for lanes, waiter_cut in barrier.waiting:
                self._learn(lanes, barrier.word, waiter_cut)

    def _arrive_cluster(self, event: Event, cut: bool) -> None:
        row = event.row
        if "relaxed" in event.inst.opcode:
            words = [self.fence_knowledge[lane] for lane in row.lanes.tolist() if lane in self.fence_knowledge]
            word = reduce(np.bitwise_or, words, _empty_words())
        else:
            word = self._publish(row.lanes, cut)
        barrier = self.cluster_rounds[-1]
        barrier.word |= word
        barrier.lanes |= set(row.lanes.tolist())
        barrier.parts.update(dict.fromkeys(row.lanes.tolist(), len(self.cluster_rounds)))
        alive = np.flatnonzero((event.alive[:, None] >> np.arange(32) & 1).ravel())
        if barrier.lanes >= set(alive.tolist()):
            self.cluster_rounds.append(_Round())
            for lanes, waiter_cut in barrier.waiting:
                self._learn(lanes, barrier.word, waiter_cut)

    def _wait_cluster(self, event: Event, cut: bool) -> None:
        """Learn what the round publishes in which the lanes arrived."""
        lanes = event.row.lanes
        barrier = next(each for each in reversed(self.cluster_rounds) if lanes[0] in each.lanes)
        if barrier is self.cluster_rounds[-1]:
            barrier.waiting.append((lanes, cut))
        else:
            self._learn(lanes, barrier.word, cut)

    def _warp_sync(self, event: Event, cut: bool) -> None:
        if len(event.row.lanes) > 1:
            self._learn(event.row.lanes, self._publish(event.row.lanes, cut), cut)

    def _fence_proxy(self, event: Event, cut: bool) -> None:
        """Make the lanes' own accesses visible to the async proxy."""
        lanes = event.row.lanes
        for state in range(1 if cut else 2):
            self.knowledge[lanes, state, SEEN] |= self.own[lanes] & self.knowledge[lanes, state, KNOWN]

    def _fence_init(self, event: Event, cut: bool) -> None:
        self._fence_proxy(event, cut)
        for lane in event.row.lanes.tolist():
            word = self.knowledge[lane].copy()
            word[:, KNOWN] = word[:, SEEN] = word[:, SEEN] & self.own[lane]
            self.fence_knowledge[lane] = word

    def _fence(self, event: Event, cut: bool) -> None:
        for lane in event.row.lanes.tolist():
            self.fence_knowledge[lane] = self._publish(np.array([lane]), cut)

    def _commit_tensor(self, event: Event, cut: bool) -> None:
        for op in event.ops:
            word = self.issuer_knowledge.get(op.rank, _empty_words()) | self.tensor_core[op.rank]
            if cut:
                word[CUT] = self.knowledge[self._lane(op), CUT] if self.cut.early else 0
            self.tokens[op.number] = word, []

    def _arrive_copies(self, event: Event, cut: bool) -> None:
        for op in event.ops:
            lane = self._lane(op)
            known = self.knowledge[lane].copy()
            word = known | self.groups["copies", lane].complete_except(-1)
            if cut:
                word[CUT] = known[CUT] if self.cut.early else 0
            self.tokens[op.number] = word, []
            place = next(self.execution.barriers(event))
            if "noinc" not in event.inst.opcode.split(".") and place in self.phases:
                self.phases[place].pending += 1

    def _commit(self, event: Event, cut: bool) -> None:
        kind = {"cp.async.bulk.commit_group": "bulk", "cp.async.commit_group": "copies"}[event.inst.name]
        for lane in event.row.lanes.tolist():
            self.groups[kind, lane].commit(cut)

    def _wait_groups(self, event: Event, cut: bool) -> None:
        row, name = event.row, event.inst.name
        kind = "bulk" if "bulk" in name else "copies"
        for lane in row.lanes.tolist():
            self._learn(
                np.array([lane]), self.groups[kind, lane].complete_except(-1 if name.endswith("all") else row.a), cut
            )

    def _wait_tensor(self, event: Event, cut: bool) -> None:
        kind = "tcgen05.st" if event.inst.name.endswith("st") else "tcgen05.ld"
        self._learn(event.row.lanes, self.groups[kind, event.row.warp].complete_except(-1), cut)

    def _fence_before(self, event: Event, cut: bool) -> None:
        for state in range(1 if cut else 2):
            known = self.knowledge[event.row.lanes, state, KNOWN] & self.tensor
            self.knowledge[event.row.lanes, state, SEEN] |= known

    def _fence_after(self, event: Event, cut: bool) -> None:
        seen = np.bitwise_or.reduce(self.knowledge[event.row.lanes, :, SEEN], axis=0)
        self.acquired[event.row.warp, : 1 if cut else 2] |= seen[: 1 if cut else 2]

    def _wgmma(self, event: Event, sources: list[Source]) -> None:
        """Add what this warp knows to its wgmma group: each warp that waits for the group learns it, also a warp that
        has waited already."""
        row = event.row
        word = self._publish(row.lanes, False)
        word[:, KNOWN] |= self._all(sources)
        for state in (UNCUT, CUT):
            number = self.committed_groups[row.warp][state]
            groups = self.group_knowledge[self._first_warp(row.warp), state]
            groups[number] = groups.get(number, np.zeros(2, np.uint64)) | word[state]
            for warp in range(self._first_warp(row.warp), self._first_warp(row.warp) + 4):
                if self.waited_groups[warp][state] > number:
                    self.knowledge[32 * warp : 32 * warp + 32, state] |= word[state]

    def _first_warp(self, warp: int) -> int:
        """Returns the first warp of the warpgroup."""
        return warp - warp % self.execution.per_cta % 4

    def _commit_wgmma(self, event: Event, cut: bool) -> None:
        for state in range(1 if cut else 2):
            self.committed_groups[event.row.warp][state] += 1

    def _wait_wgmma(self, event: Event, cut: bool) -> None:
        row = event.row
        for state in range(1 if cut else 2):
            complete, groups = (
                self.committed_groups[row.warp][state] - row.a,
                self.group_knowledge[self._first_warp(row.warp), state],
            )
            for number in range(self.waited_groups[row.warp][state], complete):
                self.knowledge[row.lanes, state] |= groups.get(number, np.zeros(2, np.uint64))
            self.waited_groups[row.warp][state] = max(complete, self.waited_groups[row.warp][state])


_ROWS: dict[str, Callable[[_Propagation, Event, bool], None]] = {
    "mbarrier.init": _Propagation._init,
    "bar.warp.sync": _Propagation._warp_sync,
    "barrier.cluster.arrive": _Propagation._arrive_cluster,
    "barrier.cluster.wait": _Propagation._wait_cluster,
    "fence.proxy.async": _Propagation._fence_proxy,
    "fence.mbarrier_init": _Propagation._fence_init,
    "fence": _Propagation._fence,
    "membar": _Propagation._fence,
    "tcgen05.commit": _Propagation._commit_tensor,
    "cp.async.mbarrier.arrive": _Propagation._arrive_copies,
    "cp.async.bulk.commit_group": _Propagation._commit,
    "cp.async.commit_group": _Propagation._commit,
    "cp.async.bulk.wait_group": _Propagation._wait_groups,
    "cp.async.wait_group": _Propagation._wait_groups,
    "cp.async.wait_all": _Propagation._wait_groups,
    "tcgen05.wait::ld": _Propagation._wait_tensor,
    "tcgen05.wait::st": _Propagation._wait_tensor,
    "tcgen05.fence::before_thread_sync": _Propagation._fence_before,
    "tcgen05.fence::after_thread_sync": _Propagation._fence_after,
    "wgmma.commit_group": _Propagation._commit_wgmma,
    "wgmma.wait_group": _Propagation._wait_wgmma,
    **dict.fromkeys(
        (f"mbarrier.{kind}_wait{how}" for kind in ("try", "test") for how in ("", ".parity")), _Propagation._wait
    ),
}


def pair_orders(execution: Execution, pairs: list[Pair], cut: Cut) -> Iterator[tuple[Pair, bool, bool]]:
    """Yields each pair, and whether its first access is complete for the second, without and with the cut."""
    for some in _batches(pairs):
        propagation = _Propagation(execution, list(dict.fromkeys(pair.source for pair in some)), cut)
        by_event: dict[int, list[Pair]] = defaultdict(list)
        for pair in some:
            by_event[pair.event].append(pair)
        for number in execution.steps(set(propagation.by_event) | set(by_event)):
            for pair in by_event.pop(number, ()):
                yield pair, *propagation.knows(pair)
            if not by_event:
                break
            propagation.step(number, execution.events[number])


def _batches(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Yields lists of pairs with at most `BATCH` sources each."""
    some: list[Pair] = []
    sources: set[Source] = set()
    for pair in pairs:
        if len(sources | {pair.source}) > BATCH:
            yield some
            some, sources = [], set()
        some.append(pair)
        sources.add(pair.source)
    if some:
        yield some
