"""The report of a node: lanes, time and stalls of every rank, both accesses of a race, a deadlock by rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import warpwright as ww
from tests.races.test_nodes import _args, node_kernels
from tests.report.browser import answers, needs_browser
from tests.report.test_html import data_of
from tests.report.test_html_verdict import line_of, plain
from tests.report.timelines import profile
from warpwright.report.html.notebook import cell_html
from warpwright.report.html.profile import profile_page
from warpwright.report.html.program import program_page
from warpwright.report.html.verdict import verdict_page
from warpwright.report.tables import table
from warpwright.report.text import profile_tables, rank_rows
from warpwright.run.session import Launched
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.timing import Profile

HERE = Path(__file__).as_posix()
RANKS = 4
SENT = (1_500_000, 0, 0, 3_000_000)


def node(ranks: int = RANKS) -> Profile:
    """Returns a profile of a node whose rank 1 is the slowest; a stall at line 1 is longer there."""
    found = []
    for rank in range(ranks):
        each = profile(k_blocks=16, latency=1200.0 if rank == 1 else 900.0, device=f"h200x{ranks}")
        role = each.roles[0]
        stall = replace(role.stalls[0], lines=((f"{HERE}:1", role.cycles * (0.5 if rank == 1 else 0.25)),))
        time_us = 500.0 if rank == 1 else 464.0
        found.append(replace(each, roles=(replace(role, stalls=(stall,)),), time_us=time_us, bytes_sent=SENT[rank]))
    return replace(found[1], ranks=tuple(found))


@pytest.fixture(scope="module")
def raced() -> tuple[Profile, Verdict]:
    """Rank 0 sends a tile that rank 1 reads without waiting for it."""
    kernel = node_kernels.send_tile.configure(right=False)
    given: dict[str, Any] = {"grid": 1, "device": "h200x2"}
    predicted = ww.profile(kernel, args=_args("send_tile", 2), **given)
    return predicted, ww.check(kernel, args=_args("send_tile", 2), **given)


def test_the_timeline_has_the_lanes_and_phases_of_every_rank() -> None:
    found = node()
    timeline = data_of(profile_page(found))["timeline"]
    places = list(dict.fromkeys((lane["rank"], lane["cta"]) for lane in timeline["lanes"]))
    assert places == [(rank, cta) for rank in range(RANKS) for cta in (0, 1)]
    assert timeline["slowest"] == 1
    assert timeline["windows"]["whole"][1] == max(span.end for each in found.ranks for span in each.spans)
    assert "rank" not in data_of(profile_page(found.ranks[0]))["timeline"]["lanes"][0]


def test_a_wait_of_a_rank_is_released_by_an_operation_of_that_rank() -> None:
    kernel = node_kernels.load_from_peer.configure(right=True)
    predicted = ww.profile(kernel, 1, args=_args("load_from_peer", 2), device="h200x2")
    timeline = data_of(profile_page(predicted))["timeline"]
    phases, released = timeline["phases"], set()
    for lane in timeline["lanes"]:
        for phase in lane.get("released", ()):
            if phase >= 0 and phases["lane"][phase] >= 0:
                assert timeline["lanes"][phases["lane"][phase]]["rank"] == lane["rank"]
                released.add(lane["rank"])
    assert released == {0, 1}


def test_the_page_has_time_and_stalls_of_each_rank() -> None:
    page = profile_page(node())
    told = plain(page)
    assert "the numbers are those of rank 1, the slowest of 4" in told
    rows = list(rank_rows(node()))
    assert [(row["rank"], row["of the slowest"], row["sent MB"]) for row in rows] == [
        (0, "93 %", 1.5), (1, "100 %", 0.0), (2, "93 %", 0.0), (3, "93 %", 3.0),
    ]  # fmt: skip
    assert all(f"rank {rank}: {row['time_us']:,.4g} µs" in told for rank, row in enumerate(rows))
    assert "load waits ab.empty 25 % of its cycles on ranks 0, 2-3, 50 % on rank 1" in told
    assert "TFLOPS (" in told and "Roofline of h200" in told  # the peaks are those of one GPU of the node


def test_the_terminal_and_a_notebook_have_a_row_for_each_rank() -> None:
    rows = list(rank_rows(node()))
    titles = [each.title for each in profile_tables(node()) if isinstance(each, type(table(rows)))]
    assert "the ranks of the node" in titles
    assert plain(cell_html(node())).count("load waits ab.empty") > RANKS


def test_both_accesses_of_a_race_are_on_the_timeline_of_their_ranks(raced: tuple[Profile, Verdict]) -> None:
    predicted, verdict = raced
    store, load = (line_of(node_kernels.send_tile, code) for code in ("tma.store(", "out[0] = y[0]"))
    page = profile_page(predicted, verdict=verdict)
    steps = {step.where.rpartition(":")[2]: step.cta.rank for step in verdict.findings[0].steps}  # type: ignore[attr-defined]
    assert sorted(steps.values()) == [0, 1] and f"CTA (0, 0, 0) of rank {steps[str(store)]}" in plain(page)
    lanes = (store, "TMA stores"), (load, "kernel")
    assert _places(page) == {(steps[str(line)], lane, f"node_kernels.py:{line}") for line, lane in lanes}
    assert data_of(profile_page(predicted))["timeline"]["marks"] == []


def _places(page: str) -> set[tuple[int, str, str]]:
    """Returns rank, lane and line of each mark."""
    timeline = data_of(page)["timeline"]
    lanes = [(timeline["lanes"][mark["lane"]], mark["index"]) for mark in timeline["marks"]]
    return {(lane["rank"], lane["name"], timeline["wheres"][lane["where"][index]]) for lane, index in lanes}


def test_a_program_marks_the_accesses_of_its_longest_launch(raced: tuple[Profile, Verdict]) -> None:
    predicted, verdict = raced
    launches = [Launched("k", (1, 1, 1), verdict, predicted.time_us)]
    assert len(_places(program_page("k.py", launches, predicted))) == 2
    assert _places(program_page("k.py", [replace(launches[0], verdict=None)], predicted)) == set()


def test_the_page_of_a_deadlock_says_what_each_rank_waits_for() -> None:
    kernel = node_kernels.two_collectives.configure(right=False)
    verdict = ww.check(kernel, 1, args=_args("two_collectives", 2), device="h200x2")
    (hang,) = [finding.hang for finding in verdict.findings if finding.hang]
    told = plain(verdict_page(verdict))
    assert [text.partition(",")[0] for text in hang.ranks] == ["rank 0", "rank 1"]
    for line in _short(hang.ranks):
        assert line in told


def _short(lines: tuple[str, ...]) -> Iterator[str]:
    folder = Path(node_kernels.__file__).parent.as_posix()
    return (line.replace(f"{folder}/", "") for line in lines)


ACTIONS = """
const box = document.getElementById("timeline"), chosen = document.getElementById("rank");
const details = () => [...document.querySelectorAll("#details p")].map((each) => each.textContent);
const shown = () => [...new Set(timeline.data.lanes.filter((lane) => lane.height).map((lane) => lane.rank))];
const press = (key) => box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const choose = (value) => { chosen.value = value; chosen.dispatchEvent(new Event("change")); };
const found = { options: [...chosen.options].map((each) => each.text), first: shown() };
found.wide = document.documentElement.scrollWidth <= innerWidth;
choose("0");
found.one = shown();
found.height = Number(box.dataset.height);
press("ArrowRight");
for (let i = 0; i < 40; i++) press("ArrowDown");
found.last = details()[0];
const buttons = [...document.querySelectorAll("#marks button")];
found.marks = buttons.map((each) => {
  choose("0");
  each.click();
  return [each.textContent, details()[0], details().at(-1), shown().length];
});
choose("");
found.all = shown();
found.taller = Number(box.dataset.height);
return found;
"""


@needs_browser
@pytest.mark.parametrize("width", [1440, 500])
def test_the_timeline_shows_all_ranks_or_one(raced: tuple[Profile, Verdict], tmp_path: Path, width: int) -> None:
    predicted, verdict = raced
    found, console = answers(profile_page(predicted, verdict=verdict), ACTIONS, tmp_path, width)
    assert console == []
    assert found["wide"]
    assert found["options"] == ["all ranks", "rank 0", "rank 1"]
    assert (found["first"], found["one"], found["all"]) == ([0, 1], [0], [0, 1])
    assert found["taller"] > found["height"]
    assert ", CTA 0 of rank 0" in found["last"]
    steps = verdict.findings[0].steps
    assert len(found["marks"]) == 2
    for (text, details, last, ranks), step in zip(found["marks"], steps, strict=True):
        assert text == last == f"1. {step.what}: {step.opcode}, CTA {step.cta}"
        assert f", CTA 0 of rank {step.cta.rank}: " in details  # type: ignore[attr-defined]
        assert ranks == 1 + step.cta.rank  # type: ignore[attr-defined]  # of rank 1: all ranks are shown


@needs_browser
def test_of_many_ranks_the_slowest_is_shown_first(tmp_path: Path) -> None:
    found, console = answers(profile_page(node()), ACTIONS, tmp_path)
    assert console == []
    assert (found["first"], found["all"], found["marks"]) == ([1], [0, 1, 2, 3], [])
