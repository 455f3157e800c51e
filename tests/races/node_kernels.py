"""Kernels whose ranks, the GPUs of a node, share memory; with ``right`` they are correct."""

from __future__ import annotations

from typing import Any

from tests.races.global_kernels import spin_until
from tests.races.parts import initialise
from warpwright.lang import (
    Break,
    Global,
    If,
    Peers,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    red,
    smem,
    st,
    tid,
    tma,
    u32,
    warp,
)

ROWS, COLUMNS = 8, 32


def notify(pointer: Any, value: Any) -> None:
    st(pointer, value, sem="release", scope="sys")


def await_flag(pointer: Any, value: Any) -> None:
    spin_until(pointer, value, sem="acquire", scope="sys")


def await_at_least(pointer: Any, value: Any) -> None:
    for _ in loop():
        Break(when=ld(pointer, sem="acquire", scope="sys") >= value)


@kernel("sm_90a", threads=32)
def send_word(
    x: Peers[u32],
    flags: Peers[u32],
    y: Global[u32],
    *,
    store: tuple[str, str] = ("release", "sys"),
    load: tuple[str, str] = ("acquire", "sys"),
    before: str = "",
    after: str = "",
) -> None:
    """Every rank writes a word to the next rank and tells it by a flag; ``before``, ``after``: fences around it."""
    with If(tid.x == 0):
        after_this = (x.rank + 1) % x.ranks
        x[after_this][0] = x.rank
        _fence(before)
        st(flags[after_this], 1, sem=store[0], scope=store[1])
        spin_until(flags[flags.rank], 1, sem=load[0], scope=load[1])
        _fence(after)
        y[0] = x[x.rank][0]


def _fence(scope: Any) -> None:
    if scope:
        fence.acq_rel(scope)


@kernel("sm_90a", threads=32)
def count_all(count: Peers[u32], y: Global[u32], *, scope: str = "sys") -> None:
    """All ranks add to a counter of rank 0."""
    red.add(count[0], 1, sem="relaxed", scope=scope)
    y[tid.x] = count.rank


@kernel("sm_90a", threads=32)
def stream_words(
    x: Peers[u32], full: Peers[u32], empty: Peers[u32], y: Global[u32], rounds: u32, *, right: bool = False
) -> None:
    """Rank 0 sends words to rank 1 through one buffer; wrong: it does not wait until rank 1 has read the last word."""
    with If((tid.x == 0) & (x.rank == 0)):
        for k in loop(rounds):
            if right:
                await_flag(empty[0], k)
            x[1][0] = k
            notify(full[1], k + 1)
    with If((tid.x == 0) & (x.rank == 1)):
        for k in loop(rounds):
            await_at_least(full[1], k + 1)
            y[k] = x[1][0]
            if right:
                notify(empty[0], k + 1)


@kernel("sm_90a", threads=32)
def begin_rounds(flags: Peers[u32], arrived: Peers[u32], rounds: u32, *, right: bool = False) -> None:
    """Rank 0 begins each round by one flag that the others poll; wrong: it uses the flag again before they have."""
    with If((tid.x == 0) & (flags.rank == 0)):
        for k in loop(rounds):
            notify(flags[0], k + 1)
            if right:
                await_flag(arrived[0], (k + 1) * (flags.ranks - 1))
    with If((tid.x == 0) & (flags.rank > 0)):
        for k in loop(rounds):
            await_flag(flags[0], k + 1)
            red.add(arrived[0], 1, sem="release", scope="sys")


@kernel("sm_90a", threads=32)
def pair_sums(x: Peers[u32], slots: Peers[u32], y: Global[u32], *, right: bool = False) -> None:
    """Ranks 0 and 3, and ranks 1 and 2, are groups, each with a counter on rank 0; wrong: both use one counter."""
    with If(tid.x == 0):
        other = 3 - x.rank
        group = (x.rank == 0) | (x.rank == 3)
        x[x.rank][0] = x.rank
        slot = slots[0] + (group.to(u32) if right else 0)
        red.add(slot, 1, sem="release", scope="sys")
        await_at_least(slot, 2)
        y[0] = x[other][0]


@kernel("sm_90a", threads=32)
def two_collectives(flags: Peers[u32], y: Global[u32], *, right: bool = False) -> None:
    """Two exchanges between all ranks; wrong: rank 1 begins with the second one."""
    with If(tid.x == 0):
        first = 0 if right else (flags.rank == 1).to(u32)
        _exchange(flags, first)
        _exchange(flags, 1 - first)
        y[0] = 1


def _exchange(flags: Any, number: Any) -> None:
    """Tell every rank of exchange ``number``, and wait until all ranks have come to it."""
    for rank in loop(flags.ranks):
        red.add(flags[rank] + number, 1, sem="release", scope="sys")
    await_flag(flags[flags.rank] + number, flags.ranks)


@kernel("sm_90a", threads=32)
def send_tile(
    x: tma.PeerMaps[f32], flags: Peers[u32], y: Global[f32], out: Global[f32], *, right: bool = False
) -> None:
    """Every rank stores a tile to the next rank by TMA; wrong: the flag does not wait for the end of the store."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for row in range(ROWS):
        st(tile.at(row, tid.x), x.rank.to(f32))
    fence.proxy_async()
    warp.sync()
    after_this = (x.rank + 1) % x.ranks
    with If(tid.x == 0):
        tma.store(x[after_this][0, 0], tile)
        tma.commit_group()
        tma.wait_group(0, read=not right)
        notify(flags[after_this], 1)
        await_flag(flags[flags.rank], 1)
        out[0] = y[0]


@kernel("sm_90a", threads=32)
def load_from_peer(
    x: Peers[f32], maps: tma.PeerMaps[f32], flags: Peers[u32], out: Global[f32], *, right: bool = False
) -> None:
    """Every rank writes a box and the next rank loads it by TMA; wrong: no proxy fence is between the two."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
    for row in range(ROWS):
        x[x.rank][row * COLUMNS + tid.x] = 1.0
    if right:
        fence.proxy_async("global")
    warp.sync()
    with If((warp.id == 0) & elect_one()):
        before = (x.rank + x.ranks - 1) % x.ranks
        notify(flags[x.rank], 1)
        await_flag(flags[before], 1)
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, maps[before][0, 0], full)
    full.wait(0)
    out[tid.x] = tile.at(0, tid.x)[0]
