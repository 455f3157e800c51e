"""GEMM for Hopper whose two consumer warpgroups multiply in turn, each a tile of its own ("pingpong").

While one warpgroup has the tensor cores, for all of K, the other one stores its tile. So neither stores nor the wait
for a tile's last wgmmas are between two tiles. A warpgroup has all 128 rows of a tile: 208 columns are as many sums as
it has registers for. The last round has narrower tiles, as in `two_widths`.
"""

from __future__ import annotations

from dataclasses import replace

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.configs import CONFIGS, STRIP, Config
from warpwright.kernels.gemm.sm90.kernel import mainloop, operand_ring, signal_target
from warpwright.kernels.gemm.sm90.store import store_strip
from warpwright.kernels.gemm.sm90.two_widths import init_and_fill, load_tiles, narrow_tiles, wide_tiles
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS
from warpwright.lang import (
    Expr,
    If,
    bar,
    bf16,
    elect_one,
    f32,
    kernel,
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
from warpwright.lang.fragment import Fragment
from warpwright.types import Scalar

__all__ = ["gemm_pingpong"]

CONSUMERS = 2
REGISTERS = 24, 240  # of a loading thread, of a consuming thread
AT_ONCE = 16  # columns of a tile that are rounded together: the sums leave few registers
TURN, BOTH = 1, 256  # the named barrier of the first warpgroup's turn, before that of the second; threads of both


@kernel("sm_90a", threads=384)
def gemm_pingpong(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    batches: u32,
    columns: u32,
    bias: u64,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    narrow_b: tma.Map[Scalar],
    narrow_d: tma.Map[Scalar],
    rest_d: tma.Map[Scalar],
    wide_m: u32,
    narrow_n: u32,
    *,
    config: Config = CONFIGS["128x200 pingpong"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """The parameters are those of `gemm_two_widths`, and D once more: ``narrow_d`` and ``rest_d`` store the last
    columns of a narrow and of a wide tile, which are no whole block.

    role      warps  moves                                     waits for             signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty            ring.full
    multiply  4-     ring -> registers -> blocks of D -> D     ring.full, own turn   ring.empty (of sharing CTAs),
                                                                                     the other's turn
    """
    (tile_m, tile_n), tiles = config.tile, (wide_m, tiles_n, tiles_m, narrow_n)
    ring = operand_ring(config, config.share[0], majors, (dtype, b_dtype or dtype))
    blocks = smem.tile(out, (CONSUMERS * WARPS * config.stores * WARP_ROWS, ROW_BYTES // out.nbytes), swizzle=128)
    init_and_fill(ring, config, (a, b, d), majors, (wide_m, tiles_n, tiles_k, batches))

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[0])

    @role(warp=0, elect=True)
    def load() -> None:
        load_tiles(ring, config, (a, b, narrow_b), majors, tiles, tiles_k)

    @role(warps=range(WARPS, WARPS + WARPS * CONSUMERS))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[1])
        own = shfl.idx(warp.id // WARPS - 1, 0)
        peer, shares, stores = *signal_target(config.share), elect_one()
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(tile_m // STRIP)]
        narrow_sums = [replace(acc, shape=(STRIP, config.last), regs=acc.regs[: config.last // 2]) for acc in sums]
        slots, completed = ring.consumer(), ring.consumer()
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        # The CTA's first tile is the first warpgroup's: the second one opens its turn.
        with If(own == 1):
            slots.skip(tiles_k)
            completed.skip(tiles_k)
            bar.arrive(TURN, BOTH)

        def pass_turn() -> None:
            bar.arrive(TURN + 1 - own, BOTH)

        def multiply_tile(sums: list[Fragment], row: Expr, col: Expr, rest: tma.Map[Scalar]) -> None:
            # The other warpgroup has issued the wgmmas of the tile before. Its waits for `full` are over too: a wait
            # for a slot more than a phase ahead would see the parity of an earlier phase and pass.
            bar.sync(TURN + own, BOTH)
            for slot in mainloop(sums, 0, 0, tiles_k, slots, completed, majors, issued=pass_turn):
                with If(shares):
                    slot.empty.at(peer).arrive(scope="cta")
            slots.skip(tiles_k)
            completed.skip(tiles_k)
            for i, acc in enumerate(sums):
                top, each = row + i * STRIP, config.stores
                store_strip(acc, d, blocks, warp.id - WARPS, (), top, col, stores, finish, True, rest, each, AT_ONCE)

        for row, col in wide_tiles(config, *tiles, own):
            multiply_tile(sums, row, col, rest_d)
        for row, col in narrow_tiles(config, *tiles, own):
            multiply_tile(narrow_sums, row, col, narrow_d)
        with If(stores):
            tma.wait_group(0, read=True)
