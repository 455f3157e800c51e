"""Lane code of launches whose engines only signal: without the instructions whose results decide nothing."""

from __future__ import annotations

from typing import Any

import pytest

from warpwright.cli.attention_runs import attention_profile
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.kernels.attention import Problem
from warpwright.ptx import parse
from warpwright.run import devices
from warpwright.vgpu import device as launches
from warpwright.vgpu.jit import compile as lane_code
from warpwright.vgpu.jit.unneeded import unneeded
from warpwright.vgpu.program.decode import decode
from warpwright.vgpu.timing import Profile

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b64 %a<3>;
    .reg .f32 %f<6>;
    .reg .b32 %r<6>;
    .reg .pred %p<3>;
    .shared .b32 word;
    ld.param.u64 %a0, [out];
    mov.u32 %r0, %tid.x;
    add.u32 %r1, %r0, 1;
    ex2.approx.f32 %f0, 0f3F800000;
    st.global.f32 [%a0], %f0;
    st.shared.u32 [word], %r1;
    ld.shared.u32 %r2, [word];
    LOADED
    atom.global.add.u32 %r3, [%a0], 1;
    setp.eq.u32 %p0, %r3, 7;
    @%p0 bra LEFT;
    ex2.approx.f32 %f2, 0f40000000;
    max.f32 %f3, %f2, 0f00000000;
    shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1;
LEFT:
    ret;
}
"""


def left_out(loaded: str) -> list[str]:
    """Returns the opcodes of the unneeded instructions, with a line that reads the word of shared memory."""
    program = decode(parse(PTX.replace("LOADED", loaded)), "k")
    return [program.insts[number].opcode for number in sorted(unneeded(program))]


def test_what_no_branch_and_no_address_depends_on_is_unneeded() -> None:
    computed = ["ex2.approx.f32", "ex2.approx.f32", "max.f32"]
    assert left_out("") == ["mov.u32", "add.u32", *computed]
    assert left_out("setp.eq.u32 %p1, %r2, 3;\n    @%p1 bra LEFT;") == computed


def test_a_load_that_decides_needs_what_is_stored() -> None:
    assert left_out("ld.global.u32 %r5, [%a0];\n setp.eq.u32 %p1, %r5, 3;\n @%p1 bra LEFT;") == [
        "mov.u32", "add.u32", "ex2.approx.f32", "max.f32",
    ]  # fmt: skip


def profiles(monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[Profile, Profile]:
    """Returns the profile of a call, and that by code which executes every instruction."""
    found = call()
    with monkeypatch.context() as change:
        change.setattr(lane_code, "unneeded", lambda program: frozenset())
        change.setattr(launches, "_kernels", type(launches._kernels)())
        return found, call()


@pytest.mark.parametrize("name", ["h200", "b200", "rtx5090"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_profile_of_code_that_executes_everything(
    monkeypatch: pytest.MonkeyPatch, name: str, causal: bool
) -> None:
    problem = Problem(1, 4, 4, 640, 640, 128, causal=causal)
    found, whole = profiles(monkeypatch, lambda: attention_profile(devices.device(name), problem, True)[0])
    assert found == whole


@pytest.mark.parametrize(("name", "level"), [("h200", 8), ("b200", 10), ("rtx5090", None)])
def test_a_gemm_has_the_profile_of_code_that_executes_everything(
    monkeypatch: pytest.MonkeyPatch, name: str, level: int | None
) -> None:
    call = lambda: matmul_profile(devices.device(name), (512, 512, 512), level, True)[0]  # noqa: E731
    found, whole = profiles(monkeypatch, call)
    assert found == whole
