"""Excerpts of a text of several kernels: what is checked when, and that a launch of an excerpt is that of the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright import ptx
from warpwright.errors import PtxSyntaxError, UnsupportedInstruction
from warpwright.ptx import nodes
from warpwright.ptx.excerpt import excerpt, outline
from warpwright.ptx.ptxas import assemble, find_ptxas
from warpwright.run.launch_file import entry_of
from warpwright.vgpu.program.decode import decode

FOREIGN = Path(__file__).parent.parent / "foreign" / "ptx"
HEAD = ".version 8.3\n.target sm_90a\n.address_size 64\n"
# A body with braces in comments, strings and vectors; names of functions in a table, in a call, and in a comment.
TEXT = (
    HEAD
    + """.extern .func (.param .b32 r) vprintf (.param .b64 format, .param .b64 rest);
.func (.param .b32 r) twice (.param .b32 x);
.func (.param .b32 r) half (.param .b32 x)  // .entry no (
{ ret; }
.func in_table () { .pragma "a } {"; ret; }
.global .align 1 .b8 text[4] = {123, 37, 125, 0}; /* } { */ .global .u64 table[1] = {in_table};
.visible .entry first (.param .u64 out) { .reg .b32 %r<2>; // }
  { .reg .b64 %d; .reg .v2 .b32 %v; /* { */ mov.b64 %d, 0; mov.b64 {%r0, %r1}, %d; }
  add.u32 %r0, %r0, out_of_place; }
.func (.param .b32 r) twice (.param .b32 x)
{
  .reg .b32 %r<2>; ld.param.b32 %r0, [x]; add.u32 %r1, %r0, %r0; st.param.b32 [r], %r1;
  ret;
}   .visible .entry second (.param .u64 out)
{
  .reg .b32 %r<3>; .reg .b64 %d<2>; .param .b32 x, y;
  mov.u32 %r0, %tid.x; st.param.b32 [x], %r0; call (y), twice, (x); ld.param.b32 %r1, [y];
  ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, 4, %d0; st.global.u32 [%d0], %r1; ret;
}
.visible .entry third (.param .u64 out) { add.u32 1 }
"""
)


def bodies(text: str) -> dict[str, int]:
    """Returns the number of items in the body of each function."""
    items = ptx.parse(text).items
    return {item.name: len(item.body.items) for item in items if isinstance(item, nodes.Function) and item.body}


def message(act: Any, *args: Any) -> str:
    with pytest.raises(PtxSyntaxError) as caught:
        act(*args)
    return str(caught.value)


def test_a_kernel_is_checked_when_it_is_looked_up() -> None:
    module = ww.load_ptx(TEXT)
    assert list(module) == ["first", "second", "third"]
    out = np.zeros(32, np.uint32)
    ww.launch(module["second"], 1, 32, args=[out], device="h200")
    assert out.tolist() == list(range(0, 64, 2))
    found = message(module.__getitem__, "first")
    assert found.startswith("<ptx>:12:21: found the name out_of_place, expected a name that is declared above")
    assert message(module.__getitem__, "third").startswith("<ptx>:23:53: found '}', expected ',' or ';'.")
    assert module["second"] is module["second"] and module["second"].module is ww.load_ptx(TEXT)["second"].module


def test_a_whole_text_is_checked_at_once() -> None:
    with pytest.raises(PtxSyntaxError, match=r"^<ptx>:23:53: found '}', expected ',' or ';'\."):
        ww.load_ptx(TEXT, whole=True)


def test_a_launch_file_checks_the_whole_text(tmp_path: Path) -> None:
    path = tmp_path / "three.ptx"
    path.write_text(TEXT)
    assert message(entry_of, path, "second").startswith("three.ptx:23:53: found '}', expected ',' or ';'.")


def test_an_excerpt_has_the_functions_that_the_kernel_needs() -> None:
    text = TEXT.replace("{ add.u32 1 }", "{ ret; }").replace("add.u32 %r0, %r0, out_of_place;", "ret;")
    everything = bodies(text)
    module = ww.load_ptx(text)["second"].module
    kept = {item.name for item in module.items if isinstance(item, nodes.Function) and item.body and item.body.items}
    assert kept == {"second", "twice", "in_table"}
    assert set(everything) == {"half", "in_table", "first", "twice", "second", "third"}
    assert [line for line, _ in enumerate(outline(text).splitlines())] == [n for n, _ in enumerate(text.splitlines())]
    assert bodies(excerpt(text, range(9))) == everything
    assert find_ptxas() is None or assemble(ptx.to_text(module), "sm_90a").ok


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (".target sm_90a", ".target sm_9", "<ptx>:2:9: found the target sm_9, expected a target such as sm_90a."),
        ("third (.param .u64 out)", "third (.param .u64)", "<ptx>:23:35: found ')', expected the name of a variable."),
        ("{ add.u32 1 }", "{ add.u32 1", "<ptx>:24:1: found the end of the text, expected ',' or ';'."),
        ("{ add.u32 1 }", "{ ret; } }", "<ptx>:23:50: found '}', expected a directive such as '.visible .entry'."),
        ("half (.param", "twice (.param", "<ptx>:13:23: found a second function twice, expected another name."),
    ],
)
def test_what_is_outside_bodies_is_checked_at_once(before: str, after: str, expected: str) -> None:
    assert before in TEXT
    assert message(ww.load_ptx, TEXT.replace(before, after)).startswith(expected)


def test_a_text_of_one_kernel_is_checked_at_once() -> None:
    text = HEAD + ".func unused () { add.u32 1; }\n.entry only () { ret; }\n"
    assert message(ww.load_ptx, text).startswith("<ptx>:4:19: found `add.u32 1;`")


def test_debug_sections_keep_the_bodies_that_they_name() -> None:
    kernels = ".entry one () { $L__func_begin0: add.u32 1; }\n.entry two () { ret; }\n"
    section = ".section .debug_info { .b64 $L__func_begin0 }\n"
    assert list(ww.load_ptx(HEAD + kernels)) == ["one", "two"]
    assert message(ww.load_ptx, HEAD + kernels + section).startswith("<ptx>:4:34: found `add.u32 1;`")


@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.sm_90a.ptx")), ids=lambda path: path.name)
def test_kernels_of_excerpts_equal_those_of_the_text(path: Path) -> None:
    whole = ptx.parse(path.read_text())
    module = ww.load_ptx(path)
    for name in module:
        assert program(module[name].module, name) == program(whole, name)


def program(module: nodes.Module, entry: str) -> Any:
    """Returns the instructions of a kernel, with calls inlined, or the reason why the virtual GPU refuses it."""
    try:
        found = decode(module, entry)
    except UnsupportedInstruction as error:
        return str(error)
    insts = [(inst.opcode, inst.guard, inst._operands, inst.line) for inst in found.insts]
    return insts, found.params, found.registers, found.variables, found.shared_bytes
