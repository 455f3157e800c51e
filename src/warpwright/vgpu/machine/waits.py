"""The text of the waits of a stuck cluster: each lane and the barrier that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from warpwright.vgpu.jit.state import WAIT_BAR, WAIT_BULK, WAIT_CLUSTER, WAIT_MBARRIER, WAIT_SERVICE, WAIT_WGMMA
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.faults import describe_word
from warpwright.vgpu.machine.launch import Dim3
from warpwright.vgpu.program.program import place

__all__ = ["deadlock", "number_text", "waits_for", "warp_text"]


_ADVICE = "`ww.check`, or `warpwright run --check` of a program, reports who should have arrived."


def deadlock(*clusters: Cluster) -> str:
    """Returns the message of a deadlock: which lanes of clusters wait for what, equal warps of a CTA once."""
    rows: dict[tuple[Dim3, str, str], list[int]] = {}
    for cluster, index in ((each, index) for each in clusters for index in range(each.count)):
        rank, number = divmod(index, cluster.per_cta)
        for what, lanes in _waits(cluster, index).items():
            cta = cluster.launch.cta_of(cluster.first, rank)
            rows.setdefault((cta, _lane_text(lanes), what), []).append(number)
    texts = [f"CTA {cta}, {warp_text(warps)}, {lanes}: {what}" for (cta, lanes, what), warps in rows.items()]
    shown = texts[:12] + ([f"… and {len(texts) - 12} more"] if len(texts) > 12 else [])
    return f"kernel {clusters[0].launch.name}: no warp can make progress.\n  " + "\n  ".join([*shown, _ADVICE])


def _waits(cluster: Cluster, index: int) -> dict[str, list[int]]:
    """Returns the lanes of a warp by what they wait for."""
    live = int(cluster.warps[index]["live"])
    rows: dict[str, list[int]] = {}
    for lane in range(32):
        if live >> lane & 1:
            rows.setdefault(_wait(cluster, index, lane), []).append(lane)
    return rows


def number_text(numbers: Iterable[int]) -> str:
    """Returns ``"0-3, 7"``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def warp_text(warps: Iterable[int]) -> str:
    """Returns ``"warps 4-7"``."""
    numbers = set(warps)
    return f"warp{'s' * (len(numbers) > 1)} {number_text(numbers)}"


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
