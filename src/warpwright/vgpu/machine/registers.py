"""The registers of a CTA as setmaxnreg moves them between warps (PTX ISA 9.1 section 9.7.19.5).

A CTA owns what its threads were launched with; nothing is free then. Where the kernel does not fix that number
(.maxnreg, or .maxntid or .reqntid with .minnctapersm) the assembler ignores setmaxnreg, and so does this.
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
    """Registers a thread of every warp of a cluster, those that are free in every CTA, and warps that wait for some.

    ``asked`` is what every warp has executed.
    """

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.fixed = cluster.launch.kernel.program.thread_registers
        self.held = [self.fixed] * cluster.count
        self.free = [0] * cluster.ranks
        self.asked: list[list[Op]] = [[] for _ in range(cluster.count)]
        self.waiting: dict[int, Op] = {}

    def change(self, op: Op) -> bool:
        """Carry out one warp's setmaxnreg; False when it must wait for registers."""
        index, count = op.rank * self.cluster.per_cta + op.warp, op.words[0]
        self.asked[index].append(op)
        self._agree(op, index)
        if not self.fixed:
            return True
        if (count - self.held[index]) * (1 if op.inst["action"] == "inc" else -1) < 0:
            word = "at least" if op.inst["action"] == "inc" else "at most"
            text = f"a thread of the warp has {self.held[index]} registers; expected a count of {word} as many."
            raise self.cluster.failure(ProtocolError, op, text)
        self.waiting[index] = op
        if op.inst["action"] == "dec":
            self._move(index)
        self._serve(op.rank)
        return index not in self.waiting

    def _move(self, index: int) -> None:
        op = self.waiting.pop(index)
        self.free[op.rank] -= self._need(index, op)
        self.held[index] = op.words[0]

    def _need(self, index: int, op: Op) -> int:
        return 32 * (op.words[0] - self.held[index])

    def _serve(self, rank: int) -> None:
        """Give to those who wait, in the order in which they came, until one needs more than there is."""
        for index, op in [(i, op) for i, op in self.waiting.items() if op.rank == rank]:
            if self._need(index, op) > self.free[rank]:
                return
            self._move(index)
            self.cluster.release(index, WAIT_SERVICE)

    def _first(self, index: int) -> int:
        return index - index % self.cluster.per_cta % WARPS

    def _group(self, index: int) -> range:
        """The warps of a warp's warpgroup."""
        first, per_cta = self._first(index), self.cluster.per_cta
        return range(first, min(first + WARPS, first - first % per_cta + per_cta))

    def _agree(self, op: Op, index: int) -> None:
        """ProtocolError when another warp of the warpgroup executed something else in this place."""
        place = len(self.asked[index]) - 1
        for other in self._group(index):
            if len(self.asked[other]) > place and _what(self.asked[other][place]) != _what(op):
                action, count = _what(self.asked[other][place])
                text = f"warp {other % self.cluster.per_cta} of its warpgroup executes .{action} {count}"
                raise self.cluster.failure(ProtocolError, op, f"{text}; expected the same in all 4 warps.")

    def wanted(self, index: int) -> str:
        """What a waiting warp asks for, in words; "" when it does not wait."""
        op = self.waiting.get(index)
        if op is None:
            return ""
        return f"{self._need(index, op)} registers ({self.free[op.rank]} are free)"

    def check_all(self) -> None:
        """Raises ProtocolError for a warpgroup that ends with fewer setmaxnreg in one warp than in another."""
        for index, asked in enumerate(self.asked):
            most = max(self._group(index), key=lambda other: len(self.asked[other]))
            if len(asked) < len(self.asked[most]):
                op = self.asked[most][len(asked)]
                action, count = _what(op)
                text = (
                    f"exits without the setmaxnreg.{action} {count} of warp {op.warp} of its warpgroup; "
                    "expected the same in all 4 warps."
                )
                raise faults.at_exit(ProtocolError, self.cluster, op, "executes", text, index % self.cluster.per_cta)


def _what(op: Op) -> tuple[str, int]:
    return op.inst["action"], op.words[0]
