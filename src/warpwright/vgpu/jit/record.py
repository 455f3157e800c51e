"""Rows of the recorder and of the watch, emitted into lane code that is compiled for timing or for checks, and into no
other."""

from __future__ import annotations

from warpwright.vgpu.jit.costs import NEED
from warpwright.vgpu.jit.lanes import Lanes
from warpwright.vgpu.jit.state import LANES, OFFSETS
from warpwright.vgpu.program.program import Inst

__all__ = [
    "TOUCH", "access", "bar", "barriers", "enter", "first", "needs", "order", "row", "settled", "signal", "signalled",
    "spend", "touch", "wait", "ways",
]  # fmt: skip


TOUCH = 1 << 20  # extra of a row for a use of registers
ADDRESSES, OPERANDS = 1, 2  # tables of 32 words behind a row of the watch


def row(lanes: Lanes, inst: Inst, a: str = "0", b: str = "0", mask: str = "", extra: str = "0") -> None:
    """One row where a lane of ``mask`` (the active ones) is on; ``extra`` (28 bits) is for the watch."""
    if lanes.watched:
        shifted = str(int(extra) << 4) if extra.isdigit() else lanes.op(f"shl i64 {extra}, 4")
        _watch(lanes, inst, mask or lanes.mask, shifted, a, b)
    if lanes.costs:
        offset = lanes.costs.offset.get(inst.index, 0)
        lanes.emit(
            f"call void @row(ptr %w, i32 {mask or lanes.mask}, i64 {inst.index}, i64 {offset}, i64 {a}, i64 {b})"
        )


def _watch(lanes: Lanes, inst: Inst, mask: str, extra: str, a: str = "0", b: str = "0") -> None:
    lanes.emit(f"call void @watch(ptr %w, i32 {mask}, i64 {inst.index}, i64 {extra}, i64 {a}, i64 {b})")


def first(lanes: Lanes, value: str) -> str:
    """The value (``<32 x i64>``) of the lowest active lane, where rows are recorded."""
    if not (lanes.costs or lanes.watched):
        return "0"
    safe = lanes.op(f"and i32 {lanes.op(f'call i32 @llvm.cttz.i32(i32 {lanes.mask}, i1 false)')}, 31")
    return lanes.op(f"extractelement <32 x i64> {value}, i32 {safe}")


def _routine(lanes: Lanes, name: str, inst: Inst, masks: str, tail: str = "") -> None:
    if lanes.costs:
        offset = lanes.costs.offset.get(inst.index, 0)
        lanes.emit(f"call void @{name}(ptr %w, {masks}, i64 {inst.index}, i64 {offset}{tail})")


def access(lanes: Lanes, inst: Inst, nbytes: int) -> None:
    """The sectors or wavefronts of an access whose host addresses are in ``addr``."""
    _routine(lanes, "row_access", inst, f"i32 {lanes.mask}", f", i64 {nbytes}")
    if lanes.watched:
        _watch(lanes, inst, lanes.mask, str(ADDRESSES), str(nbytes))


def barriers(lanes: Lanes, inst: Inst) -> None:
    """What an mbarrier operation does, by its operands in the warp's state."""
    _routine(lanes, "row_barriers", inst, f"i32 {lanes.mask}")
    if lanes.watched:
        _watch(lanes, inst, lanes.mask, str(OPERANDS))


def bar(lanes: Lanes, inst: Inst, number: str, how: str) -> None:
    """A named barrier that lanes come to."""
    _routine(lanes, "row_bar", inst, f"i32 {lanes.mask}", f", i64 {number}, i64 {how}")
    if lanes.watched:
        _watch(lanes, inst, lanes.mask, "0", number, how)


def wait(lanes: Lanes, inst: Inst, done: str) -> None:
    """A test of a phase that the lanes of ``done`` pass."""
    _routine(lanes, "row_wait", inst, f"i32 {lanes.mask}, i32 {done}")
    if lanes.watched:
        _watch(lanes, inst, done, str(OPERANDS))


def order(lanes: Lanes, inst: Inst, mask: str = "") -> None:
    """A fence, or a barrier of lanes of the warp: it takes no time worth a row, but orders accesses."""
    if lanes.watched:
        _watch(lanes, inst, mask or lanes.mask, "0")


def enter(lanes: Lanes) -> None:
    """The block is entered."""
    if lanes.watched:
        lanes.emit(f"store i64 1, ptr inttoptr (i64 {lanes.entered + 8 * lanes.block} to ptr)")


def ways(lanes: Lanes, inst: Inst, *masks: str) -> None:
    """The lanes for which the guard of an instruction holds, and of a branch those for which it does not: whether there
    are any. Clusters that run at the same time only ever add to that."""
    for way, mask in enumerate(masks if lanes.watched else ()):
        place, some = lanes.ways + 8 * (2 * inst.index + way), lanes.op(f"icmp ne i32 {mask}, 0")
        word = lanes.op(f"select i1 {some}, i64 {place}, i64 {lanes.nowhere}")
        lanes.emit(f"store i64 1, ptr {lanes.op(f'inttoptr i64 {word} to ptr')}")


def touch(lanes: Lanes, inst: Inst) -> None:
    """A use of registers that belong to a wgmma."""
    if inst.index in lanes.tracked and inst.traits.queue != "wgmma":
        _watch(lanes, inst, lanes.mask, str(TOUCH << 4))


def needs(lanes: Lanes, inst: Inst) -> None:
    """Loads whose values the instruction is the first to wait for."""
    if lanes.costs:
        _need(lanes, lanes.costs.needs.get(inst.index, ()), lanes.costs.offset.get(inst.index, 0))


def spend(lanes: Lanes) -> None:
    """The block is over: count what it costs."""
    if lanes.costs:
        total = lanes.costs.total[lanes.block]
        _need(lanes, lanes.costs.ends.get(lanes.block, ()), total)
        lanes.emit(f"call void @spend(ptr %w, i64 {total})")


def signal(lanes: Lanes, inst: Inst) -> None:
    """In runs without numbers: what the instruction completes, it completes at once."""
    kind = signalled(inst)
    if not lanes.costs or kind in ("", "nothing"):
        return
    count = 1 if kind in ("commit", "lane") else 0
    nbytes, pair = "0", kind == "tensor" and inst["group"] == "cta_group::2"
    if kind == "tensor":
        nbytes = lanes.op(f"call i64 @box_bytes(ptr %w, i32 {lanes.mask}, i64 {_operand(lanes, inst, 'map')})")
    elif kind == "bulk":
        nbytes = lanes.op(f"and i64 {_operand(lanes, inst, 'size')}, 4294967295")
    bar, many, box = (_column(inst, name) for name in ("mbar", "mask", "dst_mem"))
    lanes.emit(
        f"call void @signal(ptr %w, i32 {lanes.mask}, i64 {count}, i64 {nbytes}, i64 {bar}, i64 {many}, i64 {box}, "
        f"i1 {int(pair)})"
    )


def _column(inst: Inst, name: str) -> int:
    """The word of an operand in the record; -1 for one that is left out."""
    return inst.columns[name].start if name in inst.columns else -1


def _operand(lanes: Lanes, inst: Inst, name: str) -> str:
    """The lowest active lane's word of the record that was just queued."""
    return first(lanes, lanes.load("<32 x i64>", OFFSETS["operands"] + 8 * LANES * _column(inst, name)))


def signalled(inst: Inst) -> str:
    """How `signal` completes an instruction ("nothing": nobody waits for it at a barrier); "" when the machine does."""
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


def settled(lanes: Lanes, waiting: str) -> str:
    """The lanes that wait for a group: none where everything is done at once."""
    if not lanes.costs:
        return waiting
    keeps = lanes.op(f"xor i32 {lanes.load('i32', OFFSETS['signals'])}, -1")
    return lanes.op(f"and i32 {waiting}, {keeps}")


def _need(lanes: Lanes, loads: tuple[int, ...], offset: int) -> None:
    for load in loads:
        lanes.emit(f"call void @row(ptr %w, i32 {lanes.block_mask}, i64 {NEED + load}, i64 {offset}, i64 0, i64 0)")
