"""TMA: latency, throughput by box and boxes in flight, multicast, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from probes.harness import Bench, Measurement, each, summarise, time_block
from warpwright import TensorMap
from warpwright.lang import (
    Global,
    If,
    bar,
    bf16,
    clock64,
    cluster,
    ctaid,
    f32,
    fence,
    kernel,
    loop,
    max,
    mbarrier,
    select,
    smem,
    tma,
    u32,
    u64,
    var,
    warp,
)

COLUMNS = 64  # of bf16: 128 bytes a row, swizzled
BOTH = 0b11


def cycle(out: Global[u64], full: list[mbarrier], leads: Any, rounds: u32, issue_load: Callable[[int], None]) -> None:
    """Time ``rounds`` rounds of boxes, one for each of ``full``: wait for the oldest, then ``issue_load`` the next."""
    with time_block(out), If(leads):
        for i in range(len(full)):
            issue_load(i)
        for k in loop(rounds):
            for i, barrier in enumerate(full):
                barrier.wait(k & 1)
                issue_load(i)
        for barrier in full:
            barrier.wait(rounds & 1)


@kernel("sm_90a", threads=32)
def loads(
    out: Global[u64],
    rounds: u32,
    x: tma.Map[bf16],
    own: u32,
    apart: u32,
    step: u32,
    together: u32,
    spread: u32,
    *,
    rows=64,
    flight=1,
    prefetch=False,
):
    """``flight`` boxes always in flight: wait for the oldest, issue the next. Each CTA cycles over ``own`` rows.

    ``together`` neighbours (at 0: each ``spread``-th CTA) begin at the same row, ``apart`` rows from the next; boxes
    follow after ``step`` rows.
    """
    tiles = [smem.tile(bf16, (rows, COLUMNS), swizzle=128) for _ in range(flight)]
    full = mbarrier.array(flight, name="full")
    leads = warp.lane == 0
    with If(leads):
        for barrier in full:
            barrier.init()
        fence.mbarrier_init()
    bar.sync()
    place, row = select(together > 0, ctaid.x // max(together, 1), ctaid.x % spread) * apart, var(u32, 0)

    def issue_load(index: int) -> None:
        full[index].arrive_expect_tx(tiles[index].nbytes)
        tma.load(tiles[index], x[place + row, 0], full[index])
        row.set(select(row + step >= own, 0, row + step))

    cycle(out, full, leads, rounds, issue_load)


@kernel("sm_90a", threads=32)
def issue(out: Global[u64], rounds: u32, x: tma.Map[bf16], *, rows=8, count=16):
    """The cost of issuing ``count`` boxes for the issuing thread; their completion is not timed."""
    tile, full = smem.tile(bf16, (rows, COLUMNS), swizzle=128), mbarrier(name="full")
    with If(warp.lane == 0):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    with If(warp.lane == 0):
        total = var(u64, 0)
        for k in loop(rounds):
            full.arrive_expect_tx(tile.nbytes * count)
            start = clock64()
            for _ in range(count):
                tma.load(tile, x[0, 0], full)
            total += clock64() - start
            full.wait(k & 1)
        out[ctaid.x * 2] = 0
        out[ctaid.x * 2 + 1] = total


@kernel("sm_90a", threads=32)
def bursts(out: Global[u64], rounds: u32, x: tma.Map[bf16], *, rows=8, count=4):
    """``count`` boxes on one mbarrier, then a wait for all of them."""
    tiles = [smem.tile(bf16, (rows, COLUMNS), swizzle=128) for _ in range(count)]
    full = mbarrier(name="full")
    leads = warp.lane == 0
    with If(leads):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    with time_block(out):
        with If(leads):
            for k in loop(rounds):
                full.arrive_expect_tx(tiles[0].nbytes * count)
                for i, tile in enumerate(tiles):
                    tma.load(tile, x[i * rows, 0], full)
                full.wait(k & 1)


@kernel("sm_90a", cluster=2, threads=32)
def multicast(
    out: Global[u64], rounds: u32, x: tma.Map[bf16], y: tma.Map[bf16], own: u32, *, rows=64, alone=0, flight=2
):
    """A pair of CTAs: each multicasts its half of every box to both, once both have released the slot, and loads
    ``alone`` rows for itself."""
    mine = [smem.tile(bf16, (alone, COLUMNS), swizzle=128) for _ in range(flight)] if alone else []
    halves = [[smem.tile(bf16, (rows, COLUMNS), swizzle=128) for _ in range(2)] for _ in range(flight)]
    full, empty = mbarrier.array(flight, name="full"), mbarrier.array(flight, 2, name="empty")
    leads = warp.lane == 0
    with If(leads):
        for barrier in (*full, *empty):
            barrier.init()
        fence.mbarrier_init()
    cluster.sync()
    place, row = ctaid.x * own, var(u32, 0)

    def issue_load(index: int) -> None:
        full[index].arrive_expect_tx(2 * halves[index][0].nbytes + (mine[index].nbytes if alone else 0))
        if alone:
            tma.load(mine[index], y[place + row, 0], full[index])
        for rank in range(2):
            with If(cluster.rank == rank):
                tma.load(halves[index][rank], x[place + row, 0], full[index], multicast=BOTH)
        row.set(select(row + rows >= own, 0, row + rows))

    with time_block(out):
        with If(leads):
            for i in range(flight):
                issue_load(i)
            for k in loop(rounds):
                for i in range(flight):
                    full[i].wait(k & 1)
                    for rank in range(2):
                        empty[i].at(rank).arrive(scope="cta")
                    empty[i].wait(k & 1)
                    issue_load(i)
            for i in range(flight):
                full[i].wait(rounds & 1)
    cluster.sync()


@kernel("sm_90a", threads=32)
def stores(out: Global[u64], rounds: u32, x: tma.Map[bf16], own: u32, *, rows=64, pending=0, read=False):
    """Store a tile in a loop; after each store wait until ``pending`` are unfinished (or, with ``read``, unread)."""
    tile = smem.tile(bf16, (rows, COLUMNS), swizzle=128)
    place, row = ctaid.x * own, var(u32, 0)
    with time_block(out):
        with If(warp.lane == 0):
            for _ in loop(rounds):
                tma.store(x[place + row, 0], tile)
                tma.commit_group()
                tma.wait_group(pending, read=read)
                row.set(select(row + rows >= own, 0, row + rows))
            tma.wait_group(0)


@kernel("sm_90a", threads=32)
def sums(out: Global[u64], rounds: u32, x: tma.Map[f32], own: u32, together: u32, *, rows=16, read=False):
    """Reduce a tile of 1 KB rows into L2, ``together`` neighbours to the same rows, from different rows on."""
    tile = smem.tile(f32, (rows, 256))
    place, row = ctaid.x // together * own, var(u32, ctaid.x % together * rows % own)
    with time_block(out):
        with If(warp.lane == 0):
            for _ in loop(rounds):
                tma.reduce(x[place + row, 0], tile)
                tma.commit_group()
                tma.wait_group(1 if read else 0, read=read)
                row.set(select(row + rows >= own, 0, row + rows))
            tma.wait_group(0)


def measure(bench: Bench) -> Iterator[Measurement]:
    height = bench.pick(8 << 20, 1 << 12)  # rows of 128 bytes: 1 GB
    x = bench.array((height, COLUMNS), "bf16")
    yield from latency(bench, x, height)
    yield from throughput(bench, x, height)
    yield from store_costs(bench, x)
    yield from add_costs(bench)
    yield from shared_rows(bench, x)
    own = bench.pick(1024, 256)
    for rows in bench.pick((32, 64, 128), (32,)):
        for flight in bench.pick((1, 2, 4), (1, 2)):
            probe, y = multicast.configure(rows=rows, flight=flight), TensorMap(x, (8, COLUMNS), swizzle=128)
            cycles = bench.slope(probe, [x, y, own], rounds=(20, 100), grid=bench.sms, per=flight)
            how = f"pairs, each sends {rows * 128} bytes to both, {flight} rounds in flight"
            yield summarise(f"tma.multicast.{rows * 128}.{flight}.cycles", cycles, "cycles/round", how)
    for rows, alone, flight, resident in bench.pick(
        ((64, 128, 2, 1), (64, 128, 2, 2), (64, 128, 4, 1), (128, 128, 4, 1)), ()
    ):
        probe = multicast.configure(rows=rows, alone=alone, flight=flight)
        cycles = bench.slope(probe, [x, x, own // resident], rounds=(20, 100), grid=bench.sms * resident, per=flight)
        how = f"pairs, each sends {rows * 128} bytes to both and {alone * 128} to itself, {resident} CTAs an SM"
        yield summarise(f"tma.mixed.{rows}_{alone}.{flight}.{resident}_ctas", cycles, "cycles/round", how)


def latency(bench: Bench, x: object, height: int) -> Iterator[Measurement]:
    for rows in bench.pick((8, 16, 64, 128, 256), (8, 64)):
        probe = loads.configure(rows=rows)
        near = bench.slope(probe, [x, 4 * rows, 0, rows, 1, 1], rounds=(40, 200))
        yield summarise(f"tma.load.l2.{rows * 128}.latency", near, "cycles", "ask for a box, wait for it; in L2")
        far = bench.slope(probe, [x, height, 0, bench.pick(4099, rows), 1, 1], rounds=(20, 200), cold=True)
        yield summarise(f"tma.load.hbm.{rows * 128}.latency", far, "cycles", "ask for a box, wait for it; in HBM")
    cycles = bench.slope(issue, [x], rounds=(8, 40), per=16)
    yield summarise("tma.load.issue", cycles, "cycles", "16 boxes of 1 KB asked for in a row")
    for grid in (1, bench.sms):
        first = bench.spans(loads, grid, [0, x, 64, 64, 64, 1, 1], cold=True, repeats=3 * bench.repeats)
        yield summarise(
            f"tma.load.first.{grid}_sms", list(first.mean(axis=1)), "cycles", "first box of a launch, cold L2"
        )


def shared_rows(bench: Bench, x: object) -> Iterator[Measurement]:
    """One box after the other on one mbarrier; and all SMs, or groups of ``together``, that read the same L2 rows."""
    for rows in bench.pick((1, 8, 32, 64), (8,)):
        few, many = (bench.slope(bursts.configure(rows=rows, count=n), [x]) for n in (4, 12))
        each_box = [(b - a) / 8 for a, b in zip(few, many, strict=True)]
        yield summarise(f"tma.box.{rows}_rows", each_box, "cycles/box", "a further box of rows of 128 bytes, in L2")
    probe, own = loads.configure(rows=128, flight=4), bench.pick(2048, 128)
    for together in bench.pick((1, 2, 4, 16, 132), (1, 2)):
        cycles = bench.slope(probe, [x, own, own, 128, together, 1], rounds=(20, 100), grid=bench.sms)
        how = f"{together} neighbours read the same {own * 128 >> 10} KB at the same time, in L2"
        yield summarise(f"tma.load.together_{together}", each(4 * 128 * 128, cycles), "bytes/cycle/SM", how)
    for spread in bench.pick((2, 8, 16, 33, 66), (2,)):
        cycles = bench.slope(probe, [x, own, own, 128, 0, spread], rounds=(20, 100), grid=bench.sms)
        how = f"each {spread}-th CTA reads the same {own * 128 >> 10} KB at the same time, in L2"
        yield summarise(f"tma.load.spread_{spread}", each(4 * 128 * 128, cycles), "bytes/cycle/SM", how)


def throughput(bench: Bench, x: object, height: int) -> Iterator[Measurement]:
    sizes = bench.pick([(r, f) for r in (8, 32, 64, 128, 256) for f in (1, 2, 4, 8)], [(8, 2)])
    for rows, flight in sizes:
        if rows * 128 * flight > 200 << 10:
            continue
        probe, rounds = loads.configure(rows=rows, flight=flight), (10, max(40, 32768 // rows // flight))
        nbytes, footprint = rows * 128 * flight, bench.pick(1024, 64)
        for grid in (1, bench.sms):
            near = bench.slope(probe, [x, footprint, footprint, rows, 1, 1], rounds=rounds, grid=grid)
            name = f"tma.load.l2.{rows * 128}x{flight}.{grid}_sms"
            yield summarise(name, each(nbytes, near), "bytes/cycle/SM", "boxes x in flight; 128 KB an SM, in L2")
        own = height // bench.sms // rows * rows
        far = bench.slope(probe, [x, own, own, rows, 1, 1], rounds=rounds, grid=bench.sms, cold=True)
        name = f"tma.load.hbm.{rows * 128}x{flight}.{bench.sms}_sms"
        yield summarise(name, each(nbytes, far), "bytes/cycle/SM", "boxes x in flight; cold L2")


def store_costs(bench: Bench, x: object) -> Iterator[Measurement]:
    own = bench.pick(1024, 256)
    for rows in bench.pick((16, 64, 128), (16,)):
        for name, pending, read in (("written", 0, False), ("read", 0, True), ("flight", 4, True)):
            for grid in (1, bench.sms):
                probe = stores.configure(rows=rows, pending=pending, read=read)
                cycles = bench.slope(probe, [x, own], rounds=(20, 100), grid=grid)
                how = {"written": "wait until written", "read": "wait until read", "flight": "four unread"}[name]
                yield summarise(f"tma.store.{rows * 128}.{name}.{grid}_sms", cycles, "cycles/box", how)


def add_costs(bench: Bench) -> Iterator[Measurement]:
    own = bench.pick(128, 32)  # rows of 1 KB
    x = bench.array((bench.sms * own, 256), "f32")
    for rows, read, together in bench.pick(
        ((16, False, 1), (16, True, 1), (32, True, 1), (16, True, 8)), ((16, True, 1),)
    ):
        for grid in (1, bench.sms):
            cycles = bench.slope(sums.configure(rows=rows, read=read), [x, own, together], rounds=(20, 100), grid=grid)
            how = f"sums of f32 in L2, {'two unread' if read else 'wait until added'}; {together} at one place"
            name = f"tma.add.{rows << 10}.{'flight' if read else 'written'}.{together}_together.{grid}_sms"
            yield summarise(name, cycles, "cycles/box", how)
