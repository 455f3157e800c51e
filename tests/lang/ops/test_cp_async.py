"""cp.async: its PTX, errors, and runs that wait with a group and with an mbarrier."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.lang.ops.emission import emit
from warpwright.errors import KernelError
from warpwright.lang import Global, If, bar, cp_async, f32, fence, kernel, mbarrier, select, smem, tid, u32, var


def test_ptx() -> None:
    def body(a, x, n):
        held, full = smem.array(f32, 64), mbarrier()
        cp_async.copy(held, x)
        cp_async.copy(held + 4, x + n, 4, taken=n)
        cp_async.commit_group()
        cp_async.wait_group(1)
        cp_async.arrive(full)

    copies = [line for line in emit(body) if "cp.async" in line]
    assert copies[0].startswith("cp.async.cg.shared.global [") and copies[0].endswith("], 16")
    assert copies[1].startswith("cp.async.ca.shared.global [") and copies[1].endswith("], 4, %r0")
    assert copies[2:4] == ["cp.async.commit_group", "cp.async.wait_group 1"]
    assert copies[4].startswith("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda held, x: cp_async.copy(held, x, 12), "given 12 bytes to cp_async.copy; expected 4, 8 or 16"),
        (
            lambda held, x: cp_async.copy(x, held),
            "given cp_async.copy to global from shared memory; expected to shared from global memory",
        ),
        (lambda held, x: cp_async.wait_group(-1), "given cp_async.wait_group(-1); expected 0 or more groups"),
    ],
)
def test_refused(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        emit(lambda a, x, n: call(smem.array(f32, 64), x))
    assert str(caught.value).endswith(sentence)


@kernel("sm_120a", threads=64)
def reverse(x: Global[f32], y: Global[f32], count: u32, *, barrier: bool = False):
    """Each thread copies four elements (zeros beyond ``count``) and reads elements that other threads copied."""
    held, full = smem.array(f32, 256), mbarrier(64)
    with If(tid.x == 0):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    first = tid.x * 4
    inside = first < count
    cp_async.copy(held + first, x + select(inside, first, 0), taken=select(inside, (count - first) * 4, 0))
    if barrier:
        cp_async.arrive(full)
        full.wait(0)
    else:
        cp_async.commit_group()
        cp_async.wait_group(0)
        bar.sync()
    for i in range(4):
        y[first + i] = held[255 - first - i]


@pytest.mark.parametrize("barrier", [False, True])
def test_copies_are_complete_after_a_group_and_after_an_mbarrier(barrier) -> None:
    x, y = np.arange(1, 257, dtype=np.float32), np.zeros(256, np.float32)
    verdict = ww.check(reverse.configure(barrier=barrier), grid=1, args=[x, y, 252], update=True)
    assert verdict.kind == "clean", str(verdict)
    assert np.array_equal(y[::-1], np.where(np.arange(256) < 252, x, 0))


@kernel("sm_120a", threads=128)
def gather(x: Global[f32], y: Global[f32], *, copies: int = 40):
    """Each thread has ``copies`` copies of four elements in flight at once, without a branch between them."""
    held = smem.array(f32, 128 * 4 * copies)
    for i in range(copies):
        cp_async.copy(held + (tid.x + 128 * i) * 4, x + (tid.x + 128 * i) * 4)
    cp_async.commit_group()
    cp_async.wait_group(0)
    bar.sync()
    total = var(f32, 0.0)
    for i in range(copies):
        total += held[(127 - tid.x + 128 * i) * 4]
    y[tid.x] = total


def test_more_copies_in_flight_than_records_of_the_virtual_gpu_run_once() -> None:
    x, y = np.arange(128 * 4 * 40, dtype=np.float32), np.zeros(128, np.float32)
    verdict = ww.check(gather, grid=1, args=[x, y], update=True)
    assert verdict.kind == "clean", str(verdict)
    assert np.array_equal(y[::-1], x.reshape(40, 128, 4)[..., 0].sum(0))
