"""The outline of a persistent kernel: three roles, a ring in shared memory and one in tensor memory."""

from __future__ import annotations

from tests.lang.ops.emission import instructions, opcodes
from warpwright.lang import (
    If,
    Ring,
    bf16,
    cluster,
    clusterid,
    f32,
    fence,
    kernel,
    loop,
    nclusterid,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
)
from warpwright.ptx.ptxas import assemble

M, N, K = 256, 128, 64
LEADER = 0


@kernel("sm_100a", cluster=2, threads=256)
def gemm(
    a: tma.Map[bf16], b: tma.Map[bf16], d: tma.Map[f32], tiles_m: u32, tiles_n: u32, tiles_k: u32, *, stages: int = 4
) -> None:
    """role      warps  moves                                          waits for            signals
    load      0      A, B: global -> ring `ab` in shared memory     ab.empty             ab.full
    mma       1      ring `ab` -> ring `acc` in tensor memory       ab.full, acc.empty   ab.empty, acc.full
    epilogue  4-7    ring `acc` -> registers -> smem -> D           acc.full             acc.empty
    """
    rank = cluster.rank
    tile_a, tile_b = (smem.tile(bf16, (rows // 2, K), swizzle=128) for rows in (M, N))
    ab = Ring(stages, full=1, empty=1, name="ab", a=tile_a, b=tile_b)
    acc = Ring(2, full=1, empty=2 * 128, name="acc", d=tmem.tile(f32, (M // 2, N), cta_group=2))
    out = smem.tile(f32, (M // 2, N))

    def output_tiles():
        for tile in loop(clusterid.x, tiles_m * tiles_n, nclusterid.x):
            yield tile // tiles_n * M + rank * (M // 2), tile % tiles_n * N

    @role(warp=0, elect=True)
    def init():
        ab.init()
        acc.init()
        fence.mbarrier_init()

    cluster.sync()

    @role(warp=2)
    def alloc():
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=2)

    tcgen05.fence_before_thread_sync()
    cluster.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    @role(warp=0, elect=True)
    def load():
        slots = ab.producer()
        for row, col in output_tiles():
            for k in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                with If(rank == LEADER):
                    slot.full.arrive_expect_tx(2 * slot.nbytes)
                full = slot.full.at(LEADER)
                tma.load(slot.a, a[row, k * K], full, cta_group=2)
                tma.load(slot.b, b[col + rank * (N // 2), k * K], full, cta_group=2)
        slots.wait_all_empty()

    @role(warp=1, elect=True, when=rank == LEADER)
    def mma():
        slots, bufs = ab.consumer(), acc.producer()
        for _ in output_tiles():
            buf = next(bufs)
            buf.empty.wait()
            tcgen05.fence_after_thread_sync()
            for k in loop(tiles_k):
                slot = next(slots)
                slot.full.wait()
                for kk in range(0, K, 16):
                    operands = slot.a[:, kk : kk + 16], slot.b[:, kk : kk + 16]
                    tcgen05.mma(buf.d, *operands, accumulate=(k > 0) | (kk > 0), cta_group=2)
                tcgen05.commit(slot.empty, cta_group=2, multicast=0b11)
            tcgen05.commit(buf.full, cta_group=2, multicast=0b11)

    @role(warps=range(4, 8))
    def epilogue():
        bufs = acc.consumer()
        for _ in output_tiles():
            buf = next(bufs)
            buf.full.wait()
            tcgen05.fence_after_thread_sync()
            for column in range(0, N, 32):
                values = tcgen05.ld(buf.d[:, column : column + 32])
                tcgen05.wait_ld()
                for i in range(0, 32, 4):
                    st(out.at(tid.x % 128, column + i), *values[i : i + 4])
            tcgen05.fence_before_thread_sync()
            buf.empty.at(LEADER).arrive()

    tcgen05.fence_before_thread_sync()
    cluster.sync()

    @role(warp=2)
    def free():
        tmem.dealloc()


def test_it_traces_and_ptxas_accepts_it() -> None:
    traced = gemm.trace()
    result = assemble(traced.ptx, "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores" in result.log
    codes = opcodes(instructions(traced.ptx))
    assert {label for label in codes if label.startswith("role_") and label.endswith("_0:")} == {
        f"role_{name}_0:" for name in ("init", "alloc", "load", "mma", "epilogue", "free")
    }
    assert any(line.endswith(", 256") for line in instructions(traced.ptx) if line.startswith("tcgen05.alloc"))


def test_two_stages_of_the_accumulator_are_addressed_at_run_time() -> None:
    lines = instructions(gemm.ptx())
    mma = [line for line in lines if line.startswith("tcgen05.mma")]
    address = mma[0].split("[")[1].split("]")[0]
    assert any(line.startswith(f"mad.lo.u32 {address}, ") and f", {N}, " in line for line in lines)
