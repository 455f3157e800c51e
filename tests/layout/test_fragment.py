"""Register fragments: every element in one register, the closed forms of PTX's figures, and fragments that agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.layout import fragment


def positions(place, threads: int, elements: int):
    """Row and column of every element of every thread, (threads, elements) each."""
    rows, columns = place(np.arange(threads)[:, None], np.arange(elements)[None, :])
    return np.broadcast_to(rows, (threads, elements)), np.broadcast_to(columns, (threads, elements))


def check_covers_once(rows, columns, shape) -> None:
    count = np.zeros(shape, np.int64)
    np.add.at(count, (rows.ravel(), columns.ravel()), 1)
    assert (count == 1).all()


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_an_accumulator_of_wgmma_holds_every_sum_once(n) -> None:
    check_covers_once(*positions(fragment.accumulator, 128, n // 2), (64, n))


def test_an_accumulator_of_mma_holds_every_sum_once() -> None:
    check_covers_once(*positions(fragment.accumulator, 32, 4), (16, 8))


# bits, K, registers of A, registers of B (PTX ISA 9.1 sections 9.7.14.5.4 to 9.7.14.5.11)
SHAPES = [(16, 8, 2, 1), (16, 16, 4, 2), (32, 4, 2, 1), (32, 8, 4, 2), (8, 16, 2, 1), (8, 32, 4, 2), (4, 64, 4, 2)]


@pytest.mark.parametrize(("bits", "k", "left", "right"), SHAPES)
def test_operands_of_mma_hold_every_element_once(bits, k, left, right) -> None:
    per = 32 // bits
    check_covers_once(*positions(lambda t, i: fragment.a_operand(t, i, bits), 32, left * per), (16, k))
    check_covers_once(*positions(lambda t, i: fragment.b_operand(t, i, bits), 32, right * per), (k, 8))


@pytest.mark.parametrize(("bits", "k"), [(32, 8), (16, 16), (8, 32)])
def test_registers_of_a_of_wgmma_hold_every_element_once(bits, k) -> None:
    check_covers_once(*positions(lambda t, i: fragment.a_operand(t, i, bits), 128, 4 * 32 // bits), (64, k))


lanes, warps = st.integers(0, 31), st.integers(0, 3)


@given(lanes, warps, st.integers(0, 127))
def test_closed_form_of_the_accumulator(lane, warp, v) -> None:
    row = 16 * warp + lane // 4 + 8 * (v >> 1 & 1)
    assert fragment.accumulator(32 * warp + lane, v) == (row, 8 * (v >> 2) + 2 * (lane % 4) + (v & 1))


@given(lanes, st.integers(0, 15))
def test_closed_forms_of_the_operands(lane, i) -> None:
    g, q = lane // 4, lane % 4
    assert fragment.a_operand(lane, i % 8, 16) == (g + 8 * (i >> 1 & 1), 2 * q + (i & 1) + 8 * (i % 8 >> 2))
    assert fragment.b_operand(lane, i % 4, 16) == (2 * q + (i & 1) + 8 * (i % 4 >> 1), g)
    assert fragment.a_operand(lane, i % 4, 32) == (g + 8 * (i & 1), q + 4 * (i % 4 >> 1))
    assert fragment.b_operand(lane, i % 2, 32) == (q + 4 * (i % 2), g)
    assert fragment.a_operand(lane, i, 8) == (g + 8 * (i >> 2 & 1), 4 * q + (i & 3) + 16 * (i >> 3))
    assert fragment.b_operand(lane, i % 8, 8) == (4 * q + (i & 3) + 16 * (i % 8 >> 2), g)


@given(lanes, st.integers(0, 1))
def test_closed_form_of_a_matrix(lane, half) -> None:
    assert fragment.matrix(lane, half) == (lane // 4, 2 * (lane % 4) + half)
    assert fragment.matrix(lane, half, trans=True) == fragment.matrix(lane, half)[::-1]


@given(st.integers(0, 127), st.integers(0, 15), st.integers(0, 7))
def test_a_rounded_accumulator_is_the_a_operand_of_the_next_mma(thread, block, element) -> None:
    """Registers 8j to 8j + 7 of 32-bit sums, packed by twos, are k-block j of a 16-bit A."""
    row, column = fragment.accumulator(thread, 8 * block + element)
    assert fragment.a_operand(thread, element, 16) == (row, column - 16 * block)


@given(st.integers(0, 31), st.integers(0, 3), st.integers(0, 1))
def test_four_matrices_are_an_a_operand(lane, j, half) -> None:
    """ldmatrix.x4 with lane l at row l % 16 and column 8·(l / 16)."""
    down, across = fragment.matrix(lane, half)
    pointed = 8 * j  # lane of matrix j's first row
    assert fragment.a_operand(lane, 2 * j + half, 16) == (pointed % 16 + down, pointed // 16 * 8 + across)
