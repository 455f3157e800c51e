"""The probes of tcgen05: ptxas takes their PTX, the checks find no race, and an answer is what PTX says."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from warpwright.ptx.ptxas import assemble, find_ptxas
from warpwright.selftest.answers import answers, retarget, some_cases
from warpwright.selftest.probes import PROBES, Probe

TENSOR = [probe for probe in PROBES if probe.section == "tcgen05"]


@pytest.mark.skipif(not find_ptxas(), reason="there is no ptxas")
@pytest.mark.parametrize("probe", TENSOR, ids=lambda probe: probe.name)
def test_ptxas_takes_the_text_of_every_probe(probe: Probe) -> None:
    for text in {retarget(case.text, "sm_100a") for case in some_cases(probe, 4)}:
        assert assemble(text, "sm_100a").errors == {}


@pytest.mark.parametrize("probe", TENSOR, ids=lambda probe: probe.name)
def test_no_probe_has_a_race(probe: Probe) -> None:
    """An answer that depends on chance would say nothing about a rule."""
    case = next(probe.cases())
    module = ww.load_ptx(retarget(case.text, "sm_100a"))
    (name,) = module
    shape = {"block": case.block, "cluster": case.cluster, "smem": case.smem}
    verdict = ww.check(module[name], case.grid or case.cluster, args=case.args, device="b200", **shape)
    assert not verdict.findings


def test_a_load_reads_the_lanes_that_ptx_names() -> None:
    """16x256b is the fragment of mma.sync (PTX ISA 9.1 section 9.7.16.2.3): thread t has row t/4, columns 2(t%4)."""
    loads = next(probe for probe in TENSOR if probe.name == "tensor_loads")
    name = "16x256b x1 lane 0"
    found, missing = answers((case for case in loads.cases() if case.name == name), ww.device("b200"))
    words = found[name].view(np.uint32).reshape(128, 4) // np.uint32(0x10003) - 1
    lanes, columns = words // 64, words % 64
    thread = np.arange(128)[:, None]
    assert not missing
    assert np.array_equal(lanes % 32, thread % 32 // 4 + np.array([0, 0, 8, 8]))
    assert np.array_equal(columns, thread % 4 * 2 + np.array([0, 1, 0, 1]))


def test_what_the_virtual_gpu_does_not_execute_has_a_reason() -> None:
    modifiers = next(probe for probe in TENSOR if probe.name == "tensor_modifiers")
    found, missing = answers(modifiers.cases(), ww.device("b200"))
    assert len(found) == 9
    assert missing == {
        "ashift": "the virtual GPU does not execute .ashift; use tcgen05.shift or store the shifted rows of A"
    }
