"""Timing of tensor cores and tensor memory."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial

from warpwright.vgpu.timing.engine import Replay
from warpwright.vgpu.timing.state import NEVER, Run, Warp
from warpwright.vgpu.timing.steps import Mma, Step, WarpMma
from warpwright.vgpu.timing.units import WINDOW

K_ELEMENTS = 16
ROWS = 128  # of an SM, of a tcgen05.mma that takes `mma_least`
MMA_FLOPS = 4096  # of an m16n8k16

__all__ = ["STEPS"]


def mma(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    run, mma, timing = warp.run, step.what, replay.timing
    flight = run.in_flight[warp.rank]
    while flight and flight[0] <= now:
        flight.popleft()
    start = now
    if len(flight) >= timing.mma_queue:
        start = flight[-timing.mma_queue]
    units = replay.units
    begin = max([start + timing.mma_issue, *(units.tensor[rank].free for rank in mma.ranks)])
    end = max(mma_end(replay, rank, mma, begin) for rank in mma.ranks)
    for rank in mma.ranks:
        units.tensor[rank].take(begin, end - begin)
    flight.append(end)
    run.tensor_end[warp.rank] = end
    replay.outcome.add_mma(begin, end, mma.flops)
    count_repeated(replay, run, mma)
    if run.first:
        replay.journal.add_mma(warp, step, begin, end)
    return start + timing.mma_issue


def mma_end(replay: Replay, rank: int, mma: Mma, begin: float) -> float:
    """The end of an MMA: limited by its flops, or by its shared-memory reads."""
    timing = replay.timing
    flops = 2 * mma.rows * mma.n * K_ELEMENTS
    reading = mma.nbytes / timing.shared_bytes
    ready = replay.units.shared[rank].take(begin, reading, WINDOW)
    least = timing.mma_least * (mma.rows / ROWS if len(mma.ranks) > 1 else 1.0)
    return max(begin + max(flops / timing.mma_flops, reading, least), ready)


def tmem_copy(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """A tcgen05.cp reads shared memory; the MMAs after it wait for it in order."""
    for rank in step.what:
        replay.units.shared[rank].take(now, step.nbytes / replay.timing.shared_bytes, WINDOW)
    return now + replay.timing.mma_issue


def commit(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    run, timing = warp.run, replay.timing
    done = max(now, run.tensor_end[warp.rank] + timing.mma_latency) + timing.commit
    for place in step.what:
        remote = place // replay.layout.stride != warp.rank
        replay.at(done + remote * timing.arrive_remote / 2, replay.update, run, place, 1, 0, (warp, step, now))
    return now + 1


def wgmma(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """A wgmma is issued when few of its warpgroup are in flight; it begins when all four warps have issued it."""
    ends = warp.run.wgmma_ends.get(warpgroup(replay, warp), [])
    first = warp.issued - replay.timing.wgmma_queue  # must have ended
    if 0 <= first < len(ends) and ends[first] > now:
        warp.since = now
        replay.at(ends[first], partial(resume_wgmma, replay), warp, step)
        return NEVER
    return issue_wgmma(replay, warp, step, now)


def resume_wgmma(replay: Replay, now: float, warp: Warp, step: Step) -> None:
    replay.resume(warp.since, issue_wgmma(replay, warp, step, now), warp)


def warpgroup(replay: Replay, warp: Warp) -> int:
    """Returns the number of the first of the four warps whose wgmmas ``warp`` shares."""
    return warp.number - warp.number % replay.layout.per_cta % 4


def issue_wgmma(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    run, group = warp.run, warpgroup(replay, warp)
    issued_warps = run.issued_warps.setdefault(group, {})
    number, warp.issued = warp.issued, warp.issued + 1
    issued_warps[number] = issued_warps.get(number, 0) + 1
    if issued_warps[number] == 4:
        del issued_warps[number]
        run_wgmma(replay, warp, step, now, group)
    return now + replay.timing.mma_issue


def run_wgmma(replay: Replay, warp: Warp, step: Step, now: float, group: int) -> None:
    run, mma, timing = warp.run, step.what, replay.timing
    units, rank = replay.units, warp.rank
    unit, schedulers = units.tensor[rank], units.schedulers[rank]
    unit.free = max(unit.free, now) + sum(each.stolen(now) for each in schedulers) / len(schedulers)
    begin = max(now + timing.mma_issue, unit.free)
    end = mma_end(replay, rank, mma, begin)
    unit.take(begin, end - begin)
    burst = timing.wgmma_burst if mma.left else timing.wgmma_register_burst
    for scheduler, half, special in zip(schedulers, units.half[rank], units.special[rank], strict=True):
        scheduler.slow(now, end, burst)
        half.slow(now, end, timing.slots["half"] / (1 + burst))
        special.slow(now, end, 1 - timing.wgmma_special, 1 - timing.wgmma_special_alone)
    run.wgmma_ends.setdefault(group, []).append(end)
    replay.outcome.add_mma(begin, end, mma.flops)
    count_repeated(replay, run, mma)
    if run.first:
        replay.journal.add_mma(warp, step, begin, end)
    waiting, run.wgmma_waiting[group] = run.wgmma_waiting.get(group, []), []
    for waiter, number in waiting:
        if number < len(run.wgmma_ends[group]):
            replay.at(run.wgmma_ends[group][number] + timing.mma_latency, replay.wake, waiter)
        else:
            run.wgmma_waiting[group].append((waiter, number))


def group_commit(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    warp.groups.append(warp.issued)
    return now + 1


def group_wait(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    left = len(warp.groups) - step.number
    if left <= 0 or not warp.groups[left - 1]:
        return now + 1
    number = warp.groups[left - 1] - 1
    group = warpgroup(replay, warp)
    ends = warp.run.wgmma_ends.get(group, [])
    if number < len(ends):
        return max(now + 1, ends[number] + replay.timing.mma_latency)
    warp.since = now
    warp.run.wgmma_waiting.setdefault(group, []).append((warp, number))
    return NEVER


def warp_mma(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """An mma.sync begins when its C is ready."""
    ready = warp.sums.get(step.what.c, 0.0)
    if ready > now:
        warp.since = now
        replay.at(ready, partial(resume_warp_mma, replay), warp, step)
        return NEVER
    return start_warp_mma(replay, warp, step, now)


def resume_warp_mma(replay: Replay, now: float, warp: Warp, step: Step) -> None:
    replay.resume(warp.since, start_warp_mma(replay, warp, step, now), warp)


def start_warp_mma(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    timing = replay.timing
    mma: WarpMma = step.what
    units = replay.units.warp_tensor[warp.rank]
    unit = units[warp.number % len(units)]
    size = mma.flops / MMA_FLOPS
    if timing.mma_ports:
        unit.delay(now, warp.scheduler.busy, timing.mma_ports)
        warp.half.take(now, size * timing.mma_half)
    cycles = size * timing.slots["mma"] / timing.mma_rates.get(mma.type, 1.0)
    conversions, additions = (0, 0) if mma.type in timing.mma_rates else mma.emulation
    emulating = conversions * timing.slots["convert"] + additions * timing.slots["float"]
    end = unit.take(now, emulating + cycles)
    warp.sums[mma.d] = warp.ready[step.inst] = end - cycles + timing.latency["mma"]
    replay.units.tensor[warp.rank].busy += cycles / len(units)
    replay.outcome.add_mma(end - cycles, end, mma.flops)
    return max(now + 1, end - 2 * cycles)


def count_repeated(replay: Replay, run: Run, mma: Mma) -> None:
    """Count the flops of operand pairs that the cluster has multiplied before."""
    left = [origin(replay, run, place) for place in mma.left]
    right = [origin(replay, run, place) for place in mma.right]
    if not left or None in left or None in right:
        return
    part = mma.flops // (len(left) * len(right))
    for a in left:
        for b in right:
            pair = hash((a, b))
            if pair in run.operand_pairs:
                replay.outcome.wasted += part
            run.operand_pairs.add(pair)


def origin(replay: Replay, run: Run, place: tuple[int, int]) -> tuple[int, int] | None:
    """The data at a place in shared memory: the key of the box that filled it, and the offset inside the box."""
    rank, offset = place
    bases = run.boxes[rank]
    index = bisect_right(bases, offset) - 1
    if index < 0:
        return None
    return run.box_keys[rank, bases[index]], offset - bases[index]


def tmem_load(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return tmem(replay, warp, step, now, replay.timing.tmem_bytes)


def tmem_store(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return tmem(replay, warp, step, now, replay.timing.tmem_store)


def tmem(replay: Replay, warp: Warp, step: Step, now: float, rate: float) -> float:
    ports = replay.units.tmem[warp.rank]
    end = ports[warp.number % replay.layout.per_cta % len(ports)].take(now, step.nbytes / rate)
    warp.tmem = max(warp.tmem, end + replay.timing.tmem_latency)
    return max(now + 1, end - step.nbytes / rate)


def tmem_wait(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return max(now + 1, warp.tmem)


def alloc(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return now + replay.timing.tmem_alloc


def pause(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    return now + 1


STEPS = {
    "mma": mma,
    "commit": commit,
    "tmem_copy": tmem_copy,
    "wgmma": wgmma,
    "group_commit": group_commit,
    "group_wait": group_wait,
    "warp_mma": warp_mma,
    "tmem_load": tmem_load,
    "tmem_store": tmem_store,
    "tmem_wait": tmem_wait,
    "alloc": alloc,
    "pause": pause,
}
