"""What ptxas refuses is refused with one sentence: line, column, what was found, what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

import warpwright as ww
from warpwright import ptx
from warpwright.errors import PtxSyntaxError
from warpwright.ptx.ptxas import assemble, find_ptxas

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
FUNCTION = ".func (.reg .u32 q) f(.reg .u32 a) { ret; }\n"
PARAMETER = """.func (.reg .u32 q) g(.param .b32 a) { ret; }
.func (.reg .u32 q) h(.param .align 4 .b8 a[8]) { ret; }
"""
REGISTERS = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .pred %p<9>; .shared .b64 bar;"


def kernel(line: str, before: str = "") -> str:
    return f"{HEAD}{before}.visible .entry k(.param .u64 x) {{\n{REGISTERS}\n{line}\nend: ret;\n}}\n"


BIT32, INTEGER = "a register of type .b32, .s32, .u32", "a register of type .b32, .s32, .u32 or an integer"
LABEL = "a label of this function, in this scope or around it"
ABOVE = "a name that is declared above"
SENTENCES = {
    # types and widths of operands
    kernel("add.u32 %r1, %d2, 1;"): f"6:14: found %d2 of type .b64 as operand 2 of add.u32, expected {INTEGER}.",
    kernel("add.u32 %r1, %f2, 1;"): f"6:14: found %f2 of type .f32 as operand 2 of add.u32, expected {INTEGER}.",
    kernel("add.f32 %f1, %f2, 1;"): "6:19: found 1 as operand 3 of add.f32, expected a register of type .b32, .f32.",
    kernel("add.u32 %r1, %r2, 1.5;"): f"6:19: found 1.5 as operand 3 of add.u32, expected {INTEGER}.",
    kernel("add.u32 5, %r2, 1;"): f"6:9: found 5 as operand 1 of add.u32, expected {BIT32}.",
    kernel("add.u32 %r1, %r2, %tid.x;"): f"6:19: found %tid.x as operand 3 of add.u32, expected {INTEGER}.",
    kernel("mov.u32 %tid.x, %r1;"): f"6:9: found %tid.x as operand 1 of mov.u32, expected {BIT32}.",
    kernel("add.u32 %r1, %r2;"): "6:1: found `add.u32 %r1, %r2;`, expected add with 3 operands, not 2.",
    kernel("@%r1 add.u32 %r1, %r2, 1;"): "6:2: found %r1 as the guard, expected a register of type .pred.",
    kernel("mov.b64 %d1, {%r1, %d2};"): "6:14: found {%r1, %d2} as operand 2 of mov.b64, expected elements of 32 bits.",
    kernel("ld.shared.v2.f32 {%f1}, [bar];"): (
        "6:18: found {%f1} as operand 1 of ld.shared.v2.f32, expected 2 registers in braces, of one size, each of "
        "type .b32, .f32, or wider."
    ),
    kernel("ld.shared.v2.b32 {%r1, %d1}, [bar];"): (
        "6:18: found {%r1, %d1} as operand 1 of ld.shared.v2.b32, expected 2 registers in braces, of one size, each of "
        "type .b32, .f32, .s32, or wider."
    ),
    # addresses
    kernel("ld.global.u32 %r1, [%r2];"): (
        "6:20: found [%r2] as operand 2 of ld.global.u32, expected a 64-bit register in the brackets."
    ),
    kernel("ld.global.u32 %r1, [bar];"): (
        "6:20: found [bar] as operand 2 of ld.global.u32, expected a variable of the state space .global."
    ),
    kernel("ld.shared.u32 %r1, [%f2];"): (
        "6:20: found [%f2] as operand 2 of ld.shared.u32, expected a register of integers or bits in the brackets."
    ),
    kernel("ld.shared.u32 %r1, [128];"): (
        "6:20: found [128] as operand 2 of ld.shared.u32, expected a register or a variable in the brackets."
    ),
    # opcodes and values
    kernel("frob.u32 %r1, %r2;"): "6:1: found `frob.u32 %r1, %r2;`, expected an instruction of PTX.",
    kernel("add.foo.u32 %r1, %r2, 1;"): (
        "6:1: found `add.foo.u32 %r1, %r2, 1;`, expected a spelling of add (PTX ISA 9.7.1.1,9.7.3.3,9.7.4.1,9.7.5.1)."
    ),
    kernel("tcgen05.fence::before_thread_sync;"): (
        "6:1: found `tcgen05.fence::before_thread_sync;`, expected an instruction of sm_90a: "
        "tcgen05.fence::before_thread_sync in this form needs sm_100f."
    ),
    kernel("bar.sync 16;"): "6:10: found 16 as operand 1 of bar.sync, expected 0 to 15.",
    kernel("bar.sync 1, 33;"): "6:13: found 33 as operand 2 of bar.sync, expected a multiple of 32.",
    # names
    kernel("add.u32 %r1, %r9, 1;"): f"6:14: found the name %r9, expected {ABOVE}.",
    kernel("mov.u32 y, 0; .reg .b32 y;"): f"6:9: found the name y, expected {ABOVE}.",
    kernel("bra other;"): f"6:5: found the name other, expected {ABOVE}.",
    kernel("bra %r1;"): f"6:5: found %r1 of type .b32 as operand 1 of bra, expected {LABEL}.",
    kernel("bra inner; { inner: ret; }"): f"6:5: found the name inner, expected {ABOVE}.",
    kernel("end: ret;"): "7:1: found a second label end, expected another name: it is declared in this scope already.",
    kernel(".reg .b32 %r<4>;"): (
        "6:11: found a second %r<…>, expected another name: it is declared in this scope already."
    ),
    kernel(".reg .b32 x;"): (
        "6:11: found a second register x, expected another name: it is declared in this scope already."
    ),
    kernel(".reg .b32 %r1;"): (
        "6:11: found a second register %r1, expected another name: it is declared in this scope already."
    ),
    kernel("ret;") + ".entry k() { ret; }": "9:8: found a second function k, expected another name.",
    # calls
    kernel("call (%r1), g, (%r2);"): "6:13: found g, expected a function (.func) that is declared above.",
    kernel("call (%r1), f, (%r2, %r3);", FUNCTION): "7:13: found 2 values in parentheses for f, expected 1.",
    kernel("call (%d1), f, (%r2);", FUNCTION): "7:7: found %d1 of type .b64, expected a value of type .u32.",
    kernel(".param .b8 p;\ncall (%r1), g, (p);", PARAMETER): (
        "9:17: found p, .align 1 .b8, expected a variable .align 4 .b32."
    ),
    kernel(".param .align 8 .b8 p[8];\ncall (%r1), h, (p);", PARAMETER): (
        "9:17: found p, .align 8 .b8[8], expected a variable .align 4 .b8[8]."
    ),
    # declarations
    HEAD + ".global .align 3 .u32 x;": "4:16: found the alignment 3, expected a power of two up to 2147483648.",
    HEAD + ".global .align 4294967296 .u32 x;": (
        "4:16: found the alignment 4294967296, expected a power of two up to 2147483648."
    ),
    HEAD + ".global .pred x;": "4:9: found a variable of type .pred, expected a type of memory, such as .b32.",
    HEAD + ".global .u32 x[];": "4:14: found x without a size, expected a positive number of elements.",
    HEAD + ".global .u32 x[2] = {1, 2, 3};": "4:14: found 3 initial values of x, expected at most 2.",
    HEAD + ".global .u32 x = 1.5;": "4:18: found 1.5 for .u32, expected a constant of type .u32.",
    HEAD + ".global .u64 x = y;": (
        "4:18: found y, expected the name of a function or of a .global or .const variable declared above."
    ),
    HEAD + ".shared .u32 x = 5;": (
        "4:14: found an initial value of x, expected none for its state space, type or linkage."
    ),
    HEAD + ".local .u32 x;": (
        "4:13: found .local outside a function, expected a variable in .global, .const or .shared."
    ),
    HEAD + ".entry k(.reg .u32 x) { ret; }": (
        "4:20: found x as a parameter of a kernel, expected a scalar or array in .param."
    ),
    HEAD + ".entry k() .maxntid 0 { ret; }": "4:12: found .maxntid 0, expected 1 to 3 numbers from 1 to 2³² − 1.",
    HEAD + ".entry k() .foo 5 { ret; }": "4:12: found .foo before the body of a kernel, expected a directive of PTX.",
    HEAD + ".entry k(.param .f16x2 x) { ret; }": (
        "4:24: found x as a parameter of a kernel, expected a scalar or array in .param."
    ),
    HEAD + ".entry k(.param .u64 .ptr .align 1 .align 8 x) { ret; }": (
        "4:22: found .ptr .align 1 .align 8, expected .ptr, then a state space, then one .align."
    ),
    kernel("cvt.rn.f32.f64 %f1, %tid.x;"): (
        "6:21: found %tid.x as operand 2 of cvt.rn.f32.f64, expected a register of type .b64, .f64, or wider."
    ),
    kernel(".pragma .u32;"): "6:1: found .pragma .u32, expected strings in quotes.",
    kernel(".reg .bf16 %h1;"): "6:7: found registers of type .bf16, expected a type that registers have, such as .b32.",
    # headers
    ".version 7.0\n.target sm_90a\n.entry k() { ret; }": (
        "1:10: found .version 7.0, expected 8.0 or later, which has the target sm_90a."
    ),
    HEAD + ".target sm_100a\n.entry k() { ret; }": (
        "4:9: found a second target sm_100a, expected sm_90a, or one that runs on sm_90a."
    ),
    HEAD + ".target sm_90\n.entry k() { setmaxnreg.dec.sync.aligned.u32 40; }": (
        "5:14: found `setmaxnreg.dec.sync.aligned.u32 40;`, expected an instruction of sm_90: setmaxnreg in this form "
        "needs sm_90a, sm_100f, sm_120f."
    ),
    ".version 8.6\n.target sm_99\n": "2:9: found the target sm_99, expected a target such as sm_90a.",
    kernel(".reg .v2 .f32 V;\nld.shared.v4.f32 V, [bar];"): (
        "7:18: found V as operand 1 of ld.shared.v4.f32, expected 4 registers in braces, of one size, each of type "
        ".b32, .f32, or wider."
    ),
    kernel(".reg .v4 .f32 V;\nmov.v2.f32 {%f1, %f2}, V;"): (
        "7:24: found V as operand 2 of mov.v2.f32, expected 2 registers in braces, each of type .b32, .f32."
    ),
    ".version 8.6\n.target sm_90a, fast\n": (
        "2:17: found fast, expected one of debug, map_f64_to_f32, texmode_independent, texmode_unified."
    ),
    ".version 8.6\n.target sm_90a\n.address_size 32\n": (
        "3:15: found 32, expected 64: addresses have 64 bits from sm_90 on."
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", SENTENCES, ids=range(len(SENTENCES)))
def test_the_whole_sentence(text: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        ptx.check(ptx.parse(text, source="a.ptx"), text)
    assert str(caught.value) == "a.ptx:" + SENTENCES[text]
    assert f"{caught.value.line}:{caught.value.column}" == SENTENCES[text].split(": ")[0]


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas: pip install nvidia-cuda-nvcc")
def test_ptxas_refuses_each_of_them() -> None:
    assert [text for text in SENTENCES if assemble(text, "sm_90a").ok] == []


ACCEPTED = (
    "ld.shared.u8 %r1, [bar];", "ld.shared.f32 %r1, [bar];", "st.shared.v2.u32 [bar], {%r1, 5};",
    "and.pred %p1, %p2, 1;", "setp.eq.u32 _|%p2, %r1, %r2;", "mov.b64 {_, %f2}, %d1;", "mov.u16 %h1, %tid.x;",
    "mov.u32 %r1, bar+4;", "mov.u64 %d1, x;", "cvta.shared.u64 %d1, bar;", "and.b32 %r1, %r2, 0f3F800000;",
    "selp.b32 %f1, %r1, 0, %p1;", "vote.ballot.sync.b32 %r1, %p1, %r2;", "{ .reg .b64 %r<9>; mov.b64 %r1, 0; }",
    "{ end: bra end; }", "vadd.s32.u32.s32.sat %r1, %r2.b0, %r3.h1;", "shfl.sync.idx.b32 %r1, %r2, %f3, 31, -1;",
    "cvt.u32.u16 %r1, %tid.x;", "mbarrier.arrive.shared.b64 _, [bar];", "mov.u32 %r1, %envreg3;",
    "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d1, {%r1}];", "labels: .branchtargets end; brx.idx %r1, labels;",
    ".reg .v4 .f32 V, W; mov.v4.f32 {%f1, %f2, V.z, V.a}, W;", ".reg .v2 .b32 %v<2>; mov.b64 %d1, %v1;",
    ".reg .v4 .u32 U; ld.shared.v4.u32 U, [bar]; mov.b64 {U.x, U.y}, %d1; st.shared.v4.u32 [bar], U;",
)  # fmt: skip


def test_what_ptxas_accepts_passes() -> None:
    text = kernel(".reg .b16 %h<9>;\n" + "\n".join(ACCEPTED))
    ptx.check(ptx.parse(text), text)
    assert find_ptxas() is None or assemble(text, "sm_90a").ok


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.parent.rglob("*.ptx")), ids=lambda path: path.name)
def test_ptx_of_other_compilers_passes(path: Path) -> None:
    text = path.read_text()
    ptx.check(ptx.parse(text), text)


def test_load_ptx_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(kernel("add.u32 %r1, %d2, 1;"))
    with pytest.raises(PtxSyntaxError) as caught:
        ww.load_ptx(path)
    assert str(caught.value).startswith("kernel.ptx:6:14: found %d2 of type .b64 as operand 2 of add.u32, expected ")
