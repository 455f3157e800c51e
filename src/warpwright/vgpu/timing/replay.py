"""One cluster after another on the SMs of one of them, in order of time: discrete events over recorded steps.

Every warp performs its steps in program order; a step takes effect at the time at which the warp comes to it, asks
units for service, which queue first come, first served, and says when the warp goes on. Barriers are those of the
kernel: what lets a wait pass is an arrival or bytes in the replay itself, never the order of the functional run.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import LaunchError
from warpwright.targets import Timing
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.steps import Access, Box, Product, Program, Step
from warpwright.vgpu.timing.units import WINDOW, Barrier, Memory, Unit, Units

__all__ = ["Layout", "Outcome", "Work", "replay"]

NEVER = float("inf")
SOON = 8.0  # cycles that a warp may reserve issue slots ahead without an event of its own
BACKLOG = 600.0  # cycles of traffic that stores may be ahead of L2 before the warp waits
K_ELEMENTS, K_BYTES = 16, 32
LINE = 128.0


@dataclass(frozen=True, slots=True)
class Layout:
    """How a cluster lies in its SMs: CTAs, warps of each, bytes from one CTA's shared memory to the next, and how many
    clusters share the same SMs."""

    ranks: int
    per_cta: int
    stride: int
    together: int
    pace: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One cluster to run: its steps, and for each position of its traffic the share of its bytes that miss L2 and the
    share of clusters that wait for device memory there."""

    program: Program
    miss: NDArray[np.float64]
    cold: NDArray[np.float64]


@dataclass(slots=True)
class Outcome:
    """``ends``: when each cluster was done; ``units`` with what they served; flops of tensor instructions, and those
    whose operands were multiplied before in the same cluster."""

    ends: list[float]
    starts: list[float]
    units: Units
    flops: int = 0
    wasted: int = 0


@dataclass(slots=True, eq=False)
class _Warp:
    steps: list[Step]
    rank: int
    number: int
    run: _Run
    scheduler: Unit
    at: int = 0
    since: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)
    tmem: float = 0.0
    copies: list[float] = field(default_factory=list)
    open_copy: float = 0.0
    groups: list[int] = field(default_factory=list)
    issued: int = 0
    asked: float = 0.0


@dataclass(slots=True, eq=False)
class _Run:
    """One cluster while it runs. ``boxes`` are, for each CTA, where boxes lie in shared memory, and ``filled`` what
    the last one there has brought; ``done``: ends of the tensor work of a CTA, or of the products of a warpgroup."""

    work: Work
    slot: int
    start: float
    first: bool
    alive: int = 0
    warps: list[_Warp] = field(default_factory=list)
    living: list[int] = field(default_factory=list)
    barriers: dict[int, Barrier] = field(default_factory=dict)
    named: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    cluster_phase: int = 0
    cluster_count: int = 0
    cluster_waiting: list[_Warp] = field(default_factory=list)
    cluster_owed: dict[int, int] = field(default_factory=dict)
    boxes: list[list[int]] = field(default_factory=list)
    filled: dict[tuple[int, int], int] = field(default_factory=dict)
    tensor_end: list[float] = field(default_factory=list)
    in_flight: list[deque[float]] = field(default_factory=list)
    products: dict[int, list[float]] = field(default_factory=dict)
    joined: dict[int, dict[int, int]] = field(default_factory=dict)
    group_waiting: dict[int, list[tuple[_Warp, int]]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    last: float = 0.0


def replay(works: Sequence[Work], timing: Timing, memory: Memory, layout: Layout, journal: Journal) -> Outcome:
    """Run clusters in the given order, ``layout.together`` at a time, on SMs that nobody else uses."""
    return _Replay(works, timing, memory, layout, journal).perform()


class _Replay:
    def __init__(self, works: Sequence[Work], timing: Timing, memory: Memory, layout: Layout, journal: Journal) -> None:
        self.timing, self.layout, self.journal = timing, layout, journal
        self.units = Units(timing, layout.ranks, memory)
        self.queue = deque(works)
        self.begun = min(layout.together, len(works))
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        self.outcome = Outcome([], [], self.units)
        self.running: dict[_Run, None] = {}
        self.do: dict[str, Callable[[_Warp, Step, float], float]] = {
            name[3:]: getattr(self, name) for name in dir(self) if name.startswith("do_")
        }

    def at(self, time: float, what: Callable[..., None], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what, args))

    def perform(self) -> Outcome:
        for slot in range(min(self.layout.together, len(self.queue))):
            self.begin(0.0, slot, self.queue.popleft())
        events = self.events
        while events:
            time, _, what, args = heapq.heappop(events)
            what(time, *args)
        if self.running:
            raise LaunchError(self.stuck())
        return self.outcome

    def stuck(self) -> str:
        """Who waits when nothing is left to happen."""
        run = next(iter(self.running))
        warp = next(warp for warp in run.warps if warp.at < len(warp.steps))
        step = warp.steps[warp.at]
        who = f"CTA {warp.rank} of a cluster, warp {warp.number % self.layout.per_cta}"
        where = self.journal.names.places[step.inst]
        return f"{where}: {who} {self.journal.reason(step)} for ever when its run is replayed in order of time."

    def begin(self, now: float, slot: int, work: Work) -> None:
        """Start a cluster in a place that is free."""
        layout = self.layout
        run = _Run(work, slot, now, first=not self.outcome.starts)
        self.outcome.starts.append(now)
        self.running[run] = None
        run.living = [layout.per_cta] * layout.ranks
        run.boxes = [[] for _ in range(layout.ranks)]
        run.tensor_end = [now] * layout.ranks
        run.in_flight = [deque() for _ in range(layout.ranks)]
        run.alive = len(work.program.warps)
        for number, steps in enumerate(work.program.warps):
            rank = number // layout.per_cta
            warp = number % layout.per_cta + slot * layout.per_cta
            schedulers = self.units.schedulers[rank]
            held = _Warp(steps, rank, number, run, schedulers[warp % len(schedulers)], since=now)
            run.warps.append(held)
            self.at(now, self.issue, held)

    def issue(self, now: float, warp: _Warp) -> None:
        """Go on to the next step: execute what lies before it."""
        warp.since = now
        if warp.at == len(warp.steps):
            self.end(now, warp)
            return
        step = warp.steps[warp.at]
        unit = warp.scheduler
        start = unit.free
        end = max(now + step.cycles, unit.take(now, step.slots))
        if start > now + step.cycles:
            warp.asked = end - now - step.cycles
        self.at(end, self.step, warp)

    def step(self, now: float, warp: _Warp) -> None:
        step = warp.steps[warp.at]
        run = warp.run
        if run.first:
            self.journal.busy(warp, step, warp.since, now, warp.asked)
        warp.asked = 0.0
        then = self.do[step.kind](warp, step, now)
        if then is not NEVER:
            self.go_on(now, then, warp)

    def go_on(self, now: float, then: float, warp: _Warp) -> None:
        """The warp goes on at ``then``; until then it has stalled at its step."""
        step = warp.steps[warp.at]
        if warp.run.first and then > now:
            self.journal.stalled(warp, step, now, then)
        warp.at += 1
        if then <= now + SOON:
            self.issue(then, warp)
        else:
            self.at(then, self.issue, warp)

    def end(self, now: float, warp: _Warp) -> None:
        run = warp.run
        run.alive -= 1
        run.living[warp.rank] -= 1
        run.last = max(run.last, now, warp.open_copy, *warp.copies)
        self.open_named(now, run, warp.rank)
        if run.alive == 0:
            self.at(run.last, self.leave, run)
        else:
            self.turn_cluster(now, run)

    def leave(self, now: float, run: _Run) -> None:
        del self.running[run]
        self.outcome.ends.append(now)
        if run.first:
            self.journal.ended(now)
        if self.queue:
            start = max(now + self.timing.cta_start, self.begun * self.layout.pace)
            self.begun += 1
            self.at(start, self.begin, run.slot, self.queue.popleft())

    # Barriers in shared memory.

    def do_set_barrier(self, warp: _Warp, step: Step, now: float) -> float:
        warp.run.barriers[step.what] = Barrier(step.number, step.number)
        return now + 1

    def do_wait(self, warp: _Warp, step: Step, now: float) -> float:
        barrier = self.barrier(warp.run, step.what)
        if barrier.passes(step.number):
            return now + self.timing.try_wait
        warp.since = now
        barrier.waiting.append((warp, step.number))
        return NEVER

    def barrier(self, run: _Run, place: int) -> Barrier:
        found = run.barriers.get(place)
        if found is None:
            found = run.barriers[place] = Barrier()
        return found

    def do_arrive(self, warp: _Warp, step: Step, now: float) -> float:
        remote = step.what // self.layout.stride != warp.rank
        delay = self.timing.arrive_remote if remote else self.timing.arrive
        self.at(now + delay, self.update, warp.run, step.what, step.number, step.nbytes)
        return now + 1

    def do_arrive_drop(self, warp: _Warp, step: Step, now: float) -> float:
        self.barrier(warp.run, step.what).count -= step.number
        return self.do_arrive(warp, step, now)

    def update(self, now: float, run: _Run, place: int, arrivals: int, nbytes: int) -> None:
        barrier = self.barrier(run, place)
        if not barrier.update(arrivals, nbytes):
            return
        if run.first:
            self.journal.phase(place, now)
        waiting, barrier.waiting = barrier.waiting, []
        for warp, parity in waiting:
            if barrier.passes(parity):
                self.at(now + self.timing.wake, self.wake, warp)
            else:
                barrier.waiting.append((warp, parity))

    def wake(self, now: float, warp: _Warp) -> None:
        since, warp.since = warp.since, now
        self.go_on(since, now, warp)

    # Barriers of the machine.

    def do_bar_sync(self, warp: _Warp, step: Step, now: float) -> float:
        self.come(warp, step, now)
        warp.run.named[warp.rank, step.what][2].append(warp)
        warp.since = now
        self.open_named(now, warp.run, warp.rank)
        return NEVER

    def do_bar_arrive(self, warp: _Warp, step: Step, now: float) -> float:
        self.come(warp, step, now)
        self.open_named(now, warp.run, warp.rank)
        return now + 1

    def come(self, warp: _Warp, step: Step, now: float) -> None:
        held = warp.run.named.setdefault((warp.rank, step.what), [0, step.number, []])
        held[0] += 1

    def open_named(self, now: float, run: _Run, rank: int) -> None:
        for key, (come, threads, waiting) in list(run.named.items()):
            if key[0] == rank and come >= (threads // 32 or run.living[rank]):
                del run.named[key]
                for warp in waiting:
                    self.at(now + self.timing.bar, self.wake, warp)

    def do_cluster_arrive(self, warp: _Warp, step: Step, now: float) -> float:
        run = warp.run
        run.cluster_owed[warp.number] = run.cluster_phase
        run.cluster_count += 1
        self.turn_cluster(now, run)
        return now + 1

    def do_cluster_wait(self, warp: _Warp, step: Step, now: float) -> float:
        run = warp.run
        if run.cluster_owed.get(warp.number, -1) < run.cluster_phase:
            return now + self.timing.bar
        warp.since = now
        run.cluster_waiting.append(warp)
        return NEVER

    def turn_cluster(self, now: float, run: _Run) -> None:
        if not run.cluster_count or run.cluster_count < run.alive:
            return
        run.cluster_count = 0
        self.at(now + self.timing.cluster_barrier, self.open_cluster, run)

    def open_cluster(self, now: float, run: _Run) -> None:
        run.cluster_phase += 1
        waiting, run.cluster_waiting = run.cluster_waiting, []
        for warp in waiting:
            self.wake(now, warp)

    # Copies.

    def do_load_box(self, warp: _Warp, step: Step, now: float) -> float:
        run, box, timing = warp.run, step.what, self.timing
        unit = self.units.tma[warp.rank]
        first = timing.tma_first if unit.busy == 0 else 0.0
        served = unit.take(now, timing.tma_box + box.requests * timing.tma_row)
        start = served - box.requests * timing.tma_row
        latency = timing.tma_l2 + run.work.cold[box.position] * (timing.tma_hbm - timing.tma_l2)
        ranks = tuple(rank for rank, _, _ in box.targets)
        end = max(served, self.units.fetch(start, box.nbytes, run.work.miss[box.position], ranks)) + latency + first
        for rank, offset, barrier in box.targets:
            self.at(end, self.landed, run, rank, offset, barrier, box)
        if run.first:
            self.journal.copied(warp, step, now, end)
        return now + timing.tma_issue

    def landed(self, now: float, run: _Run, rank: int, offset: int, barrier: int, box: Box) -> None:
        cycles, unit = box.nbytes / self.timing.shared_bytes, self.units.shared[rank]
        unit.take(now, cycles * self.timing.shared_writes, WINDOW)
        unit.busy += cycles * (1 - self.timing.shared_writes)
        place = run.boxes[rank]
        if (rank, offset) not in run.filled:
            insort(place, offset)
        run.filled[rank, offset] = box.key
        self.update(now, run, barrier, 0, -box.nbytes)

    def do_store_box(self, warp: _Warp, step: Step, now: float) -> float:
        box: Box = step.what
        timing = self.timing
        served = self.units.tma[warp.rank].take(now, timing.tma_box + box.requests * timing.tma_row)
        self.units.shared[warp.rank].take(now, box.nbytes / timing.shared_bytes, WINDOW)
        read = max(served, self.units.store(now, box.nbytes, warp.rank)) + timing.tma_store
        warp.open_copy = max(warp.open_copy, read)
        warp.run.last = max(warp.run.last, read + timing.ld_l2 / 2)
        if warp.run.first:
            self.journal.copied(warp, step, now, read)
        return now + timing.tma_issue

    def do_send(self, warp: _Warp, step: Step, now: float) -> float:
        """Shared memory of another CTA, with its barrier."""
        box, timing = step.what, self.timing
        end = self.units.remote[warp.rank].take(now, box.nbytes / timing.dsmem_bytes) + timing.dsmem_latency
        for rank, offset, barrier in box.targets:
            self.at(end, self.landed, warp.run, rank, offset, barrier, box)
        return now + timing.tma_issue

    def do_cancel(self, warp: _Warp, step: Step, now: float) -> float:
        for barrier in step.what:
            self.at(now + self.timing.tma_l2, self.update, warp.run, barrier, 0, -step.nbytes)
        return now + self.timing.tma_issue

    def do_lane_copy(self, warp: _Warp, step: Step, now: float) -> float:
        end = self.fetched(warp, step.what, now)
        warp.open_copy = max(warp.open_copy, end)
        return now

    def do_lane_arrive(self, warp: _Warp, step: Step, now: float) -> float:
        end = max([now, warp.open_copy, *warp.copies])
        self.at(end, self.update, warp.run, step.what, 1, 0)
        return now

    def do_copy_commit(self, warp: _Warp, step: Step, now: float) -> float:
        warp.copies.append(warp.open_copy)
        warp.open_copy = 0.0
        return now + 1

    def do_copy_wait(self, warp: _Warp, step: Step, now: float) -> float:
        kept = step.number
        gone = warp.copies[: len(warp.copies) - kept] if kept else warp.copies
        warp.copies = warp.copies[len(gone) :]
        return max([now + 1, *gone])

    # Tensor cores and tensor memory.

    def do_product(self, warp: _Warp, step: Step, now: float) -> float:
        run, product, timing = warp.run, step.what, self.timing
        flight = run.in_flight[warp.rank]
        while flight and flight[0] <= now:
            flight.popleft()
        held = now
        if len(flight) >= timing.mma_queue:
            held = flight[-timing.mma_queue]
        units = self.units
        begin = max([held + timing.mma_issue, *(units.tensor[rank].free for rank in product.ranks)])
        end = max(self.operands(rank, product, begin) for rank in product.ranks)
        for rank in product.ranks:
            units.tensor[rank].take(begin, end - begin)
        flight.append(end)
        run.tensor_end[warp.rank] = end
        self.count_product(run, product)
        if run.first:
            self.journal.multiplied(warp, step, begin, end)
        return held + timing.mma_issue

    def operands(self, rank: int, product: Product, begin: float) -> float:
        """When a product is through the tensor core: by its flops, or by what it reads of shared memory."""
        timing = self.timing
        flops = 2 * product.rows * product.n * K_ELEMENTS
        reading = product.nbytes / timing.shared_bytes
        ready = self.units.shared[rank].take(begin, reading, WINDOW)
        return max(begin + max(flops / timing.mma_flops, reading, timing.mma_least), ready)

    def do_commit(self, warp: _Warp, step: Step, now: float) -> float:
        run, timing = warp.run, self.timing
        done = max(now, run.tensor_end[warp.rank] + timing.mma_latency) + timing.commit
        for place in step.what:
            remote = place // self.layout.stride != warp.rank
            self.at(done + remote * timing.arrive_remote / 2, self.update, run, place, 1, 0)
        return now + 1

    def do_group_product(self, warp: _Warp, step: Step, now: float) -> float:
        """A product of a warpgroup begins when its four warps have issued it."""
        run = warp.run
        group = warp.number - warp.number % self.layout.per_cta % 4
        joined = run.joined.setdefault(group, {})
        number, warp.issued = warp.issued, warp.issued + 1
        joined[number] = joined.get(number, 0) + 1
        if joined[number] == 4:
            del joined[number]
            self.multiply_group(warp, step, now, group)
        return now + self.timing.mma_issue

    def multiply_group(self, warp: _Warp, step: Step, now: float, group: int) -> None:
        run, product, timing = warp.run, step.what, self.timing
        unit = self.units.tensor[warp.rank]
        begin = max(now + timing.mma_issue, unit.free)
        end = self.operands(warp.rank, product, begin)
        unit.take(begin, end - begin)
        run.products.setdefault(group, []).append(end)
        self.count_product(run, product)
        if run.first:
            self.journal.multiplied(warp, step, begin, end)
        waiting, run.group_waiting[group] = run.group_waiting.get(group, []), []
        for held, number in waiting:
            if number < len(run.products[group]):
                self.at(run.products[group][number] + timing.mma_latency, self.wake, held)
            else:
                run.group_waiting[group].append((held, number))

    def do_group_commit(self, warp: _Warp, step: Step, now: float) -> float:
        warp.groups.append(warp.issued)
        return now + 1

    def do_group_wait(self, warp: _Warp, step: Step, now: float) -> float:
        left = len(warp.groups) - step.number
        if left <= 0 or not warp.groups[left - 1]:
            return now + 1
        number = warp.groups[left - 1] - 1
        group = warp.number - warp.number % self.layout.per_cta % 4
        ends = warp.run.products.get(group, [])
        if number < len(ends):
            return max(now + 1, ends[number] + self.timing.mma_latency)
        warp.since = now
        warp.run.group_waiting.setdefault(group, []).append((warp, number))
        return NEVER

    def do_warp_product(self, warp: _Warp, step: Step, now: float) -> float:
        flops: int = step.what[0]
        units = self.units.warp_tensor[warp.rank]
        cycles = flops / (self.timing.mma_flops / len(units))
        end = units[warp.number % len(units)].take(now, cycles)
        self.units.tensor[warp.rank].busy += cycles / len(units)
        self.outcome.flops += flops
        return max(now + 1, end - 2 * cycles)

    def count_product(self, run: _Run, product: Product) -> None:
        """Flops, and those of a pair of operands that the cluster has multiplied before."""
        self.outcome.flops += product.flops
        left = [self.origin(run, place) for place in product.left]
        right = [self.origin(run, place) for place in product.right]
        if not left or None in left or None in right:
            return
        part = product.flops // (len(left) * len(right))
        for a in left:
            for b in right:
                pair = hash((a, b))
                if pair in run.seen:
                    self.outcome.wasted += part
                run.seen.add(pair)

    def origin(self, run: _Run, place: tuple[int, int]) -> tuple[int, int] | None:
        """What lies at a place in shared memory: the key of the box that came there, and how far into it."""
        rank, offset = place
        bases = run.boxes[rank]
        index = bisect_right(bases, offset) - 1
        if index < 0:
            return None
        return run.filled[rank, bases[index]], offset - bases[index]

    def do_tmem_load(self, warp: _Warp, step: Step, now: float) -> float:
        return self.tmem(warp, step, now, self.timing.tmem_bytes)

    def do_tmem_store(self, warp: _Warp, step: Step, now: float) -> float:
        return self.tmem(warp, step, now, self.timing.tmem_store)

    def tmem(self, warp: _Warp, step: Step, now: float, rate: float) -> float:
        ports = self.units.tmem[warp.rank]
        end = ports[warp.number % self.layout.per_cta % len(ports)].take(now, step.nbytes / rate)
        warp.tmem = max(warp.tmem, end + self.timing.tmem_latency)
        return max(now + 1, end - step.nbytes / rate)

    def do_tmem_wait(self, warp: _Warp, step: Step, now: float) -> float:
        return max(now + 1, warp.tmem)

    def do_alloc(self, warp: _Warp, step: Step, now: float) -> float:
        return now + self.timing.tmem_alloc

    def do_pause(self, warp: _Warp, step: Step, now: float) -> float:
        return now + 1

    # Memory by lane code.

    def fetched(self, warp: _Warp, access: Access, now: float) -> float:
        timing, work = self.timing, warp.run.work
        served = self.units.lsu[warp.rank].take(now, max(access.lines, access.nbytes / timing.l1_bytes))
        if not access.load:
            return max(served, self.units.store(now, access.nbytes, warp.rank))
        latency = timing.ld_l2 + float(work.cold[access.position]) * (timing.ld_hbm - timing.ld_l2)
        miss = float(work.miss[access.position])
        return max(served, self.units.fetch(now, access.nbytes, miss, (warp.rank,))) + latency

    def do_global_access(self, warp: _Warp, step: Step, now: float) -> float:
        access: Access = step.what
        start = max(now, self.units.lsu[warp.rank].free)
        end = self.fetched(warp, access, now)
        if access.load:
            warp.ready[step.inst] = end
            return start + 1
        warp.run.last = max(warp.run.last, end)
        return max(start + 1, self.units.l2.free - BACKLOG, self.units.hbm.free - BACKLOG)

    def do_shared_access(self, warp: _Warp, step: Step, now: float) -> float:
        timing, lanes = self.timing, self.units.lanes[warp.rank]
        cycles = step.number * LINE / timing.shared_bytes
        start = max(now, lanes.free)
        end = max(lanes.take(now, cycles), self.units.shared[warp.rank].take(now, cycles, WINDOW))
        if step.what:
            warp.ready[step.inst] = end + timing.shared_latency
        return max(now + 1, start)

    def do_remote_access(self, warp: _Warp, step: Step, now: float) -> float:
        timing = self.timing
        end = self.units.remote[warp.rank].take(now, step.number * LINE / timing.dsmem_bytes)
        if step.what:
            warp.ready[step.inst] = end + timing.dsmem_latency
        return max(now + 1, end - step.number * LINE / timing.dsmem_bytes)

    def do_need(self, warp: _Warp, step: Step, now: float) -> float:
        return max(now, warp.ready.get(step.number, 0.0))
