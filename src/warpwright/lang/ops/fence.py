"""Fences: order this thread's own accesses, wait for nobody (PTX ISA 9.1 section 9.7.13.4).

A fence joins two accesses of one thread; a barrier or an mbarrier carries that order to another thread. Hence the order
for handing shared memory to TMA or the tensor core: every writer fences, then all synchronise, then one thread issues.
"""

from __future__ import annotations

from typing import Literal

from warpwright.lang.context import current

__all__ = ["Scope", "acq_rel", "mbarrier_init", "proxy_async", "sc"]

Scope = Literal["cta", "cluster", "gpu", "sys"]
AsyncSpace = Literal["", "shared::cta", "shared::cluster", "global"]


def proxy_async(space: AsyncSpace = "shared::cta") -> None:
    """Order this thread's generic-proxy accesses with async-proxy ones, both ways; ``space=""`` covers every space.

    Needed by every thread that wrote shared memory which TMA or the tensor core reads next. Not needed after a TMA
    load: the wait on its mbarrier already orders the data.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.4 (fence.proxy.async).
    """
    current().emit(f"fence.proxy.async.{space}" if space else "fence.proxy.async")


def mbarrier_init() -> None:
    """Make this thread's mbarrier.init visible to the cluster; a cluster (or CTA) barrier must follow.

    Issued by the thread that initialised the barriers.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.4 (fence.mbarrier_init.release.cluster).
    """
    current().emit("fence.mbarrier_init.release.cluster")


def acq_rel(scope: Scope) -> None:
    """Order this thread's generic accesses, release and acquire, at ``scope``.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_70 and later (cluster: sm_90).
    PTX ISA 9.1 section 9.7.13.4 (fence.acq_rel).
    """
    current().emit(f"fence.acq_rel.{scope}")


def sc(scope: Scope) -> None:
    """Order this thread's generic accesses sequentially consistently at ``scope``.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_70 and later (cluster: sm_90).
    PTX ISA 9.1 section 9.7.13.4 (fence.sc).
    """
    current().emit(f"fence.sc.{scope}")
