"""Integer arithmetic (PTX ISA 9.1 sections 9.7.1 and 9.7.2).

Results that PTX leaves open are those of the hardware: a quotient or remainder by zero is all ones (ptxas selects the
complement of the divisor).
"""

from __future__ import annotations

from warpwright.vgpu.jit.ir import arithmetic, call, choose, has, repeat
from warpwright.vgpu.jit.lanes import Lanes, bits_of, meaning
from warpwright.vgpu.jit.outline import outlined
from warpwright.vgpu.program.program import Inst, Operand, Register

__all__ = ["CARRY"]

CARRY = Register("%cc", 1)


def shape(type: str) -> str:
    """The LLVM type of the elements of an integer type: u16x2 and s16x2 are 64 of i16."""
    return "<64 x i16>" if type.endswith("x2") else f"<32 x i{bits_of(type)}>"


def load(lanes: Lanes, operand: Operand, type: str) -> str:
    bits = bits_of(type)
    return lanes.bitcast(lanes.integer(operand, bits), f"<32 x i{bits}>", shape(type))


def store(lanes: Lanes, operand: Operand, value: str, type: str) -> None:
    lanes.write(operand, lanes.bitcast(value, shape(type), f"<32 x i{bits_of(type)}>"), type)


def signed(type: str) -> bool:
    return type.startswith("s")


@arithmetic("add", "sub", floating=False)
def add(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind, lane_type = inst["type"], shape(inst["type"])
    x, y = load(lanes, a, kind), load(lanes, b, kind)
    if has(inst, "sat"):
        value = call(lanes, f"s{inst.name}.sat", lane_type, x, y)
    else:
        value = lanes.op(f"{inst.name} {lane_type} {x}, {y}")
    store(lanes, d, value, kind)


def product(lanes: Lanes, kind: str, mode: str, x: str, y: str) -> str:
    """Low half, high half or all of the product of two values of an integer type."""
    bits = bits_of(kind)
    if mode == "lo":
        return lanes.op(f"mul <32 x i{bits}> {x}, {y}")
    double = f"<32 x i{2 * bits}>"
    x, y = (lanes.resize(value, bits, 2 * bits, signed(kind)) for value in (x, y))
    full = lanes.op(f"mul {double} {x}, {y}")
    if mode == "wide":
        return full
    return lanes.resize(lanes.op(f"lshr {double} {full}, {repeat(bits, 2 * bits)}"), 2 * bits, bits)


def result_type(inst: Inst) -> str:
    """The type of a product: twice as wide for ``.wide``."""
    kind = inst["type"]
    return f"{kind[0]}{2 * bits_of(kind)}" if inst["mode"] == "wide" else kind


@arithmetic("mul", floating=False)
def mul(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind = inst["type"]
    value = product(lanes, kind, inst["mode"], lanes.read(a, kind), lanes.read(b, kind))
    lanes.write(d, value, result_type(inst))


def accumulate(lanes: Lanes, inst: Inst, value: str, kind: str, c: Operand) -> str:
    """``value + c``, saturated if the instruction says so."""
    lane_type, addend = shape(kind), lanes.read(c, kind)
    if has(inst, "sat"):
        return call(lanes, "sadd.sat", lane_type, value, addend)
    return lanes.op(f"add {lane_type} {value}, {addend}")


@arithmetic("mad", floating=False)
def mad(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    kind, wide = inst["type"], result_type(inst)
    value = product(lanes, kind, inst["mode"], lanes.read(a, kind), lanes.read(b, kind))
    if has(inst, "cc"):
        sum_with_carry(lanes, inst, d, kind, value, lanes.read(c, kind))
    else:
        lanes.write(d, accumulate(lanes, inst, value, wide, c), wide)


def product24(lanes: Lanes, inst: Inst) -> str:
    """Bits 31..0 or 47..16 of the product of the low 24 bits of two operands."""
    kind = inst["type"]
    word = "ashr" if signed(kind) else "lshr"
    low = (lanes.op(f"shl <32 x i32> {lanes.read(x, kind)}, {repeat(8, 32)}") for x in inst.named("a", "b"))
    x, y = (lanes.op(f"{word} <32 x i32> {value}, {repeat(8, 32)}") for value in low)
    if inst["mode"] == "lo":
        return lanes.op(f"mul <32 x i32> {x}, {y}")
    full = product(lanes, kind, "wide", x, y)
    return lanes.resize(lanes.op(f"lshr <32 x i64> {full}, {repeat(16, 64)}"), 64, 32)


@meaning("mul24")
def mul24(lanes: Lanes, inst: Inst) -> None:
    lanes.write(inst.operand("d"), product24(lanes, inst), inst["type"])


@meaning("mad24")
def mad24(lanes: Lanes, inst: Inst) -> None:
    d, c = inst.named("d", "c")
    kind = inst["type"]
    lanes.write(d, accumulate(lanes, inst, product24(lanes, inst), kind, c), kind)


@meaning("sad")
def sad(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    kind, lane_type = inst["type"], shape(inst["type"])
    x, y = lanes.read(a, kind), lanes.read(b, kind)
    less = lanes.op(f"icmp {'slt' if signed(kind) else 'ult'} {lane_type} {x}, {y}")
    down, up = lanes.op(f"sub {lane_type} {x}, {y}"), lanes.op(f"sub {lane_type} {y}, {x}")
    distance = choose(lanes, less, lane_type, up, down)
    lanes.write(d, lanes.op(f"add {lane_type} {distance}, {lanes.read(c, kind)}"), kind)


@arithmetic("div", floating=False)
@outlined
def div(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind, lane_type = inst["type"], shape(inst["type"])
    x, y = lanes.read(a, kind), lanes.read(b, kind)
    zero, divisor = harmless(lanes, kind, y)
    if signed(kind):
        quotient = lanes.op(f"sdiv {lane_type} {x}, {divisor}")
        minus_one = lanes.op(f"icmp eq {lane_type} {y}, {repeat(-1, bits_of(kind))}")
        quotient = choose(lanes, minus_one, lane_type, lanes.op(f"sub {lane_type} zeroinitializer, {x}"), quotient)
    else:
        quotient = lanes.op(f"udiv {lane_type} {x}, {divisor}")
    lanes.write(d, choose(lanes, zero, lane_type, repeat(-1, bits_of(kind)), quotient), kind)


@meaning("rem")
@outlined
def rem(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind, lane_type = inst["type"], shape(inst["type"])
    zero, divisor = harmless(lanes, kind, lanes.read(b, kind))
    remainder = lanes.op(f"{kind[0]}rem {lane_type} {lanes.read(a, kind)}, {divisor}")
    lanes.write(d, choose(lanes, zero, lane_type, repeat(-1, bits_of(kind)), remainder), kind)


def harmless(lanes: Lanes, kind: str, divisor: str) -> tuple[str, str]:
    """Where the divisor is zero, and one that cannot trap: 1 in place of 0 and, if signed, of -1."""
    bits, lane_type = bits_of(kind), shape(kind)
    zero = lanes.op(f"icmp eq {lane_type} {divisor}, zeroinitializer")
    bad = zero
    if signed(kind):
        one_more = lanes.op(f"add {lane_type} {divisor}, {repeat(1, bits)}")
        bad = lanes.op(f"icmp ult {lane_type} {one_more}, {repeat(2, bits)}")
    return zero, choose(lanes, bad, lane_type, repeat(1, bits), divisor)


@arithmetic("abs", floating=False)
def abs_(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    lanes.write(d, call(lanes, "abs", shape(kind), lanes.read(a, kind), tail=", i1 false"), kind)


@arithmetic("neg", floating=False)
def neg(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    lanes.write(d, lanes.op(f"sub {shape(kind)} zeroinitializer, {lanes.read(a, kind)}"), kind)


@arithmetic("min", "max", floating=False)
def min_max(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind, lane_type = inst["type"], shape(inst["type"])
    sign = "s" if signed(kind) else "u"
    value = call(lanes, f"{sign}{inst.name}", lane_type, load(lanes, a, kind), load(lanes, b, kind))
    if has(inst, "relu"):
        value = call(lanes, "smax", lane_type, value, "zeroinitializer")
    store(lanes, d, value, kind)


@meaning("popc", "clz")
def count(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    name, tail = ("ctpop", "") if inst.name == "popc" else ("ctlz", ", i1 false")
    value = call(lanes, name, shape(kind), lanes.read(a, kind), tail=tail)
    lanes.write(d, lanes.resize(value, bits_of(kind), 32), "u32")


@meaning("bfind")
def bfind(lanes: Lanes, inst: Inst) -> None:
    """-1 where no bit counts, with ``.shiftamt`` too."""
    d, a = inst.named("d", "a")
    kind, lane_type, bits = inst["type"], shape(inst["type"]), bits_of(inst["type"])
    value = lanes.read(a, kind)
    if signed(kind):
        fill = lanes.op(f"ashr {lane_type} {value}, {repeat(bits - 1, bits)}")
        value = lanes.op(f"xor {lane_type} {value}, {fill}")
    shift = call(lanes, "ctlz", lane_type, value, tail=", i1 false")
    if has(inst, "shiftamt"):
        none = lanes.op(f"icmp eq {lane_type} {value}, zeroinitializer")
        found = choose(lanes, none, lane_type, repeat(-1, bits), shift)
    else:
        found = lanes.op(f"sub {lane_type} {repeat(bits - 1, bits)}, {shift}")
    lanes.write(d, lanes.resize(found, bits, 32), "u32")


@meaning("dp4a")
@outlined
def dp4a(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    x, y = lanes.read(a, "b32"), lanes.read(b, "b32")
    pairs = [(piece(lanes, x, 8 * i, 8, inst["atype"]), piece(lanes, y, 8 * i, 8, inst["type"])) for i in range(4)]
    dot(lanes, d, pairs, c)


@meaning("dp2a")
@outlined
def dp2a(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    x, y = lanes.read(a, "b32"), lanes.read(b, "b32")
    first = 0 if inst["mode"] == "lo" else 16
    pairs = [
        (piece(lanes, x, 16 * i, 16, inst["atype"]), piece(lanes, y, first + 8 * i, 8, inst["type"])) for i in range(2)
    ]
    dot(lanes, d, pairs, c)


def piece(lanes: Lanes, value: str, at: int, width: int, kind: str) -> str:
    """A bit field of i32 lanes at a constant place, extended by the sign of ``kind``."""
    top = lanes.op(f"shl <32 x i32> {value}, {repeat(32 - width - at, 32)}")
    return lanes.op(f"{'ashr' if signed(kind) else 'lshr'} <32 x i32> {top}, {repeat(32 - width, 32)}")


def dot(lanes: Lanes, d: Operand, pairs: list[tuple[str, str]], c: Operand) -> None:
    total = lanes.read(c, "b32")
    for x, y in pairs:
        total = lanes.op(f"add <32 x i32> {total}, {lanes.op(f'mul <32 x i32> {x}, {y}')}")
    lanes.write(d, total, "b32")


@meaning("add.cc", "addc")
def add_carry(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind = inst["type"]
    sum_with_carry(lanes, inst, d, kind, lanes.read(a, kind), lanes.read(b, kind))


@meaning("madc")
def madc(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    kind = inst["type"]
    value = product(lanes, kind, inst["mode"], lanes.read(a, kind), lanes.read(b, kind))
    sum_with_carry(lanes, inst, d, kind, value, lanes.read(c, kind))


def sum_with_carry(lanes: Lanes, inst: Inst, d: Operand, kind: str, x: str, y: str) -> None:
    """``x + y``, plus CC.CF for addc and madc; the carry goes to CC.CF if the instruction has ``.cc``."""
    lane_type = shape(kind)
    value = lanes.op(f"add {lane_type} {x}, {y}")
    carry = lanes.op(f"icmp ult {lane_type} {value}, {x}")
    if inst.name in ("addc", "madc"):
        before = lanes.op(f"zext <32 x i1> {lanes.register(CARRY)} to {lane_type}")
        value = lanes.op(f"add {lane_type} {value}, {before}")
        wrapped = lanes.op(f"icmp ult {lane_type} {value}, {before}")
        carry = lanes.op(f"or <32 x i1> {carry}, {wrapped}")
    if has(inst, "cc"):
        lanes.assign(CARRY, carry)
    lanes.write(d, value, kind)


@meaning("sub.cc", "subc")
def sub_borrow(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind, lane_type = inst["type"], shape(inst["type"])
    x, y = lanes.read(a, kind), lanes.read(b, kind)
    value = lanes.op(f"sub {lane_type} {x}, {y}")
    borrow = lanes.op(f"icmp ult {lane_type} {x}, {y}")
    if inst.name == "subc":
        before = lanes.op(f"zext <32 x i1> {lanes.register(CARRY)} to {lane_type}")
        wrapped = lanes.op(f"icmp ult {lane_type} {value}, {before}")
        value = lanes.op(f"sub {lane_type} {value}, {before}")
        borrow = lanes.op(f"or <32 x i1> {borrow}, {wrapped}")
    if has(inst, "cc"):
        lanes.assign(CARRY, borrow)
    lanes.write(d, value, kind)
