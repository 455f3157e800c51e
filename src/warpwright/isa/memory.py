"""Loads, stores, atomics and cache hints (PTX ISA 9.1 sections 9.7.9.8 to 9.7.9.18, 9.7.13.5, 9.7.13.6)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

FORMS = forms(
    "each active lane",
    "return",
    """
ld  9.7.9.8,9.7.9.9  Load from memory.
    ld{.weak}{.space=LDSPACE}{.cop=ca|cg|cs|lu|cv}{.hint=L2::cache_hint}{.prefetch=PREFETCH}{.vec=v2|v4}.type=MEMORY|b128  d*vec, [a]{, policy:b64}
    ld{.weak}{.space=LDSPACE}{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}{.vec=v2|v4}.type=MEMORY|b128  d*vec, [a]{, policy:b64}
    ld{.weak}{.space=global}{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}.vec=v8.type=b32|u32|s32|f32  d*vec, [a]{, policy:b64}  @ sm_100+
    ld{.weak}{.space=global}{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}.vec=v4.type=b64|u64|s64|f64  d*vec, [a]{, policy:b64}  @ sm_100+
    ld.sem=volatile{.space=LDSPACE}{.prefetch=PREFETCH}{.vec=v2|v4}.type=MEMORY|b128   d*vec, [a]
    ld.sem=relaxed|acquire.scope=SCOPE{.space=global|SHARED}{.evict=L1}{.hint=L2::cache_hint}{.prefetch=PREFETCH}{.vec=v2|v4}.type=MEMORY|b128  d*vec, [a]{, policy:b64}
    ld.mmio.sem=relaxed.scope=sys{.space=global}.type=MEMORY                           d, [a]
    ld.space=global{.cop=ca|cg|cs}.nc{.hint=L2::cache_hint}{.prefetch=PREFETCH}{.vec=v2|v4}.type=MEMORY|b128  d*vec, [a]{, policy:b64}
    ld.space=global.nc{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}{.vec=v2|v4}.type=MEMORY|b128  d*vec, [a]{, policy:b64}
    ld.space=global.nc{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}.vec=v8.type=b32|u32|s32|f32  d*vec, [a]{, policy:b64}  @ sm_100+
    ld.space=global.nc{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}.vec=v4.type=b64|u64|s64|f64  d*vec, [a]{, policy:b64}  @ sm_100+
ldu  9.7.9.10  Load the same address in every lane.
    ldu{.space=global}{.vec=v2|v4}.type=MEMORY|b128                                    d*vec, [a]
st  9.7.9.11  Store to memory.
    st{.weak}{.space=STSPACE}{.cop=wb|cg|cs|wt}{.hint=L2::cache_hint}{.vec=v2|v4}.type=MEMORY|b128  [a], b*vec{, policy:b64}
    st{.weak}{.space=STSPACE}{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}{.vec=v2|v4}.type=MEMORY|b128  [a], b*vec{, policy:b64}
    st{.weak}{.space=global}{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}.vec=v8.type=b32|u32|s32|f32  [a], b*vec{, policy:b64}  @ sm_100+
    st{.weak}{.space=global}{.evict=L1}{.evict2=L2}{.hint=L2::cache_hint}.vec=v4.type=b64|u64|s64|f64  [a], b*vec{, policy:b64}  @ sm_100+
    st.sem=volatile{.space=STSPACE}{.vec=v2|v4}.type=MEMORY|b128                       [a], b*vec
    st.sem=relaxed|release.scope=SCOPE{.space=global|SHARED}{.evict=L1}{.hint=L2::cache_hint}{.vec=v2|v4}.type=MEMORY|b128  [a], b*vec{, policy:b64}
    st.mmio.sem=relaxed.scope=sys{.space=global}.type=MEMORY                           [a], b
atom  9.7.13.5  Read, modify and write memory in one step; returns the old value.
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global|SHARED}.op=ATOM{.hint=L2::cache_hint}.type=B3264|INT3264|f32|f64  d, [a], b{, policy:b64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global|SHARED}.op=cas.type=b16|b32|b64|b128|INT3264  d, [a], b, c
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global|SHARED}.op=exch{.hint=L2::cache_hint}.type=b128  d, [a], b{, policy:b64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global|SHARED}.op=add.noftz{.hint=L2::cache_hint}.type=HALF  d, [a], b{, policy:b64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global}.op=add{.hint=L2::cache_hint}.vec=v2|v4.type=f32  d*vec, [a], b*vec{, policy:b64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global}.op=add|min|max.noftz{.hint=L2::cache_hint}.vec=v2|v4|v8.type=f16|bf16  d*vec, [a], b*vec{, policy:b64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global}.op=add|min|max.noftz{.hint=L2::cache_hint}.vec=v2|v4.type=f16x2|bf16x2  d*vec, [a], b*vec{, policy:b64}
red  9.7.13.6  Read, modify and write memory in one step.
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global|SHARED}.op=RED{.hint=L2::cache_hint}.type=B3264|INT3264|f32|f64  [a], b{, policy:b64}
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global|SHARED}.op=add.noftz{.hint=L2::cache_hint}.type=HALF  [a], b{, policy:b64}
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global}.op=add{.hint=L2::cache_hint}.vec=v2|v4.type=f32  [a], b*vec{, policy:b64}
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global}.op=add|min|max.noftz{.hint=L2::cache_hint}.vec=v2|v4|v8.type=f16|bf16  [a], b*vec{, policy:b64}
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global}.op=add|min|max.noftz{.hint=L2::cache_hint}.vec=v2|v4.type=f16x2|bf16x2  [a], b*vec{, policy:b64}
prefetch  9.7.9.15  Hint: bring a cache line near.
    prefetch{.space=global|local}.level=L1|L2       [a]
    prefetch.space=global.level=L2::evict_last|L2::evict_normal   [a]
    prefetch{.space=const|param}.tensormap          [a]
prefetchu  9.7.9.15  Hint: bring a line to the uniform cache.
    prefetchu.level=L1                              [a]
applypriority  9.7.9.16  Hint: change the eviction priority of a line.
    applypriority{.space=global}.level=L2::evict_normal           [a], #size
discard  9.7.9.17  Drop a cache line without writing it back.
    discard{.space=global}.level=L2                 [a], #size
createpolicy  9.7.9.18  Make a cache policy for L2::cache_hint operands.
    createpolicy.fractional.primary=POLICY{.secondary=L2::evict_first|L2::evict_unchanged}.type=b64  d{, a:f32}
    createpolicy.range{.space=global}.primary=POLICY{.secondary=L2::evict_first|L2::evict_unchanged}.type=b64  d, [a], b:u32, c:u32
    createpolicy.cvt.L2.type=b64                    d, a:b64
""",
)
