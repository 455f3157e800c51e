"""Kernel parameters: from the annotation of a positional parameter to its ``.param`` and the value a kernel reads.

PTX ISA 9.1 section 5.1.6.1 (kernel parameters), 5.4.2 (``.ptr``), 9.7.9.23 (tensor maps as parameters).
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value
from warpwright.lang.foreign import missing
from warpwright.lang.peers import Peers, RankBlock, map_address
from warpwright.lang.pointer import Global
from warpwright.lang.trace import Trace
from warpwright.layout.peers import MAP_BYTES, PEER_MAPS_BYTES, PEERS_BYTES
from warpwright.ptx import nodes
from warpwright.types import Scalar, pred, u64

__all__ = ["Box", "Map", "PeerMaps", "bind", "declare"]

T = TypeVar("T")


@dataclass(frozen=True)
class Box:
    """A box of a tensor map, by the index of its first element in array order (outermost coordinate first)."""

    map: Map[Any]
    index: tuple[Value, ...]

    @property
    def coordinates(self) -> tuple[Value, ...]:
        """The coordinates in TMA order, innermost first."""
        return self.index[::-1]


class Map(Generic[T]):
    """A tensor map (``CUtensorMap``, 128 bytes) as a parameter: ``a: tma.Map[bf16]``.

    ``a[row, col]`` is the box that starts there, ``a.address`` the generic address of the map (u64), and
    ``a.at(address)`` the same kind of map at another address, such as a copy that the kernel has changed.
    """

    def __init__(self, name: str, dtype: type[Scalar], address: Expr) -> None:
        self.name, self.dtype, self.address = name, dtype, address

    def __repr__(self) -> str:
        return f"Map[{self.dtype.name}] {self.name}"

    def at(self, address: Expr) -> Map[T]:
        """Returns a map of the same type whose 128 bytes are at generic ``address`` (u64)."""
        return Map(self.name, self.dtype, address)

    def __getitem__(self, index: Value | tuple[Value, ...]) -> Box:
        return Box(self, index if isinstance(index, tuple) else (index,))

    def __iter__(self) -> NoReturn:
        raise misuse(f"{self!r} has no end and cannot be iterated; write `for k in loop(n):` and map[row, k]")

    if not TYPE_CHECKING:  # a type checker refuses these attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise missing(self, name)


class PeerMaps(RankBlock, Generic[T]):
    """A tensor map over the buffer of every rank, as a parameter: ``y: tma.PeerMaps[bf16]``.

    ``y[r]`` is the tensor map of rank r, an int or a u32, so ``y[r][row, col]`` is a box of its buffer; ``y.rank`` is
    the rank of this GPU and ``y.ranks`` the number of ranks. All maps have one box and one swizzle.
    """

    kind = "PeerMaps"

    def __init__(self, name: str, dtype: type[Scalar]) -> None:
        super().__init__(name, dtype, MAP_BYTES)

    def __getitem__(self, rank: Value) -> Map[T]:
        self._check(rank)
        return Map(self.name, self.dtype, map_address(self.name, rank))


def declare(name: str, annotation: Any) -> nodes.Variable:
    """Returns the ``.param`` for parameter ``name``. Raises KernelError if no parameter can have ``annotation``."""
    origin = typing.get_origin(annotation)
    if origin is PeerMaps:
        return nodes.Variable("param", "b8", name, dims=(PEER_MAPS_BYTES,), align=64)
    if origin is Peers:
        return nodes.Variable("param", "b8", name, dims=(PEERS_BYTES,), align=8)
    if origin is Map:
        return nodes.Variable("param", "b8", name, dims=(128,), align=64)
    if origin is Global:
        return nodes.Variable("param", "u64", name, attributes=".ptr .global .align 16")
    if (
        isinstance(annotation, type)
        and issubclass(annotation, Scalar)
        and annotation is not pred
        and annotation.bits < 128
    ):
        suffix = annotation.name if annotation.kind != "float" or annotation.bits >= 32 else f"b{annotation.bits}"
        bits = {"tf32": "b32", "f16x2": "b32", "bf16x2": "b32", "f32x2": "b64"}
        return nodes.Variable("param", bits.get(suffix, suffix), name)
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
    raise misuse(
        f"given parameter {name}: {text}; expected a scalar type (u32, f32, …), Global[T] "
        "for an array, tma.Map[T] for a tensor map, or Peers[T] or tma.PeerMaps[T] for those of all ranks"
    )


def bind(trace: Trace, name: str, annotation: Any) -> Any:
    """Returns the value of parameter ``name`` in the traced kernel: an `Expr`, a `Pointer`, a `Map`, or those of all
    ranks."""
    origin = typing.get_origin(annotation)
    if origin in (Peers, PeerMaps):
        block: Peers[Any] | PeerMaps[Any] = origin(name, typing.get_args(annotation)[0])
        return block
    if origin is Map:
        address = _emit_prologue(trace, "cvta.param.u64", u64, _emit_prologue(trace, "mov.b64", u64, name))
        return Map(name, typing.get_args(annotation)[0], address)
    pointer = origin is Global
    place = nodes.Address(nodes.Reg(name))
    register = _emit_prologue(
        trace, f"ld.param.{declare(name, annotation).type}", u64 if pointer else annotation, place
    )
    return Global(typing.get_args(annotation)[0], register) if pointer else register


def _emit_prologue(trace: Trace, opcode: str, type: type[Scalar], source: Any) -> Expr:
    """Emit an instruction without a line of the user; the module drops it if nothing reads its result."""
    register = trace.fresh(type)
    trace.pure_registers.add(register.reg)
    trace.items.append(nodes.Instruction(opcode, (nodes.Reg(register.reg), trace.node(source))))
    return register
