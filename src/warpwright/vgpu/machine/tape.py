"""The rows that lane code compiled for timing leaves, taken out of the machine cluster by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import LaunchError
from warpwright.targets import Timing

if TYPE_CHECKING:
    from warpwright.vgpu.checks.stream import Stream
    from warpwright.vgpu.machine.cluster import Cluster
    from warpwright.vgpu.machine.launch import Launch

__all__ = ["CAPACITY", "ROWS_OF_ONE", "ROW_WORDS", "Recorder", "Rows", "Tape", "row_buffer"]

ROW_WORDS = 4  # instruction | warp << 32, cycles | slots << 32, two words: see record.ll
ROWS_OF_ONE = 17  # rows that an instruction leaves at most, with its tables
CAPACITY = 1 << 22  # rows between two turns of the scheduler; memory is only touched as far as it is used

Rows = NDArray[np.int64]


class Recorder(Protocol):
    """Takes the rows of a launch. Called from worker threads."""

    timing: Timing

    def launched(self, launch: Launch) -> Sequence[int] | None:
        """A launch begins; gives the clusters that shall run, None for all."""

    def recorded(self, cluster: Cluster, rows: Rows, records: NDArray[Any]) -> None:
        """A cluster is done: its rows and its records of the queue, both in the order in which they were made."""


def row_buffer() -> NDArray[np.int64]:
    """Where lane code leaves rows until they are taken: one for all clusters of a worker, of which one goes on."""
    buffer = np.empty((CAPACITY + 1) * ROW_WORDS, np.int64)
    buffer[:ROW_WORDS] = 0, CAPACITY, 0, 0
    return buffer


class Tape:
    """What one cluster has recorded so far, by way of a ``buffer``."""

    def __init__(self, cluster: Cluster, buffer: NDArray[np.int64]) -> None:
        self.cluster, self.buffer = cluster, buffer
        self.rows: list[Rows] = []
        self.records: list[NDArray[np.uint64]] = []

    def take(self, records: NDArray[np.uint64], watch: Stream | None = None) -> None:
        """Take the rows made since the last time, and the records that stand in the queue; a watched cluster's
        stream gets them."""
        count = int(self.buffer[0])
        if count >= CAPACITY:
            raise LaunchError(f"kernel {self.cluster.launch.name} runs too long without a pause to be timed.")
        if watch:
            watch.take(self.buffer[ROW_WORDS : (count + 1) * ROW_WORDS].reshape(count, ROW_WORDS), records)
            self.buffer[0] = 0
            return
        if count:
            self.rows.append(self.buffer[ROW_WORDS : (count + 1) * ROW_WORDS].reshape(count, ROW_WORDS).copy())
            self.buffer[0] = 0
        if len(records):
            self.records.append(records.copy())

    def finish(self, watch: Stream | None = None) -> None:
        """Hand everything over; the next cluster starts with nothing."""
        if watch:
            watch.watcher.end(watch)
            return
        rows = np.concatenate(self.rows) if self.rows else np.empty((0, ROW_WORDS), np.int64)
        records = np.concatenate(self.records) if self.records else np.empty((0, self.cluster.records.shape[1]))
        self.rows, self.records = [], []
        recorder = self.cluster.launch.recorder
        assert recorder is not None
        recorder.recorded(self.cluster, rows, records.astype(np.int64))
