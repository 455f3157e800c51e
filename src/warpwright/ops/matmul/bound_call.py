"""Calls on a GPU that were made before: which calls one serves again, and its launches, which only lack addresses.

Most of a small product's host time is spent here, so whatever can be found once is found when a call is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import Library, library_of
from warpwright.cuda import Launch
from warpwright.ops.matmul.epilogue import GREATEST, PAIR_BYTES
from warpwright.ops.matmul.plan import Prepared

__all__ = ["REPEATS", "ROW_BYTES", "Repeat", "again", "alike", "keep"]

Array = Any
Alike = Callable[[Any], bool]

KEPT = 1024
KEPT_LAUNCHES = 4096
VARIANTS = 8
ROW_BYTES = 16
NUMBERS = (float, int)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that was made before; addresses may be others.

    ``alike`` says of A, B, out, the bias and the scales which ones will do, None for what was not given. ``pointer``,
    ``stream`` and ``result`` are the library's: an array's address, the current stream, a new D; ``lender`` lends the
    memory that ``run`` takes, if any. ``nbytes`` are those that A, B, D and the bias span, ``offsets`` where in A, B
    and D each product has its matrices.
    """

    alike: tuple[Alike | None, ...]
    run: Prepared
    pointer: Callable[[Array], int]
    stream: Callable[[], int]
    result: Callable[[], Array]
    lender: tuple[Callable[[int], int], Callable[[int], Any]] | None
    nbytes: tuple[int, int, int, int]
    offsets: tuple[tuple[int, ...], ...]

    def fits(self, a: Array, b: Array, out: Array, bias: Array, scale_a: Any, scale_b: Any) -> bool:
        """Whether the call would run in the same way. One by one: a loop takes half a microsecond more."""
        of_a, of_b, of_out, of_bias, of_scale_a, of_scale_b = self.alike
        return (
            of_a(a)  # type: ignore[misc]  # A and B are always given
            and of_b(b)  # type: ignore[misc]
            and (out is None if of_out is None else of_out(out))
            and (bias is None if of_bias is None else of_bias(bias))
            and (scale_a is None if of_scale_a is None else of_scale_a(scale_a))
            and (scale_b is None if of_scale_b is None else of_scale_b(scale_b))
        )

    def __call__(
        self, a: Array, b: Array, out: Array | None = None, bias: Array = None, scale_a: Any = None, scale_b: Any = None
    ) -> Array | None:
        """The result; None for addresses and scales that need the long way."""
        pointer = self.pointer
        d = self.result() if out is None else out
        at_a, at_b, at_d = pointer(a), pointer(b), pointer(d)
        at_bias = 0 if bias is None else pointer(bias)
        at_scale_a, alpha = (0, 1.0) if scale_a is None else self._factor(scale_a)
        at_scale_b, beta = (0, 1.0) if scale_b is None else self._factor(scale_b)
        alpha *= beta
        if (at_a | at_b | at_d) % ROW_BYTES or at_bias % PAIR_BYTES or not 0 < abs(alpha) <= GREATEST:
            return None
        if out is not None and not self._apart(at_a, at_b, at_d, at_bias):
            return None
        stream, more = self.stream(), (at_bias, at_scale_a, at_scale_b, alpha)
        scratch = 0 if self.lender is None else self.lender[0](stream)
        try:
            for to_a, to_b, to_d in self.offsets:
                for launch in launches(self.run, at_a + to_a, at_b + to_b, at_d + to_d, stream, *more, scratch):
                    launch()
        finally:
            if self.lender is not None:
                self.lender[1](scratch)  # whoever gets it next uses it behind these launches in the stream
        return d

    def _factor(self, scale: Any) -> tuple[int, float]:
        """The address of a scale on the GPU, or its value."""
        return (0, scale) if scale.__class__ in NUMBERS else (self.pointer(scale), 1.0)

    def _apart(self, a: int, b: int, d: int, bias: int) -> bool:
        """Whether D shares no memory with what is read."""
        size_a, size_b, size_d, size_bias = self.nbytes
        end = d + size_d
        return (
            (d >= a + size_a or a >= end) and (d >= b + size_b or b >= end) and (d >= bias + size_bias or bias >= end)
        )


@functools.lru_cache(maxsize=KEPT_LAUNCHES)
def launches(run: Prepared, *places: Any) -> tuple[Launch, ...]:
    """What ``run`` starts. Allocators give the same addresses again and again; a factor of -0.0 would find 0.0's."""
    return run.launches(*places)


REPEATS: dict[Any, tuple[Repeat, ...]] = {}  # a few for one key


def again(a: Array, b: Array, out: Array, bias: Array, scale_a: Any, scale_b: Any, *options: Any) -> Array | None:
    """The result of a call that can be made as one was before; None for any other."""
    try:
        found = REPEATS.get((a.shape, b.shape, out is None, bias is None, scale_a is None, options), ())
    except (AttributeError, RuntimeError, TypeError):  # no arrays, or some whose shape is not there or only a symbol
        return None
    for repeat in found:
        if repeat.fits(a, b, out, bias, scale_a, scale_b):
            return repeat(a, b, out, bias, scale_a, scale_b)
    return None


def keep(arrays: tuple[Array, ...], options: tuple[Any, ...], repeat: Repeat) -> None:
    """Have ``repeat`` for calls with such ``arrays``, the first six of `again`'s arguments, and these ``options``."""
    a, b, out, bias, scale_a, _ = arrays
    key = a.shape, b.shape, out is None, bias is None, scale_a is None, options
    known = REPEATS.get(key, ())
    if any(each.fits(*arrays) for each in known):
        return
    if len(REPEATS) >= KEPT:
        REPEATS.clear()
    REPEATS[key] = (*known[-VARIANTS + 1 :], repeat)


def alike(library: Library, value: Any) -> Alike | None:
    """What tells which values will do where ``value`` did; None where nothing can be kept."""
    kind = value.__class__
    if kind in NUMBERS:
        return lambda other: other.__class__ is kind
    on_gpu = library_of(value) is library and isinstance(library.view(value), DeviceArray)
    return library.alike(value) if on_gpu else None
