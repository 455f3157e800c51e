"""Findings in the text alone: registers that no path, or not every path, has written; setmaxnreg without effect."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.races import published_protocol
from warpwright.vgpu.checks.findings import Verdict

TEXT = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) .reqntid 32
{{
  .reg .b32 %r<10>;
  .reg .b64 %rd<5>;
  .reg .pred %p<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  setp.lt.u32 %p1, %r1, 16;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
{body}
  ret;
}}
"""
HALF = "@%p1 mov.u32 %r2, 7;\n add.u32 %r3, %r2, 1;\n"


def _check(body: str) -> Verdict:
    return ww.check(ww.load_ptx(TEXT.format(body=body))["k"], grid=1, args=[np.zeros(32, np.uint32)])


@pytest.mark.parametrize(
    "body",
    [
        HALF + "@%p1 st.global.u32 [%rd3], %r3;",
        HALF + "selp.u32 %r4, %r3, 9, %p1;\n st.global.u32 [%rd3], %r4;",
        HALF + "mov.u32 %r4, %r3;",
        "mov.u32 %r2, 0;\n @%p1 mov.u32 %r2, 7;\n st.global.u32 [%rd3], %r2;",
        "@%p1 bra A;\n mov.u32 %r2, 1;\n bra B;\nA:\n mov.u32 %r2, 2;\nB:\n st.global.u32 [%rd3], %r2;",
    ],
    ids=["where it is written", "selected", "unused", "written before", "on both paths"],
)
def test_registers_written_before_their_use_are_clean(body: str) -> None:
    assert _check(body).findings == ()


@pytest.mark.parametrize(
    ("body", "line", "thread"),
    [
        (HALF + "st.global.u32 [%rd3], %r3;", "st.global.u32", 16),
        (HALF + "mov.u32 %r4, %r3;\n st.global.u32 [%rd3], %r4;", "st.global.u32", 16),
        ("st.global.u32 [%rd3], %r2;", "st.global.u32", 0),
        ("@!%p1 bra A;\n mov.u32 %r2, 1;\nA:\n st.global.u32 [%rd3], %r2;", "st.global.u32", 16),
        ("mov.b64 %rd4, {%r5, %r6};\n st.global.u32 [%rd4], %r1;", "st.global.u32", 0),
    ],
    ids=["computed from", "copied", "never", "on one path", "an address"],
)
def test_the_finding_names_an_unwritten_register(body: str, line: str, thread: int) -> None:
    found = _check(body).findings[0]
    assert found.rule.id == "uninitialised"
    assert (found.steps[0].opcode, found.steps[0].thread) == (line, thread)
    assert found.message == "the thread has not written the register, nor what it comes from"


def test_setmaxnreg_without_maxnreg_has_no_effect() -> None:
    text = published_protocol.registers_upwards.configure(right=True).ptx()
    assert ".minnctapersm 1" in text
    free = ww.load_ptx(text.replace(".minnctapersm 1", ""))["registers_upwards"]
    verdict = ww.check(free, grid=1, args=[np.zeros(1, np.uint32)])
    assert verdict.kind == "notes"
    assert [(note.rule.id, note.message) for note in verdict.notes] == [
        (
            "setmaxnreg",
            "without .maxnreg, or .maxntid (or .reqntid) with .minnctapersm, the assembler leaves it out",
        )
    ]
