"""Batches, split-K inside a cluster, and slices of K on the virtual H200."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.kernels.helpers import BF16, normal
from tests.samples import sampled
from warpwright.kernels.gemm.slices import add_slices, sum_grid
from warpwright.kernels.gemm.sm90 import CONFIGS, LEVELS, Config, kernel_of, plan_gemm
from warpwright.layout.tensor_map import TensorMap
from warpwright.report.verdict import judge
from warpwright.run.launch import launch, load_ptx
from warpwright.types import of_dtype

SHAPE = (200, 136, 264)
SHARED_BY_FOUR = Config((64, 64), consumers=1, share=(2, 2), stages=3, group=3)
KERNELS = {
    "best": Config(),
    "few rows a group": Config(group=3),
    "shared by four": SHARED_BY_FOUR,
    "delayed": replace(CONFIGS["128x256"], group=1),
    "level 1": LEVELS[1],
    "level 2": LEVELS[2],
    "level 4": LEVELS[4],
    "one block a strip": CONFIGS["64x64"],
    "a CTA a tile": CONFIGS["64x64 a CTA a tile"],
    "split": CONFIGS["64x64 split 4"],
}


def batch(config: Config, a: np.ndarray, b: np.ndarray, *, sms: int = 12, gap: int = 0) -> np.ndarray:
    """D (batches, M, N) over NaN; of the operands, those of two dimensions are the same for all matrices.

    ``gap``: rows of NaN between the matrices of D, which must stay.
    """
    (m, k), n = a.shape[-2:], b.shape[-2]
    batches = max(len(x) for x in (a, b) if x.ndim == 3)
    batched = "".join(name for name, x in (("a", a), ("b", b)) if x.ndim == 3) + "d"
    plan = plan_gemm(config, m, n, k, sms=sms, batches=batches)
    d = np.full((batches, m + gap, plan.pitch), np.nan, BF16)
    kernel = kernel_of(config).trace(batched=batched)
    launch(kernel, plan.grid, args=[a, b, d[:, :m, :n], *plan.scalars], device="h200")
    assert np.isnan(d[:, m:].astype(np.float32)).all() and np.isnan(d[..., n:].astype(np.float32)).all()
    return d[:, :m, :n]


def right(d: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    pairs = zip(np.broadcast_to(a, (len(d), *a.shape[-2:])), np.broadcast_to(b, (len(d), *b.shape[-2:])), strict=True)
    return all(judge(np.ascontiguousarray(one), x, y.T).verified for one, (x, y) in zip(d, pairs, strict=True))


@sampled(("name", "batched"), list(product(KERNELS, ("ab", "a", "b"))), every=4)
def test_a_batch_is_one_launch(name: str, batched: str) -> None:
    m, n, k = SHAPE
    a, b = normal(1, 3, m, k), normal(2, 3, n, k)
    a, b = a if "a" in batched else a[0], b if "b" in batched else b[0]
    assert right(batch(KERNELS[name], a, b, gap=8), a, b)


@pytest.mark.parametrize("sms", [2, 7, 132])
def test_a_batch_on_any_number_of_sms_gives_the_same_bits(sms: int) -> None:
    a, b = normal(3, 5, 130, 72), normal(4, 5, 200, 72)
    expected = np.stack([batch(Config(group=2), a[i : i + 1], b[i : i + 1])[0] for i in range(5)])
    assert np.array_equal(batch(Config(group=2), a, b, sms=sms), expected)


def test_matrices_of_a_batch_may_interleave() -> None:
    """The stride of the batch is below that of rows, as for the heads of attention."""
    heads = normal(5, 100, 3, 64)
    a = heads.transpose(1, 0, 2)
    assert a.strides[0] < a.strides[1]
    assert right(batch(CONFIGS["64x128"], a, a), a, a)


@pytest.mark.parametrize("name", ["best", "split"])
def test_nan_and_infinity_stay_in_their_matrix(name: str) -> None:
    a, b = normal(6, 3, 70, 72), normal(7, 3, 72, 72)
    a[1, 69, 71], b[1, 0, 0] = np.nan, np.inf
    d = batch(KERNELS[name], a, b)
    assert right(d, a, b)
    assert np.isfinite(d[[0, 2]].astype(np.float32)).all() and np.isnan(d[1, 69].astype(np.float32)).all()


@pytest.mark.parametrize(("pending", "verified"), [(0, True), (1, False)])
def test_a_strip_of_one_block_waits_until_tma_has_read_the_strip_before(pending: int, verified: bool) -> None:
    """With little to multiply in between; without the wait D is wrong, here as on a GPU."""
    config, a, b = CONFIGS["64x64"], normal(13, 256, 64), normal(14, 512, 64)
    plan, kernel = plan_gemm(config, 256, 512, 64, sms=2), kernel_of(config).trace()
    wait = "cp.async.bulk.wait_group.read "
    entry = load_ptx(kernel.ptx.replace(f"{wait}0", f"{wait}{pending}", 1))[kernel.entry]
    d = np.full((256, 512), np.nan, BF16)
    maps = [
        TensorMap(x, kernel.maps[name].box, swizzle=kernel.maps[name].swizzle)
        for name, x in zip("abd", (a, b, d), strict=True)
    ]
    launch(entry, plan.grid, smem=kernel.smem_bytes, args=[*maps, *plan.scalars], device="h200")
    assert judge(d, a, b.T).verified is verified


@sampled(("tile", "split"), list(product(((64, 64), (128, 64)), (2, 3, 4, 5, 6, 8, 16))), every=3)
def test_any_number_of_ctas_splits_k(split: int, tile: tuple[int, int]) -> None:
    config = Config(tile, depth=1, stages=2, consumers=tile[0] // 64, share=(1, 1), split=split, persistent=False)
    a, b = normal(8, 130, 1032), normal(9, 136, 1032)
    assert right(batch(config, a[None], b[None]), a, b)


def test_partial_sums_of_a_split_tile_cancel() -> None:
    """Each CTA's partial sum is large; the total is small."""
    a, b = normal(10, 64, 512), normal(11, 64, 512)
    a[:, 256:], b[:, 256:] = -a[:, :256], b[:, :256]
    a[:, 511] = np.linspace(-1, 1, 64)
    config = replace(CONFIGS["64x64 split 4"], depth=1)
    assert right(batch(config, a[None], b[None]), a, b)


@pytest.mark.parametrize("out", [BF16, np.float16, np.float32])
@pytest.mark.parametrize(("m", "n", "slices"), [(33, 70, 7), (5, 3, 2), (64, 64, 16), (1, 1, 1), (3, 131, 4)])
def test_slices_are_added_in_order(m: int, n: int, slices: int, out: Any) -> None:
    width = -(-n // 8) * 8
    parts = normal(12, slices, m, width, dtype=np.float32) * np.float32(1e3)
    d = np.full((m, width + 8), np.nan, out)
    kernel = add_slices.trace(slices=slices, out=of_dtype(np.dtype(out)))
    launch(
        kernel, sum_grid(m, width), args=[parts, d, m, n, width, m * width, width + 8, 0, 0, 0, 0, 1.0], device="h200"
    )
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    assert np.array_equal(d[:, :n], total[:, :n].astype(out))
    assert np.isnan(d[:, n:].astype(np.float32)).all()
