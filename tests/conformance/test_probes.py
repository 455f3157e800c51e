"""The virtual H200 gives the recorded answers of the H200 to every probe."""

from __future__ import annotations

import pytest

import warpwright as ww
from tests.conformance.golden import GOLDEN, golden
from warpwright.selftest.answers import FAULTS, GOES_ON, answers, differences, some_cases
from warpwright.selftest.probes import PROBES, REFUSALS, Probe
from warpwright.selftest.probes.refusals import STRICTER

SOME = 5  # cases of a probe
RECORDED = [probe for probe in PROBES if (GOLDEN / f"{probe.name}.npz").exists()]  # those that an H200 can answer


def test_every_probe_that_an_h200_can_answer_is_recorded() -> None:
    assert {probe.name for probe in PROBES if probe.section != "tcgen05"} == {probe.name for probe in RECORDED}


@pytest.mark.parametrize("probe", RECORDED, ids=lambda probe: probe.name)
def test_some_cases_are_answered_as_the_h200_did(probe: Probe) -> None:
    cases = some_cases(probe, SOME)
    found, missing = answers(cases, ww.device("h200", numerics="hardware"))
    assert found.keys() == {case.name for case in cases} <= golden(probe).keys()
    assert not differences(golden(probe), found) and not missing


@pytest.mark.long
@pytest.mark.parametrize("probe", RECORDED, ids=lambda probe: probe.name)
def test_the_virtual_h200_answers_as_the_h200_did(probe: Probe) -> None:
    found, missing = answers(probe.cases(), ww.device("h200", numerics="hardware"))
    expected = golden(probe)
    assert found.keys() == expected.keys(), "the golden data is of other probes: python -m tests.conformance.record"
    assert not differences(expected, found) and not missing


@pytest.mark.parametrize("probe", REFUSALS, ids=lambda probe: probe.name)
def test_the_virtual_h200_refuses_all_that_the_h200_refuses(probe: Probe) -> None:
    found, expected = answers(probe.cases(), ww.device("h200"))[0], golden(probe)
    assert not differences(expected, found)
    stricter = {name for name in expected if (expected[name][0], found[name][0]) == (GOES_ON, FAULTS)}
    assert stricter == STRICTER & expected.keys()
