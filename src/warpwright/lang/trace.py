"""The trace of a kernel: the PTX emitted so far, its registers, its scopes and its shared memory.

One ``Trace`` belongs to one run of one kernel function. An operation gets the trace from `current`, appends
instructions with `Trace.emit` or `Trace.result`, and keeps no reference to it. Each register class has its own counter
(PTX ISA 9.1 section 5), so the same kernel always gives the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from types import FrameType
from typing import Any

from warpwright import isa
from warpwright.errors import KernelError
from warpwright.lang import context
from warpwright.lang.context import misuse, user_frame, where
from warpwright.lang.convert import bitcast, cvt
from warpwright.lang.expr import Expr
from warpwright.lang.scope import Scope, register_class
from warpwright.ptx import nodes
from warpwright.targets import ARCHS, FAMILIES
from warpwright.types import Scalar, pred, u32

__all__ = ["Trace", "Traced", "addr", "current"]

SMEM, STACK = "__smem", "__stack"
_NODES = nodes.Reg, nodes.Imm, nodes.Vector, nodes.Address, nodes.Pair, nodes.Symbol
_NUMBER = re.compile(r"-?(\d+|0x[0-9a-fA-F]+)")
Operand = Any
current: Callable[[], Trace] = context.current


def addr(base: Expr | str | int, offset: int = 0, *extra: Operand) -> nodes.Address:
    """Returns the PTX address ``[base + offset]``; ``extra`` operands follow a comma, as in ``[map, {x, y}]``."""
    trace = current()
    node = trace.node(base)
    if not isinstance(node, nodes.Reg | nodes.Imm):
        raise misuse(f"given {base!r} as an address; expected a u32 or u64 register or the name of a variable")
    return nodes.Address(node, offset, tuple(trace.node(item) for item in extra))


@dataclass(frozen=True)
class Traced:
    """A traced kernel: its PTX text and what a launch needs besides.

    ``params`` are (name, annotation) in order, the annotation a scalar type, ``Global[T]`` or ``tma.Map[T]``;
    ``smem_bytes`` is the size of the dynamic shared memory, ``maps`` the ``tma.MapUse`` of each tensor-map parameter.
    """

    ptx: str
    entry: str
    arch: str
    threads: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    params: list[tuple[str, Any]]
    maps: Mapping[str, Any]

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.params)
        return f"Traced({self.entry}({names}) for {self.arch}, threads={self.threads}, cluster={self.cluster})"


class Trace:
    """The PTX of one kernel while its function runs.

    ``arch`` is the target (``"sm_100a"``), ``threads`` and ``cluster`` are the block and cluster dimensions,
    ``ctas_per_sm`` the CTAs that must fit on an SM, ``scope`` is the innermost open scope, ``smem_bytes`` the dynamic
    shared memory allocated so far, ``version`` the lowest ``.version`` that the instructions need, and ``frame`` the
    frame that called the kernel function. ``new_registers`` are the registers created since the last If ended,
    ``chain`` is that If (`Elif` and `Else` read both). ``maps`` has the ``tma.MapUse`` of each tensor map,
    ``tensor_memory`` the columns that ``tmem.tile`` claimed. ``texts`` are names of zero-terminated texts, ``calls``
    external functions with the types of parameters and result, and ``stack_bytes`` is the local memory of a thread. A
    generator cannot raise when Python closes it, so `loop` records its misuse in ``pending_error``.
    """

    cvt = staticmethod(cvt)
    bitcast = staticmethod(bitcast)

    def __init__(
        self,
        name: str,
        arch: str,
        threads: tuple[int, int, int] = (1, 1, 1),
        cluster: tuple[int, int, int] = (1, 1, 1),
        ctas_per_sm: int | None = None,
    ) -> None:
        self.name, self.arch, self.threads, self.cluster = name, arch, threads, cluster
        self.ctas_per_sm = ctas_per_sm
        self.items: list[nodes.Item] = []
        self.files: list[str] = []
        self.pure_registers: set[str] = set()
        self.registers: dict[str, int] = {}
        self.pending_error: KernelError | None = None
        self.version = ""
        self.frame: FrameType | None = None
        self.new_registers: list[Expr] = []
        self.chain: Any = None
        self.smem_bytes = 0
        self.maps: dict[str, Any] = {}
        self.tensor_memory: Any = None
        self.texts: dict[str, str] = {}
        self.calls: dict[str, tuple[tuple[str, ...], str]] = {}
        self.stack_bytes = 0
        self.scope = Scope("kernel", name, where())
        self._labels: dict[str, int] = {}
        self._pure_results: dict[tuple[Any, ...], Expr] = {}
        self._line: tuple[int, int] | None = None

    # Instructions, registers and labels.

    def emit(self, opcode: str, *operands: Operand, guard: Expr | str | None = None) -> None:
        """Append ``opcode operands``.

        An operand is a string (PTX text), an int, an `Expr`, or an operand node. ``guard`` is a predicate.
        Raises KernelError if the target does not have the instruction or a register is used outside its scope.
        """
        self._append(opcode, self._sources(operands), guard)

    def _append(self, opcode: str, operands: tuple[nodes.Operand, ...], guard: Expr | str | None = None) -> None:
        """`emit` with operands that are nodes."""
        self._check_opcode(opcode, len(operands))
        instruction = nodes.Instruction(opcode, operands, self._guard(guard))
        self._mark_line()
        self.items.append(instruction)

    def result(self, opcode: str, type: type[Scalar], *operands: Operand, guard: Expr | str | None = None) -> Expr:
        """Emit ``opcode reg, operands`` and return ``reg``, a new register of ``type``."""
        return self._result(opcode, type, self._sources(operands), guard)

    def _result(
        self, opcode: str, type: type[Scalar], sources: tuple[nodes.Operand, ...], guard: Expr | str | None = None
    ) -> Expr:
        """`result` with operands that are nodes."""
        register = self.fresh(type)
        self._append(opcode, (_register(register.reg), *sources), guard)
        return register

    def pure(self, opcode: str, type: type[Scalar], *operands: Operand) -> Expr:
        """Like `result` for an instruction without side effects: a repeated one in the same scope is emitted once."""
        sources = self._sources(operands)
        key = (opcode, type, sources)
        known = self._pure_results.get(key)
        if known is not None and known.scope.open:
            return known
        register = self._result(opcode, type, sources)
        self.pure_registers.add(register.reg)
        if not any(isinstance(item, Expr) and item.mutable for item in operands):
            self._pure_results[key] = register
        return register

    def fresh(self, type: type[Scalar]) -> Expr:
        """Returns a new register of ``type``, not yet written; its class names it: ``%r`` ``%rd`` ``%f`` ``%p`` …"""
        prefix, _ = register_class(type)
        number = self.registers.get(prefix, 0)
        self.registers[prefix] = number + 1
        register = Expr(type, f"%{prefix}{number}", self.scope, self)
        self.new_registers.append(register)
        return register

    def label(self, base: str) -> str:
        """Returns a label name that is unique in the kernel: ``base_0``, ``base_1`` …; `place` puts it down."""
        number = self._labels.get(base, 0)
        self._labels[base] = number + 1
        return f"{base}_{number}"

    def place(self, label: str) -> None:
        """Append ``label:``."""
        self.items.append(nodes.Label(label))

    # Shared memory.

    def allocate(self, nbytes: int, align: int, name: str) -> int:
        """Allocate dynamic shared memory for ``name`` and return its byte offset.

        ``align`` is a power of two up to 1024. Raises KernelError beyond the target's limit.
        """
        if not 1 <= align <= 1024 or align & (align - 1):
            raise misuse(f"given align={align}; expected a power of two from 1 to 1024")
        if nbytes <= 0:
            raise misuse(f"given {nbytes} bytes of shared memory for {name}; expected at least 1")
        offset = -(-self.smem_bytes // align) * align
        self.smem_bytes = offset + nbytes
        limit = ARCHS[self.arch].smem_per_block
        if self.smem_bytes > limit:
            raise misuse(
                f"shared memory of kernel {self.name} grows to {self.smem_bytes} bytes with {name} "
                f"({nbytes} bytes); {self.arch} has {limit} for a CTA: use fewer stages or smaller tiles"
            )
        return offset

    def smem_at(self, offset: int) -> Expr:
        """Returns the shared-space address (u32) of byte ``offset`` of the kernel's dynamic shared memory."""
        return self.pure("mov.u32", u32, nodes.Symbol(SMEM, offset) if offset else SMEM)

    # Scopes.

    @contextmanager
    def inside(self, kind: str, name: str = "") -> Iterator[Scope]:
        """Open a scope: a register created in it may not be read after it ends."""
        scope = Scope(kind, name, where(), self.scope)
        self.scope = scope
        try:
            yield scope
        finally:
            scope.open = False
            self.scope = scope.parent or scope

    # From operands to nodes.

    def _sources(self, operands: Iterable[Operand]) -> tuple[nodes.Operand, ...]:
        return tuple([self.node(item) for item in operands])

    def node(self, operand: Operand) -> nodes.Operand:
        """Returns ``operand`` as an operand node. Raises KernelError if its register may not be read here."""
        if isinstance(operand, Expr):
            return _register(self.use(operand).reg)
        if isinstance(operand, _NODES):
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
        """Returns ``value`` as a register that is not negated.

        Raises KernelError if the value belongs to another kernel or its scope has ended.
        """
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

    def _check_opcode(self, opcode: str, arity: int) -> None:
        """Raise KernelError if the target does not have ``opcode`` with ``arity`` operands, and raise ``version`` to
        what ``opcode`` needs."""
        if self.pending_error is not None:
            raise self.pending_error
        match = isa.match(opcode, arity) or isa.match(opcode)
        if match is None:
            unknown = f"{opcode} is not an instruction of PTX ISA 9.1; check the spelling and order of its modifiers"
            raise misuse(f"given {opcode}; {isa.absence(opcode)}" if isa.absence(opcode) else unknown)
        if not isa.supports(match, self.arch):
            raise misuse(
                f"{match.form.name} needs {_target_list(match.spelling.targets)}; this kernel is traced for "
                f"{self.arch}: trace it for a target that has it, or write this step with instructions that "
                f"{self.arch} has"
            )
        self.version = max(self.version, match.spelling.since, key=_version_numbers)

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
        """Drop the items from index ``start`` on: a branch that is never taken."""
        del self.items[start:]
        self._line = None


@lru_cache(maxsize=1 << 14)
def _register(name: str) -> nodes.Reg:
    """Returns the operand of a register; kernels name theirs alike, and a new node costs ten times a look-up."""
    return nodes.Reg(name)


def _out_of_scope(value: Expr, here: Scope) -> str:
    """Returns the error for ``value`` read in scope ``here``."""
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


def _target_list(targets: tuple[str, ...]) -> str:
    """Returns target predicates as text: ``sm_100a, sm_100f or sm_103a``."""
    names: list[str] = []
    for target in targets:
        family = [name for name in FAMILIES.get(target, ()) if name in ARCHS]
        names += family or [f"{target[:-1]} or later" if target.endswith("+") else target]
    *most, last = dict.fromkeys(names)
    return f"{', '.join(most)} or {last}" if most else last


@cache
def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
