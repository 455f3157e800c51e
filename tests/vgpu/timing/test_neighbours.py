"""SMs of a GPC, and the L2 cost of their common requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from warpwright import targets
from warpwright.vgpu.timing.cache import Visit
from warpwright.vgpu.timing.neighbours import contention, gpcs_of, l2_costs

CHIP = replace(targets.timing_of("h200"), gpcs=(4, 4, 2), multicast_cost=1.2)


def visit(*keys: int, copies: int = 1, reads: bool = True, outside: tuple[int, ...] = ()) -> Visit:
    own, ones = np.array(keys), np.ones(len(keys), np.int64)
    return Visit(
        own,
        own,
        100 * ones,
        np.array(outside or 0 * ones),
        np.full(len(keys), reads),
        copies * ones,
        np.arange(len(keys)),
    )


def test_ctas_fill_a_gpc_and_clusters_alternate_gpcs() -> None:
    assert gpcs_of(CHIP, 1) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert gpcs_of(CHIP, 2) == [0, 1, 2, 0, 1]
    assert gpcs_of(CHIP, 4) == [0, 1]


def test_a_gpc_joins_simultaneous_requests() -> None:
    """Three clusters request key 1, two of them in one GPC: these two cost 1 + 0.4 instead of 2."""
    found = l2_costs([visit(1, 5), visit(1, 6), visit(1, 7)], [0, 0, 1], 0.4, CHIP)
    assert [each.tolist() for each in found] == [[pytest.approx(0.7), 1], [pytest.approx(0.7), 1], [1, 1]]


def test_a_gpc_does_not_join_later_requests() -> None:
    (found,) = l2_costs([visit(1, 2, 3, 4, 1)], [0], 0.4, CHIP)
    assert found.tolist() == [1, 1, 1, 1, 1]


def test_a_gpc_does_not_join_multicasts_and_stores() -> None:
    wave = [visit(1, copies=2), visit(1, copies=2), visit(9, reads=False), visit(9, reads=False)]
    assert [each.tolist() for each in l2_costs(wave, [0, 0, 0, 0], 0.4, CHIP)] == [[1.2], [1.2], [1], [1]]


def tiles(bottom: tuple[int, ...]) -> list[Visit]:
    """Returns the reads of two k-blocks of 2 × 2 tiles: A, B, A, B; ``bottom``: bytes outside of the lower two."""
    return [
        visit(10 * row, column, 10 * row + 1, 100 + column, outside=bottom if row == 2 else (0, 0, 0, 0))
        for column in (1, 2)
        for row in (1, 2)
    ]


def test_tiles_that_load_as_much_advance_together() -> None:
    assert [each.tolist() for each in l2_costs(tiles((0, 0, 0, 0)), [0] * 4, 0.4, CHIP)] == [
        [pytest.approx(0.7)] * 4
    ] * 4


def test_tiles_that_are_outside_alike_advance_together() -> None:
    lower = tiles((80, 0, 80, 0))[1::2]
    joined = [pytest.approx(0.7), 1, pytest.approx(0.7), 1]
    assert [each.tolist() for each in l2_costs(lower, [0, 0], 0.4, CHIP)] == [joined] * 2


def test_a_tile_partly_outside_leaves_the_step_of_its_neighbours() -> None:
    """The lower tiles load less of A than the upper tiles with which they share B, so no CTA of the GPC is in step."""
    assert [each.tolist() for each in l2_costs(tiles((80, 0, 80, 0)), [0] * 4, 0.4, CHIP)] == [[1, 1, 1, 1]] * 4


def test_a_tile_partly_outside_keeps_other_gpcs_in_step() -> None:
    """The lower tiles are in a GPC of their own: both GPCs join their reads of A."""
    found = l2_costs(tiles((80, 0, 80, 0)), [0, 1, 0, 1], 0.4, CHIP)
    assert [each.tolist() for each in found] == [[pytest.approx(0.7), 1, pytest.approx(0.7), 1]] * 4


def test_the_step_is_lost_only_where_boxes_differ() -> None:
    """The last of four common boxes differs, so the access before it is not joined, nor the one before that."""
    whole, cut = visit(1, 2, 3, 4), visit(1, 2, 3, 4, outside=(0, 0, 0, 50))
    joined = [pytest.approx(0.7)] * 4
    assert l2_costs([whole, whole], [0, 0], 0.4, CHIP)[0].tolist() == joined
    assert l2_costs([whole, cut], [0, 0], 0.4, CHIP)[0].tolist() == [*joined[:1], 1, 1, 1]


def test_more_ctas_of_an_sm_and_later_starts_join_less() -> None:
    chip = replace(CHIP, merged_cost=(0.4, 0.8, 0.7), merged_later=(0.6, 0.9, 1.0), hbm_share=0.9, hbm_common_share=0.6)
    assert [contention(chip, count, later=False)[0] for count in (1, 2, 3, 8)] == [0.4, 0.8, 0.7, 0.7]
    assert [contention(chip, count, later=True)[0] for count in (1, 2, 3, 8)] == [0.6, 0.9, 1.0, 1.0]


def test_device_memory_takes_longer_for_common_requests() -> None:
    chip = replace(CHIP, hbm_share=0.9, hbm_common_share=0.6, hbm_common_later=0.45)
    assert [contention(chip, 1, later=later)[1] for later in (False, True)] == [pytest.approx(0.5), pytest.approx(1.0)]
