"""Tensor maps by their 128 bytes: in a struct, in global memory and in constants, valid or not, larger than memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import MemoryFault, ProtocolError
from warpwright.layout.tensor_map_bytes import MapFields, encode, fields_of

ROWS, COLUMNS = 8, 32
# Parts of one array, so that their addresses are the same in every launch.
MEMORY = np.zeros(2048 + 8192, np.uint8)
MAP, Y, X = MEMORY[:128], MEMORY[1024:2048].view(np.float32), MEMORY[2048:].view(np.float32).reshape(64, COLUMNS)
X[:] = np.arange(64 * COLUMNS).reshape(64, COLUMNS)

# With `wide` 0 the kernel only tells the address of x: its maps are made before the launch.
TEXT = """.version 8.6
.target sm_90a
.address_size 64
.const .align 64 .b8 fixed[128] = {{ {bytes} }};
.visible .entry load(
    .param .u64 x, .param .align 64 .b8 params[256], .param .u64 pointer, .param .u64 y, .param .s32 row,
    .param .u32 wide) {{
    .reg .b64 %x, %map, %y, %at;
    .reg .b32 %t, %row, %a, %w, %v;
    .reg .pred %first, %done, %tell;
    .shared .align 128 .b8 tile[{nbytes}];
    .shared .align 8 .b64 bar;
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.s32 %row, [row];
    ld.param.u32 %w, [wide];
    mov.u32 %t, %tid.x;
    setp.eq.u32 %tell, %w, 0;
    setp.eq.u32 %first, %t, 0;
    @%tell st.global.u64 [%y], %x;
    @%tell bra END;
    {place}
    @%first mbarrier.init.shared::cta.b64 [bar], 1;
    @%first fence.proxy.async.shared::cta;
    bar.sync 0;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {nbytes};
    @%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [tile], [%map, {{0, %row}}], [bar];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
    @!%done bra WAIT;
    mad.wide.u32 %at, %t, 4, %y;
    mov.u32 %a, tile;
    mad.lo.u32 %a, %t, 4, %a;
    ld.shared.u32 %v, [%a];
    st.global.u32 [%at], %v;
    ld.shared.u32 %v, [%a + {half}];
    st.global.u32 [%at + {half}], %v;
END:
    ret;
}}
"""
PLACES = {
    # at a multiple of 64
    "struct": "mov.b64 %map, params;\n    cvta.param.u64 %map, %map;\n    add.u64 %map, %map, 128;",
    "global": "ld.param.u64 %map, [pointer];",
    "const": "mov.b64 %map, fixed;\n    cvta.const.u64 %map, %map;",
    "none": "mov.b64 %map, 4096;",
    "shared": "mov.b64 %map, tile;\n    cvta.shared.u64 %map, %map;",
}


def run(place: str, raw: bytes, row: int, *, wide: int = 1, how: Any = ww.launch, grid: int = 1) -> Any:
    """Launch the kernel with the bytes of a map in each place, of which it uses one; returns y."""
    nbytes = ROWS * COLUMNS * 4
    constant = ", ".join(map(str, raw))
    text = TEXT.format(bytes=constant, nbytes=nbytes, half=nbytes // 2, place=PLACES[place])
    MAP[:], Y[:] = np.frombuffer(raw, np.uint8), 0
    args = [X, bytes(128) + raw, MAP, Y, row, wide]
    found = how(ww.load_ptx(text)["load"], grid=grid, block=128, args=args)
    return Y.reshape(ROWS, COLUMNS) if how is ww.launch else found


def base() -> int:
    """The address of X."""
    return int(run("struct", bytes(128), 0, wide=0).view(np.uint64)[0, 0])


def fields(**changes: Any) -> MapFields:
    return fields_of(ww.TensorMap(X, (ROWS, COLUMNS)), base())._replace(**changes)


@pytest.mark.parametrize("place", ["struct", "global", "const"])
def test_a_copy_finds_its_map_in_every_place(place: str) -> None:
    np.testing.assert_array_equal(run(place, encode(fields()), 5), X[5 : 5 + ROWS])


def test_a_copy_needs_only_the_memory_that_it_touches() -> None:
    larger = encode(fields(dims=(COLUMNS, 1 << 30)))
    np.testing.assert_array_equal(run("global", larger, 64 - ROWS), X[-ROWS:])
    message = r"bytes 0x\w+ to 0x\w+ are outside global memory: 128 bytes past the end of the 8192 bytes at 0x\w+\.$"
    with pytest.raises(MemoryFault, match=message):
        run("global", larger, 65 - ROWS)


def test_a_map_may_begin_before_its_memory() -> None:
    """Rows 0 to 99 of the map are no memory; the map is the same with the other base."""
    early = encode(fields(address=base() - 100 * 128, dims=(COLUMNS, 164)))
    np.testing.assert_array_equal(run("struct", early, 103), X[3 : 3 + ROWS])
    with pytest.raises(
        MemoryFault, match=r" are outside global memory: 1536 bytes past the end of the 1024 bytes at 0x\w+\.$"
    ):
        run("struct", early, 80)


def test_check_and_profile_follow_maps_in_every_place() -> None:
    for place in ("struct", "global", "const"):
        assert not run(place, encode(fields()), 5, how=ww.check).findings
        assert run(place, encode(fields()), 5, how=ww.profile).cycles > 0
    assert not run("struct", encode(fields(address=base() - 6400, dims=(COLUMNS, 114))), 53, how=ww.check).findings


def test_check_sees_what_a_map_touches_beyond_its_memory() -> None:
    """One CTA loads y by a map whose base is no memory, and the other CTA stores to it."""
    address = base() - 100 * 128
    row = (base() - 0x1400 - address) // 128  # y is there
    raw = encode(fields(address=address, dims=(COLUMNS, 164)))
    for at, races in ((row, True), (103, False)):
        found = run("struct", raw, at, how=ww.check, grid=2).findings
        assert any("cp.async.bulk.tensor" in str(finding) for finding in found) == races


REFUSED: list[tuple[str, dict[str, int], str]] = [
    ("global", {"version": 7}, "the bytes at 0x… are no valid tensor map: given a tensor map of kind 7 (bits 0 to 3 of "
     "the word at byte 8); expected 0, 1 for im2col mode, or 2 as CuTe DSL writes it; other bytes are no "
     "tensor map."),
    ("global", {}, "there is no tensor map at 0x…, which is zeros; pass a ww.TensorMap."),
    ("shared", {}, "there is no tensor map at 0x…, which is shared memory; a tensor copy reads its map from global "
     "memory, constants or parameters; pass a ww.TensorMap."),
    ("none", {}, "there is no tensor map at 0x…, which is no allocated memory; pass a ww.TensorMap."),
]  # fmt: skip


@pytest.mark.parametrize(("place", "changes", "message"), REFUSED)
def test_a_copy_refuses_bytes_that_are_no_map(place: str, changes: Any, message: str) -> None:
    raw = encode(fields(**changes)) if changes else bytes(128)
    with pytest.raises(ProtocolError) as error:
        run(place, raw, 0)
    assert re.sub("0x[0-9a-f]+", "0x…", str(error.value)).endswith(f"CTA (0, 0, 0), warp 0, lane 0: {message}")
