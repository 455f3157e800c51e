"""Memory by lane code, in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpwright.vgpu.timing.state import Warp
from warpwright.vgpu.timing.steps import Access, Step
from warpwright.vgpu.timing.units import WINDOW

if TYPE_CHECKING:
    from warpwright.vgpu.timing.replay import Replay

BACKLOG = 600.0  # cycles of traffic that stores may be ahead of L2 before the warp waits
LINE = 128.0

__all__ = ["STEPS"]


def fetched(replay: Replay, warp: Warp, access: Access, now: float) -> float:
    timing, work = replay.timing, warp.run.work
    served = replay.units.lsu[warp.rank].take(now, max(access.lines, access.nbytes / timing.l1_bytes))
    if not access.load:
        return max(served, replay.units.store(now, access.nbytes, warp.rank))
    latency = timing.ld_l2 + float(work.cold[access.position]) * (timing.ld_hbm - timing.ld_l2)
    miss, share = work.memory(access.position, timing), float(work.l2[access.position])
    return max(served, replay.units.fetch(now, access.nbytes, miss, share, (warp.rank,))) + latency


def global_access(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    access: Access = step.what
    start = max(now, replay.units.lsu[warp.rank].free)
    end = fetched(replay, warp, access, now)
    if access.load:
        warp.ready[step.inst] = end
        return start + 1
    warp.run.last = max(warp.run.last, end)
    return max(start + 1, replay.units.l2.free - BACKLOG, replay.units.hbm.free - BACKLOG)


def shared_access(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    timing, lanes = replay.timing, replay.units.lanes[warp.rank]
    cycles = step.number * LINE / timing.shared_bytes
    start = max(now, lanes.free)
    end = max(lanes.take(now, cycles), replay.units.shared[warp.rank].take(now, cycles, WINDOW))
    if step.what:
        warp.ready[step.inst] = end + timing.shared_latency
    return max(now + 1, start)


def remote_access(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    timing = replay.timing
    end = replay.units.remote[warp.rank].take(now, step.number * LINE / timing.dsmem_bytes)
    if step.what:
        warp.ready[step.inst] = end + timing.dsmem_latency
    return max(now + 1, end - step.number * LINE / timing.dsmem_bytes)


def need(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return max(now, warp.ready.get(step.number, 0.0))


STEPS = {
    "global_access": global_access,
    "shared_access": shared_access,
    "remote_access": remote_access,
    "need": need,
}
