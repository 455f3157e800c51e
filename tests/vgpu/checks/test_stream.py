"""The checks judge clusters with equal events once, and never miss a difference between clusters that matters."""

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
def similar_ctas(x: Global[u32], y: tma.Map[f32], *, odd: str = "", right: bool = True):
    """Every CTA uses its own part of ``x`` and ``y`` and other values; CTA `ODD` differs in what ``odd`` names."""
    buffer, tile = smem.array(u32, 128), smem.tile(f32, (8, 32))
    done = mbarrier(1, name="done")
    is_odd = ctaid.x == ODD
    one = select(is_odd, ctaid.x // ODD, 0)
    with If((warp.id == 0) & elect_one()):
        done.init()
        fence.mbarrier_init()
    bar.sync()
    with If(tid.x < (64 - one if odd == "lanes" else 64)):
        buffer[tid.x + (64 * one if odd == "address" else 0)] = ctaid.x
    if right:
        bar.sync()
    if odd == "barrier":
        with If(is_odd):
            bar.sync()
    if odd == "unordered":
        with If(is_odd):
            buffer[tid.x] = 0
    x[ctaid.x * 64 + tid.x] = buffer[tid.x ^ 32]
    with If((warp.id == 0) & elect_one()):
        fence.proxy_async()
        done.arrive_expect_tx(tile.nbytes)
        tma.load(tile, y[8 * ctaid.x, 32 * one if odd == "box" else 0], done)
    done.wait(0)
    if odd == "wait":
        with If(is_odd):
            done.wait(0)


@pytest.fixture
def judged_clusters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the list to which the numbers of the judged clusters are added."""
    found: list[int] = []
    follow = watcher.follow

    def record(knowledge: Knowledge, *args: Any) -> None:
        found.append(knowledge.cluster.number)
        follow(knowledge, *args)

    monkeypatch.setattr(watcher, "follow", record)
    return found


def check_similar(**config: Any) -> Verdict:
    x, y = np.zeros(CTAS * 64, np.uint32), np.arange(CTAS * 8 * 32, dtype=np.float32).reshape(-1, 32)
    return check(similar_ctas.configure(**config), CTAS, args=[x, y], device="h200")


@pytest.mark.parametrize("odd", ["", "box"])
def test_the_checks_judge_equal_clusters_once(judged_clusters: list[int], odd: str) -> None:
    assert check_similar(odd=odd).findings == ()
    assert len(judged_clusters) == 1


@pytest.mark.parametrize("odd", ["wait", "lanes", "address", "barrier", "unordered"])
def test_the_checks_judge_a_different_cluster_too(judged_clusters: list[int], odd: str) -> None:
    check_similar(odd=odd)
    assert len(judged_clusters) == 2
    assert ODD in judged_clusters


def test_the_finding_names_the_one_cluster_that_races() -> None:
    (found,) = check_similar(odd="unordered").findings
    assert found.rule.id == "race"
    assert {step.cta for step in found.steps} == {(ODD, 0, 0)}


def test_the_finding_of_equal_clusters_names_the_lowest() -> None:
    findings = check_similar(right=False).findings
    assert sorted(found.rule.id for found in findings) == ["race", "uninitialised"]
    assert {step.cta for found in findings for step in found.steps} == {(0, 0, 0)}


@kernel("sm_90a", threads=32)
def stores_through_two_maps(a: tma.Map[f32], b: tma.Map[f32]):
    """CTA 0 stores half of ``part`` to ``b``, which ends there; CTA 1 stores all of it, of which half was never
    written."""
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


def test_a_store_is_clipped_by_its_own_map(judged_clusters: list[int]) -> None:
    """A store reads the part of its box inside the tensor of its own map, not of another store's map."""
    a, b = np.zeros((16, 32), np.float32), np.zeros((12, 32), np.float32)
    (found,) = check(stores_through_two_maps, 2, args=[a, b], device="h200").findings
    assert found.rule.id == "uninitialised"
    assert {step.cta for step in found.steps} == {(1, 0, 0)}
    assert sorted(judged_clusters) == [0, 1]


@pytest.mark.parametrize("config", [{}, {"odd": "unordered"}, {"odd": "lanes"}, {"right": False}])
def test_a_folded_stream_has_the_same_findings(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> None:
    whole = {str(finding.rule.id): finding.message for finding in check_similar(**config).findings}
    monkeypatch.setattr(stream, "_LARGEST", 0)
    folds, fold = itertools.count(), stream.Stream.fold

    def record(self: stream.Stream) -> None:
        next(folds)
        fold(self)

    monkeypatch.setattr(stream.Stream, "fold", record)
    assert {str(finding.rule.id): finding.message for finding in check_similar(**config).findings} == whole
    assert next(folds) > CTAS


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
    ("text", "ignored"),
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
def test_ignored_words_are_global_addresses_and_values(text: str, ignored: list[int]) -> None:
    program = decode(ptx.parse(OPERANDS.replace("TEXT", text)), "k")
    assert list(stream.ignored_words(program.insts[0])) == ignored
