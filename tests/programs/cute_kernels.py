"""Kernels of CuTe DSL as its users write them: a GEMM of threads, one of wgmma and one of tcgen05, both with TMA."""

import cutlass
import torch
from cutlass import cute, pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05, warpgroup
from cutlass.cute.runtime import from_dlpack
from cutlass.experimental import cuda
from cutlass.experimental import primitives as prims
from cutlass.memory import SmemAllocator, TmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import blackwell_helpers, hopper_helpers

TILE, DEPTH, THREADS = 16, 64, 128
STAGES = 2


@cute.kernel
def threads_kernel(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    column, row, _ = cute.arch.thread_idx()
    tile_n, tile_m, _ = cute.arch.block_idx()
    i, j = tile_m * TILE + row, tile_n * TILE + column
    smem = SmemAllocator()
    part_a = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, TILE), stride=(TILE, 1)), 16)
    part_b = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, TILE), stride=(TILE, 1)), 16)
    total = cutlass.Float32(0)
    for k in cutlass.range(0, cute.size(a, mode=[1]), TILE):
        part_a[row, column] = a[i, k + column]
        part_b[row, column] = b[k + row, j]
        cute.arch.sync_threads()
        for step in cutlass.range_constexpr(TILE):
            total += part_a[row, step] * part_b[step, column]
        cute.arch.sync_threads()
    d[i, j] = total


@cute.jit
def threads_gemm(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    grid = (cute.size(d, mode=[1]) // TILE, cute.size(d, mode=[0]) // TILE, 1)
    threads_kernel(a, b, d).launch(grid=grid, block=(TILE, TILE, 1))


@cute.struct
class Barriers:
    full_empty: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
    sum: cute.struct.MemRange[cutlass.Int64, 2]
    columns: cutlass.Int32


def group(size: int = 1) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, size)


def operand(smem: SmemAllocator, dtype, layout) -> cute.Tensor:
    return smem.allocate_tensor(dtype, layout.outer, byte_alignment=1024, swizzle=layout.inner)


@cute.kernel
def hopper_kernel(
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    d: cute.Tensor,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
):
    thread, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem, dtype = SmemAllocator(), d.element_type  # of A, B and D
    barriers = smem.allocate(Barriers)
    slots_a, slots_b = operand(smem, dtype, layout_a), operand(smem, dtype, layout_b)
    tile_bytes = cute.size_in_bytes(dtype, cute.slice_(layout_a, (None, None, 0)))
    tile_bytes += cute.size_in_bytes(dtype, cute.slice_(layout_b, (None, None, 0)))
    producer, consumer = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=group(),
        consumer_group=group(THREADS // 32),
        tx_count=tile_bytes,
        barrier_storage=barriers.full_empty.data_ptr(),
    ).make_participants()
    tiler = (THREADS // 2, THREADS, DEPTH)
    rows_a = cute.local_tile(a, tiler, (tile_m, tile_n, None), proj=(1, None, 1))
    rows_b = cute.local_tile(b, tiler, (tile_m, tile_n, None), proj=(None, 1, 1))
    tile_d = cute.local_tile(d, tiler, (tile_m, tile_n, None), proj=(1, 1, None))
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        load_a, 0, one, cute.group_modes(slots_a, 0, 2), cute.group_modes(rows_a, 0, 2)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, 0, one, cute.group_modes(slots_b, 0, 2), cute.group_modes(rows_b, 0, 2)
    )
    share = mma.get_slice(thread)
    left = mma.make_fragment_A(share.partition_A(slots_a))
    right = mma.make_fragment_B(share.partition_B(slots_b))
    result = share.partition_C(tile_d)
    sums = cute.make_rmem_tensor(result.shape, cutlass.Float32)
    mma.set(warpgroup.Field.ACCUMULATE, False)
    for _ in cutlass.range(cute.size(rows_a, mode=[2])):
        if warp == 0:
            empty = producer.acquire_and_advance()
            cute.copy(load_a, from_a[None, empty.count], to_a[None, empty.index], tma_bar_ptr=empty.barrier)
            cute.copy(load_b, from_b[None, empty.count], to_b[None, empty.index], tma_bar_ptr=empty.barrier)
        full = consumer.wait_and_advance()
        warpgroup.fence()
        for block in cutlass.range_constexpr(cute.size(left, mode=[2])):
            where = (None, None, block, full.index)
            cute.gemm(mma, sums, left[where], right[where], sums)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        full.release()
    stored = cute.make_rmem_tensor(result.shape, d.element_type)
    stored.store(sums.load().to(d.element_type))
    cute.autovec_copy(stored, result)


@cute.jit
def hopper_gemm(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    tiler = (THREADS // 2, THREADS, DEPTH)
    major_a, major_b = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
    mma = hopper_helpers.make_trivial_tiled_mma(
        a.element_type,
        b.element_type,
        major_a.sm90_mma_major_mode(),
        major_b.sm90_mma_major_mode(),
        cutlass.Float32,
        (1, 1, 1),
        (tiler[0], tiler[1]),
    )
    layout_a = hopper_helpers.make_smem_layout_a(major_a, tiler, a.element_type, STAGES)
    layout_b = hopper_helpers.make_smem_layout_b(major_b, tiler, b.element_type, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp()
    slot_a, slot_b = cute.slice_(layout_a, (None, None, 0)), cute.slice_(layout_b, (None, None, 0))
    load_a, map_a = cpasync.make_tiled_tma_atom(load, a, slot_a, (tiler[0], tiler[2]))
    load_b, map_b = cpasync.make_tiled_tma_atom(load, b, slot_b, (tiler[1], tiler[2]))
    grid = (*cute.ceil_div(d.shape, tiler[:2]), 1)
    hopper_kernel(mma, load_a, map_a, load_b, map_b, d, layout_a, layout_b).launch(grid=grid, block=(THREADS, 1, 1))


@cute.kernel
def blackwell_kernel(
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    d: cute.Tensor,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
):
    thread, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem, dtype = SmemAllocator(), d.element_type  # of A, B and D
    barriers = smem.allocate(Barriers)
    slots_a, slots_b = operand(smem, dtype, layout_a), operand(smem, dtype, layout_b)
    alloc_barrier = pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS)
    tmem = TmemAllocator(barriers.columns.ptr, barrier_for_retrieve=alloc_barrier)
    tmem.allocate(128)
    tile_bytes = cute.size_in_bytes(dtype, cute.select(layout_a, mode=[0, 1, 2]))
    tile_bytes += cute.size_in_bytes(dtype, cute.select(layout_b, mode=[0, 1, 2]))
    producer, consumer = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=group(),
        consumer_group=group(),
        tx_count=tile_bytes,
        barrier_storage=barriers.full_empty.data_ptr(),
    ).make_participants()
    summing, summed = pipeline.PipelineUmmaAsync.create(
        num_stages=1,
        producer_group=group(),
        consumer_group=group(THREADS),
        barrier_storage=barriers.sum.data_ptr(),
    ).make_participants()
    tiler = (THREADS, THREADS, DEPTH)
    share = mma.get_slice(0)
    rows_a = share.partition_A(cute.local_tile(a, tiler, (tile_m, tile_n, None), proj=(1, None, 1)))
    rows_b = share.partition_B(cute.local_tile(b, tiler, (tile_m, tile_n, None), proj=(None, 1, 1)))
    result = share.partition_C(cute.local_tile(d, tiler, (tile_m, tile_n, None), proj=(1, 1, None)))
    left, right = mma.make_fragment_A(slots_a), mma.make_fragment_B(slots_b)
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        load_a, 0, one, cute.group_modes(slots_a, 0, 3), cute.group_modes(rows_a, 0, 3)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, 0, one, cute.group_modes(slots_b, 0, 3), cute.group_modes(rows_b, 0, 3)
    )
    tmem.wait_for_alloc()
    address = tmem.retrieve_ptr(cutlass.Float32)
    sums = cute.make_tensor(address, mma.make_fragment_C(mma.partition_shape_C(tiler[:2])).layout)
    if warp == 0:
        space = summing.acquire_and_advance()
        for _ in cutlass.range(cute.size(a, mode=[1]) // DEPTH):
            empty = producer.acquire_and_advance()
            cute.copy(load_a, from_a[None, empty.count], to_a[None, empty.index], tma_bar_ptr=empty.barrier)
            cute.copy(load_b, from_b[None, empty.count], to_b[None, empty.index], tma_bar_ptr=empty.barrier)
            full = consumer.wait_and_advance()
            for block in cutlass.range_constexpr(cute.size(left, mode=[2])):
                where = (None, None, block, full.index)
                cute.gemm(mma, sums, left[where], right[where], sums)
                mma.set(tcgen05.Field.ACCUMULATE, True)
            full.release()
        space.commit()
    tmem.relinquish_alloc_permit()
    done = summed.wait_and_advance()
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x128), cutlass.Float32)
    load = tcgen05.make_tmem_copy(atom, sums[(None, None), 0, 0])
    mine = load.get_slice(thread)
    registers = cute.make_rmem_tensor(mine.partition_D(result[(None, None), 0, 0]).shape, cutlass.Float32)
    cute.copy(load, mine.partition_S(sums[(None, None), 0, 0]), registers)
    stored = cute.make_rmem_tensor(registers.shape, d.element_type)
    stored.store(registers.load().to(d.element_type))
    cute.autovec_copy(stored, mine.partition_D(result[(None, None), 0, 0]))
    done.release()
    pipeline.sync(barrier_id=1)
    tmem.free(address)


@cute.jit
def blackwell_gemm(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    tiler = (THREADS, THREADS, DEPTH)
    op = tcgen05.MmaF16BF16Op(
        a.element_type,
        cutlass.Float32,
        (THREADS, THREADS, 16),
        tcgen05.CtaGroup.ONE,
        tcgen05.OperandSource.SMEM,
        cute.nvgpu.OperandMajorMode.K,
        cute.nvgpu.OperandMajorMode.K,
    )
    mma = cute.make_tiled_mma(op)
    layout_a = blackwell_helpers.make_smem_layout_a(mma, tiler, a.element_type, STAGES)
    layout_b = blackwell_helpers.make_smem_layout_b(mma, tiler, b.element_type, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    slot_a, slot_b = cute.select(layout_a, mode=[0, 1, 2]), cute.select(layout_b, mode=[0, 1, 2])
    load_a, map_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, slot_a, tiler, mma)
    load_b, map_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, slot_b, tiler, mma)
    grid = (*cute.ceil_div(d.shape, tiler[:2]), 1)
    blackwell_kernel(mma, load_a, map_a, load_b, map_b, d, layout_a, layout_b).launch(grid=grid, block=(THREADS, 1, 1))


@cute.kernel
def write_outside_kernel(x: cute.Tensor):
    outside = cute.make_tensor(x.iterator + (1 << 40), cute.make_layout(1))
    outside[0] = cutlass.Float32(1)


@cute.jit
def write_outside(x: cute.Tensor):
    write_outside_kernel(x).launch(grid=(1, 1, 1), block=(1, 1, 1))


@cute.kernel
def tile_kernel(encoded: cutlass.GridConstant[cuda.TensorMap], d: cute.Tensor):
    """Copies a tile of 32 x 32 floats by a tensor map that the host encoded."""
    tile = cutlass.Array(cutlass.Float32, 32 * 32, space=cutlass.AddressSpace.smem, alignment=128)
    full = cutlass.Array(cutlass.Int64, 1, space=cutlass.AddressSpace.smem, alignment=8)
    lane = cute.arch.thread_idx()[0]
    if lane == 0:
        prims.mbarrier_init(full, 1)
        prims.fence_mbarrier_init()
        prims.mbarrier_arrive_expect_tx(full, encoded.global_tx_bytes())
        prims.cp_async_bulk_tensor_shared_cta_global(tile, encoded.get_ptr(), (0, 0), full)
    prims.barrier_cta_sync(0)
    while not prims.mbarrier_try_wait_parity(full, 0):
        pass
    for row in cutlass.range_constexpr(32):
        d[row, lane] = tile[row * 32 + lane]


@cute.jit
def copy_tile(x: cute.Tensor, d: cute.Tensor, box: cutlass.Constexpr):
    encoded = cuda.create_tensor_map_tiled(
        global_address=x.iterator.toint(),
        dtype=cutlass.Float32,
        global_dims=[48, 40],
        global_strides=[48 * 4 // 16],
        box_dims=[32, box],
    )
    tile_kernel(encoded, d).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def count_kernel(counter: cute.Pointer, ctas: cutlass.Int32):
    """Each CTA waits for all: a grid that does not fit on the GPU would wait for ever."""
    if cute.arch.thread_idx()[0] == 0:
        cute.arch.atomic_add(counter, cutlass.Int32(1), sem="release", scope="gpu")
        arrived = cutlass.Int32(0)
        while arrived < ctas:
            arrived = cute.arch.atomic_add(counter, cutlass.Int32(0), sem="acquire", scope="gpu")


@cute.jit
def count(counter: cute.Pointer, ctas: cutlass.Int32):
    count_kernel(counter, ctas).launch(grid=(ctas, 1, 1), block=(32, 1, 1), cooperative=True)


def run(gemm, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, **options: bool) -> torch.Tensor:
    """Returns the result (M, N) of a GEMM of this file; with ``options`` it is compiled first, for TVM FFI."""
    n = b.shape[1] if gemm is threads_gemm else b.shape[0]
    d = torch.full((a.shape[0], n), float("nan"), dtype=dtype, device="cuda")
    tensors = [from_dlpack(each, assumed_align=16, **options) for each in (a, b, d)]
    if options:
        cute.compile(gemm, *tensors, options="--enable-tvm-ffi")(*tensors)
    else:
        gemm(*tensors)
    return d
