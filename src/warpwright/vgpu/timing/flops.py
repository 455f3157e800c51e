"""The flops of a program's MMAs, and what a flop of each element type costs in energy and in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpwright.targets import Timing
from warpwright.vgpu.timing.steps import Mma, Program

__all__ = ["Weight", "energy_of", "flops_of", "time_of"]

BIT_16_K = 16  # elements of K of an MMA of 16-bit elements

Weight = Callable[[Any], float]  # of the flops of an `Mma` or `WarpMma`


def energy_of(timing: Timing) -> Weight:
    """Returns the energy of a flop of an MMA, as a share of the energy of a 16-bit one."""
    return lambda mma: timing.flop_shares.get(mma.type, 1.0)


def time_of(timing: Timing) -> Weight:
    """Returns the time of a flop of an MMA, as a share of the time of a 16-bit one."""
    return lambda mma: BIT_16_K / mma.k if isinstance(mma, Mma) else 1 / timing.mma_rates.get(mma.type, 1.0)


def flops_of(program: Program, weight: Weight) -> float:
    """Returns the flops of a program, those of each MMA times its weight."""
    return float(sum(count * weight(what) for what, count in program.mmas))
