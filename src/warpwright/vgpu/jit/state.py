"""The warp's state in memory: one layout for the generated code, the runtime and the machine."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.program.memory_map import GLOBAL_BASE, LOCAL_WINDOW, RANK_SHIFT, RESERVED_SHARED, SHARED_WINDOW

__all__ = [
    "ALL_DONE",
    "BLOCKED",
    "CONTROL",
    "DONE",
    "EXITED",
    "FAULT",
    "FAULTED",
    "FAULTS",
    "FUEL",
    "FULL",
    "GLOBAL_BASE",
    "LANES",
    "LOCAL_WINDOW",
    "OFFSETS",
    "OUT_OF_JUMPS",
    "PAUSED",
    "QUEUE_FULL",
    "QUEUE_HEADER_WORDS",
    "RANK_SHIFT",
    "RECORD_WORDS",
    "RESERVED_SHARED",
    "ROUNDS",
    "SHARED_WINDOW",
    "SIZE",
    "SPINNING",
    "STALLED",
    "TIMED_WORDS",
    "WAIT_BAR",
    "WAIT_BULK",
    "WAIT_CLUSTER",
    "WAIT_MBARRIER",
    "WAIT_SERVICE",
    "WAIT_WGMMA",
    "WARP",
    "WGMMA_LOG",
]

LANES = 32
EXITED = 0x7FFF_FFFF
RECORD_WORDS = 16
TIMED_WORDS = 5  # of a row for timing: see record.ll
QUEUE_HEADER_WORDS = 4  # records, capacity, events (bit k: lanes began to wait for k; bit 0: a warp is done), unused
ROUNDS = 256  # of lane code without a look at the machine: it may run long, and an interrupt waits
WGMMA_LOG = 128  # most wgmma in flight of a warp; the next one completes the first ones

# Return values of the kernel function.
DONE, BLOCKED, FUEL, FAULT, FULL = range(5)
# Return values of `run_cluster`.
STALLED, ALL_DONE, SPINNING, FAULTED, QUEUE_FULL, PAUSED, OUT_OF_JUMPS = range(7)
# Reasons for which a lane waits.
WAIT_MBARRIER, WAIT_BAR, WAIT_CLUSTER, WAIT_BULK, WAIT_SERVICE, WAIT_WGMMA = range(1, 7)
# Fault kinds that the runtime reports (index = code).
FAULTS = (
    "none",
    "bounds",
    "misaligned",
    "mbarrier_invalid",
    "mbarrier_overflow",
    "mbarrier_closes",
    "tmem_unallocated",
    "tmem_quarter",
    "tmem_lane",
    "mbarrier_count",
    "unsupported",
    "trap",
    "rank",
    "mbarrier_init",
)

_FIELDS: list[tuple[str, str, int]] = [
    ("pc", "i4", LANES),  # block of every lane; EXITED after its exit
    ("wait_kind", "i4", LANES),
    ("wait_addr", "u8", LANES),  # host address of the mbarrier, or barrier id
    ("wait_arg", "u8", LANES),  # parity, or thread count, or group count
    ("groups", "i4", LANES),  # committed bulk groups still in flight
    ("uncommitted", "i4", LANES),  # bulk operations since the last commit_group
    ("lane_groups", "i4", LANES),  # the same for cp.async
    ("lane_uncommitted", "i4", LANES),
    ("addr", "i8", LANES),  # addresses of the current access: virtual in, host out
    ("operands", "u8", LANES * RECORD_WORDS),
    ("scratch", "u8", LANES * 2),
    ("block_lanes", "i4", LANES),  # -1 for each active lane of the block, and of the current instruction
    ("mask_lanes", "i4", LANES),
    ("live", "u4", 1),
    ("mask", "u4", 1),
    ("blocked", "u4", 1),
    ("parked", "u4", 1),  # waiting at a .sync instruction for the other lanes
    ("fuel", "i4", 1),
    ("slice", "i4", 1),  # fuel of a time slice: block jumps before a warp that does not wait returns to the scheduler
    ("bias", "i4", 1),  # block the dispatcher prefers first; rotated when lanes starve
    ("status", "i4", 1),
    ("inst", "i4", 1),  # instruction of an out-of-line routine
    ("fault", "i4", 1),
    ("fault_lane", "i4", 1),
    ("fault_addr", "i8", 1),
    ("rank", "i4", 1),
    ("shared_base", "u4", 1),  # rank << 24
    ("ranks", "i4", 1),
    ("warp", "i4", 1),
    ("hardware", "i4", 1),  # mma.sync rounds as tensor cores do
    ("pending", "i4", 1),  # tensor-memory loads and stores not yet waited for
    ("shared_host", "i8", 1),  # rank 0's shared memory
    ("shared_stride", "i8", 1),
    ("shared_limit", "i8", 1),  # one past the last legal offset
    ("global_table", "i8", 1),  # allocations: (first, last + 1, host - virtual), sorted
    ("global_count", "i8", 1),
    ("global_hint", "i8", 1),
    ("local_host", "i8", 1),
    ("local_bytes", "i8", 1),
    ("param_host", "i8", 1),
    ("param_base", "i8", 1),  # virtual address of the parameter block
    ("queue", "i8", 1),  # {count, capacity, records…}
    ("tmem", "i8", 1),  # this CTA's tensor memory: columns of 128 lanes of 32 bits
    ("tmem_mask", "i8", 1),  # address of the CTA's allocation bits, one per 32 columns
    ("clock", "i8", 1),
    ("pend_table", "i8", 64),
    ("pend_addr", "i8", 64),
    ("rows", "i8", 1),  # {count, capacity, -, -, rows…} of the recorder, 0 without one
    ("row_head", "i8", 1),  # this warp's number in the cluster << 32
    ("cycles", "i8", 2),  # the warp's counters, see `costs.elapsed`
    ("row_saved", "i8", 2),  # the counters at the first failure of the wait `row_retry`
    ("row_retry", "i8", 1),
    ("marks", "i8", 1),  # the marks of the launch: blocks entered, guards true and false
    ("issued", "i8", 1),  # wgmma issued so far, and the addresses of that counter for the four warps of the group
    ("peers", "i8", 4),
    ("meeting", "i8", 1),  # address of the cluster barrier in runs that only signal: arrivals, phase
    ("owed", "i8", 1),  # its phase in which the warp has arrived
    ("jumps", "i8", 1),  # block jumps that are left of the launch's limit
    ("timed", "i4", 1),  # whether rows are for timing
    ("signals", "i4", 1),  # -1: asynchronous operations complete at issue, without data; no group waits; else 0
    ("wgmma_count", "i4", 1),  # lines in the log
    ("wgmma_group", "i4", 1),  # groups committed
    ("wgmma_log", "u8", 4 * WGMMA_LOG),  # instruction, descriptors of A and B, group << 32 | how
]

WARP = np.dtype({"names": [n for n, _, _ in _FIELDS], "formats": [(f, (c,)) if c > 1 else f for _, f, c in _FIELDS]})
OFFSETS: dict[str, int] = {name: int(WARP.fields[name][1]) for name in WARP.names}  # type: ignore[index,union-attr]
SIZE = (WARP.itemsize + 255) // 256 * 256

CONTROL = {
    **OFFSETS,
    "RANK_SHIFT": RANK_SHIFT,
    "RESERVED": RESERVED_SHARED,
    "SHARED_WINDOW_HIGH": SHARED_WINDOW >> 32,
    "LOCAL_WINDOW_HIGH": LOCAL_WINDOW >> 32,
    "RECORD_WORDS": RECORD_WORDS,
    "RECORD_BYTES": RECORD_WORDS * 8,
    "QUEUE_HEADER_BYTES": QUEUE_HEADER_WORDS * 8,
    "WGMMA_LOG": WGMMA_LOG,
    **{f"FAULT_{name.upper()}": code for code, name in enumerate(FAULTS)},
    "WAIT_MBARRIER": WAIT_MBARRIER,
    "WAIT_WGMMA": WAIT_WGMMA,
    "WAIT_CLUSTER": WAIT_CLUSTER,
    "WAIT_BAR": WAIT_BAR,
    "WAIT_BULK": WAIT_BULK,
    "TIMED_WORDS": TIMED_WORDS,
    "ROUNDS": ROUNDS,
    "NEWS_OF_BARS": 1 << WAIT_BAR,
    "NEWS_OF_SERVICES": 1 << WAIT_SERVICE,
    "NEWS_OF_BARRIERS": 1 | 1 << WAIT_BAR | 1 << WAIT_CLUSTER,
}
