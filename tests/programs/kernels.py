"""Kernels of Triton as its users write them: elementwise, rows, autotuned products, gradients, tensor descriptors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), BLOCK=256)
    return out


@triton.jit
def softmax_kernel(out, x, out_stride, x_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    step = tl.num_programs(0)
    for row in tl.range(tl.program_id(0), rows, step, num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        inside = at < columns
        values = tl.load(x + row * x_stride + at, mask=inside, other=-float("inf"))
        weights = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * out_stride + at, weights / tl.sum(weights, axis=0), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    programs = min(rows, torch.cuda.get_device_properties(0).multi_processor_count)
    block = triton.next_power_of_2(columns)
    softmax_kernel[(programs, 1, 1)](out, x, out.stride(0), x.stride(0), rows, columns, block, STAGES=2, num_warps=4)
    return out


@triton.autotune(
    configs=[
        triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_stages=2, num_warps=4),
        triton.Config({"BM": 128, "BN": 64, "BK": 32}, num_stages=3, num_warps=4),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a + rows[:, None] * am + (start + inner)[None, :] * ak,
                       mask=(rows[:, None] < m) & ((start + inner)[None, :] < k), other=0.0)  # fmt: skip
        right = tl.load(b + (start + inner)[:, None] * bk + columns[None, :] * bn,
                        mask=((start + inner)[:, None] < k) & (columns[None, :] < n), other=0.0)  # fmt: skip
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * cm + columns[None, :] * cn, total.to(tl.float16), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=torch.float16)
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()
    )
    return c


@triton.jit
def norm_kernel(x, out, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    average = tl.sum(values, axis=0) / n
    centred = tl.where(at < n, values - average, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    tl.store(out + row * stride + at, centred * scale, mask=at < n)


@triton.jit
def norm_backward_kernel(dx, dy, x, mean, rstd, stride, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    scale = tl.load(rstd + row)
    gradient = tl.load(dy + row * stride + at, mask=inside, other=0.0)
    hat = tl.where(inside, (tl.load(x + row * stride + at, mask=inside, other=0.0) - tl.load(mean + row)) * scale, 0.0)
    along, level = tl.sum(hat * gradient, axis=0) / n, tl.sum(gradient, axis=0) / n
    tl.store(dx + row * stride + at, (gradient - hat * along - level) * scale, mask=inside)


class Norm(torch.autograd.Function):
    """Normalisation of rows with its gradient."""

    @staticmethod
    def forward(ctx, x, eps):
        rows, n = x.shape
        out, mean, rstd = torch.empty_like(x), torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
        norm_kernel[(rows,)](x, out, mean, rstd, x.stride(0), n, eps, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x, mean, rstd)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, mean, rstd = ctx.saved_tensors
        dx = torch.empty_like(x)
        rows, n = x.shape
        norm_backward_kernel[(rows,)](dx, dy, x, mean, rstd, x.stride(0), n, BLOCK=triton.next_power_of_2(n))
        return dx, None


@triton.jit
def descriptor_matmul_kernel(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        total = tl.dot(a.load([row, start]), b.load([column, start]).T, total)
    c.store([row, column], total.to(tl.float16))


@triton.jit
def device_descriptor_kernel(x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def pointers_kernel(table, out, n, BLOCK: tl.constexpr):
    number, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(table + number).to(tl.pointer_type(tl.float32))
    tl.store(out + number * n + at, tl.load(x + at, mask=at < n), mask=at < n)


@gluon.jit
def copy_kernel(x, out, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(out + at, gl.load(x + at, mask=at < n), mask=at < n)
