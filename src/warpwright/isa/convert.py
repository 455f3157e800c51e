"""Moves and conversions (PTX ISA 9.1 sections 9.7.9.3 to 9.7.9.7 and 9.7.9.19 to 9.7.9.24)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

FORMS = forms(
    "each active lane",
    "return",
    """
mov  9.7.9.3,9.7.9.4  Copy a register, a constant, an address or a special register; pack or unpack a vector.
    mov.type=pred|WORD|b128     d, a
    mov.vec=v2.type=WORD        d*vec, a*vec
    mov.vec=v4.type=b16|u16|s16|b32|u32|s32|f32   d*vec, a*vec
prmt  9.7.9.7  Select four bytes of two words.
    prmt.type=b32{.mode=f4e|b4e|rc8|ecl|ecr|rc16}   d, a, b, c
cvt  9.7.9.21  Convert between types.
    cvt.dtype=INTEGER.atype=INTEGER                               d:dtype, a:atype
    cvt.sat.dtype=u8.atype=u16|u32|u64|s8|s16|s32|s64             d:dtype, a:atype
    cvt.sat.dtype=u16.atype=u32|u64|s8|s16|s32|s64                d:dtype, a:atype
    cvt.sat.dtype=u32.atype=u64|s8|s16|s32|s64                    d:dtype, a:atype
    cvt.sat.dtype=u64.atype=s8|s16|s32|s64                        d:dtype, a:atype
    cvt.sat.dtype=s8.atype=u8|u16|u32|u64|s16|s32|s64             d:dtype, a:atype
    cvt.sat.dtype=s16.atype=u16|u32|u64|s32|s64                   d:dtype, a:atype
    cvt.sat.dtype=s32.atype=u32|u64|s64                           d:dtype, a:atype
    cvt.sat.dtype=s64.atype=u64                                   d:dtype, a:atype
    cvt.rnd=IRND{.sat}.dtype=INTEGER.atype=f16|f64                d:dtype, a:atype
    cvt.rnd=IRND{.ftz}{.sat}.dtype=INTEGER.atype=f32              d:dtype, a:atype
    cvt.rnd=IRND.dtype=INT.atype=bf16                             d:dtype, a:atype
    cvt.rnd=RND{.sat}.dtype=f16|f64.atype=INTEGER                 d:dtype, a:atype
    cvt.rnd=RND{.ftz}{.sat}.dtype=f32.atype=INTEGER|f64           d:dtype, a:atype
    cvt.rnd=RND.dtype=bf16.atype=INT|f64                          d:dtype, a:atype
    cvt{.rnd=IRND}{.sat}.dtype=f16.atype=f16                      d:dtype, a:atype
    cvt{.rnd=IRND}{.sat}.dtype=f64.atype=f64                      d:dtype, a:atype
    cvt{.rnd=IRND}{.ftz}{.sat}.dtype=f32.atype=f32                d:dtype, a:atype
    cvt{.rnd=IRND}.dtype=bf16.atype=bf16                          d:dtype, a:atype
    cvt{.sat}.dtype=f64.atype=f16                                 d:dtype, a:atype
    cvt{.ftz}{.sat}.dtype=f32.atype=f16                           d:dtype, a:atype
    cvt{.ftz}{.sat}.dtype=f64.atype=f32                           d:dtype, a:atype
    cvt{.rnd=RND}{.ftz}.dtype=f32.atype=bf16                      d:dtype, a:atype
    cvt{.rnd=RND}.dtype=f16|f64.atype=bf16                        d:dtype, a:atype
    cvt{.rnd=RND}.dtype=bf16.atype=f16                            d:dtype, a:atype
    cvt.rnd=RND{.sat}.dtype=f16.atype=f64                         d:dtype, a:atype
    cvt.rnd=RND{.ftz}{.sat}.dtype=f16.atype=f32                   d:dtype, a:atype
    cvt.rnd=RND{.ftz}.dtype=bf16.atype=f32                        d:dtype, a:atype
    cvt.rnd=rn|rz<CLAMP>.dtype=f16|bf16.atype=f32                 d:dtype, a:atype
    cvt.rnd=rn|rz<CLAMP>.dtype=f16x2|bf16x2.atype=f32             d:dtype, a:atype, b:atype
    cvt.rnd=rs{.relu}{.satfinite}.dtype=f16x2|bf16x2.atype=f32
    ...    d:dtype, a:atype, b:atype, r:b32   @ sm_100a sm_103a 8.7
    cvt.rnd=rna{.satfinite}.dtype=tf32.atype=f32                                            d:dtype, a:atype
    cvt.rnd=rn|rz{.relu}.dtype=tf32.atype=f32                     d:dtype, a:atype
    cvt.rnd=rn|rz.satfinite{.relu}.dtype=tf32.atype=f32
    ...    d:dtype, a:atype   @ sm_100+
    cvt.rnd=rn.satfinite{.relu}.dtype=e4m3x2|e5m2x2.atype=f32                               d:dtype, a:atype, b:atype
    cvt.rnd=rn.satfinite{.relu}.dtype=e4m3x2|e5m2x2.atype=f16x2                             d:dtype, a:atype
    cvt.rnd=rn{.relu}.dtype=f16x2.atype=e4m3x2|e5m2x2                                       d:dtype, a:atype
    cvt.rnd=rs{.relu}.satfinite.dtype=e4m3x4|e5m2x4|e2m1x4|e2m3x4|e3m2x4.atype=f32
    ...    d:dtype, a:f32*4, r:b32   @ sm_100a sm_103a 8.7
    cvt.rnd=rn.satfinite{.relu}.dtype=e2m1x2|e2m3x2|e3m2x2.atype=f32  d:dtype, a:atype, b:atype  @ sm_100f sm_120f
    cvt.rnd=rn{.relu}.dtype=f16x2.atype=e2m1x2|e2m3x2|e3m2x2          d:dtype, a:atype           @ sm_100f sm_120f
    cvt.rnd=rz|rp{.satfinite}.dtype=ue8m0x2.atype=f32                 d:dtype, a:atype, b:atype  @ sm_100f sm_120f
    cvt.rnd=rz|rp{.satfinite}.dtype=ue8m0x2.atype=bf16x2              d:dtype, a:atype           @ sm_100f sm_120f
    cvt.rnd=rn.dtype=bf16x2.atype=ue8m0x2                             d:dtype, a:atype           @ sm_100f sm_120f
cvt.pack  9.7.9.22  Convert two integers with saturation and pack them.
    cvt.pack.sat.dtype=u16|s16.atype=s32                                d:u32, a:atype, b:atype
    cvt.pack.sat.dtype=u2|s2|u4|s4|u8|s8.atype=s32.ctype=b32            d:u32, a:atype, b:atype, c:ctype
cvta  9.7.9.20  Convert an address between a state space and the generic space.
    cvta{.to}.space=const|global|local|param|param::entry|SHARED.type=u64  d, a
isspacep  9.7.9.19  Whether a generic address falls in a state space.
    isspacep.space=const|global|local|param|param::entry|SHARED   p:pred, a:u64
mapa  9.7.9.23  Address of the same shared variable in another CTA of the cluster.
    mapa.space=shared::cluster.type=u32|u64         d, a, b:u32
    mapa.type=u32|u64                               d, a, b:u32
getctarank  9.7.9.24  Rank of the CTA that a shared address belongs to.
    getctarank.space=shared::cluster.type=u32|u64   d:u32, a
    getctarank.type=u32|u64                         d:u32, a
""",
)
