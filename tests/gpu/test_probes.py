"""The GPU answers every probe as it did when the golden data was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.probes import PROBES, REFUSALS, Probe, answers, golden
from tests.conformance.record import record
from tests.conformance.test_probes import differing


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_gpu_answers_as_recorded(probe: Probe) -> None:
    assert not differing(answers(probe, "cuda"), golden(probe))


@pytest.mark.parametrize("probe", REFUSALS, ids=lambda probe: probe.name)
def test_the_gpu_refuses_as_recorded(probe: Probe, tmp_path: Path) -> None:
    assert record(probe.name, tmp_path, ["--device", "cuda"]) == 0
    assert not differing(golden(probe, tmp_path), golden(probe))
