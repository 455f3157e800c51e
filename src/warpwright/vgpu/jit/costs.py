"""What the instructions of a block cost, computed when a program is compiled for timing.

ptxas orders the arithmetic of a block as it likes, but keeps what others can see in order. So the anchors of a block
(branches, fences, everything that leaves a row) issue in order, each when its operands are there; all else issues
around them and only takes slots of its pipe. Values of loads from memory arrive at a time that the replay knows: rows
called needs say where the first anchor depends on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from warpwright.targets import Timing
from warpwright.vgpu.program import Block, Inst, Program, Register, Symbol, mentions, registers_of

__all__ = ["NEED", "SLOTS_SHIFT", "Costs", "costs_of", "is_memory", "uses"]

SLOTS_SHIFT = 32
NEED = 1 << 30  # added to the number of a load in the row that waits for its values
_WIDE = ("u64", "s64", "b64")
_ROWS = re.compile(
    r"mbarrier\.|tcgen05\.|wgmma\.|bar(rier)?\.(?!warp)|cp\.(reduce\.)?async|(st|red)\.async|setmaxnreg|call|tensormap\."
    r"|clusterlaunchcontrol|ldmatrix|stmatrix|mma\."
)
_MUFU = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")
_FREE = ("mov", "cvta", "ld.param", "bra", "exit", "ret", "isspacep", "createpolicy", "pmevent")


@dataclass(slots=True)
class Costs:
    """Packed counters (cycles | slots << 32): ``offset`` from the start of its block to an anchor, ``total`` of a
    block; ``needs``: loads whose values an instruction waits for, ``ends`` those that the end of a block waits for."""

    offset: dict[int, int] = field(default_factory=dict)
    total: dict[int, int] = field(default_factory=dict)
    needs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)


def is_memory(inst: Inst) -> bool:
    """Whether an instruction goes to global or shared memory for itself: its row says how much it moves."""
    if inst.name in ("ldmatrix", "stmatrix"):
        return True
    if inst.name not in ("ld", "ldu", "ld.mmio", "st", "st.mmio", "atom", "red"):
        return False
    return not inst["space"].startswith(("param", "const", "local"))


def _leaves_row(inst: Inst) -> bool:
    return is_memory(inst) or _ROWS.match(inst.opcode) is not None


def _is_anchor(inst: Inst) -> bool:
    return _leaves_row(inst) or inst.opcode.startswith(("bra", "brx", "exit", "ret", "trap", "fence", "membar"))


def uses(inst: Inst) -> tuple[list[str], list[str]]:
    """Registers that an instruction reads and writes. Accumulators of wgmma belong to their group: it reads none."""
    used, made = mentions(inst)
    if inst.name == "wgmma.mma_async":
        own = {register.name for register in registers_of(inst.operands[0])}
        used = [name for name in used if name not in own]
    return used, made


@cache
def _pipe(opcode: str, name: str) -> tuple[str, int]:
    """Kind of an instruction (a key of ``Timing.latency`` and ``slots``) and how many of it the hardware issues."""
    words = opcode.split(".")
    type = next((word for word in reversed(words) if re.fullmatch(r"[busf]\d+(x2)?|bf16(x2)?|f16x2", word)), "")
    if name in ("div", "rem"):
        return ("float", 10) if type.startswith("f") else ("alu", 24 if type[1:] != "64" else 80)
    if words[0] in _MUFU:
        return "mufu", 1
    if words[0] == "cvt":
        return "convert", 1
    if words[0] in ("shfl", "redux"):
        return {"shfl": "shuffle"}.get(words[0], words[0]), 1
    if words[0] in ("vote", "match", "activemask", "elect"):
        return "vote", 1
    if type == "f64":
        return "double", 1
    if type.startswith(("f", "bf")):
        return "float", 1
    return ("wide" if type in _WIDE else "alu"), 1


def _cost(inst: Inst, timing: Timing) -> tuple[str, float, float, bool]:
    """Pipe, slots of it, latency, and whether the instruction takes an issue slot at all."""
    if inst.name == "mov" and any(isinstance(operand, Register) and operand.special for operand in inst.operands[1:]):
        return "special", timing.slots["special"], timing.latency["special"], True
    if inst.opcode.startswith(_FREE) or (inst.name == "ld" and inst["space"].startswith(("param", "const"))):
        return "alu", 0.0, 0.0, inst.opcode.startswith("bra")
    if inst.opcode.startswith("elect"):
        return "vote", timing.slots["vote"], timing.elect, True
    if _is_anchor(inst) or inst.opcode.startswith("bar.warp"):
        return "alu", 1.0, 0.0, True
    kind, count = _pipe(inst.opcode, inst.name)
    return kind, count * timing.slots[kind], timing.latency[kind] * max(1, count // 6), True


def _after(inst: Inst, index: int, timing: Timing) -> float:
    """Cycles that an anchor keeps its warp from going on, where the replay does not know better."""
    if inst.opcode.startswith("bra"):
        target = inst.operands[0]
        backward = isinstance(target, Symbol) and target.value <= index
        return timing.branch if backward else 1.0
    if inst.opcode.startswith("fence.proxy.async"):
        return timing.fence_async
    if inst.opcode.startswith(("fence.acq_rel", "fence.sc", "membar")):
        return timing.shared_latency if inst.opcode.endswith("cta") else timing.fence_cluster
    return 1.0


class _Schedule:
    """One block as it issues."""

    def __init__(self, block: Block, timing: Timing, loads: dict[str, frozenset[int]]) -> None:
        self.block, self.timing, self.loads = block, timing, loads
        self.now = 0.0
        self.issued = 0.0
        self.pipes: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self.pending: dict[str, frozenset[int]] = {}
        self.satisfied: set[int] = set()
        self.consumed: set[int] = set()
        self.carried: set[str] = set()

    @property
    def floor(self) -> float:
        """Slots taken so far, of the busiest pipe."""
        return max(self.issued, max(self.pipes.values(), default=0.0))

    def run(self, costs: Costs) -> None:
        for inst in self.block.insts:
            self._issue(inst, costs)
        ends = self.consumed - self.satisfied
        if ends:
            costs.ends[self.block.index] = _latest(ends)
        late = max((self.ready.get(name, 0.0) for name in self.carried), default=0.0)
        costs.total[self.block.index] = _packed(max(self.now, self.floor, late), self.floor)

    def _issue(self, inst: Inst, costs: Costs) -> None:
        used, made = uses(inst)
        pipe, slots, latency, issues = _cost(inst, self.timing)
        self.issued += issues
        self.pipes[pipe] = self.pipes.get(pipe, 0.0) + slots
        deps = frozenset(d for name in used for d in self._pending(name)) - self.satisfied
        start = max((self.ready.get(name, 0.0) for name in used), default=0.0)
        if _is_anchor(inst):
            if deps:
                costs.needs[inst.index] = _latest(deps)
                self.satisfied |= deps
            self.now = max(self.now, self.floor, start)
            costs.offset[inst.index] = _packed(self.now, self.floor)
            self.now += _after(inst, self.block.index, self.timing)
            deps = frozenset()
        else:
            self.consumed |= deps
        done = max(start, self.floor) + latency
        for name in made:
            if name not in self.ready and name in used:
                self.carried.add(name)
            self.ready[name] = done
            self.pending[name] = frozenset((inst.index,)) if is_memory(inst) else deps

    def _pending(self, name: str) -> frozenset[int]:
        return self.pending.get(name, self.loads.get(name, frozenset()))


def _packed(cycles: float, slots: float) -> int:
    return round(cycles) | round(slots) << SLOTS_SHIFT


def _latest(loads: set[int] | frozenset[int]) -> tuple[int, ...]:
    """Loads come back in order: the last few stand for all."""
    return tuple(sorted(loads)[-4:])


def costs_of(program: Program, timing: Timing) -> Costs:
    """The costs of every block of a program on a chip."""
    found: dict[str, set[int]] = {}
    for inst in program.insts:
        if is_memory(inst):
            for name in uses(inst)[1]:
                found.setdefault(name, set()).add(inst.index)
    loads = {name: frozenset(numbers) for name, numbers in found.items()}
    costs = Costs()
    for block in program.blocks:
        _Schedule(block, timing, loads).run(costs)
    return costs
