"""The program of a cluster from its rows: the steps of each warp, where rows that repeat share their steps."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.jit.costs import NEED, elapsed
from warpwright.vgpu.program.operation import Op
from warpwright.vgpu.timing.steps import (
    RECORDS,
    SHARED,
    TRAFFIC,
    Facts,
    Mmas,
    Program,
    Reader,
    Step,
    Steps,
    mmas_of,
    read_row,
)

if TYPE_CHECKING:
    from warpwright.vgpu.machine.state import ClusterState

__all__ = ["program_of"]

Ints = NDArray[np.int64]
_NOTHING = [0] * 5  # the costs of a step that is not the first of its row
# Random odd factors: rows are equal if the sums of their words times these are.
_FACTORS = np.random.default_rng(1).integers(1 << 40, 1 << 62, 8) | 1


def program_of(cluster: ClusterState, rows: Ints, records: Ints, keys: Ints, facts: Facts) -> Program:
    """The steps of a cluster, from its rows, those of each warp in the order of execution, and their records. Steps of
    the other rows than those with traffic or records are read when they are asked for: few clusters are replayed."""
    reader = Reader(cluster, keys, facts)
    queue = deque(records.tolist())
    spent, constant = _elapsed(rows), _constant(reader, rows)
    others = {
        at: _steps(reader, rows[at].tolist(), spent[at].tolist(), queue) for at in np.flatnonzero(~constant).tolist()
    }
    nbytes, copies = np.array(reader.nbytes, np.int64), np.array(reader.copies, np.int64)
    reads, again = np.array(reader.reads, bool), np.array(reader.again, bool)
    length = int(constant.sum()) + sum(map(len, others.values()))
    mmas = mmas_of(step for steps in others.values() for step in steps) + _mmas(reader, rows, constant)
    read = partial(_read_warps, reader, rows, spent, constant, others)
    return Program(read, nbytes, reads, again, copies, reader.columns, reader.pairs, length, mmas)


def _read_warps(
    reader: Reader, rows: Ints, spent: Ints, constant: NDArray[np.bool_], others: dict[int, list[Step]]
) -> list[list[Step]]:
    """The steps of each warp; ``others``: those of the rows that are not ``constant``, by the number of the row."""
    found = _shared_steps(reader, rows, spent, constant)
    ends = np.searchsorted(rows[:, 0] >> 32, np.arange(reader.cluster.count + 1)).tolist()
    warps = []
    for at, end in pairwise(ends):
        steps: list[Step] = []
        for other in (at + np.flatnonzero(~constant[at:end])).tolist():
            steps += found[at:other]
            steps += others[other]
            at = other + 1
        warps.append(steps + found[at:end])
    return warps


def _mmas(reader: Reader, rows: Ints, constant: NDArray[np.bool_]) -> Mmas:
    """The MMAs of the constant rows, one for each instruction."""
    numbers = np.where(constant, rows[:, 0] & 0xFFFF_FFFF, NEED)
    different, firsts, counts = np.unique(numbers, return_index=True, return_counts=True)
    found: Mmas = []
    for number, first, count in zip(different.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        if number in reader.facts.mmas:
            (step,) = _steps(reader, rows[first].tolist(), _NOTHING, deque())
            found += [(what, count * flops) for what, flops in mmas_of([step])]
    return found


def _elapsed(rows: Ints) -> Ints:
    """What `costs.elapsed` has for each row since the row before it of its warp."""
    warps, stamps = rows[:, 0] >> 32, rows[:, [1, 4]].astype(np.uint64)
    before = np.zeros_like(stamps)
    before[1:] = np.where((warps[1:] == warps[:-1])[:, None], stamps[:-1], 0)
    return np.stack(elapsed(*(stamps - before).T), axis=1).astype(np.int64)


def _constant(reader: Reader, rows: Ints) -> NDArray[np.bool_]:
    """Whether the one step of each row depends on its words and costs alone: it has no record, no position in the
    traffic."""
    queued, memory, numbers = reader.facts.queued, reader.facts.memory, rows[:, 0] & 0xFFFF_FFFF
    needs = numbers >= NEED
    numbers = np.where(needs, 0, numbers)
    found: NDArray[np.bool_] = needs | ~queued[numbers] & (~memory[numbers] | (rows[:, 2] & SHARED != 0))
    return found


def _shared_steps(reader: Reader, rows: Ints, spent: Ints, constant: NDArray[np.bool_]) -> list[Step]:
    """The step of each constant row, the same one for equal rows; that of any other row means nothing."""
    words = np.column_stack([rows[:, 0], rows[:, 2:4], spent])
    digests = np.where(constant, (words * _FACTORS).sum(axis=1), 0)
    _, firsts, which = np.unique(digests, return_index=True, return_inverse=True)
    table = np.empty(len(firsts), object)
    for place, at in enumerate(firsts.tolist()):
        table[place] = _steps(reader, rows[at].tolist(), spent[at].tolist(), deque())[0] if constant[at] else None
    steps: list[Step] = table[which].tolist()
    return steps


def _steps(reader: Reader, row: list[int], spent: list[int], queue: deque[list[int]]) -> list[Step]:
    """The steps of a row; the first one has its costs."""
    number, warp = row[0] & 0xFFFF_FFFF, row[0] >> 32
    if number & NEED:
        number -= NEED
        found: Steps = [{"kind": "need", "number": number}]
    else:
        found = _read(reader, number, warp // reader.cluster.per_cta, row, queue)
    costs = [spent, *(_NOTHING for _ in found[1:])]
    return [
        Step(cycles=cycles, slots=slots, inst=number, special=special, half=half, dense=dense, **more)
        for more, (cycles, slots, special, half, dense) in zip(found, costs, strict=False)
    ]


def _read(reader: Reader, number: int, rank: int, row: list[int], queue: deque[list[int]]) -> Steps:
    inst = reader.insts[number]
    if not inst.form.queued:
        return [read_row(reader, inst, rank, row[2], row[3])]
    found: list[dict[str, Any]] = []
    for _ in range(row[2]):
        op = Op(inst, rank, 0, 0, queue.popleft()[2 : 2 + reader.widths[number]])
        read = RECORDS[inst.name]
        if inst.name in TRAFFIC:
            found += read(reader, op)
            continue
        if op.key not in reader.known:
            reader.known[op.key] = read(reader, op)
        found += reader.known[op.key]
    return found
