"""What threads do by themselves: accesses, fences, barriers (PTX ISA 9.1 chapter 8, sections 9.7.9 and 9.7.13)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.memory.access_kinds import WEAK, fence_of
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.order.barriers import Heard, Mbarrier, Named
from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, Clock, Lanes, join
from warpwright.vgpu.checks.watch import Row, Watch, meaning
from warpwright.vgpu.jit.sync import BAR_ARRIVE

__all__: list[str] = []

_WRITES = ("st", "st.mmio", "stmatrix")


@meaning("ld", "ldu", "ld.mmio", "st", "st.mmio", "ldmatrix", "stmatrix")
def access(watch: Watch, row: Row) -> None:
    """Accesses of shared memory, a lane each."""
    inside = row.places >= 0
    count = np.count_nonzero(inside)
    if count < len(inside):
        _outside(watch, row, row.lanes[~inside])
    if not count:
        return None
    whole = count == len(inside)
    lanes, places = (row.lanes, row.places) if whole else (row.lanes[inside], row.places[inside])
    write = watch.insts[row.inst].name in _WRITES
    _note_remote(watch, row, places, lanes)
    seen = watch.shared.lanes(places, lanes, row.a, watch.prints.shift, row.inst, write, watch.held)
    if not seen:
        return _findings(watch, row, lanes, places, write)
    if seen > 1 and not write:
        cells, who = watch.prints.of_lanes(places, lanes, row.a)
        _uninitialised(watch, row, watch.shared.writer[cells] < 0, who)
    return None


def _findings(watch: Watch, row: Row, lanes: Lanes, places: Lanes, write: bool) -> None:
    """An access that something is wrong with: one step after another."""
    cells, who = watch.prints.of_lanes(places, lanes, row.a)
    written = watch.judge(watch.shared, cells, who, row.inst, write)
    ids = watch.accesses.add(lanes, watch.clocks.now(lanes), False, row.inst, lanes).repeat(len(cells) // len(lanes))
    if write:
        for byte in range(0, row.a, BARRIER_BYTES):
            watch.overwritten((places + byte) // BARRIER_BYTES, lanes, row.inst)
        return watch.shared.write(cells, ids)
    if not written:
        _uninitialised(watch, row, watch.shared.writer[cells] < 0, who)
    watch.shared.read(cells, ids)


def _outside(watch: Watch, row: Row, lanes: Lanes) -> None:
    """Accesses of global memory are judged when the launch is over; here it is kept what the lanes know."""
    kind = watch.globals.kinds[row.inst]
    if kind is None:
        return
    watch.contexts.note(watch.at, row.warp, kind.writes)
    if kind.scope > WEAK and watch.globals.synchronises:
        watch.flags.access(watch.at, lanes, kind, watch.insts[row.inst].name != "red")


@meaning("atom", "red")
def atomic(watch: Watch, row: Row) -> None:
    """Atomic operations do not race with one another; with what else is done there they do, as writes and as reads.
    They are remembered among the reads since the last write."""
    inside = (row.places >= 0) & (row.places < watch.prints.shared_bytes)
    lanes = row.lanes[inside]
    if not inside.all():
        _outside(watch, row, row.lanes[~inside])
    if not len(lanes):
        return
    cells, who = watch.prints.of_lanes(row.places[inside], lanes, row.a)
    written = watch.judge(watch.shared, cells, who, row.inst, write=True, atomic=True)
    now = watch.clocks.now(lanes)
    ids = np.repeat(watch.accesses.add(lanes, now, False, row.inst, lanes, atomic=True), len(cells) // len(lanes))
    _note_remote(watch, row, row.places[inside], lanes)
    watch.overwritten(row.places[inside] // BARRIER_BYTES, lanes, row.inst)
    if not written:
        fresh = watch.shared.writer[cells] < 0
        if watch.insts[row.inst]["op"] != "exch":
            _uninitialised(watch, row, fresh, who)
        watch.shared.write(cells[fresh], ids[fresh])
    watch.shared.read(cells, ids)


def _uninitialised(watch: Watch, row: Row, empty: NDArray[np.bool_], who: Lanes) -> None:
    """Elements of a vector that nobody uses may be padding."""
    used = watch.watcher.used(row.inst)
    cells = len(empty) // len(np.unique(who))
    part = np.repeat(used, max(1, cells // len(used)))[: max(cells, len(used))].reshape(cells, -1).any(axis=1)
    for lane in who[empty & np.tile(part, len(empty) // cells)].tolist()[:1]:
        watch.find("uninitialised", (watch.step("reads", row.inst, lane),), "nobody has written there")


def _note_remote(watch: Watch, row: Row, places: Lanes, lanes: Lanes) -> None:
    """Remember the last use that a lane made of another CTA's shared memory."""
    if watch.cluster.ranks == 1:
        return
    ranks = places // watch.cluster.shared_stride
    for i in np.flatnonzero(ranks != row.warp // watch.cluster.per_cta).tolist():
        watch.remote[int(ranks[i]), row.inst, int(lanes[i])] = int(watch.clocks.now(lanes[i : i + 1])[0])


@meaning("fence.proxy.async")
def fence_proxy(watch: Watch, row: Row) -> None:
    if watch.globals.fences and not watch.insts[row.inst]["space"].startswith("shared"):
        watch.contexts.fences += watch.contexts.points(row.lanes)
    own = [watch.columns.get(("copies", lane), lane) for lane in row.lanes.tolist()]
    watch.clocks.fence_proxy(row.lanes, np.array(own, np.int64))


@meaning("fence.mbarrier_init")
def fence_init(watch: Watch, row: Row) -> None:
    """The lanes' initialisations are released, for a relaxed arrival too, and the async proxy sees them."""
    watch.clocks.fence_proxy(row.lanes, row.lanes)
    for lane in row.lanes.tolist():
        clock = watch.clocks.blank()
        clock[:, lane] = watch.clocks.table[SEEN, lane, lane]
        watch.fenced[lane] = clock


@meaning("fence", "membar")
def fence(watch: Watch, row: Row) -> None:
    """What the lanes know is released by a relaxed arrival that follows."""
    for lane in row.lanes.tolist():
        watch.fenced[lane] = watch.clocks.of(lane)
    scope = fence_of(watch.insts[row.inst])
    if scope > WEAK and watch.globals.synchronises:
        watch.flags.fence(row.lanes, scope)
        watch.clocks.release(row.lanes)


@meaning("griddepcontrol.wait")
def wait_grids(watch: Watch, row: Row) -> None:
    """Earlier launches have ended, and what they wrote is visible."""
    if watch.contexts.grid >= 0:
        watch.clocks.reach(row.lanes, watch.contexts.grid, 1)


@meaning("bar.warp.sync")
def warp_sync(watch: Watch, row: Row) -> None:
    if len(row.lanes) > 1:
        watch.clocks.acquire(row.lanes, watch.clocks.release(row.lanes))


@meaning(
    "bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "bar.cta.arrive", "barrier.arrive",
    "barrier.cta.arrive", "bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red",
)  # fmt: skip
def named(watch: Watch, row: Row) -> None:
    rank, live = row.warp // watch.cluster.per_cta, int(watch.live[row.warp]).bit_count()
    if (rank, row.a) not in watch.named:
        watch.named[rank, row.a] = Named(watch.clocks.column())
    held = watch.named[rank, row.a]
    held.count = row.b & 0xFFFF_FFFF
    waits = row.b >> 32 & 0xFF != BAR_ARRIVE
    unknown = held.come(watch.clocks, row.lanes, live, waits, row.inst)
    if unknown is not None:
        first = watch.step("came to the round before", unknown.inst, unknown.lane)
        second = watch.step("comes", row.inst, int(row.lanes[0]))
        watch.find("barrier-count", (first, second), f"barrier {row.a}: nothing orders the second behind the first")
    held.settle(watch.clocks, watch.everyone(rank))


@meaning("barrier.cluster.arrive")
def arrive_cluster(watch: Watch, row: Row) -> None:
    clock: Clock | None = None
    if "relaxed" in watch.insts[row.inst].opcode:
        for lane in row.lanes.tolist():
            clock = join(clock, watch.fenced.get(lane))
    else:
        clock = watch.clocks.release(row.lanes)
    watch.whole.arrive(watch.clocks, row.lanes, clock)


@meaning("barrier.cluster.wait")
def wait_cluster(watch: Watch, row: Row) -> None:
    watch.whole.wait(watch.clocks, row.lanes)


@meaning("mbarrier.init")
def init(watch: Watch, row: Row) -> None:
    for place, lane, count in zip(row.places.tolist(), row.lanes, (row.packed & 0xFFFFF).tolist(), strict=True):
        access = watch.accesses.add(lane, int(watch.clocks.now(np.array([lane]))[0]), False, row.inst, lane)
        watch.overwritten(np.array([place // BARRIER_BYTES]), int(lane), row.inst)
        watch.held[place // BARRIER_BYTES] = True
        watch.mbarriers[place] = Mbarrier(watch.clocks.column(), int(access[0]), count, watch.clocks.lanes)


@meaning("mbarrier.inval")
def inval(watch: Watch, row: Row) -> None:
    for place in row.places.tolist():
        watch.mbarriers.pop(place, None)
        watch.held[place // BARRIER_BYTES] = False


@meaning(
    "mbarrier.arrive", "mbarrier.arrive.expect_tx", "mbarrier.arrive.noComplete", "mbarrier.arrive_drop",
    "mbarrier.arrive_drop.expect_tx", "mbarrier.arrive_drop.noComplete", "mbarrier.expect_tx", "mbarrier.complete_tx",
)  # fmt: skip
def update(watch: Watch, row: Row) -> None:
    """Arrivals and transaction counts of lanes, one barrier after another; arrivals release what the lanes know."""
    inst = watch.insts[row.inst]
    silent = "relaxed" in inst.opcode or not inst.name.startswith("mbarrier.arrive")
    drops = "drop" in inst.name
    _note_remote(watch, row, row.places, row.lanes)
    for place in dict.fromkeys(row.places.tolist()):
        chosen = row.places == place
        lanes, packed = row.lanes[chosen], row.packed[chosen]
        held = _live(watch, place, row.inst, lanes)
        if held is None:
            continue
        apart = not silent and int((packed & 0xFFFFF).sum()) > held.pending  # some come when the phase is over
        clock = None if silent or apart else watch.clocks.release(lanes)
        for lane, word in zip(lanes.tolist(), packed.tolist(), strict=True):
            count = word & 0xFFFFF
            held.expected -= count if drops else 0
            clock = watch.clocks.release(np.array([lane])) if apart else clock
            if count:
                knows = watch.clocks.table[GENERIC, lane]
                watch.counts_for(held, knows, Heard(row.inst, lane, int(knows[lane]) - (not silent)))
            watch.arrive(held, row.inst, lane, clock, count, word >> 20 & 0x3FFFFF, word >> 42 & 0x3FFFFF)
            clock = None


@meaning("mbarrier.test_wait", "mbarrier.test_wait.parity", "mbarrier.try_wait", "mbarrier.try_wait.parity")
def wait(watch: Watch, row: Row) -> None:
    relaxed = "relaxed" in watch.insts[row.inst].opcode
    for place in dict.fromkeys(row.places.tolist()):
        chosen = row.places == place
        lanes, parity = row.lanes[chosen], int(row.packed[chosen][0]) & 1
        held = _live(watch, place, row.inst, lanes)
        if held is not None:
            held.wait(watch.clocks, lanes, row.inst, not relaxed, parity)


def _live(watch: Watch, place: int, inst: int, lanes: Lanes) -> Mbarrier | None:
    """The mbarrier at a place, whose initialisation the lanes must know of."""
    held = watch.mbarriers.get(place)
    if held is not None and not held.known[lanes].all():
        late = watch.accesses.unknown(np.full(len(lanes), held.init), lanes)
        held.known[lanes] = ~late
        for lane in lanes[late].tolist()[:1]:
            watch.clash("mbarrier-init", held.init, inst, lane, "nothing orders the use behind it")
    return held


@meaning("setmaxnreg")
def registers(watch: Watch, row: Row) -> None:
    """A warp's next one comes when the other warps of its warpgroup are known to have come to the last one."""
    watch.op()
    per_cta, lane = watch.cluster.per_cta, int(row.lanes[0])
    first, last = row.warp - row.warp % per_cta % 4, row.warp - row.warp % per_cta + per_cta
    mine = watch.changes.setdefault(row.warp, [])
    for other in range(first, min(first + 4, last)) if mine else ():
        theirs = watch.changes.get(other, [])[len(mine) - 1 : len(mine)]
        if watch.accesses.unknown(np.array(theirs, np.int64), lane).any():
            text = f"warp {other % per_cta} need not have come to the first"
            watch.clash("setmaxnreg", theirs[0], row.inst, lane, text)
    now = watch.clocks.now(row.lanes[:1])
    mine.append(int(watch.accesses.add(row.lanes[:1], now, False, row.inst, lane)[0]))
    watch.clocks.release(row.lanes)
