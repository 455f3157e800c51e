"""Round trips of a virtual B200 beside published measurements of a B200 and a B300, cycles until a wait ends.

SemiAnalysisAI/microbench-blackwell (`umma_latency`) issues one MMA, commits it and waits, alone and in a pair, and
(`umma_throughput`) 256 MMAs, for every shape;
ademeure/QuickRunCUDA (section 30.3) and Meta's latency model copy 16 to 64 KB by TMA from L2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright import targets
from warpwright.lang import (
    If,
    bar,
    bf16,
    cluster,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    smem,
    tcgen05,
    tma,
    tmem,
    u32,
    var,
    warp,
)
from warpwright.targets.clocks import TIMINGS

FEW, MANY = 20, 60
LOOP = 30  # cycles of the loop around what SemiAnalysis and Meta measure


def mma_rounds(rounds: u32, ctas: int, columns: int, m: int, depth: int) -> None:
    """``rounds`` times ``depth`` MMAs with M = ``m``, waited for by every thread."""
    rows = m // ctas
    a, b = smem.tile(bf16, (rows, 64), swizzle=128), smem.tile(bf16, (columns // ctas, 64), swizzle=128)
    acc, done = tmem.tile(f32, (rows, columns), cta_group=ctas), mbarrier()
    one = (warp.id == 0) & elect_one()
    with If(one):
        done.init()
        fence.mbarrier_init()
    join = bar.sync if ctas == 1 else cluster.sync
    join()
    with If(warp.id == 1):
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=ctas)
    tcgen05.fence_before_thread_sync()
    join()
    tcgen05.fence_after_thread_sync()
    tmem.open()
    leads = one if ctas == 1 else one & (cluster.rank == 0)
    phase = var(u32, 0)
    for _ in loop(0, rounds):
        with If(leads):
            for _mma in range(depth):
                tcgen05.mma(acc, a[:, :16], b[:, :16], accumulate=True, cta_group=ctas)
            tcgen05.commit(done, cta_group=ctas, multicast=None if ctas == 1 else 0b11)
        done.wait(phase)
        phase.set(phase ^ 1)
    tcgen05.fence_before_thread_sync()
    join()
    with If(warp.id == 1):
        tmem.dealloc()


@kernel("sm_100a", threads=128)
def of_one_cta(rounds: u32, *, columns: int = 128, m: int = 128, depth: int = 1) -> None:
    mma_rounds(rounds, 1, columns, m, depth)


@kernel("sm_100a", threads=128, cluster=2)
def of_a_pair(rounds: u32, *, columns: int = 128, m: int = 256, depth: int = 1) -> None:
    mma_rounds(rounds, 2, columns, m, depth)


@kernel("sm_100a", threads=32)
def single_boxes(x: tma.Map[bf16], rounds: u32, *, rows: int = 128) -> None:
    """``rounds`` boxes of ``rows`` rows of 128 bytes, each waited for; all are the same box."""
    tile, full = smem.tile(bf16, (rows, 64), swizzle=128), mbarrier()
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    phase = var(u32, 0)
    for _ in loop(0, rounds):
        with If(elect_one()):
            full.arrive_expect_tx(tile.nbytes)
            for row in range(0, rows, 128):
                tma.load(tile[row : row + 128, :], x[row, 0], full)
        full.wait(phase)
        phase.set(phase ^ 1)


def cycles_a_round(probe: Any, *arrays: Any, **how: Any) -> float:
    few, many = (ww.profile(probe, args=[*arrays, n], device="b200", warm=True, **how).cycles for n in (FEW, MANY))
    return (many - few) / (MANY - FEW)


PROBES = {1: of_one_cta, 2: of_a_pair}


@pytest.mark.parametrize(
    ("ctas", "columns", "published"), [(1, 64, 168), (1, 128, 200), (1, 256, 264), (2, 128, 234), (2, 256, 298)]
)
def test_an_mma_until_its_wait_ends(ctas: int, columns: int, published: int) -> None:
    """With an MMA latency of 190, assumed before, 330 cycles and more."""
    found = cycles_a_round(PROBES[ctas].trace(columns=columns), grid=ctas)
    assert found == pytest.approx(published + LOOP, rel=0.17)


@pytest.mark.parametrize(
    ("ctas", "m", "columns", "published"),
    [(1, 64, 128, 64.6), (1, 128, 64, 48.6), (1, 128, 128, 64.6), (2, 128, 64, 25.7), (2, 128, 128, 32.7),
     (2, 128, 256, 64.7), (2, 256, 64, 43.7), (2, 256, 128, 64.8)],
)  # fmt: skip
def test_mmas_one_after_the_other(ctas: int, m: int, columns: int, published: float) -> None:
    """256 MMAs for one commit (`umma_throughput`, bf16, both operands in shared memory): an SM of a pair with M = 128
    has 64 rows at the full rate, 64 rows of a single SM take the time of 128."""
    few, many = (cycles_a_round(PROBES[ctas].trace(columns=columns, m=m, depth=depth), grid=ctas) for depth in (8, 72))
    assert (many - few) / 64 == pytest.approx(published, rel=0.07)


@pytest.mark.parametrize(("rows", "published"), [(128, (530, 503)), (256, (658, 634)), (512, (925, 897))])
def test_a_copy_from_l2_until_its_wait_ends(
    rows: int, published: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One SM copies, so no box is late because others load."""
    alone = replace(targets.timing_of("b200"), tma_late_l2=0.0)
    monkeypatch.setitem(TIMINGS, "b200", alone)
    found = cycles_a_round(single_boxes.trace(rows=rows), np.zeros((rows, 64), ml_dtypes.bfloat16), grid=1)
    assert [found - LOOP] * 2 == pytest.approx(published, rel=0.05)
