"""The program of a cluster from its rows: the steps of each warp, where rows that repeat share their steps."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.jit.costs import NEED, elapsed, is_memory
from warpwright.vgpu.program.operation import Op
from warpwright.vgpu.timing.steps import RECORDS, SHARED, TRAFFIC, Program, Reader, Step, Steps, read_row

if TYPE_CHECKING:
    from warpwright.vgpu.machine.state import ClusterState

__all__ = ["program_of"]

Ints = NDArray[np.int64]


def program_of(cluster: ClusterState, rows: Ints, records: Ints, keys: Ints) -> Program:
    """The steps of a cluster, from its rows, those of each warp in the order of execution, and their records."""
    reader = Reader(cluster, keys)
    queue = deque(records.tolist())
    warps: list[list[Step]] = [[] for _ in range(cluster.count)]
    known: dict[tuple[int, ...], list[Step]] = {}  # by the words and the costs of a row
    for row, *spent in zip(rows.tolist(), *_elapsed(rows), strict=True):
        key = row[0], row[2], row[3], *spent
        steps = known.get(key)
        if steps is None:
            steps = _steps(reader, row, spent, queue)
            if _is_constant(reader, row):
                known[key] = steps
        warps[row[0] >> 32] += steps
    nbytes, copies = np.array(reader.nbytes, np.int64), np.array(reader.copies, np.int64)
    reads, again = np.array(reader.reads, bool), np.array(reader.again, bool)
    return Program(warps, nbytes, reads, again, copies, reader.columns, reader.pairs)


def _elapsed(rows: Ints) -> list[list[int]]:
    """Cycles, issue slots and special-function cycles of each row since the row before it of its warp."""
    warps, stamps = rows[:, 0] >> 32, rows[:, 1].astype(np.uint64)
    before = np.zeros_like(stamps)
    before[1:] = np.where(warps[1:] == warps[:-1], stamps[:-1], 0)
    return [each.tolist() for each in elapsed(stamps, before)]


def _is_constant(reader: Reader, row: list[int]) -> bool:
    """Whether the steps of a row depend on its words and costs alone: it has no record, no position in the traffic."""
    number = row[0] & 0xFFFF_FFFF
    if number & NEED:
        return True
    inst = reader.insts[number]
    return not inst.form.queued and (not is_memory(inst) or bool(row[2] & SHARED))


def _steps(reader: Reader, row: list[int], spent: list[int], queue: deque[list[int]]) -> list[Step]:
    """The steps of a row; the first one has its costs."""
    number, warp = row[0] & 0xFFFF_FFFF, row[0] >> 32
    if number & NEED:
        number -= NEED
        found: Steps = [{"kind": "need", "number": number}]
    else:
        found = _read(reader, number, warp // reader.cluster.per_cta, row, queue)
    costs = [spent, *([0, 0, 0] for _ in found[1:])]
    return [
        Step(cycles=cycles, slots=slots, inst=number, special=special, **more)
        for more, (cycles, slots, special) in zip(found, costs, strict=False)
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
