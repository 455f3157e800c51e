"""The predicted time of a node: the link bounds what ranks exchange, the slowest rank counts, a poll counts once."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright import targets
from warpwright.lang import (
    Break,
    Global,
    If,
    Peers,
    ctaid,
    f32,
    kernel,
    ld,
    loop,
    nctaid,
    smem,
    st,
    tid,
    tma,
    u32,
    var,
)
from warpwright.vgpu.timing.result import Profile

THREADS, TILE_ROWS = 1024, 128
CHUNK = THREADS * 4  # words that a CTA moves in a round
MEGABYTE = 1 << 20


@kernel("sm_90a", threads=THREADS)
def push(x: Peers[u32], chunks: u32, *, by: int = 1) -> None:
    """Each rank writes to the buffer of a rank: the next one, or its own with ``by=0``."""
    target = x[(x.rank + by) % x.ranks]
    for chunk in loop(ctaid.x, chunks, nctaid.x):
        st(target + (chunk * CHUNK + tid.x * 4), chunk, chunk, chunk, chunk)


@kernel("sm_90a", threads=THREADS)
def pull(x: Peers[u32], y: Global[u32], chunks: u32) -> None:
    """Each rank reads the buffer of the next one."""
    source, total = x[(x.rank + 1) % x.ranks], var(u32, 0)
    for chunk in loop(ctaid.x, chunks, nctaid.x):
        for word in ld(source + (chunk * CHUNK + tid.x * 4), vec=4):
            total += word
    y[ctaid.x * THREADS + tid.x] = total


@kernel("sm_90a", threads=TILE_ROWS)
def push_tiles(x: tma.PeerMaps[f32], tiles: u32) -> None:
    tile = smem.tile(f32, (TILE_ROWS, 32), swizzle=128)
    with If(tid.x == 0):
        for k in loop(ctaid.x, tiles, nctaid.x):
            tma.store(x[(x.rank + 1) % x.ranks][k * TILE_ROWS, 0], tile)
            tma.commit_group()
            tma.wait_group(7)
        tma.wait_group(0)


def _buffers(ranks: int, nbytes: int) -> list[Any]:
    return [np.zeros(nbytes // 4, np.uint32) for _ in range(ranks)]


def _rate(profile: Profile, nbytes: int) -> float:
    """Returns GB/s of the time inside the kernel."""
    return nbytes / (profile.time_us - profile.launch_us) / 1e3


def _profile(name: str, nbytes: int, ranks: int = 2, **config: Any) -> Profile:
    buffers = _buffers(ranks, nbytes)
    args = {
        "push": [ww.PerRank(buffers), nbytes // (4 * CHUNK)],
        "pull": [ww.PerRank(buffers), ww.PerRank(_buffers(ranks, 132 * THREADS * 4)), nbytes // (4 * CHUNK)],
        "push_tiles": [ww.PerRank([x.view(np.float32).reshape(-1, 32) for x in buffers]), nbytes // (TILE_ROWS * 128)],
    }[name]
    kernel = {"push": push, "pull": pull, "push_tiles": push_tiles}[name]
    return ww.profile(kernel.configure(**config), 132, args=args, device=f"h200x{ranks}")


@pytest.mark.parametrize("name", ["push", "pull", "push_tiles"])
def test_the_link_bounds_what_a_rank_exchanges(name: str) -> None:
    nbytes = 16 * MEGABYTE + 132 * 4 * CHUNK - (16 * MEGABYTE) % (132 * 4 * CHUNK)  # as many chunks for each CTA
    profile, link = _profile(name, nbytes), targets.LINKS["h200"].payload_gbps
    assert 0.93 * link < _rate(profile, nbytes) < link
    moved = (profile.bytes_received, profile.bytes_sent)
    assert moved == ((nbytes, 0) if name == "pull" else (0, nbytes))
    assert [rank.bytes_sent for rank in profile.ranks] == [profile.bytes_sent] * 2


def test_memory_of_the_own_rank_takes_no_link() -> None:
    nbytes = 4 * 132 * 4 * CHUNK
    own = _profile("push", nbytes, by=0)
    assert (own.bytes_sent, own.bytes_received) == (0, 0)
    assert own.time_us < 0.5 * _profile("push", nbytes).time_us


@kernel("sm_90a", threads=THREADS)
def fill(x: Global[u32], chunks: u32) -> None:
    for chunk in loop(ctaid.x, chunks, nctaid.x):
        st(x + (chunk * CHUNK + tid.x * 4), chunk, chunk, chunk, chunk)


def test_a_rank_that_uses_its_own_memory_takes_the_time_of_one_gpu() -> None:
    nbytes = 4 * 132 * 4 * CHUNK
    alone = ww.profile(fill, 132, args=[*_buffers(1, nbytes), nbytes // (4 * CHUNK)], device="h200", fast=False)
    args = [ww.PerRank(_buffers(3, nbytes)), nbytes // (4 * CHUNK)]
    node = ww.profile(fill, 132, args=args, device="h200x3")
    assert [rank.time_us for rank in node.ranks] == pytest.approx([alone.time_us] * 3, rel=1e-6)


@kernel("sm_90a", threads=32)
def wait_for_next(flags: Peers[u32], y: Global[u32], rounds: u32) -> None:
    """Rank 1 works for a while, then sets the flag that rank 0 polls."""
    with If(tid.x == 0):
        with If(flags.rank == 1):
            total = var(u32, 0)
            for k in loop(rounds):
                total.set(total * 3 + k)
            y[0] = total
            st(flags[0], 1, sem="release", scope="sys")
        with If(flags.rank == 0):
            for _ in loop():
                Break(when=ld(flags[0], sem="acquire", scope="sys") == 1)


def test_the_slowest_rank_counts_and_a_poll_counts_once() -> None:
    profiles = {}
    for rounds in (10, 20_000):
        args = [ww.PerRank(_buffers(2, 4)), ww.PerRank(_buffers(2, 4)), rounds]
        profiles[rounds] = ww.profile(wait_for_next, 1, args=args, device="h200x2")
    few, many = profiles[10], profiles[20_000]
    assert many.time_us == max(rank.time_us for rank in many.ranks) == many.ranks[1].time_us
    assert many.ranks[1].time_us > 20 * few.ranks[1].time_us
    assert many.ranks[0].time_us == pytest.approx(few.ranks[0].time_us, rel=1e-6)


@kernel("sm_90a", threads=64)
def poll_then_push(flags: Peers[u32], x: tma.PeerMaps[f32]) -> None:
    """Rank 0 polls many times, then sends a tile, and polls once more; its other warp loads in between."""
    tile = smem.tile(f32, (32, 32))
    with If((tid.x == 0) & (x.rank == 0)):
        await_flag(flags[0])
        tma.store(x[1][0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)
        await_flag(flags[0] + 1)
    with If((tid.x == 32) & (x.rank == 0)):
        st(flags[0] + 2, ld(flags[1]))
    with If((tid.x == 0) & (x.rank == 1)):
        for _ in loop(500):
            st(flags[1], 0, sem="relaxed", scope="sys")
        for number in range(2):
            st(flags[0] + number, 1, sem="release", scope="sys")


def await_flag(flag: Any) -> None:
    for _ in loop():
        Break(when=ld(flag, sem="acquire", scope="sys") == 1)


def test_what_comes_after_a_poll_counts() -> None:
    x = ww.PerRank([np.zeros((32, 32), np.float32) for _ in range(2)])
    flags = ww.PerRank([np.zeros(3, np.uint32) for _ in range(2)])
    profile = ww.profile(poll_then_push, 1, args=[flags, x], device="h200x2")
    sector = 32
    sent = [rank.bytes_sent for rank in profile.ranks]
    assert sent == [32 * 32 * 4, 2 * sector]
    assert profile.ranks[0].bytes_received == sector


@pytest.mark.parametrize("name", targets.LINKS)
def test_every_figure_of_a_link_has_a_source(name: str) -> None:
    link = targets.LINKS[name]
    figures = {field.name for field in fields(link)} - {"source"}
    assert set(link.source) == figures
    assert name in targets.DEVICES
