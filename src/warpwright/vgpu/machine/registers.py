"""The registers of a CTA, which setmaxnreg moves between warps (PTX ISA 9.1 section 9.7.19.5).

A CTA owns the registers that its threads were launched with; at launch none is free. If the kernel does not fix their
number (.maxnreg, or .maxntid or .reqntid with .minnctapersm), the assembler ignores setmaxnreg, and so does this. Each
warp moves its own registers; that the warps of a warpgroup execute the same setmaxnreg is a rule of the checks.
"""

from __future__ import annotations

from warpwright.errors import ProtocolError
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.state import WAIT_SERVICE
from warpwright.vgpu.machine.fabric import ClusterFabric

__all__ = ["Registers"]


class Registers:
    """Registers a thread of every warp of a cluster (``counts``), free registers of every CTA, and the warps that wait
    for registers."""

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.fixed = cluster.launch.kernel.program.thread_registers
        self.counts = [self.fixed] * cluster.count
        self.free = [0] * cluster.ranks
        self.waiting: dict[int, Op] = {}

    def change(self, op: Op) -> bool:
        """Perform the setmaxnreg of a warp. Returns False if the warp must wait for registers."""
        index, count = op.rank * self.cluster.per_cta + op.warp, op["count"]
        if not self.fixed:
            return True
        if (count - self.counts[index]) * (1 if op.inst["action"] == "inc" else -1) < 0:
            word = "at least" if op.inst["action"] == "inc" else "at most"
            text = f"a thread of the warp has {self.counts[index]} registers; expected a count of {word} as many."
            raise self.cluster.failure(ProtocolError, op, text)
        self.waiting[index] = op
        if op.inst["action"] == "dec":
            self._move(index)
        self._serve(op.rank)
        return index not in self.waiting

    def _move(self, index: int) -> None:
        op = self.waiting.pop(index)
        self.free[op.rank] -= self._need(index, op)
        self.counts[index] = op["count"]

    def _need(self, index: int, op: Op) -> int:
        return 32 * (op["count"] - self.counts[index])

    def _serve(self, rank: int) -> None:
        """Grant free registers to waiting warps in order of arrival; a warp that needs more than are free waits on."""
        for index, op in [(i, op) for i, op in self.waiting.items() if op.rank == rank]:
            if self._need(index, op) <= self.free[rank]:
                self._move(index)
                self.cluster.release(index, WAIT_SERVICE)

    def wanted(self, index: int) -> str:
        """Returns what a waiting warp asks for, in words; "" if it does not wait."""
        op = self.waiting.get(index)
        if op is None:
            return ""
        return f"{self._need(index, op)} registers ({self.free[op.rank]} are free)"
