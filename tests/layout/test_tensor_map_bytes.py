"""The 128 bytes of a tensor map: as the driver writes them, and both ways."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.errors import UsageError
from warpwright.layout.tensor_map import TensorMap
from warpwright.layout.tensor_map_bytes import FIELDS, MapFields, decode, encode, fields_of, replace, tensor_of
from warpwright.types import b4x16, b6x16_p32, tf32


@st.composite
def maps(draw: st.DrawFn) -> MapFields:
    """Draws fields of every value that has bits."""
    rank = draw(st.integers(1, 5))

    def value(name: str) -> Any:
        field = FIELDS[name]
        each = st.integers(field.less, field.largest // field.unit).map(lambda n: n * field.unit)
        count = rank - (name == "strides")
        return draw(st.lists(each, min_size=count, max_size=count).map(tuple) if field.axes else each)

    return MapFields(
        **{name: value(name) for name in FIELDS} | {"rank": rank, "version": draw(st.sampled_from((0, 2)))}
    )


@given(maps())
def test_decode_reverses_encode(fields: MapFields) -> None:
    assert decode(encode(fields)) == fields
    assert encode(decode(encode(fields))) == encode(fields)


def test_no_two_fields_share_a_bit() -> None:
    """Every field at its largest value sets as many bits as the fields have."""
    number = 0
    for field in FIELDS.values():
        for axis in range(field.axes or 1):
            number = field.write(number, field.largest, axis)
    widths = [sum(width for _, width, _ in field.parts) * (field.axes or 1) for field in FIELDS.values()]
    assert number.bit_count() == sum(widths)


# The first 16 words of maps over address 0x7f1234567800 that CuTe DSL 4.8.1 wrote; it promotes to 128 bytes.
WRITTEN = {
    "34567800 7f12 246512 40 0 0 0 0 1ff ff 0 0 0 3f000000 3f 0": {
        "type": 10, "strides": (1024,), "dims": (512, 256), "box": (64, 64), "swizzle": 3,
    },
    "34567800 7f12 240332 40 20000 0 0 200 1ff ff 6 2 0 1f000000 13f 0": {
        "type": 6, "strides": (1024, 1 << 21, 1 << 37), "dims": (512, 256, 7, 3), "box": (32, 64, 2, 1),
    },
    "34567800 7f12 250392 80 0 0 0 0 1ff ff 0 0 0 1f000000 3f 0": {
        "type": 7, "tf32": 1, "strides": (2048,), "dims": (512, 256), "box": (32, 64),
    },
    "34567800 7f12 240492 100 0 0 0 0 1ff ff 0 0 0 1f000000 3f 0": {
        "type": 9, "strides": (4096,), "dims": (512, 256), "box": (32, 64),
    },
}  # fmt: skip


@pytest.mark.parametrize("words", WRITTEN)
def test_maps_of_cute_dsl(words: str) -> None:
    """What follows the first half is what was in memory before."""
    raw = b"".join(int(word, 16).to_bytes(4, "little") for word in words.split())
    given: dict[str, Any] = WRITTEN[words]
    rank = len(given["dims"])
    expected = MapFields(0x7F12_3456_7800, rank, **given, steps=(1,) * rank, l2_promotion=2, flag=1, version=2)
    assert decode(raw + bytes(range(64))) == expected
    assert encode(expected)[:64] == raw


MATRIX = np.zeros((64, 128), ml_dtypes.bfloat16)
MAPS = [
    TensorMap(MATRIX, (8, 64), swizzle=128, l2_promotion=256, fill="nan"),
    TensorMap(MATRIX.view(np.float32), (8, 16), swizzle=64, element_strides=(2, 1), dtype=tf32),
    TensorMap(np.zeros((4, 8, 16), np.uint16), (1, 8, 8), interleave="16B"),
    TensorMap(np.zeros(4096, np.float64), (256,)),
    TensorMap(MATRIX, (8, 64), swizzle="128B_ATOM_32B"),
    TensorMap(
        MATRIX.view(np.uint8), (8, 128), swizzle="128B_ATOM_64B", dtype=b6x16_p32, dims=(256, 64), strides=(256,)
    ),
    TensorMap(MATRIX.view(np.uint8), (8, 64), swizzle=32, dtype=b4x16),
    TensorMap(np.zeros((2, 9, 16), np.uint16), (100, 16), corners=((-3,), (2,)), element_strides=(1, 2, 1)),
    TensorMap(np.zeros((2, 5, 6, 7, 16), np.uint16), (1024, 8), corners=((-1, 0, 1), (0, -2, 3)), swizzle=32),
]


@pytest.mark.parametrize("tensor", MAPS, ids=str)
def test_a_tensor_map_comes_back_from_its_bytes(tensor: TensorMap) -> None:
    """Its memory may end early."""
    found = tensor_of(decode(encode(fields_of(tensor, 0x7000_0000_0000))), np.zeros(100, np.uint8))
    for name in (
        "dtype", "dims", "strides", "box", "elem_strides", "swizzle", "fill", "interleave", "l2_promotion", "nbytes",
        "corners",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(tensor, name), name
    assert (len(found.array), found.wraps) == (100 // max(tensor.dtype.nbytes, 1), True)


@pytest.mark.parametrize(
    ("name", "value", "axis", "field", "found"),
    [
        ("global_address", 0x7654_3210, 0, "address", 0x7654_3210),
        ("rank", 4, 0, "rank", 5),
        ("global_dim", 0, 1, "dims", (128, 1 << 32)),
        ("global_dim", 77, 0, "dims", (77, 64)),
        ("global_stride", (1 << 40) - 16, 0, "strides", ((1 << 40) - 16,)),
        ("box_dim", 256, 1, "box", (64, 256)),
        ("element_stride", 8, 1, "steps", (1, 8)),
        ("elemtype", 7, 0, "type", 7),
        ("elemtype", 13, 0, "type", 11),
        ("interleave_layout", 2, 0, "interleave", 2),
        ("swizzle_mode", 1, 0, "swizzle", 1),
        ("swizzle_atomicity", 3, 0, "atom", 3),
        ("fill_mode", 0, 0, "fill", 0),
    ],
)
def test_replace_changes_one_field(name: str, value: int, axis: int, field: str, found: Any) -> None:
    before = fields_of(MAPS[0], 0x7000_0000_0000)
    after = decode(replace(encode(before), name, value, axis))
    assert getattr(after, field) == found != getattr(before, field)
    if name != "rank":  # with which other tuples grow
        assert after._replace(**{field: getattr(before, field)}) == before


def test_replace_makes_tf32_of_two_fields_and_no_type_clears_them() -> None:
    """As the code of ptxas 13.0 does."""
    raw = replace(encode(fields_of(MAPS[0], 0)), "elemtype", 11)
    assert (decode(raw).type, decode(raw).tf32) == (7, 1)
    assert (decode(replace(raw, "elemtype", 6)).type, decode(replace(raw, "elemtype", 6)).tf32) == (6, 1)


def test_a_map_of_images_has_three_dimensions() -> None:
    raw = bytearray(encode(fields_of(MAPS[0], 0)))
    raw[8] |= 1
    with pytest.raises(UsageError) as error:
        decode(bytes(raw))
    assert str(error.value) == (
        "given a tensor map of im2col mode with 2 dimensions (bits 4 to 6 of the word at byte 8); expected 3 to 5"
    )


def _refusal(**changes: Any) -> str:
    with pytest.raises(UsageError) as error:
        tensor_of(decode(encode(fields_of(MAPS[0], 0x1000)._replace(**changes))), np.zeros(16, np.uint8))
    return str(error.value)


WORD = "of the word at byte 8"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"version": 5}, f"kind 5 (bits 0 to 3 {WORD}); expected 0, 1 for im2col mode, or 2 as CuTe DSL writes "
     "it; other bytes are no tensor map"),
    ({"version": 1, "rank": 3, "box": (8, 9), "strides": (16, 16), "dims": (8, 9, 9), "steps": (1, 1, 1),
      "corners": ((5,), (-4,))}, "corners 5 and -4 in dimension 1 (innermost is 0) of 9 pixels; expected a box of at "
     "least one pixel; count the upper corner from the last pixel"),
    ({"rank": 6}, f"6 dimensions (bits 4 to 6 {WORD}); expected 1 to 5"),
    ({"type": 11}, "fill='nan' for elements of type b4x16; expected one of f16, bf16, f32, f64, tf32; use fill='zero'"),
    ({"type": 15}, f"element type 15 (bits 7 to 10 {WORD}) with tf32 0 (bit 16 {WORD}); expected one of 4 to 64 bits"),
    ({"type": 6, "tf32": 1}, f"element type 6 (bits 7 to 10 {WORD}) with tf32 1 (bit 16 {WORD}); expected one of 4 to "
     "64 bits"),
    ({"atom": 2}, f"with atom 2 (bits 19 to 20 {WORD}) and swizzle 3 (bits 13 to 14 {WORD}); expected atom 0 (16 "
     "bytes), or with swizzle 3 atom 1 (32 bytes) or 3 (64 bytes)"),
    ({"atom": 1, "swizzle": 2}, f"with atom 1 (bits 19 to 20 {WORD}) and swizzle 2 (bits 13 to 14 {WORD}); expected "
     "atom 0 (16 bytes), or with swizzle 3 atom 1 (32 bytes) or 3 (64 bytes)"),
    ({"swizzle_96B": 1}, f"with swizzle_96B 1 (bit 22 {WORD}); expected 0, a swizzle of 0 to 128 bytes"),
    ({"interleave": 3}, f"with interleave 3 (bits 11 to 12 {WORD}); expected 0 to 2"),
    ({"address": 0x1008}, "over address 0x1008; expected a multiple of 16 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_invalid_fields_are_named(changes: Any, message: str) -> None:
    assert re.sub("^given (a tensor map (of )?)?", "", _refusal(**changes)) == message


def test_tensor_maps_rules_hold_for_bytes() -> None:
    expected = (
        "given an innermost box of 65 bf16 (130 bytes); expected a multiple of 16 bytes; use a multiple of 8 elements"
    )
    assert _refusal(box=(65, 8)) == expected


def test_encode_refuses_values_without_bits() -> None:
    with pytest.raises(UsageError, match=r"^box is given 257; expected 1 to 256$"):
        encode(fields_of(MAPS[0], 0)._replace(box=(8, 257)))
