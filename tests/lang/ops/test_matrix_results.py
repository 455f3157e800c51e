"""wgmma, mma.sync and the matrix copies on the virtual GPU: every layout of the operands, compared with NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.lang import (
    Global,
    If,
    bar,
    bf16,
    bf16x2,
    elect_one,
    f16,
    f32,
    fence,
    kernel,
    ldmatrix,
    mbarrier,
    mma,
    movmatrix,
    pack,
    s8,
    s32,
    smem,
    stmatrix,
    tma,
    u32,
    warp,
    wgmma,
)
from warpwright.ptx.ptxas import assemble
from warpwright.types import Scalar

M, N, K = 64, 128, 64


def load_tiles(tiles, full) -> None:
    """Load every tile from the start of its tensor, a panel at a time."""
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(sum(tile.nbytes for tile, _ in tiles))
        for tile, source in tiles:
            columns = min(tile.shape[1], tile.span // tile.dtype.nbytes)
            for left in range(0, tile.shape[1], columns):
                tma.load(tile[:, left : left + columns], source[0, left], full)
    bar.sync()
    full.wait(0)


@kernel("sm_90a", threads=128)
def gemm(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: Global[u32],
    *,
    dtype: type[Scalar] = bf16,
    sums: type[Scalar] = f32,
    layout: str = "",
) -> None:
    """D = A·Bᵀ; ``layout`` has an ``a`` for A transposed, an ``r`` for A in registers, a ``b`` for B transposed."""
    step = 32 // dtype.nbytes
    tile_a = smem.tile(dtype, (K, M) if "a" in layout else (M, K), swizzle=M * dtype.nbytes)
    tile_b = smem.tile(dtype, (K, N) if "b" in layout else (N, K), swizzle=64 * dtype.nbytes)
    load_tiles([(tile_a, a), (tile_b, b)], mbarrier())
    row, column = warp.id * 16 + warp.lane % 16, warp.lane // 16 * (step // 2)
    acc = wgmma.accumulator(sums, (M, N))
    registers = [wgmma.left(dtype, ldmatrix(tile_a.at(row, k + column), 4)) for k in range(0, K, step) if "r" in layout]
    wgmma.fence()
    for i, k in enumerate(range(0, K, step)):
        left = registers[i] if registers else tile_a[k : k + step, :].T if "a" in layout else tile_a[:, k : k + step]
        right = tile_b[k : k + step, :].T if "b" in layout else tile_b[:, k : k + step]
        wgmma.mma(acc, left, right, accumulate=k > 0)
    wgmma.commit_group()
    wgmma.wait_group(0)
    for v, register in enumerate(acc.regs):
        down, across = acc.at(v)
        d[down * N + across] = register.bitcast(u32)


def operands(dtype, seed=0):
    random = np.random.default_rng(seed)
    if dtype is np.int8:
        return random.integers(-128, 128, (M, K), dtype=np.int8), random.integers(-128, 128, (N, K), dtype=np.int8)
    return tuple(random.standard_normal((rows, K)).astype(dtype) for rows in (M, N))


@pytest.mark.parametrize("layout", ["", "a", "b", "ab", "r", "rb"])
@pytest.mark.parametrize(("dtype", "host"), [(bf16, ml_dtypes.bfloat16), (f16, np.float16)])
def test_a_gemm_with_every_layout_of_its_operands(layout, dtype, host) -> None:
    a, b = operands(host)
    d = np.zeros((M, N), np.float32)
    matrices = [x.T.copy() if name in layout else x for name, x in (("a", a), ("b", b))]
    ww.launch(gemm.configure(dtype=dtype, sums=f32, layout=layout), grid=1, args=[*matrices, d.view(np.uint32)])
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64).T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", ["", "r"])
def test_a_gemm_of_bytes_is_exact(layout) -> None:
    a, b = operands(np.int8)
    d = np.zeros((M, N), np.int32)
    ww.launch(gemm.configure(dtype=s8, sums=s32, layout=layout), grid=1, args=[a, b, d.view(np.uint32)])
    np.testing.assert_array_equal(d, a.astype(np.int64) @ b.astype(np.int64).T)


@pytest.mark.parametrize("layout", ["", "a", "b", "ab", "r", "rb"])
def test_ptxas_has_no_advice(layout) -> None:
    """ptxas inserts no waits or fences and serialises nothing: C7510, C7517, C7519."""
    assert assemble(gemm.ptx(layout=layout), "sm_90a").log == ""
    assert assemble(two_gemms.ptx(), "sm_90a").log == ""


@kernel("sm_90a", threads=32)
def warp_gemm(a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32]) -> None:
    tile_a, tile_b = smem.tile(bf16, (16, K), swizzle=128), smem.tile(bf16, (8, K), swizzle=128)
    load_tiles([(tile_a, a), (tile_b, b)], mbarrier())
    acc = mma.accumulator(f32)
    for k in range(0, K, 16):
        left = mma.left(bf16, ldmatrix(tile_a.at(warp.lane % 16, k + warp.lane // 16 * 8), 4))
        right = mma.right(bf16, ldmatrix(tile_b.at(warp.lane % 8, k + warp.lane // 8 % 2 * 8), 2))
        mma.sync(acc, left, right)
    for v, register in enumerate(acc.regs):
        row, column = acc.at(v)
        d[row * 8 + column] = register


def test_a_gemm_of_a_warp() -> None:
    a, b = (matrix[:rows].copy() for matrix, rows in zip(operands(ml_dtypes.bfloat16), (16, 8), strict=True))
    d = np.zeros((16, 8), np.float32)
    ww.launch(warp_gemm, grid=1, args=[a, b, d])
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64).T, rtol=0, atol=1e-4)


@kernel("sm_90a", threads=32)
def transpose(x: tma.Map[bf16], y: tma.Map[bf16], z: Global[u32]) -> None:
    """Transposes an 8 × 64 matrix, eight columns at a time: with stmatrix to ``y``, with movmatrix to ``z``."""
    tile, transposed = smem.tile(bf16, (8, 64), swizzle=128), smem.tile(bf16, (64, 8))
    load_tiles([(tile, x)], mbarrier())
    for block in range(8):
        (register,) = ldmatrix(tile.at(warp.lane % 8, block * 8), 1)
        stmatrix(transposed.at(block * 8 + warp.lane % 8, 0), [register], trans=True)
        z[block * 32 + warp.lane] = movmatrix(register).bitcast(u32)
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        tma.store(y[0, 0], transposed)
        tma.commit_group()
        tma.wait_group(0)


def test_matrices_are_stored_transposed() -> None:
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(ml_dtypes.bfloat16)
    y, z = np.zeros((64, 8), ml_dtypes.bfloat16), np.zeros((8, 32), np.uint32)
    ww.launch(transpose, grid=1, args=[x, y, z])
    np.testing.assert_array_equal(y, x.T)
    np.testing.assert_array_equal(z.view(ml_dtypes.bfloat16).reshape(64, 8), x.T)


@kernel("sm_90a", threads=128)
def two_gemms(a: tma.Map[bf16], b: tma.Map[bf16], c: tma.Map[bf16], d: Global[f32]) -> None:
    """D = (A·Bᵀ)·Cᵀ: the registers of the first accumulator, rounded to bf16, are A of the second GEMM."""
    tiles = [smem.tile(bf16, (rows, K), swizzle=128) for rows in (M, 64, 64)]
    load_tiles(list(zip(tiles, (a, b, c), strict=True)), mbarrier())
    first, second = wgmma.accumulator(f32, (M, 64)), wgmma.accumulator(f32, (M, 64))
    wgmma.fence()
    for k in range(0, K, 16):
        wgmma.mma(first, tiles[0][:, k : k + 16], tiles[1][:, k : k + 16], accumulate=k > 0)
    wgmma.commit_group()
    wgmma.wait_group(0)
    packed = [pack(bf16x2, first.regs[v], first.regs[v + 1]) for v in range(0, 32, 2)]
    wgmma.fence()
    for j in range(4):
        left = wgmma.left(bf16, packed[4 * j : 4 * j + 4])
        wgmma.mma(second, left, tiles[2][:, 16 * j : 16 * j + 16], accumulate=j > 0)
    wgmma.commit_group()
    wgmma.wait_group(0)
    for v, register in enumerate(second.regs):
        row, column = second.at(v)
        d[row * 64 + column] = register


def test_an_accumulator_becomes_an_operand_without_a_shuffle() -> None:
    random = np.random.default_rng(1)
    a, b, c = (random.standard_normal((64, K)).astype(ml_dtypes.bfloat16) for _ in range(3))
    d = np.zeros((M, 64), np.float32)
    ww.launch(two_gemms, grid=1, args=[a, b, c, d])
    rounded = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(d, rounded.astype(np.float64) @ c.astype(np.float64).T, rtol=0, atol=0.25)
