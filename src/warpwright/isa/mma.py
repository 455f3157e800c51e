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
