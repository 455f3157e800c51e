"""Asynchronous copies, tensor maps and cluster launch control.

PTX ISA 9.1 sections 9.7.9.12, 9.7.9.25 to 28, 9.7.13.7, 9.7.13.15.15 and 9.7.13.16 to 18.
"""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

_LANE_COPIES = forms(
    "each active lane",
    "cp.async group",
    """
cp.async  9.7.9.25.3.1  Copy 4, 8 or 16 bytes from global to shared memory.
    cp.async.cop=ca|cg.shared.global{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...    [d], [a], #size{, src_size:u32}{if hint, policy:b64}
    cp.async.cop=ca|cg.shared::cta.global{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...    [d], [a], #size{, src_size:u32}{if hint, policy:b64}
""",
)

_GROUPS = forms(
    "each active lane",
    "return",
    """
cp.async.commit_group  9.7.9.25.3.2  Close the group of this thread's cp.async copies.
    cp.async.commit_group
cp.async.wait_group  9.7.9.25.3.3  Wait until at most N of this thread's newest cp.async groups are pending.
    cp.async.wait_group                             #n
cp.async.wait_all  9.7.9.25.3.3  Wait for all of this thread's cp.async copies.
    cp.async.wait_all
cp.async.bulk.commit_group  9.7.9.27.2.1  Close the group of this thread's bulk copies.
    cp.async.bulk.commit_group
cp.async.bulk.wait_group  9.7.9.27.2.2  Wait until at most N of this thread's newest bulk groups pend (.read: unread).
    cp.async.bulk.wait_group{.read}                 #n
tensormap.replace  9.7.9.28  Change one field of a tensor map in memory.
    tensormap.replace.tile.field=global_address{.space=global|shared::cta}.b1024.type=b64
    ...    [a], b          @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=rank{.space=global|shared::cta}.b1024.type=b32
    ...    [a], b          @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=box_dim|global_dim|element_stride{.space=global|shared::cta}.b1024.type=b32
    ...    [a], #i, b      @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=global_stride{.space=global|shared::cta}.b1024.type=b64
    ...    [a], #i, b      @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=elemtype|interleave_layout|swizzle_mode|fill_mode{.space=global|shared::cta}.b1024.type=b32
    ...    [a], #b         @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=swizzle_atomicity{.space=global|shared::cta}.b1024.type=b32
    ...    [a], #b         @ sm_100f sm_120f
""",
)

_MBARRIER_ARRIVE = forms(
    "each active lane",
    "mbarrier arrive",
    """
cp.async.mbarrier.arrive  9.7.13.15.15  Arrive at an mbarrier when all prior cp.async of this thread are done.
    cp.async.mbarrier.arrive{.noinc}{.space=SHARED_CTA}.type=b64   [a]
""",
)

_STORES = forms(
    "each active lane",
    "mbarrier complete_tx",
    """
st.async  9.7.9.12  Store to shared memory of the cluster and tell an mbarrier there.
    st.async{.weak}{.space=shared::cluster}.mbarrier::complete_tx::bytes{.vec=v2|v4}.type=b32|u32|s32|f32
    ...    [a], b*vec, [mbar]
    st.async{.weak}{.space=shared::cluster}.mbarrier::complete_tx::bytes{.vec=v2}.type=MEMORY64
    ...    [a], b*vec, [mbar]
red.async  9.7.13.7  Reduce into shared memory of the cluster and tell an mbarrier there.
    red.async.sem=relaxed.scope=cluster{.space=shared::cluster}.mbarrier::complete_tx::bytes<TX_REDUCTION>
    ...    [a], b, [mbar]
""",
)

_BULK_COPIES = forms(
    "one thread",
    "mbarrier complete_tx or bulk async-group, as .completion says",
    """
cp.async.bulk  9.7.9.25.4.1  Copy bytes between global and shared memory or between CTAs of a cluster.
    cp.async.bulk.dst=shared::cluster.src=global<TO_CLUSTER>
    ...    [d], [a], size:u32, [mbar]{if multicast, mask:u16}{if hint, policy:b64}
    cp.async.bulk.dst=shared::cta.src=global<TO_CTA>
    ...    [d], [a], size:u32, [mbar]{if hint, policy:b64}
    cp.async.bulk.dst=shared::cluster.src=shared::cta.completion=mbarrier::complete_tx::bytes
    ...    [d], [a], size:u32, [mbar]
    cp.async.bulk.dst=global.src=shared::cta<TO_GLOBAL>
    ...    [d], [a], size:u32{if hint, policy:b64}
    cp.async.bulk.dst=global.src=shared::cta<TO_GLOBAL>.cp_mask
    ...    [d], [a], size:u32{if hint, policy:b64}, bytes:u16                             @ sm_100+
cp.reduce.async.bulk  9.7.9.25.4.2  Reduce bytes of shared memory into global or another CTA's shared memory.
    cp.reduce.async.bulk.dst=shared::cluster.src=shared::cta.completion=mbarrier::complete_tx::bytes<TX_REDUCTION>
    ...    [d], [a], size:u32, [mbar]
    cp.reduce.async.bulk.dst=global.src=shared::cta<TO_GLOBAL><BULK_REDUCTION>
    ...    [d], [a], size:u32{if hint, policy:b64}
cp.async.bulk.tensor  9.7.9.27.1.2  Copy a box of a tensor between global and shared memory.
    cp.async.bulk.tensor.dim=DIM.dst=shared::cluster.src=global{.mode=tile}<TO_CLUSTER>
    ...    [d], [map, coords*dim], [mbar]{if multicast, mask:u16}{if hint, policy:b64}
    cp.async.bulk.tensor.dim=DIM.dst=shared::cta.src=global{.mode=tile}<TO_CTA>
    ...    [d], [map, coords*dim], [mbar]{if hint, policy:b64}
    cp.async.bulk.tensor.dim=DIM.dst=shared::cluster.src=global{.mode=tile}<PAIR_TO_CLUSTER>
    ...    [d], [map, coords*dim], [mbar]{if multicast, mask:u16}{if hint, policy:b64}   @ sm_100f
    cp.async.bulk.tensor.dim=DIM.dst=shared::cta.src=global{.mode=tile}<PAIR_TO_CTA>
    ...    [d], [map, coords*dim], [mbar]{if hint, policy:b64}                           @ sm_100f
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cluster.src=global.mode=im2col<TO_CLUSTER>
    ...    [d], [map, coords*dim], [mbar], offsets*im2col{if multicast, mask:u16}{if hint, policy:b64}
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cluster.src=global.mode=im2col<PAIR_TO_CLUSTER>
    ...    [d], [map, coords*dim], [mbar], offsets*im2col{if multicast, mask:u16}{if hint, policy:b64}   @ sm_100f
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cta.src=global.mode=im2col<TO_CTA>
    ...    [d], [map, coords*dim], [mbar], offsets*im2col{if hint, policy:b64}
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cta.src=global.mode=im2col::w<TO_CTA>
    ...    [d], [map, coords*dim], [mbar], offsets*2{if hint, policy:b64}                @ sm_100+
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cta.src=global.mode=im2col::w::128<TO_CTA>
    ...    [d], [map, coords*dim], [mbar], offsets*2{if hint, policy:b64}                @ sm_100f
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cluster.src=global.mode=im2col::w|im2col::w::128<TO_CLUSTER>
    ...    [d], [map, coords*dim], [mbar], offsets*2{if multicast, mask:u16}{if hint, policy:b64}   @ sm_100f
    cp.async.bulk.tensor.dim=2d.dst=shared::cta.src=global.mode=tile::gather4<TO_CTA>
    ...    [d], [map, coords*5], [mbar]{if hint, policy:b64}                             @ sm_100+
    cp.async.bulk.tensor.dim=2d.dst=shared::cluster.src=global.mode=tile::gather4<TO_CLUSTER>
    ...    [d], [map, coords*5], [mbar]{if multicast, mask:u16}{if hint, policy:b64}     @ sm_100f
    cp.async.bulk.tensor.dim=2d.dst=shared::cluster.src=global.mode=tile::gather4<PAIR_TO_CLUSTER>
    ...    [d], [map, coords*5], [mbar]{if multicast, mask:u16}{if hint, policy:b64}     @ sm_100f
    cp.async.bulk.tensor.dim=DIM.dst=global.src=shared::cta{.mode=tile}<TO_GLOBAL>
    ...    [map, coords*dim], [a]{if hint, policy:b64}
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=global.src=shared::cta.mode=im2col_no_offs<TO_GLOBAL>
    ...    [map, coords*dim], [a]{if hint, policy:b64}
    cp.async.bulk.tensor.dim=2d.dst=global.src=shared::cta.mode=tile::scatter4<TO_GLOBAL>
    ...    [map, coords*5], [a]{if hint, policy:b64}                                     @ sm_100f
""",
)

_BULK_REDUCE = forms(
    "one thread",
    "bulk async-group",
    """
cp.reduce.async.bulk.tensor  9.7.9.27.1.3  Reduce a box of shared memory into a tensor in global memory.
    cp.reduce.async.bulk.tensor.dim=DIM.dst=global.src=shared::cta.op=RED{.mode=tile}.completion=bulk_group{.hint=L2::cache_hint}
    ...    [map, coords*dim], [a]{if hint, policy:b64}
    cp.reduce.async.bulk.tensor.dim=3d|4d|5d.dst=global.src=shared::cta.op=RED.mode=im2col_no_offs.completion=bulk_group{.hint=L2::cache_hint}
    ...    [map, coords*dim], [a]{if hint, policy:b64}
""",
)

_PREFETCHES = forms(
    "one thread",
    "nothing: a hint",
    """
cp.async.bulk.prefetch  9.7.9.25.4.3  Hint: bring bytes of global memory to L2.
    cp.async.bulk.prefetch.L2.src=global{.hint=L2::cache_hint}     [a], size:u32{if hint, policy:b64}
cp.async.bulk.prefetch.tensor  9.7.9.27.1.4  Hint: bring a box of a tensor to L2.
    cp.async.bulk.prefetch.tensor.dim=DIM.L2.src=global{.mode=tile}{.hint=L2::cache_hint}
    ...    [map, coords*dim]{if hint, policy:b64}
    cp.async.bulk.prefetch.tensor.dim=3d|4d|5d.L2.src=global.mode=im2col{.hint=L2::cache_hint}
    ...    [map, coords*dim], offsets*im2col{if hint, policy:b64}
    cp.async.bulk.prefetch.tensor.dim=2d.L2.src=global.mode=tile::gather4{.hint=L2::cache_hint}
    ...    [map, coords*5]{if hint, policy:b64}   @ sm_100f
""",
)

_WARP = forms(
    "the whole warp, converged",
    "return",
    """
tensormap.cp_fenceproxy  9.7.13.16  Copy a tensor map from shared to global memory and release it to tensor copies.
    tensormap.cp_fenceproxy.dst=global.src=shared::cta.tensormap::generic.sem=release.scope=SCOPE.sync.aligned
    ...    [d], [a], #size
""",
)

_LAUNCH_CONTROL = forms(
    "one thread",
    "mbarrier complete_tx",
    """
clusterlaunchcontrol.try_cancel.async  9.7.13.17  Ask for a cluster of this grid that has not started.
    clusterlaunchcontrol.try_cancel.async{.space=shared::cta}.mbarrier::complete_tx::bytes.type=b128
    ...    [a], [mbar]   @ sm_100+
    clusterlaunchcontrol.try_cancel.async{.space=shared::cta}.mbarrier::complete_tx::bytes.multicast=multicast::cluster::all.type=b128
    ...    [a], [mbar]   @ sm_100f sm_120f
""",
)

_LAUNCH_QUERIES = forms(
    "each active lane",
    "return",
    """
clusterlaunchcontrol.query_cancel  9.7.13.18  Whether a response grants a cluster, and where its first CTA is.
    clusterlaunchcontrol.query_cancel.query=is_canceled.pred.type=b128               p:pred, a   @ sm_100+
    clusterlaunchcontrol.query_cancel.query=get_first_ctaid.v4.b32.type=b128         d:b32*4, a  @ sm_100+
    clusterlaunchcontrol.query_cancel.query=FIRST_CTAID.b32.type=b128                d:b32, a    @ sm_100+
""",
)

FORMS = (
    _LANE_COPIES
    + _GROUPS
    + _MBARRIER_ARRIVE
    + _STORES
    + _BULK_COPIES
    + _BULK_REDUCE
    + _PREFETCHES
    + _WARP
    + _LAUNCH_CONTROL
    + _LAUNCH_QUERIES
)
