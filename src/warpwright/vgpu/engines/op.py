"""The interface between a cluster and the engines."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import WarpwrightError
from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.program.operation import Op
from warpwright.vgpu.program.program import Inst

__all__ = ["BoundMap", "Fabric", "Op"]


@dataclass(frozen=True, slots=True)
class BoundMap:
    """A tensor map and the device memory from its base ``address`` on, to the end of the allocation: ``data``, empty if
    the base is outside all allocations, at ``host``. The map may describe more, and memory before its base."""

    map: TensorMap
    address: int
    data: NDArray[np.uint8]
    host: int


class Fabric(Protocol):
    """The parts of a cluster that engines access.

    shared : uint8 array of shape (ranks, bytes): every CTA's shared memory, index = offset of a shared address
    shared_host : host address of ``shared``; ``shared_stride`` bytes from one CTA to the next
    shared_limit : one past the last legal offset; the first is RESERVED_SHARED
    hardware : whether sums are rounded as tensor cores do
    computes : whether engines move data and multiply; otherwise engines only signal, for timing
    tmem : int32 array of shape (ranks, 512 columns, 128 lanes)
    global_lock : the lock of reductions to global memory
    tells_updates : whether a listener asks for updates of mbarriers
    """

    shared: NDArray[np.uint8]
    shared_host: int
    shared_stride: int
    shared_limit: int
    ranks: int
    hardware: bool
    computes: bool
    tmem: NDArray[np.int32]
    global_lock: Lock
    tells_updates: bool

    def tmem_allocated(self, rank: int) -> int:
        """Allocation bits: bit i is set if columns 32 i to 32 i + 31 of the CTA are allocated."""

    def arrive(self, op: Op, rank: int, offset: int) -> None:
        """Arrive once on an mbarrier; raises ProtocolError if there is no mbarrier."""

    def complete_tx(self, op: Op, rank: int, offset: int, nbytes: int) -> None:
        """Complete bytes of an mbarrier's transaction count; raises ProtocolError if there is no mbarrier."""

    def refuse_update(
        self, inst: Inst, record: NDArray[np.uint64], barrier: int, *, count: int = 0, nbytes: int = 0
    ) -> None:
        """Raise the ProtocolError for a record whose update the mbarrier at a host address refuses."""

    def tell_updates(
        self,
        insts: NDArray[np.int64],
        numbers: NDArray[np.int64],
        ctas: NDArray[np.int64],
        barriers: NDArray[np.int64],
        count: int,
        nbytes: int,
    ) -> None:
        """Report to a listener that operations of some CTAs updated the mbarriers at these host addresses."""

    def note_maps(self, numbers: NDArray[np.int64], address: int) -> None:
        """Note for checks that operations used the tensor map at an address."""

    def tensor_map(self, op: Op, address: int) -> BoundMap:
        """The tensor map at a generic address; raises ProtocolError if there is none."""

    def global_memory(self, op: Op, address: int, nbytes: int) -> NDArray[np.uint8]:
        """A view of global memory at a virtual address; raises MemoryFault outside allocations."""

    def take_over(self) -> tuple[int, int, int] | None:
        """Cancel the start of a cluster of the grid, whose work this cluster takes over; returns its first CTA's
        coordinates."""

    def failure(self, kind: type[WarpwrightError], op: Op, message: str) -> WarpwrightError:
        """An error that names the instruction, kernel, CTA, warp and lane of ``op`` before ``message``."""
