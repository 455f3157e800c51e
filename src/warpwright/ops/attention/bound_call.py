"""Attention on a GPU that was computed before: which calls are made again, and their launches, which only lack
addresses. Finding kernel and launch takes some 57 µs of host time, `python bench/host_time.py` beside an H200."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.ops.attention.plan import MAP_BYTES

__all__ = ["CALLS", "Alike", "Calls", "Kept"]

Array = Any
Alike = Callable[[Any], bool]

KEPT = 1024
KEPT_LAUNCHES = 4096
VARIANTS = 8


class Calls:
    """Calls that can be made again: what tells which arrays will do, and what makes the call with them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[tuple[Alike, ...], Callable[[Sequence[Array]], Any]], ...]] = {}

    def find(self, given: Sequence[Array], options: tuple[Any, ...]) -> Callable[[Sequence[Array]], Any] | None:
        """What makes a call as one was made before, or gives None for addresses that will not do; None for others."""
        try:
            found = self._known.get((given[0].shape, given[1].shape, len(given), options), ())
        except (AttributeError, RuntimeError, TypeError):  # no arrays, or some whose shape is not there or a symbol
            return None
        for alike, call in found:
            if _fit(alike, given):
                return call
        return None

    def again(self, given: Sequence[Array], options: tuple[Any, ...]) -> Any:
        """What a call gives that can be made as one was before; None for any other."""
        call = self.find(given, options)
        return None if call is None else call(given)

    def keep(
        self,
        given: Sequence[Array],
        options: tuple[Any, ...],
        alike: tuple[Alike, ...],
        call: Callable[[Sequence[Array]], Any],
    ) -> None:
        """Have ``call`` for arrays that are ``alike``, as those given are, and these ``options``."""
        key = given[0].shape, given[1].shape, len(given), options
        known = self._known.get(key, ())
        if any(_fit(each, given) for each, _ in known):
            return
        if len(self._known) >= KEPT:
            self.clear()
        self._known[key] = (*known[-VARIANTS + 1 :], (alike, call))

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


def _fit(alike: tuple[Alike, ...], given: Sequence[Array]) -> bool:
    for each, array in zip(alike, given):  # noqa: B905, SIM110  # as many; a generator takes a microsecond more
        if not each(array):
            return False
    return True


CALLS = Calls()  # of attention, packed and plain


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """A call whose arrays were all used in place; addresses may be others.

    Its arrays are Q, K, V, for packed sequences the two arrays of first rows, and ``out`` where ``made`` is None; else
    ``made`` makes the result, whose axes ``turned`` are then exchanged. ``nbytes`` are those that Q, K, V and O span.
    ``pointer`` and ``stream`` are the library's; ``lse`` makes the log-sum-exp, if it is wanted. ``memory`` gives the
    address of the launch's own memory on a stream, 0 for none, and ``at`` the launch at addresses of Q, K, V, O and
    first rows, of log-sum-exp and that memory, on a stream.
    """

    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    made: Callable[[], Array] | None
    turned: tuple[int, int] | None
    nbytes: tuple[int, ...]
    lse: Callable[[], Array] | None
    memory: Callable[[int], int]
    at: Callable[[tuple[int, ...], int, int, int], Callable[[], None]]

    def __call__(self, given: Sequence[Array]) -> Array | None:
        """What the call gives; None for addresses that no kernel reads or writes in place."""
        pointer, stream = self.pointer, self.stream()
        at_q, at_k, at_v, *more = map(pointer, given)
        if self.made is None:
            out, at_out = given[-1], more.pop()
            if not self._apart(at_out, at_q, at_k, at_v):
                return None
        else:
            out = self.made()
            at_out = pointer(out)
        if (at_q | at_k | at_v | at_out) % MAP_BYTES:
            return None
        lse = None if self.lse is None else self.lse()
        at_lse = 0 if lse is None else pointer(lse)
        _launch(self.at, (at_q, at_k, at_v, at_out, *more), at_lse, self.memory(stream), stream)()
        result = out if self.turned is None else out.swapaxes(*self.turned)
        return result if lse is None else (result, lse)

    def _apart(self, out: int, *read: int) -> bool:
        """Whether O shares no memory with what is read."""
        end = out + self.nbytes[-1]
        return all(out >= at + size or at >= end for at, size in zip(read, self.nbytes, strict=False))


@functools.lru_cache(maxsize=KEPT_LAUNCHES)
def _launch(
    at: Callable[..., Callable[[], None]], places: tuple[int, ...], lse: int, memory: int, stream: int
) -> Callable[[], None]:
    """Allocators give the same addresses again and again."""
    return at(places, lse, memory, stream)
