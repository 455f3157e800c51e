"""ldmatrix and stmatrix: 8 × 8 matrices of 16-bit elements between shared memory and a warp (PTX ISA 9.1 9.7.14.5).

Lane 8·j + r gives the address of row r of matrix j, 16 aligned bytes. Register j of lane t has elements
2·(t % 4) and 2·(t % 4) + 1 of row t / 4 of matrix j; with ``trans`` of column t / 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr
from warpwright.lang.fragment import check_registers
from warpwright.lang.pointer import Pointer
from warpwright.lang.trace import current
from warpwright.types import b32

__all__ = ["ldmatrix", "movmatrix", "stmatrix"]

COUNTS = (1, 2, 4)


def ldmatrix(source: Pointer[Any], num: int = 4, *, trans: bool = False) -> list[Expr]:
    """Load ``num`` (1, 2 or 4) matrices into as many b32 registers, two 16-bit elements each.

    Raises KernelError for another number, or an address outside shared memory.

    Issued by the whole warp, converged.
    Completes by the first use of a register.
    Targets: all.
    PTX ISA 9.1 section 9.7.14.5.15 (ldmatrix).
    """
    if num not in COUNTS:
        raise misuse(f"given num={num} to ldmatrix; expected 1, 2 or 4 matrices")
    place, trace = _row("ldmatrix", source), current()
    registers = [trace.fresh(b32) for _ in range(num)]
    trace.emit(f"ldmatrix.sync.aligned.m8n8.x{num}{'.trans' if trans else ''}.shared.b16", tuple(registers), place)
    return registers


def stmatrix(destination: Pointer[Any], regs: Sequence[Expr], *, trans: bool = False) -> None:
    """Store 1, 2 or 4 matrices, each a 32-bit register with two 16-bit elements.

    Before a TMA store of the data each lane executes ``fence.proxy_async()``.
    Raises KernelError for another number of registers, wider or narrower ones, or an address outside shared memory.

    Issued by the whole warp, converged.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.14.5.16 (stmatrix).
    """
    regs = check_registers(regs, COUNTS, "stmatrix")
    opcode = f"stmatrix.sync.aligned.m8n8.x{len(regs)}{'.trans' if trans else ''}.shared.b16"
    current().emit(opcode, _row("stmatrix", destination), tuple(regs))


def movmatrix(value: Expr) -> Expr:
    """Returns the transpose (b32) of an 8 × 8 matrix of 16-bit elements, ``value`` its 32 bits in each lane.

    Issued by the whole warp, converged.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.14.5.17 (movmatrix).
    """
    check_registers([value], (1,), "movmatrix")
    return current().result("movmatrix.sync.aligned.m8n8.trans.b16", b32, value)


def _row(name: str, pointer: Pointer[Any]) -> Any:
    if not isinstance(pointer, Pointer) or pointer.space not in ("shared", "shared::cta"):
        raise misuse(
            f"given {pointer!r} to {name}; expected the row's address in shared memory: tile.at(row, column) or a "
            "pointer from smem.array"
        )
    return pointer.node
