"""The checks of a launch: the findings of all its clusters, and how much of the kernel was executed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from numpy.typing import NDArray

from warpwright.errors import Deadlock, DescriptorError, DeviceError, LimitReached, UnsupportedInstruction
from warpwright.vgpu.checks.facts import Facts
from warpwright.vgpu.checks.findings import Finding, Step, Verdict
from warpwright.vgpu.checks.hang import Hang, Situations
from warpwright.vgpu.checks.knowledge import MEANINGS, Knowledge, compiled_meanings
from warpwright.vgpu.checks.lifetime import finish
from warpwright.vgpu.checks.lock_order import LockOrder
from warpwright.vgpu.checks.meanings import copies, maps, tensor, threads
from warpwright.vgpu.checks.reach import Reach
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.steps import step_of
from warpwright.vgpu.checks.stream import Shared, Stream
from warpwright.vgpu.checks.stuck.blocked import situations
from warpwright.vgpu.checks.stuck.deadlock import deadlock
from warpwright.vgpu.checks.stuck.ranks import rank_lines
from warpwright.vgpu.checks.sync_order import SyncOrder
from warpwright.vgpu.checks.text import MISTAKES, mistakes
from warpwright.vgpu.checks.watch import follow
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.events import Listener, Records, Rows
from warpwright.vgpu.machine.launch import Launch

__all__ = ["Watcher", "copies", "maps", "tensor", "threads"]

_JUDGED = 20_000  # rows of a cluster that exceeded its limit
_NONE = sys.maxsize  # above the numbers of all clusters


@dataclass(eq=False)
class _EqualClusters:
    """Clusters with equal streams, of which one is judged. ``lowest``: the lowest cluster that is or will be judged;
    ``judged``: the cluster that ``findings`` belong to. The findings of a lower cluster replace those of a higher one:
    so they do not depend on which core was faster."""

    lowest: int = _NONE
    judged: int = _NONE
    findings: dict[tuple[Any, ...], Finding] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def covers(self, number: int) -> bool:
        """Whether the findings of another cluster are enough for a cluster."""
        return self.judged < number or (self.judged < _NONE and not self.findings)


class Watcher(Listener[Launch, Cluster]):
    """Stores what every cluster does, judges one of equal clusters, and collects the findings.

    ``off``: the rules not to check; ``depends``: the arrays that earlier launches write; ``strict``: notes are
    findings. ``last``: the lowest cluster with an error of its own; findings of higher clusters are dropped, since the
    number of them that ran is chance. ``doubts``: loads that read what no thread has written, and stores that race; in
    another run ``doubted``: such a load is a finding only if its value has an effect, such a race a note if the values
    are equal. ``explores``: `sync_order` follows the strong accesses.
    """

    accesses = True

    def __init__(
        self,
        off: frozenset[str] = frozenset(),
        depends: Sequence[NDArray[Any]] = (),
        strict: bool = False,
        doubted: frozenset[int] = frozenset(),
        explores: bool = False,
    ) -> None:
        self.off, self.depends, self.strict, self.doubted = off, depends, strict, doubted
        self.explores = explores
        self.doubts: set[int] = set()
        self.started = False
        self.lock = threading.Lock()
        self.equal: dict[bytes, _EqualClusters] = {}
        self.last = _NONE
        self.stops: dict[Exception, Finding] = {}
        self.hung: list[tuple[int, Situations, NDArray[Any]]] = []  # clusters that wait for one another, their lanes
        self.streams: dict[int, Stream] = {}

    def launched(self, launch: Launch) -> None:
        self.started = True
        self.facts = Facts(launch, self.off, self.depends, self.doubted)
        self.program, self.names, self.globals = self.facts.program, self.facts.names, self.facts.globals
        self.lock_order = LockOrder(self.facts)
        self.in_turn = self.globals.in_turn
        self.sync_order = SyncOrder(self.facts)
        collectors = [self.globals.addresses.add, self.sync_order.add]
        follows = self.facts.synchronises or self.explores
        self.shared = Shared(self.program, collectors if self.explores else collectors[:1], follows, self.doubted)
        self.meanings = [MEANINGS.get(inst.name) for inst in launch.insts]
        self.compiled = compiled_meanings(self.facts)
        self.reach = Reach(launch, self.names)

    def begin(self, cluster: Cluster) -> None:
        self.streams[cluster.number] = Stream(cluster, self.shared)

    def take(self, cluster: Cluster, rows: Rows, records: Records) -> None:
        self.streams[cluster.number].take(rows, records)

    def signal(self, cluster: Cluster, *words: int) -> None:
        self.streams[cluster.number].signal(*words)

    def end(self, cluster: Cluster, error: Exception | None = None, own: bool = False) -> None:
        """A cluster is over: judge it unless an equal cluster was judged."""
        number, stream = cluster.number, self.streams.pop(cluster.number)
        digest = stream.end(error is None)
        assert cluster.map_numbers is not None
        with self.lock:
            self.globals.digests[number] = digest
            self.globals.addresses.maps[number] = cluster.map_numbers
            if self.facts.acquires:
                self.lock_order.flags[number] = {at: cluster.shared_host + each for each, at in stream.flags.items()}
            equal = self.equal.setdefault(digest, _EqualClusters())
            repeated, equal.lowest = equal.lowest < number, min(equal.lowest, number)
            self.last = min(self.last, number) if own else self.last
            if isinstance(error, Deadlock) and not own:
                self.hung.append((number, situations(cluster), cluster.warps["live"].copy()))
        if repeated and error is None:
            return
        with equal.lock:
            if error is not None or not equal.covers(number):
                findings = self._judge(cluster, stream, digest, error)
                if number < equal.judged:
                    equal.judged, equal.findings = number, findings

    def _judge(
        self, cluster: Cluster, stream: Stream, digest: bytes, error: Exception | None
    ) -> dict[tuple[Any, ...], Finding]:
        """Returns the findings in a cluster."""
        known = Knowledge(cluster, self.facts, self.meanings, self.compiled)
        follow(known, stream.blocks(), _JUDGED if isinstance(error, LimitReached) else None)
        if error is None:
            finish(known)
        elif isinstance(error, DeviceError | DescriptorError):
            error = error.with_traceback(None)  # its frames refer to this watcher, which refers to the error
            self.stops.setdefault(error, self._stop(known, error))
        judged = known.judged()
        if known.locks.nests:
            self.lock_order.nests[digest] = [nest for nests in known.locks.nests.values() for nest in nests]
            apart = Knowledge(cluster, self.facts, self.meanings, self.compiled, frozenset(known.locks.places))
            follow(apart, stream.blocks(), known.at)
            self.lock_order.judged[digest] = apart.judged()
        with self.lock:
            self.sync_order.phases[digest] = known.met
            self.globals.judged[digest] = judged
            self.doubts |= known.doubts
        return known.findings

    def _cluster_findings(self) -> list[Finding]:
        """Returns the findings in clusters, in the order of the clusters, once for the same lines."""
        found: dict[object, Finding] = {}
        for equal in sorted(self.equal.values(), key=lambda equal: equal.judged):
            for lines, finding in equal.findings.items() if equal.judged <= self.last else ():
                if lines not in found or (found[lines].evidence and not finding.evidence):
                    found[lines] = finding
        return list(found.values())

    @cached_property
    def _global_findings(self) -> list[Finding]:
        return self.globals.findings(self.last)

    def all_doubts(self) -> set[int]:
        """Returns ``doubts`` with the stores that race in global memory; the run is over."""
        return self.doubts | (self.globals.doubts if self.started and self._global_findings else set())

    def verdict(self, device: str, error: DeviceError | DescriptorError | None) -> Verdict:
        """Returns the verdict on the launch; ``error`` is what stopped it."""
        findings, reasons = [*self._cluster_findings(), *self._global_findings, *self._text_findings()], []
        findings += self.lock_order.findings()
        if isinstance(error, UnsupportedInstruction | LimitReached):
            reasons.append(str(error))
        elif error is not None:
            found = self.stops.get(error) or Finding(RULES["fault"], (), str(error))
            if found.hang is not None:
                found = replace(found, hang=self._with_others(found.hang))
            if found.rule.id in self.off:
                reasons.append(f"stopped, with `{found.rule.id}` switched off: {error}")
            else:
                findings.append(found)
        coverage = self.reach.coverage()
        if coverage.missed and error is None:
            lines = ", ".join(coverage.missed)
            reasons.append(f"not reached: {lines}; choose a problem that comes there")
        notes = tuple(each for each in findings if each.evidence and not self.strict)
        findings = [each for each in findings if self.strict or not each.evidence]
        return Verdict(self.program.name, device, tuple(findings), coverage, tuple(reasons), notes=notes)

    def _with_others(self, hang: Hang) -> Hang:
        """Returns the report of a hang with the other clusters in it, and on a node with what each rank waits for."""
        hung = sorted(self.hung, key=itemgetter(0))
        lanes = [(number, live) for number, _, live in hung] if self.globals.launch.spec.gpus > 1 else []
        ranks = tuple(rank_lines(self.globals, lanes)) if lanes else ()
        return replace(hang.with_clusters(each for _, each, _ in hung[1:]), ranks=ranks)

    def _stop(self, known: Knowledge, error: DeviceError | DescriptorError) -> Finding:
        """Returns the finding for the error of a cluster."""
        if isinstance(error, Deadlock):
            return deadlock(known)
        steps = () if error.at is None else (known.step(error.what, *error.at),)
        return Finding(RULES["fault"], steps, error.reason if steps else str(error))

    def _text_findings(self) -> list[Finding]:
        """Returns the findings that need no run, once for the same lines."""
        found: dict[tuple[object, ...], Finding] = {}
        for rule in [rule for rule in MISTAKES if rule not in self.off]:
            for pairs, text, evidence in mistakes(rule, self.program):
                steps = tuple(self._step(what, inst) for what, inst in pairs)
                finding = Finding(RULES[rule], steps, text, evidence=evidence)
                found.setdefault((rule, *(step.where for step in steps)), finding)
        return list(found.values())

    def _step(self, what: str, inst: int) -> Step:
        """Returns a step that any thread takes."""
        return step_of(self.names, what, self.program.insts[inst], (0, 0, 0), 0)
