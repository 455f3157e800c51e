"""Plain loads of a round together: the same bytes as one by one, and none if one of them is not plain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.vgpu.engines.fabric import MAP_AT, MBAR, Cluster, operation
from tests.vgpu.engines.test_tensor_copy import LOAD, load
from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.engines.box_batch import Loads
from warpwright.vgpu.jit.state import RECORD_WORDS

Coords = tuple[int, int]


def tensor() -> TensorMap:
    return TensorMap(np.arange(64 * 64, dtype=np.uint32).reshape(64, 64), (16, 32), swizzle=128)


def batch(cluster: Any, loads: Loads, coords: list[Coords]) -> bool:
    """Complete loads to one place after the other; mbarriers of the cluster accept nothing."""
    cluster.tells_updates, cluster.refuse_update = False, lambda *_, **__: None
    ops = [operation(LOAD.format(2), 2048 * (i + 1), MAP_AT, *at, MBAR) for i, at in enumerate(coords)]
    rows = np.zeros((len(ops), RECORD_WORDS), np.uint64)
    for row, op in zip(rows, ops, strict=True):
        row[2 : 2 + len(op._words)] = op._words
    return loads.complete(cluster, ops[0].inst, rows, np.arange(len(ops)))


def test_loads_together_copy_what_loads_alone_copy() -> None:
    together, alone, loads = Cluster(), Cluster(), Loads()
    for cluster in (together, alone):
        cluster.bind(tensor())
    for coords in ([(0, 0), (32, 48)], [(4, 8), (0, 3)]):
        assert batch(together, loads, coords)
        for i, at in enumerate(coords):
            load(alone, tensor(), at, 2048 * (i + 1))
        np.testing.assert_array_equal(together.shared, alone.shared)
    assert len(loads.cache) == 1


@pytest.mark.parametrize(
    ("second", "nbytes"), [((0, 49), None), ((36, 0), None), ((-4, 1), None), ((2, 0), None), ((0, 48), 16000)],
    ids=["below", "beside", "before", "misaligned", "not allocated"],
)  # fmt: skip
def test_loads_with_one_that_is_not_plain_have_no_effect(second: Coords, nbytes: int | None) -> None:
    cluster = Cluster()
    cluster.bind(tensor(), nbytes=nbytes)
    before, loads = cluster.shared.copy(), Loads()
    assert not batch(cluster, loads, [(0, 0), second])
    np.testing.assert_array_equal(cluster.shared, before)
    assert batch(cluster, loads, [(0, 0), (0, 46)])


def test_loads_through_a_changed_map_read_the_other_tensor() -> None:
    cluster, loads, others = Cluster(), Loads(), tensor()
    cluster.bind(tensor())
    assert batch(cluster, loads, [(0, 0)])
    others.array[:] += 1
    cluster.tensors[MAP_AT][:] = 1  # the bytes of another map
    cluster.bind(others)
    before = cluster.shared[0, 2048:4096].view(np.uint32).copy()
    assert batch(cluster, loads, [(0, 0)])
    np.testing.assert_array_equal(cluster.shared[0, 2048:4096].view(np.uint32), before + 1)
