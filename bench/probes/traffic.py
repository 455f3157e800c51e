"""Contention between CTAs: their SMs, loads that they share, latency under load, the capacity of L2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probes.bulk import COLUMNS, cycle
from probes.harness import Bench, Measurement, each, summarise, time_block
from warpwright import TensorMap
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    bar,
    bf16,
    clock64,
    cluster,
    clusterid,
    ctaid,
    fence,
    kernel,
    loop,
    mbarrier,
    select,
    smem,
    smid,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
)

LARGE = 200 << 10  # bytes of shared memory: one CTA an SM
SHARED = 222 << 10  # bytes for all CTAs of an SM, besides 1 KB reserved for each
SPIN = 20_000  # cycles that a CTA spins, so that no other CTA takes its SM
CONTROL = 512  # words of shared memory for barriers, and lost as tiles begin at multiples of 1 KB
BOTH = 0b11
PROMOTION = 256


@kernel("sm_90a", threads=32)
def write_sm(out: Global[u64], *, nbytes=LARGE, cluster=1):
    """Write the SM of each CTA."""
    smem.array(u32, nbytes // 4)
    end = clock64() + SPIN
    for _ in loop():
        now = clock64()
        Break(when=now >= end)
    with If(tid.x == 0):
        out[ctaid.x] = smid().to(u64)


@kernel("sm_90a", threads=32)
def ring(
    out: Global[u64],
    rounds: u32,
    waits: Global[u64],
    x: tma.Map[bf16],
    y: tma.Map[bf16],
    width: u32,
    down: u32,
    apart: u32,
    products: u32,
    *,
    rows=(128, 128),
    flight=2,
    resident=1,
    cluster=1,
    multicast=False,
    coupled=False,
    record=False,
):
    """The loads of a GEMM's tiles without MMA: ``flight`` k-blocks of 64 columns in flight.

    ``rows``: of x and of y in a k-block. The grid has ``down`` tiles of y for each tile of x. The CTAs of a ``cluster``
    of two have the same tile of y: with ``multicast`` each CTA loads half of it for both; if ``coupled``, a slot is
    filled again when both CTAs have released it. ``apart``: the columns between the starts of neighbouring CTAs. A
    k-block is used for ``products`` cycles. ``waits`` receives the cycles from the issue of a k-block to the end of its
    wait, added up. Each CTA has so much shared memory that ``resident`` CTAs fit on an SM.
    """
    smem.array(u32, (SHARED // resident - flight * 2 * COLUMNS * sum(rows)) // 4 - CONTROL)
    left = [smem.tile(bf16, (rows[0], COLUMNS), swizzle=128) for _ in range(flight)]
    right = [smem.tile(bf16, (rows[1], COLUMNS), swizzle=128) for _ in range(flight)] if rows[1] else []
    full, empty = mbarrier.array(flight, name="full"), mbarrier.array(flight, cluster, name="empty")
    leads = warp.lane == 0
    with If(leads):
        for barrier in (*full, *empty):
            barrier.init()
        fence.mbarrier_init()
    rank: Any = sync_cluster() if cluster > 1 else 0
    bar.sync()
    number = clusterid.x if cluster > 1 else ctaid.x
    top, side = (number // down * cluster + rank) * rows[0], number % down * rows[1]
    column, total = var(u32, ctaid.x * apart % width), var(u64, 0)
    seen = var(u32, ctaid.x * rounds * flight)
    asked = [var(u64, 0) for _ in range(flight)]

    def issue_load(index: int) -> None:
        asked[index].set(clock64())
        full[index].arrive_expect_tx(2 * COLUMNS * sum(rows))
        tma.load(left[index], x[top, column], full[index])
        if rows[1]:
            load_right(index)
        column.set((column + COLUMNS) % width)

    def load_right(index: int) -> None:
        if not multicast:
            tma.load(right[index], y[side, column], full[index])
            return
        for half in range(2):
            with If(rank == half):
                rows_ = slice(half * rows[1] // 2, (half + 1) * rows[1] // 2)
                corner = y[side + half * (rows[1] // 2), column]
                tma.load(right[index][rows_, :], corner, full[index], multicast=BOTH)

    def use(index: int, parity: Expr) -> None:
        full[index].wait(parity)
        if record:
            waits[seen] = clock64() - asked[index]
            seen.set(seen + 1)
        else:
            total.set(total + (clock64() - asked[index]))
        spin(products)

    with time_block(out):
        with If(leads):
            for i in range(flight):
                issue_load(i)
            for k in loop(rounds):
                for i in range(flight):
                    use(i, k & 1)
                    if coupled:
                        release_slot(empty[i], k & 1)
                    issue_load(i)
            for i in range(flight):
                full[i].wait(rounds & 1)
            if not record:
                waits[ctaid.x] = total
    if cluster > 1:
        sync_cluster()


def sync_cluster() -> Expr:
    cluster.sync()
    found: Expr = cluster.rank
    return found


def release_slot(empty: mbarrier, parity: Expr) -> None:
    """Arrive on the empty mbarrier of both CTAs of the pair, and wait until both have arrived."""
    for rank in range(2):
        empty.at(rank).arrive(scope="cta")
    empty.wait(parity)


def spin(cycles: Expr) -> None:
    end = clock64() + cycles.to(u64)
    with If(cycles > 0):
        for _ in loop():
            now = clock64()
            Break(when=now >= end)


@kernel("sm_90a", threads=32)
def sweep(out: Global[u64], rounds: u32, x: tma.Map[bf16], own: u32, apart: u32, shift: u32, *, rows=128, flight=4):
    """Each CTA reads its ``own`` rows in a loop; those of the next CTA begin ``apart`` rows later, from ``shift``."""
    tiles = [smem.tile(bf16, (rows, COLUMNS), swizzle=128) for _ in range(flight)]
    full = mbarrier.array(flight, name="full")
    leads = warp.lane == 0
    with If(leads):
        for barrier in full:
            barrier.init()
        fence.mbarrier_init()
    bar.sync()
    place, row = ctaid.x * apart, var(u32, ctaid.x * shift % own)

    def issue_load(index: int) -> None:
        full[index].arrive_expect_tx(tiles[index].nbytes)
        tma.load(tiles[index], x[place + row, 0], full[index])
        row.set(select(row + rows >= own, 0, row + rows))

    cycle(out, full, leads, rounds, issue_load)


def measure(bench: Bench) -> Iterator[Measurement]:
    yield from gpc_spread(bench)
    yield from tiles(bench)
    yield from waits(bench)
    yield from memory(bench)
    yield from capacity(bench)


def places(bench: Bench, grid: int, **config: Any) -> Any:
    """Returns the SMs of the CTAs of a launch."""
    out = bench.array((grid,), "u64")
    bench.prepare(write_sm.configure(**config), grid, [out])()
    bench.wait()
    return bench.read(out).astype(np.int64)


def gpcs(bench: Bench) -> dict[int, int]:
    """Returns the GPC of each SM: CTAs of a large cluster share one."""
    size, found = bench.pick(16, 2), dict[int, int]()
    for group in places(bench, bench.pick(7, 1) * size, cluster=size).reshape(-1, size).tolist():
        found |= dict.fromkeys(group, min(found.get(sm, sm) for sm in group))
    return found


def gpc_spread(bench: Bench) -> Iterator[Measurement]:
    """The number of GPCs of neighbours in the grid: 16 single CTAs, or the first CTAs of 8 clusters of two."""
    gpc = gpcs(bench)
    for name, size, count in (("single", 1, 16), ("pair", 2, 8)):
        homes = [gpc[sm] for sm in places(bench, bench.sms, cluster=size).tolist()[::size] if sm in gpc]
        groups = [homes[i : i + count] for i in range(0, len(homes) - count + 1, count)] or [homes]
        kinds = [float(len(set(group))) for group in groups]
        yield summarise(f"launch.places.{name}", kinds, "GPCs", f"of {count} neighbours in the grid")


@dataclass(frozen=True)
class Tiles:
    """How `ring` is run: ``kind`` of `KINDS`, ``down`` tiles of y for each of x, ``resident`` CTAs an SM."""

    kind: str
    rows: tuple[int, int]
    flight: int
    down: int
    products: int = 0
    resident: int = 1

    @property
    def name(self) -> str:
        rows = f"{self.rows[0]}_{self.rows[1]}x{self.flight}"
        return f"{self.kind}.{rows}.down_{self.down}.used_{self.products}.{self.resident}_ctas"

    def probe(self, record: bool = False) -> Any:
        config = {"rows": self.rows, "flight": self.flight, "resident": self.resident, "record": record}
        return ring.configure(**config, **KINDS[self.kind])

    def maps(self, x: Any, y: Any) -> list[TensorMap]:
        boxes = [max(self.rows[0], 8), max(self.rows[1] // (2 if self.kind == "pair" else 1), 8)]
        both = zip((x, y), boxes, strict=True)
        return [TensorMap(a, (box, COLUMNS), swizzle=128, l2_promotion=PROMOTION) for a, box in both]


KINDS: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {"cluster": 2},
    "coupled": {"cluster": 2, "coupled": True},
    "pair": {"cluster": 2, "coupled": True, "multicast": True},
}


def operands(bench: Bench, rows: int, width: int) -> tuple[Any, Any]:
    x, y = (bench.array((bench.pick(rows, 1 << 12), width), "bf16") for _ in range(2))
    return x, y


def tiles(bench: Bench) -> Iterator[Measurement]:
    """k-blocks from L2, with as much sharing between SMs as in a GEMM; for each CTA of an SM."""
    width = bench.pick(512, 256)
    (x, y), totals = operands(bench, 1 << 17, width), bench.array((4 * bench.sms,), "u64")
    cases = [
        Tiles(kind, rows, flight, down)
        for kind in KINDS
        for rows, flight in (((128, 128), 1), ((128, 128), 4), ((128, 256), 4))
        for down in (1, 8, 16, 1000)
    ]
    cases += [Tiles("one", (128, 0), 4, down) for down in (1, 16)]
    cases += [Tiles("one", (128, 128), 1, down, 512, resident) for resident in (1, 2, 3) for down in (16, 32, 64)]
    for case in bench.pick(cases, cases[:1] + cases[-1:]):
        args, grid = [totals, *case.maps(x, y), width, case.down, 0, case.products], case.resident * bench.sms
        cycles = bench.slope(case.probe(), args, rounds=(20, 100), grid=grid, per=case.flight)
        yield summarise(f"tiles.{case.name}", cycles, "cycles/k-block", "all SMs, in L2")


def waits(bench: Bench) -> Iterator[Measurement]:
    """Time from the issue of a k-block to the end of its wait: from L2 after an earlier read, from device memory, and,
    every other one, from L2 after the load of the previous one fetched it."""
    for name, width, rows, cold in (("warm", 512, 1 << 17, False), ("cold", 2048, 1 << 15, True)):
        width = bench.pick(width, 256)
        x, y = operands(bench, rows, width)
        rounds = bench.pick(200 if not cold else width // COLUMNS - 1, 2)
        cases = [
            Tiles(kind, rows, 1, 16, products, resident)
            for kind in ("one", "two", "pair")
            for rows in ((64, 0), (128, 0), (128, 128))
            for products, resident in ((0, 1), (512, 2))
            if rows[1] or kind != "pair"
        ]
        for case in bench.pick(cases, cases[:1]):
            for grid in bench.pick((2, case.resident * bench.sms), (2,)):
                taken = record_waits(bench, case, grid, rounds, case.maps(x, y), width, cold)
                for half, part in enumerate((taken[:, 0::2], taken[:, 1::2]) if cold else (taken,)):
                    values = [float(v) for v in np.percentile(part, (1, 50, 99))]
                    kind, title = ("cold", "near")[half] if cold else name, f"{case.name}.{grid}_ctas"
                    how = f"1 % {values[0]:.0f}, median {values[1]:.0f}, 99 % {values[2]:.0f}"
                    yield Measurement(f"waits.{kind}.{title}", float(f"{part.mean():.5g}"), "cycles", 0.0, how)


def record_waits(
    bench: Bench, case: Tiles, grid: int, rounds: int, maps: list[TensorMap], width: int, cold: bool
) -> Any:
    """Returns the waits of the CTAs, (CTAs, k-blocks), without the first ones."""
    totals = bench.array((grid * rounds,), "u64")
    args = [rounds, totals, *maps, width, case.down, 0, case.products]
    bench.spans(case.probe(record=True), grid, args, cold=cold, repeats=2)
    return bench.read(totals).astype(np.float64).reshape(grid, rounds)[:, bench.pick(4, 0) :]


def memory(bench: Bench) -> Iterator[Measurement]:
    """k-blocks from device memory, each tile of y for two or three CTAs at the same time."""
    width = bench.pick(8192, 256)
    (x, y), totals = operands(bench, 1 << 14, width), bench.array((4 * bench.sms,), "u64")
    for rows, flight in bench.pick((((128, 128), 6), ((128, 256), 4)), (((64, 64), 1),)):
        for down in bench.pick((16, 32, 64), (1,)):
            case, last = Tiles("one", rows, flight, down), width // COLUMNS // flight - 1
            args = [totals, *case.maps(x, y), width, down, 0, 0]
            cycles = bench.slope(case.probe(), args, rounds=(last // 4, last), grid=bench.sms, per=flight, cold=True)
            yield summarise(f"tiles.cold.{case.name}", cycles, "cycles/k-block", "all SMs, cold L2")


def capacity(bench: Bench) -> Iterator[Measurement]:
    x, sms = bench.array((bench.pick(1 << 20, 1 << 12), COLUMNS), "bf16"), bench.sms
    for megabytes in bench.pick((16, 32, 48, 56, 64, 80), (1,)):
        rows = (megabytes << 20) // 128 // 128 * 128
        own = rows // sms // 128 * 128 or 128
        for name, args in (("own", [x, own, own, 0]), ("all", [x, rows, 0, own])):
            cycles = bench.slope(sweep, args, rounds=(30, 100), grid=sms)
            how = f"{megabytes} MB, " + ("each SM its part" if name == "own" else "all by all SMs, each from elsewhere")
            yield summarise(f"l2.{name}.{megabytes}_mb", each(4 * 128 * 128, cycles), "bytes/cycle/SM", how)
