"""The PTX of fences, named barriers and cluster barriers."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit
from warpwright.errors import KernelError
from warpwright.lang import bar, cluster, fence, smem, st, u32


def test_fences() -> None:
    def body(a, x, n):
        fence.proxy_async()
        fence.proxy_async("")
        fence.proxy_async("shared::cluster")
        fence.proxy_async("global")
        fence.mbarrier_init()
        fence.acq_rel("gpu")
        fence.sc("cluster")

    assert emit(body, arch="sm_90a") == [
        "fence.proxy.async.shared::cta",
        "fence.proxy.async",
        "fence.proxy.async.shared::cluster",
        "fence.proxy.async.global",
        "fence.mbarrier_init.release.cluster",
        "fence.acq_rel.gpu",
        "fence.sc.cluster",
    ]


def test_named_barriers() -> None:
    def body(a, x, n):
        bar.sync()
        bar.sync(3, 64)
        bar.arrive(3, 128)

    assert emit(body, arch="sm_120a") == ["bar.sync 0", "bar.sync 3, 64", "bar.arrive 3, 128"]


def test_a_named_barrier_may_be_a_run_time_value() -> None:
    def body(a, x, n):
        bar.sync(n, 64)
        bar.arrive(n + 1, 64)

    assert emit(body, arch="sm_90a") == ["bar.sync %r0, 64", "add.u32 %r1, %r0, 1", "bar.arrive %r1, 64"]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: bar.sync(16), "given barrier 16 to bar.sync; expected 0 to 15; choose another id"),
        (lambda: bar.sync(1, 100), "given 100 threads to bar.sync; expected a multiple of 32; count whole warps"),
        (lambda: bar.arrive(1, 0), "given 0 threads to bar.arrive; expected a multiple of 32; count whole warps"),
    ],
)
def test_refused_barriers(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        emit(lambda a, x, n: call())
    assert str(caught.value).endswith(f": {sentence}")


def test_cluster() -> None:
    def body(a, x, n):
        cluster.sync()
        cluster.arrive("relaxed")
        cluster.wait()
        word = smem.scalar(u32)
        st(word, cluster.rank + cluster.size + cluster.id)
        st(word, cluster.map(word.address, 1))

    lines = emit(body, cluster=2)
    assert lines[:4] == [
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.wait.acquire.aligned",
        "barrier.cluster.arrive.relaxed.aligned",
        "barrier.cluster.wait.acquire.aligned",
    ]
    for register in ("%cluster_ctarank", "%cluster_nctarank", "%clusterid.x"):
        assert any(line.endswith(register) for line in lines)
    assert any(line.startswith("mapa.shared::cluster.u32") for line in lines)
