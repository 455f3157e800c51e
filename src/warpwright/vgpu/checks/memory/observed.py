"""Strong writes whose values a later strong read saw: observation and causality order (PTX ISA 9.1 section 8.9).

A write precedes all that follows a strong read of its value, or of what atomic operations made of it, without any
release: the last CTA's increment of a counter saw the increments of all others, so that CTA may reset the counter with
a plain store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.memory.spans import Touches
from warpwright.vgpu.checks.order.access_kinds import CLUSTER, Kind

__all__ = ["Observed"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Observed:
    """The strong accesses of a launch by address, in the order of the run: ``chain`` numbers those between two writes
    that are not atomic operations."""

    def __init__(self, strong: Touches, kinds: Sequence[Kind | None]) -> None:
        self.strong = strong.select(np.lexsort((strong.lane, strong.row, strong.turn, strong.low)))
        own = [kinds[inst] for inst in self.strong.inst.tolist()]
        self.reads = np.array([kind is not None and kind.reads and kind.scope > CLUSTER for kind in own], np.bool_)
        begins = np.array([kind is None or (kind.writes and not kind.reads) for kind in own], np.bool_)
        begins[1:] |= np.diff(self.strong.low) != 0
        self.chain = np.cumsum(begins)
        self.places = {key: at for at, key in enumerate(_keys(self.strong))}
        self.last: dict[tuple[tuple[int, ...], int], int] = {}

    def precede(self, first: Touches, second: Touches, before: Callable[[Touches, Touches], Bools]) -> Bools:
        """Returns the pairs whose first access is a write that a read in the cluster of the second saw, where the read
        precedes the second. ``before`` says which accesses precede others of the same cluster."""
        found = np.zeros(len(first.low), np.bool_)
        for at, (one, two) in enumerate(zip(_keys(first), _keys(second), strict=True)):
            place = self.places.get(one)
            if place is not None:
                chain = int(self.chain[place])
                if (two, chain) not in self.last:
                    self.last[two, chain] = self._last_read(chain, second.select(slice(at, at + 1)), before)
                found[at] = place < self.last[two, chain]
        return found

    def _last_read(self, chain: int, second: Touches, before: Callable[[Touches, Touches], Bools]) -> int:
        """Returns the place of the last read of a chain that precedes an access; -1 without any."""
        low, high = np.searchsorted(self.chain, (chain, chain + 1))
        inside = np.arange(low, high)
        inside = inside[self.reads[low:high] & (self.strong.cluster[low:high] == second.cluster[0])]
        ordered = before(self.strong.select(inside), second.select(np.zeros(len(inside), np.int64)))
        return int(max(inside[ordered], default=-1))


def _keys(touches: Touches) -> list[tuple[int, ...]]:
    """What identifies an access: cluster, row, lane, operation and address."""
    parts = touches.cluster, touches.row, touches.lane, touches.op, touches.low
    return list(zip(*(part.tolist() for part in parts), strict=True))
