"""Mistakes with the tensor core of sm_100: its reads of shared memory, tensor memory, and pairs of CTAs.

``wrong`` names the mistake; without it the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import ONES, free_columns, prepare, sync_tensor_core
from warpwright.lang import (
    Global,
    If,
    Pointer,
    bf16,
    elect_one,
    f32,
    kernel,
    mbarrier,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    warp,
)
from warpwright.lang import cluster as ctas
from warpwright.lang.ops.descriptor import shared_descriptor


def operands(rows: int = 128, columns: int = 64) -> tuple[smem.Tile, smem.Tile]:
    """Returns operands of an MMA, one step of 16 deep."""
    return smem.tile(bf16, (rows, 16), swizzle=32), smem.tile(bf16, (columns, 16), swizzle=32)


def access_after(access: str, operand: smem.Tile, acc: tmem.TmemTile) -> None:
    """Access an operand or the sums of an MMA, without synchronisation."""
    if access == "store":
        st(Pointer(u32, operand.address, space="shared::cta") + tid.x, ONES)
    if access == "load":
        tcgen05.ld(acc)
        tcgen05.wait_ld()
    if access == "write":
        tcgen05.st(acc, [tid.x.to(f32) for _ in range(acc.shape[1])])
        tcgen05.wait_st()


@kernel("sm_100a", threads=128)
def multiply(x: Global[bf16], *, cluster: int = 1, access: str = "load", wrong: str = "") -> None:
    """An MMA, and then an access to its sums or its operands: by TMA, threads, or other operations on tensor memory."""
    (a, b), acc, spare = operands(), tmem.tile(f32, (128, 64)), smem.tile(bf16, (128, 16), swizzle=32)
    done, full = mbarrier(1, name="done"), mbarrier(1, name="full")
    prepare((a, b), done, full, fenced=wrong != "unfenced")
    with If((warp.id == 0) & elect_one()):
        if wrong == "committed_before":
            tcgen05.commit(done)
        tcgen05.mma(acc, a, b, accumulate=False)
        if wrong == "arrived":
            done.arrive()
        elif wrong != "committed_before":
            tcgen05.commit(done)
    if not wrong.startswith("unawaited"):
        done.wait(0)
        tcgen05.fence_after_thread_sync()
    if access == "tma" or wrong == "unawaited_but_tma":
        loaded = a if access == "tma" else spare
        with If((warp.id == 0) & elect_one()):
            full.arrive_expect_tx(a.nbytes)
            tma.copy(loaded.address, x.address, a.nbytes, full)
        full.wait(0)
    access_after(access, a, acc)
    done.wait(0)
    free_columns()


@kernel("sm_100a", threads=128)
def two_sums(*, cluster: int = 1, wrong: str = "") -> None:
    """Two MMAs with a commit each; threads load sums of the one that they have waited for, or of the other."""
    a, b = operands()
    sums, done = [tmem.tile(f32, (128, 64)) for _ in range(2)], mbarrier.array(2, name="done")
    prepare((a, b), *done)
    with If((warp.id == 0) & elect_one()):
        for number in range(2):
            tcgen05.mma(sums[number], a, b, accumulate=False)
            tcgen05.commit(done[number])
    done[0].wait(0)
    tcgen05.fence_after_thread_sync()
    tcgen05.ld(sums[1 if wrong else 0])
    tcgen05.wait_ld()
    done[1].wait(0)
    tcgen05.fence_after_thread_sync()
    free_columns()


@kernel("sm_100a", threads=128)
def copy_to_tensor_memory(*, cluster: int = 1, access: str = "store", wrong: str = "") -> None:
    """tcgen05.cp reads shared memory, which threads write again, and writes tensor memory, which they load or write."""
    source, copied = smem.tile(bf16, (128, 16), swizzle=32), tmem.tile(f32, (128, 8))
    done, again = mbarrier(1, name="done"), mbarrier(1, name="again")
    prepare([] if wrong == "unwritten" else [source], done, again, fenced=wrong != "unfenced")
    with If((warp.id == 0) & elect_one()):
        tcgen05.cp(copied, shared_descriptor(source), "128x256b")
        tcgen05.commit(done)
    if wrong != "unawaited":
        done.wait(0)
        tcgen05.fence_after_thread_sync()
    if access == "copy":
        with If((warp.id == 0) & elect_one()):
            tcgen05.cp(copied, shared_descriptor(source), "128x256b")
            tcgen05.commit(again)
        again.wait(0)
    access_after(access, source, copied)
    done.wait(0)
    tcgen05.fence_after_thread_sync()
    free_columns()


@kernel("sm_100a", threads=128)
def multiply_copied(*, cluster: int = 1, wrong: str = "") -> None:
    """An MMA reads A from tensor memory, where tcgen05.cp writes the next A."""
    (a, b), left, acc = operands(), tmem.tile(f32, (128, 8)), tmem.tile(f32, (128, 64))
    done = mbarrier.array(2, name="done")
    prepare((a, b), *done)
    with If((warp.id == 0) & elect_one()):
        for number in range(2):
            tcgen05.cp(left, shared_descriptor(a), "128x256b")
            tcgen05.mma(acc, left.packed(bf16), b, accumulate=number > 0)
            tcgen05.commit(done[number])
            if not wrong:
                done[number].wait(0)
    for each in done:
        each.wait(0)
    tcgen05.fence_after_thread_sync()
    free_columns()


@kernel("sm_100a", threads=256)
def transfers(*, cluster: int = 1, wrong: str = "") -> None:
    """Warps store to tensor memory, load, and store again; then the warps of the other warpgroup store there."""
    acc = tmem.tile(f32, (128, 32))
    prepare([])
    with If(warp.id < 4):
        for _ in range(2 if wrong == "stored_twice" else 1):
            tcgen05.st(acc, [tid.x.to(f32) for _ in range(32)])
        if wrong != "store_unawaited":
            tcgen05.wait_st()
        tcgen05.ld(acc)
        if wrong != "load_unawaited":
            tcgen05.wait_ld()
        tcgen05.st(acc, [tid.x.to(f32) for _ in range(32)])
        tcgen05.wait_ld()
        tcgen05.wait_st()
    if wrong != "unsynced":
        sync_tensor_core()
    with If(warp.id >= 4):
        tcgen05.st(acc, [tid.x.to(f32) for _ in range(32)])
        tcgen05.wait_st()
    free_columns()


@kernel("sm_100a", threads=128)
def hand_over(*, cluster: int = 1, wrong: str = "") -> None:
    """Threads store sums to tensor memory, and an MMA of another thread adds to them, or reads them as its A."""
    (a, b), acc = operands(), tmem.tile(f32, (128, 64))
    stored, done = mbarrier(128, name="stored"), mbarrier(1, name="done")
    prepare((a, b), stored, done)
    tcgen05.st(acc, [tid.x.to(f32) for _ in range(64)])
    if wrong != "store_unawaited":
        tcgen05.wait_st()
    tcgen05.fence_before_thread_sync()
    stored.arrive()
    with If((warp.id == 2) & elect_one()):
        if wrong != "unawaited":
            stored.wait(0)
        tcgen05.fence_after_thread_sync()
        tcgen05.mma(acc, a, b, accumulate=True)
        tcgen05.commit(done)
    done.wait(0)
    tcgen05.wait_st()
    tcgen05.fence_after_thread_sync()
    free_columns()


@kernel("sm_100a", threads=128)
def multiply_in_pair(x: Global[bf16], *, cluster: int = 2, access: str = "load", wrong: str = "") -> None:
    """As `multiply`, by pairs of CTAs: the leader issues the MMA of both, and its commit reaches both."""
    (a, b), acc = operands(128, 32), tmem.tile(f32, (128, 64), cta_group=2)
    done, full = mbarrier(2 if wrong == "overcounted" else 1, name="done"), mbarrier(1, name="full")
    prepare((a, b), done, full, fenced=wrong != "unfenced")
    for leader in range(0, cluster, 2):
        with If((ctas.rank == leader) & (warp.id == 0) & elect_one()):
            tcgen05.mma(acc, a, b, accumulate=False, cta_group=2)
            tcgen05.commit(done, cta_group=2, multicast=(1 if wrong == "alone" else 3) << leader)
    if wrong != "unawaited":
        done.wait(0)
        tcgen05.fence_after_thread_sync()
    if access == "tma":
        with If((warp.id == 0) & elect_one()):
            full.arrive_expect_tx(a.nbytes)
            tma.copy(a.address, x.address, a.nbytes, full)
        full.wait(0)
    access_after(access, b, acc)
    done.wait(0)
    tcgen05.fence_before_thread_sync()
    ctas.sync()
    tcgen05.fence_after_thread_sync()
    with If(warp.id == 1):
        tmem.dealloc()
    ctas.sync()
