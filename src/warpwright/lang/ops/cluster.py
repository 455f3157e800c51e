"""The CTAs of a cluster and the cluster barrier (PTX ISA 9.1 sections 9.7.13.3, 10 and 9.7.9.23)."""

from __future__ import annotations

from typing import Literal

from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.trace import current
from warpwright.types import u32

__all__ = ["cluster"]


class _Cluster:
    """``cluster``: this CTA's rank in its cluster, addresses in other CTAs, and the cluster barrier."""

    __slots__ = ()

    @property
    def rank(self) -> Expr:
        """This CTA's rank in its cluster, u32, 0 without clusters (``%cluster_ctarank``)."""
        return current().pure("mov.u32", u32, "%cluster_ctarank")

    @property
    def size(self) -> Expr:
        """The number of CTAs in the cluster, u32 (``%cluster_nctarank``)."""
        return current().pure("mov.u32", u32, "%cluster_nctarank")

    @property
    def id(self) -> Expr:
        """The cluster's index in the grid along x, u32 (``%clusterid.x``)."""
        return current().pure("mov.u32", u32, "%clusterid.x")

    def map(self, address: Expr, rank: Value) -> Expr:
        """Returns the shared::cluster address (u32) in CTA ``rank`` of the same offset as shared ``address`` here.

        Issued by each thread for itself.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.9.23 (mapa.shared::cluster.u32).
        """
        return current().pure("mapa.shared::cluster.u32", u32, address, operand(rank, u32))

    def arrive(self, order: Literal["release", "relaxed"] = "release") -> None:
        """Arrive at the cluster barrier without waiting; each thread alternates `arrive` and `wait`.

        Issued by every thread of every CTA, warps converged.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.3 (barrier.cluster.arrive).
        """
        current().emit(f"barrier.cluster.arrive.{order}.aligned")

    def wait(self) -> None:
        """Wait until every thread of the cluster has arrived; their earlier writes are visible after it.

        Issued by every thread of every CTA, warps converged.
        Completes by the last arrival in the cluster.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.3 (barrier.cluster.wait).
        """
        current().emit("barrier.cluster.wait.acquire.aligned")

    def sync(self) -> None:
        """`arrive`, then `wait`: a barrier of all threads of the cluster.

        Issued by every thread of every CTA, warps converged.
        Completes by the last arrival in the cluster.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.3 (barrier.cluster.arrive and barrier.cluster.wait).
        """
        self.arrive()
        self.wait()


cluster = _Cluster()
