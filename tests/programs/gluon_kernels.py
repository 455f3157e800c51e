"""Kernels of Gluon on every GPU: layouts, asynchronous copies, tensor maps, roles of warps, clusters."""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])  # a warp reads along a row
SQUARES = gl.BlockedLayout([2, 2], [4, 8], [2, 2], [1, 0])
COLUMNS = gl.BlockedLayout([4, 1], [32, 1], [1, 4], [0, 1])


def tiles(x: torch.Tensor, *block: int, cga: tuple[tuple[int, int], ...] = ()) -> TensorDescriptor:
    """Returns a tensor descriptor of ``x`` in the layout of shared memory that Gluon chooses for the block."""
    dtype = getattr(gl, str(x.dtype).removeprefix("torch."))
    layout = gl.NVMMASharedLayout.get_default_for(list(block), dtype, cga_layout=[list(basis) for basis in cga])
    return TensorDescriptor.from_tensor(x, list(block), layout)


@triton.autotune(
    configs=[triton.Config({"READ": read, "WRITE": COLUMNS}, num_warps=4) for read in (ROWS, SQUARES)],
    key=["m", "n"],
)
@gluon.jit
def transpose_kernel(x, out, m, n, BM: gl.constexpr, BN: gl.constexpr, READ: gl.constexpr, WRITE: gl.constexpr):
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    i = row + gl.arange(0, BM, layout=gl.SliceLayout(1, READ))
    j = column + gl.arange(0, BN, layout=gl.SliceLayout(0, READ))
    values = gl.load(x + i[:, None] * n + j[None, :], mask=(i[:, None] < m) & (j[None, :] < n))
    i = row + gl.arange(0, BM, layout=gl.SliceLayout(1, WRITE))
    j = column + gl.arange(0, BN, layout=gl.SliceLayout(0, WRITE))
    target = out + i[:, None] + j[None, :] * m
    gl.store(target, gl.convert_layout(values, WRITE), mask=(i[:, None] < m) & (j[None, :] < n))


def transpose(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    out = torch.empty(n, m, device=x.device, dtype=x.dtype)
    transpose_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 64))](x, out, m, n, BM=32, BN=64)
    return out


@gluon.jit
def copy_stage(x, n, start, slots, STAGES: gl.constexpr, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = start * BLOCK + gl.arange(0, BLOCK, layout=layout)
    async_copy.async_load(slots.index(start % STAGES), x + at, mask=at < n)
    async_copy.commit_group()


@gluon.jit
def running_sum_kernel(x, out, n, BLOCK: gl.constexpr, STAGES: gl.constexpr):
    """Adds the blocks of a row that arrive by cp.async in a ring of slots."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    x += gl.program_id(0) * n
    slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    for start in gl.static_range(STAGES - 1):
        copy_stage(x, n, start, slots, STAGES, BLOCK, layout)
    total = gl.zeros([BLOCK], gl.float32, layout)
    for start in range(gl.cdiv(n, BLOCK)):
        copy_stage(x, n, start + STAGES - 1, slots, STAGES, BLOCK, layout)
        async_copy.wait_group(STAGES - 1)
        at = start * BLOCK + gl.arange(0, BLOCK, layout=layout)
        total += gl.where(at < n, slots.index(start % STAGES).load(layout), 0.0)
    gl.store(out + gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout), total)


@gluon.jit
def tma_add_kernel(a, b, out, n, STAGES: gl.constexpr, layout: gl.constexpr):
    """Adds along rows; loads run ahead by STAGES, one store is in flight."""
    BN: gl.constexpr = out.block_shape[1]
    row = gl.program_id(0) * out.block_shape[0]
    a_slots = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)
    b_slots = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout)
    staging = gl.allocate_shared_memory(out.dtype, out.block_shape, out.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    count = gl.cdiv(n, BN)
    for step in range(count + STAGES):
        if step >= STAGES:
            done = step - STAGES
            slot = done % STAGES
            mbarrier.wait(full.index(slot), done // STAGES & 1)
            total = a_slots.index(slot).load(layout) + b_slots.index(slot).load(layout)
            tma.store_wait(0)
            staging.store(total)
            fence_async_shared()
            tma.async_store(out, [row, done * BN], staging)
        if step < count:
            slot = step % STAGES
            mbarrier.expect(full.index(slot), a.nbytes_per_cta + b.nbytes_per_cta)
            tma.async_load(a, [row, step * BN], full.index(slot), a_slots.index(slot))
            tma.async_load(b, [row, step * BN], full.index(slot), b_slots.index(slot))
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
    tma.store_wait(0)


@gluon.jit
def scale_load(x, full, empty, slots, row, steps):
    for step in range(steps):
        slot, phase = step % slots.shape[0], step // slots.shape[0] & 1
        mbarrier.wait(empty.index(slot), phase ^ 1)
        mbarrier.expect(full.index(slot), x.nbytes_per_cta)
        tma.async_load(x, [row, step * x.block_shape[1]], full.index(slot), slots.index(slot))


@gluon.jit
def scale_compute(factor, full, empty, slots, ready, free, staging, steps, layout: gl.constexpr):
    for step in range(steps):
        slot, phase = step % slots.shape[0], step // slots.shape[0] & 1
        mbarrier.wait(full.index(slot), phase)
        values = slots.index(slot).load(layout)
        fence_async_shared()
        mbarrier.arrive(empty.index(slot), count=1)
        mbarrier.wait(free, step & 1 ^ 1)
        staging.store(values * factor)
        fence_async_shared()
        mbarrier.arrive(ready, count=1)


@gluon.jit
def scale_store(out, ready, free, staging, row, steps):
    for step in range(steps):
        mbarrier.wait(ready, step & 1)
        tma.async_store(out, [row, step * out.block_shape[1]], staging)
        tma.store_wait(0)
        mbarrier.arrive(free, count=1)


@gluon.jit
def roles_kernel(x, out, factor, STAGES: gl.constexpr, layout: gl.constexpr):
    """out = factor x: a warp loads, a warp stores, four warps compute."""
    slots = gl.allocate_shared_memory(x.dtype, [STAGES] + x.block_shape, x.layout)
    staging = gl.allocate_shared_memory(out.dtype, out.block_shape, out.layout)
    full, empty = mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES)
    ready, free = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=1)
    row = gl.program_id(0) * x.block_shape[0]
    steps = gl.cdiv(x.shape[1], x.block_shape[1])
    gl.warp_specialize(
        [
            (scale_compute, (factor, full, empty, slots, ready, free, staging, steps, layout)),
            (scale_load, (x, full, empty, slots, row, steps)),
            (scale_store, (out, ready, free, staging, row, steps)),
        ],
        [1, 1],
        [24, 24],
    )


@gluon.jit
def stencil_kernel(
    image, out, weights, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CHANNELS: gl.constexpr, HEIGHT, WIDTH
):
    """A convolution of each channel by itself, with zeros around the images: one load for each weight."""
    slots: gl.constexpr = [ROWS * COLUMNS] + image.block_shape
    pixels = gl.allocate_shared_memory(image.dtype, slots, image.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, ROWS * COLUMNS * image.nbytes_per_cta)
    first = gl.program_id(0) * image.block_shape[0]
    n, h, w = first // (HEIGHT * WIDTH), first // WIDTH % HEIGHT, first % WIDTH
    for i in gl.static_range(ROWS):
        for j in gl.static_range(COLUMNS):
            at = [n, h - ROWS // 2, w - COLUMNS // 2, gl.program_id(1) * CHANNELS]
            tma.async_load_im2col(image, at, [i, j], full, pixels.index(i * COLUMNS + j))
    mbarrier.wait(full, 0)
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [gl.num_warps(), 1], [1, 0])
    found = gl.zeros(image.block_shape, gl.float32, layout)
    for k in gl.static_range(ROWS * COLUMNS):
        found += gl.load(weights + k) * pixels.index(k).load(layout)
    result = gl.allocate_shared_memory(out.dtype, out.block_shape, out.layout, found)
    fence_async_shared()
    tma.async_store(out, [first, gl.program_id(1) * CHANNELS], result)
    tma.store_wait(0)


@gluon.jit
def cluster_softmax_kernel(x, out, n, BLOCK: gl.constexpr):
    """Softmax of a row that the CTAs of a cluster share."""
    cga: gl.constexpr = ((1,), (2,), (4,))[: gl.num_ctas().bit_length() - 1]
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0], cga_layout=cga)
    at = gl.arange(0, BLOCK, layout=layout)
    values = gl.load(x + gl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    weights = gl.exp(values - gl.max(values, axis=0))
    gl.store(out + gl.program_id(0) * n + at, weights / gl.sum(weights, axis=0), mask=at < n)


@gluon.jit
def multicast_kernel(x, out):
    """Each CTA of a cluster gets the tile by one multicast load and stores it."""
    tile = gl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, x.nbytes_per_cta)
    tma.async_load(x, [gl.program_id(0) * x.block_shape[0], 0], full, tile, multicast=True)
    mbarrier.wait(full, 0, deps=[tile])
    tma.async_store(out, [gl.program_id(0) * x.block_shape[0], 0], tile)
    tma.store_wait(0)
