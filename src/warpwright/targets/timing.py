"""The constants of the timing model: what each is, and its unit. Cycles are cycles of the SM clock.

`warpwright.targets.clocks` has their values for each device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["UNITS", "Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Constants of one device; `UNITS` defines each. ``source`` of each constant is "status: source"."""

    gpcs: tuple[int, ...]
    schedulers: int
    latency: Mapping[str, float]
    slots: Mapping[str, float]
    branch: float
    try_wait: float
    wake: float
    poll: float
    arrive: float
    arrive_remote: float
    bar: float
    bar_warp: float
    cluster_barrier: float
    fence_async: float
    fence_cluster: float
    elect: float
    ld_l2: float
    ld_hbm: float
    ld_hbm_mixed: float
    shared_latency: float
    shared_bytes: float
    shared_writes: float
    pair_writes: float
    dsmem_latency: float
    dsmem_bytes: float
    l1_bytes: float
    sm_bytes: float
    pair_bytes: float
    l2_bytes: float
    l2_write_bytes: float
    l2_add_bytes: float
    store_line: float
    store_least: float
    l2_dirty: float
    l2_kept: float
    merged_cost: tuple[float, ...]
    merged_later: tuple[float, ...]
    multicast_cost: float
    hbm_share: float
    hbm_mixed_share: float
    hbm_common_share: float
    hbm_common_later: float
    tma_issue: float
    tma_l2: float
    tma_hbm: float
    tma_fresh: float
    tma_late_l2: float
    tma_late_hbm: float
    tma_box: float
    tma_row: float
    tma_store: float
    tma_store_bytes: float
    tma_add_bytes: float
    tma_first: float
    tma_first_warm: float
    extremum_values: int
    mma_flops: float
    mma_rates: Mapping[str, float]
    mma_least: float
    mma_issue: float
    mma_latency: float
    mma_queue: int
    mma_ports: float
    mma_half: float
    wgmma_queue: int
    wgmma_burst: float
    wgmma_register_burst: float
    wgmma_special: float
    wgmma_special_alone: float
    commit: float
    tmem_latency: float
    tmem_bytes: float
    tmem_store: float
    tmem_alloc: float
    cta_start: float
    cta_rate: float
    cluster_start: float
    entry: float
    launch_us: float
    relaunch_us: float
    tensor_mhz: float
    idle_watts: float
    droop_top: float
    droop: float
    sustained_watts: float
    flop_pj: float
    flop_shares: Mapping[str, float]
    l2_pj: float
    hbm_pj: float
    volts_slope: float
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def warm(self) -> Timing:
        """The constants of a launch that follows an equal one: its lines are in L2, and its stores left as many dirty
        lines as it evicts."""
        return replace(self, launch_us=self.relaunch_us, tma_first=self.tma_first_warm, l2_dirty=0.0)

    def clusters(self, ctas: int) -> int:
        """Returns how many clusters of ``ctas`` CTAs run together, one CTA an SM. A cluster lies in one GPC, so SMs are
        left over."""
        return sum(sms // ctas for sms in self.gpcs)


UNITS = {
    "gpcs": "SMs of each GPC; a cluster is in one GPC",
    "schedulers": "issue schedulers an SM; each issues one warp instruction a cycle",
    "latency": "cycles from issue until a dependent instruction can issue, by kind of instruction",
    "slots": "cycles that a warp instruction occupies its scheduler's pipe, by kind (others: 1)",
    "branch": "cycles from a taken branch to the first instruction after it",
    "try_wait": "cycles of an mbarrier try_wait whose phase is complete, until the branch on its result",
    "wake": "cycles from the completion of a phase until a thread suspended in try_wait resumes",
    "poll": "cycles between two polls of an mbarrier by a thread that waits in a cluster",
    "arrive": "cycles from an mbarrier arrive to its effect, own shared memory",
    "arrive_remote": "the same, mbarrier of another CTA of the cluster",
    "bar": "cycles from the last arrival at bar.sync until warps resume, without bar_warp",
    "bar_warp": "the same, for each participating warp",
    "cluster_barrier": "cycles from the last barrier.cluster.arrive.relaxed until waiting warps resume",
    "fence_async": "cycles of fence.proxy.async",
    "fence_cluster": "cycles of a fence at cluster scope or wider, and of the release of barrier.cluster.arrive",
    "elect": "cycles of elect.sync until its predicate is available",
    "ld_l2": "cycles of ld.global that hits L2",
    "ld_hbm": "cycles of ld.global that misses L2",
    "ld_hbm_mixed": "the same while as many bytes of device memory are written as read",
    "shared_latency": "cycles of ld.shared without conflicts",
    "shared_bytes": "bytes a cycle of an SM's shared memory",
    "shared_writes": "share of the bytes written by TMA that reduces the bandwidth of tensor-core operands",
    "pair_writes": "the same in a kernel whose MMAs span two CTAs",
    "dsmem_latency": "cycles of ld.shared::cluster from another CTA",
    "dsmem_bytes": "bytes a cycle and SM between CTAs of a cluster",
    "l1_bytes": "bytes a cycle of an SM's global loads and stores",
    "sm_bytes": "bytes a cycle that one SM loads from L2 through TMA",
    "pair_bytes": "bytes a cycle that the two SMs of a TPC load from L2 together",
    "l2_bytes": "bytes that all SMs load from L2 in a cycle of the maximum SM clock; the L2 clock does not droop",
    "l2_write_bytes": "the same for stores",
    "l2_add_bytes": "the same for float32 reductions by TMA",
    "store_line": "cycles of an SM for each line of 128 bytes that a store of lane code touches",
    "store_least": "bytes of l2_write_bytes that a line takes at least, however few of its bytes are stored",
    "l2_dirty": "share of L2 that earlier launches have written; its eviction goes to device memory",
    "l2_kept": "share of L2 that has data of a launch when an equal one follows",
    "merged_cost": "L2 cost of a byte that another CTA of the GPC loads at the same time, as a share of the first; "
    "with one, two, and three or more CTAs an SM",
    "merged_later": "the same for CTAs that start when others exit, and are less synchronous",
    "multicast_cost": "L2 cost of a multicast byte, as a multiple of a byte for one CTA",
    "hbm_share": "share of the nominal device-memory bandwidth that streaming reads achieve",
    "hbm_mixed_share": "the same for mixed reads and writes",
    "hbm_common_share": "the same for reads that several SMs issue at the same time",
    "hbm_common_later": "the same for CTAs that start when others exit, and are less synchronous",
    "tma_issue": "cycles that a tensor copy blocks the issuing thread",
    "tma_l2": "cycles from the issue of a small tensor load to its complete_tx on the mbarrier, from L2",
    "tma_hbm": "the same from device memory",
    "tma_fresh": "extra cycles of a box from L2 that another box's load fetched and that no load has read yet",
    "tma_late_l2": "mean extra cycles of a box from L2 while all SMs load",
    "tma_late_hbm": "the same from device memory",
    "tma_box": "cycles of the SM's TMA unit for a box, without its rows",
    "tma_row": "cycles of the TMA unit for a row of a box, a request of up to 128 bytes",
    "tma_store": "cycles from the issue of a small tensor store until its source has been read",
    "tma_store_bytes": "bytes a cycle that the TMA unit of an SM stores",
    "tma_add_bytes": "the same for float32 reductions into L2",
    "tma_first": "extra cycles of the first box of a launch: tensor map, address translation, cold L2",
    "tma_first_warm": "the same of a launch that follows an equal one",
    "extremum_values": "32-bit integers of which one instruction takes the maximum or minimum",
    "mma_flops": "dense 16-bit MMA flops a cycle and SM (fp8: twice, tf32: half)",
    "mma_rates": "rate of mma.sync by the type of A, as a multiple of the rate of 16-bit floats (others: 1); mxf8: "
    "8-bit floats with block scales; e2m1x2: of kind::mxf4 and mxf4nvf4",
    "mma_least": "minimum cycles of a tensor instruction; of one of a pair with M = 128, half of it",
    "mma_issue": "cycles that a tensor instruction blocks the issuing thread",
    "mma_latency": "cycles from the end of a tensor instruction's pipe occupancy until its accumulator is readable",
    "mma_queue": "tensor instructions in flight a CTA before issue stalls",
    "mma_ports": "cycles by which an instruction delays mma.sync in progress on its scheduler: it takes the ports of "
    "the registers",
    "mma_half": "cycles of the pipes of half rate that mma.sync of 16 x 8 x 16 takes",
    "wgmma_queue": "wgmmas of a warpgroup in flight before issue stalls",
    "wgmma_burst": "cycles of a scheduler between two runs of instructions while a wgmma executes: it has the ports of "
    "the registers",
    "wgmma_register_burst": "the same, A in registers",
    "wgmma_special": "share of the cycles of a special-function unit that warps lose while a wgmma executes",
    "wgmma_special_alone": "the same where one warp uses the unit, between other instructions",
    "commit": "cycles from the completion of tensor instructions until the arrive of their commit takes effect",
    "tmem_latency": "cycles of a small tcgen05.ld until wait::ld returns",
    "tmem_bytes": "bytes a cycle that one warp loads from its quarter of tensor memory",
    "tmem_store": "bytes a cycle that one warp stores to its quarter of tensor memory",
    "tmem_alloc": "cycles of tcgen05.alloc, and of tcgen05.dealloc",
    "cta_start": "cycles from the exit of a CTA until the first instruction of the next CTA",
    "cta_rate": "cycles between the starts of two CTAs, on any SMs",
    "cluster_start": "extra cycles until the first instruction of a cluster, compared with a CTA without cluster",
    "entry": "cycles until the first CTAs of a launch can read parameters and special registers",
    "launch_us": "microseconds of an empty kernel among others in a stream",
    "relaunch_us": "microseconds from the end of a launch to the start of the next one, which the stream has already",
    "tensor_mhz": "maximum clock while tensor cores are active",
    "idle_watts": "power without load, at the maximum clock",
    "droop_top": "clock at zero power, extrapolated, from which tensor-core load reduces the clock",
    "droop": "MHz that the clock falls for each watt above idle power, from the first MMA of a launch to the last",
    "sustained_watts": "power limit of the board, effective after about 50 ms",
    "flop_pj": "picojoules of a tensor-core flop on normal random data, operands from shared memory included",
    "flop_shares": "energy of a flop by the type of A, as a share of flop_pj (others: 1)",
    "l2_pj": "picojoules of a byte from L2 to an SM",
    "hbm_pj": "picojoules of a byte of device memory",
    "volts_slope": "exponent of the energy: proportional to (clock / maximum clock) to this power",
}
