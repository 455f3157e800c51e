"""A kernel that gathers rows and scatters them: numbers, findings, predicted time; prefetches of every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.machine.box_text import text

START = """ld.param.u64 %p, [picks];
    ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%p];
    mad.wide.u32 %p, %n, 16, %p;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%p + 16];
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%x, {0, %r0, %r1, %r2, %r3}];"""
GATHER = """cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
        [tile], [%x, {0, %r0, %r1, %r2, %r3}], [bar];
    """
BOX = """cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [tile], [%x, {0, 4}], [bar];
    """
SCATTER = """cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group
        [%y, {0, %r4, %r5, %r6, %r7}], [tile];"""
X = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
FROM, TO = [3, -1, 15, 3], [7, 0, 5, 100]


def run(how: Any, to: list[int] = TO, *, loads: str = GATHER, **code: Any) -> tuple[Any, Any]:
    """Returns what the call returns, and the destination. Each CTA stores to four rows of ``to``."""
    y = np.ones((8, 32), np.float32)
    maps = ww.TensorMap(X, (4 if BOX in loads else 1, 32), swizzle=128), ww.TensorMap(y, (1, 32), swizzle=128)
    nbytes, picks = 512 * loads.count("cp.async"), ", .param .u64 picks"
    kernel = text("sm_100a", loads, SCATTER, nbytes=nbytes, start=START, params=picks, **code)
    args = [*maps, np.array(FROM + to, np.int32)]
    return how(ww.load_ptx(kernel)["move"], grid=len(to) // 4, block=32, args=args, device="b200"), y


def test_a_kernel_gathers_and_scatters_rows() -> None:
    _, y = run(ww.launch)
    expected = np.ones((8, 32), np.float32)
    expected[7], expected[0], expected[5] = X[3], 0, X[15]
    np.testing.assert_array_equal(y, expected)


def findings(**options: Any) -> list[str]:
    return [str(finding) for finding in run(ww.check, **options)[0].findings]


def test_check_finds_nothing_in_the_kernel_that_waits() -> None:
    assert not findings()


def test_check_sees_a_scatter_of_rows_that_have_not_arrived() -> None:
    assert any("tile::scatter4" in each and "tile::gather4" in each for each in findings(waits=False))


def test_check_sees_that_two_ctas_scatter_to_one_row() -> None:
    assert any("tile::scatter4" in each for each in findings(to=[7, 0, 5, 100, 1, 2, 3, 5]))
    assert not findings(to=[7, 0, 5, 100, 1, 2, 3, 100])


def test_check_sees_a_load_of_the_last_row_before_it_has_arrived() -> None:
    (found,) = findings(early="ld.shared.u32 %r0, [tile + 500];")
    assert "tile::gather4" in found
    assert not findings(early="st.shared.u32 [tile + 512], 0;")


@pytest.mark.parametrize("cta", [0, 1])
def test_check_sees_a_store_to_a_row_that_a_scatter_reads(cta: int) -> None:
    """A row outside the tensor is not read. The CTAs differ only in that row."""
    late = "st.shared.u32 [tile + 500], 0;"
    outside = [0, 1, 2, 100, 4, 5, 6, 101]
    assert not findings(to=outside, late=late)
    inside = outside.copy()
    inside[4 * cta + 3] = 3 + 4 * cta
    (found,) = findings(to=inside, late=late)
    assert "tile::scatter4" in found


def test_a_gather_takes_the_time_of_a_box_of_four_rows() -> None:
    rows, box = ([run(ww.profile, loads=count * text)[0].cycles for count in (32, 96)] for text in (GATHER, BOX))
    assert rows[1] - rows[0] == pytest.approx(box[1] - box[0], rel=0.1)
