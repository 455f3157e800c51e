"""A row of the stream of a cluster: an instruction that lanes of a warp executed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.clocks import Lanes

__all__ = ["BITS", "Row"]

BITS = np.arange(32)


@lru_cache(maxsize=4096)
def _lanes(warp: int, mask: int) -> Lanes:
    found: Lanes = warp * 32 + BITS[(mask >> BITS) & 1 == 1]
    return found


class Row:
    """What lanes of a warp executed: the number of the instruction, the lanes (``mask``: of the warp), and two words
    that depend on the instruction.

    ``places`` are bytes from the start of the cluster's shared memory, one a lane; ``packed`` the operands of an
    mbarrier operation: count, expected and completed bytes in 20, 22 and 22 bits. ``table``: the host address of 32
    places, below 0 for lanes that are off or access other memory.
    """

    __slots__ = ("a", "b", "extra", "inst", "lanes", "mask", "packed", "places", "table", "warp")

    def __init__(self, inst: int, warp: int, extra: int, mask: int, a: int, b: int) -> None:
        self.inst, self.warp, self.extra, self.mask, self.a, self.b = inst, warp, extra, mask, a, b
        self.lanes: Lanes = _lanes(warp, mask)
        self.table = 0
        self.places: NDArray[np.int64] = BITS
        self.packed: NDArray[np.int64] = BITS
