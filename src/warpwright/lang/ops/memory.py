"""Generic loads, stores and atomics on typed pointers: `ld`, `st`, `atom`, `red`, and the shorthand ``x[i]``.

A `Pointer` counts in elements: ``x + i`` is the address of element i, ``ld(x + i)`` reads it, ``x[i]`` is the same,
``x[i] = v`` stores. PTX ISA 9.1 sections 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from warpwright.lang.context import current, misuse
from warpwright.lang.expr import Expr, Value, is_number, operand
from warpwright.ptx import nodes
from warpwright.types import Scalar, u32, u64

__all__ = ["Global", "Pointer", "Shared", "atom", "ld", "red", "st"]

T = TypeVar("T")
_NUMBERED = frozenset({"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64", "b8", "b16", "b32", "b64", "b128"})


class Pointer(Generic[T]):
    """The address of an element of type ``dtype``: register ``base`` plus ``offset`` bytes, in state space ``space``.

    Spaces: ``global`` (u64 addresses), ``shared`` and ``shared::cluster`` (u32), "" for generic (u64).
    """

    space = ""

    def __init__(self, dtype: type[Scalar], base: Expr, offset: int = 0, space: str | None = None) -> None:
        self.dtype, self.base, self.offset = dtype, base, offset
        self.space = type(self).space if space is None else space
        expected = u32 if self.space.startswith("shared") else u64
        if base.type is not expected:
            raise misuse(f"given {base} as an address in {self.space or 'generic'} space; expected {expected.name}")

    def __repr__(self) -> str:
        return f"Pointer[{self.dtype.name}] in {self.space or 'generic'} memory at {self.base}+{self.offset}"

    def __add__(self, index: Value) -> Pointer[T]:
        if isinstance(index, int) and not isinstance(index, bool):
            return self._at(self.base, self.offset + index * self.dtype.nbytes)
        if not isinstance(index, Expr) or index.type.kind not in ("unsigned", "signed"):
            raise misuse(f"given index {index!r}; expected an int or a run-time integer such as u32")
        return self._at(_element(self.base, index, self.dtype.nbytes), self.offset)

    __radd__ = __add__

    def __sub__(self, index: int) -> Pointer[T]:
        if not isinstance(index, int):
            raise misuse(f"given {self!r} - {index!r}; expected an int: write x + (-i) with a signed i")
        return self + -index

    def _at(self, base: Expr, offset: int, dtype: type[Scalar] | None = None) -> Pointer[T]:
        return Pointer(dtype or self.dtype, base, offset, self.space)

    def cast(self, dtype: type[Scalar]) -> Pointer[Any]:
        """The same address, counting in elements of ``dtype``."""
        return self._at(self.base, self.offset, dtype)

    @property
    def address(self) -> Expr:
        """The address in one register: u32 in shared memory, u64 elsewhere."""
        return self.base + self.offset

    @property
    def node(self) -> nodes.Address:
        """The address operand ``[base+offset]``."""
        base = current().node(self.base)
        assert isinstance(base, nodes.Reg)
        return nodes.Address(base, self.offset)

    def __getitem__(self, index: Value) -> Expr:
        value = ld(self + index)
        assert isinstance(value, Expr)
        return value

    def __setitem__(self, index: Value, value: Value) -> None:
        st(self + index, value)


class Global(Pointer[T]):
    """A pointer to global memory; ``x: Global[f32]`` declares a parameter that takes an array."""

    space = "global"


class Shared(Pointer[T]):
    """A pointer to this CTA's shared memory."""

    space = "shared"


def _element(base: Expr, index: Expr, nbytes: int) -> Expr:
    """``base + index * nbytes`` in the address type of ``base``, in as few instructions as PTX has."""
    trace = current()
    if index.type.bits < base.type.bits:
        sign = "s" if index.type.kind == "signed" else "u"
        if index.type.bits != 32:
            return _element(base, index.to(u32 if sign == "u" else base.type), nbytes)
        return trace.pure(f"mad.wide.{sign}32", u64, index, nbytes, base)
    if index.type.bits > base.type.bits:
        return _element(base, index.to(u32), nbytes)
    return index.bitcast(base.type) * nbytes + base


def _memory_type(dtype: type[Scalar]) -> str:
    return dtype.name if dtype.name in _NUMBERED else f"b{dtype.bits}"


def _opcode(name: str, pointer: Pointer[Any], words: list[str], vec: int = 1) -> str:
    tail = [f"v{vec}" if vec > 1 else "", _memory_type(pointer.dtype)]
    return ".".join(word for word in [name, *words, *tail] if word)


def _check_vec(pointer: Pointer[Any], vec: int) -> None:
    if vec not in (1, 2, 4, 8) or vec * pointer.dtype.nbytes > 32:
        raise misuse(
            f"given vec={vec} of {pointer.dtype.name}; expected 1, 2 or 4 elements and at most 16 bytes: "
            "use x.cast(b32) for more elements in one access"
        )


def ld(pointer: Pointer[Any], *, vec: int = 1, sem: str = "", scope: str = "", cache: str = "", nc: bool = False) -> Any:
    """The element at ``pointer``, or a tuple of ``vec`` neighbours (2 or 4; at most 16 bytes, aligned to their size).

    ``sem``: weak, relaxed, acquire, volatile; ``scope`` with relaxed and acquire: cta, cluster, gpu, sys. ``cache``: a
    cache operator (ca, cg, cs, cv) or eviction hint (``L1::no_allocate``). ``nc``: through the read-only cache.

    Raises KernelError for modifiers that PTX does not combine.
    Issued by each thread for itself.
    Completes by the first use of the result.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.8.
    """
    trace = current()
    _expect_pointer("ld", pointer)
    _check_vec(pointer, vec)
    words = [sem, scope, pointer.space, "nc" if nc else "", cache]
    opcode = _opcode("ld", pointer, words, vec)
    if vec == 1:
        return trace.result(opcode, pointer.dtype, pointer.node)
    values = tuple(trace.fresh(pointer.dtype) for _ in range(vec))
    trace.emit(opcode, values, pointer.node)
    return values


def st(pointer: Pointer[Any], *values: Value, sem: str = "", scope: str = "", cache: str = "") -> None:
    """Store one value at ``pointer``, or 2 or 4 neighbours (at most 16 bytes, aligned to their size).

    ``sem``: weak, relaxed, release, volatile; ``scope`` and ``cache`` (wb, cg, cs, wt) as for ``ld``.

    Raises KernelError for values of another type than the pointer's.
    Issued by each thread for itself.
    Completes by the order of the memory model: visible to others after a fence or barrier.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.11.
    """
    trace = current()
    _expect_pointer("st", pointer)
    _check_vec(pointer, len(values))
    stored = tuple(trace.node(operand(value, pointer.dtype)) for value in values)
    opcode = _opcode("st", pointer, [sem, scope, pointer.space, cache], len(values))
    trace.emit(opcode, pointer.node, stored[0] if len(stored) == 1 else nodes.Vector(stored))


def _expect_pointer(name: str, pointer: Any) -> None:
    if not isinstance(pointer, Pointer):
        raise misuse(
            f"given {pointer!r} to {name}; expected a pointer: a Global[T] parameter, smem.array(…), or one of them + i"
        )


_BITWISE = ("and", "or", "xor", "exch", "cas")


def _atomic_type(op: str, dtype: type[Scalar]) -> str:
    """The type that atom and red spell: bits for bitwise operations; ``s64`` adds as ``u64``."""
    if op in _BITWISE:
        return f"b{dtype.bits}"
    if op == "add" and dtype.name == "s64":
        return "u64"
    return f"noftz.{dtype.name}" if dtype.kind == "float" and dtype.bits == 16 else dtype.name


class _Atomics:
    """One family of atomic operations: ``atom`` returns the old value, ``red`` returns nothing."""

    def __init__(self, name: str, returns: bool) -> None:
        self.name, self.returns = name, returns

    def _emit(self, op: str, pointer: Pointer[Any], values: tuple[Value, ...], sem: str, scope: str) -> Any:
        trace = current()
        _expect_pointer(f"{self.name}.{op}", pointer)
        words = [self.name, sem, scope, pointer.space, op, _atomic_type(op, pointer.dtype)]
        opcode = ".".join(word for word in words if word)
        operands = (pointer.node, *(operand(value, pointer.dtype) for value in values))
        if self.returns:
            return trace.result(opcode, pointer.dtype, *operands)
        return trace.emit(opcode, *operands)

    def add(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Add ``value``: u32, s32, u64, s64, f32, f64, f16, bf16."""
        return self._emit("add", pointer, (value,), sem, scope)

    def min(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Keep the smaller one: u32, s32, u64, s64."""
        return self._emit("min", pointer, (value,), sem, scope)

    def max(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Keep the larger one: u32, s32, u64, s64."""
        return self._emit("max", pointer, (value,), sem, scope)

    def and_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Bitwise and with ``value``: 32 or 64 bits."""
        return self._emit("and", pointer, (value,), sem, scope)

    def or_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Bitwise or with ``value``: 32 or 64 bits."""
        return self._emit("or", pointer, (value,), sem, scope)

    def xor(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Bitwise exclusive or with ``value``: 32 or 64 bits."""
        return self._emit("xor", pointer, (value,), sem, scope)


class _Atom(_Atomics):
    def exch(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Replace the value by ``value``: 32 or 64 bits."""
        return self._emit("exch", pointer, (value,), sem, scope)

    def cas(self, pointer: Pointer[Any], expected: Value, value: Value, *, sem: str = "", scope: str = "") -> Any:
        """Replace the value by ``value`` if it is ``expected``: 16, 32 or 64 bits."""
        return self._emit("cas", pointer, (expected, value), sem, scope)

    def inc(self, pointer: Pointer[Any], limit: Value, *, sem: str = "", scope: str = "") -> Any:
        """Count up, from ``limit`` back to 0: u32."""
        return self._emit("inc", pointer, (limit,), sem, scope)

    def dec(self, pointer: Pointer[Any], limit: Value, *, sem: str = "", scope: str = "") -> Any:
        """Count down, from 0 or above ``limit`` to ``limit``: u32."""
        return self._emit("dec", pointer, (limit,), sem, scope)


atom = _Atom("atom", returns=True)
red = _Atomics("red", returns=False)
