"""One cluster after another on the SMs of one of them, in order of time: discrete events over recorded steps.

Every warp performs its steps in program order; a step takes effect at the time at which the warp comes to it, asks
units for service, which queue first come, first served, and says when the warp goes on. Only issue slots are taken in
turns: a warp with hundreds of them to issue does not hold up the others of its scheduler. Barriers are those of the
kernel: what lets a wait pass is an arrival or bytes in the replay itself, never the order of the functional run.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from random import Random
from typing import Any

from warpwright.errors import LaunchError
from warpwright.targets import Timing
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.state import NEVER, Layout, Outcome, Run, Warp, Work
from warpwright.vgpu.timing.steps import Step
from warpwright.vgpu.timing.units import Barrier, Memory, Units

__all__ = ["LATE", "SOON", "Replay"]

SOON = 8.0  # cycles that a warp may reserve issue slots ahead without an event of its own
LATE = 0.5  # cycles that a warp may go on before the last of its slots


class Replay:
    """The clock, the events and the barriers of a replay; ``steps`` says what the other kinds of steps do."""

    def __init__(
        self,
        works: Sequence[Work],
        timing: Timing,
        memory: Memory,
        layout: Layout,
        journal: Journal,
        steps: Mapping[str, Callable[[Replay, Warp, Step, float], float]],
    ) -> None:
        self.timing, self.layout, self.journal = timing, layout, journal
        self.units = Units(timing, layout.ranks, memory)
        self.queue = deque(works)
        self.begun = min(layout.together, len(works))
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        self.outcome = Outcome([], [], self.units)
        self.chance = Random(0)  # the same for every replay
        self.running: dict[Run, None] = {}
        own = {name[3:]: getattr(self, name) for name in dir(self) if name.startswith("do_")}
        self.do: dict[str, Callable[[Warp, Step, float], float]] = {
            **own,
            **{name: partial(function, self) for name, function in steps.items()},
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
        run = Run(work, slot, now, first=not self.outcome.starts)
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
            schedulers, special = self.units.schedulers[rank], self.units.special[rank]
            own = warp % len(schedulers)
            held = Warp(steps, rank, number, run, schedulers[own], special[own], since=now)
            run.warps.append(held)
            self.at(now, self.issue, held)

    def issue(self, now: float, warp: Warp) -> None:
        """Go on to the next step: execute what lies before it."""
        warp.since = now
        if warp.at == len(warp.steps):
            self.end(now, warp)
            return
        step, unit = warp.steps[warp.at], warp.scheduler
        end = now + step.cycles
        if step.slots:
            warp.mark = unit.take(now, step.slots)
            end = max(end, unit.end(warp.mark))
        if step.special:
            warp.special_mark = warp.special.take(now, step.special)
            end = max(end, warp.special.end(warp.special_mark))
        self.at(end, self.step, warp)

    def step(self, now: float, warp: Warp) -> None:
        """A step takes effect, unless others have come since it began and its warp has slots left to take."""
        step, run = warp.steps[warp.at], warp.run
        end = warp.scheduler.left(now, warp.mark) if step.slots else now
        if step.special:
            end = max(end, warp.special.left(now, warp.special_mark))
        if end > now + LATE:
            self.at(end, self.step, warp)
            return
        if run.first:
            self.journal.busy(warp, step, warp.since, now, now - warp.since - step.cycles)
        then = self.do[step.kind](warp, step, now)
        if then is not NEVER:
            self.go_on(now, then, warp)

    def go_on(self, now: float, then: float, warp: Warp) -> None:
        """The warp goes on at ``then``; until then it has stalled at its step."""
        step = warp.steps[warp.at]
        if warp.run.first and then > now:
            self.journal.stalled(warp, step, now, then)
        warp.at += 1
        if then <= now + SOON:
            self.issue(then, warp)
        else:
            self.at(then, self.issue, warp)

    def end(self, now: float, warp: Warp) -> None:
        run = warp.run
        run.alive -= 1
        run.living[warp.rank] -= 1
        run.last = max(run.last, now, warp.open_copy, *warp.copies)
        self.open_named(now, run, warp.rank)
        if run.alive == 0:
            self.at(run.last, self.leave, run)
        else:
            self.turn_cluster(now, run)

    def leave(self, now: float, run: Run) -> None:
        del self.running[run]
        self.outcome.ends.append(now)
        if run.first:
            self.journal.ended(now)
        if self.queue:
            start = max(now + self.timing.cta_start, self.begun * self.layout.pace)
            self.begun += 1
            self.at(start, self.begin, run.slot, self.queue.popleft())

    # Barriers in shared memory.

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
        found = run.barriers.get(place)
        if found is None:
            found = run.barriers[place] = Barrier()
        return found

    def do_arrive(self, warp: Warp, step: Step, now: float) -> float:
        remote = step.what // self.layout.stride != warp.rank
        delay = self.timing.arrive_remote if remote else self.timing.arrive
        self.at(now + delay, self.update, warp.run, step.what, step.number, step.nbytes)
        return now + 1

    def do_arrive_drop(self, warp: Warp, step: Step, now: float) -> float:
        self.barrier(warp.run, step.what).count -= step.number
        return self.do_arrive(warp, step, now)

    def update(self, now: float, run: Run, place: int, arrivals: int, nbytes: int) -> None:
        barrier = self.barrier(run, place)
        if not barrier.update(arrivals, nbytes):
            return
        if run.first:
            self.journal.phase(place, now)
        waiting, barrier.waiting = barrier.waiting, []
        for warp, parity in waiting:
            if barrier.passes(parity):
                self.at(self.seen(now, warp.since), self.wake, warp)
            else:
                barrier.waiting.append((warp, parity))

    def seen(self, now: float, since: float) -> float:
        """When a warp that waits since then goes on: in a cluster it looks now and then, alone it is woken."""
        if self.layout.ranks == 1:
            return now + self.timing.wake
        return since + ceil((now - since) / self.timing.poll) * self.timing.poll + self.timing.wake

    def wake(self, now: float, warp: Warp) -> None:
        since, warp.since = warp.since, now
        self.go_on(since, now, warp)

    # Barriers of the machine.

    def do_bar_sync(self, warp: Warp, step: Step, now: float) -> float:
        self.come(warp, step, now)
        warp.run.named[warp.rank, step.what][2].append(warp)
        warp.since = now
        self.open_named(now, warp.run, warp.rank)
        return NEVER

    def do_bar_arrive(self, warp: Warp, step: Step, now: float) -> float:
        self.come(warp, step, now)
        self.open_named(now, warp.run, warp.rank)
        return now + 1

    def come(self, warp: Warp, step: Step, now: float) -> None:
        held = warp.run.named.setdefault((warp.rank, step.what), [0, step.number, []])
        held[0] += 1

    def open_named(self, now: float, run: Run, rank: int) -> None:
        for key, (come, threads, waiting) in list(run.named.items()):
            if key[0] == rank and come >= (threads // 32 or run.living[rank]):
                del run.named[key]
                then = now + self.timing.bar + come * self.timing.bar_warp
                for warp in waiting:
                    self.at(then, self.wake, warp)

    def do_cluster_arrive(self, warp: Warp, step: Step, now: float) -> float:
        run = warp.run
        run.cluster_owed[warp.number] = run.cluster_phase
        run.cluster_count += 1
        self.turn_cluster(now, run)
        return now + 1

    def do_cluster_wait(self, warp: Warp, step: Step, now: float) -> float:
        run = warp.run
        if run.cluster_owed.get(warp.number, -1) < run.cluster_phase:
            return now + self.timing.bar
        warp.since = now
        run.cluster_waiting.append(warp)
        return NEVER

    def turn_cluster(self, now: float, run: Run) -> None:
        if not run.cluster_count or run.cluster_count < run.alive:
            return
        run.cluster_count = 0
        self.at(now + self.timing.cluster_barrier, self.open_cluster, run)

    def open_cluster(self, now: float, run: Run) -> None:
        run.cluster_phase += 1
        waiting, run.cluster_waiting = run.cluster_waiting, []
        for warp in waiting:
            self.wake(now, warp)
