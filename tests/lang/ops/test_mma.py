"""The PTX of mma.sync, ldmatrix, stmatrix and griddepcontrol, and errors."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit, opcodes
from warpwright.errors import KernelError
from warpwright.lang import (
    bf16,
    e2m1x2,
    e4m3,
    e5m2,
    f16,
    f16x2,
    f32,
    griddepcontrol,
    ldmatrix,
    mma,
    movmatrix,
    pack_narrow,
    s8,
    s32,
    smem,
    st,
    stmatrix,
    tf32,
    u8,
    u32,
    ue4m3,
    ue8m0,
)

TYPES = [
    (f32, bf16, bf16, 4, "m16n8k16.row.col.f32.bf16.bf16.f32"),
    (f32, bf16, bf16, 2, "m16n8k8.row.col.f32.bf16.bf16.f32"),
    (f32, f16, f16, 4, "m16n8k16.row.col.f32.f16.f16.f32"),
    (f16, f16, f16, 4, "m16n8k16.row.col.f16.f16.f16.f16"),
    (f16, f16, f16, 2, "m16n8k8.row.col.f16.f16.f16.f16"),
    (f32, tf32, tf32, 4, "m16n8k8.row.col.f32.tf32.tf32.f32"),
    (f32, e4m3, e5m2, 4, "m16n8k32.row.col.f32.e4m3.e5m2.f32"),
    (f16, e5m2, e5m2, 4, "m16n8k32.row.col.f16.e5m2.e5m2.f16"),
    (f32, e4m3, e4m3, 2, "m16n8k16.row.col.f32.e4m3.e4m3.f32"),
    (s32, s8, u8, 4, "m16n8k32.row.col.s32.s8.u8.s32"),
    (s32, u8, u8, 2, "m16n8k16.row.col.s32.u8.u8.s32"),
]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize(("d", "a", "b", "count", "opcode"), TYPES, ids=[row[-1] for row in TYPES])
def test_every_kind_of_mma(d, a, b, count, opcode, arch) -> None:
    def body(tensor, x, n):
        acc = mma.accumulator(d)
        assert [register.type for register in acc.regs] == ([f16x2] * 2 if d is f16 else [d] * 4)
        mma.sync(acc, mma.left(a, [n] * count), mma.right(b, [n] * (count // 2)))

    lines = emit(body, arch=arch)
    sums = f"{{{', '.join(line.split()[1].rstrip(',') for line in lines if line.startswith('mov'))}}}"
    a_regs, b_regs = (f"{{{', '.join(['%r0'] * number)}}}" for number in (count, count // 2))
    assert lines[-1] == f"mma.sync.aligned.{opcode} {sums}, {a_regs}, {b_regs}, {sums}"


def test_saturation() -> None:
    def body(a, x, n):
        mma.sync(mma.accumulator(s32), mma.left(s8, [n] * 4), mma.right(s8, [n] * 2), satfinite=True)

    assert ".row.col.satfinite.s32.s8.s8.s32 {" in emit(body)[-1]


def test_matrices_move_between_shared_memory_and_registers() -> None:
    def body(a, x, n):
        tile = smem.tile(f16, (16, 64), swizzle=128)
        loaded = ldmatrix(tile.at(n, 0), 4)
        ldmatrix(tile.at(n, 8), 2, trans=True)
        stmatrix(tile.at(n, 16), loaded)
        stmatrix(tile.at(n, 24), loaded[:1], trans=True)
        movmatrix(loaded[0])

    found = [code for code in opcodes(emit(body)) if "matrix" in code]
    assert found == [
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16",
        "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16",
        "movmatrix.sync.aligned.m8n8.trans.b16",
    ]


def test_dependent_grids() -> None:
    def body(a, x, n):
        griddepcontrol.wait()
        griddepcontrol.launch_dependents()

    assert emit(body, arch="sm_90a") == ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]


def multiply(n, d=f32, a=bf16, b=bf16, left=4, right=2, **options):
    mma.sync(mma.accumulator(d), mma.left(a, [n] * left), mma.right(b, [n] * right), **options)


MISUSES = [
    (lambda x, n: mma.accumulator(bf16), "given an mma accumulator of bf16; expected f32, f16 or s32"),
    (
        lambda x, n: mma.left(f32, [n] * 4),
        "given A of f32 to mma; expected one of f16, bf16, tf32, e4m3, e5m2, s8, u8, e2m1x2",
    ),
    (lambda x, n: mma.left(tf32, [n] * 2), "given 2 registers for A of mma in tf32; expected 4"),
    (lambda x, n: mma.right(bf16, [n] * 4), "given 4 registers for B of mma in bf16; expected 1 or 2"),
    (
        lambda x, n: mma.right(bf16, [1.0]),
        "given 1.0 as a register of B of mma in bf16; expected a run-time value of 32 bits: pack narrower elements, "
        "as in pack(bf16x2, lo, hi)",
    ),
    (
        lambda x, n: multiply(n, b=f16),
        "given a of bf16, b of f16 and sums of f32 to mma.sync; expected for a of bf16: b of bf16, sums of f32",
    ),
    (
        lambda x, n: multiply(n, left=2),
        "given a (16, 8), b (16, 8) and sums (16, 8) to mma.sync; expected (16, K), (K, 8) and (16, 8): mma.left, "
        "mma.right and mma.accumulator",
    ),
    (
        lambda x, n: multiply(n, satfinite=True),
        "given satfinite=True for sums of f32; expected an accumulator of s32",
    ),
    (
        lambda x, n: ldmatrix(smem.array(f16, 64), 3),
        "given num=3 to ldmatrix; expected 1, 2 or 4 matrices",
    ),
    (
        lambda x, n: ldmatrix(x, 1),
        "given Pointer[f32] in global memory at %rd2 (u64)+0 to ldmatrix; expected the row's address in shared memory: "
        "tile.at(row, column) or a pointer from smem.array",
    ),
    (
        lambda x, n: stmatrix(smem.array(f16, 64), [n] * 3),
        "given 3 registers for stmatrix; expected 1, 2 or 4",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), MISUSES, ids=[sentence[:50] for _, sentence in MISUSES])
def test_misuse_is_named(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        emit(lambda a, x, n: call(x, n))
    assert str(caught.value).endswith(f": {sentence}")


SCALED = [
    (e4m3, e5m2, ue8m0, 32, 3, "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e5m2.f32.ue8m0"),
    (e2m1x2, e2m1x2, ue8m0, 32, 2, "m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"),
    (e2m1x2, e2m1x2, ue4m3, 16, 0, "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"),
]


@pytest.mark.parametrize(("a", "b", "scale", "block", "first", "opcode"), SCALED, ids=[row[-1] for row in SCALED])
def test_every_kind_with_block_scales(a, b, scale, block: int, first: int, opcode: str) -> None:
    def body(tensor, x, n):
        operands = mma.accumulator(f32), mma.left(a, [n] * 4), mma.right(b, [n] * 2)
        mma.block_scale(*operands, n, n, scale, block=block, first=first, lanes_a=1, lane_b=2)

    line = emit(body, arch="sm_120a")[-1]
    assert line.startswith(f"mma.sync.aligned.{opcode} {{")
    assert line.endswith(f"}}, {{%r0}}, {{{first}, 1}}, {{%r0}}, {{{first}, 2}}")


def block_scale(a=e4m3, b=e4m3, count=4, scale=ue8m0, sums=f32, **options):
    def body(tensor, x, n):
        operands = mma.accumulator(sums), mma.left(a, [n] * count), mma.right(b, [n] * (count // 2))
        mma.block_scale(*operands, n, n, scale, **options)

    return body


SCALED_TYPES = "expected e4m3 or e5m2 with ue8m0 for 32, or two of e2m1x2 with ue8m0 for 32 or ue4m3 for 16"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            block_scale(b=e2m1x2),
            f"given a of e4m3, b of e2m1x2 and scale factors of ue8m0 for 32 elements; {SCALED_TYPES}",
        ),
        (
            block_scale(e2m1x2, e2m1x2, block=16),
            f"given a of e2m1x2, b of e2m1x2 and scale factors of ue8m0 for 16 elements; {SCALED_TYPES}",
        ),
        (
            block_scale(s8, s8),
            f"given a of s8, b of s8 and scale factors of ue8m0 for 32 elements; {SCALED_TYPES}",
        ),
        (
            block_scale(count=2),
            "given a (16, 16), b (16, 8) and sums (16, 8) of f32 to mma.block_scale; expected (16, 32), (32, 8) and "
            "(16, 8) of f32",
        ),
        (
            block_scale(e2m1x2, e2m1x2, first=1),
            "given first=1, lanes_a=0 and lane_b=0 for 2 scale factors; expected a multiple of 2 below 4, 0 or 1, and "
            "0 to 3",
        ),
        (
            block_scale(lanes_a=2),
            "given first=0, lanes_a=2 and lane_b=0 for 1 scale factors; expected a multiple of 1 below 4, 0 or 1, and "
            "0 to 3",
        ),
        (
            lambda t, x, n: mma.sync(mma.accumulator(f32), mma.left(e2m1x2, [n] * 4), mma.right(e2m1x2, [n] * 2)),
            "given a of e2m1x2 to mma.sync; expected mma.block_scale, which multiplies e2m1x2",
        ),
    ],
)
def test_misuse_of_block_scales_is_named(body, sentence: str) -> None:
    with pytest.raises(KernelError) as raised:
        emit(body, arch="sm_120a")
    assert str(raised.value).split(": ", 1)[1] == sentence


def test_narrow_floats_are_packed_into_words() -> None:
    def body(a, x, n):
        st(x.cast(u32), pack_narrow(e4m3, *[n.bitcast(f32)] * 4))
        st(x.cast(u32), pack_narrow(e2m1x2, *[n.bitcast(f32)] * 8))
        st(x.cast(u32), pack_narrow(e5m2, *[n.bitcast(f16x2)] * 2))

    found = [line.split()[0] for line in emit(body, arch="sm_120a") if not line.startswith(("st", "mov"))]
    assert found == [f"cvt.rn.satfinite.{each}" for each in ("e4m3x2.f32", "e2m1x2.f32", "e5m2x2.f16x2")]


@pytest.mark.parametrize(
    "call",
    [
        lambda n: pack_narrow(e5m2, n, n),
        lambda n: pack_narrow(s8, *[n.bitcast(f32)] * 4),
        lambda n: pack_narrow(e2m1x2, *[n.bitcast(f16x2)] * 2),
        lambda n: pack_narrow(e4m3, *[n.bitcast(f16x2)] * 4),
        lambda n: pack_narrow(e4m3),
    ],
)
def test_other_numbers_and_types_are_not_packed(call) -> None:
    with pytest.raises(KernelError) as raised:
        emit(lambda a, x, n: call(n), arch="sm_120a")
    assert str(raised.value).endswith("; expected four f32 or two f16x2 for e4m3 and e5m2, eight f32 for e2m1x2")
