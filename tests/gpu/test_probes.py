"""The GPU answers every probe as it did when the golden data was recorded."""

from __future__ import annotations

import pytest

from tests.conformance.probes import PROBES, Probe, answers, golden
from tests.conformance.test_probes import differing


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_gpu_answers_as_recorded(probe: Probe) -> None:
    assert not differing(answers(probe, "cuda"), golden(probe))
