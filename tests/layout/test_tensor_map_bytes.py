"""The 128 bytes of a tensor map: as the driver writes them, and both ways."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warpwright.layout.tensor_map_bytes import FIELDS, MapFields, decode, encode


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
