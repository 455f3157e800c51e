"""The table of the playground: the kernel of each tutorial, and edits of that kernel.

An edit replaces text that stands once in the file. ``verdict``: the rule of the first finding of `ww.check`, or clean.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LESSONS", "Lesson", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    title: str
    verdict: str
    edits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Lesson:
    """A kernel of a tutorial: its file, an example or a page; its name there; its variants.

    ``block``: the start of the page's block of code. ``verdict``: that of the kernel as it is.
    """

    title: str
    source: str
    kernel: str
    variants: tuple[Variant, ...]
    block: str = ""
    verdict: str = "clean"


def edit(title: str, verdict: str, *pairs: str) -> Variant:
    """Returns a variant; ``pairs``: text of the file, then the text that replaces it."""
    return Variant(title, verdict, tuple(zip(pairs[::2], pairs[1::2], strict=True)))


LESSONS = (
    Lesson(
        "1 A first kernel",
        "examples/01_copy.py",
        "copy",
        (
            edit("four elements a thread", "clean",
                 "i = ctaid.x * ntid.x + tid.x", "i = (ctaid.x * ntid.x + tid.x) * 4",
                 "target[i] = source[i]", "st(target + i, *ld(source + i, vec=4))",
                 "kernel, ntid, tid", "kernel, ld, ntid, st, tid"),
            edit("without the bound", "fault",
                 "with If(i < count):", "with If(i < 1024):"),
            edit("two CTAs write each element", "grid-race",
                 "target[i] = source[i]", "target[i % 500] = source[i]"),
        ),
    ),
    Lesson(
        "2 TMA",
        "examples/02_tma.py",
        "double",
        (
            edit("without full.wait", "race", "    full.wait(0)\n", ""),
            edit("without fence.proxy_async", "proxy-fence", "    fence.proxy_async()\n", ""),
            edit("without bar.sync before the store", "race",
                 "    fence.proxy_async()\n    bar.sync()\n", "    fence.proxy_async()\n"),
            edit("without a swizzle", "clean", "(ROWS, COLUMNS), swizzle=128", "(ROWS, COLUMNS)"),
            edit("twice the bytes expected", "deadlock", "expect_tx(tile.nbytes)", "expect_tx(2 * tile.nbytes)"),
        ),
    ),
    Lesson(
        "3 A ring",
        "examples/03_ring.py",
        "row_sums",
        (
            edit("2 stages instead of 4", "clean", "stages: int = STAGES", "stages: int = 2"),
            edit("1 stage instead of 4", "clean", "stages: int = STAGES", "stages: int = 1"),
            edit("without full.wait", "race", "            slot.full.wait()\n", ""),
            edit("without empty.wait", "fault", "            slot.empty.wait()\n", ""),
            edit("without empty.arrive", "deadlock", "            slot.empty.arrive()\n", ""),
            edit("empty expects 64 arrivals", "deadlock", "empty=32", "empty=64"),
            edit("without fence.proxy_async", "proxy-fence",
                 "fence.proxy_async()  # orders these threads' reads before TMA's next write to the stage", "pass"),
        ),
    ),
    Lesson(
        "4 wgmma",
        "docs/tutorials/04-wgmma.md",
        "multiply",
        (
            edit("without wgmma.wait_group", "wgmma-registers",
                 "    wgmma.wait_group(0)  # before it, no thread may read acc\n", ""),
            edit("without wgmma.fence", "wgmma-fence",
                 "    wgmma.fence()  # before the first wgmma: the registers are ready\n", ""),
            edit("without full.wait", "race", "    full.wait(0)\n", ""),
            edit("A alone is expected", "race", "a_tile.nbytes + b_tile.nbytes", "a_tile.nbytes"),
            edit("without wgmma.commit_group", "wgmma-registers", "    wgmma.commit_group()\n", ""),
        ),
        block="import ml_dtypes",
    ),
    Lesson(
        "5 tcgen05: one MMA",
        "examples/05_mma.py",
        "multiply",
        (
            edit("without tcgen05.commit", "deadlock", "        tcgen05.commit(multiplied)\n", ""),
            edit("without multiplied.wait", "uninitialised", "    multiplied.wait(0)\n", ""),
            edit("without tcgen05.wait_ld", "tmem-registers", "    tcgen05.wait_ld()\n", ""),
            edit("without tmem.dealloc", "fault", "        tmem.dealloc()\n", "        pass\n"),
            edit("without loaded.wait", "race", "        loaded.wait(0)\n", ""),
        ),
    ),
    Lesson(
        "5 tcgen05: a GEMM",
        "examples/08_first_gemm.py",
        "gemm",
        (
            edit("1 stage instead of 4", "clean", "stages: int = STAGES", "stages: int = 1"),
            edit("2 stages instead of 4", "clean", "stages: int = STAGES", "stages: int = 2"),
            edit("without commit of empty", "deadlock", "            tcgen05.commit(slot.empty)\n", ""),
            edit("without full.wait", "race", "            slot.full.wait()\n", ""),
            edit("without done.wait", "uninitialised", "    done.wait(0)\n", ""),
        ),
    ),
    Lesson(
        "6 Pairs: a cluster",
        "examples/04_cluster.py",
        "gather",
        (
            edit("without the last cluster.sync", "exit-early",
                 "    cluster.sync()  # no CTA exits while its neighbour may still read its shared memory\n", ""),
            edit("without the second cluster.sync", "uninitialised",
                 "    cluster.sync()\n    peer", "    peer"),
            edit("bar.sync instead of the first cluster.sync", "cluster-entry",
                 "fence.mbarrier_init()\n    cluster.sync()\n", "fence.mbarrier_init()\n    bar.sync()\n",
                 "    cluster,\n", "    bar,\n    cluster,\n"),
            edit("multicast to three of four CTAs", "deadlock", "multicast=EVERY", "multicast=0b0111"),
        ),
    ),
    Lesson(
        "7 Persistent",
        "examples/06_reduction.py",
        "add_up",
        (
            edit("1 load in flight instead of 4", "clean", "VECTOR, BATCH = 256, 4, 4", "VECTOR, BATCH = 256, 4, 1"),
            edit("without bar.sync", "uninitialised", "    bar.sync()\n", ""),
            edit("an addition that is not atomic", "grid-race",
                 "red.add(total, whole)", "total[0] = total[0] + whole"),
        ),
    ),
    Lesson(
        "8 The flagship GEMM",
        "examples/09_fast_gemm.py",
        "gemm",
        (
            edit("1 k-block between the waves instead of 3", "clean", "LEAD, GROUP = 4, 3, 8", "LEAD, GROUP = 4, 1, 8"),
            edit("5 k-blocks between the waves", "deadlock", "LEAD, GROUP = 4, 3, 8", "LEAD, GROUP = 4, 5, 8"),
            edit("without wait_group before a block is used again", "race",
                 "                        tma.wait_group(1, read=True)  # the last store but one has read this block\n",
                 "                        pass\n"),
        ),
    ),
    Lesson(
        "9 Attention",
        "examples/07_attention.py",
        "attention",
        (
            edit("without warp.sync", "mbarrier-lapped",
                 "warp.sync()  # all lanes have waited for the last phase and read the tiles that TMA overwrites",
                 "pass"),
            edit("without the flip of the parity", "race", "        parity.set(parity ^ 1)\n", ""),
            edit("without fence.proxy_async", "proxy-fence", "        lang.fence.proxy_async()\n", ""),
            edit("without a swizzle", "clean", "(ROWS, DIM), swizzle=128", "(ROWS, DIM)"),
        ),
    ),
    Lesson(
        "10 A bug found",
        "docs/tutorials/10-a-bug-found.md",
        "double",
        (
            edit("with the fence", "clean", "fenced: bool = False", "fenced: bool = True"),
            edit("the fence after the barrier", "proxy-fence",
                 "    if fenced:\n        fence.proxy_async()\n    bar.sync()\n",
                 "    bar.sync()\n    fence.proxy_async()\n"),
        ),
        block="import numpy as np",
        verdict="proxy-fence",
    ),
    Lesson(
        "11 A kernel of yours",
        "README.md",
        "saxpy",
        (
            edit("without the bound", "fault", "    @%p ret;\n", ""),
        ),
        block="saxpy = ww.load_ptx",
    ),
    Lesson(
        "12 Several GPUs",
        "examples/10_all_gather_gemm.py",
        "gather_gemm",
        (
            edit("sends before it loads", "clean", "beside: bool = True", "beside: bool = False"),
            edit("flags in scope gpu", "peer-race", 'scope: str = "sys"', 'scope: str = "gpu"'),
            edit("without the wait for the flag", "peer-race",
                 "Break(when=ld(flag, sem=\"acquire\", scope=scope) == 1)",
                 "Break(when=ld(flag, sem=\"acquire\", scope=scope) < 2)"),
            edit("a flag before the stores have arrived", "peer-race",
                 "            tma.wait_group(0)  # the stores have arrived, and have read the tile\n",
                 "            tma.wait_group(0, read=True)\n"),
        ),
    ),
)  # fmt: skip
