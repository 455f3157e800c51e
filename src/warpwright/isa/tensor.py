"""Tensor memory and the fifth-generation tensor core (PTX ISA 9.1 section 9.7.16).

The operand ``a:b64`` of tcgen05.mma is a shared-memory descriptor; each form also takes ``[a]``, A in tensor memory.
"""

from __future__ import annotations

from warpwright.isa.notation import forms

__all__ = ["FORMS"]

_ALLOCATION = forms(
    "the whole warp, converged; with cta_group::2 one warp in each CTA of the pair",
    "return",
    """
tcgen05.alloc  9.7.16.7.1  Allocate tensor memory; write its address to shared memory. [service blocks allocates]
    tcgen05.alloc.group=GROUP.sync.aligned{.space=shared::cta}.type=b32     [dst], ncols:u32=32/64/128/256/512 @ sm_100f
tcgen05.dealloc  9.7.16.7.1  Free columns of tensor memory. [service blocks allocates]
    tcgen05.dealloc.group=GROUP.sync.aligned.type=b32               taddr:u32, ncols:u32=32/64/128/256/512 @ sm_100f
tcgen05.relinquish_alloc_permit  9.7.16.7.1  Let other CTAs allocate tensor memory. [service blocks relinquishes]
    tcgen05.relinquish_alloc_permit.group=GROUP.sync.aligned                                @ sm_100f
""",
)

_LOADS = forms(
    "the whole warp, converged",
    "tcgen05.wait::ld",
    """
tcgen05.ld  9.7.16.8.3  Load from tensor memory into registers. [tmem]
    tcgen05.ld.sync.aligned.shape=16x64b|32x32b.num=NUM{.pack=pack::16b}.type=b32
    ...    d*num, [taddr]   @ sm_100f
    tcgen05.ld.sync.aligned.shape=16x128b.num=NUM64{.pack=pack::16b}.type=b32
    ...    d*num, [taddr]   @ sm_100f
    tcgen05.ld.sync.aligned.shape=16x256b.num=NUM32{.pack=pack::16b}.type=b32
    ...    d*num, [taddr]   @ sm_100f
    tcgen05.ld.sync.aligned.shape=16x32bx2.num=NUM{.pack=pack::16b}.type=b32
    ...    d*num, [taddr], #split   @ sm_100f
tcgen05.ld.red  9.7.16.8.3  Load from tensor memory and reduce along the columns. [tmem]
    tcgen05.ld.red.sync.aligned.shape=32x32b.num=NUM2.op=min|max{.abs}{.NaN}.type=f32
    ...    d*num, redval, [taddr]   @ sm_103a
    tcgen05.ld.red.sync.aligned.shape=16x32bx2.num=NUM2.op=min|max{.abs}{.NaN}.type=f32
    ...    d*num, redval, [taddr], #split   @ sm_103a
    tcgen05.ld.red.sync.aligned.shape=32x32b.num=NUM2.op=min|max.type=u32|s32
    ...    d*num, redval, [taddr]   @ sm_103a
    tcgen05.ld.red.sync.aligned.shape=16x32bx2.num=NUM2.op=min|max.type=u32|s32
    ...    d*num, redval, [taddr], #split   @ sm_103a
""",
)

_STORES = forms(
    "the whole warp, converged",
    "tcgen05.wait::st",
    """
tcgen05.st  9.7.16.8.4  Store registers to tensor memory. [tmem]
    tcgen05.st.sync.aligned.shape=16x64b|32x32b.num=NUM{.unpack=unpack::16b}.type=b32
    ...    [taddr], b*num   @ sm_100f
    tcgen05.st.sync.aligned.shape=16x128b.num=NUM64{.unpack=unpack::16b}.type=b32
    ...    [taddr], b*num   @ sm_100f
    tcgen05.st.sync.aligned.shape=16x256b.num=NUM32{.unpack=unpack::16b}.type=b32
    ...    [taddr], b*num   @ sm_100f
    tcgen05.st.sync.aligned.shape=16x32bx2.num=NUM{.unpack=unpack::16b}.type=b32
    ...    [taddr], #split, b*num   @ sm_100f
""",
)

_WAITS = forms(
    "the whole warp, converged",
    "return",
    """
tcgen05.wait::ld  9.7.16.8.5  Wait for all tcgen05.ld of this thread. [tmem blocks]
    tcgen05.wait::ld.sync.aligned                                                       @ sm_100f
tcgen05.wait::st  9.7.16.8.5  Wait for all tcgen05.st of this thread. [tmem blocks]
    tcgen05.wait::st.sync.aligned                                                       @ sm_100f
""",
)

_FENCES = forms(
    "each active lane",
    "return",
    """
tcgen05.fence::before_thread_sync  9.7.16.11.1  Order prior tcgen05 operations before a later synchronisation. [tensor]
    tcgen05.fence::before_thread_sync                                                   @ sm_100f
tcgen05.fence::after_thread_sync  9.7.16.11.1  Order later tcgen05 operations after a prior synchronisation. [tensor]
    tcgen05.fence::after_thread_sync                                                    @ sm_100f
""",
)

_OPERATIONS = forms(
    "one thread",
    "tcgen05.commit",
    """
tcgen05.cp  9.7.16.9.2  Copy from shared memory to tensor memory. [tensor async]
    tcgen05.cp.group=GROUP.shape=128x256b|4x256b|128x128b{.dst_fmt=b8x16.src_fmt=b6x16_p32|b4x16_p64}
    ...    [taddr], desc:b64   @ sm_100f
    tcgen05.cp.group=GROUP.shape=64x128b.multicast=warpx2::02_13|warpx2::01_23{.dst_fmt=b8x16.src_fmt=b6x16_p32|b4x16_p64}
    ...    [taddr], desc:b64   @ sm_100f
    tcgen05.cp.group=GROUP.shape=32x128b.multicast=warpx4{.dst_fmt=b8x16.src_fmt=b6x16_p32|b4x16_p64}
    ...    [taddr], desc:b64   @ sm_100f
tcgen05.shift  9.7.16.9.3  Move rows of tensor memory down by one lane. [tensor async]
    tcgen05.shift.group=GROUP.down                                                      [taddr]  @ sm_100a sm_103a
tcgen05.mma  9.7.16.10.9.1  Multiply matrices of shared or tensor memory, accumulate in tensor memory. [tensor async]
    tcgen05.mma.group=GROUP.kind=kind::f16|kind::tf32{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred{, #scale_input_d}@ sm_100f
    tcgen05.mma.group=GROUP.kind=kind::f8f6f4{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred   @ sm_100f
    tcgen05.mma.group=GROUP.kind=kind::f16|kind::tf32.ashift{.collector=collector::a::discard|collector::a::lastuse}
    ...    [d], [a], b:b64, idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred{, #scale_input_d}@ sm_100f
    tcgen05.mma.group=GROUP.kind=kind::f8f6f4.ashift{.collector=collector::a::discard|collector::a::lastuse}
    ...    [d], [a], b:b64, idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred   @ sm_100f
    tcgen05.mma.group=GROUP.kind=kind::i8.ashift{.collector=collector::a::discard|collector::a::lastuse}
    ...    [d], [a], b:b64, idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred   @ sm_100a
    tcgen05.mma.group=GROUP.kind=kind::i8{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred   @ sm_100a
    tcgen05.mma.group=GROUP.kind=kind::mxf8f6f4|kind::mxf4.block_scale{.scale=block32}{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32, [scale_a], [scale_b], enable_input_d:pred   @ sm_100f 8.8
    tcgen05.mma.group=GROUP.kind=kind::mxf4nvf4.block_scale.scale=block16|block32{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32, [scale_a], [scale_b], enable_input_d:pred   @ sm_100f 8.8
    tcgen05.mma.group=GROUP.kind=kind::mxf8f6f4.block_scale.scale=scale_vec::1X{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32, [scale_a], [scale_b], enable_input_d:pred   @ sm_100a sm_103a
    tcgen05.mma.group=GROUP.kind=kind::mxf4.block_scale.scale=scale_vec::2X{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32, [scale_a], [scale_b], enable_input_d:pred   @ sm_100a sm_103a
    tcgen05.mma.group=GROUP.kind=kind::mxf4nvf4.block_scale.scale=scale_vec::2X|scale_vec::4X{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, idesc:u32, [scale_a], [scale_b], enable_input_d:pred   @ sm_100a sm_103a 8.7
tcgen05.mma.sp  9.7.16.10.9.2  Multiply matrices, A sparse, accumulate in tensor memory. [tensor async]
    tcgen05.mma.sp.group=GROUP.kind=kind::f16|kind::tf32{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, [meta], idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred
    ...{, #scale_input_d}   @ sm_100f
    tcgen05.mma.sp.group=GROUP.kind=kind::f8f6f4{.collector=COLLECTOR_A}
    ...    [d], a:b64, b:b64, [meta], idesc:u32{, disable_output_lane:b32*lanes}, enable_input_d:pred   @ sm_100f
tcgen05.mma.ws  9.7.16.10.9.3  Multiply matrices, weights stationary, accumulate in tensor memory. [tensor async]
    tcgen05.mma.ws.group=cta_group::1.kind=kind::f16|kind::tf32|kind::f8f6f4{.collector=COLLECTOR_B}
    ...    [d], a:b64, b:b64, idesc:u32, enable_input_d:pred{, zero_columns:b64}   @ sm_100f
    tcgen05.mma.ws.group=cta_group::1.kind=kind::i8{.collector=COLLECTOR_B}
    ...    [d], a:b64, b:b64, idesc:u32, enable_input_d:pred{, zero_columns:b64}   @ sm_100a
""",
)

_COMMIT = forms(
    "one thread",
    "mbarrier arrive",
    """
tcgen05.commit  9.7.16.12.1  Arrive at an mbarrier when this thread's mma, cp and shift are complete. [tensor async]
    tcgen05.commit.group=GROUP.mbarrier::arrive::one{.space=shared::cluster}.type=b64
    ...    [mbar]   @ sm_100f
    tcgen05.commit.group=GROUP.mbarrier::arrive::one{.space=shared::cluster}.multicast=multicast::cluster.type=b64
    ...    [mbar], mask:u16   @ sm_100f
""",
)

FORMS = _ALLOCATION + _LOADS + _STORES + _WAITS + _FENCES + _OPERATIONS + _COMMIT
