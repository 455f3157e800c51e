"""Named barriers of a CTA and the barrier of a cluster, settled by the machine (PTX ISA 9.1, 9.7.13.1 and 9.7.13.3).

Lane code blocks the lanes that reach a barrier. `settle` looks at all blocked warps, counts arrivals and releases the
warps whose barrier is complete. A warp arrives at a named barrier when all its live lanes have. `run_cluster` settles
named barriers without a return to Python where nothing else happens.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from warpwright.errors import ProtocolError
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import DONE, WAIT_CLUSTER
from warpwright.vgpu.machine import faults
from warpwright.vgpu.machine.state import ClusterState, lane_masks, lane_table

__all__ = ["ClusterBarrier", "NamedBarriers"]

_BARRIERS = 16


class NamedBarriers:
    """The 16 named barriers of every CTA of a cluster, which `bars.ll` settles.

    ``state`` (ranks, barriers, 5): threads that have arrived, threads that the barrier is for (0: all of the CTA), the
    warps that wait as a mask, true predicates, predicates; ``log``: how many warps arrived in the last call, and which.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.state = np.zeros((cluster.ranks, _BARRIERS, 5), np.int64)
        self.log = np.zeros(cluster.count + 1, np.int32)
        self.state_at, self.log_at = self.state.ctypes.data, self.log.ctypes.data

    def settle(self) -> bool:
        """Count new arrivals. Returns whether some warp may run on."""
        cluster = self.cluster
        found: int = function("settle_bars")(cluster.pointers_at, cluster.count, self.state_at, self.log_at)
        for index in self.log[1 : 1 + self.log[0]].tolist() if cluster.observed else ():
            cluster.tell_warp("bar", index, self._waits_at(index)[0])
        if found < 0:
            self._refuse(-1 - found)
        return found > 0

    def arrived(self, rank: int, number: int) -> int:
        """Returns how many threads have arrived at a barrier; 0 at one that does not exist, where lanes may wait."""
        return int(self.state[rank, number, 0]) if number < _BARRIERS else 0

    def progress(self, rank: int, number: int, count: int) -> str:
        """Returns how many threads have arrived at a barrier for ``count`` threads (0: all), in words."""
        return f"{self.arrived(rank, number)} of {count or self._live_threads(rank)} threads have arrived"

    def _live_threads(self, rank: int) -> int:
        """Returns the threads that a barrier without a count waits for: those of warps that have not exited."""
        per_cta = self.cluster.per_cta
        status = self.cluster.warps["status"][rank * per_cta : (rank + 1) * per_cta]
        return 32 * int(np.count_nonzero(status != DONE))

    def _waits_at(self, index: int) -> tuple[int, int, int]:
        """Returns the barrier of the lowest live lane of a warp, the threads that it gives, and the lane."""
        warp = self.cluster.warps[index]
        live = int(warp["live"])
        lane = (live & -live).bit_length() - 1
        return int(warp["wait_addr"][lane]), int(warp["wait_arg"][lane]) & 0xFFFF_FFFF, lane

    def _refuse(self, index: int) -> NoReturn:
        """Raises ProtocolError: a warp is at a barrier that is illegal or was begun with another number of threads."""
        number, count, lane = self._waits_at(index)
        if number >= _BARRIERS or count % 32:
            text = f"barrier {number} with {count} threads; expected barrier 0 to 15 and a multiple of 32."
        else:
            before = int(self.state[index // self.cluster.per_cta, number, 1])
            given, others = (f"{c} threads" if c else "all threads of the CTA" for c in (count, before))
            text = f"barrier {number} for {given}; others arrived at it for {others}: give the same count everywhere."
        raise faults.error(ProtocolError, self.cluster, self.cluster.waiting_at(index, lane), index, 0, text)


class ClusterBarrier:
    """The barrier of the cluster, which `bars.ll` settles: every thread waits for the phase that it arrived in.

    ``state``, masks of lanes by warp: ``arrived`` in this phase and not yet waited, and free: arrived in an earlier
    one; ``came``: the lanes that arrived in the last call.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.state = np.zeros((2, cluster.count), np.uint32)
        self.arrived = self.state[0]
        self.came = np.zeros(cluster.count, np.uint32)
        self.state_at, self.came_at = self.state.ctypes.data, self.came.ctypes.data

    def settle(self) -> bool:
        """Count new arrivals and release the lanes whose phase is over. Returns whether some lane may run on."""
        cluster = self.cluster
        found: int = function("settle_cluster")(cluster.pointers_at, cluster.count, self.state_at, self.came_at)
        if found < 0:
            self._refuse()
        for index in np.flatnonzero(self.came).tolist() if cluster.observed else ():
            cluster.tell_warp("cluster", index)
        return found > 0

    def has_arrived(self, index: int, lane: int) -> bool:
        """Whether a lane of a warp has arrived in this phase and not yet waited."""
        return bool(int(self.arrived[index]) >> lane & 1)

    def progress(self) -> str:
        """Returns how many threads have arrived, in words."""
        live = self.cluster.warps["live"]
        arrived, all_threads = (int(np.bitwise_count(masks).sum()) for masks in (live & self.arrived, live))
        return f"{arrived} of {all_threads} threads have arrived"

    def _refuse(self) -> NoReturn:
        """Raises ProtocolError: a lane arrives twice, or waits without having arrived."""
        warps, owed = self.cluster.warps, np.bitwise_or(*self.state)
        blocked = warps["blocked"] & warps["live"] & lane_masks(warps["wait_kind"] == WAIT_CLUSTER)
        waiting = blocked & lane_masks(warps["wait_arg"] != 0)
        wrong, what = (blocked ^ waiting) & owed, "arrives again before it has waited; alternate arrive and wait"
        if not wrong.any():
            wrong, what = waiting & ~owed, "waits without having arrived; put barrier.cluster.arrive before it"
        index, lane = np.argwhere(lane_table(wrong))[0].tolist()
        raise faults.error(ProtocolError, self.cluster, self.cluster.inst_at(index), index, lane, f"{what}.")
