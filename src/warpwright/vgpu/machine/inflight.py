"""Asynchronous operations between their issue and their completion.

Lane code leaves a record, a row of integers, for each operation that it issues. A pipeline reissues the same tensor
operations, and loads to the same addresses, each time it reuses a stage of its ring, so its records repeat. Such
records, and those of tensor stores, complete in batches without a decoded `Op` each, and a decoded batch of tensor
operations is cached under its records. Launches with a listener that follows operations have no such records: each
operation is an `Op`.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines import box_batch, copy, lane_copy, store_batch, tensor
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.compile import KERNELS, Kernel
from warpwright.vgpu.jit.state import WAIT_BULK
from warpwright.vgpu.machine.events import Numbers, Records
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.program import Inst

__all__ = ["InFlight"]

_OTHER, _TENSOR, _LOAD, _STORE = range(4)
_Records = dict[int, list[tuple[Records, Numbers]]]  # by instruction
_Which = slice | NDArray[np.intp]
_CACHED = 512  # rounds remembered before all are forgotten


@lru_cache(maxsize=KERNELS)
def _kinds(kernel: Kernel) -> NDArray[np.int8]:
    """Returns for each instruction how its records complete.

    `_TENSOR`: with all other tensor operations in flight as one batch; only if `tensor.BATCHED` has all tensor
    instructions of the kernel. `_LOAD`: as a batch of boxes; only if the kernel changes no tensor map. `_STORE`: as a
    batch of boxes. `_OTHER`: as an `Op` each.
    """
    insts = kernel.program.insts
    loads = not any(inst.traits.effect == "edits-maps" for inst in insts)
    tensor_insts = {inst.index for inst in insts if inst.traits.queue == "tensor" and inst.form.queued}
    rounds = tensor_insts if all(insts[index].name in tensor.BATCHED for index in tensor_insts) else set()

    def kind(inst: Inst) -> int:
        if inst.index in rounds:
            return _TENSOR
        if store_batch.is_plain_store(inst):
            return _STORE
        return _LOAD if loads and box_batch.is_plain_load(inst) else _OTHER

    return np.array([kind(inst) for inst in insts], np.int8)


class _Split(NamedTuple):
    """Which records of a queue are tensor operations, the plain loads and the stores of each instruction, and the
    others; None where there are none."""

    tensor: _Which | None
    loads: list[tuple[int, _Which]]
    stores: list[tuple[int, _Which]]
    others: _Which | None


def _split(kinds: NDArray[np.int8], insts: NDArray[np.intp]) -> _Split:
    found = kinds[insts]
    tensor, others = (np.flatnonzero(found == kind) for kind in (_TENSOR, _OTHER))
    loads, stores = (
        [(index, _evenly(np.flatnonzero(insts == index))) for index in np.unique(insts[found == kind]).tolist()]
        for kind in (_LOAD, _STORE)
    )
    return _Split(_evenly(tensor) if len(tensor) else None, loads, stores, _evenly(others) if len(others) else None)


def _evenly(numbers: NDArray[np.intp]) -> _Which:
    """Returns numbers as a slice if their distances are equal: NumPy copies a small one without releasing the
    interpreter lock."""
    step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
    return slice(int(numbers[0]), int(numbers[-1]) + 1, step) if (np.diff(numbers) == step).all() else numbers


class InFlight:
    """The operations in flight in one cluster, in order of issue: records of tensor operations, of plain tensor loads
    and of tensor stores by instruction, and an `Op` for every other operation. ``batches`` caches decoded batches of
    tensor operations, ``splits`` which records of a queue complete how, by their instructions."""

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.kinds = _kinds(cluster.launch.kernel)
        self.splits: dict[bytes, _Split] = {}
        self.batches: dict[tuple[bytes, bytes], tensor.Batch] = {}
        self.loads, self.stores = box_batch.Loads(), store_batch.Stores()
        self.reset()

    def reset(self) -> None:
        self.tensor_records: list[tuple[Records, Numbers]] = []
        self.load_records: _Records = {}
        self.store_records: _Records = {}
        self.tensor_ops: list[Op] = []
        self.copy_ops: list[Op] = []
        self.overtaking = False

    def enqueue_records(self, records: Records, numbers: Numbers) -> tuple[Records, Numbers]:
        """Put the records of batches in flight. Returns the other records, and their numbers."""
        insts = records[:, 0]
        key = insts.tobytes()
        split = self.splits.get(key)
        if split is None:
            if len(self.splits) >= _CACHED:
                self.splits.clear()
            split = self.splits[key] = _split(self.kinds, insts.astype(np.intp))
        if split.tensor is not None:
            self.tensor_records.append(_taken(records, numbers, split.tensor))
        for queues, parts in ((self.load_records, split.loads), (self.store_records, split.stores)):
            for index, rows in parts:
                queues.setdefault(index, []).append(_taken(records, numbers, rows))
        return (records[:0], numbers[:0]) if split.others is None else _taken(records, numbers, split.others)

    def enqueue_tensor(self, op: Op) -> bool:
        self.tensor_ops.append(op)
        self.cluster.tell_issue(op)
        return False

    def enqueue_copy(self, op: Op) -> bool:
        self.copy_ops.append(op)
        self.cluster.tell_issue(op)
        return False

    def overtake(self, multiplying: bool) -> bool:
        """Complete the loads in flight before the MMAs in flight, every second time that both are. Returns False if
        the MMAs go first, or if not both are in flight.

        MMAs first: an MMA that does not wait for its operands reads old data. Loads first: a load into a stage that is
        released too early overwrites what an MMA still reads. ``multiplying``: whether a warp waits for its wgmma.
        """
        if not (multiplying or self.tensor_records or self.tensor_ops):
            return False
        ops = [op for op in self.copy_ops if _is_load(op)]
        if not (ops or self.load_records):
            return False
        self.overtaking = not self.overtaking
        if self.overtaking:
            return False
        if ops:
            self.copy_ops = [op for op in self.copy_ops if not _is_load(op)]
            self.complete_copies(ops)
        self._complete_load_records()
        return True

    def complete(self) -> bool:
        """Complete the tensor operations in flight, or else the copies. Returns False if nothing was in flight."""
        if self._complete_tensor_records():
            return True
        found = bool(self.tensor_ops or self.copy_ops or self.store_records)
        if self.tensor_ops:
            ops, self.tensor_ops = self.tensor_ops, []
            self.complete_tensor(ops)
        elif found:
            ops, self.copy_ops = self.copy_ops, []
            self._complete_store_records()
            self.complete_copies(ops)
            self._release_groups()
        return self._complete_load_records() or found

    def complete_tensor(self, ops: list[Op]) -> None:
        """Complete operations of tensor cores, in order of issue."""
        tensor.complete(self.cluster, ops)
        self.cluster.tell_complete(ops)

    def complete_copies(self, ops: list[Op]) -> None:
        for single, run in itertools.groupby(ops, key=lambda op: op.inst.traits.queue == "lane-copy"):
            (lane_copy if single else copy).complete(self.cluster, list(run))
        self.cluster.tell_complete(ops)

    def _release_groups(self) -> None:
        """All copies are complete: no group is pending, and every lane that waits for one may run on."""
        for counter in ("groups", "lane_groups", "lane_uncommitted", "uncommitted"):
            self.cluster.warps[counter] = 0
        self.cluster.release_all(WAIT_BULK)

    def _complete_tensor_records(self) -> bool:
        if not self.tensor_records:
            return False
        (records, numbers), self.tensor_records = _joined(self.tensor_records), []
        key = records.tobytes(), self.cluster.tmem_masks.tobytes()
        batch = self.batches.get(key)
        if batch is not None:
            batch.repeat(self.cluster, numbers)
            return True
        batch = tensor.complete(self.cluster, self._ops(records, numbers))
        if batch is not None:
            if len(self.batches) >= _CACHED:
                self.batches.clear()
            self.batches[key] = batch
        return True

    def _complete_load_records(self) -> bool:
        if not self.load_records:
            return False
        queues, self.load_records = self.load_records, {}
        for index in sorted(queues):
            group = _joined(queues[index])
            if not self.loads.complete(self.cluster, self.cluster.insts[index], *group):
                copy.complete(self.cluster, self._ops(*group))
        return True

    def _complete_store_records(self) -> None:
        queues, self.store_records = self.store_records, {}
        for index in sorted(queues):
            records, numbers = _joined(queues[index])
            left = self.stores.complete(self.cluster, self.cluster.insts[index], records, numbers)
            if len(left):
                copy.complete(self.cluster, self._ops(records[left], numbers[left]))

    def _ops(self, records: Records, numbers: Numbers) -> list[Op]:
        return [self.cluster.op_of(*each) for each in zip(records.tolist(), numbers.tolist(), strict=True)]


def _taken(records: Records, numbers: Numbers, which: _Which) -> tuple[Records, Numbers]:
    """Returns copies of some records of a queue, which is reused, and their numbers."""
    return (records[which].copy() if isinstance(which, slice) else records[which]), numbers[which]


def _joined(parts: list[tuple[Records, Numbers]]) -> tuple[Records, Numbers]:
    if len(parts) == 1:
        return parts[0]
    records, numbers = zip(*parts, strict=True)
    return np.concatenate(records), np.concatenate(numbers)


def _is_load(op: Op) -> bool:
    """Returns whether a copy completes at an mbarrier, whatever other copies of its thread do."""
    return "mbar" in op and op.inst.traits.queue != "lane-copy"
