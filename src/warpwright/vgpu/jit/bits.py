"""Moves, logic, shifts, bit fields and byte permutation (PTX ISA 9.1 sections 9.7.1.19-22, 9.7.8, 9.7.9.3-7)."""

from __future__ import annotations

from itertools import groupby

from warpwright.ptx import nodes
from warpwright.vgpu.jit.ir import call, choose, repeat
from warpwright.vgpu.jit.lanes import Lanes, bits_of, meaning
from warpwright.vgpu.jit.outline import outlined
from warpwright.vgpu.program.program import Inst, Operand

__all__: list[str] = []

I32 = "<32 x i32>"


@meaning("mov")
@outlined
def mov(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    if inst["vec"]:
        values = [lanes.read(item, kind) for item in inst.items("a")]
        for item, value in zip(inst.items("d"), values, strict=True):
            lanes.write(item, value, kind)
    elif isinstance(d, nodes.Vector):
        unpack(lanes, d.items, lanes.integer(a, bits_of(kind)), bits_of(kind))
    elif isinstance(a, nodes.Vector):
        lanes.write(d, pack(lanes, a.items, bits_of(kind)), f"b{bits_of(kind)}")
    else:
        lanes.write(d, lanes.read(a, kind), kind)


def pack(lanes: Lanes, items: tuple[Operand, ...], bits: int) -> str:
    """The elements of a vector operand side by side, the first one lowest."""
    each, whole = bits // len(items), f"<32 x i{bits}>"
    value = lanes.resize(lanes.integer(items[0], each), each, bits)
    for place, item in enumerate(items[1:], 1):
        part = lanes.resize(lanes.integer(item, each), each, bits)
        part = lanes.op(f"shl {whole} {part}, {repeat(place * each, bits)}")
        value = lanes.op(f"or {whole} {value}, {part}")
    return value


def unpack(lanes: Lanes, items: tuple[Operand, ...], value: str, bits: int) -> None:
    """The reverse of `pack`."""
    each = bits // len(items)
    if (bits, each) == (64, 32):
        for number, item in enumerate(items):
            lanes.write(item, lanes.half(value, number), "b32")
        return
    for place, item in enumerate(items):
        part = lanes.op(f"lshr <32 x i{bits}> {value}, {repeat(place * each, bits)}") if place else value
        lanes.write(item, lanes.resize(part, bits, each), f"b{each}")


@meaning("and", "or", "xor")
def logic(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind = inst["type"]
    lane_type = f"<32 x i{bits_of(kind)}>"
    lanes.write(d, lanes.op(f"{inst.name} {lane_type} {lanes.read(a, kind)}, {lanes.read(b, kind)}"), kind)


@meaning("not")
def not_(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    lanes.write(d, complement(lanes, lanes.read(a, kind), bits_of(kind)), kind)


def complement(lanes: Lanes, value: str, bits: int) -> str:
    return lanes.op(f"xor <32 x i{bits}> {value}, {lanes.splat(-1, bits)}")


@meaning("cnot")
def cnot(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    bits = bits_of(kind)
    zero = lanes.op(f"icmp eq <32 x i{bits}> {lanes.read(a, kind)}, zeroinitializer")
    lanes.write(d, lanes.op(f"zext <32 x i1> {zero} to <32 x i{bits}>"), kind)


@meaning("lop3")
def lop3(lanes: Lanes, inst: Inst) -> None:
    inputs = [lanes.read(x, "b32") for x in inst.named("a", "b", "c")]
    value = lookup(lanes, inputs, inst.number("lut") & 0xFF)
    if inst["bool"]:
        some = lanes.op(f"icmp ne {I32} {value}, zeroinitializer")
        some = lanes.op(f"{inst['bool']} <32 x i1> {some}, {lanes.read(inst.operand('q'), 'pred')}")
        lanes.write(inst.operand("p"), some, "pred")
    lanes.write(inst.operand("d"), value, "b32")


def lookup(lanes: Lanes, inputs: list[str], table: int) -> str:
    """The function of bits whose truth table is ``table``; the first input selects its upper half."""
    width = 1 << len(inputs)
    ones = (1 << width) - 1
    if table in (0, ones):
        return lanes.splat(-(table & 1), 32)
    half, first, rest = width // 2, inputs[0], inputs[1:]
    high, low = table >> half, table & ((1 << half) - 1)
    if high == low:
        return lookup(lanes, rest, high)
    if high ^ low == (1 << half) - 1:
        if low == 0:
            return first
        return lanes.op(f"xor {I32} {first}, {lookup(lanes, rest, low)}")
    if low == 0:
        return lanes.op(f"and {I32} {first}, {lookup(lanes, rest, high)}")
    if high == (1 << half) - 1:
        return lanes.op(f"or {I32} {first}, {lookup(lanes, rest, low)}")
    differ = lanes.op(f"and {I32} {first}, {lookup(lanes, rest, high ^ low)}")
    return lanes.op(f"xor {I32} {differ}, {lookup(lanes, rest, low)}")


def shift(lanes: Lanes, word: str, bits: int, value: str, amount: str) -> str:
    """shl, lshr or ashr by i32 amounts of any size: a full shift gives 0, or copies of the sign for ashr."""
    lane_type = f"<32 x i{bits}>"
    if word == "ashr":
        amount = call(lanes, "umin", I32, amount, repeat(bits - 1, 32))
        return lanes.op(f"ashr {lane_type} {value}, {lanes.resize(amount, 32, bits)}")
    small = lanes.op(f"icmp ult {I32} {amount}, {repeat(bits, 32)}")
    shifted = lanes.op(f"{word} {lane_type} {value}, {lanes.resize(amount, 32, bits)}")
    return choose(lanes, small, lane_type, shifted, "zeroinitializer")


@meaning("shl", "shr")
def shl_shr(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind = inst["type"]
    word = "shl" if inst.name == "shl" else "ashr" if kind.startswith("s") else "lshr"
    lanes.write(d, shift(lanes, word, bits_of(kind), lanes.read(a, kind), lanes.read(b, "u32")), kind)


@meaning("shf")
@outlined
def shf(lanes: Lanes, inst: Inst) -> None:
    """The 64-bit value is {b, a}; ``.l`` gives its upper word after the shift, ``.r`` the lower one."""
    d, a, b, c = inst.named("d", "a", "b", "c")
    low, high, amount = lanes.read(a, "b32"), lanes.read(b, "b32"), lanes.read(c, "u32")
    left = inst["direction"] == "l"
    value = call(lanes, "fshl" if left else "fshr", I32, high, low, amount)
    if inst["mode"] == "clamp":
        small = lanes.op(f"icmp ult {I32} {amount}, {repeat(32, 32)}")
        value = choose(lanes, small, I32, value, low if left else high)
    lanes.write(d, value, "b32")


@meaning("brev")
@outlined
def brev(lanes: Lanes, inst: Inst) -> None:
    d, a = inst.named("d", "a")
    kind = inst["type"]
    lanes.write(d, call(lanes, "bitreverse", f"<32 x i{bits_of(kind)}>", lanes.read(a, kind)), kind)


def place_of(lanes: Lanes, operand: Operand, bits: int) -> str:
    """A position or length: the low byte, but all bits in 64-bit forms (PTX says the low byte there too; an H200
    differs)."""
    value = lanes.read(operand, "u32")
    return value if bits == 64 else lanes.op(f"and {I32} {value}, {repeat(0xFF, 32)}")


def low_mask(lanes: Lanes, width: str, bits: int) -> str:
    """``width`` (i32 lanes) one bits, at most all."""
    return complement(lanes, shift(lanes, "shl", bits, repeat(-1, bits), width), bits)


def extend(lanes: Lanes, value: str, width: str, bits: int) -> str:
    """The low ``width`` bits with their sign; nothing for width 0."""
    lane_type = f"<32 x i{bits}>"
    room = call(lanes, "usub.sat", I32, repeat(bits, 32), width)
    top = shift(lanes, "shl", bits, value, room)
    return lanes.op(f"ashr {lane_type} {top}, {lanes.resize(at_most(lanes, room, bits - 1), 32, bits)}")


def at_most(lanes: Lanes, value: str, limit: int) -> str:
    return call(lanes, "umin", I32, value, repeat(limit, 32))


@meaning("bfe")
@outlined
def bfe(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    kind, bits = inst["type"], bits_of(inst["type"])
    value, start, width = lanes.read(a, kind), place_of(lanes, b, bits), place_of(lanes, c, bits)
    if kind.startswith("s"):
        field = extend(lanes, shift(lanes, "ashr", bits, value, start), width, bits)
    else:
        field = shift(lanes, "lshr", bits, value, start)
        field = lanes.op(f"and <32 x i{bits}> {field}, {low_mask(lanes, width, bits)}")
    lanes.write(d, field, kind)


@meaning("bfi")
@outlined
def bfi(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c, e = inst.named("d", "a", "b", "c", "e")
    kind, bits = inst["type"], bits_of(inst["type"])
    lane_type = f"<32 x i{bits}>"
    start, width = place_of(lanes, c, bits), place_of(lanes, e, bits)
    mask = shift(lanes, "shl", bits, low_mask(lanes, width, bits), start)
    field = shift(lanes, "shl", bits, lanes.read(a, kind), start)
    base = lanes.read(b, kind)
    changed = lanes.op(f"and {lane_type} {lanes.op(f'xor {lane_type} {field}, {base}')}, {mask}")
    lanes.write(d, lanes.op(f"xor {lane_type} {base}, {changed}"), kind)


def width_of(lanes: Lanes, inst: Inst, operand: Operand) -> str:
    """A bit count for ``.wrap`` (its low 5 bits) or ``.clamp`` (unchanged; larger counts mean all bits)."""
    value = lanes.read(operand, "u32")
    return lanes.op(f"and {I32} {value}, {repeat(31, 32)}") if inst["mode"] == "wrap" else value


@meaning("szext")
def szext(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    kind, width = inst["type"], width_of(lanes, inst, b)
    value = lanes.read(a, kind)
    if kind == "s32":
        value = extend(lanes, value, width, 32)
    else:
        value = lanes.op(f"and {I32} {value}, {low_mask(lanes, width, 32)}")
    lanes.write(d, value, kind)


@meaning("bmsk")
def bmsk(lanes: Lanes, inst: Inst) -> None:
    d, a, b = inst.named("d", "a", "b")
    mask = low_mask(lanes, width_of(lanes, inst, b), 32)
    lanes.write(d, shift(lanes, "shl", 32, mask, width_of(lanes, inst, a)), "b32")


# PTX 9.7.9.7: the bytes of the result, the lowest first, for the four values of c; a's bytes are 0-3, b's 4-7.
PERMUTATIONS = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@meaning("prmt")
@outlined
def prmt(lanes: Lanes, inst: Inst) -> None:
    d, a, b, c = inst.named("d", "a", "b", "c")
    x, y = lanes.read(a, "b32"), lanes.read(b, "b32")
    if isinstance(c, nodes.Imm):
        selector = int(c.value)
        if inst["mode"]:
            selector = nibbles(PERMUTATIONS[inst["mode"]][selector & 3])
        value = permute(lanes, x, y, selector)
    else:
        selectors = lanes.read(c, "b32")
        if inst["mode"]:
            selectors = mode_selectors(lanes, inst["mode"], selectors)
        value = permute_by(lanes, x, y, selectors)
    lanes.write(d, value, "b32")


def nibbles(bytes_: tuple[int, ...]) -> int:
    return sum(byte << (4 * place) for place, byte in enumerate(bytes_))


def mode_selectors(lanes: Lanes, mode: str, index: str) -> str:
    """The four nibbles of a mode, by the low two bits of ``index``."""
    index = lanes.op(f"and {I32} {index}, {repeat(3, 32)}")
    value = repeat(nibbles(PERMUTATIONS[mode][0]), 32)
    for number in (1, 2, 3):
        here = lanes.op(f"icmp eq {I32} {index}, {repeat(number, 32)}")
        value = choose(lanes, here, I32, repeat(nibbles(PERMUTATIONS[mode][number]), 32), value)
    return value


def permute(lanes: Lanes, x: str, y: str, selector: int) -> str:
    """Select bytes by a constant: bytes with the same shift move together."""
    moves = sorted(((selector >> (4 * place)) & 15, place) for place in range(4))
    parts = []
    for (shift_by, source, sign), group in groupby(sorted(map(_move, moves)), key=lambda move: move[:3]):
        places = [place for *_, place in group]
        value = x if source == 0 else y
        if sign:
            value = lanes.op(f"shl {I32} {value}, {repeat(24 - shift_by, 32)}")
            value = lanes.op(f"ashr {I32} {value}, {repeat(31, 32)}")
        elif shift_by:
            value = lanes.op(f"{'shl' if shift_by > 0 else 'lshr'} {I32} {value}, {repeat(abs(shift_by), 32)}")
        mask = sum(0xFF << (8 * place) for place in places)
        parts.append(value if mask == 0xFFFFFFFF else lanes.op(f"and {I32} {value}, {repeat(mask, 32)}"))
    value = parts[0]
    for part in parts[1:]:
        value = lanes.op(f"or {I32} {value}, {part}")
    return value


def _move(choice: tuple[int, int]) -> tuple[int, int, bool, int]:
    """(shift to the left, source, sign only, place); with sign only, the shift is the byte's own place."""
    selected, place = choice
    byte, source = selected & 3, (selected >> 2) & 1
    return (8 * byte, source, True, place) if selected & 8 else (8 * (place - byte), source, False, place)


def permute_by(lanes: Lanes, x: str, y: str, selectors: str) -> str:
    """Select bytes by i32 lanes, each with its own selector."""
    wide = "<32 x i64>"
    both = lanes.op(f"shl {wide} {lanes.resize(y, 32, 64)}, {repeat(32, 64)}")
    both = lanes.op(f"or {wide} {both}, {lanes.resize(x, 32, 64)}")
    value = "zeroinitializer"
    for place in range(4):
        nibble = lanes.op(f"lshr {I32} {selectors}, {repeat(4 * place, 32)}")
        amount = lanes.op(f"shl {I32} {lanes.op(f'and {I32} {nibble}, {repeat(7, 32)}')}, {repeat(3, 32)}")
        byte = lanes.resize(lanes.op(f"lshr {wide} {both}, {lanes.resize(amount, 32, 64)}"), 64, 32)
        sign = lanes.op(f"ashr {I32} {lanes.op(f'shl {I32} {byte}, {repeat(24, 32)}')}, {repeat(31, 32)}")
        sign_flag = lanes.op(f"and {I32} {nibble}, {repeat(8, 32)}")
        plain = lanes.op(f"icmp eq {I32} {sign_flag}, zeroinitializer")
        byte = lanes.op(f"and {I32} {choose(lanes, plain, I32, byte, sign)}, {repeat(0xFF, 32)}")
        value = lanes.op(f"or {I32} {value}, {lanes.op(f'shl {I32} {byte}, {repeat(8 * place, 32)}')}")
    return value
