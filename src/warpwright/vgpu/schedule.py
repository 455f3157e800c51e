"""Clusters on cores: one worker thread a core, each with the clusters that are resident on it.

A worker runs a cluster to its end. Only when its warps spin on something that another cluster must do does it make
the next one resident beside it, up to the device's capacity, as a larger grid runs in waves on a chip. When every
resident cluster spins without changing anything, nobody will ever change anything: that is a deadlock.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from warpwright.errors import Deadlock
from warpwright.vgpu import faults
from warpwright.vgpu.cluster import Cluster

if TYPE_CHECKING:
    from warpwright.vgpu.launch import Launch

__all__ = ["run_clusters"]

_PATIENCE = 3  # rounds without any change before spinning counts as a deadlock


class _Run:
    """What the workers of one launch share."""

    def __init__(self, launch: Launch, workers: int) -> None:
        self.launch = launch
        x, y, z = launch.clusters
        self.numbers: Iterator[int] = iter(range(x * y * z))
        self.lock = threading.Lock()
        self.errors: list[tuple[int, Exception]] = []
        self.progress = itertools.count()
        self.steps = 0
        limits = launch.spec.limits
        per_sm = max(1, min(limits.max_ctas_per_sm, limits.max_threads_per_sm // max(1, launch.threads)))
        ranks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        self.capacity = max(1, launch.spec.sms * per_sm // ranks // workers)

    def take(self) -> int | None:
        with self.lock:
            return None if self.errors else next(self.numbers, None)

    def moved(self) -> None:
        self.steps = next(self.progress)

    def work(self) -> None:
        """One worker: start clusters, step the resident ones, until none is left."""
        idle: list[Cluster] = []
        resident: list[Cluster] = []
        patience = _Patience(self)
        while not self.errors:
            if len(resident) < self.capacity and (not resident or patience.spinning):
                number = self.take()
                if number is None and not resident:
                    return
                if number is not None:
                    resident.append(self._start(idle, number))
            self._round(resident, idle)
            patience.look(resident)

    def _start(self, idle: list[Cluster], number: int) -> Cluster:
        cluster = idle.pop() if idle else Cluster(self.launch)
        cluster.start(number)
        return cluster

    def _round(self, resident: list[Cluster], idle: list[Cluster]) -> None:
        for cluster in list(resident):
            try:
                done = cluster.step()
            except Exception as error:  # every worker's error is kept: the lowest cluster's is raised
                with self.lock:
                    self.errors.append((cluster.number, error))
                return
            if done:
                resident.remove(cluster)
                idle.append(cluster)
                self.moved()


class _Patience:
    """Whether the resident clusters of a worker only spin, and for how long nothing has changed."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.spinning = False
        self.rounds = 0
        self.seen: tuple[int, int, list[bytes]] = (0, 0, [])

    def look(self, resident: list[Cluster]) -> None:
        self.spinning = bool(resident)
        now = (self.run.steps, len(resident), [cluster.snapshot() for cluster in resident])
        self.rounds = self.rounds + 1 if resident and now == self.seen else 0
        self.seen = now
        if self.rounds > _PATIENCE:
            error = Deadlock(faults.deadlock(resident[0]))
            with self.run.lock:
                self.run.errors.append((resident[0].number, error))


def run_clusters(launch: Launch) -> None:
    """Run every cluster of a launch; raises the error of the lowest cluster that met one."""
    x, y, z = launch.clusters
    workers = max(1, min(os.cpu_count() or 1, x * y * z))
    run = _Run(launch, workers)
    with threadpool_limits(limits=1, user_api="blas"):
        if workers == 1:
            run.work()
        else:
            with ThreadPoolExecutor(workers) as pool:
                for future in [pool.submit(run.work) for _ in range(workers)]:
                    future.result()
    if run.errors:
        raise min(run.errors, key=lambda row: row[0])[1]
