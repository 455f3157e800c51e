"""Attention and persistent GEMMs of Triton: descriptors of the host, causal masks, roles of warps, gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.programs.kernels import tile_place

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_step(
    total, weight, top, q, k, v, head, first, last, rows, scale,
    BN: tl.constexpr, MASKED: tl.constexpr, ROLES: tl.constexpr,
):  # fmt: skip
    """Adds the keys from ``first`` to ``last`` to the running sums of a block of queries."""
    for start in tl.range(first, last, BN, warp_specialize=ROLES):
        start = tl.multiple_of(start, BN)
        scores = tl.dot(q, k.load([head + start, 0]).T) * scale
        if MASKED:
            scores = tl.where(rows[:, None] >= start + tl.arange(0, BN)[None, :], scores, -1.0e6)
        new_top = tl.maximum(top, tl.max(scores, 1))
        parts = tl.math.exp2(scores - new_top[:, None])
        shrink = tl.math.exp2(top - new_top)
        values = v.load([head + start, 0])
        total = tl.dot(parts.to(values.dtype), values, total * shrink[:, None])
        weight = weight * shrink + tl.sum(parts, 1)
        top = new_top
    return total, weight, top


def set_blocks(arguments):
    """Sets the blocks of the tensor descriptors to those of a configuration."""
    for name, block in (("q", "BM"), ("k", "BN"), ("v", "BN"), ("out", "BM")):
        arguments[name].block_shape = [arguments[block], arguments["D"]]


@triton.autotune(
    configs=[triton.Config({"BM": bm, "BN": 32}, num_stages=2, num_warps=4, pre_hook=set_blocks) for bm in (64, 128)],
    key=["length", "D", "CAUSAL", "ROLES"],
)
@triton.jit
def attention_kernel(
    q, k, v, out, lse, length, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, ROLES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0) * BM, tl.program_id(1) * length
    rows = block + tl.arange(0, BM)
    top = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    queries = q.load([head + block, 0])
    before = block if CAUSAL else length
    total, weight, top = attention_step(
        total, weight, top, queries, k, v, head, 0, before, rows, scale, BN, False, ROLES
    )
    if CAUSAL:
        total, weight, top = attention_step(
            total, weight, top, queries, k, v, head, block, block + BM, rows, scale, BN, True, ROLES
        )
    tl.store(lse + head + rows, top + tl.math.log2(weight))
    out.store([head + block, 0], (total / weight[:, None]).to(out.dtype))


@triton.jit
def row_dots_kernel(out, dout, dots, D: tl.constexpr, BM: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dots + rows, tl.sum(tl.load(out + at).to(tl.float32) * tl.load(dout + at).to(tl.float32), axis=1))


@triton.jit
def attention_backward_kernel(
    q, k, v, dout, dq, dk, dv, lse, dots, length, scale,
    D: tl.constexpr, B: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys, then of a block of queries; ``scale`` is that of the softmax."""
    head, block = tl.program_id(1) * length, tl.program_id(0) * B
    mine, inner = block + tl.arange(0, B), tl.arange(0, D)
    own = (head + mine)[:, None] * D + inner[None, :]
    keys, values = tl.load(k + own), tl.load(v + own)
    dkeys, dvalues = tl.zeros((B, D), tl.float32), tl.zeros((B, D), tl.float32)
    for start in range(block if CAUSAL else 0, length, B):
        rows = start + tl.arange(0, B)
        at = (head + rows)[:, None] * D + inner[None, :]
        queries, gradient = tl.load(q + at), tl.load(dout + at)
        weights = tl.math.exp2(tl.dot(keys, queries.T) * (scale * LOG2E)
                               - tl.load(lse + head + rows)[None, :])  # fmt: skip
        if CAUSAL:
            weights = tl.where(rows[None, :] >= mine[:, None], weights, 0.0)
        dvalues = tl.dot(weights.to(q.dtype.element_ty), gradient, dvalues)
        slopes = weights * (tl.dot(values, gradient.T) - tl.load(dots + head + rows)[None, :])
        dkeys = tl.dot(slopes.to(q.dtype.element_ty), queries, dkeys)
    tl.store(dk + own, (dkeys * scale).to(dk.dtype.element_ty))
    tl.store(dv + own, dvalues.to(dv.dtype.element_ty))
    queries, gradient = tl.load(q + own), tl.load(dout + own)
    level, dot = tl.load(lse + head + mine)[:, None], tl.load(dots + head + mine)[:, None]
    dqueries = tl.zeros((B, D), tl.float32)
    for start in range(0, block + B if CAUSAL else length, B):
        columns = start + tl.arange(0, B)
        at = (head + columns)[:, None] * D + inner[None, :]
        keys, values = tl.load(k + at), tl.load(v + at)
        weights = tl.math.exp2(tl.dot(queries, keys.T) * (scale * LOG2E) - level)
        if CAUSAL:
            weights = tl.where(mine[:, None] >= columns[None, :], weights, 0.0)
        slopes = weights * (tl.dot(gradient, values.T) - dot)
        dqueries = tl.dot(slopes.to(q.dtype.element_ty), keys, dqueries)
    tl.store(dq + own, (dqueries * scale).to(dq.dtype.element_ty))


def rows_of(x: torch.Tensor) -> TensorDescriptor:
    """Returns a tensor descriptor of the rows of all heads, whose block the autotuner sets."""
    flat = x.reshape(-1, x.shape[-1])
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [1, 1])


class Attention(torch.autograd.Function):
    """Attention of (heads, length, head_dim) tensors with its gradients."""

    @staticmethod
    def forward(ctx, q, k, v, causal, roles):
        heads, length, d = q.shape
        out, lse = torch.empty_like(q), torch.empty(heads, length, device=q.device)
        attention_kernel[lambda meta: (length // meta["BM"], heads)](
            rows_of(q), rows_of(k), rows_of(v), rows_of(out), lse, length, d**-0.5 * LOG2E.value,
            D=d, CAUSAL=causal, ROLES=roles,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        heads, length, d = q.shape
        dots, dout = torch.empty_like(lse), dout.contiguous()
        row_dots_kernel[(heads * length // 64,)](out, dout, dots, D=d, BM=64)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        attention_backward_kernel[(length // 64, heads)](
            q, k, v, dout, dq, dk, dv, lse, dots, length, d**-0.5, D=d, B=64, CAUSAL=ctx.causal
        )
        return dq, dk, dv, None, None


@triton.jit
def persistent_kernel(
    a, b, c, m, n, k, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c = a b by pointers, in one loop over tiles and steps."""
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    inner = tl.arange(0, BK)
    for tile in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):
        row, column = tile_place(tile, rows, columns, GROUP)
        i, j = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
        i_inside = tl.max_contiguous(tl.multiple_of(tl.where(i < m, i, 0), BM), BM)
        j_inside = tl.max_contiguous(tl.multiple_of(tl.where(j < n, j, 0), BN), BN)
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            at = step * BK + inner
            left = tl.load(a + i_inside[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)
            right = tl.load(b + at[:, None] * n + j_inside[None, :], mask=at[:, None] < k, other=0.0)
            total = tl.dot(left, right, total)
        inside = (i[:, None] < m) & (j[None, :] < n)
        tl.store(c + i[:, None] * n + j[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def persistent_descriptor_kernel(
    a, b, c, m, n, k, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PARTS: tl.constexpr, ROLES: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """c = a bᵀ; ``a`` and ``b`` are tensor descriptors of the host, or pointers that become descriptors here."""
    if isinstance(a, tl.tensor):
        a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
        b = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
        c = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN // PARTS])
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=FLAT, warp_specialize=ROLES):
        row, column = tile_place(tile, rows, columns, GROUP)
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            total = tl.dot(a.load([row * BM, step * BK]), b.load([column * BN, step * BK]).T, total)
        if PARTS == 2:
            left, right = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
            c.store([row * BM, column * BN], left.to(c.dtype))
            c.store([row * BM, column * BN + BN // 2], right.to(c.dtype))
        else:
            c.store([row * BM, column * BN], total.to(c.dtype))
