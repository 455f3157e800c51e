"""The table against the assembler: ptxas accepts every spelling on its targets and refuses it on the others."""

from __future__ import annotations

import random
from functools import cache
from itertools import islice

import pytest

from tests.isa.spellings import HEAD, TAIL, opcodes, operands
from tests.samples import sampled
from warpwright import isa
from warpwright.isa.notation import supports
from warpwright.ptx.ptxas import assemble, find_ptxas

ARCHS = ("sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120", "sm_120a", "sm_120f")
EACH = 24

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas: pip install nvidia-cuda-nvcc")


@cache
def _instructions() -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """Up to ``EACH`` opcodes of every spelling, each with and without optional operands; targets and version."""
    chosen = random.Random(2)
    found = []
    for form in isa.FORMS.values():
        for spelling in form.spellings:
            every = list(islice(opcodes(form.name, spelling), 4000))
            for opcode, slots in chosen.sample(every, min(EACH, len(every))):
                for longest in (False, True):
                    text = f"{opcode} {operands(form.name, spelling, slots, longest)};"
                    found.append((text, spelling.targets, spelling.since))
    return tuple(dict.fromkeys(found))


@sampled("arch", ARCHS, keep=["sm_100f", "sm_120a"])
def test_accepted_where_the_table_says_so(arch: str) -> None:
    lines = [text for text, targets, _ in _instructions() if supports(targets, arch)]
    refused = _errors(lines, arch)
    assert refused == {}


@sampled("arch", ARCHS, keep=["sm_90a", "sm_100f", "sm_120a"])
def test_refused_elsewhere(arch: str) -> None:
    lines = [text for text, targets, _ in _instructions() if not supports(targets, arch)]
    assert lines
    refused = _errors(lines, arch)
    assert [text for text in lines if text not in refused] == []


@sampled("arch", ["sm_90a", "sm_100a", "sm_120a"], keep=["sm_100a"])
def test_modifiers_in_another_order_match_when_ptxas_takes_them(arch: str) -> None:
    """Exchange neighbouring modifiers: the match and ptxas agree on which results are instructions."""
    shuffled = {}
    chosen = random.Random(3)
    for text, targets, _ in _instructions():
        opcode, _, rest = text.partition(" ")
        if supports(targets, arch):
            swapped = _exchange(opcode, chosen)
            shuffled[swapped] = rest
    lines = [f"{opcode} {rest}" for opcode, rest in shuffled.items()]
    refused = _errors(lines, arch)
    disagree = [
        line
        for line, opcode in zip(lines, shuffled, strict=True)
        if (line in refused) == bool((match := isa.match(opcode)) and isa.supports(match, arch))
    ]
    assert disagree == []


def _exchange(opcode: str, chosen: random.Random) -> str:
    """Exchange two neighbouring modifiers, unless that spells another instruction (two types, say)."""
    match = isa.match(opcode)
    assert match is not None
    length = len(match.form.name.split("."))
    words = opcode.split(".")
    if len(words) - length < 2:
        return opcode
    at = chosen.randrange(length, len(words) - 1)
    words[at], words[at + 1] = words[at + 1], words[at]
    swapped = isa.match(".".join(words))
    return opcode if swapped is not None and swapped.chosen != match.chosen else ".".join(words)


@sampled(("arch", "version"), [("sm_90a", "8.6"), ("sm_100a", "8.6"), ("sm_120a", "8.7")], keep=[("sm_100a", "8.6")])
def test_the_lowest_version(arch: str, version: str) -> None:
    """The target's own lowest version suffices for spellings without a version; the others need their version."""
    ours = [(text, since) for text, targets, since in _instructions() if supports(targets, arch)]
    assert _errors([text for text, since in ours if since <= version], arch, version) == {}
    later = [text for text, since in ours if since > version]
    assert sorted(_errors(later, arch, version)) == sorted(later)
    assert _errors(later, arch, max(since for _, since in ours)) == {}


def _errors(lines: list[str], arch: str, version: str = "9.0") -> dict[str, str]:
    """The errors of ptxas for each line, the two cta_groups apart: a kernel uses one of them."""
    pairs = [line for line in lines if ".cta_group::2" in line]
    singles = [line for line in lines if ".cta_group::2" not in line]
    return errors_of_kernel(singles, arch, version) | errors_of_kernel(pairs, arch, version)


def errors_of_kernel(lines: list[str], arch: str, version: str, declare: str = "") -> dict[str, str]:
    """Repeat without the refused lines: a later pass of ptxas runs only on text that earlier passes accept."""
    head = HEAD.format(arch=arch, version=version) + declare
    first = head.count("\n") + 1
    refused: dict[str, str] = {}
    left = lines
    while left:
        result = assemble(head + "\n".join(left) + "\n" + TAIL, arch)
        new = {left[line - first]: said for line, said in result.errors.items() if first <= line < first + len(left)}
        assert new or result.ok, result.log[:500]
        if not new:
            break
        refused |= new
        left = [line for line in left if line not in new]
    return refused
