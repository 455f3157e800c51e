"""The replay of clusters: the engine with the steps of copies, memory accesses and tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from warpwright.targets import Timing
from warpwright.vgpu.timing import accesses, copies, tensor
from warpwright.vgpu.timing.engine import Replay
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.state import NEVER, Layout, Outcome, Work
from warpwright.vgpu.timing.units import Memory

__all__ = ["Layout", "Outcome", "Work", "replay"]

STEPS = {**copies.STEPS, **tensor.STEPS, **accesses.STEPS}


def replay(
    works: Sequence[Work],
    timing: Timing,
    memory: Memory,
    layout: Layout,
    journal: Journal,
    followed: bool = True,
    enough: float = NEVER,
) -> Outcome:
    """Run clusters in the given order, ``layout.together`` at a time, on SMs of their own. ``followed``: the journal
    records the first one. ``enough``: after so many steps the rest is extrapolated."""
    return Replay(works, timing, memory, layout, journal, STEPS, followed, enough).run()
