"""A kernel that loads pixels by a map of im2col mode and stores them by another: numbers, findings, predicted time."""

from __future__ import annotations

from typing import Any

import numpy as np

import warpwright as ww

TEXT = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry move(.param .align 64 .b8 x[128], .param .align 64 .b8 y[128]) {{
    .reg .b64 %x, %y;
    .reg .b32 %t, %n;
    .reg .b16 %h, %w;
    .reg .pred %first, %done;
    .shared .align 1024 .b8 tile[2048];
    .shared .align 8 .b64 bar;
    mov.b64 %x, x;
    cvta.param.u64 %x, %x;
    mov.b64 %y, y;
    cvta.param.u64 %y, %y;
    mov.u32 %t, %tid.x;
    mov.u32 %n, %ctaid.x;
    setp.ne.u32 %first, %t, 0;
    @%first bra END;
    mov.b16 %h, 2;
    mov.b16 %w, 1;
    mbarrier.init.shared::cta.b64 [bar], 1;
    fence.proxy.async.shared::cta;
    cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%x, {{0, -1, -1, %n}}], {{%w, %h}};
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 2048;
    cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
        [tile], [%x, {{0, -1, -1, %n}}], [bar], {{%w, %h}};
    {early}
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
    @!%done bra WAIT;
    cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%y, {{0, 0, 0, {to}}}], [tile];
    {late}
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:
    ret;
}}
"""
X = np.arange(1, 2 * 4 * 4 * 32 + 1, dtype=np.float32).reshape(2, 4, 4, 32)


def run(how: Any, *, to: str = "%n", **code: str) -> tuple[Any, Any]:
    """Returns what the call returns, and the destination. Each CTA moves the 16 pixels of an image."""
    y = np.zeros_like(X)
    x_map = ww.TensorMap(X, (16, 32), swizzle=128, corners=((-1, -1), (-1, -1)))
    y_map = ww.TensorMap(y, (16, 32), swizzle=128, corners=((0, 0), (0, 0)))
    text = TEXT.format(to=to, **({"early": "", "late": ""} | code))
    return how(ww.load_ptx(text)["move"], grid=2, block=32, args=[x_map, y_map], device="h200"), y


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
