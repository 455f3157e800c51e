"""The launches of a program as rows, text and SARIF."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright.report.launches import kernel_rows, launch_lines, markdown_of
from warpwright.run.devices import device
from warpwright.run.session import Launched, Session
from warpwright.vgpu.checks.coverage import Coverage
from warpwright.vgpu.checks.findings import Finding, Verdict
from warpwright.vgpu.checks.rules import RULES

RACE = "st.global.u32 [%a0], %t; ret;"


def test_rows_of_kernels() -> None:
    launches = [Launched("a", (1,), None, 2.0), Launched("b", (1,), None, None), Launched("a", (2,), None, 3.0)]
    assert kernel_rows(launches) == [
        {"kernel": "a", "launches": 2, "time_us": 5.0},
        {"kernel": "b", "launches": 1, "time_us": ""},
    ]
    assert kernel_rows([Launched("a", (1,), None, None)]) == [{"kernel": "a", "launches": 1}]


def test_equal_verdicts_are_told_once() -> None:
    kernel = ww.load_ptx(text(RACE, (np.zeros(1, np.uint32),)))["k"]
    session = Session(device("b200"), check=True)
    for _ in range(2):
        session.launch(kernel, [np.zeros(1, np.uint32)], grid=1, block=64)
    assert [each.verdict.kind for each in session.launches] == ["findings"] * 2
    lines = list(launch_lines(session.launches))
    assert len(lines) == 3 and lines[1:] == ["[dim]2 launches of k have this verdict[/dim]", ""]


def test_only_matching_kernels_are_checked() -> None:
    kernel = ww.load_ptx(text("st.global.u32 [%o], 1; ret;", (np.zeros(1),)))["k"]
    session = Session(device("b200"), check=True, only="^gemm")
    session.launch(kernel, [np.zeros(32, np.uint32)], grid=1, block=32)
    assert session.launches == [Launched("k", (1, 1, 1), None, None)]


def test_a_launch_that_fails_has_a_verdict() -> None:
    outside = "st.global.u32 [%o + 128], 1; ret;"
    kernel = ww.load_ptx(text(outside, (np.zeros(1),)))["k"]
    sessions = [Session(device("b200"), check=check) for check in (False, True)]
    for session in sessions:
        with pytest.raises(ww.MemoryFault):
            session.launch(kernel, [np.zeros(32, np.uint32)], grid=1, block=32)
    plain, checked = [session.launches[0].verdict for session in sessions]
    assert plain.kind == "findings" and [finding.rule.id for finding in plain.findings] == ["fault"]
    assert plain.findings[0].message.startswith("PTX line ") and str(plain).startswith("k on b200: findings\nfault: ")
    assert [finding.rule.id for finding in checked.findings] == ["fault"] and checked.coverage.present


def test_a_launch_that_the_device_cannot_run_is_incomplete() -> None:
    kernel = ww.load_ptx(text("tex.1d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%o, {%f0}]; ret;", (np.zeros(1),)))["k"]
    session = Session(device("b200"))
    with pytest.raises(ww.UnsupportedInstruction) as raised:
        session.launch(kernel, [np.zeros(32, np.uint32)], grid=1, block=32)
    verdict = session.launches[0].verdict
    assert (verdict.kind, verdict.reasons) == ("incomplete", (str(raised.value),))


def test_markdown_of_launches() -> None:
    kernel = ww.load_ptx(text(RACE, (np.zeros(1, np.uint32),)))["k"]
    session = Session(device("b200"), check=True)
    for _ in range(2):
        session.launch(kernel, [np.zeros(1, np.uint32)], grid=1, block=64)
    where = Finding(RULES["fault"], (), "/w/k.cu:9: `st`: kernel k: address 0x7 is wrong.\n  twice")
    odd = Verdict("a|b", "b200", (where,), Coverage(0, 0, ()), ("not reached: /w/k.cu:3",))
    lines = markdown_of([*session.launches, Launched("a|b", (1,), odd, 1234.56)]).splitlines()
    assert lines[:5] == [
        "| kernel | launches | verdict | time µs |",
        "| --- | ---: | --- | ---: |",
        "| `k` | 2 | findings |  |",
        "| `a\\|b` | 1 | findings | 1235 |",
        "",
    ]
    assert lines[5].startswith("- `k`: **race**: two accesses of the same memory, one of them a write")
    assert lines[6:] == [
        "- `a|b`: **fault** at `k.cu:9`: the kernel does what its device does not allow; k.cu:9: `st`: kernel k: "
        "address 0x7 is wrong. twice",
        "- `a|b`: incomplete: not reached: k.cu:3",
    ]
    assert markdown_of([]) == "The program launched no kernel.\n"
