"""The order of clusters on the same SMs."""

from __future__ import annotations

from warpwright.vgpu.timing.places import assign_places


def test_equal_clusters_run_in_order() -> None:
    assert assign_places([5] * 7, 3) == [0, 1, 2, 0, 1, 2, 0]


def test_the_next_cluster_starts_where_one_ends_first() -> None:
    assert assign_places([9, 2, 5, 2, 2, 2], 3) == [0, 1, 2, 1, 1, 2]


def test_clusters_that_do_nothing_have_places_of_their_own() -> None:
    assert assign_places([0] * 7, 3) == [0, 1, 2, 0, 1, 2, 0]


def test_fewer_clusters_than_places_start_at_once() -> None:
    assert assign_places([1], 132) == [0]
