"""Attention and its gradients from the memo: calls bound to a GPU, which lack only addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.ops.binding import MAP_BYTES, TOGETHER, Bound, launches_at

__all__ = ["BoundCall", "BoundGradients"]

Array = Any
Axes = tuple[int, int] | None
MAPPED = 5  # q, k, v, o and do come first and are read through tensor maps


@dataclass(frozen=True, eq=False, slots=True)
class BoundCall:
    """Attention, plain or packed, whose arrays are all used in place.

    The arrays are q, k, v, for packed sequences both arrays of first rows, and ``out`` where ``new_result`` is None;
    else ``new_result`` makes the result, whose axes ``swap`` are then exchanged. ``nbytes`` are the spans of Q, K, V
    and O. ``pointer`` and ``stream`` are the library's; ``new_lse`` makes the log-sum-exp, if it is returned.
    ``workspace`` returns the address of the workspace on a stream, 0 for none. ``bound`` takes the addresses of Q, K,
    V, O, log-sum-exp, workspace and first rows.
    """

    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    new_result: Callable[[], Array] | None
    swap: Axes
    nbytes: tuple[int, ...]
    new_lse: Callable[[], Array] | None
    workspace: Callable[[int], int]
    bound: Bound

    def __call__(self, arrays: Sequence[Array]) -> Array | None:
        """Start the launches and return the result; None if an address is misaligned or ``out`` overlaps an input."""
        pointer, stream = self.pointer, self.stream()
        at_q, at_k, at_v, *more = map(pointer, arrays)
        if self.new_result is None:
            out, at_out = arrays[-1], more.pop()
            if not self._disjoint(at_out, at_q, at_k, at_v):
                return None
        else:
            out = self.new_result()
            at_out = pointer(out)
        if (at_q | at_k | at_v | at_out) % MAP_BYTES:
            return None
        lse = None if self.new_lse is None else self.new_lse()
        at_lse = 0 if lse is None else pointer(lse)
        values = at_q, at_k, at_v, at_out, at_lse, self.workspace(stream), *more
        with TOGETHER:
            for launch in launches_at(self.bound, values, stream):
                launch()
        result = out if self.swap is None else out.swapaxes(*self.swap)
        return result if lse is None else (result, lse)

    def _disjoint(self, out: int, q: int, k: int, v: int) -> bool:
        """Returns whether O shares no memory with the inputs."""
        size_q, size_k, size_v, size_out = self.nbytes
        end = out + size_out
        return (out >= q + size_q or q >= end) and (out >= k + size_k or k >= end) and (out >= v + size_v or v >= end)


@dataclass(frozen=True, eq=False, slots=True)
class BoundGradients:
    """Gradients of attention whose arrays are all used in place.

    The arrays are q, k, v, o, do, lse and, where there is one, dlse. ``makers`` make the gradients, whose axes
    ``swaps`` are then exchanged; ``allocator`` allocates and frees the memory between the launches, where each array
    begins at one of ``offsets``. ``bound`` takes the addresses of q, k, v, o, do, the gradients, lse, dlse and that
    memory.
    """

    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    makers: tuple[Callable[[], Array], ...]
    swaps: tuple[Axes, ...]
    allocator: tuple[Callable[[int], int], Callable[[int], Any]]
    offsets: tuple[int, ...]
    bound: Bound

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, Array, Array] | None:
        """Start the launches and return the gradients; None if an address is misaligned."""
        pointer, stream = self.pointer, self.stream()
        inputs = [pointer(array) for array in arrays]
        if any(address % MAP_BYTES for address in inputs[:MAPPED]):
            return None
        results, (allocate, free) = [make() for make in self.makers], self.allocator
        base = allocate(stream)
        try:
            rows = inputs[MAPPED:] if len(inputs) > MAPPED + 1 else (inputs[-1], 0)
            memory = [base + offset for offset in self.offsets]
            values = (*inputs[:MAPPED], *map(pointer, results), *rows, *memory)
            for launch in launches_at(self.bound, values, stream):
                launch()
        finally:
            free(base)  # later launches of the stream may reuse the memory
        dq, dk, dv = (x if axes is None else x.swapaxes(*axes) for x, axes in zip(results, self.swaps, strict=True))
        return dq, dk, dv
