"""Attention as a published kernel for consumer Blackwell does it, without its mistakes: scores, weights and outputs
pass through shared memory, and all warps wait for each other between the steps.

Its configurations are that kernel's own next steps, one change each. They say what each change is worth; `sm120` keeps
everything in registers and is several times as fast.
"""

from __future__ import annotations

from typing import Any

from warpwright.kernels.attention.sm120.reference_steps import Held, convert, leave, mask, score, soften, weigh
from warpwright.kernels.attention.sm120.steps import Bounds, ByTma, set_up
from warpwright.lang import (
    Expr,
    If,
    Ring,
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
    s32,
    smem,
    tma,
    u32,
    u64,
    warp,
)
from warpwright.types import Scalar

__all__ = ["attention_meeting", "attention_shared"]


@kernel("sm_120a", threads=384)
def attention_meeting(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    q_len: s32,
    kv_len: s32,
    left: s32,
    right: s32,
    group: u32,
    factor: f32,
    *,
    tile: tuple[int, int] = (32, 64),
    head_dim: int = 128,
    stages: int = 2,
    producers: int = 4,
    consumers: int = 8,
    softmax: int = 1,
    helpers: bool = False,
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """All warps walk the tiles of keys together and meet six times in each; a thread of warp 0 loads ahead.

    Consumers compute, with ``helpers`` the producers too; the first ``softmax`` of them take rows of scores in turn.

    step      warps                moves                                              then
    load      0                    Q -> `q`; K, V -> ring `kv`
    score     computing            `q`, `kv` -> `scores`                              all meet
    mask      computing            hidden keys: -inf in `scores`                      all meet
    soften    `softmax` of them    `scores` -> weights, `greatest`, `totals`, `sums`  all meet
    convert   computing            weights -> registers; all meet; -> `weights`       all meet
    weigh     computing            `weights`, `kv` -> `sums`                          all meet
    leave     computing            `sums` -> `q` -> O                                 all meet
    """
    source, bounds = mapped((q, k, v, o), group), Bounds(q_len, kv_len, left, right)
    computing = range(0 if helpers else producers, producers + consumers)
    q_full, kv = mbarrier(name="q_full"), ring(stages, tile[1], head_dim, dtype)
    held = Held.of(tile, head_dim, dtype, computing)
    top = ((nctaid.x - 1 - ctaid.x) * tile[0]).to(s32)
    first, stop = bounds.tiles(top, *tile)
    one = elect_one()
    loads, frees = (warp.id == 0) & one, (held.own == 0) & one
    held.clear()
    set_up(q_full, kv)

    slots, filled = kv.producer(), kv.consumer()
    with If(loads):
        source.load("q", held.q, top, q_full)
    for ahead in loop(stages - 1):
        with If(loads & (first + ahead < stop)):
            fill(next(slots), source, first + ahead)
    q_full.wait(0)
    for number in loop(first, stop):
        with If(loads & (number + (stages - 1) < stop)):
            fill(next(slots), source, number + (stages - 1))
        warp.sync()
        slot, column = next(filled), (number * tile[1]).to(s32)
        slot.full.wait()
        score(held, slot.k)
        bar.sync()
        mask(held, top, column, bounds)
        bar.sync()
        soften(held, factor, softmax, convert=False)
        bar.sync()
        convert(held, bar.sync)
        bar.sync()
        weigh(held, slot.v)
        fence.proxy_async()
        bar.sync()
        with If(frees):
            slot.empty.arrive()
    leave(held, source, top, lse, factor, bounds, bar.sync, frees)


@kernel("sm_120a", threads=384)
def attention_shared(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    q_len: s32,
    kv_len: s32,
    left: s32,
    right: s32,
    group: u32,
    factor: f32,
    *,
    tile: tuple[int, int] = (32, 64),
    head_dim: int = 128,
    stages: int = 2,
    producers: int = 4,
    consumers: int = 8,
    softmax: int = 8,
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """`attention_meeting` with fewer synchronisations: a producer runs ahead by itself, the consumers meet three times
    a tile. The mask belongs to the scores while they are in registers, and a warp converts the rows that it softens.

    role      warps       moves                                             waits for                   signals
    load      0           Q -> `q`; K, V -> ring `kv`                       kv.empty                    q_full, kv.full
    compute   producers-  `q`, `kv` -> `scores` -> `weights` -> `sums` -> O q_full, kv.full, each other kv.empty
    """
    source, bounds = mapped((q, k, v, o), group), Bounds(q_len, kv_len, left, right)
    q_full, kv = mbarrier(name="q_full"), ring(stages, tile[1], head_dim, dtype)
    held = Held.of(tile, head_dim, dtype, range(producers, producers + consumers))
    top = ((nctaid.x - 1 - ctaid.x) * tile[0]).to(s32)
    first, stop = bounds.tiles(top, *tile)
    held.clear()
    set_up(q_full, kv)

    @role(warp=0, elect=True)
    def load() -> None:
        slots = kv.producer()
        source.load("q", held.q, top, q_full)
        for number in loop(first, stop):
            fill(next(slots), source, number)

    @role(warps=range(producers, producers + consumers))
    def compute() -> None:
        filled, frees = kv.consumer(), (held.own == 0) & elect_one()

        def meet() -> None:
            bar.sync(1, 32 * consumers)

        q_full.wait(0)
        for number in loop(first, stop):
            slot, column = next(filled), (number * tile[1]).to(s32)
            slot.full.wait()
            score(held, slot.k, (top, column, bounds))
            meet()
            soften(held, factor, softmax, convert=True)
            meet()
            weigh(held, slot.v)
            fence.proxy_async()
            meet()
            with If(frees):
                slot.empty.arrive()
        leave(held, source, top, lse, factor, bounds, meet, frees)


def mapped(maps: tuple[tma.Map[Scalar], ...], group: Expr) -> ByTma:
    """Q, K, V and O of this CTA's head."""
    head, batch = ctaid.y, ctaid.z
    shared = (batch, head // group)
    return ByTma(dict(zip("qkvo", maps, strict=True)), {"q": (batch, head), "k": shared, "v": shared})


def ring(stages: int, rows: int, head_dim: int, dtype: type[Scalar]) -> Ring:
    """Tiles of K and V, filled together."""
    block = smem.tile(dtype, (rows, head_dim), swizzle=128)
    return Ring(stages, full=1, empty=1, name="kv", k=block, v=block)


def fill(slot: Any, source: ByTma, number: Expr) -> None:
    """The tile of K and V with this number."""
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    row = (number * slot.k.shape[0]).to(s32)
    source.copy("k", slot.k, row, slot.full)
    source.copy("v", slot.v, row, slot.full)
