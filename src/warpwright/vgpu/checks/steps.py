"""Steps of findings: instructions that threads executed."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.vgpu.program.names import Names
from warpwright.vgpu.program.program import Inst

__all__ = ["Step", "step_of"]


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that a thread executed: what it does, in words, its opcode and line, role, CTA and thread.

    ``calls``: the lines of the calls that it is inlined at, the outermost first; ``ptx_line`` (1-based); ``segment``:
    instructions between the same two synchronisations of the PTX have the same one.
    """

    what: str
    opcode: str
    where: str
    role: str
    cta: tuple[int, int, int]
    thread: int
    calls: tuple[str, ...] = ()
    ptx_line: int = 0
    segment: str = ""

    def __str__(self) -> str:
        calls = f"; called at {', '.join(self.calls)}" if self.calls else ""
        return f"{self.where} `{self.opcode}` ({self.role}, CTA {self.cta}, thread {self.thread}{calls})"


def step_of(names: Names, what: str, inst: Inst, cta: tuple[int, int, int], thread: int) -> Step:
    """Returns the step of a thread of a CTA at an instruction."""
    index = inst.index
    where, role, calls = names.places[index], names.roles[index], names.calls[index]
    return Step(what, inst.opcode, where, role, cta, thread, calls, inst.line, names.segments[index])
