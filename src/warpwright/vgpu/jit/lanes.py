"""The emitter of lane code: LLVM IR text in which every value is a vector of 32 lanes.

A register that is defined and used in one block only is an SSA value. Every other register is in the warp's register
file in memory; a write blends the active lanes into it. Predicates are ``<32 x i1>`` as values and an i32 bit mask in
memory. Meanings (`alu`, `memory`, …) are functions of (lanes, inst), registered by the name of their form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import UnsupportedInstruction
from warpwright.ptx import nodes
from warpwright.vgpu.jit.costs import Costs
from warpwright.vgpu.jit.state import FAULTS, LANES, OFFSETS
from warpwright.vgpu.program.program import Inst, Operand, Register, Symbol, place

__all__ = ["MEANINGS", "Lanes", "bits_of", "elem", "meaning", "vector"]

Meaning = Callable[["Lanes", Inst], None]
MEANINGS: dict[str, Meaning] = {}

_CLOCKS = ("%clock", "%globaltimer")
_FLOAT = {"f16": "half", "f32": "float", "f64": "double"}
_PACKED = {"f16x2": 32, "bf16x2": 32, "f32x2": 64, "u16x2": 32, "s16x2": 32, "tf32": 32, "b4x8": 32}


_MASK = """define internal i32 @mask(<32 x i32> %x) {
%flags = icmp slt <32 x i32> %x, zeroinitializer
%mask = bitcast <32 x i1> %flags to i32
ret i32 %mask
}"""


def meaning(*names: str) -> Callable[[Meaning], Meaning]:
    """Register a function as the meaning of the forms called ``names``."""

    def register(function: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(names, function))
        return function

    return register


def bits_of(type: str) -> int:
    """Width in bits of a PTX type name; 1 for ``pred``."""
    if type == "pred":
        return 1
    return _PACKED.get(type) or int(type.lstrip("busfe"))


def elem(type: str) -> str:
    """The LLVM element type that computes a PTX type; bf16 and packed types stay integers."""
    return _FLOAT.get(type) or f"i{bits_of(type)}"


def vector(type: str) -> str:
    """The LLVM type of 32 lanes of a PTX type."""
    return f"<32 x {elem(type)}>"


class Lanes:
    """IR text of one kernel in the making.

    Attributes
    ----------
    mask : name of the i32 with the active lanes, narrowed by the guard of the current instruction. ``block_mask``: the
        active lanes of the whole block.
    block : index of the current block; ``ended`` once code has left the block.
    slots : offset in the warp's state of every register in memory.
    masks : bit masks that the block has computed, by the name of their ``<32 x i1>``. ``actives``: the ``<32 x i1>`` of
        masks that LLVM's basic block has loaded; ``spreads``: the line that stores the lanes of a mask in memory.
    local : names of the registers that are SSA values.
    loaded : registers that some tcgen05.ld of the kernel fills; ``stored``: those that some tcgen05.st reads;
        ``tmem_idle`` while no tcgen05.ld or tcgen05.st can be pending.
    param_bytes : size of the kernel's parameter block.
    arch : the target of the PTX.
    observed : whether synchronising instructions also write a record for observers.
    costs : costs of instructions if rows for timing are recorded, else None.
    tables : constant tables; ``numbers``: their numbers by address.
    extended : the 32-bit lanes that 64-bit lanes extend, by the names of both.
    unneeded : instructions that are not executed.
    functions : text of the kernel's own functions by opcode and shape of operands (`outline`).
    watched : whether rows for checks are recorded; ``tracked``: instructions with watched registers; ``doubted``:
        stores whose rows have the values. The marks of a launch are a word for each block, set when entered; from word
        ``guards`` on two for each instruction: guard true, guard false; and word ``sink`` for stores without effect.
    """

    def __init__(self, slots: dict[str, int], local: dict[str, bool], observed: bool = False) -> None:
        self.lines: list[str] = []
        self.slots = slots
        self.local = local
        self.values: dict[str, str] = {}
        self.masks: dict[str, str] = {}
        self.count = 0
        self.mask = ""
        self.block_mask = ""
        self.actives: dict[str, str] = {}
        self.spreads: dict[str, int] = {}
        self.guarded = False
        self.inst: Inst | None = None
        self.block = 0
        self.ended = False
        self.observed = observed
        self.costs: Costs | None = None
        self.watched = False
        self.tracked: frozenset[int] = frozenset()
        self.doubted: frozenset[int] = frozenset()
        self.guards = self.sink = 0
        self.unneeded: frozenset[int] = frozenset()
        self.param_bytes = 0
        self.loaded: set[str] = set()
        self.stored: set[str] = set()
        self.tmem_idle = False
        self.arch = ""
        self.faults = {name: code for code, name in enumerate(FAULTS)}
        self.extended: dict[str, str] = {}
        self.functions: dict[Hashable, str] = {}
        self.tables: list[NDArray[np.int64]] = []
        self.numbers: dict[int, int] = {}

    def emit(self, text: str) -> None:
        self.lines.append(text)
        if text.endswith(":"):
            self.actives.clear()

    def op(self, text: str) -> str:
        """Emit ``%n = text`` and return the name."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"{name} = {text}")
        return name

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def at(self, offset: int | str) -> str:
        """Returns the name of a pointer to the byte at ``offset`` in the warp's state."""
        return self.op(f"getelementptr i8, ptr %w, i64 {offset}")

    def load(self, type: str, offset: int) -> str:
        return self.op(f"load {type}, ptr {self.at(offset)}")

    def store(self, type: str, value: str, offset: int) -> None:
        self.emit(f"store {type} {value}, ptr {self.at(offset)}")

    def mask_of(self, flags: str) -> str:
        """The bit mask (i32) of ``<32 x i1>``, by a function: LLVM takes five times as long without it (AVX2)."""
        if flags not in self.masks:
            self.functions["mask"] = _MASK
            wide = self.op(f"sext <32 x i1> {flags} to <32 x i32>")
            self.masks[flags] = self.op(f"call i32 @mask(<32 x i32> {wide})")
        return self.masks[flags]

    def splat(self, value: int, bits: int) -> str:
        """32 copies of an integer, as a constant of ``<32 x i{bits}>``."""
        value &= (1 << bits) - 1
        if bits == 1:
            return "splat (i1 true)" if value else "splat (i1 false)"
        return f"splat (i{bits} {value})" if value else "zeroinitializer"

    def spread(self, type: str, scalar: str) -> str:
        """32 copies of a run-time scalar of LLVM type ``type``."""
        one = self.op(f"insertelement <32 x {type}> poison, {type} {scalar}, i32 0")
        return self.op(f"shufflevector <32 x {type}> {one}, <32 x {type}> poison, <32 x i32> zeroinitializer")

    def enter(self, mask: str) -> None:
        """Let ``mask`` (i32) be the active lanes of the block."""
        self.block_mask = mask
        self._spread_mask(mask)

    def narrow(self, mask: str) -> None:
        """Let ``mask`` (i32) be the active lanes of the current instruction."""
        self.mask = mask
        if mask != self.block_mask:
            self._spread_mask(mask)

    def _spread_mask(self, mask: str) -> None:
        """Make the lanes of a mask; leave a line for the call that stores them for other basic blocks."""
        self.spreads[mask] = len(self.lines)
        self.emit("")
        self.actives[mask] = self.op(f"bitcast i32 {mask} to <32 x i1>")

    @property
    def active(self) -> str:
        """The active lanes as ``<32 x i1>``: those of another basic block of LLVM from memory, once a basic block, for
        LLVM makes the lanes anew for each use of such a value (AVX2)."""
        if self.mask not in self.actives:
            offset = OFFSETS["block_lanes" if self.mask == self.block_mask else "mask_lanes"]
            self.lines[self.spreads[self.mask]] = f"call void @spread_mask(ptr %w, i64 {offset}, i32 {self.mask})"
            lanes = self.load("<32 x i32>", offset)
            self.actives[self.mask] = self.op(f"icmp slt <32 x i32> {lanes}, zeroinitializer")
        return self.actives[self.mask]

    def only_first(self) -> None:
        """Keep the lowest active lane: the instruction is issued once for the warp."""
        self.narrow(self.op(f"and i32 {self.mask}, {self.op(f'sub i32 0, {self.mask}')}"))

    @contextmanager
    def if_any(self) -> Iterator[None]:
        """Code that runs only if some lane is active; values that it loads are discarded after it."""
        known, masks = dict(self.values), dict(self.masks)
        some, after = self.name(), self.name()
        self.emit(f"br i1 {self.op(f'icmp eq i32 {self.mask}, 0')}, label %{after}, label %{some}")
        self.emit(f"{some}:")
        yield
        self.emit(f"br label %{after}")
        self.emit(f"{after}:")
        self.values, self.masks = known, masks

    def table(self, words: list[int]) -> int:
        """The address of a constant table of 64-bit words that stays allocated as long as the compiled kernel."""
        self.tables.append(np.array(words, np.int64))
        self.tables[-1].flags.writeable = False  # all launches of the kernel read it
        address = int(self.tables[-1].ctypes.data)
        self.numbers[address] = len(self.tables) - 1
        return address

    def base(self, table: int) -> str:
        """A pointer to a table, from the list of pointers that `compile_program` fills: machine code on disk has no
        addresses of a process."""
        return self.op(f"load ptr, ptr getelementptr (ptr, ptr @tables, i64 {self.numbers[table]})")

    def flush_tmem(self) -> None:
        """Perform the pending tensor-memory accesses of this warp. An instruction that reads a register of a pending
        load does so too, and one that writes a register of a pending store: the hardware keeps the order of a thread's
        own registers."""
        self.emit("call void @tmem_flush(ptr %w)")
        self.reload_registers()
        self.tmem_idle = True

    def reload_registers(self) -> None:
        """Discard loaded registers: a routine has changed registers in memory."""
        self.values = {name: value for name, value in self.values.items() if self.local.get(name)}

    def event(self) -> None:
        """Append a record of the current instruction for observers; the block's start has reserved room for it."""
        if self.observed and self.inst is not None:
            where = self.load("<32 x i64>", OFFSETS["addr"])
            self.store("<32 x i64>", where, OFFSETS["operands"] + 8 * LANES * 4)
            self.op(f"call i1 @push(ptr %w, i32 {self.mask}, i32 {self.inst.index})")

    def resize_scalar(self, value: str, source: int, target: int) -> str:
        """Truncate or zero-extend one integer."""
        if source == target:
            return value
        return self.op(f"{'trunc' if target < source else 'zext'} i{source} {value} to i{target}")

    def check(self, ok: str) -> None:
        """Continue if ``ok`` (i1) is true; otherwise the kernel returns with the fault that a routine recorded."""
        label = self.name()
        self.emit(f"br i1 {ok}, label %{label}, label %fault")
        self.emit(f"{label}:")

    def bitcast(self, value: str, source: str, target: str) -> str:
        return value if source == target else self.op(f"bitcast {source} {value} to {target}")

    def register(self, reg: Register) -> str:
        """The lanes of a register as integers (``<32 x i1>`` for predicates), regardless of the instruction's type."""
        value = self.values.get(reg.name)
        if value is None:
            if reg.name in self.loaded and not self.tmem_idle:
                self.flush_tmem()
            value = self.fetch(reg)
            if not reg.name.startswith(_CLOCKS):
                self.values[reg.name] = value
        if reg.negated:
            value = self.op(f"xor <32 x i1> {value}, splat (i1 true)")
        return value

    def fetch(self, reg: Register) -> str:
        if self.local.get(reg.name):
            return "zeroinitializer"
        if reg.name.startswith(_CLOCKS):
            return self._tick(reg.bits, 32 if reg.name.endswith("_hi") else 0)
        if reg.bits == 1:
            mask = self.load("i32", self.slots[reg.name])
            flags = self.op(f"bitcast i32 {mask} to <32 x i1>")
            self.masks[flags] = mask
            return flags
        return self.load(f"<32 x i{reg.bits}>", self.slots[reg.name])

    def _tick(self, bits: int, low: int) -> str:
        """A clock that advances at every read, by more than any spin of reads takes."""
        now = self.op(f"add i64 {self.load('i64', OFFSETS['clock'])}, 64")
        self.store("i64", now, OFFSETS["clock"])
        return self.spread(f"i{bits}", self.resize_scalar(self.op(f"lshr i64 {now}, {low}"), 64, bits))

    def integer(self, operand: Operand, bits: int) -> str:
        """An operand as ``<32 x i{bits}>``: registers are truncated or zero-extended, symbols give their address."""
        if isinstance(operand, nodes.Imm):
            return self.splat(self.constant(operand, bits), bits)
        if isinstance(operand, Symbol):
            return self.symbol(operand, bits)
        if isinstance(operand, Register):
            return self.resize(self.register(operand), operand.bits, bits)
        raise self.unsupported(f"operand {operand}")

    def constant(self, imm: nodes.Imm, bits: int) -> int:
        if isinstance(imm.value, float):
            text = imm.text.lower().lstrip("-")
            if text.startswith(("0f", "0d")) and (len(text) - 2) * 4 == bits:
                return int(text[2:], 16)
            return int.from_bytes(struct.pack({16: "<e", 32: "<f", 64: "<d"}[bits], imm.value), "little")
        return imm.value

    def symbol(self, symbol: Symbol, bits: int) -> str:
        """The address of a variable in its own space; shared addresses carry the CTA's rank."""
        if symbol.space == "shared":
            base = self.spread("i32", self.load("i32", self.slots["%shared_base"]))
            address = self.op(f"add <32 x i32> {base}, {self.splat(symbol.value, 32)}")
            return self.resize(address, 32, bits)
        return self.splat(symbol.value, bits)

    def resize(self, value: str, source: int, target: int, signed: bool = False) -> str:
        """Truncate or extend integer lanes."""
        if source == target:
            return value
        if (source, target) == (64, 32):
            return self.extended.get(value) or self.half(value, 0)
        word = "trunc" if target < source else "sext" if signed else "zext"
        found = self.op(f"{word} <32 x i{source}> {value} to <32 x i{target}>")
        if (source, target) == (32, 64):
            self.extended[found] = value
        return found

    def half(self, value: str, number: int) -> str:
        """The low (0) or the high (1) half of 64-bit lanes, by a function of the kernel's module: LLVM selects a call
        in less than half the time of a truncation."""
        shift = f"%y = lshr <32 x i64> %x, splat (i64 {32 * number})"
        body = f"{shift}\n%z = trunc <32 x i64> %y to <32 x i32>\nret <32 x i32> %z"
        head = f"define internal <32 x i32> @half{number}(<32 x i64> %x) {{"
        self.functions.setdefault(f"half{number}", f"{head}\n{body}\n}}")
        return self.op(f"call <32 x i32> @half{number}(<32 x i64> {value})")

    def read(self, operand: Operand, type: str) -> str:
        """An operand as `vector(type)`; predicates as ``<32 x i1>``."""
        if type == "pred" and isinstance(operand, nodes.Imm):
            return self.splat(int(operand.value != 0), 1)
        bits = bits_of(type)
        return self.bitcast(self.integer(operand, bits), f"<32 x i{bits}>", vector(type))

    def write(self, operand: Operand, value: str, type: str) -> None:
        """Write to the active lanes of a register values of `vector(type)`; a wider register extends them by the type's
        sign. Writing to ``_`` does nothing."""
        if not isinstance(operand, Register):
            if isinstance(operand, nodes.Reg) and operand.name == "_":
                return
            raise self.unsupported(f"destination {operand}")
        bits = bits_of(type)
        value = self.bitcast(value, vector(type), f"<32 x i{bits}>")
        self.assign(operand, self.resize(value, bits, operand.bits, signed=type.startswith("s")))

    def assign(self, reg: Register, value: str) -> None:
        """Blend integer lanes of the register's own width into the register."""
        local = self.local.get(reg.name, False)
        lanes = f"<32 x i{reg.bits}>"
        if not local or (self.guarded and reg.name in self.values):
            value = self.op(f"select <32 x i1> {self.active}, {lanes} {value}, {lanes} {self.register(reg)}")
        self.values[reg.name] = value
        if not local:
            if reg.bits == 1:
                self.store("i32", self.mask_of(value), self.slots[reg.name])
            else:
                self.store(lanes, value, self.slots[reg.name])

    def unsupported(self, what: str) -> UnsupportedInstruction:
        assert self.inst is not None
        return UnsupportedInstruction(
            f"{place(self.inst)}: `{self.inst.opcode}`: the virtual GPU does not execute {what}."
        )
