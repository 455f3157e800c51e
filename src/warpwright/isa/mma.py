"""Matrix fragments of a warp and of a warpgroup (PTX ISA 9.1 sections 9.7.14 and 9.7.15)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

_WARP = forms(
    "the whole warp, converged",
    "return",
    """
ldmatrix  9.7.14.5.15  Load 8x8 matrices from shared memory into the fragments of a warp. [read]
    ldmatrix.sync.aligned.shape=m8n8.num=x1|x2|x4{.trans}{.space=SHARED_CTA}.type=b16      d:b32*num, [a]
    ldmatrix.sync.aligned.shape=m16n16.num=x1|x2.trans{.space=SHARED_CTA}.type=b8
    ...    d:b32*num, [a]   @ sm_100f sm_120f
    ldmatrix.sync.aligned.shape=m8n16.num=x1|x2|x4{.space=SHARED_CTA}.type=b8x16.src_fmt=b6x16_p32|b4x16_p64
    ...    d:b32*num, [a]   @ sm_100f sm_120f
    ldmatrix.sync.aligned.shape=m16n16.num=x1|x2.trans{.space=SHARED_CTA}.type=b8x16.src_fmt=b6x16_p32|b4x16_p64
    ...    d:b32*num, [a]   @ sm_100f sm_120f
stmatrix  9.7.14.5.16  Store the fragments of a warp to shared memory as matrices. [write]
    stmatrix.sync.aligned.shape=m8n8.num=x1|x2|x4{.trans}{.space=SHARED_CTA}.type=b16      [a], b:b32*num
    stmatrix.sync.aligned.shape=m16n8.num=x1|x2|x4.trans{.space=SHARED_CTA}.type=b8
    ...    [a], b:b32*num   @ sm_100f sm_120f
movmatrix  9.7.14.5.17  Transpose a matrix in the fragments of a warp.
    movmatrix.sync.aligned.shape=m8n8.trans.type=b16                                       d:b32, a:b32
wmma.load  9.7.14.4.3  Load a matrix from memory into the fragments of a warp. [read]
    wmma.load.matrix=a|b.sync.aligned.layout=row|col.shape=K16{.space=SHARED_CTA|global}.type=f16
    ...    d:b32*8, [a]{, stride:u32}
    wmma.load.matrix=a.sync.aligned.layout=row|col.shape=K16{.space=SHARED_CTA|global}.type=bf16|INT8
    ...    d:b32*mk, [a]{, stride:u32}
    wmma.load.matrix=b.sync.aligned.layout=row|col.shape=K16{.space=SHARED_CTA|global}.type=bf16|INT8
    ...    d:b32*nk, [a]{, stride:u32}
    wmma.load.matrix=a|b.sync.aligned.layout=row|col.shape=m16n16k8{.space=SHARED_CTA|global}.type=tf32
    ...    d:b32*4, [a]{, stride:u32}
    wmma.load.matrix=a.sync.aligned.layout=row.shape=m8n8k32{.space=SHARED_CTA|global}.type=s4|u4
    ...    d:b32*1, [a]{, stride:u32}
    wmma.load.matrix=b.sync.aligned.layout=col.shape=m8n8k32{.space=SHARED_CTA|global}.type=s4|u4
    ...    d:b32*1, [a]{, stride:u32}
    wmma.load.matrix=a.sync.aligned.layout=row.shape=m8n8k128{.space=SHARED_CTA|global}.type=b1
    ...    d:b32*1, [a]{, stride:u32}
    wmma.load.matrix=b.sync.aligned.layout=col.shape=m8n8k128{.space=SHARED_CTA|global}.type=b1
    ...    d:b32*1, [a]{, stride:u32}
    wmma.load.matrix=a|b.sync.aligned.layout=row|col.shape=m8n8k4{.space=SHARED_CTA|global}.type=f64
    ...    d:f64*1, [a]{, stride:u32}
    wmma.load.matrix=c.sync.aligned.layout=row|col.shape=K16{.space=SHARED_CTA|global}.type=f16
    ...    d:b32*4, [a]{, stride:u32}
    wmma.load.matrix=c.sync.aligned.layout=row|col.shape=K16|m16n16k8{.space=SHARED_CTA|global}.type=f32
    ...    d:f32*8, [a]{, stride:u32}
    wmma.load.matrix=c.sync.aligned.layout=row|col.shape=K16|m8n8k32|m8n8k128{.space=SHARED_CTA|global}.type=s32
    ...    d:s32*mn, [a]{, stride:u32}
    wmma.load.matrix=c.sync.aligned.layout=row|col.shape=m8n8k4{.space=SHARED_CTA|global}.type=f64
    ...    d:f64*2, [a]{, stride:u32}
wmma.store  9.7.14.4.4  Store the fragments of a warp to memory as a matrix. [write]
    wmma.store.matrix=d.sync.aligned.layout=row|col.shape=K16{.space=SHARED_CTA|global}.type=f16
    ...    [a], b:b32*4{, stride:u32}
    wmma.store.matrix=d.sync.aligned.layout=row|col.shape=K16|m16n16k8{.space=SHARED_CTA|global}.type=f32
    ...    [a], b:f32*8{, stride:u32}
    wmma.store.matrix=d.sync.aligned.layout=row|col.shape=K16|m8n8k32|m8n8k128{.space=SHARED_CTA|global}.type=s32
    ...    [a], b:s32*mn{, stride:u32}
    wmma.store.matrix=d.sync.aligned.layout=row|col.shape=m8n8k4{.space=SHARED_CTA|global}.type=f64
    ...    [a], b:f64*2{, stride:u32}
wmma.mma  9.7.14.4.5  Multiply matrices in the fragments of a warp, add a fragment.
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=K16.dtype=f32.ctype=f32
    ...    d:f32*8, a:b32*8, b:b32*8, c:f32*8
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=K16.dtype=f32.ctype=f16
    ...    d:f32*8, a:b32*8, b:b32*8, c:b32*4
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=K16.dtype=f16.ctype=f32
    ...    d:b32*4, a:b32*8, b:b32*8, c:f32*8
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=K16.dtype=f16.ctype=f16
    ...    d:b32*4, a:b32*8, b:b32*8, c:b32*4
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=K16.dtype=f32.atype=bf16.btype=bf16.ctype=f32
    ...    d:f32*8, a:b32*mk, b:b32*nk, c:f32*8
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=m16n16k8.dtype=f32.atype=tf32.btype=tf32.ctype=f32
    ...    d:f32*8, a:b32*4, b:b32*4, c:f32*8
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=K16.dtype=s32<BYTES>.ctype=s32{.satfinite}
    ...    d:s32*8, a:b32*mk, b:b32*nk, c:s32*8
    wmma.mma.sync.aligned.row.col.shape=m8n8k32.dtype=s32<NIBBLES>.ctype=s32{.satfinite}
    ...    d:s32*2, a:b32*1, b:b32*1, c:s32*2
    wmma.mma.action=xor|and.popc.sync.aligned.row.col.shape=m8n8k128.dtype=s32.atype=b1.btype=b1.ctype=s32
    ...    d:s32*2, a:b32*1, b:b32*1, c:s32*2
    wmma.mma.sync.aligned.alayout=row|col.blayout=row|col.shape=m8n8k4{.rnd=RND}.dtype=f64.atype=f64.btype=f64.ctype=f64
    ...    d:f64*2, a:f64*1, b:f64*1, c:f64*2
""",
)

_MMA = forms(
    "the whole warp, converged",
    "return",
    """
mma  9.7.14.5.14  Multiply matrices in the fragments of a warp, accumulate in a fragment.
    mma.sync.aligned.shape=m16n8k8.row.col.dtype=f32.atype=f16.btype=f16.ctype=f32
    ...    d:f32*4, a:b32*2, b:b32*1, c:f32*4
    mma.sync.aligned.shape=m16n8k8.row.col.dtype=f32.atype=bf16.btype=bf16.ctype=f32
    ...    d:f32*4, a:b32*2, b:b32*1, c:f32*4
    mma.sync.aligned.shape=m16n8k8.row.col.dtype=f16.atype=f16.btype=f16.ctype=f16
    ...    d:b32*2, a:b32*2, b:b32*1, c:b32*2
    mma.sync.aligned.shape=m16n8k4.row.col.dtype=f32.atype=tf32.btype=tf32.ctype=f32
    ...    d:f32*4, a:b32*2, b:b32*1, c:f32*4
    mma.sync.aligned.shape=m16n8k8.row.col.dtype=f32.atype=tf32.btype=tf32.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4
    mma.sync.aligned.shape=m16n8k16.row.col.dtype=f32.atype=f16.btype=f16.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4
    mma.sync.aligned.shape=m16n8k16.row.col.dtype=f32.atype=bf16.btype=bf16.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4
    mma.sync.aligned.shape=m16n8k16.row.col.dtype=f16.atype=f16.btype=f16.ctype=f16
    ...    d:b32*2, a:b32*4, b:b32*2, c:b32*2
    mma.sync.aligned.shape=m16n8k32.row.col.dtype=f32.atype=FP8.btype=FP8.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4
    mma.sync.aligned.shape=m16n8k16.row.col.dtype=f32.atype=FP8.btype=FP8.ctype=f32
    ...    d:f32*4, a:b32*2, b:b32*1, c:f32*4   @ all 8.7
    mma.sync.aligned.shape=m16n8k32.row.col.dtype=f16.atype=FP8.btype=FP8.ctype=f16
    ...    d:b32*2, a:b32*4, b:b32*2, c:b32*2   @ all 8.7
    mma.sync.aligned.shape=m16n8k16.row.col.dtype=f16.atype=FP8.btype=FP8.ctype=f16
    ...    d:b32*2, a:b32*2, b:b32*1, c:b32*2   @ all 8.7
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::f8f6f4.dtype=f32.atype=FP8.btype=FP8.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4   @ sm_100f sm_120f
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::f8f6f4.dtype=f32.atype=FP8.btype=F6F4.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4   @ sm_120f
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::f8f6f4.dtype=f32.atype=F6F4.btype=F8F6F4.ctype=f32
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4   @ sm_120f
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::f8f6f4.dtype=f16.atype=FP8.btype=FP8.ctype=f16
    ...    d:b32*2, a:b32*4, b:b32*2, c:b32*2   @ sm_100f sm_120f 8.7
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::f8f6f4.dtype=f16.atype=FP8.btype=F6F4.ctype=f16
    ...    d:b32*2, a:b32*4, b:b32*2, c:b32*2   @ sm_120f
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::f8f6f4.dtype=f16.atype=F6F4.btype=F8F6F4.ctype=f16
    ...    d:b32*2, a:b32*4, b:b32*2, c:b32*2   @ sm_120f
    mma.sync.aligned.shape=m16n8k32.row.col.kind=kind::mxf8f6f4.block_scale{.scale=scale_vec::1X}
    ....dtype=f32.atype=F8F6F4.btype=F8F6F4.ctype=f32.stype=ue8m0
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4, scale_a:b32*1, select_a:u16*2, scale_b:b32*1, select_b:u16*2   @ sm_120f
    mma.sync.aligned.shape=m16n8k64.row.col.kind=kind::mxf4.block_scale{.scale=scale_vec::2X}
    ....dtype=f32.atype=e2m1.btype=e2m1.ctype=f32.stype=ue8m0
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4, scale_a:b32*1, select_a:u16*2, scale_b:b32*1, select_b:u16*2   @ sm_120f
    mma.sync.aligned.shape=m16n8k64.row.col.kind=kind::mxf4nvf4.block_scale.scale=scale_vec::2X
    ....dtype=f32.atype=e2m1.btype=e2m1.ctype=f32.stype=ue8m0
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4, scale_a:b32*1, select_a:u16*2, scale_b:b32*1, select_b:u16*2   @ sm_120f
    mma.sync.aligned.shape=m16n8k64.row.col.kind=kind::mxf4nvf4.block_scale.scale=scale_vec::4X
    ....dtype=f32.atype=e2m1.btype=e2m1.ctype=f32.stype=ue4m3
    ...    d:f32*4, a:b32*4, b:b32*2, c:f32*4, scale_a:b32*1, select_a:u16*2, scale_b:b32*1, select_b:u16*2   @ sm_120f
    mma.sync.aligned.shape=m16n8k16.row.col{.satfinite}.dtype=s32.atype=INT8.btype=INT8.ctype=s32
    ...    d:s32*4, a:b32*2, b:b32*1, c:s32*4
    mma.sync.aligned.shape=m16n8k32.row.col{.satfinite}.dtype=s32.atype=INT8.btype=INT8.ctype=s32
    ...    d:s32*4, a:b32*4, b:b32*2, c:s32*4
    mma.sync.aligned.shape=m8n8k4.row.col.dtype=f64.atype=f64.btype=f64.ctype=f64
    ...    d:f64*2, a:f64*1, b:f64*1, c:f64*2
    mma.sync.aligned.shape=m16n8k4.row.col.dtype=f64.atype=f64.btype=f64.ctype=f64
    ...    d:f64*4, a:f64*2, b:f64*1, c:f64*4
    mma.sync.aligned.shape=m16n8k8.row.col.dtype=f64.atype=f64.btype=f64.ctype=f64
    ...    d:f64*4, a:f64*4, b:f64*2, c:f64*4
    mma.sync.aligned.shape=m16n8k16.row.col.dtype=f64.atype=f64.btype=f64.ctype=f64
    ...    d:f64*4, a:f64*8, b:f64*4, c:f64*4
""",
)

_WARPGROUP_MMA = forms(
    "the whole warpgroup, converged",
    "wgmma.commit_group and wgmma.wait_group",
    """
wgmma.mma_async  9.7.15.5.2  Multiply matrices of shared memory (A also of registers) into registers. [wgmma async]
    wgmma.mma_async.sync.aligned.shape=M64_K16.dtype=f32.atype=bf16.btype=bf16
    ...    d:f32*sums, a:b64, b:b64, scale_d:pred, #scale_a, #scale_b, #trans_a, #trans_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K16.dtype=f32.atype=bf16.btype=bf16
    ...    d:f32*sums, a:b32*4, b:b64, scale_d:pred, #scale_a, #scale_b, #trans_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K16.dtype=f32.atype=f16.btype=f16
    ...    d:f32*sums, a:b64, b:b64, scale_d:pred, #scale_a, #scale_b, #trans_a, #trans_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K16.dtype=f32.atype=f16.btype=f16
    ...    d:f32*sums, a:b32*4, b:b64, scale_d:pred, #scale_a, #scale_b, #trans_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K16.dtype=f16.atype=f16.btype=f16
    ...    d:b32*sums, a:b64, b:b64, scale_d:pred, #scale_a, #scale_b, #trans_a, #trans_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K16.dtype=f16.atype=f16.btype=f16
    ...    d:b32*sums, a:b32*4, b:b64, scale_d:pred, #scale_a, #scale_b, #trans_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K8.dtype=f32.atype=tf32.btype=tf32
    ...    d:f32*sums, a:b64, b:b64, scale_d:pred, #scale_a, #scale_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K8.dtype=f32.atype=tf32.btype=tf32
    ...    d:f32*sums, a:b32*4, b:b64, scale_d:pred, #scale_a, #scale_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K32.dtype=f32.atype=FP8.btype=FP8
    ...    d:f32*sums, a:b64, b:b64, scale_d:pred, #scale_a, #scale_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K32.dtype=f32.atype=FP8.btype=FP8
    ...    d:f32*sums, a:b32*4, b:b64, scale_d:pred, #scale_a, #scale_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K32.dtype=f16.atype=FP8.btype=FP8
    ...    d:b32*sums, a:b64, b:b64, scale_d:pred, #scale_a, #scale_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K32.dtype=f16.atype=FP8.btype=FP8
    ...    d:b32*sums, a:b32*4, b:b64, scale_d:pred, #scale_a, #scale_b   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K32_INT.dtype=s32.atype=INT8.btype=INT8{.satfinite}
    ...    d:s32*sums, a:b64, b:b64, scale_d:pred   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K32_INT.dtype=s32.atype=INT8.btype=INT8{.satfinite}
    ...    d:s32*sums, a:b32*4, b:b64, scale_d:pred   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K256.dtype=s32.atype=b1.btype=b1.action=and.popc
    ...    d:s32*sums, a:b64, b:b64, scale_d:pred   @ sm_90a
    wgmma.mma_async.sync.aligned.shape=M64_K256.dtype=s32.atype=b1.btype=b1.action=and.popc
    ...    d:s32*sums, a:b32*4, b:b64, scale_d:pred   @ sm_90a
""",
)

_WARPGROUP_SYNC = forms(
    "the whole warpgroup, converged",
    "return",
    """
wgmma.fence  9.7.15.7.1  Order accesses to registers before the wgmma.mma_async that follow. [wgmma]
    wgmma.fence.sync.aligned                    @ sm_90a
wgmma.commit_group  9.7.15.7.2  Close the group of the wgmma.mma_async issued since the last one. [wgmma]
    wgmma.commit_group.sync.aligned             @ sm_90a
wgmma.wait_group  9.7.15.7.3  Wait until at most N of the newest groups pend. [wgmma blocks]
    wgmma.wait_group.sync.aligned    #n   @ sm_90a
""",
)

FORMS = _WARP + _MMA + _WARPGROUP_MMA + _WARPGROUP_SYNC
