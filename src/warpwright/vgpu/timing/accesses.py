"""Timing of global, shared and distributed shared memory accesses of lane code."""

from __future__ import annotations

from warpwright.vgpu.timing.engine import Replay
from warpwright.vgpu.timing.state import Warp
from warpwright.vgpu.timing.steps import Access, Step
from warpwright.vgpu.timing.units import WINDOW

AHEAD = 8  # shared-memory loads that ptxas hoists above the MMAs of earlier loads: 32 registers of ldmatrix.x4
BACKLOG = 600.0  # cycles of store traffic queued at L2 before the warp stalls
LINE = 128.0

HOISTABLE = ("need", "warp_mma", "shared_access")

__all__ = ["STEPS"]


def time_global(replay: Replay, warp: Warp, access: Access, now: float) -> float:
    timing, work = replay.timing, warp.run.work
    each = 1.0 if access.load else timing.store_line
    served = replay.units.lsu[warp.rank].take(now, max(each * access.lines, access.nbytes / timing.l1_bytes))
    if not access.load:
        slower = timing.l2_write_bytes / timing.l2_add_bytes if access.adds else 1.0
        slower = max(slower, access.lines * timing.store_least / access.nbytes) if access.nbytes else slower
        evicted = work.hbm[access.position] if access.adds else float(not access.again)
        link = work.link[access.position]
        return max(served, replay.units.store(now, access.nbytes, warp.rank, slower, evicted=evicted, link=link))
    latency = timing.ld_l2 + work.cold[access.position] * (timing.ld_hbm - timing.ld_l2)
    hbm, share = work.hbm[access.position], work.l2[access.position]
    link = work.link[access.position]
    return max(served, replay.units.fetch(now, access.nbytes, hbm, share, (warp.rank,), link)) + latency


def global_access(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    access: Access = step.what
    start = max(now, replay.units.lsu[warp.rank].free)
    end = time_global(replay, warp, access, now)
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
    end = time_shared(replay, warp, step, now)
    if step.what:
        warp.ready[step.inst] = end
    return max(now + 1, start)


def time_shared(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """The time at which a shared-memory access completes."""
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
    """Issue the shared-memory loads among the next MMAs early: ptxas hoists loads above MMAs that wait for earlier
    loads."""
    steps, count = warp.steps, len(warp.early)
    for at in range(warp.at + 1, len(steps)):
        other = steps[at]
        if count >= AHEAD or other.kind not in HOISTABLE or (other.kind != "need" and other.inst < step.number):
            return
        if other.kind == "shared_access" and at not in warp.early:
            if not other.what:
                return
            warp.early[at] = time_shared(replay, warp, other, now)
            count += 1


STEPS = {
    "global_access": global_access,
    "shared_access": shared_access,
    "remote_access": remote_access,
    "need": need,
}
