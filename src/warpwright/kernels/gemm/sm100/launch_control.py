"""Cluster launch control of the Blackwell GEMMs: a cluster takes over clusters that have not started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpwright.lang import (
    Break,
    Expr,
    If,
    Ring,
    b128,
    cluster,
    clusterid,
    clusterlaunchcontrol,
    elect_one,
    fence,
    ld,
    loop,
    u32,
    var,
    warp,
)

__all__ = ["WORK_STAGES", "launched_clusters", "schedule_clusters"]

WORK_STAGES = 2  # responses of cluster launch control on their way


def schedule_clusters(work: Ring) -> None:
    """Role of one warp of a cluster: cancel one cluster after another that has not started, until none is left.

    Waits for ``work.empty`` of every CTA, signals ``work.full`` of every CTA. A response arrives while the tile before
    it is computed.
    """
    slots, one = work.producer(), elect_one()
    for _ in loop():
        slot = next(slots)
        slot.empty.wait()
        with If(warp.lane < cluster.size):
            slot.full.at(warp.lane).arrive_expect_tx(slot.nbytes)
        warp.sync()
        with If(one):
            clusterlaunchcontrol.try_cancel(slot.response.address, slot.full, multicast=True)
        slot.full.wait()
        reply = ld(slot.response.at(0, 0).cast(b128))
        fence.proxy_async()
        warp.sync()
        Break(when=~clusterlaunchcontrol.is_canceled(reply))


def launched_clusters(work: Ring, signals: Any) -> Iterator[Expr]:
    """Yields this cluster's own number, then those of the clusters that it takes over.

    Waits for ``work.full``. After a warp has read a response, its thread with ``signals`` arrives on ``work.empty`` of
    the first CTA; ``signals`` is True for a role of one thread.
    """
    number, slots = var(u32, clusterid.x), work.consumer()
    for _ in loop():
        yield number
        slot = next(slots)
        slot.full.wait()
        reply = ld(slot.response.at(0, 0).cast(b128))
        fence.proxy_async()
        if signals is not True:
            warp.sync()
        with If(signals):
            slot.empty.at(0).arrive()
        Break(when=~clusterlaunchcontrol.is_canceled(reply))
        number.set(clusterlaunchcontrol.first_ctaid(reply) // cluster.size)
