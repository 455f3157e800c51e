"""Generic loads, stores and atomics on typed pointers: `ld`, `st`, `atom`, `red`, and the shorthand ``x[i]``.

A `Pointer` counts in elements: ``x + i`` is the address of element i, ``ld(x + i)`` reads it, ``x[i]`` is the same,
``x[i] = v`` stores. PTX ISA 9.1 sections 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from warpwright.lang.context import current, misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.ptx import nodes
from warpwright.types import Scalar, u32, u64

__all__ = ["Global", "Pointer", "Shared", "atom", "ld", "red", "st"]

T = TypeVar("T")
_NUMBERED = frozenset(
    {"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64", "b8", "b16", "b32", "b64", "b128"}
)


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
            f"given vec={vec} of {pointer.dtype.name}; expected 1, 2, 4 or 8 elements and at most 32 bytes: "
            "x.cast(b32) moves narrow elements in wider ones"
        )


def ld(
    pointer: Pointer[Any], *, vec: int = 1, sem: str = "", scope: str = "", cache: str = "", nc: bool = False
) -> Any:
    """The element at ``pointer``, or a tuple of ``vec`` neighbours (2 or 4, aligned to their size).

    At most 16 bytes, on sm_100 and later 32 bytes (``vec=8`` of 32-bit elements) of global memory.

    ``sem``: weak, relaxed, acquire, volatile; ``scope`` with relaxed and acquire: cta, cluster, gpu, sys. ``cache``: a
    cache operator (ca, cg, cs, cv) or eviction hint (``L1::no_allocate``). ``nc``: through the read-only cache.

    Raises KernelError for modifiers that PTX does not combine.
    Issued by each thread for itself.
    Completes by the first use of the result.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.8 (ld).
    """
    trace = current()
    _expect_pointer("ld", pointer)
    _check_vec(pointer, vec)
    readonly = "nc" if nc else ""
    words = [sem, scope, pointer.space, *((readonly, cache) if cache.startswith("L") else (cache, readonly))]
    opcode = _opcode("ld", pointer, words, vec)
    if vec == 1:
        return trace.result(opcode, pointer.dtype, pointer.node)
    values = tuple(trace.fresh(pointer.dtype) for _ in range(vec))
    trace.emit(opcode, values, pointer.node)
    return values


def st(pointer: Pointer[Any], *values: Value, sem: str = "", scope: str = "", cache: str = "") -> None:
    """Store one value at ``pointer``, or 2 or 4 neighbours (bytes and alignment as for ``ld``).

    ``sem``: weak, relaxed, release, volatile; ``scope`` and ``cache`` (wb, cg, cs, wt) as for ``ld``.

    Raises KernelError for values of another type than the pointer's.
    Issued by each thread for itself.
    Completes by the order of the memory model: visible to others after a fence or barrier.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.11 (st).
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


def _operands(
    name: str, op: str, pointer: Pointer[Any], sem: str, scope: str, values: tuple[Value, ...]
) -> tuple[Any, ...]:
    """Opcode and operands of one atomic operation."""
    _expect_pointer(f"{name}.{op}", pointer)
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


class _Atom:
    """``atom``: change memory in one step and return the old value.

    ``sem``: relaxed (PTX's default), acquire, release, acq_rel; ``scope``: cta, cluster, gpu (default), sys.
    """

    __slots__ = ()
    called = "atom"

    def add(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Add ``value``: u32, s32, u64, s64, f32, f64, f16, bf16.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.add).
        """
        return _atom("add", pointer, sem, scope, value)

    def min(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Keep the smaller value: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.min).
        """
        return _atom("min", pointer, sem, scope, value)

    def max(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Keep the larger value: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.max).
        """
        return _atom("max", pointer, sem, scope, value)

    def and_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Bitwise and with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.and).
        """
        return _atom("and", pointer, sem, scope, value)

    def or_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Bitwise or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.or).
        """
        return _atom("or", pointer, sem, scope, value)

    def xor(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Bitwise exclusive or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.xor).
        """
        return _atom("xor", pointer, sem, scope, value)

    def exch(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Replace by ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.exch).
        """
        return _atom("exch", pointer, sem, scope, value)

    def cas(self, pointer: Pointer[Any], expected: Value, value: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Replace by ``value`` if it is ``expected``: 16, 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.cas).
        """
        return _atom("cas", pointer, sem, scope, expected, value)

    def inc(self, pointer: Pointer[Any], limit: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Count up, from ``limit`` back to 0: u32.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.inc).
        """
        return _atom("inc", pointer, sem, scope, limit)

    def dec(self, pointer: Pointer[Any], limit: Value, *, sem: str = "", scope: str = "") -> Expr:
        """Count down, from 0 or above ``limit`` to ``limit``: u32.

        Issued by each thread for itself.
        Completes by the first use of the old value.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.5 (atom.dec).
        """
        return _atom("dec", pointer, sem, scope, limit)


class _Red:
    """``red``: like ``atom``, without the old value. ``sem``: relaxed (default) or release."""

    __slots__ = ()
    called = "red"

    def add(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Add ``value``: u32, s32, u64, s64, f32, f64, f16, bf16.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.add).
        """
        _red("add", pointer, sem, scope, value)

    def min(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Keep the smaller value: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.min).
        """
        _red("min", pointer, sem, scope, value)

    def max(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Keep the larger value: u32, s32, u64, s64.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.max).
        """
        _red("max", pointer, sem, scope, value)

    def and_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Bitwise and with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.and).
        """
        _red("and", pointer, sem, scope, value)

    def or_(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Bitwise or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.or).
        """
        _red("or", pointer, sem, scope, value)

    def xor(self, pointer: Pointer[Any], value: Value, *, sem: str = "", scope: str = "") -> None:
        """Bitwise exclusive or with ``value``: 32 or 64 bits.

        Issued by each thread for itself.
        Completes by the order of the memory model.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.6 (red.xor).
        """
        _red("xor", pointer, sem, scope, value)


atom = _Atom()
red = _Red()
