"""Tensor copies and reductions against an element-by-element reference that swizzles absolute addresses."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import MAP_AT, MBAR, TENSORS_AT, Cluster, operation, refusal, shared_address
from warpwright.errors import MemoryFault, ProtocolError, UnsupportedInstruction
from warpwright.layout import ATOM_32B, ATOM_64B, swizzle
from warpwright.layout.tensor_map import RAGGED_ROWS, TensorMap, ragged
from warpwright.types import tf32
from warpwright.vgpu.engines import copy

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
DTYPES = (np.uint8, ml_dtypes.bfloat16, np.float16, np.float32, np.float64)


def cells(tensor: TensorMap, coords: tuple[int, ...], at: int) -> Any:
    """Yields for each element of the box its place in shared memory, and in the tensor (None: outside)."""
    size = tensor.dtype.nbytes
    steps = (1, *tensor.elem_strides[1:])
    pitches = (size, *tensor.strides)
    width = tensor.swizzle if isinstance(tensor.swizzle, int) else 128
    row = max(tensor.box_elements[0] * size, width)
    outermost_first = itertools.product(*[range(count) for count in reversed(tensor.box_elements)])
    for number, index in enumerate(outermost_first):
        where = [c + e * step for c, e, step in zip(coords, reversed(index), steps, strict=True)]
        inside = all(0 <= g < dim for g, dim in zip(where, tensor.dims, strict=True))
        offset = sum(g * pitch for g, pitch in zip(where, pitches, strict=True)) if inside else None
        line, column = divmod(number, tensor.box_elements[0])
        yield swizzle(at + line * row + column * size, tensor.swizzle), offset


def expected_load(
    cluster: Cluster, tensor: TensorMap, data: NDArray[np.uint8], coords: tuple[int, ...], at: int
) -> NDArray[np.uint8]:
    shared, size = cluster.shared[0].copy(), tensor.dtype.nbytes
    for place, offset in cells(tensor, coords, at):
        shared[place : place + size] = 0 if offset is None else data[offset : offset + size]
    return shared


def load(cluster: Cluster, tensor: TensorMap, coords: tuple[int, ...], at: int) -> None:
    copy.complete(cluster, [operation(LOAD.format(tensor.rank), at, MAP_AT, *coords, MBAR)])


@st.composite
def boxes(draw: st.DrawFn) -> tuple[TensorMap, tuple[int, ...], int]:
    rank = draw(st.integers(1, 5))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    unit = 16 // dtype.itemsize
    mode = draw(st.sampled_from([0, 32, 64, 128]))
    inner = draw(st.integers(1, max(1, (mode or 48) // 16))) * unit
    box = (*[draw(st.integers(1, (9, 4, 3, 2)[rank - 2])) for _ in range(rank - 1)], inner)
    shape = (*[draw(st.integers(1, (14, 6, 4, 3)[rank - 2])) for _ in range(rank - 1)], draw(st.integers(1, 6)) * unit)
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank)]
    array = np.frombuffer(np.random.default_rng(rank).bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    view = array.copy()[..., : draw(st.integers(1, shape[-1]))] if rank > 1 else array.copy()
    base = view if view.base is None else view.base
    whole = base.reshape(-1)
    dims, strides = view.shape[::-1], view.strides[:-1][::-1]
    strides = tuple(-(-stride // 16) * 16 for stride in strides)
    tensor = TensorMap(whole, box, swizzle=mode, element_strides=steps, dims=dims, strides=strides)
    inner = draw(st.integers(-3, tensor.dims[0] // unit + 2)) * unit
    coords = (inner, *[draw(st.integers(-3, dim + 2)) for dim in tensor.dims[1:]])
    return tensor, coords, 2048 + 128 * draw(st.integers(0, 9))


@given(boxes())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_load_places_every_element_of_the_box_and_counts_the_whole_box(
    box_case: tuple[TensorMap, tuple[int, ...], int],
) -> None:
    tensor, coords, at = box_case
    cluster = Cluster(limit=96 * 1024)
    data = cluster.bind(tensor)
    expected = expected_load(cluster, tensor, data, coords, at)
    load(cluster, tensor, coords, at)
    np.testing.assert_array_equal(cluster.shared[0], expected)
    assert cluster.log == [("tx", 0, MBAR, tensor.nbytes)]


@given(boxes())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_store_writes_the_elements_inside_the_tensor_and_no_others(
    box_case: tuple[TensorMap, tuple[int, ...], int],
) -> None:
    tensor, coords, at = box_case
    coords = tuple(max(coord, 0) for coord in coords)
    cluster = Cluster(limit=96 * 1024)
    data, size = cluster.bind(tensor), tensor.dtype.nbytes
    expected, shared = data.copy(), cluster.shared.copy()
    for place, offset in cells(tensor, coords, at):
        if offset is not None:
            expected[offset : offset + size] = shared[0, place : place + size]
    copy.complete(cluster, [operation(STORE.format(tensor.rank), MAP_AT, *coords, at)])
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(cluster.shared, shared)
    assert cluster.log == []


@pytest.mark.parametrize("mode", [ATOM_32B, ATOM_64B])
@pytest.mark.parametrize("coords", [(0, 0), (8, -3)])
def test_a_load_swizzles_the_wider_atoms(mode: str, coords: tuple[int, ...]) -> None:
    tensor = TensorMap(np.arange(40 * 64, dtype=np.float32).reshape(40, 64), (16, 32), swizzle=mode)
    cluster = Cluster()
    expected = expected_load(cluster, tensor, cluster.bind(tensor), coords, 4096 + 256)
    load(cluster, tensor, coords, 4096 + 256)
    np.testing.assert_array_equal(cluster.shared[0], expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_load_fills_elements_outside_with_nan(dtype: Any) -> None:
    tensor = TensorMap(np.ones((8, 16), dtype), (4, 16), fill="nan")
    cluster = Cluster()
    cluster.bind(tensor)
    load(cluster, tensor, (-8, 6), 2048)
    got = cluster.shared[0, 2048 : 2048 + tensor.nbytes].view(dtype).reshape(4, 16).astype(np.float64)
    outside = np.ones((4, 16), bool)
    outside[:2, 8:] = False
    np.testing.assert_array_equal(np.isnan(got), outside)
    assert (got[~outside] == 1).all()


@st.composite
def ragged_boxes(draw: st.DrawFn) -> tuple[TensorMap, tuple[int, ...], tuple[int, int, int]]:
    """Draws a map, coordinates innermost first, and a sequence: its head, its first row, its length."""
    rows, heads, length, row = draw(st.integers(1, 40)), draw(st.integers(1, 3)), 0, draw(st.integers(0, 30))
    first = draw(st.integers(0, rows))
    length, head = draw(st.integers(0, rows - first)), draw(st.integers(0, heads - 1))
    array = np.frombuffer(np.random.default_rng(rows).bytes(rows * heads * 128), np.uint16).reshape(rows, heads, 64)
    tensor = ragged(array.copy().swapaxes(0, 1), (1, 1, 1, draw(st.integers(1, 16)), 64), swizzle=128)
    return tensor, (0, RAGGED_ROWS - length + row, head, first + length, RAGGED_ROWS), (head, first + row, length - row)


@given(ragged_boxes())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_ragged_map_ends_with_its_sequence(case: Any) -> None:
    """The copy equals that of a map of the sequence's rows alone."""
    tensor, coords, (head, row, left) = case
    rows, heads = tensor.array.shape[1], tensor.array.shape[0]
    alone = TensorMap(
        tensor.array,
        tensor.box[:2][::-1],
        swizzle=128,
        dims=(64, max(1, min(row + left, rows))),
        strides=(128 * heads,),
    )
    at = 2048
    cluster = Cluster(limit=96 * 1024)
    data = cluster.bind(tensor)
    expected, stored = cluster.shared[0].copy(), data.copy()
    for place, offset in cells(alone, (0, row), at):
        inside = offset is not None and left > 0
        where = 0 if offset is None else offset + 128 * head
        if inside:
            stored[where : where + 2] = cluster.shared[0, place : place + 2]
        expected[place : place + 2] = data[where : where + 2] if inside else 0
    original = data.copy()
    copy.complete(cluster, [operation(STORE.format(5), MAP_AT, *coords, at)])
    np.testing.assert_array_equal(data, stored)
    data[:] = original
    load(cluster, tensor, coords, at)
    np.testing.assert_array_equal(cluster.shared[0], expected)
    assert cluster.log == [("tx", 0, MBAR, tensor.nbytes)]


@pytest.mark.parametrize("opcode", [LOAD, STORE])
def test_a_ragged_map_does_not_leave_its_array(opcode: str) -> None:
    """A sequence before the first row; the outermost coordinate only removes rows."""
    tensor = ragged(np.zeros((10, 64), np.uint16), (1, 1, 8, 64))
    cluster = Cluster()
    cluster.bind(tensor)
    coords = 0, RAGGED_ROWS - 5, 2, RAGGED_ROWS
    words = (2048, MAP_AT, *coords, MBAR) if opcode is LOAD else (MAP_AT, *coords, 2048)
    with pytest.raises(MemoryFault) as caught:
        copy.complete(cluster, [operation(opcode.format(4), *words)])
    assert str(caught.value) == f"global 0x{TENSORS_AT - 384:x} to 0x{TENSORS_AT + 256:x}"


def test_a_load_fills_tf32_with_nan_of_four_bytes() -> None:
    tensor = TensorMap(np.ones((8, 16), np.float32), (4, 16), fill="nan", dtype=tf32)
    cluster = Cluster()
    cluster.bind(tensor)
    load(cluster, tensor, (0, 8), 2048)
    assert np.isnan(cluster.shared[0, 2048 : 2048 + tensor.nbytes].view(np.float32)).all()


def test_coordinates_are_signed_and_of_32_bits() -> None:
    tensor = TensorMap(np.arange(256, dtype=np.uint32).reshape(16, 16), (8, 16))
    cluster, other = Cluster(), Cluster()
    cluster.bind(tensor)
    other.bind(tensor)
    copy.complete(cluster, [operation(LOAD.format(2), 2048, MAP_AT, 0, 0xFFFF_FFFE, MBAR)])
    load(other, tensor, (0, -2), 2048)
    np.testing.assert_array_equal(cluster.shared, other.shared)


def tile() -> TensorMap:
    return TensorMap(np.random.default_rng(1).integers(0, 2**16, (64, 64), dtype=np.uint16), (16, 64), swizzle=128)


def test_multicast_reaches_the_same_offsets_of_every_selected_cta() -> None:
    cluster, tensor = Cluster(4), tile()
    data = cluster.bind(tensor)
    before, expected = cluster.shared.copy(), expected_load(cluster, tensor, data, (0, 32), 4096)
    opcode = LOAD.format(2) + ".multicast::cluster"
    words = shared_address(1, 4096), MAP_AT, 0, 32, shared_address(1, MBAR), 0b1010
    copy.complete(cluster, [operation(opcode, *words, rank=1)])
    for rank in (1, 3):
        np.testing.assert_array_equal(cluster.shared[rank, 4096:6144], expected[4096:6144])
    np.testing.assert_array_equal(cluster.shared[[0, 2]], before[[0, 2]])
    assert cluster.log == [("tx", 1, MBAR, 2048), ("tx", 3, MBAR, 2048)]


def test_data_arrive_before_their_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, tensor, seen = Cluster(2), tile(), []
    cluster.bind(tensor)
    monkeypatch.setattr(
        cluster, "complete_tx", lambda op, rank, *_: seen.append(cluster.shared[rank, 4096:6144].copy())
    )
    opcode = LOAD.format(2) + ".multicast::cluster"
    copy.complete(cluster, [operation(opcode, 4096, MAP_AT, 0, 0, MBAR, 0b11)])
    for rank, then in enumerate(seen):
        np.testing.assert_array_equal(then, cluster.shared[rank, 4096:6144])


@pytest.mark.parametrize(("destination", "mbar"), [(2, 2), (2, 3), (3, 2)])
def test_cta_group_2_signals_the_barrier_of_either_cta_of_the_pair(destination: int, mbar: int) -> None:
    cluster, tensor = Cluster(4), tile()
    cluster.bind(tensor)
    opcode = LOAD.format(2) + ".cta_group::2"
    words = shared_address(destination, 4096), MAP_AT, 0, 0, shared_address(mbar, MBAR)
    copy.complete(cluster, [operation(opcode, *words, rank=destination)])
    assert cluster.log == [("tx", mbar, MBAR, 2048)]


@pytest.mark.parametrize("parity", [0, 1])
def test_multicast_with_cta_group_2_signals_the_cta_of_the_barriers_parity(parity: int) -> None:
    cluster, tensor = Cluster(4), tile()
    cluster.bind(tensor)
    opcode = LOAD.format(2) + ".multicast::cluster.cta_group::2"
    words = shared_address(0, 4096), MAP_AT, 0, 0, shared_address(parity, MBAR), 0b0111
    copy.complete(cluster, [operation(opcode, *words)])
    assert [entry[1] for entry in cluster.log] == [parity, parity, 2 + parity]


REDUCTIONS = {
    "add": lambda a, b: a + b,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if b > a else a,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
TYPES = {
    "add": (np.uint32, np.int32, np.uint64, np.float32, np.float16, ml_dtypes.bfloat16),
    "min": (np.uint32, np.int32, np.uint64, np.int64, np.float16, ml_dtypes.bfloat16),
    "inc": (np.uint32,),
    "and": (np.uint32, np.uint64),
}
CASES = [
    (op, dtype)
    for op in REDUCTIONS
    for dtype in TYPES[{"max": "min", "dec": "inc"}.get(op, op) if op not in ("or", "xor") else "and"]
]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_reduction_combines_each_element_inside_the_tensor(op: str, dtype: Any) -> None:
    random = np.random.default_rng(5)
    kind = np.dtype(dtype).kind
    draw = (
        (lambda: random.integers(0, 20, (24, 32)).astype(dtype))
        if op in ("inc", "dec")
        else (
            lambda: (
                random.integers(-(2**31), 2**31, (24, 32)).astype(dtype)
                if kind in "iu"
                else random.normal(0, 9, (24, 32)).astype(dtype)
            )
        )
    )
    array = draw()
    tensor = TensorMap(array, (16, 16 if array.itemsize < 8 else 8), swizzle=64)
    cluster = Cluster()
    data, size = cluster.bind(tensor), array.itemsize
    cluster.shared[0, 2048 : 2048 + 24 * 32 * size].view(dtype)[:] = draw().ravel()
    expected = data.copy()
    with np.errstate(over="ignore"):
        for place, offset in cells(tensor, (24, 12), 2048 + 128):
            if offset is not None:
                old, new = (m[i : i + size].view(dtype)[0] for m, i in ((expected, offset), (cluster.shared[0], place)))
                expected[offset : offset + size].view(dtype)[0] = REDUCTIONS[op](old, new)
    opcode = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group"
    copy.complete(cluster, [operation(opcode, MAP_AT, 24, 12, 2048 + 128)])
    np.testing.assert_array_equal(data, expected)


def test_every_occurrence_of_a_repeated_element_is_reduced() -> None:
    tensor = TensorMap(np.zeros(8, np.uint32), (5, 8), dims=(8, 5), strides=(0,))
    cluster = Cluster()
    data = cluster.bind(tensor)
    values = np.arange(40, dtype=np.uint32).reshape(5, 8) ** 2
    cluster.shared[0, 2048 : 2048 + 160] = values.view(np.uint8).ravel()
    copy.complete(
        cluster,
        [operation("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group", MAP_AT, 0, 0, 2048)],
    )
    np.testing.assert_array_equal(data.view(np.uint32), values.sum(axis=0))


def test_sums_keep_subnormals() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        tiny = np.full(16, 1e-39, dtype)
        tensor = TensorMap(-tiny, (16,))
        cluster = Cluster()
        data = cluster.bind(tensor)
        cluster.shared[0, 2048 : 2048 + tiny.nbytes] = (-tiny).view(np.uint8)
        copy.complete(
            cluster,
            [operation("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group", MAP_AT, 0, 2048)],
        )
        np.testing.assert_array_equal(data.view(dtype), -2 * tiny)


@pytest.mark.parametrize(
    ("opcode", "words", "kind", "sentence"),
    [
        (
            LOAD.format(3), (2048, MAP_AT, 0, 0, 0, MBAR), ProtocolError,
            ".3d is given a tensor map of 2 dimensions; expected .2d and 2 coordinates, or a map of 3 dimensions",
        ),
        (
            LOAD.format(2), (2048, MAP_AT, 4, 0, MBAR), ProtocolError,
            "the innermost coordinate is 4, 8 bytes; expected a multiple of 16 bytes, 8 elements",
        ),
        (
            STORE.format(2), (MAP_AT, 8, 0xFFFF_FFFF, 2048), ProtocolError,
            "a box is stored at coordinates (8, -1), innermost first; expected none below 0; "
            "only loads may start outside the tensor",
        ),
        (
            LOAD.format(2), (2048 + 64, MAP_AT, 0, 0, MBAR), MemoryFault,
            "the destination of the box is at offset 2112 of shared memory; expected a multiple of 128; align "
            "the buffer",
        ),
        (
            LOAD.format(2), (64 * 1024 - 1024, MAP_AT, 0, 0, MBAR), MemoryFault,
            "the destination of the box takes bytes 64512 to 66559 of the shared memory of CTA 0; expected them "
            "within 1024 "
            "to 65535; mend the address or launch with more shared memory",
        ),
        (
            LOAD.format(2), (512, MAP_AT, 0, 0, MBAR), MemoryFault,
            "the destination of the box takes bytes 512 to 2559 of the shared memory of CTA 0; expected them "
            "within 1024 "
            "to 65535; mend the address or launch with more shared memory",
        ),
        (
            LOAD.format(2), (shared_address(2, 2048), MAP_AT, 0, 0, MBAR), MemoryFault,
            "the address of the box 0x2000800 is no shared-memory address of this cluster; expected CTA 0 to 1 "
            "in the bits "
            "from 24 on; convert generic addresses with cvta.to.shared and map them with mapa",
        ),
        (
            LOAD.format(2), (2048, MAP_AT, 0, 0, shared_address(1, MBAR)), ProtocolError,
            "the mbarrier is in CTA 1 and the destination in CTA 0; expected the mbarrier in the same CTA; use "
            ".cta_group::2 for that of the pair",
        ),
        (
            LOAD.format(2), (2048, MAP_AT, 0, 0, MBAR + 4), MemoryFault,
            "the mbarrier is at offset 1028; expected a multiple of 8; align the mbarrier",
        ),
        (
            LOAD.format(2) + ".multicast::cluster", (2048, MAP_AT, 0, 0, MBAR, 0b101), ProtocolError,
            "the multicast mask 0x5 names CTA 2; expected CTA 0 to 1; clear the bits above the size of the cluster",
        ),
        (
            LOAD.format(2).replace("::cluster", "::cta"),
            (shared_address(1, 2048), MAP_AT, 0, 0, shared_address(1, MBAR)),
            MemoryFault,
            "the destination is shared memory of CTA 1; expected that of CTA 0, which .shared::cta names; use "
            ".shared::cluster",
        ),
        (
            STORE.format(2), (MAP_AT, 0, 0, shared_address(1, 2048)), MemoryFault,
            "the source is shared memory of CTA 1; expected that of CTA 0, which .shared::cta names; store from "
            "the CTA's "
            "own shared memory",
        ),
        (
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group", (MAP_AT, 0, 0, 2048),
            UnsupportedInstruction,
            ".add is given a tensor map of u16 elements; expected u32, s32, u64, f32, f16, bf16",
        ),
    ],
)  # fmt: skip
def test_a_tensor_copy_refuses_bad_operands(
    opcode: str, words: tuple[int, ...], kind: type[Exception], sentence: str
) -> None:
    assert refusal(kind, tile(), opcode, *words) == sentence


def test_a_cta_group_2_copy_refuses_a_barrier_outside_the_pair() -> None:
    cluster = Cluster(4)
    cluster.bind(tile())
    words = shared_address(0, 2048), MAP_AT, 0, 0, shared_address(2, MBAR)
    with pytest.raises(ProtocolError) as raised:
        copy.complete(cluster, [operation(LOAD.format(2) + ".cta_group::2", *words)])
    assert str(raised.value) == (
        "the mbarrier is in CTA 2 and the destination in CTA 0; expected the mbarrier in CTA 0 or 1, a pair"
    )


def test_a_map_may_describe_more_than_is_allocated() -> None:
    """Only the memory that a copy touches must be allocated."""
    tensor = TensorMap(np.arange(64 * 32, dtype=np.uint32).reshape(64, 32), (16, 32), swizzle=128)
    whole, part, outside = Cluster(), Cluster(), Cluster()
    data = whole.bind(tensor)
    part.bind(tensor, nbytes=8000)
    outside.bind(tensor, nbytes=8000)
    for cluster in (whole, part):
        load(cluster, tensor, (0, 46), 2048)
    np.testing.assert_array_equal(whole.shared, part.shared)
    with pytest.raises(MemoryFault) as raised:
        load(outside, tensor, (0, 48), 2048)
    assert str(raised.value) == f"global 0x{TENSORS_AT + 6144:x} to 0x{TENSORS_AT + 8192:x}"
    add = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    before = data.copy()
    copy.complete(part, [operation(add, MAP_AT, 0, 32, 2048)])
    assert not np.array_equal(data, before)
    part_bytes = data.copy()
    data[:] = before
    copy.complete(whole, [operation(add, MAP_AT, 0, 32, 2048)])
    np.testing.assert_array_equal(data, part_bytes)


def test_a_load_refuses_a_box_larger_than_shared_memory() -> None:
    cluster = Cluster(limit=16 * 1024)
    tensor = TensorMap(np.zeros((256, 64), np.uint16), (256, 64))
    cluster.bind(tensor)
    with pytest.raises(MemoryFault) as raised:
        load(cluster, tensor, (0, 0), 2048)
    assert str(raised.value) == (
        "the box has 32768 bytes; expected at most the 16384 bytes of shared memory; use a smaller box"
    )


def test_a_load_refuses_an_interleaved_map() -> None:
    cluster = Cluster()
    tensor = TensorMap(np.zeros((4, 8, 16), np.uint16), (1, 8, 8), interleave="16B")
    cluster.bind(tensor)
    with pytest.raises(UnsupportedInstruction) as raised:
        load(cluster, tensor, (0, 0, 0), 2048)
    assert str(raised.value) == (
        "the tensor map has interleave '16B'; expected 'none'; the virtual GPU executes no other"
    )
