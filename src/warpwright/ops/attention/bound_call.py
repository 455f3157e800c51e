"""Attention and its gradients from the memo: calls bound to a GPU, which lack only addresses."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from warpwright.arrays.libraries import Library
from warpwright.cuda import Launch
from warpwright.ops import binding
from warpwright.ops.attention.arrays import FLOAT32
from warpwright.ops.binding import MAP_BYTES, TOGETHER, Bound, Call, launches_at, layouts_of

__all__ = ["BoundCall", "BoundGradients", "bind_gradients"]

ALIGNED = 512  # bytes, as allocators align an array
Array = Any
Shape = tuple[int, ...]
Axes = tuple[int, int] | None
MAPPED = 5  # q, k, v, o and do come first and are read through tensor maps


@dataclass(frozen=True, eq=False, slots=True)
class BoundCall:
    """Attention, plain, modified or packed, whose arrays are all used in place.

    The arrays are q, k, v, those that this attention alone has (first rows, or captured arrays and sinks), and ``out``
    where ``new_result`` is None; else ``new_result`` makes the result, whose axes ``swap`` are then exchanged.
    ``nbytes`` are the spans of Q, K, V and O. ``pointer`` and ``stream`` are the library's; ``new_lse`` makes the
    log-sum-exp, if it is returned. ``workspace`` returns the address of the workspace on a stream, 0 for none.
    ``bound`` takes the addresses of Q, K, V, O, log-sum-exp, workspace and the other arrays, and last that of what one
    launch writes for the next, if anything, which ``allocator`` allocates and frees. The last ``aligned`` of the other
    arrays, ``out`` not counted, must be aligned as q is.
    """

    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    new_result: Callable[[], Array] | None
    swap: Axes
    nbytes: tuple[int, ...]
    new_lse: Callable[[], Array] | None
    workspace: Callable[[int], int]
    bound: Bound
    allocator: tuple[Callable[[int], int], Callable[[int], Any]] | None = None
    aligned: int = 0

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
        if self.aligned and any(address % MAP_BYTES for address in more[-self.aligned :]):
            return None
        lse = None if self.new_lse is None else self.new_lse()
        at_lse = 0 if lse is None else pointer(lse)
        values = at_q, at_k, at_v, at_out, at_lse, self.workspace(stream), *more
        if self.allocator is None:
            self._start(values, stream)
        else:
            self._start_with_memory(values, stream, *self.allocator)
        result = out if self.swap is None else out.swapaxes(*self.swap)
        return result if lse is None else (result, lse)

    def _start(self, values: tuple[int, ...], stream: int) -> None:
        with TOGETHER:
            for launch in launches_at(self.bound, values, stream):
                launch()

    def _start_with_memory(
        self, values: tuple[int, ...], stream: int, allocate: Callable[[int], int], free: Callable[[int], Any]
    ) -> None:
        memory = allocate(stream)
        try:
            self._start((*values, memory), stream)
        finally:
            free(memory)  # later launches of the stream may reuse the memory

    def _disjoint(self, out: int, q: int, k: int, v: int) -> bool:
        """Returns whether O shares no memory with the inputs."""
        size_q, size_k, size_v, size_out = self.nbytes
        end = out + size_out
        return (out >= q + size_q or q >= end) and (out >= k + size_k or k >= end) and (out >= v + size_v or v >= end)


@dataclass(frozen=True, eq=False, slots=True)
class BoundGradients:
    """Gradients of attention, plain or packed, whose arrays are all used in place.

    The arrays are q, k, v, o, do, lse, those that this attention alone has (first rows, or captured arrays and sinks),
    dlse if ``with_dlse``, and last dq if ``with_dq``. ``makers`` make the other gradients, whose axes ``swaps`` are
    then exchanged; ``allocator`` allocates and frees the memory between the launches, where each array begins at one of
    ``offsets``. ``bound`` takes the addresses of q, k, v, o, do, the gradients, lse, dlse, that memory and the other
    arrays.
    """

    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    makers: tuple[Callable[[], Array], ...]
    swaps: tuple[Axes, ...]
    with_dlse: bool
    with_dq: bool
    allocator: tuple[Callable[[int], int], Callable[[int], Any]]
    offsets: tuple[int, ...]
    bound: Bound

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
        """Start the launches and return the gradients; None if an address is misaligned."""
        stream, (allocate, free) = self.stream(), self.allocator
        base = allocate(stream)
        try:
            found = self._launches(arrays, stream, base)
            if found is None:
                return None
            launches, results = found
            with TOGETHER:
                for launch in launches:
                    launch()
        finally:
            free(base)  # later launches of the stream may reuse the memory
        return results

    def begin(self, arrays: Sequence[Array]) -> Callable[[], tuple[Array, ...]] | None:
        """Start the first launch, which reads neither k nor v; the function returned starts the others on the same
        stream and returns the gradients. None if an address is misaligned."""
        stream, (allocate, free) = self.stream(), self.allocator
        base = allocate(stream)
        found = self._launches(arrays, stream, base)
        if found is None:
            free(base)
            return None
        (first, *others), results = found

        def end() -> tuple[Array, ...]:
            for launch in others:
                launch()
            return results

        weakref.finalize(end, free, base).atexit = False  # later launches of the stream may reuse the memory
        first()
        return end

    def _launches(
        self, arrays: Sequence[Array], stream: int, base: int
    ) -> tuple[tuple[Launch, ...], tuple[Array, ...]] | None:
        """Returns the launches with memory at ``base`` between them, and the gradients."""
        pointer, inputs = self.pointer, [self.pointer(array) for array in arrays]
        dq = [inputs.pop()] if self.with_dq else []
        if any(address % MAP_BYTES for address in (*inputs[:MAPPED], *dq)):
            return None
        dlse, made = inputs.pop() if self.with_dlse else 0, [make() for make in self.makers]
        memory, rows, more = [base + offset for offset in self.offsets], inputs[MAPPED], inputs[MAPPED + 1 :]
        values = (*inputs[:MAPPED], *dq, *map(pointer, made), rows, dlse, *memory, *more)
        results = [x if axes is None else x.swapaxes(*axes) for x, axes in zip(made, self.swaps, strict=True)]
        return launches_at(self.bound, values, stream), (*(arrays[-1:] if dq else ()), *results)


def bind_gradients(
    call: Call,
    library: Library,
    like: Array,
    results: Sequence[tuple[Shape, Axes]],
    with_dlse: bool,
    with_dq: bool = False,
) -> BoundGradients:
    """Returns the call of gradients bound to the GPU; one block of memory holds all arrays between the launches.

    The step of ``call`` has its values in the order of `BoundGradients`. ``results`` are the shapes in memory of dq,
    dk and dv, without dq if ``with_dq``, and the axes to exchange then; a gradient of sinks has that of its array.
    """
    ((chosen, values),) = call.steps
    sizes = (-(-FLOAT32.itemsize * prod(shape) // ALIGNED) * ALIGNED for shape in chosen.scratch.values())
    ends = list(accumulate(sizes, initial=0))
    makers = [library.maker(shape, values["q"].dtype, like) for shape, _ in results]
    sinks = [library.maker(tuple(values["dsinks"].shape), FLOAT32, like)] if "dsinks" in values else []
    return BoundGradients(
        pointer=library.pointer,
        stream=library.stream(like),
        makers=(*makers, *sinks),
        swaps=(*(swap for _, swap in results), *(None for _ in sinks)),
        with_dlse=with_dlse,
        with_dq=with_dq,
        allocator=library.allocator(ends[-1], like),
        offsets=tuple(ends[:-1]),
        bound=binding.bind(chosen, layouts_of(values), call.device),
    )
