"""Compiles a program to machine code: one LLVM function that runs a warp until the warp waits."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import DescriptorError, UnsupportedInstruction, UsageError
from warpwright.targets import ARCHS
from warpwright.vgpu.jit import (
    alu,
    bits,
    compare,
    control,
    convert,
    floats,
    issue,
    launch_control,
    matrix,
    memory,
    mma,
    record,
    sync,
    warp,
    warpgroup,
    wmma,
)
from warpwright.vgpu.jit.costs import WARP_MMAS, Costs
from warpwright.vgpu.jit.lanes import MEANINGS, Lanes, Meaning
from warpwright.vgpu.jit.runtime import DECLARATIONS, Engine, compile_ir
from warpwright.vgpu.jit.state import OFFSETS, SIZE
from warpwright.vgpu.jit.unneeded import unneeded
from warpwright.vgpu.jit.uses import Use, uses_of
from warpwright.vgpu.program.program import Block, Inst, Program, Register, mentions, place, results

__all__ = ["KERNELS", "Kernel", "compile_program", "emit", "marks_of"]

KERNELS = 16  # of which machines remember facts of the instructions
# the import fills MEANINGS
_MODULES = (
    alu, bits, compare, convert, floats, issue, launch_control, matrix, memory, mma, sync, warp, warpgroup, wmma,
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Kernel:
    """Machine code of a program and its metadata for the machine.

    ``slots``: places of registers in the warp's state; ``nbytes``: size of that state; ``messages``: for each
    instruction that cannot be executed the error to raise when a lane reaches it; ``uses``: register uses, for checks.
    Launches share a kernel and write nothing of it.
    """

    program: Program
    engine: Engine
    entry: int
    slots: dict[str, int]
    nbytes: int
    messages: dict[int, str]
    tables: list[NDArray[np.int64]] = field(default_factory=list)
    uses: dict[int, Use] = field(default_factory=dict)


def compile_program(
    program: Program,
    observed: bool = False,
    costs: Costs | None = None,
    watched: bool = False,
    doubted: frozenset[int] = frozenset(),
    signals: bool = False,
) -> Kernel:
    """Compile a program. ``observed``: the code also reports synchronisation to observers; ``costs``: it writes rows
    for timing; ``watched``: it writes rows for checks, and marks of the blocks entered and the guards that were true
    and false; ``doubted``: loads and stores that these rows tell more of (`Listener`); ``signals``: engines only
    signal, and what computes with their data is left out."""
    uses = uses_of(program, doubted) if watched else {}
    text, kernel = emit(program, observed, costs, watched, frozenset(uses), doubted, signals)
    engine, (*_, tables) = compile_ir(text), kernel
    pointers = (ctypes.c_void_p * len(tables)).from_address(engine.variable("tables"))
    pointers[:] = [table.ctypes.data for table in tables]
    return Kernel(program, engine, engine.address("kernel"), *kernel, uses)


def emit(
    program: Program,
    observed: bool = False,
    costs: Costs | None = None,
    watched: bool = False,
    tracked: frozenset[int] = frozenset(),
    doubted: frozenset[int] = frozenset(),
    signals: bool = False,
) -> tuple[str, tuple[dict[str, int], int, dict[int, str], list[NDArray[np.int64]]]]:
    """The IR text of a program, and the other fields of `Kernel`. ``tracked``: instructions with watched registers."""
    local = _local_registers(program)
    slots, nbytes = _place_registers(program, local)
    lanes = Lanes(slots, dict.fromkeys(local, True), observed)
    lanes.costs = costs
    lanes.watched = watched
    lanes.tracked, lanes.doubted = tracked, doubted
    lanes.unneeded = unneeded(program) if signals else frozenset()
    lanes.param_bytes = max((p.offset + p.nbytes for p in program.params), default=0)
    lanes.arch = program.arch
    moves = [i for i in program.insts if i.traits.queue == "tmem"]
    lanes.loaded = {r.name for i in moves for r in results(i)}
    stores = [i for i in moves if not i.traits.blocks and not results(i)]
    lanes.stored = {r.name for i in stores for r in i.items("b") if isinstance(r, Register)}
    if watched:
        lanes.guards, lanes.sink = len(program.blocks), marks_of(program) - 1
    messages: dict[int, str] = {}
    blocks = program.blocks if program.blocks[-1].insts else program.blocks[:-1]
    for block in blocks:
        _block(lanes, block, messages)
    body = "\n".join(lanes.lines)
    cases = " ".join(f"i32 {block.index}, label %b{block.index}" for block in blocks)
    functions = "\n".join(lanes.functions.values())
    declarations = f"{DECLARATIONS}\n{_intrinsics(functions + body)}"
    tables = f"@tables = global [{len(lanes.tables)} x ptr] zeroinitializer"
    text = f"{declarations}\n{tables}\n{functions}\n{_FRAME.format(cases=cases, body=body)}"
    return text, (slots, nbytes, messages, lanes.tables)


def marks_of(program: Program) -> int:
    """Returns the number of words of a launch's marks (`Lanes`)."""
    return len(program.blocks) + 2 * len(program.insts) + 1


_FRAME = f"""
define i32 @kernel(ptr %w) {{{{
  br label %dispatch
dispatch:
  %next = call i32 @dispatch(ptr %w)
  switch i32 %next, label %rest [{{cases}}]
rest:
  %pstatus = getelementptr i8, ptr %w, i64 {OFFSETS["status"]}
  %status = load i32, ptr %pstatus
  ret i32 %status
fault:
  ret i32 3
full:
  ret i32 4
{{body}}
}}}}
"""


def _intrinsics(body: str) -> str:
    """Declarations of the LLVM intrinsics that the body calls."""
    known = set(re.findall(r"@(llvm[\w.]+)", DECLARATIONS))
    rows = {}
    for result, name, arguments in re.findall(r"call (<[^>]*>|\{[^}]*\}|\w+) @(llvm[\w.]+)\(([^\n]*)\)", body):
        if name not in known and name not in rows:
            kinds = re.findall(r"(?:^|, )(<\d+ x \w+>|\w+)", arguments)
            rows[name] = f"declare {result} @{name}({', '.join(kinds)})"
    return "\n".join(rows.values())


def _block(lanes: Lanes, block: Block, messages: dict[int, str]) -> None:
    lanes.emit(f"b{block.index}:")
    lanes.values.clear()
    lanes.masks.clear()
    lanes.tmem_idle = False
    lanes.block, lanes.ended = block.index, False
    lanes.enter(lanes.load("i32", OFFSETS["mask"]))
    record.mark_block(lanes)
    for inst in block.insts:
        lanes.inst = inst
        if inst.index in lanes.unneeded:
            _without_results(lanes, inst)
        elif inst.name not in control.ENDINGS:
            _instruction(lanes, inst, messages)
    if not lanes.ended:
        lanes.narrow(lanes.block_mask)
        if block.insts and block.insts[-1].name in control.ENDINGS:
            record.wait_loads(lanes, block.insts[-1])
        record.spend(lanes)
        control.end_block(lanes, block.insts[-1] if block.insts else None, block.index + 1)


def _instruction(lanes: Lanes, inst: Inst, messages: dict[int, str]) -> None:
    _guard(lanes, inst)
    meaning = MEANINGS.get(inst.name) if inst.match else None
    record.wait_loads(lanes, inst)
    record.touch(lanes, inst)
    _take_stored(lanes, inst)
    mark = len(lanes.lines)
    try:
        if meaning is None:
            reason = isa.absence(inst.opcode)
            raise lanes.unsupported(f"this instruction: {reason}" if reason else "this instruction")
        if inst.match and lanes.arch in ARCHS and not isa.supports(inst.match, lanes.arch):
            text = f"{place(inst)}: `{inst.opcode}`: {lanes.arch} does not have this instruction."
            raise UnsupportedInstruction(text)
        if lanes.observed and inst.traits.queue in ("mbarrier", "wgmma"):
            _reserve_queue(lanes)
        _collective(lanes, inst, meaning) if _skips_lanes(inst) else meaning(lanes, inst)
    except (UnsupportedInstruction, DescriptorError, UsageError) as error:
        del lanes.lines[mark:]
        messages[inst.index] = str(error) if isinstance(error, UnsupportedInstruction) else f"{place(inst)}: {error}"
        _emit_fault(lanes, inst)


def _without_results(lanes: Lanes, inst: Inst) -> None:
    """Record an instruction whose results nothing needs."""
    if inst.name in WARP_MMAS:
        _guard(lanes, inst)
        record.wait_loads(lanes, inst)
        control.converge(lanes, "-1")
        record.row(lanes, inst)


def _take_stored(lanes: Lanes, inst: Inst) -> None:
    """Perform pending tcgen05.st before an instruction writes a register that one of them may read."""
    if lanes.tmem_idle or inst.traits.queue == "tmem":
        return
    if any(r.name in lanes.stored and not lanes.local.get(r.name) for r in results(inst)):
        lanes.flush_tmem()


def _guard(lanes: Lanes, inst: Inst) -> None:
    lanes.guarded = inst.guard is not None
    mask = lanes.block_mask
    if inst.guard is not None:
        guard = lanes.mask_of(lanes.register(inst.guard))
        mask = lanes.op(f"and i32 {mask}, {guard}")
        others = lanes.op(f"xor i32 {lanes.block_mask}, {mask}") if lanes.watched else ""
        record.mark_guard(lanes, inst, mask, others)
    if lanes.mask != mask:
        lanes.narrow(mask)


def _skips_lanes(inst: Inst) -> bool:
    """Whether an instruction is guarded and gathers the lanes of the warp: lanes that skip it must not wait for
    others."""
    return inst.guard is not None and inst.form.collective and inst.traits.queue in ("warp", "tmem", "service")


def _collective(lanes: Lanes, inst: Inst, meaning: Meaning) -> None:
    """Run the instruction if its guard is true for some lane. Registers are reloaded after it."""
    some, after = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {lanes.mask}, 0')}, label %{after}, label %{some}")
    lanes.emit(f"{some}:")
    known, masks, tmem_idle = dict(lanes.values), dict(lanes.masks), lanes.tmem_idle
    meaning(lanes, inst)
    if not lanes.ended:
        lanes.emit(f"br label %{after}")
    lanes.emit(f"{after}:")
    lanes.ended, lanes.values, lanes.masks, lanes.mask = False, known, masks, ""
    lanes.tmem_idle = tmem_idle and lanes.tmem_idle
    lanes.reload_registers()
    lanes.enter(lanes.load("i32", OFFSETS["mask"]))


def _reserve_queue(lanes: Lanes) -> None:
    """Return before the instruction takes effect if the queue may lack room for its records."""
    room, full = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op('call i1 @push(ptr %w, i32 0, i32 0)')}, label %{room}, label %{full}")
    lanes.emit(f"{full}:")
    lanes.emit(f"call void @set_pc(ptr %w, i32 {lanes.block_mask}, i32 {lanes.block})")
    lanes.emit("br label %full")
    lanes.emit(f"{room}:")


def _emit_fault(lanes: Lanes, inst: Inst) -> None:
    """Raise a fault if an active lane reaches the instruction; a lane whose guard is false passes."""
    fault, after = lanes.name(), lanes.name()
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {lanes.mask}, 0')}, label %{after}, label %{fault}")
    lanes.emit(f"{fault}:")
    lanes.op(f"call i1 @fault(ptr %w, i32 {lanes.mask}, i32 {lanes.faults['unsupported']})")
    lanes.emit("br label %fault")
    lanes.emit(f"{after}:")


_LATE = ("tmem", "wgmma", "barrier", "service")  # queues at which the machine reads or writes registers later


def _local_registers(program: Program) -> set[str]:
    """Registers that only one block mentions, and whose first mention defines all active lanes."""
    home: dict[str, int] = {}
    memory: set[str] = set()

    def mention(name: str, block: Block, defines: bool) -> None:
        if home.setdefault(name, block.index if defines else -1) != block.index:
            memory.add(name)

    for block in program.blocks:
        for inst in block.insts:
            uses, defs = mentions(inst)
            for name in uses:
                mention(name, block, defines=False)
            for name in defs:
                mention(name, block, defines=inst.guard is None)
            if _skips_lanes(inst):
                memory.update(defs)
            if inst.traits.queue in _LATE:
                memory.update(uses, defs)
    return set(home) - memory


def _place_registers(program: Program, local: set[str]) -> tuple[dict[str, int], int]:
    """Slots after the warp's fixed state, widest registers first so that all are aligned."""
    slots = {"%shared_base": OFFSETS["shared_base"]}
    offset = SIZE
    in_memory = [r for name, r in program.registers.items() if name not in local]
    for register in [*sorted(in_memory, key=lambda r: -r.bits), Register("%cc", 1)]:
        slots[register.name] = offset
        offset += 4 * register.bits if register.bits > 1 else 4
    offset = slots[warpgroup.SHADOWS] = (offset + 127) // 128 * 128
    shadows = warpgroup.shadow_registers(program.insts)
    for register in shadows:
        slots[register.name] = offset
        offset += 128
    offset += len(shadows)
    return slots, (offset + 255) // 256 * 256
