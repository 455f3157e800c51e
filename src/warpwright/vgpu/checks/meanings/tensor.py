"""Tensor cores: tcgen05 and tensor memory (PTX ISA 9.1 section 9.7.16), wgmma (9.7.15)."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.memory.accesses import Cells
from warpwright.vgpu.checks.memory.footprints import COPIES
from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, join
from warpwright.vgpu.checks.watch import Row, Watch, meaning
from warpwright.vgpu.engines.op import Op

__all__: list[str] = []


@meaning("tcgen05.mma", "tcgen05.mma.ws", "tcgen05.cp", "tcgen05.shift")
def product(watch: Watch, row: Row) -> None:
    """Operations of a pipeline come one after the other, so what is over is told by how many are."""
    for _ in range(row.a):
        op = watch.op()
        prints, lane = watch.prints.of_product(op), watch.lane(op)
        counts = watch.pipes.setdefault(op.rank, {})
        number = counts[prints.pipe] = counts.get(prints.pipe, 0) + 1
        behind = _behind(watch, op, prints.pipe)
        if not (watch.again(row) and watch.behind[op.rank][0] == lane):
            watch.behind[op.rank] = lane, watch.clocks.of(lane)
        access = watch.accesses.one(behind[0], number, True, row.inst, lane)
        for cells in prints.operands:
            _operand(watch, cells, lane, row.inst, access)
        for cells in prints.tensor_reads:
            if not _judge(watch, cells, lane, row.inst, False, behind):
                _unwritten(watch, row.inst, lane, "reads")
            watch.tensor.read(cells, access)
        adds = not prints.begins and op.inst.name.startswith("tcgen05.mma")
        for cells in prints.accumulators:
            if prints.begins:
                _lost(watch, cells, op, prints.pipe)
            if not _judge(watch, cells, lane, row.inst, True, behind) and adds:
                _unwritten(watch, row.inst, lane, "adds to")
            watch.tensor.write(cells, access)


def _behind(watch: Watch, op: Op, pipe: str) -> tuple[int, ...]:
    """Columns of the pipelines that an operation comes behind by itself, its own first (PTX ISA 9.1 section
    9.7.16.6): products behind copies and shifts, shifts behind products."""
    own = watch.column(pipe, op.rank)
    others = watch.pipes[op.rank] if op.inst.name == "tcgen05.shift" else (COPIES,) if pipe != COPIES else ()
    return own, *(watch.column(other, op.rank) for other in others)


def _lost(watch: Watch, cells: Cells, op: Op, pipe: str) -> None:
    """A sum begins where another is that no commit has covered: nobody can have read that one."""
    rows, writers = watch.accesses.rows, watch.tensor.writer[cells]
    column, since = watch.column(pipe, op.rank), watch.committed.get(op.rank, {}).get(pipe, 0)
    for access in np.unique(writers[writers >= 0]).tolist():
        if rows["column"][access] == column and rows["value"][access] > since:
            watch.clash("product-lost", access, op.inst.index, watch.lane(op), "no tcgen05.commit is between them")
            return


def _judge(watch: Watch, cells: Cells, lane: int, inst: int, write: bool, pipes: tuple[int, ...] = ()) -> bool:
    """Order in tensor memory: known, and for other threads passed on and taken up with tcgen05.fence."""
    return watch.judge(watch.tensor, cells, lane, inst, write, pipes=pipes, taken=watch.taken[lane // 32])


def _operand(watch: Watch, cells: Cells, lane: int, inst: int, access: int) -> None:
    if not watch.judge(watch.shared, cells, lane, inst, write=False, engine=True):
        _unwritten(watch, inst, lane, "reads")
    watch.shared.read(cells, access)


def _unwritten(watch: Watch, inst: int, lane: int, what: str) -> None:
    watch.find("uninitialised", (watch.step(what, inst, lane),), "nobody has written there")


@meaning("tcgen05.alloc")
def alloc(watch: Watch, row: Row) -> None:
    """Writes an address to shared memory."""
    op, lanes = watch.op(), row.lanes[:1]
    cells = watch.prints.span(*watch.prints.place(op, 0), 4)
    ids = watch.accesses.add(lanes, watch.clocks.now(lanes), False, row.inst, lanes)
    watch.judge(watch.shared, cells, int(lanes[0]), row.inst, write=True)
    watch.shared.write(cells, int(ids[0]))
    watch.allocated[op.rank] = int(ids[0])


@meaning("tcgen05.dealloc")
def dealloc(watch: Watch, row: Row) -> None:
    """Ends the life of columns: nobody may use them any more, and what they held is gone. Of a pair the other CTA must
    be known to have come to its tcgen05.alloc: that this CTA's is over does not say so."""
    op, lane = watch.op(), int(row.lanes[0])
    cells = watch.prints.columns(op.rank, op.words[0] & 0xFFFF, op.words[1] & 0xFFFF_FFFF)
    watch.judge(watch.tensor, cells, lane, row.inst, write=True)
    watch.tensor.write(cells, -1)
    other = watch.allocated.get(op.rank ^ 1) if op.inst["group"].endswith("2") else None
    if other is not None and watch.accesses.unknown(np.array([other]), lane).any():
        watch.clash("tmem-pair", other, row.inst, lane, "nothing orders them")


@meaning("tcgen05.commit")
def commit(watch: Watch, row: Row) -> None:
    """The mbarrier learns that all operations so far are over, and what was over before they began."""
    for _ in range(row.a):
        op = watch.op()
        counts = watch.committed[op.rank] = dict(watch.pipes.get(op.rank, {}))
        _, behind = watch.behind.get(op.rank, (0, None))
        clock = watch.clocks.blank()
        if behind is not None:
            clock[:, : behind.shape[1]] = behind
        for pipe, number in counts.items():
            clock[:, watch.column(pipe, op.rank)] = number
        lane = watch.lane(op)
        knows = watch.clocks.table[GENERIC, lane].copy()
        for rank, offset in watch.prints.signals(op):
            watch.commits[op.number, rank * watch.cluster.shared_stride + offset] = clock, lane, knows


@meaning("tcgen05.ld", "tcgen05.st")
def move(watch: Watch, row: Row) -> None:
    """A warp's load or store of its quarter of the lanes; over when the warp has waited for it."""
    inst = watch.insts[row.inst]
    store, lane = inst.name == "tcgen05.st", int(row.lanes[0])
    kind = "tensor stores" if store else "tensor loads"
    cells = watch.prints.quarter(inst, row.warp, row.b)
    written = _judge(watch, cells, lane, row.inst, store)
    access = watch.accesses.one(watch.column(kind, row.warp), watch.count(kind, row.warp), True, row.inst, lane)
    if store:
        return watch.tensor.write(cells, access)
    if not written:
        _unwritten(watch, row.inst, lane, "reads")
    return watch.tensor.read(cells, access)


@meaning("tcgen05.wait::ld", "tcgen05.wait::st")
def wait_move(watch: Watch, row: Row) -> None:
    kind = "tensor stores" if watch.insts[row.inst].name.endswith("st") else "tensor loads"
    count = watch.counts.get((kind, row.warp), 0)
    if count:
        watch.clocks.reach(row.lanes, watch.column(kind, row.warp), count)


@meaning("tcgen05.fence::before_thread_sync")
def fence_before(watch: Watch, row: Row) -> None:
    """What the thread knows of tensor memory is passed on by the next barrier or arrive."""
    watch.clocks.pass_on(row.lanes, watch.tensor_columns())


@meaning("tcgen05.fence::after_thread_sync")
def fence_after(watch: Watch, row: Row) -> None:
    """What barriers and waits have passed on is taken up for the thread's next operations on tensor memory."""
    watch.taken[row.warp] = watch.clocks.table[SEEN, row.lanes, : watch.clocks.used].max(axis=0)


@meaning("wgmma.mma_async")
def wgmma(watch: Watch, row: Row) -> None:
    """One warp's issue of an instruction of its warpgroup. Every warp must be allowed to begin, and all read as one;
    who has waited for it knows that all four warps had come so far."""
    first = row.warp - row.warp % watch.cluster.per_cta % 4
    number = watch.count("wgmma", row.warp)
    lane, rank = int(row.lanes[0]), row.warp // watch.cluster.per_cta
    group = watch.counts.get(("groups", row.warp), 0) + 1
    watch.registers.issue(watch, row, group)
    if not watch.again(row):
        _come(watch, row, first, group)
    new = watch.counts.get(("performed", first), 0) < number
    access = -1
    if new:
        watch.counts["performed", first] = number
        access = watch.accesses.one(watch.column("wgmma", first), group, True, row.inst, lane)
    for cells in watch.prints.of_wgmma(watch.insts[row.inst], rank, row.a, row.b):
        if new:
            _operand(watch, cells, lane, row.inst, access)
        else:
            watch.judge(watch.shared, cells, lane, row.inst, write=False, engine=True)


def _come(watch: Watch, row: Row, first: int, group: int) -> None:
    """A warp begins a group: who waits for it learns what the warp knows."""
    clock = watch.clocks.release(row.lanes)
    watch.groups[first, group] = join(watch.groups.get((first, group)), clock)
    for lanes, over in watch.waiting.get(first, ()):
        if group <= over:  # a warp that waits for what the others have yet to issue
            watch.clocks.acquire(lanes, clock)


@meaning("wgmma.fence")
def fence(watch: Watch, row: Row) -> None:
    watch.registers.fence(row.warp)


@meaning("wgmma.commit_group")
def commit_group(watch: Watch, row: Row) -> None:
    watch.count("groups", row.warp)


@meaning("wgmma.wait_group")
def wait_group(watch: Watch, row: Row) -> None:
    first = row.warp - row.warp % watch.cluster.per_cta % 4
    over = watch.counts.get(("groups", row.warp), 0) - row.a
    watch.registers.wait(row.warp, over)
    if over > 0:
        watch.clocks.reach(row.lanes, watch.column("wgmma", first), over)
    held = [entry for entry in watch.waiting.get(first, []) if entry[0][0] != row.lanes[0]]
    watch.waiting[first] = [*held, (row.lanes, over)]
    clock = watch.groups.get((first, over))
    if clock is not None:
        watch.clocks.acquire(row.lanes, clock)
