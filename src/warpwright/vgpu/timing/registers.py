"""Registers of a thread: the peak of live registers, which limits the CTAs of an SM."""

from __future__ import annotations

from warpwright.vgpu.program.program import Block, Inst, Program, mentions, successors

__all__ = ["pressure"]

GRAIN, LEAST, MOST = 8, 24, 256  # registers are allocated in units of eight


def pressure(program: Program) -> int:
    """Registers of a thread: the start value if the kernel uses setmaxnreg, else the peak of live registers, at most as
    many as ``.maxnreg`` or ``.minnctapersm`` leaves.

    Within 2 of ptxas 13.0 for one warpgroup's 128 × 128 accumulator, and up to a fifth below ptxas where it recomputes
    addresses.
    """
    if program.thread_registers and any(inst.name == "setmaxnreg" for inst in program.insts):
        return program.thread_registers
    numbers = {name: i for i, name in enumerate(program.registers)}
    weights = {1 << numbers[name]: _words(reg.bits) for name, reg in program.registers.items() if not reg.special}
    blocks = program.blocks
    after = _live_after(blocks, numbers)
    most = max((_peak(block, after[block.index], numbers, weights) for block in blocks), default=0)
    return min(max(LEAST, -(-most // GRAIN) * GRAIN), program.thread_registers or MOST)


def _words(bits: int) -> int:
    """32-bit registers of a value; predicates have their own registers."""
    return 0 if bits == 1 else -(-bits // 32)


def _masks(inst: Inst, numbers: dict[str, int]) -> tuple[int, int]:
    """Bit masks of the registers that an instruction reads and defines. A guarded instruction keeps the old value."""
    used, made = mentions(inst)
    reads = sum(1 << number for number in {numbers[name] for name in used if name in numbers})
    writes = sum(1 << number for number in {numbers[name] for name in made if name in numbers})
    return (reads | writes, 0) if inst.guard else (reads, writes)


def _live_after(blocks: list[Block], numbers: dict[str, int]) -> list[int]:
    """The registers live at the end of each block."""
    reads, kills = [0] * len(blocks), [0] * len(blocks)
    for block in blocks:
        for inst in reversed(block.insts):
            used, made = _masks(inst, numbers)
            reads[block.index] = reads[block.index] & ~made | used
            kills[block.index] |= made
    before, after = list(reads), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            live = 0
            for target in successors(block, len(blocks)):
                live |= before[target]
            after[block.index] = live
            live = reads[block.index] | live & ~kills[block.index]
            changed |= live != before[block.index]
            before[block.index] = live
    return after


def _peak(block: Block, live: int, numbers: dict[str, int], weights: dict[int, int]) -> int:
    """Peak of live registers within a block."""
    most = _weight(live, weights)
    for inst in reversed(block.insts):
        used, made = _masks(inst, numbers)
        live = live & ~made | used
        most = max(most, _weight(live, weights))
    return most


def _weight(live: int, weights: dict[int, int]) -> int:
    total = 0
    while live:
        lowest = live & -live
        total += weights.get(lowest, 0)
        live ^= lowest
    return total
