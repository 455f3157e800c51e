"""Clusters that did the same are judged once; what differs between clusters and matters is never overlooked."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from warpwright import ptx
from warpwright.lang import (
    Global,
    If,
    bar,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    mbarrier,
    select,
    smem,
    st,
    tid,
    tma,
    u32,
    warp,
)
from warpwright.run.check import check
from warpwright.vgpu.checks import stream, watcher
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.program.decode import decode

CTAS, ODD = 6, 4


@kernel("sm_90a", threads=64)
def alike(x: Global[u32], y: tma.Map[f32], *, odd: str = "", right: bool = True):
    """Every CTA works elsewhere in ``x`` and ``y`` with other values; one does something else, which ``odd`` names."""
    held, tile = smem.array(u32, 128), smem.tile(f32, (8, 32))
    done = mbarrier(1, name="done")
    here = ctaid.x == ODD
    one = select(here, ctaid.x // ODD, 0)
    with If((warp.id == 0) & elect_one()):
        done.init()
        fence.mbarrier_init()
    bar.sync()
    with If(tid.x < (64 - one if odd == "lanes" else 64)):
        held[tid.x + (64 * one if odd == "place" else 0)] = ctaid.x
    if right:
        bar.sync()
    if odd == "barrier":
        with If(here):
            bar.sync()
    if odd == "unordered":
        with If(here):
            held[tid.x] = 0
    x[ctaid.x * 64 + tid.x] = held[tid.x ^ 32]
    with If((warp.id == 0) & elect_one()):
        fence.proxy_async()
        done.arrive_expect_tx(tile.nbytes)
        tma.load(tile, y[8 * ctaid.x, 32 * one if odd == "box" else 0], done)
    with If(here if odd == "wait" else ctaid.x < CTAS):
        done.wait(0)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clusters that are judged."""
    found: list[int] = []
    follow = watcher.follow

    def noted(knowledge: Knowledge, *args: Any) -> None:
        found.append(knowledge.cluster.number)
        follow(knowledge, *args)

    monkeypatch.setattr(watcher, "follow", noted)
    return found


def checked(**config: Any) -> Verdict:
    x, y = np.zeros(CTAS * 64, np.uint32), np.arange(CTAS * 8 * 32, dtype=np.float32).reshape(-1, 32)
    return check(alike.configure(**config), CTAS, args=[x, y], device="h200")


@pytest.mark.parametrize("odd", ["", "box"])
def test_clusters_that_did_the_same_elsewhere_are_judged_once(judged: list[int], odd: str) -> None:
    assert checked(odd=odd).findings == ()
    assert len(judged) == 1


@pytest.mark.parametrize("odd", ["wait", "lanes", "place", "barrier", "unordered"])
def test_a_cluster_that_did_anything_else_is_judged_too(judged: list[int], odd: str) -> None:
    checked(odd=odd)
    assert len(judged) == 2
    assert ODD in judged


def test_a_race_in_one_cluster_of_many_is_found_there() -> None:
    (found,) = checked(odd="unordered").findings
    assert found.rule.id == "race"
    assert {step.cta for step in found.steps} == {(ODD, 0, 0)}


def test_what_equal_clusters_have_is_found_once_in_the_lowest() -> None:
    findings = checked(right=False).findings
    assert sorted(found.rule.id for found in findings) == ["race", "uninitialised"]
    assert {step.cta for found in findings for step in found.steps} == {(0, 0, 0)}


@kernel("sm_90a", threads=32)
def stores_through_two_maps(a: tma.Map[f32], b: tma.Map[f32]):
    """CTA 0 stores half of ``part`` to ``b``, which ends there; CTA 1 all of it, of which half was never written."""
    whole, part = smem.tile(f32, (8, 32)), smem.tile(f32, (8, 32))
    for row in range(8):
        st(whole.at(row, tid.x), 1.0)
    for row in range(4):
        st(part.at(row, tid.x), 2.0)
    fence.proxy_async()
    bar.sync()
    with If(elect_one()):
        tma.store(a[8 * ctaid.x, 0], whole)
        tma.store(b[8 - 8 * ctaid.x, 0], part)
        tma.commit_group()
        tma.wait_group(0)


def test_a_store_is_clipped_by_its_own_map(judged: list[int]) -> None:
    """A store reads what lies inside the tensor of its map, not of the map of another store."""
    a, b = np.zeros((16, 32), np.float32), np.zeros((12, 32), np.float32)
    (found,) = check(stores_through_two_maps, 2, args=[a, b], device="h200").findings
    assert found.rule.id == "uninitialised"
    assert {step.cta for step in found.steps} == {(1, 0, 0)}
    assert sorted(judged) == [0, 1]


@pytest.mark.parametrize("config", [{}, {"odd": "unordered"}, {"odd": "lanes"}, {"right": False}])
def test_streams_that_are_folded_say_the_same(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> None:
    whole = {str(finding.rule.id): finding.message for finding in checked(**config).findings}
    monkeypatch.setattr(stream, "_LARGEST", 0)
    folded, fold = itertools.count(), stream.Stream.fold

    def noted(self: stream.Stream) -> None:
        next(folded)
        fold(self)

    monkeypatch.setattr(stream.Stream, "fold", noted)
    assert {str(finding.rule.id): finding.message for finding in checked(**config).findings} == whole
    assert next(folded) > CTAS


OPERANDS = """
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k() {
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<2>;
  TEXT
  ret;
}
"""


LOAD, BULK = "shared::cta.global.mbarrier::complete_tx::bytes", "mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        (f"cp.async.bulk.tensor.2d.{LOAD} [%r0], [%d1, {{%r1, %r2}}], [%r3];", [2, 3]),
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r1, %r2}], [%r3];", [1, 2]),
        ("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%d1, {%r1}], [%r3];", [1]),
        (f"cp.async.bulk.shared::cluster.global.{BULK} [%r0], [%d1], %r2, [%r3];", [1]),
        (f"cp.async.bulk.shared::cluster.shared::cta.{BULK} [%r0], [%r1], %r2, [%r3];", []),
        ("cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], %r2;", [0]),
        ("cp.async.ca.shared.global [%r0], [%d1], 16;", [1]),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r0], {%r1, %r2}, [%r3];", [1, 2]),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r0], %d1, %d2, %r1, %p1;", []),
    ],
)
def test_only_places_in_global_memory_and_values_are_left_out(text: str, left_out: list[int]) -> None:
    program = decode(ptx.parse(OPERANDS.replace("TEXT", text)), "k")
    assert list(stream.ignored_words(program.insts[0])) == left_out
