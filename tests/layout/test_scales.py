"""Scale factors in memory and in tensor memory, against the atom of CUTLASS's Sm1xxBlockScaledConfig as strides, and
against tcgen05.cp."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from warpwright import layout
from warpwright.errors import UsageError


@pytest.mark.parametrize(("rows", "blocks"), [(128, 4), (256, 12), (384, 8)])
def test_a_matrix_is_stored_in_tiles_of_128_by_4(rows: int, blocks: int) -> None:
    """((32, 4), rows / 128) : ((16, 4), 512 × tiles of a row) by (4, blocks / 4) : (1, 512)."""
    found = layout.scale_offsets(rows, blocks)
    for row in range(rows):
        for block in range(blocks):
            expected = row % 32 * 16 + row // 32 % 4 * 4 + row // 128 * 512 * (blocks // 4)
            assert found[row, block] == expected + block % 4 + block // 4 * 512


def test_tiles_are_the_matrix_in_another_order() -> None:
    """The order of cuBLAS: (rows / 128, 4, 32, blocks / 4, 4) transposed to (0, 3, 2, 1, 4)."""
    matrix = np.random.default_rng(0).integers(0, 255, (256, 8)).astype(np.uint8)
    expected = matrix.reshape(2, 4, 32, 2, 4).transpose(0, 3, 2, 1, 4)
    found = layout.scale_tiles(matrix.view(ml_dtypes.float8_e8m0fnu))
    assert found.dtype == ml_dtypes.float8_e8m0fnu
    np.testing.assert_array_equal(found.view(np.uint8), expected)


def test_a_partial_tile_is_filled_with_zeros() -> None:
    found = layout.scale_tiles(np.full((130, 5), 7, np.uint8))
    assert found.shape == (2, 2, 32, 4, 4) and (found == 7).sum() == 130 * 5 and set(found.ravel()) == {0, 7}


def test_a_copied_tile_has_the_cells_that_the_mma_reads() -> None:
    """tcgen05.cp.32x128b.warpx4 copies row i of 16 bytes to lanes i, i + 32, i + 64 and i + 96 of four columns."""
    tile = layout.scale_tiles(np.arange(128 * 4).astype(np.uint8).reshape(128, 4)).reshape(32, 4, 4)
    copied, _ = layout.tmem_cp_map("32x128b", "warpx4")
    memory = np.zeros((128, 4, 4), np.uint8)
    for lanes in copied:
        memory[lanes] = tile
    lanes, columns = layout.tmem_scale_map(128)
    for copy in lanes:
        np.testing.assert_array_equal(memory[copy, columns].ravel(), np.arange(128 * 4).astype(np.uint8))
    assert layout.scale_columns(128) == 4 and layout.scale_columns(40) == 2


@pytest.mark.parametrize(("shape", "dtype"), [((4, 4, 4), np.uint8), ((4, 4), np.float32)])
def test_scale_tiles_refuses_other_arrays(shape: tuple[int, ...], dtype: type) -> None:
    with pytest.raises(UsageError) as raised:
        layout.scale_tiles(np.zeros(shape, dtype))
    assert str(raised.value) == (
        f"given scale factors of shape {shape} and dtype {np.dtype(dtype)}; expected (rows, blocks) of a dtype of one "
        "byte, ml_dtypes.float8_e8m0fnu or float8_e4m3fn"
    )
