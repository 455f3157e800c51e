"""The waits of a cluster in which nothing can run: lanes grouped by line and by what they wait for."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_CLUSTER, WAIT_MBARRIER
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.program.program import Inst

__all__ = ["GATHERS", "NOWHERE", "SPINS", "Wait", "waits"]

NOWHERE = -1
GATHERS, SPINS = -1, -2  # kinds beside those of `jit.state`: for other lanes of the warp; in a loop


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """Lanes (of the cluster) of one CTA that wait at ``inst``. ``target``: place of an mbarrier (also of one that is
    tested in circles), number of a named barrier, else NOWHERE; ``parity`` that is waited for; ``block``: where they
    go on."""

    kind: int
    rank: int
    inst: Inst
    block: int
    target: int
    parity: int
    lanes: tuple[int, ...]

    @property
    def warps(self) -> set[int]:
        """Their warps, of the cluster."""
        return {lane // 32 for lane in self.lanes}


def waits(cluster: Cluster) -> list[Wait]:
    """Returns every live lane of a cluster, in groups; the first lanes first."""
    found: dict[tuple[int, ...], list[int]] = {}
    insts: dict[int, Inst] = {}
    for index in range(cluster.count):
        live = int(cluster.warps["live"][index])
        for lane in range(32):
            if live >> lane & 1:
                key, inst = _wait(cluster, index, lane)
                insts[inst.index] = inst
                found.setdefault(key, []).append(32 * index + lane)
    return [
        Wait(kind, rank, insts[inst], block, target, parity, tuple(lanes))
        for (kind, rank, inst, block, target, parity), lanes in found.items()
    ]


def _wait(cluster: Cluster, index: int, lane: int) -> tuple[tuple[int, ...], Inst]:
    warp, rank = cluster.warps[index], index // cluster.per_cta
    inst, block = cluster.waiting_at(index, lane), int(warp["pc"][lane])
    if not int(warp["blocked"]) >> lane & 1:
        parked = int(warp["parked"]) >> lane & 1
        return (GATHERS if parked else SPINS, rank, inst.index, block, NOWHERE, 0), inst
    kind, address = int(warp["wait_kind"][lane]), int(warp["wait_addr"][lane])
    target = {WAIT_MBARRIER: address - cluster.shared_host, WAIT_BAR: address, WAIT_CLUSTER: 0}.get(kind, NOWHERE)
    parity = int(warp["wait_arg"][lane]) & 1 if kind == WAIT_MBARRIER else 0
    return (kind, rank, inst.index, block, target, parity), inst
