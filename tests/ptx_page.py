"""The list of supported PTX, from the table of instructions: the text of docs/ptx.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

from warpwright.isa import Form
from warpwright.isa.sets import SETS
from warpwright.isa.table import FAMILIES
from warpwright.vgpu.jit.issue import NOT_YET

HEAD = """\
# Supported PTX

Every PTX instruction that this package reads and emits, from the table in `src/warpwright/isa`. Sections are those of
PTX ISA 9.1. This page is generated; after a change of the table run `pytest --update-golden tests/test_ptx_page.py`.

Spellings are written as follows:

| in a spelling | meaning |
| --- | --- |
| `.word` | a required modifier |
| `{.word}` | an optional modifier |
| `.slot=x\\|y` | exactly one of the alternatives; a name in capitals is a set, listed at the end of this page |
| `[a]` | an address |
| `d*vec` | a vector of so many registers |
| `#n` | an immediate |
| `{, x}` | an optional operand |
| `@ sm_100+` | the targets of the spelling: this one and all later ones; without `@`: sm_90 and all later ones |
| `@ sm_100f`, `@ sm_90a` | the targets of this family; this target only |

"""


def text() -> str:
    """The whole page."""
    sections = [HEAD + "The virtual GPU refuses these instructions:\n"]
    sections.append("| instruction | reason |\n| --- | --- |\n" + _rows(NOT_YET.items()))
    for family in FAMILIES:
        title = re.split(r" \(|\.\n", (family.__doc__ or "").strip())[0].rstrip(".")
        sections.append(f"## {title}\n")
        sections += map(entry, family.FORMS)
    sections.append("## Sets\n\n| set | alternatives |\n| --- | --- |\n" + _rows(sorted(SETS.items())))
    return "\n".join(sections)


def _rows(pairs: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    return "".join(f"| `{name}` | {_cell(name, value)} |\n" for name, value in pairs)


def _cell(name: str, value: str) -> str:
    return value if name in NOT_YET else f"`{value.replace('|', chr(92) + '|')}`"


def entry(form: Form) -> str:
    """A form: its meaning, its facts in one list, its spellings."""
    refused = f"no: {NOT_YET[form.name]}" if form.name in NOT_YET else "yes"
    facts = {
        "PTX ISA": "sections " + form.section.replace(",", ", ") if "," in form.section else f"section {form.section}",
        "targets": ", ".join("sm_90 and later" if target == "all" else f"`{target}`" for target in form.targets),
        "issued by": form.issued_by,
        "completes by": form.completes_by,
        "runs on the virtual GPU": refused,
    }
    listed = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"### `{form.name}`\n\n{form.doc}\n\n{listed}\n\n```text\n{spellings(form)}\n```\n"


def spellings(form: Form) -> str:
    """One line a spelling, with its operands; its targets follow unless it has all of them."""
    lines = []
    for spelling in form.spellings:
        targets = [*spelling.targets, spelling.since and f".version {spelling.since}"]
        own = " ".join(word for word in targets if word and word != "all")
        lines.append(spelling.text + (f"   @ {own}" if own else ""))
    return "\n".join(lines)
