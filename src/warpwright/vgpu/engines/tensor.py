"""The tensor engine: tcgen05.mma, cp, shift and commit (PTX ISA 9.1 sections 9.7.16.9, 9.7.16.10 and 9.7.16.12).

Operations complete in the order of issue. Since no warp runs while the queue is emptied, nothing can tell a product of
many instructions from the instructions one by one: mma that accumulate in the same place are collected (`mma.Run`)
across the commits between them, which follow after all data.

Numerics: products exact, sums in float32 in the order of NumPy's matrix product, which PTX leaves open; accumulators
of f16 are rounded once an instruction, those of s32 are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, UnsupportedInstruction
from warpwright.ptx import nodes
from warpwright.vgpu.engines.accumulator import check_columns
from warpwright.vgpu.engines.mma import A_COLUMNS, Form, Product, Run, form_of, multiply, product_of
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.place import barrier, selected
from warpwright.vgpu.engines.tmem_copy import copy_to_tensor_memory, group_of, shift_down
from warpwright.vgpu.jit.runtime import function

__all__ = ["Batch", "complete"]

Runs = dict[tuple[str, int, int, int], Run]
_WORD = 0xFFFFFFFF
_MMA, _COPY, _SHIFT, _COMMIT = _ROLES = "mma", "cp", "shift", "commit"


@dataclass(slots=True)
class Batch:
    """Tensor work understood: products, then the mbarriers of the commits, as host addresses, one record a barrier."""

    runs: list[Run]
    commits: list[Op]
    barriers: NDArray[np.int64]

    def repeat(self, fabric: Fabric) -> None:
        """Do it, for the first time or again. Raises as `complete`."""
        for run in self.runs:
            multiply(fabric, run)
        count = len(self.barriers)
        done = function("mbarrier_update_all")(self.barriers.ctypes.data, count, 1, 0)
        if done < count:
            rank, offset = divmod(int(self.barriers[done]) - fabric.shared_host, fabric.shared_stride)
            fabric.arrive(self.commits[done], rank, offset)


def complete(fabric: Fabric, ops: list[Op]) -> Batch | None:
    """Complete queued tensor operations of all CTAs of a cluster, in the order of the list.

    Gives the same work as a Batch, for when the same operations come again; None when their products depend on each
    other. Raises what ``fabric.failure`` makes of DescriptorError (descriptors), ProtocolError (tensor memory, CTA
    pairs, mbarriers), MemoryFault (the place of an mbarrier) and UnsupportedInstruction.
    """
    runs: Runs = {}
    commits: list[Op] = []
    opened = 0
    for op in ops:
        role = _role(op.inst.opcode)
        if role is _MMA:
            words = op.words
            run = runs.get((op.inst.opcode, op.rank, words[0], words[3]))
            if run is None or not _continues(run, op, words, runs):
                run, opened = _open(fabric, op, runs), opened + 1
            run.ops.append(op)
        elif role is _COMMIT:
            commits.append(op)
        else:
            _perform(fabric, runs)
            (copy_to_tensor_memory if role is _COPY else shift_down)(fabric, op)
    batch = _batch(fabric, list(runs.values()), commits) if opened == len(runs) else None
    _perform(fabric, runs)
    for op in commits:
        _commit(fabric, op)
    return batch


def _batch(fabric: Fabric, runs: list[Run], commits: list[Op]) -> Batch:
    arrivals = [(op, rank, offset) for op in commits for rank, offset in _signals(fabric, op)]
    places = [fabric.shared_host + rank * fabric.shared_stride + offset for _, rank, offset in arrivals]
    return Batch(runs, [op for op, _, _ in arrivals], np.array(places, np.int64))


@cache
def _role(opcode: str) -> str:
    """An opcode without modifiers, and without the .ws of an mma: one of the four constants."""
    return next(role for role in _ROLES if role == opcode.split(".")[1])


def _continues(run: Run, op: Op, words: list[int], runs: Runs) -> bool:
    """Whether an mma of the run's opcode, CTA, accumulator and descriptor only adds to what the run adds up."""
    form = run.form
    if len(words) != form.words or not words[form.enable] or not run.product.fusable:
        return False
    if (type(op.inst.operands[1]) is nodes.Address) is not form.tmem_a:
        return False
    return form.plain or not (
        run.masks
        or (form.scale and words[form.scale])
        or any(words[form.masks])
        or (form.tmem_a and _reads_result(words[1], run.base, form, runs))
    )


def _reads_result(address: int, base: int, form: Form, runs: Runs) -> bool:
    """Whether A lies where a run of the queue puts its accumulator."""
    return any(run.overlaps(base, form.group, address & 0xFFFF, A_COLUMNS) for run in runs.values())


def _open(fabric: Fabric, op: Op, runs: Runs) -> Run:
    """A new run, after the queued ones that it must follow."""
    words, d = op.words, op.words[0] & _WORD
    form = form_of(op.inst.opcode, len(words), type(op.inst.operands[1]) is nodes.Address)
    product = _product(fabric, op, form, d)
    ranks = group_of(fabric, op, form.group)
    for rank in ranks:
        check_columns(fabric, op, rank, d, product.span, product.lanes)
    overlap = any(run.overlaps(ranks[0], form.group, d & 0xFFFF, product.span) for run in runs.values())
    if overlap or (form.tmem_a and _reads_result(words[1], ranks[0], form, runs)):
        _perform(fabric, runs)
    run = Run(
        form=form,
        product=product,
        base=ranks[0],
        d=d,
        accumulate=bool(words[form.enable]),
        factor=2.0 ** -words[form.scale] if form.scale else 1.0,
        masks=words[form.masks] if any(words[form.masks]) else [],
    )
    runs[op.inst.opcode, op.rank, words[0], words[3]] = run
    return run


def _product(fabric: Fabric, op: Op, form: Form, d: int) -> Product:
    if form.refused:
        raise fabric.failure(UnsupportedInstruction, op, form.refused)
    if form.zero_columns and op.words[form.zero_columns]:
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"the virtual GPU does not execute zero-column masks, 0x{op.words[form.zero_columns]:x} here; expected 0",
        )
    try:
        return product_of(form.kind, form.group, form.ws, form.tmem_a, op.words[3] & _WORD, d >> 16)
    except DescriptorError as error:
        raise fabric.failure(DescriptorError, op, str(error)) from None


def _perform(fabric: Fabric, runs: Runs) -> None:
    for run in runs.values():
        multiply(fabric, run)
    runs.clear()


def _commit(fabric: Fabric, op: Op) -> None:
    for rank, offset in _signals(fabric, op):
        fabric.arrive(op, rank, offset)


def _signals(fabric: Fabric, op: Op) -> list[tuple[int, int]]:
    """CTA and offset of every mbarrier that a commit arrives at."""
    rank, offset = barrier(fabric, op, op.words[0])
    return [(each, offset) for each in (selected(fabric, op, op.words[1]) if op.inst["multicast"] else (rank,))]
