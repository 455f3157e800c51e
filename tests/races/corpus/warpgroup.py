"""Mistakes with wgmma: its operands in shared memory and its registers belong to it until a wait.

``wrong`` names the mistake; without it the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import fill, initialise
from warpwright.lang import If, Pointer, bf16, f32, fence, kernel, mbarrier, smem, st, tid, u32, warp, wgmma
from warpwright.lang import cluster as ctas


def operands(count: int) -> list[tuple[smem.Tile, smem.Tile]]:
    """Returns pairs of operands of a wgmma, one step of 16 deep."""
    return [(smem.tile(bf16, (64, 16), swizzle=32), smem.tile(bf16, (16, 16), swizzle=32)) for _ in range(count)]


@kernel("sm_90a", threads=160)
def multiply_stages(*, cluster: int = 1, access: str = "warpgroup", wrong: str = "") -> None:
    """Two groups of wgmma on two stages; after a wait for the first, threads overwrite an operand: those of the
    warpgroup, or a warp that gets a signal."""
    stages, read = operands(2), mbarrier(128, name="read")
    initialise(read)
    with If(warp.id < 4):
        for a, b in stages:
            fill(a)
            fill(b)
        if wrong != "unfenced":
            fence.proxy_async()
    ctas.sync()
    overwritten = Pointer(u32, stages[1 if wrong == "other_stage" else 0][0].address, space="shared::cta")
    with If(warp.id < 4):
        acc = wgmma.accumulator(f32, (64, 16))
        wgmma.fence()
        for number, (a, b) in enumerate(stages):
            wgmma.mma(acc, a, b, accumulate=number > 0)
            if wrong != "uncommitted":
                wgmma.commit_group()
        if wrong != "unawaited":
            wgmma.wait_group(1)
        if access == "warpgroup":
            st(overwritten + tid.x, 0)
        read.arrive()
        wgmma.commit_group()
        wgmma.wait_group(0)
    if access == "other_warp":
        with If(warp.id == 4):
            read.wait(0)
            st(overwritten + warp.lane, 0)
    ctas.sync()
