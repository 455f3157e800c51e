"""Steps of the Hopper attention backward for wide heads: shared memory, and its two consumer warpgroups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.mods import Mods, is_affine
from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.backward_mods import ModifiedScores, scale_of_scores
from warpwright.kernels.attention.sm90.backward_plan import ROW, BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import (
    CONSUMERS,
    FOUR,
    STAGES,
    BackwardScores,
    Inputs,
    QueryMask,
    of_columns,
    pack_pairs,
    set_registers,
    slot_at,
    store_sums,
    store_transposed,
)
from warpwright.kernels.attention.sm90.plan import STRIP, WARPGROUP
from warpwright.kernels.attention.sm90.steps import K, issue_rs, issue_ss
from warpwright.kernels.tiles import WARP_ROWS, WARPS, clear, part, window
from warpwright.lang import (
    Expr,
    If,
    Ring,
    b32,
    cluster,
    ctaid,
    elect_one,
    f32,
    fence,
    ld,
    mbarrier,
    smem,
    st,
    tid,
    u32,
    var,
    warp,
    wgmma,
)
from warpwright.lang.derivative import times
from warpwright.lang.ring import Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["HALVES", "KeyGradients", "ModifiedValueGradients", "ValueGradients", "WideMemory", "halves_of", "panel_of"]

HALVES = 2  # of a panel of dQ that the role `save` adds


@dataclass(frozen=True)
class WideMemory(Inputs):
    """Shared memory of a CTA: the inputs; two panels of the other CTA's K; P in float32 between the warpgroups; dS of
    this CTA's keys and of the other's; and for each warpgroup half of a panel of dQ on its way to the sums.

    ``p`` has no empty barrier: P has been read when ``ds`` is full, for which the warpgroup that writes P waits. ``ds``
    is empty when both warpgroups of both CTAs have computed dQ: then the copy to the other CTA has been read too.
    """

    others_k: Tile
    p: Ring
    ds: Ring
    others_ds: Ring
    sums: Ring

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The rings."""
        return self.q, self.do, self.p, self.ds, self.others_ds, self.sums

    @staticmethod
    def of(config: BackwardConfig, dtype: type[Scalar]) -> WideMemory:
        """Returns the shared memory of a configuration."""
        queries, keys = config.tile[0], STRIP
        rows = smem.tile(dtype, (queries, config.head_dim), swizzle=128)
        shifts, means = (smem.tile(f32, (stages, queries)) for stages in (STAGES, config.do_stages))
        items = smem.tile(u32, (STAGES, FOUR))
        for each in (shifts, means, items):
            each.place.known()  # allocated before the tiles, whose alignment would leave gaps between them
        ds, panel = smem.tile(dtype, (queries, keys), swizzle=128), queries * PANEL // ROW
        return WideMemory(
            k=smem.tile(dtype, (keys, config.head_dim), swizzle=128),
            v=smem.tile(dtype, (keys, config.head_dim), swizzle=128),
            kv=mbarrier(1, name="kv_full"),
            q=Ring(STAGES, empty=CONSUMERS * WARPS, name="q", rows=rows),
            do=Ring(config.do_stages, empty=CONSUMERS * WARPS, name="do", rows=rows),
            stats=(shifts, means),
            items=items,
            others_k=smem.tile(dtype, (keys, CONSUMERS * PANEL), swizzle=128),
            p=Ring(1, full=WARPS, empty=0, name="p", p=smem.tile(f32, (panel, ROW))),
            ds=Ring(1, full=WARPS, empty=2 * CONSUMERS * WARPS, name="ds", ds=ds),
            others_ds=Ring(1, empty=0, name="others_ds", ds=ds),
            sums=Ring(CONSUMERS, full=WARPS, name="sums", sums=smem.tile(f32, (panel // HALVES, ROW))),
        )


def panel_of(config: BackwardConfig, own: int, rank: Any) -> Any:
    """Returns the panel of 64 columns of dQ of consumer ``own`` of CTA ``rank``: of three panels the second consumers
    share the second one, each has half of the queries."""
    return rank * 2 + own if config.head_dim // PANEL % 2 == 0 or own == 0 else 1


def halves_of(config: BackwardConfig, own: int) -> int:
    """Returns how many halves of the queries consumer ``own`` has of its panel, 1 or 2."""
    return HALVES if config.head_dim // PANEL % 2 == 0 or own == 0 else 1


class PanelOfDq:
    """A consumer's panel of dQᵀ = Kᵀ·dSᵀ, over the keys of both CTAs."""

    def __init__(self, memory: WideMemory, config: BackwardConfig, own: int, one: Any) -> None:
        self.memory, self.own, self.one, self.halves = memory, own, one, halves_of(config, own)
        self.rank, queries = cluster.rank, config.tile[0]
        self.panel, self.columns = panel_of(config, own, self.rank), queries * self.halves // HALVES
        self.acc = wgmma.accumulator(f32, (PANEL, self.columns))

    def wait_and_issue(self, number: Any) -> None:
        """Wait for dS of tile ``number``, this CTA's and then the other's, and issue their wgmmas as one group."""
        memory = self.memory
        operands = (memory.ds, memory.k, self.panel), (memory.others_ds, memory.others_k, self.own)
        for first, (ring, k, panel) in zip((True, False), operands, strict=True):
            slot = slot_at(ring, number)
            slot.full.wait()
            ds = slot.ds if self.halves == HALVES else part(slot.ds, self.rank, self.columns, "k")
            columns = part(k, panel, PANEL, "mn")
            wgmma.fence()
            for kk in range(0, STRIP, K):
                wgmma.mma(self.acc, window(columns, kk, "mn"), window(ds, kk, "k"), accumulate=not first or kk > 0)
        wgmma.commit_group()

    def arrive_empty(self, number: Any) -> None:
        """Arrive for this warp at the empty barriers of dS in both CTAs: the sums of tile ``number`` are complete."""
        slot = slot_at(self.memory.ds, number)
        with If(self.one):
            slot.empty.arrive()
            # wgmma has read what the copy overwrites: no ordinary access is published.
            slot.empty.at(self.rank ^ 1).arrive(scope="cta")

    def store_half(self, number: Any, half: int) -> None:
        """Store a half of the panel of tile ``number`` for the role `save`."""
        size = len(self.acc.regs) // self.halves
        slot = Slot(self.memory.sums, self.own, (number * self.halves + half) % 2)
        store_sums(slot, self.acc.regs[half * size : (half + 1) * size], self.one)


class ValueGradients(BackwardScores):
    """The consumer warpgroup of dV: it computes Sᵀ and Pᵀ, which it also stores for the other one."""

    def __init__(self, memory: WideMemory, mask: QueryMask, key: Any, scale: Any, config: BackwardConfig) -> None:
        self.own, self.one, self.number = 0, elect_one(), warp.id % WARPS
        super().__init__(memory, mask, key, scale, config.tile[0])
        self.memory = memory
        self.dv = wgmma.accumulator(f32, (STRIP, config.head_dim))
        self.dq = PanelOfDq(memory, config, self.own, self.one)
        self.weights = [var(b32, 0) for _ in range(config.tile[0] // 4)]
        clear(self.dv)

    def weights_and_slopes(self) -> Iterator[tuple[Any, Any]]:
        """Yields the weight of each score, and the weight times the derivative of the changed score."""
        return ((register, register) for register in self.scores.regs)

    def store_weights(self, p: Tile) -> None:
        """Round the weights for dV, and store them, times the derivatives, as the other warpgroup's fragment."""
        pairs, corner = list(self.weights_and_slopes()), p.at(0, tid.x % WARPGROUP * FOUR)
        for start in range(0, len(pairs), FOUR):
            some, words = pairs[start : start + FOUR], slice(start // 2, (start + FOUR) // 2)
            set_registers(self.weights[words], pack_pairs([weight for weight, _ in some], self.dtype))
            st(corner + start * WARPGROUP, *(stored for _, stored in some))

    def step(self, number: Any, more: bool) -> None:
        """Add a tile of queries, whose S is complete, to dV; add its part of dQ; issue S of the next one if there is
        ``more``, so that the tensor cores compute it while the other warpgroup computes dS."""
        memory = self.memory
        slot_q, slot_do, slot_p = (slot_at(ring, number) for ring in (memory.q, memory.do, memory.p))
        self.compute_weights(slot_q.stage)
        self.store_weights(slot_p.p)
        if more:
            # TMA overwrites the shifts that the generic proxy has read; S no longer reads Q.
            fence.proxy_async()
        warp.sync()
        with If(self.one):
            slot_p.full.arrive()
            if more:
                slot_q.empty.arrive()
        slot_do.full.wait()
        issue_rs(self.dv, self.weights, slot_do.rows, True)
        if more:
            self.wait_and_issue_scores(slot_at(memory.q, number + 1))
        with If(number > 0):
            self.dq.store_half(number - 1, 1)
        # dV is there, and no longer reads dO.
        wgmma.wait_group(int(more))
        if more:
            with If(self.one):
                slot_do.empty.arrive()
        self.dq.wait_and_issue(number)
        # dQ and the next S are there.
        wgmma.wait_group(0)
        if more:
            self.dq.arrive_empty(number)
        self.dq.store_half(number, 0)
        if not more:
            self.dq.store_half(number, 1)


class ModifiedValueGradients(ModifiedScores, ValueGradients):
    """The consumer warpgroup of dV with functions of a user."""

    def __init__(
        self,
        memory: WideMemory,
        mask: QueryMask,
        key: Any,
        scale: Expr,
        config: BackwardConfig,
        mods: Mods,
        arrays: Sequence[Any],
    ) -> None:
        super().__init__(memory, mask, key, scale_of_scores(mods, scale), config)
        self.batch, self.mods, self.arrays = ctaid.z, mods, arrays

    def weights_and_slopes(self) -> Iterator[tuple[Any, Any]]:
        """Yields the weight of each score, and the weight times the derivative of the changed score."""
        same = ((register, self.factor) for register in self.scores.regs)
        deferred = self.mods.changes_scores and not is_affine(self.mods)
        for weight, slope in self.changed if deferred else same:
            yield weight, times(weight, slope)


class KeyGradients:
    """The consumer warpgroup of dK: it computes dPᵀ, and dSᵀ from the other one's Pᵀ."""

    def __init__(self, memory: WideMemory, config: BackwardConfig) -> None:
        self.memory, self.one, self.number = memory, elect_one(), warp.id % WARPS
        self.dtype, self.queries = memory.k.dtype, config.tile[0]
        self.dp = wgmma.accumulator(f32, (STRIP, self.queries))
        self.dk = wgmma.accumulator(f32, (STRIP, config.head_dim))
        self.dq = PanelOfDq(memory, config, 1, self.one)
        self.ds = [var(b32, 0) for _ in range(self.queries // 4)]
        clear(self.dk)

    def wait_and_issue_dp(self, number: Any) -> None:
        """Wait for dO of tile ``number``, then issue dPᵀ = V·dOᵀ."""
        slot = slot_at(self.memory.do, number)
        slot.full.wait()
        issue_ss(self.dp, self.memory.v, 0, slot.rows)

    def compute_ds(self, p: Tile, stage: Any, ds: Tile) -> None:
        """Compute dSᵀ = Pᵀ ∘ (dPᵀ - mean), 16 columns at a time: rounded in registers, and in ``ds``."""
        corner = p.at(0, tid.x % WARPGROUP * FOUR)
        means = of_columns(part(self.memory.stats[1], stage, 1, "k"), self.queries)
        for column in range(0, self.queries, K):
            first, last = column // 2, (column + K) // 2
            p_of = [value for v in range(first, last, FOUR) for value in ld(corner + v * WARPGROUP, vec=FOUR)]
            found = [each * (dp - next(means)) for each, dp in zip(p_of, self.dp.regs[first:last], strict=True)]
            words = self.ds[column // 4 : (column + K) // 4]
            set_registers(words, pack_pairs(found, self.dtype))
            store_transposed(ds, words, column, self.number * WARP_ROWS)

    def step(self, number: Any, more: bool) -> None:
        """Add a tile of queries, whose dP is in progress, to dK; add its part of dQ; issue dP of the next one if there
        is ``more``."""
        memory = self.memory
        slot_q, slot_do, slot_p, slot_ds = (
            slot_at(ring, number) for ring in (memory.q, memory.do, memory.p, memory.ds)
        )
        # dP is there.
        wgmma.wait_group(0)
        slot_p.full.wait()
        slot_ds.empty.wait()
        self.compute_ds(slot_p.p, slot_do.stage, slot_ds.ds)
        # wgmma and the copy read dS; TMA overwrites the means that the generic proxy has read.
        fence.proxy_async()
        warp.sync()
        with If(self.one):
            slot_ds.full.arrive()
            if more:
                slot_do.empty.arrive()
        issue_rs(self.dk, self.ds, slot_q.rows, True)
        self.dq.wait_and_issue(number)
        # dK and dQ are there, and no longer read Q.
        wgmma.wait_group(0)
        if more:
            self.dq.arrive_empty(number)
            with If(self.one):
                slot_q.empty.arrive()
        self.dq.store_half(number, 0)
        if more:
            self.wait_and_issue_dp(number + 1)
        for half in range(1, self.dq.halves):
            self.dq.store_half(number, half)
