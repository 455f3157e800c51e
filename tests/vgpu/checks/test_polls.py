"""Rows of polling loops: whole iterations that equal the one before are left out."""

from __future__ import annotations

import numpy as np
import pytest

from warpwright.vgpu.checks.polls import kept_rows

BEFORE = [900 + at for at in range(64)]  # rows that differ


def kept(insts: list[int], *, apart: tuple[int, ...] = (), warps: int = 1) -> list[int]:
    """Returns the instructions of the rows that are kept after those of BEFORE; ``apart``: those that may not repeat.
    ``warps`` execute the rows in turn."""
    every = np.array(BEFORE + insts)
    heads, tables = np.zeros((len(every), 4), np.int64), np.zeros((len(every), 32), np.int64)
    heads[:, 0] = every | np.arange(len(every)) % warps << 32
    chosen = kept_rows(heads, tables, ~np.isin(every, apart))
    assert chosen[: len(BEFORE)].all()
    found: list[int] = every[chosen][len(BEFORE) :].tolist()
    return found


@pytest.mark.parametrize("loop", [[1], [1, 2], [1, 1, 2], [*range(8)]])
def test_a_loop_is_left_with_its_first_iteration_and_the_part_of_its_last(loop: list[int]) -> None:
    first = [1, 2] if loop == [1, 1, 2] else loop  # of equal rows in a row, the first is enough
    assert kept([*loop * 50, *loop[:-1], 77]) == [*first, *first[: len(loop) - 1 if loop == first else 1], 77]


def test_what_may_not_repeat_stays() -> None:
    assert kept([1, 2] * 5, apart=(2,)) == [1, 2] * 5
    assert kept([*range(9)] * 3) == [*range(9)] * 3
    assert kept([1, 2, 1, 3, 1, 2]) == [1, 2, 1, 3, 1, 2]


def test_rows_of_two_warps_are_no_loop() -> None:
    assert kept([1, 2] * 5, warps=2) == [1, 2] * 5


def test_other_addresses_are_no_loop() -> None:
    heads, tables = np.ones((100, 4), np.int64), np.zeros((100, 32), np.int64)
    assert kept_rows(heads, tables, np.ones(100, np.bool_)).sum() == 1
    tables[:, 5] = np.arange(100)
    assert kept_rows(heads, tables, np.ones(100, np.bool_)).all()


def test_few_rows_stay() -> None:
    heads, tables = np.ones((10, 4), np.int64), np.zeros((10, 32), np.int64)
    assert kept_rows(heads, tables, np.ones(10, np.bool_)).all()
