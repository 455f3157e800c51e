"""A kernel while it is being traced: the PTX emitted so far, its registers, scopes and shared memory.

One ``Trace`` belongs to one run of one kernel function. Operations reach it through `current`, append instructions
with `Trace.emit` or `Trace.result`, and never keep it. Registers follow PTX ISA 9.1 section 5: one counter for each
register class, so the same trace always prints the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from warpwright import isa
from warpwright.errors import KernelError
from warpwright.lang.context import activate, current, misuse, user_frame, where
from warpwright.lang.expr import Expr
from warpwright.ptx import nodes
from warpwright.targets import ARCHS
from warpwright.types import Scalar, pred, u32

__all__ = ["Arena", "Scope", "Trace", "Traced", "activate", "addr", "current", "misuse", "register_class", "where"]

SMEM = "__smem"
_REGISTER_CLASSES = {
    "pred": ("p", "pred"),
    "f16": ("h", "b16"),
    "bf16": ("h", "b16"),
    "f32": ("f", "f32"),
    "tf32": ("f", "f32"),
    "f64": ("fd", "f64"),
}
_CLASS_OF_SIZE = {8: ("rs", "b16"), 16: ("rs", "b16"), 32: ("r", "b32"), 64: ("rd", "b64"), 128: ("rq", "b128")}
_NUMBER = re.compile(r"-?(\d+|0x[0-9a-fA-F]+)")
Operand = Any


@dataclass(eq=False)
class Scope:
    """A stretch of the kernel in which a register may be read: the kernel, a role, a loop or a branch.

    ``kind`` is what the user wrote (``"kernel"``, ``"role"``, ``"loop"``, ``"If"`` …), ``name`` the function it names,
    ``exit`` the label behind a loop.
    """

    kind: str
    name: str
    at: str
    parent: Scope | None = None
    open: bool = True
    exit: str = ""

    @property
    def role(self) -> Scope | None:
        """The role that this scope belongs to, or None outside roles."""
        scope: Scope | None = self
        while scope is not None and scope.kind != "role":
            scope = scope.parent
        return scope


@dataclass
class Arena:
    """Dynamic shared memory while it is handed out: ``top`` bytes used, ``names`` in order of allocation."""

    top: int = 0
    names: list[tuple[str, int, int]] = field(default_factory=list)

    def take(self, nbytes: int, align: int, name: str) -> int:
        """The byte offset of ``nbytes`` fresh bytes aligned to ``align``."""
        offset = -(-self.top // align) * align
        self.top = offset + nbytes
        self.names.append((name, offset, nbytes))
        return offset


def addr(base: Expr | str | int, offset: int = 0, *extra: Operand) -> nodes.Address:
    """The PTX address ``[base + offset]``; ``extra`` operands follow a comma, as in ``[map, {x, y}]``."""
    trace = current()
    node = trace.node(base)
    if not isinstance(node, nodes.Reg | nodes.Imm):
        raise misuse(f"given {base!r} as an address; expected a u32 or u64 register or the name of a variable")
    return nodes.Address(node, offset, tuple(trace.node(item) for item in extra))


@dataclass(frozen=True)
class Traced:
    """A traced kernel: its text and what a launch must know.

    ``params`` are (name, scalar type, ``Global[T]`` or ``tma.Map[T]``) in order; ``smem_bytes`` is the dynamic shared
    memory to launch with, ``maps`` what the kernel needs of each tensor-map parameter (``tma.MapUse``).
    """

    ptx: str
    entry: str
    arch: str
    threads: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    params: list[tuple[str, Any]]
    maps: Mapping[str, Any] = field(default_factory=dict)


def register_class(type: type[Scalar]) -> tuple[str, str]:
    """The prefix of the registers that hold ``type`` and the type they are declared with: ``("rd", "b64")``."""
    return _REGISTER_CLASSES.get(type.name) or _CLASS_OF_SIZE[type.bits]


class Trace:
    """The PTX of one kernel as it grows.

    ``arch`` is the target (``"sm_100a"``), ``config`` the keyword-only parameters, ``threads`` and ``cluster`` the
    three block and cluster dimensions, ``scope`` the innermost open one, ``version`` the lowest ``.version`` that the
    instructions so far need, ``frame`` the frame that called the kernel function. ``born`` are the registers since
    the last If ended, ``chain`` that If (both for Elif and Else); ``maps`` what `tma` needs of each tensor map,
    ``tensor_memory`` what `tmem` has claimed.
    """

    def __init__(
        self,
        name: str,
        arch: str,
        config: Mapping[str, Any],
        threads: tuple[int, int, int] = (1, 1, 1),
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        self.name, self.arch, self.config = name, arch, dict(config)
        self.threads, self.cluster = threads, cluster
        self.items: list[nodes.Item] = []
        self.files: list[str] = []
        self.pure_registers: set[str] = set()
        self.registers: dict[str, int] = {}
        self.misused: KernelError | None = None
        self.version = ""
        self.frame: FrameType | None = None
        self.born: list[Expr] = []
        self.chain: Any = None
        self.arena = Arena()
        self.maps: dict[str, Any] = {}
        self.tensor_memory: Any = None
        self.scope = Scope("kernel", name, where())
        self._labels: dict[str, int] = {}
        self._known: dict[tuple[Any, ...], Expr] = {}
        self._line: tuple[int, int] | None = None

    # Operations build on these six.

    def emit(self, opcode: str, *operands: Operand, guard: Expr | str | None = None) -> None:
        """Append ``opcode operands``.

        An operand is a string (already PTX), an int, an `Expr`, or an operand node. ``guard`` is a predicate.
        Raises KernelError when the target does not have the instruction, or a register is used outside its scope.
        """
        self.check(opcode)
        instruction = nodes.Instruction(opcode, tuple(self.node(item) for item in operands), self._guard(guard))
        self._mark_line()
        self.items.append(instruction)

    def result(self, opcode: str, type: type[Scalar], *operands: Operand, guard: Expr | str | None = None) -> Expr:
        """Emit ``opcode reg, operands`` into a fresh register of ``type`` and return it."""
        given = tuple(self.node(item) for item in operands)
        register = self.fresh(type)
        self.emit(opcode, register, *given, guard=guard)
        return register

    def pure(self, opcode: str, type: type[Scalar], *operands: Operand) -> Expr:
        """Like `result` for an instruction without effects: the same one twice in a scope is emitted once."""
        given = tuple(self.node(item) for item in operands)
        key = (opcode, type, given)
        known = self._known.get(key)
        if known is not None and known.scope.open:
            return known
        register = self.result(opcode, type, *given)
        self.pure_registers.add(register.reg)
        if not any(isinstance(item, Expr) and item.mutable for item in operands):
            self._known[key] = register
        return register

    def fresh(self, type: type[Scalar]) -> Expr:
        """A register of ``type`` that nothing has written yet, named by its class: ``%r`` ``%rd`` ``%f`` ``%p`` …"""
        prefix, _ = register_class(type)
        number = self.registers.get(prefix, 0)
        self.registers[prefix] = number + 1
        register = Expr(type, f"%{prefix}{number}", self.scope, self)
        self.born.append(register)
        return register

    def label(self, base: str = "L") -> str:
        """A label name that nothing else in the kernel has: ``base_0``, ``base_1`` …; place it with `place`."""
        number = self._labels.get(base, 0)
        self._labels[base] = number + 1
        return f"{base}_{number}"

    def place(self, label: str) -> None:
        """Put ``label:`` here."""
        self.items.append(nodes.Label(label))

    # Shared memory.

    def smem(self, nbytes: int, align: int = 16, name: str = "") -> Expr:
        """Allocate dynamic shared memory; its shared-space address (u32). ``align`` is a power of two up to 1024."""
        return self.smem_at(self.allocate(nbytes, align, name))

    def allocate(self, nbytes: int, align: int = 16, name: str = "") -> int:
        """Allocate dynamic shared memory; its byte offset from the base. KernelError beyond the target's limit."""
        if not 1 <= align <= 1024 or align & (align - 1):
            raise misuse(f"given align={align}; expected a power of two from 1 to 1024")
        if nbytes <= 0:
            raise misuse(f"given {nbytes} bytes of shared memory for {name or 'an array'}; expected at least 1")
        offset = self.arena.take(nbytes, align, name)
        limit = ARCHS[self.arch].smem_per_block
        if self.arena.top > limit:
            raise misuse(
                f"shared memory of kernel {self.name} grows to {self.arena.top} bytes with {name or 'this array'} "
                f"({nbytes} bytes); {self.arch} has {limit} for a CTA: use fewer stages or smaller tiles"
            )
        return offset

    def smem_at(self, offset: int) -> Expr:
        """The shared-space address (u32) of byte ``offset`` of the kernel's dynamic shared memory."""
        return self.pure("mov.u32", u32, nodes.Symbol(SMEM, offset) if offset else SMEM)

    # Scopes.

    @contextmanager
    def inside(self, kind: str, name: str = "", at: str = "") -> Iterator[Scope]:
        """Open a scope: registers born in it may not be read after it ends."""
        scope = Scope(kind, name, at or where(), self.scope)
        self.scope = scope
        try:
            yield scope
        finally:
            scope.open = False
            self.scope = scope.parent or scope

    # How operands become nodes.

    def node(self, operand: Operand) -> nodes.Operand:
        """``operand`` as an operand node, after the checks that its register may be read here."""
        if isinstance(operand, Expr):
            return nodes.Reg(self.use(operand).reg)
        if isinstance(operand, nodes.Reg | nodes.Imm | nodes.Vector | nodes.Address | nodes.Pair | nodes.Symbol):
            return operand
        if isinstance(operand, bool | int):
            return nodes.Imm(str(int(operand)), int(operand))
        if isinstance(operand, float):
            raise misuse(
                f"given the Python float {operand!r} without a type; write var(f32, {operand!r}) or x * {operand!r}"
            )
        if isinstance(operand, tuple | list):
            return nodes.Vector(tuple(self.node(item) for item in operand))
        if not isinstance(operand, str):
            raise misuse(f"given {operand!r} as an operand; expected a register, a number or PTX text")
        return nodes.Imm(operand, int(operand, 0)) if _NUMBER.fullmatch(operand) else nodes.Reg(operand)

    def use(self, value: Expr) -> Expr:
        """``value``, readable here: of this kernel, its scope still open, and as a plain register."""
        if value.trace is not self:
            raise misuse(
                f"{value} belongs to kernel {value.trace.name} and is used in kernel {self.name}: "
                "a register lives in one trace; pass the value as a parameter"
            )
        if not value.scope.open:
            raise misuse(_out_of_scope(value, self.scope))
        return self.pure("not.pred", pred, nodes.Reg(value.reg)) if value.negated else value

    def _guard(self, guard: Expr | str | None) -> nodes.Guard | None:
        if guard is None:
            return None
        if isinstance(guard, str):
            return nodes.Guard(guard.lstrip("!"), guard.startswith("!"))
        if guard.type is not pred:
            raise misuse(f"given {guard} as a guard; expected a pred: write x != 0")
        if not guard.negated:
            self.use(guard)
        return nodes.Guard(guard.reg, guard.negated)

    def check(self, opcode: str) -> None:
        """Raise KernelError when the target does not have ``opcode``; note the ``.version`` that it needs."""
        if self.misused is not None:
            raise self.misused
        match = isa.match(opcode)
        if match is None:
            raise misuse(
                f"{opcode} is not an instruction of PTX ISA 9.1; check the spelling and order of its modifiers"
            )
        if not isa.supports(match, self.arch):
            raise misuse(
                f"{match.form.name} needs {_named(match.spelling.targets)}; this kernel is traced for {self.arch}: "
                f"trace it for a target that has it, or write this step with instructions that {self.arch} has"
            )
        self.version = max(self.version, match.spelling.since, key=_numbers)

    def _mark_line(self) -> None:
        frame = user_frame()
        path = frame.f_code.co_filename
        if path not in self.files:
            self.files.append(path)
        line = (self.files.index(path) + 1, frame.f_lineno)
        if line != self._line:
            self.items.append(nodes.Loc(*line, 0))
            self._line = line

    def cut(self, start: int) -> None:
        """Drop everything emitted since ``len(items)`` was ``start``: a branch that is never taken."""
        del self.items[start:]
        self._line = None


def _out_of_scope(value: Expr, here: Scope) -> str:
    """Why ``value`` may not be read in scope ``here``, and what to write."""
    there, role = value.scope, value.scope.role
    if role is not None and here.role is not role:
        user = f"role {here.role.name}" if here.role else "code outside it"
        return (
            f"{value} belongs to role {role.name} ({role.at}) and is used in {user}: other threads run it; "
            "compute it before the roles, or pass it through shared memory"
        )
    article = "an" if there.kind[0] in "EI" else "a"
    return (
        f"{value} was computed inside {article} {there.kind} ({there.at}) that has ended; "
        f"write x = var({value.type.name}, …) before the {there.kind} and x.set(…) inside it"
    )


_FAMILIES = {"sm_100f": ("sm_100a", "sm_100f", "sm_103a"), "sm_110f": ("sm_110a",), "sm_120f": ("sm_120a", "sm_120f")}


def _named(targets: tuple[str, ...]) -> str:
    """Target predicates in words: ``sm_100a, sm_100f or sm_103a``."""
    names: list[str] = []
    for target in targets:
        names += _FAMILIES.get(target, (f"{target[:-1]} or later",) if target.endswith("+") else (target,))
    *most, last = dict.fromkeys(names)
    return f"{', '.join(most)} or {last}" if most else last


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
