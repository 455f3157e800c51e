"""The PTX of mbarriers: opcodes, addresses, waits, remote arrivals, and errors."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit, opcodes
from warpwright.errors import KernelError
from warpwright.lang import mbarrier


def test_methods_spell_the_instruction() -> None:
    def body(a, x, n):
        bar = mbarrier(3)
        bar.init()
        bar.arrive()
        bar.arrive(2)
        bar.arrive(n)
        bar.arrive_expect_tx(4096)
        bar.expect_tx(n)
        bar.inval()

    assert emit(body)[1:] == [
        "mbarrier.init.shared::cta.b64 [%r1], 3",
        "mbarrier.arrive.shared::cta.b64 _, [%r1]",
        "mbarrier.arrive.shared::cta.b64 _, [%r1], 2",
        "mbarrier.arrive.shared::cta.b64 _, [%r1], %r0",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4096",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r0",
        "mbarrier.inval.shared::cta.b64 [%r1]",
    ]


def test_wait_is_a_loop_of_try_wait_with_the_name_of_the_barrier() -> None:
    def body(a, x, n):
        mbarrier(1, name="full").wait(n)

    assert emit(body)[1:] == [
        "wait_full_0:",
        "mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], %r0",
        "@!%p0 bra wait_full_0",
    ]


def test_the_default_scope_is_not_spelled() -> None:
    def body(a, x, n):
        bar = mbarrier()
        bar.wait(1, scope="cluster")
        bar.try_wait(0)
        bar.test_wait(0)

    waits = [code for code in opcodes(emit(body)) if "wait." in code]
    assert waits == [
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
        "mbarrier.try_wait.parity.shared::cta.b64",
        "mbarrier.test_wait.parity.shared::cta.b64",
    ]


def test_remote_barrier_maps_the_address_and_sinks_the_token() -> None:
    def body(a, x, n):
        mbarrier()
        bar = mbarrier().at(1)
        bar.arrive()
        bar.arrive(4)
        bar.arrive_expect_tx(n)
        bar.expect_tx(64)

    assert emit(body, cluster=2)[1:] == [
        "mapa.shared::cluster.u32 %r2, %r1, 1",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2+8]",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2+8], 4",
        "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r2+8], %r0",
        "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r2+8], 64",
    ]


def test_arrays_are_eight_bytes_apart() -> None:
    def body(a, x, n):
        for bar in mbarrier.array(3, count=2):
            bar.init()

    assert [line.split(" ", 1)[1] for line in emit(body)[1:]] == ["[%r0], 2", "[%r0+8], 2", "[%r0+16], 2"]


def test_address_of_a_barrier_at_a_run_time_address() -> None:
    def body(a, x, n):
        bar = mbarrier.at_address(n, 16)
        bar.inval()
        mbarrier.at_address(bar.address).inval()

    lines = emit(body)
    assert lines[0] == "mbarrier.inval.shared::cta.b64 [%r0+16]"
    assert lines[1].startswith("add.u32")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mbarrier(0), "given count=0 to mbarrier mbarrier; expected 1 to 1048575 arrivals a phase"),
        (lambda: mbarrier(1 << 20), "given count=1048576 to mbarrier mbarrier; expected 1 to 1048575 arrivals a phase"),
        (lambda: mbarrier().arrive(0), "given 0 arrivals; expected 1 to 1048575"),
        (
            lambda: mbarrier(name="tile-done"),
            "given the name 'tile-done'; expected letters, digits and underscores, for labels of waits",
        ),
        (lambda: mbarrier(name="done").wait(), "given done.wait() without a phase; expected a parity, 0 or 1"),
    ],
)
def test_misuse_is_named_with_its_line(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        emit(lambda a, x, n: call())
    assert str(caught.value) == f"{caught.value.where}: {sentence}"
    assert "test_mbarrier.py:" in caught.value.where


def test_outside_a_kernel_the_error_names_the_call() -> None:
    with pytest.raises(KernelError, match="called outside a kernel"):
        mbarrier(1)
