"""Issue of wgmma (PTX ISA 9.1 section 9.7.15): every warp logs its instructions, the machine performs them later.

The log of a warp has its instructions from their issue until the warp has waited for their group. `vgpu.warpgroup`
takes from the logs of four warps the instructions that all of them have issued. Registers of A are read when the
machine performs the instruction, which is as late as a wait allows.
"""

from __future__ import annotations

from warpwright.ptx import nodes
from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.state import OFFSETS, WAIT_WGMMA
from warpwright.vgpu.jit.sync import block, operand_slot
from warpwright.vgpu.program.program import Inst, Operand, Register, results

__all__ = [
    "ALL",
    "DIFFER",
    "SCALE_D",
    "SHADOWS",
    "accumulator",
    "immediates",
    "in_use",
    "left_registers",
    "shadow",
    "shadow_registers",
]

SHADOWS = "%wgmma"  # name of the area after the registers: shadow registers, then a flag byte for each
SCALE_D, DIFFER = 1, 2  # bits of a log line's last word: accumulate; the lanes differ
ALL = (1 << 32) - 1  # number of groups for a full log: wait for all


def accumulator(inst: Inst) -> list[Register]:
    """The registers of D."""
    return _registers(inst, "d")


def left_registers(inst: Inst) -> list[Register]:
    """The registers of A; none if A has a descriptor."""
    return _registers(inst, "a")


def immediates(inst: Inst) -> tuple[int, ...]:
    """The scales and then the transpositions, as arguments of `engines.wgmma.form_of`."""
    names = ("scale_a", "scale_b", "trans_a", "trans_b")
    return tuple(inst.number(name) for name in names if inst.find(name))


def _registers(inst: Inst, name: str) -> list[Register]:
    vector = isinstance(inst.operand(name), nodes.Vector)
    return [item for item in inst.items(name) if isinstance(item, Register)] if vector else []


def shadow(name: str) -> str:
    """The slot name of the shadow of a register."""
    return f"{name}'"


def shadow_registers(insts: list[Inst]) -> list[Register]:
    """The shadow of every accumulator register, without repetition."""
    names = [register.name for inst in insts if inst.traits.queue == "wgmma" for register in results(inst)]
    return [Register(shadow(name), 32) for name in dict.fromkeys(names)]


def in_use(slots: dict[str, int]) -> int:
    """Offset of the flag bytes of the shadows in use."""
    return slots[SHADOWS] + 128 * sum(name.endswith("'") for name in slots)


@meaning("wgmma.fence")
def fence(lanes: Lanes, inst: Inst) -> None:
    """No effect on registers, which are written in program order; the warp gathers."""
    converge(lanes, "-1")
    record.order(lanes, inst)


@meaning("wgmma.mma_async")
def mma_async(lanes: Lanes, inst: Inst) -> None:
    if ".b1." in inst.opcode:
        raise lanes.unsupported("wgmma of single bits")
    converge(lanes, "-1")
    with lanes.if_any():
        _issue(lanes, inst)
    lanes.reload_registers()


def _issue(lanes: Lanes, inst: Inst) -> None:
    left, right, scale = inst.named("a", "b", "scale_d")
    differ: list[str] = []
    a = _uniform(lanes, left, differ) if isinstance(left, Register) else "0"
    b = _uniform(lanes, right, differ)
    how = lanes.op(f"and i64 {_uniform(lanes, scale, differ)}, {SCALE_D}")
    for bit in differ:
        how = lanes.op(f"or i64 {how}, {bit}")
    plan = lanes.table(_plan(lanes, inst))
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    arguments = f"ptr %w, i64 {inst.index}, i64 {a}, i64 {b}, i64 {how}, ptr {lanes.base(plan)}"
    ok = lanes.op(f"call i1 @wgmma_issue({arguments})")
    logged, full = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {ok}, label %{logged}, label %{full}")
    lanes.emit(f"{full}:")
    lanes.store("<32 x i64>", lanes.splat(ALL, 64), operand_slot(0))
    block(lanes, WAIT_WGMMA, lanes.mask, lanes.block)
    lanes.ended = False
    lanes.emit(f"{logged}:")
    record.row(lanes, inst, a, b, extra=how)
    if lanes.costs:
        lanes.store("i64", lanes.op(f"add i64 {lanes.load('i64', OFFSETS['issued'])}, 1"), OFFSETS["issued"])
    if lanes.observed:
        first = lanes.op(f"and i32 {lanes.mask}, {lanes.op(f'sub i32 0, {lanes.mask}')}")
        lanes.op(f"call i1 @push(ptr %w, i32 {first}, i32 {inst.index})")


def _uniform(lanes: Lanes, operand: Operand, differ: list[str]) -> str:
    """The lanes' common value as i64; appends to ``differ`` a word with bit DIFFER if some lane has another value."""
    if isinstance(operand, nodes.Imm):
        return str(int(operand.value))
    if isinstance(operand, Register) and operand.bits == 1:
        value = lanes.op(f"zext <32 x i1> {lanes.register(operand)} to <32 x i64>")
    else:
        value = lanes.integer(operand, 64)
    lane = lanes.op(f"call i32 @llvm.cttz.i32(i32 {lanes.mask}, i1 false)")
    first = lanes.op(f"extractelement <32 x i64> {value}, i32 {lane}")
    other = lanes.op(f"icmp ne <32 x i64> {value}, {lanes.spread('i64', first)}")
    bits = lanes.op(f"and i32 {lanes.mask_of(other)}, {lanes.mask}")
    differ.append(lanes.op(f"select i1 {lanes.op(f'icmp ne i32 {bits}, 0')}, i64 {DIFFER}, i64 0"))
    return first


def _plan(lanes: Lanes, inst: Inst) -> list[int]:
    base = lanes.slots[SHADOWS]
    registers = accumulator(inst)
    words = [base, in_use(lanes.slots), len(registers)]
    for register in registers:
        words += [lanes.slots[register.name], (lanes.slots[shadow(register.name)] - base) // 128]
    return words


@meaning("wgmma.commit_group")
def commit_group(lanes: Lanes, inst: Inst) -> None:
    """Close the group, even an empty one: wait_group counts groups."""
    converge(lanes, "-1")
    group = lanes.load("i32", OFFSETS["wgmma_group"])
    some = lanes.op(f"zext i1 {lanes.op(f'icmp ne i32 {lanes.mask}, 0')} to i32")
    lanes.store("i32", lanes.op(f"add i32 {group}, {some}"), OFFSETS["wgmma_group"])
    record.row(lanes, inst)


@meaning("wgmma.wait_group")
def wait_group(lanes: Lanes, inst: Inst) -> None:
    """With an empty log there is nothing to wait for."""
    converge(lanes, "-1")
    count = lanes.load("i32", OFFSETS["wgmma_count"])
    waiting = lanes.op(f"select i1 {lanes.op(f'icmp eq i32 {count}, 0')}, i32 0, i32 {lanes.mask}")
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    lanes.store("<32 x i64>", lanes.integer(inst.operand("n"), 64), operand_slot(0))
    record.row(lanes, inst, record.first_value(lanes, lanes.integer(inst.operand("n"), 64)))
    if lanes.costs:
        lanes.store("i32", record.waiting_lanes(lanes, count), OFFSETS["wgmma_count"])
    block(lanes, WAIT_WGMMA, waiting, lanes.block + 1)
