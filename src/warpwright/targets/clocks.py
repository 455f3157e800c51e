"""The clock of each device: values of the constants of the timing model, with source and status.

Status: ``measured`` on that device with ``python bench/micro.py``; ``published`` by the named source; ``assumed``, with
the reason, because no figure is known. Constants are fitted to micro-benchmarks, never to a kernel that the model is
evaluated on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from warpwright.targets.devices import DEVICES
from warpwright.targets.timing import Timing

__all__ = ["TIMINGS"]

_LATENCY = {
    "alu": 5.0, "wide": 5.0, "float": 4.0, "double": 16.0, "convert": 4.0, "mufu": 17.0, "special": 15.0,
    "shuffle": 24.0, "vote": 12.0, "redux": 44.0, "uniform": 12.0, "half": 4.0, "multiply": 4.0, "mma": 24.0,
}  # fmt: skip
_SLOTS = {
    "alu": 1.0, "wide": 2.0, "float": 1.0, "double": 2.0, "convert": 2.0, "mufu": 8.0, "special": 4.0, "shuffle": 4.0,
    "vote": 2.0, "redux": 8.0, "uniform": 1.0, "half": 2.0, "multiply": 2.0, "mma": 6.0,
}  # fmt: skip
_RATES = {"tf32": 0.5, "s8": 2.0, "u8": 2.0}
_MICRO = "measured: bench/micro.py"
_WARM = "measured: docs/log/2026-11.md, repeated launches"
_ROWS = "measured: docs/log/2026-11.md, stores of a row a lane"

_H200 = Timing(
    gpcs=(18, 18, 18, 18, 18, 16, 16, 10),
    schedulers=4,
    latency=_LATENCY,
    slots=_SLOTS,
    branch=18.0,
    try_wait=26.0,
    wake=8.0,
    poll=150.0,
    arrive=12.0,
    arrive_remote=124.0,
    bar=12.0,
    bar_warp=2.0,
    cluster_barrier=67.0,
    fence_async=10.0,
    fence_cluster=275.0,
    elect=12.0,
    ld_l2=281.0,
    ld_hbm=661.0,
    ld_hbm_mixed=916.0,
    shared_latency=23.0,
    shared_bytes=128.0,
    shared_writes=0.0,
    pair_writes=0.0,
    dsmem_latency=112.0,
    dsmem_bytes=22.0,
    l1_bytes=123.0,
    sm_bytes=108.0,
    pair_bytes=137.0,
    l2_bytes=4870.0,
    l2_write_bytes=2680.0,
    l2_add_bytes=2150.0,
    store_line=2.05,
    store_least=82.0,
    l2_dirty=0.45,
    l2_kept=0.565,
    merged_cost=(0.4, 0.85, 0.70),
    merged_later=(0.64, 0.89, 0.98),
    multicast_cost=1.2,
    hbm_share=0.95,
    hbm_mixed_share=0.83,
    hbm_common_share=0.58,
    hbm_common_later=0.485,
    tma_issue=6.0,
    tma_l2=278.0,
    tma_hbm=917.0,
    tma_fresh=170.0,
    tma_late_l2=80.0,
    tma_late_hbm=280.0,
    tma_box=5.5,
    tma_row=1.19,
    tma_store=50.0,
    tma_store_bytes=32.0,
    tma_add_bytes=25.6,
    tma_first=1050.0,
    tma_first_warm=0.0,
    extremum_values=3,
    mma_flops=4096.0,
    mma_rates=_RATES,
    mma_least=18.0,
    mma_issue=4.0,
    mma_latency=62.0,
    mma_queue=32,
    mma_ports=1.05,
    mma_half=4.0,
    wgmma_queue=5,
    wgmma_burst=3.1,
    wgmma_register_burst=4.0,
    wgmma_special=0.26,
    wgmma_special_alone=0.40,
    commit=0.0,
    tmem_latency=0.0,
    tmem_bytes=1.0,
    tmem_store=1.0,
    tmem_alloc=0.0,
    cta_start=540.0,
    cta_rate=1.2,
    cluster_start=140.0,
    entry=340.0,
    launch_us=3.3,
    relaunch_us=1.6,
    tensor_mhz=1800.0,
    idle_watts=125.0,
    droop_top=2050.0,
    droop=0.415,
    sustained_watts=700.0,
    flop_pj=0.815,
    flop_shares={"e2m1x2": 0.5},
    l2_pj=30.0,
    hbm_pj=84.0,
    volts_slope=1.5,
    source={
        "gpcs": f"{_MICRO}: 66, 30 and 15 clusters of 2, 4 and 8 CTAs are resident; this split of 132 SMs fits as many",
        "schedulers": "published: Luo et al., arXiv 2402.13499",
        "latency": f"{_MICRO} issue.*.latency, mma.m16n8k16.1_sums.*; wide, double, special, vote, uniform assumed: "
        "the pipes' depths",
        "slots": f"{_MICRO} issue.*.scheduler, mma.m16n8k16.8_sums.8_warps; double, special, vote published: CUDA C++ "
        "Programming Guide",
        "branch": f"{_MICRO} issue.branch.loop less its comparison and additions",
        "try_wait": f"{_MICRO} mbarrier.ready less a branch",
        "wake": f"{_MICRO} mbarrier.signal less arrive and the branches of two loops",
        "poll": f"{_MICRO} waits.two.*: waits take 664, 814 and 964 cycles, no values between",
        "arrive": f"{_MICRO} mbarrier.signal less mbarrier.ready",
        "arrive_remote": f"{_MICRO} dsmem.neighbour.latency and arrive; mbarrier.remote_signal includes a poll",
        "bar": f"{_MICRO} bar.sync.*: 14 cycles for a warp, 76 for 32",
        "bar_warp": f"{_MICRO} bar.sync.*",
        "cluster_barrier": f"{_MICRO} cluster.sync.2x128.relaxed",
        "fence_async": f"{_MICRO} fence.fence_proxy_async",
        "fence_cluster": f"{_MICRO} fence.fence_cluster, and cluster.sync.2x128.release less relaxed",
        "elect": "assumed: as a vote",
        "ld_l2": f"{_MICRO} global.l2.latency less 8 for the address",
        "ld_hbm": f"{_MICRO} global.hbm.latency less 8 for the address",
        "ld_hbm_mixed": f"{_MICRO} launch.turnover.copy less cta_start and the 66 cycles of the other instructions",
        "shared_latency": f"{_MICRO} shared.load.latency",
        "shared_bytes": f"{_MICRO} shared.load.quad.16_warps: 512 bytes in 4.0 cycles; conflicts cost whole wavefronts",
        "shared_writes": f"{_MICRO} wgmma.main_loop.n128.fill_ab.1_sms: 96 bytes a cycle read beside 64 written",
        "pair_writes": "published: no MMA of Hopper spans two CTAs",
        "dsmem_latency": f"{_MICRO} dsmem.neighbour.latency, clusters of 2",
        "dsmem_bytes": f"{_MICRO} dsmem.read.2.132_sms",
        "l1_bytes": f"{_MICRO} l2.read.1_sms",
        "sm_bytes": f"{_MICRO} tma.load.l2.16384x4.1_sms",
        "pair_bytes": f"{_MICRO} tma.load.together_*: 68 an SM where neighbours read the same",
        "l2_bytes": f"{_MICRO} tma.load.l2.32768x4.132_sms; as many bytes a second at 1600 MHz (wgmma.main_loop.*_ab)",
        "l2_write_bytes": f"{_MICRO} tma.store.8192.flight.132_sms, l2.write.132_sms",
        "l2_add_bytes": f"{_MICRO} tma.add.16384.flight.1_together.132_sms; 32 KB and written the same",
        "store_line": f"{_ROWS}, 1 SM: 2.04 cycles with 4 and 8 bytes a line, 2.08 with 16, 2.16 with 2",
        "store_least": f"{_ROWS}, 132 SMs: 32.6, 32.4, 32.2 and 31.0 lines a cycle with 2, 4, 8 and 16 bytes a line",
        "l2_dirty": f"{_MICRO} hbm.read.132_sms: 256 MB take as much longer than at hbm.read as 27 MB would",
        "l2_kept": f"{_WARM}: between 31.9 MB of three matrices, which L2 keeps, and 39.3 MB, which it does not",
        "merged_cost": f"{_MICRO} tiles.one.*, tiles.two.*; waves.*.2_ctas.first, waves.cold.*.3_ctas.first",
        "merged_later": f"{_MICRO} waves.*.later; with three CTAs an SM waves.cold.*.later: L2 is the limit there",
        "multicast_cost": f"{_MICRO} tma.multicast.*, tma.mixed.*",
        "hbm_share": f"{_MICRO} hbm.read: 4.56 TB/s",
        "hbm_mixed_share": f"{_MICRO} hbm.copy: 4.00 TB/s, read and written bytes",
        "hbm_common_share": f"{_MICRO} tiles.cold.*: 64 tiles of 128 and of 256 rows in step: 2.6 to 2.9 TB/s",
        "hbm_common_later": f"{_MICRO} waves.cold.one.128_128x6.down_64.used_512.*.later: bytes counted once, some are "
        "loaded twice",
        "tma_issue": f"{_MICRO} tma.load.issue",
        "tma_l2": f"{_MICRO} tma.load.l2.1024.latency less issue and wake",
        "tma_hbm": f"{_MICRO} tma.load.hbm.8192.latency less l2.8192, to tma_l2; 16 and 32 KB the same",
        "tma_fresh": f"{_MICRO} waits.near.one.* less waits.warm.one.*",
        "tma_late_l2": f"{_MICRO} waits.warm.one.128_128.*: all SMs less two; the later of two boxes, exponential",
        "tma_late_hbm": f"{_MICRO} waits.cold.one.128_128.* less the minimum, likewise",
        "tma_box": f"{_MICRO} tma.box.*",
        "tma_row": f"{_MICRO} tma.box.*: 14.6 cycles for a box of 8 rows of 128 bytes, 81.4 for 64",
        "tma_store": f"{_MICRO} tma.store.2048.read.1_sms less 64 for its bytes, wait included",
        "tma_store_bytes": f"{_MICRO} tma.store.16384.flight.1_sms",
        "tma_add_bytes": f"{_MICRO} tma.add.16384.flight.1_together.1_sms, 32768 the same",
        "tma_first": f"{_MICRO} start.load.128_128x1.down_16.last less the latency of later boxes",
        "tma_first_warm": f"{_WARM}: a first box of 128 rows takes 712 cycles; 706 predicted without",
        "mma_flops": f"{_MICRO} wgmma.n*: n/2 cycles from n = 64 on",
        "mma_rates": "published: NVIDIA data sheet; 8-bit floats: ptxas converts them and emits a 16-bit MMA",
        "mma_least": f"{_MICRO} wgmma.n8.shared: 18; 20 for n = 16, 24 for n = 32",
        "extremum_values": "published: ptxas 13.0 emits VIMNMX3 for sm_90a, sm_100a and sm_103a",
        "mma_issue": "assumed",
        "mma_latency": f"{_MICRO} wgmma.n*.group_of_1 less the wgmma: 58 to 69",
        "mma_queue": "assumed: deep enough to have no effect",
        "mma_ports": f"{_MICRO} mma.mixed.fma_f32.8.4_warps: eight FMA between two mma.sync",
        "mma_half": f"{_MICRO} mma.mixed.pack_bf16.8.4_warps: eight between two mma.sync take 20 cycles, not 16",
        "wgmma_queue": "measured: docs/log/2026-11.md, clock64 at the issue of products of attention",
        "wgmma_burst": f"{_MICRO} beside.max_f32.*.shared: from a run of one instruction to the next, less its cycle",
        "wgmma_register_burst": f"{_MICRO} beside.max_f32.*.registers, likewise",
        "wgmma_special": f"{_MICRO} beside.ex2.* against none",
        "wgmma_special_alone": f"{_MICRO} beside.ex2_add_max.1.shared: 13.4 cycles for the 8 of the unit",
        "commit": "published: Hopper has no tcgen05",
        "tmem_latency": "published: Hopper has no tensor memory",
        "tmem_bytes": "published: Hopper has no tensor memory",
        "tmem_store": "published: Hopper has no tensor memory",
        "tmem_alloc": "published: Hopper has no tensor memory",
        "cta_start": f"{_MICRO} launch.smem.wave less the 4000 cycles that each CTA spins",
        "cta_rate": f"{_MICRO} launch.turnover.256_threads.0: 1056 CTAs in 0.635 us",
        "cluster_start": f"{_MICRO} launch.cluster_2.wave less launch.smem.wave",
        "entry": f"{_MICRO} start.used.*.cold less the instructions; later CTAs: in cta_start",
        "relaunch_us": f"{_WARM}: a launch in a loop takes 1.7 us less than alone, whatever its length",
        "launch_us": f"{_MICRO} launch.plain less launch.plain.inside: by events, in a stream with other work",
        "tensor_mhz": f"{_MICRO} clock.zeros.*: ten elevenths of the maximum, at any power",
        "idle_watts": f"{_MICRO} power.idle.watts",
        "droop_top": f"{_MICRO} clock.*.rounds_256 of twelve loads, against their watts: a straight line",
        "droop": f"{_MICRO} the same; clock.far_a is on that line; clock.steps.*: without delay",
        "sustained_watts": "published: NVIDIA data sheet; measured: power.normal*.watts",
        "flop_pj": f"{_MICRO} power.paused.*: watts by nvidia-smi below the limit of the board",
        "flop_shares": "measured: 1 for 8-bit floats, bench/gemm.py --cases fp8 at 8192, 1453 TFLOPS, 1492 predicted; "
        "assumed: e2m1x2 as in the data sheets, twice the flops of FP8 at the same power",
        "l2_pj": f"{_MICRO} power.paused.*: 16, 32 and 48 KB a k-block, and 48 KB with 32 KB shared by pairs",
        "hbm_pj": f"{_MICRO} power.hbm_read less l2_pj; power.hbm_copy the same",
        "volts_slope": f"{_MICRO} power.normal*, power.pair_ab: 1.5 to 1.6",
    },
)


def _assumed(source: Mapping[str, str]) -> dict[str, str]:
    """Returns the sources for another device: a constant measured on the H200 is assumed there."""
    return {
        name: "assumed: as measured on the H200" if text.startswith("measured") else text
        for name, text in source.items()
    }


_B200 = replace(
    _H200,
    gpcs=(18, 18, 18, 20, 18, 18, 18, 20),
    poll=1.0,
    cluster_barrier=102.0,
    ld_l2=305.0,
    ld_hbm=838.0,
    ld_hbm_mixed=1160.0,
    pair_writes=1.0,
    dsmem_latency=224.0,
    dsmem_bytes=21.0,
    pair_bytes=180.0,
    l2_bytes=13300.0,
    l2_write_bytes=7400.0,
    l2_add_bytes=5900.0,
    hbm_share=0.88,
    sm_bytes=123.0,
    tma_issue=30.0,
    tma_l2=325.0,
    tma_hbm=940.0,
    tma_box=10.0,
    tma_row=1.0,
    tma_store=180.0,
    mma_flops=8192.0,
    mma_least=44.0,
    mma_issue=8.0,
    mma_latency=60.0,
    commit=45.0,
    tmem_latency=20.0,
    tmem_bytes=64.0,
    tmem_store=64.0,
    tmem_alloc=253.0,
    tensor_mhz=1850.0,
    droop_top=2034.0,
    droop=0.18,
    sustained_watts=1000.0,
    idle_watts=180.0,
    flop_pj=0.78,
    l2_pj=14.1,
    hbm_pj=84.0,
    source=_assumed(_H200.source)
    | {
        "gpcs": "assumed: 148 SMs over 8 GPCs, 74 a die",
        "bar": "published: 28 cycles with 256 threads, issue included (QuickRunCUDA), as on the H200",
        "poll": "published: one MMA of a pair until its wait ends takes 173 to 298 cycles, exactly as many more as the "
        "MMA is longer (SemiAnalysis, B200): no steps",
        "cluster_barrier": "published: relaxed 102, cluster.sync 373-380 with the fence (QuickRunCUDA, B300)",
        "fence_cluster": "published: membar.gl 274-292, barrier.cluster.arrive alone 298 (QuickRunCUDA, B300)",
        "ld_l2": "published: 305 cycles (279-324)",
        "ld_hbm": "published: 833-843 cycles",
        "ld_hbm_mixed": "assumed: longer by the same share as on the H200",
        "shared_latency": "assumed: as measured on the H200; published: 29 cycles",
        "shared_writes": "published: 128x128x64 in 268 cycles of one SM at 1.3 GHz, 122 bytes a cycle read beside 122 "
        "written (SemiAnalysis, B200); 4096 x 4096 x 4096 of such tiles in 113.7 us (gau-nernst, B200): 512 cycles a "
        "k-block would take longer at the highest clock",
        "pair_writes": "assumed: one port of 128 bytes a cycle",
        "dsmem_latency": "published: 224 cycles, clusters of 2 (QuickRunCUDA)",
        "dsmem_bytes": "published: 21 bytes a cycle by plain accesses, 32 in bulk",
        "pair_bytes": "published: 13300 bytes a cycle of 148 SMs",
        "l2_bytes": "published: 21.2 TB/s at 1587 MHz",
        "l2_write_bytes": "assumed: in the proportion to reads that the H200 has",
        "l2_add_bytes": "assumed: likewise",
        "hbm_share": "published: 6.75 of 7.67 TB/s",
        "sm_bytes": "published: 122 (SemiAnalysis, B200); 240 GB/s at 1920 MHz (QuickRunCUDA, B300)",
        "tma_issue": "published: 30 cycles (Meta's latency model, B200)",
        "tma_l2": "published: 16, 32 and 64 KB until the wait ends take 530, 658 and 925 cycles (Meta's latency model, "
        "B200), 503, 634 and 897 (QuickRunCUDA, B300), less rows and the other instructions",
        "tma_hbm": "published: gather4 from device memory takes 310-350 ns more than from L2, less what ld shows",
        "tma_box": "assumed",
        "tma_row": "published: 144 to 256 rows of 32 or 64 bytes, one a cycle (SemiAnalysis, B200); 125 bytes a cycle "
        "(QuickRunCUDA, B300)",
        "tma_store": "published: 130 + 52 cycles a KB (Meta's latency model, B200)",
        "mma_flops": "published: 8192 (NVIDIA data sheet); 128x256x16 in 128 cycles (QuickRunCUDA)",
        "mma_least": "published: max(44, N/2) cycles for M = 128 (QuickRunCUDA)",
        "mma_issue": "assumed: 30 cycles for an instruction that waits for its issue (Meta's latency model)",
        "mma_latency": "published: one MMA from issue until its wait ends takes 200 cycles, of a pair 234 "
        "(SemiAnalysis, B200), in a loop 227 (QuickRunCUDA, B300), less 64 in the pipe, 45 of commit and the rest",
        "commit": "published: 40-50 cycles (arXiv 2605.04178)",
        "tmem_latency": "published: 532 cycles of 128x128, 256 of them occupied (Meta's latency model)",
        "tmem_bytes": "published: 53 bytes a cycle and warp (QuickRunCUDA); 16 TB/s a chip (arXiv 2605.04178)",
        "tmem_store": "assumed: as loads",
        "tmem_alloc": "published: 253 cycles each (QuickRunCUDA)",
        "tensor_mhz": "published: 1845-1854 MHz under load",
        "idle_watts": "assumed",
        "droop_top": "assumed: in the proportion of the highest clocks",
        "droop": "published: fitted to FlashAttention-4, 1450 TFLOPS at first and 1237 at 1580 MHz and the power "
        "limit, so 1852 MHz at first (flashinfer 2899; predicted 1820), and to the GEMMs of flop_shares",
        "sustained_watts": "published: NVIDIA data sheet",
        "flop_pj": "published: fitted to rates under lasting load of three sources (docs/log/2026-11.md): levels 4 to "
        "9 at 10240 and 12288, FlashAttention-4 at 1000 W and 1580 MHz (flashinfer 2899), cuBLAS at 8192 (gau-nernst)",
        "flop_shares": "assumed: 8-bit floats as measured on the H200, e2m1x2 as in the data sheet, twice the flops of "
        "FP8 at the same power; published GEMMs agree within 1 %: MXFP8 3201 TFLOPS (flashinfer 2464), MXFP4 5702 "
        "(DeepGEMM 348)",
        "l2_pj": "assumed: the H200's, in the proportion of the data sheets' watts a flop",
        "hbm_pj": "assumed: as on the H200, both have HBM3e",
    },
)

_GB202 = "Chips and Cheese, RTX PRO 6000"
_RTX5090 = replace(
    _H200,
    gpcs=(16, 16, 16, 16, 16, 16, 14, 16, 16, 14, 14),
    ld_l2=365.0,
    ld_hbm=715.0,
    ld_hbm_mixed=990.0,
    tma_l2=362.0,
    tma_hbm=1001.0,
    l2_bytes=3100.0,
    hbm_share=0.9,
    extremum_values=2,
    mma_flops=512.0,
    mma_rates={"tf32": 0.5, **dict.fromkeys(("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"), 2.0), "s8": 4.0, "u8": 4.0}
    | {"mxf8": 4.0, "e2m1x2": 8.0},
    slots={**_SLOTS, "mma": 32.0},
    tensor_mhz=2808.0,
    droop_top=2808.0,
    droop=0.0,
    sustained_watts=575.0,
    idle_watts=60.0,
    flop_pj=1.0,
    mma_ports=0.0,
    mma_half=0.0,
    source=_assumed(_H200.source)
    | {
        "mma_ports": "assumed: nothing is measured",
        "mma_half": "assumed: nothing is measured",
        "gpcs": "assumed: 170 SMs over 11 GPCs",
        "ld_l2": f"published: 130 ns ({_GB202})",
        "ld_hbm": "assumed: 125 ns more than from L2, as other chips",
        "ld_hbm_mixed": "assumed: longer by the same share as on the H200",
        "tma_l2": "assumed: longer than the H200's by the cycles of ld_l2",
        "tma_hbm": "assumed: longer than the H200's by the cycles of ld_l2",
        "l2_bytes": f"published: 8.7 TB/s ({_GB202})",
        "hbm_share": "assumed: as other chips",
        "extremum_values": "published: ptxas 13.0 emits VIMNMX of two for sm_120a",
        "mma_flops": "published: NVIDIA RTX Blackwell white paper, float32 sums",
        "mma_rates": "published: NVIDIA RTX Blackwell white paper: 419 TFLOPS in FP8, 838 TOPS in INT8, 1676 TFLOPS in "
        "FP4; assumed: FP6 as FP8; published: MXFP8 twice FP8 (mmapeak on an RTX 5090: 737 and 370 TFLOPS; flashinfer "
        "issue 3628 on an RTX 5060 Ti: 202 and 102)",
        "slots": "assumed: as measured on the H200; mma from mma_flops",
        "tensor_mhz": "published: torch.matmul in TF32, 122.2 TFLOPS (public reports), takes no less",
        "droop_top": "published: as tensor_mhz",
        "droop": "published: 240 TFLOPS of torch.matmul in bf16 (public reports) take 2758 MHz or more at 575 to 600 W",
        "sustained_watts": "published: NVIDIA RTX Blackwell white paper",
        "idle_watts": "assumed",
    },
)

# Boards of the same chips: what differs from the device whose constants are taken, each with its source. Of the highest
# clock follow `droop_top` and, without a figure, `tensor_mhz`, in the proportion of the highest clocks.
_SHEET, _RTX = "published: NVIDIA data sheet", "published: NVIDIA RTX Blackwell white paper"
_GPCS = "assumed: its SMs over its GPCs"
_ULTRA = {
    "slots": (
        {**_SLOTS, "mufu": 4.0},
        "published: NVIDIA Blackwell Ultra: twice the exponentials; others as on the B200",
    ),
    "hbm_share": (0.935, "published: 7.17 of 7.67 TB/s (QuickRunCUDA)"),
    "tensor_mhz": (2032.0, "published: 2.46 PFLOPS of bf16 at 1040 W are all of this clock (QuickRunCUDA)"),
    "droop": (0.0, "published: as tensor_mhz"),
    "flop_pj": (0.64, "published: cuBLAS at 8192 on random data, about 1700 TFLOPS at 1100 W (QuickRunCUDA)"),
}


def _board(name: str, base: Timing, of: str, **facts: tuple[Any, str]) -> Timing:
    """Returns the constants of the device ``name``: those of ``base``, the device ``of``, and ``facts``."""
    scale, text = DEVICES[name].clock_mhz / DEVICES[of].clock_mhz, f"assumed: as {of}'s, by the highest clocks"
    facts = {key: (round(getattr(base, key) * scale), text) for key in ("droop_top", "tensor_mhz")} | facts
    source = _assumed(base.source) | {key: text for key, (_, text) in facts.items()}
    return replace(base, source=source, **{key: value for key, (value, _) in facts.items()})


def _consumer(name: str, gpcs: tuple[int, ...], l2: float, watts: float, **facts: tuple[Any, str]) -> Timing:
    """Returns the constants of an RTX board at its boost clock; ``l2`` is the share of an RTX 5090's bytes a second."""
    scale = l2 * DEVICES["rtx5090"].clock_mhz / DEVICES[name].clock_mhz
    l2_bytes = round(_RTX5090.l2_bytes * scale), "assumed: rtx5090's, in the proportion of the sizes of L2"
    found = {"gpcs": (gpcs, _GPCS), "l2_bytes": l2_bytes, "sustained_watts": (watts, _RTX)} | facts
    return _board(name, _RTX5090, "rtx5090", **found)


TIMINGS = {
    "b200": _B200,
    "gb200": replace(_B200, gpcs=(18, 20) * 4),
    "b300": _board("b300", _B200, "b200", sustained_watts=(1100.0, _SHEET), **_ULTRA),
    "gb300": _board("gb300", _B200, "b200", gpcs=((18, 20) * 4, _GPCS), sustained_watts=(1400.0, _SHEET), **_ULTRA),
    "h200": _H200,
    "h100": _board("h100", _H200, "h200"),
    "h100_pcie": _board(
        "h100_pcie",
        _H200,
        "h200",
        gpcs=((16, 16, 16, 14, 14, 14, 12, 12), _GPCS),
        l2_bytes=(4472.0, "published: Luo et al., arXiv 2402.13499"),
        tensor_mhz=(1620.0, "published: the clock of the data sheet's peak"),
        sustained_watts=(350.0, _SHEET),
    ),
    "h20": _board(
        "h20",
        _H200,
        "h200",
        gpcs=((10, 10, 10, 10, 10, 10, 10, 8), _GPCS),
        mma_flops=(1024.0, "published: NVIDIA data sheet, 148 TFLOPS"),
        slots=({**_SLOTS, "mma": 16.0}, "assumed: as measured on the H200; mma from mma_flops"),
        sustained_watts=(400.0, _SHEET),
    ),
    "gh200": _board("gh200", _H200, "h200"),
    "rtx5090": _RTX5090,
    "rtx5080": _consumer("rtx5080", (12,) * 7, 2 / 3, 360.0),
    "rtx5070ti": _consumer("rtx5070ti", (12, 12, 12, 12, 12, 10), 1 / 2, 300.0),
    "rtx_pro_6000": _consumer(
        "rtx_pro_6000",
        (16,) * 10 + (14, 14),
        1.0,
        600.0,
        l2_bytes=(3324.0, f"published: 8.7 TB/s ({_GB202})"),
        mma_flops=(1024.0, "published: NVIDIA RTX Blackwell PRO white paper, float32 sums"),
        mma_rates=(
            {**_RTX5090.mma_rates, "s8": 2.0, "u8": 2.0, "mxf8": 2.0, "e2m1x2": 4.0},
            "published: NVIDIA RTX Blackwell PRO white paper",
        ),
        slots=({**_SLOTS, "mma": 16.0}, "assumed: as measured on the H200; mma from mma_flops"),
    ),
}
