"""The 16 named barriers of a CTA (PTX ISA 9.1 section 9.7.13.1); an ``mbarrier`` is an object in memory."""

from __future__ import annotations

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.trace import current
from warpwright.types import u32

__all__ = ["arrive", "sync"]

BARRIERS = 16
WARP = 32


def sync(barrier: Value = 0, threads: int | None = None) -> None:
    """Wait until ``threads`` threads (default: all of the CTA) have arrived at named barrier ``barrier`` (0-15).

    ``barrier`` may be a run-time u32, the same in all threads of a warp. The barrier orders every participant's earlier
    generic accesses before the later ones, but no async-proxy access: that needs ``fence.proxy_async`` before it.
    Raises KernelError for an id outside 0-15 or a count that is no multiple of 32.

    Issued by whole, converged warps.
    Completes by the last arrival.
    Targets: all.
    PTX ISA 9.1 section 9.7.13.1 (bar.sync).
    """
    _check("bar.sync", barrier, threads)
    current().emit("bar.sync", operand(barrier, u32), *(() if threads is None else (threads,)))


def arrive(barrier: Value, threads: int) -> None:
    """Arrive at named barrier ``barrier`` without waiting; ``threads`` counts arriving and waiting threads.

    Raises KernelError for an id outside 0-15 or a count that is no multiple of 32.

    Issued by whole, converged warps.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.13.1 (bar.arrive).
    """
    _check("bar.arrive", barrier, threads)
    current().emit("bar.arrive", operand(barrier, u32), threads)


def _check(name: str, barrier: Value, threads: int | None) -> None:
    if not isinstance(barrier, Expr) and not 0 <= barrier < BARRIERS:
        raise misuse(f"given barrier {barrier} to {name}; expected 0 to {BARRIERS - 1}; choose another id")
    if threads is not None and (threads <= 0 or threads % WARP):
        raise misuse(f"given {threads} threads to {name}; expected a multiple of {WARP}; count whole warps")
