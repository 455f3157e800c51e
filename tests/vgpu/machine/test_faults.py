"""Bad accesses and refused instructions: one whole sentence each, with the line, the thread and the address."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import error_message, line_of, out, run
from warpwright.errors import LaunchError, MemoryFault, UnsupportedInstruction, UsageError

BASE = 0x7000_0000_0000  # where the first array of a launch is
ONE_WORD = "kernel k, CTA (2, 0, 0), warp 1, lane 3"
SHARED = ".shared .align 16 .b8 room[64];"


def assert_message(code: str, what: str, top: str = "", **launch: object) -> None:
    """Thread 3 of warp 1 of CTA 2 executes ``code``; assert that the error says ``what``."""
    body = f"setp.ne.u32 %p0, %r0, 2; @%p0 ret; setp.ne.u32 %p0, %r2, 35; @%p0 ret;\n {code}\n ret;"
    opcode = code.splitlines()[-1].strip().split()[0]
    found = error_message(MemoryFault, body, np.zeros(64, np.uint32), grid=3, block=64, top=top, **launch)
    line = line_of(body, opcode + " ", top=top)
    assert found == f"PTX line {line}: `{opcode}`: {ONE_WORD}: {what}"


def test_a_load_past_the_end_faults() -> None:
    assert_message(
        "ld.global.u32 %r3, [%a0+256];",
        f"address 0x{BASE + 256:x} is outside global memory: 0 bytes past the end of the 256 bytes at 0x{BASE:x}.",
    )


def test_a_load_before_the_start_faults() -> None:
    assert_message(
        "st.global.u32 [%a0+-8], 1;",
        f"address 0x{BASE - 8:x} is outside global memory: 8 bytes before the 256 bytes at 0x{BASE:x}.",
    )


def test_a_load_across_the_end_faults() -> None:
    what = (
        f"address 0x{BASE + 60:x} is outside global memory: the access runs over the end of the 62 bytes at 0x{BASE:x}."
    )
    assert error_message(MemoryFault, "ld.global.u32 %r3, [%a0+60];", np.zeros(31, np.uint16)).endswith(what)


def test_a_null_pointer_faults() -> None:
    assert_message(
        "mov.u64 %d0, 0;\n ld.u32 %r3, [%d0];",
        "address 0x0 is outside global memory: it is a null pointer, or an offset from one.",
    )


def test_a_huge_address_faults() -> None:
    found = error_message(MemoryFault, "mov.u64 %d0, -16; ld.global.u32 %r3, [%d0]; ret;")
    assert "address 0xfffffffffffffff0 is outside global memory" in found


@pytest.mark.parametrize(("offset", "address"), [(64, 0x440), (-4, 0x3FC), (1 << 20, 0x100400)])
def test_an_address_outside_shared_memory_faults(offset: int, address: int) -> None:
    assert_message(
        f"ld.shared.u32 %r3, [room+{offset}];",
        f"address 0x{address:x} is outside shared memory, bytes 0x400 to 0x440 of each CTA.",
        top=SHARED,
    )


def test_an_address_outside_dynamic_memory_faults() -> None:
    assert_message("ld.shared.u32 %r3, [room+256];", "address 0x500 is outside shared memory, bytes 0x400 to 0x500 of "
        "each CTA.",
            top=".extern .shared .align 16 .b8 room[];", smem=256)  # fmt: skip


def test_a_generic_shared_address_faults() -> None:
    """The error shows the address as the kernel sees it."""
    assert_message("mov.u64 %d0, room; cvta.shared.u64 %d0, %d0;\n st.u32 [%d0+64], 1;",
            "address 0x10000000440 is outside shared memory, bytes 0x400 to 0x440 of each "
                "CTA.", top=SHARED)  # fmt: skip


def test_an_address_outside_local_memory_faults() -> None:
    what = "is outside the 16 bytes of local memory."
    assert_message(".local .align 4 .b8 mine[12];\n st.local.u32 [mine+16], 1;", f"address 0x10 {what}")
    code = ".local .align 4 .b8 mine[12];\n mov.u64 %d0, mine; cvta.local.u64 %d0, %d0;\n ld.u32 %r3, [%d0+20];"
    assert_message(code, f"address 0x20000000014 {what}")


def test_an_address_outside_const_memory_faults() -> None:
    assert_message("ld.const.u32 %r3, [table+8];", f"address 0x{BASE + 8:x} is outside global memory: 0 bytes past the "
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
def test_a_misaligned_address_faults(code: str, address: int) -> None:
    assert_message(code, f"address 0x{address:x} is not aligned to the size of the access.", top=SHARED)


def test_mapa_refuses_a_cta_outside_the_cluster() -> None:
    code = (
        "mov.u32 %r3, room; mapa.shared::cluster.u32 %r3, %r3, 5; mov.u32 %r5, 1;\n ld.shared::cluster.u32 %r4, [%r3];"
    )
    assert_message(code, "address 0x5000400 belongs to CTA 5 of a cluster of 1.", top=SHARED)
    generic = "mov.u64 %d3, room; cvta.shared.u64 %d3, %d3; mapa.u64 %d3, %d3, 2;\n ld.u32 %r4, [%d3];"
    assert_message(generic, "address 0x10002000400 belongs to CTA 2 of a cluster of 1.", top=SHARED)


def test_another_cta_needs_a_cluster() -> None:
    body = "mov.u32 %r3, room; mapa.shared::cluster.u32 %r3, %r3, 1; ld.shared.u32 %r4, [%r3]; ret;"
    found = error_message(MemoryFault, body, np.zeros(64, np.uint32), grid=2, cluster=2, top=SHARED)
    what = "address 0x1000400 is shared memory of CTA 1; .shared::cta reaches the CTA's own: use .shared::cluster."
    assert found.endswith(f"kernel k, CTA (0, 0, 0), warp 0, lane 0: {what}")


def test_a_parameter_past_the_end_faults() -> None:
    body = "ld.param.u64 %d1, [a0+8];\n ret;"
    line = line_of(body, "[a0+8]")
    assert error_message(UnsupportedInstruction, body) == (
        f"PTX line {line}: `ld.param.u64` reads parameters up to byte 16; the kernel has 8 bytes of them."
    )
    assert "is outside global memory" in error_message(
        MemoryFault, "mov.u64 %d0, a0; ld.param.u64 %d1, [%d0+4096]; ret;"
    )


def test_the_error_names_source_lines() -> None:
    """The error names the line of the user's source if the PTX has one, also inside a function and after it."""
    top = '.file 1 "kernels/sum.cu"\n.func take (.reg .b64 %p) { .reg .b32 %v; .loc 1 7 3\n'
    top += " ld.global.u32 %v, [%p]; ret; }"
    inside = ".loc 1 20 5\n add.u64 %d0, %a0, 4096;\n call take, (%d0);\n ret;"
    assert error_message(MemoryFault, inside, top=top).startswith(
        "kernels/sum.cu:7: `ld.global.u32`: kernel k, CTA (0, 0, 0), warp 0, lane 0"
    )
    after = ".loc 1 20 5\n call take, (%a0);\n st.global.u32 [%a0+4096], 1; ret;"
    assert error_message(MemoryFault, after, top=top).startswith("kernels/sum.cu:20: `st.global.u32`: kernel k")


def test_the_error_names_the_lowest_bad_lane() -> None:
    body = "setp.lt.u32 %p0, %lane, 9; @%p0 ld.global.u32 %r3, [%a0]; @!%p0 ld.global.u32 %r3, [%a0+4096]; ret;"
    assert "warp 0, lane 9: address" in error_message(MemoryFault, body)


UNKNOWN = {
    "frobnicate.u32 %r3, %r4;": "this instruction",
    "ld.global.u33 %r3, [%a0];": "this instruction",
    "txq.width.b32 %r3, [%a0];": "this instruction",
    "suld.b.1d.b32.trap %r3, [%a0, {%r4}];": "this instruction",
    "atom.global.min.f32 %f0, [%a0], %f1;": "this instruction",
}


@pytest.mark.parametrize("code", sorted(UNKNOWN))
def test_an_unsupported_instruction_ends_the_launch(code: str) -> None:
    """The text may contain it; a thread that reaches it ends the launch with an error that names its line."""
    body = f"""setp.eq.u32 %p0, %n1, 1; @!%p0 bra OVER;\n {code}\n OVER: @!%p0 mov.u32 %r10, 6;
        st.global.u32 [%o], %r10; ret;"""
    array = np.zeros(32, np.uint32)
    run(body, array, 0)
    assert set(array.tolist()) == {6}
    opcode = code.split()[0]
    line = line_of(body, opcode, args=(array, 0))
    assert error_message(UnsupportedInstruction, body, array, 1) == (
        f"PTX line {line}: `{opcode}`: the virtual GPU does not execute {UNKNOWN[code]}."
    )
    guarded = f"setp.eq.u32 %p0, %n1, 1; @%p0 {code} mov.u32 %r10, 8; st.global.u32 [%o], %r10; ret;"
    assert set(out(guarded, 32, 0).tolist()) == {8}
    assert "does not execute" in error_message(UnsupportedInstruction, guarded, array, 1)


def test_a_call_needs_a_supported_function() -> None:
    recursive = ".func f (.reg .b32 %x) { call f, (%x); ret; }"
    with pytest.raises(
        UnsupportedInstruction, match=r"^PTX line 4: `call f`: recursion is not supported; rewrite it as a loop\.$"
    ):
        run("call f, (%r0); ret;", top=recursive)
    with pytest.raises(UnsupportedInstruction, match="the module takes none"):
        run("mov.u64 %d0, 0; call %d0, (), P; P: .callprototype _ (); ret;")


def test_undeclared_names_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^PTX line 14: '%nothing' is used but not declared; declare it, or correct its name\.$"
    ):
        run("mov.u32 %r3, %nothing; ret;", np.zeros(1, np.uint32))


def test_a_special_register_without_a_value_is_named() -> None:
    with pytest.raises(
        UsageError, match=r"^PTX line 14: %envreg3 has no value on a virtual GPU; leave it out, or pass the value\.$"
    ):
        run("mov.u32 %r3, %envreg3; ret;", np.zeros(1, np.uint32))


def test_arrays_are_written_back_after_a_fault() -> None:
    array = np.zeros(40, np.uint32)
    error_message(MemoryFault, "st.global.u32 [%o], 5; bar.sync 0; ld.global.u32 %r3, [%a0+4096]; ret;", array)
    assert array.tolist() == [5] * 32 + [0] * 8


def test_launch_errors_are_no_device_errors() -> None:
    with pytest.raises(LaunchError):
        run("ret;", np.zeros(1, np.uint32), block=2000)
