"""The epilogue of a GEMM: ``activation(scale · sum + bias)`` in float32, before the rounding to D.

GELU is the exact x·Φ(x), computed as max(x, 0) - |x|·Φ(-|x|) without cancellation. Φ(-z) = e^(-z²/2)·R(t) with
t = 1 / (1 + 0.3·z) and a polynomial R, fitted for the least relative error (2^-23) over z from 0 to 13, where Φ(-z)
underflows float32. With the rounding of z² its relative error is below 2^-19 for z to 5, and below 2^-17 beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warpwright.lang import Expr, Global, If, Pointer, ex2, f32, fma, ld, max, min, rcp, u32, unpack, var, warp
from warpwright.types import Scalar

__all__ = ["ACTIVATIONS", "GROUP", "PLAIN", "Epilogue", "Finish", "factor", "load_bias"]

Finish = Callable[[list[Any], Any], list[Any]]

LOG2_E = 1.4426950408889634
TAIL_PITCH = 0.3
# R of t, t², …
TAIL = (
    0.11962326616048813,
    0.12084545195102692,
    0.09934759885072708,
    0.1304149329662323,
    -0.057164568454027176,
    0.210115447640419,
    -0.15937666594982147,
    0.03619447723031044,
)
FARTHEST = 16.0  # Φ(-16) is 0 in float32
GROUP = 8  # columns between a thread's pairs of sums in a row, PTX ISA 9.1 section 9.7.15.5.1.1


def relu(x: Expr) -> Expr:
    """max(x, 0); NaN stays NaN."""
    larger: Expr = max(x, 0.0, nan=True)
    return larger


def gelu(x: Expr) -> Expr:
    """x·Φ(x); 0 at minus infinity."""
    z = min(abs(x), FARTHEST)
    t = rcp(fma(z, TAIL_PITCH, 1.0))
    tail: Any = TAIL[-1]
    for coefficient in TAIL[-2::-1]:
        tail = fma(t, tail, coefficient)
    return fma(-z, tail * t * ex2(z * z * (-LOG2_E / 2)), relu(x))


def silu(x: Expr) -> Expr:
    """x / (1 + e^-x): relative error below (4 + |x|)·2^-23; 0 below -88.7, where e^-x overflows float32."""
    return x * rcp(ex2(x * -LOG2_E) + 1.0)


ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {"relu": relu, "gelu": gelu, "silu": silu}


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The epilogue's steps at compile time: ``scaled`` by factors that are run-time values, a ``bias`` of a type."""

    scaled: bool = False
    bias: type[Scalar] | None = None
    activation: str = ""

    def prepare(
        self, alpha: Expr, scale_a: Expr, scale_b: Expr, bias: Expr, columns: Expr, *, row: bool = False
    ) -> Finish:
        """Returns ``finish(sums, column)``, which applies the epilogue to a thread's sums from ``column`` on.

        The sums have wgmma's layout; with ``row`` they are neighbours in a row. ``alpha`` is a factor; ``scale_a`` and
        ``scale_b`` are addresses of further factors, or 0. ``bias`` is the address of ``columns`` elements, an even
        number, aligned to pairs.
        """
        scale = factor(alpha, scale_a, scale_b) if self.scaled else None

        def finish(sums: list[Any], column: Any) -> list[Any]:
            shifts = None
            if self.bias is not None:
                each, step, first = (2, 2, column) if row else (4, GROUP, column + warp.lane % 4 * 2)
                added = load_bias(Global(self.bias, bias), first, len(sums) // each, step, columns)
                shifts = [added[i // each][i % 2] for i in range(len(sums))]
            return self.apply(sums, scale, shifts)

        return finish

    def apply(self, sums: list[Any], scale: Expr | None, shifts: Any) -> list[Any]:
        """Returns ``activation(scale · sum + shift)`` of each sum; ``shifts`` is one value, one for each, or None."""
        values, act = sums, ACTIVATIONS.get(self.activation)
        if shifts is not None:
            join = zip(values, shifts if isinstance(shifts, list) else [shifts] * len(sums), strict=True)
            values = [x + shift if scale is None else fma(scale, x, shift) for x, shift in join]
        elif scale is not None:
            values = [scale * x for x in values]
        return [act(x) for x in values] if act else values


PLAIN = Epilogue()


def factor(alpha: Expr, *addresses: Expr) -> Expr:
    """Returns ``alpha`` times the float32 numbers at those of ``addresses`` that are not 0."""
    scale = var(f32, alpha)
    for address in addresses:
        with If(address != 0):
            scale.set(scale * ld(Pointer(f32, address, 0, "global")))
    return scale


def load_bias(bias: Pointer[Any], first: Any, count: int, step: int, columns: Expr) -> list[tuple[Expr, Expr]]:
    """Returns ``count`` pairs of elements, ``step`` columns apart; past the end, the last pair."""
    found = []
    for i in range(count):
        at = bias + min(first + i * step, columns - 2)
        if bias.dtype is f32:
            found.append(ld(at, vec=2, nc=True))
        else:
            low, high = unpack(ld(at.cast(u32), nc=True), bias.dtype)
            found.append((low.to(f32), high.to(f32)))
    return found
