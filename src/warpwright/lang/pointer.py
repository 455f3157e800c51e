"""Typed pointers, and the loads and stores through them: `ld`, `st`, and the shorthand ``x[i]``.

A `Pointer` counts in elements: ``x + i`` is the address of element i; ``ld(x + i)`` and ``x[i]`` load it,
``x[i] = v`` stores it. PTX ISA 9.1 sections 9.7.9.8 (ld) and 9.7.9.11 (st).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.foreign import missing
from warpwright.lang.trace import current
from warpwright.ptx import nodes
from warpwright.types import Scalar, u32, u64

__all__ = ["Global", "Pointer", "Shared", "check_pointer", "ld", "st"]

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
        """Returns the same address as a pointer that counts in elements of ``dtype``."""
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

    def __iter__(self) -> NoReturn:
        raise misuse(f"{self!r} has no end and cannot be iterated; write `for i in loop(n):` and x[i]")

    if not TYPE_CHECKING:  # a type checker refuses these attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise missing(self, name)


class Global(Pointer[T]):
    """A pointer to global memory; ``x: Global[f32]`` declares a parameter that takes an array."""

    space = "global"


class Shared(Pointer[T]):
    """A pointer to this CTA's shared memory."""

    space = "shared"


def _element(base: Expr, index: Expr, nbytes: int) -> Expr:
    """Returns ``base + index * nbytes`` in the address type of ``base``, in the fewest instructions."""
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
    """Returns the element at ``pointer``, or a tuple of ``vec`` neighbours (2 or 4, aligned to their total size).

    The limit is 16 bytes; on sm_100 and later 32 bytes (``vec=8`` of 32-bit elements) of global memory.

    ``sem``: weak, relaxed, acquire, volatile; ``scope`` with relaxed and acquire: cta, cluster, gpu, sys. ``cache``: a
    cache operator (ca, cg, cs, cv) or eviction hint (``L1::no_allocate``). ``nc``: through the read-only cache.

    Raises KernelError for modifiers that PTX does not allow together.
    Issued by each thread for itself.
    Completes by the first use of the result.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.8 (ld).
    """
    trace = current()
    check_pointer("ld", pointer)
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
    """Store one value at ``pointer``, or 2 or 4 neighbours (size and alignment as for ``ld``).

    ``sem``: weak, relaxed, release, volatile; ``scope`` and ``cache`` (wb, cg, cs, wt) as for ``ld``.

    Raises KernelError for values of another type than the pointer's.
    Issued by each thread for itself.
    Completes by the order of the memory model: other threads see it after a fence or barrier.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.11 (st).
    """
    trace = current()
    check_pointer("st", pointer)
    _check_vec(pointer, len(values))
    stored = tuple(trace.node(operand(value, pointer.dtype)) for value in values)
    opcode = _opcode("st", pointer, [sem, scope, pointer.space, cache], len(values))
    trace.emit(opcode, pointer.node, stored[0] if len(stored) == 1 else nodes.Vector(stored))


def check_pointer(name: str, pointer: Any) -> None:
    """Raise KernelError if the operation ``name`` did not get a `Pointer`."""
    if not isinstance(pointer, Pointer):
        raise misuse(
            f"given {pointer!r} to {name}; expected a pointer: a Global[T] parameter, smem.array(…), or one of them + i"
        )
