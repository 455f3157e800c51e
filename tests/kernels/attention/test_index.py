"""Indices of queries and keys as f32: the values, and how many conversions a kernel has."""

import numpy as np

import warpwright as ww
from warpwright.kernels.attention.index import Index
from warpwright.lang import Global, f32, kernel, s32, tid

ROW, FIRST = 1000, 20_000  # of the queries and keys below


@kernel("sm_90a", threads=32)
def distances(out: Global[f32], row: s32, first: s32) -> None:
    """Stores what a function can make of the indices of four neighbouring keys and one query."""
    q, left = Index.of(row), tid.x.to(s32) + first
    for column in range(4):
        k = Index.of(left, column)
        found = k.to(f32), (k - q).to(f32), (q - k).to(f32), (5 - (k + 2) + q - 1).to(f32), (-k).to(f32)
        for number, each in enumerate((*found, (2 * (k - q)).to(f32), (k - left).to(f32))):
            out[(tid.x * 4 + column) * 7 + number] = each


def test_values_and_conversions() -> None:
    """Sums of indices are exact, and k, q are converted once; products and other registers are as of any `Expr`."""
    found = np.full((32, 4, 7), np.nan, np.float32)
    ww.launch(distances, 1, args=[found, ROW, FIRST], device="h200")
    k = FIRST + np.arange(32)[:, None] + np.arange(4)
    apart = k - ROW
    columns = np.broadcast_to(np.arange(4), k.shape)
    assert (found == np.stack([k, apart, -apart, 2 - apart, -k, 2 * apart, columns], -1)).all()
    assert distances.trace().ptx.count("cvt.rn.f32.s32") == 2 + 4 + 4


@kernel("sm_90a", threads=32)
def ends(integers: Global[s32], floats: Global[f32], last: s32) -> None:
    for column in range(4):
        k = Index.clamped(tid.x.to(s32), column, last)
        integers[tid.x * 4 + column] = k
        floats[tid.x * 4 + column] = k.to(f32)


def test_a_clamped_index_goes_on_as_f32() -> None:
    integers, floats = np.full((32, 4), -1, np.int32), np.full((32, 4), np.nan, np.float32)
    ww.launch(ends, 1, args=[integers, floats, 20], device="h200")
    k = np.arange(32)[:, None] + np.arange(4)
    assert (integers == np.minimum(k, 20)).all() and (floats == k).all()
    assert ends.trace().ptx.count("cvt.rn.f32.s32") == 1
