"""Source lines of inlined code: in the kernel's own file, not in the library's."""

from __future__ import annotations

import pytest

from warpwright.ptx import nodes
from warpwright.vgpu.program.lines import Lines

FILES = ('1 "kernel.cu"', '2 "library.h"', '3 "deeper.h"')
MODULE = nodes.Module("8.0", ("sm_90a",), 64, tuple(nodes.Directive(".file", text) for text in FILES))
CALLED = nodes.Loc(2, 49, 5, "function_name $L__info_string0, inlined_at 1 10 9")
DEEPER = nodes.Loc(3, 7, 1, "function_name $L__info_string1, inlined_at 2 49 5")
OWN = nodes.Loc(1, 4, 3, "function_name $L__info_string2, inlined_at 1 12 9")


@pytest.mark.parametrize(
    ("locs", "expected"),
    [
        ([nodes.Loc(1, 6, 0)], ("kernel.cu", 6)),
        ([CALLED], ("kernel.cu", 10)),
        ([CALLED, DEEPER], ("kernel.cu", 10)),
        ([OWN], ("kernel.cu", 4)),
        ([CALLED, nodes.Loc(2, 49, 5)], ("library.h", 49)),
        ([nodes.Loc(4, 1, 1)], ("file 4", 1)),
        ([nodes.Loc(1, 0, 0)], None),
    ],
    ids=["plain", "library", "library in library", "own function", "not inlined", "unnamed file", "no line"],
)
def test_an_instruction_has_the_line_of_its_kernel(locs: list[nodes.Loc], expected: tuple[str, int] | None) -> None:
    lines = Lines(MODULE)
    assert [next(iter(lines.at(loc)), None) for loc in locs][-1] == expected


def test_inlined_code_has_the_lines_of_its_calls() -> None:
    lines = Lines(MODULE)
    assert [lines.at(loc) for loc in (OWN, CALLED, DEEPER)] == [
        (("kernel.cu", 4), ("kernel.cu", 12)),
        (("kernel.cu", 10),),
        (("kernel.cu", 10),),
    ]


def test_recursive_inlining_ends() -> None:
    assert Lines(MODULE).at(nodes.Loc(2, 1, 1, "function_name F, inlined_at 2 1 1")) == (("library.h", 1),)
