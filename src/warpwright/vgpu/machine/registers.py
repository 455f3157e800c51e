"""The registers of a CTA, which setmaxnreg moves between warps (PTX ISA 9.1 section 9.7.19.5).

A CTA owns the registers that its threads were launched with; at launch none is free. If the kernel does not fix their
number (.maxnreg, or .maxntid or .reqntid with .minnctapersm), the assembler ignores setmaxnreg, and so does this.
"""

from __future__ import annotations

from warpwright.errors import ProtocolError
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.state import WAIT_SERVICE
from warpwright.vgpu.machine import faults
from warpwright.vgpu.machine.fabric import ClusterFabric

__all__ = ["Registers"]

WARPS = 4


class Registers:
    """Registers a thread of every warp of a cluster (``counts``), free registers of every CTA, and the warps that wait
    for registers. ``executed``: the setmaxnreg of every warp."""

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.fixed = cluster.launch.kernel.program.thread_registers
        self.counts = [self.fixed] * cluster.count
        self.free = [0] * cluster.ranks
        self.executed: list[list[Op]] = [[] for _ in range(cluster.count)]
        self.waiting: dict[int, Op] = {}

    def change(self, op: Op) -> bool:
        """Perform the setmaxnreg of a warp. Returns False if the warp must wait for registers."""
        index, count = op.rank * self.cluster.per_cta + op.warp, op["count"]
        self.executed[index].append(op)
        self._agree(op, index)
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
        """Grant free registers to waiting warps in order of arrival, until one needs more than are free."""
        for index, op in [(i, op) for i, op in self.waiting.items() if op.rank == rank]:
            if self._need(index, op) > self.free[rank]:
                return
            self._move(index)
            self.cluster.release(index, WAIT_SERVICE)

    def _first(self, index: int) -> int:
        return index - index % self.cluster.per_cta % WARPS

    def _group(self, index: int) -> range:
        """Returns the warps of a warp's warpgroup."""
        first, per_cta = self._first(index), self.cluster.per_cta
        return range(first, min(first + WARPS, first - first % per_cta + per_cta))

    def _agree(self, op: Op, index: int) -> None:
        """Raises ProtocolError if another warp of the warpgroup executed a different setmaxnreg in this place."""
        place = len(self.executed[index]) - 1
        for other in self._group(index):
            if len(self.executed[other]) > place and _what(self.executed[other][place]) != _what(op):
                action, count = _what(self.executed[other][place])
                text = f"warp {other % self.cluster.per_cta} of its warpgroup executes .{action} {count}"
                raise self.cluster.failure(ProtocolError, op, f"{text}; expected the same in all 4 warps.")

    def wanted(self, index: int) -> str:
        """Returns what a waiting warp asks for, in words; "" if it does not wait."""
        op = self.waiting.get(index)
        if op is None:
            return ""
        return f"{self._need(index, op)} registers ({self.free[op.rank]} are free)"

    def check_all(self) -> None:
        """Raises ProtocolError for a warpgroup that ends with fewer setmaxnreg in one warp than in another."""
        for index, executed in enumerate(self.executed):
            most = max(self._group(index), key=lambda other: len(self.executed[other]))
            if len(executed) < len(self.executed[most]):
                op = self.executed[most][len(executed)]
                action, count = _what(op)
                text = (
                    f"exits without the setmaxnreg.{action} {count} of warp {op.warp} of its warpgroup; "
                    "expected the same in all 4 warps."
                )
                raise faults.at_exit(ProtocolError, self.cluster, op, "executes", text, index % self.cluster.per_cta)


def _what(op: Op) -> tuple[str, int]:
    return op.inst["action"], op["count"]
