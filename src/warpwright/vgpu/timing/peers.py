"""Accesses of other ranks' memory in the rows of a rank of a node; polls of a flag count once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.jit.costs import NEED, is_memory
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.program.program import Inst

__all__ = ["Peers"]

Rows = NDArray[np.int64]
NEAR = 4  # rows from a poll of a loop to the next


class Peers:
    """The arrays of the ranks of a node by address, on the host and of the kernel."""

    def __init__(self, launch: Launch) -> None:
        shifts = {low: host for low, _, host in launch.table.tolist()}
        firsts = np.array(sorted(shifts), np.int64)
        rows = []
        for low, high, _, rank in launch.owners:
            shift = shifts[int(firsts[np.searchsorted(firsts, low, "right") - 1])]
            rows += [(low, high, rank), (low + shift, high + shift, rank)]
        self.low, self.high, self.rank = np.array(sorted(set(rows)), np.int64).reshape(-1, 3).T
        self.polls = np.array([_is_poll(inst) for inst in launch.insts], np.bool_)
        self.maps = np.array([_first_column(inst, "map") for inst in launch.insts], np.int64)
        self.addresses = np.array([_address_column(inst) for inst in launch.insts], np.int64)

    def without_polls(self, rows: Rows) -> tuple[NDArray[np.bool_], Rows]:
        """Returns which rows, in order of their warps, are not of a poll that its loop repeats, and those rows, whose
        counters lack what the repetitions took."""
        numbers = rows[:, 0] & 0xFFFF_FFFF
        polls = np.flatnonzero(self.polls[np.where(numbers < NEED, numbers, 0)] & (numbers < NEED))
        same = (rows[polls[1:], 0] == rows[polls[:-1], 0]) & (rows[polls[1:], 3] == rows[polls[:-1], 3])
        again = np.flatnonzero(same & (np.diff(polls) <= NEAR))
        firsts, lasts = polls[again], polls[again + 1]
        edges = np.zeros(len(rows) + 1, np.int64)
        edges[firsts] += 1
        edges[lasts] -= 1
        kept, rest = np.cumsum(edges[:-1]) == 0, rows.copy()
        for word in (1, 4):
            rest[:, word] -= _within_warps(rows[:, 0] >> 32, lasts, rows[lasts, word] - rows[firsts, word])
        return kept, rest[kept]

    def far(
        self,
        cluster: ClusterState,
        rows: Rows,
        records: Rows,
        access: NDArray[np.bool_],
        copies: NDArray[np.bool_],
        counts: Rows,
    ) -> NDArray[np.float64]:
        """Returns 1 for the positions of a cluster's traffic whose memory another rank has, else 0."""
        addresses = np.zeros(int(counts.sum()), np.int64)
        at = (np.cumsum(counts) - counts)[access]
        of_boxes = np.ones(len(addresses), np.bool_)
        of_boxes[at] = False
        addresses[at] = rows[access, 3]
        if of_boxes.any():
            own = records[np.isin(records[:, 0], np.unique(rows[copies, 0] & 0xFFFF_FFFF))]
            addresses[of_boxes] = [self._address(cluster, record) for record in own]
        ranks = self._ranks(addresses)
        found: NDArray[np.float64] = ((ranks >= 0) & (ranks != cluster.peer)).astype(np.float64)
        return found

    def _ranks(self, addresses: Rows) -> Rows:
        """Returns the ranks that have the memory at addresses, -1 for memory of no rank."""
        found = np.searchsorted(self.low, addresses, "right") - 1
        inside = (found >= 0) & (addresses < self.high[np.maximum(found, 0)])
        return np.where(inside, self.rank[found], -1)

    def _address(self, cluster: ClusterState, record: Any) -> int:
        """Returns the address of a copy's global memory: of its array, if a tensor map names it."""
        inst = int(record[0])
        if self.maps[inst] >= 0:
            return cluster.launch.maps.bound[int(record[2 + self.maps[inst]])].address
        return int(record[2 + self.addresses[inst]]) if self.addresses[inst] >= 0 else 0


def _within_warps(warps: Rows, at: Rows, amounts: Rows) -> Rows:
    """Returns for each row the sum of the ``amounts`` that belong to rows of the same warp up to it; warps ascend."""
    each = np.zeros(len(warps), np.int64)
    each[at] = amounts
    sums = np.cumsum(each)
    starts = np.flatnonzero(np.diff(warps, prepend=-1))
    before = sums[starts] - each[starts]
    found: Rows = sums - before[np.searchsorted(starts, np.arange(len(warps)), "right") - 1]
    return found


def _is_poll(inst: Inst) -> bool:
    """Whether an instruction is a load that other threads' stores may end a loop of."""
    semantics = inst["sem"] if "sem" in inst.form.slots else ""
    return is_memory(inst) and inst.traits.access == "read" and semantics in ("acquire", "relaxed", "volatile")


def _first_column(inst: Inst, name: str) -> int:
    return inst.columns[name].start if inst.form.queued and name in inst.columns else -1


def _address_column(inst: Inst) -> int:
    """Returns the word of the address in global memory of a copy without a tensor map, -1 for other instructions."""
    to_global = "dst" in inst.form.slots and inst["dst"] == "global"
    return _first_column(inst, "dst_mem" if to_global else "src_mem")
