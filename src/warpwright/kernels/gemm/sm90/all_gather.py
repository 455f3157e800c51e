"""All-gather and GEMM in one Hopper kernel, without multicast: D = A·Bᵀ, each rank of a node has a part of A's rows.

Every rank multiplies all rows of A by its own B. Its own rows come first; meanwhile its rows go to the other ranks,
and each tile of D waits only for the rows that it reads. A flag counts the k-blocks of some rows of tiles that have
arrived from a rank. A warp of the kernel sends the rows, tile by tile; or copy engines do, which use no SM.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterator
from dataclasses import replace

from warpwright.kernels.gemm.sm90.configs import CONFIGS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.kernel import (
    REGISTERS,
    clusters_of,
    cta_position,
    init_and_sync,
    load_part,
    mainloop,
    multicast_masks,
    operand_ring,
    rasterize,
    signal_target,
)
from warpwright.kernels.gemm.sm90.plan import plan_gemm
from warpwright.kernels.gemm.sm90.store import store_strip, unchanged
from warpwright.kernels.node import Lack, Limit, await_flag, is_last, signal_begin
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS, atom
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Peers,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    kernel,
    loop,
    mbarrier,
    min,
    nctaid,
    red,
    role,
    setmaxnreg,
    shfl,
    smem,
    tma,
    u32,
    u64,
    warp,
    wgmma,
)
from warpwright.types import Scalar

__all__ = ["SENDING", "all_gather_gemm", "kernel_of", "plan_gather"]

SENDING = replace(CONFIGS["128x256"], stages=3)  # the stage that is missing holds the tile that is sent


@kernel("sm_90a", cluster=2, threads=384)
def all_gather_gemm(
    a: tma.Map[Scalar],
    gathered: tma.PeerMaps[Scalar],
    arrived: Peers[u32],
    begun: Peers[u32],
    calls: Global[u32],
    report: Global[u32],
    limit_ns: u64,
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    chunk: u32,
    group: u32,
    *,
    config: Config = SENDING,
    send: bool = True,
    major: str = "k",
    dtype: type[Scalar] = bf16,
) -> None:
    """``a``: the rows of this rank; ``tiles_m`` of a rank. ``gathered``: on every rank room for the rows of all, a
    matrix for each rank; ``d`` likewise. ``arrived``: on every rank ``tiles_m`` flags for each rank; flag i counts the
    k-blocks of rows of tiles i · ``chunk`` and later. ``begun``: on every rank a flag for each rank; ``calls``: two
    counters of this rank. All are 0 before the first call; then no call needs a change of them (see `node`). All CTAs
    of a rank run at once. ``report`` and ``limit_ns`` are the `Limit` of each wait for another rank.

    Without ``send`` copy engines write ``gathered`` on every other rank, and ``tiles_k`` into the flag of a chunk after
    its rows; the host sets the flags back after the call, and lets no copy begin before; ``begun`` and ``calls`` are
    not used. With it ``chunk`` is 1. ``group`` rows of clusters are walked together; they divide the rows of a rank, so
    that its own come first. ``major``: of B in memory.

    role      warps  moves                                      waits for               signals
    load      0      A of this rank or gathered, B -> ring      ring.empty, arrived     ring.full
    send      1      A of this rank -> tile -> all other ranks  begun, sent             begun, sent, arrived
    multiply  4-     ring -> registers -> blocks of D -> D      ring.full, own block    ring.empty
    """
    (tile_m, tile_n), share, consumers = config.tile, config.share, config.consumers
    k_columns, strips = atom(dtype) * config.depth, tile_m // STRIP // consumers
    ring = operand_ring(config, consumers * (sum(share) - 1), ("k", major), (dtype, dtype))
    blocks = smem.tile(dtype, (consumers * WARPS * STORES * WARP_ROWS, ROW_BYTES // dtype.nbytes), swizzle=128)
    rank, ranks, call, limit = gathered.rank, gathered.ranks, calls[0] + 1, Limit(report, limit_ns)
    if send:
        tile, sent = smem.tile(dtype, (tile_m, k_columns), swizzle=128), mbarrier(1, name="sent")

        @role(warp=0, elect=True)
        def init() -> None:
            sent.init()

    init_and_sync(ring, share, (a, b, d))
    if send and share != (1, 1):  # the cluster's barrier is relaxed
        bar.sync()  # all threads have loaded the number of the call before the last CTA stores it
    place_m, place_n = cta_position(share)

    def output_tiles() -> Iterator[tuple[Expr, Expr, Expr]]:
        """Yields the rank of a tile's rows, its row of tiles in that rank, and its column: this rank's rows first."""
        across, down = clusters_of(tiles_m, share[0]), clusters_of(tiles_n, share[1])
        for below, col in rasterize(ranks * across, down, group):
            source, row = (rank + below // across) % ranks, below % across
            yield source, row * share[0] + place_m, (col * share[1] + place_n) * tile_n

    @role(warps=range(WARPS), when=consumers > 1)
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        slots, (same_row, same_col) = ring.producer(), multicast_masks(share)
        of_a, of_b = (place_n, share[1], same_row), (place_m, share[0], same_col)
        for source, row, col in output_tiles():
            own = source == rank
            with If(~own):
                flag = arrived[rank] + (source * tiles_m + min(row, tiles_m - 1) // chunk)
                await_flag(flag, tiles_k, source, Lack.SEND, limit)
            for k in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                with If(own):
                    load_part(slot.a, a, "k", (), row * tile_m, k * k_columns, slot.full, of_a)
                with If(~own):
                    load_part(slot.a, gathered[rank], "k", (source,), row * tile_m, k * k_columns, slot.full, of_a)
                load_part(slot.b, b, major, (), col, k * k_columns, slot.full, of_b)
        slots.wait_all_empty()
        if send:
            with If(is_last(calls)):  # all CTAs have read the counters, and no rank adds to them before the next call
                for number in loop(ranks * tiles_m):
                    arrived[rank][number] = 0
                calls[0] = call

    @role(warp=1, elect=True, when=send)
    def send_rows() -> None:
        with If(ctaid.x == 0):
            signal_begin(begun, call)
        with If(ctaid.x < tiles_m * tiles_k):  # the other ranks have read what the last call sent them
            for step in loop(1, ranks):
                other = (rank + step) % ranks
                await_flag(begun[rank] + other, call, other, Lack.BEGIN, limit)
        for number in loop(ctaid.x, tiles_m * tiles_k, nctaid.x):
            row, k = number // tiles_k, number % tiles_k
            sent.arrive_expect_tx(tile.nbytes)
            load_part(tile, a, "k", (), row * tile_m, k * k_columns, sent)
            sent.wait((number - ctaid.x) // nctaid.x & 1)
            for step in loop(1, ranks):
                tma.store(gathered[(rank + step) % ranks][rank, row * tile_m, k * k_columns], tile)
            tma.commit_group()
            tma.wait_group(0)  # the stores have arrived
            for step in loop(1, ranks):
                flag = arrived[(rank + step) % ranks] + (rank * tiles_m + row)
                red.add(flag, 1, sem="release", scope="sys")

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        if consumers > 1:
            setmaxnreg.inc(REGISTERS[consumers][1])
        first = shfl.idx(warp.id // WARPS - 1, 0) * strips
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        slots, completed, stores = ring.consumer(), ring.consumer(), elect_one()
        peer, shares = signal_target(share)
        for source, row, col in output_tiles():
            for slot in mainloop(sums, first, 0, tiles_k, slots, completed, ("k", major)):
                with If(shares):
                    slot.empty.at(peer).arrive(scope="cta")
            for i, acc in enumerate(sums):
                top = row * tile_m + (first + i) * STRIP
                store_strip(acc, d, blocks, warp.id - WARPS, (source,), top, col, stores, unchanged, config.matrices)
        with If(stores):
            tma.wait_group(0)


@functools.cache
def kernel_of(config: Config, send: bool) -> Kernel:
    """Returns the kernel of ``config``; configure ``major`` and ``dtype``."""
    shape = kernel("sm_90a", cluster=config.cluster, threads=config.threads)
    return shape(all_gather_gemm.function).configure(config=config, send=send)


def plan_gather(
    config: Config, ranks: int, rows: int, n: int, k: int, *, sms: int
) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
    """Returns the grid, the tiles and ``group`` of a launch for ``rows`` of each rank, 16-bit operands."""
    found = plan_gemm(config, rows, n, k, sms=sms)
    tiles_m, tiles_n, tiles_k, _ = found.tiles
    across, down = -(-tiles_m // config.share[0]), -(-tiles_n // config.share[1])
    places, clusters = max(1, sms // config.cluster), ranks * across * down
    grid = -(-clusters // -(-clusters // places)) * config.cluster, 1, 1
    return grid, (tiles_m, tiles_n, tiles_k), max_divisor(across, config.group)


def max_divisor(number: int, most: int) -> int:
    """Returns the largest divisor of ``number`` that is at most ``most``."""
    return next(each for each in range(builtins.min(number, most), 0, -1) if number % each == 0)
