"""The compiled shadow of a memory against sets of accesses in Python; clocks against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warpwright.vgpu.checks.memory.accesses import (
    ATOMIC,
    ENGINE,
    NEVER,
    WRITE,
    Accesses,
    Acquired,
    Repeated,
    Shadow,
    SharedShadow,
)
from warpwright.vgpu.checks.memory.cells import cells_of, span_of
from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, Clocks

LANES, CELLS = 64, 3
Steps = list[tuple[str, int, int, int]]

steps = st.lists(
    st.tuples(
        st.sampled_from(["read", "write", "copy", "engine read", "atomic", "learn", "fence", "tick"]),
        st.sampled_from([0, 1, 40]),
        st.integers(0, CELLS - 1),
        st.integers(1, 3),
    ),
    min_size=5,
    max_size=60,
)


class Model:
    """The semantics of `shadow.ll`, cell by cell, with Python's sets."""

    def __init__(self, clocks: Clocks, accesses: Accesses) -> None:
        self.clocks, self.rows = clocks, accesses
        self.writer: list[int | None] = [None] * CELLS
        self.readers: list[set[int]] = [set() for _ in range(CELLS)]

    def known(self, access: int, lane: int, engine: bool = False) -> bool:
        row = {name: values[access] for name, values in self.rows.rows.items()}
        over = self.clocks.table[GENERIC, lane, row["column"]] >= row["value"]
        hidden = engine and not row["machine"] and self.clocks.table[SEEN, lane, row["column"]] < row["value"]
        return bool(over and not hidden)

    def answer(self, cells: range, lane: int, flags: int) -> int:
        before = {self.writer[cell] for cell in cells} - {None}
        for cell in cells:
            atomic = {each for each in self.readers[cell] if self.rows.rows["atomic"][each]}
            before |= self.readers[cell] if flags & WRITE else atomic
        if flags & ATOMIC:
            before = {each for each in before if not self.rows.rows["atomic"][each]}
        if not all(self.known(each, lane, bool(flags & ENGINE)) for each in before if each is not None):
            return 0
        return 3 if any(self.writer[cell] is None for cell in cells) else 1

    def read(self, cells: range, access: int) -> None:
        rows, lane = self.rows.rows, int(self.rows.rows["lane"][access])
        for cell in cells:
            others = {
                old
                for old in self.readers[cell]
                if not self.known(old, lane)
                or rows["machine"][access] > rows["machine"][old]
                or rows["atomic"][old] > rows["atomic"][access]
            }
            self.readers[cell] = others | {access}


def _shared(accesses: Accesses, cells: int, shift: int, barriers: int = 8) -> SharedShadow:
    return SharedShadow(accesses, cells, shift, np.zeros(barriers, np.bool_))


def _by_lanes(shadow: SharedShadow, places: dict[int, int], nbytes: int, inst: int, write: bool) -> int:
    """Judges and stores an access of lanes of one warp, each at its place."""
    table = np.full(32, -1)
    table[[lane % 32 for lane in places]] = list(places.values())
    return shadow.lanes(table.ctypes.data, min(places) // 32, nbytes, inst, write)


def _learn(clocks: Clocks, lane: int, other: int) -> None:
    clocks.acquire(np.array([lane]), clocks.release(np.array([other])))


@settings(max_examples=100, deadline=None)
@given(steps)
@example([("read", 0, 0, 1), ("engine read", 0, 0, 1)])  # a read by the async proxy does not replace the thread's
@example([("atomic", 0, 0, 1), ("read", 0, 0, 1), ("read", 1, 0, 1)])
@example([("write", 0, 0, 1), ("learn", 1, 0, 1), ("engine read", 1, 0, 1)])
def test_the_compiled_shadow_equals_the_model(events: Steps) -> None:
    clocks = Clocks(LANES)
    accesses = Accesses(clocks)
    accesses._nodes = np.zeros((2, 2), np.int32)  # little room from the start
    shadow, model = _shared(accesses, CELLS, 3), Model(clocks, accesses)
    for kind, lane, first, count in events:
        cells = range(first, min(CELLS, first + count))
        some, lanes = cells_of(np.array(cells)), np.array([lane])
        if kind == "learn":
            _learn(clocks, lane, (0, 1, 40)[count - 1])
        elif kind == "fence":
            clocks.show(lanes, lanes)
            clocks.tick(lanes)
        elif kind == "tick":
            accesses.reserve(20_000)
        elif kind in ("read", "write"):
            write = kind == "write"
            expected = model.answer(range(first, first + 1), lane, int(write))
            found = _by_lanes(shadow, {lane: 8 * first}, 8, 7, write)
            assert found == expected
            if found:
                _remember(model, range(first, first + 1), accesses.count - 1, write)
        else:
            engine, atomic = kind in ("copy", "engine read"), kind == "atomic"
            flags = (kind != "engine read") * WRITE | engine * ENGINE | atomic * ATOMIC
            assert shadow.touch(some, lane, flags) == model.answer(cells, lane, flags)
            now = int(clocks.now(lanes)[0])
            access = int(accesses.add(lanes, now, engine, 9, lanes, atomic)[0])
            if kind == "copy":
                shadow.write(some.numbers, access)
            else:
                shadow.read(some, access)
            _remember(model, cells, access, kind == "copy")
    assert [set(accesses.members(int(each))) for each in shadow.readers] == model.readers
    assert shadow.writer.tolist() == [-1 if each is None else each for each in model.writer]


def _remember(model: Model, cells: range, access: int, write: bool) -> None:
    if not write:
        return model.read(cells, access)
    for cell in cells:
        model.writer[cell], model.readers[cell] = access, set()


def test_a_cell_remembers_more_readers_than_it_had_room_for() -> None:
    clocks = Clocks(32 * 64)
    accesses = Accesses(clocks)
    accesses._nodes = np.zeros((2, 16), np.int32)
    shadow = _shared(accesses, 1, 2)
    for warp in range(64):
        assert _by_lanes(shadow, dict.fromkeys(range(32 * warp, 32 * warp + 32), 0), 4, 5, False) == 3
    lanes = accesses.rows["lane"][accesses.members(int(shadow.readers[0]))]
    assert sorted(lanes.tolist()) == list(range(32 * 64))


def test_unreachable_nodes_are_used_again() -> None:
    clocks = Clocks(64)
    accesses = Accesses(clocks)
    accesses._nodes = np.zeros((2, 1024), np.int32)
    shadow = _shared(accesses, 2, 2)
    for number in range(40):
        for warp in range(2):
            places = dict.fromkeys(range(32 * warp, 32 * warp + 32), 4 * (number % 2))
            assert _by_lanes(shadow, places, 4, number, False)
    for cell in (0, 1):
        members = accesses.members(int(shadow.readers[cell]))
        assert sorted(accesses.rows["lane"][members].tolist()) == list(range(64))
        assert set(accesses.rows["inst"][members].tolist()) == {38 + cell}
    assert accesses._nodes.shape[1] == 1024


def test_only_its_own_pipe_knows_an_access_in_flight() -> None:
    clocks = Clocks(32)
    accesses = Accesses(clocks)
    shadow, cells = Shadow(accesses, 4), span_of(0, 4)
    column = clocks.column()
    shadow.write(cells.numbers, accesses.one(column, NEVER, True, 3, 0))
    assert shadow.touch(cells, 0, WRITE) == 0
    assert shadow.touch(cells, 0, WRITE, pipe=column) == 1
    accesses.rows["value"][0] = 5
    assert shadow.touch(cells, 0, 0) == 0
    clocks.reach(np.array([0]), column, 5)
    assert shadow.touch(cells, 0, 0) == 1


def test_another_warp_needs_a_fence_for_tensor_memory() -> None:
    clocks = Clocks(64)
    accesses = Accesses(clocks)
    shadow, cells = Shadow(accesses, 4), span_of(0, 4)
    column = clocks.column()
    shadow.write(cells.numbers, accesses.one(column, 2, True, 3, 0))
    for first in (0, 32):
        clocks.reach(np.arange(first, first + 32), column, 2)
    nothing, acquired = np.zeros(8, np.uint32), np.zeros(clocks.used, np.uint32)
    assert shadow.touch(cells, 31, WRITE, acquired=Acquired(nothing)) == 1
    assert shadow.touch(cells, 32, WRITE, acquired=Acquired(nothing)) == 0
    acquired[column] = 1
    assert shadow.touch(cells, 32, WRITE, acquired=Acquired(acquired)) == 0
    acquired[column] = 2
    assert shadow.touch(cells, 32, WRITE, acquired=Acquired(acquired)) == 1


def test_the_shadow_refuses_a_cell_outside_memory() -> None:
    shadow, cells = _shared(Accesses(Clocks(32)), 4, 3), span_of(3, 5)
    assert shadow.touch(cells, 0, 0) == 0
    assert _by_lanes(shadow, {0: 24}, 16, 1, True) == 0
    with pytest.raises(IndexError):
        shadow.read(cells, 0)


def test_a_write_to_a_live_mbarrier_is_not_quiet() -> None:
    shadow = _shared(Accesses(Clocks(32)), 8, 2, 4)
    shadow.mbarriers[1] = True
    assert _by_lanes(shadow, {0: 0}, 8, 1, True) == 3
    assert _by_lanes(shadow, {0: 12}, 4, 1, True) == 0
    assert _by_lanes(shadow, {0: 0}, 16, 1, True) == 0
    assert _by_lanes(shadow, {0: 12}, 4, 1, False) == 3


@pytest.mark.parametrize("more", [0, 1, 255, 300])
def test_release_and_acquire_take_the_maximum_of_clocks(more: int) -> None:
    random = np.random.default_rng(more)
    clocks = Clocks(64)
    for _ in range(more):
        clocks.column()
    clocks.table[:, :, : clocks.used] = random.integers(0, 1 << 32, (2, 64, clocks.used), dtype=np.uint32)
    clocks.alike[:] = False
    before, releasing, acquiring = clocks.table.copy(), np.array([3, 7, 20]), np.array([32, 39, 63])
    clock = clocks.release(releasing)
    assert np.array_equal(clock[:, : clocks.used], before[:, releasing, : clocks.used].max(axis=1))
    after = before.copy()
    after[GENERIC, releasing, releasing] += 1
    assert np.array_equal(clocks.table, after)
    clocks.acquire(acquiring, clock)
    after[:, acquiring, : clocks.used] = np.maximum(after[:, acquiring, : clocks.used], clock[:, None, : clocks.used])
    assert np.array_equal(clocks.table, after)


@pytest.mark.parametrize("seed", range(20))
def test_clocks_of_whole_warps_equal_those_of_each_lane(seed: int) -> None:
    """Lanes that synchronise know the same; what a warp then does together is done once for all its lanes."""
    random = np.random.default_rng(seed)
    clocks = Clocks(96)
    columns = [clocks.column() for _ in range(20)]
    model, own = clocks.table[:, :, : clocks.used].copy(), np.arange(96)
    for _ in range(60):
        first = 32 * int(random.integers(3))
        lanes = (
            np.arange(first, first + 32) if random.random() < 0.8 else first + np.flatnonzero(random.random(32) < 0.2)
        )
        kind = random.choice(["sync", "pass", "reach", "fence"]) if len(lanes) else ""
        if kind == "sync":
            clocks.sync(lanes)
            released = model[:, lanes].max(axis=1)
            model[GENERIC, lanes, lanes] += 1
            model[:, lanes] = np.maximum(model[:, lanes], released[:, None])
        elif kind == "pass":
            others = np.arange(32 * int(random.integers(3)), 96)[:32]
            clocks.acquire(lanes, clocks.release(others))
            released = model[:, others].max(axis=1)
            model[GENERIC, others, others] += 1
            model[:, lanes] = np.maximum(model[:, lanes], released[:, None])
        elif kind == "reach":
            column, value = int(random.choice(columns)), int(random.integers(1, 9))
            clocks.reach(lanes, column, value)
            model[GENERIC, lanes, column] = np.maximum(model[GENERIC, lanes, column], value)
        elif kind == "fence":
            clocks.show(lanes, lanes)
            clocks.tick(lanes)
            model[SEEN, lanes, lanes] = model[GENERIC, lanes, lanes]
            model[GENERIC, lanes, lanes] += 1
        assert np.array_equal(clocks.table[:, :, : clocks.used], model)
        assert np.array_equal(clocks.own, model[GENERIC, own, own])
    assert clocks.alike.any() or seed


def test_a_repeated_operation_is_stored_only_if_all_its_accesses_are_quiet() -> None:
    clocks = Clocks(LANES)
    accesses, column = Accesses(clocks), clocks.column()
    shadow = _shared(accesses, CELLS, 3)
    touches = [(shadow, span_of(0, 2), ENGINE, True), (shadow, span_of(2, 3), WRITE | ENGINE, False)]
    op = Repeated(column, 9, 0, -1, touches)
    assert op.enter(1) == -1  # it reads cells that are not written
    assert accesses.count == 0
    assert _by_lanes(shadow, {0: 0, 1: 8}, 8, 5, True) == 3
    assert op.enter(1) == -1  # another lane wrote a cell, and no proxy fence is between
    _learn(clocks, 0, 1)
    accesses.rows["machine"][:2] = True
    assert op.enter(1) == 2
    assert [shadow.writer[2], *accesses.members(int(shadow.readers[0]))] == [2, 2]
    assert {name: row[2] for name, row in accesses.rows.items()} == {
        "column": column, "value": 1, "machine": True, "lane": 0, "atomic": 0, "inst": 9,
    }  # fmt: skip
    assert op.enter(2) == -1  # its own write is not known to be over
    clocks.reach(np.array([0]), column, 1)
    assert op.enter(2) == 3


def test_a_repeated_operation_is_not_stored_without_room_for_its_reads() -> None:
    clocks = Clocks(LANES)
    accesses, column = Accesses(clocks), clocks.column()
    accesses._nodes = np.zeros((2, 0), np.int32)
    shadow = _shared(accesses, CELLS, 3)
    shadow.write(np.arange(CELLS), accesses.one(0, 0, True, 5, 0))
    first, second = (Repeated(column, 9, lane, -1, [(shadow, span_of(0, 1), ENGINE, True)]) for lane in (0, 40))
    assert (first.enter(1), second.enter(1), accesses.count) == (1, -1, 2)
