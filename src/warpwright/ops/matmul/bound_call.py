"""Matmul from the memo: calls bound to a GPU, which lack only addresses.

Most of a small matmul's host time is spent here, so the call finds once what does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warpwright.ops.binding import MAP_BYTES, NUMBERS, Bound, launches_at
from warpwright.ops.matmul.epilogue import FLOAT32_MAX, PAIR_BYTES

__all__ = ["BoundCall"]

Array = Any


@dataclass(frozen=True, eq=False, slots=True)
class BoundCall:
    """A matmul whose arrays are all used in place.

    ``bound`` takes the addresses of A, B, D, bias, scales, the number alpha and the address of its scratch memory.
    ``pointer``, ``stream`` and ``new_result`` are the library's: an array's address, the current stream, a new D;
    ``allocator`` allocates and frees the scratch memory, if there is any. ``nbytes`` are the spans of A, B, D and the
    bias, ``offsets`` the positions in A, B and D of the matrices of each launch.
    """

    bound: Bound
    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    new_result: Callable[[], Array]
    allocator: tuple[Callable[[int], int], Callable[[int], Any]] | None
    nbytes: tuple[int, int, int, int]
    offsets: tuple[tuple[int, ...], ...]

    def __call__(
        self, a: Array, b: Array, out: Array | None = None, bias: Array = None, scale_a: Any = None, scale_b: Any = None
    ) -> Array | None:
        """Start the launches and return the result; None if an address is misaligned, ``out`` overlaps an input, or
        the product of the scales is no float32 number."""
        pointer = self.pointer
        d = self.new_result() if out is None else out
        at_a, at_b, at_d = pointer(a), pointer(b), pointer(d)
        at_bias = 0 if bias is None else pointer(bias)
        at_scale_a, alpha = (0, 1.0) if scale_a is None else self._factor(scale_a)
        at_scale_b, beta = (0, 1.0) if scale_b is None else self._factor(scale_b)
        alpha *= beta
        if (at_a | at_b | at_d) % MAP_BYTES or at_bias % PAIR_BYTES or not 0 < abs(alpha) <= FLOAT32_MAX:
            return None
        if out is not None and not self._disjoint(at_a, at_b, at_d, at_bias):
            return None
        stream = self.stream()
        scratch = 0 if self.allocator is None else self.allocator[0](stream)
        try:
            for to_a, to_b, to_d in self.offsets:
                a_, b_, d_ = at_a + to_a, at_b + to_b, at_d + to_d
                values = a_, b_, d_, at_bias, at_scale_a, at_scale_b, alpha, scratch
                for launch in launches_at(self.bound, values, stream):
                    launch()
        finally:
            if self.allocator is not None:
                self.allocator[1](scratch)  # later launches of the stream may reuse the memory
        return d

    def _factor(self, scale: Any) -> tuple[int, float]:
        """Returns the address of a scale on the GPU and 1, or no address and the scale."""
        return (0, scale) if scale.__class__ in NUMBERS else (self.pointer(scale), 1.0)

    def _disjoint(self, a: int, b: int, d: int, bias: int) -> bool:
        """Returns whether D shares no memory with the inputs."""
        size_a, size_b, size_d, size_bias = self.nbytes
        end = d + size_d
        return (
            (d >= a + size_a or a >= end) and (d >= b + size_b or b >= end) and (d >= bias + size_bias or bias >= end)
        )
