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
cp.async  9.7.9.25.3.1  Copy 4, 8 or 16 bytes from global to shared memory. [lane-copy]
    cp.async.cop=ca|cg.shared.global{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...    [dst_mem], [src_mem], #size=4/8/16{, src_size:u32=0..16}{if hint, policy:u64}
    cp.async.cop=ca|cg.shared.global{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...    [dst_mem], [src_mem], #size=4/8/16, src_size:pred{if hint, policy:u64}
    cp.async.cop=ca|cg.shared::cta.global{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...    [dst_mem], [src_mem], #size=4/8/16{, src_size:u32=0..16}{if hint, policy:u64}
    cp.async.cop=ca|cg.shared::cta.global{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...    [dst_mem], [src_mem], #size=4/8/16, src_size:pred{if hint, policy:u64}
""",
)

_GROUPS = forms(
    "each active lane",
    "return",
    """
cp.async.commit_group  9.7.9.25.3.2  Close the group of this thread's cp.async copies. [lane-copy]
    cp.async.commit_group
cp.async.wait_group  9.7.9.25.3.3  Wait until at most N of this thread's newest cp.async groups pend. [lane-copy blocks]
    cp.async.wait_group                             #n
cp.async.wait_all  9.7.9.25.3.3  Wait for all of this thread's cp.async copies. [lane-copy blocks]
    cp.async.wait_all
cp.async.bulk.commit_group  9.7.9.27.2.1  Close the group of this thread's bulk copies. [copy]
    cp.async.bulk.commit_group
cp.async.bulk.wait_group  9.7.9.27.2.2  Wait until at most N of a thread's bulk groups pend. [copy blocks]
    cp.async.bulk.wait_group{.read}                 #n
tensormap.replace  9.7.9.28  Change one field of a tensor map in memory. [service blocks edits-maps]
    tensormap.replace.tile.field=global_address{.space=global|shared::cta}.b1024.type=b64
    ...    [addr], new_val          @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=rank{.space=global|shared::cta}.b1024.type=b32
    ...    [addr], new_val          @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=box_dim|global_dim|element_stride{.space=global|shared::cta}.b1024.type=b32
    ...    [addr], #ord=0..4, new_val      @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=global_stride{.space=global|shared::cta}.b1024.type=b64
    ...    [addr], #ord=0..4, new_val      @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=elemtype|interleave_layout|swizzle_mode|fill_mode{.space=global|shared::cta}.b1024.type=b32
    ...    [addr], #new_val         @ sm_90a sm_100f sm_120f
    tensormap.replace.tile.field=swizzle_atomicity{.space=global|shared::cta}.b1024.type=b32
    ...    [addr], #new_val         @ sm_100f sm_120f
""",
)

_MBARRIER_ARRIVE = forms(
    "each active lane",
    "mbarrier arrive",
    """
cp.async.mbarrier.arrive  9.7.13.15.15  Arrive at an mbarrier when this thread's prior cp.async are done. [lane-copy]
    cp.async.mbarrier.arrive{.noinc}{.space=SHARED_CTA}.type=b64   [mbar]
""",
)

_STORES = forms(
    "each active lane",
    "mbarrier complete_tx",
    """
st.async  9.7.9.12  Store to shared memory of the cluster, complete_tx on an mbarrier there. [copy async]
    st.async{.weak}{.space=shared::cluster}.mbarrier::complete_tx::bytes{.vec=v2|v4}.type=b32|u32|s32|f32
    ...    [a], b*vec, [mbar]
    st.async{.weak}{.space=shared::cluster}.mbarrier::complete_tx::bytes{.vec=v2}.type=MEMORY64
    ...    [a], b*vec, [mbar]
red.async  9.7.13.7  Reduce into shared memory of the cluster, complete_tx on an mbarrier there. [copy async]
    red.async.sem=relaxed.scope=cluster{.space=shared::cluster}.mbarrier::complete_tx::bytes<TX_REDUCTION>
    ...    [a], b, [mbar]
""",
)

_BULK_COPIES = forms(
    "one thread",
    "mbarrier complete_tx or bulk async-group, as .completion says",
    """
cp.async.bulk  9.7.9.25.4.1  Copy bytes between global and shared memory or between CTAs of a cluster. [copy async]
    cp.async.bulk.dst=shared::cluster.src=global<TO_CLUSTER>
    ...    [dst_mem], [src_mem], size:u32=16n, [mbar]{if multicast, mask:u16}{if hint, policy:u64}
    cp.async.bulk.dst=shared::cta.src=global<TO_CTA>
    ...    [dst_mem], [src_mem], size:u32=16n, [mbar]{if hint, policy:u64}
    cp.async.bulk.dst=shared::cluster.src=shared::cta.completion=mbarrier::complete_tx::bytes
    ...    [dst_mem], [src_mem], size:u32=16n, [mbar]
    cp.async.bulk.dst=global.src=shared::cta<TO_GLOBAL>
    ...    [dst_mem], [src_mem], size:u32=16n{if hint, policy:u64}
    cp.async.bulk.dst=global.src=shared::cta<TO_GLOBAL>.cp_mask
    ...    [dst_mem], [src_mem], size:u32=16n{if hint, policy:u64}, byte_mask:u16                             @ sm_100+
cp.reduce.async.bulk  9.7.9.25.4.2  Reduce bytes of shared memory into global or a CTA's shared memory. [copy async]
    cp.reduce.async.bulk.dst=shared::cluster.src=shared::cta.completion=mbarrier::complete_tx::bytes<TX_REDUCTION>
    ...    [dst_mem], [src_mem], size:u32=16n, [mbar]
    cp.reduce.async.bulk.dst=global.src=shared::cta<TO_GLOBAL><BULK_REDUCTION>
    ...    [dst_mem], [src_mem], size:u32=16n{if hint, policy:u64}
cp.async.bulk.tensor  9.7.9.27.1.2  Copy a box of a tensor between global and shared memory. [copy async]
    cp.async.bulk.tensor.dim=DIM.dst=shared::cluster.src=global{.mode=tile}<TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*dim], [mbar]{if multicast, mask:u16}{if hint, policy:u64}
    cp.async.bulk.tensor.dim=DIM.dst=shared::cta.src=global{.mode=tile}<TO_CTA>
    ...    [dst_mem], [map, coords:s32*dim], [mbar]{if hint, policy:u64}
    cp.async.bulk.tensor.dim=DIM.dst=shared::cluster.src=global{.mode=tile}<PAIR_TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*dim], [mbar]{if multicast, mask:u16}{if hint, policy:u64} @ sm_100f
    cp.async.bulk.tensor.dim=DIM.dst=shared::cta.src=global{.mode=tile}<PAIR_TO_CTA>
    ...    [dst_mem], [map, coords:s32*dim], [mbar]{if hint, policy:u64}                           @ sm_100f
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cluster.src=global.mode=im2col<TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*dim], [mbar], offsets:u16*im2col{if multicast, mask:u16}{if hint, policy:u64}
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cluster.src=global.mode=im2col<PAIR_TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*dim], [mbar], offsets:u16*im2col{if multicast, mask:u16}
    ...{if hint, policy:u64} @ sm_100f
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cta.src=global.mode=im2col<TO_CTA>
    ...    [dst_mem], [map, coords:s32*dim], [mbar], offsets:u16*im2col{if hint, policy:u64}
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cta.src=global.mode=im2col::w<TO_CTA>
    ...    [dst_mem], [map, coords:s32*dim], [mbar], offsets:u16*2{if hint, policy:u64}                @ sm_100+
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cta.src=global.mode=im2col::w::128<TO_CTA>
    ...    [dst_mem], [map, coords:s32*dim], [mbar], offsets:u16*2{if hint, policy:u64}                @ sm_100f
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=shared::cluster.src=global.mode=im2col::w|im2col::w::128<TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*dim], [mbar], offsets:u16*2{if multicast, mask:u16}
    ...{if hint, policy:u64} @ sm_100f
    cp.async.bulk.tensor.dim=2d.dst=shared::cta.src=global.mode=tile::gather4<TO_CTA>
    ...    [dst_mem], [map, coords:s32*5], [mbar]{if hint, policy:u64}                             @ sm_100+
    cp.async.bulk.tensor.dim=2d.dst=shared::cluster.src=global.mode=tile::gather4<TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*5], [mbar]{if multicast, mask:u16}{if hint, policy:u64}     @ sm_100f
    cp.async.bulk.tensor.dim=2d.dst=shared::cluster.src=global.mode=tile::gather4<PAIR_TO_CLUSTER>
    ...    [dst_mem], [map, coords:s32*5], [mbar]{if multicast, mask:u16}{if hint, policy:u64}     @ sm_100f
    cp.async.bulk.tensor.dim=DIM.dst=global.src=shared::cta{.mode=tile}<TO_GLOBAL>
    ...    [map, coords:s32*dim], [src_mem]{if hint, policy:u64}
    cp.async.bulk.tensor.dim=3d|4d|5d.dst=global.src=shared::cta.mode=im2col_no_offs<TO_GLOBAL>
    ...    [map, coords:s32*dim], [src_mem]{if hint, policy:u64}
    cp.async.bulk.tensor.dim=2d.dst=global.src=shared::cta.mode=tile::scatter4<TO_GLOBAL>
    ...    [map, coords:s32*5], [src_mem]{if hint, policy:u64}                                     @ sm_100f
""",
)

_BULK_REDUCE = forms(
    "one thread",
    "bulk async-group",
    """
cp.reduce.async.bulk.tensor  9.7.9.27.1.3  Reduce a box of shared memory into a tensor in global memory. [copy async]
    cp.reduce.async.bulk.tensor.dim=DIM.dst=global.src=shared::cta.op=RED{.mode=tile}.completion=bulk_group{.hint=L2::cache_hint}
    ...    [map, coords:s32*dim], [src_mem]{if hint, policy:u64}
    cp.reduce.async.bulk.tensor.dim=3d|4d|5d.dst=global.src=shared::cta.op=RED.mode=im2col_no_offs.completion=bulk_group{.hint=L2::cache_hint}
    ...    [map, coords:s32*dim], [src_mem]{if hint, policy:u64}
""",
)

_PREFETCHES = forms(
    "one thread",
    "nothing: a hint",
    """
cp.async.bulk.prefetch  9.7.9.25.4.3  Hint: prefetch bytes of global memory to L2. [copy async]
    cp.async.bulk.prefetch.L2.src=global{.hint=L2::cache_hint}     [src_mem], size:u32=16n{if hint, policy:u64}
cp.async.bulk.prefetch.tensor  9.7.9.27.1.4  Hint: prefetch a box of a tensor to L2. [copy async]
    cp.async.bulk.prefetch.tensor.dim=DIM.L2.src=global{.mode=tile}{.hint=L2::cache_hint}
    ...    [map, coords:s32*dim]{if hint, policy:u64}
    cp.async.bulk.prefetch.tensor.dim=3d|4d|5d.L2.src=global.mode=im2col{.hint=L2::cache_hint}
    ...    [map, coords:s32*dim], offsets:u16*im2col{if hint, policy:u64}
    cp.async.bulk.prefetch.tensor.dim=2d.L2.src=global.mode=tile::gather4{.hint=L2::cache_hint}
    ...    [map, coords:s32*5]{if hint, policy:u64} @ sm_100f
""",
)

_WARP = forms(
    "the whole warp, converged",
    "return",
    """
tensormap.cp_fenceproxy  9.7.13.16  Copy a tensor map to global memory for tensor copies. [service blocks edits-maps]
    tensormap.cp_fenceproxy.dst=global.src=shared::cta.tensormap::generic.sem=release.scope=SCOPE.sync.aligned
    ...    [dst_mem], [src_mem], #size=128
""",
)

_LAUNCH_CONTROL = forms(
    "one thread",
    "mbarrier complete_tx",
    """
clusterlaunchcontrol.try_cancel.async  9.7.13.17  Cancel a cluster that has not started. [copy async cancels-clusters]
    clusterlaunchcontrol.try_cancel.async{.space=shared::cta}.mbarrier::complete_tx::bytes.type=b128
    ...    [addr], [mbar]   @ sm_100+
    clusterlaunchcontrol.try_cancel.async{.space=shared::cta}.mbarrier::complete_tx::bytes.multicast=multicast::cluster::all.type=b128
    ...    [addr], [mbar]   @ sm_100f sm_120f
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
