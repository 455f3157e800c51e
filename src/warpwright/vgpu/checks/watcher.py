"""A launch under watch: the findings of all its clusters together, and what of the kernel was executed."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import Deadlock, DescriptorError, DeviceError, LimitReached, UnsupportedInstruction
from warpwright.vgpu.checks.findings import Coverage, Finding, Step, Verdict
from warpwright.vgpu.checks.meanings import copies, maps, tensor, threads
from warpwright.vgpu.checks.memory.globals import Globals, Judged
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.stream import Outside, Stream, kept_operands, kept_words, stores_box
from warpwright.vgpu.checks.stuck.deadlock import deadlock
from warpwright.vgpu.checks.text import MISTAKES
from warpwright.vgpu.checks.watch import MEANINGS, Watch
from warpwright.vgpu.jit.control import ENDINGS
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.program.program import mentions, registers_of

if TYPE_CHECKING:
    from warpwright.vgpu.device import Launch
    from warpwright.vgpu.machine.cluster import Cluster

__all__ = ["Watcher", "copies", "maps", "tensor", "threads"]

_JUDGED = 20_000  # rows of a cluster that is given up
_NONE = sys.maxsize  # above the numbers of all clusters


@dataclass(eq=False)
class _Alike:
    """Clusters that did the same. ``lowest``: the number of the lowest that is or will be judged; ``judged``: that of
    the one which ``findings`` are of. A lower one has them told of its own CTAs, whichever core was faster."""

    lowest: int = _NONE
    judged: int = _NONE
    findings: dict[tuple[Any, ...], Finding] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def known(self, number: int) -> bool:
        """Whether another has said all that is to be said of a cluster."""
        return self.judged < number or (self.judged < _NONE and not self.findings)


class Watcher:
    """Keeps what every cluster does, judges one of those that did the same, and has the findings; ``off`` are the rules
    not to check, ``depends`` the arrays that earlier launches write. ``last``: the lowest cluster that met an error of
    its own; those above it count for nothing, for how many of them ran is chance.

    ``hears`` are told the rows of every cluster with their global addresses (`Outside`): at least once a cluster, in
    order, before it is judged or found equal to one that was; from the thread that ran the cluster.
    """

    def __init__(self, off: frozenset[str] = frozenset(), depends: Sequence[NDArray[Any]] = ()) -> None:
        self.off, self.depends = off, depends
        self.started = False
        self.lock = threading.Lock()
        self.alike: dict[bytes, _Alike] = {}
        self.last = _NONE
        self.stops: dict[Exception, Finding] = {}
        self.turns = itertools.count()
        self.hears: list[Callable[[Outside], None]] = []

    def launched(self, launch: Launch) -> None:
        """A launch begins."""
        self.started = True
        self.program = launch.kernel.program
        self.names = Names(self.program)
        self.meanings = [MEANINGS.get(inst.name) for inst in launch.insts]
        self.kept = np.array([kept_words(inst) for inst in launch.insts], np.uint64)
        self.operands = np.array([kept_operands(inst) for inst in launch.insts], np.int64)
        self.queued = np.array([inst.form.queued for inst in launch.insts], np.bool_)
        self.stores = np.array([stores_box(inst) for inst in launch.insts], np.bool_)
        self.uses = launch.kernel.uses
        self.read: set[str] | None = None
        self.entered = launch.kernel.tables[0]
        self.entered[:] = 0
        self.globals = Globals(launch, self.names, self.off, self.depends)
        self.hears.append(self.globals.places.hear)

    def used(self, inst: int) -> NDArray[np.bool_]:
        """Which registers of a load someone reads; of ldmatrix all."""
        if self.read is None:
            self.read = {name for each in self.program.insts for name in mentions(each)[0]}
        load = self.program.insts[inst]
        names = [register.name for register in registers_of(load.operands[0])]
        return np.array([load.name == "ldmatrix" or name in self.read for name in names] or [True])

    def begin(self, cluster: Cluster) -> Stream:
        """A cluster begins."""
        return Stream(cluster, self)

    def end(self, stream: Stream, error: Exception | None = None, own: bool = False) -> None:
        """A cluster is over, at its end or by an error, its ``own`` or not; it is judged unless another did the
        same."""
        number, digest = stream.cluster.number, stream.end(error is None)
        with self.lock:
            self.globals.digests[number] = digest
            self.globals.places.maps[number] = stream.maps
            alike = self.alike.setdefault(digest, _Alike())
            known, alike.lowest = alike.lowest < number, min(alike.lowest, number)
            self.last = min(self.last, number) if own else self.last
        if known and error is None:
            return
        with alike.lock:
            if error is not None or not alike.known(number):
                findings = self._judge(stream, digest, error)
                if number < alike.judged:
                    alike.judged, alike.findings = number, findings

    def _judge(self, stream: Stream, digest: bytes, error: Exception | None) -> dict[tuple[Any, ...], Finding]:
        """What is found in a cluster."""
        watch = Watch(stream.cluster, self)
        watch.follow(stream.blocks(), _JUDGED if isinstance(error, LimitReached) else None)
        if error is None:
            watch.finish()
        elif isinstance(error, DeviceError | DescriptorError):
            self.stops.setdefault(error, self._stop(watch, error))
        watch.contexts.finish(watch.accesses)
        with self.lock:
            self.globals.judged[digest] = Judged(watch.contexts, watch.flags, watch.at)
        return watch.findings

    def _found(self) -> list[Finding]:
        """The findings in clusters, in the order of these, once for the same lines."""
        found: dict[object, Finding] = {}
        for alike in sorted(self.alike.values(), key=lambda alike: alike.judged):
            for lines, finding in alike.findings.items() if alike.judged <= self.last else ():
                found.setdefault(lines, finding)
        return list(found.values())

    def verdict(self, device: str, error: DeviceError | DescriptorError | None) -> Verdict:
        """What the launch came to; ``error`` is what stopped it."""
        findings, reasons = [*self._found(), *self.globals.findings(self.last), *self._of_text()], []
        if isinstance(error, UnsupportedInstruction | LimitReached):
            reasons.append(str(error))
        elif error is not None:
            found = self.stops.get(error) or Finding(RULES["fault"], (), str(error))
            if found.rule.id in self.off:
                reasons.append(f"stopped, with `{found.rule.id}` switched off: {error}")
            else:
                findings.append(found)
        coverage = self._coverage()
        if coverage.missed and error is None:
            lines = ", ".join(coverage.missed)
            reasons.append(f"not reached: {lines}; choose a problem that comes there")
        return Verdict(self.program.name, device, tuple(findings), coverage, tuple(reasons))

    def _stop(self, watch: Watch, error: DeviceError | DescriptorError) -> Finding:
        """The finding for what a cluster has met."""
        if isinstance(error, Deadlock):
            return deadlock(watch)
        steps = () if error.at is None else (watch.step(error.what, *error.at),)
        return Finding(RULES["fault"], steps, error.reason if steps else str(error))

    def _of_text(self) -> list[Finding]:
        """What no run is needed for; once for the same lines."""
        found: dict[tuple[object, ...], Finding] = {}
        for rule in [rule for rule in MISTAKES if rule not in self.off]:
            for given, text in MISTAKES[rule](self.program):
                steps = tuple(self._step(what, inst) for what, inst in given)
                found.setdefault((rule, *(step.where for step in steps)), Finding(RULES[rule], steps, text))
        return list(found.values())

    def _step(self, what: str, inst: int) -> Step:
        """A step that any thread takes."""
        opcode = self.program.insts[inst].opcode
        return Step(what, opcode, self.names.places[inst], self.names.roles[inst], (0, 0, 0), 0)

    def _coverage(self) -> Coverage:
        """An instruction without a line is not the kernel's own: the end that every kernel gets."""
        own = [(block.index, inst) for block in self.program.blocks for inst in block.insts if inst.line]
        ways = self.entered[len(self.program.blocks) :].reshape(-1, 2)
        guarded = [inst for _, inst in own if inst.guard is not None]
        branches = [inst.index for inst in guarded if inst.name in ENDINGS]
        skipped = {inst.index for inst in guarded if inst.name not in ENDINGS and not ways[inst.index, 0]}
        lost = [inst for block, inst in own if not self.entered[block] or inst.index in skipped]
        missed = dict.fromkeys(self.names.places[inst.index] for inst in lost if inst.name in MEANINGS)
        gone = int(ways[branches].sum()), 2 * len(branches)
        return Coverage(len(own) - len(lost), len(own), tuple(missed), gone)
