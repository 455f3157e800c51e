"""Symbolic values of registers, from the text alone: a constant plus unknown multiples of steps.

A register with one definition has the value of that expression; a register that steps by constants from a start has
the start plus unknown steps. That suffices to find the mbarriers that an instruction may name and the directions that a
thread's branches may take: a thread's special registers are constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from warpwright.ptx import nodes
from warpwright.vgpu.jit.state import RANK_SHIFT, SHARED_WINDOW
from warpwright.vgpu.program.program import Inst, Operand, Program, Register, Symbol, mentions, targets

__all__ = ["Form", "Forms", "Places", "definitions"]

_OFFSET = (1 << RANK_SHIFT) - 1
_WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Form:
    """``constant`` plus unknown multiples of ``steps``; without steps the value is known. ``based``: the constant has
    the address of a variable in it, or is all there is."""

    constant: int = 0
    steps: frozenset[int] = frozenset()
    based: bool = False

    @property
    def known(self) -> bool:
        return not self.steps


_UNKNOWN = Form(steps=frozenset({1}))


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses that an mbarrier operand may have: byte ``start`` of the shared memory of CTA ``rank`` (None: of
    any CTA); if ``strided``, any byte from ``start`` on."""

    rank: int | None
    start: int
    strided: bool


def _sum(a: Form, b: Form, sign: int = 1) -> Form:
    return Form(a.constant + sign * b.constant, a.steps | b.steps, a.based or b.based)


def _product(a: Form, b: Form) -> Form:
    if not (a.known or b.known):
        return _UNKNOWN
    factor, other = (a, b) if a.known else (b, a)
    steps = frozenset(step * abs(factor.constant) for step in other.steps if factor.constant)
    return Form(other.constant * factor.constant, steps, other.known)


def definitions(program: Program) -> dict[str, list[Inst]]:
    """Returns the instructions that define each register."""
    found: dict[str, list[Inst]] = {}
    for inst in program.insts:
        for name in mentions(inst)[1]:
            found.setdefault(name, []).append(inst)
    return found


@dataclass(slots=True)
class Forms:
    """The forms of a program's registers for one thread. ``defined``: the instructions that define each register
    (`definitions`); ``specials``: the thread's special registers by name."""

    program: Program
    defined: Mapping[str, list[Inst]]
    specials: Mapping[str, int]
    rank: int
    known_forms: dict[str, Form] = field(default_factory=dict)

    def of(self, operand: Operand) -> Form:
        """Returns the form of an operand; of an address operand, that of the address."""
        if isinstance(operand, nodes.Imm):
            return Form(operand.value, based=True) if isinstance(operand.value, int) else _UNKNOWN
        if isinstance(operand, Symbol):
            base = self.rank << RANK_SHIFT if operand.space == "shared" else 0
            return Form(base + operand.value, based=True) if operand.space in ("shared", "label") else _UNKNOWN
        if isinstance(operand, nodes.Address):
            return _sum(self.of(operand.base), Form(operand.offset))
        if isinstance(operand, Register):
            found = self._register(operand)
            return Form(1 - (found.constant & 1), based=True) if operand.negated and found.known else found
        return _UNKNOWN

    def _register(self, register: Register) -> Form:
        if register.special:
            value = self.specials.get(register.name)
            return _UNKNOWN if value is None else Form(value, based=True)
        if register.name not in self.known_forms:
            self.known_forms[register.name] = _UNKNOWN
            self.known_forms[register.name] = self._definition(register.name)
        return self.known_forms[register.name]

    def _definition(self, name: str) -> Form:
        """Returns the form by a register's definitions: its start and its steps, if some definitions step it."""
        definitions = self.defined.get(name, [])
        stepped = [inst for inst in definitions if name in mentions(inst)[0]]
        starts = {self._result(inst) for inst in definitions if inst not in stepped}
        if len(starts) != 1:
            return _UNKNOWN
        (start,) = starts
        if any(inst.guard is not None for inst in definitions if inst not in stepped):
            return _UNKNOWN
        steps = frozenset(step for inst in stepped for step in self._step(name, inst))
        return Form(start.constant, start.steps | steps, start.based)

    def _step(self, name: str, inst: Inst) -> Iterator[int]:
        """Yields the constants by which an instruction steps its own result."""
        own, by = inst.named("a", "b") if inst.name in ("add", "sub") else (None, None)
        known = isinstance(own, Register) and own.name == name and isinstance(by, nodes.Imm)
        yield abs(inst.number("b")) if known else 1

    def _result(self, inst: Inst) -> Form:
        match inst.name:
            case "mov" | "cvt" | "cvta":
                return self.of(inst.operand("a"))
            case "add" | "sub":
                a, b = self._inputs(inst)
                return _sum(a, b, 1 if inst.name == "add" else -1)
            case "mul" if inst["mode"] in ("lo", "wide"):
                return _product(*self._inputs(inst))
            case "mad" if inst["mode"] in ("lo", "wide"):
                a, b, c = self._inputs(inst)
                return _sum(_product(a, b), c)
            case "shl" | "shr" | "and" | "or" | "xor" | "not" | "setp" if inst.find("q") is None:
                return self._bits(inst, self._inputs(inst))
            case "mapa":
                return self._mapa(*self._inputs(inst))
        return _UNKNOWN

    def _inputs(self, inst: Inst) -> list[Form]:
        return [self.of(operand) for operand in map(inst.find, "abc") if operand is not None]

    def _bits(self, inst: Inst, forms: list[Form]) -> Form:
        if inst.name == "shl" and forms[1].known:
            return _product(forms[0], Form(1 << min(forms[1].constant, 63), based=True))
        if inst.name == "and" and forms[1].known and forms[1].constant & _WORD == _WORD & ~(1 << RANK_SHIFT):
            return Form(forms[0].constant & ~(1 << RANK_SHIFT), forms[0].steps, forms[0].based)
        if inst["type"] == "pred" and any(form.known and _decides(inst.name, form) for form in forms):
            return Form(int(inst.name == "or"), based=True)
        if not all(form.known for form in forms):
            mask = next((form.constant & _WORD for form in forms if form.known), 0) if inst.name == "and" else 0
            return Form(steps=frozenset({mask & -mask})) if mask else _UNKNOWN
        a, b = forms[0].constant & _WORD, forms[-1].constant & _WORD
        if inst.name == "setp":
            return _setp(inst, a, b, len(forms))
        flipped = 1 - (a & 1) if inst["type"] == "pred" else a ^ _WORD
        word = {"shr": a >> min(b, 31), "and": a & b, "or": a | b, "xor": a ^ b, "not": flipped}[inst.name]
        return Form(word, based=True)

    def _mapa(self, address: Form, rank: Form) -> Form:
        steps = address.steps | (frozenset() if rank.known else {1 << RANK_SHIFT})
        return Form(
            (rank.constant << RANK_SHIFT if rank.known else 0) | address.constant & _OFFSET, steps, address.based
        )

    def places(self, operand: Operand) -> Places | None:
        """Returns where an mbarrier operand may be, None if the text does not show it."""
        form = self.of(operand)
        if not form.based or 1 in form.steps:
            return None
        address = form.constant % SHARED_WINDOW
        apart = any(step >= 1 << RANK_SHIFT for step in form.steps)
        strided = any(step < 1 << RANK_SHIFT for step in form.steps)
        return Places(None if apart else address >> RANK_SHIFT, address & _OFFSET, strided)

    def reachable(self, block: int) -> dict[int, Inst]:
        """Returns the instructions that the thread may execute from the start of a block on, by their numbers."""
        blocks, todo, seen = self.program.blocks, [block], set[int]()
        found: dict[int, Inst] = {}
        while todo:
            number = todo.pop()
            if number >= len(blocks) or number in seen:
                continue
            seen.add(number)
            for inst in blocks[number].insts:
                taken = self.of(inst.guard) if inst.guard is not None else Form(1, based=True)
                if not taken.known or taken.constant & 1:
                    found[inst.index] = inst
            todo += self._after(number)
        return found

    def _after(self, number: int) -> list[int]:
        last = self.program.blocks[number].insts[-1:]
        if not last or not last[0].traits.jumps:
            return [number + 1]
        (inst,) = last
        guard = Form(1, based=True) if inst.guard is None else self.of(inst.guard)
        taken = targets(inst) if not guard.known or guard.constant & 1 else []
        return taken + ([] if guard.known and guard.constant & 1 else [number + 1])


def _decides(name: str, form: Form) -> bool:
    """Whether one predicate alone decides the result."""
    return form.constant == (1 if name == "or" else 0)


def _setp(inst: Inst, a: int, b: int, count: int) -> Form:
    """setp of known integers that are not negative."""
    if count != 2 or max(a, b) >= 1 << 31 or inst["type"][0] not in "usb":
        return _UNKNOWN
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    results |= {"lo": a < b, "ls": a <= b, "hi": a > b, "hs": a >= b}
    found = results.get(inst["cmp"])
    return _UNKNOWN if found is None else Form(int(found), based=True)
