"""dQ of the Hopper attention backward: the float32 sums of all CTAs of a head, scaled, rounded and transposed.

The sums of ``slots`` heads are in memory at a time, so that L2 keeps them. Two warps of each CTA of `gradients` convert
a share of the sums of the head ``lag`` heads before their own, whose CTAs have ended, and set them to 0, while the
tensor cores work; the CTAs of a later head then add to the same memory. `convert` is the launch for the last ``lag``
heads. A CTA waits for CTAs of earlier heads only, and the GPU starts CTAs in the order of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from warpwright.kernels.attention.sm90.backward_extent import TileOfQueries
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS, ROW, BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import FOUR, LANES, pack_pairs, store_transposed
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.attention.sm90.steps import panel, store_panels
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
CONVERTERS = range(2, 4)  # the warps that convert, one for each half of a tile


@dataclass(frozen=True)
class Progress:
    """Two counters of each head of K, in memory: CTAs that have ended, and warps that have converted their share.

    Each head has ``blocks`` CTAs, and its sums are those of number head % ``slots``. Where no CTA converts sums of
    earlier heads, ``ahead`` is False: each head has sums of its own, and no thread counts.
    """

    words: Global[u32]
    blocks: Any
    slots: Any
    ahead: bool = True

    def count_end(self, head: Any) -> None:
        """Count a CTA of ``head``. Issued by the thread whose adds to the sums are complete: it releases them."""
        if self.ahead:
            red.add(self.words + head * 2, 1, sem="release", scope="gpu")

    def wait_ended(self, head: Any) -> None:
        """Wait until all CTAs of ``head`` have ended; this thread acquires their sums."""
        await_count(self.words + head * 2, self.blocks)

    def count_conversion(self, head: Any) -> None:
        """Count a warp that has converted its share of ``head``. Issued by one thread, which releases the zeros."""
        red.add(self.words + (head * 2 + 1), 1, sem="release", scope="gpu")

    def wait_free(self, head: Any) -> None:
        """Wait until the sums of ``head`` are 0: the head before in the same memory is converted."""
        if not self.ahead:
            return
        with If(head >= self.slots):
            await_count(self.words + ((head - self.slots) * 2 + 1), self.blocks * len(CONVERTERS))


def await_count(counter: Pointer[u32], count: Any) -> None:
    """Wait until a counter has reached ``count``, and acquire what its counts released."""
    for _ in loop():
        Break(when=ld(counter, sem="acquire", scope="gpu") == count)


class Converter:
    """A warp that converts half of each tile of dQ, box by box of sums, through a tile of ``dtype``.

    The half is a consumer's part, half of the queries or half of the columns. Of 96 columns a part has 48, which no
    swizzle spans: the half has half of the queries, and each box those of one part.
    """

    def __init__(self, config: BackwardConfig, sums: Global[f32], dtype: type[Scalar], factor: Any) -> None:
        group = config.dq_warps * LANES * FOUR  # floats of 8 queries of a consumer's part
        self.groups = config.tile[0] * config.head_dim // (len(CONVERTERS) * BOXES * group)
        box = smem.tile(f32, (self.groups, group))
        self.staged = Ring(len(CONVERTERS), empty=0, name="staged", sums=box)
        self.by_rows, self.across = config.head_dim < 2 * STRIP, config.dq_columns < STRIP
        self.rows = config.tile[0] // len(CONVERTERS) if self.by_rows else config.tile[0]
        columns = config.head_dim if self.by_rows else STRIP
        self.out = smem.tile(dtype, (len(CONVERTERS) * self.rows, columns), swizzle=panel(columns) * dtype.nbytes)
        self.config, self.sums, self.factor = config, sums, factor

    def begin(self) -> None:
        """Begin the role."""
        self.own, self.one = warp.id - CONVERTERS[0], elect_one()

    def round(self, place: Any) -> None:
        """Round this warp's part of tile ``place`` of the sums, and set it to 0."""
        for box in loop(BOXES, unroll=False):  # an even number, so that the phase is that of the box
            slot = Slot(self.staged, self.own, box)
            self._load_and_clear(slot, place, box * BOXES + self.own if self.across else self.own * BOXES + box)
            top, left = (0, box * self.config.dq_columns) if self.across else (box * (self.groups * 8), 0)
            for number in loop(self.config.dq_warps, unroll=False):
                for group in range(self.groups):
                    self._round(slot.sums, number, group, top + 8 * group, left)
            # TMA overwrites the box, reads `out`, and adds to the zeros.
            fence.proxy_async("")
            warp.sync()

    def _load_and_clear(self, slot: Slot, place: Any, number: Any) -> None:
        """Load box ``number`` of tile ``place`` of the sums, and set it to 0."""
        floats = slot.nbytes // f32.nbytes
        step = gcd(floats, ROW)
        row = place * (len(CONVERTERS) * BOXES * floats // step) + number * (floats // step)
        corner = self.sums + row.to(u64) * step
        with If(self.one):
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.copy(slot.sums.address, corner.address, slot.nbytes, slot.full)
        slot.full.wait()
        for start in range(0, floats, LANES * FOUR):
            st(corner + (warp.lane * FOUR + start), 0.0, 0.0, 0.0, 0.0)

    def _round(self, sums: Tile, number: Any, group: int, top: Any, left: Any) -> None:
        """Store a group of 8 queries of ``sums``, of the fragment of warp ``number``, to ``out`` from row ``top`` and
        column ``left`` on."""
        corner = sums.at(0, (number * LANES + warp.lane) * FOUR) + group * sums.shape[1]
        values = [value * self.factor for value in ld(corner, vec=FOUR)]
        words = pack_pairs(values, self.out.dtype)
        store_transposed(part(self.out, self.own, self.rows, "k"), words, top, number * WARP_ROWS + left)

    def store(self, dq: tma.Map[Scalar], place: tuple[Any, ...]) -> None:
        """Store the tile ``out`` to this warp's part of the tile of dQ that begins at ``place``."""
        *before, row = place
        top, left = (self.own * self.rows, 0) if self.by_rows else (0, self.own * STRIP)
        with If(self.one):
            corner, out = (*before, row + top), part(self.out, self.own, self.rows, "k")
            if self.by_rows:
                store_panels(out, dq, *corner)
            else:
                tma.store(dq[(*corner, left)], out)
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
    out = smem.tile(dtype, (queries, head_dim), swizzle=panel(head_dim) * dtype.nbytes)
    count, lanes = queries * head_dim // threads, config.dq_warps * LANES
    own, of_keys = warp.id // config.dq_warps, first + ctaid.z
    at_head = of_keys // kv_heads, of_keys % kv_heads * nctaid.y + ctaid.y
    *before, row = TileOfQueries.at(ctaid.x, at_head, kv_heads * nctaid.y, q_len, queries, starts).place
    place = (of_keys % slots * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
    griddepcontrol.wait()
    corner = sums + place.to(u64) * (queries * head_dim) + (own * (count * lanes) + tid.x % lanes * 4)
    values = [value * scale for start in range(0, count, 4) for value in ld(corner + start * lanes, vec=4)]
    halves = head_dim == STRIP
    top = own * (queries // 2) if halves else 0
    left = warp.id % WARPS * WARP_ROWS if halves else warp.id * WARP_ROWS
    store_transposed(out, pack_pairs(values, dtype), top, left)
    fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        store_panels(out, dq, *before, row)
        tma.commit_group()
        tma.wait_group(0, read=True)
