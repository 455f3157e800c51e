"""Matrix fragments of a warp and of a warpgroup (PTX ISA 9.1 sections 9.7.14 and 9.7.15)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

_WARP = forms(
    "the whole warp, converged",
    "return",
    """
ldmatrix  9.7.14.5.15  Load 8x8 matrices from shared memory into the fragments of a warp.
    ldmatrix.sync.aligned.shape=m8n8.num=x1|x2|x4{.trans}{.space=SHARED_CTA}.type=b16      d:b32*num, [a]
    ldmatrix.sync.aligned.shape=m16n16.num=x1|x2.trans{.space=SHARED_CTA}.type=b8
    ...    d:b32*num, [a]   @ sm_100f sm_120f
    ldmatrix.sync.aligned.shape=m8n16.num=x1|x2|x4{.space=SHARED_CTA}.type=b8x16.src_fmt=b6x16_p32|b4x16_p64
    ...    d:b32*num, [a]   @ sm_100f sm_120f
    ldmatrix.sync.aligned.shape=m16n16.num=x1|x2.trans{.space=SHARED_CTA}.type=b8x16.src_fmt=b6x16_p32|b4x16_p64
    ...    d:b32*num, [a]   @ sm_100f sm_120f
stmatrix  9.7.14.5.16  Store the fragments of a warp to shared memory as matrices.
    stmatrix.sync.aligned.shape=m8n8.num=x1|x2|x4{.trans}{.space=SHARED_CTA}.type=b16      [a], b:b32*num
    stmatrix.sync.aligned.shape=m16n8.num=x1|x2|x4.trans{.space=SHARED_CTA}.type=b8
    ...    [a], b:b32*num   @ sm_100f sm_120f
movmatrix  9.7.14.5.17  Transpose a matrix held in the fragments of a warp.
    movmatrix.sync.aligned.shape=m8n8.trans.type=b16                                       d:b32, a:b32
""",
)

FORMS = _WARP
