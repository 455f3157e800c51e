"""The virtual H200 gives the recorded answers of the H200 to every probe."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.conformance.probes import FAULTS, PROBES, REFUSALS, Probe, answers, golden
from tests.conformance.refusals import STRICTER


def differing(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[str]:
    """Returns the cases that differ, each with its first different byte."""
    assert found.keys() == expected.keys(), "the golden data is of other probes: python -m tests.conformance.record"
    different = []
    for name, answer in expected.items():
        at = np.flatnonzero(found[name] != answer)
        if at.size:
            mine, theirs = (
                int.from_bytes(data[at[0] & ~3 :][:4].tobytes(), "little") for data in (found[name], answer)
            )
            different.append(
                f"{name}: byte {at[0] & ~3} holds {mine:#x}, on the H200 {theirs:#x} ({at.size} bytes differ)"
            )
    return different


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_virtual_h200_answers_as_the_h200_did(probe: Probe) -> None:
    assert not differing(answers(probe, ww.device("h200", numerics="hardware")), golden(probe))


@pytest.mark.parametrize("probe", REFUSALS, ids=lambda probe: probe.name)
def test_the_virtual_h200_refuses_all_that_the_h200_refuses(probe: Probe) -> None:
    found, expected = answers(probe, ww.device("h200")), golden(probe)
    assert not [name for name in expected if expected[name] == FAULTS and found[name] != FAULTS]
    assert {name for name in expected if found[name] > expected[name]} == STRICTER & expected.keys()
