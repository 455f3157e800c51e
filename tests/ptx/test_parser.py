"""The syntax tree of each construct of PTX."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.ptx.test_round_trip import in_kernel, walk
from warpwright.errors import PtxSyntaxError
from warpwright.ptx import nodes, parse
from warpwright.ptx.lexer import Lexer
from warpwright.ptx.nodes import Address, Guard, Imm, Instruction, Pair, Reg, Symbol, Vector

GOLDEN = Path(__file__).parent / "golden"
HEAD = ".version 8.7\n.target sm_100a\n.address_size 64\n"


def first(text: str) -> nodes.Item:
    return in_kernel(text).items[0]


def declaration(text: str) -> nodes.Variable:
    item = parse(HEAD + text).items[0]
    assert isinstance(item, nodes.Variable)
    return item


OPERANDS = {
    "mov.u32 %r1, %tid.x;": (Reg("%r1"), Reg("%tid.x")),
    "mov.u32 r1, -7;": (Reg("r1"), Imm("-7", -7)),
    "mov.u32 r1, 017;": (Reg("r1"), Imm("017", 15)),
    "mov.u32 r1, 0x1FU;": (Reg("r1"), Imm("0x1FU", 31)),
    "mov.u32 r1, WARP_SZ;": (Reg("r1"), Imm("WARP_SZ", 32)),
    "mov.f32 f1, 0f3FC00000;": (Reg("f1"), Imm("0f3FC00000", 1.5)),
    "mov.f64 d1, 0d3FF8000000000000;": (Reg("d1"), Imm("0d3FF8000000000000", 1.5)),
    "mov.f32 f1, -.5e1;": (Reg("f1"), Imm("-.5e1", -5.0)),
    "ld.global.u32 %r1, [%rd1+-8];": (Reg("%r1"), Address(Reg("%rd1"), -8)),
    "ld.local.u32 %r1, [16];": (Reg("%r1"), Address(Imm("16", 16))),
    "ld.shared.v4.f32 {%f1, _, %f3, %f4}, [ sm + 4*4 ];": (
        Vector((Reg("%f1"), Reg("_"), Reg("%f3"), Reg("%f4"))),
        Address(Reg("sm"), 16),
    ),
    "ld.global.u32 %r1, [%rd1].unified;": (Reg("%r1"), Address(Reg("%rd1"), unified=True)),
    "mov.u64 %rd1, table+8;": (Reg("%rd1"), Symbol("table", 8)),
    "setp.lt.and.s32 p|q, a, b, !c;": (
        Pair(Reg("p"), Reg("q")),
        Reg("a"),
        Reg("b"),
        Reg("c", negated=True),
    ),
    "elect.sync _|%p1, -1;": (Pair(Reg("_"), Reg("%p1")), Imm("-1", -1)),
    "tex.2d.v2.f32.f32 {a, b}|p, [tex, smp, {x, y}];": (
        Pair(Vector((Reg("a"), Reg("b"))), Reg("p")),
        Address(Reg("tex"), 0, (Reg("smp"), Vector((Reg("x"), Reg("y"))))),
    ),
    "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1+128], [%rd3, {%r1, 0}], [bar];": (
        Address(Reg("%r1"), 128),
        Address(Reg("%rd3"), 0, (Vector((Reg("%r1"), Imm("0", 0))),)),
        Address(Reg("bar")),
    ),
    "vmad.s32.s32.s32 a, b.h0, c.b3, -d;": (Reg("a"), Reg("b.h0"), Reg("c.b3"), Reg("d", minus=True)),
    "call.uni (r), f, (a, 3);": (Vector((Reg("r"),)), Reg("f"), Vector((Reg("a"), Imm("3", 3)))),
    "call (), %rd1, (), proto;": (Vector(()), Reg("%rd1"), Vector(()), Reg("proto")),
    "call f;": (Vector(()), Reg("f"), Vector(())),
    "call %rd1, proto;": (Vector(()), Reg("%rd1"), Vector(()), Reg("proto")),
    "brx.idx.uni %r1, targets;": (Reg("%r1"), Reg("targets")),
    "future.op.with::words.x7 a;": (Reg("a"),),
    "ret;": (),
}


@pytest.mark.parametrize("text", OPERANDS, ids=lambda text: text.split()[0])
def test_operands(text: str) -> None:
    item = first(text)
    assert isinstance(item, Instruction)
    assert item.opcode == text.split()[0].rstrip(";")
    assert item.operands == OPERANDS[text]
    values = [node.value for node in item.operands if isinstance(node, Imm)]
    assert values == [node.value for node in OPERANDS[text] if isinstance(node, Imm)]


CONSTANTS = {
    "1 + 2 * 3": "7",
    "(1 + 2) * 3": "9",
    "10 - 4 - 3": "3",
    "1 << 4 | 0b11": "19",
    "-7 / 2": "-3",
    "-7 % 2": "-1",
    "-7 >> 1": "-4",
    "1 << 64": "0",
    "~0": "-1",
    "~0U": "18446744073709551615U",
    "!0": "1",
    "- -5": "5",
    "3 > 2 ? 10 : 20": "10",
    "0 ? 10 : 1 ? 20 : 30": "20",
    "1 == 1 && 0 || 5": "1",
    "0x7FFFFFFFFFFFFFFF + 1": "-9223372036854775808",
    "(.u64) -1": "18446744073709551615U",
    "(.s64) 0xFFFFFFFFFFFFFFFF": "-1",
    "0xFFFFFFFFFFFFFFFF / 2": "9223372036854775807U",
    "WARP_SZ - 1": "31",
    "1.5 + 2.25": "0d400E000000000000",
}


@pytest.mark.parametrize("text", CONSTANTS)
def test_constant_expressions_are_folded(text: str) -> None:
    item = first(f"mov.b64 d, {text};")
    assert isinstance(item, Instruction)
    assert item.operands[1] == Imm(CONSTANTS[text], 0)


def test_guards_labels_scopes_and_lines() -> None:
    body = in_kernel("top: {", "  @!%p1 bra.uni top; }", "", "@q", "exit;")
    label, block, leave = body.items
    assert (label, getattr(label, "line", 0)) == (nodes.Label("top"), 4)
    assert isinstance(block, nodes.Block)
    assert block.items == (Instruction("bra.uni", (Reg("top"),), Guard("%p1", negated=True)),)
    assert isinstance(leave, Instruction)
    assert (leave.guard, leave.line) == (Guard("q"), 7)


def test_loc_is_an_item_in_order() -> None:
    body = in_kernel(".loc 1 20 5", "ret;", ".loc 2 3 0, function_name $L__info_string0, inlined_at 1 30 7", "ret;")
    tail = "function_name $L__info_string0, inlined_at 1 30 7"
    assert body.items == (nodes.Loc(1, 20, 5), Instruction("ret"), nodes.Loc(2, 3, 0, tail), Instruction("ret"))


def test_registers_sized_and_named() -> None:
    body = in_kernel(".reg .b32 %r<10>;", ".reg .v4 .f32 v;", ".reg.pred p, q, s<3>, t;")
    assert body.items == (
        nodes.RegDecl("b32", ("%r",), 10),
        nodes.RegDecl("f32", ("v",), vector=4),
        nodes.RegDecl("pred", ("p", "q")),
        nodes.RegDecl("pred", ("s",), 3),
        nodes.RegDecl("pred", ("t",)),
    )


def test_branch_targets_and_prototypes() -> None:
    body = in_kernel("ts: .branchtargets A, B;", "p0 : .callprototype (.param .b32 _) _ (.param .align 8 .b8 _[16]) ;")
    assert body.items == (
        nodes.Label("ts"),
        nodes.Directive(".branchtargets", "A, B"),
        nodes.CallProto("p0", "(.param .b32 _) _ (.param .align 8 .b8 _[16])"),
    )


def test_variables_of_every_kind() -> None:
    assert declaration(".extern .shared .align 1024 .b8 smem[];") == nodes.Variable(
        "shared", "b8", "smem", (0,), 1024, linkage="extern"
    )
    assert declaration(".global .attribute(.managed) .align 4 .u32 n = 4;") == nodes.Variable(
        "global", "u32", "n", (), 4, init=Imm("4", 4), attributes=".attribute(.managed)"
    )
    nested = Vector((Vector((Imm("1", 1), Imm("2", 2))), Vector((Imm("3", 3),))))
    assert declaration(".const .u32 m[2][2] = {{1, 2}, {3}};") == nodes.Variable(
        "const", "u32", "m", (2, 2), init=nested
    )
    pointers = Vector((Reg("f"), Symbol("s", 8, generic=True), Symbol("s", mask="0xFF00"), Imm("0", 0)))
    assert declaration(".weak .global .u64 p[4] = {f, generic(s)+8, 0xFF00(s), 0};").init == pointers
    assert declaration(".common .global .v4 .f32 v;") == nodes.Variable(
        "global", "f32", "v", vector=4, linkage="common"
    )


def test_lists_of_literals() -> None:
    """As single constants: bit patterns, signs and bases stay as written."""
    mixed = declaration(".global .f32 x[3] = { 0f3F800000 ,\n 1.5, .5e1};").init
    assert isinstance(mixed, Vector)
    assert mixed == Vector((Imm("0f3F800000", 1.0), Imm("1.5", 1.5), Imm(".5e1", 5.0)))
    assert [value.value for value in mixed.items if isinstance(value, Imm)] == [1.0, 1.5, 5.0]
    for text, values in {"0x1FU, 017, 0b11": [31, 15, 3], "7": [7], "-7, 1 << 4": [-7, 16]}.items():
        init = declaration(f".global .s32 x[3] = {{{text}}};").init
        assert isinstance(init, Vector) and [value.value for value in init.items if isinstance(value, Imm)] == values
    with pytest.raises(PtxSyntaxError, match="found the number 09, expected an integer of at most 64 bits"):
        declaration(".global .u32 x[2] = {1, 09};")


def test_tables_take_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of cuRAND's header have 100,000 bytes each, in every module that includes it."""
    steps = []
    take = Lexer.take
    monkeypatch.setattr(Lexer, "take", lambda lexer: steps.append(lexer.pos) or take(lexer))
    table = declaration(f".global .b8 t[100000] = {{{', '.join(str(i % 256) for i in range(100_000))}}};").init
    assert isinstance(table, Vector) and table.items[-1] == Imm("159", 159) and len(table.items) == 100_000
    assert len(steps) < 100


def test_functions_with_parameters_and_directives() -> None:
    text = ".weak .func (.param .align 8 .b8 out[16]) f(.reg .u32 n, .param .u64 .ptr .global .align 16 p) .noreturn;"
    function = parse(HEAD + text + ".entry bare .maxntid 8 .explicitcluster { ret; }").items
    assert function[0] == nodes.Function(
        "func",
        "f",
        (
            nodes.Variable("reg", "u32", "n"),
            nodes.Variable("param", "u64", "p", attributes=".ptr .global .align 16"),
        ),
        (nodes.Variable("param", "b8", "out", (16,), 8),),
        (nodes.Directive(".noreturn"),),
        linkage="weak",
    )
    directives = (nodes.Directive(".maxntid", "8"), nodes.Directive(".explicitcluster"))
    assert function[1] == nodes.Function(
        "entry", "bare", directives=directives, body=nodes.Block((Instruction("ret"),))
    )


def test_module_header_and_source() -> None:
    module = parse("/* made by hand */ .version 8.6\n.target sm_90a, debug\n", source="made.ptx")
    assert (module.version, module.target, module.address_size) == ("8.6", ("sm_90a", "debug"), 64)
    assert (module.items, module.source) == ((), "made.ptx")


def test_bytes_are_read_as_utf8() -> None:
    assert parse((HEAD + "// größer\n").encode()) == parse(HEAD)


def test_a_comment_sign_inside_quotes_is_text() -> None:
    (item,) = parse(HEAD + '.file 1 "http://x/*y.cu"\n').items
    assert item == nodes.Directive(".file", '1 "http://x/*y.cu"')


def test_debug_sections_keep_their_text() -> None:
    sections = [
        item for item in parse((GOLDEN / "nvcc_debug.sm_90a.ptx").read_text()).items if isinstance(item, nodes.Section)
    ]
    names = [section.name for section in sections]
    assert names == [".debug_abbrev", ".debug_info", ".debug_macinfo"]
    assert ".b64" in sections[1].text


def test_lines_point_into_the_text() -> None:
    text = (GOLDEN / "triton_matmul.sm_100a.ptx").read_text()
    lines = text.splitlines()
    found = [item for item in walk(parse(text).items) if isinstance(item, Instruction)]
    assert len(found) > 300
    assert all(item.opcode in lines[item.line - 1] for item in found)


def test_a_hundred_thousand_lines_take_seconds() -> None:
    """Measured: 0.8 s; the bound leaves room for a slow and busy machine."""
    body = "".join(
        f"ld.global.v2.f32 {{%f{i}, %f{i + 1}}}, [%rd{i}+{8 * i}];\n"
        f"@%p{i} fma.rn.f32 %f{i}, %f{i + 1}, 0f3F800000, %f3;\n"
        f"// step {i}\n.loc 1 {i + 1} 3\n"
        for i in range(25_000)
    )
    start = time.perf_counter()
    module = parse(f"{HEAD}.entry k() {{\n{body}}}\n")
    assert time.perf_counter() - start < 10
    assert len(walk(module.items)) == 75_001
