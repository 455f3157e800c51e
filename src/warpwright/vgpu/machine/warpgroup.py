"""Warpgroups: the wgmma that four warps have logged are performed when one of the warps waits for them.

An instruction belongs to the warpgroup: it is performed once all four warps have issued it with the same operands.
Results go to the shadow registers of all four warps; a warp copies them to its registers when it waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import ProtocolError
from warpwright.vgpu.engines import wgmma
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.compile import KERNELS, Kernel
from warpwright.vgpu.jit.state import WAIT_WGMMA
from warpwright.vgpu.jit.warpgroup import (
    ALL,
    DIFFER,
    SCALE_D,
    SHADOWS,
    accumulator,
    immediates,
    in_use,
    left_registers,
    shadow,
)
from warpwright.vgpu.machine.events import Event
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.program import Inst, place

__all__ = ["WARPS", "Warpgroups"]

WARPS = 4  # of a warpgroup
_INST, _A, _B, _HOW = range(4)  # words of a line of the log


@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    """The operands of an instruction: registers by their number (128 bytes each), and its form."""

    form: wgmma.Form
    registers: NDArray[np.int64]  # of D; its shadows are ``d``
    d: wgmma.Accumulator
    a: NDArray[np.int64]


def _use(inst: Inst, slots: dict[str, int], known: dict[tuple[int, ...], wgmma.Accumulator]) -> _Use:
    names = [register.name for register in accumulator(inst)]
    left = left_registers(inst)
    shadows = tuple(slots[shadow(name)] // 128 for name in names)
    d = known.setdefault(shadows, wgmma.Accumulator(np.array(shadows, np.int64), frozenset(shadows)))
    return _Use(
        form=wgmma.form_of(inst.opcode, bool(left), immediates(inst)),
        registers=np.array([slots[name] // 128 for name in names], np.int64),
        d=d,
        a=np.array([slots[register.name] // 128 for register in left], np.int64),
    )


@lru_cache(maxsize=KERNELS)
def _uses(kernel: Kernel) -> dict[int, _Use]:
    """Returns the operands of each wgmma."""
    known: dict[tuple[int, ...], wgmma.Accumulator] = {}
    insts = [inst for inst in kernel.program.insts if inst.traits.queue == "wgmma" and inst.find("d")]
    return {inst.index: _use(inst, kernel.slots, known) for inst in insts}


class Warpgroups:
    """The wgmma in flight of a cluster.

    ``passed`` counts, for every warp, the lines that have left its log; ``performed``, for every warpgroup, the
    instructions whose results are in the shadow registers. ``issued``: operations in flight, for a listener to events.
    """

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        slots = cluster.launch.kernel.slots
        self.uses = _uses(cluster.launch.kernel)
        self.shadows = slots[SHADOWS] // 128
        self.flags = cluster.bytes[:, in_use(slots) :]
        self.registers = cluster.bytes.view(np.uint32).reshape(cluster.count, -1, 32)
        self.logs: NDArray[np.uint64] = cluster.warps["wgmma_log"].reshape(cluster.count, -1, 4)
        self.reset()

    def reset(self) -> None:
        self.passed = [0] * self.cluster.count
        self.performed: dict[int, int] = {}
        self.issued: list[deque[Op]] = [deque() for _ in range(self.cluster.count)]

    def waiting(self) -> bool:
        """Returns whether a warp waits for wgmma."""
        return bool(self.uses) and len(self.cluster.blocked_warps(WAIT_WGMMA)) > 0

    def settle(self) -> bool:
        """Perform the wgmma that warps wait for. Returns whether a warp may run on."""
        if not self.uses or not self.cluster.computes:
            return False
        served = [self._serve(index) for index in self.cluster.blocked_warps(WAIT_WGMMA)]
        return any(served)

    def finish(self) -> None:
        """Perform the wgmma that no warp waited for before it exited."""
        for index in range(self.cluster.count) if self.uses and self.cluster.computes else ():
            end = self.passed[index] + int(self.cluster.warps["wgmma_count"][index])
            if end > self.performed.get(self._first(index), 0) and not self._perform(index, end):
                raise ProtocolError(f"kernel {self.cluster.launch.name}: {self.missing(index)}.")

    def _first(self, index: int) -> int:
        """Returns the first warp of a warp's warpgroup."""
        return index - index % self.cluster.per_cta % WARPS

    def _wanted(self, index: int) -> int:
        """Returns how many lines of its log a waiting warp waits for."""
        warp = self.cluster.warps[index]
        count, lane = int(warp["wgmma_count"]), int(np.flatnonzero(warp["wait_kind"] == WAIT_WGMMA)[0])
        allowed = int(warp["wait_arg"][lane])
        if allowed == ALL:
            return count
        groups = self.logs[index, :count, _HOW] >> np.uint64(32)
        return int(np.count_nonzero(groups.astype(np.int64) < int(warp["wgmma_group"]) - allowed))

    def _serve(self, index: int) -> bool:
        wanted = self._wanted(index)
        end = self.passed[index] + wanted
        if wanted and end > self.performed.get(self._first(index), 0) and not self._perform(index, end):
            return False
        self._retire(index, wanted)
        self.cluster.release(index, WAIT_WGMMA)
        return True

    def _retire(self, index: int, wanted: int) -> None:
        """Take lines out of a warp's log, and copy the accumulators that no other line needs to its registers."""
        log, warp = self.logs[index], self.cluster.warps[index]
        count = int(warp["wgmma_count"])
        busy = {int(inst) for inst in log[wanted:count, _INST]}
        used = frozenset[int]().union(*(self.uses[inst].d.numbers for inst in busy))
        for use in {self.uses[int(inst)].d: self.uses[int(inst)] for inst in log[:wanted, _INST]}.values():
            self._restore(index, use, used)
        log[: count - wanted] = log[wanted:count].copy()
        self.cluster.warps["wgmma_count"][index] = count - wanted
        self.passed[index] += wanted
        self._tell_complete(index, wanted)

    def _restore(self, index: int, use: _Use, used: frozenset[int]) -> None:
        to, shadows = use.registers, use.d.at
        if use.d.numbers <= used:
            return
        if use.d.numbers & used:
            free = ~np.isin(shadows, list(used))
            to, shadows = to[free], shadows[free]
        mine = self.registers[index]
        mine[to] = mine[shadows]
        self.flags[index, shadows - self.shadows] = 0

    def observe(self, op: Op) -> bool:
        """Report the issue of a wgmma: lane code leaves a record of it for listeners."""
        cluster = self.cluster
        self.issued[op.rank * cluster.per_cta + op.warp].append(op)
        cluster.tell(Event("issue", cluster.number, op.rank, op.warp, op.lane, op.inst, op.number))
        return False

    def _tell_complete(self, index: int, count: int) -> None:
        issued = self.issued[index]
        self.cluster.tell_complete([issued.popleft() for _ in range(min(count, len(issued)))])

    def _perform(self, index: int, end: int) -> bool:
        """Perform the warpgroup's instructions up to number ``end``. Returns False if a warp has not issued all."""
        first = self._first(index)
        self._check_size(index, first)
        warps = range(first, first + WARPS)
        if any(self.passed[i] + int(self.cluster.warps["wgmma_count"][i]) < end for i in warps):
            return False
        start = self.performed.get(first, 0)
        lines = [self.logs[i, start - self.passed[i] : end - self.passed[i]] for i in warps]
        self._agree(first, lines)
        steps = [self._step(first, line) for line in lines[0].tolist()]
        if self.cluster.computes:
            wgmma.perform(self.cluster, self.registers[first : first + WARPS], steps)
        self.performed[first] = end
        return True

    def _step(self, first: int, line: list[int]) -> wgmma.Step:
        use = self.uses[line[_INST]]
        op, accumulate = self._op(first, line[_INST]), bool(line[_HOW] & SCALE_D)
        return wgmma.Step(op, use.form, line[_A], line[_B], accumulate, use.d, use.a)

    def _op(self, index: int, inst: int) -> Op:
        rank, warp = divmod(index, self.cluster.per_cta)
        return Op(self.cluster.launch.insts[inst], rank, warp, -1, [])

    def _check_size(self, index: int, first: int) -> None:
        number = first % self.cluster.per_cta
        if number + WARPS > self.cluster.per_cta:
            text = f"warpgroup {number // WARPS} has {self.cluster.per_cta - number} warps; expected 4"
            raise self._failure(index, f"{text}; launch a multiple of 128 threads")

    def _agree(self, first: int, lines: list[NDArray[np.uint64]]) -> None:
        """Raises ProtocolError unless the four warps issued the same."""
        how = np.uint64(0xFFFF_FFFF)
        plain = [np.concatenate([log[:, :_HOW], log[:, _HOW:] & how], axis=1) for log in lines]
        for warp, log in enumerate(plain):
            for line in log[log[:, _HOW] & np.uint64(DIFFER) != 0].tolist():
                text = "its lanes have different descriptors or scale-d; expected one value in all 128 threads"
                raise self._failure(first + warp, text, line[_INST])
            wrong = np.flatnonzero((log != plain[0]).any(axis=1))
            if len(wrong):
                mine, other = log[wrong[0]].tolist(), plain[0][wrong[0]].tolist()
                raise self._failure(first + warp, self._difference(first, mine, other), mine[_INST])

    def _difference(self, first: int, mine: list[int], other: list[int]) -> str:
        insts, zero = self.cluster.launch.insts, first % self.cluster.per_cta
        if mine[_INST] != other[_INST]:
            where = place(insts[other[_INST]])
            return f"warp {zero} of its warpgroup issues the instruction of {where} instead; expected the same in all 4"
        names = {_A: "the descriptor of A", _B: "the descriptor of B", _HOW: "scale-d"}
        word = next(word for word in names if mine[word] != other[word])
        return (
            f"{names[word]} is 0x{mine[word]:x}, but 0x{other[word]:x} in warp {zero} of its warpgroup; expected one "
            "value in all 128 threads"
        )

    def _failure(self, index: int, text: str, inst: int = -1) -> Exception:
        number = inst if inst >= 0 else int(self.logs[index, 0, _INST])
        return self.cluster.failure(ProtocolError, self._op(index, number), f"{text}.")

    def missing(self, index: int) -> str:
        """Returns which warps of its warpgroup a warp waits for, as a clause of a message.

        They have issued fewer wgmma. A fast profile keeps no log of wgmma: there they are the warps that do not wait.
        """
        first, per_cta = self._first(index), self.cluster.per_cta
        warps = range(first, first + WARPS)
        issued = [self.passed[i] + int(self.cluster.warps["wgmma_count"][i]) for i in warps]
        fewer = [i for i, count in zip(warps, issued, strict=True) if count < max(issued)]
        waiting = self.cluster.blocked_warps(WAIT_WGMMA)
        late = [str(i % per_cta) for i in fewer or sorted(set(warps).difference(waiting))]
        names = f"warp {late[0]} has" if len(late) == 1 else f"warps {', '.join(late)} have"
        return f"{names} issued fewer wgmma than others of the warpgroup"
