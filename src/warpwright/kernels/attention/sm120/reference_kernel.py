"""Attention as in a published kernel for consumer Blackwell, without its mistakes: scores, weights and outputs pass
through shared memory, and all warps synchronise between the steps.

The configurations are the next steps that the kernel's author proposed, one change each, to measure each change.
`sm120.kernel` keeps everything in registers and is several times as fast.
"""

from __future__ import annotations

from typing import Any

from warpwright.kernels.attention.sm90.steps import init_barriers
from warpwright.kernels.attention.sm120.plan import LANES, STEPS, Config
from warpwright.kernels.attention.sm120.reference_steps import (
    SharedState,
    accumulate_values,
    apply_mask,
    compute_scores,
    convert_weights,
    load_weights,
    online_softmax,
    sync_and_store_output,
    write_output,
)
from warpwright.kernels.attention.sm120.steps import Mask, TmaCopies
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
    config: Config = STEPS["v3"],
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """All warps walk the key blocks together, with six ``bar.sync`` a block; a thread of warp 0 loads ahead.

    Consumers compute, with ``helpers`` the producers too; the first ``softmax`` of them take rows of scores in turn.

    step        warps              moves                                                 then
    load        0                  Q -> `q`; K, V -> ring `kv`
    scores      computing          `q`, `kv` -> `scores`                                 bar.sync
    mask        computing          masked keys: -inf in `scores`                         bar.sync
    softmax     `softmax` of them  `scores` -> weights, `row_max`, `row_sum`, `sums`     bar.sync
    convert     computing          weights -> registers; bar.sync; -> `weights`          bar.sync
    values      computing          `weights`, `kv` -> `sums`                             bar.sync
    output      computing          `sums` -> `q` -> O                                    bar.sync
    """
    source, mask = tma_copies((q, k, v, o), group), Mask(q_len, kv_len, left, right)
    producers, consumers, stages, keys = config.producers, config.consumers, config.stages, config.tile[1]
    computing = range(0 if config.helpers else producers, producers + consumers)
    q_full, kv = mbarrier(name="q_full"), ring_of(config, dtype)
    state = SharedState.of(config, dtype, computing)
    top = ((nctaid.x - 1 - ctaid.x) * config.tile[0]).to(s32)
    first, stop = mask.blocks(top, *config.tile)
    one = elect_one()
    loads, leader = (warp.id == 0) & one, (state.own == 0) & one
    state.clear()
    init_barriers((q_full, kv))
    bar.sync()

    to_kv, of_kv = kv.producer(), kv.consumer()
    with If(loads):
        source.load_and_arrive("q", state.q, top, q_full)
    for ahead in loop(stages - 1):
        with If(loads & (first + ahead < stop)):
            load_when_empty(next(to_kv), source, first + ahead)
    q_full.wait(0)
    for number in loop(first, stop):
        with If(loads & (number + (stages - 1) < stop)):
            load_when_empty(next(to_kv), source, number + (stages - 1))
        warp.sync()
        slot, column = next(of_kv), (number * keys).to(s32)
        slot.full.wait()
        compute_scores(state, slot.k)
        bar.sync()
        apply_mask(state, top, column, mask)
        bar.sync()
        online_softmax(state, factor, config.softmax, convert=False)
        bar.sync()
        weights = load_weights(state)
        bar.sync()
        convert_weights(state, weights)
        bar.sync()
        accumulate_values(state, slot.v)
        fence.proxy_async()
        bar.sync()
        with If(leader):
            slot.empty.arrive()
    write_output(state, top, lse, factor, mask)
    fence.proxy_async()
    bar.sync()
    sync_and_store_output(state, source, top, mask, leader)
    source.wait_stores(leader)


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
    config: Config = STEPS["fewer-syncs"],
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """`attention_meeting` with fewer barriers: a producer role loads ahead, and the consumers have three ``bar.sync`` a
    block. The mask is applied to scores in registers, and a warp converts the rows whose softmax it computes.

    role      warps       moves                                             waits for                   signals
    load      0           Q -> `q`; K, V -> ring `kv`                       kv.empty                    q_full, kv.full
    compute   producers-  `q`, `kv` -> `scores` -> `weights` -> `sums` -> O q_full, kv.full, bar.sync   kv.empty
    """
    source, mask = tma_copies((q, k, v, o), group), Mask(q_len, kv_len, left, right)
    consumers = range(config.producers, config.producers + config.consumers)
    q_full, kv = mbarrier(name="q_full"), ring_of(config, dtype)
    state = SharedState.of(config, dtype, consumers)
    top = ((nctaid.x - 1 - ctaid.x) * config.tile[0]).to(s32)
    first, stop = mask.blocks(top, *config.tile)
    state.clear()
    init_barriers((q_full, kv))
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        to_kv = kv.producer()
        source.load_and_arrive("q", state.q, top, q_full)
        for number in loop(first, stop):
            load_when_empty(next(to_kv), source, number)

    @role(warps=consumers)
    def compute() -> None:
        of_kv, leader = kv.consumer(), (state.own == 0) & elect_one()
        barrier = 1, LANES * len(consumers)  # the named barrier of the consumers: its number and threads
        q_full.wait(0)
        for number in loop(first, stop):
            slot, column = next(of_kv), (number * config.tile[1]).to(s32)
            slot.full.wait()
            compute_scores(state, slot.k, (top, column, mask))
            bar.sync(*barrier)
            online_softmax(state, factor, config.softmax, convert=True)
            bar.sync(*barrier)
            accumulate_values(state, slot.v)
            fence.proxy_async()
            bar.sync(*barrier)
            with If(leader):
                slot.empty.arrive()
        write_output(state, top, lse, factor, mask)
        fence.proxy_async()
        bar.sync(*barrier)
        sync_and_store_output(state, source, top, mask, leader)
        source.wait_stores(leader)


def tma_copies(maps: tuple[tma.Map[Scalar], ...], group: Expr) -> TmaCopies:
    """Returns the copies of Q, K, V and O of this CTA's head."""
    head, batch = ctaid.y, ctaid.z
    shared = (batch, head // group)
    return TmaCopies(
        dict(zip("qkvo", maps, strict=True)), {"q": (batch, head), "k": shared, "v": shared, "o": (batch, head)}
    )


def ring_of(config: Config, dtype: type[Scalar]) -> Ring:
    """Returns the ring of tiles of K and V, which are loaded together."""
    block = smem.tile(dtype, (config.tile[1], config.head_dim), swizzle=128)
    return Ring(config.stages, full=1, empty=1, name="kv", k=block, v=block)


def load_when_empty(slot: Any, source: TmaCopies, number: Expr) -> None:
    """Wait until the slot is empty and load block ``number`` of K and V, which completes the slot's full barrier."""
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    row = (number * slot.k.shape[0]).to(s32)
    source.issue_loads("k", slot.k, row, slot.full)
    source.issue_loads("v", slot.v, row, slot.full)
