"""Shared-memory addresses of a cluster: decoding and checks for every engine."""

from __future__ import annotations

from collections.abc import Iterator

from warpwright.errors import MemoryFault, ProtocolError
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.program.memory_map import RANK_SHIFT, RESERVED_SHARED, SHARED_WINDOW

__all__ = ["barrier", "check_inside", "ctas_of", "locate"]

_OFFSET = (1 << RANK_SHIFT) - 1
MBARRIER_BYTES = 8


def locate(fabric: Fabric, op: Op, word: int, what: str) -> tuple[int, int]:
    """CTA and offset of a shared or generic address. Raises MemoryFault if the cluster lacks the CTA."""
    address = word - SHARED_WINDOW if word >= SHARED_WINDOW else word
    rank = address >> RANK_SHIFT
    if rank >= fabric.ranks:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the {what} 0x{word:x} is no shared-memory address of this cluster; expected CTA 0 to {fabric.ranks - 1} "
            f"in the bits from {RANK_SHIFT} on; convert generic addresses with cvta.to.shared and map them with mapa",
        )
    return rank, address & _OFFSET


def check_inside(fabric: Fabric, op: Op, what: str, rank: int, first: int, nbytes: int) -> None:
    """Raises MemoryFault unless the bytes are inside the CTA's shared memory."""
    if first < RESERVED_SHARED or first + nbytes > fabric.shared_limit:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the {what} takes bytes {first} to {first + nbytes - 1} of the shared memory of CTA {rank}; expected them "
            f"within {RESERVED_SHARED} to {fabric.shared_limit - 1}; mend the address or launch with "
            "more shared memory",
        )


def barrier(fabric: Fabric, op: Op, word: int) -> tuple[int, int]:
    """CTA and offset of an mbarrier operand; raises MemoryFault outside shared memory or off a multiple of 8 bytes."""
    rank, offset = locate(fabric, op, word, "mbarrier")
    check_inside(fabric, op, "mbarrier", rank, offset, MBARRIER_BYTES)
    if offset % MBARRIER_BYTES:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the mbarrier is at offset {offset}; expected a multiple of {MBARRIER_BYTES}; align the mbarrier",
        )
    return rank, offset


def ctas_of(fabric: Fabric, op: Op, mask: int) -> Iterator[int]:
    """The CTAs of a 16-bit multicast mask; raises ProtocolError for a CTA that the cluster lacks."""
    mask &= 0xFFFF
    if mask >> fabric.ranks:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the multicast mask 0x{mask:x} names CTA {mask.bit_length() - 1}; expected CTA 0 to {fabric.ranks - 1}; "
            "clear the bits above the size of the cluster",
        )
    return (rank for rank in range(fabric.ranks) if mask >> rank & 1)
