"""Instruction descriptors of tcgen05.mma."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright import types
from warpwright.errors import DescriptorError
from warpwright.layout import InstrDescriptor
from warpwright.layout.instr_descriptor import KINDS

PUBLISHED = [
    (InstrDescriptor("f16", "bf16", "bf16", "f32", 128, 256), 0x08400490),
    (InstrDescriptor("f8f6f4", "e4m3", "e4m3", "f32", 128, 128), 0x08200010),
    (InstrDescriptor("mxf8f6f4", "e4m3", "e4m3", "f32", 128, 128), 0x08A00000),
    (InstrDescriptor("mxf4nvf4", "e2m1", "e2m1", "f32", 128, 128, scale_type="ue4m3"), 0x08200480),
    (InstrDescriptor("f16", "bf16", "bf16", "f32", 256, 256), 0x10400490),
]


@pytest.mark.parametrize(("descriptor", "value"), PUBLISHED)
def test_published_values(descriptor: InstrDescriptor, value: int) -> None:
    assert descriptor.encode() == value
    assert InstrDescriptor.decode(value, descriptor.kind) == descriptor


def test_scalar_types_become_names() -> None:
    descriptor = InstrDescriptor("f16", types.bf16, types.bf16, types.f32, 128, 256)
    assert descriptor.encode() == 0x08400490


@st.composite
def descriptors(draw: st.DrawFn) -> InstrDescriptor:
    kind = draw(st.sampled_from(sorted(KINDS)))
    operand_types, d_types, _ = KINDS[kind]
    scaled, majors = kind.startswith("mx"), ["k"] if kind.startswith("mxf4") else ["k", "mn"]
    a_type = draw(st.sampled_from(sorted(operand_types)))
    b_type = a_type if kind == "f16" else draw(st.sampled_from(sorted(operand_types)))
    d_type = "f32" if a_type == "bf16" else draw(st.sampled_from(sorted(d_types)))
    shared = {
        "m": draw(st.sampled_from([128, 256])),
        "n": draw(st.integers(1, 32)) * 8,
        "negate_a": draw(st.booleans()),
        "negate_b": draw(st.booleans()),
        "a_major": draw(st.sampled_from(majors)),
        "b_major": draw(st.sampled_from(majors)),
        "sparse": draw(st.booleans()),
    }
    if scaled:
        own = {
            "sfa_id": draw(st.integers(0, 3)),
            "sfb_id": draw(st.integers(0, 3)),
            "scale_type": draw(st.sampled_from(["ue8m0", "ue4m3"])) if kind == "mxf4nvf4" else "ue8m0",
            "k96": kind != "mxf8f6f4" and draw(st.booleans()),
        }
    else:
        own = {
            "saturate": kind == "i8" and draw(st.booleans()),
            "sparsity_selector": draw(st.integers(0, 3)),
            "max_shift": draw(st.sampled_from([0, 8, 16, 32])),
        }
    return InstrDescriptor(kind, a_type, b_type, d_type, **shared, **own)


@given(descriptor=descriptors())
def test_decode_inverts_encode(descriptor: InstrDescriptor) -> None:
    assert InstrDescriptor.decode(descriptor.encode(), descriptor.kind) == descriptor


def test_k_of_the_kinds() -> None:
    expected = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
    assert {kind: entry[2] for kind, entry in KINDS.items()} == expected
    dense = PUBLISHED[0][0]
    assert (dense.k, replace(dense, sparse=True).k) == (16, 32)


BF16 = PUBLISHED[0][0]
SHAPES = [
    (BF16, 1, False, True),
    (replace(BF16, m=64, n=8), 1, False, True),
    (replace(BF16, m=64, n=12 * 8), 2, False, False),
    (replace(BF16, m=256), 1, False, False),
    (replace(BF16, m=256), 2, False, True),
    (replace(BF16, m=256, n=24), 2, False, False),
    (replace(BF16, m=32, n=64), 1, True, True),
    (replace(BF16, m=32, n=96), 1, True, False),
    (replace(BF16, m=32, n=64), 1, False, False),
    (InstrDescriptor("i8", "s8", "u8", "s32", 128, 40), 1, False, False),
    (InstrDescriptor("i8", "s8", "u8", "s32", 128, 48), 1, False, True),
    (InstrDescriptor("mxf4", "e2m1", "e2m1", "f32", 128, 64), 1, False, True),
    (InstrDescriptor("f8f6f4", "e4m3", "e4m3", "f32", 128, 24, b_major="mn"), 1, False, False),
]


@pytest.mark.parametrize(("descriptor", "cta_group", "ws", "legal"), SHAPES)
def test_legal_shapes(descriptor: InstrDescriptor, cta_group: int, ws: bool, legal: bool) -> None:
    if legal:
        descriptor.validate(cta_group, ws)
        return
    with pytest.raises(DescriptorError, match=r"^given [MN]=\d+ for tcgen05\.mma"):
        descriptor.validate(cta_group, ws)


def test_an_illegal_shape_lists_the_legal_ones() -> None:
    with pytest.raises(DescriptorError) as caught:
        replace(BF16, m=256).validate(cta_group=1)
    assert str(caught.value) == "given M=256 for tcgen05.mma kind::f16 cta_group::1; expected one of 64, 128"


REFUSED = [
    (replace(BF16, kind="f17"), "given kind 'f17'; expected one of f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4, mxf4nvf4"),
    (replace(BF16, a_type="e4m3"), "given a_type='e4m3' with kind::f16; expected one of 'f16', 'bf16'"),
    (replace(BF16, a_type="f16"), "given a_type='f16' and b_type='bf16'; expected the same type with kind::f16"),
    (replace(BF16, d_type="f16"), "given d_type='f16' with a bf16 operand; expected d_type='f32'; set d_type='f32'"),
    (replace(BF16, n=100), "given n=100 with kind::f16; expected 0 to 504 in steps of 8"),
    (replace(BF16, saturate=True), "given saturate with kind::f16; expected kind::i8; drop saturate"),
    (replace(BF16, b_major="row"), "given b_major='row' with kind::f16; expected one of 'k', 'mn'"),
]


@pytest.mark.parametrize(("descriptor", "message"), REFUSED)
def test_invalid_fields(descriptor: InstrDescriptor, message: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        descriptor.encode()
    assert str(caught.value) == message


def test_types_of_another_kind() -> None:
    with pytest.raises(DescriptorError) as caught:
        InstrDescriptor.decode(0x08400490, "tf32")
    assert str(caught.value) == (
        "given instruction descriptor 0x08400490 with type code 1 for A; expected one of 2 (tf32) with kind::tf32"
    )


def test_reserved_bits() -> None:
    with pytest.raises(DescriptorError) as caught:
        InstrDescriptor.decode(0x08400490 | 1 << 23, "f16")
    assert str(caught.value) == (
        "given instruction descriptor 0x08c00490 for kind::f16 with reserved bits 0x00800000; expected 0 there; "
        "build it with InstrDescriptor(...).encode()"
    )
