"""Tensor memory: accumulator layouts, loads and copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.errors import UsageError
from warpwright.layout import (
    TmemAddress,
    tmem_a_layout,
    tmem_cp_map,
    tmem_d_layout,
    tmem_ld_map,
    tmem_ld_registers,
)
from warpwright.layout.tmem import LD_SHAPES

LAYOUTS = [
    (256, 256, 2, False, False),
    (128, 256, 2, False, False),
    (128, 64, 2, False, True),
    (128, 256, 1, False, False),
    (128, 128, 1, True, False),
    (64, 256, 1, True, False),
    (64, 128, 1, False, False),
    (32, 256, 1, True, False),
]


@given(lane=st.integers(0, 127), column=st.integers(0, 511))
def test_decode_inverts_encode_of_addresses(lane: int, column: int) -> None:
    assert TmemAddress.decode(TmemAddress(lane, column).encode()) == (lane, column)


@pytest.mark.parametrize(("m", "n", "cta_group", "ws", "sparse"), LAYOUTS)
def test_each_element_has_its_own_cell(m: int, n: int, cta_group: int, ws: bool, sparse: bool) -> None:
    layout = tmem_d_layout(m, n, cta_group, ws=ws, sparse=sparse)
    cta, lane, column = np.broadcast_arrays(*layout(np.arange(m)[:, None], np.arange(n)[None, :]))
    assert set(np.unique(cta)) == set(range(cta_group))
    assert lane.min() >= 0 and lane.max() < 128 and column.min() >= 0 and column.max() < n
    assert np.unique((cta * 128 + lane) * 512 + column).size == m * n


@pytest.mark.parametrize(
    ("m", "cta_group", "ws", "row", "column", "cell"),
    [
        (256, 2, False, 130, 7, (1, 2, 7)),
        (128, 2, False, 65, 31, (1, 1, 31)),
        (128, 2, False, 3, 33, (0, 67, 1)),
        (128, 1, False, 100, 63, (0, 100, 63)),
        (64, 1, True, 5, 40, (0, 69, 8)),
        (64, 1, False, 17, 63, (0, 33, 63)),
        (32, 1, True, 4, 50, (0, 100, 2)),
    ],
)
def test_cells_of_an_accumulator_of_64_columns(
    m: int, cta_group: int, ws: bool, row: int, column: int, cell: tuple[int, int, int]
) -> None:
    assert tmem_d_layout(m, 64, cta_group, ws=ws)(row, column) == cell


def test_groups_of_16_lanes_may_start_at_lane_16() -> None:
    assert tmem_d_layout(64, 64, 1, upper=True)(17, 5) == (0, 49, 5)


def test_a_in_tensor_memory_has_the_lanes_of_d() -> None:
    assert tmem_a_layout(128, 1)(77, 3) == (0, 77, 3)
    assert tmem_a_layout(32, 1, ws=True)(9, 7) == (0, 9, 7)


def test_a_shape_without_a_layout() -> None:
    with pytest.raises(UsageError) as caught:
        tmem_d_layout(256, 64, 1)
    assert str(caught.value) == (
        "given M=256 with cta_group::1; expected M = 128 or 256 with cta_group::2, 64 or 128 with cta_group::1, "
        "32, 64 or 128 with .ws"
    )


@pytest.mark.parametrize("shape", LD_SHAPES)
@pytest.mark.parametrize("num", [1, 2, 4, 8, 16, 32])
def test_a_load_covers_each_cell_once(shape: str, num: int) -> None:
    registers, columns_of_one, lanes = LD_SHAPES[shape]
    rows, columns = tmem_ld_map(shape, num, split=num if shape == "16x32bx2" else 0)
    assert rows.shape == columns.shape == (registers * num, 32)
    halves = 2 if shape == "16x32bx2" else 1
    cells = set(zip(rows.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert cells == {(row, column) for row in range(lanes) for column in range(columns_of_one * num * halves)}
    assert len(cells) == rows.size


def test_one_row_a_thread() -> None:
    rows, columns = tmem_ld_map("32x32b", 4)
    assert rows[:, 9].tolist() == [9, 9, 9, 9]
    assert columns[:, 9].tolist() == [0, 1, 2, 3]


def test_16x256b_is_the_accumulator_fragment_of_mma() -> None:
    rows, columns = tmem_ld_map("16x256b", 2)
    lane, group, pair = 13, 13 // 4, 13 % 4
    assert rows[:, lane].tolist() == [group, group, group + 8, group + 8] * 2
    assert columns[:, lane].tolist() == [2 * pair, 2 * pair + 1] * 2 + [8 + 2 * pair, 9 + 2 * pair] * 2


@pytest.mark.parametrize(("shape", "most"), [("32x32b", 128), ("16x64b", 128), ("16x128b", 64), ("16x256b", 32)])
def test_at_most_128_registers(shape: str, most: int) -> None:
    assert tmem_ld_registers(shape, most) == 128
    with pytest.raises(UsageError) as caught:
        tmem_ld_registers(shape, 2 * most)
    assert str(caught.value) == f"given .x{2 * most} with shape {shape}; expected a power of two up to .x{most}"


def test_unknown_load_shape() -> None:
    with pytest.raises(UsageError) as caught:
        tmem_ld_registers("64x64b", 1)
    assert str(caught.value) == "given shape '64x64b'; expected one of 32x32b, 16x64b, 16x128b, 16x256b, 16x32bx2"


@pytest.mark.parametrize(
    ("shape", "multicast", "copies"),
    [
        ("128x256b", "", 1),
        ("128x128b", "", 1),
        ("64x128b", "warpx2::02_13", 2),
        ("64x128b", "warpx2::01_23", 2),
        ("32x128b", "warpx4", 4),
    ],
)
def test_copies_fill_all_lanes(shape: str, multicast: str, copies: int) -> None:
    lanes, columns = tmem_cp_map(shape, multicast)
    assert lanes.shape == (copies, 128 // copies)
    assert sorted(lanes.ravel().tolist()) == list(range(128))
    assert columns * 32 == int(shape.split("x")[1][:-1])


def test_the_lanes_of_row_40_of_the_two_64_row_multicasts() -> None:
    assert tmem_cp_map("64x128b", "warpx2::02_13")[0][:, 40].tolist() == [40, 104]
    assert tmem_cp_map("64x128b", "warpx2::01_23")[0][:, 40].tolist() == [72, 104]


def test_a_copy_without_its_multicast() -> None:
    with pytest.raises(UsageError) as caught:
        tmem_cp_map("32x128b")
    assert str(caught.value) == (
        "given tcgen05.cp shape 32x128b; expected one of 128x256b, 4x256b, 128x128b, 64x128b.warpx2::02_13, "
        "64x128b.warpx2::01_23, 32x128b.warpx4"
    )
