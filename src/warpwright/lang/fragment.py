"""Matrices in registers, spread over the threads of a warp or a warpgroup: see `warpwright.layout.fragment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.lang.context import current, misuse
from warpwright.lang.control import Var
from warpwright.lang.expr import Expr
from warpwright.lang.ops.special import tid
from warpwright.types import Scalar, f16, f16x2, f32, s32

__all__ = ["Fragment", "accumulator_registers", "check_registers"]

ACCUMULATORS: dict[str, type[Scalar]] = {"f32": f32, "f16": f16x2, "s32": s32}


@dataclass(frozen=True, eq=False)
class Fragment:
    """A matrix in registers: ``shape`` elements of ``dtype``, ``regs`` the registers of one thread.

    ``threads`` (32 or 128) hold it; ``place`` says where an element of a thread belongs.
    """

    dtype: type[Scalar]
    shape: tuple[int, int]
    regs: list[Any]
    threads: int
    place: Callable[[Any, Any], tuple[Any, Any]]

    def at(self, element: int) -> tuple[Expr, Expr]:
        """Row and column (u32) of this thread's ``element``; a 32-bit type has one in each register.

        Raises KernelError for an element that a thread does not have.
        """
        count = self.shape[0] * self.shape[1] // self.threads
        if not 0 <= element < count:
            raise misuse(f"given element {element} of a fragment {self.shape}; expected 0 to {count - 1}")
        return self.place(tid.x % self.threads, element)


def accumulator_registers(dtype: type[Scalar], elements: int) -> list[Var]:
    """Registers for ``elements`` sums of ``dtype`` that keep their names for their whole scope."""
    trace = current()
    kind = ACCUMULATORS[dtype.name]
    count = elements // 2 if dtype is f16 else elements
    return [Var(born.type, born.reg, born.scope, trace) for born in (trace.fresh(kind) for _ in range(count))]


def check_registers(regs: Sequence[Any], counts: Sequence[int], what: str) -> list[Expr]:
    """``regs`` as a list; KernelError unless they are 32-bit run-time values, as many as one of ``counts``."""
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
