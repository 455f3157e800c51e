"""A kernel that loads pixels by a map of im2col mode and stores them by another: numbers, findings, predicted time."""

from __future__ import annotations

from typing import Any

import numpy as np

import warpwright as ww
from tests.vgpu.machine.box_text import text

START = """mov.b16 %h, 2;
    mov.b16 %w, 1;
    cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%x, {0, -1, -1, %n}], {%w, %h};"""
LOAD = """cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
        [tile], [%x, {0, -1, -1, %n}], [bar], {%w, %h};"""
STORE = "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%y, {0, 0, 0, TO}], [tile];"
X = np.arange(1, 2 * 4 * 4 * 32 + 1, dtype=np.float32).reshape(2, 4, 4, 32)


def run(how: Any, *, to: str = "%n", **code: str) -> tuple[Any, Any]:
    """Returns what the call returns, and the destination. Each CTA moves the 16 pixels of an image."""
    y = np.zeros_like(X)
    x_map = ww.TensorMap(X, (16, 32), swizzle=128, corners=((-1, -1), (-1, -1)))
    y_map = ww.TensorMap(y, (16, 32), swizzle=128, corners=((0, 0), (0, 0)))
    kernel = text("sm_90a", LOAD, STORE.replace("TO", to), nbytes=2048, start=START, **code)
    return how(ww.load_ptx(kernel)["move"], grid=2, block=32, args=[x_map, y_map], device="h200"), y


def findings(**options: Any) -> list[str]:
    return [str(finding) for finding in run(ww.check, **options)[0].findings]


def test_pixels_are_loaded_at_the_offsets_of_a_filter_and_stored() -> None:
    """The filter of 3 x 3 is at row 2, column 1."""
    _, y = run(ww.launch)
    np.testing.assert_array_equal(y, np.pad(X, ((0, 0), (0, 1), (0, 0), (0, 0)))[:, 1:])


def test_check_finds_nothing_in_the_kernel_that_waits() -> None:
    assert not findings()


def test_check_sees_a_load_of_the_last_pixel_before_it_has_arrived() -> None:
    (found,) = findings(early="ld.shared.u32 %t, [tile + 2044];")
    assert ".im2col" in found


def test_check_sees_a_store_to_a_pixel_that_is_read() -> None:
    """Pixels after the last image are not stored, and so not read."""
    late = "st.shared.u32 [tile + 2040], 0;"
    assert ".im2col_no_offs" in "".join(findings(late=late))
    assert not findings(late=late, to="2")


def test_check_sees_that_two_ctas_store_to_one_image() -> None:
    assert any(".im2col_no_offs" in each for each in findings(to="1"))


def test_profile_counts_the_bytes_of_the_pixels() -> None:
    """The replay is of code that only signals: the mbarrier gets the bytes at the issue, from the bytes of the map."""
    assert run(ww.profile)[0].cycles > ww.targets.timing_of("h200").tma_l2
