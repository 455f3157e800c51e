"""Loads, stores, atomics and cache hints (PTX ISA 9.1 sections 9.7.9.8 to 9.7.9.18, 9.7.13.5, 9.7.13.6)."""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

FORMS = forms(
    "each active lane",
    "return",
    """
ld  9.7.9.8,9.7.9.9  Load from memory. [read]
    ld{.weak}{.space=LDSPACE}{.cop=ca|cg|cs|lu|cv}<VALUE>           d*vec, [a]
    ld{.weak}{.space=global}{.cop=ca|cg|cs|lu|cv}{.hint=L2::cache_hint}{.prefetch=PREFETCH}<VALUE>
    ...                                                             d*vec, [a]{if hint, policy:u64}
    ld{.weak}{.space=global}.evict=EVICT_L1{.hint=L2::cache_hint}{.prefetch=PREFETCH}<VALUE>
    ...                                                             d*vec, [a]{if hint, policy:u64}
    ld{.weak}{.space=global}.cop=ca|cg|cs|lu|cv{.hint=L2::cache_hint}{.prefetch=PREFETCH}<WIDE>
    ...                                                             d*vec, [a]{if hint, policy:u64}  @ sm_100+ 8.8
    ld{.weak}{.space=global}{.evict=EVICT_L1}{.evict2=EVICT_L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}<WIDE>
    ...                                                             d*vec, [a]{if hint, policy:u64}  @ sm_100+ 8.8
    ld.sem=volatile{.space=SHARED}<VALUE>               d*vec, [a]
    ld.sem=volatile{.space=global}{.prefetch=PREFETCH}<VALUE>       d*vec, [a]
    ld.sem=volatile{.space=global}{.prefetch=PREFETCH}<WIDE>        d*vec, [a]                       @ sm_100+ 8.8
    ld.sem=relaxed|acquire.scope=SCOPE{.space=SHARED}<VALUE>        d*vec, [a]
    ld.sem=relaxed|acquire.scope=SCOPE{.space=global}{.evict=EVICT_L1}{.hint=L2::cache_hint}{.prefetch=PREFETCH}<VALUE>
    ...                                                             d*vec, [a]{if hint, policy:u64}
    ld.sem=relaxed|acquire.scope=SCOPE{.space=global}{.evict=EVICT_L1}{.evict2=EVICT_L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}
    ...<WIDE>                                                       d*vec, [a]{if hint, policy:u64}  @ sm_100+ 8.8
    ld.mmio.sem=relaxed.scope=sys{.space=global}.type=MEMORY        d, [a]
    ld.space=global{.cop=ca|cg|cs}.nc{.hint=L2::cache_hint}{.prefetch=PREFETCH}<VALUE>
    ...                                                             d*vec, [a]{if hint, policy:u64}
    ld.space=global.nc.evict=EVICT_L1{.hint=L2::cache_hint}{.prefetch=PREFETCH}<VALUE>
    ...                                                             d*vec, [a]{if hint, policy:u64}
    ld.space=global.cop=ca|cg|cs.nc{.hint=L2::cache_hint}{.prefetch=PREFETCH}<WIDE>
    ...                                                             d*vec, [a]{if hint, policy:u64}  @ sm_100+ 8.8
    ld.space=global.nc{.evict=EVICT_L1}{.evict2=EVICT_L2}{.hint=L2::cache_hint}{.prefetch=PREFETCH}<WIDE>
    ...                                                             d*vec, [a]{if hint, policy:u64}  @ sm_100+ 8.8
ldu  9.7.9.10  Load the same address in every lane. [read]
    ldu{.space=global}<VALUE>                                    d*vec, [a]
st  9.7.9.11  Store to memory. [write]
    st{.weak}{.space=STSPACE}{.cop=wb|cg|cs|wt}<VALUE>              [a], b*vec
    st{.weak}{.space=global}{.cop=wb|cg|cs|wt}{.hint=L2::cache_hint}<VALUE>
    ...                                                             [a], b*vec{if hint, policy:u64}
    st{.weak}{.space=global}.evict=EVICT_L1{.hint=L2::cache_hint}<VALUE>  [a], b*vec{if hint, policy:u64}
    st{.weak}{.space=global}.cop=wb|cg|cs|wt{.hint=L2::cache_hint}<WIDE>
    ...                                                             [a], b*vec{if hint, policy:u64}  @ sm_100+ 8.8
    st{.weak}{.space=global}{.evict=EVICT_L1}{.evict2=EVICT_L2}{.hint=L2::cache_hint}<WIDE>
    ...                                                             [a], b*vec{if hint, policy:u64}  @ sm_100+ 8.8
    st.sem=volatile{.space=global|SHARED}<VALUE>              [a], b*vec
    st.sem=volatile{.space=global}<WIDE>                      [a], b*vec                       @ sm_100+ 8.8
    st.sem=relaxed|release.scope=SCOPE{.space=SHARED}<VALUE>        [a], b*vec
    st.sem=relaxed|release.scope=SCOPE{.space=global}{.evict=EVICT_L1}{.hint=L2::cache_hint}<VALUE>
    ...                                                             [a], b*vec{if hint, policy:u64}
    st.sem=relaxed|release.scope=SCOPE{.space=global}{.evict=EVICT_L1}{.evict2=EVICT_L2}{.hint=L2::cache_hint}<WIDE>
    ...                                                             [a], b*vec{if hint, policy:u64}  @ sm_100+ 8.8
    st.mmio.sem=relaxed.scope=sys{.space=global}.type=MEMORY        [a], b
atom  9.7.13.5  Read, modify and write memory atomically; returns the old value. [update]
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global}<REDUCTION>
    ...                                                             d, [a], b{if hint, policy:u64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}.space=SHARED<SHARED_REDUCTION>    d, [a], b
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global}.op=exch{.hint=L2::cache_hint}.type=b32|b64|b128
    ...                                                             d, [a], b{if hint, policy:u64}
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}.space=SHARED.op=exch.type=b32|b64|b128  d, [a], b
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global|SHARED}.op=cas.type=BITS|b128  d, [a], b, c
    atom{.sem=relaxed|acquire|release|acq_rel}{.scope=SCOPE}{.space=global}<VECTOR_REDUCTION>
    ...                                                             d*vec, [a], b*vec{if hint, policy:u64}
red  9.7.13.6  Read, modify and write memory atomically. [update]
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global}<REDUCTION>         [a], b{if hint, policy:u64}
    red{.sem=relaxed|release}{.scope=SCOPE}.space=SHARED<SHARED_REDUCTION>    [a], b
    red{.sem=relaxed|release}{.scope=SCOPE}{.space=global}<VECTOR_REDUCTION>  [a], b*vec{if hint, policy:u64}
prefetch  9.7.9.15  Hint: prefetch a cache line.
    prefetch{.space=global|local}.level=L1|L2       [a]
    prefetch{.space=global}.level=L2::evict_last|L2::evict_normal   [a]
    prefetch{.space=const|param}.tensormap          [a]
prefetchu  9.7.9.15  Hint: prefetch a line to the uniform cache.
    prefetchu.level=L1                              [a]
applypriority  9.7.9.16  Hint: change the eviction priority of a line.
    applypriority{.space=global}.level=L2::evict_normal           [a], #size=128
discard  9.7.9.17  Drop a cache line without writing it back.
    discard{.space=global}.level=L2                 [a], #size=128
createpolicy  9.7.9.18  Make a cache policy for L2::cache_hint operands.
    createpolicy.fractional.primary=POLICY{.secondary=L2::evict_first|L2::evict_unchanged}.type=b64  d{, a:f32}
    createpolicy.range{.space=global}.primary=POLICY{.secondary=L2::evict_first|L2::evict_unchanged}.type=b64
    ...    d, [a], b:u32, c:u32
    createpolicy.cvt.L2.type=b64                    d, a:b64
""",
)
