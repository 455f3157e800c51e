"""A kernel that loads packed values of 4 and 6 bits and stores values of 4 bits: numbers, findings, predicted time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.machine.box_text import text
from warpwright.types import b4x16, b4x16_p64, b6x16_p32

START = "shl.b32 %n, %n, 2;"
LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [tile], [%x, {128, %n}], [bar];"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%y, {0, TO}], [tile];"
X = np.random.default_rng(0).integers(0, 256, (8, 192), dtype=np.uint8)


def run(how: Any, dtype: Any, *, to: str = "%n", early: str = "") -> tuple[Any, Any]:
    """Returns what the call returns, and the destination. Each CTA moves the values 128 to 255 of four rows."""
    y = np.zeros((8, 64 if dtype is b4x16 else 128), np.uint8)
    source = ww.TensorMap(X, (4, 128), dtype=dtype)
    target = ww.TensorMap(y, (4, 128), dtype=b4x16) if dtype is b4x16 else ww.TensorMap(y, (4, 128))
    kernel = text("sm_100a", LOAD, STORE.replace("TO", to), nbytes=source.nbytes, start=START, early=early)
    return how(ww.load_ptx(kernel)["move"], grid=2, block=32, args=[source, target], device="b200"), y


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
    assert any(each.startswith("race") and "first: PTX line 23 `cp.async.bulk.tensor" in each for each in found)
    assert run(ww.profile, dtype)[0].cycles > ww.targets.timing_of("b200").tma_l2


def test_check_sees_that_two_ctas_store_the_same_packed_values() -> None:
    assert any("cp.async.bulk.tensor" in each for each in findings(b4x16, to="3"))
