"""Loads, stores, atomics and address conversions of lane code (PTX ISA 9.1, 9.7.9.8 to 9.7.9.24, 9.7.13.5 and 6)."""

from __future__ import annotations

from warpwright.errors import UsageError
from warpwright.ptx import nodes
from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.costs import is_memory
from warpwright.vgpu.jit.lanes import Lanes, bits_of, meaning, vector
from warpwright.vgpu.jit.runtime import atomic_name
from warpwright.vgpu.jit.state import OFFSETS
from warpwright.vgpu.program.memory_map import LOCAL_WINDOW, RANK_SHIFT, SHARED_WINDOW
from warpwright.vgpu.program.program import Inst, Operand, Symbol

__all__ = ["address", "translate"]

# The routine that translates virtual addresses of a state space to host addresses.
_ROUTINES = {
    "": "generic",
    "global": "global",
    "const": "global",
    "shared": "shared_cta",
    "shared::cta": "shared_cta",
    "shared::cluster": "shared_cluster",
    "local": "local",
    "param": "local",
    "param::func": "local",
    "param::entry": "global",
}
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


def address(lanes: Lanes, operand: Operand) -> str:
    """``[base + offset]`` as ``<32 x i64>``; 32-bit bases wrap as on hardware."""
    assert isinstance(operand, nodes.Address)
    base: Operand = operand.base
    if isinstance(base, nodes.Imm):
        return lanes.splat(int(base.value) + operand.offset, 64)
    wide = 32 if isinstance(base, Symbol) and base.space == "shared" else getattr(base, "bits", 64)
    value = lanes.integer(base, wide)
    if operand.offset:
        value = lanes.op(f"add <32 x i{wide}> {value}, {lanes.splat(operand.offset, wide)}")
    return lanes.resize(value, wide, 64)


def translate(lanes: Lanes, inst: Inst, where: str, space: str, nbytes: int) -> None:
    """Translate addresses to host addresses in the ``addr`` field; a bad address of a lane makes the kernel return a
    fault."""
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    lanes.store("<32 x i64>", where, OFFSETS["addr"])
    lanes.check(lanes.op(f"call i1 @{_ROUTINES[space]}(ptr %w, i32 {lanes.mask}, i64 {nbytes})"))
    if is_memory(inst):
        record.access(lanes, inst, nbytes)


def _elements(inst: Inst) -> tuple[int, int]:
    """(elements, bytes of one) of a scalar or vector access."""
    count = int(inst["vec"][1:]) if inst["vec"] else 1
    return count, bits_of(inst["type"]) // 8


@meaning("ld", "ldu", "ld.mmio")
def ld(lanes: Lanes, inst: Inst) -> None:
    source = inst.operand("a")
    assert isinstance(source, nodes.Address)
    if isinstance(source.base, Symbol) and source.base.space == "param" and source.offset >= 0:
        return _ld_param(lanes, inst, source.base.value + source.offset)
    count, size = _elements(inst)
    space = _space(inst, source)
    translate(lanes, inst, _where(lanes, source, space), space, count * size)
    for i, target in enumerate(inst.items("d")):
        lanes.write(target, _gather(lanes, i * size, inst["type"]), inst["type"])


def _space(inst: Inst, source: nodes.Address) -> str:
    """The space of an access: a ``.param`` of a call is in local memory, a kernel's in constant memory."""
    base: Operand = source.base
    if inst["space"].startswith("param") and not (isinstance(base, Symbol) and base.space == "local"):
        return "param::entry"
    return inst["space"]


def _where(lanes: Lanes, source: nodes.Address, space: str) -> str:
    """The address in the form of its routine; a kernel parameter's address is an offset into the parameter block."""
    where = address(lanes, source)
    base: Operand = source.base
    inside = space == "param::entry" or (isinstance(base, Symbol) and base.space == "param")
    return _from_param(lanes, where) if inside else where


def _from_param(lanes: Lanes, offset: str) -> str:
    base = lanes.spread("i64", lanes.load("i64", OFFSETS["param_base"]))
    return lanes.op(f"add <32 x i64> {base}, {offset}")


def _gather(lanes: Lanes, offset: int, type: str) -> str:
    bits = bits_of(type)
    if bits == 128:
        low, high = (lanes.resize(_gather(lanes, offset + 8 * i, "b64"), 64, 128) for i in (0, 1))
        return lanes.op(f"or <32 x i128> {low}, {lanes.op(f'shl <32 x i128> {high}, {lanes.splat(64, 128)}')}")
    value = lanes.op(f"call <32 x i{bits}> @gather{bits}(ptr %w, i32 {lanes.mask}, i64 {offset})")
    return lanes.bitcast(value, f"<32 x i{bits}>", vector(type))


def _ld_param(lanes: Lanes, inst: Inst, offset: int) -> None:
    """A kernel parameter at a constant offset: one scalar load for all lanes."""
    count, size = _elements(inst)
    if offset + count * size > lanes.param_bytes:
        end = offset + count * size
        raise UsageError(
            f"`{inst.opcode}` reads parameters up to byte {end}; the kernel has {lanes.param_bytes} bytes of them."
        )
    block = lanes.op(f"load ptr, ptr {lanes.at(OFFSETS['param_host'])}")
    for i, target in enumerate(inst.items("d")):
        slot = lanes.op(f"getelementptr i8, ptr {block}, i64 {offset + i * size}")
        value = lanes.spread(f"i{8 * size}", lanes.op(f"load i{8 * size}, ptr {slot}, align 1"))
        lanes.write(target, lanes.bitcast(value, f"<32 x i{8 * size}>", vector(inst["type"])), inst["type"])


@meaning("st", "st.mmio")
def st(lanes: Lanes, inst: Inst) -> None:
    target = inst.operand("a")
    assert isinstance(target, nodes.Address)
    count, size = _elements(inst)
    values = [lanes.integer(source, 8 * size) for source in inst.items("b")]
    record.stored(lanes, inst, values, 8 * size)
    translate(lanes, inst, _where(lanes, target, inst["space"]), inst["space"], count * size)
    for i, value in enumerate(values):
        _scatter(lanes, i * size, value, 8 * size)


def _scatter(lanes: Lanes, offset: int, value: str, bits: int) -> None:
    if bits == 128:
        _scatter(lanes, offset, lanes.resize(value, 128, 64), 64)
        high = lanes.op(f"lshr <32 x i128> {value}, {lanes.splat(64, 128)}")
        return _scatter(lanes, offset + 8, lanes.resize(high, 128, 64), 64)
    lanes.emit(f"call void @scatter{bits}(ptr %w, i32 {lanes.mask}, i64 {offset}, <32 x i{bits}> {value})")


@meaning("atom", "red")
def atom(lanes: Lanes, inst: Inst) -> None:
    """Both forms are one loop over lanes; `red` drops the old values."""
    targets = inst.items("d") if inst.find("d") else ()
    where, values = inst.operand("a"), inst.items("b")
    assert isinstance(where, nodes.Address)
    size = bits_of(inst["type"]) // 8
    virtual = _where(lanes, where, inst["space"])
    routines = _atomic_routines(lanes, inst, virtual)
    translate(lanes, inst, virtual, inst["space"], size * len(values))
    for i, value in enumerate(values):
        old = _atomic_call(lanes, inst, routines, value, inst.find("c"))
        if targets:
            lanes.write(targets[i], lanes.bitcast(old, f"<32 x i{8 * size}>", vector(inst["type"])), inst["type"])
        if i + 1 < len(values):
            _advance(lanes, size)


def _atomic_routines(lanes: Lanes, inst: Inst, where: str) -> list[tuple[str, str]]:
    """Routines, each with its lanes (i32). f32 sums in global memory flush subnormal numbers, those in shared memory do
    not; a generic address decides at run time."""
    if (inst["op"], inst["type"]) != ("add", "f32"):
        return [(_atomic_routine(inst), lanes.mask)]
    plain, flushed = (atomic_name("add", 32, name) for name in ("f32", "f32_flushed"))
    if inst["space"]:
        return [(flushed if inst["space"] == "global" else plain, lanes.mask)]
    high = lanes.op(f"lshr <32 x i64> {where}, {lanes.splat(32, 64)}")
    inside = lanes.op(f"icmp eq <32 x i64> {high}, {lanes.splat(SHARED_WINDOW >> 32, 64)}")
    shared = lanes.op(f"and i32 {lanes.mask_of(inside)}, {lanes.mask}")
    return [(plain, shared), (flushed, lanes.op(f"xor i32 {shared}, {lanes.mask}"))]


def _atomic_routine(inst: Inst) -> str:
    op, type = inst["op"], inst["type"]
    bits = bits_of(type)
    halves = type.removesuffix("x2") in ("f16", "bf16") and op in ("add", "min", "max")
    if halves or (op, type) == ("add", "f64"):
        return atomic_name(op, bits, type)
    if op in ("min", "max"):
        op += ".s" if type.startswith("s") else ".u"
    return atomic_name(op, bits)


def _atomic_call(
    lanes: Lanes, inst: Inst, routines: list[tuple[str, str]], value: Operand, swap: Operand | None
) -> str:
    """The old values; lanes without a routine get zeros."""
    bits = bits_of(inst["type"])
    lane = f"<32 x i{bits}>"
    first = lanes.integer(value, bits)
    second = lanes.integer(swap, bits) if swap is not None else "zeroinitializer"
    new, compare = (second, first) if swap is not None else (first, second)
    old = [
        lanes.op(f"call {lane} @{name}(ptr %w, i32 {mask}, {lane} {new}, {lane} {compare})") for name, mask in routines
    ]
    return old[0] if len(old) == 1 else lanes.op(f"or {lane} {old[0]}, {old[1]}")


def _advance(lanes: Lanes, nbytes: int) -> None:
    addresses = lanes.load("<32 x i64>", OFFSETS["addr"])
    lanes.store("<32 x i64>", lanes.op(f"add <32 x i64> {addresses}, {lanes.splat(nbytes, 64)}"), OFFSETS["addr"])


@meaning("cvta")
def cvta(lanes: Lanes, inst: Inst) -> None:
    """Shared and local windows have fixed generic addresses; global and const addresses are generic already."""
    bits = bits_of(inst["type"])
    value = lanes.integer(inst.operand("a"), 64)
    space = inst["space"].partition("::")[0]
    to = "to" in inst.opcode.split(".")
    if space in _WINDOWS:
        word, operand = ("and", 0xFFFF_FFFF) if to else ("add", _WINDOWS[space])
        value = lanes.op(f"{word} <32 x i64> {value}, {lanes.splat(operand, 64)}")
    elif space == "param" and not to:
        value = _from_param(lanes, value)
    elif space == "param":
        base = lanes.spread("i64", lanes.load("i64", OFFSETS["param_base"]))
        value = lanes.op(f"sub <32 x i64> {value}, {base}")
    lanes.write(inst.operand("d"), lanes.resize(value, 64, bits), f"u{bits}")


@meaning("isspacep")
def isspacep(lanes: Lanes, inst: Inst) -> None:
    """A generic address is global outside the windows (PTX ISA 9.1 section 6.4.1.1)."""
    value = lanes.integer(inst.operand("a"), 64)
    high = lanes.op(f"lshr <32 x i64> {value}, {lanes.splat(32, 64)}")
    space = inst["space"].partition("::")[0]
    if space in _WINDOWS:
        result = lanes.op(f"icmp eq <32 x i64> {high}, {lanes.splat(_WINDOWS[space] >> 32, 64)}")
    else:
        windows = (lanes.op(f"icmp ne <32 x i64> {high}, {lanes.splat(at >> 32, 64)}") for at in _WINDOWS.values())
        result = lanes.op("and <32 x i1> {}, {}".format(*windows))
    if inst["space"] == "shared::cta":
        own = lanes.spread("i64", lanes.resize_scalar(lanes.load("i32", OFFSETS["rank"]), 32, 64))
        rank = lanes.op(f"lshr <32 x i64> {lanes.op(f'and <32 x i64> {value}, {lanes.splat(0xFFFF_FFFF, 64)}')}, "
                        f"{lanes.splat(RANK_SHIFT, 64)}")  # fmt: skip
        result = lanes.op(f"and <32 x i1> {result}, {lanes.op(f'icmp eq <32 x i64> {rank}, {own}')}")
    lanes.write(inst.operand("p"), result, "pred")


@meaning("mapa")
def mapa(lanes: Lanes, inst: Inst) -> None:
    """The rank is the top byte of a shared::cluster address."""
    bits = bits_of(inst["type"])
    low = lanes.op(
        f"and <32 x i{bits}> {lanes.integer(inst.operand('a'), bits)}, {lanes.splat(~(0xFF << RANK_SHIFT), bits)}"
    )
    rank = lanes.op(f"shl <32 x i{bits}> {lanes.integer(inst.operand('b'), bits)}, {lanes.splat(RANK_SHIFT, bits)}")
    lanes.write(inst.operand("d"), lanes.op(f"or <32 x i{bits}> {low}, {rank}"), inst["type"])


@meaning("getctarank")
def getctarank(lanes: Lanes, inst: Inst) -> None:
    bits = bits_of(inst["type"])
    rank = lanes.op(f"lshr <32 x i{bits}> {lanes.integer(inst.operand('a'), bits)}, {lanes.splat(RANK_SHIFT, bits)}")
    rank = lanes.op(f"and <32 x i{bits}> {rank}, {lanes.splat(0xFF, bits)}")
    lanes.write(inst.operand("d"), lanes.resize(rank, bits, 32), "u32")


@meaning("createpolicy")
def createpolicy(lanes: Lanes, inst: Inst) -> None:
    """A cache policy changes speed only; the handle is opaque."""
    lanes.write(inst.operand("d"), lanes.splat(0, 64), "b64")


@meaning("prefetch", "prefetchu", "applypriority", "discard", "cp.async.bulk.prefetch.tensor")
def prefetch(lanes: Lanes, inst: Inst) -> None:
    """Prefetches are hints: no effect."""
