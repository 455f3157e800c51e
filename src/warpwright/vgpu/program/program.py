"""The program that the virtual GPU executes: one kernel, flattened and resolved, as plain data from `decode`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, cast

from warpwright import isa
from warpwright.ptx import nodes
from warpwright.vgpu.program import services

__all__ = [
    "BARRIER_COLUMNS", "Block", "Inst", "Operand", "Param", "Program", "Register", "Symbol", "Variable", "flatten",
    "mentions", "place", "registers_of", "results", "shape", "sources", "successors", "targets", "vector_of",
    "word_count", "words",
]  # fmt: skip

# Fields of the record of an mbarrier operation; ``parity`` and ``done`` are those of a wait.
BARRIER_COLUMNS = {
    name: range(at, at + 1)
    for name, at in (("count", 0), ("parity", 0), ("expect", 1), ("complete", 2), ("host", 4), ("done", 5))
}


@dataclass(frozen=True, slots=True)
class Register:
    """A register after scopes are resolved; ``bits`` is 1 for predicates. The machine sets ``special`` registers."""

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


# Resolved operands replace the parser's operands inside vectors, pairs and addresses.
Operand = Register | Symbol | nodes.Operand


def vector_of(items: Iterable[Operand]) -> nodes.Vector:
    """A vector of resolved operands."""
    return nodes.Vector(tuple(cast("Iterable[nodes.Operand]", items)))


@dataclass(slots=True)
class Inst:
    """One decoded instruction. ``match`` is None for an opcode without a form; executing it is an error.

    ``inst["type"]`` is a modifier, ``inst.operand("mbar")`` an operand, by the names of the table in `isa`.
    ``line``: of the PTX; ``locs``: source file and line, then those of the calls that it is inlined at. ``columns``:
    for an instruction with a queue record, the range of record words of each operand.
    """

    index: int
    opcode: str
    match: isa.Match | None
    _operands: tuple[Operand, ...]
    guard: Register | None = None
    line: int = 0
    locs: tuple[tuple[str, int], ...] = ()
    columns: Mapping[str, range] = field(init=False, repr=False, compare=False)
    _layout: _Layout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._layout = _layout(self.opcode, *map(type, self._operands))
        self.columns = _columns(self) if self._layout.queued else self._layout.columns

    @property
    def name(self) -> str:
        return self.match.form.name if self.match else self.opcode

    @property
    def form(self) -> isa.Form:
        return self.match.form if self.match else isa.UNKNOWN

    @property
    def traits(self) -> isa.Traits:
        return self._layout.traits

    def __getitem__(self, slot: str) -> str:
        """The modifier in ``slot`` ("" if absent)."""
        return self.match[slot] if self.match else ""

    def operand(self, name: str) -> Operand:
        """An operand, or a part of one. Raises KeyError if the instruction lacks it."""
        place = self._layout.places[name]
        return self._operands[place[0]] if len(place) == 1 else _part(self._operands, place)

    def find(self, name: str) -> Operand | None:
        """As `operand`, but None for an absent operand."""
        return self.operand(name) if name in self._layout.places else None

    def named(self, *names: str) -> list[Operand]:
        """Several operands at once."""
        return [self.operand(name) for name in names]

    def items(self, name: str) -> tuple[Operand, ...]:
        """The elements of a vector operand; any other operand is its own only element."""
        operand = self.operand(name)
        return operand.items if isinstance(operand, nodes.Vector) else (operand,)

    def number(self, name: str, default: int = 0) -> int:
        """The value of an immediate operand; ``default`` if the operand is absent or not an immediate."""
        operand = self.find(name)
        return int(operand.value) if isinstance(operand, nodes.Imm) else default

    def has(self, word: str) -> bool:
        """Whether the opcode has a modifier, in a slot of its form or as a fixed word."""
        return word in self.opcode.split(".")


_SHAPES = {nodes.Vector: "v", nodes.Pair: "p"}


class _Layout(NamedTuple):
    """Facts that instructions share if they have the same opcode and kinds of operands. ``results``: places of the
    results; ``sources``: numbers of the other operands."""

    traits: isa.Traits
    places: isa.Places
    results: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]
    queued: bool
    columns: Mapping[str, range]


@cache
def _layout(opcode: str, *kinds: type) -> _Layout:
    match = services.match(opcode, len(kinds))
    if match is None:
        return _Layout(isa.UNKNOWN.traits, {}, (), tuple(range(len(kinds))), False, {})
    places = match.places("".join(_SHAPES.get(kind, ".") for kind in kinds))
    results = tuple(place for name, place in places.items() if name in match.spelling.writes)
    columns = BARRIER_COLUMNS if match.form.traits.queue == "mbarrier" else {}
    written = {place[0] for place in results}
    sources = tuple(number for number in range(len(kinds)) if number not in written)
    return _Layout(match.form.traits, places, results, sources, match.form.queued, columns)


def _part(operands: tuple[Operand, ...], place: tuple[int, ...]) -> Operand:
    operand = operands[place[0]]
    if len(place) == 1:
        return operand
    if isinstance(operand, nodes.Pair):
        return operand.second if place[1] else operand.first
    assert isinstance(operand, nodes.Address)
    return operand.extra[place[1] - 1]


def _columns(inst: Inst) -> dict[str, range]:
    widths = [len(flatten(operand)) for operand in inst._operands]
    starts = [sum(widths[:number]) for number in range(len(widths))]
    columns = {}
    for name, (number, *part) in inst._layout.places.items():
        first, end = starts[number], starts[number] + widths[number]
        alone = isinstance(inst._operands[number], nodes.Address) and not part
        columns[name] = range(first, first + 1) if alone else range(first + bool(part), end)
    return columns


def flatten(operand: Operand) -> list[tuple[str, Operand]]:
    """The words of an operand in a record: ("address" | "value", operand)."""
    if isinstance(operand, nodes.Address):
        return [("address", operand), *(word for extra in operand.extra for word in flatten(extra))]
    if isinstance(operand, nodes.Vector):
        return [word for item in operand.items for word in flatten(item)]
    return [("value", operand)]


def words(inst: Inst) -> list[tuple[str, Operand]]:
    """The words of all operands in a record, in order."""
    return [word for operand in inst._operands for word in flatten(operand)]


def word_count(inst: Inst) -> int:
    """Words of an instruction's record that hold operands."""
    return len(words(inst))


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
    """A module-scope variable in the global or const space: its address and initial bytes."""

    name: str
    address: int
    data: bytes


@dataclass(slots=True, eq=False)
class Program:
    """A kernel ready to be compiled. ``thread_registers``: registers of a thread at launch; 0 if no directive sets
    them. ``cooperative``: whether the CTAs of the grid synchronise."""

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
    cooperative: bool = False

    @property
    def insts(self) -> list[Inst]:
        return [inst for block in self.blocks for inst in block.insts]


def place(inst: Inst) -> str:
    """The location of ``inst`` for messages: the user's line if the PTX has it, else the PTX line."""
    return "{}:{}".format(*inst.locs[0]) if inst.locs else f"PTX line {inst.line}"


def registers_of(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, nodes.Imm):
        return []
    if isinstance(operand, nodes.Vector):
        return [r for item in operand.items for r in registers_of(item)]
    if isinstance(operand, nodes.Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    if isinstance(operand, nodes.Address):
        return registers_of(operand.base) + [r for item in operand.extra for r in registers_of(item)]
    return []


def results(inst: Inst) -> list[Register]:
    """The registers that an instruction writes."""
    return [register for place in inst._layout.results for register in registers_of(_part(inst._operands, place))]


def sources(inst: Inst) -> list[Register]:
    """The registers that an instruction reads, without its guard; for an unknown opcode, all registers it names."""
    return [register for number in inst._layout.sources for register in registers_of(inst._operands[number])]


def shape(inst: Inst) -> tuple[Hashable, ...]:
    """The operands with numbers in place of the names of registers: instructions of one opcode and shape compute the
    same function of their registers."""
    numbers: dict[str, int] = {}
    return tuple(_shape_of(operand, numbers) for operand in inst._operands)


def _shape_of(operand: Operand, numbers: dict[str, int]) -> Hashable:
    if isinstance(operand, Register):
        return numbers.setdefault(operand.name, len(numbers)), operand.bits, operand.negated
    if isinstance(operand, nodes.Vector):
        return tuple(_shape_of(item, numbers) for item in operand.items)
    return operand


def mentions(inst: Inst) -> tuple[list[str], list[str]]:
    """Names of the registers that an instruction reads, and of those that it writes."""
    used = [register.name for register in sources(inst)]
    if inst.guard:
        used.append(inst.guard.name)
    return used, [register.name for register in results(inst)]


def targets(inst: Inst) -> list[int]:
    """Indices of the blocks that an instruction may branch to."""
    items = [item for operand in inst._operands for item in getattr(operand, "items", (operand,))]
    return [item.value for item in items if isinstance(item, Symbol) and item.space == "label"]


def successors(block: Block, count: int) -> list[int]:
    """Indices of the blocks that may follow a block, of ``count`` blocks."""
    last = block.insts[-1] if block.insts else None
    ends = last is not None and last.traits.jumps and last.guard is None
    found = (targets(last) if last else []) + ([] if ends else [block.index + 1])
    return [index for index in found if index < count]
