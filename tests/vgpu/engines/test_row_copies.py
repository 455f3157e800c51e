"""tile::gather4 and tile::scatter4 against indexing of rows in NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import MAP_AT, MBAR, TENSORS_AT, Cluster, operation, refusal, shared_address
from warpwright.errors import MemoryFault, ProtocolError
from warpwright.layout import swizzle
from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.engines import copy

GATHER = "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"


def places(tensor: TensorMap, at: int) -> NDArray[np.int64]:
    """Returns the first byte in shared memory of each element of four rows, which lie one after the other."""
    size = tensor.dtype.nbytes
    row = max(tensor.box[0] * size, tensor.swizzle)
    offsets: NDArray[np.int64] = at + np.arange(4)[:, None] * row + np.arange(tensor.box[0]) * size
    return swizzle(offsets, tensor.swizzle)


def gathered(array: NDArray[Any], rows: list[int], column: int, width: int, fill: float = 0) -> NDArray[Any]:
    """Returns ``array[rows, column:column + width]`` with ``fill`` outside the array."""
    height, columns = array.shape
    margin = width + abs(column) + columns
    wide = np.pad(array, ((0, 1), (margin, margin)), constant_values=fill)
    wide[-1] = fill
    inside = [row if 0 <= row < height else height for row in rows]
    return wide[inside, margin + column : margin + column + width]


def read(cluster: Cluster, tensor: TensorMap, at: int, rank: int = 0) -> NDArray[Any]:
    """Returns the four rows in shared memory."""
    size = tensor.dtype.nbytes
    found = cluster.shared[rank][places(tensor, at)[:, :, None] + np.arange(size)]
    return np.ascontiguousarray(found).view(tensor.array.dtype)[..., 0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[TensorMap, list[int], int, int]:
    """Draws a map, four rows, a column and a place in shared memory."""
    dtype = np.dtype(draw(st.sampled_from([np.uint8, np.float16, ml_dtypes.bfloat16, np.float32])))
    unit = 16 // dtype.itemsize
    mode = draw(st.sampled_from([0, 32, 64, 128]))
    width = draw(st.integers(1, (mode or 160) // 16)) * unit
    height, columns = draw(st.integers(1, 12)), draw(st.integers(1, 8)) * unit
    values = np.random.default_rng(height).integers(1, 100, (height, columns)).astype(dtype)
    rows = [draw(st.integers(-4, height + 3)) for _ in range(4)]
    column = draw(st.integers(-3, columns // unit + 2)) * unit
    return TensorMap(values, (1, width), swizzle=mode), rows, column, 2048 + 128 * draw(st.integers(0, 9))


@given(cases())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_gather_loads_four_rows(case: tuple[TensorMap, list[int], int, int]) -> None:
    tensor, rows, column, at = case
    cluster = Cluster()
    cluster.bind(tensor)
    before = cluster.shared[0].copy()
    copy.complete(cluster, [operation(GATHER, at, MAP_AT, column, *rows, MBAR)])
    np.testing.assert_array_equal(read(cluster, tensor, at), gathered(tensor.array, rows, column, tensor.box[0]))
    touched = places(tensor, at)[:, :, None] + np.arange(tensor.dtype.nbytes)
    before[touched] = cluster.shared[0][touched]
    np.testing.assert_array_equal(cluster.shared[0], before)
    assert cluster.log == [("tx", 0, MBAR, 4 * tensor.box[0] * tensor.dtype.nbytes)]


@given(cases())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_scatter_stores_four_rows(case: tuple[TensorMap, list[int], int, int]) -> None:
    tensor, rows, column, at = case
    rows, column = [abs(row) for row in rows], abs(column)
    cluster = Cluster()
    cluster.bind(tensor)
    source, expected, shared = read(cluster, tensor, at), tensor.array.copy(), cluster.shared.copy()
    for values, row in zip(source, rows, strict=True):
        if row < len(expected):
            part = expected[row, column : column + tensor.box[0]]
            part[:] = values[: len(part)]
    copy.complete(cluster, [operation(SCATTER, MAP_AT, column, *rows, at)])
    assert tensor.array.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(cluster.shared, shared)
    assert cluster.log == []


def test_a_gather_fills_rows_outside_with_nan() -> None:
    tensor = TensorMap(np.ones((8, 32), np.float16), (1, 16), fill="nan")
    cluster = Cluster()
    cluster.bind(tensor)
    rows = [-1, 3, 8, 0x7FFF_FFFF]
    copy.complete(cluster, [operation(GATHER, 2048, MAP_AT, 24, *rows, MBAR)])
    expected = gathered(tensor.array, rows, 24, 16, np.nan)
    assert np.isnan(expected).sum() == 56
    np.testing.assert_array_equal(read(cluster, tensor, 2048), expected)


def test_a_multicast_gather_signals_a_barrier_of_each_pair() -> None:
    tensor = TensorMap(np.arange(640, dtype=np.float32).reshape(20, 32), (1, 32), swizzle=128)
    cluster = Cluster(4)
    cluster.bind(tensor)
    rows = [19, 0, 7, 7]
    opcode = GATHER + ".multicast::cluster.cta_group::2"
    words = shared_address(0, 4096), MAP_AT, 0, *rows, shared_address(0, MBAR), 0b1010
    copy.complete(cluster, [operation(opcode, *words)])
    for rank in (1, 3):
        np.testing.assert_array_equal(read(cluster, tensor, 4096, rank), tensor.array[rows])
    assert cluster.log == [("tx", 0, MBAR, 512), ("tx", 2, MBAR, 512)]


def test_a_gather_needs_only_the_rows_that_it_touches() -> None:
    array = np.arange(64 * 32, dtype=np.uint32).reshape(64, 32)
    tensor = TensorMap(array, (1, 32))
    cluster = Cluster()
    cluster.bind(tensor, nbytes=32 * 128)
    copy.complete(cluster, [operation(GATHER, 2048, MAP_AT, 0, 31, 2, 0, 70, MBAR)])
    np.testing.assert_array_equal(read(cluster, tensor, 2048)[:3], array[[31, 2, 0]])
    with pytest.raises(MemoryFault) as raised:
        copy.complete(cluster, [operation(GATHER, 2048, MAP_AT, 0, 31, 2, 32, 70, MBAR)])
    assert str(raised.value) == f"global 0x{TENSORS_AT + 4096:x} to 0x{TENSORS_AT + 4224:x}"


REFUSED: list[tuple[str, tuple[int, int], tuple[int, ...], type[Exception], str]] = [
    (GATHER, (4, 16), (2048, MAP_AT, 0, 0, 1, 2, 3, MBAR), ProtocolError,
     ".tile::gather4 is given a tensor map with boxes of 4 rows; expected boxes of 1 row, four of which it copies; "
     "encode the map with a box of 1 row"),
    (GATHER, (1, 16), (2048, MAP_AT, 4, 0, 1, 2, 3, MBAR), ProtocolError,
     "the innermost coordinate is 4, 8 bytes; expected a multiple of 16 bytes, 8 elements"),
    (SCATTER, (1, 16), (MAP_AT, 8, 0, 1, 0xFFFF_FFFF, 3, 2048), ProtocolError,
     "a box is stored at coordinates (8, -1), innermost first; expected none below 0; only loads may start outside the "
     "tensor"),
    (GATHER, (1, 256), (64 * 1024 - 1024, MAP_AT, 0, 0, 1, 2, 3, MBAR), MemoryFault,
     "the destination of the box takes bytes 65536 to 66047 of the shared memory of CTA 0; expected them within 1024 "
     "to 65535; mend the address or launch with more shared memory"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "box", "words", "kind", "sentence"), REFUSED)
def test_copies_of_rows_refuse_bad_operands(
    opcode: str, box: tuple[int, int], words: tuple[int, ...], kind: type[Exception], sentence: str
) -> None:
    assert refusal(kind, TensorMap(np.zeros((64, 256), np.float16), box), opcode, *words) == sentence
