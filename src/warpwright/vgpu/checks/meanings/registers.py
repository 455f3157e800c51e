"""Registers: those of wgmma in flight, those whose use a wgmma.fence must separate from a wgmma (PTX ISA 9.1 section
9.7.15.7.1), those that some path reads before it has written them (`jit.unwritten`), and those of tcgen05.ld."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import and_, or_

from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.missing import UNWRITTEN
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.checks.warp_registers import WarpRegisters
from warpwright.vgpu.jit.unwritten import Flow

__all__ = ["fence", "issue", "lose", "touch", "wait"]


def _registers(known: Knowledge, warp: int) -> WarpRegisters:
    found = known.registers.get(warp)
    if found is None:
        found = known.registers[warp] = WarpRegisters()
    return found


def touch(known: Knowledge, row: Row) -> None:
    """Check a thread's use of registers: a wgmma in flight must not write them, and must not read those that the use
    writes. The use of a register that tcgen05.ld fills waits for the load (`rules.EVIDENCE`)."""
    use, warp = known.facts.uses[row.inst], _registers(known, row.warp)
    for load in use.loads:
        known.clocks.reach(row.lanes, known.column("tensor loads", row.warp), known.loads.item(row.warp, load))
    if use.flow:
        _check_written(known, row, use.flow, warp)
    for _, inst, other in warp.flight:
        if (use.reads | use.writes) & other.d or use.writes & other.a:
            lane = int(row.lanes[0])
            steps = known.step("in flight", inst, lane), known.step("uses", row.inst, lane)
            known.find("wgmma-registers", steps, "the warp has not waited for the wgmma's group")
            break
    if not (warp.fresh and known.insts[row.inst].name == "mov"):  # compilers put copies there, ptxas undoes them
        warp.since.update(dict.fromkeys(use.reads | use.writes, row.inst))


def _check_written(known: Knowledge, row: Row, flow: Flow, warp: WarpRegisters) -> None:
    """An instruction with an effect must read only registers that the lane has written. The result of any other
    instruction counts as written if its operands are."""
    written, lanes = warp.written, row.mask
    masks = [(written.get(name, 0) | (~row.a if name == flow.offered else 0)) & lanes for name in flow.reads]
    every, some = reduce(and_, masks, lanes), reduce(or_, masks, 0)
    if flow.effect and every != lanes:
        late = lanes & ~every
        _unwritten(known, row, row.warp * 32 + (late & -late).bit_length() - 1, _origin(warp, flow, lanes))
    every = every if every == lanes or not flow.mixes else 0
    good = lanes if flow.effect or not masks else some if flow.chooses else every
    if flow.selects:
        yes, no, predicate = (written.get(name, 0) if name in flow.reads else lanes for name in flow.selects)
        good = lanes & predicate & (yes & row.a | no & ~row.a)
    origin = _origin(warp, flow, lanes) if good != lanes else None
    for name in flow.writes:
        written[name] = written.get(name, 0) & ~lanes | good
        if origin is not None:
            warp.origins[name] = origin


def _origin(warp: WarpRegisters, flow: Flow, lanes: int) -> int | None:
    """Returns the load that the first unwritten operand of an instruction comes from."""
    unwritten = (name for name in sorted(flow.reads) if lanes & ~warp.written.get(name, 0))
    return next((warp.origins[name] for name in unwritten if name in warp.origins), None)


def _unwritten(known: Knowledge, row: Row, lane: int, load: int | None) -> None:
    """Find a use of a register that is unwritten, or that comes from a load of unwritten memory."""
    step = known.step("uses", row.inst, lane)
    if load is None:
        known.find("uninitialised", (step,), "the thread has not written the register, nor what it comes from")
    else:
        known.find("uninitialised", (known.step("reads", load, lane), step), UNWRITTEN)


def lose(known: Knowledge, row: Row, lanes: Iterable[int]) -> None:
    """Lanes have loaded memory that no thread has written: the registers are as if unwritten."""
    mask, warp, use = sum(1 << lane % 32 for lane in lanes), _registers(known, row.warp), known.facts.uses[row.inst]
    for name in use.flow.writes if use.flow else ():
        warp.written[name] = warp.written.get(name, 0) & ~mask
        warp.origins[name] = row.inst


def issue(known: Knowledge, row: Row, group: int) -> None:
    """A warp issues a wgmma: check that a wgmma.fence separates it from earlier uses of its registers."""
    use, warp = known.facts.uses[row.inst], _registers(known, row.warp)
    warp.written.update(dict.fromkeys(use.d, (1 << 32) - 1))
    used = next((warp.since[name] for name in use.d | use.a if name in warp.since), None) if warp.since else None
    lane = int(row.lanes[0])
    if used is not None or not warp.fenced:
        first = (known.step("uses", used, lane),) if used is not None else ()
        text = "no wgmma.fence is between them" if first else "no wgmma.fence is before the first wgmma"
        known.find("wgmma-fence", (*first, known.step("issues", row.inst, lane)), text)
    warp.flight.append((group, row.inst, use))
    warp.fresh = False


def fence(known: Knowledge, index: int) -> None:
    """A warp executes wgmma.fence."""
    warp = _registers(known, index)
    warp.since.clear()
    warp.fenced = warp.fresh = True


def wait(known: Knowledge, index: int, over: int) -> None:
    """A warp has waited for its wgmma groups up to number ``over``."""
    warp = _registers(known, index)
    warp.flight = [entry for entry in warp.flight if entry[0] > over]
