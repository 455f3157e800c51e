"""Memory by lane code, in time."""

from __future__ import annotations

from warpwright.vgpu.timing.engine import Replay
from warpwright.vgpu.timing.state import Warp
from warpwright.vgpu.timing.steps import Access, Step
from warpwright.vgpu.timing.units import WINDOW

AHEAD = 8  # loads from shared memory that ptxas puts before the products of earlier ones: 32 registers of ldmatrix.x4
BACKLOG = 600.0  # cycles of traffic that stores may be ahead of L2 before the warp waits
LINE = 128.0

AMONG = ("need", "warp_product", "shared_access")

__all__ = ["STEPS"]


def fetched(replay: Replay, warp: Warp, access: Access, now: float) -> float:
    timing, work = replay.timing, warp.run.work
    served = replay.units.lsu[warp.rank].take(now, max(access.lines, access.nbytes / timing.l1_bytes))
    if not access.load:
        return max(served, replay.units.store(now, access.nbytes, warp.rank))
    latency = timing.ld_l2 + float(work.cold[access.position]) * (timing.ld_hbm - timing.ld_l2)
    hbm, share = float(work.hbm[access.position]), float(work.l2[access.position])
    return max(served, replay.units.fetch(now, access.nbytes, hbm, share, (warp.rank,))) + latency


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
    early = warp.early.pop(warp.at, None)
    if early is not None:
        warp.ready[step.inst] = early
        return now
    start = max(now, replay.units.lanes[warp.rank].free)
    end = served(replay, warp, step, now)
    if step.what:
        warp.ready[step.inst] = end
    return max(now + 1, start)


def served(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """When what shared memory is asked for is there."""
    timing, cycles = replay.timing, step.number * LINE / replay.timing.shared_bytes
    end = replay.units.lanes[warp.rank].take(now, cycles)
    return max(end, replay.units.shared[warp.rank].take(now, cycles, WINDOW)) + timing.shared_latency


def remote_access(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    timing = replay.timing
    end = replay.units.remote[warp.rank].take(now, step.number * LINE / timing.dsmem_bytes)
    if step.what:
        warp.ready[step.inst] = end + timing.dsmem_latency
    return max(now + 1, end - step.number * LINE / timing.dsmem_bytes)


def need(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    ready = warp.ready.get(step.number, 0.0)
    if ready > now:
        look_ahead(replay, warp, step, now)
    return max(now, ready)


def look_ahead(replay: Replay, warp: Warp, step: Step, now: float) -> None:
    """Issue the loads that stand among products: ptxas puts them before products that wait for earlier ones."""
    steps, count = warp.steps, len(warp.early)
    for at in range(warp.at + 1, len(steps)):
        other = steps[at]
        if count >= AHEAD or other.kind not in AMONG or (other.kind != "need" and other.inst < step.number):
            return
        if other.kind == "shared_access" and at not in warp.early:
            if not other.what:
                return
            warp.early[at] = served(replay, warp, other, now)
            count += 1


STEPS = {
    "global_access": global_access,
    "shared_access": shared_access,
    "remote_access": remote_access,
    "need": need,
}
