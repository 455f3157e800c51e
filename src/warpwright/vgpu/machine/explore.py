"""Another schedule of a cluster, chosen by a seed: which warp goes on, which asynchronous operation completes when.

Whoever can do something is an agent: a warp, the copies in flight, a tensor core, the wgmma that are waited for. Agents
have an order; the first that can go on does, for a turn, and now and then the order changes (a schedule by priorities
finds what a few changes are enough for: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of
Finding Bugs", ASPLOS 2010). An agent at the end of the order is as late as can be, a copy as late as is legal; one at
the start completes what it can as soon as it is issued.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from warpwright.vgpu.engines.lane_copy import LANE_COPIES
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit import state
from warpwright.vgpu.machine.inflight import InFlight
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.machine.warpgroup import Warpgroups

__all__ = ["Order", "together"]

COPIES, TENSOR, WGMMA = -1, -2, -3  # agents beside the warps
_LEAST, _MOST = (1, 2, 8), (8, 200, 1000)  # block jumps of a first turn, and of a long one
_PAUSES = (0.03, 0.3, 0.6)  # shares of turns after which another cluster goes on
_PATIENCE = 50  # long turns in a row
_CHANGES = (0.0, 0.02, 0.2, 0.7)  # shares of turns after which the order changes
_EAGER = 0.25  # share of schedules in which nothing stays in flight


def together(seed: int) -> int:
    """How many clusters go on by turns from the start."""
    return Random(f"{seed} together").choice((1, 2, 4))


class Order:
    """The order of a cluster's agents.

    ``slices``: block jumps that each warp gets in a turn: ``least`` when it has waited, the more the longer it does
    not, up to ``most``, and further when it seems to go on for ever. ``since``: how many it has made without waiting.
    ``eager``: what is issued completes before any warp goes on. ``pauses``: share of turns after which another cluster
    goes on, for which the cluster is ``paused``.
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
        """Let agents go on until none can (True), or warps only spin or it is another cluster's turn (False)."""
        spun = 0
        while spun <= len(self.agents):
            agent = next((agent for agent in self.agents if self._turn(agent)), None)
            if agent is None:
                return True
            if agent >= 0 and self._tired(agent):
                spun += self._spins(agent)
            else:
                spun = 0
                self._change(agent)
            if not spun and self.random.random() < self.pauses:
                self.cluster.paused = True
                return False
        return False

    def _tired(self, warp: int) -> bool:
        """Whether a warp has used up its turn; one that has waited begins with a short one."""
        if self.cluster.warps["status"][warp] == state.FUEL:
            return True
        self.slices[warp], self.since[warp] = self.least, 0
        if self.random.random() < self.changes:
            self.cluster.warps["bias"][warp] = self._block(warp)
        return False

    def _block(self, warp: int) -> int:
        """Where some lane of a warp is: it goes first next time."""
        live = int(self.cluster.warps["live"][warp])
        lanes = [lane for lane in range(32) if live >> lane & 1]
        return int(self.cluster.warps["pc"][warp][self.random.choice(lanes)]) if lanes else 0

    def _spins(self, warp: int) -> bool:
        """Let a tired warp have more, or, when it has gone on for as long as a spin does, come last (True)."""
        most = self.cluster.launch.slice
        self.since[warp] += self.slices[warp]
        longer = self.since[warp] > _PATIENCE * self.most
        self.slices[warp] = min(2 * self.slices[warp], most if longer else self.most)
        if self.since[warp] < most:
            self._change(warp)
            return False
        self._move(warp, len(self.agents))
        self.since[warp] = 0
        return True

    def _change(self, agent: int) -> None:
        """Now and then an agent gets another place; what completes all that is issued keeps the first."""
        if self.random.random() < self.changes and not (self.eager and agent < 0):
            self._move(agent, self.random.randrange(3 * self.eager, len(self.agents)))

    def _move(self, agent: int, place: int) -> None:
        self.agents.remove(agent)
        self.agents.insert(place, agent)

    def _turn(self, agent: int) -> bool:
        """Let an agent go on; False when it cannot."""
        if agent == COPIES:
            return self._copy()
        if agent == TENSOR:
            return self._tensor()
        if agent == WGMMA:
            return self.warpgroups.settle()
        return self.run_warp(agent, self.slices[agent])

    def _copy(self) -> bool:
        """Complete one copy: any, but those that a lane issues for itself one after the other."""
        ops = self.in_flight.copy_ops
        if not ops:
            return False
        op = self.random.choice(ops)
        if op.inst.name in LANE_COPIES:
            op = next(other for other in ops if other.inst.name in LANE_COPIES)
        ops.remove(op)
        self.in_flight.complete_copies([op])
        self._release(op)
        return True

    def _release(self, op: Op) -> None:
        """A lane that waits for its groups goes on when none of its copies is in flight."""
        who = op.rank, op.warp, op.lane
        if any((other.rank, other.warp, other.lane) == who for other in self.in_flight.copy_ops):
            return
        warps, index = self.cluster.warps, op.rank * self.cluster.per_cta + op.warp
        for counter in ("groups", "lane_groups", "uncommitted", "lane_uncommitted"):
            warps[counter][index, op.lane] = 0
        if warps["wait_kind"][index, op.lane] == state.WAIT_BULK:
            warps["blocked"][index] &= np.uint32(~(1 << op.lane) & 0xFFFF_FFFF)

    def _tensor(self) -> bool:
        """Complete what one tensor core has to do up to its next commit."""
        ops = self.in_flight.tensor_ops
        if not ops:
            return False
        pipe = _pipe(self.random.choice(ops))
        chosen: list[Op] = []
        for op in ops:
            if _pipe(op) == pipe:
                chosen.append(op)
                if op.inst.name == "tcgen05.commit":
                    break
        done = {op.number for op in chosen}
        self.in_flight.tensor_ops = [op for op in ops if op.number not in done]
        self.in_flight.complete_tensor(chosen)
        return True


def _pipe(op: Op) -> int:
    """The CTA whose tensor core does an operation, the even one of a pair."""
    return op.rank & ~1 if op.inst["group"].endswith("2") else op.rank
