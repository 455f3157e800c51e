"""Cooperative launches: all CTAs of the grid synchronise, as nvcc 13.0 compiles ``this_grid().sync()``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import error_message, run, text
from warpwright.errors import Deadlock, DeviceError
from warpwright.vgpu import EventLog

# The workspace of the grid is in %envreg1 (upper half) and %envreg2; its barrier is the second word. CTA 0 adds what
# flips the top bit once all others have added 1.
SYNC = """{
  mov.u32 %r11, %envreg2; cvt.u64.u32 %d12, %r11; mov.u32 %r12, %envreg1; cvt.u64.u32 %d13, %r12;
  bfi.b64 %d5, %d13, %d12, 32, 32; setp.ne.s64 %p1, %d5, 0; @%p1 bra SET; trap;
SET: barrier.sync 0; setp.ne.u32 %p2, %r2, 0; @%p2 bra LEFT;
  add.s64 %d14, %d5, 4; mov.u32 %r18, %nctaid.x; mov.u32 %r27, -2147483647; sub.s32 %r28, %r27, %r18;
  setp.eq.s32 %p3, %r0, 0; selp.b32 %r17, %r28, 1, %p3; atom.add.release.gpu.u32 %r16, [%d14], %r17;
POLL: ld.acquire.gpu.u32 %r29, [%d14]; xor.b32 %r30, %r29, %r16; setp.gt.s32 %p4, %r30, -1; @%p4 bra POLL;
LEFT: barrier.sync 0;
}"""

# Each CTA writes its words, reads those of the next CTA after a barrier, and overwrites its own after another.
BODY = f"""
  st.global.u32 [%o], %t; {SYNC}
  add.u32 %r3, %r0, 1; mov.u32 %r4, %nctaid.x; rem.u32 %r3, %r3, %r4; mad.lo.u32 %r3, %r3, %r1, %r2;
  mul.wide.u32 %d1, %r3, 4; add.u64 %d2, %a0, %d1; ld.global.u32 %r5, [%d2]; {SYNC}
  st.global.u32 [%o], %r5; ret;
"""
CTAS, THREADS = 6, 64


def test_all_ctas_of_a_grid_synchronise() -> None:
    """Twice in one launch; and a second launch begins with a fresh barrier."""
    array = np.zeros(CTAS * THREADS, np.uint32)
    expected = np.roll(np.arange(CTAS * THREADS, dtype=np.uint32), -THREADS)
    for _ in range(2):
        array[:] = 0
        run(BODY, array, grid=CTAS, block=THREADS)
        assert np.array_equal(array, expected)


def test_all_ctas_of_the_grid_start_before_any_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding CTAs one by one, each when the others only poll, takes a time that is quadratic in their number."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    log = EventLog()
    run(BODY, np.zeros(CTAS * THREADS, np.uint32), grid=CTAS, block=THREADS, observers=(log,))
    kinds = [event.kind for event in log.events]
    assert kinds[:CTAS] == ["start"] * CTAS


def test_a_grid_barrier_orders_the_accesses_of_all_ctas() -> None:
    array = np.zeros(CTAS * THREADS, np.uint32)
    launch: dict[str, Any] = {"grid": CTAS, "block": THREADS, "args": [array]}
    good = ww.check(ww.load_ptx(text(BODY, (array,)))["k"], **launch)
    assert good.kind != "findings", str(good)
    without = ww.load_ptx(text("".join(BODY.rpartition(SYNC)[::2]), (array,)))["k"]
    assert {finding.rule.id for finding in ww.check(without, **launch).findings} == {"grid-race"}
    assert ww.profile(ww.load_ptx(text(BODY, (array,)))["k"], **launch).time_us > 0


def test_a_grid_barrier_that_a_cta_leaves_out_is_an_error() -> None:
    body = f"setp.eq.u32 %p9, %r0, 3; @%p9 ret; {SYNC} ret;"
    with pytest.raises(Deadlock):
        run(body, np.zeros(1, np.uint32), grid=CTAS, block=THREADS)


def test_the_grids_of_several_gpus_are_refused() -> None:
    with pytest.raises(ww.UsageError, match="%envreg0 has no value on a virtual GPU"):
        error_message(DeviceError, "mov.u32 %r3, %envreg0; ret;")
