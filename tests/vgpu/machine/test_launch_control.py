"""Cluster launch control: running clusters take over clusters that have not started, and each cluster's work is done
once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vgpu.helpers import dim3, error_message, parse_once, text
from warpwright import targets
from warpwright.errors import MemoryFault, ProtocolError
from warpwright.targets import DEVICES
from warpwright.vgpu import Device, EventLog
from warpwright.vgpu.machine.pending import Pending

TOP = ".shared .align 16 .b8 reply[32]; .shared .align 8 .b64 full;"
TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
# %r10: the CTA along x whose work is done, %r11 its rank in the cluster, %r14 the parity; out[2 i]: how often CTA i was
# done, out[2 i + 1]: by which CTA. ``%r12``: how many CTAs a running CTA takes over at most.
LOOP = """
  mov.u32 %r10, %ctaid.x; mov.u32 %r11, %cluster_ctarank; mov.u32 %r13, 0; mov.u32 %r14, 0; mov.u32 %r12, {most};
  setp.ne.u32 %p0, %lane, 0; @%p0 ret;
  mbarrier.init.shared.b64 [full], 1; fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive; barrier.cluster.wait;
again:
  mul.wide.u32 %d1, %r10, 8; add.u64 %d1, %a0, %d1;
  red.global.add.u32 [%d1], 1; mov.u32 %r15, %ctaid.x; st.global.u32 [%d1+4], %r15;
  setp.ge.u32 %p1, %r13, %r12; @%p1 bra done;
  add.u32 %r13, %r13, 1;
  mbarrier.arrive.expect_tx.shared.b64 _, [full], 16;
  barrier.cluster.arrive; barrier.cluster.wait;
  setp.ne.u32 %p2, %r11, 0; @%p2 bra wait;
  {ask}
wait:
  mbarrier.try_wait.parity.shared.b64 %p3, [full], %r14; @!%p3 bra wait;
  xor.b32 %r14, %r14, 1;
  ld.shared.b128 %q0, [reply];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q0; @!%p4 bra done;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r10, %q0; add.u32 %r10, %r10, %r11;
  bra again;
done:
  barrier.cluster.arrive; barrier.cluster.wait; ret;
"""
ASK = {1: f"{TRY}.b128 [reply], [full];", 2: f"{TRY}.multicast::cluster::all.b128 [reply], [full];"}
RESIDENT = 32  # CTAs of one warp on an SM


def run_loop(grid: int, most: int = 1000, cluster: int = 1, sms: int = 1) -> tuple[np.ndarray, set[int]]:
    """Returns how often each CTA's work was done and by which CTA, and the clusters that started."""
    out, log = np.zeros((grid, 2), np.uint32), EventLog()
    body = LOOP.format(most=most, ask=ASK[cluster])
    device = Device(targets.Device(**{**fields(), "sms": sms}))
    module = parse_once(text(body, (out,), top=TOP))
    device.launch(module, "k", dim3(grid), dim3(32), dim3(cluster), 0, [out], [log])
    return out, {event.cluster for event in log.events if event.kind == "start"}


def fields() -> dict[str, object]:
    return {name: getattr(DEVICES["b200"], name) for name in DEVICES["b200"].__dataclass_fields__}


def test_each_resident_cluster_takes_each_nth_one() -> None:
    out, started = run_loop(100)
    assert (out[:, 0] == 1).all()
    assert out[:, 1].tolist() == [i % RESIDENT for i in range(100)]
    assert started == set(range(RESIDENT))


def test_a_grid_that_fits_has_no_pending_cluster() -> None:
    out, started = run_loop(20)
    assert out.tolist() == [[1, i] for i in range(20)]
    assert started == set(range(20))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_pending_cluster_starts_when_a_place_is_free(most) -> None:
    out, started = run_loop(100, most)
    assert (out[:, 0] == 1).all()
    assert len(started) == {0: 100, 1: 64, 2: 36}[most]


def test_a_multicast_response_reaches_all_ctas() -> None:
    out, started = run_loop(200, cluster=2, sms=3)
    places = RESIDENT  # of two SMs
    assert (out[:, 0] == 1).all()
    assert out[:, 1].tolist() == [2 * (i // 2 % places) + i % 2 for i in range(200)]
    assert started == set(range(places))


def test_a_cluster_lies_in_one_gpc() -> None:
    """A B200 has places for 34 clusters of four CTAs with an SM each, not 148 // 4."""
    log, out = EventLog(), np.zeros((200, 2), np.uint32)
    body = LOOP.format(most=1000, ask=ASK[2])
    module = parse_once(text(body, (out,), top=TOP))
    smem = 200_000
    Device(DEVICES["b200"]).launch(module, "k", dim3(200), dim3(32), dim3(4), smem, [out], [log])
    assert (out[:, 0] == 1).all()
    assert {event.cluster for event in log.events if event.kind == "start"} == set(range(34))


QUERY = """
  setp.ne.u32 %p0, %lane, 0; @%p0 ret; mov.u32 %r9, %ctaid.x; mov.u32 %r10, %ctaid.y; mov.u32 %r11, %ctaid.z;
  or.b32 %r12, %r9, %r10; or.b32 %r12, %r12, %r11; setp.ne.u32 %p1, %r12, 0; @%p1 ret;
  mbarrier.init.shared.b64 [full], 1; mbarrier.arrive.expect_tx.shared.b64 _, [full], 16;
  clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [reply], [full];
wait:
  mbarrier.try_wait.parity.shared.b64 %p3, [full], 0; @!%p3 bra wait;
  ld.shared.b128 %q0, [reply]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q0;
  selp.u32 %r20, 1, 0, %p4; st.global.u32 [%a0], %r20;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r21, %r22, %r23, %r24}, %q0;
  st.global.u32 [%a0+4], %r21; st.global.u32 [%a0+8], %r22; st.global.u32 [%a0+12], %r23;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r21, %q0; st.global.u32 [%a0+16], %r21;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r22, %q0; st.global.u32 [%a0+20], %r22;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r23, %q0; st.global.u32 [%a0+24], %r23;
  ret;
"""


def test_the_response_names_the_first_cta_along_all_axes() -> None:
    out = np.zeros(7, np.uint32)
    device = Device(targets.Device(**{**fields(), "sms": 1}))
    device.launch(parse_once(text(QUERY, (out,), top=TOP)), "k", (3, 5, 4), (32, 1, 1), (1, 1, 1), 0, [out])
    place = [RESIDENT % 3, RESIDENT // 3 % 5, RESIDENT // 15]
    assert out.tolist() == [1, *place, *place]


def test_a_failed_response_has_undefined_coordinates() -> None:
    out = np.zeros(7, np.uint32)
    device = Device(DEVICES["b200"])
    device.launch(parse_once(text(QUERY, (out,), top=TOP)), "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, [out])
    assert out.tolist() == [0, *[0xFFFFFFFF] * 6]


HEAD = "setp.ne.u32 %p0, %lane, 0; @%p0 ret; mbarrier.init.shared.b64 [full], 1; mov.u32 %r5, reply;"


@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        (
            MemoryFault,
            f"{HEAD} {TRY}.b128 [%r5+8], [full]; ret;",
            "the response is at offset 1048 of shared memory; expected a multiple of 16 bytes; align the buffer",
        ),
        (
            ProtocolError,
            f"{HEAD} mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r5, %r5, %r6; "
            f"setp.eq.u32 %p1, %r6, 0; @%p1 ret; {TRY}.b128 [%r5], [full]; ret;",
            "the response is in CTA 1 and the mbarrier in CTA 0; expected both in CTA 0, which .shared::cta names; "
            "let that CTA ask, or use .multicast::cluster::all",
        ),
    ],
)
def test_misuse_of_launch_control_is_refused(kind, body, sentence) -> None:
    assert error_message(kind, body, top=TOP, grid=2, cluster=2).endswith(sentence)


@given(total=st.integers(1, 60), places=st.integers(1, 20), choices=st.lists(st.integers(0, 2), max_size=200))
def test_every_cluster_is_started_or_taken_over_once(total, places, choices) -> None:
    """In any order in which clusters start, ask and end."""
    pending, running, seen = Pending(range(total), total, places), [], []
    moves = iter(choices + [0, 2] * 3 * total)
    while True:
        move = next(moves)
        if move == 0:
            number = next(pending, None)
            if number is None and not running:
                break
            running += [] if number is None else [number]
            seen += [] if number is None else [number]
        elif running and move == 1:
            seen += [found for found in [pending.cancel(running[-1])] if found is not None]
        elif running:
            pending.ended(running.pop(0))
    assert sorted(seen) == list(range(total))
    assert pending.done == total


def test_no_more_clusters_than_places_run_at_a_time() -> None:
    pending = Pending(range(10), 10, 3)
    assert [next(pending, None) for _ in range(4)] == [0, 1, 2, None]
    pending.ended(1)
    assert [next(pending, None) for _ in range(2)] == [4, None]
