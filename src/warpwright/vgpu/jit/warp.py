"""Exchange between the lanes of a warp (PTX ISA 9.1 sections 9.7.9.6, 9.7.13.9 to 9.7.13.14)."""

from __future__ import annotations

from collections.abc import Callable

from warpwright.ptx import nodes
from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.lanes import Lanes, bits_of, meaning
from warpwright.vgpu.jit.state import OFFSETS
from warpwright.vgpu.program.program import Inst, Operand

__all__ = ["members"]

_ALL_MEMBERS = ("elect.sync", "bar.warp.sync")  # PTX has them wait for all members, not only for those that run
_IOTA = "<" + ", ".join(f"i32 {i}" for i in range(32)) + ">"


def members(lanes: Lanes, operand: Operand) -> str:
    """A member mask as one i32: the constant, or the value of the lowest active lane."""
    if isinstance(operand, nodes.Imm):
        return str(lanes.constant(operand, 32) & 0xFFFF_FFFF)
    first = lanes.op(f"call i32 @llvm.cttz.i32(i32 {lanes.mask}, i1 true)")
    return lanes.op(f"extractelement <32 x i32> {lanes.integer(operand, 32)}, i32 {first}")


def _one_group(lanes: Lanes, operand: Operand, mask: str) -> None:
    """Send lanes with another member mask to this block again, as a separate group."""
    same = lanes.op(f"icmp eq <32 x i32> {lanes.integer(operand, 32)}, {lanes.spread('i32', mask)}")
    ours = lanes.op(f"and i32 {lanes.mask}, {lanes.mask_of(same)}")
    others = lanes.op(f"xor i32 {lanes.mask}, {ours}")
    lanes.enter(lanes.op(f"xor i32 {lanes.block_mask}, {others}"))
    lanes.store("i32", lanes.block_mask, OFFSETS["mask"])
    lanes.emit(f"call void @set_pc(ptr %w, i32 {others}, i32 {lanes.block})")
    lanes.narrow(ours)


def _gather_members(lanes: Lanes, inst: Inst, tell: Callable[[Lanes, Inst, str], None] = record.meet) -> str:
    """Wait for the member lanes, and record it for checks; returns the members that execute this, as i32."""
    operand = inst.operand("mask")
    mask = members(lanes, operand)
    if not isinstance(operand, nodes.Imm):
        _one_group(lanes, operand, mask)
    converge(lanes, mask)
    here = lanes.op(f"and i32 {lanes.mask}, {mask}")
    if lanes.watched:
        _report_members(lanes, inst, mask, here)
    tell(lanes, inst, here)
    return here


def _report_members(lanes: Lanes, inst: Inst, mask: str, here: str) -> None:
    """Report lanes that are not in their own member mask. Of exited members only what PTX does not allow for by the
    word "non-exited": those of elect.sync and bar.warp.sync."""
    record.absent(lanes, inst, record.NO_MEMBER, lanes.op(f"xor i32 {lanes.mask}, {here}"))
    if inst.name in _ALL_MEMBERS:
        gone = lanes.op(f"and i32 {mask}, {lanes.op(f'xor i32 {here}, -1')}")
        some = lanes.op(f"select i1 {lanes.op(f'icmp ne i32 {gone}, 0')}, i32 {here}, i32 0")
        record.absent(lanes, inst, record.EXITED_MEMBER, some, lanes.resize_scalar(gone, 32, 64))


def _binary(lanes: Lanes, word: str, a: str, b: str) -> str:
    return lanes.op(f"{word} <32 x i32> {a}, {b}")


@meaning("shfl.sync")
def shfl_sync(lanes: Lanes, inst: Inst) -> None:
    """PTX ISA 9.7.9.6: ``c`` holds the clamp (bits 0-4) and the segment mask (bits 8-12)."""
    target, found = inst.operand("d"), inst.find("p")
    here = _gather_members(lanes, inst)
    value, b, c = (lanes.integer(operand, 32) for operand in inst.named("a", "b", "c"))
    low5 = lanes.splat(31, 32)
    b, clamp = _binary(lanes, "and", b, low5), _binary(lanes, "and", c, low5)
    segment = _binary(lanes, "and", _binary(lanes, "lshr", c, lanes.splat(8, 32)), low5)
    outside = _binary(lanes, "xor", segment, low5)
    first = _binary(lanes, "and", _IOTA, segment)
    last = _binary(lanes, "or", first, _binary(lanes, "and", clamp, outside))
    source = {
        "up": lambda: _binary(lanes, "sub", _IOTA, b),
        "down": lambda: _binary(lanes, "add", _IOTA, b),
        "bfly": lambda: _binary(lanes, "xor", _IOTA, b),
        "idx": lambda: _binary(lanes, "or", first, _binary(lanes, "and", b, outside)),
    }[inst["mode"]]()
    inside = lanes.op(f"icmp {'sge' if inst['mode'] == 'up' else 'sle'} <32 x i32> {source}, {last}")
    source = lanes.op(f"select <32 x i1> {inside}, <32 x i32> {source}, <32 x i32> {_IOTA}")
    if lanes.watched:
        executes = _binary(lanes, "and", _binary(lanes, "lshr", lanes.spread("i32", here), source), lanes.splat(1, 32))
        without = lanes.mask_of(lanes.op(f"icmp eq <32 x i32> {executes}, zeroinitializer"))
        record.absent(lanes, inst, record.NO_SOURCE, lanes.op(f"and i32 {here}, {without}"))
    record.offer(lanes, inst, source)
    wide = lanes.resize(value, 32, 64)
    moved = lanes.op(f"call <32 x i64> @permute(<32 x i64> {wide}, <32 x i32> {source})")
    lanes.write(target, lanes.resize(moved, 64, 32), "b32")
    if found is not None:
        lanes.write(found, inside, "pred")


@meaning("vote.sync")
def vote_sync(lanes: Lanes, inst: Inst) -> None:
    here = _gather_members(lanes, inst)
    bits = lanes.mask_of(lanes.read(inst.operand("a"), "pred"))
    hits = lanes.op(f"and i32 {bits}, {here}")
    if inst["mode"] == "ballot":
        return lanes.write(inst.operand("d"), lanes.spread("i32", hits), "b32")
    every = lanes.op(f"icmp eq i32 {hits}, {here}")
    any_ = lanes.op(f"icmp ne i32 {hits}, 0")
    result = {"all": every, "any": any_}.get(inst["mode"])
    if result is None:
        result = lanes.op(f"or i1 {every}, {lanes.op(f'xor i1 {any_}, true')}")
    lanes.write(inst.operand("d"), lanes.spread("i1", result), "pred")


@meaning("match.any.sync", "match.all.sync")
def match_sync(lanes: Lanes, inst: Inst) -> None:
    target, agree = inst.operand("d"), inst.find("p")
    here = _gather_members(lanes, inst)
    value = lanes.resize(lanes.integer(inst.operand("a"), bits_of(inst["type"])), bits_of(inst["type"]), 64)
    same = lanes.op(f"call <32 x i32> @match_any(<32 x i64> {value}, i32 {here})")
    if inst.name == "match.any.sync":
        return lanes.write(target, same, "u32")
    whole = lanes.op(f"icmp eq <32 x i32> {same}, {lanes.spread('i32', here)}")
    lanes.write(target, lanes.op(f"select <32 x i1> {whole}, <32 x i32> {same}, <32 x i32> zeroinitializer"), "u32")
    if agree is not None:
        lanes.write(agree, whole, "pred")


_REDUCTIONS = {
    "add": ("add", 0), "and": ("and", -1), "or": ("or", 0), "xor": ("xor", 0), "min.u32": ("umin", -1),
    "max.u32": ("umax", 0), "min.s32": ("smin", 2**31 - 1), "max.s32": ("smax", -(2**31)),
}  # fmt: skip


@meaning("redux.sync")
def redux_sync(lanes: Lanes, inst: Inst) -> None:
    here = _gather_members(lanes, inst)
    if inst["type"] == "f32":
        return _redux_f32(lanes, inst, here)
    word, neutral = _REDUCTIONS.get(inst["op"]) or _REDUCTIONS[f"{inst['op']}.{inst['type']}"]
    chosen = lanes.op(f"bitcast i32 {here} to <32 x i1>")
    value = lanes.integer(inst.operand("a"), 32)
    value = lanes.op(f"select <32 x i1> {chosen}, <32 x i32> {value}, <32 x i32> {lanes.splat(neutral, 32)}")
    total = lanes.op(f"call i32 @llvm.vector.reduce.{word}.v32i32(<32 x i32> {value})")
    lanes.write(inst.operand("d"), lanes.spread("i32", total), "u32")


def _redux_f32(lanes: Lanes, inst: Inst, here: str) -> None:
    """min and max of float32: NaN lanes are ignored, or with .NaN make the result NaN."""
    words = inst.opcode.split(".")
    nan, neutral = "NaN" in words, 0x7F80_0000 if inst["op"] == "min" else 0xFF80_0000
    value = lanes.read(inst.operand("a"), "f32")
    if "abs" in words:
        value = lanes.op(f"call <32 x float> @llvm.fabs.v32f32(<32 x float> {value})")
        neutral = neutral if inst["op"] == "min" else 0
    fill = f"bitcast (<32 x i32> {lanes.splat(neutral, 32)} to <32 x float>)"
    chosen = lanes.op(f"bitcast i32 {here} to <32 x i1>")
    value = lanes.op(f"select <32 x i1> {chosen}, <32 x float> {value}, <32 x float> {fill}")
    word = f"f{inst['op']}imum" if nan else f"f{inst['op']}"
    total = lanes.op(f"call float @llvm.vector.reduce.{word}.v32f32(<32 x float> {value})")
    lanes.write(inst.operand("d"), lanes.spread("float", total), "f32")


@meaning("elect.sync")
def elect_sync(lanes: Lanes, inst: Inst) -> None:
    """Elect the lowest member; PTX requires only the same choice for the same mask."""
    target, elected = inst.operand("d"), inst.find("p")
    here = _gather_members(lanes, inst)
    lane = lanes.spread("i32", lanes.op(f"call i32 @llvm.cttz.i32(i32 {here}, i1 false)"))
    lanes.write(target, lane, "b32")
    if elected is not None:
        lanes.write(elected, lanes.op(f"icmp eq <32 x i32> {lane}, {_IOTA}"), "pred")


@meaning("bar.warp.sync")
def bar_warp_sync(lanes: Lanes, inst: Inst) -> None:
    _gather_members(lanes, inst, record.order)


@meaning("activemask")
def activemask(lanes: Lanes, inst: Inst) -> None:
    lanes.write(inst.operand("d"), lanes.spread("i32", lanes.mask), "b32")
