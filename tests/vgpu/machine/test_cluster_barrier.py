"""The barrier of a cluster in machine code beside its rules, on random states of the warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import SIZE, WAIT_BAR, WAIT_CLUSTER, WARP
from warpwright.vgpu.machine.memory import aligned_zeros

WARPS = 3
BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
Masks = NDArray[np.uint32]


class State:
    """Some warps, and what the barrier remembers of their lanes."""

    def __init__(self) -> None:
        self.bytes = aligned_zeros(WARPS * SIZE).reshape(WARPS, SIZE)
        self.warps: NDArray[Any] = np.ndarray((WARPS,), WARP, self.bytes.data, 0, (SIZE,))
        self.masks, self.came = np.zeros((2, WARPS), np.uint32), np.zeros(WARPS, np.uint32)

    def settle(self) -> int:
        pointers = self.bytes.ctypes.data + SIZE * np.arange(WARPS, dtype=np.uint64)
        places = pointers.ctypes.data, WARPS, self.masks.ctypes.data, self.came.ctypes.data
        return int(function("settle_cluster")(*places))

    def lanes(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns the live lanes that arrive, and those that wait for the end of a phase."""
        warps = self.warps
        blocked = flags(warps["blocked"] & warps["live"]) & (warps["wait_kind"] == WAIT_CLUSTER)
        return blocked & (warps["wait_arg"] == 0), blocked & (warps["wait_arg"] != 0)


def flags(masks: Masks) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (masks[:, None] & BITS) != 0
    return found


def expected(state: State) -> tuple[bool, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns whether lanes may run on, and by lane: arrived, free, blocked."""
    (arriving, waiting), (arrived, free) = state.lanes(), map(flags, state.masks)
    blocked, live = flags(state.warps["blocked"]), flags(state.warps["live"])
    arrived, moved = arrived | arriving, arriving | (waiting & free)
    free = free & ~moved
    over = bool(arrived.any() and arrived[live].all())
    if over:
        ready = waiting & ~moved & (free | arrived)
        free, arrived, moved = (free | arrived) & ~ready, np.zeros_like(arrived), moved | ready
    return over or bool(moved.any()), arrived, free, blocked & ~moved


def some(random: np.random.Generator, share: float) -> Masks:
    masks: Masks = np.packbits(random.random((WARPS, 32)) < share, axis=1, bitorder="little").view(np.uint32)[:, 0]
    return masks


def legal(random: np.random.Generator) -> State:
    """Returns a state in which no lane arrives twice or waits without having arrived."""
    state = State()
    warps = state.warps
    warps["live"], warps["blocked"] = some(random, random.choice([0.1, 1.0])), some(random, 0.9)
    warps["wait_kind"] = random.choice([WAIT_CLUSTER, WAIT_BAR], (WARPS, 32), p=[0.95, 0.05])
    owes = some(random, random.choice([0.0, 0.5, 1.0]))
    late = some(random, random.choice([0.0, 0.5]))
    state.masks[:] = owes & ~late, owes & late
    warps["wait_arg"] = np.where(flags(owes), random.integers(1, 1 << 40), 0)
    return state


def test_settling_follows_the_rules_of_the_barrier() -> None:
    random, ended = np.random.default_rng(7), 0
    for _ in range(400):
        state = legal(random)
        arriving, _ = state.lanes()
        goes, *lanes = expected(state)
        assert state.settle() == goes
        np.testing.assert_array_equal([flags(each) for each in (*state.masks, state.warps["blocked"])], lanes)
        np.testing.assert_array_equal(flags(state.came), arriving)
        ended += not state.masks[0].any() and bool(arriving.any())
    assert ended > 20, "hardly a phase ended: the states tell too little"


@pytest.mark.parametrize("argument", [0, 1], ids=["arrives twice", "waits without having arrived"])
@pytest.mark.parametrize("lane", [0, 31])
def test_an_illegal_lane_is_refused_without_effects(argument: int, lane: int) -> None:
    state = State()
    state.warps["live"], state.warps["blocked"], state.warps["wait_kind"] = 0xFFFF_FFFF, 0, WAIT_CLUSTER
    state.warps["blocked"][2], state.warps["wait_arg"][2, lane] = 1 << lane, argument
    state.masks[0] = 0 if argument else 0xFFFF_FFFF
    before = state.bytes.copy(), state.masks.copy()
    assert state.settle() == -1
    np.testing.assert_array_equal(state.bytes, before[0])
    np.testing.assert_array_equal(state.masks, before[1])
