"""Instructions of threads: accesses, fences, barriers (PTX ISA 9.1 chapter 8, sections 9.7.9 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.knowledge import BAR, PROXY, READ, SYNC, WRITTEN, Knowledge, meaning
from warpwright.vgpu.checks.lifetime import check_entry
from warpwright.vgpu.checks.meanings import registers as register_state
from warpwright.vgpu.checks.meanings.strong import note_locks, strong_access, synchronise
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.missing import BETWEEN, EQUAL_REGISTERS, UNFENCED, UNWRITTEN
from warpwright.vgpu.checks.order.access_kinds import WEAK, fence_of, is_strong
from warpwright.vgpu.checks.order.barriers import Arrival, Mbarrier
from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, Clock, Lanes, join, mask_of, slice_of
from warpwright.vgpu.checks.row import BITS, Row
from warpwright.vgpu.checks.rules import EVIDENCE
from warpwright.vgpu.jit.sync import BAR_ARRIVE
from warpwright.vgpu.program.program import Inst

__all__: list[str] = []


@meaning("ld", "ldu", "ld.mmio", "ldmatrix", "wmma.load", compiled=READ)
@meaning("st", "st.mmio", "stmatrix", "wmma.store", compiled=WRITTEN)
def access(known: Knowledge, row: Row) -> None:
    """Accesses of shared memory, one a lane."""
    inside = row.places >= 0
    count = np.count_nonzero(inside)
    if count < len(inside):
        _outside(known, row, ~inside)
    if not count:
        return
    whole = count == len(inside)
    lanes, places = (row.lanes, row.places) if whole else (row.lanes[inside], row.places[inside])
    if known.facts.strong[row.inst]:
        _strong(known, row, lanes, places)
        return
    write = known.insts[row.inst].traits.access == "write"
    if not write:
        known.loaded.add(row.warp)
    _note_remote(known, row, places, lanes)
    known.storing = _values(known, row, inside)
    seen = known.shared.lanes(row.table, row.warp, row.a, row.inst, write)
    if not seen:
        _findings(known, row, lanes, places, write)
    elif seen > 1 and not write:
        cells, who = known.footprints.of_lanes(places, lanes, row.a)
        _uninitialised(known, row, known.shared.writer[cells] < 0, who)
    if known.storing:
        first = known.accesses.count - count
        known.stored.update(zip(range(first, known.accesses.count), known.storing.values(), strict=True))


def _values(known: Knowledge, row: Row, inside: NDArray[np.bool_]) -> dict[int, tuple[int, int]]:
    """Returns what a doubted store writes, by lane: its bytes and values."""
    if row.inst not in known.facts.doubted or row.packed is BITS:
        return {}
    return {
        lane: (row.a, word) for lane, word in zip(row.lanes[inside].tolist(), row.packed[inside].tolist(), strict=True)
    }


def _findings(known: Knowledge, row: Row, lanes: Lanes, places: Lanes, write: bool) -> None:
    """Judge an access in which `Shadow.lanes` found something unordered, and store it."""
    cells, who = known.footprints.of_lanes(places, lanes, row.a)
    written = known.judge(known.shared, cells, who, row.inst, write)
    ids = known.accesses.add(lanes, known.clocks.now(lanes), False, row.inst, lanes).repeat(len(cells) // len(lanes))
    if write:
        for byte in range(0, row.a, BARRIER_BYTES):
            known.check_overwrite((places + byte) // BARRIER_BYTES, lanes, row.inst)
        return known.shared.write(cells, ids)
    if not written:
        _uninitialised(known, row, known.shared.writer[cells] < 0, who)
    known.shared.read_lanes(cells, ids)


def _outside(known: Knowledge, row: Row, outside: NDArray[np.bool_]) -> None:
    """Store what the lanes know: accesses of global memory are judged when the launch is over."""
    kind, lanes = known.globals.kinds[row.inst], row.lanes[outside]
    if kind is None:
        return
    if is_strong(kind):
        note_locks(known, row, kind, lanes, row.places[outside])
    known.contexts.note(known.at, row.warp, kind.writes)
    if kind.scope > WEAK and known.globals.synchronises:
        known.flags.access(known.at, lanes, kind, known.insts[row.inst].name != "red")
    if is_strong(kind) and known.facts.synchronises:
        known.contexts.settle()
        given = zip(lanes.tolist(), row.places[outside].tolist(), lanes.tolist(), lanes.tolist(), strict=True)
        synchronise(known, kind, given, row.inst)


@meaning("atom", "red")
def atomic(known: Knowledge, row: Row) -> None:
    inside = (row.places >= 0) & (row.places < known.footprints.shared_bytes)
    if not inside.all():
        _outside(known, row, ~inside)
    if inside.any():
        _strong(known, row, row.lanes[inside], row.places[inside])


def _strong(known: Knowledge, row: Row, lanes: Lanes, places: Lanes) -> None:
    kind = known.facts.strong[row.inst]
    assert kind is not None
    _note_remote(known, row, places, lanes)
    empty, who = strong_access(known, row, kind, lanes, places)
    inst = known.insts[row.inst]
    reads = kind.reads and not (kind.writes and inst["op"] == "exch")
    if reads and empty.any():
        _uninitialised(known, row, empty, who)


def _uninitialised(known: Knowledge, row: Row, empty: NDArray[np.bool_], who: Lanes) -> None:
    """Find reads of cells that were never written. Elements of a vector that no instruction uses may be padding."""
    used = known.facts.used(row.inst)
    cells = len(empty) // len(np.unique(who))
    part = np.repeat(used, max(1, cells // len(used)))[: max(cells, len(used))].reshape(cells, -1).any(axis=1)
    found = who[empty & np.tile(part, len(empty) // cells)].tolist()
    if row.inst in known.facts.doubted:
        register_state.lose(known, row, set(found))
    elif found:
        known.find("uninitialised", (known.step("reads", row.inst, found[0]),), UNWRITTEN)
        known.doubts.update({row.inst} if known.insts[row.inst].traits.access == "read" else ())


def _note_remote(known: Knowledge, row: Row, places: Lanes, lanes: Lanes) -> None:
    """Store the last use that a lane made of another CTA's shared memory."""
    if known.cluster.ranks == 1:
        return
    low = row.warp // known.cluster.per_cta * known.cluster.shared_stride
    ranks = places // known.cluster.shared_stride
    for i in ((places < low) | (places >= low + known.cluster.shared_stride)).nonzero()[0].tolist():
        check_entry(known, int(lanes[i]), int(ranks[i]), row.inst)
        known.remote_uses[int(ranks[i]), row.inst, int(lanes[i])] = int(known.clocks.now(lanes[i : i + 1])[0])


@meaning("fence.proxy.async", compiled=PROXY)
def fence_proxy(known: Knowledge, row: Row) -> None:
    space = known.insts[row.inst]["space"]
    if known.globals.fences and not space.startswith("shared"):
        known.contexts.fences += known.contexts.points(row.lanes)
    if space == "global":
        known.clocks.tick(row.lanes)
        return
    lanes, copies = row.lanes.tolist(), known.columns.get("copies")
    for lane in lanes if known.shared_flags.own else ():
        known.shared_flags.fence_proxy(lane)
    if copies:
        known.clocks.show(row.lanes, np.array([copies.get(lane, lane) for lane in lanes], np.int64))
    known.proxy_fences.execute(row.lanes)


@meaning("fence.mbarrier_init")
def fence_init(known: Knowledge, row: Row) -> None:
    """The lanes' initialisations are released, for a relaxed arrival too, and the async proxy sees them."""
    known.clocks.show(row.lanes, row.lanes)
    known.clocks.tick(row.lanes)
    for lane in row.lanes.tolist():
        clock = known.clocks.blank()
        clock[:, lane] = known.clocks.table[SEEN, lane, lane]
        known.fenced[lane] = clock


@meaning("fence", "membar")
def fence(known: Knowledge, row: Row) -> None:
    """A relaxed arrival that follows releases what the lanes know."""
    for lane in row.lanes.tolist():
        known.fenced[lane] = known.clocks.of(lane)
    scope = fence_of(known.insts[row.inst])
    for lane in row.lanes.tolist() if scope > WEAK and known.facts.synchronises else ():
        known.shared_flags.fence(lane, scope)
    if scope > WEAK and known.globals.synchronises:
        known.flags.fence(row.lanes, scope)
        known.clocks.release(row.lanes)


@meaning("griddepcontrol.wait")
def wait_grids(known: Knowledge, row: Row) -> None:
    """Earlier launches have ended, and what they wrote is visible."""
    if known.contexts.grid >= 0:
        known.clocks.reach(row.lanes, known.contexts.grid, 1)


@meaning("bar.warp.sync", compiled=SYNC)
def warp_sync(known: Knowledge, row: Row) -> None:
    known.clocks.sync(row.lanes)


@meaning(
    "bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "bar.cta.arrive", "barrier.arrive",
    "barrier.cta.arrive", "bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", compiled=BAR,
)  # fmt: skip
def named(known: Knowledge, row: Row) -> None:
    rank, lane = row.warp // known.cluster.per_cta, int(row.lanes[0])
    bar = known.named.at(rank, row.a)
    unknown = bar.unknown_arrival(lane)
    if unknown is not None:
        first = known.step("arrives in the round before", unknown.inst, unknown.lane)
        known.find(
            "barrier-count",
            (first, known.step("arrives", row.inst, lane)),
            f"nothing orders the arrival after the end of the last round of barrier {row.a}",
        )
    live, waits = int(known.live[row.warp]).bit_count(), row.b >> 32 & 0xFF != BAR_ARRIVE
    bar.arrive(row.lanes, live, row.b & 0xFFFF_FFFF, known.named.everyone.item(rank), waits, row.inst)


@meaning("barrier.cluster.arrive")
def arrive_cluster(known: Knowledge, row: Row) -> None:
    clock: Clock | None = None
    if "relaxed" in known.insts[row.inst].opcode:
        for lane in row.lanes.tolist():
            clock = join(clock, known.fenced.get(lane))
        inits = known.accesses.rows["lane"]
        for mbarrier in known.mbarriers.values():
            if mbarrier.unfenced < 0 and inits[mbarrier.init] in row.lanes:
                mbarrier.unfenced = known.whole.phase
    else:
        clock = known.clocks.release(row.lanes)
    known.whole.arrive(known.clocks, row.lanes, clock)


@meaning("barrier.cluster.wait")
def wait_cluster(known: Knowledge, row: Row) -> None:
    known.whole.wait(known.clocks, row.lanes)


@meaning("mbarrier.init")
def init(known: Knowledge, row: Row) -> None:
    """Lanes of one instruction that give an mbarrier the same count initialise it once."""
    given = zip(row.places.tolist(), (row.packed & 0xFFFFF).tolist(), strict=True)
    lanes = dict(zip(reversed([*given]), row.lanes[::-1].tolist(), strict=True))
    for (place, count), lane in reversed(lanes.items()):
        access = known.accesses.add(lane, int(known.clocks.now(np.array([lane]))[0]), False, row.inst, lane)
        known.check_overwrite(np.array([place // BARRIER_BYTES]), lane, row.inst)
        known.mbarrier_words[place // BARRIER_BYTES] = True
        known.mbarriers[place] = Mbarrier(known.clocks.column(), place, int(access[0]), count, known.clocks.lanes)


@meaning("mbarrier.inval")
def inval(known: Knowledge, row: Row) -> None:
    for place, lane in zip(row.places.tolist(), row.lanes.tolist(), strict=True):
        if known.mbarriers.pop(place, None) is None:
            known.find("mbarrier-live", (known.step("ends it", row.inst, lane),), "no mbarrier is at this address")
        known.mbarrier_words[place // BARRIER_BYTES] = False


@meaning(
    "mbarrier.arrive", "mbarrier.arrive.expect_tx", "mbarrier.arrive.noComplete", "mbarrier.arrive_drop",
    "mbarrier.arrive_drop.expect_tx", "mbarrier.arrive_drop.noComplete", "mbarrier.expect_tx", "mbarrier.complete_tx",
)  # fmt: skip
def update(known: Knowledge, row: Row) -> None:
    """Arrivals and transaction counts of lanes, one barrier after another; arrivals release what the lanes know."""
    inst = known.insts[row.inst]
    silent = "relaxed" in inst.opcode or not inst.name.startswith("mbarrier.arrive")
    drops = "drop" in inst.name
    _note_remote(known, row, row.places, row.lanes)
    for place, lanes, packed in _by_place(row):
        mbarrier = _live(known, place, row.inst, lanes)
        if mbarrier is None:
            continue
        apart = not silent and sum(word & 0xFFFFF for word in packed) > mbarrier.pending  # some arrive after the phase
        clock = None if silent or apart else known.clocks.release(lanes)
        for lane, word in zip(lanes.tolist(), packed, strict=True):
            count = word & 0xFFFFF
            mbarrier.expected -= count if drops else 0
            clock = known.clocks.release(np.array([lane])) if apart else clock
            if count:
                knows = known.clocks.table[GENERIC, lane]
                known.check_arrival(mbarrier, knows, Arrival(row.inst, lane, int(knows[lane]) - (not silent)))
            known.arrive(mbarrier, row.inst, lane, clock, count, word >> 20 & 0x3FFFFF, word >> 42 & 0x3FFFFF)
            clock = None


@meaning("mbarrier.test_wait", "mbarrier.test_wait.parity", "mbarrier.try_wait", "mbarrier.try_wait.parity")
def wait(known: Knowledge, row: Row) -> None:
    relaxed = "relaxed" in known.insts[row.inst].opcode
    for place, lanes, packed in _by_place(row):
        if max(packed) > 1:
            _check_parity(known, row)
        mbarrier = _live(known, place, row.inst, lanes)
        if mbarrier is not None:
            known.met += hash((place, mbarrier.phase, row.inst, int(lanes[0])))
            mbarrier.wait(known.clocks, lanes, row.inst, not relaxed, packed[0] & 1)
            known.unmet[row.warp].add(mbarrier)
            waits = known.uncommitted[row.warp]
            waits[mbarrier] = waits.get(mbarrier, 0) | mask_of(lanes)[1]


def _by_place(row: Row) -> Iterator[tuple[int, Lanes, list[int]]]:
    """Yields places, with the lanes that use each and their packed operands."""
    places, packed = row.places.tolist(), row.packed.tolist()
    if places.count(places[0]) == len(places):
        yield places[0], row.lanes, packed
        return
    for place in dict.fromkeys(places):
        chosen = row.places == place
        yield place, row.lanes[chosen], row.packed[chosen].tolist()


def _check_parity(known: Knowledge, row: Row) -> None:
    if known.insts[row.inst].find("parity"):
        for lane in row.lanes[row.packed & 0xFFFFE > 0].tolist()[:1]:
            step = known.step("waits", row.inst, lane)
            known.find("mbarrier-parity", (step,), "the wait looks at bit 0 of it", EVIDENCE["parity"])


def _live(known: Knowledge, place: int, inst: int, lanes: Lanes) -> Mbarrier | None:
    """Returns the mbarrier at a place. The lanes must know of its initialisation."""
    mbarrier = known.mbarriers.get(place)
    if mbarrier is not None and np.count_nonzero(mbarrier.known[slice_of(lanes)]) < len(lanes):
        late = known.accesses.unknown(np.full(len(lanes), mbarrier.init), lanes)
        mbarrier.known[lanes] = ~late
        passed = (mbarrier.unfenced >= 0) & (known.whole.passed[lanes] >= mbarrier.unfenced)
        for chosen, text, evidence in (
            (late & ~passed, "nothing orders the use after the initialisation", ""),
            (late & passed, UNFENCED, EVIDENCE["unfenced"]),
        ):
            for lane in lanes[chosen].tolist()[:1]:
                known.find_pair("mbarrier-init", mbarrier.init, inst, lane, text, evidence)
    return mbarrier


@meaning("setmaxnreg")
def registers(known: Knowledge, row: Row) -> None:
    """The warps of a warpgroup execute the same setmaxnreg. Before a warp's next one, it must know that the others
    executed the last one."""
    known.op()
    per_cta, lane, mine = known.cluster.per_cta, int(row.lanes[0]), known.setmaxnregs[row.warp]
    for other in known.warpgroup(row.warp):
        for access in known.setmaxnregs[other][len(mine) - 1 : len(mine)] if mine else ():
            if known.accesses.unknown(np.array([access]), lane).any():
                text = f"nothing orders the second after the first of warp {other % per_cta}"
                known.find_pair("setmaxnreg", access, row.inst, lane, text, EVIDENCE["registers"], BETWEEN)
    _check_equal(known, row, len(mine))
    now = known.clocks.now(row.lanes[:1])
    mine.append(int(known.accesses.add(row.lanes[:1], now, False, row.inst, lane)[0]))
    known.clocks.release(row.lanes)


def _check_equal(known: Knowledge, row: Row, number: int) -> None:
    """Compare a warp's setmaxnreg with that of the first warp of its warpgroup that has executed this one."""
    per_cta = known.cluster.per_cta
    others = [(other, a) for other in known.warpgroup(row.warp) for a in known.setmaxnregs[other][number : number + 1]]
    for other, access in others[:1]:
        first, second = (_change(known.insts[inst]) for inst in (known.accesses.rows["inst"][access], row.inst))
        if first != second:
            text = f"warp {other % per_cta} executes {first}, warp {row.warp % per_cta} of its warpgroup {second}"
            known.find_pair(
                "setmaxnreg", access, row.inst, int(row.lanes[0]), text, EVIDENCE["registers"], EQUAL_REGISTERS
            )


def _change(inst: Inst) -> str:
    return f".{inst['action']} {inst.number('count')}"
