"""The rules, as data: what each says when it does not hold, where PTX says so, and what to write."""

from __future__ import annotations

from warpwright.vgpu.checks.findings import Rule

__all__ = ["EVIDENCE", "RULES"]

_ALL = (
    Rule(
        "race",
        "two accesses of the same memory, one of them a write, that nothing orders",
        "8.9.4",
        "let the second wait for the first: an arrive (of an asynchronous operation: its commit) on an mbarrier after "
        "the first and a wait for that phase before the second, or a barrier between them",
    ),
    Rule(
        "grid-race",
        "two clusters access the same global memory, one of them writes, and nothing orders them",
        "8.8 and 8.9.4",
        "give each cluster memory of its own, use atomic operations for all of them, or order them: the first releases "
        "at gpu scope (fence.acq_rel.gpu and an atomic operation or strong store, or st.release.gpu), the second "
        "acquires what that wrote (ld.acquire.gpu, or a strong load and fence.acq_rel.gpu) before its access",
    ),
    Rule(
        "peer-race",
        "two GPUs of a node access the same memory, one of them writes, and nothing orders them",
        "8.5, 8.8 and 8.9.4",
        "give each rank memory of its own, or order them: the first releases at sys scope (st.release.sys or "
        "red.release.sys of a flag), the second acquires what that wrote (ld.acquire.sys) before its access; before a "
        "buffer or a flag is used again, every rank that reads it releases, and its writer acquires",
    ),
    Rule(
        "proxy-fence",
        "a thread's access of memory is not ordered for the async proxy",
        "8.9.4 and 9.7.13.4",
        "put fence.proxy.async after the first access, in the thread that made it and before the barrier that orders "
        "the two",
    ),
    Rule(
        "read-only",
        "memory that the launch writes is read as if it did not (ld.global.nc)",
        "9.7.9.9",
        "load it without .nc: a plain ld, or in CUDA C++ no __ldg and no const __restrict__",
    ),
    Rule(
        "tensor-map",
        "a tensor map is changed while a copy may use it, or used where the change is not visible",
        "9.7.13.4 and 9.7.13.16",
        "wait for the copies that use the map before it is changed; then release the change "
        "(tensormap.cp_fenceproxy, or fence.proxy.tensormap::generic.release), and in the thread that copies put "
        "fence.proxy.tensormap::generic.acquire before the copy",
    ),
    Rule(
        "grid-dependency",
        "memory that an earlier launch writes is accessed while that launch may still run",
        "9.7.13.13",
        "put griddepcontrol.wait before the access, in the thread that makes it, or before the barrier that orders it "
        "after another thread's griddepcontrol.wait",
    ),
    Rule(
        "mbarrier-init",
        "an mbarrier is used where its initialisation is not visible",
        "9.7.13.15.9",
        "put fence.mbarrier_init.release.cluster after mbarrier.init, then a barrier of all that use it (of the "
        "cluster, if other CTAs do)",
    ),
    Rule(
        "mbarrier-live",
        "memory of an mbarrier is written, or initialised again, while the mbarrier lives",
        "9.7.13.15.11",
        "put mbarrier.inval before it, ordered after the last use, or give the two memory of their own; an mbarrier "
        "that is used again needs no second mbarrier.init, its phases go on",
    ),
    Rule(
        "mbarrier-parity",
        "a wait for an mbarrier has a parity other than 0 and 1",
        "9.7.13.15.16",
        "give the wait bit 0 of the number of the phase",
    ),
    Rule(
        "mbarrier-lapped",
        "a phase of an mbarrier may end before a waiting thread has seen the phase before it end",
        "9.7.13.15.3",
        "let every thread that waits arrive after its wait, and let the next phase end only after that",
    ),
    Rule(
        "mbarrier-count",
        "an arrival on an mbarrier may count for an earlier phase: nothing orders it after the end of the phase before",
        "9.7.13.15.3",
        "let mbarrier.init count all arrivals of a phase, and let a thread that arrives again first wait for the end "
        "of the phase before, or for a thread that has waited for it",
    ),
    Rule(
        "barrier-count",
        "an arrival at a named barrier may count for the round before: nothing orders it after the end of that round",
        "9.7.13.1",
        "let a thread that arrives again first learn that the round has ended, at another barrier; where one side only "
        "arrives (bar.arrive) and the other waits (bar.sync), two barriers in turn are enough",
    ),
    Rule(
        "deadlock",
        "no thread can go on, and nothing is in flight",
        "9.7.13.15",
        "follow the waits: who is waited for must arrive as often, and deliver as many bytes, as the barrier expects",
    ),
    Rule(
        "lock-order",
        "threads acquire locks in different orders: each may have one lock and wait for the other's",
        "9.7.13.5",
        "let all threads acquire these locks in one order, or acquire one more lock before them",
    ),
    Rule(
        "fault",
        "the kernel does what its device does not allow",
        "9.7",
        "",  # the message of a fault says what to change
    ),
    Rule(
        "uninitialised",
        "memory, or a register, is read that nothing was written to",
        "5.1.7",
        "write it first, or mend the address",
    ),
    Rule(
        "exit-early",
        "a CTA may exit while its shared memory is in use",
        "9.7.13.3 and 9.7.9.25.4",
        "synchronise the cluster (barrier.cluster) after the last use of another CTA's memory, wait for bulk copies "
        "from shared memory (cp.async.bulk.wait_group.read) in the thread that issued them, and for copies to it at "
        "their mbarrier",
    ),
    Rule(
        "cluster-entry",
        "a thread uses shared memory of another CTA that may not have started",
        "9.7.13.3",
        "put barrier.cluster.arrive and barrier.cluster.wait, in all threads of the cluster, before the first use of "
        "another CTA's memory",
    ),
    Rule(
        "tcgen05-fence",
        "operations on tensor memory of different threads are not ordered for the tensor core",
        "9.7.16.6.2",
        "put tcgen05.fence::before_thread_sync after the first and before the barrier, and "
        "tcgen05.fence::after_thread_sync after the barrier and before the second",
    ),
    Rule(
        "tmem-registers",
        "a register that tcgen05.ld fills is used before the load is complete",
        "9.7.16.8.3",
        "put tcgen05.wait::ld between the load and the use",
    ),
    Rule(
        "tmem-pair",
        "a CTA of a pair frees tensor memory while tcgen05.alloc of the other CTA may not have returned",
        "9.7.16.7.1",
        "put a barrier of the cluster, in both CTAs, after tcgen05.alloc and before tcgen05.dealloc",
    ),
    Rule(
        "tmem-freed",
        "tensor memory is freed while it may be in use",
        "9.7.16.7.1",
        "put a barrier of all warps that use the columns before tcgen05.dealloc: after their tcgen05.wait, or the wait "
        "for the tcgen05.commit of the last operation",
    ),
    Rule(
        "cta-group",
        "tcgen05 instructions of one kernel name different CTA groups",
        "9.7.16.7.1",
        "give all of them the same .cta_group",
    ),
    Rule(
        "product-lost",
        "a product in tensor memory is overwritten by the next before a thread can have read it",
        "9.7.16.10.9",
        "let enable-input-d be true from the second product of a sum on",
    ),
    Rule(
        "wgmma-registers",
        "a register is used while a wgmma that owns it is in flight",
        "9.7.15.7.3",
        "put wgmma.wait_group for its group before the use",
    ),
    Rule(
        "wgmma-fence",
        "a wgmma uses registers that nothing orders after a thread's use of them",
        "9.7.15.7.1",
        "put wgmma.fence between the use and the wgmma, in all four warps",
    ),
    Rule(
        "inactive-lane",
        "a lane takes part in a warp's collective instruction with a lane that does not execute it",
        "9.7.9.6 and 9.7.13",
        "name in the member mask the lanes that execute the instruction, and take values only from those; or let lanes "
        "exit after the instruction, not before",
    ),
    Rule(
        "setmaxnreg",
        "setmaxnreg has no effect, differs in the warps of a warpgroup, or comes again before the warpgroup has "
        "synchronised after the last one",
        "9.7.19.5",
        "fix the registers at launch (.maxnreg, or .maxntid with .minnctapersm), let all four warps of a warpgroup "
        "execute the same setmaxnreg, and put a barrier of the four between one setmaxnreg and the next",
    ),
)

RULES = {rule.id: rule for rule in _ALL}

# What keeps an order that PTX does not promise: SASS that ptxas 13.0 makes, read for sm_90a, sm_100a and sm_120a, and
# kernels that run on these GPUs every day (docs/rules.md has the details).
EVIDENCE = {
    "served": "SASS: an arrival does not wait for the warp's loads, for shared memory serves a warp in order",
    "spin": "SASS: the lanes of a warp leave a loop of try_wait together",
    "load": "SASS: the first use of such a register waits for the load",
    "fence": "SASS: the fence is a NOP; Triton's kernels leave it out",
    "unfenced": "SASS: the fence is a NOP; CUTLASS's kernels of sm_100 leave it out for an mbarrier of two CTAs",
    "overwrite": "a read that other threads know of has its value; CUTLASS's kernels of sm_120 do the same",
    "equal": "both store the same value, in this run; Triton's kernels do so",
    "late fence": "PTX ISA 8.9.4 asks for a fence that links the two; Triton's kernels have theirs there",
    "registers": "CUTLASS's, FlashAttention-4's and Triton's kernels do the same",
    "parity": "an H200 looks at bit 0 of a parity, and at no other bit",
    "exit": "an H200 does not give shared memory away before bulk stores have read it",
    "commits": "commits of a thread arrive in their order; DeepGEMM's kernels of sm_100 rely on it",
    "exited": "bar.warp.sync is WARPSYNC, which waits for lanes that have not exited, as CUDA's __syncwarp does",
    "left out": "ptxas leaves setmaxnreg out, with a warning: the results are the same",
}
