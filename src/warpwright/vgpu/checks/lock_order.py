"""Cycles in the order in which threads acquire locks: each thread may have one lock and wait for the next one's.

The order of acquisitions of one run is enough. Two threads that have a third lock meanwhile do not deadlock, nor
threads of which one is done before the other begins: by barriers or flags, not by the locks, whose order is chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from warpwright.vgpu.checks.facts import Facts
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.checks.memory.globals import Judged
from warpwright.vgpu.checks.order.contexts import Epochs
from warpwright.vgpu.checks.order.locks import Nest, Section
from warpwright.vgpu.checks.order.order import Order
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.steps import step_of
from warpwright.vgpu.program.names import Variables

__all__ = ["LockOrder"]

_LONGEST = 8  # locks of a cycle
_STEPS = 100_000  # of the search
_ALIKE = 16  # threads that acquire two locks in one order at the same lines

Word = tuple[int, int]  # of shared memory: cluster and place; of global memory: -1 and address


class _Edge(NamedTuple):
    """A thread of a cluster acquires a lock while it has another; words instead of places."""

    cluster: int
    nest: Nest
    outer: Word
    inner: Word
    gates: frozenset[Word]


@dataclass
class LockOrder:
    """``nests`` of judged clusters by digest, with what is known if the locks order nothing; ``flags`` by cluster:
    the addresses of its flags in global memory, by number."""

    facts: Facts
    nests: dict[bytes, list[Nest]] = field(default_factory=dict)
    judged: dict[bytes, Judged] = field(default_factory=dict)
    flags: dict[int, dict[int, int]] = field(default_factory=dict)

    def findings(self) -> list[Finding]:
        """Returns one finding for the lines of each cycle."""
        found: dict[object, Finding] = {}
        if "lock-order" not in self.facts.off:
            for cycle in self._cycles():
                finding = self._finding(cycle)
                found.setdefault(finding.lines, finding)
        return list(found.values())

    @cached_property
    def _edges(self) -> dict[Word, list[_Edge]]:
        """The edges by their outer lock, some of each kind."""
        kinds: dict[tuple[object, ...], list[_Edge]] = {}
        for number, digest in sorted(self.facts.globals.digests.items()):
            nests = self.nests.get(digest, ())
            names = {-2 - index: (-1, address) for index, address in self.flags[number].items()} if nests else {}
            for nest in nests:
                outer, inner, *gates = (
                    names.get(place, (number, place)) for place in (nest.outer.place, nest.inner.place, *nest.gates)
                )
                edge = _Edge(number, nest, outer, inner, frozenset(gates))
                alike = kinds.setdefault((outer, inner, nest.outer.inst, nest.inner.inst, edge.gates), [])
                alike += [edge] if len(alike) < _ALIKE else []
        edges: dict[Word, list[_Edge]] = {}
        for alike in kinds.values():
            edges.setdefault(alike[0].outer, []).extend(alike)
        return edges

    def _cycles(self) -> Iterator[list[_Edge]]:
        self.left = _STEPS
        for edges in self._edges.values():
            for edge in edges:
                yield from self._extend([edge])

    def _extend(self, path: list[_Edge]) -> Iterator[list[_Edge]]:
        """Yields the cycles that begin with a path."""
        for edge in self._edges.get(path[-1].inner, ()):
            self.left -= 1
            if self.left < 0:
                return
            if not all(self._at_once(other, edge) for other in path):
                continue
            if edge.inner == path[0].outer:
                yield [*path, edge]
            elif len(path) < _LONGEST - 1:
                yield from self._extend([*path, edge])

    def _at_once(self, a: _Edge, b: _Edge) -> bool:
        """Whether two threads may have their outer locks and wait for the inner ones at one time."""
        return a.outer != b.outer and not a.gates & b.gates and self._unordered(a, b)

    def _unordered(self, a: _Edge, b: _Edge) -> bool:
        return not self._before(a, b) and not self._before(b, a)

    def _before(self, a: _Edge, b: _Edge) -> bool:
        """Whether a thread has its inner lock before another begins to acquire its outer one."""
        columns, values, _ = self._moment(a, a.nest.inner)
        _, _, known = self._moment(b, b.nest.outer)
        lane = np.array([b.nest.lane], np.int64)
        return bool(self._order.before(self._at[a.cluster], columns, values, self._at[b.cluster], known, lane)[0])

    def _moment(self, edge: _Edge, section: Section) -> Epochs:
        rows, lanes = np.array([section.start], np.int64), np.array([edge.nest.lane], np.int64)
        return self._order.contexts[self._at[edge.cluster]].of_rows(rows, lanes)

    @cached_property
    def _at(self) -> dict[int, int]:
        """The places of the clusters in `_order`."""
        return {number: at for at, number in enumerate(sorted(self.facts.globals.digests))}

    @cached_property
    def _order(self) -> Order:
        """The order of the clusters of the launch, the locks left out."""
        known = self.facts.globals
        judged = [self.judged.get(known.digests[number]) or known.judged[known.digests[number]] for number in self._at]
        words = {word for edges in self._edges.values() for edge in edges for word in (edge.outer, edge.inner)}
        strong = known.strong_accesses()
        apart = np.isin(strong.low, [place for cluster, place in words if cluster < 0])
        return known.order_of(np.array([*self._at], np.int64), judged, strong.select(~apart))

    def _finding(self, cycle: list[_Edge]) -> Finding:
        names = {edge.outer: chr(ord("A") + at) for at, edge in enumerate(cycle)}
        steps = [
            step
            for edge in cycle
            for step in (
                self._step(f"acquires lock {names[edge.outer]}", edge, edge.nest.outer),
                self._step(f"acquires lock {names[edge.inner]} meanwhile", edge, edge.nest.inner),
            )
        ]
        places = ", ".join(f"{name} is {self._place(word)}" for word, name in names.items())
        text = f"each may have its first lock and wait for the other's; {places}"
        return Finding(RULES["lock-order"], tuple(steps), text)

    def _step(self, what: str, edge: _Edge, section: Section) -> Step:
        launch = self.facts.globals.launch
        rank, thread = divmod(edge.nest.lane, 32 * self.facts.globals.addresses.per_cta)
        cta = launch.cta_of(launch.first_cta(edge.cluster), rank)
        return step_of(self.facts.names, what, launch.insts[section.inst], cta, thread)

    def _place(self, word: Word) -> str:
        """Returns where a lock is: the variable of shared memory, or the parameter of the kernel that points to it."""
        cluster, place = word
        return self._parameter(place) if cluster < 0 else self._variable(cluster, place)

    def _variable(self, cluster: int, place: int) -> str:
        launch = self.facts.globals.launch
        rank, offset = divmod(place, launch.shared_stride)
        name = Variables(launch.kernel.program).name(offset, 4) or f"shared memory at 0x{offset:x}"
        return f"{name} of CTA {launch.cta_of(launch.first_cta(cluster), rank)}"

    def _parameter(self, address: int) -> str:
        launch, allocations = self.facts.globals.launch, self.facts.globals.addresses.allocations
        for (rank, (base, _)), param in itertools.product(enumerate(launch.params), launch.kernel.program.params):
            value = launch.memory.view(base)[param.offset : param.offset + param.nbytes]
            starts = allocations.host(value.view(np.int64)) if param.nbytes == 8 else np.empty(0, np.int64)
            if len(starts) and allocations.of(starts)[0] == allocations.of(np.array([address]))[0]:
                where = f" of rank {rank}" if launch.spec.gpus > 1 else ""
                return f"byte {address - int(starts[0])} of {param.name}{where}"
        return "global memory"
