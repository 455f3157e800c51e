"""parse(to_text(x)) == x: for random trees, and for the PTX of compilers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.ptx import strategies
from warpwright.ptx import instruction_text, nodes, parse, to_text
from warpwright.ptx.ptxas import assemble

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden").glob("*.ptx")) + sorted((HERE.parent / "foreign" / "ptx").glob("*.ptx"))

steady = settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


def in_kernel(*lines: str) -> nodes.Block:
    """Returns the body of a kernel with ``lines``."""
    text = "\n".join([".version 8.7", ".target sm_100a", ".entry k() {", *lines, "}"])
    function = parse(text).items[0]
    assert isinstance(function, nodes.Function)
    assert function.body is not None
    return function.body


@steady
@given(strategies.modules)
def test_any_module_survives_printing(module: nodes.Module) -> None:
    assert parse(to_text(module)) == module


@steady
@given(strategies.plain_instructions)
def test_the_fast_path_and_the_slow_path_agree(instruction: nodes.Instruction) -> None:
    text = instruction_text(instruction)
    label, slow = in_kernel("L: " + text).items  # after a label the parser takes the slow path
    assert in_kernel(text).items == (instruction,)
    assert (label, slow) == (nodes.Label("L"), instruction)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_compilers_output_survives_printing(path: Path) -> None:
    module = parse(path.read_text(), source=path.name)
    assert module.target[0] == path.stem.split(".")[1]
    assert parse(to_text(module)) == module


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_no_instruction_is_lost(path: Path) -> None:
    """Each opcode occurs in the tree as often as a text search finds it."""
    text = re.sub(r"//.*", "", path.read_text())
    opcodes = Counter(item.opcode for item in walk(parse(text).items) if isinstance(item, nodes.Instruction))
    for opcode in {*opcodes, "bar.sync", "st.global.u32", "fma.rn.f32", "bra"}:
        assert len(re.findall(rf"(?<![\w.$%]){re.escape(opcode)}(?![\w.:$])", text)) == opcodes[opcode], opcode


@pytest.mark.parametrize("path", [path for path in GOLDEN if path.stem.startswith("nvcc")], ids=lambda path: path.stem)
def test_ptxas_accepts_what_is_printed(path: Path) -> None:
    assert assemble(to_text(parse(path.read_text())), path.stem.split(".")[1]).errors == {}


def test_the_printed_form() -> None:
    assert to_text(parse(UGLY)) == PRETTY


UGLY = """.version 8.7 .target sm_90a, debug .address_size 64
.file 1 "a  b.cu" /* one */ .global .align 8 .u64 table[2]={generic(x)+8,0xFF(y)};
.visible .entry k(.param .u64 .ptr .global .align 16 p,.param .b8 s[4]) .maxntid 128,1,1 .pragma "nounroll";
{ .reg .b32 %r<9>; .reg .pred p,q;   // registers
.loc 1 2 3,function_name A,inlined_at 1 4 5
L:@!p ld.global.v2.u32{%r1,_},[%r2+0x10];
{ call (%r1) , f,(%r2, 3) ,proto; }
mov.b32 %r3,1<<4|2; ret;}
"""

PRETTY = """.version 8.7
.target sm_90a, debug
.address_size 64

.file 1 "a  b.cu"
.global .align 8 .u64 table[2] = {generic(x)+8, 0xFF(y)};

.visible .entry k(
    .param .u64 .ptr .global .align 16 p,
    .param .b8 s[4]
)
.maxntid 128, 1, 1
.pragma "nounroll";
{
    .reg .b32 %r<9>;
    .reg .pred p, q;
    .loc 1 2 3, function_name A, inlined_at 1 4 5
L:
    @!p ld.global.v2.u32 {%r1, _}, [%r2+16];
    {
        call (%r1), f, (%r2, 3), proto;
    }
    mov.b32 %r3, 18;
    ret;
}
"""


def walk(items: tuple[nodes.Item, ...]) -> list[nodes.Item]:
    """Returns all items, with the items of functions and blocks, in order."""
    found: list[nodes.Item] = []
    for item in items:
        found.append(item)
        inner = item.body if isinstance(item, nodes.Function) else item
        if isinstance(inner, nodes.Block):
            found += walk(inner.items)
    return found
