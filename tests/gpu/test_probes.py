"""The GPU answers every probe as it did when the golden data was recorded."""

from __future__ import annotations

import pytest

import warpwright as ww
from tests.conformance.golden import golden
from tests.conformance.test_probes import RECORDED
from warpwright.selftest.answers import answers, differences
from warpwright.selftest.ask import collect
from warpwright.selftest.probes import REFUSALS, Probe


@pytest.mark.parametrize("probe", RECORDED, ids=lambda probe: probe.name)
def test_the_gpu_answers_as_recorded(probe: Probe) -> None:
    assert not differences(golden(probe), answers(probe.cases(), ww.device("cuda"))[0])


@pytest.mark.parametrize("probe", REFUSALS, ids=lambda probe: probe.name)
def test_the_gpu_refuses_as_recorded(probe: Probe) -> None:
    found, failures = collect(probe, "cuda")
    assert not failures and not differences(golden(probe), found)
