"""10: all-gather and GEMM on the GPUs of a node. Each rank has some rows of A, and gets all rows of D for its own B.

A CTA sends its tile of rows to all other ranks, and multiplies this tile of every rank: its own first, then the others
as they arrive. Without a GPU eight ranks run on a virtual node; `torchrun --nproc-per-node 2
examples/10_all_gather_gemm.py` runs a process for each of two real GPUs, with PyTorch's symmetric memory.
"""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.lang import (
    Break,
    Global,
    If,
    Peers,
    Ring,
    bar,
    bf16,
    ctaid,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    nctaid,
    red,
    role,
    smem,
    st,
    tma,
    u32,
    wgmma,
)

ROWS, COLS, K = 64, 128, 64  # of a CTA's tile of D; of a k-block
STAGES = 4


@kernel("sm_90a", threads=256)
def gather_gemm(
    a: tma.Map[bf16], gathered: tma.PeerMaps[bf16], arrived: Peers[u32], b: tma.Map[bf16], d: Global[f32], steps: u32,
    *, beside: bool = True, scope: str = "sys",
) -> None:  # fmt: skip
    """``a``: the rows of this rank; ``gathered``: on every rank room for the rows of all; ``arrived``: on every rank a
    flag for each CTA of all ranks, 0 at first. Without ``beside`` the load role sends the rows before it loads.

    role      warps  moves                            waits for             signals
    send      1      A -> tile -> all other ranks     sent                  arrived
    load      0      A (own or gathered), B -> ring   ring.empty, arrived   ring.full
    multiply  4-7    ring -> registers -> D           ring.full             ring.empty
    """
    a_tile, b_tile = smem.tile(bf16, (ROWS, K), swizzle=128), smem.tile(bf16, (COLS, K), swizzle=128)
    ring = Ring(STAGES, full=1, empty=128, name="ring", a=a_tile, b=b_tile)
    tile, sent = smem.tile(bf16, (ROWS, K), swizzle=128), mbarrier(1, name="sent")
    rank, ranks, rows, row = gathered.rank, gathered.ranks, nctaid.x * ROWS, ctaid.x * ROWS

    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()
        sent.init()
        fence.mbarrier_init()

    bar.sync()

    def send_rows() -> None:
        for k in loop(steps):
            sent.arrive_expect_tx(tile.nbytes)
            tma.load(tile, a[row, k * K], sent)
            sent.wait(k & 1)
            for step in loop(1, ranks):
                tma.store(gathered[(rank + step) % ranks][rank * rows + row, k * K], tile)
            tma.commit_group()
            tma.wait_group(0)  # the stores have arrived, and have read the tile
        for step in loop(1, ranks):
            red.add(arrived[(rank + step) % ranks] + (rank * nctaid.x + ctaid.x), 1, sem="release", scope=scope)

    @role(warp=1, elect=True, when=beside)
    def send() -> None:
        send_rows()

    @role(warp=0, elect=True)
    def load() -> None:
        if not beside:
            send_rows()
        slots = ring.producer()
        for step in loop(ranks):
            source = (rank + step) % ranks
            with If(step > 0):
                flag = arrived[rank] + (source * nctaid.x + ctaid.x)
                for _ in loop():
                    Break(when=ld(flag, sem="acquire", scope=scope) == 1)
            for k in loop(steps):
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                with If(step == 0):
                    tma.load(slot.a, a[row, k * K], slot.full)
                with If(step > 0):
                    tma.load(slot.a, gathered[rank][source * rows + row, k * K], slot.full)
                tma.load(slot.b, b[0, k * K], slot.full)
        slots.wait_all_empty()

    @role(warps=range(4, 8))
    def multiply() -> None:
        acc, slots = wgmma.accumulator(f32, (ROWS, COLS)), ring.consumer()
        for step in loop(ranks):
            for k in loop(steps):
                slot = next(slots)
                slot.full.wait()
                wgmma.fence()
                for kk in range(0, K, 16):
                    wgmma.mma(acc, slot.a[:, kk : kk + 16], slot.b[:, kk : kk + 16], accumulate=(k > 0) | (kk > 0))
                wgmma.commit_group()
                wgmma.wait_group(0)
                slot.empty.arrive()
            top = (rank + step) % ranks * rows + row
            for number in range(0, len(acc.regs), 2):
                y, x = acc.at(number)
                st(d + ((top + y) * COLS + x), *acc.regs[number : number + 2])


def arguments(ranks: int, ctas: int, steps: int) -> list[Any]:
    """Returns the arguments of all ranks on a virtual node, with random A and B."""
    random, shapes = np.random.default_rng(0), ((ctas * ROWS, steps * K), (COLS, steps * K))
    a, b = ([random.standard_normal(shape).astype(ml_dtypes.bfloat16) for _ in range(ranks)] for shape in shapes)
    gathered = [np.full((ranks * ctas * ROWS, steps * K), np.nan, ml_dtypes.bfloat16) for _ in range(ranks)]
    arrived = [np.zeros(ranks * ctas, np.uint32) for _ in range(ranks)]
    d = [np.full((ranks * ctas * ROWS, COLS), np.nan, np.float32) for _ in range(ranks)]
    return [*map(ww.PerRank, (a, gathered, arrived, b, d)), steps]


def check_result(a: Any, b: Any, d: Any) -> None:
    """Compare D of a rank with float64; ``a`` has the rows of all ranks."""
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert (np.abs(d - exact) <= 2.0**-14 * np.abs(exact).max()).all()


def run_on_virtual_node(ranks: int = 8) -> None:
    a, gathered, arrived, b, d, steps = arguments(ranks, ctas=1, steps=2)
    ww.launch(gather_gemm, grid=1, args=[a, gathered, arrived, b, d, steps], device=f"h200x{ranks}")
    for rank in range(ranks):
        check_result(np.concatenate(a.values), b.values[rank], d.values[rank])
    print(f"verified: D on {ranks} virtual GPUs")


def run_on_gpu(rank: int, ranks: int, ctas: int = 64, steps: int = 16) -> None:
    """Run this process's rank; torchrun has started one process for each GPU."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _symmetric_memory as symm_mem

    found = torch.cuda.device_count()
    if found < ranks:
        raise SystemExit(
            f"rank {rank}: given {ranks} ranks and {found} GPUs; expected an H100 or H200 for each rank, joined by "
            "NVLink. Without torchrun, this file runs on a virtual node and needs no GPU"
        )
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

    def shared(shape: tuple[int, ...], dtype: torch.dtype) -> ww.PerRank:
        """Returns memory of each rank, as this GPU addresses it."""
        own = symm_mem.empty(shape, dtype=dtype, device=f"cuda:{rank}").zero_()
        handle = symm_mem.rendezvous(own, dist.group.WORLD)
        return ww.PerRank([handle.get_buffer(each, own.shape, own.dtype) for each in range(ranks)], rank=rank)

    rows, k, torch_bf16 = ctas * ROWS, steps * K, torch.bfloat16
    gathered, arrived = shared((ranks * rows, k), torch_bf16), shared((ranks * ctas,), torch.int32)
    a, b = (torch.randn(extent, k, device="cuda", dtype=torch_bf16) for extent in (rows, COLS))
    d = torch.full((ranks * rows, COLS), torch.nan, device="cuda")
    dist.barrier()  # the flags of all ranks are 0 before a rank sends
    ww.launch(gather_gemm, grid=ctas, args=[a, gathered, arrived, b, d, steps])
    whole = torch.empty(ranks * rows, k, device="cuda", dtype=torch_bf16)
    dist.all_gather_into_tensor(whole, a)
    check_result(*(each.float().cpu().numpy() for each in (whole, b, d)))
    print(f"verified: D of rank {rank} of {ranks} GPUs")
    dist.destroy_process_group()


def main() -> None:
    if "LOCAL_RANK" in os.environ:
        run_on_gpu(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        run_on_virtual_node()


if __name__ == "__main__":
    main()
