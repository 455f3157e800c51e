"""The second launch of split-K by slices: it adds the partial sums of the slices and applies the epilogue."""

from __future__ import annotations

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.tiles import PACKED
from warpwright.lang import (
    Else,
    Global,
    If,
    bf16,
    ctaid,
    cvt,
    f32,
    griddepcontrol,
    kernel,
    ld,
    pack,
    st,
    tid,
    u32,
    u64,
)
from warpwright.types import Scalar

__all__ = ["add_slices", "sum_grid"]

SUM_THREADS = 128
QUAD = 4


def sum_grid(m: int, width: int) -> int:
    """Returns the CTAs of `add_slices`."""
    return -(-m * width // (QUAD * SUM_THREADS))


@kernel("sm_90a", threads=SUM_THREADS)
def add_slices(
    parts: Global[f32],
    d: Global[Scalar],
    m: u32,
    n: u32,
    width: u32,
    stride: u32,
    pitch: u32,
    columns: u32,
    bias: u64,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *,
    slices: int = 2,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """D (m, n) = the sum of ``slices`` float32 matrices, added in order; a thread adds four columns.

    The matrices have rows of ``width``, a multiple of 4, and begin ``stride`` elements apart. ``pitch`` is the number
    of elements between rows of D, which start at multiples of 16 bytes. The parameters from ``columns`` on are those of
    ``epilogue``.

    The grid may start before the grid that writes ``parts`` has ended. ``griddepcontrol.wait`` returns when all memory
    operations of that grid, TMA's included, are performed and visible to this grid (PTX ISA 9.1 section 9.7.13.13).
    Every thread waits before its first access, so no semaphore is needed. No two CTAs write the same element.
    """
    item = ctaid.x * SUM_THREADS + tid.x
    row = item // (width // QUAD)
    col = (item - row * (width // QUAD)) * QUAD
    word, target = PACKED.get(out), d.cast(out) + (row * pitch + col)
    griddepcontrol.wait()
    with If((row < m) & (col < n)):
        sums = [ld(parts + (row * width + col + stride * i), vec=QUAD) for i in range(slices)]
        total = sums[0]
        for more in sums[1:]:
            total = [x + y for x, y in zip(total, more, strict=True)]
        total = epilogue.prepare(alpha, scale_a, scale_b, bias, columns, row=True)(list(total), col)
        with If(col + QUAD <= n):
            values = [pack(word, *total[:2]), pack(word, *total[2:])] if word else total
            st(target.cast(values[0].type), *values)
        with Else():
            for i in range(QUAD - 1):
                with If(col + i < n):
                    st(target + i, cvt(total[i], out) if word else total[i])
