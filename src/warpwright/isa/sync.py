"""Barriers, fences and mbarriers (PTX ISA 9.1 sections 9.7.13.1 to 9.7.13.4, 9.7.13.15)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

_BARRIERS = forms(
    "every warp that takes part, converged when .aligned",
    "return",
    """
bar.sync  9.7.13.1  Arrive at a named barrier of the CTA and wait for it. [barrier blocks]
    bar.sync                                        a:u32=0..15{, b:u32=32n}
bar.arrive  9.7.13.1  Arrive at a named barrier of the CTA without waiting. [barrier]
    bar.arrive                                      a:u32=0..15, b:u32=32n
bar.red  9.7.13.1  Wait for a named barrier and reduce a predicate over its threads. [barrier blocks]
    bar.red.op=popc.type=u32                        d, a:u32=0..15{, b:u32=32n}, c:pred
    bar.red.op=and|or.type=pred                     d, a:u32=0..15{, b:u32=32n}, c:pred
bar.cta.sync  9.7.13.1  Arrive at a named barrier of the CTA and wait for it. [barrier blocks]
    bar.cta.sync                                    a:u32=0..15{, b:u32=32n}
bar.cta.arrive  9.7.13.1  Arrive at a named barrier of the CTA without waiting. [barrier]
    bar.cta.arrive                                  a:u32=0..15, b:u32=32n
bar.cta.red  9.7.13.1  Wait for a named barrier and reduce a predicate over its threads. [barrier blocks]
    bar.cta.red.op=popc.type=u32                    d, a:u32=0..15{, b:u32=32n}, c:pred
    bar.cta.red.op=and|or.type=pred                 d, a:u32=0..15{, b:u32=32n}, c:pred
barrier.sync  9.7.13.1  Arrive at a named barrier of the CTA and wait for it. [barrier blocks]
    barrier.sync{.aligned}                          a:u32=0..15{, b:u32=32n}
barrier.arrive  9.7.13.1  Arrive at a named barrier of the CTA without waiting. [barrier]
    barrier.arrive{.aligned}                        a:u32=0..15, b:u32=32n
barrier.red  9.7.13.1  Wait for a named barrier and reduce a predicate over its threads. [barrier blocks]
    barrier.red.op=popc{.aligned}.type=u32          d, a:u32=0..15{, b:u32=32n}, c:pred
    barrier.red.op=and|or{.aligned}.type=pred       d, a:u32=0..15{, b:u32=32n}, c:pred
barrier.cta.sync  9.7.13.1  Arrive at a named barrier of the CTA and wait for it. [barrier blocks]
    barrier.cta.sync{.aligned}                      a:u32=0..15{, b:u32=32n}
barrier.cta.arrive  9.7.13.1  Arrive at a named barrier of the CTA without waiting. [barrier]
    barrier.cta.arrive{.aligned}                    a:u32=0..15, b:u32=32n
barrier.cta.red  9.7.13.1  Wait for a named barrier and reduce a predicate over its threads. [barrier blocks]
    barrier.cta.red.op=popc{.aligned}.type=u32      d, a:u32=0..15{, b:u32=32n}, c:pred
    barrier.cta.red.op=and|or{.aligned}.type=pred   d, a:u32=0..15{, b:u32=32n}, c:pred
barrier.cluster.arrive  9.7.13.3  Arrive at the barrier of the cluster without waiting. [barrier]
    barrier.cluster.arrive{.sem=release|relaxed}{.aligned}
barrier.cluster.wait  9.7.13.3  Wait until every thread of the cluster has arrived. [barrier blocks]
    barrier.cluster.wait{.sem=acquire}{.aligned}
""",
)

_FENCES = forms(
    "each active lane",
    "return",
    """
membar  9.7.13.4  Order this thread's memory accesses (older name of fence.sc).
    membar.level=cta|gl|sys
membar.proxy.alias  9.7.13.4  Order accesses to one location under several virtual addresses (older name).
    membar.proxy.alias
fence  9.7.13.4  Order this thread's memory accesses for threads of a scope.
    fence{.sem=sc|acq_rel}.scope=SCOPE
    fence.sem=acquire|release.scope=SCOPE
    fence.sem=acquire.restrict=sync_restrict::shared::cluster.scope=cluster
    fence.sem=release.restrict=sync_restrict::shared::cta.scope=cluster
fence.mbarrier_init  9.7.13.4  Make this thread's mbarrier.init visible to the cluster.
    fence.mbarrier_init.sem=release.scope=cluster
fence.proxy.alias  9.7.13.4  Order accesses to one location under several virtual addresses.
    fence.proxy.alias
fence.proxy.async  9.7.13.4  Order this thread's generic accesses with those of the asynchronous proxy.
    fence.proxy.async
    fence.proxy.async.space=global|shared::cta|shared::cluster
fence.proxy.tensormap::generic  9.7.13.4  Order generic writes of a tensor map with its use by tensor copies.
    fence.proxy.tensormap::generic.sem=release.scope=SCOPE
    fence.proxy.tensormap::generic.sem=acquire.scope=SCOPE                [addr], #size=128
fence.proxy.async::generic  9.7.13.4  One-directional proxy fence for objects synchronised through mbarriers.
    fence.proxy.async::generic.sem=acquire.restrict=sync_restrict::shared::cluster.scope=cluster
    fence.proxy.async::generic.sem=release.restrict=sync_restrict::shared::cta.scope=cluster
""",
)

_MBARRIERS = forms(
    "each active lane",
    "return",
    """
mbarrier.init  9.7.13.15.9  Initialise an mbarrier for count arrivals a phase. [mbarrier]
    mbarrier.init{.space=SHARED_CTA}.type=b64       [mbar], count:u32
mbarrier.inval  9.7.13.15.10  Invalidate an mbarrier. [mbarrier]
    mbarrier.inval{.space=SHARED_CTA}.type=b64      [mbar]
mbarrier.expect_tx  9.7.13.15.11  Increase the tx-count of the current phase. [mbarrier]
    mbarrier.expect_tx{.sem=relaxed.scope=cta|cluster}{.space=SHARED}.type=b64     [mbar], tx_count:u32
mbarrier.complete_tx  9.7.13.15.12  Decrease the tx-count of the current phase, as a copy does. [mbarrier]
    mbarrier.complete_tx{.sem=relaxed.scope=cta|cluster}{.space=SHARED}.type=b64   [mbar], tx_count:u32
mbarrier.arrive  9.7.13.15.13  Arrive: decrement the pending count of the current phase. [mbarrier]
    mbarrier.arrive{.sem=release|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64    d, [mbar]{, count:u32}
    mbarrier.arrive{.sem=release|relaxed.scope=cta|cluster}.space=shared::cluster.type=b64    _, [mbar]{, count:u32}
mbarrier.arrive.expect_tx  9.7.13.15.13  Increase the tx-count of the current phase, then arrive once. [mbarrier]
    mbarrier.arrive.expect_tx{.sem=release|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64
    ...    d, [mbar], tx_count:u32
    mbarrier.arrive.expect_tx{.sem=release|relaxed.scope=cta|cluster}.space=shared::cluster.type=b64
    ...    _, [mbar], tx_count:u32
mbarrier.arrive.noComplete  9.7.13.15.13  Arrive where the arrival cannot complete the phase. [mbarrier]
    mbarrier.arrive.noComplete{.sem=release.scope=cta}{.space=SHARED_CTA}.type=b64  d, [mbar], count:u32
mbarrier.arrive_drop  9.7.13.15.14  Arrive and decrement the expected count of later phases. [mbarrier]
    mbarrier.arrive_drop{.sem=release|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64    d, [mbar]{, count:u32}
    mbarrier.arrive_drop{.sem=release|relaxed.scope=cta|cluster}.space=shared::cluster.type=b64 _, [mbar]{, count:u32}
mbarrier.arrive_drop.expect_tx  9.7.13.15.14  Increase the tx-count, then arrive and drop. [mbarrier]
    mbarrier.arrive_drop.expect_tx{.sem=release|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64
    ...    d, [mbar], tx_count:u32
    mbarrier.arrive_drop.expect_tx{.sem=release|relaxed.scope=cta|cluster}.space=shared::cluster.type=b64
    ...    _, [mbar], tx_count:u32
mbarrier.arrive_drop.noComplete  9.7.13.15.14  Arrive and drop where that cannot complete the phase. [mbarrier]
    mbarrier.arrive_drop.noComplete{.sem=release.scope=cta}{.space=SHARED_CTA}.type=b64     d, [mbar], count:u32
mbarrier.test_wait  9.7.13.15.16  Whether the phase of a state token is complete; does not wait. [mbarrier]
    mbarrier.test_wait{.sem=acquire|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64 p:pred, [mbar], state
mbarrier.test_wait.parity  9.7.13.15.16  Whether the phase of a parity is complete; does not wait. [mbarrier]
    mbarrier.test_wait.parity{.sem=acquire|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64
    ...    p:pred, [mbar], parity:u32=0..1
mbarrier.try_wait  9.7.13.15.16  Whether the phase of a state token is complete; may wait a time. [mbarrier blocks]
    mbarrier.try_wait{.sem=acquire|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64
    ...    p:pred, [mbar], state{, time:u32}
mbarrier.try_wait.parity  9.7.13.15.16  Whether the phase of a parity is complete; may wait a time. [mbarrier blocks]
    mbarrier.try_wait.parity{.sem=acquire|relaxed.scope=cta|cluster}{.space=SHARED_CTA}.type=b64
    ...    p:pred, [mbar], parity:u32=0..1{, time:u32}
mbarrier.pending_count  9.7.13.15.17  Pending count in a state token. [mbarrier]
    mbarrier.pending_count.type=b64                 d:u32, state
""",
)

FORMS = _BARRIERS + _FENCES + _MBARRIERS
