"""Recorded clusters that take work from a counter advance together in time, as on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import direct as sm90
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.lang import Break, Global, atom, bf16, ctaid, loop, tid, u32, var

LENGTHS = (900, 700, 500, 300, 300, 200, 200, 100, 100, 100)
CTAS = 3


@ww.kernel("sm_90a", threads=1)
def take_items(counter: Global[u32], lengths: Global[u32], owner: Global[u32], count: u32) -> None:
    """Each CTA takes the next item when it has completed one; an item is a number of loop iterations."""
    for _ in loop():
        number = atom.add(counter, 1)
        Break(when=number >= count)
        value = var(u32, tid.x)
        for step in loop(0, lengths[number]):
            value.set(value * 3 + step)
        owner[number] = ctaid.x + (value & 0)


def owners(fast: bool) -> tuple[list[int], float]:
    """Returns the CTA of each item, and the predicted time."""
    lengths, owner = np.array(LENGTHS, np.uint32), np.full(len(LENGTHS), CTAS, np.uint32)
    args = [np.zeros(1, np.uint32), lengths, owner, len(LENGTHS)]
    profile = ww.profile(take_items, CTAS, args=args, device="h200", fast=fast)
    return owner.tolist(), profile.time_us


def test_the_first_idle_cta_takes_the_next_item() -> None:
    """In order of time: CTA 2 has completed its 500 iterations first, then CTA 1 with 700, CTA 2 with 500 + 300, …"""
    (found, full), (_, fast) = owners(fast=False), owners(fast=True)
    assert found[:5] == [0, 1, 2, 2, 1]
    shares = [sum(length for length, who in zip(LENGTHS, found, strict=True) if who == cta) for cta in range(CTAS)]
    assert max(shares) - min(shares) <= 200
    assert fast == pytest.approx(full, rel=0.03)


def predicted(counter: np.ndarray | int) -> float:
    """Returns the time of 16 tiles of 4, 3, 2 and 1 blocks of keys, the longest first, on 8 CTAs."""
    problem = Problem(1, 4, 4, 512, 512, 64, causal=True)
    found = sm90_plan.plan(problem, sms=8)
    traced = sm90.kernel_of(found.config).trace(dtype=bf16, bounds=found.bounds)
    arrays = [np.zeros((1, 4, 512, 64), bf16.dtype) for _ in range(4)]
    args = [*arrays, 0, counter, *found.scalars]
    return float(ww.profile(traced, found.grid, args=args, device="h200").time_us)


def test_a_counter_balances_tiles() -> None:
    """CTAs have 5 blocks each; with every eighth tile half of them have 6, the others 4."""
    assert predicted(np.zeros(1, np.uint32)) < 0.95 * predicted(0)
