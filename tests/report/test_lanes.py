"""Lanes in the order of the data flow, the windows of a timeline, and bars without lost spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.timelines import timeline
from warpwright.report.intervals import intersection, length, union
from warpwright.report.lanes import coalesce, kind, lanes, merge_tracks, windows
from warpwright.vgpu.timing import Span


def span(track, name, start=0.0, end=1.0):
    return Span(track, 0, name, start, end, "k.py:1")


def test_lanes_follow_the_data_flow_and_slots_are_adjacent() -> None:
    tracks = [(lane.cta, lane.track) for lane in lanes(timeline(stages=3))]
    flow = ["load", "TMA", "ab[0]", "ab[1]", "ab[2]", "mma", "tensor core", "epilogue"]
    assert tracks == [(0, name) for name in flow] + [(1, name) for name in flow if name != "mma"]


def test_a_ring_of_accumulators_is_between_the_tensor_core_and_the_epilogue() -> None:
    spans = [*timeline(stages=2), span("acc[0]", "filling", 1700, 18000), span("acc[0]", "in use", 18000, 20000)]
    tracks = [lane.track for lane in lanes(spans, ctas=1)]
    assert tracks == ["load", "TMA", "ab[0]", "ab[1]", "mma", "tensor core", "acc[0]", "epilogue"]


def test_short_roles_share_a_lane() -> None:
    spans = [*timeline(), span("init", "issues", 0, 90), span("drain", "waits ab.empty", 20000, 20100)]
    tracks = {lane.track for lane in lanes(merge_tracks(spans))}
    assert {"all warps", "load", "mma", "epilogue", "TMA"} <= tracks and not {"init", "drain"} & tracks


@pytest.mark.parametrize(
    ("track", "name", "what"),
    [
        ("ab[3]", "filling", "filling"),
        ("ab[3]", "in use", "in use"),
        ("mma", "waits ab.full", "wait"),
        ("mma", "issues", "multiply"),
        ("tensor core", "mma ab[3]", "multiply"),
        ("TMA", "load ab[3]", "copy"),
        ("TMA", "store", "store"),
        ("load", "issues", "copy"),
        ("epilogue", "tensor memory", "store"),
        ("kernel", "tensor memory", "store"),
        ("kernel", "global memory", "store"),
        ("kernel", "cluster barrier", "wait"),
        ("mma", "barrier", "wait"),
        ("mma", "tensor memory", "multiply"),
        ("kernel", "issues", "other"),
        ("scale", "issues", "other"),
    ],
)
def test_a_span_is_coloured_by_what_it_does(track, name, what) -> None:
    assert kind(span(track, name)) == what


def test_windows_show_the_prologue_some_passes_of_the_ring_and_the_epilogue() -> None:
    spans = timeline(stages=8, k_blocks=64)
    found = windows(spans)
    core = [each for each in spans if each.track == "tensor core" and each.cta == 0]
    assert found.whole == (0.0, max(each.end for each in spans))
    assert found.prologue[0] == 0.0 and found.prologue[1] > core[8].start
    assert found.steady[1] - found.steady[0] == pytest.approx(24 * 256)
    assert core[0].start < found.steady[0] < found.steady[1] < core[-1].end
    assert core[0].start < found.epilogue[0] < core[-1].end < found.epilogue[1] == found.whole[1]


def test_windows_of_a_kernel_without_mma_follow_its_busiest_track() -> None:
    found = windows([span("warps", "issues", 10.0 * i, 10.0 * i + 8) for i in range(40)])
    assert found.whole == (0.0, 398.0) and 100 < found.steady[0] < found.steady[1] < 398


def test_one_span_is_enough() -> None:
    assert windows([span("warps", "issues", 5.0, 9.0)]).whole == (0.0, 9.0)


def test_bars_closer_than_a_pixel_join_and_others_do_not() -> None:
    spans = [span("mma", "issues", 0, 10), span("mma", "issues", 10.5, 20), span("mma", "issues", 40, 50)]
    assert coalesce(spans, (0, 100), 100) == {"multiply": [(0, 20), (40, 50)]}
    assert coalesce(spans, (5, 45), 1000) == {"multiply": [(5, 10), (10.5, 20), (40, 45)]}


def test_work_and_waits_join_apart() -> None:
    spans = [span("mma", name, i, i + 1) for i, name in enumerate(["issues", "waits ab.full"] * 50)]
    assert coalesce(spans, (0, 100), 10) == {"multiply": [(0, 99)], "wait": [(1, 100)]}


EXTENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: tuple(sorted(pair))))


@given(EXTENTS, EXTENTS)
def test_unions_and_what_they_share_are_those_of_sets(left, right) -> None:
    def cells(extents):
        return {cell for start, end in extents for cell in range(start, end)}

    merged, other = union(left), union(right)
    assert cells(merged) == cells(left) and length(merged) == len(cells(left))
    assert all(before[1] < after[0] for before, after in zip(merged, merged[1:]))  # noqa: B905, RUF007
    assert cells(intersection(merged, other)) == cells(left) & cells(right)
