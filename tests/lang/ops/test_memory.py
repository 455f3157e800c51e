"""Loads, stores and atomics through pointers, and warp operations: each call emits one instruction."""

from __future__ import annotations

import pytest

from tests.lang.helpers import code, misuse
from warpwright.lang import (
    Global,
    Pointer,
    activemask,
    atom,
    b16,
    b32,
    bf16,
    clock64,
    cluster,
    cluster_nctaid,
    ctaid,
    e4m3,
    f16,
    f32,
    globaltimer,
    kernel,
    lanemask_lt,
    ld,
    match,
    nctaid,
    ntid,
    red,
    redux,
    s32,
    s64,
    shfl,
    smem,
    smid,
    st,
    tid,
    u8,
    u16,
    u32,
    u64,
    vote,
    warp,
)


def emit(body, type=u32, arch="sm_90a"):
    """Returns the instructions of ``body(x, i)``: a pointer to ``type`` and a u32."""

    @kernel(arch, threads=64)
    def probe(x: Global[type], i: u32):
        body(x, i)

    return code(probe)


LOADS = [
    (lambda x, i: ld(x), u32, ["ld.global.u32 %r0, [%rd0]"]),
    (lambda x, i: ld(x + 3), u16, ["ld.global.u16 %rs0, [%rd0+6]"]),
    (lambda x, i: ld(x - 1), f16, ["ld.global.b16 %h0, [%rd0+-2]"]),
    (lambda x, i: ld(x + i + 2), bf16, ["mad.wide.u32 %rd1, %r0, 2, %rd0", "ld.global.b16 %h0, [%rd1+4]"]),
    (lambda x, i: ld(x + i), e4m3, ["mad.wide.u32 %rd1, %r0, 1, %rd0", "ld.global.b8 %rs0, [%rd1]"]),
    (lambda x, i: x[i.to(s32)], f32, ["mad.wide.s32 %rd1, %r0, 4, %rd0", "ld.global.f32 %f0, [%rd1]"]),
    (lambda x, i: ld(x, vec=4), f32, ["ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd0]"]),
    (lambda x, i: ld(x.cast(b32), vec=2), bf16, ["ld.global.v2.b32 {%r0, %r1}, [%rd0]"]),
    (lambda x, i: ld(x, nc=True), f32, ["ld.global.nc.f32 %f0, [%rd0]"]),
    (lambda x, i: ld(x, nc=True, cache="L1::no_allocate"), f32, ["ld.global.nc.L1::no_allocate.f32 %f0, [%rd0]"]),
    (lambda x, i: ld(x, cache="cg"), f32, ["ld.global.cg.f32 %f0, [%rd0]"]),
    (lambda x, i: ld(x, sem="acquire", scope="gpu"), u32, ["ld.acquire.gpu.global.u32 %r0, [%rd0]"]),
    (lambda x, i: ld(x, sem="volatile"), u32, ["ld.volatile.global.u32 %r0, [%rd0]"]),
]


@pytest.mark.parametrize(("body", "type", "expected"), LOADS)
def test_loads(body, type, expected):
    assert emit(body, type) == expected


STORES = [
    (lambda x, i: st(x + 1, 7), u32, ["st.global.u32 [%rd0+4], 7"]),
    (lambda x, i: st(x, 1.0, 2.0), f32, ["st.global.v2.f32 [%rd0], {0f3F800000, 0f40000000}"]),
    (lambda x, i: st(x, i.to(u8)), u8, ["cvt.u8.u32 %rs0, %r0", "st.global.u8 [%rd0], %rs0"]),
    (lambda x, i: st(x, i, sem="release", scope="sys"), u32, ["st.release.sys.global.u32 [%rd0], %r0"]),
    (lambda x, i: st(x, i, cache="cs"), u32, ["st.global.cs.u32 [%rd0], %r0"]),
    (lambda x, i: atom.add(x, i), u32, ["atom.global.add.u32 %r1, [%rd0], %r0"]),
    (lambda x, i: atom.add(x, 2), s64, ["atom.global.add.u64 %rd1, [%rd0], 2"]),
    (lambda x, i: atom.add(x, 2.0), f16, ["mov.b16 %h0, 0x4000", "atom.global.add.noftz.f16 %h1, [%rd0], %h0"]),
    (lambda x, i: atom.min(x, 2), s32, ["atom.global.min.s32 %r0, [%rd0], 2"]),
    (lambda x, i: atom.exch(x, i), u32, ["atom.global.exch.b32 %r1, [%rd0], %r0"]),
    (lambda x, i: atom.cas(x, 1, 2), u64, ["atom.global.cas.b64 %rd1, [%rd0], 1, 2"]),
    (lambda x, i: atom.inc(x, 9), u32, ["atom.global.inc.u32 %r0, [%rd0], 9"]),
    (lambda x, i: atom.dec(x, 9), u32, ["atom.global.dec.u32 %r0, [%rd0], 9"]),
    (lambda x, i: atom.or_(x, 9, sem="acq_rel", scope="cta"), u32, ["atom.acq_rel.cta.global.or.b32 %r0, [%rd0], 9"]),
    (lambda x, i: atom.and_(x, i), u32, ["atom.global.and.b32 %r1, [%rd0], %r0"]),
    (lambda x, i: red.add(x, 1.0), f32, ["red.global.add.f32 [%rd0], 0f3F800000"]),
    (lambda x, i: red.add(x, 1.0, 2.0), f32, ["red.global.add.v2.f32 [%rd0], {0f3F800000, 0f40000000}"]),
    (lambda x, i: red.max(x, i, sem="release", scope="gpu"), u32, ["red.release.gpu.global.max.u32 [%rd0], %r0"]),
    (lambda x, i: red.xor(x, i), u32, ["red.global.xor.b32 [%rd0], %r0"]),
]


@pytest.mark.parametrize(("body", "type", "expected"), STORES)
def test_stores_and_atomics(body, type, expected):
    assert emit(body, type) == expected


def test_an_element_may_be_read_changed_and_written():
    def body(x, i):
        x[i] += 1

    assert emit(body) == [
        "mad.wide.u32 %rd1, %r0, 4, %rd0",
        "ld.global.u32 %r1, [%rd1]",
        "add.u32 %r2, %r1, 1",
        "st.global.u32 [%rd1], %r2",
    ]


def test_long_indices_address_more_than_4_gib():
    assert emit(lambda x, i: ld(x + i.to(u64) * 3), f32)[:3] == [
        "cvt.u64.u32 %rd1, %r0",
        "mul.lo.u64 %rd2, %rd1, 3",
        "mad.lo.u64 %rd3, %rd2, 4, %rd0",
    ]


def test_shared_and_remote_and_generic_pointers():
    def body(x, i):
        s = smem.array(f32, 16)
        s[i] = 1.0
        remote = Pointer(f32, cluster.map(s.address, 1), space="shared::cluster")
        st(remote + 2, ld(remote))
        red.add(smem.scalar(u32), 1)
        st(Pointer(f32, x.address, space=""), 2.0)

    assert emit(body, f32) == [
        "mov.u32 %r1, __smem",
        "mad.lo.u32 %r2, %r0, 4, %r1",
        "st.shared.f32 [%r2], 0f3F800000",
        "mapa.shared::cluster.u32 %r3, %r1, 1",
        "ld.shared::cluster.f32 %f0, [%r3]",
        "st.shared::cluster.f32 [%r3+8], %f0",
        "red.shared.add.u32 [%r1+64], 1",
        "st.f32 [%rd0], 0f40000000",
    ]


WARP = [
    (lambda i: shfl.bfly(i, 16), "shfl.sync.bfly.b32 %r1, %r0, 16, 31, 0xffffffff"),
    (lambda i: shfl.idx(i, 0, width=8), "shfl.sync.idx.b32 %r1, %r0, 0, 6175, 0xffffffff"),
    (lambda i: shfl.up(i, 1), "shfl.sync.up.b32 %r1, %r0, 1, 0, 0xffffffff"),
    (lambda i: shfl.down(i, i, mask=0xFF), "shfl.sync.down.b32 %r1, %r0, %r0, 31, 255"),
    (lambda i: vote.all(i > 3).to(u32), "vote.sync.all.pred %p1, %p0, 0xffffffff"),
    (lambda i: vote.any(i > 3).to(u32), "vote.sync.any.pred %p1, %p0, 0xffffffff"),
    (lambda i: vote.ballot(i > 3).bitcast(u32), "vote.sync.ballot.b32 %r1, %p0, 0xffffffff"),
    (lambda i: match.any(i).bitcast(u32), "match.any.sync.b32 %r1, %r0, 0xffffffff"),
    (lambda i: match.all(i).bitcast(u32), "match.all.sync.b32 %r1, %r0, 0xffffffff"),
    (lambda i: redux.add(i), "redux.sync.add.u32 %r1, %r0, 0xffffffff"),
    (lambda i: redux.min(i), "redux.sync.min.u32 %r1, %r0, 0xffffffff"),
    (lambda i: activemask().bitcast(u32), "activemask.b32 %r0"),
    (lambda i: warp.lane, "mov.u32 %r0, %laneid"),
    (lambda i: lanemask_lt(), "mov.u32 %r0, %lanemask_lt"),
    (lambda i: smid(), "mov.u32 %r0, %smid"),
    (lambda i: nctaid.y, "mov.u32 %r0, %nctaid.y"),
    (lambda i: (clock64() + globaltimer()).to(u32), "mov.u64 %rd2, %globaltimer"),
]


@pytest.mark.parametrize(("body", "expected"), WARP)
def test_operations_of_a_warp(body, expected):
    def kernel_body(x, i):
        x[0] = body(i)

    lines = emit(kernel_body)
    assert expected in lines


def test_float_redux_is_for_blackwell():
    def body(x, i):
        x[0] = redux.max(x[1])

    assert "redux.sync.max.f32 %f1, %f0, 0xffffffff" in emit(body, f32, "sm_100a")


def test_long_and_short_values_travel_through_shuffles():
    assert emit(lambda x, i: st(x, shfl.bfly(x[0], 1)), u64) == [
        "ld.global.u64 %rd1, [%rd0]",
        "mov.b64 {%r0, %r1}, %rd1",
        "shfl.sync.bfly.b32 %r2, %r0, 1, 31, 0xffffffff",
        "shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xffffffff",
        "mov.b64 %rd2, {%r2, %r3}",
        "st.global.u64 [%rd0], %rd2",
    ]
    assert "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffffffff" in emit(lambda x, i: st(x, shfl.bfly(x[0], 1)), bf16)


def test_what_the_directives_fix_is_a_python_int():
    seen = []
    emit(lambda x, i: seen.extend([ntid.x, ntid.y, cluster_nctaid.x]))
    assert seen == [64, 1, 1]


def test_special_registers_are_read_once():
    assert emit(lambda x, i: st(x, tid.x + tid.x + ctaid.y)) == [
        "mov.u32 %r0, %tid.x",
        "add.u32 %r1, %r0, %r0",
        "mov.u32 %r2, %ctaid.y",
        "add.u32 %r3, %r1, %r2",
        "st.global.u32 [%rd0], %r3",
    ]


def refusal(body, type=u32):
    @kernel("sm_90a", threads=64)
    def probe(x: Global[type], i: u32, f: f32):
        body(x, i, f)

    return misuse(probe)


def test_misuse_of_memory_is_refused():
    assert refusal(lambda x, i, f: ld(i)) == (  # wrong
        "given %r0 (u32) to ld; expected a pointer: a Global[T] parameter, smem.array(…), or one of them + i"
    )
    assert refusal(lambda x, i, f: atom.add(i, 1)) == (  # wrong
        "given %r0 (u32) to atom.add; expected a pointer: a Global[T] parameter, smem.array(…), or one of them + i"
    )
    assert refusal(lambda x, i, f: red.add(x, i, 1)) == (  # wrong
        "given 2 values of u32 in global memory to red.add; expected one value, or 2 or 4 of f32 in global memory"
    )
    assert refusal(lambda x, i, f: ld(x, vec=3)) == (  # wrong
        "given vec=3 of u32; expected 1, 2, 4 or 8 elements and at most 32 bytes: "
        "x.cast(b32) moves narrow elements in wider ones"
    )
    assert refusal(lambda x, i, f: st(x, f)) == "given %f0 (f32) where u32 is expected; write x.to(u32)"  # wrong
    assert refusal(lambda x, i, f: x + f) == (  # wrong
        "given index %f0 (f32); expected an int or a run-time integer such as u32"
    )
    assert refusal(lambda x, i, f: x - i).endswith("expected an int: write x + (-i) with a signed i")  # wrong
    assert refusal(lambda x, i, f: Pointer(u32, i)) == (  # wrong
        "given %r0 (u32) as an address in generic space; expected u64"
    )


def test_misuse_of_warp_operations_is_refused():
    assert refusal(lambda x, i, f: shfl.idx(i, 0, width=12)) == (  # wrong
        "given width=12 to shfl.idx; expected a power of two from 1 to 32"
    )
    assert refusal(lambda x, i, f: shfl.idx(3, 0)) == (  # wrong
        "given 3 to shfl.idx; expected a run-time value of 16, 32 or 64 bits"
    )
    assert refusal(lambda x, i, f: redux.add(i.to(u64))) == (  # wrong
        "given %rd1 (u64) to redux.add; expected a run-time u32 or s32: convert with x.to(u32)"
    )
    assert refusal(lambda x, i, f: vote.any(i)) == "given %r0 (u32) where pred is expected; write x.to(pred)"  # wrong


def test_raw_bits_are_stored_as_they_are():
    assert emit(lambda x, i: st(x, 0xBEEF), b16) == ["st.global.b16 [%rd0], 48879"]
