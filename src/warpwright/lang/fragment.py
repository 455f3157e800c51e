"""Matrices in registers, distributed over the threads of a warp or a warpgroup: see `warpwright.layout.fragment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.control import Var
from warpwright.lang.expr import Expr
from warpwright.lang.trace import current
from warpwright.types import Scalar, f16, f16x2, f32, s32, u32

__all__ = ["Fragment", "accumulator_registers", "check_registers"]

ACCUMULATORS: dict[str, type[Scalar]] = {"f32": f32, "f16": f16x2, "s32": s32}


@dataclass(frozen=True, eq=False)
class Fragment:
    """A matrix in registers: ``shape`` elements of ``dtype``; ``regs`` are the registers of one thread.

    The matrix is distributed over ``threads`` threads (32 or 128). ``place`` maps a thread and the number of one of its
    elements to row and column.
    """

    dtype: type[Scalar]
    shape: tuple[int, int]
    regs: list[Any]
    threads: int
    place: Callable[[Any, Any], tuple[Any, Any]]

    def at(self, element: int) -> tuple[Expr, Expr]:
        """Returns row and column (u32) of this thread's ``element``; a 32-bit type has one element a register.

        Raises KernelError for an element that a thread does not have.
        """
        count = self.shape[0] * self.shape[1] // self.threads
        if not 0 <= element < count:
            raise misuse(f"given element {element} of a fragment {self.shape}; expected 0 to {count - 1}")
        return self.place(current().pure("mov.u32", u32, "%tid.x") % self.threads, element)


def accumulator_registers(dtype: type[Scalar], elements: int) -> list[Var]:
    """Returns registers for ``elements`` sums of ``dtype`` that keep their names for their whole scope."""
    trace = current()
    kind = ACCUMULATORS[dtype.name]
    count = elements // 2 if dtype is f16 else elements
    return [Var(register.type, register.reg, register.scope, trace) for register in map(trace.fresh, [kind] * count)]


def check_registers(regs: Sequence[Any], counts: Sequence[int], what: str) -> list[Expr]:
    """Returns ``regs`` as a list. Raises KernelError unless they are 32-bit run-time values, as many as ``counts``."""
    for register in regs:
        if not isinstance(register, Expr) or register.type.bits != 32:
            raise misuse(
                f"given {register!r} as a register of {what}; expected a run-time value of 32 bits: "
                "pack narrower elements, as in pack(bf16x2, lo, hi)"
            )
    if len(regs) not in counts:
        expected = ", ".join(map(str, counts))
        raise misuse(f"given {len(regs)} registers for {what}; expected {' or '.join(expected.rsplit(', ', 1))}")
    return list(regs)
