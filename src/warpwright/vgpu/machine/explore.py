"""Another schedule of a cluster, chosen by a seed: which warp runs next, which asynchronous operation completes when.

An agent is a warp, the copies in flight, a tensor core, or the wgmma that warps wait for. Agents have an order: the
first agent that can run has a turn, and now and then the order changes. A schedule by priorities finds the bugs that a
few changes suffice for (Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
ASPLOS 2010). An agent at the end of the order runs as late as is legal; an agent at the start completes operations as
soon as they are issued.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit import state
from warpwright.vgpu.machine.inflight import InFlight
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.machine.warpgroup import Warpgroups

__all__ = ["RandomSchedule", "together"]

COPIES, TENSOR, WGMMA = -1, -2, -3  # agents beside the warps
_LEAST, _MOST = (1, 2, 8), (8, 200, 1000)  # block jumps of a first turn, and of a long one
_PAUSES = (0.03, 0.3, 0.6)  # shares of turns after which another cluster runs
_PATIENCE = 50  # long turns in a row
_SPIN = 1_000  # block jumps without a wait after which a warp may spin
_CHANGES = (0.0, 0.02, 0.2, 0.7)  # shares of turns after which the order changes
_EAGER = 0.25  # share of schedules in which nothing stays in flight


def together(seed: int) -> int:
    """Returns how many clusters take turns from the start."""
    return Random(f"{seed} together").choice((1, 2, 4))


class RandomSchedule:
    """Runs the warps and the asynchronous engines of a cluster in a random order that a seed repeats.

    ``slices``: block jumps that each warp may take in one turn: ``least`` after a wait, twice as many after each turn
    without a wait, up to ``most``, and more if the warp seems to run forever. ``since``: block jumps of each warp since
    its last wait. ``eager``: an issued operation completes before any warp runs. ``pauses``: the share of turns after
    which the cluster is ``paused`` and another cluster runs.
    """

    def __init__(
        self,
        cluster: ClusterState,
        in_flight: InFlight,
        warpgroups: Warpgroups,
        run_warp: Callable[[int, int], bool],
        seed: int,
    ) -> None:
        self.cluster, self.in_flight, self.warpgroups, self.run_warp = cluster, in_flight, warpgroups, run_warp
        self.random = Random(f"{seed} {cluster.number}")
        self.agents = [COPIES, TENSOR, WGMMA, *range(cluster.count)]
        self.random.shuffle(self.agents)
        self.eager = self.random.random() < _EAGER
        self.agents.sort(key=lambda agent: self.eager and agent >= 0)
        self.least, self.most = self.random.choice(_LEAST), self.random.choice(_MOST)
        self.changes = self.random.choice(_CHANGES)
        self.slices = [self.least] * cluster.count
        self.since = [0] * cluster.count
        self.pauses = self.random.choice(_PAUSES) if together(seed) > 1 else 0.0

    def run(self) -> bool:
        """Run agents until none can run (True), or until warps only spin or another cluster has its turn (False)."""
        spun = 0
        while spun <= len(self.agents):
            agent = next((agent for agent in self.agents if self._turn(agent)), None)
            if agent is None:
                return True
            if agent >= 0 and self._used_up(agent):
                spun += self._spins(agent)
            else:
                spun = 0
                self._change(agent)
            if not spun and self.random.random() < self.pauses:
                self.cluster.paused = True
                return False
        return False

    def _used_up(self, warp: int) -> bool:
        """Whether a warp has used up its turn. After a wait a warp starts with a short turn."""
        if self.cluster.warps["status"][warp] == state.FUEL:
            return True
        self.slices[warp], self.since[warp] = self.least, 0
        if self.random.random() < self.changes:
            self.cluster.warps["bias"][warp] = self._block(warp)
        return False

    def _block(self, warp: int) -> int:
        """Returns the block of a random lane of a warp: that lane runs first in the next turn."""
        live = int(self.cluster.warps["live"][warp])
        lanes = [lane for lane in range(32) if live >> lane & 1]
        return int(self.cluster.warps["pc"][warp][self.random.choice(lanes)]) if lanes else 0

    def _spins(self, warp: int) -> bool:
        """Lengthen the turns of a warp that used up its turn. Each time that it has run as long as a spin, move it to
        the end of the order and return True."""
        before = self.since[warp]
        self.since[warp] += self.slices[warp]
        longer = self.since[warp] > _PATIENCE * self.most
        self.slices[warp] = min(2 * self.slices[warp], _SPIN if longer else self.most)
        if self.since[warp] // _SPIN == before // _SPIN:
            self._change(warp)
            return False
        self._move(warp, len(self.agents))
        return True

    def _change(self, agent: int) -> None:
        """Now and then move an agent. An eager schedule leaves the agents that complete operations at the start."""
        if self.random.random() < self.changes and not (self.eager and agent < 0):
            self._move(agent, self.random.randrange(3 * self.eager, len(self.agents)))

    def _move(self, agent: int, place: int) -> None:
        self.agents.remove(agent)
        self.agents.insert(place, agent)

    def _turn(self, agent: int) -> bool:
        """Run an agent for a turn. Returns False if it cannot run."""
        if agent == COPIES:
            return self._copy()
        if agent == TENSOR:
            return self._tensor()
        if agent == WGMMA:
            return self.warpgroups.settle()
        return self.run_warp(agent, self.slices[agent])

    def _copy(self) -> bool:
        """Complete one copy: a random one, but cp.async in order of issue."""
        ops = self.in_flight.copy_ops
        if not ops:
            return False
        op = self.random.choice(ops)
        if op.inst.traits.queue == "lane-copy":
            op = next(other for other in ops if other.inst.traits.queue == "lane-copy")
        ops.remove(op)
        self.in_flight.complete_copies([op])
        self._release(op)
        return True

    def _release(self, op: Op) -> None:
        """Release a lane that waits for its groups if none of its copies is in flight."""
        thread = op.rank, op.warp, op.lane
        if any((other.rank, other.warp, other.lane) == thread for other in self.in_flight.copy_ops):
            return
        warps, index = self.cluster.warps, op.rank * self.cluster.per_cta + op.warp
        for counter in ("groups", "lane_groups", "uncommitted", "lane_uncommitted"):
            warps[counter][index, op.lane] = 0
        if warps["wait_kind"][index, op.lane] == state.WAIT_BULK:
            warps["blocked"][index] &= np.uint32(~(1 << op.lane) & 0xFFFF_FFFF)

    def _tensor(self) -> bool:
        """Complete the operations of one tensor core up to its next commit."""
        ops = self.in_flight.tensor_ops
        if not ops:
            return False
        pipe = _pipe(self.random.choice(ops))
        chosen: list[Op] = []
        for op in ops:
            if _pipe(op) == pipe:
                chosen.append(op)
                if "mbar" in op:
                    break
        done = {op.number for op in chosen}
        self.in_flight.tensor_ops = [op for op in ops if op.number not in done]
        self.in_flight.complete_tensor(chosen)
        return True


def _pipe(op: Op) -> int:
    """Returns the CTA whose tensor core performs an operation: the even CTA of a pair."""
    return op.rank & ~1 if op.inst["group"].endswith("2") else op.rank
