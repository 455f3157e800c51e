"""The traffic of persistent clusters that did not run, from the tiles of those that did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import warpwright as ww
from tests.vgpu.timing.test_representatives import ran
from warpwright.cli.attention_runs import call_of
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.kernels.attention import Problem
from warpwright.run import devices
from warpwright.targets import device
from warpwright.vgpu import Device
from warpwright.vgpu.timing import Profile, capture, rows
from warpwright.vgpu.timing.tiles import between_kinds, extrapolate_tiles, tiles_of_kinds, usual_tiles

__all__ = ["ran"]  # the fixture of this module

TILE, CLUSTERS, COUNT = np.array([2, 0, 1]), 10, 96
FACTORS = np.array([[3 << 61, 5 << 50, 7], [1 << 40, 11, 13 << 55], [17, 19 << 45, 23]])


def keys_of(cluster: int, rows: int, columns: int) -> NDArray[np.int64]:
    """Returns two rows of keys by position, warp by warp: linear in row, column and group of a tile."""
    tiles = np.arange(cluster, COUNT, CLUSTERS)
    digits = np.stack([tiles % rows, tiles // rows % columns, tiles // (rows * columns)])
    values = (FACTORS[:, :, None] * digits[:, None]).sum(axis=0)
    warps = np.concatenate([np.stack([values[0], values[1]], axis=1).ravel(), values[2]])
    return np.stack([warps, warps * 3])


def counts() -> dict[int, int]:
    return {cluster: len(range(cluster, COUNT, CLUSTERS)) for cluster in range(CLUSTERS)}


def extrapolated(known: list[int], rows: int, columns: int) -> Any:
    others = [cluster for cluster in range(CLUSTERS) if cluster not in known]
    found = {cluster: keys_of(cluster, rows, columns) for cluster in known}
    return extrapolate_tiles(found, counts(), TILE, CLUSTERS, others)


@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (8, 100), (100, 1), (3, 8)])
def test_keys_follow_from_the_digits_of_a_tile(rows: int, columns: int) -> None:
    found = extrapolated([0, 1, 2, 5, 6, 9], rows, columns)
    assert sorted(found) == [3, 4, 7, 8]
    for cluster, keys in found.items():
        np.testing.assert_array_equal(keys, keys_of(cluster, rows, columns))


def test_another_cluster_must_run_where_the_radices_are_open() -> None:
    known = [0, 1]
    while isinstance(more := extrapolated(known, 2, 4), int):
        assert more not in known
        known.append(more)
    assert 2 < len(known) < CLUSTERS
    assert all(np.array_equal(keys, keys_of(cluster, 2, 4)) for cluster, keys in more.items())


def test_keys_that_no_digits_give_are_not_extrapolated() -> None:
    found = {cluster: keys_of(cluster, 4, 6) for cluster in (0, 1, 2, 5, 6, 9)}
    found[6][0, 3] += 1
    assert extrapolate_tiles(found, counts(), TILE, CLUSTERS, [3, 4, 7, 8]) is None


def test_a_usual_tile_has_what_most_known_tiles_have() -> None:
    """Two positions of the first warp, which are inside the array but for two tiles, then one of the third, outside."""
    tiles = {each: np.array([[0] * 2 * count + [7] * count]) for each, count in counts().items()}
    wanted = {each: tiles[each].copy() for each in (0, 9)}
    tiles[1][0, :2] = tiles[5][0, 4] = 96
    found = usual_tiles({each: tiles[each] for each in (1, 2, 4, 5)}, counts(), TILE, [0, 9])
    assert {each: rows.tolist() for each, rows in found.items()} == {each: wanted[each].tolist() for each in (0, 9)}


def test_the_border_of_two_kinds_is_bisected() -> None:
    kinds = {0: 0, 1: 0, 100: 1}
    while (number := between_kinds(kinds)) is not None:
        kinds[number] = int(number >= 37)
    assert kinds[36] == 0 and kinds[37] == 1 and len(kinds) < 12


def test_positions_tell_the_tiles_only_if_they_are_those_of_whole_tiles() -> None:
    more, less = np.array([14, 0, 7]), np.array([12, 0, 6])
    found = tiles_of_kinds([more, less])
    assert found is not None and found[0].tolist() == [2, 0, 1] and found[1] == [7, 6]
    other = np.array([0, 1, 0])
    assert tiles_of_kinds([more + other, less + other]) is None
    assert tiles_of_kinds([less, more]) is None
    assert tiles_of_kinds([more]) is None


def test_a_persistent_gemm_has_the_profile_of_a_launch_in_which_all_clusters_run(
    monkeypatch: pytest.MonkeyPatch, ran: list[int]
) -> None:
    b200, shape = Device(device("b200")), (4096, 4096, 256)
    profile, _ = matmul_profile(b200, shape, 9, True)
    assert len(ran) == len(set(ran)) < 24
    with monkeypatch.context() as change:
        change.setattr(capture, "representatives", lambda launch, clusters: [])
        ran.clear()
        assert matmul_profile(b200, shape, 9, True)[0] == profile
    assert len(ran) == 74


def attention(lse: bool = True, causal: bool = False) -> Profile:
    """Returns the profile of 16 heads of 2048 tokens on an h200; with ``lse`` the log-sum-exp is stored."""
    _, call = call_of(Problem(1, 16, 16, 2048, 2048, 128, causal=causal), devices.device("h200"), None)
    (launch,) = call
    names = [name for name, _ in launch.kernel.params]
    args = [0 if name == "lse" and not lse else value for name, value in zip(names, launch.args, strict=True)]
    return ww.profile(launch.kernel, launch.grid, args=args, device="h200")


@pytest.mark.parametrize("lse", [True, False])
def test_a_last_tile_of_fewer_queries_does_not_let_all_clusters_run(
    monkeypatch: pytest.MonkeyPatch, ran: list[int], lse: bool
) -> None:
    """Eleven tiles of 192 queries a head, the last of 128, on 132 CTAs, of two tiles or one. With the log-sum-exp the
    CTAs with a last tile are kinds of their own; without it their bytes outside the array are not linear.

    With the log-sum-exp ten last tiles of CTAs that did not run count as whole: 2560 bytes more of 34 MB (`tiles`).
    """
    found = attention(lse)
    assert len(ran) == len(set(ran)) < 16
    monkeypatch.setattr(capture, "representatives", lambda launch, clusters: [])
    ran.clear()
    every = attention(lse)
    assert found.bytes_hbm - every.bytes_hbm == 2560 * lse
    assert found.time_us == pytest.approx(every.time_us, rel=5e-4 * lse)
    assert len(ran) == 132


def test_all_clusters_run_once_if_they_draw_the_numbers_of_their_tiles(
    monkeypatch: pytest.MonkeyPatch, ran: list[int]
) -> None:
    """The launch of a few ends at the first draw, and only the steps of replayed kinds are read."""
    read: list[int] = []
    real = rows._read_warps
    monkeypatch.setattr(rows, "_read_warps", lambda *given: read.append(1) or real(*given))
    found = attention(causal=True)
    assert sorted(ran) == list(range(132)) and len(read) <= 2
    monkeypatch.setattr(capture, "representatives", lambda launch, clusters: [])
    assert attention(causal=True) == found
