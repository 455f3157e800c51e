"""Bad accesses and refused instructions: one whole sentence each, with the line, the thread and the address."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import line_of, out, refused, run
from warpwright.errors import LaunchError, MemoryFault, UnsupportedInstruction, UsageError

BASE = 0x7000_0000_0000  # where the first array of a launch is
ONE_WORD = "kernel k, CTA (2, 0, 0), warp 1, lane 3"
SHARED = ".shared .align 16 .b8 room[64];"


def message(code: str, what: str, top: str = "", **launch: object) -> None:
    """Thread 3 of warp 1 of CTA 2 does ``code``; the error says ``what`` of it."""
    body = f"setp.ne.u32 %p0, %r0, 2; @%p0 ret; setp.ne.u32 %p0, %r2, 35; @%p0 ret;\n {code}\n ret;"
    opcode = code.splitlines()[-1].strip().split()[0]
    found = refused(MemoryFault, body, np.zeros(64, np.uint32), grid=3, block=64, top=top, **launch)
    line = line_of(body, opcode + " ", top=top)
    assert found == f"PTX line {line}: `{opcode}`: {ONE_WORD}: {what}"


def test_global_past_the_end() -> None:
    message(
        "ld.global.u32 %r3, [%a0+256];",
        f"address 0x{BASE + 256:x} is outside global memory: 0 bytes past the end of the 256 bytes at 0x{BASE:x}.",
    )


def test_global_before_the_start() -> None:
    message(
        "st.global.u32 [%a0+-8], 1;",
        f"address 0x{BASE - 8:x} is outside global memory: 8 bytes before the 256 bytes at 0x{BASE:x}.",
    )


def test_global_over_the_end() -> None:
    what = (
        f"address 0x{BASE + 60:x} is outside global memory: the access runs over the end of the 62 bytes at 0x{BASE:x}."
    )
    assert refused(MemoryFault, "ld.global.u32 %r3, [%a0+60];", np.zeros(31, np.uint16)).endswith(what)


def test_null_pointer() -> None:
    message(
        "mov.u64 %d0, 0;\n ld.u32 %r3, [%d0];",
        f"address 0x0 is outside global memory: {BASE} bytes before the 256 bytes at 0x{BASE:x}.",
    )


def test_huge_address() -> None:
    found = refused(MemoryFault, "mov.u64 %d0, -16; ld.global.u32 %r3, [%d0]; ret;")
    assert "address 0xfffffffffffffff0 is outside global memory" in found


@pytest.mark.parametrize(("offset", "shown"), [(64, 0x440), (-4, 0x3FC), (1 << 20, 0x100400)])
def test_shared(offset: int, shown: int) -> None:
    message(
        f"ld.shared.u32 %r3, [room+{offset}];",
        f"address 0x{shown:x} is outside shared memory, bytes 0x400 to 0x440 of each CTA.",
        top=SHARED,
    )


def test_dynamic_shared() -> None:
    message("ld.shared.u32 %r3, [room+256];", "address 0x500 is outside shared memory, bytes 0x400 to 0x500 of "
        "each CTA.",
            top=".extern .shared .align 16 .b8 room[];", smem=256)  # fmt: skip


def test_generic_shared() -> None:
    """The address is shown as the kernel sees it."""
    message("mov.u64 %d0, room; cvta.shared.u64 %d0, %d0;\n st.u32 [%d0+64], 1;",
            "address 0x10000000440 is outside shared memory, bytes 0x400 to 0x440 of each "
                "CTA.", top=SHARED)  # fmt: skip


def test_local() -> None:
    what = "is outside the 16 bytes of local memory."
    message(".local .align 4 .b8 mine[12];\n st.local.u32 [mine+16], 1;", f"address 0x10 {what}")
    message(".local .align 4 .b8 mine[12];\n mov.u64 %d0, mine; cvta.local.u64 %d0, %d0;\n ld.u32 %r3, [%d0+20];",
            f"address 0x20000000014 {what}")  # fmt: skip


def test_const() -> None:
    message("ld.const.u32 %r3, [table+8];", f"address 0x{BASE + 8:x} is outside global memory: 0 bytes past the "
        f"end of the 8 bytes at 0x{BASE:x}.",
            top=".const .align 4 .u32 table[2] = {1, 2};")  # fmt: skip


@pytest.mark.parametrize(
    ("code", "address"),
    [
        ("ld.global.u32 %r3, [%a0+2];", BASE + 2),
        ("ld.global.v2.u32 {%r3, %r4}, [%a0+4];", BASE + 4),
        ("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%a0+8];", BASE + 8),
        ("st.global.u16 [%a0+1], %h0;", BASE + 1),
        ("atom.global.add.u64 %d1, [%a0+4], 1;", BASE + 4),
        ("ld.shared.u64 %d1, [room+4];", 0x404),
        ("st.shared.v4.u32 [room+8], {%r1, %r2, %r1, %r2};", 0x408),
        ("ld.shared::cluster.u16 %h1, [room+5];", 0x405),
    ],
)
def test_misaligned(code: str, address: int) -> None:
    message(code, f"address 0x{address:x} is not aligned to the size of the access.", top=SHARED)


def test_cta_outside_the_cluster() -> None:
    code = (
        "mov.u32 %r3, room; mapa.shared::cluster.u32 %r3, %r3, 5; mov.u32 %r5, 1;\n ld.shared::cluster.u32 %r4, [%r3];"
    )
    message(code, "address 0x5000400 belongs to CTA 5 of a cluster of 1.", top=SHARED)
    generic = "mov.u64 %d3, room; cvta.shared.u64 %d3, %d3; mapa.u64 %d3, %d3, 2;\n ld.u32 %r4, [%d3];"
    message(generic, "address 0x10002000400 belongs to CTA 2 of a cluster of 1.", top=SHARED)


def test_shared_of_another_cta_without_cluster() -> None:
    body = "mov.u32 %r3, room; mapa.shared::cluster.u32 %r3, %r3, 1; ld.shared.u32 %r4, [%r3]; ret;"
    found = refused(MemoryFault, body, np.zeros(64, np.uint32), grid=2, cluster=2, top=SHARED)
    what = "address 0x1000400 is shared memory of CTA 1; .shared::cta reaches the CTA's own: use .shared::cluster."
    assert found.endswith(f"kernel k, CTA (0, 0, 0), warp 0, lane 0: {what}")


def test_parameters_past_the_end() -> None:
    body = "ld.param.u64 %d1, [a0+8];\n ret;"
    line = line_of(body, "[a0+8]")
    assert refused(UnsupportedInstruction, body) == (
        f"PTX line {line}: `ld.param.u64` reads parameters up to byte 16; the kernel has 8 bytes of them."
    )
    assert "is outside global memory" in refused(MemoryFault, "mov.u64 %d0, a0; ld.param.u64 %d1, [%d0+4096]; ret;")


def test_source_lines() -> None:
    """The line of the user's source when the PTX names one, also inside a function and after it."""
    top = '.file 1 "kernels/sum.cu"\n.func take (.reg .b64 %p) { .reg .b32 %v; .loc 1 7 3\n'
    top += " ld.global.u32 %v, [%p]; ret; }"
    inside = ".loc 1 20 5\n add.u64 %d0, %a0, 4096;\n call take, (%d0);\n ret;"
    assert refused(MemoryFault, inside, top=top).startswith(
        "kernels/sum.cu:7: `ld.global.u32`: kernel k, CTA (0, 0, 0), warp 0, lane 0"
    )
    after = ".loc 1 20 5\n call take, (%a0);\n st.global.u32 [%a0+4096], 1; ret;"
    assert refused(MemoryFault, after, top=top).startswith("kernels/sum.cu:20: `st.global.u32`: kernel k")


def test_the_lowest_bad_lane_is_named() -> None:
    body = "setp.lt.u32 %p0, %lane, 9; @%p0 ld.global.u32 %r3, [%a0]; @!%p0 ld.global.u32 %r3, [%a0+4096]; ret;"
    assert "warp 0, lane 9: address" in refused(MemoryFault, body)


UNKNOWN = {
    "frobnicate.u32 %r3, %r4;": "this instruction",
    "ld.global.u33 %r3, [%a0];": "this instruction",
    "txq.width.b32 %r3, [%a0];": "this instruction",
    "suld.b.1d.b32.trap %r3, [%a0, {%r4}];": "this instruction",
    "atom.global.min.f32 %f0, [%a0], %f1;": "this instruction",
}


@pytest.mark.parametrize("code", sorted(UNKNOWN))
def test_unsupported(code: str) -> None:
    """It may stand in the text; reaching it is an error with its line, and only that."""
    body = f"""setp.eq.u32 %p0, %n1, 1; @!%p0 bra OVER;\n {code}\n OVER: @!%p0 mov.u32 %r10, 6;
        st.global.u32 [%o], %r10; ret;"""
    array = np.zeros(32, np.uint32)
    run(body, array, 0)
    assert set(array.tolist()) == {6}
    opcode = code.split()[0]
    line = line_of(body, opcode, args=(array, 0))
    assert refused(UnsupportedInstruction, body, array, 1) == (
        f"PTX line {line}: `{opcode}`: the virtual GPU does not execute {UNKNOWN[code]}."
    )
    guarded = f"setp.eq.u32 %p0, %n1, 1; @%p0 {code} mov.u32 %r10, 8; st.global.u32 [%o], %r10; ret;"
    assert set(out(guarded, 32, 0).tolist()) == {8}
    assert "does not execute" in refused(UnsupportedInstruction, guarded, array, 1)


def test_calls_that_are_not_executed() -> None:
    recursive = ".func f (.reg .b32 %x) { call f, (%x); ret; }"
    with pytest.raises(
        UnsupportedInstruction, match=r"^PTX line 4: `call f`: recursion is not supported; rewrite it as a loop\.$"
    ):
        run("call f, (%r0); ret;", top=recursive)
    with pytest.raises(UnsupportedInstruction, match="indirect calls are not supported"):
        run("mov.u64 %d0, 0; call %d0, (), P; P: .callprototype _ (); ret;")


def test_undeclared_names() -> None:
    with pytest.raises(
        UsageError, match=r"^PTX line 14: '%nothing' is used but not declared; declare it, or correct its name\.$"
    ):
        run("mov.u32 %r3, %nothing; ret;", np.zeros(1, np.uint32))


def test_arrays_are_written_back_after_a_fault() -> None:
    array = np.zeros(40, np.uint32)
    refused(MemoryFault, "st.global.u32 [%o], 5; bar.sync 0; ld.global.u32 %r3, [%a0+4096]; ret;", array)
    assert array.tolist() == [5] * 32 + [0] * 8


def test_launch_errors_are_no_device_errors() -> None:
    with pytest.raises(LaunchError):
        run("ret;", np.zeros(1, np.uint32), block=2000)
