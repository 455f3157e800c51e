"""What engines may touch of a cluster (`engines.op.Fabric`): mbarriers, tensor maps, global memory, other clusters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import MemoryFault, ProtocolError, UsageError, WarpwrightError
from warpwright.vgpu.engines.op import BoundMap, Op
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import FAULTS, RESERVED_SHARED
from warpwright.vgpu.machine import faults
from warpwright.vgpu.machine.events import Numbers
from warpwright.vgpu.machine.launch import Dim3
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.program.program import Inst

__all__ = ["ClusterFabric"]


class ClusterFabric(ClusterState):
    """A cluster as the engines see it; `engines.op.Fabric` says what each method does."""

    def tmem_allocated(self, rank: int) -> int:
        return int(self.tmem_masks[rank])

    def arrive(self, op: Op, rank: int, offset: int) -> None:
        self._update(op, rank, offset, 1, 0)
        self.tell_mbarrier("arrive", op, rank, offset, count=1)

    def complete_tx(self, op: Op, rank: int, offset: int, nbytes: int) -> None:
        self._update(op, rank, offset, 0, nbytes)
        self.tell_mbarrier("complete_tx", op, rank, offset, nbytes=nbytes)

    def refuse_update(
        self, inst: Inst, record: NDArray[np.uint64], barrier: int, *, count: int = 0, nbytes: int = 0
    ) -> None:
        rank, offset = divmod(barrier - self.shared_host, self.shared_stride)
        self._update(self.op_of(record.tolist(), self.issued), rank, offset, count, nbytes)

    def _update(self, op: Op, rank: int, offset: int, count: int, nbytes: int) -> None:
        if not (0 <= rank < self.ranks and RESERVED_SHARED <= offset <= self.shared_limit - 8 and offset % 8 == 0):
            where = f"CTA {rank}, offset {offset}"
            raise self.failure(
                ProtocolError, op, f"its mbarrier ({where}) is not 8 aligned bytes of the cluster's shared memory."
            )
        at = self.shared_host + rank * self.shared_stride + offset
        code = function("mbarrier_update")(at, count, 0, nbytes, 0)
        if code:
            raise self.failure(ProtocolError, op, faults.mbarrier(FAULTS[code], self, rank, offset))

    def take_over(self) -> Dim3 | None:
        pending = self.launch.pending
        found = pending.cancel(self.number) if pending else None
        return None if found is None else self.launch.first_cta(found)

    def tensor_map(self, op: Op, address: int) -> BoundMap:
        try:
            number = self.launch.maps.number_at(address)
        except UsageError as error:
            raise self.failure(ProtocolError, op, f"{error}.") from None
        if self.map_numbers is not None:  # checks ask again after the run, when the map may have changed
            number = self.map_numbers.setdefault(op.number, number)
        return self.launch.maps.bound[number]

    def note_maps(self, numbers: Numbers, address: int) -> None:
        if self.map_numbers is not None:
            self.map_numbers.update(dict.fromkeys(numbers.tolist(), self.launch.maps.number_at(address)))

    def global_memory(self, op: Op, address: int, nbytes: int) -> NDArray[np.uint8]:
        view = self.launch.memory.view(address)
        if view.size < nbytes:
            where = self.launch.memory.describe(address + nbytes if view.size else address)
            text = f"bytes 0x{address:x} to 0x{address + nbytes:x} are outside global memory: {where}."
            raise self.failure(MemoryFault, op, text)
        return view[:nbytes]

    def failure(self, kind: type[WarpwrightError], op: Op, message: str) -> WarpwrightError:
        return faults.error(kind, self, op.inst, op.rank * self.per_cta + op.warp, op.lane, message)
