"""The clusters of a grid that have not started, and which of them a running cluster takes over.

A chip has ``places`` for clusters; cluster i waits for the place of cluster i - places. Either that cluster ends and i
starts in its place, or it asks for more work (cluster launch control), gets i, and i never starts. So each place
computes the same clusters whatever the order in which places are simulated. Every rank of a node has such places.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from random import Random

__all__ = ["Pending", "shuffled"]


def shuffled(count: int, seed: int) -> list[int]:
    """Returns the numbers of ``count`` clusters in an order that the seed chooses."""
    return Random(seed).sample(range(count), count)


class Pending:
    """``numbers``: the clusters to start; ``total``: clusters of the grid; ``places``: how many run at a time;
    ``most``: how many of a rank's clusters may run at a time, wherever they are."""

    def __init__(self, numbers: Sequence[int], total: int, places: int, most: int = sys.maxsize) -> None:
        self.waiting = deque(numbers)
        self.total, self.places, self.most = total, places, most
        self.lock = threading.Lock()
        self.busy: set[tuple[int, int]] = set()  # a rank and a place of it
        self.running: Counter[int] = Counter()  # by rank
        self.cancelled: set[int] = set()
        self.complete = 0
        self.following: dict[tuple[int, int], int] = {}

    def _place(self, number: int) -> tuple[int, int]:
        rank, number = divmod(number, self.total)
        return rank, number % self.places

    def _may_start(self, number: int) -> bool:
        rank, _ = place = self._place(number)
        return place not in self.busy and self.running[rank] < self.most and number not in self.cancelled

    def __iter__(self) -> Pending:
        return self

    def __next__(self) -> int:
        """Returns the next cluster to start. Raises StopIteration if none is left, or if no place is free."""
        with self.lock:
            while self.waiting and self.waiting[0] in self.cancelled:
                self.waiting.popleft()
            for index, number in enumerate(self.waiting):
                if self._may_start(number):
                    place = self._place(number)
                    self.busy.add(place)
                    self.running[place[0]] += 1
                    self.following[place] = number + self.places
                    del self.waiting[index]
                    return number
            raise StopIteration

    def cancel(self, number: int) -> int | None:
        """Cancel the start of a cluster, whose work cluster ``number`` does. Returns it, or None if none is left."""
        with self.lock:
            rank, _ = place = self._place(number)
            found = self.following[place]
            if found >= (rank + 1) * self.total:
                return None
            self.following[place] = found + self.places
            self.cancelled.add(found)
            return found

    def ended(self, number: int) -> None:
        """Free the place of cluster ``number``, which is done."""
        with self.lock:
            place = self._place(number)
            self.busy.discard(place)
            self.running[place[0]] -= 1
            self.complete += 1

    @property
    def done(self) -> int:
        """Clusters that have ended, or that never start because others did their work."""
        return self.complete + len(self.cancelled)
