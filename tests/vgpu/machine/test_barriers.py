"""Named barriers of a CTA, the barrier of a cluster, and shared memory of other CTAs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import error_message, line_of, out, run
from warpwright.errors import Deadlock, ProtocolError
from warpwright.vgpu.machine.cluster import Cluster

STORE = "st.global.u32 [%o], %r10; ret;"
FLAGS = ".shared .align 8 .u32 flag[64];"


@pytest.mark.parametrize(
    "opcode", ["bar.sync 0", "barrier.sync 0", "barrier.cta.sync.aligned 15", "bar.cta.sync 7, 96", "bar.sync %r9, 96"]
)
def test_a_barrier_orders_writes_before_reads(opcode: str) -> None:
    body = f"""
      mov.u32 %r9, 3; mov.u64 %d0, flag; mul.wide.u32 %d1, %r2, 4; add.u64 %d1, %d0, %d1; st.shared.u32 [%d1], %r2;
      {opcode};
      sub.u32 %r3, 95, %r2; mul.wide.u32 %d2, %r3, 4; add.u64 %d2, %d0, %d2; ld.shared.u32 %r10, [%d2]; {STORE}"""
    assert out(body, 96, block=96, top=".shared .align 8 .u32 flag[96];").tolist() == list(range(95, -1, -1))


def test_a_loop_of_barriers_does_not_leave_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand barriers of 1,024 threads, a predicate each; the machine has few turns."""
    turns, run_once = [], Cluster._run

    def count(cluster: Cluster, first: int, number: int, rounds: int) -> tuple[int, bool]:
        turns.append(rounds)
        return run_once(cluster, first, number, rounds)

    monkeypatch.setattr(Cluster, "_run", count)
    body = f"""
      mov.u32 %r3, 0; mov.u32 %r10, 0;
    AGAIN: setp.eq.u32 %p0, %r3, %t; bar.red.popc.u32 %r4, 0, %p0; add.u32 %r10, %r10, %r4;
      add.u32 %r3, %r3, 1; setp.ne.u32 %p1, %r3, 1100; @%p1 bra AGAIN; {STORE}"""
    assert out(body, 1024, block=1024).tolist() == [1024] * 1024
    assert len(turns) < 20


def test_arrive_does_not_wait() -> None:
    """Warp 0 produces twice and exits; warp 1 consumes; two barriers alternate, 64 threads at each."""
    body = f"""
      setp.ne.u32 %p0, %warp, 0; @%p0 bra CONSUMER;
      st.shared.u32 [flag], 11; bar.arrive 1, 64;
      st.shared.u32 [flag+4], 22; bar.arrive 2, 64; ret;
    CONSUMER: bar.sync 1, 64; ld.shared.u32 %r10, [flag];
      bar.sync 2, 64; ld.shared.u32 %r11, [flag+4]; add.u32 %r10, %r10, %r11; {STORE}"""
    assert out(body, 64, block=64, top=FLAGS).tolist() == [0] * 32 + [33] * 32


def test_sixteen_barriers_work_at_once() -> None:
    """Pairs of warps synchronise, each pair at a barrier of its own."""
    body = f"""
      shr.u32 %r9, %warp, 1; mov.u64 %d0, flag; mul.wide.u32 %d1, %warp, 4; add.u64 %d1, %d0, %d1;
      st.shared.u32 [%d1], %warp;
      bar.sync %r9, 64;
      xor.b32 %r3, %warp, 1; mul.wide.u32 %d2, %r3, 4; add.u64 %d2, %d0, %d2; ld.shared.u32 %r10, [%d2]; {STORE}"""
    assert out(body, 1024, block=1024, top=FLAGS).tolist() == [t // 32 ^ 1 for t in range(1024)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("bar.red.popc.u32 %r10, 0, %p0;", 34),
        ("bar.red.popc.u32 %r10, 0, !%p0;", 62),
        ("barrier.cta.red.popc.u32 %r10, 1, 96, %p0;", 34),
        ("bar.red.and.pred %p1, 0, %p0; selp.u32 %r10, 1, 0, %p1;", 0),
        ("bar.red.and.pred %p1, 0, %p2; selp.u32 %r10, 1, 0, %p1;", 1),
        ("bar.red.or.pred %p1, 0, %p0; selp.u32 %r10, 1, 0, %p1;", 1),
        ("bar.red.or.pred %p1, 0, !%p2; selp.u32 %r10, 1, 0, %p1;", 0),
    ],
)
def test_bar_red_reduces_predicates(code: str, expected: int) -> None:
    """One warp comes later than the others, after a wait of its own: no thread votes twice."""
    body = f"""
      setp.lt.u32 %p0, %t, 34; setp.lt.u32 %p2, %t, 1000;
      setp.ge.u32 %p3, %t, 32; @%p3 bra OTHERS;
      bar.sync 5, 64; bar.sync 6, 64; bra VOTE;
    OTHERS: setp.ge.u32 %p3, %t, 64; @%p3 bra VOTE;
      bar.sync 5, 64; bar.sync 6, 64;
    VOTE: {code} {STORE}"""
    assert out(body, 96, block=96).tolist() == [expected] * 96


def test_a_result_of_bar_red_that_nothing_reads_is_dropped() -> None:
    body = f"""
      setp.lt.u32 %p0, %t, 34; mov.u32 %r10, 1; bar.red.popc.u32 %r8, 0, %p0; bra END;
    UNREACHED: mov.u32 %r10, %r8;
    END: {STORE}"""
    assert out(body, 96, block=96).tolist() == [1] * 96


def test_lanes_that_exit_after_others_wait_do_not_hide_the_barrier() -> None:
    """Lanes 16 to 31 of warp 0 come to the barrier first; the others update an mbarrier, and exit."""
    body = f"""
      setp.lt.u32 %p0, %t, 34; setp.lt.u32 %p1, %t, 16; setp.eq.u32 %p2, %t, 0;
      @%p2 mbarrier.init.shared.b64 [flag], 16; @%p1 bra LATE;
      bar.red.popc.u32 %r10, 0, %p0; {STORE} exit;
    LATE: mbarrier.arrive.shared.b64 %d0, [flag];"""
    assert out(body, 96, block=96, top=FLAGS).tolist() == [0] * 16 + [18] * 80


def test_a_barrier_does_not_wait_for_exited_warps() -> None:
    body = f"setp.eq.u32 %p0, %warp, 1; @%p0 exit; bar.sync 0; mov.u32 %r10, 1; {STORE}"
    assert out(body, 96, block=96).tolist() == [1] * 32 + [0] * 32 + [1] * 32


def test_a_warp_arrives_when_all_its_lanes_have() -> None:
    """Lane 31 of warp 0 still waits for an mbarrier that warp 1 completes: no thread passes barrier 0 before."""
    body = f"""
      setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [flag], 1; bar.sync 0;
      setp.ne.u32 %p1, %warp, 0; @%p1 bra SECOND;
      setp.ne.u32 %p2, %lane, 31; @%p2 bra JOIN;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [flag], 0; @!%p3 bra WAIT;
      st.shared.u32 [flag+8], 9;
    JOIN: bar.sync 0; ld.shared.u32 %r10, [flag+8]; {STORE}
    SECOND: setp.eq.u32 %p2, %lane, 0; @%p2 mbarrier.arrive.shared.b64 _, [flag];
      bar.sync 0; ld.shared.u32 %r10, [flag+8]; {STORE}"""
    assert out(body, 64, block=64, top=FLAGS).tolist() == [9] * 64


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            "mov.u32 %r9, 16; bar.sync %r9, 64;",
            "barrier 16 with 64 threads; expected barrier 0 to 15 and a multiple of 32.",
        ),
        (
            "mov.u32 %r9, 40; bar.sync 1, %r9;",
            "barrier 1 with 40 threads; expected barrier 0 to 15 and a multiple of 32.",
        ),
    ],
)
def test_illegal_barriers_are_refused(code: str, what: str) -> None:
    body = f"setp.eq.u32 %p0, %warp, 0; @%p0 ret;\n {code}\n ret;"
    found = error_message(ProtocolError, body, np.zeros(64, np.uint32), block=64)
    assert found == f"PTX line {line_of(body, code)}: `bar.sync`: kernel k, CTA (0, 0, 0), warp 1, lane 0: {what}"


def test_a_lane_alone_at_a_barrier_that_does_not_exist_is_named() -> None:
    body = "setp.eq.u32 %p0, %t, 0; selp.u32 %r9, 256, 0, %p0; bar.sync %r9; ret;"
    found = error_message(Deadlock, body, np.zeros(64, np.uint32), block=64)
    assert "warp 0, lane 0: waits at barrier 256 (0 of 64 threads have arrived) (PTX line" in found


def test_counts_of_a_barrier_must_agree() -> None:
    body = "setp.eq.u32 %p0, %warp, 0; @%p0 bra FIRST;\n bar.sync 3, 64; ret;\n FIRST: bar.sync 3, 96; ret;"
    assert error_message(ProtocolError, body, np.zeros(64, np.uint32), block=96) == (
        f"PTX line {line_of(body, '3, 64')}: `bar.sync`: kernel k, CTA (0, 0, 0), warp 1, lane 0: "
        "barrier 3 for 64 threads; others arrived at it for 96 threads: give the same count everywhere."
    )


ARRIVE = {"": "", "relaxed": ".relaxed", "release": ".release"}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("arrive", sorted(ARRIVE))
def test_neighbours_exchange_through_shared_memory(size: int, arrive: str) -> None:
    """Every CTA writes into the next CTA's memory and reads the memory of the one after; three clusters."""
    body = f"""
      mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, %cluster_nctarank; mov.u64 %d9, flag;
      add.u32 %r5, %r3, 1; rem.u32 %r5, %r5, %r4; add.u32 %r6, %r3, 2; rem.u32 %r6, %r6, %r4;
      mov.u32 %r7, flag; mad.lo.u32 %r7, %lane, 4, %r7;
      barrier.cluster.arrive{ARRIVE[arrive]}.aligned; barrier.cluster.wait.acquire.aligned;
      mapa.shared::cluster.u32 %r8, %r7, %r5; mad.lo.u32 %r9, %r0, 100, %lane; st.shared::cluster.u32 [%r8], %r9;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      cvta.shared.u64 %d9, %d9; mapa.u64 %d1, %d9, %r6; mul.wide.u32 %d2, %lane, 4; add.u64 %d1, %d1, %d2;
      ld.u32 %r10, [%d1];
      getctarank.shared::cluster.u32 %r11, %r8; getctarank.u64 %r12, %d1; mad.lo.u32 %r11, %r11, 256, %r12;
      st.global.u32 [%o], %r10; add.u64 %o, %o, {4 * 32 * 3 * size}; st.global.u32 [%o], %r11;
      barrier.cluster.arrive; barrier.cluster.wait; ret;"""
    found = out(body, 2 * 96 * size, grid=3 * size, cluster=size, top=FLAGS).reshape(2, 3, size, 32)
    rank = np.arange(size)[None, :, None]
    source = np.arange(3)[:, None, None] * size + (rank + 1) % size
    assert np.array_equal(found[0], 100 * source + np.arange(32))
    assert np.array_equal(found[1], np.broadcast_to(256 * ((rank + 1) % size) + (rank + 2) % size, (3, size, 32)))


def test_atomics_reach_another_cta() -> None:
    body = f"""
      setp.eq.u32 %p0, %r2, 0; @%p0 st.shared.u32 [flag], 0;
      barrier.cluster.arrive; barrier.cluster.wait;
      mov.u32 %r7, flag; mapa.shared::cluster.u32 %r8, %r7, 0; atom.shared::cluster.add.u32 %r9, [%r8], 1;
      mov.u64 %d0, flag; cvta.shared.u64 %d0, %d0; mapa.u64 %d0, %d0, 1; red.add.u32 [%d0], 2;
      barrier.cluster.arrive; barrier.cluster.wait;
      ld.shared.u32 %r10, [flag]; {STORE}"""
    assert out(body, 4 * 64, grid=4, cluster=4, block=64, top=FLAGS).reshape(4, 64)[:, 0].tolist() == [256, 512, 0, 0]


def test_threads_that_exit_count_as_arrived() -> None:
    body = f"""
      setp.eq.u32 %p0, %r0, 1; @%p0 exit; setp.lt.u32 %p0, %lane, 5; @%p0 exit;
      barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r10, 1; {STORE}"""
    assert out(body, 64, grid=2, cluster=2).reshape(2, 32).sum(axis=1).tolist() == [27, 0]


def test_cluster_arrive_does_not_wait() -> None:
    """CTA 0 arrives and goes on; the other CTA sees its later writes after the second wait."""
    body = f"""
      mov.u32 %r3, flag; mapa.shared::cluster.u32 %r4, %r3, 1;
      barrier.cluster.arrive; mov.u32 %r5, 0;
    COUNT: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 100; @%p1 bra COUNT;
      barrier.cluster.wait;
      setp.ne.u32 %p0, %r0, 0; @%p0 bra SECOND; st.shared::cluster.u32 [%r4], %r5;
    SECOND: barrier.cluster.arrive; barrier.cluster.wait;
      ld.shared.u32 %r10, [flag]; setp.eq.u32 %p0, %r0, 0; @%p0 ret; {STORE}"""
    assert out(body, 64, grid=2, cluster=2, top=FLAGS).tolist() == [0] * 32 + [100] * 32


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            "barrier.cluster.arrive;\n barrier.cluster.arrive.relaxed;",
            "arrives again before it has waited; alternate arrive and wait.",
        ),
        ("barrier.cluster.wait.acquire;", "waits without having arrived; put barrier.cluster.arrive before it."),
    ],
)
def test_arrive_and_wait_alternate(code: str, what: str) -> None:
    opcode = code.split("\n")[-1].strip()
    body = f"{code} ret;"
    found = error_message(ProtocolError, body, np.zeros(1, np.uint32), grid=2, cluster=2)
    assert (
        found == f"PTX line {line_of(body, opcode)}: `{opcode[:-1]}`: kernel k, CTA (0, 0, 0), warp 0, lane 0: {what}"
    )


SPECIALS = [
    *[f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid") for axis in "xyz"],
    *[f"%{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"],
    "%cluster_ctarank", "%cluster_nctarank", "%laneid", "%warpid", "%nwarpid", "%nsmid", "%dynamic_smem_size",
]  # fmt: skip


@pytest.mark.parametrize(
    ("grid", "cluster", "block"),
    [((4, 6, 2), (2, 3, 1), (5, 4, 3)), ((8, 2, 3), (4, 1, 3), (32, 1, 2)), ((3, 2, 2), (1, 1, 1), (7, 3, 2))],
)
def test_special_registers_have_their_definition(
    grid: tuple[int, ...], cluster: tuple[int, ...], block: tuple[int, ...]
) -> None:
    """Each register, in every thread of a grid in three dimensions, against its definition."""
    count = len(SPECIALS)
    rows = "".join(f"mov.u32 %r10, {name}; st.global.u32 [%o+{4 * i}], %r10;" for i, name in enumerate(SPECIALS))
    body = f"""
      mov.u32 %r3, %ctaid.z; mov.u32 %r4, %nctaid.y; mov.u32 %r5, %ctaid.y; mad.lo.u32 %r3, %r3, %r4, %r5;
      mov.u32 %r4, %nctaid.x; mad.lo.u32 %r3, %r3, %r4, %r0; mov.u32 %r6, %ntid.y; mov.u32 %r7, %ntid.z;
      mov.u32 %r8, %tid.z; mov.u32 %r9, %tid.y; mad.lo.u32 %r3, %r3, %r7, %r8; mad.lo.u32 %r3, %r3, %r6, %r9;
      mad.lo.u32 %r3, %r3, %r1, %r2; mul.wide.u32 %o, %r3, {4 * count}; add.u64 %o, %a0, %o; {rows} ret;"""
    threads = int(np.prod(block))
    found = out(body, int(np.prod(grid)) * threads * count, grid=grid, cluster=cluster, block=block, smem=640)
    found = found.reshape(*grid[::-1], *block[::-1], count)
    z, y, x, tz, ty, tx = np.indices((*grid[::-1], *block[::-1]))
    linear = tx + block[0] * (ty + block[1] * tz)
    inside = [a % c for a, c in zip((x, y, z), cluster, strict=True)]
    wanted = [
        tx, ty, tz, *block, x, y, z, *grid, *(a // c for a, c in zip((x, y, z), cluster, strict=True)),
        *(g // c for g, c in zip(grid, cluster, strict=True)), *inside, *cluster,
        inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2]), int(np.prod(cluster)),
        linear % 32, linear // 32, -(-threads // 32), 148, 640,
    ]  # fmt: skip
    for i, name in enumerate(SPECIALS):
        assert np.array_equal(found[..., i], np.broadcast_to(wanted[i], found.shape[:-1])), name


def test_explicitcluster_registers_are_set() -> None:
    body = f"mov.pred %p0, %is_explicit_cluster; selp.u32 %r10, 1, 0, %p0; {STORE}"
    assert out(body, 32)[0] == 0
    assert out(body, 64, grid=2, cluster=2)[0] == 1
    assert out(body, 64, grid=2, cluster=2, heads=".reqntid 32 .reqnctapercluster 2, 1, 1")[0] == 1


def test_clocks_advance() -> None:
    body = f"""
      mov.u64 %d0, %clock64; mov.u32 %r3, %clock; mov.u64 %d1, %globaltimer; mov.u64 %d2, %clock64;
      setp.gt.u64 %p0, %d2, %d0; selp.u32 %r10, 1, 0, %p0; mov.u64 %d4, %globaltimer;
      setp.gt.u64 %p0, %d4, %d1; @%p0 add.u32 %r10, %r10, 2; mov.u32 %r5, %clock_hi; add.u32 %r10, %r10, %r5; {STORE}"""
    assert set(out(body).tolist()) == {3}


def test_a_kernel_that_waits_for_time_ends() -> None:
    body = """mov.u64 %d0, %clock64; AGAIN: nanosleep.u32 20; mov.u64 %d1, %clock64; sub.u64 %d1, %d1, %d0;
        setp.lt.u64 %p0, %d1, 9000000; @%p0 bra AGAIN; ret;"""
    run(body, np.zeros(1, np.uint32))
