"""Asynchronous instructions: issue appends a record to the queue, an engine completes it later.

A record is 16 words: instruction, rank << 32 | warp << 8 | lane, then the operands in order, each as one word an
address, register or vector element (`flatten`). Instructions that the machine must perform at once, before the lanes
continue, are services: the same record, but the lanes wait.
"""

from __future__ import annotations

from warpwright import isa
from warpwright.errors import DescriptorError
from warpwright.layout import tmem_ld_map
from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.memory import address
from warpwright.vgpu.jit.state import OFFSETS, RECORD_WORDS, WAIT_SERVICE
from warpwright.vgpu.jit.sync import block, one_more, operand_slot, refuse
from warpwright.vgpu.program import services
from warpwright.vgpu.program.program import Inst, Operand, Register, flatten, words

__all__ = ["NOT_YET", "flatten", "issue"]

# Forms of a queue that the virtual GPU refuses, with the reason.
NOT_YET = {
    "tcgen05.mma.sp": "the tensor engine does not multiply sparse operands",
    "tcgen05.ld.red": "the reduction of a load from tensor memory is not computed",
}
_ASYNC = tuple(
    name
    for name, form in isa.FORMS.items()
    if form.queued and form.traits.queue in ("tensor", "copy") and name not in NOT_YET
)
_SERVICES = (*services.SERVICES, *(name for name, form in isa.FORMS.items() if form.traits.queue == "service"))


def _word(lanes: Lanes, kind: str, operand: Operand) -> str:
    if kind == "address":
        return address(lanes, operand)
    if isinstance(operand, Register) and operand.bits == 1:
        return lanes.op(f"zext <32 x i1> {lanes.register(operand)} to <32 x i64>")
    return lanes.integer(operand, 64)


def push(lanes: Lanes, inst: Inst) -> None:
    """Queue a record for every active lane; if the queue is full the kernel returns and resumes at this block."""
    operands = words(inst)
    if len(operands) > RECORD_WORDS - 2:
        raise lanes.unsupported(f"{len(operands)} operands")
    values = [_word(lanes, kind, operand) for kind, operand in operands]
    for index, value in enumerate(values):
        lanes.store("<32 x i64>", value, operand_slot(index))
    mask = lanes.mask
    if inst.has("bulk_group") and inst.name.startswith("cp.async"):
        lanes.narrow(_distinct(lanes, values))
    _record(lanes, inst)
    if lanes.mask != mask:
        lanes.narrow(mask)


def _record(lanes: Lanes, inst: Inst) -> None:
    enqueue(lanes, inst.index)
    if lanes.costs or lanes.watched:
        count = lanes.op(f"call i32 @llvm.ctpop.i32(i32 {lanes.mask})")
        record.row(lanes, inst, lanes.resize_scalar(count, 32, 64))
        record.signal(lanes, inst)


def _distinct(lanes: Lanes, values: list[str]) -> str:
    """The active lanes whose operands differ from those of all lower active lanes (i32).

    ptxas 13.0 makes one bulk store of those that lanes of a warp issue with equal operands: its loop takes all lanes
    with the operands of the first one (R2UR with a predicate). In its loop over loads, reductions and copies to shared
    memory each lane is elected once, as `tests/conformance` has it of an H200.
    """
    alike = lanes.op(f"insertelement <32 x i32> poison, i32 {lanes.mask}, i32 0")
    alike = lanes.op(f"shufflevector <32 x i32> {alike}, <32 x i32> poison, <32 x i32> zeroinitializer")
    for value in values:
        equal = lanes.op(f"call <32 x i32> @match_any(<32 x i64> {value}, i32 {lanes.mask})")
        alike = lanes.op(f"and <32 x i32> {alike}, {equal}")
    own = ", ".join(f"i32 {(1 << lane) - 1}" for lane in range(32))
    lower = lanes.op(f"and <32 x i32> {alike}, <{own}>")
    first = lanes.mask_of(lanes.op(f"icmp eq <32 x i32> {lower}, zeroinitializer"))
    return lanes.op(f"and i32 {first}, {lanes.mask}")


def enqueue(lanes: Lanes, number: int) -> None:
    room, full = lanes.name(), lanes.name()
    ok = lanes.op(f"call i1 @push(ptr %w, i32 {lanes.mask}, i32 {number})")
    lanes.emit(f"br i1 {ok}, label %{room}, label %{full}")
    lanes.emit(f"{full}:")
    lanes.emit(f"call void @set_pc(ptr %w, i32 {lanes.block_mask}, i32 {lanes.block})")
    lanes.emit("br label %full")
    lanes.emit(f"{room}:")


@meaning(*_ASYNC)
def issue(lanes: Lanes, inst: Inst) -> None:
    push(lanes, inst)
    if inst.has("bulk_group"):
        _count(lanes, "uncommitted")


@meaning("cp.async")
def cp_async(lanes: Lanes, inst: Inst) -> None:
    push(lanes, inst)
    _count(lanes, "lane_uncommitted")


@meaning("cp.async.bulk.prefetch")
def cp_async_bulk_prefetch(lanes: Lanes, inst: Inst) -> None:
    """A hint; but an H200 stops at an address that is not a multiple of 16 bytes."""
    where = address(lanes, inst.operand("src_mem"))
    low = lanes.op(f"and <32 x i64> {where}, {lanes.splat(15, 64)}")
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    refuse(lanes, lanes.op(f"icmp ne <32 x i64> {low}, zeroinitializer"), "misaligned", where)


@meaning("cp.async.mbarrier.arrive")
def cp_async_mbarrier_arrive(lanes: Lanes, inst: Inst) -> None:
    """Without ``.noinc`` the arrival first increments the pending count: it keeps the phase open, and nothing else."""
    push(lanes, inst)
    if not inst.has("noinc"):
        one_more(lanes, inst)


def _count(lanes: Lanes, field: str) -> None:
    """Count one more operation of each active lane since its last commit_group."""
    value = lanes.load("<32 x i32>", OFFSETS[field])
    one = lanes.op(f"zext <32 x i1> {lanes.active} to <32 x i32>")
    lanes.store("<32 x i32>", lanes.op(f"add <32 x i32> {value}, {one}"), OFFSETS[field])


@meaning(*_SERVICES)
def service(lanes: Lanes, inst: Inst) -> None:
    """Warp-wide services are issued once, by the lowest lane."""
    whole = inst.form.collective
    if whole:
        converge(lanes, "-1")
    waiting = lanes.mask
    if whole:
        lanes.only_first()
    push(lanes, inst)
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    block(lanes, WAIT_SERVICE, waiting, lanes.block + 1)


def _plan(lanes: Lanes, inst: Inst, registers: tuple[Operand, ...], flags: int) -> tuple[int, int]:
    """Address of the table that `tmem_flush` reads, and the columns of the access."""
    rows, columns = tmem_ld_map(inst["shape"], int(inst["num"][1:]), inst.number("split"))
    if flags & 2:
        columns = columns * 2
    slots = [lanes.slots[register.name] for register in registers if isinstance(register, Register)]
    if len(slots) != len(rows) or len(registers) != len(rows):
        raise DescriptorError(f"`{inst.opcode}` moves {len(rows)} registers; {len(registers)} are given.")
    cells = (columns * 128 + rows).ravel().tolist()
    width = int(columns.max()) + 1 + (flags >> 1)
    return lanes.table([len(slots), flags, *slots, *cells]), width


def _tmem(lanes: Lanes, inst: Inst, registers: tuple[Operand, ...], flags: int) -> None:
    converge(lanes, "-1")
    table, width = _plan(lanes, inst, registers, flags)
    lanes.tmem_idle = False
    with lanes.if_any():
        _pend(lanes, inst, table, width)


def _pend(lanes: Lanes, inst: Inst, table: int, width: int) -> None:
    value = lanes.resize(address(lanes, inst.operand("taddr")), 64, 32)
    first = lanes.op(f"call i32 @llvm.cttz.i32(i32 {lanes.mask}, i1 false)")
    taddr = lanes.op(f"extractelement <32 x i32> {value}, i32 {first}")
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    lanes.check(lanes.op(f"call i1 @tmem_check(ptr %w, i32 {taddr}, i32 {width}, i32 {inst['shape'][:2]})"))
    where = lanes.op(f"ptrtoint ptr {lanes.base(table)} to i64")
    lanes.emit(f"call void @tmem_pend(ptr %w, i32 {taddr}, i64 {where})")
    record.row(lanes, inst, "0", lanes.resize_scalar(taddr, 32, 64))


@meaning("tcgen05.ld")
def tcgen05_ld(lanes: Lanes, inst: Inst) -> None:
    """Defer the load: tcgen05.wait::ld, or the first instruction that reads a register of it, fills the registers."""
    _tmem(lanes, inst, inst.items("d"), 2 if inst["pack"] else 0)
    lanes.reload_registers()


@meaning("tcgen05.st")
def tcgen05_st(lanes: Lanes, inst: Inst) -> None:
    _tmem(lanes, inst, inst.items("b"), 3 if inst["unpack"] else 1)


@meaning("tcgen05.wait::ld", "tcgen05.wait::st")
def tcgen05_wait(lanes: Lanes, inst: Inst) -> None:
    converge(lanes, "-1")
    lanes.flush_tmem()
    record.row(lanes, inst)
