"""Tensor cores: tcgen05 and tensor memory (PTX ISA 9.1 section 9.7.16), wgmma (9.7.15)."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.knowledge import LOADS, MULTIPLIES, STORES, WAIT_LOADS, WAIT_STORES, Knowledge, meaning
from warpwright.vgpu.checks.lifetime import check_entry
from warpwright.vgpu.checks.meanings import registers
from warpwright.vgpu.checks.memory.accesses import ENGINE, WRITE, Acquired, Repeated, Touch
from warpwright.vgpu.checks.memory.cells import Cells, united
from warpwright.vgpu.checks.memory.footprints import COPIES, SCALED, TensorCells, TensorGroup
from warpwright.vgpu.checks.missing import UNWRITTEN
from warpwright.vgpu.checks.order.clocks import GENERIC, join
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.engines.op import Op

__all__: list[str] = []


@meaning("tcgen05.mma", "tcgen05.mma.ws", "tcgen05.cp", "tcgen05.shift", compiled=MULTIPLIES)
def tensor_op(known: Knowledge, row: Row) -> None:
    """Operations of a pipeline complete in order, so a count says which of them are over."""
    for group in _next_groups(known, row.a):
        (rank, pipe, lane), count = group.where, len(group.ops)
        number = known.pipes[rank][pipe] = known.pipes[rank][pipe] + count
        known.issued_ops.setdefault(lane, {})[pipe] = number
        if not (known.is_repetition(row) and lane in known.last_mma):
            known.last_mma[lane] = known.clocks.of(lane)
        quiet = not (group.begins or known.frees)
        access = group.accesses.enter(number, known.acquired[row.warp]) if quiet else -1
        if access < 0:
            for done, op in enumerate(group.ops, number - count + 1):
                _judge_tensor_op(known, op, known.footprints.of_tensor_op(op), lane, done)
        elif count > 1:
            known.accesses.parts[access] = group.reads


def _next_groups(known: Knowledge, count: int) -> list[TensorGroup]:
    """Returns the next operations in groups of those that are stored as one access: MMAs that add to the same sums."""
    records = known.next_records(count)
    groups = known.tensor_ops.get(records)
    if groups is None:
        parts: dict[tuple[object, ...], list[Op]] = {}
        apart = 0  # a group does not reach over another operation
        for op in [known.op() for _ in range(count)]:
            prints = known.footprints.of_tensor_op(op)
            alone = "idesc" not in op or prints.begins or bool(prints.tensor_reads)
            parts.setdefault((apart + alone, op.rank, prints.pipe, known.lane(op)), []).append(op)
            apart += 2 * alone
        groups = known.tensor_ops[records] = [_group(known, ops) for ops in parts.values()]
    else:
        known.issued += count
    return groups


def _group(known: Knowledge, ops: list[Op]) -> TensorGroup:
    """Returns a group with its accesses."""
    op, prints, lane = ops[-1], known.footprints.of_tensor_op(ops[0]), known.lane(ops[0])
    known.pipes.setdefault(op.rank, {}).setdefault(prints.pipe, 0)
    adds, pipes = "idesc" in op, _ordered_after(known, op, prints.pipe)
    reads = [(each.inst.index, cells) for each in ops for cells in known.footprints.of_tensor_op(each).shared_reads]
    shared = united([cells for _, cells in reads])
    touches: list[Touch] = [(known.shared, cells, ENGINE, True) for cells in shared]
    touches += [(known.tensor, cells, 0, True) for cells in prints.tensor_reads]
    touches += [(known.tensor, cells, WRITE, adds) for cells in prints.accumulators]
    column, pipe = known.column(prints.pipe, op.rank), pipes[0] if pipes else -1
    accesses = Repeated(column, op.inst.index, lane, pipe, touches)
    return TensorGroup(ops, (op.rank, prints.pipe, lane), prints.begins, accesses, reads)


def _judge_tensor_op(known: Knowledge, op: Op, prints: TensorCells, lane: int, number: int) -> None:
    inst, after = op.inst.index, _ordered_after(known, op, prints.pipe)
    access = known.accesses.one(known.column(prints.pipe, op.rank), number, True, inst, lane)
    for cells in prints.shared_reads:
        _operand(known, cells, lane, inst, access)
    for cells in prints.tensor_reads:
        if not _touch(known, cells, lane, inst, access, False, after):
            _unwritten(known, inst, lane, "reads")
    adds = not prints.begins and "idesc" in op
    for cells in prints.accumulators:
        if prints.begins:
            _lost(known, cells, op, prints.pipe)
        if not _touch(known, cells, lane, inst, access, True, after) and adds:
            _unwritten(known, inst, lane, "adds to")


def _ordered_after(known: Knowledge, op: Op, pipe: str) -> tuple[int, ...]:
    """Returns the columns of the pipelines that an operation is ordered after without synchronisation (PTX ISA 9.1
    section 9.7.16.6): MMAs after those of their pipeline, copies and shifts; shifts after all; copies of 4x256b after
    shifts, others after nothing.

    Copies are ordered after MMAs with block scales, and after the copies before these, too. The section does not list
    it, but CUTLASS and DeepGEMM copy the next scale factors over those of the MMA before without waiting for it."""
    if op.inst.name == "tcgen05.cp":
        scaled = [each for each in known.pipes[op.rank] if each.startswith(SCALED)]
        pipes = [COPIES, *scaled] if scaled or "4x256b" in op.inst.opcode else []
    else:
        pipes = [*known.pipes[op.rank]] if op.inst.name == "tcgen05.shift" else [pipe, COPIES]
    return tuple(known.column(each, op.rank) for each in pipes)


def _lost(known: Knowledge, cells: Cells, op: Op, pipe: str) -> None:
    """Find an accumulator that is overwritten before a commit: no thread can have read its sums."""
    rows, writers = known.accesses.rows, known.tensor.writer[cells.numbers]
    column, since = known.column(pipe, op.rank), known.committed.get(op.rank, {}).get(pipe, 0)
    for access in np.unique(writers[writers >= 0]).tolist():
        if rows["column"][access] == column and rows["value"][access] > since:
            known.find_pair("product-lost", access, op.inst.index, known.lane(op), "no tcgen05.commit is between them")
            return


def _touch(
    known: Knowledge, cells: Cells, lane: int, inst: int, access: int, write: bool, pipes: tuple[int, ...] = ()
) -> bool:
    """Judge and store an access of tensor memory: other threads' accesses need tcgen05.fence on both sides."""
    return known.touch(known.tensor, cells, lane, inst, access, write, pipes=pipes, acquired=known.acquired[lane // 32])


def _operand(known: Knowledge, cells: Cells, lane: int, inst: int, access: int) -> None:
    if not known.touch(known.shared, cells, lane, inst, access, write=False, engine=True):
        _unwritten(known, inst, lane, "reads")


def _unwritten(known: Knowledge, inst: int, lane: int, what: str) -> None:
    first = "let enable-input-d be false for the first product of a sum" if what == "adds to" else ""
    known.find("uninitialised", (known.step(what, inst, lane),), UNWRITTEN, "", first)


@meaning("tcgen05.alloc")
def alloc(known: Knowledge, row: Row) -> None:
    """Writes an address to shared memory."""
    op, lanes = known.op(), row.lanes[:1]
    cells = known.footprints.span(*known.footprints.place(op, "dst"), 4)
    ids = known.accesses.add(lanes, known.clocks.now(lanes), False, row.inst, lanes)
    known.touch(known.shared, cells, int(lanes[0]), row.inst, int(ids[0]), write=True)
    known.allocs[op.rank] = int(ids[0])


@meaning("tcgen05.dealloc")
def dealloc(known: Knowledge, row: Row) -> None:
    """Ends the life of columns: a use of them must be over, or come later; their contents are gone. In a pair, the
    other CTA's tcgen05.alloc must be known to be over: that this CTA's is over does not imply it."""
    op, lane = known.op(), int(row.lanes[0])
    cells = known.footprints.columns(op.rank, op["taddr"] & 0xFFFF, op["ncols"] & 0xFFFF_FFFF)
    now = int(known.clocks.now(row.lanes[:1])[0])
    known.frees.append(known.accesses.one(lane, now, False, row.inst, lane))
    known.touch(known.tensor, cells, lane, row.inst, known.frees[-1], write=True)
    other = known.allocs.get(op.rank ^ 1) if op.inst["group"].endswith("2") else None
    if other is not None and known.accesses.unknown(np.array([other]), lane).any():
        known.find_pair(
            "tmem-pair", other, row.inst, lane, "no barrier of the cluster orders the second after the first"
        )


@meaning("tcgen05.commit")
def commit(known: Knowledge, row: Row) -> None:
    """The mbarrier learns that all operations of the thread are over, and what was known when it issued the last (PTX
    ISA 9.1 section 9.7.16.12.1). An operation of another thread is covered only if a later one of its pipeline is."""
    for _ in range(row.a):
        op = known.op()
        lane = known.lane(op)
        counts = known.issued_ops.get(lane, {})
        known.committed.setdefault(op.rank, {}).update(counts)
        clock = known.clocks.widened(known.last_mma.get(lane))
        for pipe, number in counts.items():
            clock[:, known.column(pipe, op.rank)] = number
        knows = known.clocks.of(lane)[GENERIC]  # a wait that follows is not part of it
        for place in known.footprints.barriers(op):
            check_entry(known, lane, place // known.cluster.shared_stride, row.inst)
            known.commits[op.number, place] = clock, lane, knows


@meaning("tcgen05.ld", compiled=LOADS)
@meaning("tcgen05.st", compiled=STORES)
def move(known: Knowledge, row: Row) -> None:
    """A warp loads or stores its quarter of the lanes; that is over when the warp has waited for it."""
    inst = known.insts[row.inst]
    store, lane = inst.name == "tcgen05.st", int(row.lanes[0])
    cells = known.footprints.quarter(inst, row.warp, row.b)
    column = known.column("tensor stores" if store else "tensor loads", row.warp)
    number = int(known.moves[int(store), row.warp, 1]) + 1
    known.moves[int(store), row.warp] = column, number
    access = known.accesses.one(column, number, True, row.inst, lane)
    written = _touch(known, cells, lane, row.inst, access, store)
    if not store:
        known.loads[row.warp, row.inst] = number
        if not written and row.inst in known.facts.doubted:
            registers.lose(known, row, row.lanes.tolist())
        elif not written:
            _unwritten(known, row.inst, lane, "reads")
            known.doubts.add(row.inst)


@meaning("tcgen05.wait::ld", compiled=WAIT_LOADS)
@meaning("tcgen05.wait::st", compiled=WAIT_STORES)
def wait_move(known: Knowledge, row: Row) -> None:
    column, number = known.moves[int(known.insts[row.inst].name.endswith("st")), row.warp].tolist()
    if number:
        known.clocks.reach(row.lanes, column, number)


@meaning("tcgen05.fence::before_thread_sync")
def fence_before(known: Knowledge, row: Row) -> None:
    """Let the next barrier or arrival of the thread release what the thread knows of tensor memory."""
    known.clocks.pass_on(row.lanes, known.tensor_columns())


@meaning("tcgen05.fence::after_thread_sync")
def fence_after(known: Knowledge, row: Row) -> None:
    """The thread's next operations on tensor memory are ordered after what barriers and waits have passed on."""
    acquired = Acquired(known.clocks.seen(row.lanes))
    known.acquired[row.warp] = acquired
    known.acquired_at[row.warp] = acquired.where, len(acquired.values)


@meaning("wgmma.mma_async")
def wgmma(known: Knowledge, row: Row) -> None:
    """One warp issues an instruction of its warpgroup. Each of the four issues must be ordered; the four count as one
    read; a warp that has waited for the instruction knows that all four warps had issued it."""
    first = row.warp - row.warp % known.cluster.per_cta % 4
    number = known.count("wgmma", row.warp)
    lane, rank = int(row.lanes[0]), row.warp // known.cluster.per_cta
    group = known.counts.get(("groups", row.warp), 0) + 1
    registers.issue(known, row, group)
    if not known.is_repetition(row):
        _begin_group(known, row, first, group)
    new = known.counts.get(("performed", first), 0) < number
    access = -1
    if new:
        known.counts["performed", first] = number
        access = known.accesses.one(known.column("wgmma", first), group, True, row.inst, lane)
    for cells in known.footprints.of_wgmma(known.insts[row.inst], rank, row.a, row.b):
        if new:
            _operand(known, cells, lane, row.inst, access)
        else:
            known.touch(known.shared, cells, lane, row.inst, access, write=False, engine=True)


def _begin_group(known: Knowledge, row: Row, first: int, group: int) -> None:
    """A warp begins a group: a warp that waits for the group learns what this warp knows."""
    clock = known.clocks.release(row.lanes)
    known.wgmma_groups[first, group] = join(known.wgmma_groups.get((first, group)), clock)
    for lanes, over in known.wgmma_waits.get(first, ()):
        if group <= over:  # a warp that waits for what the others have yet to issue
            known.clocks.acquire(lanes, clock)


@meaning("wgmma.fence")
def fence(known: Knowledge, row: Row) -> None:
    registers.fence(known, row.warp)


@meaning("wgmma.commit_group")
def commit_group(known: Knowledge, row: Row) -> None:
    known.count("groups", row.warp)


@meaning("wgmma.wait_group")
def wait_group(known: Knowledge, row: Row) -> None:
    first = row.warp - row.warp % known.cluster.per_cta % 4
    over = known.counts.get(("groups", row.warp), 0) - row.a
    registers.wait(known, row.warp, over)
    if over > 0:
        known.clocks.reach(row.lanes, known.column("wgmma", first), over)
    others = [entry for entry in known.wgmma_waits.get(first, []) if entry[0][0] != row.lanes[0]]
    known.wgmma_waits[first] = [*others, (row.lanes, over)]
    clock = known.wgmma_groups.get((first, over))
    if clock is not None:
        known.clocks.acquire(row.lanes, clock)
