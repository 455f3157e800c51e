"""The parameter buffer of a prepared kernel."""

from __future__ import annotations

import struct

import pytest

from warpwright.cuda.function import layout, packed
from warpwright.launch import load_ptx
from warpwright.ptx.nodes import Variable
from warpwright.vgpu.decode import decode


def param(type: str, *dims: int, align: int | None = None, vector: int = 1) -> Variable:
    return Variable("param", type, "p", dims=dims, align=align, vector=vector)


def test_parameters_stand_at_their_alignment() -> None:
    form, offsets = layout(
        [param("u8"), param("f64"), param("u16"), param("f32"), param("b8", 128, align=64), param("u32")]
    )
    assert offsets == [0, 8, 16, 20, 64, 192]
    data = form.pack(7, -2.5, 513, 1.5, bytes(range(128)), 0xDEADBEEF)
    assert len(data) == 196
    assert (data[0], data[16:18]) == (7, b"\x01\x02")
    assert struct.unpack_from("<d", data, 8) == (-2.5,)
    assert struct.unpack_from("<f", data, 20) == (1.5,)
    assert data[64:192] == bytes(range(128))
    assert data[192:] == b"\xef\xbe\xad\xde"


def test_vectors_and_arrays_are_bytes() -> None:
    form, offsets = layout([param("f32"), param("f32", vector=4), param("u64", 3)])
    assert offsets == [0, 16, 32]
    assert form.pack(0.0, bytes(16), bytes(24)) == bytes(56)


def test_no_parameters() -> None:
    form, offsets = layout([])
    assert (form.size, offsets, form.pack()) == (0, [], b"")


def test_the_virtual_gpu_lays_them_out_alike() -> None:
    names = ("u8 a", "u64 b", "b16 c", "f32 d", "u8 e", "f64 f")
    declared = ", ".join(f".param .{name}" for name in names) + ", .param .align 64 .b8 g[128], .param .u16 h"
    module = load_ptx(f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k({declared})\n{{\n ret;\n}}\n")
    program = decode(module.module, "k")
    assert layout(module["k"].function.params)[1] == [each.offset for each in program.params]


def test_negative_integers_become_their_twos_complement() -> None:
    form, _ = layout([param("u32"), param("s64"), param("f32"), param("b16"), param("b8", 3)])
    values = (-1, -2, -1.5, -3, b"abc")
    with pytest.raises(struct.error):
        form.pack(*values)
    assert packed(form, values) == [0xFFFFFFFF, 2**64 - 2, -1.5, 0xFFFD, b"abc"]
