"""One cluster while it runs: warps run in lane code until they wait, then the machine settles their waits."""

from __future__ import annotations

import ctypes
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import LimitReached
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit import state
from warpwright.vgpu.jit.compile import KERNELS, Kernel
from warpwright.vgpu.jit.record import completion_of
from warpwright.vgpu.jit.runtime import BRIEF, function
from warpwright.vgpu.machine import faults, services, spins
from warpwright.vgpu.machine.barriers import ClusterBarrier, NamedBarriers
from warpwright.vgpu.machine.events import Barrier, Event, Rows
from warpwright.vgpu.machine.explore import RandomSchedule
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.machine.inflight import InFlight
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.registers import Registers
from warpwright.vgpu.machine.tape import take_rows
from warpwright.vgpu.machine.warpgroup import Warpgroups

__all__ = ["SERVICES", "Cluster"]

_AVERAGED = 16  # calls of lane code
_UNUSED = 1 << 30  # fuel of a warp that did not run
_PARTS = (
    "in_flight", "warpgroups", "handlers", "named_barriers", "cluster_barrier", "tmem_columns", "registers", "schedule",
    "listener",
)  # fmt: skip


@functools.lru_cache(maxsize=KERNELS)
def _queues(kernel: Kernel) -> list[str]:
    """The queue of each instruction."""
    return [inst.traits.queue for inst in kernel.program.insts]


@functools.lru_cache(maxsize=KERNELS)
def _completes(kernel: Kernel) -> NDArray[np.bool_]:
    """Whether lane code completes each instruction, if engines only signal."""
    return np.array([bool(completion_of(inst)) for inst in kernel.program.insts], bool)


class Cluster(ClusterFabric):
    """A cluster and the loop that runs it.

    ``stuck``: nothing can run, and nothing is in flight. ``turn_seconds``: what calls of lane code take, a
    moving average; while they are brief they keep the interpreter lock.
    """

    named_barriers: NamedBarriers
    cluster_barrier: ClusterBarrier
    tmem_columns: services.TensorMemory
    registers: Registers
    schedule: RandomSchedule | None
    stuck = False
    turn_seconds = 4 * BRIEF

    def __init__(self, launch: Launch, rows: Rows | None = None) -> None:
        super().__init__(launch, rows)
        self.which = ctypes.c_int32()
        self.which_at = ctypes.addressof(self.which)
        self.in_flight = InFlight(self)
        self.warpgroups = Warpgroups(self)
        handlers = self._handlers()
        self.handlers = [handlers[queue] for queue in _queues(launch.kernel)]
        self.silent = launch.timed & _completes(launch.kernel)
        self.followed = self.listener is not None and (self.listener.events or self.listener.accesses)
        self.by_operation = self.listener is not None and (self.listener.events or bool(launch.seed))
        self.in_step = launch.in_step

    def start(self, number: int) -> None:
        super().start(number)
        self.in_flight.reset()
        self.warpgroups.reset()
        self.named_barriers, self.cluster_barrier = NamedBarriers(self), ClusterBarrier(self)
        self.tmem_columns, self.registers = services.TensorMemory(self), Registers(self)
        seed = self.launch.seed
        self.schedule = None
        if seed:
            self.schedule = RandomSchedule(self, self.in_flight, self.warpgroups, self.run_warp, seed)
        if self.listener:
            self.listener.begin(self)
        self.tell_ctas("start")

    def close(self) -> None:
        """Drop what refers back to the cluster: its memory, and that of the launch, is then freed without the garbage
        collector."""
        for name in _PARTS:
            vars(self).pop(name, None)

    def step(self) -> bool:
        """Run until the cluster is done (True), or its warps only spin, its turn is over, it is stuck or the launch is
        stopped (False). Raises the error of a warp, and LimitReached."""
        self.paused = False
        while not self.launch.stopped:
            if self.schedule and not self.schedule.run():
                return False
            code, moved = self._run(0, self.count, 1 if self.in_step else state.ROUNDS)
            if code == state.PAUSED and self.in_step:
                self.paused = True
                return False
            if (
                code in (state.QUEUE_FULL, state.PAUSED)
                or moved
                or self.in_flight.overtake(self.warpgroups.waiting())
                or self.warpgroups.settle()
                or self.in_flight.complete()
            ):
                continue
            if code == state.ALL_DONE:
                self._finish()
                return True
            self.stuck = code != state.SPINNING
            return False
        return False

    def run_warp(self, index: int, fuel: int) -> bool:
        """Run one warp for so many block jumps. Returns False if the warp cannot run."""
        warps = self.warps
        if warps["status"][index] == state.DONE:
            return False
        warps["slice"][index], warps["fuel"][index] = fuel, _UNUSED
        self._run(index, 1, state.ROUNDS)
        return int(warps["fuel"][index]) != _UNUSED

    def _run(self, first: int, count: int, rounds: int) -> tuple[int, bool]:
        """Run some warps for so many rounds, or until none of them can run. Returns the code of `run_cluster`, and
        whether the machine let warps go on. `run_cluster` settles named barriers unless a listener follows every turn,
        or only some warps run."""
        pointers, entry, bars = self.pointers_at + 8 * first, self.launch.kernel.entry, self.named_barriers
        alone = count == self.count and not self.followed
        start = time.thread_time()
        code = function("run_cluster", self.turn_seconds < BRIEF)(
            pointers, count, entry, self.which_at, rounds, bars.state_at if alone else None, bars.log_at,
        )  # fmt: skip
        self.turn_seconds += (time.thread_time() - start - self.turn_seconds) / _AVERAGED
        if self.rows is not None and self.listener:
            rows = take_rows(self.rows, self.launch.name)
            self.listener.take(self, rows, self.records[: int(self.queue[0])])
        moved = self._take_queue()
        if code == state.FAULTED:
            raise faults.fault(self, first + self.which.value)
        if code == state.OUT_OF_JUMPS:
            limit = f"did not end within {self.launch.limit:,} jumps of a warp"
            raise LimitReached(f"kernel {self.launch.name} {limit}; give a higher limit, or choose a smaller problem.")
        return code, self._settle() | moved

    def _finish(self) -> None:
        """All warps are done."""
        self.tmem_columns.check_freed()
        self.warpgroups.finish()
        if self.listener:
            self.listener.end(self)
        self.tell_ctas("exit")

    def stop(self, error: Exception, own: bool) -> None:
        """The cluster runs no further, by an error of its ``own`` or because the launch would never end."""
        if self.listener:
            self.listener.end(self, error, own)

    def _settle(self) -> bool:
        """Settle the barriers if a warp arrived at one or is done: nothing else changes them."""
        news = int(self.queue[2])
        self.queue[2] = 0
        moved = False
        if news & (1 | 1 << state.WAIT_BAR):
            moved = self.named_barriers.settle()
        if news & (1 | 1 << state.WAIT_CLUSTER):
            moved |= self.cluster_barrier.settle() if self.computes else self._settle_counter()
        return moved

    def _settle_counter(self) -> bool:
        """Settle the cluster barrier of runs that only signal: lane code counts arrivals, but not exits of threads."""
        live = int(np.bitwise_count(self.warps["live"]).sum())
        self.meeting[2] = live
        turns = bool(self.meeting[0]) and int(self.meeting[0]) >= live
        if turns:
            self.meeting[:2] = 0, self.meeting[1] + 1
        return turns

    def _take_queue(self) -> bool:
        """Handle the records of the queue. Returns True if a service let lanes go on."""
        count = int(self.queue[0])
        if not count:
            return False
        self.queue[0] = 0
        moved = False
        records, numbers = self.records[:count], self.next_numbers(count)
        if not self.computes:
            heard = ~self.silent[records[:, 0].astype(np.intp)]
            if not heard.any():
                return False
            records, numbers = records[heard], numbers[heard]
        if not self.by_operation:
            records, numbers = self.in_flight.enqueue_records(records, numbers)
        for record, number in zip(records.tolist(), numbers.tolist(), strict=True):
            moved |= self.handlers[record[0]](self.op_of(record, number))
        return moved

    def _handlers(self) -> Mapping[str, Callable[[Op], bool]]:
        """Returns by queue the function that takes an instruction's records; its result is whether lanes can go on."""
        found = defaultdict[str, Callable[[Op], bool]](lambda: self.in_flight.enqueue_copy)
        found["service"], found["tensor"] = self._serve, self.in_flight.enqueue_tensor
        found["mbarrier"], found["wgmma"] = self._observe, self.warpgroups.observe
        return found

    def _serve(self, op: Op) -> bool:
        """Perform a service and let the lanes that wait for it go on."""
        served = SERVICES[op.inst.name](self, op)
        if served:
            self.release(op.rank * self.per_cta + op.warp, state.WAIT_SERVICE)
        return served

    def _observe(self, op: Op) -> bool:
        """Report a record that lane code left for listeners: an mbarrier operation and what it saw."""
        barrier = Barrier(*divmod(op["host"] - self.shared_host, self.shared_stride))
        issuer = self.number, op.rank, op.warp, op.lane, op.inst
        if op.inst.find("p"):
            done = (op["done"] >> op.lane & 1) == 1
            self.tell(Event("wait", *issuer, barrier=barrier, parity=op["parity"] & 1, done=done))
            return False
        count, expect, complete = op["count"], op["expect"], op["complete"]
        kind = "arrive" if count else "expect_tx" if expect else "complete_tx"
        self.tell(Event(kind, *issuer, barrier=barrier, count=count, nbytes=expect or complete))
        return False

    def snapshot(self) -> bytes:
        """Returns what changes while a spinning cluster makes progress: program counters, whose turn it is, the
        registers that decide branches, and the time if they depend on it."""
        names, columns = self._deciding
        timed = any(name.startswith(("%clock", "%globaltimer")) for name in names)
        fields = [self.warps[name].tobytes() for name in ("pc", "bias", *["clock"] * timed)]
        return b"".join([*fields, self.bytes[:, columns].tobytes()])

    def writes(self) -> bool:
        """Whether a warp that spins writes memory in its loop."""
        runs = self.warps["live"] & ~self.warps["blocked"]
        blocks = {pc for warp in np.flatnonzero(runs).tolist() for pc in self.warps["pc"][warp].tolist()}
        return any(self._loops.writes(block) for block in blocks if block < len(self.launch.kernel.program.blocks))

    @functools.cached_property
    def _loops(self) -> spins.Loops:
        return spins.Loops(self.launch.kernel.program)

    @functools.cached_property
    def _deciding(self) -> tuple[frozenset[str], NDArray[np.intp]]:
        """Registers that decide branches, and where they are in the state of a warp."""
        kernel = self.launch.kernel
        names = spins.deciding(kernel.program)
        return names, spins.columns(kernel.slots, kernel.program.registers, names)


SERVICES: dict[str, Callable[[Cluster, Op], bool]] = {
    **services.SERVICES,
    "tcgen05.alloc": lambda cluster, op: cluster.tmem_columns.alloc(op),
    "tcgen05.dealloc": lambda cluster, op: cluster.tmem_columns.dealloc(op),
    "tcgen05.relinquish_alloc_permit": lambda cluster, op: cluster.tmem_columns.relinquish(op),
    "setmaxnreg": lambda cluster, op: cluster.registers.change(op),
}
