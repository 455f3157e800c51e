"""Arguments of a node: a value for every rank, and the parameter blocks with the memory of all ranks.

A rank is a GPU of a node, or a process that has one. A parameter ``Peers[T]`` has the addresses of a buffer on every
rank, a parameter ``tma.PeerMaps[T]`` a tensor map over the buffer of every rank. Both have room for `RANKS` ranks; then
come the rank of the GPU that reads the parameter, and the number of ranks, u32 each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import memory_of
from warpwright.errors import UsageError, kind_of
from warpwright.layout.tensor_map import TensorMap
from warpwright.targets import MAX_GPUS

__all__ = [
    "ADDRESS_BYTES", "MAP_BYTES", "PEERS_BYTES", "PEER_MAPS_BYTES", "RANKS", "PerRank", "each_value", "has_all_ranks",
    "pack_peers",
]  # fmt: skip

RANKS = MAX_GPUS
ADDRESS_BYTES, MAP_BYTES = 8, 128
_NUMBERS = struct.Struct("<II")  # rank, number of ranks
PEERS_BYTES = RANKS * ADDRESS_BYTES + _NUMBERS.size
PEER_MAPS_BYTES = RANKS * MAP_BYTES + 64  # a multiple of the alignment of a tensor map


@dataclass(frozen=True, slots=True, eq=False)
class PerRank:
    """An argument with a value for every rank of a node: ``ww.PerRank([x0, x1])``.

    A parameter of one array, tensor map or number gets the value of its own rank. A parameter ``Peers`` or
    ``tma.PeerMaps`` gets the arrays of all ranks. A virtual node runs all ranks of a launch. A real GPU runs one of
    them, ``rank``; there ``values`` are the arrays of all ranks as that GPU addresses them, such as the buffers of
    PyTorch's symmetric memory. Raises UsageError for values that are no list, and for a rank that is none of them.
    """

    values: Sequence[Any]
    rank: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.values, list | tuple):
            raise UsageError(f"given PerRank({kind_of(self.values)}); expected a list with a value for every rank")
        if self.rank is not None and self.rank not in range(len(self.values)):
            raise UsageError(
                f"given PerRank(…, rank={self.rank!r}) of {len(self.values)} values; expected a rank below "
                f"{len(self.values)}"
            )
        object.__setattr__(self, "values", tuple(memory_of(value) for value in self.values))

    def __repr__(self) -> str:
        return f"PerRank({len(self.values)} values)"


def each_value(args: Iterable[Any]) -> Iterator[Any]:
    """Yields the arguments, of one with a value for every rank each value."""
    for value in args:
        yield from value.values if isinstance(value, PerRank) else (value,)


def has_all_ranks(nbytes: int, value: PerRank) -> bool:
    """Returns whether a parameter of so many bytes takes the arrays of all ranks."""
    arrays = all(isinstance(each, np.ndarray | DeviceArray | TensorMap) for each in value.values)
    return arrays and nbytes in (PEERS_BYTES, PEER_MAPS_BYTES)


def pack_peers(parts: Sequence[bytes], rank: int) -> bytes:
    """Returns the block of a parameter: the addresses or tensor maps of all ranks, for the GPU of one ``rank``."""
    size = len(parts[0])
    block = b"".join(parts).ljust(RANKS * size, b"\0") + _NUMBERS.pack(rank, len(parts))
    return block.ljust(PEERS_BYTES if size == ADDRESS_BYTES else PEER_MAPS_BYTES, b"\0")
