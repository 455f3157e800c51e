"""Tensor stores together: the same bytes as one by one; those that are not plain are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import MAP_AT, Cluster, operation, shared_address
from tests.vgpu.engines.test_tensor_copy import STORE
from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.engines import copy
from warpwright.vgpu.engines.store_batch import Stores
from warpwright.vgpu.jit.state import RECORD_WORDS
from warpwright.vgpu.program.operation import Op

Coords = tuple[int, int]
OTHER_MAP = MAP_AT + 128


def tensor() -> TensorMap:
    return TensorMap(np.zeros((64, 64), np.uint32), (16, 32), swizzle=128)


def store(coords: Coords, source: int, rank: int = 0, map: int = MAP_AT) -> Op:
    return operation(STORE.format(2), map, *coords, source, rank=rank)


def batch(cluster: Any, stores: Stores, ops: list[Op]) -> list[int]:
    """Complete stores together. Returns which are left."""
    cluster.tells_updates = False
    rows = np.zeros((len(ops), RECORD_WORDS), np.uint64)
    for row, op in zip(rows, ops, strict=True):
        row[1 : 2 + len(op._words)] = op.rank << 32, *op._words
    found: NDArray[np.int64] = stores.complete(cluster, ops[0].inst, rows, np.arange(len(ops)))
    return found.tolist()


def test_stores_together_copy_what_stores_alone_copy() -> None:
    tensors, clusters, stores = [tensor(), tensor()], [Cluster(2), Cluster(2)], Stores()
    for cluster, map in zip(clusters, tensors, strict=True):
        cluster.bind(map)
    for low in (0, 16):
        ops = [store((x, low), shared_address(rank, 2048 * (3 + rank)), rank) for rank, x in enumerate((0, 32))]
        assert batch(clusters[0], stores, ops) == []
        copy.complete(clusters[1], ops)
    assert tensors[1].array.any()
    np.testing.assert_array_equal(tensors[0].array, tensors[1].array)
    assert len(stores.plans) == 1


@pytest.mark.parametrize(
    "other",
    [
        store((0, 49), 2048), store((36, 0), 2048), store((-4, 1), 2048), store((2, 0), 2048),
        store((0, 0), 2048 + 128), store((0, 0), shared_address(1, 2048)), store((0, 0), 2048, map=OTHER_MAP),
        store((0, 0), 0), store((0, 0), 64 * 1024 - 1024),
    ],
    ids=["below", "beside", "before", "misaligned", "phase", "CTA", "map", "reserved memory", "past the end"],
)  # fmt: skip
def test_stores_that_are_not_plain_are_left(other: Op) -> None:
    cluster, (map, hidden) = Cluster(2), (tensor(), tensor())
    cluster.bind(map)
    cluster.bind(hidden, address=OTHER_MAP)
    assert batch(cluster, Stores(), [store((32, 32), 4096), other, store((32, 48), 4096)]) == [1]
    assert map.array[32:, 32:].any()
    map.array[32:, 32:] = 0
    assert not (map.array.any() or hidden.array.any())


def test_a_box_past_the_allocated_memory_is_left() -> None:
    cluster, map = Cluster(), tensor()
    cluster.bind(map, nbytes=16000)
    assert batch(cluster, Stores(), [store((0, 0), 2048), store((0, 48), 2048)]) == [1]
    assert not map.array[48:].any()


def test_stores_through_a_changed_map_write_the_other_tensor() -> None:
    cluster, stores, (first, second) = Cluster(), Stores(), (tensor(), tensor())
    cluster.bind(first)
    assert batch(cluster, stores, [store((0, 0), 2048)]) == []
    cluster.tensors[MAP_AT][:] = 1  # the bytes of another map
    cluster.bind(second)
    assert batch(cluster, stores, [store((0, 0), 2048)]) == []
    np.testing.assert_array_equal(first.array, second.array)
