"""Timing of copies: boxes through TMA, cp.async of lanes, distributed shared memory."""

from __future__ import annotations

from bisect import insort
from functools import partial

from warpwright.vgpu.timing.accesses import time_global
from warpwright.vgpu.timing.engine import Cause, Replay
from warpwright.vgpu.timing.state import Warp, Work
from warpwright.vgpu.timing.steps import Box, Step
from warpwright.vgpu.timing.units import WINDOW

__all__ = ["STEPS"]


def load_box(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    run, box, timing = warp.run, step.what, replay.timing
    unit = replay.units.tma[warp.rank]
    first = timing.tma_first if unit.busy == 0 else 0.0
    served = unit.take(now + first, timing.tma_box + box.requests * timing.tma_row)
    start = served - box.requests * timing.tma_row
    latency = latency_of(replay, run.work, box.position)
    ranks = tuple(rank for rank, _, _ in box.targets)
    hbm, share, link = (each[box.position] for each in (run.work.hbm, run.work.l2, run.work.link))
    end = max(served, replay.units.fetch(start, box.nbytes, hbm, share, ranks, link)) + latency
    for target in box.targets:
        replay.at(end, partial(land_box, replay), target, (warp, step, now))
    if run.first:
        replay.journal.add_copy(warp, step, now, end)
    return now + timing.tma_issue


def latency_of(replay: Replay, work: Work, position: int) -> float:
    """Cycles from the issue of a small box to its arrival, with random jitter."""
    timing, cold = replay.timing, work.cold[position]
    latency = timing.tma_l2 + cold * (timing.tma_hbm - timing.tma_l2) + work.fresh[position] * timing.tma_fresh
    late = timing.tma_late_l2 + cold * (timing.tma_late_hbm - timing.tma_late_l2)
    return latency + replay.chance.expovariate(1 / late) if late else latency


def land_box(replay: Replay, now: float, target: tuple[int, int, int], cause: Cause) -> None:
    rank, offset, barrier = target
    run, box = cause[0].run, cause[1].what
    timing, unit = replay.timing, replay.units.shared[rank]
    cycles = box.nbytes / timing.shared_bytes
    share = timing.pair_writes if run.work.program.pairs else timing.shared_writes
    unit.take(now, cycles * share, WINDOW)
    unit.busy += cycles * (1 - share)
    place = run.boxes[rank]
    if (rank, offset) not in run.box_keys:
        insort(place, offset)
    run.box_keys[rank, offset] = box.key
    replay.update(now, run, barrier, 0, -box.nbytes, cause)


def store_box(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return write_box(replay, warp, step, now, replay.timing.tma_store_bytes, 1.0)


def add_box(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """A reduction into L2."""
    timing = replay.timing
    return write_box(replay, warp, step, now, timing.tma_add_bytes, timing.l2_write_bytes / timing.l2_add_bytes)


def write_box(replay: Replay, warp: Warp, step: Step, now: float, rate: float, slower: float) -> float:
    box: Box = step.what
    timing = replay.timing
    served = replay.units.tma[warp.rank].take(now, timing.tma_box + box.nbytes / rate)
    replay.units.shared[warp.rank].take(now, box.nbytes / timing.shared_bytes, WINDOW)
    link = warp.run.work.link[box.position]
    read = max(served, replay.units.store(now, box.nbytes, warp.rank, slower, link=link)) + timing.tma_store
    warp.open_copy = max(warp.open_copy, read)
    warp.run.last = max(warp.run.last, read + timing.ld_l2 / 2)
    if warp.run.first:
        replay.journal.add_copy(warp, step, now, read)
    return now + timing.tma_issue


def send(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """A copy to the shared memory of another CTA, with its mbarrier."""
    box, timing = step.what, replay.timing
    end = replay.units.remote[warp.rank].take(now, box.nbytes / timing.dsmem_bytes) + timing.dsmem_latency
    for target in box.targets:
        replay.at(end, partial(land_box, replay), target, (warp, step, now))
    return now + timing.tma_issue


def cancel(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    for barrier in step.what:
        replay.at(now + replay.timing.tma_l2, replay.update, warp.run, barrier, 0, -step.nbytes, (warp, step, now))
    return now + replay.timing.tma_issue


def lane_copy(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    end = time_global(replay, warp, step.what, now)
    warp.open_copy = max(warp.open_copy, end)
    return now


def lane_arrive(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    end = max([now, warp.open_copy, *warp.copies])
    replay.at(end, replay.update, warp.run, step.what, 1, 0, (warp, step, now))
    return now


def copy_commit(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    warp.copies.append(warp.open_copy)
    warp.open_copy = 0.0
    return now + 1


def copy_wait(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    pending = step.number
    complete = warp.copies[: len(warp.copies) - pending] if pending else warp.copies
    warp.copies = warp.copies[len(complete) :]
    return max([now + 1, *complete])


STEPS = {
    "load_box": load_box,
    "store_box": store_box,
    "add_box": add_box,
    "send": send,
    "cancel": cancel,
    "lane_copy": lane_copy,
    "lane_arrive": lane_arrive,
    "copy_commit": copy_commit,
    "copy_wait": copy_wait,
}
