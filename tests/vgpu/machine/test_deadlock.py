"""A kernel that can make no progress ends within a second, and the error names each waiting warp and its barrier."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.vgpu.helpers import TIME_FACTOR, error_message, hang_message, line_of, out, run
from warpwright.errors import Deadlock, MemoryFault

ADVICE = "\n  `ww.check`, or `warpwright run --check` of a program, reports who should have arrived."
TOP = ".shared .align 8 .b64 bar[4];"
INIT = "setp.eq.u32 %p0, %r2, 0; @%p0 mbarrier.init.shared.b64 [bar], 3; bar.sync 0;"


def assert_deadlock(body: str, *rows: str, top: str = TOP, **launch: object) -> None:
    """Assert that the kernel deadlocks. ``rows`` are "waiter: wait @ code" with code of the expected line."""
    lines = []
    for row in rows:
        what, _, code = row.partition(" @ ")
        lines.append(f"\n  {what} (PTX line {line_of(body, code, top=top)})")
    expected = "Deadlock: kernel k: no warp can make progress." + "".join(lines) + ADVICE
    assert hang_message(1.0, body, top=top, **launch) == expected


def test_the_error_names_an_mbarrier() -> None:
    body = f"""{INIT}
      setp.gt.u32 %p1, %lane, 7; @%p1 ret; @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
    WAIT:
      mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
      @!%p2 bra WAIT; ret;"""
    state = "phase 0, 2 of 3 arrivals and 512 bytes pending"
    assert_deadlock(
        body,
        f"CTA (0, 0, 0), warp 0, lanes 0-7: waits for parity 0 of the mbarrier at offset 0x400 of CTA 0 ({state}) "
        f"@ mbarrier.try_wait",
    )


def test_the_error_names_a_later_phase() -> None:
    body = f"""{INIT} @!%p0 ret; mbarrier.arrive.shared.b64 _, [bar], 3; mbarrier.arrive.shared.b64 %d1, [bar];
    WAIT:
      mbarrier.try_wait.shared.b64 %p2, [bar], %d1;
      @!%p2 bra WAIT; ret;"""
    state = "phase 1, 2 of 3 arrivals and 0 bytes pending"
    assert_deadlock(
        body,
        f"CTA (0, 0, 0), warp 0, lane 0: waits for parity 1 of the mbarrier at offset 0x400 of CTA 0 ({state}) @ "
        f"try_wait",
    )


def test_the_error_names_a_loop_on_test_wait() -> None:
    body = f"""{INIT}
    WAIT: mbarrier.test_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT; ret;"""
    assert_deadlock(body, "CTA (0, 0, 0), warp 0, lanes 0-31: runs in circles @ test_wait")


def test_the_error_names_a_named_barrier() -> None:
    body = """setp.eq.u32 %p0, %warp, 1;
      @%p0 bra OTHER;
      bar.sync 3, 96;
      ret;
    OTHER: bar.sync 4, 64; ret;"""
    at = "waits at barrier"
    assert_deadlock(
        body,
        f"CTA (0, 0, 0), warps 0, 2, lanes 0-31: {at} 3 (64 of 96 threads have arrived) @ 3, 96",
        f"CTA (0, 0, 0), warp 1, lanes 0-31: {at} 4 (32 of 64 threads have arrived) @ 4, 64",
        block=96,
    )


def test_the_error_names_two_barriers_of_a_warp() -> None:
    body = """setp.lt.u32 %p0, %lane, 4;
      @%p0 bra OTHER;
      bar.sync 1;
      ret;
    OTHER: bar.sync 2; ret;"""
    assert_deadlock(
        body,
        "CTA (0, 0, 0), warp 0, lanes 0-3: waits at barrier 2 (0 of 32 threads have arrived) @ bar.sync 2",
        "CTA (0, 0, 0), warp 0, lanes 4-31: waits at barrier 1 (0 of 32 threads have arrived) @ bar.sync 1",
    )


def test_the_error_names_the_cluster_barrier() -> None:
    body = """setp.eq.u32 %p0, %r0, 1; barrier.cluster.arrive;
      @%p0 bra OTHER;
      barrier.cluster.wait.acquire; barrier.cluster.arrive;
      barrier.cluster.wait; ret;
    OTHER: barrier.cluster.wait;
      bar.sync 1, 64; ret;"""
    assert_deadlock(body, "CTA (0, 0, 0), warp 0, lanes 0-31: waits at the barrier of the cluster (32 of 64 threads "
        "have arrived) @ barrier.cluster.wait; ret",
             "CTA (1, 0, 0), warp 0, lanes 0-31: waits at barrier 1 (32 of 64 threads have arrived) @ bar.sync "
                 "1", grid=2, cluster=2)  # fmt: skip


def test_the_error_names_tensor_memory() -> None:
    body = """setp.eq.u32 %p0, %warp, 0;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [bar], 256; @%p0 ret;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [bar+8], 512; ret;"""
    assert_deadlock(
        body, "CTA (0, 0, 0), warp 1, lanes 0-31: waits for 512 columns of tensor memory (0 are free) @ 512;", block=64
    )


def test_the_error_names_tensor_memory_of_a_pair() -> None:
    body = """setp.eq.u32 %p0, %r0, 0; @%p0 bra END;
      tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [bar], 64;
    END: barrier.cluster.arrive;
      barrier.cluster.wait; ret;"""
    assert_deadlock(body, "CTA (0, 0, 0), warp 0, lanes 0-31: waits at the barrier of the cluster (32 of 64 threads "
        "have arrived) @ cluster.wait",
             "CTA (1, 0, 0), warp 0, lanes 0-31: waits for 64 columns of tensor memory (512 are free) @ "
                 "alloc", grid=2, cluster=2)  # fmt: skip


@pytest.mark.parametrize("grid", [1, 5])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_error_names_a_loop_on_a_flag(blocks: int, grid: int) -> None:
    """The number of jumps in an iteration of the loop does not matter. The error names the lowest cluster."""
    hops = "".join(f"bra H{i}; H{i}:" for i in range(blocks - 1))
    body = f"SPIN: ld.volatile.global.u32 %r3, [%a0]; {hops} setp.eq.u32 %p0, %r3, 0; @%p0 bra SPIN; ret;"
    assert_deadlock(body, "CTA (0, 0, 0), warp 0, lanes 0-31: runs in circles @ SPIN", grid=grid)


@pytest.mark.parametrize(
    "use",
    [
        "shfl.sync.idx.b32 %r5, %r4, 0, 31, 0xffffffff;",
        "mul.wide.u32 %d1, %r4, 16; cp.async.bulk.prefetch.L2.global [%d1], 16;",
    ],
)
def test_a_counter_that_decides_no_branch_is_no_progress(use: str) -> None:
    body = f"""SPIN: ld.volatile.global.u32 %r3, [%a0]; add.u32 %r4, %r4, 1; {use}
      setp.eq.u32 %p0, %r3, 0; @%p0 bra SPIN; ret;"""
    assert_deadlock(body, "CTA (0, 0, 0), warp 0, lanes 0-31: runs in circles @ SPIN:")


def test_the_error_names_loops_of_diverged_lanes() -> None:
    """Two groups of lanes, each in a loop of its own."""
    body = """setp.eq.u32 %p1, %lane, 9; @%p1 bra B;
      A: ld.volatile.global.u32 %r3, [%a0]; setp.eq.u32 %p0, %r3, 0; @%p0 bra A; ret;
      B: ld.volatile.global.u32 %r3, [%a0+4]; setp.eq.u32 %p0, %r3, 0; @%p0 bra B; ret;"""
    message = hang_message(1.0, body)
    assert message.startswith(
        "Deadlock: kernel k: no warp can make progress.\n  CTA (0, 0, 0), warp 0, 31 lanes: runs in circles"
    )
    assert "CTA (0, 0, 0), warp 0, lane 9: runs in circles" in message


def test_the_error_names_a_wait_for_the_warp() -> None:
    body = """setp.eq.u32 %p0, %lane, 3;
      @%p0 bra OTHER;
      bar.warp.sync 0xffffffff;
      ret;
    OTHER: bar.sync 1, 64; ret;"""
    assert_deadlock(body, "CTA (0, 0, 0), warp 0, 31 lanes: waits for the other lanes of its warp @ bar.warp.sync",
             "CTA (0, 0, 0), warp 0, lane 3: waits at barrier 1 (0 of 64 threads have arrived) @ bar.sync "
                 "1")  # fmt: skip


def test_the_error_counts_many_waiters() -> None:
    body = """shl.b32 %r3, %warp, 3; mov.b32 %r4, bar; add.u32 %r3, %r3, %r4;
    setp.eq.u32 %p1, %lane, 0; @%p1 mbarrier.init.shared.b64 [%r3], 2; bar.sync 0;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT; ret;"""
    lines = hang_message(1.0, body, block=512, top=".shared .align 8 .b64 bar[16];").splitlines()
    assert len(lines) == 15
    assert lines[-2] == "  … and 4 more"


def test_equal_warps_are_one_row() -> None:
    body = f"{INIT} WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT; ret;"
    _, row, _ = hang_message(1.0, body, block=512, top=TOP).splitlines()
    assert row.startswith("  CTA (0, 0, 0), warps 0-15, lanes 0-31: waits for parity 0 of the mbarrier at offset 0x400")


def test_a_large_cluster_that_spins_ends_in_time() -> None:
    body = "SPIN: ld.volatile.global.u32 %r3, [%a0]; setp.eq.u32 %p0, %r3, 0; @%p0 bra SPIN; ret;"
    assert hang_message(1.5, body, grid=8, cluster=8, block=256).startswith("Deadlock")


SLOW = """setp.ne.u32 %p0, %r0, {last}; @%p0 bra SPIN; mov.u32 %r3, 0;
  COUNT: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, {trips}; @%p1 bra COUNT;
    st.release.gpu.global.u32 [%a0], 7; ret;
  SPIN: ld.acquire.gpu.global.u32 %r4, [%a0]; setp.eq.u32 %p1, %r4, 0; @%p1 bra SPIN;
    add.u32 %r4, %r4, 1; st.global.u32 [%o+4], %r4; ret;"""


@pytest.mark.parametrize("last", [0, 1, 7])
def test_waiting_for_a_slow_cta_is_no_deadlock(last: int) -> None:
    """The CTA that all others wait for counts to a million first."""
    found = out(SLOW.format(last=last, trips=1_000_000), 257, grid=8)
    assert found[0] == 7
    assert sorted(set(found[1:].tolist())) == [0, 8]


def test_ctas_pass_a_token_on() -> None:
    """Thirty CTAs, each of which waits for the next one."""
    body = """add.u32 %r3, %r0, 1; mul.wide.u32 %d1, %r3, 4; add.u64 %d1, %a0, %d1; mul.wide.u32 %d2, %r0, 4;
    add.u64 %d2, %a0, %d2;
      setp.eq.u32 %p0, %r0, 29; @%p0 bra LAST;
    SPIN: ld.volatile.global.u32 %r4, [%d1]; setp.eq.u32 %p0, %r4, 0; @%p0 bra SPIN; add.u32 %r4, %r4, 1;
    st.volatile.global.u32 [%d2], %r4; ret;
    LAST: mov.u32 %r4, 1; st.volatile.global.u32 [%d2], %r4; ret;"""
    assert out(body, 30, grid=30, block=1).tolist() == list(range(30, 0, -1))


def test_a_fault_comes_before_a_deadlock() -> None:
    """The error is the fault."""
    body = """setp.eq.u32 %p0, %r0, 3; @%p0 ld.global.u32 %r3, [%a0+4096];
    SPIN: ld.volatile.global.u32 %r4, [%a0]; setp.eq.u32 %p1, %r4, 0; @%p1 bra SPIN; ret;"""
    assert "CTA (3, 0, 0), warp 0, lane 0: address" in error_message(MemoryFault, body, grid=4)


def test_a_deadlock_writes_memory_back() -> None:
    array = np.zeros(64, np.uint32)
    start = time.perf_counter()
    with pytest.raises(Deadlock):
        run("st.global.u32 [%o], 3; bar.sync 1, 64; ret;", array)
    assert time.perf_counter() - start < TIME_FACTOR
    assert array.tolist() == [3] * 32 + [0] * 32
