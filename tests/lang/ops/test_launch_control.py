"""The PTX of clusterlaunchcontrol, and errors."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit
from warpwright.errors import KernelError
from warpwright.lang import b128, clusterlaunchcontrol, f32, ld, mbarrier, smem, st, u32


def body(a, x, n, multicast=False):
    reply, full = smem.tile(u32, (1, 4)), mbarrier(1)
    clusterlaunchcontrol.try_cancel(reply.address, full, multicast=multicast)
    answer = ld(reply.at(0, 0).cast(b128))
    clusterlaunchcontrol.is_canceled(answer)
    place = [clusterlaunchcontrol.first_ctaid(answer, axis) for axis in "xyz"]
    st(x, (place[0] + place[1] + place[2]).to(f32))


def test_a_request_and_its_response() -> None:
    found = [line for line in emit(body) if line.startswith(("cluster", "ld.shared"))]
    assert found == [
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r0]",
        "ld.shared.b128 %rq0, [%r0+128]",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %rq0",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r2, %rq0",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r3, %rq0",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r4, %rq0",
    ]


def test_a_response_for_the_whole_cluster() -> None:
    found = emit(lambda a, x, n: body(a, x, n, multicast=True), cluster=2)
    assert sum("::bytes.multicast::cluster::all.b128 [" in line for line in found) == 1


def test_a_target_without_it_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"clusterlaunchcontrol\.try_cancel\.async needs sm_100 or later"):
        emit(body, arch="sm_90a")


def test_a_response_has_128_bits() -> None:
    with pytest.raises(KernelError, match=r"clusterlaunchcontrol\.is_canceled; expected a b128: ld\(place\.cast"):
        emit(lambda a, x, n: clusterlaunchcontrol.is_canceled(n))
