"""clusterlaunchcontrol: a running cluster takes the work of one that has not started (PTX ISA 9.1 section 9.7.13.17).

The grid has a cluster for each piece of work. One thread of a running cluster asks with `try_cancel`; 16 bytes come to
shared memory later. Where they say that a cluster was cancelled, this one does its work, else there is none left and
nobody asks again.
"""

from __future__ import annotations

from typing import Literal

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr
from warpwright.lang.ops.mbarrier import mbarrier
from warpwright.lang.trace import addr, current
from warpwright.types import b128, pred, u32

__all__ = ["first_ctaid", "is_canceled", "try_cancel"]

Axis = Literal["x", "y", "z"]


def try_cancel(response: Expr, barrier: mbarrier, *, multicast: bool = False) -> None:
    """Ask for a cluster of this grid that has not started; 16 bytes come to shared address ``response``, later.

    ``response`` (u32) is a multiple of 16. The bytes count at ``barrier``, which expects 16. With ``multicast`` they
    come to the same offsets of every CTA of the cluster, and count at its own barrier. Undefined after an answer that
    nothing was cancelled.

    Issued by one thread of the cluster.
    Completes by the bytes counted at the mbarrier: wait on it, then load the response (``ld`` of b128).
    Targets: sm_100 and later; multicast sm_100a.
    PTX ISA 9.1 section 9.7.13.17 (clusterlaunchcontrol.try_cancel.async).
    """
    opcode = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    current().emit(f"{opcode}{'.multicast::cluster::all' if multicast else ''}.b128", addr(response), barrier.operand)


def is_canceled(response: Expr) -> Expr:
    """Whether the response (b128) grants a cluster: a pred.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100 and later.
    PTX ISA 9.1 section 9.7.13.18 (clusterlaunchcontrol.query_cancel.is_canceled).
    """
    opcode = "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128"
    return current().result(opcode, pred, _checked("is_canceled", response))


def first_ctaid(response: Expr, axis: Axis = "x") -> Expr:
    """``%ctaid`` of the first CTA of the cluster that the response (b128) grants, along ``axis``, u32.

    Undefined where none is granted.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100 and later.
    PTX ISA 9.1 section 9.7.13.18 (clusterlaunchcontrol.query_cancel.get_first_ctaid).
    """
    opcode = f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128"
    return current().result(opcode, u32, _checked("first_ctaid", response))


def _checked(name: str, response: Expr) -> Expr:
    if not isinstance(response, Expr) or response.type is not b128:
        raise misuse(f"given {response!r} to clusterlaunchcontrol.{name}; expected a b128: ld(place.cast(b128))")
    return response
