"""Kernels of Triton as its users write them: elementwise, rows, autotuned GEMMs, gradients, tensor descriptors."""

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
    """As many programs as fit on the GPU by their registers."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    args = out, x, out.stride(0), x.stride(0), rows, columns, triton.next_power_of_2(columns), 2
    compiled = softmax_kernel.warmup(*args, num_warps=4, grid=(1,))
    compiled._init_handles()
    fitting = 65536 // (compiled.n_regs * 4 * 32)
    programs = min(rows, fitting * torch.cuda.get_device_properties(0).multi_processor_count)
    compiled[(programs, 1, 1)](*args)
    return out


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def tile_place(tile, rows, columns, GROUP: tl.constexpr):
    """The row and the column of a tile in an order that takes GROUP rows together."""
    first = tile // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    return first + tile % (GROUP * columns) % height, tile % (GROUP * columns) // height


@triton.autotune(
    configs=[
        triton.Config({"BM": 64, "BN": 64, "BK": 32, "GROUP": 2}, num_stages=2, num_warps=4),
        triton.Config({"BM": 64, "BN": 32, "BK": 32, "GROUP": 4}, num_stages=3, num_warps=4),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    tl.assume(am > 0)
    row, column = tile_place(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a + rows[:, None] * am + (start + inner)[None, :] * ak,
                       mask=(rows[:, None] < m) & ((start + inner)[None, :] < k), other=0.0)  # fmt: skip
        right = tl.load(b + (start + inner)[:, None] * bk + columns[None, :] * bn,
                        mask=((start + inner)[:, None] < k) & (columns[None, :] < n), other=0.0)  # fmt: skip
        total = tl.dot(left, right, total)
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * cm + columns[None, :] * cn, total.to(c.dtype.element_ty), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor, activation: str = "") -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=torch.float16)
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation
    )
    return c


@triton.jit
def norm_kernel(x, weight, bias, out, mean, rstd, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    average = tl.sum(values, axis=0) / n
    centred = tl.where(inside, values - average, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    hat = centred * scale
    tl.store(out + row * n + at, hat * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside), mask=inside)


@triton.jit
def norm_backward_kernel(dx, dy, dw, db, x, weight, mean, rstd, locks, n, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of a row; rows of a group add their parts of dw and db in turn, by a lock and a count."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    scale = tl.load(rstd + row)
    gradient = tl.load(dy + row * n + at, mask=inside, other=0.0)
    hat = tl.where(inside, (tl.load(x + row * n + at, mask=inside, other=0.0) - tl.load(mean + row)) * scale, 0.0)
    weighted = gradient * tl.load(weight + at, mask=inside, other=0.0)
    along, level = tl.sum(hat * weighted, axis=0) / n, tl.sum(weighted, axis=0) / n
    tl.store(dx + row * n + at, (weighted - hat * along - level) * scale, mask=inside)
    group = row % GROUPS
    lock, count = locks + group, locks + GROUPS + group
    dw, db = dw + group * n + at, db + group * n + at
    w_part, b_part = gradient * hat, gradient
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    seen = tl.load(count)
    tl.debug_barrier()  # all threads load, one exchanges; Triton 3.8 puts no barrier between the two
    if seen == 0:
        tl.atomic_xchg(count, 1)
    else:
        w_part += tl.load(dw, mask=inside)
        b_part += tl.load(db, mask=inside)
    tl.store(dw, w_part, mask=inside)
    tl.store(db, b_part, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sum_groups_kernel(parts, out, groups, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, groups, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < groups) & (at[None, :] < n)
        total += tl.load(parts + rows[:, None] * n + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, axis=0), mask=at < n)


class Norm(torch.autograd.Function):
    """Layer norm with its gradients."""

    GROUPS = 4

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        rows, n = x.shape
        out, mean, rstd = torch.empty_like(x), torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
        norm_kernel[(rows,)](x, weight, bias, out, mean, rstd, n, eps, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        rows, n = x.shape
        dx, dw, db = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        dw_parts = torch.zeros(Norm.GROUPS, n, device="cuda")
        db_parts = torch.zeros(Norm.GROUPS, n, device="cuda")
        locks = torch.zeros(2 * Norm.GROUPS, dtype=torch.int32, device="cuda")
        norm_backward_kernel[(rows,)](
            dx, dy, dw_parts, db_parts, x, weight, mean, rstd, locks, n,
            GROUPS=Norm.GROUPS, BLOCK=triton.next_power_of_2(n),
        )  # fmt: skip
        for parts, total in ((dw_parts, dw), (db_parts, db)):
            sum_groups_kernel[(triton.cdiv(n, 64),)](parts, total, Norm.GROUPS, n, ROWS=4, COLUMNS=64)
        return dx, dw, db, None


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
