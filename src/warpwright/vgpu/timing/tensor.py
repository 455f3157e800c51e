"""Tensor cores and tensor memory in time."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial

from warpwright.vgpu.timing.engine import Replay
from warpwright.vgpu.timing.state import NEVER, Run, Warp
from warpwright.vgpu.timing.steps import Product, Step, WarpProduct
from warpwright.vgpu.timing.units import WINDOW

K_ELEMENTS = 16
MMA_FLOPS = 4096  # of an m16n8k16

__all__ = ["STEPS"]


def product(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    run, product, timing = warp.run, step.what, replay.timing
    flight = run.in_flight[warp.rank]
    while flight and flight[0] <= now:
        flight.popleft()
    held = now
    if len(flight) >= timing.mma_queue:
        held = flight[-timing.mma_queue]
    units = replay.units
    begin = max([held + timing.mma_issue, *(units.tensor[rank].free for rank in product.ranks)])
    end = max(operands(replay, rank, product, begin) for rank in product.ranks)
    for rank in product.ranks:
        units.tensor[rank].take(begin, end - begin)
    flight.append(end)
    run.tensor_end[warp.rank] = end
    replay.outcome.multiplied(begin, end, product.flops)
    count_wasted(replay, run, product)
    if run.first:
        replay.journal.multiplied(warp, step, begin, end)
    return held + timing.mma_issue


def operands(replay: Replay, rank: int, product: Product, begin: float) -> float:
    """When a product is through the tensor core: by its flops, or by what it reads of shared memory."""
    timing = replay.timing
    flops = 2 * product.rows * product.n * K_ELEMENTS
    reading = product.nbytes / timing.shared_bytes
    ready = replay.units.shared[rank].take(begin, reading, WINDOW)
    return max(begin + max(flops / timing.mma_flops, reading, timing.mma_least), ready)


def commit(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    run, timing = warp.run, replay.timing
    done = max(now, run.tensor_end[warp.rank] + timing.mma_latency) + timing.commit
    for place in step.what:
        remote = place // replay.layout.stride != warp.rank
        replay.at(done + remote * timing.arrive_remote / 2, replay.update, run, place, 1, 0)
    return now + 1


def group_product(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """A product of a warpgroup begins when its four warps have issued it."""
    run = warp.run
    group = warp.number - warp.number % replay.layout.per_cta % 4
    joined = run.joined.setdefault(group, {})
    number, warp.issued = warp.issued, warp.issued + 1
    joined[number] = joined.get(number, 0) + 1
    if joined[number] == 4:
        del joined[number]
        multiply_group(replay, warp, step, now, group)
    return now + replay.timing.mma_issue


def multiply_group(replay: Replay, warp: Warp, step: Step, now: float, group: int) -> None:
    run, product, timing = warp.run, step.what, replay.timing
    unit = replay.units.tensor[warp.rank]
    begin = max(now + timing.mma_issue, unit.free)
    end = operands(replay, warp.rank, product, begin)
    unit.take(begin, end - begin)
    share = timing.wgmma_slots if product.left else timing.wgmma_register_slots
    for scheduler, special in zip(replay.units.schedulers[warp.rank], replay.units.special[warp.rank], strict=True):
        scheduler.slow(now, end, 1 - share)
        special.slow(now, end, 1 - timing.wgmma_special)
    run.products.setdefault(group, []).append(end)
    replay.outcome.multiplied(begin, end, product.flops)
    count_wasted(replay, run, product)
    if run.first:
        replay.journal.multiplied(warp, step, begin, end)
    waiting, run.group_waiting[group] = run.group_waiting.get(group, []), []
    for held, number in waiting:
        if number < len(run.products[group]):
            replay.at(run.products[group][number] + timing.mma_latency, replay.wake, held)
        else:
            run.group_waiting[group].append((held, number))


def group_commit(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    warp.groups.append(warp.issued)
    return now + 1


def group_wait(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    left = len(warp.groups) - step.number
    if left <= 0 or not warp.groups[left - 1]:
        return now + 1
    number = warp.groups[left - 1] - 1
    group = warp.number - warp.number % replay.layout.per_cta % 4
    ends = warp.run.products.get(group, [])
    if number < len(ends):
        return max(now + 1, ends[number] + replay.timing.mma_latency)
    warp.since = now
    warp.run.group_waiting.setdefault(group, []).append((warp, number))
    return NEVER


def warp_product(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    """A product of a warp begins when what it adds to is there."""
    ready = warp.sums.get(step.what.added, 0.0)
    if ready > now:
        warp.since = now
        replay.at(ready, partial(late_product, replay), warp, step)
        return NEVER
    return begin_product(replay, warp, step, now)


def late_product(replay: Replay, now: float, warp: Warp, step: Step) -> None:
    replay.go_on(warp.since, begin_product(replay, warp, step, now), warp)


def begin_product(replay: Replay, warp: Warp, step: Step, now: float) -> float:
    timing = replay.timing
    product: WarpProduct = step.what
    units = replay.units.warp_tensor[warp.rank]
    cycles = product.flops / MMA_FLOPS * timing.slots["mma"]
    end = units[warp.number % len(units)].take(now, cycles)
    warp.sums[product.made] = warp.ready[step.inst] = end - cycles + timing.latency["mma"]
    replay.units.tensor[warp.rank].busy += cycles / len(units)
    replay.outcome.multiplied(end - cycles, end, product.flops)
    return max(now + 1, end - 2 * cycles)


def count_wasted(replay: Replay, run: Run, product: Product) -> None:
    """Flops of a pair of operands that the cluster has multiplied before."""
    left = [origin(replay, run, place) for place in product.left]
    right = [origin(replay, run, place) for place in product.right]
    if not left or None in left or None in right:
        return
    part = product.flops // (len(left) * len(right))
    for a in left:
        for b in right:
            pair = hash((a, b))
            if pair in run.seen:
                replay.outcome.wasted += part
            run.seen.add(pair)


def origin(replay: Replay, run: Run, place: tuple[int, int]) -> tuple[int, int] | None:
    """What lies at a place in shared memory: the key of the box that came there, and how far into it."""
    rank, offset = place
    bases = run.boxes[rank]
    index = bisect_right(bases, offset) - 1
    if index < 0:
        return None
    return run.filled[rank, bases[index]], offset - bases[index]


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
    "product": product,
    "commit": commit,
    "group_product": group_product,
    "group_commit": group_commit,
    "group_wait": group_wait,
    "warp_product": warp_product,
    "tmem_load": tmem_load,
    "tmem_store": tmem_store,
    "tmem_wait": tmem_wait,
    "alloc": alloc,
    "pause": pause,
}
