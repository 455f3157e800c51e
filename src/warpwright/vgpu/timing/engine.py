"""Discrete-event replay of recorded steps: clusters one after another on the SMs of one cluster, in order of time.

Every warp performs its steps in program order. A step takes effect when the warp reaches it, requests service from
units, which queue first come, first served, and returns the time at which the warp continues. Only issue slots are
shared round robin: a warp with hundreds of slots to issue does not block the other warps of its scheduler. Barriers are
those of the kernel: a wait passes by arrivals or bytes in the replay itself, never by the order of the functional run.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from random import Random
from typing import Any

from warpwright import display
from warpwright.errors import LaunchError
from warpwright.targets import Timing
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.state import NEVER, Layout, Outcome, Run, Warp, Work
from warpwright.vgpu.timing.steps import Step
from warpwright.vgpu.timing.units import Barrier, Memory, Units

__all__ = ["LATE", "SOON", "Cause", "Replay"]

SOON = 8.0  # cycles that a warp may reserve issue slots ahead without an event of its own
EVENTS = 20_000  # between two looks at how far the replay is
LATE = 0.5  # cycles that a warp may continue before the last of its slots


class Replay:
    """The clock, the events and the barriers of a replay; ``steps`` performs the other kinds of steps.
    ``followed``: the journal records the first cluster. ``enough``: after so many steps the replay stops, if all
    clusters run."""

    def __init__(
        self,
        works: Sequence[Work],
        timing: Timing,
        memory: Memory,
        layout: Layout,
        journal: Journal,
        steps: Mapping[str, Perform],
        followed: bool,
        enough: float,
    ) -> None:
        self.followed, self.enough = followed, enough
        self.now = 0.0
        self.marks: list[tuple[float, int]] = []  # times, and the steps done until then
        self.timing, self.layout, self.journal = timing, layout, journal
        self.units = Units(timing, layout.ranks, memory)
        self.queue = deque(works)
        self.started = min(layout.together, len(works))
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = self.ended = 0
        self.outcome = Outcome([], [], self.units)
        self.chance = Random(0)  # the same for every replay
        self.running: dict[Run, None] = {}
        self.do = {**_OWN_STEPS, **steps}

    def at(self, time: float, what: Callable[..., None], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what, args))

    def run(self) -> Outcome:
        steps = sum(work.program.length for work in self.queue)
        for slot in range(min(self.layout.together, len(self.queue))):
            self.start_cluster(0.0, slot, self.queue.popleft())
        with display.progress("replay: steps", steps) as show:
            while self.events:
                self.pass_events(EVENTS)
                done = self.ended + sum(warp.at for run in self.running for warp in run.warps)
                show(done)
                self.marks.append((self.now, done))
                if done >= self.enough and self.running and not (self.queue or self.ended):
                    self.stop(done, steps)
        if self.running:
            raise LaunchError(self.describe_deadlock())
        return self.outcome

    def pass_events(self, count: int) -> None:
        """Let the next ``count`` events happen, in order of time, or all that are left."""
        events = self.events
        for _ in range(count):
            time, _, what, args = heapq.heappop(events)
            self.now = time
            what(time, *args)
            if not events and self.running:
                self.pass_lapped(time)
            if not events:
                return

    def stop(self, done: int, steps: int) -> None:
        """End the replay after ``done`` of its steps, as if the others went on at the rate of the last half."""
        then, before = next(mark for mark in self.marks if mark[1] >= done / 2)
        left = (steps - done) * (self.now - then) / max(1, done - before)
        self.outcome.ends += [self.now + left] * len(self.running)
        self.outcome.last_mma += left if self.outcome.last_mma else 0.0
        self.outcome.whole = False
        self.running.clear()
        self.events.clear()

    def pass_lapped(self, now: float) -> None:
        """Resume warps whose phase has ended and of whose barrier the next phase has ended, too, when nothing else can
        happen: in the launch, whose order was another one, these waits ended."""
        for run in self.running:
            for barrier in run.barriers.values():
                waiting, barrier.waiting = barrier.waiting, []
                for warp, parity in waiting:
                    if barrier.phase > parity:
                        self.at(now, self.wake, warp)
                    else:
                        barrier.waiting.append((warp, parity))

    def describe_deadlock(self) -> str:
        """The error message for a replay that has waiting warps but no events."""
        run = next(iter(self.running))
        warp = next(warp for warp in run.warps if warp.at < len(warp.steps))
        step = warp.steps[warp.at]
        who = f"CTA {warp.rank} of a cluster, warp {warp.number % self.layout.per_cta}"
        where = self.journal.names.places[step.inst]
        return f"{where}: {who} {self.journal.reason(step)} forever in the replay in order of time."

    def start_cluster(self, now: float, slot: int, work: Work) -> None:
        """Start a cluster in a free place."""
        layout = self.layout
        run = Run(work, slot, now, first=self.followed and not self.outcome.starts)
        self.outcome.starts.append(now)
        self.running[run] = None
        run.live_warps = [layout.per_cta] * layout.ranks
        run.boxes = [[] for _ in range(layout.ranks)]
        run.tensor_end = [now] * layout.ranks
        run.in_flight = [deque() for _ in range(layout.ranks)]
        run.alive = len(work.program.warps)
        for number, steps in enumerate(work.program.warps):
            rank = number // layout.per_cta
            units = self.units
            own = (number % layout.per_cta + slot * layout.per_cta) % len(units.schedulers[rank])
            pipes = units.schedulers[rank][own], units.half[rank][own], units.special[rank][own]
            warp = Warp(steps, rank, number, run, *pipes, since=now)
            run.warps.append(warp)
            self.at(now, self.issue, warp)

    def issue(self, now: float, warp: Warp) -> None:
        """Issue the instructions up to the next step."""
        warp.since = now
        if warp.at == len(warp.steps):
            self.end_warp(now, warp)
            return
        step, unit = warp.steps[warp.at], warp.scheduler
        end = now + step.cycles
        if step.slots or step.dense:
            warp.mark = unit.issue(now, step.slots, step.dense)
            end = max(end, unit.end(warp.mark))
        if step.half:
            warp.half_mark = warp.half.take(now, step.half)
            end = max(end, warp.half.end(warp.half_mark))
        if step.special:
            warp.special_mark = warp.special.take(now, step.special)
            end = max(end, warp.special.end(warp.special_mark))
        self.at(end, self.perform, warp)

    def perform(self, now: float, warp: Warp) -> None:
        """Perform a step, unless other warps have delayed its issue slots."""
        step, run = warp.steps[warp.at], warp.run
        end = warp.scheduler.end_at(now, warp.mark) if step.slots or step.dense else now
        if step.half:
            end = max(end, warp.half.end_at(now, warp.half_mark))
        if step.special:
            end = max(end, warp.special.end_at(now, warp.special_mark))
        if end > now + LATE:
            self.at(end, self.perform, warp)
            return
        if run.first:
            self.journal.add_busy(warp, step, warp.since, now, now - warp.since - step.cycles)
        then = self.do[step.kind](self, warp, step, now)
        if then is not NEVER:
            self.resume(now, then, warp)

    def resume(self, now: float, then: float, warp: Warp) -> None:
        """Resume the warp at ``then``; it has stalled at its step since ``now``."""
        step = warp.steps[warp.at]
        if warp.run.first and then > now:
            self.journal.add_stall(warp, step, now, then)
        warp.at += 1
        if then <= now + SOON:
            self.issue(then, warp)
        else:
            self.at(then, self.issue, warp)

    def end_warp(self, now: float, warp: Warp) -> None:
        run = warp.run
        run.alive -= 1
        run.live_warps[warp.rank] -= 1
        run.last = max(run.last, now, warp.open_copy, *warp.copies)
        self.release_bars(now, run, warp.rank)
        if run.alive == 0:
            self.at(run.last, self.end_cluster, run)
        else:
            self.check_cluster_barrier(now, run)

    def end_cluster(self, now: float, run: Run) -> None:
        del self.running[run]
        self.ended += run.work.program.length
        run.warps.clear()  # a warp refers to its run
        self.outcome.ends.append(now)
        if run.first:
            self.journal.set_end(now)
        if self.queue:
            start = max(now + self.timing.cta_start, self.started * self.layout.pace)
            self.started += 1
            self.at(start, self.start_cluster, run.slot, self.queue.popleft())

    # mbarriers.

    def do_set_barrier(self, warp: Warp, step: Step, now: float) -> float:
        warp.run.barriers[step.what] = Barrier(step.number, step.number)
        return now + 1

    def do_wait(self, warp: Warp, step: Step, now: float) -> float:
        barrier = self.barrier(warp.run, step.what)
        if barrier.passes(step.number):
            return now + self.timing.try_wait
        warp.since = now
        barrier.waiting.append((warp, step.number))
        return NEVER

    def barrier(self, run: Run, place: int) -> Barrier:
        barrier = run.barriers.get(place)
        if barrier is None:
            barrier = run.barriers[place] = Barrier()
        return barrier

    def do_arrive(self, warp: Warp, step: Step, now: float) -> float:
        remote = step.what // self.layout.stride != warp.rank
        delay = self.timing.arrive_remote if remote else self.timing.arrive
        self.at(now + delay, self.update, warp.run, step.what, step.number, step.nbytes, (warp, step, now))
        return now + 1

    def do_arrive_drop(self, warp: Warp, step: Step, now: float) -> float:
        self.barrier(warp.run, step.what).count -= step.number
        return self.do_arrive(warp, step, now)

    def update(self, now: float, run: Run, place: int, arrivals: int, nbytes: int, cause: Cause) -> None:
        """Apply arrivals and bytes of the operation ``cause`` to a barrier, and wake the warps whose phase ends."""
        barrier = self.barrier(run, place)
        if not barrier.update(arrivals, nbytes):
            return
        if run.first:
            self.journal.add_phase(place, now, cause)
        waiting, barrier.waiting = barrier.waiting, []
        for warp, parity in waiting:
            if barrier.passes(parity):
                self.at(self.wake_time(now, warp.since), self.wake, warp)
            else:
                barrier.waiting.append((warp, parity))

    def wake_time(self, now: float, since: float) -> float:
        """The time at which a warp that waits since ``since`` resumes: warps of a cluster poll, a single CTA's warp is
        woken."""
        if self.layout.ranks == 1:
            return now + self.timing.wake
        return since + ceil((now - since) / self.timing.poll) * self.timing.poll + self.timing.wake

    def wake(self, now: float, warp: Warp) -> None:
        since, warp.since = warp.since, now
        self.resume(since, now, warp)

    # Named barriers and cluster barriers.

    def do_bar_sync(self, warp: Warp, step: Step, now: float) -> float:
        self.join_bar(warp, step, now)
        warp.run.named[warp.rank, step.what][2].append(warp)
        warp.since = now
        self.release_bars(now, warp.run, warp.rank)
        return NEVER

    def do_bar_arrive(self, warp: Warp, step: Step, now: float) -> float:
        self.join_bar(warp, step, now)
        self.release_bars(now, warp.run, warp.rank)
        return now + 1

    def join_bar(self, warp: Warp, step: Step, now: float) -> None:
        warp.run.named.setdefault((warp.rank, step.what), [0, step.number, []])[0] += 1

    def release_bars(self, now: float, run: Run, rank: int) -> None:
        for key, (arrived, threads, waiting) in list(run.named.items()):
            if key[0] == rank and arrived >= (threads // 32 or run.live_warps[rank]):
                del run.named[key]
                then = now + self.timing.bar + arrived * self.timing.bar_warp
                for warp in waiting:
                    self.at(then, self.wake, warp)

    def do_cluster_arrive(self, warp: Warp, step: Step, now: float) -> float:
        then = now + step.number * self.timing.fence_cluster
        self.at(then, self.arrive_at_cluster, warp)
        return then + 1

    def arrive_at_cluster(self, now: float, warp: Warp) -> None:
        run = warp.run
        run.cluster_arrivals[warp.number] = run.cluster_phase
        run.cluster_count += 1
        self.check_cluster_barrier(now, run)

    def do_cluster_wait(self, warp: Warp, step: Step, now: float) -> float:
        run = warp.run
        if run.cluster_arrivals.get(warp.number, -1) < run.cluster_phase:
            return now + self.timing.bar
        warp.since = now
        run.cluster_waiting.append(warp)
        return NEVER

    def check_cluster_barrier(self, now: float, run: Run) -> None:
        if not run.cluster_count or run.cluster_count < run.alive:
            return
        run.cluster_count = 0
        self.at(now + self.timing.cluster_barrier, self.release_cluster, run)

    def release_cluster(self, now: float, run: Run) -> None:
        run.cluster_phase += 1
        waiting, run.cluster_waiting = run.cluster_waiting, []
        for warp in waiting:
            self.wake(now, warp)


Cause = tuple[Warp, Step, float]  # an operation that arrives at a barrier: its warp, its step, when it was issued
Perform = Callable[[Replay, Warp, Step, float], float]
_OWN_STEPS: dict[str, Perform] = {name[3:]: step for name, step in vars(Replay).items() if name.startswith("do_")}
