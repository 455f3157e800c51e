"""Names of a program's roles and barriers, from the labels of its PTX."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from warpwright.ptx import nodes
from warpwright.vgpu.program.program import Operand, Program, Symbol, place

__all__ = ["APART", "WHOLE", "Names", "Variables"]

WHOLE, APART = "kernel", "all warps"
_ROLE = re.compile(r"role_(\w+?)_(\d+)(_end|_join)?$")
_WAIT = re.compile(r"wait_(\w+)_\d+$")
_HALF = re.compile(r"(\w+)_(full|empty)$")


class Names:
    """``roles``: the role of each instruction, by number; ``places``: its source line; ``barriers``: the barrier
    (``ab.full``) of each waiting instruction."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.roles: list[str] = []
        self.barriers: dict[int, str] = {}
        self.places = [place(inst) for inst in program.insts]
        outside = APART if any(_ROLE.match(block.name) for block in program.blocks) else WHOLE
        role = outside
        for block in program.blocks:
            found = _ROLE.match(block.name)
            if found:
                role = outside if found[3] == "_end" else found[1]
            wait = _WAIT.match(block.name)
            for inst in block.insts:
                self.roles.append(role)
                if inst.traits.queue == "mbarrier" and inst.find("p"):
                    self.barriers[inst.index] = _barrier_name(wait[1]) if wait else ""

    @cached_property
    def calls(self) -> list[tuple[str, ...]]:
        """By instruction, the lines of the calls around it, the outermost first, without those around all
        synchronisation."""
        return list(_calls(self.program))

    @cached_property
    def segments(self) -> list[str]:
        """By instruction, a name of its segment: instructions between the same two synchronisations have the same."""
        return list(_segments(self.program, self.roles))

    @staticmethod
    @lru_cache(maxsize=8)  # each schedule of a launch asks for them
    def of(program: Program) -> Names:
        """Returns the names in a program."""
        return Names(program)

    def waits(self, inst: int, address: int) -> str:
        """The stall reason of a wait: ``waits ab.full``, or the barrier's address in shared memory."""
        return f"waits {self.barriers.get(inst) or f'barrier 0x{address:x}'}"


def _calls(program: Program) -> Iterator[tuple[str, ...]]:
    """Yields the calls around each instruction."""
    chains = [tuple(f"{file}:{row}" for file, row in reversed(inst.locs)) for inst in program.insts]
    synced = [chains[inst.index] for inst in program.insts if inst.traits.queue in ("mbarrier", "barrier")]
    first, last = min(synced, default=()), max(synced, default=())
    shared = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    for chain in chains:
        yield chain[:-1][shared if chain[:shared] == first[:shared] else 0 :]


def _segments(program: Program, roles: list[str]) -> Iterator[str]:
    """Yields a name for the run of instructions without synchronisation that each instruction is in. A wait begins a
    run, an arrive ends one; `bar.sync` is alone."""
    number, role = 0, ""
    for inst in program.insts:
        alone = inst.traits.queue == "barrier" or inst.name.startswith("fence")
        waits = inst.traits.blocks or (inst.traits.queue == "mbarrier" and inst.find("p") is not None)
        number += alone or waits or roles[inst.index] != role
        role = roles[inst.index]
        yield f"{program.name}:{number}"
        number += alone or "arrive" in inst.opcode or "commit" in inst.opcode


def _barrier_name(label: str) -> str:
    found = _HALF.match(label)
    return f"{found[1]}.{found[2]}" if found else label


class Variables:
    """Names of the static variables of shared memory."""

    def __init__(self, program: Program) -> None:
        found = {symbol.value: symbol.name for inst in program.insts for symbol in _symbols(inst._operands)}
        self.starts = sorted(found)
        self.names = [_demangle(found[start]) for start in self.starts]
        self.end = program.dynamic_offset

    def name(self, offset: int, nbytes: int = 8) -> str:
        """``full``, or ``full[2]`` for elements of ``nbytes`` bytes; "" in dynamic shared memory."""
        index = bisect_right(self.starts, offset) - 1
        if index < 0 or self.starts[index] >= self.end:
            return ""
        place = (offset - self.starts[index]) // nbytes
        return f"{self.names[index]}[{place}]" if place else self.names[index]


def _symbols(operands: Iterable[Operand]) -> Iterator[Symbol]:
    for operand in operands:
        inner = operand.base if isinstance(operand, nodes.Address) else operand
        if isinstance(inner, Symbol) and inner.space == "shared":
            yield inner


def _demangle(name: str) -> str:
    """A C++ name without the function around it: ``_ZZ6kernelE4full`` is ``full``."""
    rest, last = name if name.startswith("_Z") else "", name
    while found := re.match(r"\D*(\d+)", rest):
        last, rest = rest[found.end() :][: int(found[1])], rest[found.end() + int(found[1]) :]
    return last
