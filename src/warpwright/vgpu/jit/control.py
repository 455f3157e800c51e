"""Control flow of lane code: every lane has a program counter, and the lowest block that can run goes first.

If all live lanes are in the block (the mask equals ``live``) a branch is a jump; otherwise the program counters are
written and the dispatcher chooses. Backward jumps cost fuel, so that a spinning warp returns to the scheduler; in
watched code, which is explored, every jump costs fuel, so that other warps can run between any two instructions that
open a block.
"""

from __future__ import annotations

from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.lanes import Lanes
from warpwright.vgpu.jit.state import EXITED, OFFSETS
from warpwright.vgpu.program.program import Inst, Symbol

__all__ = ["ENDINGS", "converge", "end_block", "jump"]


def jump(lanes: Lanes, mask: str, target: int) -> None:
    """Send all lanes of the block to ``target``."""
    live = lanes.load("i32", OFFSETS["live"])
    together, apart = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {mask}, {live}')}, label %{together}, label %{apart}")
    lanes.emit(f"{together}:")
    _jump_with_fuel(lanes, target, apart)
    lanes.emit(f"{apart}:")
    lanes.emit(f"call void @set_pc(ptr %w, i32 {mask}, i32 {target})")
    lanes.emit("br label %dispatch")


def _jump_with_fuel(lanes: Lanes, target: int, pause: str) -> None:
    if target > lanes.block and not lanes.watched:
        lanes.emit(f"br label %b{target}")
        return
    left = lanes.op(f"sub i32 {lanes.load('i32', OFFSETS['fuel'])}, 1")
    lanes.store("i32", left, OFFSETS["fuel"])
    lanes.emit(f"br i1 {lanes.op(f'icmp sgt i32 {left}, 0')}, label %b{target}, label %{pause}")


def _bra(lanes: Lanes, inst: Inst, following: int) -> None:
    target = inst.operand("label")
    assert isinstance(target, Symbol)
    if inst.guard is None:
        return jump(lanes, lanes.mask, target.value)
    taken, others = _split(lanes, inst)
    no, all_, mixed, some = lanes.name(), lanes.name(), lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {taken}, 0')}, label %{no}, label %{some}")
    lanes.emit(f"{some}:")
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {others}, 0')}, label %{all_}, label %{mixed}")
    lanes.emit(f"{no}:")
    jump(lanes, lanes.mask, following)
    lanes.emit(f"{all_}:")
    jump(lanes, lanes.mask, target.value)
    lanes.emit(f"{mixed}:")
    lanes.emit(f"call void @set_pc(ptr %w, i32 {taken}, i32 {target.value})")
    lanes.emit(f"call void @set_pc(ptr %w, i32 {others}, i32 {following})")
    lanes.emit("br label %dispatch")


def _split(lanes: Lanes, inst: Inst) -> tuple[str, str]:
    """The lanes of the block whose guard is true, and the others."""
    if inst.guard is None:
        return lanes.mask, "0"
    guard = lanes.mask_of(lanes.register(inst.guard))
    taken = lanes.op(f"and i32 {lanes.mask}, {guard}")
    others = lanes.op(f"xor i32 {lanes.mask}, {taken}")
    record.mark_guard(lanes, inst, taken, others)
    return taken, others


def _brx(lanes: Lanes, inst: Inst, following: int) -> None:
    """Send each lane to the target of its index; an index beyond the list is undefined behaviour: the lane falls
    through."""
    index = inst.operand("a")
    taken, _ = _split(lanes, inst)
    value = lanes.integer(index, 32)
    lanes.emit(f"call void @set_pc(ptr %w, i32 {lanes.mask}, i32 {following})")
    for i, target in enumerate(inst.items("list")):
        assert isinstance(target, Symbol)
        same = lanes.op(f"icmp eq <32 x i32> {value}, {lanes.splat(i, 32)}")
        selected = lanes.op(f"and i32 {taken}, {lanes.mask_of(same)}")
        lanes.emit(f"call void @set_pc(ptr %w, i32 {selected}, i32 {target.value})")
    lanes.emit("br label %dispatch")


def _exit(lanes: Lanes, inst: Inst, following: int) -> None:
    exiting, others = _split(lanes, inst)
    live = lanes.load("i32", OFFSETS["live"])
    lanes.store("i32", lanes.op(f"and i32 {live}, {lanes.op(f'xor i32 {exiting}, -1')}"), OFFSETS["live"])
    lanes.store("i32", "0", OFFSETS["parked"])  # lanes that wait for the exiting lanes check again
    lanes.emit(f"call void @set_pc(ptr %w, i32 {exiting}, i32 {EXITED})")
    if inst.guard is not None:
        lanes.emit(f"call void @set_pc(ptr %w, i32 {others}, i32 {following})")
    lanes.emit("br label %dispatch")


def _trap(lanes: Lanes, inst: Inst, following: int) -> None:
    taken, _ = _split(lanes, inst)
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    trapped, free = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {taken}, 0')}, label %{free}, label %{trapped}")
    lanes.emit(f"{trapped}:")
    lanes.store("<32 x i64>", "zeroinitializer", OFFSETS["addr"])
    lanes.op(f"call i1 @fault(ptr %w, i32 {taken}, i32 {lanes.faults['trap']})")
    lanes.emit("br label %fault")
    lanes.emit(f"{free}:")
    jump(lanes, lanes.mask, following)


ENDINGS = {"bra": _bra, "brx.idx": _brx, "exit": _exit, "ret": _exit, "trap": _trap, "brkpt": _trap}


def end_block(lanes: Lanes, inst: Inst | None, following: int) -> None:
    """Leave a block whose last instruction is ``inst`` (None or not a branch: fall through)."""
    if inst is not None and inst.name in ENDINGS:
        ENDINGS[inst.name](lanes, inst, following)
    else:
        jump(lanes, lanes.mask, following)


def converge(lanes: Lanes, members: str) -> None:
    """Continue if every live lane of ``members`` (i32) is here; otherwise park the lanes present until the rest
    arrive."""
    need = lanes.op(f"and i32 {members}, {lanes.load('i32', OFFSETS['live'])}")
    missing = lanes.op(f"and i32 {need}, {lanes.op(f'xor i32 {lanes.block_mask}, -1')}")
    here, wait = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {missing}, 0')}, label %{here}, label %{wait}")
    lanes.emit(f"{wait}:")
    parked = lanes.op(f"or i32 {lanes.load('i32', OFFSETS['parked'])}, {lanes.block_mask}")
    lanes.store("i32", parked, OFFSETS["parked"])
    lanes.emit(f"call void @set_pc(ptr %w, i32 {lanes.block_mask}, i32 {lanes.block})")
    lanes.emit("br label %dispatch")
    lanes.emit(f"{here}:")
