"""The tensor engine: tcgen05.mma, cp, shift and commit (PTX ISA 9.1 sections 9.7.16.9, 9.7.16.10 and 9.7.16.12).

Operations complete in the order of issue. No warp runs while the queue is emptied, so merging instructions is not
observable: MMAs that accumulate in the same place are collected (`mma.Run`) across the commits between them, and all
commits follow the data.

Numerics: products exact, float32 sums in an order that PTX leaves open (`mma`); f16 accumulators are rounded once an
instruction, s32 accumulators are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, UnsupportedInstruction
from warpwright.vgpu.engines.accumulator import check_columns
from warpwright.vgpu.engines.mma import (
    Form,
    Mma,
    Run,
    descriptor_of,
    form_of_op,
    multiply,
    read_descriptor,
    tensor_reads,
)
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.place import barrier, ctas_of
from warpwright.vgpu.engines.tmem_copy import copy_to_tensor_memory, group_of, shift_down
from warpwright.vgpu.jit.runtime import function

__all__ = ["BATCHED", "ENGINES", "Batch", "complete"]

Runs = dict[tuple[str, int, int, int], Run]
_WORD = 0xFFFFFFFF
_MMA, _COPY, _SHIFT, _COMMIT = range(4)
ENGINES = {
    "tcgen05.mma": _MMA,
    "tcgen05.mma.ws": _MMA,
    "tcgen05.cp": _COPY,
    "tcgen05.shift": _SHIFT,
    "tcgen05.commit": _COMMIT,
}
BATCHED = {name for name, role in ENGINES.items() if role in (_MMA, _COMMIT)}  # instructions that a Batch holds


@dataclass(slots=True)
class Batch:
    """Resolved tensor work: MMA runs, then the commits. By mbarrier: its commit and host address; columns: which of the
    operations the commit is, its instruction and its CTA. ``barriers_at``: where the addresses are."""

    runs: list[Run]
    commits: list[Op]
    barriers: NDArray[np.int64]
    barriers_at: int
    columns: NDArray[np.int64]

    def repeat(self, fabric: Fabric, numbers: NDArray[np.int64]) -> None:
        """Perform the work again, as the operations of these numbers. Raises as `complete`."""
        multiply(fabric, self.runs)
        count = len(self.barriers)
        done = function("mbarrier_update_all")(self.barriers_at, count, 1, 0)
        if done < count:
            rank, offset = divmod(int(self.barriers[done]) - fabric.shared_host, fabric.shared_stride)
            fabric.arrive(self.commits[done], rank, offset)
        if fabric.tells_updates:
            which, insts, ctas = self.columns
            fabric.tell_updates(insts, numbers[which], ctas, self.barriers, 1, 0)


def complete(fabric: Fabric, ops: list[Op]) -> Batch | None:
    """Complete queued tensor operations of all CTAs of a cluster, in the order of the list.

    Returns the work as a Batch, for repetitions of the same operations; None if a run depends on another one's result.
    Raises, through ``fabric.failure``, DescriptorError (descriptors), ProtocolError (tensor memory, CTA pairs,
    mbarriers), MemoryFault (the address of an mbarrier) and UnsupportedInstruction.
    """
    runs: Runs = {}
    commits: list[Op] = []
    started = 0
    for op in ops:
        role = ENGINES[op.inst.name]
        if role == _MMA:
            form = form_of_op(op)
            key = op.inst.opcode, op.rank, op["d"], descriptor_of(op, form)
            run = runs.get(key)
            if run is None or not _extends(run, op, form, runs):
                run, started = _start_run(fabric, op, form, runs), started + 1
                runs[key] = run
            run.ops.append(op)
        elif role == _COMMIT:
            commits.append(op)
        else:
            _perform(fabric, runs)
            (copy_to_tensor_memory if role == _COPY else shift_down)(fabric, op)
    batch = _batch(fabric, list(runs.values()), ops) if started == len(runs) else None
    _perform(fabric, runs)
    for op in commits:
        _commit(fabric, op)
    return batch


def _batch(fabric: Fabric, runs: list[Run], ops: list[Op]) -> Batch:
    commits = [(which, op) for which, op in enumerate(ops) if ENGINES[op.inst.name] == _COMMIT]
    arrivals = [(which, op, *at) for which, op in commits for at in _mbarriers_of(fabric, op)]
    at = [fabric.shared_host + rank * fabric.shared_stride + offset for _, _, rank, offset in arrivals]
    barriers = np.array(at, np.int64)
    columns = np.array([(which, op.inst.index, op.rank) for which, op, _, _ in arrivals], np.int64).reshape(-1, 3).T
    return Batch(runs, [op for _, op, _, _ in arrivals], barriers, barriers.ctypes.data, columns)


def _extends(run: Run, op: Op, form: Form, runs: Runs) -> bool:
    """Whether an mma with the run's opcode, CTA, accumulator and descriptor only adds to the run's sum."""
    if not op["enable_input_d"] or not run.mma.fusable or run.form is not form:
        return False
    return not (
        run.masks
        or op.get("scale_input_d")
        or op.get("zero_columns")
        or any(op.vector("disable_output_lane"))
        or _reads_result(op, form, run.mma, run.base, runs)
    )


def _reads_result(op: Op, form: Form, mma: Mma, base: int, runs: Runs) -> bool:
    """Whether A or scale factors overlap the accumulator of a queued run."""
    reads = tensor_reads(op, form, mma)
    return any(run.overlaps(base, form.group, *columns) for columns in reads for run in runs.values())


def _start_run(fabric: Fabric, op: Op, form: Form, runs: Runs) -> Run:
    """Start a run, after performing queued runs on which it depends."""
    d = op["d"] & _WORD
    mma = _read_mma(fabric, op, form, d)
    ranks = group_of(fabric, op, form.group)
    for rank in ranks:
        check_columns(fabric, op, rank, d, mma.span, mma.lanes)
    overlap = any(run.overlaps(ranks[0], form.group, d & 0xFFFF, mma.span) for run in runs.values())
    if overlap or _reads_result(op, form, mma, ranks[0], runs):
        _perform(fabric, runs)
    masks = op.vector("disable_output_lane")
    return Run(
        form=form,
        mma=mma,
        base=ranks[0],
        d=d,
        accumulate=bool(op["enable_input_d"]),
        factor=2.0 ** -op.get("scale_input_d"),
        masks=masks if any(masks) else [],
    )


def _read_mma(fabric: Fabric, op: Op, form: Form, d: int) -> Mma:
    if form.refusal:
        raise fabric.failure(UnsupportedInstruction, op, form.refusal)
    if op.get("zero_columns"):
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"the virtual GPU does not execute zero-column masks, 0x{op['zero_columns']:x} here; expected 0",
        )
    try:
        return read_descriptor(form, descriptor_of(op, form), d >> 16)
    except DescriptorError as error:
        raise fabric.failure(DescriptorError, op, str(error)) from None


def _perform(fabric: Fabric, runs: Runs) -> None:
    multiply(fabric, runs.values())
    runs.clear()


def _commit(fabric: Fabric, op: Op) -> None:
    for rank, offset in _mbarriers_of(fabric, op):
        fabric.arrive(op, rank, offset)


def _mbarriers_of(fabric: Fabric, op: Op) -> list[tuple[int, int]]:
    """CTA and offset of every mbarrier at which a commit arrives."""
    rank, offset = barrier(fabric, op, op["mbar"])
    return [(each, offset) for each in (ctas_of(fabric, op, op["mask"]) if "mask" in op else (rank,))]
