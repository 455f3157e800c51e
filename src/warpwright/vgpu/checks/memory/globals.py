"""Global memory in the verdict: accesses of all clusters of a launch, judged together when it is over.

A launch stores the addresses of each cluster (`Addresses`) and, for the judged one of equal clusters, what its lanes
knew (`Contexts`, `Flags`). Only accesses of memory that is written at all are laid out byte by byte (`sweep`); pairs
that overlap and that nothing orders are findings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.device import spans
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.checks.memory.addresses import Addresses
from warpwright.vgpu.checks.memory.observed import Observed
from warpwright.vgpu.checks.memory.spans import Touches
from warpwright.vgpu.checks.memory.sweep import meeting, pairs, pieces
from warpwright.vgpu.checks.missing import Missing, missing, too_narrow
from warpwright.vgpu.checks.order.access_kinds import (
    ASYNC,
    CLUSTER,
    CTA,
    DEVICE,
    GENERIC,
    MAP,
    SYSTEM,
    WEAK,
    fence_of,
    kind_of,
    kinds_of,
)
from warpwright.vgpu.checks.order.contexts import Contexts, Point
from warpwright.vgpu.checks.order.flags import Flags
from warpwright.vgpu.checks.order.order import Order, Strong
from warpwright.vgpu.checks.rules import EVIDENCE, RULES
from warpwright.vgpu.checks.steps import step_of
from warpwright.vgpu.jit.record import VALUED
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.program.program import Inst, results

__all__ = ["Globals", "Judged"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def synchronises(insts: list[Inst]) -> bool:
    """Whether clusters can order one another: some instruction releases to global memory and some acquires there."""
    kinds = [kind for kind in map(kind_of, insts) if kind is not None and kind.scope > WEAK and kind.proxy == GENERIC]
    releases = any(kind.releases for kind in kinds) or any(fence_of(inst) > CTA for inst in insts)
    return releases and any(kind.reads for kind in kinds) and any(kind.writes for kind in kinds)


def exchanges(insts: list[Inst]) -> bool:
    """Whether clusters exchange values by strong accesses of global memory, so that their results may depend on which
    of them runs first. red returns no value."""
    strong = [(inst, kind) for inst in insts if (kind := kind_of(inst)) and kind.scope > WEAK]
    return any(kind.reads and results(inst) for inst, kind in strong) and any(kind.writes for _, kind in strong)


class Judged(NamedTuple):
    """The results of a judged cluster, for all equal clusters; ``rows``: the number of rows judged."""

    contexts: Contexts
    flags: Flags
    rows: int


class Globals:
    """The global memory of one launch. ``off``: the rules not to check; ``depends``: the arrays that earlier launches
    write. ``in_turn``: the result is reproducible only if the clusters run in turns."""

    def __init__(self, launch: Launch, names: Names, off: frozenset[str], depends: Sequence[NDArray[Any]]) -> None:
        self.launch, self.names, self.off, self.depends = launch, names, off, depends
        self.kinds = kinds_of(launch.kernel.program)
        self.addresses = Addresses(launch, self.kinds)
        self.synchronises = synchronises(launch.insts)
        self.in_turn = self.synchronises or exchanges(launch.insts)
        self.fences = self._both_proxies()
        self.read_only = np.array([inst.has("nc") for inst in launch.insts], np.bool_)
        self.valued = np.array([inst.name in VALUED for inst in launch.insts], np.bool_)
        self.doubts: set[int] = set()  # stores that race with stores
        self.judged: dict[bytes, Judged] = {}
        self.digests: dict[int, bytes] = {}

    def _both_proxies(self) -> bool:
        """Whether threads and engines both access global memory, and one of them writes."""
        kinds = [kind for kind in self.kinds if kind is not None]
        apart = [[kind for kind in kinds if kind.proxy == proxy] for proxy in (GENERIC, ASYNC)]
        return all(apart) and any(kind.writes for kind in kinds)

    def findings(self, last: int) -> list[Finding]:
        """Returns the findings in the clusters up to number ``last``; of findings at the same lines, only the first."""
        self.digests = {number: digest for number, digest in self.digests.items() if number <= last}
        found: dict[object, Finding] = {}
        for finding in self._findings():
            found.setdefault(finding.lines, finding)
        return list(found.values())

    def _findings(self) -> Iterator[Finding]:
        self.addresses.gather()
        awaited = [self._bytes(array) for array in self.depends]
        also = self.addresses.allocations.of(np.array([low for low, _ in awaited], np.int64))
        touches = self._judged_touches(self.addresses.touches(also))
        for low, high in awaited:
            yield from self._dependency_findings(touches.select((touches.low < high) & (touches.high > low)))
        write = self.addresses.writes[touches.inst] & (touches.proxy != MAP)
        touches = touches.select(meeting(touches.low, touches.high, write, self._strong_kinds(touches)))
        if not len(touches.low):
            return
        self._number(touches)
        earlier, later = self._pairs(touches)
        yield from self._pair_findings(touches.select(earlier), touches.select(later))

    def _bytes(self, array: NDArray[Any]) -> tuple[int, int]:
        """Returns the host addresses of an array's first byte on the device and of one past its last."""
        span = spans([array])[0]
        first = int(self.addresses.allocations.host(np.array([self.launch.memory.address(array)]))[0])
        low = first - array.ctypes.data + span.low
        return low, low + span.high - span.low

    def _dependency_findings(self, touches: Touches) -> Iterator[Finding]:
        """Yields touches by lanes that do not know of the end of earlier launches, one for each instruction."""
        for digest in dict.fromkeys(self.digests[number] for number in np.unique(touches.cluster).tolist()):
            contexts = self.judged[digest].contexts
            here = np.array([self.digests[number] == digest for number in touches.cluster.tolist()], np.bool_)
            some = touches.select(here)
            grid, one = np.full(len(some.low), contexts.grid), np.ones(len(some.low), np.int64)
            some = some.select(~contexts.ordered(_epochs(contexts, some)[2], some.lane, grid, one))
            for at in np.unique(some.inst, return_index=True)[1].tolist() if "grid-dependency" not in self.off else ():
                text = "an earlier launch may still be writing it"
                yield Finding(RULES["grid-dependency"], (self._step("accesses", some, at),), text)

    def _judged_touches(self, touches: Touches) -> Touches:
        """Returns the touches in rows that were judged: an error may have stopped a cluster."""
        rows = {number: self.judged[digest].rows for number, digest in self.digests.items()}
        ends = np.array([rows.get(number, 0) for number in range(max(rows, default=0) + 1)], np.int64)
        inside = touches.cluster < len(ends)
        inside[inside] = touches.row[inside] < ends[touches.cluster[inside]]
        return touches.select(inside)

    def _number(self, touches: Touches) -> None:
        """Number the clusters in order, and build the order of their strong accesses."""
        strong = self.strong_accesses()
        self.clusters = np.unique(np.concatenate([touches.cluster, strong.cluster]))
        judged = [self.judged[self.digests[number]] for number in self.clusters.tolist()]
        self.order = self.order_of(self.clusters, judged, strong)
        self.observed = Observed(strong, self.kinds, self.launch.clusters_a_rank)

    def strong_accesses(self) -> Touches:
        """Returns the strong accesses in rows that were judged; none if clusters cannot order one another."""
        strong = self._judged_touches(self.addresses.strong_accesses())
        return strong if self.synchronises else strong.select(slice(0))

    def order_of(self, clusters: Ints, judged: list[Judged], strong: Touches) -> Order:
        """Returns the order of some clusters by some of their strong accesses."""
        ranks, per_cta = (clusters // self.launch.clusters_a_rank).tolist(), 32 * self.addresses.per_cta
        found = Order([each.contexts for each in judged], [each.flags for each in judged], ranks, per_cta)
        order = np.lexsort((strong.lane, strong.row, strong.turn))
        kinds = [self.kinds[inst] for inst in strong.inst[order].tolist()]
        at = np.searchsorted(clusters, strong.cluster[order]).tolist()
        rest = (part[order].tolist() for part in (strong.row, strong.lane, strong.low))
        found.follow(
            Strong(cluster, row, lane, address, kind.reads, kind.writes)
            for cluster, row, lane, address, kind in zip(at, *rest, kinds, strict=True)
            if kind is not None
        )
        return found

    def _pairs(self, touches: Touches) -> tuple[Ints, Ints]:
        """Returns pairs of touches that must be ordered. Of clusters that cannot order one another, the lower one
        counts as the first: which one ran first is chance."""
        own = touches.op < 0
        agent = touches.cluster << 32 | np.where(own, touches.lane, touches.op + (1 << 31))
        time = np.empty(len(own), np.int64)
        first = touches.turn if self.synchronises else touches.cluster
        time[np.lexsort((touches.op, touches.row, first))] = np.arange(len(own))
        scopes = self._scopes(touches)
        strong = np.where(scopes > CLUSTER, self._domain(touches) << 16 | touches.proxy << 8 | touches.unit, 0)
        write = self.addresses.writes[touches.inst] & (touches.proxy != MAP)
        piece, access = pieces(touches.low, touches.high)
        return pairs(piece, access, time, agent, write, strong)

    def _strong_kinds(self, touches: Touches) -> Ints:
        """Returns numbers that are equal only for accesses that are morally strong as `_strong_both` has it, or 0."""
        scopes = self._scopes(touches)
        clusters = np.where(scopes > CLUSTER, self._domain(touches), touches.cluster + 1)
        kinds = clusters << 16 | touches.unit << 8 | scopes << 4 | touches.proxy
        return np.where(scopes < CLUSTER, 0, kinds)

    def _ranks(self, touches: Touches) -> Ints:
        """Returns the ranks of a node that made accesses."""
        return touches.cluster // self.launch.clusters_a_rank

    def _domain(self, touches: Touches) -> Ints:
        """Returns numbers that are equal for strong accesses of the device's or a wider scope that include one another:
        the rank for accesses of a node in the scope of a device, else 0."""
        narrow = (self._scopes(touches) == DEVICE) & (self.launch.spec.gpus > 1)
        return np.where(narrow, self._ranks(touches) + 1, 0)

    def _scopes(self, touches: Touches) -> Ints:
        scopes = np.array([kind.scope if kind else WEAK for kind in self.kinds], np.int64)
        return np.where(touches.proxy == MAP, WEAK, scopes[touches.inst])

    def _pair_findings(self, first: Touches, second: Touches) -> Iterator[Finding]:
        bare = ~self._strong_both(first, second) & ~_same_row(first, second)
        first, second = first.select(bare), second.select(bare)
        ordered = np.zeros(len(first.low), np.bool_)
        hidden = ordered.copy()
        for chosen, a, b in self._by_clusters(first, second):
            ordered[chosen] = self._are_ordered(a, b, first.select(chosen), second.select(chosen))
            rest = chosen[~ordered[chosen]]
            before = functools.partial(self._are_ordered, b, b)
            ordered[rest] = self.observed.precede(first.select(rest), second.select(rest), before)
        for proxy in (ASYNC, MAP):
            crossing = np.flatnonzero(ordered & (first.proxy == GENERIC) & (second.proxy == proxy))
            for part, a, b in self._by_clusters(first.select(crossing), second.select(crossing)):
                chosen = crossing[part]
                hidden[chosen] = ~self._are_fenced(a, b, first.select(chosen), second.select(chosen), proxy)
        same, maps = first.cluster == second.cluster, (first.proxy == MAP) | (second.proxy == MAP)
        peers = self._ranks(first) != self._ranks(second)
        equal = self._are_equal(first, second, ~ordered & ~maps)
        races = ~ordered & ~maps & ~equal
        for rule, which, evidence in (
            ("race", races & same, ""),
            ("grid-race", races & ~same & ~peers, ""),
            ("peer-race", races & peers, ""),
            ("race", equal & same, EVIDENCE["equal"]),
            ("grid-race", equal & ~same & ~peers, EVIDENCE["equal"]),
            ("peer-race", equal & peers, EVIDENCE["equal"]),
            ("proxy-fence", hidden & ~maps, ""),
            ("tensor-map", (hidden | ~ordered) & maps, ""),
            ("read-only", ordered & (self.read_only[first.inst] | self.read_only[second.inst]), ""),
        ):
            yield from self._rule_findings(rule, first.select(which), second.select(which), evidence)

    def _are_equal(self, first: Touches, second: Touches, races: Bools) -> Bools:
        """Returns which races are of two stores of the same value; stores whose values are unknown are doubted."""
        equal = races & self.valued[first.inst] & self.valued[second.inst]
        self.doubts.update(first.inst[equal].tolist(), second.inst[equal].tolist())
        equal &= (first.low == second.low) & (first.high == second.high)
        for at in np.flatnonzero(equal).tolist():
            one, other = (
                self.addresses.value_at(int(each.cluster[at]), int(each.row[at]), int(each.low[at]))
                for each in (first, second)
            )
            equal[at] = one is not None and one == other
        return equal

    def _strong_both(self, first: Touches, second: Touches) -> Bools:
        """Returns the pairs that are morally strong: no race in either order (PTX ISA 9.1 section 8.7.1)."""
        scope = np.minimum(self._scopes(first), self._scopes(second))
        same = first.cluster == second.cluster
        per_cta = 32 * self.addresses.per_cta
        near = (scope == SYSTEM) | (self._ranks(first) == self._ranks(second))
        inside = near & (scope > CLUSTER) | same & (
            (scope == CLUSTER) | (first.lane // per_cta == second.lane // per_cta)
        )
        strong: Bools = (scope > WEAK) & inside & (first.unit == second.unit) & (first.proxy == second.proxy)
        return strong

    def _by_clusters(self, first: Touches, second: Touches) -> Iterator[tuple[Ints, int, int]]:
        """Yields pairs by their two clusters, numbered as in `Order`. Pairs of one cluster use the judged equal
        cluster. Pairs of two clusters are left out if clusters cannot order one another: none of them is ordered."""
        a, b = (np.searchsorted(self.clusters, each.cluster) for each in (first, second))
        digests: dict[bytes, int] = {}
        stands = np.array([digests.setdefault(self.digests[n], i) for i, n in enumerate(self.clusters.tolist())])
        alone = (a == b) & (not self.synchronises)
        left, right = np.where(alone, stands[a], a), np.where(alone, stands[b], b)
        keys = left * len(stands) + right
        usable = np.flatnonzero(alone | self.synchronises)
        usable = usable[np.argsort(keys[usable], kind="stable")]
        for group in np.split(usable, np.flatnonzero(np.diff(keys[usable])) + 1):
            if len(group):
                yield group, *divmod(int(keys[group[0]]), len(stands))

    def _are_ordered(self, a: int, b: int, first: Touches, second: Touches, order: Order | None = None) -> Bools:
        contexts = self.order.contexts
        columns, values, _ = _epochs(contexts[a], first)
        _, _, known = _epochs(contexts[b], second)
        return (order or self.order).before(a, columns, values, b, known, second.lane)

    def _are_fenced(self, a: int, b: int, first: Touches, second: Touches, proxy: int) -> Bools:
        """Returns whether fences of a proxy are between accesses that are ordered; tensormap.cp_fenceproxy releases."""
        if proxy == ASYNC:
            return self._have_point_between(a, b, first, second, [each.fences for each in self.order.contexts])
        publishes = np.array([inst.has("tensormap::generic") for inst in self.launch.insts], np.bool_)
        released = self._have_point_between(a, b, first, second, [each.map_releases for each in self.order.contexts])
        acquired = self._have_point_between(a, b, first, second, [each.map_acquires for each in self.order.contexts])
        return (released | publishes[first.inst]) & acquired

    def _have_point_between(self, a: int, b: int, first: Touches, second: Touches, points: list[list[Point]]) -> Bools:
        """Returns for each ordered pair of accesses whether a point (a fence) of the two clusters lies between them."""
        contexts = self.order.contexts
        columns, values, _ = _epochs(contexts[a], first)
        _, _, known = _epochs(contexts[b], second)
        found = np.zeros(len(columns), np.bool_)
        for where in dict.fromkeys((a, b)):
            for point in points[where]:
                rest = np.flatnonzero(~found)
                if not len(rest):
                    return found
                one = np.ones(len(rest), np.int64)
                before = self.order.before(a, columns[rest], values[rest], where, point.known * one, point.lane * one)
                after = self.order.before(where, point.lane * one, point.value * one, b, known[rest], second.lane[rest])
                found[rest] = before & after
        return found

    def _rule_findings(self, rule: str, first: Touches, second: Touches, evidence: str) -> Iterator[Finding]:
        """Yields one finding for each pair of instructions, of the lowest clusters and lanes; a note if there is
        ``evidence``."""
        if rule in self.off:
            return
        one, two = self._canonical(first, second) if rule in _APART else (first, second)
        for at in _instruction_pairs(one, two).tolist():
            steps = self._step("first", one, at), self._step("second", two, at)
            what = self._missing(rule, first, second, at)
            found = replace(RULES[rule], repair=what.repair) if what.repair else RULES[rule]
            yield Finding(found, steps, what.message, evidence=evidence)

    def _canonical(self, first: Touches, second: Touches) -> tuple[Touches, Touches]:
        """Returns pairs of accesses that nothing orders in an order that no schedule changes: a write before a read, of
        two writes that of the lower cluster first."""
        reads, writes = ~self.addresses.writes[first.inst], self.addresses.writes[second.inst]
        turned = writes & (reads | (first.cluster > second.cluster))
        both = list(zip(first, second, strict=True))
        return Touches(*(np.where(turned, b, a) for a, b in both)), Touches(*(np.where(turned, a, b) for a, b in both))

    def _missing(self, rule: str, first: Touches, second: Touches, at: int) -> Missing:
        """Returns what is missing between two accesses."""
        inst, lanes = self.launch.insts[int(first.inst[at])], (int(first.lane[at]), int(second.lane[at]))
        if rule in ("race", *_APART):
            found = self._narrow(first.select(slice(at, at + 1)), second.select(slice(at, at + 1)))
            return found or _APART.get(rule) or missing(inst, lanes, 32 * self.addresses.per_cta)
        if rule == "tensor-map":
            return _MAP_USED if first.proxy[at] == MAP else _MAP_CHANGED
        return Missing(_MESSAGES[rule])

    def _narrow(self, first: Touches, second: Touches) -> Missing | None:
        """Returns the scope that two accesses lack, or a flag between them; None if no scope would order them."""
        scope = int(np.minimum(self._scopes(first), self._scopes(second))[0])
        crosses = bool(self._ranks(first)[0] != self._ranks(second)[0])
        needed = SYSTEM if crosses else DEVICE if first.cluster[0] != second.cluster[0] else CLUSTER
        if scope > WEAK and first.unit[0] == second.unit[0] and first.proxy[0] == second.proxy[0]:
            return too_narrow(scope, needed, flag=False)
        order = self.order.without_scopes()
        a, b = (int(np.searchsorted(self.clusters, each.cluster[0])) for each in (first, second))
        ordered = self.synchronises and bool(self._are_ordered(a, b, first, second, order)[0])
        return too_narrow(min(order.refused), needed, flag=True) if ordered and order.refused else None

    def _step(self, what: str, touches: Touches, at: int) -> Step:
        inst, lane = int(touches.inst[at]), int(touches.lane[at])
        rank, thread = divmod(lane, 32 * self.addresses.per_cta)
        cta = self.launch.cta_of(self.launch.first_cta(int(touches.cluster[at])), rank)
        return step_of(self.names, what, self.launch.insts[inst], cta, thread)


_MESSAGES = {
    "proxy-fence": "they are ordered, but no fence.proxy.async is between them",
    "read-only": "they are ordered, but this load need not see what the launch writes",
}
_APART = {
    "grid-race": Missing("they are in different clusters, and no release and acquire at gpu scope orders them"),
    "peer-race": Missing("they are on different GPUs, and no release and acquire at sys scope orders them"),
}
_MAP_USED = Missing(
    "the copy may still read the map: no wait for the copy comes before the change",
    "wait for the copies that use the map before it is changed",
)
_MAP_CHANGED = Missing(
    "the copy may see the map as it was before, or half of the change: a release of the change, or an acquire in the "
    "thread that copies, is missing between them",
    "release the change (tensormap.cp_fenceproxy, or fence.proxy.tensormap::generic.release after it), and in the "
    "thread that copies put fence.proxy.tensormap::generic.acquire before the copy",
)


def _instruction_pairs(first: Touches, second: Touches) -> Ints:
    """Returns the place of one pair of accesses for each pair of instructions: of the lowest clusters, lanes and rows.
    Pairs come in the order of host addresses, which differ from run to run."""
    order = np.lexsort([getattr(each, name) for name in ("row", "lane", "cluster", "inst") for each in (second, first)])
    insts = (first.inst << 32 | second.inst)[order]
    found: Ints = order[np.unique(insts, return_index=True)[1]]
    return found


def _same_row(first: Touches, second: Touches) -> Bools:
    """Returns which pairs of accesses are stores of one instruction of a warp: if two lanes store to the same address,
    memory gets the value of one of them (CUDA C++ Programming Guide, SIMT architecture)."""
    found: Bools = (first.cluster == second.cluster) & (first.row == second.row) & (first.op < 0) & (second.op < 0)
    return found


def _epochs(contexts: Contexts, touches: Touches) -> tuple[Ints, Ints, Ints]:
    """Returns for each touch the column and value by which others know it, and the number of what its lane knew."""
    found = np.empty((3, len(touches.low)), np.int64)
    own, maps = touches.op < 0, touches.proxy == MAP
    found[:, own] = contexts.of_rows(touches.row[own], touches.lane[own])
    for chosen, used in ((~own & ~maps, False), (~own & maps, True)):
        found[:, chosen] = contexts.of_ops(touches.op[chosen], used)
    return found[0], found[1], found[2]
