"""Unordered accesses by the sweep, compared with a comparison of every access with every other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.checks.memory.spans import Allocations, boxes
from warpwright.vgpu.checks.memory.sweep import meeting, pairs, pieces
from warpwright.vgpu.engines.op import BoundMap

ACCESS = st.tuples(
    st.integers(0, 30), st.integers(1, 8), st.integers(0, 3), st.booleans(), st.integers(0, 2)
)  # first byte, bytes, agent, writes, kind of strong
ACCESSES = st.lists(ACCESS, min_size=1, max_size=14)
ORDERS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=20)


def _columns(accesses: list[Any]) -> tuple[Any, ...]:
    first, nbytes, agent, write, strong = (np.array(part) for part in zip(*accesses, strict=True))
    return first, first + nbytes, agent, write, np.where(write, np.minimum(strong, 1), strong)


def _overlap(low: Any, high: Any) -> Any:
    return (low[:, None] < high) & (low < high[:, None])


@given(ACCESSES)
@settings(max_examples=200, deadline=None)
def test_meeting_keeps_accesses_that_overlap_a_write(accesses: list[Any]) -> None:
    """`meeting` may keep more: accesses that overlap only by way of a third one."""
    low, high, _, write, kind = _columns(accesses)
    other = ~np.eye(len(low), dtype=bool)
    alike = (kind[:, None] == kind) & (kind > 0)
    clash = _overlap(low, high) & other & (write[:, None] | write)
    found = set(meeting(low, high, write, kind).tolist())
    assert set(np.flatnonzero((clash & ~alike).any(axis=1)).tolist()) <= found
    assert all((_overlap(low, high) & other)[each].any() for each in found)


@given(ACCESSES)
@settings(max_examples=100, deadline=None)
def test_pieces_cover_each_access_once(accesses: list[Any]) -> None:
    low, high, *_ = _columns(accesses)
    piece, access = pieces(low, high)
    bounds = np.unique(np.concatenate([low, high]))
    for i in range(len(low)):
        mine = np.sort(piece[access == i])
        assert bounds[mine[0]] == low[i] and bounds[mine[-1] + 1] == high[i]
        assert (np.diff(mine) == 1).all()


def _before(count: int, agent: Any, orders: list[tuple[int, int]]) -> Any:
    """Returns what happens before what: an agent's accesses in the order of the run, and the pairs ``orders``, closed
    under transitivity."""
    before = np.zeros((count, count), bool)
    for i in range(count):
        before[i, i + 1 :] = agent[i + 1 :] == agent[i]
    for a, b in orders:
        if a < b < count:
            before[a, b] = True
    for middle in range(count):
        before |= before[:, middle : middle + 1] & before[middle]
    return before


@given(ACCESSES, ORDERS)
@settings(max_examples=400, deadline=None)
def test_pairs_find_a_race_in_every_racing_piece(accesses: list[Any], orders: list[tuple[int, int]]) -> None:
    """`pairs` compares few accesses, and finds a race in the same pieces as a comparison of all."""
    low, high, agent, write, strong = _columns(accesses)
    count = len(low)
    time, before = np.arange(count), _before(count, agent, orders)
    racing = (
        ~before & (write[:, None] | write) & ~((strong[:, None] == strong) & (strong > 0)) & (agent[:, None] != agent)
    )
    piece, access = pieces(low, high)
    first, second = pairs(piece, access, time, agent, write, strong)
    assert (first < second).all()
    found = [(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True) if racing[a, b]]
    everywhere = {
        number
        for number in np.unique(piece).tolist()
        if np.triu(racing[np.ix_(access[piece == number], access[piece == number])], 1).any()
    }
    where = [set(piece[access == i].tolist()) for i in range(count)]
    assert everywhere == {number for a, b in found for number in where[a] & where[b]}


def test_pairs_keep_a_read_between_two_ordered_reads() -> None:
    """Of three reads the first comes before an atomic operation of another agent, and the last after it; the one in
    between races with it."""
    agent, write = np.array([0, 0, 1, 0]), np.array([False, False, True, False])
    low = np.zeros(4, np.int64)
    first, second = pairs(*pieces(low, low + 4), np.arange(4), agent, write, write.astype(np.int64))
    assert (1, 2) in zip(first.tolist(), second.tolist(), strict=True)


@pytest.mark.parametrize("allocated", [480, 200])
def test_boxes_clip_at_the_tensor(allocated: int) -> None:
    """A map that describes more than is allocated after its base has the same boxes, if they are allocated."""
    tensor = np.zeros((3, 5, 8), np.float32)
    map = TensorMap(tensor, (2, 4, 4), element_strides=(1, 2, 1))
    bound = BoundMap(map, 5000, tensor.reshape(-1).view(np.uint8)[:allocated], 1000)
    allocations = Allocations(np.array([[5000, 5480, 1000 - 5000]]))
    coords = np.array([[4, 2, 1], [6, 3, 2], [-4, -2, 0], [8, 0, 0]])
    which, low, high = boxes(bound, coords, np.zeros((4, 0), np.int64), allocations)
    lines = {(1, 2): 4, (1, 4): 4, (2, 2): 4, (2, 4): 4}
    expected = [(0, 1000 + 4 * (40 * z + 8 * y + x), 16) for (z, y), x in lines.items()]
    expected += [(1, 1000 + 4 * (40 * 2 + 8 * 3 + 6), 8)]
    found = sorted(zip(which.tolist(), low.tolist(), (high - low).tolist(), strict=True))
    assert found == sorted(expected)
