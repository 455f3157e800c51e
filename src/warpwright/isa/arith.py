"""Arithmetic, comparison, selection, logic and shifts (PTX ISA 9.1 sections 9.7.1 to 9.7.8)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

FORMS = forms(
    "each active lane",
    "return",
    """
add  9.7.1.1,9.7.3.3,9.7.4.1,9.7.5.1  Sum.
    add.type=INT|u16x2|s16x2                        d, a, b
    add.sat.type=s32                                d, a, b
    add{.rnd=RND}{.ftz}{.sat}.type=f32              d, a, b
    add{.rnd=RND}.type=f64                          d, a, b
    add{.rnd=rn}{.ftz}{.sat}.type=f16|f16x2         d, a, b
    add{.rnd=rn}.type=bf16|bf16x2                   d, a, b
    add{.rnd=RND}{.ftz}.type=f32x2                  d, a, b              @ sm_100+
    add{.rnd=RND}{.sat}.type=f32.atype=f16|bf16     d, a:atype, b        @ sm_100+
sub  9.7.1.2,9.7.3.4,9.7.4.2,9.7.5.2  Difference.
    sub.type=INT                                    d, a, b
    sub.sat.type=s32                                d, a, b
    sub{.rnd=RND}{.ftz}{.sat}.type=f32              d, a, b
    sub{.rnd=RND}.type=f64                          d, a, b
    sub{.rnd=rn}{.ftz}{.sat}.type=f16|f16x2         d, a, b
    sub{.rnd=rn}.type=bf16|bf16x2                   d, a, b
    sub{.rnd=RND}{.ftz}.type=f32x2                  d, a, b              @ sm_100+
    sub{.rnd=RND}{.sat}.type=f32.atype=f16|bf16     d, a:atype, b        @ sm_100+
mul  9.7.1.3,9.7.3.5,9.7.4.3  Product; of integers the low half, the high half or all of it.
    mul.mode=lo|hi.type=INT                         d, a, b
    mul.mode=wide.type=u16|u32|s16|s32              d:wide, a, b
    mul{.rnd=RND}{.ftz}{.sat}.type=f32              d, a, b
    mul{.rnd=RND}.type=f64                          d, a, b
    mul{.rnd=rn}{.ftz}{.sat}.type=f16|f16x2         d, a, b
    mul{.rnd=rn}.type=bf16|bf16x2                   d, a, b
    mul{.rnd=RND}{.ftz}.type=f32x2                  d, a, b              @ sm_100+
mad  9.7.1.4,9.7.2.5,9.7.3.7  Product plus addend; carry out to CC.CF if .cc.
    mad.mode=lo|hi.type=INT                         d, a, b, c
    mad.mode=hi.sat.type=s32                        d, a, b, c
    mad.mode=wide.type=u16|u32|s16|s32              d:wide, a, b, c:wide
    mad.mode=lo|hi.cc.type=INT3264                  d, a, b, c
    mad.rnd=RND{.ftz}{.sat}.type=f32                d, a, b, c
    mad.rnd=RND.type=f64                            d, a, b, c
fma  9.7.3.6,9.7.4.4,9.7.5.3  Product plus addend, rounded once.
    fma.rnd=RND{.ftz}{.sat}.type=f32                d, a, b, c
    fma.rnd=RND.type=f64                            d, a, b, c
    fma.rnd=rn{.ftz}{.sat}.type=f16|f16x2           d, a, b, c
    fma.rnd=rn{.ftz}.relu.type=f16|f16x2            d, a, b, c
    fma.rnd=rn{.relu}.type=bf16|bf16x2              d, a, b, c
    fma.rnd=rn.oob{.relu}.type=f16|f16x2|bf16|bf16x2  d, a, b, c
    fma.rnd=RND{.ftz}.type=f32x2                    d, a, b, c           @ sm_100+
    fma.rnd=RND{.sat}.type=f32.atype=f16|bf16       d, a:atype, b:atype, c  @ sm_100+
mul24  9.7.1.5  Product of 24-bit integers.
    mul24.mode=lo|hi.type=INT32                     d, a, b
mad24  9.7.1.6  Product of 24-bit integers plus addend.
    mad24.mode=lo|hi.type=INT32                     d, a, b, c
    mad24.mode=hi.sat.type=s32                      d, a, b, c
sad  9.7.1.7  Absolute difference plus addend.
    sad.type=INT                                    d, a, b, c
div  9.7.1.8,9.7.3.8  Quotient; of integers truncated towards zero.
    div.type=INT                                    d, a, b
    div.rnd=approx|full|RND{.ftz}.type=f32          d, a, b
    div.rnd=RND.type=f64                            d, a, b
rem  9.7.1.9  Remainder, with the sign of the dividend.
    rem.type=INT                                    d, a, b
abs  9.7.1.10,9.7.3.9,9.7.4.6  Absolute value.
    abs.type=s16|s32|s64|f64|bf16|bf16x2            d, a
    abs{.ftz}.type=f32|f16|f16x2                    d, a
neg  9.7.1.11,9.7.3.10,9.7.4.5  Negative.
    neg.type=s16|s32|s64|f64|bf16|bf16x2            d, a
    neg{.ftz}.type=f32|f16|f16x2                    d, a
min  9.7.1.12,9.7.3.11,9.7.4.7  Smaller value; a NaN loses unless .NaN is given.
    min.type=INT|u16x2|s16x2|f64                    d, a, b
    min.relu.type=s32|s16x2                         d, a, b
    min{.ftz}{.NaN}{.xorsign.abs}.type=f32          d, a, b
    min{.ftz}{.NaN}{.xorsign.abs}.type=f16|f16x2    d, a, b
    min{.NaN}{.xorsign.abs}.type=bf16|bf16x2        d, a, b
    min{.ftz}{.NaN}{.abs}.type=f32                  d, a, b, c           @ sm_100+ 8.8
max  9.7.1.13,9.7.3.12,9.7.4.8  Larger value; a NaN loses unless .NaN is given.
    max.type=INT|u16x2|s16x2|f64                    d, a, b
    max.relu.type=s32|s16x2                         d, a, b
    max{.ftz}{.NaN}{.xorsign.abs}.type=f32          d, a, b
    max{.ftz}{.NaN}{.xorsign.abs}.type=f16|f16x2    d, a, b
    max{.NaN}{.xorsign.abs}.type=bf16|bf16x2        d, a, b
    max{.ftz}{.NaN}{.abs}.type=f32                  d, a, b, c           @ sm_100+ 8.8
popc  9.7.1.14  Number of one bits.
    popc.type=B3264                                 d:u32, a
clz  9.7.1.15  Number of leading zero bits.
    clz.type=B3264                                  d:u32, a
bfind  9.7.1.16  Position of the most significant non-sign bit.
    bfind{.shiftamt}.type=INT3264                   d:u32, a
fns  9.7.1.17  Position of the n-th set bit.
    fns.type=b32                                    d, a, b, c:s32
brev  9.7.1.18  Bits in reverse order.
    brev.type=B3264                                 d, a
bfe  9.7.1.19  Bit field, extracted and extended.
    bfe.type=INT3264                                d, a, b:u32=0..255, c:u32=0..255
bfi  9.7.1.20  Bit field, inserted.
    bfi.type=B3264                                  d, a, b, c:u32=0..255, e:u32=0..255
szext  9.7.1.21  Value of the lowest bits, sign or zero extended.
    szext.mode=clamp|wrap.type=INT32                d, a, b:u32
bmsk  9.7.1.22  Bit mask of given position and width.
    bmsk.mode=clamp|wrap.type=b32                   d:u32, a:u32, b:u32
dp4a  9.7.1.23  Dot product of four bytes plus addend.
    dp4a.atype=INT32.type=INT32                     d:u32, a:u32, b:u32, c:u32
dp2a  9.7.1.24  Dot product of two halves and two bytes plus addend.
    dp2a.mode=lo|hi.atype=INT32.type=INT32          d:u32, a:u32, b:u32, c:u32
add.cc  9.7.2.1  Sum, carry out to CC.CF.
    add.cc.type=INT3264                             d, a, b
addc  9.7.2.2  Sum with carry in, carry out if .cc.
    addc{.cc}.type=INT3264                          d, a, b
sub.cc  9.7.2.3  Difference, borrow out to CC.CF.
    sub.cc.type=INT3264                             d, a, b
subc  9.7.2.4  Difference with borrow in, borrow out if .cc.
    subc{.cc}.type=INT3264                          d, a, b
madc  9.7.2.6  Product plus addend with carry in, carry out if .cc.
    madc.mode=lo|hi{.cc}.type=INT3264               d, a, b, c
testp  9.7.3.1  Whether a number is of a class.
    testp.op=finite|infinite|number|notanumber|normal|subnormal.type=f32|f64  p:pred, a
copysign  9.7.3.2  Value of b with the sign of a.
    copysign.type=f32|f64                           d, a, b
rcp  9.7.3.13,9.7.3.14  Reciprocal.
    rcp.rnd=approx|RND{.ftz}.type=f32               d, a
    rcp.rnd=RND.type=f64                            d, a
    rcp.rnd=approx.ftz.type=f64                     d, a
sqrt  9.7.3.15  Square root.
    sqrt.rnd=approx|RND{.ftz}.type=f32              d, a
    sqrt.rnd=RND.type=f64                           d, a
rsqrt  9.7.3.16,9.7.3.17  Reciprocal of the square root.
    rsqrt.rnd=approx{.ftz}.type=f32|f64             d, a
sin  9.7.3.18  Sine.
    sin.rnd=approx{.ftz}.type=f32                   d, a
cos  9.7.3.19  Cosine.
    cos.rnd=approx{.ftz}.type=f32                   d, a
lg2  9.7.3.20  Logarithm to base 2.
    lg2.rnd=approx{.ftz}.type=f32                   d, a
ex2  9.7.3.21,9.7.4.10  Power of 2.
    ex2.rnd=approx{.ftz}.type=f32                   d, a
    ex2.rnd=approx.type=f16|f16x2                   d, a
    ex2.rnd=approx.ftz.type=bf16|bf16x2             d, a
tanh  9.7.3.22,9.7.4.9  Hyperbolic tangent.
    tanh.rnd=approx.type=f32|f16|f16x2|bf16|bf16x2  d, a
set  9.7.6.1,9.7.7.1  Comparison as a number: all ones or 1.0 if true, else 0.
    set<INTEGERS>                                                                   d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}.dtype=bf16.type=f32                               d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}{.ftz}.dtype=u32|s32|f32|f16.type=f32              d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}.dtype=SETTYPE.type=f64                          d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}{.ftz}.dtype=u16|s16|u32|s32|f16.type=f16          d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}{.ftz}.dtype=u32|s32|f16x2.type=f16x2              d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}.dtype=u16|s16|u32|s32|bf16.type=bf16              d:dtype, a, b{if bool, c:pred}
    set.cmp=CMP_FLOAT{.bool=BOOL}.dtype=u32|s32|bf16x2.type=bf16x2                  d:dtype, a, b{if bool, c:pred}
setp  9.7.6.2,9.7.7.2  Comparison as a predicate, optionally combined with another; q is its complement.
    setp.cmp=CMP_SIGNED{.bool=BOOL}.type=s16|s32|s64          p:pred{|q:pred}, a, b{if bool, c:pred}
    setp.cmp=CMP_UNSIGNED{.bool=BOOL}.type=u16|u32|u64        p:pred{|q:pred}, a, b{if bool, c:pred}
    setp.cmp=CMP_BITS{.bool=BOOL}.type=BITS                   p:pred{|q:pred}, a, b{if bool, c:pred}
    setp.cmp=CMP_FLOAT{.bool=BOOL}{.ftz}.type=f32             p:pred{|q:pred}, a, b{if bool, c:pred}
    setp.cmp=CMP_FLOAT{.bool=BOOL}.type=f64                   p:pred{|q:pred}, a, b{if bool, c:pred}
    setp.cmp=CMP_FLOAT{.bool=BOOL}{.ftz}.type=f16             p:pred, a, b{if bool, c:pred}
    setp.cmp=CMP_FLOAT{.bool=BOOL}{.ftz}.type=f16x2           p:pred|q:pred, a, b{if bool, c:pred}
    setp.cmp=CMP_FLOAT{.bool=BOOL}.type=bf16                  p:pred, a, b{if bool, c:pred}
    setp.cmp=CMP_FLOAT{.bool=BOOL}.type=bf16x2                p:pred|q:pred, a, b{if bool, c:pred}
selp  9.7.6.3  Value of a where c is true, else of b.
    selp.type=WORD                         d, a, b, c:pred
slct  9.7.6.4  Value of a where c is not negative, else of b.
    slct.type=WORD.ctype=s32                        d, a, b, c:ctype
    slct{.ftz}.type=WORD.ctype=f32                  d, a, b, c:ctype
and  9.7.8.1  Bitwise and.
    and.type=pred|BITS                              d, a, b
or  9.7.8.2  Bitwise or.
    or.type=pred|BITS                               d, a, b
xor  9.7.8.3  Bitwise exclusive or.
    xor.type=pred|BITS                              d, a, b
not  9.7.8.4  Bitwise complement.
    not.type=pred|BITS                              d, a
cnot  9.7.8.5  1 where the value is 0, else 0.
    cnot.type=BITS                                  d, a
lop3  9.7.8.6  Any bitwise function of three values.
    lop3.type=b32                                   d, a, b, c, #lut
    lop3.bool=or|and.type=b32                       d|p:pred, a, b, c, #lut, q:pred
shf  9.7.8.7  Shift of a 64-bit value given as two words.
    shf.direction=l|r.mode=clamp|wrap.type=b32      d, a, b, c:u32
shl  9.7.8.8  Shift left.
    shl.type=BITS                                   d, a, b:u32
shr  9.7.8.9  Shift right, filling with the sign of a signed type.
    shr.type=BITS|INT                               d, a, b:u32
""",
)
