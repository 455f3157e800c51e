"""Atomic operations: `atom` returns the old value, `red` does not (PTX ISA 9.1 sections 9.7.13.5 and 9.7.13.6)."""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.pointer import Pointer, check_pointer
from warpwright.lang.trace import current
from warpwright.ptx import nodes
from warpwright.types import Scalar, f32

__all__ = ["atom", "red"]

_BITWISE = ("and", "or", "xor", "exch", "cas")


def _atomic_type(op: str, dtype: type[Scalar]) -> str:
    """Returns the type suffix of ``op``: bits for bitwise operations, ``u64`` for an addition of ``s64``."""
    if op in _BITWISE:
        return f"b{dtype.bits}"
    if op == "add" and dtype.name == "s64":
        return "u64"
    return f"noftz.{dtype.name}" if dtype.kind == "float" and dtype.bits == 16 else dtype.name


def _operands(
    name: str, op: str, pointer: Pointer[Any], sem: str, scope: str, values: tuple[Value, ...]
) -> tuple[Any, ...]:
    """Returns opcode and operands of one atomic operation."""
    check_pointer(f"{name}.{op}", pointer)
    words = [name, sem, scope, pointer.space, op, _atomic_type(op, pointer.dtype)]
    return (
        ".".join(word for word in words if word),
        pointer.node,
        *(operand(value, pointer.dtype) for value in values),
    )


def _atom(op: str, pointer: Pointer[Any], sem: str, scope: str, *values: Value) -> Expr:
    opcode, *operands = _operands("atom", op, pointer, sem, scope, values)
    return current().result(opcode, pointer.dtype, *operands)


def _red(op: str, pointer: Pointer[Any], sem: str, scope: str, *values: Value) -> None:
    opcode, *operands = _operands("red", op, pointer, sem, scope, values)
    current().emit(opcode, *operands)


def _red_vector(pointer: Pointer[Any], sem: str, scope: str, values: tuple[Value, ...]) -> None:
    """Add neighbouring floats by one instruction."""
    if pointer.dtype is not f32 or pointer.space != "global" or len(values) not in (2, 4):
        raise misuse(
            f"given {len(values)} values of {pointer.dtype.name} in {pointer.space} memory to red.add; expected one "
            "value, or 2 or 4 of f32 in global memory"
        )
    trace = current()
    words = ["red", sem, scope, "global", "add", f"v{len(values)}", "f32"]
    vector = tuple(trace.node(operand(value, f32)) for value in values)
    trace.emit(".".join(word for word in words if word), pointer.node, nodes.Vector(vector))


class _Atom:
    """``atom``: atomic operations that return the old value.

    ``sem``: relaxed (PTX's default), acquire, release, acq_rel; ``scope``: cta, cluster, gpu (default), sys.
    """

    __slots__ = ()
    namespace = "atom"

    def add(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Add ``value``: u32, s32, u64, s64, f32, f64, f16, bf16.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.add).
        """
        return _atom("add", pointer, sem, scope, value)

    def min(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store the minimum: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.min).
        """
        return _atom("min", pointer, sem, scope, value)

    def max(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store the maximum: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.max).
        """
        return _atom("max", pointer, sem, scope, value)

    def and_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store the bitwise and with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.and).
        """
        return _atom("and", pointer, sem, scope, value)

    def or_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store the bitwise or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.or).
        """
        return _atom("or", pointer, sem, scope, value)

    def xor(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store the bitwise exclusive or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.xor).
        """
        return _atom("xor", pointer, sem, scope, value)

    def exch(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.exch).
        """
        return _atom("exch", pointer, sem, scope, value)

    def cas(self, pointer: Pointer[Any], expected: Value, value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Store ``value`` if memory has ``expected``: 16, 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.cas).
        """
        return _atom("cas", pointer, sem, scope, expected, value)

    def inc(self, pointer: Pointer[Any], limit: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Increment, from ``limit`` to 0: u32.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.inc).
        """
        return _atom("inc", pointer, sem, scope, limit)

    def dec(self, pointer: Pointer[Any], limit: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Decrement, from 0 or above ``limit`` to ``limit``: u32.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.dec).
        """
        return _atom("dec", pointer, sem, scope, limit)


class _Red:
    """``red``: atomic operations without the old value. ``sem``: relaxed (default) or release."""

    __slots__ = ()
    namespace = "red"

    def add(self, pointer: Pointer[Any], *values: Value, sem: str = "", scope: str = "") -> None:
        """Add a value: u32, s32, u64, s64, f32, f64, f16, bf16; or 2 or 4 of f32 to neighbours in global memory.

        Neighbours are aligned to their total size; each sum is an atomic operation of its own.

        Raises KernelError for several values of another type or in shared memory.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all; several values sm_90 and later.
        PTX ISA 9.1 section 9.7.13.6 (red.add).
        """
        if len(values) == 1:
            _red("add", pointer, sem, scope, *values)
        else:
            _red_vector(pointer, sem, scope, values)

    def min(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Store the minimum: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.min).
        """
        _red("min", pointer, sem, scope, value)

    def max(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Store the maximum: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.max).
        """
        _red("max", pointer, sem, scope, value)

    def and_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Store the bitwise and with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.and).
        """
        _red("and", pointer, sem, scope, value)

    def or_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Store the bitwise or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.or).
        """
        _red("or", pointer, sem, scope, value)

    def xor(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Store the bitwise exclusive or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.xor).
        """
        _red("xor", pointer, sem, scope, value)


atom = _Atom()
red = _Red()
