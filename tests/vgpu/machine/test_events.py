"""The events of observers: the order of asynchronous operations; arrivals and waits with their threads and barriers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import run
from warpwright.vgpu import Barrier, Event, EventLog

TOP = ".shared .align 16 .b8 room[1024]; .shared .align 8 .b64 bar[2];"
BAR = 0x400  # shared variables are placed in the order of their first use
COPY = """
  setp.ne.u32 %p0, %t, 0; @%p0 bra READY; mbarrier.init.shared.b64 [bar], 1; mbarrier.init.shared.b64 [bar+8], 32;
  READY: bar.sync 0; @%p0 bra WAIT;
  mov.u32 %r20, room; mov.u32 %r21, bar;
  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20], [%a0], 128, [%r21];
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20+128], [%a0+128], 128, [%r21];
  WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra WAIT;
  mbarrier.arrive.shared.b64 _, [bar+8]; ret;"""


def record(body: str, **launch: object) -> list[Event]:
    log = EventLog()
    run(body, np.arange(64, dtype=np.uint32), observers=(log,), top=TOP, **launch)
    assert log.program is not None
    assert log.program.name == "k"
    return log.events


def of_kind(events: list[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event.kind in kinds]


def test_a_copy_is_issued_counted_and_completed() -> None:
    events = record(COPY)
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("start", "exit")
    issued, completed = of_kind(events, "issue"), of_kind(events, "complete")
    assert [event.number for event in issued] == [event.number for event in completed]
    assert {(event.cta, event.warp, event.lane) for event in issued} == {(0, 0, 0)}
    assert all(event.inst is not None and event.inst.name == "cp.async.bulk" for event in issued + completed)
    first, second = [event.op for event in issued]
    assert first and second and second["dst_mem"] - first["dst_mem"] == 128
    bytes_ = of_kind(events, "complete_tx")
    assert [(event.barrier, event.nbytes) for event in bytes_] == [(Barrier(0, BAR), 128)] * 2
    assert [event.number for event in bytes_] == [event.number for event in issued]
    expect, *others = of_kind(events, "arrive")
    assert (expect.barrier, expect.count, expect.nbytes, expect.lane) == (Barrier(0, BAR), 1, 256, 0)
    assert [(event.barrier, event.count, event.nbytes) for event in others] == [(Barrier(0, BAR + 8), 1, 0)] * 32
    assert sorted(event.lane for event in others) == list(range(32))


BULK = {
    "store": "cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r20], 16;",
    "sum": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a0], [%r20], 16;",
    "load": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20], [%a0], 16, [%r21];",
}


@pytest.mark.parametrize(
    ("name", "guard", "shift", "lanes"),
    [
        ("store", "", 5, [0]),
        ("store", "@%p0 ", 5, [3]),
        ("store", "", 3, [0, 8, 16, 24]),
        ("store", "", 0, list(range(32))),
        ("sum", "", 5, list(range(32))),
        ("load", "", 5, list(range(32))),
        ("load", "@%p0 ", 5, list(range(3, 32))),
    ],
)
def test_lanes_that_act_in_a_bulk_operation_of_a_warp(name: str, guard: str, shift: int, lanes: list[int]) -> None:
    """ptxas 13.0 merges stores of equal operands, and repeats loads and reductions for each lane."""
    body = f"""setp.ge.u32 %p0, %t, 3; setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;
      @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512; mov.u32 %r20, room; mov.u32 %r21, bar;
      shr.u32 %r22, %lane, {shift}; shl.b32 %r22, %r22, 4; add.u32 %r20, %r20, %r22; {guard}{BULK[name]}
      cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;"""
    issued = of_kind(record(body), "issue")
    assert [event.lane for event in issued] == lanes


def test_a_copy_completes_late() -> None:
    """Not at issue: the first test of every lane finds the phase incomplete."""
    events = record(COPY)
    waits = of_kind(events, "wait")
    assert {(event.barrier, event.parity) for event in waits} == {(Barrier(0, BAR), 0)}
    first = events.index(of_kind(events, "complete_tx")[0])
    assert not any(event.done for event in waits if events.index(event) < first)
    passed = [event for event in waits if event.done]
    assert sorted(event.lane for event in passed) == list(range(32))
    assert min(events.index(event) for event in passed) > first


def test_expect_tx_and_complete_tx_are_events() -> None:
    body = """setp.ne.u32 %p0, %t, 0; @%p0 ret; mbarrier.init.shared.b64 [bar], 3;
      mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 48; mbarrier.complete_tx.relaxed.cta.shared.b64 [bar], 48;
      mbarrier.arrive.shared.b64 %d1, [bar], 3; mbarrier.test_wait.shared.b64 %p1, [bar], %d1;
      mbarrier.test_wait.parity.shared.b64 %p1, [bar], 1; ret;"""
    events = [(e.kind, e.count, e.nbytes, e.parity, e.done) for e in record(body) if e.barrier]
    assert events == [
        ("expect_tx", 0, 48, -1, True), ("complete_tx", 0, 48, -1, True), ("arrive", 3, 0, -1, True),
        ("wait", 0, 0, 0, True), ("wait", 0, 0, 1, False),
    ]  # fmt: skip


def test_barriers_and_ctas_are_events() -> None:
    body = "bar.sync 3; bar.arrive 4, 128; barrier.cluster.arrive; barrier.cluster.wait; ret;"
    events = record(body, grid=4, cluster=2, block=64)
    for cluster in (0, 1):
        mine = [event for event in events if event.cluster == cluster]
        assert [(e.kind, e.cta) for e in mine[:2]] == [("start", 0), ("start", 1)]
        assert [(e.kind, e.cta) for e in mine[-2:]] == [("exit", 0), ("exit", 1)]
        warps = [(cta, warp) for cta in (0, 1) for warp in (0, 1)]
        assert sorted((e.cta, e.warp) for e in of_kind(mine, "cluster")) == warps
        for number in (3, 4):
            assert sorted((e.cta, e.warp) for e in of_kind(mine, "bar") if e.count == number) == warps


def test_remote_barriers_name_their_cta() -> None:
    body = """setp.eq.u32 %p0, %r2, 0; @%p0 mbarrier.init.shared.b64 [bar], 2; barrier.cluster.arrive;
    barrier.cluster.wait; @!%p0 bra END;
      mov.u32 %r3, bar; mapa.shared::cluster.u32 %r3, %r3, 1;
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
      END: barrier.cluster.arrive; barrier.cluster.wait; ret;"""
    arrivals = of_kind(record(body, grid=2, cluster=2), "arrive")
    assert sorted((event.cta, event.barrier) for event in arrivals) == [(0, Barrier(1, BAR)), (1, Barrier(1, BAR))]


def test_a_full_queue_loses_no_event() -> None:
    """Lane code drains the queue: no event is lost or repeated, and the mbarrier counts each arrival once."""
    body = """setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [bar], 20480; bar.sync 0; mov.u32 %r3, 0;
      AGAIN: mbarrier.arrive.shared.b64 _, [bar]; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 20; @%p1 bra AGAIN;
      WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT; ret;"""
    arrivals = of_kind(record(body, block=1024), "arrive")
    assert len(arrivals) == 20480
    assert len({(event.warp, event.lane) for event in arrivals}) == 1024


def test_observers_change_nothing() -> None:
    plain, watched = np.arange(64, dtype=np.uint32), np.arange(64, dtype=np.uint32)
    store = COPY.replace("ret;", "ld.shared.u32 %r10, [room+252]; st.global.u32 [%o], %r10; ret;")
    run(store, plain, top=TOP)
    run(store, watched, top=TOP, observers=(EventLog(),))
    assert plain.tolist() == watched.tolist() == [63] * 32 + list(range(32, 64))


def test_each_warp_arrives_at_each_barrier_once() -> None:
    """Warp 1 arrives without waiting; warp 0 comes late, after a wait of its own."""
    events = record(
        """
      mov.u32 %r3, 0; setp.eq.u32 %p0, %warp, 1; setp.eq.u32 %p2, %warp, 0;
    AGAIN: @%p2 bar.sync 5, 32; @%p0 bra ARRIVE; bar.sync 3, 96; bra NEXT; ARRIVE: bar.arrive 3, 96;
    NEXT: bar.sync 4; add.u32 %r3, %r3, 1; setp.ne.u32 %p1, %r3, 3; @%p1 bra AGAIN; ret;""",
        block=96,
    )
    arrivals = [(event.warp, event.count) for event in of_kind(events, "bar")]
    turn = [(0, 5), (1, 3), (2, 3), (0, 3), (1, 4), (0, 4), (2, 4)]
    assert arrivals == turn * 3
