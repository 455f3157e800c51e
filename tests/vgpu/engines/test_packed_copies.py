"""Tensor copies of packed values of 4 and 6 bits: each value is unpacked from its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import MAP_AT, MBAR, Cluster, operation, refusal
from warpwright.errors import ProtocolError, UnsupportedInstruction
from warpwright.layout import swizzle
from warpwright.layout.tensor_map import TensorMap
from warpwright.types import PADDED, b4x16, b4x16_p64, b6x16_p32
from warpwright.vgpu.engines import copy

LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
GATHER = LOAD.replace("tile", "tile::gather4")
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
ADD = STORE.replace("cp.", "cp.reduce.").replace(".tile", ".add.tile")
ROWS, AT = 10, 2048 + 256


def unpack(data: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Returns the values of rows of bytes, the first in the lowest bits."""
    flat = np.unpackbits(data, axis=-1, bitorder="little")
    values = np.packbits(flat.reshape(*data.shape[:-1], -1, bits), axis=-1, bitorder="little")
    return values[..., 0]


def tensor(dtype: Any, mode: Any, box: tuple[int, int]) -> TensorMap:
    data = np.random.default_rng(1).integers(0, 256, (ROWS, 384 * dtype.bits // 8), dtype=np.uint8)
    return TensorMap(data, box, dtype=dtype, swizzle=mode)


def loaded(cluster: Cluster, map: TensorMap, rows: int) -> NDArray[np.uint8]:
    """Returns the values in shared memory: 16 in each 16 bytes of a padded type."""
    line = map.box[0] if map.dtype in PADDED else map.box[0] // 2
    data = cluster.shared[0][swizzle(AT + np.arange(rows)[:, None] * line + np.arange(line), map.swizzle)]
    if map.dtype in PADDED:
        data = data.reshape(rows, -1, 16)[:, :, : 2 * map.dtype.bits].reshape(rows, -1)
    return unpack(data, map.dtype.bits)


def expected(map: TensorMap, column: int, rows: list[int]) -> NDArray[np.uint8]:
    values = np.pad(unpack(map.array, map.dtype.bits), ((0, 1), (512, 512)))
    return values[[row if 0 <= row < ROWS else ROWS for row in rows], 512 + column : 512 + column + map.box[0]]


CASES = [
    (b4x16, 64, 128, 0), (b4x16, 0, 96, 160), (b4x16, 32, 64, -32), (b4x16, 128, 256, 320),
    *((dtype, mode, 128, column) for dtype in (b4x16_p64, b6x16_p32) for mode in (0, 128, "128B_ATOM_32B",
      "128B_ATOM_64B") for column in (128, -128, 384)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "mode", "wide", "column"), CASES)
def test_a_load_places_every_value(dtype: Any, mode: Any, wide: int, column: int) -> None:
    map, cluster = tensor(dtype, mode, (4, wide)), Cluster()
    cluster.bind(map)
    copy.complete(cluster, [operation(LOAD, AT, MAP_AT, column, 8, MBAR)])
    np.testing.assert_array_equal(loaded(cluster, map, 4), expected(map, column, [8, 9, 10, 11]))
    assert cluster.log == [("tx", 0, MBAR, 4 * wide * dtype.bits // 8)]


def test_a_gather_of_packed_values() -> None:
    map, cluster = tensor(b6x16_p32, 128, (1, 128)), Cluster()
    cluster.bind(map)
    copy.complete(cluster, [operation(GATHER, AT, MAP_AT, 256, 9, -1, 3, 10, MBAR)])
    np.testing.assert_array_equal(loaded(cluster, map, 4), expected(map, 256, [9, -1, 3, 10]))
    assert cluster.log == [("tx", 0, MBAR, 4 * 96)]


def test_a_store_of_packed_values() -> None:
    map, cluster = tensor(b4x16, 32, (4, 64)), Cluster()
    cluster.bind(map)
    values, whole = loaded(cluster, map, 4), unpack(map.array, 4)
    copy.complete(cluster, [operation(STORE, MAP_AT, 352, 7, AT)])
    whole[7:, 352:] = values[:3, :32]
    np.testing.assert_array_equal(unpack(map.array, 4), whole)


REFUSED: list[tuple[Any, str, tuple[int, ...], type[Exception], str]] = [
    (b4x16, LOAD, (AT, MAP_AT, 16, 0, MBAR), ProtocolError,
     "the innermost coordinate is 16; expected a multiple of 32 values of type b4x16"),
    (b6x16_p32, LOAD, (AT, MAP_AT, 64, 0, MBAR), ProtocolError,
     "the innermost coordinate is 64; expected a multiple of 128 values of type b6x16_p32"),
    (b4x16_p64, STORE, (MAP_AT, 0, 0, AT), UnsupportedInstruction,
     "a box of type b4x16_p64 is stored; expected a load, or a map of b4x16; the virtual GPU does not remove the "
     "padding of stores"),
    (b4x16, ADD, (MAP_AT, 0, 0, AT), UnsupportedInstruction,
     ".add is given a tensor map of b4x16 elements; expected u32, s32, u64, f32, f16, bf16"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "opcode", "words", "kind", "sentence"), REFUSED)
def test_packed_copies_refuse_bad_operands(
    dtype: Any, opcode: str, words: tuple[int, ...], kind: type[Exception], sentence: str
) -> None:
    assert refusal(kind, tensor(dtype, 128, (4, 128)), opcode, *words) == sentence
