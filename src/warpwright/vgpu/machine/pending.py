"""The clusters of a grid that have not started, and which of them a running cluster takes over.

A chip has ``places`` for clusters; cluster i waits for the place of cluster i - places. Either that cluster ends and i
starts in its place, or it asks for more work (cluster launch control), gets i, and i never starts. So each place
computes the same clusters whatever the order in which places are simulated.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from random import Random

__all__ = ["Pending", "shuffled"]


def shuffled(count: int, seed: int) -> list[int]:
    """Returns the numbers of ``count`` clusters in an order that the seed chooses."""
    return Random(seed).sample(range(count), count)


class Pending:
    """``numbers``: the clusters to start; ``total``: clusters of the grid; ``places``: how many run at a time."""

    def __init__(self, numbers: Sequence[int], total: int, places: int) -> None:
        self.waiting = deque(numbers)
        self.total, self.places = total, places
        self.lock = threading.Lock()
        self.busy: set[int] = set()
        self.cancelled: set[int] = set()
        self.complete = 0
        self.following: dict[int, int] = {}

    def __iter__(self) -> Pending:
        return self

    def __next__(self) -> int:
        """Returns the next cluster to start. Raises StopIteration if none is left, or if no place is free."""
        with self.lock:
            while self.waiting and self.waiting[0] in self.cancelled:
                self.waiting.popleft()
            for index, number in enumerate(self.waiting):
                if number % self.places not in self.busy and number not in self.cancelled:
                    self.busy.add(number % self.places)
                    self.following[number % self.places] = number + self.places
                    del self.waiting[index]
                    return number
            raise StopIteration

    def cancel(self, number: int) -> int | None:
        """Cancel the start of a cluster, whose work cluster ``number`` does. Returns it, or None if none is left."""
        with self.lock:
            found = self.following[number % self.places]
            if found >= self.total:
                return None
            self.following[number % self.places] = found + self.places
            self.cancelled.add(found)
            return found

    def ended(self, number: int) -> None:
        """Free the place of cluster ``number``, which is done."""
        with self.lock:
            self.busy.discard(number % self.places)
            self.complete += 1

    @property
    def done(self) -> int:
        """Clusters that have ended, or that never start because others did their work."""
        return self.complete + len(self.cancelled)
