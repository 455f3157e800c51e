"""An asynchronous operation between its issue and its completion, and the words of its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from warpwright.vgpu.program.program import Inst

__all__ = ["FOUR_ROWS", "HEAD_WORDS", "Op", "box_count", "values"]

HEAD_WORDS = 2  # of a record, before its operands: instruction, issuer
FOUR_ROWS = ("tile::gather4", "tile::scatter4")  # modes of tensor copies: four boxes of one row


@dataclass(slots=True)
class Op:
    """A record of the queue: ``op["mbar"]`` is the value of an operand, an address or a register, as an unsigned 64-bit
    number; ``op.vector("coords")`` are the values of a vector. ``number`` counts the operations of the cluster.

    The record of an mbarrier operation, which only observers read, has the fields of `program.BARRIER_COLUMNS` instead.
    """

    inst: Inst
    rank: int
    warp: int
    lane: int
    _words: list[int]
    number: int = 0

    def __getitem__(self, name: str) -> int:
        return self._words[self.inst.columns[name].start]

    def __contains__(self, name: str) -> bool:
        return name in self.inst.columns

    def get(self, name: str, default: int = 0) -> int:
        """The value of an optional operand, or ``default``."""
        return self[name] if name in self.inst.columns else default

    def vector(self, name: str) -> list[int]:
        """The values of a vector, or of a single register in its place; [] for an absent operand."""
        columns = self.inst.columns.get(name)
        return [] if columns is None else self._words[columns.start : columns.stop]

    @property
    def key(self) -> tuple[int, ...]:
        """The identity of an operation's work: instruction, CTA and operands."""
        return self.inst.index, self.rank, *self._words


def values(inst: Inst, records: NDArray[Any], name: str) -> NDArray[Any]:
    """Returns an operand of records of one instruction: a row for each record, a column for each element."""
    columns = inst.columns[name]
    return records[:, HEAD_WORDS + columns.start : HEAD_WORDS + columns.stop]


def box_count(inst: Inst) -> int:
    """Returns how many boxes a tensor copy moves, one after the other in shared memory."""
    return 4 if inst["mode"] in FOUR_ROWS else 1
