"""Registers that checks watch: those of wgmma in flight, those that a wgmma.fence must come behind (PTX ISA 9.1 section
9.7.15.7.1), and those that some path reads before it has written them (`jit.unwritten`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from warpwright.vgpu.jit.unwritten import Flow
from warpwright.vgpu.jit.uses import Use

if TYPE_CHECKING:
    from warpwright.vgpu.checks.watch import Row, Watch

__all__ = ["Registers"]


@dataclass(slots=True)
class _Warp:
    """``flight``: group, instruction and use of what has not been waited for; ``since``: registers used since the last
    fence, and by which instruction; ``fresh``: no wgmma was issued since then; ``written``: the lanes (a mask) that
    have written a register of the doubtful ones."""

    flight: list[tuple[int, int, Use]] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    fenced: bool = False
    fresh: bool = False
    written: dict[str, int] = field(default_factory=dict)


class Registers:
    """The registers of every warp of a cluster."""

    def __init__(self, uses: dict[int, Use]) -> None:
        self.uses = uses
        self.warps: dict[int, _Warp] = {}

    def _of(self, warp: int) -> _Warp:
        held = self.warps.get(warp)
        if held is None:
            held = self.warps[warp] = _Warp()
        return held

    def touch(self, watch: Watch, row: Row) -> None:
        """A thread uses registers: none of them may be the accumulator, or be read, of a wgmma in flight."""
        use, warp = self.uses[row.inst], self._of(row.warp)
        if use.flow:
            self._check(watch, row, use.flow, warp.written)
        for _, inst, other in warp.flight:
            if (use.reads | use.writes) & other.d or use.writes & other.a:
                steps = (
                    watch.step("in flight", inst, int(row.lanes[0])),
                    watch.step("uses", row.inst, int(row.lanes[0])),
                )
                watch.find("wgmma-registers", steps, "the warp has not waited for the wgmma's group")
                break
        if not (warp.fresh and watch.insts[row.inst].name == "mov"):  # compilers put copies there, ptxas undoes them
            warp.since.update(dict.fromkeys(use.reads | use.writes, row.inst))

    def _check(self, watch: Watch, row: Row, flow: Flow, written: dict[str, int]) -> None:
        """What has an effect takes what was written; what only computes hands on that it was not."""
        lanes = row.mask
        known = [written.get(name, 0) & lanes for name in flow.reads]
        every, some = reduce(and_, known, lanes), reduce(or_, known, 0)
        if flow.effect and every != lanes:
            late = lanes & ~every
            step = watch.step("uses", row.inst, row.warp * 32 + (late & -late).bit_length() - 1)
            watch.find("uninitialised", (step,), "the thread has not written the register, nor what it comes from")
        good = lanes if flow.effect or not known else some if flow.chooses else every
        for name in flow.writes:
            written[name] = written.get(name, 0) & ~lanes | good

    def issue(self, watch: Watch, row: Row, group: int) -> None:
        use, warp = self.uses[row.inst], self._of(row.warp)
        warp.written.update(dict.fromkeys(use.d, (1 << 32) - 1))
        used = next((warp.since[name] for name in use.d | use.a if name in warp.since), None) if warp.since else None
        lane = int(row.lanes[0])
        if used is not None or not warp.fenced:
            first = (watch.step("uses", used, lane),) if used is not None else ()
            text = "no wgmma.fence is between them" if first else "no wgmma.fence is before the first wgmma"
            watch.find("wgmma-fence", (*first, watch.step("issues", row.inst, lane)), text)
        warp.flight.append((group, row.inst, use))
        warp.fresh = False

    def fence(self, warp: int) -> None:
        held = self._of(warp)
        held.since.clear()
        held.fenced = held.fresh = True

    def wait(self, warp: int, over: int) -> None:
        held = self._of(warp)
        held.flight = [entry for entry in held.flight if entry[0] > over]
