"""Shared-memory tiles: swizzled addresses compared with `layout`, slices, placement, and errors."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.lang.helpers import code, misuse
from warpwright import layout
from warpwright.lang import Global, b32, bf16, f32, kernel, ld, smem, st, tid, u8, u32

STEPS = {
    "mov": lambda a: a,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}


def address(lines, values):
    """Returns the shared address of the only store among ``lines``, with shared memory at 0."""
    values = {"__smem": 0, **values}
    for line in lines:
        name, _, operands = line.partition(" ")
        if name.startswith("st.shared"):
            base, _, offset = re.search(r"\[([%\w]+)(\+)?(\d+)?\]", operands).groups()
            return values[base] + int(offset or 0)
        target, *sources = operands.split(", ")
        if name.partition(".")[0] in STEPS:
            taken = [values[word] if word in values else int(word, 0) for word in sources]
            values[target] = STEPS[name.partition(".")[0]](*taken)
    raise AssertionError("no store")


def element_address(dtype, shape, swizzle, row, column, run_time, arch="sm_90a"):
    """Returns the address of an element of a tile that starts at byte 1024, with constant or run-time indices."""

    @kernel(arch, threads=32)
    def probe(r: u32, c: u32):
        smem.array(u8, 1024)
        tile = smem.tile(dtype, shape, swizzle=swizzle)
        place = tile.at(r, c) if run_time else tile.at(row, column)
        st(place.cast(u8), 1)

    text = probe.ptx(arch)
    names = dict(re.findall(r"ld\.param\.u32 (%r\d+), \[(\w)\]", text))
    values = {register: {"r": row, "c": column}[name] for register, name in names.items()}
    lines = [line.strip(" ;") for line in text.splitlines() if not line.startswith(".")]
    return address([line for line in lines if "ld.param" not in line], values)


def expected_address(dtype, shape, swizzle, row, column):
    """Returns the address computed with `layout`: row-major panels of the swizzle span from byte 1024 on, then XOR."""
    span = swizzle or shape[1] * dtype.nbytes
    panel, inner = divmod(column * dtype.nbytes, span)
    return int(layout.swizzle(1024 + panel * shape[0] * span + row * span + inner, swizzle))


@settings(max_examples=40, deadline=None)
@given(some.data())
def test_addresses_of_elements_are_swizzled(data):
    dtype = data.draw(some.sampled_from([bf16, f32, u8]))
    swizzle = data.draw(some.sampled_from([0, 32, 64, 128]))
    rows = data.draw(some.sampled_from([8, 16, 64]))
    columns = data.draw(some.integers(1, 3)) * (swizzle or 48) // dtype.nbytes
    row, column = data.draw(some.integers(0, rows - 1)), data.draw(some.integers(0, columns - 1))
    expected = expected_address(dtype, (rows, columns), swizzle, row, column)
    assert element_address(dtype, (rows, columns), swizzle, row, column, run_time=False) == expected
    assert element_address(dtype, (rows, columns), swizzle, row, column, run_time=True) == expected


def test_a_tile_is_aligned_to_the_period_of_its_swizzle():
    @kernel("sm_90a", threads=32)
    def probe(x: Global[u32]):
        smem.scalar(u32)
        unused = smem.tile(bf16, (8, 64), swizzle=128)
        used = smem.tile(bf16, (8, 64), swizzle=128)
        plain = smem.tile(f32, (4, 4))
        seen.extend([unused.nbytes, used.align, plain.align])
        x[0] = used.address
        x[1] = plain.address

    seen = []
    assert code(probe) == [
        "mov.u32 %r0, __smem+1024",
        "st.global.u32 [%rd0], %r0",
        "mov.u32 %r1, __smem+2048",
        "st.global.u32 [%rd0+4], %r1",
    ]
    assert (seen, probe.trace().smem_bytes) == ([1024, 1024, 128], 2048 + 64)


def test_slices_start_at_their_first_element():
    offsets = []

    @kernel("sm_90a", threads=32)
    def probe(x: Global[u32]):
        tile = smem.tile(bf16, (16, 128), swizzle=128)
        parts = (tile[:, 16:32], tile[8:16, :64], tile[:, 64:128], tile[8:, 80:96], tile[:, 64:][:, 16:32])
        offsets.extend((part.offset, part.shape, part.nbytes) for part in parts)

    probe.ptx()
    assert offsets == [
        (32, (16, 16), 512),
        (1024, (8, 64), 1024),
        (2048, (16, 64), 2048),
        (2048 + 1024 + 32, (8, 16), 256),
        (2048 + 32, (16, 16), 512),
    ]


def test_a_tile_may_be_placed_at_a_run_time_address():
    @kernel("sm_90a", threads=32)
    def probe(base: u32, x: Global[u32]):
        tile = smem.tile(bf16, (8, 64), swizzle=128).placed(base, 2048)
        x[0] = tile.address
        st(tile.at(1, 8).cast(b32), 0, 0, 0, 0)

    assert code(probe) == [
        "add.u32 %r1, %r0, 2048",
        "st.global.u32 [%rd0], %r1",
        "st.shared.v4.b32 [%r0+2176], {0, 0, 0, 0}",
    ]


def test_arrays_are_pointers():
    @kernel("sm_90a", threads=32)
    def probe(x: Global[f32]):
        first = smem.array(f32, 3)
        second = smem.array(f32, 4, align=128)
        first[2] = ld(second + tid.x)

    assert code(probe)[-2:] == ["ld.shared.f32 %f0, [%r2+128]", "st.shared.f32 [%r0+8], %f0"]


def refusal(make):
    @kernel("sm_90a", threads=32)
    def probe(n: u32):
        make(n)

    return misuse(probe)


def test_misuse_of_tiles_is_refused():
    def tile():
        return smem.tile(bf16, (16, 128), swizzle=128)

    assert refusal(lambda n: smem.tile(bf16, (8, 64), swizzle=16)) == (  # wrong
        "given swizzle=16; expected 0, 32, 64 or 128 bytes"
    )
    assert refusal(lambda n: smem.tile(bf16, (8, 48), swizzle=128)) == (  # wrong
        "given smem.tile(bf16, (8, 48), swizzle=128); expected positive sizes and rows of a multiple of 128 bytes: "
        "the last size a multiple of 64"
    )
    assert refusal(lambda n: tile()[4:8, :]) == (  # wrong
        "given a slice from row 4 of a swizzled tile; expected a multiple of 8 rows"
    )
    assert refusal(lambda n: tile()[:, 4:20]) == (  # wrong
        "given a slice from column 4; expected a multiple of 8 columns"
    )
    assert refusal(lambda n: tile()[:, 32:96]) == (  # wrong
        "given columns 32:96 across two panels; expected a slice inside one panel of 64 columns, or whole panels"
    )
    assert refusal(lambda n: tile()[:, n:]) == (  # wrong
        "given slice(%r0 (u32), None, None) as a slice of a tile; expected start:stop of Python ints: "
        "unroll with range()"
    )
    assert refusal(lambda n: tile()[:, 8:8]) == (  # wrong
        "given slice 8:8 of 128; expected at least one row or column"
    )
    assert refusal(lambda n: tile()[3]) == (  # wrong
        "given tile[3]; expected tile[rows, columns] with slices, or tile.at(row, column)"
    )
    assert refusal(lambda n: tile().at(n)) == (  # wrong
        "given 1 indices for a tile of shape (16, 128); expected 2"
    )
    assert refusal(lambda n: tile().at(n, 128)) == (  # wrong
        "given index 128 on axis 1 of a tile of shape (16, 128); expected 0 to 127"
    )
    assert refusal(lambda n: tile().placed(n, 512)) == (  # wrong
        "given offset 512 for a tile of swizzle 128; expected a multiple of 1024"
    )


@pytest.mark.parametrize(("count", "align", "expected"), [
    (0, 16, "given 0 bytes of shared memory for array; expected at least 1"),
    (4, 2048, "given align=2048; expected a power of two from 1 to 1024"),
    (4, 48, "given align=48; expected a power of two from 1 to 1024"),
])  # fmt: skip
def test_misuse_of_arrays_is_refused(count, align, expected):
    assert refusal(lambda n: smem.array(f32, count, align=align)) == expected  # wrong
