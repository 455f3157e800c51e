"""Barriers of every kind, fences, and distributed shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from probes.harness import Bench, Measurement, each, summarise, time_block
from warpwright.lang import (
    Global,
    If,
    Pointer,
    bar,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    role,
    smem,
    tid,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang import cluster as this_cluster

UNROLL = 8
MANY = 1 << 19  # more arrivals than ever occur


@kernel("sm_90a", threads=32)
def single_thread(out: Global[u64], rounds: u32, *, what="arrive"):
    """One thread and one mbarrier: the cost of each call."""
    once, never, done = mbarrier(1, name="once"), mbarrier(MANY, name="never"), mbarrier(1, name="done")
    words = smem.array(u32, 32)
    leads = warp.lane == 0
    with If(leads):
        for barrier in (once, never, done):
            barrier.init()
        fence.mbarrier_init()
        done.arrive()
    bar.sync()
    steps = {
        "arrive": lambda i: never.arrive(),
        "expect": lambda i: never.arrive_expect_tx(0),
        "ready": lambda i: done.wait(0),
        "round_trip": lambda i: (once.arrive(), once.wait(i % 2)),
        "fence_proxy_async": lambda i: fence.proxy_async(),
        "fence_cta": lambda i: fence.acq_rel("cta"),
        "fence_cluster": lambda i: fence.acq_rel("cluster"),
        "store_fence_proxy_async": lambda i: (words.__setitem__(0, i), fence.proxy_async()),
    }
    with time_block(out):
        with If(leads):
            for _ in loop(rounds):
                for i in range(UNROLL):
                    steps[what](i)


@kernel("sm_90a", threads=64)
def ping_pong(out: Global[u64], rounds: u32):
    """Two warps signal each other in turn by mbarriers."""
    there, back = mbarrier(1, name="there"), mbarrier(1, name="back")
    leads = warp.lane == 0
    with If((warp.id == 0) & leads):
        there.init()
        back.init()
        fence.mbarrier_init()
    bar.sync()
    with time_block(out):
        with If(leads & (warp.id == 0)):
            for k in loop(rounds):
                there.arrive()
                back.wait(k & 1)
        with If(leads & (warp.id == 1)):
            for k in loop(rounds):
                there.wait(k & 1)
                back.arrive()


@kernel("sm_90a", cluster=2, threads=32)
def ping_pong_cluster(out: Global[u64], rounds: u32, *, scope="cta"):
    """Two CTAs of a cluster signal each other in turn by mbarriers."""
    turn = mbarrier(1, name="turn")
    leads = warp.lane == 0
    with If(leads):
        turn.init()
        fence.mbarrier_init()
    this_cluster.sync()
    rank = this_cluster.rank
    with time_block(out):
        with If(leads & (rank == 0)):
            for k in loop(rounds):
                turn.at(1).arrive(scope=scope)
                turn.wait(k & 1)
        with If(leads & (rank == 1)):
            for k in loop(rounds):
                turn.wait(k & 1)
                turn.at(0).arrive(scope=scope)
    this_cluster.sync()


@kernel("sm_90a", threads=128)
def named_barrier(out: Global[u64], rounds: u32, *, threads=128):
    """``bar.sync`` of the whole CTA."""
    with time_block(out):
        for _ in loop(rounds):
            for _ in range(UNROLL):
                bar.sync(1, threads)


@kernel("sm_90a", threads=256)
def hand_over(out: Global[u64], rounds: u32):
    """Two warpgroups alternate at named barriers: one arrives, the other waits."""
    with time_block(out):

        @role(warps=range(4))
        def left() -> None:
            for _ in loop(rounds):
                bar.arrive(1, 256)
                bar.sync(2, 256)

        @role(warps=range(4, 8))
        def right() -> None:
            for _ in loop(rounds):
                bar.sync(1, 256)
                bar.arrive(2, 256)


@kernel("sm_90a", cluster=2, threads=128)
def cluster_barrier(out: Global[u64], rounds: u32, *, cluster=2, threads=128, order="release"):
    """The cluster barrier."""
    with time_block(out):
        for _ in loop(rounds):
            this_cluster.arrive(order)
            this_cluster.wait()


@kernel("sm_90a", cluster=2, threads=32)
def chase(out: Global[u64], rounds: u32, sink: Global[u32], *, distance=1):
    """Each load from a neighbour CTA's shared memory (distance 0: the CTA's own, by ld.shared::cluster) returns the
    next address."""
    words = smem.array(u32, 32)
    other = this_cluster.map(words.address, (this_cluster.rank + distance) % 2)
    words[tid.x] = other
    this_cluster.sync()
    place = var(u32, other)
    with time_block(out):
        for _ in loop(rounds):
            for _ in range(UNROLL):
                place.set(ld(Pointer(u32, place, 0, "shared::cluster")))
    this_cluster.sync()
    sink[tid.x] = place


@kernel("sm_90a", cluster=2, threads=512)
def remote(out: Global[u64], rounds: u32, flip: u32, sink: Global[u32], *, cluster=2):
    """All CTAs read their neighbour's shared memory, 16 bytes a lane."""
    words = smem.array(u32, 8192)
    base = var(u32, this_cluster.map(words.address, (this_cluster.rank + 1) % cluster) + tid.x * 16)
    total = var(u32, 0)
    this_cluster.sync()
    with time_block(out):
        for _ in loop(rounds):
            for i in range(4):
                for word in ld(Pointer(u32, base, 8192 * (i % 3), "shared::cluster"), vec=4):
                    total ^= word
            base ^= flip
    this_cluster.sync()
    with If(total == 0x12345):
        sink[tid.x] = total


def measure(bench: Bench) -> Iterator[Measurement]:
    names = "arrive expect ready round_trip fence_proxy_async store_fence_proxy_async fence_cta fence_cluster"
    for what in names.split():
        cycles = bench.slope(single_thread.configure(what=what), per=UNROLL)
        yield summarise(f"mbarrier.{what}" if "fence" not in what else f"fence.{what}", cycles, "cycles", "one thread")
    yield summarise(
        "mbarrier.signal", bench.slope(ping_pong, per=2), "cycles", "arrive to return of a wait, other warp"
    )
    for scope in ("cta", "cluster"):
        cycles = bench.slope(ping_pong_cluster.configure(scope=scope), grid=2, per=2)
        yield summarise(f"mbarrier.remote_signal.{scope}", cycles, "cycles", "arrive at the neighbour to its wait")
    for threads in (32, 128, 256, 384, 512, 1024):
        cycles = bench.slope(named_barrier.configure(threads=threads), per=UNROLL)
        yield summarise(f"bar.sync.{threads}", cycles, "cycles", "whole CTA, all ready")
    yield summarise("bar.hand_over", bench.slope(hand_over, per=2), "cycles", "arrive to sync, 128 and 128 threads")
    for size, threads, order in ((2, 128, "release"), (2, 128, "relaxed"), (2, 384, "release"), (4, 128, "release")):
        probe = cluster_barrier.configure(cluster=size, threads=threads, order=order)
        cycles = bench.slope(probe, grid=size)
        yield summarise(f"cluster.sync.{size}x{threads}.{order}", cycles, "cycles", "arrive and wait, all ready")
    yield from neighbour(bench)


def neighbour(bench: Bench) -> Iterator[Measurement]:
    sink = bench.array((1024,), "u32")
    for distance, name in ((0, "own"), (1, "neighbour")):
        cycles = bench.slope(chase.configure(distance=distance), [sink], grid=2, per=UNROLL)
        yield summarise(f"dsmem.{name}.latency", cycles, "cycles", "ld.shared::cluster, each address from the last")
    for size in (2, 4):
        for grid in sorted({size, bench.sms // size * size or size}):
            cycles = bench.slope(remote.configure(cluster=size), [0, sink], grid=grid)
            values = each(4 * 16 * 512, cycles)
            yield summarise(f"dsmem.read.{size}.{grid}_sms", values, "bytes/cycle/SM", "16 bytes a lane, 512 threads")
