"""Gradients of attention on a GPU that were computed before: which calls are made again, and their launches, which
only lack addresses. Finding kernels and launches takes some 300 µs of host time (`python bench/host_time.py`, H200)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.cuda import Launch
from warpwright.ops.attention.bound_call import Calls
from warpwright.ops.attention.plan import MAP_BYTES

__all__ = ["CALLS", "MAPPED", "Kept"]

Array = Any
Axes = tuple[int, int] | None
At = Callable[[tuple[int, ...], int], tuple[Launch, ...]]
Three = tuple[Array, Array, Array]

KEPT_LAUNCHES = 1024
MAPPED = 5  # of the given arrays, Q, K, V, O and dO come first and are read through tensor maps

CALLS = Calls()


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """A call whose arrays were all used in place; addresses may be others.

    Its arrays are q, k, v, o, do, lse and, where there is one, dlse. ``pointer`` and ``stream`` are the library's;
    ``makers`` make the gradients, whose axes ``turned`` are then exchanged; ``lender`` lends the memory between the
    launches, of which each array has its own from one of ``offsets`` on. ``at`` gives the launches for the addresses of
    q, k, v, o, do, the gradients, lse, dlse and that memory, on a stream.
    """

    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    makers: tuple[Callable[[], Array], ...]
    turned: tuple[Axes, ...]
    lender: tuple[Callable[[int], int], Callable[[int], Any]]
    offsets: tuple[int, ...]
    at: At

    def __call__(self, given: Sequence[Array]) -> Three | None:
        """The gradients; None for addresses that no kernel reads in place."""
        pointer, stream = self.pointer, self.stream()
        read = [pointer(array) for array in given]
        if any(place % MAP_BYTES for place in read[:MAPPED]):
            return None
        made, (lend, give_back) = [make() for make in self.makers], self.lender
        lent = lend(stream)
        try:
            memory = [lent + offset for offset in self.offsets]
            places = (*read[:MAPPED], *map(pointer, made), *read[MAPPED:], *memory)
            for launch in _launches(self.at, places, stream):
                launch()
        finally:
            give_back(lent)  # whoever gets it next uses it behind these launches in the stream
        dq, dk, dv = (x if axes is None else x.swapaxes(*axes) for x, axes in zip(made, self.turned, strict=True))
        return dq, dk, dv


@functools.lru_cache(maxsize=KEPT_LAUNCHES)
def _launches(at: At, places: tuple[int, ...], stream: int) -> tuple[Launch, ...]:
    """Allocators give the same addresses again and again."""
    return at(places, stream)
