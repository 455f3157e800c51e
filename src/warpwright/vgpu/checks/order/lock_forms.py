"""Which instructions acquire locks, by the text of the program.

An atom.cas or atom.exch acquires a lock if a thread repeats it, at the same address, until its result allows the thread
to continue. Between two attempts the thread releases nothing, and the loop has no other end: a thread that gives up, or
that releases one lock when it does not get another, does not wait.
"""

from __future__ import annotations

from warpwright.vgpu.checks.order.access_kinds import is_strong, kind_of, strong_kind_of
from warpwright.vgpu.machine.spins import Loops, reached
from warpwright.vgpu.program.program import Inst, Program, mentions, registers_of, results

__all__ = ["acquiring"]


def acquiring(program: Program) -> frozenset[int]:
    """Returns the numbers of the instructions that acquire locks."""
    tries = [inst for inst in program.insts if _tries(inst)]
    loops = Loops(program) if tries else None
    return frozenset(inst.index for inst in tries if loops and _waits(program, loops, inst))


def _tries(inst: Inst) -> bool:
    """Whether an instruction may change a word for a thread that uses the old value: a swap, unless it stores what it
    expects."""
    if inst.traits.access != "update" or inst["op"] not in ("cas", "exch") or not results(inst):
        return False
    return inst["op"] == "exch" or inst.operand("b") != inst.operand("c")


def _waits(program: Program, loops: Loops, inst: Inst) -> bool:
    """Whether a thread repeats an attempt until it succeeds."""
    blocks = _attempts(program, loops, inst)
    insts = [each for block in blocks for each in program.blocks[block].insts]
    before = {name: set(mentions(each)[0]) for each in insts for name in mentions(each)[1]}
    for each in insts:
        for name in mentions(each)[1]:
            before[name] |= set(mentions(each)[0])
    decided, changes = _decided(insts, inst), _changing(insts, before)
    fixed = [inst.operand("a"), *([inst.operand("b")] if inst["op"] == "cas" else [])]
    if any(register.name in changes for operand in fixed for register in registers_of(operand)):
        return False
    guards = [_guard(program, block) for block in blocks]
    exits = [_guard(program, block) for block in blocks if not loops.after[block] <= blocks]
    return any(guard in decided for guard in guards) and not any(guard in changes - decided for guard in exits)


def _attempts(program: Program, loops: Loops, inst: Inst) -> set[int]:
    """Returns the blocks between one attempt and the next, if nothing else is written there that orders threads."""
    allowed = {
        block.index for block in program.blocks if not any(_writes(each) for each in block.insts if each != inst)
    }
    own = next(block.index for block in program.blocks if inst in block.insts)
    after, before = (
        {block: ways.get(block, set()) & allowed for block in allowed} for ways in (loops.after, loops.before)
    )
    again = own in allowed and any(own in reached(after, block) for block in after[own])
    return reached(after, own) & reached(before, own) if again else set()


def _writes(inst: Inst) -> bool:
    kinds = (kind_of(inst), strong_kind_of(inst))
    return any(kind is not None and is_strong(kind) and kind.writes for kind in kinds)


def _guard(program: Program, block: int) -> str:
    """Returns the register that decides where a block continues, "" if there is one way only."""
    last = program.blocks[block].insts[-1]
    return last.guard.name if last.traits.jumps and last.guard is not None else ""


def _decided(insts: list[Inst], attempt: Inst) -> set[str]:
    """Returns the registers that depend on the result of an attempt, also through memory that passes it on."""
    found = {register.name for register in results(attempt)}
    passed = False
    count = -1
    while count != (count := len(found) + passed):
        for inst in insts:
            used, written = mentions(inst)
            depends = not found.isdisjoint(used) or (passed and inst.traits.access == "read")
            found |= set(written) if depends else set()
            passed |= depends and inst.traits.access == "write"
    return found


def _changing(insts: list[Inst], before: dict[str, set[str]]) -> set[str]:
    """Returns the registers that may differ from one attempt to the next: values of memory and clocks, counters, and
    what depends on them."""
    start = {name for inst in insts if inst.traits.access in ("read", "update") for name in mentions(inst)[1]}
    return {name for name in before if any(each in start or _changes(before, each) for each in reached(before, name))}


def _changes(before: dict[str, set[str]], name: str) -> bool:
    """Whether a register depends on its own last value, or on the time."""
    return (
        "clock" in name or "globaltimer" in name or any(name in reached(before, each) for each in before.get(name, ()))
    )
