"""L2 hits and misses of loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from warpwright.vgpu.timing import cache
from warpwright.vgpu.timing.cache import Visit


def visit(*keys: int, nbytes: int = 100) -> Visit:
    count = len(keys)
    own = np.array(keys)
    return Visit(
        own, own, np.full(count, nbytes), 0 * own, np.ones(count, bool), np.ones(count, np.int64), np.arange(count)
    )


def look_up(waves: Sequence[list[Visit]], capacity: int = 1000, homes: Sequence[int] | None = None) -> Any:
    """`cache.look_up`; each cluster of a wave is in a GPC of its own, or in those of ``homes``."""
    return cache.look_up(waves, [homes or range(len(wave)) for wave in waves], capacity)


def misses(*waves: list[Visit], capacity: int) -> list[list[list[float]]]:
    """Returns the shares of a miss at each position of each cluster of each wave."""
    return [[found.miss.tolist() for found in wave] for wave in look_up(waves, capacity)]


def test_the_first_access_misses_and_the_next_wave_hits() -> None:
    assert misses([visit(1, 2)], [visit(*range(1, 9))], capacity=1000) == [[[1, 1]], [[0, 0, 1, 1, 1, 1, 1, 1]]]


def test_simultaneous_accesses_share_a_miss() -> None:
    found = look_up([[visit(1, 2), visit(1, 3)]])[0]
    assert [each.miss.tolist() for each in found] == [[0.5, 1], [0.5, 1]]
    assert all(each.cold.all() for each in found)


@pytest.mark.parametrize("capacity", [200, 250])
def test_l2_evicts_the_least_recently_used(capacity: int) -> None:
    fetched = cache._least_recent([1, 2, 1, 3, 1, 2], [100] * 6, capacity)
    assert fetched.tolist() == [0, 1, 0, 3, 0, 5]


def test_a_large_cache_equals_the_general_one() -> None:
    rng = np.random.default_rng(3)
    wave = [visit(*rng.integers(0, 40, 60).tolist()) for _ in range(4)]
    whole = 100 * len(np.unique(np.concatenate([each.keys for each in wave])))
    assert sum(map(sum, misses(wave, capacity=whole)[0])) == pytest.approx(whole / 100)
    assert sum(map(sum, misses(wave, capacity=whole // 2)[0])) > whole / 100


def test_positions_are_accessed_in_order() -> None:
    """The last position is accessed first, so that access loads the box; four accesses later it is in L2."""
    keys = np.array([5, 1, 2, 3, 5])
    ones = np.ones(5, np.int64)
    both = Visit(keys, keys, 100 * ones, 0 * ones, ones > 0, ones, np.array([4, 3, 2, 1, 0]))
    assert misses([both], capacity=1000) == [[[0, 1, 1, 1, 1]]]


def test_a_miss_loads_the_next_box_of_the_line() -> None:
    """Boxes 10 and 11 share a line: the first access loads both, so the second box is in L2 before its first access."""
    ones = np.ones(4, np.int64)
    one = Visit(
        np.array([10, 20, 11, 10]), np.array([10, 20, 10, 10]), 100 * ones, 0 * ones, ones > 0, ones, np.arange(4)
    )
    (found,) = look_up([[one]])[0]
    assert found.miss.tolist() == [2, 1, 0, 0]
    assert found.cold.tolist() == [1, 1, 0, 0] and found.fresh.tolist() == [0, 0, 1, 0]


def test_keys_of_several_ctas_are_common() -> None:
    found = look_up([[visit(1, 2), visit(1, 3)]])[0]
    assert [each.common.tolist() for each in found] == [[0.5, 0], [0.5, 0]]


def test_reads_of_one_gpc_are_not_common() -> None:
    """L2 merges the requests of a GPC: device memory sees one."""
    found = look_up([[visit(1, 2), visit(1, 3)]], homes=[4, 4])[0]
    assert [each.common.tolist() for each in found] == [[0, 0], [0, 0]]
    assert [each.miss.tolist() for each in found] == [[0.5, 1], [0.5, 1]]


def test_the_second_box_of_a_line_is_no_other_reader() -> None:
    ones = np.ones(2, np.int64)
    own = Visit(np.array([10, 11]), np.array([10, 10]), 100 * ones, 0 * ones, ones > 0, ones, np.arange(2))
    (found,) = look_up([[own]])[0]
    assert found.miss.tolist() == [1, 1] and found.common.tolist() == [0, 0]
