"""mma.sync of 8-bit floats on targets whose tensor cores multiply only 16-bit floats for mma.sync."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from warpwright.isa.operands import extents_of
from warpwright.vgpu.program.program import Inst, Program, mentions, registers_of

__all__ = ["FLOAT8", "count_emulation"]

FLOAT8 = ("e4m3", "e5m2")
HALVES = 2  # conversions of a register: four 8-bit floats to two pairs of 16-bit floats
WARP = 32


def count_emulation(program: Program) -> dict[int, tuple[int, int]]:
    """Returns, by the index of each mma.sync of 8-bit floats, the conversions (F2FP) and additions (FADD) of a thread
    with which ptxas emulates it for sm_90a and sm_100a.

    A register of a fragment is converted once after a label. The MMAs begin at zero, and a thread adds its sums to C.
    For the 80 mma.sync of a k-block of the GEMM for sm_120a, whose fragments have 112 registers, ptxas 13.0 emits 224
    conversions and 320 additions, in e4m3 as in e5m2; for 64 mma.sync and 96 registers, 192 and 256.
    """
    found: dict[int, tuple[int, int]] = {}
    for _, blocks in groupby(program.blocks, lambda block: block.name):
        converted: set[str] = set()
        for inst in (inst for block in blocks for inst in block.insts):
            fresh = set(_float8_registers(inst)) if inst.name == "mma" else set()
            if fresh:
                rows, columns, _ = extents_of(inst["shape"])
                found[inst.index] = HALVES * len(fresh - converted), rows * columns // WARP
            converted = (converted | fresh) - set(mentions(inst)[1])
    return found


def _float8_registers(inst: Inst) -> Iterator[str]:
    """Yields the registers of A and B that have 8-bit floats."""
    for name in ("a", "b"):
        if inst[f"{name}type"] in FLOAT8:
            yield from (register.name for register in registers_of(inst.operand(name)))
