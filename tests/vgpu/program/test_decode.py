"""Decoding of a parsed module into the flat program that is compiled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import error_message, out, parse_once, run, text
from warpwright import ptx
from warpwright.errors import DeviceError, UsageError
from warpwright.ptx.nodes import Imm
from warpwright.vgpu.program.decode import decode, static_shared
from warpwright.vgpu.program.initialisers import constant_bits
from warpwright.vgpu.program.program import Program, Symbol, mentions, successors

BASE = 0x7000_0000_0000


def program(body: str, **frame: str) -> Program:
    return decode(parse_once(text(body, (b"", 1), **frame)), "k")


def test_parameters_are_aligned() -> None:
    module = ptx.parse(
        """.version 8.6\n.target sm_100a\n.address_size 64
        .entry k(.param .u8 a, .param .u64 b, .param .u16 c, .param .align 64 .b8 d[128]) { ret;
            }"""
    )
    assert [(p.name, p.offset, p.nbytes) for p in decode(module, "k").params] == [
        ("a", 0, 1),
        ("b", 8, 8),
        ("c", 16, 2),
        ("d", 64, 128),
    ]


def move_sources(found: Program) -> list[Symbol]:
    """Returns the symbols that the program's moves read, in order."""
    sources = [inst.operand("a") for inst in found.insts if inst.name == "mov"]
    return [source for source in sources if isinstance(source, Symbol)]


VECTORS = """.reg .v4 .f32 V, W; .reg .v2 .b32 %v<3>; .reg .v4 .b16 H; .reg .v2 .b64 P; ld.global.v4.f32 V, [%a0];"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("mov.f32 W.x, V.w; mov.f32 W.g, V.b; mov.f32 W.z, V.g; mov.f32 W.a, V.r;", [4, 3, 2, 1]),
        ("mov.v4.f32 W, V;", [1, 2, 3, 4]),
        ("mov.v4.f32 {V.y, V.x, V.w, V.z}, V; mov.v4.f32 W, V;", [2, 1, 4, 3]),
        ("mov.v4.f32 {%f1, %f2, %f3, %f4}, V; mov.v4.f32 W, {%f4, %f2, %f2, %f1};", [4, 2, 2, 1]),
        ("add.f32 W.x, V.x, V.y; add.f32 W.y, W.x, V.z; mov.f32 W.z, W.y; mov.f32 W.w, V.w;", [3, 6, 6, 4]),
        ("mov.b32 %v1.x, V.z; mov.b32 %v1.y, V.y; mov.b64 %d2, %v1; mov.b64 {W.x, W.y}, %d2; mov.b64 P.y, %d2;"
         "mov.b64 %v2, P.y; mov.b32 W.z, %v2.x; mov.b32 W.w, %v2.y;", [3, 2, 3, 2]),
        ("call (W), swap, (V);", [3, 4, 1, 2]),
    ],
)  # fmt: skip
def test_a_vector_of_registers_and_its_elements(body: str, expected: list[int]) -> None:
    top = ".func (.reg .v4 .f32 o) swap(.reg .v4 .f32 i) { mov.v4.f32 o, {i.z, i.w, i.x, i.y}; ret; }"
    array = np.arange(1, 5, dtype=np.float32)
    run(f"{VECTORS} {body} st.global.v4.f32 [%a0], W; ret;", array, top=top)
    assert array.tolist() == expected


FUNCTIONS = """
.func (.reg .u32 r) twice(.reg .u32 x) { add.u32 r, x, x; ret; }
.func (.reg .u32 r) square(.reg .u32 x) { .reg .pred p; setp.gt.u32 p, x, 9; mov.u32 r, 0; @p ret;
  mul.lo.u32 r, x, x; ret; }
.func (.reg .u32 r) unused(.reg .u32 x) { call (r), unused, (x); ret; }
.global .u64 table[2] = {twice, square};
"""
CHOOSE = """
  and.b32 %r3, %lane, 1; mul.wide.u32 %d1, %r3, 8; mov.u64 %d2, table; add.u64 %d2, %d2, %d1; ld.global.u64 %d3, [%d2];
  mov.u32 %r4, 7; setp.lt.u32 %p3, %lane, 20; P: .callprototype (.reg .u32 _) _ (.reg .u32 _);
  @%p3 call (%r4), %d3, (%lane), P; st.global.u32 [%o], %r4; ret;
"""


def test_lanes_call_different_functions_through_a_pointer() -> None:
    """Lanes from 20 on call none; of a function whose address nothing takes, recursion does not matter."""
    expected = [7 if n >= 20 else 2 * n if n % 2 == 0 else n * n if n <= 9 else 0 for n in range(32)]
    assert out(CHOOSE, top=FUNCTIONS).tolist() == expected


def test_a_call_through_a_pointer_to_no_function_stops() -> None:
    body = CHOOSE.replace("ld.global.u64 %d3, [%d2];", "mov.u64 %d3, 4096;")
    assert error_message(DeviceError, body, top=FUNCTIONS).endswith("the kernel executed trap.")


def test_an_element_that_a_vector_lacks_is_refused() -> None:
    message = f"{'V2.z'!r} is used but not declared; declare it, or correct its name."
    assert error_message(UsageError, ".reg .v2 .f32 V2; mov.f32 %f1, V2.z; ret;").endswith(message)


def test_shared_variables_precede_dynamic_memory() -> None:
    """Offsets from 1024 on, in order of use; every extern array starts at the start of dynamic memory."""
    top = """.shared .align 4 .b8 unused[64]; .shared .align 8 .b8 a[12]; .shared .align 16 .u32 b;
        .extern .shared .align 128 .b8 x[]; .extern .shared .align 4 .f32 y[];"""
    found = program("mov.u32 %r3, x; mov.u32 %r3, a; mov.u32 %r3, b; mov.u32 %r3, y; ret;", top=top)
    places = {o.name: o.value for o in move_sources(found) if o.space == "shared"}
    assert places == {"a": 1024, "b": 1040, "x": 1152, "y": 1152}
    assert (found.shared_bytes, found.dynamic_offset) == (1044, 1152)


def test_static_shared_memory_is_without_reserve_and_dynamic_memory() -> None:
    top = ".shared .align 4 .b8 one[100]; .shared .align 8 .b64 two; .extern .shared .align 16 .b8 rest[];"
    module = parse_once(text("mov.u32 %r0, one; mov.u32 %r1, two; mov.u32 %r2, rest; ret;", top=top))
    assert static_shared(module, "k") == 112


def test_a_symbol_may_point_into_dynamic_memory() -> None:
    top = ".shared .align 8 .b8 a[16]; .extern .shared .align 128 .b8 x[];"
    found = program("mov.u32 %r3, a; mov.u32 %r3, x+128; mov.u32 %r3, a+8; ld.shared.u32 %r3, [x+4]; ret;", top=top)
    places = [o.value for o in move_sources(found) if o.space == "shared"]
    assert places == [1024, 1152 + 128, 1032]
    address = next(inst for inst in found.insts if inst.opcode == "ld.shared.u32").operand("a")
    assert (address.base.value, address.offset) == (1152, 4)


def test_module_variables_have_virtual_addresses() -> None:
    top = ".global .align 4 .u32 a = 7; .const .align 512 .b8 b[3] = {1, 2, 3}; .global .align 8 .u64 c = a;"
    variables = {v.name: v for v in program("ret;", top=top).variables}
    assert {name: v.address - BASE for name, v in variables.items()} == {"a": 0, "b": 512, "c": 768}
    assert {name: v.data for name, v in variables.items()} == {
        "a": b"\7\0\0\0",
        "b": b"\1\2\3",
        "c": BASE.to_bytes(8, "little"),
    }


def test_blocks_end_at_branches_and_begin_at_labels() -> None:
    found = program("add.u32 %r3, %r3, 1; L: setp.eq.u32 %p0, %r3, 4; @%p0 bra L; bar.sync 0; mov.u32 %r4, 1; ret;")
    names = [[inst.opcode.split(".")[0] for inst in block.insts] for block in found.blocks]
    assert names[1:] == [["setp", "bra"], ["bar"], ["mov", "ret"], ["exit"], []]
    branch = next(inst for inst in found.insts if inst.opcode == "bra")
    assert branch.operand("label").value == 1
    assert branch.guard is not None


def test_a_branch_list_leads_to_its_targets_only() -> None:
    body = "L: .branchtargets A, B; brx.idx %r0, L; A: mov.u32 %r3, 1; bra C; B: mov.u32 %r3, 2; C: trap;"
    found = program(body)
    blocks = {block.name: block for block in reversed(found.blocks)}
    branch = next(block for block in found.blocks if block.insts and block.insts[-1].name == "brx.idx")
    assert successors(branch, len(found.blocks)) == [blocks["A"].index, blocks["B"].index]
    assert successors(blocks["C"], len(found.blocks)) == []


def test_mentions_are_reads_and_writes() -> None:
    found = program("lop3.or.b32 %r3|%p1, %r4, %r5, %r6, 1, %p2; @%p3 st.shared.u32 [%r7], %r8; ret;")
    assert [mentions(inst) for inst in found.insts if inst.name in ("lop3", "st")] == [
        (["%r4", "%r5", "%r6", "%p2"], ["%r3", "%p1"]),
        (["%r7", "%r8", "%p3"], []),
    ]


def test_decode_reads_directives() -> None:
    found = program("ret;", heads=".reqntid 8, 4 .explicitcluster .reqnctapercluster 2, 2, 1")
    assert (found.reqntid, found.maxntid, found.cluster, found.explicit_cluster) == ((8, 4, 1), None, (2, 2, 1), True)
    assert program("ret;", heads=".maxntid 96 .minnctapersm 2").maxntid == (96, 1, 1)
    assert program("ret;", heads=".maxntid 0x60, 2").maxntid == (96, 2, 1)


def test_a_variable_that_no_memory_holds() -> None:
    head = ".version 9.0\n.target sm_90a\n.address_size 64\n"
    module = ptx.load_module(f"{head}.global .align 8 .u64 big[{2**64 - 1}];\n.entry k() {{ ret; }}")
    with pytest.raises(UsageError) as caught:
        decode(module, "k")
    assert str(caught.value) == (
        "PTX line 4: big has 147,573,952,589,676,412,920 bytes; expected at most 4,294,967,296 bytes in a variable: "
        "allocate the array and pass it as an argument"
    )


def test_floats_in_types_of_bits() -> None:
    """As in the .nv.global.init that ptxas 13.0 makes of these initial values."""
    low, high = "0f3F8012F5", "0d400921FB54442D18"
    found = [
        constant_bits(Imm(text, float.fromhex("0x1.921fb54442d18p+1")), type)
        for type in ("b8", "b16", "b32", "b64")
        for text in (low, high)
    ]
    assert found == [0xF5, 0x18, 0x12F5, 0x2D18, 0x3F8012F5, 0x40490FDB, 0x3F8012F5, 0x400921FB54442D18]
    assert constant_bits(Imm("0f7FC00000", float("nan")), "b8") == 0


def test_scopes_keep_names_apart() -> None:
    """A name means the innermost declaration, also in a function called twice; two scopes may have equal labels."""
    top = """.func f (.reg .b32 %x) { .reg .b32 %v; .reg .pred %c; setp.eq.u32 %c, %x, 0; @%c bra L;
        mov.u32 %v, 1; L: ret; }"""
    body = """{ .reg .b32 %v; L: mov.u32 %v, 3; { .reg .b64 %v; L: mov.u64 %v, 4; } mov.u32 %v, 5; }
        call f, (%r0); call f, (%r1); ret;"""
    found = program(body, top=top)
    writes = [
        inst.operand("d")
        for inst in found.insts
        if inst.opcode in ("mov.u32", "mov.u64") and str(inst.operand("d").name).startswith("%v")
    ]
    names = [register.name for register in writes]
    assert [register.bits for register in writes] == [32, 64, 32, 32, 32]
    assert names[0] == names[2]
    assert len(set(names)) == 4


@pytest.mark.parametrize("opcode", ["trap", "brkpt"])
def test_trap_ends_a_block(opcode: str) -> None:
    assert error_message(DeviceError, f"{opcode}; st.global.u32 [%o], 1; ret;").endswith(
        "lane 0: the kernel executed trap."
    )


def test_branch_lists_must_exist() -> None:
    with pytest.raises(UsageError, match=r"^PTX line 14: brx\.idx needs the label of a \.branchtargets list\.$"):
        run("L: brx.idx %r0, L; ret;", b"12345678")
