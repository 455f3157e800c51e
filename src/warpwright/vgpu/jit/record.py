"""Emits rows of the recorder (timing) and of the watch (checks) into lane code; other lane code has none."""

from __future__ import annotations

from collections.abc import Sequence

from warpwright.vgpu.jit.costs import NEED
from warpwright.vgpu.jit.lanes import Lanes
from warpwright.vgpu.jit.state import LANES, OFFSETS
from warpwright.vgpu.program.operation import box_count
from warpwright.vgpu.program.program import Inst

__all__ = [
    "EXITED_MEMBER", "MEETING", "NO_MEMBER", "NO_SOURCE", "TOUCH", "VALUED", "absent", "access", "bar", "barriers",
    "completion_of", "first_value", "mark_block", "mark_guard", "meet", "order", "row", "signal", "spend", "stored",
    "touch", "wait", "wait_loads", "waiting_lanes",
]  # fmt: skip


_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, of many bits: a hash of a vector's elements
VALUED = ("st", "stmatrix")  # stores of whose rows the values are known, if they are doubted
TOUCH = 1 << 20  # extra of a row for a use of registers
MEETING = 1 << 21  # extra of a row for lanes that waited for one another
NO_SOURCE, NO_MEMBER, EXITED_MEMBER = 1 << 22, 1 << 23, 1 << 24  # extra of a row for lanes that `absent` reports
ADDRESSES, OPERANDS = 1, 2  # tables of 32 words after a row of the watch


def row(lanes: Lanes, inst: Inst, a: str = "0", b: str = "0", mask: str = "", extra: str = "0") -> None:
    """Emit one row if a lane of ``mask`` (default: the active lanes) is set; ``extra`` (28 bits) is for the watch."""
    if lanes.watched:
        shifted = str(int(extra) << 4) if extra.isdigit() else lanes.op(f"shl i64 {extra}, 4")
        _watch(lanes, inst, mask or lanes.mask, shifted, a, b)
    if lanes.costs:
        offset = lanes.costs.offset.get(inst.index, 0)
        lanes.emit(
            f"call void @row(ptr %w, i32 {mask or lanes.mask}, i64 {inst.index}, {_words(offset)}, i64 {a}, i64 {b})"
        )


def _watch(lanes: Lanes, inst: Inst, mask: str, extra: str, a: str = "0", b: str = "0") -> None:
    lanes.emit(f"call void @watch(ptr %w, i32 {mask}, i64 {inst.index}, i64 {extra}, i64 {a}, i64 {b})")


def first_value(lanes: Lanes, value: str) -> str:
    """The value (``<32 x i64>``) of the lowest active lane, if rows are recorded."""
    if not (lanes.costs or lanes.watched):
        return "0"
    safe = lanes.op(f"and i32 {lanes.op(f'call i32 @llvm.cttz.i32(i32 {lanes.mask}, i1 false)')}, 31")
    return lanes.op(f"extractelement <32 x i64> {value}, i32 {safe}")


def _routine(lanes: Lanes, name: str, inst: Inst, masks: str, tail: str = "") -> None:
    if lanes.costs:
        offset = lanes.costs.offset.get(inst.index, 0)
        lanes.emit(f"call void @{name}(ptr %w, {masks}, i64 {inst.index}, {_words(offset)}{tail})")


def _words(stamp: int) -> str:
    """The two words of a warp's packed counters (`costs.elapsed`), as a vector constant of LLVM IR."""
    return f"<2 x i64> <i64 {stamp & (1 << 64) - 1}, i64 {stamp >> 64}>"


def access(lanes: Lanes, inst: Inst, nbytes: int) -> None:
    """Record the sectors or wavefronts of an access whose host addresses are in ``addr``."""
    _routine(lanes, "row_access", inst, f"i32 {lanes.mask}", f", i64 {nbytes}")
    if lanes.watched:
        tables = OPERANDS if inst.index in lanes.doubted and inst.name in VALUED else ADDRESSES
        _watch(lanes, inst, lanes.mask, str(tables), str(nbytes))


def stored(lanes: Lanes, inst: Inst, values: Sequence[str], bits: int) -> None:
    """Put the values (``<32 x i{bits}>``) that a doubted store writes into its row, as one word: one value is exact, of
    several a hash is left."""
    if inst.index not in lanes.doubted:
        return
    word, *others = (lanes.resize(value, bits, 64) for value in values)
    for value in others:
        word = lanes.op(f"add <32 x i64> {lanes.op(f'mul <32 x i64> {word}, {lanes.splat(_FACTOR, 64)}')}, {value}")
    for index, shift in enumerate((0, 20, 42)):  # as `watch.ll` packs operands
        part = lanes.op(f"lshr <32 x i64> {word}, {lanes.splat(shift, 64)}")
        lanes.store("<32 x i64>", part, OFFSETS["operands"] + 256 * index)


def barriers(lanes: Lanes, inst: Inst, sets: bool = False) -> None:
    """Record an mbarrier operation, by its operands in the warp's state; ``sets``: it replaces the barrier."""
    _routine(lanes, "row_barriers", inst, f"i32 {lanes.mask}", f", i1 {int(sets)}")
    if lanes.watched:
        _watch(lanes, inst, lanes.mask, str(OPERANDS))


def bar(lanes: Lanes, inst: Inst, number: str, how: str) -> None:
    """Record the arrival of lanes at a named barrier."""
    _routine(lanes, "row_bar", inst, f"i32 {lanes.mask}", f", i64 {number}, i64 {how}")
    if lanes.watched:
        _watch(lanes, inst, lanes.mask, "0", number, how)


def wait(lanes: Lanes, inst: Inst, done: str) -> None:
    """Record a test of a phase that the lanes of ``done`` pass."""
    _routine(lanes, "row_wait", inst, f"i32 {lanes.mask}, i32 {done}")
    if lanes.watched:
        _watch(lanes, inst, done, str(OPERANDS))


def order(lanes: Lanes, inst: Inst, mask: str = "") -> None:
    """Record a fence or a warp barrier for checks: it orders accesses, but its time is negligible."""
    if lanes.watched:
        _watch(lanes, inst, mask or lanes.mask, "0")


def meet(lanes: Lanes, inst: Inst, mask: str) -> None:
    """Record that lanes have waited for one another: it orders what they execute, not their accesses."""
    if lanes.watched:
        lanes.emit(f"call void @watch_meeting(ptr %w, i32 {mask}, i64 {inst.index}, i64 {MEETING << 4})")


def absent(lanes: Lanes, inst: Inst, kind: int, mask: str, members: str = "0") -> None:
    """Record the lanes of ``mask`` (i32), if any. NO_SOURCE: each takes a value from a lane that does not execute the
    instruction. NO_MEMBER: they are not members themselves. EXITED_MEMBER: ``members`` (i64) have exited."""
    if lanes.watched:
        _watch(lanes, inst, mask, str(kind << 4), members)


def mark_block(lanes: Lanes) -> None:
    """Mark the block as entered."""
    if lanes.watched:
        word = lanes.op(f"getelementptr i64, ptr {lanes.load('ptr', OFFSETS['marks'])}, i64 {lanes.block}")
        lanes.emit(f"store i64 1, ptr {word}")


def mark_guard(lanes: Lanes, inst: Inst, *masks: str) -> None:
    """Mark for which of ``masks`` some lane was active: the guard true, the guard false. Concurrent clusters only ever
    set marks."""
    for way, mask in enumerate(masks if lanes.watched else ()):
        number, some = lanes.guards + 2 * inst.index + way, lanes.op(f"icmp ne i32 {mask}, 0")
        place = lanes.op(f"select i1 {some}, i64 {number}, i64 {lanes.sink}")
        word = lanes.op(f"getelementptr i64, ptr {lanes.load('ptr', OFFSETS['marks'])}, i64 {place}")
        lanes.emit(f"store i64 1, ptr {word}")


def touch(lanes: Lanes, inst: Inst) -> None:
    """Record a use of watched registers; of a selp, the lanes in which its predicate is true, if loads are doubted."""
    if inst.index in lanes.tracked and inst.traits.queue != "wgmma" and not inst.name.startswith("shfl"):
        chosen = "0"
        if lanes.doubted and inst.name == "selp":
            chosen = lanes.resize_scalar(lanes.mask_of(lanes.read(inst.operand("c"), "pred")), 32, 64)
        _watch(lanes, inst, lanes.mask, str(TOUCH << 4), chosen)


def offer(lanes: Lanes, inst: Inst, source: str) -> None:
    """Record the use of watched registers by a shuffle, with the lanes that some lane takes its value from."""
    if inst.index in lanes.tracked:
        bits = lanes.op(f"shl <32 x i32> {lanes.splat(1, 32)}, {source}")
        bits = lanes.op(f"select <32 x i1> {lanes.active}, <32 x i32> {bits}, <32 x i32> zeroinitializer")
        taken = lanes.op(f"call i32 @llvm.vector.reduce.or.v32i32(<32 x i32> {bits})")
        _watch(lanes, inst, lanes.mask, str(TOUCH << 4), lanes.resize_scalar(taken, 32, 64))


def wait_loads(lanes: Lanes, inst: Inst) -> None:
    """Record a wait for the loads whose values the instruction is the first to need."""
    if lanes.costs:
        _need(lanes, lanes.costs.needs.get(inst.index, ()), lanes.costs.offset.get(inst.index, 0))


def spend(lanes: Lanes) -> None:
    """Add the cost of the block at its end."""
    if lanes.costs:
        total = lanes.costs.total[lanes.block]
        _need(lanes, lanes.costs.ends.get(lanes.block, ()), total)
        lanes.emit(f"call void @spend(ptr %w, {_words(total)})")


def signal(lanes: Lanes, inst: Inst) -> None:
    """Emit, in code for timing only, the signal of the instruction's completion, at its issue."""
    kind = completion_of(inst)
    if not lanes.costs or kind in ("", "nothing"):
        return
    count = 1 if kind in ("commit", "lane") else 0
    nbytes, pair = "0", kind == "tensor" and inst["group"] == "cta_group::2"
    if kind == "tensor":
        nbytes = lanes.op(f"call i64 @box_bytes(ptr %w, i32 {lanes.mask}, i64 {_operand(lanes, inst, 'map')})")
        nbytes = nbytes if box_count(inst) == 1 else lanes.op(f"mul i64 {nbytes}, {box_count(inst)}")
    elif kind == "bulk":
        nbytes = lanes.op(f"and i64 {_operand(lanes, inst, 'size')}, 4294967295")
    bar, many, box = (_column(inst, name) for name in ("mbar", "mask", "dst_mem"))
    lanes.emit(
        f"call void @signal(ptr %w, i32 {lanes.mask}, i64 {count}, i64 {nbytes}, i64 {bar}, i64 {many}, i64 {box}, "
        f"i1 {int(pair)})"
    )


def _column(inst: Inst, name: str) -> int:
    """The index of an operand's first word in the record; -1 if it is absent."""
    return inst.columns[name].start if name in inst.columns else -1


def _operand(lanes: Lanes, inst: Inst, name: str) -> str:
    """The lowest active lane's word of the record that was just queued."""
    return first_value(lanes, lanes.load("<32 x i64>", OFFSETS["operands"] + 8 * LANES * _column(inst, name)))


def completion_of(inst: Inst) -> str:
    """How `signal` completes an instruction ("nothing": it signals no barrier); "" if the machine completes it."""
    found = _SIGNALLED.get(inst.name, "")
    return "nothing" if found in ("tensor", "bulk") and "mbar" not in inst.columns else found


_SIGNALLED = {
    "cp.async.bulk.tensor": "tensor",
    "cp.async.bulk": "bulk",
    "tcgen05.commit": "commit",
    "cp.async.mbarrier.arrive": "lane",
    "tcgen05.mma": "nothing",
    "tcgen05.mma.ws": "nothing",
    "tcgen05.cp": "nothing",
    "tcgen05.shift": "nothing",
    "cp.async": "nothing",
    "cp.reduce.async.bulk": "nothing",
    "cp.reduce.async.bulk.tensor": "nothing",
}


def waiting_lanes(lanes: Lanes, waiting: str) -> str:
    """The lanes that wait for a group: none if operations complete at their issue."""
    if not lanes.costs:
        return waiting
    keeps = lanes.op(f"xor i32 {lanes.load('i32', OFFSETS['signals'])}, -1")
    return lanes.op(f"and i32 {waiting}, {keeps}")


def _need(lanes: Lanes, loads: tuple[int, ...], offset: int) -> None:
    for load in loads:
        lanes.emit(f"call void @row(ptr %w, i32 {lanes.block_mask}, i64 {NEED + load}, {_words(offset)}, i64 0, i64 0)")
