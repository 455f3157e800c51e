"""Swizzles as functions of addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.errors import UsageError
from warpwright.layout import ATOM_32B, ATOM_64B, period, swizzle, width

MODES = (0, 32, 64, 128, ATOM_32B, ATOM_64B)


@given(address=st.integers(0, 2**18 - 1), mode=st.sampled_from(MODES))
def test_a_swizzle_is_its_own_inverse(address: int, mode: int | str) -> None:
    assert swizzle(swizzle(address, mode), mode) == address


@pytest.mark.parametrize("mode", MODES)
def test_a_permutation_of_every_period(mode: int | str) -> None:
    start = 3 * period(mode)
    addresses = np.arange(start, start + period(mode))
    assert sorted(swizzle(addresses, mode)) == list(addresses)


@given(address=st.integers(0, 2**16), mode=st.sampled_from(MODES))
def test_the_pattern_repeats_with_its_period(address: int, mode: int | str) -> None:
    assert swizzle(address + period(mode), mode) == swizzle(address, mode) + period(mode)


@given(address=st.integers(0, 2**16), mode=st.sampled_from((0, 32, 64, 128)))
def test_chunks_of_16_bytes_stay_whole(address: int, mode: int) -> None:
    assert swizzle(address, mode) % 16 == address % 16
    assert swizzle(address, mode) // width(mode) == address // width(mode)


def test_the_first_eight_rows_of_the_128_byte_swizzle() -> None:
    chunks = np.arange(64).reshape(8, 8) * 16
    table = swizzle(chunks, 128) // 16 % 8
    assert table.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ]


def test_the_first_eight_rows_of_the_narrow_swizzles() -> None:
    rows64 = swizzle(np.arange(32).reshape(8, 4) * 16, 64) // 16 % 4
    assert rows64.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 3, 2], [1, 0, 3, 2], [2, 3, 0, 1], [2, 3, 0, 1], [3, 2, 1, 0], [3, 2, 1, 0]]  # fmt: skip  # noqa: E501
    rows32 = swizzle(np.arange(16).reshape(8, 2) * 16, 32) // 16 % 2
    assert rows32.tolist() == [[0, 1]] * 4 + [[1, 0]] * 4


def test_an_int_stays_an_int() -> None:
    assert type(swizzle(144, 128)) is int
    assert swizzle(144, 128) == 128


def test_an_unknown_mode() -> None:
    with pytest.raises(UsageError) as caught:
        swizzle(0, 16)
    assert str(caught.value) == "given swizzle 16; expected one of 0, 32, 64, 128, '128B_ATOM_32B', '128B_ATOM_64B'"
