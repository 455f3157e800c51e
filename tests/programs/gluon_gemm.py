"""GEMMs of Gluon: wgmma, tcgen05.mma and tensor memory, persistent with one state for both."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
    tensor_memory_descriptor,
)
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_accumulator,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)


@gluon.jit
def store_tile(target, row, column, values):
    """Stores a tile of registers through shared memory by TMA."""
    staging = gl.allocate_shared_memory(target.dtype, target.block_shape, target.layout)
    staging.store(values.to(target.dtype))
    fence_async_shared()
    tma.async_store(target, [row, column], staging)
    tma.store_wait(0)


@gluon.jit
def wgmma_kernel(a, b, c, d, A_IN_REGISTERS: gl.constexpr, N_OF_MMA: gl.constexpr):
    """One tile d = a b + c, a from registers or shared memory."""
    BM: gl.constexpr = d.block_shape[0]
    BN: gl.constexpr = d.block_shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N_OF_MMA, 16])
    a_tile = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    c_tile = gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta + c.nbytes_per_cta)
    tma.async_load(a, [gl.program_id(0) * BM, 0], full, a_tile)
    tma.async_load(b, [0, gl.program_id(1) * BN], full, b_tile)
    tma.async_load(c, [gl.program_id(0) * BM, gl.program_id(1) * BN], full, c_tile)
    mbarrier.wait(full, 0)
    mbarrier.invalidate(full)
    total = c_tile.load(layout)
    if A_IN_REGISTERS:
        left = a_tile.load(gl.DotOperandLayout(0, layout, k_width=2))
        total = warpgroup_mma(left, b_tile, total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
    else:
        total = warpgroup_mma(a_tile, b_tile, total)
    store_tile(d, gl.program_id(0) * BM, gl.program_id(1) * BN, total)


@gluon.jit
def tcgen05_kernel(a, b, c, d, A_IN_TENSOR_MEMORY: gl.constexpr, COMMIT: gl.constexpr):
    """One tile d = a bᵀ + c, b transposed by its view; a from tensor or shared memory."""
    BM: gl.constexpr = d.block_shape[0]
    BN: gl.constexpr = d.block_shape[1]
    BK: gl.constexpr = a.block_shape[1]
    a_tile = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    c_tile = gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout)
    full = mbarrier.allocate_mbarrier()
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(ready, count=1)
    mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta + c.nbytes_per_cta)
    tma.async_load(a, [gl.program_id(0) * BM, 0], full, a_tile)
    tma.async_load(b, [gl.program_id(1) * BN, 0], full, b_tile)
    tma.async_load(c, [gl.program_id(0) * BM, gl.program_id(1) * BN], full, c_tile)
    mbarrier.wait(full, 0)
    total = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    layout: gl.constexpr = total.get_reg_layout()
    total.store(c_tile.load(layout))
    right = b_tile.permute((1, 0))
    if A_IN_TENSOR_MEMORY:
        left = allocate_tensor_memory(a.dtype, [BM, BK], TensorMemoryLayout((BM, BK), col_stride=1))
        left.store(a_tile.load(left.get_reg_layout()))
    else:
        left = a_tile
    if COMMIT:
        tcgen05_mma(left, right, total)
        tcgen05_commit(ready)
    else:
        tcgen05_mma(left, right, total, mbarriers=[ready])
    mbarrier.wait(ready, 0)
    store_tile(d, gl.program_id(0) * BM, gl.program_id(1) * BN, total.load(layout))


@gluon.aggregate
class Wgmma:
    """The running sum of a tile in registers."""

    total: warpgroup_mma_accumulator
    keep: gl.tensor

    @gluon.jit
    def start(BM: gl.constexpr, BN: gl.constexpr):
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BN, 16])
        zero = warpgroup_mma_init(gl.zeros((BM, BN), gl.float32, layout))
        return Wgmma(zero, gl.to_tensor(False))

    @gluon.jit
    def add(self, a, b):
        return Wgmma(warpgroup_mma(a, b, self.total, is_async=True, use_acc=self.keep), gl.to_tensor(True))

    @gluon.jit
    def wait(self):
        return Wgmma(warpgroup_mma_init(warpgroup_mma_wait(0, deps=[self.total])), self.keep)

    @gluon.jit
    def take(self):
        total = warpgroup_mma_wait(0, deps=[self.total])
        return total, Wgmma(warpgroup_mma_init(total), gl.to_tensor(False))


@gluon.aggregate
class Tcgen05:
    """The running sum of a tile in tensor memory."""

    total: tensor_memory_descriptor
    ready: gl.shared_memory_descriptor
    count: gl.tensor
    keep: gl.tensor

    @gluon.jit
    def start(BM: gl.constexpr, BN: gl.constexpr):
        total = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
        ready = mbarrier.allocate_mbarrier()
        mbarrier.init(ready, count=1)
        return Tcgen05(total, ready, gl.to_tensor(0), gl.to_tensor(False))

    @gluon.jit
    def add(self, a, b):
        tcgen05_mma(a, b, self.total, use_acc=self.keep, mbarriers=[self.ready])
        return Tcgen05(self.total, self.ready, self.count + 1, gl.to_tensor(True))

    @gluon.jit
    def wait(self):
        mbarrier.wait(self.ready, (self.count - 1) & 1, pred=self.count > 0)
        return self

    @gluon.jit
    def take(self):
        return self.wait().total.load(), Tcgen05(self.total, self.ready, self.count, gl.to_tensor(False))


@gluon.aggregate
class Static:
    """Tiles of a persistent program, one grid apart."""

    tile: gl.tensor
    count: gl.tensor

    @gluon.jit
    def start(count):
        return Static(gl.program_id(0), count)

    @gluon.jit
    def has_work(self):
        return self.tile < self.count

    @gluon.jit
    def next(self):
        return Static(self.tile + gl.num_programs(0), self.count)


@gluon.jit
def load_stage(a, b, row, column, step, issued, full, a_slots, b_slots, pred):
    """Loads step ``step`` of a tile into the next slot of the ring."""
    STAGES: gl.constexpr = a_slots.shape[0]
    slot = issued % STAGES
    mbarrier.expect(full.index(slot), a.nbytes_per_cta + b.nbytes_per_cta, pred=pred)
    tma.async_load(a, [row, step * a.block_shape[1]], full.index(slot), a_slots.index(slot), pred=pred)
    tma.async_load(b, [step * a.block_shape[1], column], full.index(slot), b_slots.index(slot), pred=pred)


@gluon.jit
def persistent_kernel(a, b, c, Sum: gl.constexpr, STAGES: gl.constexpr):
    """c = a b: tiles of a static schedule, loads ahead of the tensor core across tiles."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    a_slots = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)
    b_slots = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    rows = gl.cdiv(c.shape[0], BM)
    steps = gl.cdiv(a.shape[1], a.block_shape[1])
    schedule = Static.start(rows * gl.cdiv(c.shape[1], BN))
    total = Sum.start(BM, BN)
    used = 0
    row, column = schedule.tile % rows * BM, schedule.tile // rows * BN
    for i in gl.static_range(STAGES - 1):
        load_stage(a, b, row, column, i, i, full, a_slots, b_slots, schedule.has_work() & (i < steps))
    while schedule.has_work():
        following = schedule.next()
        next_row, next_column = following.tile % rows * BM, following.tile // rows * BN
        for step in range(steps):
            mbarrier.wait(full.index(used % STAGES), used // STAGES & 1)
            total = total.wait().add(a_slots.index(used % STAGES), b_slots.index(used % STAGES))
            ahead = step + STAGES - 1
            inside = ahead < steps
            load_stage(
                a, b, gl.where(inside, row, next_row), gl.where(inside, column, next_column),
                gl.where(inside, ahead, ahead - steps), used + STAGES - 1, full, a_slots, b_slots,
                inside | following.has_work(),
            )  # fmt: skip
            used += 1
        values, total = total.take()
        store_tile(c, row, column, values)
        schedule, row, column = following, next_row, next_column


def tensor_cores() -> object:
    """Returns the state of a running sum for the GPU."""
    return Wgmma if torch.cuda.get_device_capability()[0] == 9 else Tcgen05
