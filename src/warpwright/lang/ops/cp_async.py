"""cp.async: asynchronous copies of 4, 8 or 16 bytes from global to shared memory, issued by each thread for itself.

PTX ISA 9.1 sections 9.7.9.25.3 and 9.7.13.15.15. They need no tensor map and write shared memory through the generic
proxy.
"""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Value, operand
from warpwright.lang.ops.mbarrier import mbarrier
from warpwright.lang.pointer import Pointer
from warpwright.lang.trace import current
from warpwright.types import u32

__all__ = ["arrive", "commit_group", "copy", "wait_group"]

SIZES = (4, 8, 16)


def copy(destination: Pointer[Any], source: Pointer[Any], nbytes: int = 16, *, taken: Value | None = None) -> None:
    """Start the copy of ``nbytes`` bytes: 4, 8 or 16 (which bypasses L1); both addresses are multiples of ``nbytes``.

    Only the first ``taken`` (u32) bytes are read; the rest is written as zeros.
    Raises KernelError for another size, and for addresses that are not shared and global.

    Issued by each thread for itself.
    Completes by this thread's `wait_group`, or by the mbarrier of `arrive`.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.25.3.1 (cp.async).
    """
    if nbytes not in SIZES:
        raise misuse(f"given {nbytes} bytes to cp_async.copy; expected 4, 8 or 16")
    if (destination.space, source.space) != ("shared", "global"):
        raise misuse(
            f"given cp_async.copy to {destination.space or 'generic'} from {source.space or 'generic'} memory; "
            "expected to shared from global memory"
        )
    cop = "cg" if nbytes == SIZES[-1] else "ca"
    tail = () if taken is None else (operand(taken, u32),)
    current().emit(f"cp.async.{cop}.shared.global", destination.node, source.node, nbytes, *tail)


def commit_group() -> None:
    """Close this thread's group: the copies that it issued since the previous group.

    Issued by the threads that issued the copies.
    Completes by itself; the group by `wait_group`.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.25.3.2 (cp.async.commit_group).
    """
    current().emit("cp.async.commit_group")


def wait_group(pending: int = 0) -> None:
    """Wait until at most ``pending`` of this thread's newest groups are incomplete; a barrier with the readers follows.

    Raises KernelError for a negative number.

    Issued by the threads that committed the groups.
    Completes by the groups.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.25.3.3 (cp.async.wait_group).
    """
    if pending < 0:
        raise misuse(f"given cp_async.wait_group({pending}); expected 0 or more groups")
    current().emit("cp.async.wait_group", pending)


def arrive(barrier: mbarrier) -> None:
    """Arrive at ``barrier`` when all copies that this thread has issued are complete, as one of its expected arrivals.

    Issued by each thread that copied.
    Completes by itself; the arrival when the copies are complete.
    Targets: sm_80 and later.
    PTX ISA 9.1 section 9.7.13.15.15 (cp.async.mbarrier.arrive.noinc).
    """
    current().emit("cp.async.mbarrier.arrive.noinc.shared::cta.b64", barrier.operand)
