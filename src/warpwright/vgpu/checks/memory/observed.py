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
from warpwright.vgpu.checks.order.access_kinds import CLUSTER, SYSTEM, Kind

__all__ = ["Observed"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Observed:
    """The strong accesses of a launch by address, in the order of the run: ``chain`` numbers those between two writes
    that are not atomic operations. ``a_rank``: the clusters of a rank of a node; accesses of two ranks see one another
    in the scope of the system only."""

    def __init__(self, strong: Touches, kinds: Sequence[Kind | None], a_rank: int) -> None:
        self.a_rank = a_rank
        self.strong = strong.select(np.lexsort((strong.lane, strong.row, strong.turn, strong.low)))
        own = [kinds[inst] for inst in self.strong.inst.tolist()]
        self.system = np.array([kind is not None and kind.scope == SYSTEM for kind in own], np.bool_)
        self.reads = np.array([kind is not None and kind.reads and kind.scope > CLUSTER for kind in own], np.bool_)
        begins = np.array([kind is None or (kind.writes and not kind.reads) for kind in own], np.bool_)
        begins[1:] |= np.diff(self.strong.low) != 0
        self.chain = np.cumsum(begins)
        self.places = {key: at for at, key in enumerate(_keys(self.strong))}
        self.last: dict[tuple[tuple[int, ...], int, bool], int] = {}

    def precede(self, first: Touches, second: Touches, before: Callable[[Touches, Touches], Bools]) -> Bools:
        """Returns the pairs whose first access is a write that a read in the cluster of the second saw, where the read
        precedes the second. ``before`` says which accesses precede others of the same cluster."""
        found = np.zeros(len(first.low), np.bool_)
        for at, (one, two) in enumerate(zip(_keys(first), _keys(second), strict=True)):
            place, crosses = self.places.get(one), one[0] // self.a_rank != two[0] // self.a_rank
            if place is not None and (self.system[place] or not crosses):
                chain = int(self.chain[place])
                if (two, chain, crosses) not in self.last:
                    later = second.select(slice(at, at + 1))
                    self.last[two, chain, crosses] = self._last_read(chain, later, before, crosses)
                found[at] = place < self.last[two, chain, crosses]
        return found

    def _last_read(
        self, chain: int, second: Touches, before: Callable[[Touches, Touches], Bools], crosses: bool
    ) -> int:
        """Returns the place of the last read of a chain that precedes an access; -1 without any. A read that sees a
        write of another rank has the scope of the system."""
        low, high = np.searchsorted(self.chain, (chain, chain + 1))
        inside, reads = np.arange(low, high), self.reads[low:high] & (self.system[low:high] | (not crosses))
        inside = inside[reads & (self.strong.cluster[low:high] == second.cluster[0])]
        ordered = before(self.strong.select(inside), second.select(np.zeros(len(inside), np.int64)))
        return int(max(inside[ordered], default=-1))


def _keys(touches: Touches) -> list[tuple[int, ...]]:
    """What identifies an access: cluster, row, lane, operation and address."""
    parts = touches.cluster, touches.row, touches.lane, touches.op, touches.low
    return list(zip(*(part.tolist() for part in parts), strict=True))
