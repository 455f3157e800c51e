"""A plain launch has wrong numbers if a stage of a ring is released before the MMA that reads it is complete, and if
an MMA does not wait for its stage."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from warpwright.lang import (
    Global,
    If,
    Kernel,
    Ring,
    bar,
    bf16,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    warp,
    wgmma,
)
from warpwright.run.launch import launch

STAGES, K = 2, 16


def ring_of(rows: int, empty: int) -> Ring:
    a, b = (smem.tile(bf16, (size, K), swizzle=32) for size in (rows, 64))
    return Ring(STAGES, full=1, empty=empty, name="ab", a=a, b=b)


def fill(ring: Ring, a: tma.Map[bf16], b: tma.Map[bf16], steps: u32) -> None:
    slots = ring.producer()
    for k in loop(steps):
        slot = next(slots)
        slot.empty.wait()
        slot.full.arrive_expect_tx(slot.nbytes)
        tma.load(slot.a, a[0, k * K], slot.full)
        tma.load(slot.b, b[0, k * K], slot.full)


@kernel("sm_100a", threads=128)
def tcgen05_ring(
    a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32], steps: u32, *, commits: bool = True, waits: bool = True
) -> None:
    ring, acc, done = ring_of(128, 1), tmem.tile(f32, (128, 64)), mbarrier(1, name="done")
    with If((warp.id == 0) & elect_one()):
        ring.init()
        done.init()
        fence.mbarrier_init()
    with If(warp.id == 1):
        tmem.alloc()
    bar.sync()
    tmem.open()

    @role(warp=0, elect=True)
    def load() -> None:
        fill(ring, a, b, steps)

    @role(warp=2, elect=True)
    def multiply() -> None:
        slots = ring.consumer()
        for k in loop(steps):
            slot = next(slots)
            if waits:
                slot.full.wait()
            tcgen05.mma(acc, slot.a, slot.b, accumulate=k > 0)
            if commits:
                tcgen05.commit(slot.empty)
            else:
                slot.empty.arrive()
        tcgen05.commit(done)

    done.wait(0)
    tcgen05.fence_after_thread_sync()
    values = tcgen05.ld(acc)
    tcgen05.wait_ld()
    for column in range(0, 64, 4):
        st(d + tid.x * 64 + column, *values[column : column + 4])
    bar.sync()
    with If(warp.id == 1):
        tmem.dealloc()


@kernel("sm_90a", threads=160)
def wgmma_ring(
    a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32], steps: u32, *, commits: bool = True, waits: bool = True
) -> None:
    ring = ring_of(64, 4)
    with If((warp.id == 0) & elect_one()):
        ring.init()
        fence.mbarrier_init()
    bar.sync()

    @role(warp=4, elect=True)
    def load() -> None:
        fill(ring, a, b, steps)

    @role(warps=range(4))
    def multiply() -> None:
        acc, slots = wgmma.accumulator(f32, (64, 64)), ring.consumer()
        for k in loop(steps):
            slot = next(slots)
            if waits:
                slot.full.wait()
            wgmma.fence()
            wgmma.mma(acc, slot.a, slot.b, accumulate=k > 0)
            wgmma.commit_group()
            if commits:
                wgmma.wait_group(0)
            with If(elect_one()):
                slot.empty.arrive()
            if not commits:
                wgmma.wait_group(0)
        for number, value in enumerate(acc.regs):
            row, column = acc.at(number)
            st(d + row * 64 + column, value)


def _error(kernel: Kernel, rows: int, steps: int, **config: bool) -> float:
    random = np.random.default_rng(0)
    shapes = (rows, steps * K), (64, steps * K)
    a, b = (random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    d: NDArray[np.float32] = np.full((rows, 64), np.nan, np.float32)
    launch(kernel.configure(**config), grid=1, args=[a, b, d, steps])
    return float(np.abs(d - a.astype(np.float64) @ b.astype(np.float64).T).max())


RINGS = pytest.mark.parametrize(("kernel", "rows"), [(tcgen05_ring, 128), (wgmma_ring, 64)], ids=["tcgen05", "wgmma"])


@RINGS
@pytest.mark.parametrize("steps", [1, 3, 9])
def test_a_ring_that_releases_its_stages_in_time_is_right(kernel: Kernel, rows: int, steps: int) -> None:
    assert _error(kernel, rows, steps) < 1e-4


@RINGS
@pytest.mark.parametrize("steps", [7, 12])
def test_a_stage_that_is_released_before_the_mma_is_complete_is_overwritten(
    kernel: Kernel, rows: int, steps: int
) -> None:
    assert not _error(kernel, rows, steps, commits=False) < 0.1


@RINGS
@pytest.mark.parametrize("steps", [1, 2])
def test_an_mma_that_does_not_wait_for_its_stage_reads_old_data(kernel: Kernel, rows: int, steps: int) -> None:
    assert not _error(kernel, rows, steps, waits=False) < 0.1
