"""The text of the waits of a stuck cluster: each lane and the barrier that it waits for."""

from __future__ import annotations

from collections.abc import Callable

from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_BULK, WAIT_CLUSTER, WAIT_MBARRIER, WAIT_SERVICE, WAIT_WGMMA
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.faults import describe_word
from warpwright.vgpu.program.program import place

__all__ = ["deadlock", "waits_for"]


def deadlock(cluster: Cluster) -> str:
    """Returns the message of a deadlock: which lanes of a cluster wait for what."""
    rows = [row for index in range(cluster.count) for row in _waits(cluster, index)]
    shown = rows[:12] + ([f"… and {len(rows) - 12} more"] if len(rows) > 12 else [])
    return f"kernel {cluster.launch.name}: no warp can make progress.\n  " + "\n  ".join(shown)


def _waits(cluster: Cluster, index: int) -> list[str]:
    warp = cluster.warps[index]
    live = int(warp["live"])
    rows: dict[str, list[int]] = {}
    for lane in range(32):
        if live >> lane & 1:
            rows.setdefault(_wait(cluster, index, lane), []).append(lane)
    rank, number = divmod(index, cluster.per_cta)
    cta = cluster.launch.cta_of(cluster.first, rank)
    return [f"CTA {cta}, warp {number}, {_lane_text(lanes)}: {what}" for what, lanes in rows.items()]


def _lane_text(lanes: list[int]) -> str:
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    return f"lanes {lanes[0]}-{lanes[-1]}" if lanes == list(range(lanes[0], lanes[-1] + 1)) else f"{len(lanes)} lanes"


def _wait(cluster: Cluster, index: int, lane: int) -> str:
    return f"{waits_for(cluster, index, lane)} ({place(cluster.waiting_at(index, lane))})"


def waits_for(cluster: Cluster, index: int, lane: int) -> str:
    """Returns what a lane that cannot run waits for, in words."""
    warp = cluster.warps[index]
    if not int(warp["blocked"]) >> lane & 1:
        parked = int(warp["parked"]) >> lane & 1
        return "waits for the other lanes of its warp" if parked else "runs in circles"
    kind, argument = int(warp["wait_kind"][lane]), int(warp["wait_arg"][lane])
    return _WAITS[kind](cluster, index, int(warp["wait_addr"][lane]), argument)


def _wait_mbarrier(cluster: Cluster, index: int, address: int, argument: int) -> str:
    rank, offset = divmod(address - cluster.shared_host, cluster.shared_stride)
    state = describe_word(cluster, rank, offset)
    return f"waits for parity {argument & 1} of the mbarrier at offset 0x{offset:x} of CTA {rank} ({state})"


def _wait_bar(cluster: Cluster, index: int, address: int, argument: int) -> str:
    progress = cluster.named_barriers.progress(index // cluster.per_cta, address, argument & 0xFFFF_FFFF)
    return f"waits at barrier {address} ({progress})"


def _service(cluster: Cluster, index: int) -> str:
    return cluster.registers.wanted(index) or cluster.tmem_columns.wanted(index // cluster.per_cta)


_WAITS: dict[int, Callable[[Cluster, int, int, int], str]] = {
    WAIT_MBARRIER: _wait_mbarrier,
    WAIT_BAR: _wait_bar,
    WAIT_CLUSTER: lambda cluster, index, address, argument: (
        f"waits at the barrier of the cluster ({cluster.cluster_barrier.progress()})"
    ),
    WAIT_BULK: lambda cluster, index, address, argument: "waits for its bulk groups",
    WAIT_SERVICE: lambda cluster, index, address, argument: f"waits for {_service(cluster, index)}",
    WAIT_WGMMA: lambda cluster, index, address, argument: f"waits for its wgmma: {cluster.warpgroups.missing(index)}",
}
