"""Fences: they order the accesses of the thread that executes them, and never wait (PTX ISA 9.1 section 9.7.13.4).

A barrier or an mbarrier extends that order to other threads. Before TMA or the tensor core reads shared memory, each
thread that wrote it executes `proxy_async`, then all threads synchronise, then one thread issues the operation.
"""

from __future__ import annotations

from typing import Any, Literal

from warpwright.lang.expr import Expr
from warpwright.lang.pointer import Pointer
from warpwright.lang.trace import addr, current

__all__ = [
    "Scope",
    "acq_rel",
    "mbarrier_init",
    "proxy_async",
    "proxy_tensormap_acquire",
    "proxy_tensormap_release",
    "sc",
]

Scope = Literal["cta", "cluster", "gpu", "sys"]
TENSOR_MAP_BYTES = 128
AsyncSpace = Literal["", "shared::cta", "shared::cluster", "global"]


def proxy_async(space: AsyncSpace = "shared::cta") -> None:
    """Order this thread's generic-proxy and async-proxy accesses, in both directions; ``space=""``: in every space.

    A thread that wrote shared memory needs the fence before TMA or the tensor core reads it. After a TMA load no fence
    is needed: the wait on its mbarrier orders the data.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.4 (fence.proxy.async).
    """
    current().emit(f"fence.proxy.async.{space}" if space else "fence.proxy.async")


def mbarrier_init() -> None:
    """Make this thread's mbarrier.init visible to the cluster; a barrier of the cluster (or CTA) must follow.

    Issued by the thread that initialised the barriers.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.4 (fence.mbarrier_init.release.cluster).
    """
    current().emit("fence.mbarrier_init.release.cluster")


def acq_rel(scope: Scope) -> None:
    """Order this thread's generic accesses at ``scope``, as a release and an acquire.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_70 and later (cluster: sm_90).
    PTX ISA 9.1 section 9.7.13.4 (fence.acq_rel).
    """
    current().emit(f"fence.acq_rel.{scope}")


def sc(scope: Scope) -> None:
    """Order this thread's generic accesses at ``scope``, sequentially consistent with other ``fence.sc``.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_70 and later (cluster: sm_90).
    PTX ISA 9.1 section 9.7.13.4 (fence.sc).
    """
    current().emit(f"fence.sc.{scope}")


def proxy_tensormap_release(scope: Scope = "gpu") -> None:
    """Release this thread's changes to tensor maps in global memory; ``tensormap.cp_fenceproxy`` includes it.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.4 (fence.proxy.tensormap::generic.release).
    """
    current().emit(f"fence.proxy.tensormap::generic.release.{scope}")


def proxy_tensormap_acquire(map: Pointer[Any] | Expr, scope: Scope = "gpu") -> None:
    """Acquire the tensor map at an address (u64) for the tensor copies that this thread issues next.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.4 (fence.proxy.tensormap::generic.acquire).
    """
    address = map.address if isinstance(map, Pointer) else map
    current().emit(f"fence.proxy.tensormap::generic.acquire.{scope}", addr(address), TENSOR_MAP_BYTES)
