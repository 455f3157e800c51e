"""clusterlaunchcontrol: a running cluster takes over the work of a pending one (PTX ISA 9.1 section 9.7.13.17).

The grid has one cluster for each work item. One thread of a running cluster requests a pending cluster with
`try_cancel`; the 16-byte response arrives in shared memory asynchronously. If it says that a cluster was canceled, this
cluster does that cluster's work; else none is pending, and no further request is allowed.
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
    """Request the cancellation of a pending cluster; the response arrives at shared address ``response``.

    ``response`` (u32) is a multiple of 16. Its 16 bytes count at ``barrier``. With ``multicast`` each CTA
    of the cluster gets them at the same offsets and counts them at its own barrier. A request is undefined after a
    response that canceled nothing.

    Issued by one thread of the cluster.
    Completes by the bytes counted at the mbarrier: wait on it, then load the response (``ld`` of b128).
    Targets: sm_100 and later; multicast sm_100a.
    PTX ISA 9.1 section 9.7.13.17 (clusterlaunchcontrol.try_cancel.async).
    """
    opcode = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    current().emit(f"{opcode}{'.multicast::cluster::all' if multicast else ''}.b128", addr(response), barrier.operand)


def is_canceled(response: Expr) -> Expr:
    """Returns a pred, whether the response (b128) canceled a pending cluster.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100 and later.
    PTX ISA 9.1 section 9.7.13.18 (clusterlaunchcontrol.query_cancel.is_canceled).
    """
    opcode = "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128"
    return current().result(opcode, pred, _check_response("is_canceled", response))


def first_ctaid(response: Expr, axis: Axis = "x") -> Expr:
    """Returns ``%ctaid`` along ``axis`` (u32) of the first CTA of the cluster that the response (b128) canceled.

    The result is undefined if none was canceled.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100 and later.
    PTX ISA 9.1 section 9.7.13.18 (clusterlaunchcontrol.query_cancel.get_first_ctaid).
    """
    opcode = f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128"
    return current().result(opcode, u32, _check_response("first_ctaid", response))


def _check_response(name: str, response: Expr) -> Expr:
    if not isinstance(response, Expr) or response.type is not b128:
        raise misuse(f"given {response!r} to clusterlaunchcontrol.{name}; expected a b128: ld(place.cast(b128))")
    return response
