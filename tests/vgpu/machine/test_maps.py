"""Tensor maps that a kernel changes: every field, in shared and global memory, and the changes that are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import KernelError, ProtocolError
from warpwright.lang import (
    Global,
    If,
    Pointer,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    smem,
    tensormap,
    tid,
    tma,
    u32,
    u64,
    warp,
)
from warpwright.layout.tensor_map_bytes import MapFields, decode

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


def _error(changes: Any) -> str:
    with pytest.raises(ProtocolError) as error:
        _load(_map(), changes, 256)
    return re.sub("0x[0-9a-f]+", "0x…", re.sub(r"^\S+:\d+: ", "", str(error.value)))


def test_a_copy_refuses_an_invalid_changed_map() -> None:
    assert _error([("box_dim", 2, 0)]) == (
        "`cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes`: kernel change_map, "
        "CTA (0, 0, 0), warp 0, lane 0: the bytes at 0x… are no valid tensor map: given an innermost box of 2 f32 (8 "
        "bytes); expected a multiple of 16 bytes; use a multiple of 4 elements."
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("swizzle_mode", 4), "swizzle_mode is given 4; expected 0 to 3."),
        (("rank", 5), "rank is given 5; expected 0 to 4."),
        (("box_dim", 257, 0), "box_dim is given 257; expected 1 to 256."),
        (("element_stride", 0, 1), "element_stride is given 0; expected 1 to 8."),
        (("global_stride", 24, 0), "global_stride is given 24; expected a multiple of 16 from 0 to 1099511627760."),
    ],
)
def test_replace_refuses_values_that_have_no_bits(change: Any, expected: str) -> None:
    assert _error([change]).endswith(f"kernel change_map, CTA (0, 0, 0), warp 0, lane 0: {expected}")


@kernel("sm_90a", threads=32)
def build_map(x: tma.Map[f32], data: Global[f32], map: Global[u32], y: Global[f32]) -> None:
    """A map is made of zeros in shared memory, field by field, published to global memory, and loads a box."""
    buffer, tile = smem.array(u32, 32, align=128), smem.tile(f32, (ROWS, COLUMNS), swizzle=64)
    full = mbarrier(1, name="full")
    buffer[tid.x] = 0
    warp.sync()
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        tensormap.replace(buffer, "global_address", data.address)
        tensormap.replace(buffer, "rank", 1)
        for axis, (dim, box) in enumerate(((32, COLUMNS), (1 << 20, ROWS))):
            tensormap.replace(buffer, "box_dim", box, axis)
            tensormap.replace(buffer, "global_dim", dim, axis)
            tensormap.replace(buffer, "element_stride", 1, axis)
        tensormap.replace(buffer, "global_stride", 128, 0)
        for field, code in (("elemtype", 7), ("interleave_layout", 0), ("swizzle_mode", 2), ("fill_mode", 0)):
            tensormap.replace(buffer, field, code)
    warp.sync()
    tensormap.cp_fenceproxy(map, buffer)
    warp.sync()
    with If(elect_one()):
        fence.proxy_tensormap_acquire(map)
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile.address, x.at(map.address)[2, 16], full)
    warp.sync()
    full.wait(0)
    for at in range(0, ROWS * COLUMNS, 32):
        y[at + tid.x] = tile.at(at // COLUMNS + (tid.x >> 4), tid.x & 15)[0]


def test_a_map_is_made_of_zeros_on_the_device() -> None:
    """The map describes a million rows, of which 16 are memory: as tl.make_tensor_descriptor makes its maps."""
    map, y = np.zeros(32, np.uint32), np.zeros(ROWS * COLUMNS, np.float32)
    args = [_map(swizzle=64), X, map, y]
    ww.launch(build_map, grid=1, args=args)
    assert np.array_equal(y.reshape(ROWS, COLUMNS), X[2 : 2 + ROWS, 16:])
    found = decode(map.tobytes())
    assert found == MapFields(found.address, 2, 7, (128,), (32, 1 << 20), (1, 1), (COLUMNS, ROWS), swizzle=2, version=0)
    assert not ww.check(build_map, grid=1, args=args).findings


@kernel("sm_90a", threads=32)
def load_twice(x: tma.Map[f32], maps: Global[u32], *, rows: int = ROWS) -> None:
    """Each CTA loads a box with a map of its own, sets the box to ``rows``, and loads again at another place."""
    map = maps + 32 * ctaid.x
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    map[tid.x] = ld(Pointer(u32, x.address) + tid.x)
    warp.sync()
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        for phase, nbytes in enumerate((tile.nbytes, tile.nbytes // ROWS * rows)):
            fence.proxy_tensormap_release()
            fence.proxy_tensormap_acquire(map)
            full.arrive_expect_tx(nbytes)
            tma.load(tile.address, x.at(map.address)[8 * phase, 0], full)
            full.wait(phase)
            tensormap.replace(map, "box_dim", rows, 1)


def test_a_profile_follows_changes() -> None:
    """A copy has the bytes of its map at its time, and CTAs with equal maps share what L2 has of the array."""

    def bytes_of(grid: int, rows: int) -> tuple[int, int]:
        args = [_map(), np.zeros(32 * grid, np.uint32)]
        found = ww.profile(load_twice.configure(rows=rows), grid=grid, args=args, fast=False)
        return found.bytes_l2, found.bytes_hbm

    boxes = _map().nbytes
    # tes_of(1, 1)[0] == boxes // ROWS * (ROWS - 1)
    (one_l2, one_hbm), (two_l2, two_hbm) = bytes_of(1, ROWS), bytes_of(2, ROWS)
    assert two_l2 - one_l2 >= 2 * boxes > two_hbm - one_hbm


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


@kernel("sm_90a", threads=32)
def store_maps(a: tma.Map[f32], b: tma.Map[f32], map: Global[u32], y: Global[f32]) -> None:
    """A map in global memory is that of a, then that of b, by plain stores; a box is loaded with each."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    for i in loop(2):
        map[tid.x] = ld(Pointer(u32, a.address + (b.address - a.address) * i.to(u64)) + tid.x)
        warp.sync()
        with If(elect_one()):
            fence.proxy_tensormap_release()
            fence.proxy_tensormap_acquire(map)
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, a.at(map.address)[0, 0], full)
        full.wait(i)
        warp.sync()
        y[i * 32 + tid.x] = tile.at(tid.x >> 4, tid.x & 15)[0]
        fence.proxy_async()
        warp.sync()


def test_a_copy_reads_its_map_each_time() -> None:
    y = np.zeros((2, 2, COLUMNS), np.float32)
    ww.launch(store_maps, grid=1, args=[_map(), _map(OTHER), np.zeros(32, np.uint32), y])
    assert np.array_equal(y, np.stack([X[:2, :COLUMNS], OTHER[:2, :COLUMNS]]))
