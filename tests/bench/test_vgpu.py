"""The bars of bench/vgpu.py."""

from __future__ import annotations

import pytest
import vgpu


@pytest.mark.parametrize(("size", "ratio", "missed"), [(4096, 2.01, True), (4096, 2.0, False), (2048, 3.0, False)])
def test_a_bar_counts_at_4096_only(size: int, ratio: float, missed: bool) -> None:
    row = {"size": size, "level": 10, "cpu_s": 1.0, "numpy_f32_s": 1.0, "ratio": ratio}
    assert bool(vgpu.missed([row])) == missed


def test_a_product_is_timed_at_every_level() -> None:
    rows = vgpu.gemm(256, rounds=1)
    assert [row["level"] for row in rows] == [*vgpu.BARS]
    assert all(row["cpu_s"] > 0 and row["ratio"] == row["cpu_s"] / row["numpy_f32_s"] for row in rows)
