"""dQ of the Hopper attention backward: the float32 sums of all CTAs of a head, scaled, rounded and transposed.

The sums of ``slots`` heads are in memory at a time, so that L2 keeps them. Two warps of each CTA of `gradients` convert
a share of the sums of the head ``lag`` heads before their own, whose CTAs have ended, and set them to 0, while the
tensor cores work; the CTAs of a later head then add to the same memory. `convert` is the launch for the last ``lag``
heads. A CTA waits for CTAs of earlier heads only, and the GPU starts CTAs in the order of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.backward_extent import TileOfQueries
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS, ROW, BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import FOUR, pack_pairs, store_transposed
from warpwright.kernels.attention.sm90.plan import STRIP, WARPGROUP
from warpwright.kernels.tiles import WARP_ROWS, WARPS, part
from warpwright.lang import (
    Break,
    Global,
    If,
    Pointer,
    Ring,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    griddepcontrol,
    kernel,
    ld,
    loop,
    nctaid,
    red,
    smem,
    st,
    tid,
    tma,
    u32,
    u64,
    warp,
)
from warpwright.lang.ring import Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["CONVERTERS", "Converter", "Progress", "convert"]

BOXES = 2  # boxes of the sums of a consumer's part of a tile
CONVERTERS = range(2, 4)  # the warps that convert, one for the part of each consumer


@dataclass(frozen=True)
class Progress:
    """Two counters of each head of K, in memory: CTAs that have ended, and warps that have converted their share.

    Each head has ``blocks`` CTAs, and its sums are those of number head % ``slots``.
    """

    words: Global[u32]
    blocks: Any
    slots: Any

    def count_end(self, head: Any) -> None:
        """Count a CTA of ``head``. Issued by the thread whose adds to the sums are complete: it releases them."""
        red.add(self.words + head * 2, 1, sem="release", scope="gpu")

    def wait_ended(self, head: Any) -> None:
        """Wait until all CTAs of ``head`` have ended; this thread acquires their sums."""
        await_count(self.words + head * 2, self.blocks)

    def count_conversion(self, head: Any) -> None:
        """Count a warp that has converted its share of ``head``. Issued by one thread, which releases the zeros."""
        red.add(self.words + (head * 2 + 1), 1, sem="release", scope="gpu")

    def wait_free(self, head: Any) -> None:
        """Wait until the sums of ``head`` are 0: the head before in the same memory is converted."""
        with If(head >= self.slots):
            await_count(self.words + ((head - self.slots) * 2 + 1), self.blocks * len(CONVERTERS))


def await_count(counter: Pointer[u32], count: Any) -> None:
    """Wait until a counter has reached ``count``, and acquire what its counts released."""
    for _ in loop():
        Break(when=ld(counter, sem="acquire", scope="gpu") == count)


class Converter:
    """A warp that converts the part of one consumer of tiles of dQ, through a box of sums and a tile of ``dtype``."""

    def __init__(self, config: BackwardConfig, sums: Global[f32], dtype: type[Scalar], factor: Any) -> None:
        box = smem.tile(f32, (config.sum_rows // (len(CONVERTERS) * BOXES), ROW))
        self.staged = Ring(len(CONVERTERS), empty=0, name="staged", sums=box)
        # A consumer has half of the queries, or half of the columns.
        self.by_rows = config.head_dim == STRIP
        self.rows = config.tile[0] // len(CONVERTERS) if self.by_rows else config.tile[0]
        self.out = smem.tile(dtype, (len(CONVERTERS) * self.rows, STRIP), swizzle=128)
        self.config, self.sums, self.factor = config, sums, factor

    def begin(self) -> None:
        """Begin the role."""
        self.own, self.one = warp.id - CONVERTERS[0], elect_one()

    def round(self, place: Any) -> None:
        """Round this warp's part of tile ``place`` of the sums, and set it to 0."""
        rows = self.staged.members["sums"].shape[0]
        for box in loop(BOXES, unroll=False):  # an even number, so that the phase is that of the box
            slot = Slot(self.staged, self.own, box)
            self._load_and_clear(slot, place * self.config.sum_rows + (self.own * BOXES + box) * rows)
            for number in loop(WARPS, unroll=False):
                for start in range(0, rows * ROW // WARPGROUP, FOUR):
                    # Two rows of sums are 8 queries.
                    self._round(slot.sums, number, start, box * (rows * FOUR) + 2 * start)
            # TMA overwrites the box, reads `out`, and adds to the zeros.
            fence.proxy_async("")
            warp.sync()

    def _load_and_clear(self, slot: Slot, row: Any) -> None:
        """Load a box of the sums from ``row`` on, and set them to 0."""
        corner = self.sums + row.to(u64) * ROW
        with If(self.one):
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.copy(slot.sums.address, corner.address, slot.nbytes, slot.full)
        slot.full.wait()
        for start in range(0, slot.nbytes // f32.nbytes, 32 * FOUR):
            st(corner + (warp.lane * FOUR + start), 0.0, 0.0, 0.0, 0.0)

    def _round(self, sums: Tile, number: Any, start: int, top: Any) -> None:
        """Store 8 queries of ``sums``, of the fragment of warp ``number``, to ``out`` from row ``top`` on."""
        corner = sums.at(0, (number * 32 + warp.lane) * FOUR) + start * WARPGROUP
        values = [value * self.factor for value in ld(corner, vec=FOUR)]
        words = pack_pairs(values, self.out.dtype)
        store_transposed(part(self.out, self.own, self.rows, "k"), words, top, number * WARP_ROWS)

    def store(self, dq: tma.Map[Scalar], place: tuple[Any, ...]) -> None:
        """Store the tile ``out`` to this warp's part of the tile of dQ that begins at ``place``."""
        *before, row = place
        top, left = (self.own * self.rows, 0) if self.by_rows else (0, self.own * STRIP)
        with If(self.one):
            tma.store(dq[(*before, row + top, left)], part(self.out, self.own, self.rows, "k"))
            tma.commit_group()
            tma.wait_group(0, read=True)
        warp.sync()


@kernel("sm_90a", threads=256)
def convert(
    sums: Global[f32],
    dq: tma.Map[Scalar],
    scale: f32,
    first: u32,
    slots: u32,
    kv_heads: u32,
    *packed: Any,
    config: BackwardConfig = CONFIGS[128, True],
    dtype: type[Scalar] = bf16,
    threads: int = 256,
) -> None:
    """A tile of queries of dQ: fragments, scaled, rounded and transposed, of head ``first`` + ctaid.z of K."""
    q_len, *starts = packed or (0,)
    queries, head_dim = config.tile[0], config.head_dim
    out, count = smem.tile(dtype, (queries, head_dim), swizzle=128), queries * head_dim // threads
    own, of_keys = warp.id // WARPS, first + ctaid.z
    at_head = of_keys // kv_heads, of_keys % kv_heads * nctaid.y + ctaid.y
    *before, row = TileOfQueries.at(ctaid.x, at_head, kv_heads * nctaid.y, q_len, queries, starts).place
    place = (of_keys % slots * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
    griddepcontrol.wait()
    corner = sums + place.to(u64) * (queries * head_dim) + (own * (count * WARPGROUP) + tid.x % WARPGROUP * 4)
    values = [value * scale for start in range(0, count, 4) for value in ld(corner + start * WARPGROUP, vec=4)]
    halves = head_dim == STRIP
    top = own * (queries // 2) if halves else 0
    left = warp.id % WARPS * WARP_ROWS if halves else warp.id * WARP_ROWS
    store_transposed(out, pack_pairs(values, dtype), top, left)
    fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        for column in range(0, head_dim, STRIP):
            tma.store(dq[(*before, row, column)], out[:, column : column + STRIP])
        tma.commit_group()
        tma.wait_group(0, read=True)
