"""Text that is not PTX raises one sentence with the position, what was found and what was expected."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warpwright.errors import PtxSyntaxError
from warpwright.ptx import parse

GOLDEN = Path(__file__).parent / "golden"
HEAD = ".version 8.7\n.target sm_100a\n"
SAMPLE = (GOLDEN / "nvcc_declarations.sm_100a.ptx").read_text()

steady = settings(derandomize=True, deadline=None, max_examples=200)


def kernel(line: str) -> str:
    return f"{HEAD}.entry k() {{\n{line}\n}}"


OPERAND = "an operand (a name, a constant, '[address]' or '{vector}')"
INTEGER = "an integer of at most 64 bits (a leading 0 means octal)"
SENTENCES = {
    "": "1:1: found the end of the text, expected '.version'.",
    "hello": "1:1: found 'hello', expected '.version'.",
    "\x7fELF\x02": "1:1: found the character U+007F, expected PTX text.",
    ".version 8.7\0": "1:13: found the character U+0000, expected PTX text.",
    ".version 8": "1:10: found '8', expected a version such as 8.7.",
    ".version 8.7\nret;": "2:1: found 'ret', expected '.target'.",
    ".version 8.7\n.target 90": "2:9: found the number 90, expected a target such as sm_90a.",
    HEAD + ".address_size 16": "3:15: found the number 16, expected 32 or 64.",
    HEAD + "/* never": "3:1: found a comment without an end, expected '*/'.",
    HEAD + '.file 1 "never': "3:9: found a string without an end, expected '\"' on the same line.",
    HEAD + ".global .foo x;": "3:9: found '.foo', expected a type such as '.b32'.",
    HEAD + ".global .u32 x": "3:15: found the end of the text, expected ',' or ';'.",
    HEAD + ".global .u32 x[1.5];": "3:16: found the number 1.5, expected a number of elements.",
    HEAD + ".global .u32 x = 08;": f"3:18: found the number 08, expected {INTEGER}.",
    HEAD + ".global .u32 x = 1.2.3;": (
        "3:18: found '1.2.3', expected a number of PTX (10, 0x1F, 017, 0b101, 1.5, 0f3F800000)."
    ),
    HEAD + ".global .u32 x = 1 / (2 - 2);": "3:20: found '/' by zero, expected a divisor other than 0.",
    HEAD + ".visible ret;": "3:10: found 'ret', expected a state space such as '.global'.",
    HEAD + ".entry k(.u32 x)": "3:10: found '.u32', expected '.param', '.reg' or ')'.",
    HEAD + ".entry k() ret;": "3:12: found 'ret', expected a directive, '{' or ';'.",
    HEAD + ".entry k() {": ("3:13: found the end of the text, expected an instruction, a label, a directive or '}'."),
    HEAD + ".section .debug_str { .b8 1": "3:28: found the end of the text, expected '}'.",
    kernel("add.u32 %r1, %r2 %r3;"): "4:18: found '%r3', expected ',' or ';'.",
    kernel("add.u32 %r1, %r2\nret;"): "5:1: found 'ret', expected ',' or ';'.",
    kernel("add.u32 %r1, , %r2;"): f"4:14: found ',', expected {OPERAND}.",
    kernel("add.u32 %r1, %r2,;"): f"4:18: found ';', expected {OPERAND}.",
    kernel("ld.u32 %r1, [%r2-4];"): "4:17: found '-', expected '+', ',' or ']'.",
    kernel("ld.u32 %r1, [%r2+%r3];"): "4:18: found '%r3', expected an integer offset.",
    kernel("ld.u32 %r1, [%r2;"): "4:17: found ';', expected '+', ',' or ']'.",
    kernel("mov.b64 {a, b, d;"): "4:17: found ';', expected ',' or '}'.",
    kernel("mov.u32 a, 99999999999999999999;"): (f"4:12: found the number 99999999999999999999, expected {INTEGER}."),
    kernel("@p @q ret;"): "4:4: found '@', expected an instruction.",
    kernel("@ ret"): "5:1: found '}', expected an instruction.",
    kernel(".loc 1 x 3"): "4:8: found 'x', expected a line.",
    kernel(".reg .b32 %r<99999999>;"): "4:14: found 99999999 registers, expected 0 to 1048576.",
    kernel("call (a) f;"): "4:10: found 'f', expected ','.",
    kernel("; ret;"): "4:1: found ';', expected an instruction, a label, a directive or '}'.",
    kernel("mov.u32 a, " + "(" * 500): "4:75: found nesting deeper than 64 levels, expected at most 64.",
    kernel("{" * 500): "4:64: found nesting deeper than 64 levels, expected at most 64.",
    HEAD + ".global .u32 x = " + "{" * 500: "3:83: found nesting deeper than 64 levels, expected at most 64.",
    HEAD + ".global .u32 x = " + "-" * 500: "3:82: found nesting deeper than 64 levels, expected at most 64.",
}


@pytest.mark.parametrize("text", SENTENCES, ids=range(len(SENTENCES)))
def test_the_whole_sentence(text: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        parse(text, source="a.ptx")
    assert str(caught.value) == "a.ptx:" + SENTENCES[text]
    assert f"{caught.value.line}:{caught.value.column}" == SENTENCES[text].split(": ")[0]
    assert caught.value.source == "a.ptx"


def test_bytes_of_a_cubin() -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        parse(b".version\n 8.7 \xff\xad", source="k.cubin")
    assert str(caught.value) == "k.cubin:2:6: found the byte 0xFF, expected PTX text (is this a cubin?)."


def test_a_truncated_file_is_refused_wherever_it_is_cut() -> None:
    """Every cut inside the last body leaves a brace open."""
    start = SAMPLE.index("{", SAMPLE.rindex(".visible .entry"))
    for cut in range(start, SAMPLE.rindex("}"), 7):
        with pytest.raises(PtxSyntaxError):
            parse(SAMPLE[:cut])


def test_hostile_spaces_do_not_take_forever() -> None:
    with pytest.raises(PtxSyntaxError):
        parse(kernel("add" + " " * 100_000 + "/*" + " " * 100_000 + "*/ a"))


def parse_or_refuse(text: str | bytes) -> None:
    """The parser raises only PtxSyntaxError, with a line of the text."""
    try:
        parse(text)
    except PtxSyntaxError as error:
        newline: str | bytes = b"\n" if isinstance(text, bytes) else "\n"
        assert 1 <= error.line <= text.count(newline) + 1  # type: ignore[arg-type]
        assert error.column >= 1


@steady
@given(st.binary(max_size=200))
@example(b"\x7fELF\x02\x01\x01" + b"\0" * 64)
def test_random_bytes(data: bytes) -> None:
    parse_or_refuse(data)
    parse_or_refuse(HEAD.encode() + data)


@steady
@given(
    st.lists(
        st.sampled_from([*'{}[]()<>;:,|@!+-*/%.="0 \n', ".reg", ".func", "k", "a.b", "0x", "call", ".loc", "1.", "%r1"])
    )
)
def test_random_tokens(words: list[str]) -> None:
    parse_or_refuse(kernel(" ".join(words)))
    parse_or_refuse(HEAD + "".join(words))


@steady
@given(st.integers(0, 1 << 32))
def test_real_ptx_with_a_few_bytes_changed(seed: int) -> None:
    dice = random.Random(seed)
    text = list(SAMPLE)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(text))
        text[at : at + dice.choice([0, 1, 1, 40])] = dice.choice(
            ["", ";", "{", "}", "\0", "é", "9", ".", '"', "/*", ","]
        )
    parse_or_refuse("".join(text))
