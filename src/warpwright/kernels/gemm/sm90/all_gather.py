"""All-gather and GEMM in one Hopper kernel, without multicast: D = A·Bᵀ, each rank of a node has a part of A's rows.

Every rank multiplies all rows of A by its own B. Its own rows come first; meanwhile every rank sends them to the
others, tile by tile, and each tile of D waits only for the rows that it reads. A flag counts the k-blocks of a row of
tiles that have arrived from a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from warpwright.kernels.gemm.sm90.configs import CONFIGS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.kernel import (
    REGISTERS,
    grouped_tile,
    load_part,
    mainloop,
    operand_ring,
    store_strip,
    unchanged,
)
from warpwright.kernels.node import await_flag, is_last, signal_begin
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS, atom
from warpwright.lang import (
    Expr,
    Global,
    If,
    Peers,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    nctaid,
    red,
    role,
    setmaxnreg,
    shfl,
    smem,
    tma,
    u32,
    warp,
    wgmma,
)
from warpwright.types import Scalar

__all__ = ["all_gather_gemm"]

ALONE = replace(CONFIGS["128x256"], share=(1, 1), stages=3)  # the stage that is missing holds the tile that is sent


@kernel("sm_90a", threads=384)
def all_gather_gemm(
    a: tma.Map[Scalar],
    gathered: tma.PeerMaps[Scalar],
    arrived: Peers[u32],
    begun: Peers[u32],
    calls: Global[u32],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    config: Config = ALONE,
    dtype: type[Scalar] = bf16,
) -> None:
    """``a``: the rows of this rank, a multiple of the tile's; ``tiles_m`` of a rank. ``gathered``: on every rank room
    for the rows of all. ``arrived``: on every rank a counter for each row of tiles of each rank; ``begun``: on every
    rank a flag for each rank; ``calls``: two counters of this rank. All are 0 before the first call; then no call needs
    a change of them (see `node`). All CTAs of a rank run at once.

    role      warps  moves                                      waits for               signals
    load      0      A of this rank or gathered, B -> ring      ring.empty, arrived     ring.full
    send      1      A of this rank -> tile -> all other ranks  begun, sent             begun, sent, arrived
    multiply  4-     ring -> registers -> blocks of D -> D      ring.full, own block    ring.empty
    """
    (tile_m, tile_n), consumers, k_columns = config.tile, config.consumers, atom(dtype) * config.depth
    strips = tile_m // STRIP // consumers
    ring = operand_ring(config, consumers, ("k", "k"), (dtype, dtype))
    blocks = smem.tile(dtype, (consumers * WARPS * STORES * WARP_ROWS, ROW_BYTES // dtype.nbytes), swizzle=128)
    tile, sent = smem.tile(dtype, (tile_m, k_columns), swizzle=128), mbarrier(1, name="sent")
    rank, ranks, call = gathered.rank, gathered.ranks, calls[0] + 1

    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()
        sent.init()
        fence.mbarrier_init()

    bar.sync()

    def output_tiles() -> Iterator[tuple[Expr, Expr, Expr]]:
        """Yields the rank of a tile's rows, its row of tiles in that rank, and its column: this rank's rows first."""
        for number in loop(ctaid.x, ranks * tiles_m * tiles_n, nctaid.x):
            row, col = grouped_tile(number % (tiles_m * tiles_n), tiles_m, tiles_n, config.group)
            yield (rank + number // (tiles_m * tiles_n)) % ranks, row, col * tile_n

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for source, row, col in output_tiles():
            own = source == rank
            with If(~own):
                await_flag(arrived[rank] + (source * tiles_m + row), tiles_k)
            for k in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                with If(own):
                    load_part(slot.a, a, "k", (), row * tile_m, k * k_columns, slot.full)
                with If(~own):
                    top = (source * tiles_m + row) * tile_m
                    load_part(slot.a, gathered[rank], "k", (), top, k * k_columns, slot.full)
                load_part(slot.b, b, "k", (), col, k * k_columns, slot.full)
        slots.wait_all_empty()
        with If(is_last(calls)):  # all CTAs have read the counters, and no rank adds to them before the next call
            for number in loop(ranks * tiles_m):
                arrived[rank][number] = 0
            calls[0] = call

    @role(warp=1, elect=True)
    def send() -> None:
        with If(ctaid.x == 0):
            signal_begin(begun, call)
        with If(ctaid.x < tiles_m * tiles_k):  # the other ranks have read what the last call sent them
            for step in loop(1, ranks):
                await_flag(begun[rank] + (rank + step) % ranks, call)
        for number in loop(ctaid.x, tiles_m * tiles_k, nctaid.x):
            row, k = number // tiles_k, number % tiles_k
            sent.arrive_expect_tx(tile.nbytes)
            load_part(tile, a, "k", (), row * tile_m, k * k_columns, sent)
            sent.wait((number - ctaid.x) // nctaid.x & 1)
            for step in loop(1, ranks):
                tma.store(gathered[(rank + step) % ranks][(rank * tiles_m + row) * tile_m, k * k_columns], tile)
            tma.commit_group()
            tma.wait_group(0)  # the stores have arrived
            for step in loop(1, ranks):
                flag = arrived[(rank + step) % ranks] + (rank * tiles_m + row)
                red.add(flag, 1, sem="release", scope="sys")

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        first = shfl.idx(warp.id // WARPS - 1, 0) * strips
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        slots, completed, stores = ring.consumer(), ring.consumer(), elect_one()
        leads = stores & (warp.id % WARPS == 0)
        for source, row, col in output_tiles():
            for slot in mainloop(sums, first, 0, tiles_k, slots, completed, ("k", "k")):
                with If(leads):
                    slot.empty.arrive()
            for i, acc in enumerate(sums):
                top = (source * tiles_m + row) * tile_m + (first + i) * STRIP
                store_strip(acc, d, blocks, warp.id - WARPS, (), top, col, stores, unchanged, config.matrices)
        with If(stores):
            tma.wait_group(0)
