"""What the virtual GPU executes: one kernel, flattened and resolved, as plain data that `decode` builds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from warpwright import isa
from warpwright.ptx import nodes

__all__ = [
    "Block", "Inst", "Operand", "Param", "Program", "Register", "Symbol", "Variable", "mentions", "place", "rebuilt",
    "registers_of", "successors",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Register:
    """A register after scopes are resolved; ``bits`` is 1 for predicates. ``special`` ones are set by the machine."""

    name: str
    bits: int
    negated: bool = False
    special: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, or a label. ``value``: byte offset in ``shared``, ``local`` and ``param``; virtual
    address in ``global`` and ``const``; block index for ``label``."""

    space: str
    name: str
    value: int


# Inside vectors, pairs and addresses the same operands stand where the parser's stood.
Operand = Register | Symbol | nodes.Operand


def rebuilt(items: Iterable[Operand]) -> nodes.Vector:
    """A vector of resolved operands."""
    return nodes.Vector(tuple(cast("Iterable[nodes.Operand]", items)))


@dataclass(slots=True)
class Inst:
    """One decoded instruction. ``match`` is None for an opcode that no form describes: executing it is an error."""

    index: int
    opcode: str
    match: isa.Match | None
    operands: tuple[Operand, ...]
    guard: Register | None = None
    line: int = 0
    loc: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        return self.match.form.name if self.match else self.opcode

    def __getitem__(self, slot: str) -> str:
        """The modifier chosen for ``slot`` ("" when absent)."""
        return self.match[slot] if self.match else ""


@dataclass(slots=True)
class Block:
    """Instructions that run together; control leaves only after the last one."""

    index: int
    name: str
    insts: list[Inst] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Param:
    """One ``.param`` of the entry: ``nbytes`` at ``offset`` of the parameter block."""

    name: str
    type: str
    nbytes: int
    align: int
    offset: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A module-scope variable in the global or const space: where it lives and what it holds at launch."""

    name: str
    address: int
    data: bytes


@dataclass(slots=True)
class Program:
    """A kernel ready to be compiled. ``thread_registers``: what a thread starts with; 0 where no directive fixes it."""

    name: str
    arch: str
    params: tuple[Param, ...]
    blocks: list[Block]
    registers: dict[str, Register]
    variables: tuple[Variable, ...]
    shared_bytes: int
    dynamic_offset: int
    local_bytes: int
    reqntid: tuple[int, int, int] | None = None
    maxntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    explicit_cluster: bool = False
    thread_registers: int = 0

    @property
    def insts(self) -> list[Inst]:
        return [inst for block in self.blocks for inst in block.insts]


def place(inst: Inst) -> str:
    """Where ``inst`` stands, for messages: the user's line when the PTX names it, else the PTX line."""
    return f"{inst.loc[0]}:{inst.loc[1]}" if inst.loc else f"PTX line {inst.line}"


def registers_of(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, nodes.Vector):
        return [r for item in operand.items for r in registers_of(item)]
    if isinstance(operand, nodes.Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    if isinstance(operand, nodes.Address):
        return registers_of(operand.base) + [r for item in operand.extra for r in registers_of(item)]
    return []


def _writes(inst: Inst) -> bool:
    """Whether the first operand is a result."""
    return inst.match is not None and inst.match.spelling.operands[:1] in ("d", "p")


def mentions(inst: Inst) -> tuple[list[str], list[str]]:
    """Names of the registers that an instruction reads, and of those that it writes."""
    first = 1 if _writes(inst) else 0
    used = [r.name for operand in inst.operands[first:] for r in registers_of(operand)]
    made = [r.name for r in registers_of(inst.operands[0])] if first else []
    return used + ([inst.guard.name] if inst.guard else []), made


def successors(block: Block, count: int) -> list[int]:
    """Numbers of the blocks that control may go to behind a block, of ``count`` blocks."""
    last = block.insts[-1] if block.insts else None
    operands = last.operands if last else ()
    targets = [each.value for each in operands if isinstance(each, Symbol) and each.space == "label"]
    ends = last is not None and last.name.split(".")[0] in ("bra", "ret", "exit", "trap") and last.guard is None
    return targets + ([] if ends or block.index + 1 >= count else [block.index + 1])
