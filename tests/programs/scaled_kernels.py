"""A GEMM of Triton with block scales: MXFP8, MXFP4, NVFP4 and mixed formats, D = A·Bᵀ."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from warpwright.layout import scale_tiles

# dtype of the values, dtype of their memory, elements of a byte
FORMATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn, 1),
    "e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2, 1),
    "e2m1": (ml_dtypes.float4_e2m1fn, torch.uint8, 2),
}


@triton.jit
def scales_of(tiles, row, k, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """The scale factors of a tile, (ROWS, BLOCKS), from tiles of 128 by 4 in memory."""
    loaded = tiles.load([row // 128, k // 4, 0, 0])
    return loaded.reshape(ROWS // 128, BLOCKS // 4, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(ROWS, BLOCKS)


@triton.jit
def scaled_matmul_kernel(
    a, sa, b, sb, d, k,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PACK_A: tl.constexpr, PACK_B: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in tl.range(0, k, BK, num_stages=STAGES):
        left = a.load([row, start // PACK_A])
        right = b.load([column, start // PACK_B])
        scale_a = scales_of(sa, row, start // VECTOR, BM, BK // VECTOR)
        scale_b = scales_of(sb, column, start // VECTOR, BN, BK // VECTOR)
        total = tl.dot_scaled(left, scale_a, LEFT, right.T, scale_b, RIGHT, total)
    d.store([row, column], total)


class Operand:
    """Random values of a format with a scale factor for each ``vector``: as the kernel takes them, and in float64."""

    def __init__(self, random: np.random.Generator, rows: int, k: int, format: str, vector: int, scale: str) -> None:
        dtype, data, self.pack = FORMATS[format]
        values = random.normal(size=(rows, k)).astype(dtype)
        factors = 2.0 ** random.uniform(-3, 3, (rows, k // vector))
        factors = (np.exp2(np.rint(np.log2(factors))) if "e8m0" in scale else factors).astype(getattr(ml_dtypes, scale))
        codes = values.view(np.uint8)
        self.codes = torch.from_numpy(codes if self.pack == 1 else codes[:, ::2] | codes[:, 1::2] << 4).view(data)
        tiles = torch.from_numpy(scale_tiles(factors).view(np.uint8)).flatten(2).unflatten(2, (2, 256))
        self.tiles = tiles if "e8m0" in scale else tiles.view(torch.float8_e4m3fn)
        self.exact = torch.from_numpy(values.astype(np.float64) * factors.astype(np.float64).repeat(vector, axis=1))

    def maps(self, rows: int, k: int, vector: int) -> tuple[TensorDescriptor, TensorDescriptor]:
        return (
            TensorDescriptor.from_tensor(self.codes, [rows, k // self.pack]),
            TensorDescriptor.from_tensor(self.tiles, [rows // 128, k // vector // 4, 2, 256]),
        )


def scaled_matmul(
    left: str, right: str, vector: int, scale: str, m: int, n: int, k: int, bk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns D, and D and the sums of magnitudes in float64."""
    random, (bm, bn) = np.random.default_rng(1), (128, 128)
    a, b = Operand(random, m, k, left, vector, scale), Operand(random, n, k, right, vector, scale)
    d = torch.full((m, n), float("nan"))
    scaled_matmul_kernel[(m // bm, n // bn)](
        *a.maps(bm, bk, vector), *b.maps(bn, bk, vector), TensorDescriptor.from_tensor(d, [bm, bn]), k,
        LEFT=left, RIGHT=right, PACK_A=a.pack, PACK_B=b.pack, VECTOR=vector, BM=bm, BN=bn, BK=bk, STAGES=2,
    )  # fmt: skip
    return d, a.exact @ b.exact.T, a.exact.abs() @ b.exact.abs().T
