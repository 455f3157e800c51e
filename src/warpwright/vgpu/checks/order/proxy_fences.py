"""Proxy fences, and what lanes knew when they executed them."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.order.clocks import Clocks, Lanes, mask_of
from warpwright.vgpu.jit.runtime import function

__all__ = ["ProxyFences"]

_WARP = 32
_ALL = 2  # of ``kinds``: the lanes of a warp executed the fence together, with equal knowledge but of one another


class ProxyFences:
    """The notes of `clock_fence` (`clocks.ll`), at host address ``where``: what each lane knew at its last fence."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        warps = clocks.lanes // _WARP
        self._own = np.empty((warps, _WARP, _WARP), np.uint32)
        self._kinds = np.zeros(clocks.lanes, np.int8)
        self._rows = np.zeros((warps, _WARP + 1, 0), np.uint32)
        self._words = np.array([0, 0, self._own.ctypes.data, self._kinds.ctypes.data], np.int64)
        self.where = self._words.ctypes.data
        self._fence = function("clock_fence")

    def execute(self, lanes: Lanes) -> None:
        """The async proxy sees what the lanes have done themselves. What other lanes have done it sees only if those
        fenced before the barrier between."""
        if self._rows.shape[2] < self.clocks.width:
            self._grow()
        self._fence(self.clocks.address, *mask_of(lanes), self.where)

    def _grow(self) -> None:
        old = self._rows
        self._rows = np.zeros((*old.shape[:2], self.clocks.table.shape[2]), np.uint32)
        self._rows[:, :, : old.shape[2]] = old
        self._words[:2] = self._rows.ctypes.data, self._rows.shape[2]

    def knew(self, lane: int, column: int) -> int:
        """Returns what a lane knew of a column at its last fence, 0 if it has executed none."""
        warp, inside = divmod(lane, _WARP)
        together = self._kinds[lane] == _ALL
        if not self._kinds[lane] or column >= self._rows.shape[2]:
            return 0
        if together and column // _WARP == warp:
            return int(self._own[warp, inside, column % _WARP])
        return int(self._rows[warp, _WARP if together else inside, column])
