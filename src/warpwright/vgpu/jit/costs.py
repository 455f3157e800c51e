"""Costs of the instructions of a block, computed when a program is compiled for timing.

ptxas orders the arithmetic of a block freely, but keeps observable operations in order. So the anchors of a block
(branches, fences, every instruction that writes a row) issue in order, each when its operands are ready; all other
instructions issue around them, when their operands, pipe and scheduler are ready. The replay knows when values of
memory loads and mma sums are ready: "need" rows mark the first anchor that depends on each.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from math import ceil
from typing import Any

from warpwright.targets import Timing
from warpwright.vgpu.program.program import Block, Inst, Program, mentions, registers_of, sources, targets

__all__ = ["NEED", "WARP_MMAS", "Costs", "costs_of", "elapsed", "is_memory"]

FIELD = 21  # bits of a counter in a stamp; counters wrap: between two rows of a warp they must grow by less than 2^21
FIRST = 3  # counters in the first word of a stamp; the others are in the second one
NEED = 1 << 30  # added to the number of a load in the row that waits for its values
WARP_MMAS = ("mma", "wmma.mma")
_WIDE = ("u64", "s64", "b64")
_HALF = (  # their pipe accepts one every other cycle
    "setp", "selp", "slct", "min", "max", "and", "or", "xor", "not", "cnot", "shl", "shr", "lop3", "prmt", "bfe", "bfi",
)  # fmt: skip
_HALF_RATE = ("half", "convert", "wide", "multiply")  # kinds whose pipes take two cycles for a warp
_MUFU = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")
_EXTREMA = ("max.s32", "min.s32", "max.u32", "min.u32")
_WAIT = "mbarrier.try_wait"
_ADDRESSING = re.compile(r"(mov|add|sub|mad|mul|bfe|bfi|shl|shr|and|or|xor)(\.\w+)?\.[usb](32|64)")
TESTED = 8  # bits of a word that a block tests, from which on R2P makes predicates of them
_IN_ORDER = ("fence", "membar", "clusterlaunchcontrol.query_cancel")
_FREE = ("mov", "cvta", "ld.param", "bra", "exit", "ret", "isspacep", "createpolicy", "pmevent")


@dataclass(slots=True)
class Costs:
    """Packed counters of a warp, see `elapsed`. ``offset``: from the start of its block to an anchor; ``total``: of a
    block; ``needs``: loads for which an instruction waits; ``ends``: loads for which the end of a block waits."""

    offset: dict[int, int] = field(default_factory=dict)
    total: dict[int, int] = field(default_factory=dict)
    needs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)


def is_memory(inst: Inst) -> bool:
    """Whether an instruction accesses global or shared memory directly: its row has its traffic."""
    return bool(inst.traits.access) and not inst["space"].startswith(("param", "const", "local"))


def _is_late(inst: Inst) -> bool:
    """Whether only the replay knows when the results of an instruction are ready."""
    return is_memory(inst) or inst.name in WARP_MMAS


def _is_anchor(inst: Inst) -> bool:
    """Whether an instruction writes a row, branches or fences: such instructions issue in order."""
    leaves_row = _is_late(inst) or inst.traits.queue not in ("", "warp", "grid")
    return leaves_row or inst.traits.jumps or inst.name.startswith(_IN_ORDER)


@cache
def _pipe(opcode: str, name: str) -> tuple[str, int]:
    """Kind of an instruction (a key of ``Timing.latency`` and ``slots``), and the number of hardware instructions it
    takes."""
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
    if type in _WIDE:
        return "wide", 1
    if words[0] in _HALF:
        return "half", 1
    if type.startswith(("f", "bf")):
        return "float", 2 if type == "f32x2" else 1
    return ("multiply" if words[0] in ("mul", "mad") else "alu"), 1


def _cost(inst: Inst, timing: Timing) -> tuple[str, float, float, bool]:
    """Pipe, its slots, latency, and whether the instruction takes an issue slot."""
    if inst.name == "mov" and any(register.special for register in sources(inst)):
        return "special", timing.slots["special"], timing.latency["special"], True
    if inst.opcode.startswith(_FREE) or (inst.name == "ld" and inst["space"].startswith(("param", "const"))):
        return "alu", 0.0, 0.0, inst.opcode.startswith("bra")
    if inst.name == "elect.sync":
        return "vote", timing.slots["vote"], timing.elect, True
    if _is_anchor(inst) or inst.name == "bar.warp.sync":
        return "alu", 1.0, 0.0, True
    kind, count = _pipe(inst.opcode, inst.name)
    return kind, count * timing.slots[kind], timing.latency[kind] * max(1, count // 6), True


def _gap(inst: Inst, index: int, timing: Timing) -> float:
    """Cycles from an anchor to the warp's next instruction, unless the replay determines them."""
    if inst.name == "bra":
        return timing.branch if min(targets(inst)) <= index else 1.0
    if inst.opcode.startswith("fence.proxy.async"):
        return timing.fence_async
    if inst.opcode.startswith(("fence.acq_rel", "fence.sc", "membar")):
        return timing.shared_latency if inst.opcode.endswith("cta") else timing.fence_cluster
    return 1.0


class _Pipe:
    """Reserved cycles of a pipe or of the scheduler: each reservation takes the first free cycles from a time on."""

    def __init__(self) -> None:
        self.after: dict[int, int] = {}

    def reserve(self, at: float, count: float) -> int:
        """Reserve ``count`` cycles from ``at`` on; returns the last."""
        cycle = ceil(at) - 1
        for _ in range(round(count)):
            cycle = self._next(cycle + 1)
        return cycle

    def _next(self, cycle: int) -> int:
        cycles = []
        while cycle in self.after:
            cycles.append(cycle)
            cycle = self.after[cycle]
        for each in (*cycles, cycle):
            self.after[each] = cycle + 1
        return cycle


class _Schedule:
    """The issue schedule of one block: every instruction issues when its operands, its pipe and the scheduler are
    ready."""

    def __init__(self, block: Block, timing: Timing, loads: dict[str, frozenset[int]], free: frozenset[int]) -> None:
        self.block, self.timing, self.loads, self.free = block, timing, loads, free
        self.now = 0.0
        self.count = 0.0
        self.runs: set[float] = set()
        self.dense = 0
        self.pipes: dict[str, float] = {}
        self.scheduler = _Pipe()
        self.reserved: dict[str, _Pipe] = defaultdict(_Pipe)
        self.last = 0.0
        self.ready: dict[str, float] = {}
        self.pending: dict[str, frozenset[int]] = {}
        self.satisfied: set[int] = set()
        self.consumed: set[int] = set()
        self.loop_carried: set[str] = set()

    @property
    def floor(self) -> float:
        """Cycles reserved so far on the scheduler or on the busiest pipe."""
        return max(self.count, max(self.pipes.values(), default=0.0))

    def run(self, costs: Costs) -> None:
        for inst in self.block.insts:
            self._issue(inst, costs)
        ends = self.consumed - self.satisfied
        if ends:
            costs.ends[self.block.index] = _latest(ends)
        late = max((self.ready.get(name, 0.0) for name in self.loop_carried), default=0.0)
        costs.total[self.block.index] = self._stamp(max(self.now, self.floor, late, self.last))

    def _issue(self, inst: Inst, costs: Costs) -> None:
        uses, defs = mentions(inst)
        if inst.name in WARP_MMAS:  # the replay orders sums that accumulate into each other
            uses = [register.name for operand in inst.named("a", "b") for register in registers_of(operand)]
        pipe, slots, latency, issues = _cost(inst, self.timing)
        if inst.index in self.free:
            slots, latency, issues = 0.0, 0.0, False
        self.count += issues
        self.pipes[pipe] = self.pipes.get(pipe, 0.0) + slots
        deps = frozenset(d for name in uses for d in self._pending(name)) - self.satisfied
        start = max((self.ready.get(name, 0.0) for name in uses), default=0.0)
        if _is_anchor(inst):
            if deps:
                costs.needs[inst.index] = _latest(deps)
                self.satisfied |= deps
            self.now = max(self.now, self.floor, start)
            costs.offset[inst.index] = self._stamp(self.now)
            done = self.scheduler.reserve(self.now, 1) + latency
            self.now += _gap(inst, self.block.index, self.timing)
            deps = frozenset()
        else:
            self.consumed |= deps
            done = self._start(start, pipe, slots, issues) + latency
        for name in defs:
            if name not in self.ready and name in uses:
                self.loop_carried.add(name)
            self.ready[name] = done
            self.pending[name] = frozenset((inst.index,)) if _is_late(inst) else deps

    def _stamp(self, cycles: float) -> int:
        half = sum(self.pipes.get(pipe, 0.0) for pipe in _HALF_RATE)
        counters = (cycles, self.count - self.dense, self.pipes.get("mufu", 0.0), half, self.dense)
        return sum(round(count) << (i // FIRST * 64 + i % FIRST * FIELD) for i, count in enumerate(counters))

    def _start(self, start: float, pipe: str, slots: float, issues: bool) -> float:
        """Reserve scheduler and pipe for an instruction whose operands are ready at ``start``; returns its issue
        time."""
        begin = float(self.scheduler.reserve(start, 1)) if issues else start
        if slots > 1:
            begin = max(begin, self.reserved[pipe].reserve(begin, slots) + 1 - slots)
        self.last = max(self.last, begin + issues)
        if pipe == "float" and issues:
            self.dense += begin - 1 in self.runs or begin + 1 in self.runs
            self.runs.add(begin)
        return begin

    def _pending(self, name: str) -> frozenset[int]:
        return self.pending.get(name, self.loads.get(name, frozenset()))


def elapsed(first: Any, second: Any) -> tuple[Any, Any, Any, Any, Any]:
    """What a warp has spent between two stamps: cycles, single instructions, cycles of the special-function unit,
    cycles of the pipes of half rate, and float32 instructions that issue in successive cycles, which are not among the
    single ones. ``first`` and ``second``: the later stamp's words less the earlier one's, integers or arrays of uint64.
    """
    mask = (1 << FIELD) - 1
    return first & mask, first >> FIELD & mask, first >> 2 * FIELD & mask, second & mask, second >> FIELD & mask


def _latest(loads: set[int] | frozenset[int]) -> tuple[int, ...]:
    """The last few loads represent all: loads return in order."""
    return tuple(sorted(loads)[-4:])


def costs_of(program: Program, timing: Timing) -> Costs:
    """The costs of every block of a program on a chip."""
    writers: dict[str, set[int]] = {}
    for inst in program.insts:
        if _is_late(inst):
            for name in mentions(inst)[1]:
                writers.setdefault(name, set()).add(inst.index)
    loads = {name: frozenset(numbers) for name, numbers in writers.items()}
    costs = Costs()
    extrema = merged_extrema(program) if timing.extremum_values > 2 else ()
    free = frozenset((*extrema, *merged_tests(program), *before_waits(program)))
    for block in program.blocks:
        _Schedule(block, timing, loads, free).run(costs)
    return costs


def merged_extrema(program: Program) -> Iterator[int]:
    """Yields the 32-bit integer maxima and minima that are one instruction with the next one, VIMNMX3 of three values.

    ptxas 13.0 merges two of a block, of one opcode and without guards, if the second is the only use of the first one's
    result; not for sm_120a.
    """
    if not any(inst.opcode in _EXTREMA for inst in program.insts):
        return
    uses = count_uses(program)
    for block in program.blocks:
        waiting: dict[str, Inst] = {}  # by result, extrema that may merge with its only use
        for inst in block.insts:
            if inst.opcode not in _EXTREMA or inst.guard:
                continue
            read, (result,) = mentions(inst)
            partner = next((name for name in read if name in waiting and waiting[name].opcode == inst.opcode), "")
            if partner:
                yield waiting.pop(partner).index
            elif uses[result] == 1:
                waiting[result] = inst


def merged_tests(program: Program) -> Iterator[int]:
    """Yields the instructions that ptxas saves where a block tests bits of a word; they cost nothing.

    An ``and`` with one bit and the comparison of its result with 0 are one LOP3. Where a block tests eight bits of a
    word or more, R2P makes predicates of seven of each eight: 2 instructions for 8 tests. So does ptxas 13.0, for every
    target, if nothing else uses the result of ``and``.
    """
    uses = count_uses(program)
    for block in program.blocks:
        bits = {mentions(inst)[1][0]: inst for inst in block.insts if _takes_bit(inst)}
        tests: dict[str, list[int]] = defaultdict(list)  # by word
        for inst in block.insts:
            if inst.opcode != "setp.ne.u32" or getattr(inst.operand("b"), "value", None) != 0:
                continue
            for name in mentions(inst)[0]:
                if name in bits and uses[name] == 1:
                    yield bits[name].index
                    tests[mentions(bits[name])[0][0]].append(inst.index)
        for found in tests.values():
            if len(found) >= TESTED:
                yield from (index for number, index in enumerate(found) if number % (TESTED // 2))


def _takes_bit(inst: Inst) -> bool:
    """Whether an instruction is an ``and`` of a register with one bit."""
    bit = getattr(inst.operand("b"), "value", 0) if inst.opcode == "and.b32" and not inst.guard else 0
    return isinstance(bit, int) and bit.bit_count() == 1


def before_waits(program: Program) -> Iterator[int]:
    """Yields the integer arithmetic that costs nothing because ptxas puts it before the wait loop that it follows.

    Where wgmma follows, descriptors of registers that are older than the wait stand between ``try_wait`` and its branch
    in the SASS of ptxas 13.0, on the uniform datapath, so that they are ready when the wait ends.
    """
    for insts in _after_waits(program):
        late = set[str]()
        for inst in insts if any(each.name == "wgmma.mma_async" for each in insts) else ():
            uses, defs = mentions(inst)
            if inst.guard or not _ADDRESSING.fullmatch(inst.opcode) or late.union(defs).intersection(uses):
                late.update(defs)
            else:
                yield inst.index


def _after_waits(program: Program) -> Iterator[list[Inst]]:
    """Yields the straight-line code that follows each wait loop: the instructions up to the next branch or label."""
    waits = {block.name for block in program.blocks if any(inst.name.startswith(_WAIT) for inst in block.insts)}
    for name, blocks in groupby(program.blocks, key=lambda block: block.name):
        insts = [inst for block in blocks for inst in block.insts]
        loops = [at for at, inst in enumerate(insts) if inst.name == "bra"]
        if name in waits and loops:
            yield insts[loops[0] + 1 : loops[1] if len(loops) > 1 else None]


def count_uses(program: Program) -> Counter[str]:
    """Returns how often a program reads each register."""
    return Counter(name for inst in program.insts for name in mentions(inst)[0])
