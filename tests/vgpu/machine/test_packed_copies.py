"""A kernel that loads packed values of 4 and 6 bits and stores values of 4 bits: numbers, findings, predicted time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.types import b4x16, b4x16_p64, b6x16_p32

TEXT = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry move(.param .align 64 .b8 x[128], .param .align 64 .b8 y[128]) {{
    .reg .b64 %x, %y;
    .reg .b32 %t, %n;
    .reg .pred %first, %done;
    .shared .align 1024 .b8 tile[512];
    .shared .align 8 .b64 bar;
    mov.b64 %x, x;
    cvta.param.u64 %x, %x;
    mov.b64 %y, y;
    cvta.param.u64 %y, %y;
    mov.u32 %n, %ctaid.x;
    shl.b32 %n, %n, 2;
    mov.u32 %t, %tid.x;
    setp.ne.u32 %first, %t, 0;
    @%first bra END;
    mbarrier.init.shared::cta.b64 [bar], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {nbytes};
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [tile], [%x, {{128, %n}}], [bar];
    {early}
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
    @!%done bra WAIT;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%y, {{0, {to}}}], [tile];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:
    ret;
}}
"""
X = np.random.default_rng(0).integers(0, 256, (8, 192), dtype=np.uint8)


def run(how: Any, dtype: Any, *, to: str = "%n", early: str = "") -> tuple[Any, Any]:
    """Returns what the call returns, and the destination. Each CTA moves the values 128 to 255 of four rows."""
    y = np.zeros((8, 64 if dtype is b4x16 else 128), np.uint8)
    source = ww.TensorMap(X, (4, 128), dtype=dtype)
    target = ww.TensorMap(y, (4, 128), dtype=b4x16) if dtype is b4x16 else ww.TensorMap(y, (4, 128))
    text = TEXT.format(nbytes=source.nbytes, to=to, early=early)
    return how(ww.load_ptx(text)["move"], grid=2, block=32, args=[source, target], device="b200"), y


def findings(dtype: Any, **options: Any) -> list[str]:
    return [str(finding) for finding in run(ww.check, dtype, **options)[0].findings]


@pytest.mark.parametrize(("dtype", "nbytes"), [(b4x16, 8), (b4x16_p64, 8), (b6x16_p32, 12)])
def test_sixteen_values_are_moved_to_their_place_in_shared_memory(dtype: Any, nbytes: int) -> None:
    _, y = run(ww.launch, dtype)
    found = y.reshape(8, 8, -1)[:, :, :nbytes]
    np.testing.assert_array_equal(found.reshape(8, -1), X[:, 8 * nbytes : 16 * nbytes])


@pytest.mark.parametrize("dtype", [b4x16, b4x16_p64, b6x16_p32])
def test_check_and_profile_know_the_bytes_of_packed_values(dtype: Any) -> None:
    """The padding takes shared memory, and does not count at the mbarrier."""
    assert not findings(dtype)
    last = 508 if dtype is not b4x16 else 252
    found = findings(dtype, early=f"st.shared.u32 [tile + {last}], 0;")
    assert any(each.startswith("race") and "first: PTX line 22 `cp.async.bulk.tensor" in each for each in found)
    assert run(ww.profile, dtype)[0].cycles > ww.targets.timing_of("b200").tma_l2


def test_check_sees_that_two_ctas_store_the_same_packed_values() -> None:
    assert any("cp.async.bulk.tensor" in each for each in findings(b4x16, to="3"))
