"""Bytes of boxes outside their array, as recorded for the clock."""

from __future__ import annotations

import numpy as np
import pytest

from warpwright import TensorMap
from warpwright.vgpu.timing.capture import _bytes_outside


@pytest.mark.parametrize(
    ("coords", "outside"),
    [
        ((0, 0), 0),
        ((0, 44), 0),
        ((0, 64), 20 * 128),  # 44 of 64 rows are inside
        ((0, 108), 64 * 128),
        ((-32, 0), 64 * 64),
        ((96, 64), 64 * 128 - 44 * 64),
        ((0, -64), 64 * 128),
    ],
)
def test_bytes_outside_the_array(coords: tuple[int, int], outside: int) -> None:
    """Boxes of 64 rows of 64 halves, of an array of 108 rows of 128 halves; coordinates innermost first."""
    map = TensorMap(np.zeros((108, 128), np.float16), (64, 64), swizzle=128)
    assert _bytes_outside(map, np.array([coords], np.int64)).tolist() == [outside]


def test_coordinates_are_signed_words() -> None:
    map = TensorMap(np.zeros((108, 128), np.float16), (64, 64), swizzle=128)
    assert _bytes_outside(map, np.array([[-32 & 0xFFFF_FFFF, 0]], np.int64)).tolist() == [64 * 64]
