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

__all__ = ["Cut", "Pair", "Source", "followed"]

Words = NDArray[np.uint64]  # (2, 2): as it is and with the cut; what is known, and what is seen
AS_IS, CUT = 0, 1
KNOWN, SEEN = 0, 1
AT_ONCE = 64  # accesses that are followed together
_TENSOR_CORE = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")
_ASYNCHRONOUS = (
    *COPIES, *_TENSOR_CORE, "cp.async", "tcgen05.ld", "tcgen05.st", "tcgen05.commit", "wgmma.mma_async",
)  # fmt: skip


def _nothing() -> Words:
    return np.zeros((2, 2), np.uint64)


@dataclass(frozen=True)
class Cut:
    """What tells nothing: rows of ``insts``; phases of the mbarriers at ``places``; with ``early`` what is asynchronous
    for tcgen05.commit and cp.async.mbarrier.arrive, which tell what their thread knows."""

    insts: frozenset[int] = frozenset()
    places: frozenset[int] = frozenset()
    early: bool = False


class Source(NamedTuple):
    """An access: the event that makes it, the lane that does or asks for it, the CTA of the memory, whether that is
    tensor memory, and whether it is written."""

    event: int
    lane: int
    rank: int
    tensor: bool
    write: bool


class Pair(NamedTuple):
    """A source, and an event behind it in which a lane touches the same cells; the number of events stands for the end.
    ``crosses``: to the async proxy; ``fenced``: in tensor memory, of another warp."""

    source: Source
    event: int
    lane: int
    crosses: bool
    fenced: bool


@dataclass
class _Phases:
    """An mbarrier: arrivals and bytes that are pending, what the open phase and the last one tell."""

    expected: int
    pending: int
    nbytes: int = 0
    open: Words = field(default_factory=_nothing)
    last: Words = field(default_factory=_nothing)

    def arrive(self, word: Words, count: int, nbytes: int) -> None:
        self.open |= word
        self.pending -= count
        self.nbytes += nbytes
        if not self.pending and not self.nbytes:
            self.last, self.open, self.pending = self.open, _nothing(), self.expected


@dataclass
class _Round:
    """A barrier of threads: what its round tells, how many came, lanes that wait, lanes that came."""

    word: Words = field(default_factory=_nothing)
    came: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[NDArray[np.int64], bool]] = field(default_factory=list)
    here: set[int] = field(default_factory=set)


class _Groups:
    """Asynchronous operations by the groups they are committed in, the last group open; as it is, and with the cut."""

    def __init__(self) -> None:
        self.held: list[list[np.uint64]] = [[np.uint64(0)], [np.uint64(0)]]

    def add(self, bits: np.uint64) -> None:
        for held in self.held:
            held[-1] |= bits

    def commit(self, cut: bool) -> None:
        for held in self.held[: 1 if cut else 2]:
            held.append(np.uint64(0))

    def over(self, newest: int) -> Words:
        """What is over when all but so many of the newest groups are."""
        over = [reduce(np.bitwise_or, held[: max(0, len(held) - 1 - newest)], np.uint64(0)) for held in self.held]
        return np.array([[bits, 0] for bits in over], np.uint64)


class _Follow:
    """``told[lane]``: what a lane knows of the sources (as it is or cut, known or seen): seen by the async proxy, or in
    tensor memory by who fences. ``taken[warp]``: what it has taken up with tcgen05.fence; ``own[lane]``: sources that
    it has made. Of asynchronous operations ``tokens`` tell, by number, what mbarriers get to know; ``groups`` and
    ``products`` what is over with a group, ``issued`` what a CTA's tensor core has to do, and ``before`` what who asked
    for the last of it knew; ``begun`` and ``waited`` count a warp's groups of wgmma."""

    def __init__(self, execution: Execution, sources: list[Source], cut: Cut) -> None:
        self.execution, self.cut = execution, cut
        self.bits = {source: np.uint64(1 << i) for i, source in enumerate(sources)}
        self.made: dict[int, list[Source]] = defaultdict(list)
        for source in sources:
            self.made[source.event].append(source)
        self.tensor = self._all(source for source in sources if source.tensor)
        self.told = np.zeros((execution.lanes, 2, 2), np.uint64)
        self.taken = np.zeros((execution.lanes // 32, 2), np.uint64)
        self.own = np.zeros(execution.lanes, np.uint64)
        self.phases: dict[int, _Phases] = {}
        self.rounds: dict[tuple[int, int], _Round] = defaultdict(_Round)
        self.met: list[_Round] = [_Round()]
        self.groups: dict[tuple[str, int], _Groups] = defaultdict(_Groups)
        self.tokens: dict[int, tuple[Words, list[Source]]] = {}
        self.issued: dict[int, np.uint64] = defaultdict(lambda: np.uint64(0))  # to a CTA's tensor core
        self.before: dict[int, Words] = {}  # what who issued there last knew
        self.begun: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # by warp: groups of wgmma, as it is and cut
        self.waited: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.products: dict[tuple[int, int], dict[int, Words]] = defaultdict(dict)
        self.fenced: dict[int, Words] = {}

    def _all(self, sources: Iterable[Source]) -> np.uint64:
        return reduce(np.bitwise_or, (self.bits[source] for source in sources), np.uint64(0))

    def knows(self, pair: Pair) -> tuple[bool, bool]:
        """Whether the first of a pair is over for the second, now, as it is and with the cut."""
        word = self.told[pair.lane, :, KNOWN] & self.bits[pair.source]
        if pair.crosses:
            word = word & self.told[pair.lane, :, SEEN]
        if pair.fenced:
            word = word & self.taken[pair.lane // 32]
        return bool(word[AS_IS]), bool(word[CUT])

    def step(self, number: int, event: Event | Signal) -> None:
        """An event happens."""
        if isinstance(event, Signal):
            self._signal(event)
            return
        cut, made = event.inst.index in self.cut.insts, self.made.get(number, [])
        name = event.inst.name
        if event.use or not name.startswith(_ASYNCHRONOUS):
            for source in made:  # over at once, for the lane
                self.own[source.lane] |= self.bits[source]
                self.told[source.lane, :, KNOWN] |= self.bits[source]
        if event.use:
            return
        if name in _ROWS:
            _ROWS[name](self, event, cut)
        elif name.startswith("mbarrier."):
            self._arrive(event, cut)
        elif name.startswith(("bar.", "barrier.sync", "barrier.cta", "barrier.arrive", "barrier.red")):
            self._named(event, cut)
        self._make(event, name, made, cut)

    def _make(self, event: Event, name: str, made: list[Source], cut: bool) -> None:
        """What is asynchronous begins."""
        if name in COPIES:
            self._copy(event, made, cut)
        elif name == "cp.async":
            for source in made:
                self.groups["copies", source.lane].add(self.bits[source])
        elif name.startswith(_TENSOR_CORE):
            for op in event.ops:
                lane = self._lane(op)
                self.issued[op.rank] |= self._all(s for s in made if s.lane == lane)
                self.before[op.rank] = self.told[lane].copy()
        elif name in ("tcgen05.ld", "tcgen05.st"):
            self.groups[name, event.row.warp].add(self._all(made))
        elif name == "wgmma.mma_async":
            self._wgmma(event, made)
        elif name in ("tcgen05.commit", "cp.async.mbarrier.arrive"):
            for op in event.ops:
                self.tokens[op.number][0][:, KNOWN] |= self._all(made)

    def _lane(self, op: Op) -> int:
        return (op.rank * self.execution.per_cta + op.warp) * 32 + op.lane

    def _give(self, lanes: NDArray[np.int64], cut: bool) -> Words:
        """What lanes know together; with the cut nothing of it."""
        word: Words = np.bitwise_or.reduce(self.told[lanes], axis=0)
        if cut:
            word = word.copy()
            word[CUT] = 0
        return word

    def _get(self, lanes: NDArray[np.int64], word: Words, cut: bool = False) -> None:
        self.told[lanes, : 1 if cut else 2] |= word[: 1 if cut else 2]

    def _copy(self, event: Event, made: list[Source], cut: bool) -> None:
        for op in event.ops:
            lane = self._lane(op)
            mine = [source for source in made if source.lane == lane]
            self.groups["bulk", lane].add(self._all(source for source in mine if not source.write))
            self.tokens[op.number] = self._give(np.array([lane]), cut), [source for source in mine if source.write]

    def _signal(self, signal: Signal) -> None:
        word, written = self.tokens.get(signal.number, (_nothing(), []))
        word = word.copy()
        word[:, KNOWN] |= self._all(source for source in written if source.rank == signal.rank)
        if signal.inst in self.cut.insts and not self.cut.early:
            word[CUT] = 0
        place = signal.rank * self.execution.stride + signal.offset
        if place in self.phases:
            self.phases[place].arrive(word, signal.arrivals, -signal.nbytes)

    def _arrive(self, event: Event, cut: bool) -> None:
        """Arrivals and expected bytes of lanes."""
        row, name = event.row, event.inst.name
        silent = "relaxed" in event.inst.opcode or not name.startswith("mbarrier.arrive")
        for place, lane, packed in zip(row.places.tolist(), row.lanes.tolist(), row.packed.tolist(), strict=True):
            if place in self.phases:
                word = _nothing() if silent else self._give(np.array([lane]), cut)
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
                self._get(np.array([lane]), self.phases[place].last, cut or place in self.cut.places)

    def _named(self, event: Event, cut: bool) -> None:
        row = event.row
        rank = row.warp // self.execution.per_cta
        held, live = self.rounds[rank, row.a], int(event.alive[row.warp]).bit_count()
        held.word |= self._give(row.lanes, cut)
        if row.b >> 32 & 0xFF != BAR_ARRIVE:
            held.waiting.append((row.lanes, cut))
        held.parts[row.warp] = held.parts.get(row.warp, 0) + len(row.lanes)
        if held.parts[row.warp] >= live:
            held.came += 32
            del held.parts[row.warp]
        if held.came >= (row.b & 0xFFFF_FFFF or event.everyone[rank]):
            self.rounds.pop((rank, row.a))
            for lanes, deaf in held.waiting:
                self._get(lanes, held.word, deaf)

    def _arrive_cluster(self, event: Event, cut: bool) -> None:
        row = event.row
        if "relaxed" in event.inst.opcode:
            words = [self.fenced[lane] for lane in row.lanes.tolist() if lane in self.fenced]
            word = reduce(np.bitwise_or, words, _nothing())
        else:
            word = self._give(row.lanes, cut)
        held = self.met[-1]
        held.word |= word
        held.here |= set(row.lanes.tolist())
        held.parts.update(dict.fromkeys(row.lanes.tolist(), len(self.met)))
        alive = np.flatnonzero((event.alive[:, None] >> np.arange(32) & 1).ravel())
        if held.here >= set(alive.tolist()):
            self.met.append(_Round())
            for lanes, deaf in held.waiting:
                self._get(lanes, held.word, deaf)

    def _wait_cluster(self, event: Event, cut: bool) -> None:
        """For the round that the lanes arrived in."""
        lanes = event.row.lanes
        held = next(each for each in reversed(self.met) if lanes[0] in each.here)
        if held is self.met[-1]:
            held.waiting.append((lanes, cut))
        else:
            self._get(lanes, held.word, cut)

    def _warp(self, event: Event, cut: bool) -> None:
        if len(event.row.lanes) > 1:
            self._get(event.row.lanes, self._give(event.row.lanes, cut), cut)

    def _fence_proxy(self, event: Event, cut: bool) -> None:
        """The async proxy sees what the lanes have done themselves."""
        lanes = event.row.lanes
        for state in range(1 if cut else 2):
            self.told[lanes, state, SEEN] |= self.own[lanes] & self.told[lanes, state, KNOWN]

    def _fence_init(self, event: Event, cut: bool) -> None:
        self._fence_proxy(event, cut)
        for lane in event.row.lanes.tolist():
            word = self.told[lane].copy()
            word[:, KNOWN] = word[:, SEEN] = word[:, SEEN] & self.own[lane]
            self.fenced[lane] = word

    def _fence(self, event: Event, cut: bool) -> None:
        for lane in event.row.lanes.tolist():
            self.fenced[lane] = self._give(np.array([lane]), cut)

    def _commit_tensor(self, event: Event, cut: bool) -> None:
        for op in event.ops:
            word = self.before.get(op.rank, _nothing()) | self.issued[op.rank]
            if cut:
                word[CUT] = self.told[self._lane(op), CUT] if self.cut.early else 0
            self.tokens[op.number] = word, []

    def _arrive_copies(self, event: Event, cut: bool) -> None:
        for op in event.ops:
            lane = self._lane(op)
            known = self.told[lane].copy()
            word = known | self.groups["copies", lane].over(-1)
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
            self._get(np.array([lane]), self.groups[kind, lane].over(-1 if name.endswith("all") else row.a), cut)

    def _wait_tensor(self, event: Event, cut: bool) -> None:
        kind = "tcgen05.st" if event.inst.name.endswith("st") else "tcgen05.ld"
        self._get(event.row.lanes, self.groups[kind, event.row.warp].over(-1), cut)

    def _pass_on(self, event: Event, cut: bool) -> None:
        for state in range(1 if cut else 2):
            known = self.told[event.row.lanes, state, KNOWN] & self.tensor
            self.told[event.row.lanes, state, SEEN] |= known

    def _take_up(self, event: Event, cut: bool) -> None:
        seen = np.bitwise_or.reduce(self.told[event.row.lanes, :, SEEN], axis=0)
        self.taken[event.row.warp, : 1 if cut else 2] |= seen[: 1 if cut else 2]

    def _wgmma(self, event: Event, made: list[Source]) -> None:
        """Who waits for a group learns, too, what each warp knew that began it; also who waits already."""
        row = event.row
        word = self._give(row.lanes, False)
        word[:, KNOWN] |= self._all(made)
        for state in (AS_IS, CUT):
            number = self.begun[row.warp][state]
            held = self.products[self._first(row.warp), state]
            held[number] = held.get(number, np.zeros(2, np.uint64)) | word[state]
            for warp in range(self._first(row.warp), self._first(row.warp) + 4):
                if self.waited[warp][state] > number:
                    self.told[32 * warp : 32 * warp + 32, state] |= word[state]

    def _first(self, warp: int) -> int:
        """Of the warpgroup."""
        return warp - warp % self.execution.per_cta % 4

    def _commit_wgmma(self, event: Event, cut: bool) -> None:
        for state in range(1 if cut else 2):
            self.begun[event.row.warp][state] += 1

    def _wait_wgmma(self, event: Event, cut: bool) -> None:
        row = event.row
        for state in range(1 if cut else 2):
            over, held = self.begun[row.warp][state] - row.a, self.products[self._first(row.warp), state]
            for number in range(self.waited[row.warp][state], over):
                self.told[row.lanes, state] |= held.get(number, np.zeros(2, np.uint64))
            self.waited[row.warp][state] = max(over, self.waited[row.warp][state])


_ROWS: dict[str, Callable[[_Follow, Event, bool], None]] = {
    "mbarrier.init": _Follow._init,
    "bar.warp.sync": _Follow._warp,
    "barrier.cluster.arrive": _Follow._arrive_cluster,
    "barrier.cluster.wait": _Follow._wait_cluster,
    "fence.proxy.async": _Follow._fence_proxy,
    "fence.mbarrier_init": _Follow._fence_init,
    "fence": _Follow._fence,
    "membar": _Follow._fence,
    "tcgen05.commit": _Follow._commit_tensor,
    "cp.async.mbarrier.arrive": _Follow._arrive_copies,
    "cp.async.bulk.commit_group": _Follow._commit,
    "cp.async.commit_group": _Follow._commit,
    "cp.async.bulk.wait_group": _Follow._wait_groups,
    "cp.async.wait_group": _Follow._wait_groups,
    "cp.async.wait_all": _Follow._wait_groups,
    "tcgen05.wait::ld": _Follow._wait_tensor,
    "tcgen05.wait::st": _Follow._wait_tensor,
    "tcgen05.fence::before_thread_sync": _Follow._pass_on,
    "tcgen05.fence::after_thread_sync": _Follow._take_up,
    "wgmma.commit_group": _Follow._commit_wgmma,
    "wgmma.wait_group": _Follow._wait_wgmma,
    **dict.fromkeys(
        (f"mbarrier.{kind}_wait{how}" for kind in ("try", "test") for how in ("", ".parity")), _Follow._wait
    ),
}


def followed(execution: Execution, pairs: list[Pair], cut: Cut) -> Iterator[tuple[Pair, bool, bool]]:
    """Whether the first of each pair is over for the second, as it is and with the cut."""
    for some in _batches(pairs):
        follow = _Follow(execution, list(dict.fromkeys(pair.source for pair in some)), cut)
        asked: dict[int, list[Pair]] = defaultdict(list)
        for pair in some:
            asked[pair.event].append(pair)
        for number in execution.steps(set(follow.made) | set(asked)):
            for pair in asked.pop(number, ()):
                yield pair, *follow.knows(pair)
            if not asked:
                break
            follow.step(number, execution.events[number])


def _batches(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """So many pairs that their sources can be followed together."""
    some: list[Pair] = []
    sources: set[Source] = set()
    for pair in pairs:
        if len(sources | {pair.source}) > AT_ONCE:
            yield some
            some, sources = [], set()
        some.append(pair)
        sources.add(pair.source)
    if some:
        yield some
