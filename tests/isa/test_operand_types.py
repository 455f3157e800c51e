"""The types of operands against the assembler: both take the same registers and constants in each place."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from tests.isa.spellings import HEAD, TAIL, opcodes, operands
from tests.isa.test_ptxas import errors_of_kernel
from warpwright import isa, ptx
from warpwright.errors import PtxSyntaxError
from warpwright.isa.notation import supports
from warpwright.isa.operands import bits_of, has_value
from warpwright.ptx.ptxas import find_ptxas

OTHERS = ("h1", "r1", "f1", "d1", "g1", "p1", "q1", "u16r", "s32r", "u64r", "1", "1.0", "0f3F800000", "%clock64")
DECLARE = ".reg .u16 u16r; .reg .s32 s32r; .reg .u64 u64r;\n"
SHARE = 0.02  # ptxas takes and refuses a few forms against PTX ISA: bits for floats in redux, floats for fns
CRASH = "createpolicy.cvt"  # ptxas 13.0 crashes at a constant as its result


def lines(arch: str, count: int) -> Iterator[str]:
    """Instructions with another register or constant in the place of each operand."""
    chosen = random.Random(7)
    spellings = [(form.name, each) for form in isa.FORMS.values() for each in form.spellings]
    known = [(name, each) for name, each in spellings if supports(each.targets, arch) and name != "call"]
    for name, spelling in chosen.sample(known, count):
        opcode, slots = chosen.choice([*opcodes(name, spelling)])
        if opcode.startswith(CRASH):
            continue
        parts = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|[^,])+", operands(name, spelling, slots, False))
        for at, part in enumerate(parts):
            for other in OTHERS if "[" not in part else ():
                yield f"{opcode} {', '.join([*parts[:at], other, *parts[at + 1 :]])};"


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas: pip install nvidia-cuda-nvcc")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_both_take_the_same_operands(arch: str) -> None:
    texts = [*dict.fromkeys(line for line in lines(arch, 70) if "cta_group::2" not in line)]
    refused = errors_of_kernel(texts, arch, "9.0", DECLARE)
    head = HEAD.format(arch=arch, version="9.0") + DECLARE
    differ = [line for line in texts if _passes(f"{head}{line}\n{TAIL}") == (line in refused)]
    assert len(texts) > 1000
    assert 0.2 < len(refused) / len(texts) < 0.9
    assert len(differ) <= SHARE * len(texts), differ


def _passes(text: str) -> bool:
    try:
        ptx.load_module(text)
    except PtxSyntaxError:
        return False
    return True


def test_bits_of_packed_types() -> None:
    sizes = {"e2m1x2": 8, "e2m1x4": 16, "e4m3x2": 16, "e2m3x4": 32, "ue8m0x2": 16, "bf16x2": 32, "f32x2": 64, "pred": 1}
    assert {name: bits_of(name) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("values", "inside", "outside"), [("0..15", (0, 15), (-1, 16)), ("4/8/16", (4, 16), (6,)), ("32n", (0, 64), (33,))]
)
def test_values(values: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    assert all(has_value(values, number) for number in inside)
    assert not any(has_value(values, number) for number in outside)
