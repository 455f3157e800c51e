"""A launch under watch: the findings of all its clusters together, and what of the kernel was executed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from warpwright.errors import Deadlock, DeviceError, UnsupportedInstruction
from warpwright.vgpu.checks import copies, tensor, threads
from warpwright.vgpu.checks.findings import Coverage, Finding, Step, Verdict
from warpwright.vgpu.checks.loads import early_uses
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.watch import MEANINGS, Watch
from warpwright.vgpu.jit.uses import uses_of
from warpwright.vgpu.names import Names

if TYPE_CHECKING:
    from warpwright.vgpu.cluster import Cluster
    from warpwright.vgpu.launch import Launch

__all__ = ["Watcher", "copies", "tensor", "threads"]


class Watcher:
    """Makes a watch for each cluster and keeps what they find; ``off`` are the rules not to check."""

    def __init__(self, off: frozenset[str] = frozenset()) -> None:
        self.off = off
        self.started = False
        self.lock = threading.Lock()
        self.found: dict[object, Finding] = {}

    def launched(self, launch: Launch) -> None:
        """A launch begins."""
        self.started = True
        self.program = launch.kernel.program
        self.names = Names(self.program)
        self.meanings = [MEANINGS.get(inst.name) for inst in launch.insts]
        self.uses = uses_of(launch.insts)
        self.entered = launch.kernel.tables[0]
        self.entered[:] = 0

    def begin(self, cluster: Cluster) -> Watch:
        """A cluster begins."""
        return Watch(cluster, self)

    def end(self, watch: Watch, done: bool) -> None:
        """A cluster is over, at its end or by an error."""
        if done:
            watch.finish()
        with self.lock:
            self.found = watch.findings | self.found

    def verdict(self, device: str, error: DeviceError | None) -> Verdict:
        """What the launch came to; ``error`` is what stopped it."""
        findings, reasons = [*self.found.values(), *self._early_uses()], []
        if isinstance(error, UnsupportedInstruction):
            reasons.append(str(error))
        elif error is not None:
            rule = "deadlock" if isinstance(error, Deadlock) else "fault"
            findings.append(Finding(RULES[rule], (), str(error)))
        coverage = self._coverage()
        if coverage.missed and error is None:
            lines = ", ".join(coverage.missed)
            reasons.append(f"not reached: {lines}; choose a problem that comes there")
        return Verdict(self.program.name, device, tuple(findings), coverage, tuple(reasons))

    def _early_uses(self) -> list[Finding]:
        if "tmem-registers" in self.off:
            return []
        pairs = {tuple(map(self.names.places.__getitem__, pair)): pair for pair in early_uses(self.program)}
        text = "no tcgen05.wait::ld is between them"
        return [
            Finding(RULES["tmem-registers"], (self._step("loads", load), self._step("uses", use)), text)
            for load, use in pairs.values()
        ]

    def _step(self, what: str, inst: int) -> Step:
        """A step that any thread takes."""
        opcode = self.program.insts[inst].opcode
        return Step(what, opcode, self.names.places[inst], self.names.roles[inst], (0, 0, 0), 0)

    def _coverage(self) -> Coverage:
        """An instruction without a line is not the kernel's own: the end that every kernel gets."""
        own = [(block.index, inst) for block in self.program.blocks for inst in block.insts if inst.line]
        lost = [inst for block, inst in own if not self.entered[block]]
        missed = dict.fromkeys(self.names.places[inst.index] for inst in lost if inst.name in MEANINGS)
        return Coverage(len(own) - len(lost), len(own), tuple(missed))
