"""Each probe says what it asks, and names a section of docs/machine.md; its answers are stored and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpwright as ww
from tests.conformance.golden import golden
from tests.test_docs import anchors
from warpwright.selftest import ask, rules
from warpwright.selftest.answers import answers, differences, retarget, some_cases
from warpwright.selftest.probes import PAGE, PROBES, REFUSALS, Probe, find_probe, probes_of

ROOT = Path(__file__).parents[2]
ALL = [*PROBES, *REFUSALS]


@pytest.mark.parametrize("probe", ALL, ids=lambda probe: probe.name)
def test_a_probe_says_what_it_asks_and_where_the_answer_stands(probe: Probe) -> None:
    assert probe.rule.endswith(".") and len(probe.rule) > 12
    assert probe.section in anchors(ROOT / PAGE), f"{probe.name} names {probe.page}, a heading that is not there"


def test_names_are_unique() -> None:
    assert len({probe.name for probe in ALL}) == len(ALL)


def test_the_sections_of_the_page_have_probes() -> None:
    """A section below "Compared with an H200" is one of probes, but for two of facts that no probe asks about."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    page = text.split("## Compared with an H200\n")[1].split("\n## ")[0]
    headings = {line[4:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("### ")}
    assert headings - {"functions-and-registers", "disagreements"} == {probe.section for probe in ALL}


def test_a_board_is_asked_what_it_has_instructions_for() -> None:
    asked = {arch: {probe.section for probe in probes_of(arch)} for arch in ("sm_90a", "sm_100a", "sm_103a", "sm_120a")}
    assert asked["sm_90a"] - asked["sm_120a"] == {"wgmma"}
    assert asked["sm_100a"] - asked["sm_120a"] == {"tcgen05"}
    assert {probe.name for probe in probes_of("sm_100a")} - {probe.name for probe in probes_of("sm_103a")} == {
        "tensor_integers"
    }


def test_a_text_is_written_for_the_target_of_the_board() -> None:
    text = ".version 8.6\n.target sm_90a\n.address_size 64\n"
    assert retarget(text, "sm_103a") == ".version 8.8\n.target sm_103a\n.address_size 64\n"
    assert retarget(text, "sm_90a") == text


def test_answers_are_stored_and_read_again() -> None:
    asked = {"elections": (golden(find_probe("elections")), ["0x1: no answer in 60 s"]), "edges": ({}, ())}
    again = rules.unpack(rules.pack({"elections": asked["elections"]}))
    assert again.keys() == {"elections"} and again["elections"][1] == asked["elections"][1]
    for name, answer in asked["elections"][0].items():
        assert np.array_equal(again["elections"][0][name], answer)


def test_a_process_of_its_own_answers() -> None:
    """The virtual H200 in the place of a real GPU."""
    probe = find_probe("elections")
    found, failures = ask.collect(probe, "h200")
    assert found.keys() == golden(probe).keys() and not failures and not differences(golden(probe), found)


def test_a_fault_that_is_the_answer_does_not_end_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process answers two cases; the second is a fault, after which the next process continues."""
    asked = []

    def run(probe: Probe, first: int, folder: Path, *_: object) -> str:
        asked.append(first)
        for number in (first, first + 1):
            np.save(folder / f"{number}.npy", np.array([number], np.uint8))
        return ""

    monkeypatch.setattr(ask, "_run", run)
    found, failures = ask.collect(find_probe("elections"), "cuda")
    assert asked == [0, 2, 4] and not failures
    assert [int(answer[0]) for answer in found.values()] == [0, 1, 2, 3, 4, 5]


def test_a_device_that_is_not_there_leaves_cases_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "LOST", 1)
    found, failures = ask.collect(find_probe("elections"), "h300")
    assert not found
    assert failures[0].startswith("0xffffffff: ") and "given device 'h300'" in failures[0]
    assert failures[1:] == ["5 further cases: not asked after 1 without an answer"]


@pytest.mark.parametrize("arch", ["b300", "rtx_pro_6000", "h20"])
def test_boards_answer_some_cases_of_every_probe(arch: str) -> None:
    device = ww.device(arch, numerics="hardware")
    for probe in probes_of(device.spec.arch):
        found, missing = answers(some_cases(probe, 1), device)
        assert len(found) + len(missing) == 1, probe.name
