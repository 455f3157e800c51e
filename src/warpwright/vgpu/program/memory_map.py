"""The address space of a kernel.

Virtual addresses of a kernel and the memory that they map to:

===============  ==========================================================  ===========================
shared           rank << 24 | offset, offsets from 1024 (system reserve)     the cluster's shared memory
generic shared   SHARED_WINDOW + the same                                    the same
generic local    LOCAL_WINDOW + offset                                       each lane's own
global, const    GLOBAL_BASE + offset                                        the device's memory
global           the host's address, in a launch with ``memory=``            the array there, or a copy
===============  ==========================================================  ===========================

Linux hands out none of the windows to a process: its memory lies near 0, from a quarter of the address space on, and at
the top (of 47 bits on x86-64, of 39 or 48 bits on aarch64). A launch refuses an array that lies in one all the same.

Bit 24 of a shared::cluster address is the rank's lowest bit: real code clears that bit
to reach the even CTA of a pair (CUTLASS: Sm100MmaPeerBitMask).
"""

from __future__ import annotations

__all__ = ["GLOBAL_BASE", "HEAP", "HEAP_BYTES", "LOCAL_WINDOW", "RANK_SHIFT", "RESERVED_SHARED", "SHARED_WINDOW"]

RANK_SHIFT = 24
RESERVED_SHARED = 1024
SHARED_WINDOW = 1 << 40
LOCAL_WINDOW = 2 << 40
GLOBAL_BASE = 0x7000_0000_0000
HEAP = "%heap"  # the variable of a module from which malloc allocates
HEAP_BYTES = 8 << 20  # the initial cudaLimitMallocHeapSize, of modules without one
