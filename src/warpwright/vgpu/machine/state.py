"""The state of one cluster: its warps, its shared and tensor memory, its queue; and the events that it reports."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.compile import KERNELS, Kernel
from warpwright.vgpu.jit.state import FUEL, OFFSETS, QUEUE_HEADER_WORDS, RANK_SHIFT, RECORD_WORDS, WARP
from warpwright.vgpu.machine.events import Barrier, Event, Numbers, Rows
from warpwright.vgpu.machine.launch import Dim3, Launch
from warpwright.vgpu.machine.memory import aligned_zeros
from warpwright.vgpu.program.program import Inst, word_count

__all__ = ["ClusterState", "lane_masks", "lane_table"]

_QUEUE_RECORDS = 4096
_POISON = 0xFF  # what shared and tensor memory hold before anyone writes: NaN in every float format
_ENDLESS = (1 << 63) - 1  # block jumps of a launch without a limit
_NUMBERS = np.arange(_QUEUE_RECORDS)  # a new one for each queue would release the interpreter lock
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


class ClusterState:
    """The state of a cluster, reused for one cluster after another by the worker that owns it.

    ``warps`` are the warps of all CTAs, rank by rank, as records of the layout in `jit.state`, views of ``bytes``.
    ``peer``: the rank of a node that runs the cluster.
    ``rows``: the `tape.row_buffer` that lane code leaves rows in, None where it leaves none; ``observed``: whether the
    listener asks for events. ``issued`` counts the operations of the queue. ``map_numbers``: the tensor map that each
    operation used, kept where a listener follows accesses. ``paused``: the last turn ended before a warp had to wait.
    """

    number: int
    first: Dim3
    peer = 0
    paused = False

    def __init__(self, launch: Launch, rows: Rows | None = None) -> None:
        self.launch, self.listener = launch, launch.listener
        self.observed = self.listener is not None and self.listener.events
        self.tells_updates = self.listener is not None and self.listener.accesses
        self.insts, self.global_lock = launch.insts, launch.memory.lock
        self.record_ends = _record_ends(launch.kernel)
        self.ranks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        self.per_cta = -(-launch.threads // 32)
        self.count = self.ranks * self.per_cta
        self.hardware, self.computes = launch.numerics == "hardware", launch.computes
        self.rows = rows
        self._allocate()
        self.template = self._template()

    def _allocate(self) -> None:
        """Allocate the warps, the memories and the queue."""
        launch, nbytes = self.launch, self.launch.kernel.nbytes
        self.shared_limit = launch.shared_limit
        self.shared_stride = launch.shared_stride
        self.shared = aligned_zeros(self.ranks * self.shared_stride, 1024).reshape(self.ranks, self.shared_stride)
        self.shared_host = self.shared.ctypes.data
        with_tmem = self.ranks if launch.has_tmem else 0
        self.tmem = aligned_zeros(with_tmem * 512 * 128 * 4).view(np.int32).reshape(with_tmem, 512, 128)
        self.tmem_masks = np.zeros(self.ranks, np.uint64)
        self.local = aligned_zeros(self.count * 32 * launch.kernel.program.local_bytes + 1)
        self.bytes = aligned_zeros(self.count * nbytes).reshape(self.count, nbytes)
        self.warps: NDArray[Any] = np.ndarray((self.count,), WARP, self.bytes.data, 0, (nbytes,))
        self.pointers = self.bytes.ctypes.data + nbytes * np.arange(self.count, dtype=np.uint64)
        self.pointers_at = self.pointers.ctypes.data
        self.queue = np.zeros(QUEUE_HEADER_WORDS + _QUEUE_RECORDS * RECORD_WORDS, np.uint64)
        self.queue[1] = _QUEUE_RECORDS
        self.records = self.queue[QUEUE_HEADER_WORDS:].reshape(_QUEUE_RECORDS, RECORD_WORDS)
        self.meeting = np.zeros(3, np.int64)  # the cluster barrier of runs that only signal: arrivals, phase, threads

    def _template(self) -> NDArray[np.uint8]:
        """Returns the state of the warps when a cluster starts, whichever it is."""
        warps = self.warps
        warps["live"] = [self.launch.live_mask(i % self.per_cta) for i in range(self.count)]
        warps["status"] = FUEL
        warps["slice"] = self.launch.slice
        warps["jumps"] = _ENDLESS if self.launch.limit is None else self.launch.limit
        warps["warp"] = np.arange(self.count) % self.per_cta
        warps["rank"] = np.arange(self.count) // self.per_cta
        warps["ranks"] = self.ranks
        warps["hardware"] = self.hardware
        self._point_to_memory()
        self._point_to_queues()
        for index in range(self.count):
            self._write_specials(index, self.launch.fixed_specials(*divmod(index, self.per_cta)))
        return self.bytes.copy()

    def _point_to_memory(self) -> None:
        """Tell the warps where shared, global, local and tensor memory are."""
        launch, warps = self.launch, self.warps
        warps["shared_base"] = warps["rank"].astype(np.uint32) << RANK_SHIFT
        warps["shared_host"] = self.shared_host
        warps["shared_stride"] = self.shared_stride
        warps["shared_limit"] = self.shared_limit
        warps["global_table"] = launch.table.ctypes.data
        warps["global_count"] = len(launch.table)
        warps["param_base"], warps["param_host"] = launch.params[0]
        warps["local_bytes"] = nbytes = launch.kernel.program.local_bytes
        warps["local_host"] = self.local.ctypes.data + np.arange(self.count) * 32 * nbytes
        if launch.has_tmem:
            warps["tmem"] = self.tmem.ctypes.data + warps["rank"].astype(np.int64) * self.tmem[0].nbytes
            warps["tmem_mask"] = self.tmem_masks.ctypes.data + 8 * warps["rank"].astype(np.int64)

    def _point_to_queues(self) -> None:
        """Tell the warps where records and rows go, and where the other warps of their warpgroup are."""
        warps, number = self.warps, np.arange(self.count)
        warps["queue"] = self.queue.ctypes.data
        warps["rows"] = 0 if self.rows is None else self.rows.ctypes.data
        warps["timed"] = self.launch.timed
        warps["marks"] = self.launch.marks.ctypes.data
        warps["row_head"] = number << 32
        warps["row_retry"] = -1
        first = number - number % self.per_cta % 4
        last = np.minimum(first - first % self.per_cta + self.per_cta - 1, self.count - 1)
        group = np.minimum(first[:, None] + np.arange(4), last[:, None])
        warps["peers"] = self.pointers[group].astype(np.int64) + OFFSETS["issued"]
        warps["meeting"] = self.meeting.ctypes.data
        warps["signals"] = 0 if self.computes else -1

    def _write_specials(self, index: int, values: dict[str, Any]) -> None:
        slots = self.launch.kernel.slots
        for name, value in values.items():
            offset = slots.get(name)
            if offset is not None:
                bits = self.launch.kernel.program.registers[name].bits
                self.bytes[index, offset : offset + 4 * bits].view(np.uint64 if bits == 64 else np.uint32)[:] = value

    def start(self, number: int) -> None:
        """Become cluster ``number`` of the grid: fresh registers, poisoned memory."""
        self.number, self.first = number, self.launch.first_cta(number)
        self.bytes[:] = self.template
        self.peer = number // self.launch.clusters_a_rank
        if self.peer:
            self.warps["param_base"], self.warps["param_host"] = self.launch.params[self.peer]
        self.shared.fill(_POISON)
        self.tmem.view(np.uint8).fill(_POISON)
        self.tmem_masks[:] = 0
        self.queue[0] = self.queue[2] = 0
        self.meeting[:] = 0, 0, self.ranks * self.launch.threads
        self.issued = 0
        self.map_numbers: dict[int, int] | None = {} if self.tells_updates else None
        for rank in range(self.ranks):
            values = self.launch.grid_specials(self.first, rank)
            for index in range(rank * self.per_cta, (rank + 1) * self.per_cta):
                self._write_specials(index, values)

    def op_of(self, record: list[int], number: int) -> Op:
        """Returns a record of the queue as operation ``number`` of the cluster."""
        inst, issuer = record[0], record[1]
        words = record[2 : self.record_ends[inst]]
        return Op(self.insts[inst], issuer >> 32, issuer >> 8 & 0xFFFFFF, issuer & 0xFF, words, number)

    def next_numbers(self, count: int) -> Numbers:
        """Returns the numbers of the next operations of the cluster."""
        first, self.issued = self.issued, self.issued + count
        return _NUMBERS[:count] + first

    def inst_at(self, index: int) -> Inst:
        """Returns the instruction that a warp stands at."""
        return self.insts[int(self.warps["inst"][index])]

    def waiting_at(self, index: int, lane: int) -> Inst:
        """Returns the instruction that a lane waits at: a blocked lane runs on at the block after it."""
        blocks, warp = self.launch.kernel.program.blocks, self.warps[index]
        number = int(warp["pc"][lane])
        if int(warp["blocked"]) >> lane & 1 and blocks[number - 1].insts:
            return blocks[number - 1].insts[-1]
        return next(block.insts[0] for block in blocks[number:] if block.insts)

    def blocked_warps(self, kind: int) -> list[int]:
        """Returns the warps with lanes that wait for ``kind``."""
        warps = self.warps
        blocked = np.flatnonzero(warps["blocked"] & warps["live"])
        lanes = lane_table(warps["blocked"][blocked] & warps["live"][blocked])
        found: list[int] = blocked[(lanes & (warps["wait_kind"][blocked] == kind)).any(axis=1)].tolist()
        return found

    def release(self, index: int, kind: int) -> None:
        """Unblock the lanes of a warp that wait for ``kind``."""
        self.warps["blocked"][index] &= ~lane_masks(self.warps["wait_kind"][index : index + 1] == kind)[0]

    def release_all(self, kind: int) -> None:
        """Unblock all lanes that wait for ``kind``."""
        self.warps["blocked"] &= ~lane_masks(self.warps["wait_kind"] == kind)

    def tell(self, event: Event) -> None:
        """Report an event to a listener that asks for events."""
        if self.observed and self.listener:
            self.listener.event(event)

    def tell_ctas(self, kind: str) -> None:
        """Report the start or the exit of every CTA."""
        for rank in range(self.ranks if self.observed else 0):
            self.tell(Event(kind, self.number, rank))

    def tell_issue(self, op: Op) -> None:
        if self.observed:
            self.tell(Event("issue", self.number, op.rank, op.warp, op.lane, op.inst, op.number, op=op))

    def tell_complete(self, ops: list[Op]) -> None:
        for op in ops if self.observed else ():
            self.tell(Event("complete", self.number, op.rank, op.warp, op.lane, op.inst, op.number))

    def tell_warp(self, kind: str, index: int, count: int = 0) -> None:
        """Report that a warp arrived at a barrier of its CTA (``bar``, number ``count``) or of the cluster."""
        if self.observed:
            rank, warp = divmod(index, self.per_cta)
            self.tell(Event(kind, self.number, rank, warp, inst=self.inst_at(index), count=count))

    def tell_mbarrier(self, kind: str, op: Op, rank: int, offset: int, count: int = 0, nbytes: int = 0) -> None:
        """Report that an engine arrived on an mbarrier, or delivered bytes for it."""
        if self.listener is None:
            return
        if self.listener.accesses:
            self.listener.signal(self, op.inst.index, op.number, op.rank, rank, offset, count, nbytes)
        if self.observed:
            barrier = Barrier(rank, offset)
            self.tell(Event(kind, self.number, op.rank, -1, -1, op.inst, op.number, barrier, count, nbytes))

    def tell_updates(
        self, insts: Numbers, numbers: Numbers, ctas: Numbers, barriers: Numbers, count: int, nbytes: int
    ) -> None:
        """Report the same to checks for operations that completed together; ``barriers``: host addresses."""
        if self.listener is None or not self.tells_updates:
            return
        ranks, offsets = np.divmod(barriers - self.shared_host, self.shared_stride)
        columns = (column.tolist() for column in (insts, numbers, ctas, ranks, offsets))
        for inst, number, cta, rank, offset in zip(*columns, strict=True):
            self.listener.signal(self, inst, number, cta, rank, offset, count, nbytes)


def lane_table(masks: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Returns lane masks as one flag a lane, shape (warps, 32)."""
    table: NDArray[np.bool_] = (masks[:, None] & _BITS) != 0
    return table


def lane_masks(table: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Returns flags, shape (warps, 32), as lane masks."""
    masks: NDArray[np.uint32] = np.packbits(table, axis=1, bitorder="little").view(np.uint32)[:, 0]
    return masks


@lru_cache(maxsize=KERNELS)
def _record_ends(kernel: Kernel) -> list[int]:
    """Returns where the operands of each instruction end in its records; records for observers use all words."""
    return [2 + word_count(inst) if inst.form.queued else RECORD_WORDS for inst in kernel.program.insts]
