"""Registers that tcgen05.ld fills: they may be used after tcgen05.wait::ld (PTX ISA 9.1 section 9.7.16.8.3).

Loads are asynchronous even for the thread that issued them. The text alone shows a use that some path reaches from the
load without a wait. The first use of a register waits for the load in SASS, so it stands for the load's other ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpwright.vgpu.program.program import Inst, Program, mentions, results, successors

__all__ = ["early_uses"]

Pending = dict[str, int]  # register: the load that fills it


def early_uses(program: Program) -> Iterator[tuple[int, int]]:
    """Yields pairs (load, use) of instructions, by their numbers."""
    if not any(map(_is_load, program.insts)):
        return
    entry: dict[int, Pending] = {0: {}}
    todo, found = [0], set[tuple[int, int]]()
    while todo:
        block = program.blocks[todo.pop()]
        pending = dict(entry[block.index])
        found.update(pair for inst in block.insts for pair in _uses_before_wait(inst, pending))
        for after in successors(block, len(program.blocks)):
            known = entry.get(after)
            if known is None or not pending.keys() <= known.keys():
                entry[after] = {**(known or {}), **pending}
                todo.append(after)
    yield from sorted(found)


def _is_load(inst: Inst) -> bool:
    return inst.traits.queue == "tmem" and bool(results(inst))


def _uses_before_wait(inst: Inst, pending: Pending) -> Iterator[tuple[int, int]]:
    """Yields the loads whose registers an instruction uses too early, and updates what is pending after it."""
    if inst.has("wait::ld"):
        pending.clear()
        return
    if pending:
        names = {name for part in mentions(inst) for name in part}
        loads = {pending[name] for name in names & pending.keys()}
        yield from ((load, inst.index) for load in loads)
        for name in [name for name, load in pending.items() if load in loads]:
            del pending[name]
    if _is_load(inst):
        pending.update((register.name, inst.index) for register in results(inst))
