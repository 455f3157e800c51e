"""Comparison and selection of every type (PTX ISA 9.1 sections 9.7.6 and 9.7.7)."""

from __future__ import annotations

from warpwright.vgpu.jit.ir import choose, has, is_float, repeat
from warpwright.vgpu.jit.lanes import Lanes, bits_of, meaning
from warpwright.vgpu.jit.rounding import FORMATS, load
from warpwright.vgpu.program.program import Inst, Operand

__all__: list[str] = []

ORDERED = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord", "nan": "uno"}
UNORDERED = {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"}
FLOATING = ORDERED | UNORDERED
UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}

ONE = {"f32": 0x3F800000, "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}
LOW = ", ".join(f"i32 {2 * lane}" for lane in range(32))
HIGH = ", ".join(f"i32 {2 * lane + 1}" for lane in range(32))
TWICE = ", ".join(f"i32 {lane // 2}" for lane in range(64))


def elements(kind: str) -> int:
    """Comparisons a warp: two a lane for packed types."""
    return FORMATS[kind].count if is_float(kind) else 32


def compare(lanes: Lanes, inst: Inst, a: Operand, b: Operand) -> str:
    """Whether the comparison is true, as i1 of `elements` lanes."""
    kind, relation = inst["type"], inst["cmp"]
    if is_float(kind):
        ftz = has(inst, "ftz")
        x, y = load(lanes, a, kind, ftz), load(lanes, b, kind, ftz)
        return lanes.op(f"fcmp {FLOATING[relation]} {FORMATS[kind].work} {x}, {y}")
    word = relation if relation in ("eq", "ne") else UNSIGNED[relation]
    if kind.startswith("s"):
        word = word.replace("u", "s")
    return lanes.op(f"icmp {word} <32 x i{bits_of(kind)}> {lanes.read(a, kind)}, {lanes.read(b, kind)}")


def combine(lanes: Lanes, inst: Inst, mask: str, count: int) -> str:
    """The comparison combined with a predicate, if the instruction has one."""
    if not inst["bool"]:
        return mask
    other = lanes.read(inst.operand("c"), "pred")
    if count == 64:
        other = lanes.op(f"shufflevector <32 x i1> {other}, <32 x i1> poison, <64 x i32> <{TWICE}>")
    return lanes.op(f"{inst['bool']} <{count} x i1> {mask}, {other}")


@meaning("setp")
def setp(lanes: Lanes, inst: Inst) -> None:
    """``p|q``: the comparison and its complement; for packed types, the comparisons of the low and of the high half."""
    count, q = elements(inst["type"]), inst.find("q")
    mask = compare(lanes, inst, *inst.named("a", "b"))
    if count == 64:
        mask = combine(lanes, inst, mask, 64)
        results = [lanes.op(f"shufflevector <64 x i1> {mask}, <64 x i1> poison, <32 x i32> <{x}>") for x in (LOW, HIGH)]
    else:
        opposite = lanes.op(f"xor <32 x i1> {mask}, splat (i1 true)") if q else mask
        results = [combine(lanes, inst, each, 32) for each in (mask, opposite)]
    lanes.write(inst.operand("p"), results[0], "pred")
    if q:
        lanes.write(q, results[1], "pred")


@meaning("set")
def set_(lanes: Lanes, inst: Inst) -> None:
    dtype, count = inst["dtype"], elements(inst["type"])
    mask = combine(lanes, inst, compare(lanes, inst, *inst.named("a", "b")), count)
    bits = bits_of(dtype) * 32 // count
    lane_type = f"<{count} x i{bits}>"
    value = choose(lanes, mask, lane_type, repeat(ONE.get(dtype, -1), bits), "zeroinitializer")
    whole = bits_of(dtype)
    lanes.write(inst.operand("d"), lanes.bitcast(value, lane_type, f"<32 x i{whole}>"), f"b{whole}")


@meaning("selp")
def selp(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    select(lanes, inst, d, lanes.read(c, "pred"), a, b)


@meaning("slct")
def slct(lanes: Lanes, inst: Inst) -> None:
    """-0 counts as not negative, NaN as negative (PTX 9.7.6.4)."""
    d, a, b, c = inst.named("d", "a", "b", "c")
    if inst["ctype"] == "f32":
        mask = lanes.op(f"fcmp oge <32 x float> {load(lanes, c, 'f32', has(inst, 'ftz'))}, zeroinitializer")
    else:
        mask = lanes.op(f"icmp sge <32 x i32> {lanes.read(c, 's32')}, zeroinitializer")
    select(lanes, inst, d, mask, a, b)


def select(lanes: Lanes, inst: Inst, d: Operand, mask: str, a: Operand, b: Operand) -> None:
    bits = bits_of(inst["type"])
    value = choose(lanes, mask, f"<32 x i{bits}>", lanes.integer(a, bits), lanes.integer(b, bits))
    lanes.write(d, value, f"b{bits}")
