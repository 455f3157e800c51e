"""Limits end kernels that do not end by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.samples import sampled
from warpwright.errors import LimitReached, UsageError
from warpwright.vgpu.machine import schedule

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry endless(.param .u64 x) .reqntid 64
{
    .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<8>; .shared .align 8 .b64 bars;
    ld.param.u64 %d1, [x];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, bars;
    mov.u32 %r3, 0;
"""
COUNT = "again:\n    add.u32 %r3, %r3, 1;\n    bra again;\n}\n"
BARRIER = "again:\n    bar.sync 0;\n    bra again;\n}\n"
ATOMIC = "again:\n    atom.global.add.u32 %r4, [%d1], 1;\n    bra again;\n}\n"
MBARRIER = """    setp.ne.u32 %p, %r1, 0;
    @%p bra ready;
    mbarrier.init.shared.b64 [bars], 64;
ready:
    bar.sync 0;
again:
    mbarrier.arrive.shared.b64 %d2, [%r2];
poll:
    mbarrier.try_wait.parity.shared.b64 %p, [%r2], %r3;
    @!%p bra poll;
    xor.b32 %r3, %r3, 1;
    bra again;
}
"""
COPY = "again:\n    cp.async.ca.shared.global [%r2], [%d1], 4;\n    bra again;\n}\n"
ENDLESS = {"count": COUNT, "copy": COPY, "barrier": BARRIER, "atomic": ATOMIC, "mbarrier": MBARRIER}
SEEDED = [(name, 2) for name in ENDLESS if name not in ("barrier", "mbarrier")]


def start(body: str, how: Callable[..., Any] = ww.launch, grid: int = 1, **options: Any) -> Any:
    return how(ww.load_ptx(HEAD + body)["endless"], grid, args=[np.zeros(1, np.uint32)], device="h200", **options)


@pytest.mark.parametrize("how", [ww.launch, ww.profile])
@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_a_kernel_that_does_not_end_reaches_the_limit(body: str, how: Callable[..., Any]) -> None:
    with pytest.raises(LimitReached) as caught:
        start(body, how, limit=3_000)
    assert str(caught.value) == (
        "kernel endless did not end within 3,000 jumps of a warp; give a higher limit, or choose a smaller problem."
    )


@sampled(("name", "seed"), [*product(ENDLESS, (None,)), *product(ENDLESS, (2,))], long=SEEDED)
def test_a_check_that_does_not_end_is_incomplete(name: str, seed: int | None) -> None:
    verdict = start(ENDLESS[name], ww.check, limit=300, seed=seed, off=["grid-race", "race"])
    assert any("did not end within 300" in reason for reason in verdict.reasons)


def test_a_kernel_that_ends_does_not_reach_the_limit() -> None:
    loop = COUNT.replace("bra again", "setp.lt.u32 %p, %r3, 1000;\n    @%p bra again;\n    ret")
    start(loop, limit=1_010)
    with pytest.raises(LimitReached):
        start(loop, limit=990)


@pytest.mark.parametrize("given", [0, -1, 2.5, "9", 1 << 63])
def test_a_limit_is_a_positive_integer(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        start(COUNT, limit=given)
    assert str(caught.value) == (f"given limit={given!r}; expected a positive number of jumps, such as limit=2_000_000")


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_an_interrupt_ends_the_workers_of_a_launch(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: the thread that waits for the workers gets an exception of its own."""

    class Interrupted:
        def result(self) -> None:
            time.sleep(0.2)
            raise KeyboardInterrupt

    class Pool(schedule.ThreadPoolExecutor):
        def submit(self, *args: Any, **options: Any) -> Any:
            super().submit(*args, **options)
            return Interrupted()

    monkeypatch.setattr(schedule, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(schedule.os, "cpu_count", lambda: 2)
    before, begun = threading.active_count(), time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        start(body, grid=4)
    assert threading.active_count() == before
    assert time.perf_counter() - begun < 5
