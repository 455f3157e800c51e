"""07: attention in one pass. A warp multiplies its 16 queries by 16 keys at a time, and the scores stay in registers: a
thread's elements of two (16, 8) accumulators are its elements of the (16, 16) left operand that multiplies the values.
The softmax is online: a new row maximum rescales the sums so far.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright import lang
from warpwright.lang import If, bf16, f32, kernel, ldmatrix, loop, mma, shfl, smem, tma, u32, var, warp

ROWS, DIM = 16, 64


@kernel("sm_120a", threads=32)
def attention(
    q: tma.Map[bf16], k: tma.Map[bf16], v: tma.Map[bf16], o: lang.Global[f32], tiles: u32, factor: f32
) -> None:
    """O (queries, 64) = softmax(Q·Kᵀ)·V; ``factor`` is the scale times log2(e)."""
    queries, keys, values = (smem.tile(bf16, (ROWS, DIM), swizzle=128) for _ in range(3))
    full, lane, parity = lang.mbarrier(), warp.lane, var(u32, 0)
    with If(lane == 0):
        full.init()
        lang.fence.mbarrier_init()
        full.arrive_expect_tx(queries.nbytes)
        tma.load(queries, q[lang.ctaid.x * ROWS, 0], full)
    lang.bar.sync()
    full.wait(0)
    lefts = [mma.left(bf16, ldmatrix(queries.at(lane % 16, lane // 16 * 8 + column))) for column in range(0, DIM, 16)]

    sums = [mma.accumulator(f32) for _ in range(0, DIM, 8)]  # O, before the division by the totals
    maxima, totals = [var(f32, -math.inf) for _ in range(2)], [var(f32, 0.0) for _ in range(2)]  # rows g and g + 8
    for tile in loop(tiles):
        warp.sync()  # all lanes have waited for the last phase and read the tiles that TMA overwrites
        with If(lane == 0):
            full.arrive_expect_tx(keys.nbytes + values.nbytes)
            tma.load(keys, k[tile * ROWS, 0], full)
            tma.load(values, v[tile * ROWS, 0], full)
        parity.set(parity ^ 1)
        full.wait(parity)

        scores = [mma.accumulator(f32) for _ in range(2)]
        for column, left in zip(range(0, DIM, 16), lefts, strict=True):
            loaded = ldmatrix(keys.at(lane % 8 + lane // 16 * 8, lane // 8 % 2 * 8 + column))
            for half in range(2):
                mma.sync(scores[half], left, mma.right(bf16, loaded[2 * half : 2 * half + 2]))

        for row in range(2):
            own = [block.regs[2 * row + i] for block in scores for i in range(2)]
            top = lang.max(maxima[row], *own)
            for distance in (1, 2):  # the four lanes that share a row
                top = lang.max(top, shfl.bfly(top, distance))
            rescale = lang.ex2((maxima[row] - top) * factor)
            maxima[row].set(top)
            totals[row] *= rescale
            for block in sums:
                for i in range(2):
                    block.regs[2 * row + i] *= rescale
            for score in own:
                score.set(lang.ex2(lang.fma(score, factor, top * -factor)))
                totals[row] += score

        weights = mma.left(bf16, [lang.pack(lang.bf16x2, *block.regs[i : i + 2]) for block in scores for i in (0, 2)])
        for column in range(0, DIM, 16):
            loaded = ldmatrix(values.at(lane % 16, lane // 16 * 8 + column), trans=True)
            for half in range(2):
                mma.sync(sums[column // 8 + half], weights, mma.right(bf16, loaded[2 * half : 2 * half + 2]))
        lang.fence.proxy_async()

    for row in range(2):
        total = totals[row] + shfl.bfly(totals[row], 1)
        scale = lang.rcp(total + shfl.bfly(total, 2))
        for number, block in enumerate(sums):
            place = o + (lang.ctaid.x * ROWS + lane // 4 + row * 8) * DIM + number * 8 + lane % 4 * 2
            place[0], place[1] = block.regs[2 * row] * scale, block.regs[2 * row + 1] * scale


def main() -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((rows, DIM)).astype(ml_dtypes.bfloat16) for rows in (64, 96, 96))
    o = np.zeros((64, DIM), np.float32)
    ww.launch(attention, grid=4, args=[q, k, v, o, 96 // ROWS, DIM**-0.5 * math.log2(math.e)])
    weights = np.exp(q.astype(np.float64) @ k.astype(np.float64).T / 8)
    error = np.abs(o - weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)).max()
    assert error < 0.01
    print(f"verified: 64 queries, 96 keys, largest difference from float64 {error:.1e}")


if __name__ == "__main__":
    main()
