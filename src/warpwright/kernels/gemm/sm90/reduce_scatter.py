"""GEMM and reduce-scatter in one Hopper kernel, without multicast: each rank of a node has a part of K.

D is the sum of A·Bᵀ of all ranks, and each rank stores its share of D's rows. A rank computes all tiles of D over its
part of K: first those in the rows of other ranks. Their sums go from the registers straight to the owner, to an entry
of their own, and a flag tells it. Last come the tiles in its own rows: to their sums it adds those that have arrived
meanwhile, always in the same order, and stores D. No sum is an atomic operation.

Ordinary stores send the sums: 16 bytes a thread and 512 a warp, side by side. They are as fast as TMA (`bench/link.py`)
and need no shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpwright.kernels.gemm.epilogue import factor
from warpwright.kernels.gemm.sm90.configs import CONFIGS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.fp8 import mainloop_fp8
from warpwright.kernels.gemm.sm90.kernel import (
    REGISTERS,
    grouped_tile,
    load_part,
    mainloop,
    operand_ring,
)
from warpwright.kernels.gemm.sm90.store import store_strip, unchanged
from warpwright.kernels.gemm.sm90.sums import add_sums, scale_sums, store_sums, sums_offset
from warpwright.kernels.node import Lack, Limit, await_flag, is_last, signal_begin
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS, atom
from warpwright.lang import (
    Else,
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
    role,
    setmaxnreg,
    shfl,
    smem,
    st,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.types import Scalar

__all__ = ["ALONE", "gemm_reduce_scatter", "sum_over_ranks"]

ALONE = CONFIGS["128x256 alone"]


@kernel("sm_90a", threads=384)
def gemm_reduce_scatter(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    partials: Peers[Scalar],
    arrived: Peers[u32],
    begun: Peers[u32],
    calls: Global[u32],
    report: Global[u32],
    limit_ns: u64,
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *,
    config: Config = ALONE,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] = bf16,
    partial: type[Scalar] = f32,
) -> None:
    """``a``: (ranks, rows, K of this rank), the rows of D by their owners; ``b``: (N, K of this rank); ``d``: (rows, N)
    of this rank, in ``out``. ``tiles_m``, ``tiles_n``: the tiles of (rows, N). In FP8 a rank multiplies its sums by
    ``alpha`` and the factors (float32) at its addresses ``scale_a`` and ``scale_b``, or 0.

    On every rank ``partials`` has (ranks - 1) · tiles_m · tiles_n entries of a tile's elements in ``partial``, float32
    or a 16-bit type; ``arrived`` a flag for each entry; ``begun`` a flag for each rank. ``calls`` are two counters of
    this rank. Flags and counters are 0 before the first call; then no call needs a change of them (see `node`). All
    CTAs of a rank run at once. ``report`` and ``limit_ns`` are the `Limit` of each wait for another rank.

    role      warps  moves                                            waits for             signals
    load      0      A, B -> ring                                     ring.empty            ring.full
    signal    1      nothing                                          begun, arrived, used  begun, granted, arrived
    multiply  4-     ring -> registers -> entry of the owner          ring.full, granted    ring.empty, used
                     ring -> registers + entries -> blocks of D -> D  ring.full, granted    ring.empty, used
    """
    sum_over_ranks(
        a, b, d, partials, arrived, begun, calls, None, Limit(report, limit_ns), (tiles_m, tiles_n, tiles_k),
        (alpha, scale_a, scale_b), config=config, dtype=dtype, out=out, partial=partial,
    )  # fmt: skip


def sum_over_ranks(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar] | tma.PeerMaps[Scalar],
    partials: Peers[Scalar],
    arrived: Peers[u32],
    begun: Peers[u32],
    calls: Global[u32],
    stored: Peers[u32] | None,
    limit: Limit,
    counts: tuple[Expr, Expr, Expr],
    factors: tuple[Expr, Expr, Expr],
    *,
    config: Config,
    dtype: type[Scalar],
    out: type[Scalar],
    partial: type[Scalar],
) -> None:
    """The roles of `gemm_reduce_scatter` and, with ``stored``, of `gemm_all_reduce`."""
    tiles_m, tiles_n, tiles_k = counts
    (tile_m, tile_n), consumers, k_columns = config.tile, config.consumers, atom(dtype) * config.depth
    strips = tile_m // STRIP // consumers
    ring = operand_ring(config, consumers, ("k", "k"), (dtype, dtype))
    blocks = smem.tile(out, (consumers * WARPS * STORES * WARP_ROWS, ROW_BYTES // out.nbytes), swizzle=128)
    granted, used = mbarrier(1, name="granted"), mbarrier(consumers * WARPS, name="used")
    rank, ranks, tiles, call = arrived.rank, arrived.ranks, tiles_m * tiles_n, calls[0] + 1

    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()
        granted.init()
        used.init()
        fence.mbarrier_init()

    bar.sync()

    def output_tiles() -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Yields number, owner, row in the owner's rows, and column of each tile: those of this rank come last.

        Entry ``number`` of the owner is for this tile.
        """
        for number in loop(ctaid.x, ranks * tiles, nctaid.x):
            row, col = grouped_tile(number % tiles, tiles_m, tiles_n, config.group)
            yield number, (rank + 1 + number // tiles) % ranks, row * tile_m, col * tile_n

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for _, owner, row, col in output_tiles():
            for k in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                load_part(slot.a, a, "k", (owner,), row, k * k_columns, slot.full)
                load_part(slot.b, b, "k", (), col, k * k_columns, slot.full)
        slots.wait_all_empty()

    @role(warp=1, elect=True)
    def signal() -> None:
        turn = var(u32, 0)
        with If(ctaid.x == 0):
            signal_begin(begun, call)
        for number, owner, _, _ in output_tiles():
            with If(owner != rank):  # the owner has read what the last call stored in the entry
                await_flag(begun[rank] + owner, call, owner, Lack.BEGIN, limit)
            with Else():
                for other in loop(number % tiles, number, tiles):
                    # The sender gave the tile the number of its entry, in the order of its own owners.
                    source = (rank + ranks - 1 - other // tiles) % ranks
                    await_flag(arrived[rank] + other, call, source, Lack.SEND, limit)
            granted.arrive()
            used.wait(turn)
            turn ^= 1
            with If(owner != rank):
                st(arrived[owner] + number, call, sem="release", scope="sys")
            if stored is not None:
                with If(owner == rank):
                    for step in loop(1, ranks):
                        tile = stored[(rank + step) % ranks] + (rank * tiles + number % tiles)
                        st(tile, call, sem="release", scope="sys")
        if stored is not None:
            for number in loop(ctaid.x, (ranks - 1) * tiles, nctaid.x):
                owner = (rank + 1 + number // tiles) % ranks
                await_flag(stored[rank] + (owner * tiles + number % tiles), call, owner, Lack.STORE, limit)
        with If(is_last(calls)):
            calls[0] = call

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        first, turn = shfl.idx(warp.id // WARPS - 1, 0) * strips, var(u32, 0)
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        slots, completed, one = ring.consumer(), ring.consumer(), elect_one()
        leads = one & (warp.id % WARPS == 0)
        scale = factor(*factors) if config.promoted else None

        def entry(number: Expr, i: int) -> Any:
            """Offset of this thread's sums of strip ``i`` in entry ``number`` of the partial sums."""
            strip = (number * (strips * consumers) + first + i) * WARPS + warp.id % WARPS
            return sums_offset(sums[i], strip, partial)

        for number, owner, row, col in output_tiles():
            for slot in (
                mainloop_fp8(sums, config, first, 0, tiles_k, slots)
                if config.promoted
                else mainloop(sums, first, 0, tiles_k, slots, completed, ("k", "k"))
            ):
                with If(leads):
                    slot.empty.arrive()
            if scale is not None:
                scale_sums(sums, scale)
            granted.wait(turn)
            turn ^= 1
            with If(owner != rank):
                for i, acc in enumerate(sums):
                    store_sums(acc, partials[owner].cast(partial) + entry(number, i))
            with Else():
                for other in loop(number % tiles, number, tiles):
                    for i, acc in enumerate(sums):
                        add_sums(acc, partials[rank].cast(partial) + entry(other, i))
                for i, acc in enumerate(sums):
                    top, at = row + (first + i) * STRIP, () if stored is None else (owner,)
                    store_strip(acc, d, blocks, warp.id - WARPS, at, top, col, one, unchanged, config.matrices)
                if stored is not None:
                    with If(one):
                        tma.wait_group(0)  # the stores have arrived on all ranks
            warp.sync()
            with If(one):
                used.arrive()
        with If(one):
            tma.wait_group(0, read=True)
