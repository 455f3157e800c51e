"""D = A·Bᵀ with block scales: one tile of 128 rows of a CTA, or of 256 of a pair, K in blocks of 128 bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from warpwright import layout
from warpwright.lang import (
    Global,
    If,
    Ring,
    ctaid,
    e2m1x2,
    e4m3,
    e5m2,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    ue4m3,
    ue8m0,
    warp,
)
from warpwright.lang import cluster as ctas
from warpwright.types import Scalar

SPAN, ATOM, COLUMNS = 128, 32, 64  # bytes of K of a block and of an instruction; N
FORMATS = {
    "mxfp8": (e4m3, e5m2, ue8m0, 32),
    "mxfp4": (e2m1x2, e2m1x2, ue8m0, 32),
    "nvfp4": (e2m1x2, e2m1x2, ue4m3, 16),
}


@kernel("sm_100a", threads=128)
def gemm(
    a: tma.Map[Scalar], sfa: tma.Map[Scalar], b: tma.Map[Scalar], sfb: tma.Map[Scalar], d: Global[f32], blocks: u32,
    *, format: str = "mxfp8", cluster: int = 1, copied: bool = True, overwritten: bool = False,
) -> None:  # fmt: skip
    """``copied``: whether scale factors are copied to tensor memory; ``overwritten``: whether a warp stores to their
    columns before the MMAs are complete."""
    a_type, b_type, scale, block = FORMATS[format]
    group, count = cluster, ATOM * (2 if a_type is e2m1x2 else 1) // block  # scale factors of an instruction
    tiles = SPAN // ATOM * count // 4
    ab = Ring(
        2, name="ab",
        a=smem.tile(a_type, (128, SPAN), swizzle=128), b=smem.tile(b_type, (COLUMNS // group, SPAN), swizzle=128),
        sfa=smem.tile(scale, (32 * tiles, 16)), sfb=smem.tile(scale, (32 * tiles, 16)),
    )  # fmt: skip
    acc, done = tmem.tile(f32, (128, COLUMNS), cta_group=group), mbarrier(1, name="done")
    factors_a = tmem.scales(scale, 128 * tiles, cta_group=group)
    factors_b = tmem.scales(scale, 128 * tiles, cta_group=group)
    rank = ctas.rank

    with If((warp.id == 0) & elect_one()):
        ab.init()
        done.init()
        fence.mbarrier_init()
    ctas.sync()
    with If(warp.id == 1):
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=group)
    tcgen05.fence_before_thread_sync()
    ctas.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for k in loop(blocks):
            slot = next(slots)
            slot.empty.wait()
            with If(rank == 0):
                slot.full.arrive_expect_tx(group * slot.nbytes)
            full = slot.full.at(0) if group == 2 else slot.full
            boxes = (
                (slot.a, a[rank * 128, k * SPAN]), (slot.sfa, sfa[(rank * blocks + k) * (32 * tiles), 0]),
                (slot.b, b[rank * (COLUMNS // group), k * SPAN]), (slot.sfb, sfb[k * (32 * tiles), 0]),
            )  # fmt: skip
            for tile, box in boxes:
                tma.load(tile, box, full, cta_group=group)
        slots.wait_all_empty()

    @role(warp=2, elect=True, when=rank == 0)
    def multiply() -> None:
        slots = ab.consumer()
        for k in loop(blocks):
            slot = next(slots)
            slot.full.wait()
            if copied:
                tcgen05.cp_scales(factors_a, slot.sfa, cta_group=group)
                tcgen05.cp_scales(factors_b, slot.sfb, cta_group=group)
            for step in range(SPAN // ATOM):
                inside, part = slice(step * ATOM, (step + 1) * ATOM), slice(step * count // 4 * 16, None)
                tcgen05.mma_block_scale(
                    acc, slot.a[:, inside], slot.b[:, inside], factors_a[:, part], factors_b[:, part],
                    accumulate=(k > 0) | (step > 0), block=block, first=step * count % 4, cta_group=group,
                )  # fmt: skip
            tcgen05.commit(slot.empty, cta_group=group, multicast=(1 << group) - 1)
        tcgen05.commit(done, cta_group=group, multicast=(1 << group) - 1)

    if overwritten:
        with If(warp.id == 3):
            tcgen05.st(factors_a.address, [tid.x], "32x32b")
            tcgen05.wait_st()
    done.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    for column in range(0, COLUMNS, 4):
        st(d + (ctaid.x * 128 + tid.x) * COLUMNS + column, *row[column : column + 4])
    tcgen05.fence_before_thread_sync()
    ctas.sync()
    with If(warp.id == 1):
        tmem.dealloc()


class Problem:
    """Random operands of a format, as the kernel takes them and in float64; D is full of NaN."""

    def __init__(self, format: str, group: int, blocks: int) -> None:
        types, random = FORMATS[format], np.random.default_rng(group)
        k = blocks * SPAN * (2 if types[0] is e2m1x2 else 1)
        (a, sfa, self.a), (b, sfb, self.b) = (
            _operand(random, rows, k, type, *types[2:]) for rows, type in ((128 * group, types[0]), (COLUMNS, types[1]))
        )
        self.d = np.full((128 * group, COLUMNS), np.nan, np.float32)
        self.args = [a, sfa, b, sfb, self.d, blocks]

    def check(self) -> None:
        """Float32 sums of K products lose at most K units of 2^-24 of the sum of magnitudes."""
        bound = self.a.shape[1] * 2.0**-24 * (np.abs(self.a) @ np.abs(self.b).T)
        assert (np.abs(self.d - self.a @ self.b.T) <= bound).all()


def _operand(
    random: np.random.Generator, rows: int, k: int, type: type[Scalar], scale: type[Scalar], block: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dtype = ml_dtypes.float4_e2m1fn if type is e2m1x2 else type.dtype
    values = random.normal(size=(rows, k)).astype(dtype)
    factors = np.exp2(random.integers(-3, 4, (rows, k // block)))
    factors = (factors if scale is ue8m0 else factors * random.uniform(1, 2, factors.shape)).astype(scale.dtype)
    exact = values.astype(np.float64) * factors.astype(np.float64).repeat(block, axis=1)
    tiles = layout.scale_tiles(factors).reshape(-1, 16)
    return layout.pack_e2m1(values) if type is e2m1x2 else values, tiles, exact
