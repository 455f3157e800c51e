"""GEMMs of Gluon on Blackwell: roles of warps, copies to tensor memory, cluster launch control, pairs of CTAs."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tensor_memory_descriptor,
    tma,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tests.programs.gluon_gemm import Static, store_tile


@gluon.aggregate
class Ring:
    """The slots that one role fills and another empties, and the place of a role in them."""

    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    count: gl.tensor

    @gluon.jit
    def start(STAGES: gl.constexpr):
        full, empty = mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES)
        for i in gl.static_range(STAGES):
            mbarrier.init(full.index(i), count=1)
            mbarrier.init(empty.index(i), count=1)
        return Ring(full, empty, gl.to_tensor(0))

    @gluon.jit
    def slot(self):
        return self.count % self.full.shape[0]

    @gluon.jit
    def wait_empty(self):
        mbarrier.wait(self.empty.index(self.slot()), self.count // self.full.shape[0] & 1 ^ 1)

    @gluon.jit
    def wait_full(self):
        mbarrier.wait(self.full.index(self.slot()), self.count // self.full.shape[0] & 1)

    @gluon.jit
    def next(self):
        return Ring(self.full, self.empty, self.count + 1)


@gluon.aggregate
class Tiles:
    """What the roles of a GEMM d = a b + c share."""

    a: tma.tensor_descriptor
    b: tma.tensor_descriptor
    c: tma.tensor_descriptor
    d: tma.tensor_descriptor
    a_slots: gl.shared_memory_descriptor
    b_slots: gl.shared_memory_descriptor
    c_slot: gl.shared_memory_descriptor
    totals: tensor_memory_descriptor
    steps: Ring
    addends: Ring
    sums: Ring

    @gluon.jit
    def schedule(self):
        rows = gl.cdiv(self.d.shape[0], self.c.block_shape[0])
        return Static.start(rows * gl.cdiv(self.d.shape[1], self.c.block_shape[1]))

    @gluon.jit
    def corner(self, tile):
        rows = gl.cdiv(self.d.shape[0], self.c.block_shape[0])
        return tile % rows * self.c.block_shape[0], tile // rows * self.c.block_shape[1]


@gluon.jit
def load_role(tiles):
    schedule, steps, addends = tiles.schedule(), tiles.steps, tiles.addends
    BK: gl.constexpr = tiles.a.block_shape[1]
    while schedule.has_work():
        row, column = tiles.corner(schedule.tile)
        addends.wait_empty()
        mbarrier.expect(addends.full.index(0), tiles.c.nbytes_per_cta)
        tma.async_load(tiles.c, [row, column], addends.full.index(0), tiles.c_slot)
        addends = addends.next()
        for k in range(0, tiles.a.shape[1], BK):
            steps.wait_empty()
            full = steps.full.index(steps.slot())
            mbarrier.expect(full, tiles.a.nbytes_per_cta + tiles.b.nbytes_per_cta)
            tma.async_load(tiles.a, [row, k], full, tiles.a_slots.index(steps.slot()))
            tma.async_load(tiles.b, [k, column], full, tiles.b_slots.index(steps.slot()))
            steps = steps.next()
        schedule = schedule.next()


@gluon.jit
def mma_role(tiles):
    schedule, steps, addends, sums = tiles.schedule(), tiles.steps, tiles.addends, tiles.sums
    while schedule.has_work():
        sums.wait_empty()
        total = tiles.totals.index(sums.slot())
        addends.wait_full()
        tcgen05_copy(tiles.c_slot, total)
        tcgen05_commit(addends.empty.index(0))
        addends = addends.next()
        for _ in range(0, tiles.a.shape[1], tiles.a.block_shape[1]):
            steps.wait_full()
            tcgen05_mma(tiles.a_slots.index(steps.slot()), tiles.b_slots.index(steps.slot()), total)
            tcgen05_commit(steps.empty.index(steps.slot()))
            steps = steps.next()
        tcgen05_commit(sums.full.index(sums.slot()))
        sums = sums.next()
        schedule = schedule.next()


@gluon.jit
def store_role(tiles):
    """Stores each tile of tensor memory in column ranges of the width that d has."""
    schedule, sums = tiles.schedule(), tiles.sums
    BN: gl.constexpr = tiles.d.block_shape[1]
    while schedule.has_work():
        row, column = tiles.corner(schedule.tile)
        sums.wait_full()
        total = tiles.totals.index(sums.slot())
        for part in gl.static_range(tiles.c.block_shape[1] // BN):
            store_tile(tiles.d, row, column + part * BN, total.slice(part * BN, BN).load())
        mbarrier.arrive(sums.empty.index(sums.slot()), count=1)
        sums = sums.next()
        schedule = schedule.next()


@gluon.jit
def roles_gemm_kernel(a, b, c, d, STAGES: gl.constexpr):
    """d = a b + c: a warp loads, a warp multiplies, four warps store; two tiles in tensor memory."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    tiles = Tiles(
        a, b, c, d,
        gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout),
        gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout),
        gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout),
        allocate_tensor_memory(gl.float32, [2, BM, BN], TensorMemoryLayout((BM, BN), col_stride=1)),
        Ring.start(STAGES), Ring.start(1), Ring.start(2),
    )  # fmt: skip
    gl.warp_specialize([(store_role, (tiles,)), (load_role, (tiles,)), (mma_role, (tiles,))], [1, 1], [24, 24])


@gluon.jit
def copy_kernel(x, out, BM: gl.constexpr, BN: gl.constexpr, SWIZZLE: gl.constexpr):
    """Registers, shared memory, tensor memory, registers."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    at = row[:, None] * BN + column[None, :]
    tile = gl.allocate_shared_memory(gl.float32, [BM, BN], gl.NVMMASharedLayout(SWIZZLE, 32, 2), gl.load(x + at))
    total = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((128, BN), col_stride=1))
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    fence_async_shared()
    tcgen05_copy(tile, total)
    tcgen05_commit(ready)
    mbarrier.wait(ready, 0)
    mbarrier.invalidate(ready)
    gl.store(out + at, gl.convert_layout(total.load(), layout))


@gluon.aggregate
class Cancelled:
    """Tiles of programs that this one keeps from starting."""

    tile: gl.tensor
    more: gl.tensor
    answer: gl.shared_memory_descriptor
    answered: gl.shared_memory_descriptor
    phase: gl.tensor

    @gluon.jit
    def start():
        answered = mbarrier.allocate_mbarrier()
        mbarrier.init(answered, count=1)
        answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
        return Cancelled(gl.program_id(0), gl.to_tensor(True), answer, answered, gl.to_tensor(0))

    @gluon.jit
    def ask(self):
        mbarrier.expect(self.answered, 16)
        clc.try_cancel(self.answer, self.answered)

    @gluon.jit
    def next(self):
        mbarrier.wait(self.answered, self.phase)
        found = clc.load_result(self.answer)
        return Cancelled(found.program_id(0), found.is_canceled(), self.answer, self.answered, self.phase ^ 1)


@gluon.jit
def launch_control_kernel(a, b, c, owners):
    """c = a b, a tile at a time; a program that ends a tile takes one that has not started."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    a_tile = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    total = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    full, ready = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(ready, count=1)
    rows = gl.cdiv(c.shape[0], BM)
    phase = 0
    work = Cancelled.start()
    while work.more:
        work.ask()
        row, column = work.tile % rows * BM, work.tile // rows * BN
        gl.store(owners + work.tile, gl.program_id(0))
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, 0], full, a_tile)
        tma.async_load(b, [0, column], full, b_tile)
        mbarrier.wait(full, phase)
        tcgen05_mma(a_tile, b_tile, total, use_acc=False, mbarriers=[ready])
        mbarrier.wait(ready, phase)
        store_tile(c, row, column, total.load())
        phase ^= 1
        work = work.next()


@gluon.jit
def pair_kernel(a, b, c, layout: gl.constexpr):
    """c = a b by pairs of CTAs; operands that CTAs share arrive by one multicast load."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    a_tile = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    total = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    full = mbarrier.allocate_mbarrier(two_ctas=True)
    free = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(free, count=tcgen05_mma_barrier_count([a_tile, b_tile], multicast=True, two_ctas=layout.two_ctas))
    row = gl.program_id(0) * BM
    phase = 0
    for k in range(0, a.shape[1], a.block_shape[1]):
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, k], full, a_tile, multicast=True)
        tma.async_load(b, [k, 0], full, b_tile, multicast=True)
        mbarrier.wait(full, phase, deps=[a_tile, b_tile])
        tcgen05_mma(a_tile, b_tile, total, use_acc=k != 0, multicast=True, mbarriers=[free])
        mbarrier.wait(free, phase, deps=[a_tile, b_tile])
        phase ^= 1
    store_tile(c, row, 0, total.load())


@gluon.jit
def move_rows_kernel(x, picks, out, places, column, ROWS: gl.constexpr):
    """Rows ``picks`` of x become rows ``places`` of out."""
    layout: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0]))
    at = gl.program_id(0) * ROWS + gl.arange(0, ROWS, layout=layout)
    rows = gl.allocate_shared_memory(x.dtype, [ROWS, x.block_shape[1]], x.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, ROWS * x.nbytes_per_cta)
    tma.async_gather(x, gl.load(picks + at), column, full, rows)
    mbarrier.wait(full, 0)
    tma.async_scatter(out, gl.load(places + at), column, rows)
    tma.store_wait(0)
