"""The rows that lane code writes for timing and checks: the buffer of a worker, and a listener that stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import LaunchError
from warpwright.vgpu.jit.state import TIMED_WORDS
from warpwright.vgpu.machine.events import Listener, Records, Rows
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.state import ClusterState

__all__ = ["CAPACITY", "ROWS_OF_ONE", "Tape", "row_buffer", "take_rows"]

ROW_WORDS = 4  # of a row for checks: see watch.ll
ROWS_OF_ONE = 17  # rows that an instruction leaves at most, with its tables
CAPACITY = 1 << 22  # rows between two turns of the scheduler; memory is only touched as far as it is used


def row_buffer(timed: bool) -> Rows:
    """Returns the buffer that lane code writes rows to, of which the first has their number and the most: one for all
    clusters of a worker, of which one runs."""
    buffer = np.empty((CAPACITY + 1, TIMED_WORDS if timed else ROW_WORDS), np.int64)
    buffer[0] = 0
    buffer[0, 1] = CAPACITY
    return buffer


def take_rows(buffer: Rows, kernel: str) -> Rows:
    """Empties the buffer and returns its rows, a view. Raises LaunchError if the buffer was full."""
    count = int(buffer[0, 0])
    if count >= CAPACITY:
        raise LaunchError(f"kernel {kernel} runs too long without a pause to be timed.")
    buffer[0, 0] = 0
    return buffer[1 : count + 1]


class Tape(Listener[Launch, ClusterState]):
    """A listener of a timed launch that stores each cluster's rows and records and passes them to `recorded` when the
    cluster ends."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[list[Rows], list[Records]]] = {}

    def begin(self, cluster: ClusterState) -> None:
        self.parts[cluster.number] = [], []

    def take(self, cluster: ClusterState, rows: Rows, records: Records) -> None:
        all_rows, all_records = self.parts[cluster.number]
        if len(rows):
            all_rows.append(rows.copy())
        if len(records):
            all_records.append(records.copy())

    def end(self, cluster: ClusterState, error: Exception | None = None, own: bool = False) -> None:
        rows, records = self.parts.pop(cluster.number)
        if error is None:
            nothing = np.empty((0, TIMED_WORDS), np.int64), np.empty((0, cluster.records.shape[1]), np.uint64)
            self.recorded(
                cluster, np.concatenate([nothing[0], *rows]), np.concatenate([nothing[1], *records]).view(np.int64)
            )

    def recorded(self, cluster: ClusterState, rows: Rows, records: NDArray[Any]) -> None:
        """A cluster is done: its rows and its records of the queue, both in the order of execution."""
