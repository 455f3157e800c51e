"""Operations in flight as raw records: what a ring repeats, round after round, is understood once.

The tensor work of a round and the addresses of its loads are the same words again each time the ring has gone round.
So records stay records until they complete, and what was made of a round's words is kept under those words. Launches
with observers do without: they see every operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines import box_batch, copy, tensor
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.program.program import Inst

if TYPE_CHECKING:
    from warpwright.vgpu.machine.cluster import Cluster

__all__ = ["InFlight"]

_OTHER, _TENSOR, _LOAD = range(3)
_PRODUCTS = ("tcgen05.mma", "tcgen05.commit")
_ORDERED = (*_PRODUCTS, "tcgen05.mma.ws", "tcgen05.cp", "tcgen05.shift")  # one queue: they complete in order of issue
_KEPT = 512  # rounds remembered before all are forgotten

Rows = NDArray[np.uint64]


def _kinds(insts: list[Inst]) -> list[int]:
    """How each instruction's records are handled; products only where they are all that the tensor engine does, loads
    only where tensor maps stay as they are."""
    loads = not any(inst.name.startswith("tensormap.") for inst in insts)
    products = all(inst.name in _PRODUCTS for inst in insts if inst.name in _ORDERED)
    tensor_kind = _TENSOR if products else _OTHER
    return [
        tensor_kind if inst.name in _PRODUCTS else _LOAD if loads and box_batch.is_plain_load(inst) else _OTHER
        for inst in insts
    ]


class InFlight:
    """Records of tensor work and of plain tensor loads of one cluster, and the rounds that are known."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kinds = np.array(_kinds(cluster.launch.insts), np.int8)
        self.known: dict[tuple[bytes, bytes], tensor.Batch] = {}
        self.loads = box_batch.Loads()
        self.reset()

    def reset(self) -> None:
        self.tensor_rows: list[Rows] = []
        self.load_rows: list[Rows] = []

    def set_aside(self, records: Rows) -> Rows:
        """Take the records that are handled here; gives the others."""
        kinds = self.kinds[records[:, 0].astype(np.intp)]
        if not kinds.any():
            return records
        for kind, rows in ((_TENSOR, self.tensor_rows), (_LOAD, self.load_rows)):
            chosen = kinds == kind
            if chosen.any():
                rows.append(records[chosen])
        others: Rows = records[kinds == _OTHER]
        return others

    def complete_tensor(self) -> bool:
        """Complete the tensor work that is in flight; False when there is none."""
        if not self.tensor_rows:
            return False
        rows, self.tensor_rows = _joined(self.tensor_rows), []
        key = rows.tobytes(), self.cluster.tmem_masks.tobytes()
        batch = self.known.get(key)
        if batch is not None:
            batch.repeat(self.cluster)
            return True
        batch = tensor.complete(self.cluster, self._ops(rows))
        if batch is not None:
            if len(self.known) >= _KEPT:
                self.known.clear()
            self.known[key] = batch
        return True

    def complete_loads(self) -> bool:
        """Complete the loads that are in flight; False when there are none."""
        if not self.load_rows:
            return False
        rows, self.load_rows = _joined(self.load_rows), []
        insts = rows[:, 0].astype(np.intp)
        for index in np.unique(insts).tolist():
            group = rows[insts == index]
            if not self.loads.complete(self.cluster, self.cluster.launch.insts[index], group):
                copy.complete(self.cluster, self._ops(group))
        return True

    def _ops(self, rows: Rows) -> list[Op]:
        return [self.cluster.op_of(record) for record in rows.tolist()]


def _joined(parts: list[Rows]) -> Rows:
    whole: Rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole
