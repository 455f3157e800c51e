"""Tensor maps that a kernel changes: every field, in shared and global memory, and the changes that are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import KernelError, ProtocolError, UnsupportedInstruction
from warpwright.lang import (
    Global,
    If,
    Pointer,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    mbarrier,
    smem,
    tensormap,
    tid,
    tma,
    u32,
    warp,
)

X = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
ROWS, COLUMNS = 4, 16


@kernel("sm_90a", threads=32)
def change_map(
    x: tma.Map[f32], map: Global[u32], other: Global[f32], y: Global[f32], nbytes: u32, *, changes: Any = ()
) -> None:
    """Change a copy of a map field by field, then load a box with it."""
    tile, full = smem.tile(f32, (8, 32)), mbarrier(1, name="full")
    map[tid.x] = ld(Pointer(u32, x.address) + tid.x)
    for row in range(8):
        tile.at(row, tid.x)[0] = -1.0
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        for field, value, *dimension in changes:
            tensormap.replace(map, field, other.address if value == "other" else value, *dimension)
        fence.proxy_tensormap_release()
        fence.proxy_tensormap_acquire(map)
        full.arrive_expect_tx(nbytes)
        tma.load(tile.address, x.at(map.address)[1, 4], full)
    warp.sync()
    full.wait(0)
    for row in range(8):
        y[row * 32 + tid.x] = tile.at(row, tid.x)[0]


def _load(map: ww.TensorMap, changes: Any, nbytes: int) -> np.ndarray:
    y = np.zeros((8, 32), np.float32)
    other = np.arange(16 * 32, dtype=np.float32) + 1000
    ww.launch(change_map.configure(changes=changes), grid=1, args=[map, np.zeros(32, np.uint32), other, y, nbytes])
    return y


def _map(array: np.ndarray = X, box: tuple[int, int] = (ROWS, COLUMNS), **how: Any) -> ww.TensorMap:
    return ww.TensorMap(array, box, **how)


OTHER = (X + 1000).astype(np.float32)
CASES = {
    "address": ([("global_address", "other")], _map(OTHER)),
    "dims": ([("global_dim", 3, 1), ("global_dim", 12, 0)], _map(X[:3, :12])),
    "stride": ([("global_stride", 256, 0), ("global_dim", 8, 1)], _map(X[::2])),
    "box": ([("box_dim", 8, 0), ("box_dim", 2, 1)], _map(box=(2, 8))),
    "element stride": ([("element_stride", 2, 1)], _map(element_strides=(2, 1))),
    "swizzle": ([("swizzle_mode", 2)], _map(swizzle=64)),
    "fill": ([("fill_mode", 1), ("global_dim", 3, 1)], _map(X[:3], fill="nan")),
    "type": ([("elemtype", 2)], _map(X.view(np.uint32))),
    "rank": ([("rank", 1), ("interleave_layout", 0)], _map()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_changed_field_makes_the_map_that_has_it(name: str) -> None:
    changes, direct = CASES[name]
    found = _load(_map(), changes, direct.nbytes)
    expected = _load(direct, (), direct.nbytes)
    assert np.array_equal(found, expected, equal_nan=True)
    assert (
        name == "rank"
        or not np.array_equal(found, _load(_map(), (), _map().nbytes), equal_nan=True)
        or (name == "type")
    )


def test_a_copy_refuses_an_invalid_changed_map() -> None:
    expected = (
        "`cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes`: kernel change_map, "
        "CTA (0, 0, 0), warp 0, lane 0: the tensor map was changed into none: given a stride of 24 bytes in "
        "dimension 1 (innermost is 0); expected a multiple of 16; pad the rows of the array to a multiple of 16 bytes."
    )
    with pytest.raises(ProtocolError) as error:
        _load(_map(), [("global_stride", 24, 0)], 256)
    assert re.sub(r"^\S+:\d+: ", "", str(error.value)) == expected


def test_replace_refuses_codes_beyond_those_of_ptx() -> None:
    with pytest.raises(ProtocolError, match=r"swizzle_mode is given 4; expected 0 to 3\.$"):
        _load(_map(), [("swizzle_mode", 4)], 256)


def test_replace_refuses_memory_without_a_map() -> None:
    @kernel("sm_90a", threads=32)
    def no_map(x: Global[u32]) -> None:
        tensormap.replace(x, "rank", 1)

    with pytest.raises(ProtocolError, match="there is no tensor map at 0x"):
        ww.launch(no_map, grid=1, args=[np.zeros(32, np.uint32)])


def test_a_profile_does_not_follow_changes() -> None:
    args = [_map(), np.zeros(32, np.uint32), X, np.zeros((8, 32), np.float32), 256]
    with pytest.raises(UnsupportedInstruction, match=r"a profile does not follow changes of tensor maps\.$"):
        ww.profile(change_map.configure(changes=(("rank", 1),)), grid=1, args=args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("colour", 1), "given tensormap.replace of 'colour'; expected one of global_address, rank, box_dim, "),
        (("box_dim", 1), "given tensormap.replace of box_dim with dimension=None; expected 0 to 4, innermost first"),
        (("rank", 1, 0), "given tensormap.replace of rank with dimension=0; expected none"),
    ],
)
def test_replace_refuses_a_wrong_dimension(change: Any, message: str) -> None:
    with pytest.raises(KernelError, match=re.escape(message)):
        change_map.ptx(changes=(change,))
