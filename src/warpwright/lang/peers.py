"""Parameters with the memory of every rank of a node: addresses, `Peers`, and tensor maps, `PeerMaps`.

A rank is one GPU of a node. The host fills the parameter with the buffers of all ranks; a kernel reaches each of them
by its address or its tensor map, over the link between the GPUs. ``x.rank`` is the rank that runs the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value
from warpwright.lang.foreign import missing
from warpwright.lang.pointer import Global
from warpwright.lang.trace import current
from warpwright.layout.peers import ADDRESS_BYTES, MAP_BYTES, RANKS
from warpwright.ptx import nodes
from warpwright.types import Scalar, u32, u64

__all__ = ["Peers", "RankBlock", "map_address"]

T = TypeVar("T")


class RankBlock:
    """A parameter block with a value of ``item`` bytes for every rank, then the rank and the number of ranks."""

    kind = ""

    def __init__(self, name: str, dtype: type[Scalar], item: int) -> None:
        self.name, self.dtype, self.item = name, dtype, item

    def __repr__(self) -> str:
        return f"{self.kind}[{self.dtype.name}] {self.name}"

    @property
    def rank(self) -> Expr:
        """The rank of the GPU that runs the kernel (u32)."""
        return self._load(u32, RANKS * self.item)

    @property
    def ranks(self) -> Expr:
        """The number of ranks (u32)."""
        return self._load(u32, RANKS * self.item + u32.nbytes)

    def _load(self, type: type[Scalar], offset: int) -> Expr:
        return current().pure(f"ld.param.{type.name}", type, nodes.Address(nodes.Reg(self.name), offset))

    def _check(self, rank: Value) -> None:
        """Raise KernelError for a rank that is no index of the block."""
        if isinstance(rank, Expr) and rank.type is u32:
            return
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < RANKS:
            raise misuse(f"given {self.name}[{rank!r}]; expected a rank: an int below {RANKS}, or a u32")

    def __iter__(self) -> NoReturn:
        raise misuse(f"{self!r} has no end and cannot be iterated; write `for r in loop({self.name}.ranks):`")

    if not TYPE_CHECKING:  # a type checker refuses these attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise missing(self, name)


class Peers(RankBlock, Generic[T]):
    """The buffer of every rank, as a parameter: ``x: Peers[bf16]``.

    ``x[r]`` is the pointer to the buffer of rank r, an int or a u32; ``x.rank`` is the rank of this GPU and ``x.ranks``
    the number of ranks. Threads of two GPUs synchronise by operations of scope ``sys``.
    """

    kind = "Peers"

    def __init__(self, name: str, dtype: type[Scalar]) -> None:
        super().__init__(name, dtype, ADDRESS_BYTES)

    def __getitem__(self, rank: Value) -> Global[T]:
        self._check(rank)
        if isinstance(rank, int):
            return Global(self.dtype, self._load(u64, rank * ADDRESS_BYTES))
        trace = current()
        place = trace.pure("mad.wide.u32", u64, rank, ADDRESS_BYTES, _block_address(self.name))
        base = trace.node(place)
        assert isinstance(base, nodes.Reg)
        return Global(self.dtype, trace.pure("ld.param.u64", u64, nodes.Address(base)))


def _block_address(name: str) -> Expr:
    """Returns the address of a parameter in the space of parameters (u64)."""
    return current().pure("mov.b64", u64, nodes.Reg(name))


def map_address(name: str, rank: Value) -> Expr:
    """Returns the generic address of the tensor map of a rank in the parameter ``name`` (u64)."""
    trace = current()
    base = trace.pure("cvta.param.u64", u64, _block_address(name))
    return trace.pure("mad.wide.u32", u64, rank, MAP_BYTES, base) if isinstance(rank, Expr) else base + rank * MAP_BYTES
