"""One cluster while it runs: its warps, shared and tensor memory, barriers, and the operations in flight."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import Deadlock, MemoryFault, ProtocolError, UsageError, WarpwrightError
from warpwright.vgpu.engines import copy, lane_copy, tensor
from warpwright.vgpu.engines.lane_copy import LANE_COPIES
from warpwright.vgpu.engines.op import BoundMap, Op
from warpwright.vgpu.jit import state
from warpwright.vgpu.jit.issue import SERVICES, flatten
from warpwright.vgpu.jit.record import signalled
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import (
    FAULTS,
    FUEL,
    OFFSETS,
    QUEUE_HEADER_WORDS,
    RANK_SHIFT,
    RECORD_WORDS,
    RESERVED_SHARED,
    WARP,
)
from warpwright.vgpu.machine import barriers, explore, faults, registers, services, spins, warpgroup
from warpwright.vgpu.machine.events import Barrier, Event, Observer
from warpwright.vgpu.machine.inflight import InFlight
from warpwright.vgpu.machine.maps import MAP_MAGIC
from warpwright.vgpu.machine.memory import aligned_zeros
from warpwright.vgpu.machine.tape import Tape
from warpwright.vgpu.program.program import Inst

if TYPE_CHECKING:
    from warpwright.vgpu.checks.stream import Stream
    from warpwright.vgpu.machine.launch import Launch

__all__ = ["Cluster"]

_QUEUE_RECORDS = 4096
_UNUSED = 1 << 30  # fuel of a warp that did not run
_POISON = 0xFF  # what shared and tensor memory hold before anyone writes: NaN in every float format


class Cluster:
    """The state of a cluster, reused for one cluster after another by the worker that owns it.

    See `engines.op.Fabric` for what the engines use. ``warps`` are the warps of all CTAs, rank by rank, as records of
    the layout in `jit.state`. ``rounds`` of theirs are a turn of the cluster, 0 for one without end; ``paused``: its
    last turn was over before it had to wait. ``rows``: a `tape.row_buffer`, where rows are recorded.
    """

    number: int
    first: tuple[int, int, int]
    named: barriers.Named
    whole: barriers.Whole
    tmem_state: services.TensorMemory
    registers: registers.Registers
    warpgroups: warpgroup.Warpgroups
    watch: Stream | None = None
    order: explore.Order | None = None
    paused = False

    def __init__(self, launch: Launch, rows: NDArray[np.int64] | None = None) -> None:
        kernel = launch.kernel
        self.launch = launch
        self.ranks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        self.per_cta = -(-launch.threads // 32)
        self.count = self.ranks * self.per_cta
        self.shared_limit = launch.shared_limit
        self.hardware = launch.numerics == "hardware"
        self.computes = launch.computes
        self.shared_stride = -(-self.shared_limit // 1024) * 1024
        self.shared = aligned_zeros(self.ranks * self.shared_stride, 1024).reshape(self.ranks, self.shared_stride)
        self.shared_host = self.shared.ctypes.data
        self.tmem = np.zeros((self.ranks if launch.has_tmem else 0, 512, 128), np.int32)
        self.tmem_masks = np.zeros(self.ranks, np.uint64)
        self.bytes = aligned_zeros(self.count * kernel.nbytes).reshape(self.count, kernel.nbytes)
        self.warps: NDArray[Any] = np.ndarray((self.count,), WARP, self.bytes.data, 0, (kernel.nbytes,))
        self.pointers = self.bytes.ctypes.data + kernel.nbytes * np.arange(self.count, dtype=np.uint64)
        self.queue = np.zeros(QUEUE_HEADER_WORDS + _QUEUE_RECORDS * RECORD_WORDS, np.uint64)
        self.queue[1] = _QUEUE_RECORDS
        self.records = self.queue[QUEUE_HEADER_WORDS:].reshape(_QUEUE_RECORDS, RECORD_WORDS)
        self.tape = None if rows is None else Tape(self, rows)
        self.which = ctypes.c_int32()
        self.template = self._template()
        self.handlers = [_handler(inst) for inst in launch.insts]
        self.silent = np.array([launch.recorder is not None and bool(signalled(inst)) for inst in launch.insts], bool)
        self.observers: tuple[Observer, ...] = launch.observers
        self.rounds = 1 if launch.in_step else 0
        self.in_flight = InFlight(self)
        self.warpgroups = warpgroup.Warpgroups(self)

    def _template(self) -> NDArray[np.uint8]:
        """The warps' state as it is when any cluster starts."""
        launch, kernel = self.launch, self.launch.kernel
        warps = self.warps
        warps["live"] = [launch.live_mask(i % self.per_cta) for i in range(self.count)]
        warps["pc"] = 0
        warps["status"] = FUEL
        warps["slice"] = launch.slice
        warps["warp"] = np.arange(self.count) % self.per_cta
        warps["rank"] = np.arange(self.count) // self.per_cta
        warps["shared_base"] = warps["rank"].astype(np.uint32) << RANK_SHIFT
        warps["ranks"] = self.ranks
        warps["hardware"] = self.hardware
        warps["shared_host"] = self.shared_host
        warps["shared_stride"] = self.shared_stride
        warps["shared_limit"] = self.shared_limit
        warps["global_table"] = launch.table.ctypes.data
        warps["global_count"] = len(launch.table)
        warps["param_host"] = launch.params_host
        warps["param_base"] = launch.params_base
        warps["queue"] = self.queue.ctypes.data
        warps["rows"] = self.tape.buffer.ctypes.data if self.tape else 0
        warps["timed"] = launch.recorder is not None
        warps["row_head"] = np.arange(self.count) << 32
        warps["row_retry"] = -1
        number = np.arange(self.count)
        first = number - number % self.per_cta % 4
        last = np.minimum(first - first % self.per_cta + self.per_cta - 1, self.count - 1)
        group = np.minimum(first[:, None] + np.arange(4), last[:, None])
        warps["peers"] = self.pointers[group].astype(np.int64) + OFFSETS["issued"]
        self.meeting = np.zeros(3, np.int64)
        warps["meeting"] = self.meeting.ctypes.data
        warps["signals"] = 0 if launch.computes else -1
        self.map_bytes = np.array([bound.map.nbytes for bound in launch.maps] or [0], np.int64)
        warps["map_bytes"] = self.map_bytes.ctypes.data
        self.local = aligned_zeros(self.count * 32 * kernel.program.local_bytes + 1)
        warps["local_bytes"] = kernel.program.local_bytes
        warps["local_host"] = self.local.ctypes.data + np.arange(self.count) * 32 * kernel.program.local_bytes
        if launch.has_tmem:
            warps["tmem"] = self.tmem.ctypes.data + warps["rank"].astype(np.int64) * self.tmem[0].nbytes
            warps["tmem_mask"] = self.tmem_masks.ctypes.data + 8 * warps["rank"].astype(np.int64)
        for rank in range(self.ranks):
            for warp in range(self.per_cta):
                self._specials(rank * self.per_cta + warp, launch.fixed_specials(rank, warp))
        return self.bytes.copy()

    def _specials(self, index: int, values: dict[str, Any]) -> None:
        slots = self.launch.kernel.slots
        for name, value in values.items():
            offset = slots.get(name)
            if offset is not None:
                bits = self.launch.kernel.program.registers[name].bits
                self.bytes[index, offset : offset + 4 * bits].view(np.uint64 if bits == 64 else np.uint32)[:] = value

    def start(self, number: int) -> None:
        """Become cluster ``number`` of the grid: fresh registers, poisoned memory."""
        self.number = number
        self.bytes[:] = self.template
        self.shared.fill(_POISON)
        self.tmem.view(np.uint8).fill(_POISON)
        self.tmem_masks[:] = 0
        self.queue[0] = self.queue[2] = 0
        self.meeting[:] = 0, 0, self.ranks * self.launch.threads
        self.in_flight.reset()
        self.tensor_ops: list[Op] = []
        self.copy_ops: list[Op] = []
        self.issued = 0
        self.named = barriers.Named(self)
        self.whole = barriers.Whole(self)
        self.tmem_state = services.TensorMemory(self)
        self.warpgroups.reset()
        self.registers = registers.Registers(self)
        self.first = self.launch.first_cta(number)
        for rank in range(self.ranks):
            values = self.launch.grid_specials(self.first, rank)
            for warp in range(self.per_cta):
                self._specials(rank * self.per_cta + warp, values)
        self.order = explore.Order(self, self.launch.seed) if self.launch.seed else None
        if self.launch.watcher:
            self.watch = self.launch.watcher.begin(self)
        self.tell_all("start")

    def step(self) -> bool:
        """Run until the cluster is done (True), or its warps only spin or its turn is over (False). Raises what
        went wrong."""
        self.paused = False
        while True:
            if self.order and not self.order.run():
                return False
            code, moved = self._run(0, self.count, self.rounds)
            if code == state.PAUSED:
                self.paused = True
                return False
            if code == state.QUEUE_FULL or moved or self._drain():
                continue
            if code == state.ALL_DONE:
                self._finish()
                return True
            if code == state.SPINNING:
                return False
            raise Deadlock(faults.deadlock(self))

    def run_warp(self, index: int, fuel: int) -> bool:
        """Let one warp go on for so many block jumps; False when it cannot."""
        warps = self.warps
        if warps["status"][index] == state.DONE:
            return False
        warps["slice"][index], warps["fuel"][index] = fuel, _UNUSED
        self._run(index, 1, 0)
        return int(warps["fuel"][index]) != _UNUSED

    def _run(self, first: int, count: int, rounds: int) -> tuple[int, bool]:
        """Run some warps for so many rounds, or until none of them can when it is 0; what `run_cluster` says, and
        whether the machine let others go on."""
        pointers, entry = self.pointers[first:], self.launch.kernel.entry
        code = function("run_cluster")(pointers.ctypes.data, count, entry, ctypes.addressof(self.which), rounds)
        if self.tape:
            self.tape.take(self.records[: int(self.queue[0])], self.watch)
        moved = self._take_queue()
        if code == state.FAULTED:
            raise faults.fault(self, first + self.which.value)
        return code, self._settle() | moved

    def _finish(self) -> None:
        """All warps are done."""
        self.tmem_state.check_freed()
        self.warpgroups.finish()
        self.registers.check_all()
        if self.tape:
            self.tape.finish(self.watch)
        self.tell_all("exit")

    def stopped(self, error: Exception, own: bool) -> None:
        """The cluster goes on no more, by an error of its ``own`` or because it and others would never end."""
        if self.watch:
            self.watch.watcher.end(self.watch, error, own)

    def _settle(self) -> bool:
        """Settle the barriers when someone came to one or a warp is done; nothing else can change them."""
        news = int(self.queue[2])
        self.queue[2] = 0
        moved = False
        if news & (1 | 1 << state.WAIT_BAR):
            moved = self.named.settle()
        if news & (1 | 1 << state.WAIT_CLUSTER):
            moved |= self.whole.settle() if self.computes else self._meet()
        return moved

    def _meet(self) -> bool:
        """In runs that only signal, lane code keeps the cluster barrier, but does not see who has exited."""
        live = int(np.bitwise_count(self.warps["live"]).sum())
        self.meeting[2] = live
        turns = bool(self.meeting[0]) and int(self.meeting[0]) >= live
        if turns:
            self.meeting[:2] = 0, self.meeting[1] + 1
        return turns

    def snapshot(self) -> bytes:
        """What changes while a spinning cluster gets somewhere: program counters, whose turn it is, registers that
        decide which way a thread goes, and time where they depend on it."""
        names, held = self.deciding
        timed = any(name.startswith(("%clock", "%globaltimer")) for name in names)
        fields = [self.warps[name].tobytes() for name in ("pc", "bias", *["clock"] * timed)]
        return b"".join([*fields, self.bytes[:, held].tobytes()])

    @functools.cached_property
    def loops(self) -> spins.Loops:
        """The loops of the kernel."""
        return spins.Loops(self.launch.kernel.program)

    def writes(self) -> bool:
        """Whether warps that spin write memory all the while."""
        runs = self.warps["live"] & ~self.warps["blocked"]
        blocks = {pc for warp in np.flatnonzero(runs).tolist() for pc in self.warps["pc"][warp].tolist()}
        return any(self.loops.writes(block) for block in blocks if block < len(self.launch.kernel.program.blocks))

    @functools.cached_property
    def deciding(self) -> tuple[set[str], NDArray[np.intp]]:
        """Registers that decide which way a thread goes, and where they are in a warp's state."""
        kernel = self.launch.kernel
        names = spins.deciding(kernel.program)
        return names, spins.columns(kernel.slots, kernel.program.registers, names)

    def _take_queue(self) -> bool:
        """Sort the records of the queue; true when a service let lanes go on."""
        count = int(self.queue[0])
        if not count:
            return False
        self.queue[0] = 0
        moved = False
        records = self.records[:count]
        if not self.computes:
            records = records[~self.silent[records[:, 0].astype(np.intp)]]
        for record in (records if self.observers or self.watch else self.in_flight.set_aside(records)).tolist():
            moved |= self.handlers[record[0]][1](self, self.op_of(record))
        return moved

    def op_of(self, record: list[int]) -> Op:
        """A record of the queue as an operation."""
        inst, _, end = self.handlers[record[0]]
        who, self.issued = record[1], self.issued + 1
        return Op(inst, who >> 32, who >> 8 & 0xFFFFFF, who & 0xFF, record[2:end], self.issued - 1)

    def _drain(self) -> bool:
        """Complete what is in flight, tensor cores before copies: nothing completes before everyone waits."""
        if self.warpgroups.settle():
            return True
        if self.in_flight.complete_tensor():
            return True
        ops: list[Op] = []
        if self.tensor_ops:
            ops, self.tensor_ops = self.tensor_ops, []
            self.complete_tensor(ops)
        elif self.copy_ops:
            ops, self.copy_ops = self.copy_ops, []
            self.complete_copies(ops)
            self.named.bulk_done()
        return self.in_flight.complete_loads() or bool(ops)

    def complete_tensor(self, ops: list[Op]) -> None:
        """Complete operations of tensor cores, in order of issue."""
        tensor.complete(self, ops)
        self._tell_complete(ops)

    def complete_copies(self, ops: list[Op]) -> None:
        for single, run in itertools.groupby(ops, key=lambda op: op.inst.name in LANE_COPIES):
            (lane_copy if single else copy).complete(self, list(run))
        self._tell_complete(ops)

    def enqueue_tensor(self, op: Op) -> bool:
        self.tensor_ops.append(op)
        self._tell_issue(op)
        return False

    def enqueue_copy(self, op: Op) -> bool:
        self.copy_ops.append(op)
        self._tell_issue(op)
        return False

    def serve(self, op: Op) -> bool:
        """Apply a service and let the warp's waiting lanes go on."""
        if services.SERVICES[op.inst.name](self, op):
            self.release(op.rank * self.per_cta + op.warp, state.WAIT_SERVICE)
            return True
        return False

    def release(self, index: int, kind: int) -> None:
        """Unblock the lanes of a warp that wait for ``kind``."""
        warp = self.warps[index]
        lanes = np.flatnonzero(warp["wait_kind"] == kind)
        mask = int(np.bitwise_or.reduce(np.uint32(1) << lanes.astype(np.uint32))) if len(lanes) else 0
        self.warps["blocked"][index] &= np.uint32(~mask & 0xFFFF_FFFF)

    def tmem_allocated(self, rank: int) -> int:
        return int(self.tmem_masks[rank])

    def arrive(self, op: Op, rank: int, offset: int) -> None:
        self._update(op, rank, offset, 1, 0)
        self._tell_barrier("arrive", op, rank, offset, count=1)

    def complete_tx(self, op: Op, rank: int, offset: int, nbytes: int) -> None:
        self._update(op, rank, offset, 0, nbytes)
        self._tell_barrier("complete_tx", op, rank, offset, nbytes=nbytes)

    def refuse_update(
        self, inst: Inst, record: NDArray[np.uint64], barrier: int, *, count: int = 0, nbytes: int = 0
    ) -> None:
        rank, offset = divmod(barrier - self.shared_host, self.shared_stride)
        self._update(self.op_of(record.tolist()), rank, offset, count, nbytes)

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

    def take_over(self) -> tuple[int, int, int] | None:
        pending = self.launch.pending
        found = pending.cancel(self.number) if pending else None
        return None if found is None else self.launch.first_cta(found)

    def tensor_map(self, op: Op, address: int) -> BoundMap:
        number = self.map_number(op, self.launch.memory.view(address), address)
        if self.watch:  # what is asked once more when the cluster is judged may have changed by then
            number = self.watch.maps.setdefault(op.number, number)
        try:
            return self.launch.changed.resolve(number)
        except UsageError as error:
            raise self.failure(ProtocolError, op, f"the tensor map was changed into none: {error}.") from None

    def map_number(self, op: Op, place: NDArray[np.uint8], address: int) -> int:
        """The number of the tensor map that a place holds; raises ProtocolError when there is none."""
        raw = bytes(place[:16])
        if raw[:8] != MAP_MAGIC:
            raise self.failure(
                ProtocolError,
                op,
                f"there is no tensor map at 0x{address:x}; pass one made by ww.TensorMap as a kernel parameter.",
            )
        return int.from_bytes(raw[8:], "little")

    def global_memory(self, op: Op, address: int, nbytes: int) -> NDArray[np.uint8]:
        view = self.launch.memory.view(address)
        if view.size < nbytes:
            raise self.failure(
                MemoryFault,
                op,
                f"bytes 0x{address:x} to 0x{address + nbytes:x} are {self.launch.memory.describe(address + nbytes)}.",
            )
        return view[:nbytes]

    def failure(self, kind: type[WarpwrightError], op: Op, message: str) -> WarpwrightError:
        return faults.error(kind, self, op.inst, op.rank * self.per_cta + op.warp, op.lane, message)

    def tell(self, event: Event) -> None:
        for observer in self.observers:
            observer.event(event)

    def tell_all(self, kind: str) -> None:
        for rank in range(self.ranks if self.observers else 0):
            self.tell(Event(kind, self.number, rank))

    def _tell_issue(self, op: Op) -> None:
        if self.observers:
            self.tell(
                Event("issue", self.number, op.rank, op.warp, op.lane, op.inst, op.number, coords=tuple(op.words))
            )

    def _tell_complete(self, ops: list[Op]) -> None:
        for op in ops if self.observers else ():
            self.tell(Event("complete", self.number, op.rank, op.warp, op.lane, op.inst, op.number))

    def _tell_barrier(self, kind: str, op: Op, rank: int, offset: int, count: int = 0, nbytes: int = 0) -> None:
        if self.watch:
            self.watch.signal(op.inst.index, op.number, op.rank, rank, offset, count, nbytes)
        if self.observers:
            held = Barrier(rank, offset)
            self.tell(
                Event(
                    kind, self.number, op.rank, inst=op.inst, number=op.number, barrier=held, count=count, nbytes=nbytes
                )
            )

    def observe(self, op: Op) -> bool:
        """A record that lane code left for the observers: an mbarrier operation and what it saw."""
        host = op.words[4] - self.shared_host
        held = Barrier(host // self.shared_stride, host % self.shared_stride)
        if "wait" in op.inst.name:
            parity = op.words[0] & 1
            done = (op.words[5] >> op.lane & 1) == 1
            self.tell(
                Event("wait", self.number, op.rank, op.warp, op.lane, op.inst, barrier=held, parity=parity, done=done)
            )
            return False
        count, expect, complete = op.words[:3]
        kind = "arrive" if count else "expect_tx" if expect else "complete_tx"
        self.tell(
            Event(
                kind,
                self.number,
                op.rank,
                op.warp,
                op.lane,
                op.inst,
                barrier=held,
                count=count,
                nbytes=expect or complete,
            )
        )
        return False


def _handler(inst: Inst) -> tuple[Inst, Callable[[Cluster, Op], bool], int]:
    """An instruction, what takes its records, and where its operands end in one."""
    keep = _category(inst)
    words = (
        RECORD_WORDS
        if keep in (Cluster.observe, warpgroup.observe)
        else 2 + sum(len(flatten(o)) for o in inst.operands)
    )
    return inst, keep, words


def _category(inst: Inst) -> Callable[[Cluster, Op], bool]:
    if inst.name in SERVICES:
        return Cluster.serve
    if inst.name.startswith("tcgen05."):
        return Cluster.enqueue_tensor
    if inst.name.startswith("mbarrier."):
        return Cluster.observe
    if inst.name.startswith("wgmma."):
        return warpgroup.observe
    return Cluster.enqueue_copy
