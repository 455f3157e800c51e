"""FP8 attention forward on Hopper: Q, K and V of e4m3 with a float32 scale for each head, O of bfloat16 or float16.

As `sm90.forward`, whose consumers it has. Weights are rounded to e4m3 in the range of the type, and V was transposed by
an earlier launch (`sm90.fp8_values`), which may still run when this one begins. A tensor core keeps 14 bits of a sum of
8-bit products, so every few blocks O is added to float32 sums in shared memory and begins again. Row sums are columns
of O: after the columns of V are some of ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.forward import REGISTERS, Consumer
from warpwright.kernels.attention.sm90.fp8_plan import CONFIGS, ONES, Fp8Config
from warpwright.kernels.attention.sm90.fp8_steps import (
    QUAD,
    Fp8Softmax,
    ScaledTile,
    Sums,
    load_values_when_empty,
    pack_e4m3,
    rings_of,
    scale_at,
    write_ones,
)
from warpwright.kernels.attention.sm90.plan import STRIP, Config
from warpwright.kernels.attention.sm90.steps import (
    Mask,
    Rings,
    init_barriers,
    issue_rs,
    load_when_empty,
    publish_when_empty,
    read_item,
    rescale,
    schedule,
    store_panels,
    store_rows,
    write_lse,
)
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    atom,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    fma,
    griddepcontrol,
    kernel,
    ld,
    loop,
    nctaid,
    rcp,
    role,
    s32,
    select,
    setmaxnreg,
    st,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["attention_fp8", "kernel_of"]


@kernel("sm_90a", threads=384)
def attention_fp8(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    values: u64,
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    scale_q: u64,
    scale_k: u64,
    scale_v: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    heads: u32,
    group: u32,
    tiles: u32,
    total: u32,
    section: u32,
    scale: f32,
    slabs: u32,
    *,
    config: Fp8Config = CONFIGS["128: 128x224"],
    bounds: tuple[bool, bool] = (False, False),
    out: type[Scalar] = bf16,
    wants_lse: bool = True,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers, as in `sm90.forward.attention`.

    ``values`` is the address of V as `sm90.fp8_values` writes it, ``slabs`` of 32 keys a head. ``scale_q``, ``scale_k``
    and ``scale_v`` are addresses of positive f32 for each head of Q, K and V of each batch, or 0 for factors of 1. A
    kernel that ``wants_lse`` writes the log-sum-exp to ``lse``, if not 0: for that alone threads add weights.

    role      warps  moves                            waits for                        signals
    load      0      numbers -> `work`; Q, K, V       empty of each; the first launch  full of each
    multiply  4-     Q, K, V -> registers -> sums, O  full of each, o.empty            empty of Q, K and V, o.full
    save      1      O in the place of the sums -> O  o.full                           o.empty
    """
    (queries, keys), consumers, width = config.tile, config.consumers, config.head_dim
    rings = rings_of(config)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    sums = Sums.of(config, out)
    init_barriers(rings, (q, k, o))
    write_ones(rings, config)
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number = var(u32, ctaid.x)
        for _ in loop():
            Break(when=number >= total)
            row, head = schedule(number, tiles, section, queries, bounds[1])
            first, count = mask.blocks(row, queries)
            of_scores = scale * scale_at(scale_q, head) * scale_at(scale_k, head // group)
            factors = [each.bitcast(u32) for each in (of_scores, scale_at(scale_v, head // group))]
            publish_when_empty(items, (row, head, first, count, *factors, 0, 0))
            batch, own = head // heads, head % heads
            of, last = (batch, own // group), first + count - 1
            block = values + ((head // group).to(u64) * slabs.to(u64)) * (32 * width)
            # K of the last block and Q, then K a block ahead of V, which the first launch may still be writing.
            load_when_empty(to_k, "k", k, *of, last * keys)
            load_when_empty(to_q, "q", q, batch, own, row)
            for step in loop(1, count):
                load_when_empty(to_k, "k", k, *of, (last - step) * keys)
                griddepcontrol.wait()
                load_values_when_empty(to_v, block + (last + 1 - step).to(u64) * (keys * width))
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.inc(Global(u32, counter), total - 1))
            griddepcontrol.wait()
            load_values_when_empty(to_v, block + first.to(u64) * (keys * width) if bounds[0] else block)
            number.set(taken + nctaid.x)
        publish_when_empty(items, (0,) * 8)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_o = rings.work.consumer(), rings.o.consumer()
        for _ in loop():
            item = next(items)
            item.full.wait()
            row, head, _, count, *_ = read_item(item)
            item.empty.arrive()
            Break(when=count == 0)
            slot = next(of_o)
            slot.full.wait()
            store_panels(sums.o, o, head // heads, head % heads, row)
            tma.commit_group()
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        consumer = Fp8Consumer(rings, mask, scale, config, ScaledTile.of_bounds(bounds[0]), sums, wants_lse)
        consumer.run(consumer.wait_item(), lse, q_len)


class Fp8Consumer(Consumer):
    """A consumer warpgroup whose O has the sums of the last blocks, a run; those of earlier ones are in shared memory.

    Columns of ones after those of V make the last quad of O the row sums of the rounded weights. ``runs_begun``
    counts the runs of a tile that have begun: from the second one on there are sums in shared memory.
    """

    config: Fp8Config
    tile: ScaledTile
    rescales_late = False  # its registers do not suffice

    def __init__(
        self, rings: Rings, mask: Mask, scale: Expr, config: Fp8Config, tile: ScaledTile, sums: Sums, wants_lse: bool
    ) -> None:
        self.wants_lse = wants_lse
        super().__init__(rings, mask, scale, config, tile)
        self.scale, self.out = tile.scale, wgmma.accumulator(f32, (STRIP, config.columns + ONES))
        self.to_o, self.sums, self.runs_begun = rings.o.producer(), sums.of_warp(self.strip), var(u32, 0)

    def new_softmax(self, config: Config) -> Fp8Softmax:
        """Returns the softmax state of this thread's rows."""
        assert isinstance(config, Fp8Config)
        return Fp8Softmax(config.room, self.wants_lse)

    def issue_values(self, slot: Slot, accumulate: Any, steps: slice) -> None:
        """Issue the ``steps`` of K of PV. The caller has waited for V, which lies transposed in its slot."""
        issue_rs(self.out, self.weights, slot.v, accumulate, "k", steps)

    def prepare_sums(self, number: Any) -> Any:
        """Add O to the sums in shared memory where iteration ``number`` begins a run, while QK is on the tensor cores;
        returns whether PV adds to O. The last block of a tile begins no run."""
        adds = (number - 1) % self.config.run != 0
        with If(~adds):
            self.begin_run()
        return adds

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Round the weights P of both rows and pack them into the A operand of PV."""
        pack_e4m3(self.weights, weights)

    def rescale_sums(self, factors: Sequence[Any], grown: Expr) -> None:
        """Rescale O and the sums in shared memory, in the warps whose row max has grown."""
        with If(grown):
            rescale(self.out, factors)
            with If(self.runs_begun > 1):
                for first, sums in self.earlier():
                    st(self.sums.at(first), *[sum * factors[v >> 1 & 1] for v, sum in enumerate(sums, first)])

    def begin_run(self) -> None:
        """Add O, the sums of the run before, to the sums in shared memory; a tile's first run has none before it. The
        second run stores O where the finished O of the tile before was, and waits until TMA has read that."""
        with If(self.runs_begun == 1):
            self.to_o.peek().empty.wait()
            for first in range(0, len(self.out.regs), QUAD):
                st(self.sums.at(first), *self.out.regs[first : first + QUAD])
        with If(self.runs_begun > 1):
            for first, sums in self.earlier():
                st(self.sums.at(first), *[sum + self.out.regs[v] for v, sum in enumerate(sums, first)])
        self.runs_begun += 1

    def earlier(self) -> Iterator[tuple[int, list[Any]]]:
        """Yields the number of the first register of each quad of O, and its four sums in shared memory."""
        for first in range(0, len(self.out.regs), QUAD):
            yield first, ld(self.sums.at(first), vec=QUAD)

    def finish_softmax(self, lse: Expr, q_len: Any) -> list[Any]:
        """Write the log-sum-exp, if the launch wants it; returns the scale of V for each row, NaN after a NaN."""
        shifts, totals = self.softmax.reset()
        if totals:
            with If(lse != 0):
                write_lse(self.tile.lse_rows(lse, q_len), self.row, q_len, shifts, totals)
        return [fma(shift, 0.0, self.tile.scale_v) for shift in shifts]

    def epilogue(self, slot: Slot, factors: Sequence[Any]) -> None:
        """Divide O by the row sums, multiply it by ``factors`` and hand it to the role `save`; ``slot`` is of Q."""
        slot_v, to = next(self.of_v), next(self.to_o)
        with If(self.leader):
            slot_v.empty.arrive()
            slot.empty.arrive()
        with If(self.runs_begun > 1):
            for first, sums in self.earlier():
                for v, sum in enumerate(sums, first):
                    self.out.regs[v].set(sum + self.out.regs[v])
        self.runs_begun.set(0)
        of_o, totals = self.out.regs[:-QUAD], self.out.regs[-QUAD::2]
        out = replace(self.out, shape=(STRIP, self.config.columns), regs=of_o)
        inverse = [select(total == 0.0, total, rcp(total)) for total in totals]
        rescale(out, [factor * scale_v for factor, scale_v in zip(inverse, factors, strict=True)])
        to.empty.wait()
        warp.sync()
        store_rows(out, self.sums.o, self.strip)
        fence.proxy_async()
        warp.sync()
        with If(elect_one()):
            to.full.arrive()


@cache
def kernel_of(config: Fp8Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``out`` (bf16, f16), ``bounds`` (left, right) and
    ``wants_lse`` on it."""
    return attention_fp8.configure(config=config, threads=config.threads)
