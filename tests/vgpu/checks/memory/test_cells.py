"""Cells of shared memory: how wide they are, sets of them, and accesses that stand for several MMAs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import text
from warpwright import ptx
from warpwright.vgpu.checks.memory.accesses import Accesses
from warpwright.vgpu.checks.memory.cells import Cells, cells_of, span_of, united
from warpwright.vgpu.checks.memory.footprints import cell_bytes
from warpwright.vgpu.checks.order.clocks import Clocks
from warpwright.vgpu.program.decode import decode

LOAD = "ld.shared.u32 %r0, [0];"
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [0], 32;"
WIDE = "st.shared.v4.b32 [16], {%r0, %r0, %r0, %r0};"


@pytest.mark.parametrize(
    ("body", "nbytes"),
    [
        (LOAD, 16),  # a load of less than a cell overlaps all that is written there
        (LOAD + WIDE + ALLOC, 16),
        (LOAD + ALLOC + ALLOC, 4),  # their addresses may be neighbours
        (WIDE + "st.shared.b32 [32], %r0;", 4),
        (WIDE + "st.shared.b8 [32], %r0;", 1),
        (WIDE + "atom.shared.add.u32 %r0, [32], 1;", 4),
        (WIDE + "cp.async.ca.shared.global [32], [%o], 8;", 8),
    ],
)
def test_a_cell_is_as_wide_as_the_narrowest_write(body: str, nbytes: int) -> None:
    program = decode(ptx.parse(text(body)), "k")
    assert cell_bytes(program.insts) == nbytes


def test_united_cells_have_as_few_runs_as_there_can_be() -> None:
    random = np.random.default_rng(0)
    parts = [cells_of(np.unique(random.integers(0, 40, 12))) for _ in range(5)]
    numbers = np.unique(np.concatenate([part.numbers for part in parts]))
    assert united(parts)[0].runs.tolist() == cells_of(numbers).runs.tolist()
    assert united([span_of(4, 8), span_of(0, 4)])[0].runs.tolist() == [[0, 8]]
    assert united([]) == []


@pytest.mark.parametrize(("cells", "insts"), [([5], [9]), ([3, 4], [7, 9]), ([20], [9])])
def test_an_access_of_several_mmas_is_that_of_those_which_read_the_cells(cells: list[int], insts: list[int]) -> None:
    accesses = Accesses(Clocks(64))
    reads: list[tuple[int, Cells]] = [(7, span_of(0, 4)), (9, span_of(4, 8))]
    one = accesses.one(40, 5, True, 9, 3)
    accesses.parts[one] = reads
    ids, who = accesses.separate(np.array([one]), np.array([17]), np.array(cells))
    assert accesses.rows["inst"][ids].tolist() == insts
    assert {name: set(accesses.rows[name][ids].tolist()) for name in ("column", "value", "lane")} == {
        "column": {40}, "value": {5}, "lane": {3}
    }  # fmt: skip
    assert who.tolist() == [17] * len(insts)
