"""Clusters on cores: one worker thread a core, each with its resident clusters.

A worker runs a cluster to its end. Only if the warps of a cluster spin on something that another cluster must do does
the worker make the next cluster resident too, up to the capacity of the device, as a larger grid runs in waves on a
chip. If the resident clusters of all workers only return to earlier states, no state will ever change: that is a
deadlock. If timing is recorded and clusters hand out work, all clusters that fit run in step.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from warpwright import display
from warpwright.errors import Deadlock
from warpwright.targets.clocks import TIMINGS
from warpwright.vgpu.machine import waits
from warpwright.vgpu.machine.blas import one_blas_thread
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.events import Rows
from warpwright.vgpu.machine.explore import together
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.pending import Pending
from warpwright.vgpu.machine.tape import row_buffer

__all__ = ["ctas_per_sm", "fitting_ctas", "run_clusters"]

_REPEATS = 2  # rounds that lead to known states before clusters count as stuck
_LONG = 1_000_000  # block jumps after which a cluster may spin on a counter: another cluster starts
_LATE = 50  # rounds after an error
_REMEMBERED = 10_000  # states
_NAP = 0.0005  # seconds that a worker whose clusters changed nothing leaves the core to the others


class _Run:
    """What the workers of one launch share.

    ``show`` takes the number of clusters that have ended; ``generation`` counts changes; ``still``: for every worker,
    the generation in which a whole round of its clusters changed nothing.
    """

    def __init__(self, launch: Launch, workers: int, show: Callable[[int], None]) -> None:
        self.launch, self.show = launch, show
        numbers, count, ranks = launch.numbers, launch.clusters_a_rank, launch.spec.gpus
        self.lock = threading.Lock()
        self.clusters: set[Cluster] = set()
        self.errors: list[tuple[int, Exception]] = []
        self.generation = 0
        self.still = dict.fromkeys(range(workers), -1)
        self.dead = False
        places = _places(launch)
        self.capacity = max(1, ranks * places // workers)
        all_at_once = launch.in_step or launch.kernel.program.cooperative
        self.together = together(launch.seed) if launch.seed else self.capacity if all_at_once else 1
        most = count if ranks == 1 else places
        self.numbers = launch.pending = Pending(numbers, count, places if launch.takes_over else count, most)

    def take(self) -> int | None:
        with self.lock:
            return None if self.errors else next(self.numbers, None)

    def changed(self) -> None:
        with self.lock:
            self.generation += 1

    def leave(self, worker: int) -> None:
        with self.lock:
            self.still.pop(worker)

    def stuck(self, worker: int, generation: int) -> bool:
        """Note that a round begun in ``generation`` changed nothing. Returns whether that holds for every worker: then
        all clusters are dead."""
        with self.lock:
            self.still[worker] = generation
            self.dead |= all(generation == self.generation for generation in self.still.values())
            return self.dead

    def failed(self, number: int, error: Exception) -> None:
        with self.lock:
            self.errors.append((number, error))

    def first_error(self) -> int | None:
        """Returns the lowest cluster that has failed. Lower clusters still run to their end: they may fail too."""
        return min((number for number, _ in self.errors), default=None)

    def raise_error(self) -> NoReturn:
        """Raise the error of the lowest cluster. The frames of an error refer to the run, and nothing to the error: no
        cycle keeps the memory of the launch."""
        error = min(self.errors, key=lambda row: row[0])[1]
        self.errors.clear()
        try:
            raise error
        finally:
            del error

    def work(self, worker: int) -> None:
        """Start clusters and step the resident ones until none is left."""
        rows = row_buffer(self.launch.timed) if self.launch.records else None
        idle: list[Cluster] = []
        resident: list[Cluster] = []
        progress = _Progress(self, worker)
        while True:
            wanted = min(self._more(len(resident)) if progress.spinning else self.together, self.capacity)
            while len(resident) < wanted and (number := self.take()) is not None:
                resident.append(self._start(idle, rows, number))
                progress.reset()
            if not resident:
                return self.leave(worker)
            if self.dead:
                self._stop(resident)
            if self.dead or self.launch.stopped:
                return self.leave(worker)
            generation = self.generation
            resident = self._round(resident, idle)
            progress.look(resident, generation)
            if self.errors and not self.dead and progress.hopeless():
                return self.leave(worker)

    def _more(self, resident: int) -> int:
        """Returns how many clusters should be resident if ``resident`` spin: on a node, whose ranks wait for one
        another, twice as many."""
        return resident + (max(1, resident) if self.launch.spec.gpus > 1 else 1)

    def _stop(self, resident: list[Cluster]) -> None:
        """Stop the resident clusters: they are dead."""
        alive = [cluster for cluster in self.clusters if cluster.warps["live"].any()]
        shown = sorted(alive, key=lambda cluster: cluster.number) if self.launch.spec.gpus > 1 else resident[:1]
        error = Deadlock(waits.deadlock(*shown))
        for cluster in resident:
            cluster.stop(error, own=False)
        self.failed(resident[0].number, error)

    def _start(self, idle: list[Cluster], rows: Rows | None, number: int) -> Cluster:
        cluster = idle.pop() if idle else Cluster(self.launch, rows)
        self.clusters.add(cluster)
        cluster.start(number)
        return cluster

    def _round(self, resident: list[Cluster], idle: list[Cluster]) -> list[Cluster]:
        """Step every cluster and return those that are not done. After an error only lower clusters run."""
        unfinished = []
        for cluster in resident:
            first = self.first_error()
            if first is not None and cluster.number > first:
                continue
            try:
                done = cluster.step()
                if cluster.stuck:
                    raise Deadlock(waits.deadlock(cluster))
            except Exception as error:  # the error of the lowest cluster is raised in the end
                cluster.stop(error, own=True)
                self.failed(cluster.number, error)
                continue
            if done:
                self.numbers.ended(cluster.number)
                idle.append(cluster)
            else:
                unfinished.append(cluster)
        if len(unfinished) < len(resident):
            self.changed()
            self.show(self.numbers.done)
        return unfinished


def ctas_per_sm(launch: Launch) -> int:
    """Returns how many CTAs of a launch are resident on an SM together: one if a CTA keeps its permit to allocate.

    A CTA of a kernel with ``tcgen05.alloc`` starts with the permit of its SM and keeps it until it executes
    ``tcgen05.relinquish_alloc_permit`` or exits. Sources: PTX ISA 9.1 section 9.7.16.7.1 has the right to allocate, not
    what another CTA does meanwhile; CUTLASS relinquishes "so that the next CTA can rasterize"; nvFuser calls the right
    a mutex; ptxas 13.0 turns the instruction into UVIRTCOUNT.DEALLOC.SMPOOL, which frees an entry of a pool of the SM.
    """
    effects = {inst.traits.effect for inst in launch.insts}
    return 1 if "allocates" in effects and "relinquishes" not in effects else fitting_ctas(launch)


def fitting_ctas(launch: Launch) -> int:
    """Returns how many CTAs of a launch fit on an SM together, by threads and shared memory."""
    return max(1, launch.spec.limits.fitting_ctas(launch.threads, launch.shared_limit))


def _places(launch: Launch) -> int:
    """Returns how many clusters are resident together on one GPU."""
    ranks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    timing = TIMINGS.get(launch.spec.chip)
    known = timing is not None and sum(timing.gpcs) == launch.spec.sms
    clusters = timing.clusters(ranks) if timing and known else launch.spec.sms // ranks
    return max(1, clusters) * ctas_per_sm(launch)


class _Progress:
    """Whether the resident clusters of a worker make progress, or only return to earlier states."""

    def __init__(self, run: _Run, worker: int) -> None:
        self.run = run
        self.worker = worker
        self.late = 0
        self.reset()

    def reset(self) -> None:
        self.seen: set[int] = set()
        self.repeats = 0
        self.rounds = 0
        self.run.changed()

    @property
    def spinning(self) -> bool:
        return self.repeats > 0 or self.rounds * self.run.launch.slice > _LONG

    def hopeless(self) -> bool:
        """Whether clusters may wait for a cluster with an error: asked once a round after an error."""
        self.late += 1
        return self.repeats > 0 or self.late > _LATE

    def look(self, resident: list[Cluster], generation: int) -> None:
        if not resident:
            return
        if any(cluster.paused for cluster in resident):
            self.run.changed()
            return
        state = hash(tuple(cluster.snapshot() for cluster in resident))
        if state in self.seen and any(cluster.writes() for cluster in resident):
            state = hash((state, self._memory(resident)))
        self.rounds += 1
        if state not in self.seen:
            self.repeats = 0
            self.seen = self.seen if len(self.seen) < _REMEMBERED else set()
            self.seen.add(state)
            self.run.changed()
            return
        self.repeats += 1
        if self.repeats > _REPEATS and not self.run.stuck(self.worker, generation):
            time.sleep(_NAP)

    def _memory(self, resident: list[Cluster]) -> bytes:
        """Returns a digest of all memory that resident clusters can read."""
        digest = hashlib.blake2b()
        self.run.launch.memory.digest(digest)
        for cluster in resident:
            digest.update(cluster.shared.data)
        return digest.digest()


def run_clusters(launch: Launch) -> None:
    """Run every cluster of a launch. Raises the error of the lowest cluster with an error."""
    workers = 1 if launch.by_turns else max(1, min(os.cpu_count() or 1, len(launch.numbers)))
    shown = display.progress(f"{launch.name}: clusters", len(launch.numbers))
    with shown as show, one_blas_thread():
        _run_on(workers, _Run(launch, workers, show))


def _run_on(workers: int, run: _Run) -> None:
    """Run the clusters on as many threads."""
    try:
        if workers == 1:
            run.work(0)
        else:
            with ThreadPoolExecutor(workers) as pool:
                try:
                    for future in [pool.submit(run.work, worker) for worker in range(workers)]:
                        future.result()
                finally:
                    run.launch.stopped = True  # workers that still run, if this thread was interrupted
    finally:
        for cluster in run.clusters:
            cluster.close()
    if run.errors:
        run.raise_error()
