"""Run single instructions on the lane emitter, 32 warps at a time, and compare them with references in NumPy.

A `Row` names an opcode and its reference. The operands and their types come from the table of forms, so that a row need
not repeat them. All rows of a test file are compiled as one module.
"""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np

from warpwright import isa
from warpwright.ptx import nodes
from warpwright.selftest.probes import values
from warpwright.vgpu.jit import alu, bits, compare, convert, floats  # noqa: F401  (importing them registers meanings)
from warpwright.vgpu.jit.lanes import MEANINGS, Lanes
from warpwright.vgpu.program.program import Inst, Register

WARPS, LANES = 32, 32
COUNT = WARPS * LANES
EXTENDED = {"u8": np.uint32, "s8": np.int32}
ALIGN = 512  # of a register, as a load of all its lanes as one vector assumes


@dataclass(frozen=True)
class Row:
    """An opcode and its reference. ``operands`` overrides the spelling: ``name:type``, ``{name:type, …}``, ``a|b``,
    ``=number``; names of results begin with d, p or q. ``close`` compares (got, expected) of an approximate result
    instead of bit by bit."""

    opcode: str
    reference: Callable
    operands: str = ""
    close: Callable | None = None
    guarded: bool = False

    def __str__(self) -> str:
        return self.opcode + (" " + self.operands if self.operands else "") + (" guarded" if self.guarded else "")

    @cached_property
    def match(self) -> isa.Match:
        arity = len(re.findall(r"\{[^}]*\}|[^,\s][^,]*", self.operands)) if self.operands else None
        match = isa.match(self.opcode, arity)
        assert match is not None, self.opcode
        return match

    @cached_property
    def operand_nodes(self) -> list:
        text = self.operands
        if not text:
            text = self.match.spelling.operands
            has_bool = "bool" in self.match.form.slots and self.match["bool"]
            text = text.replace("{|q:pred}", "").replace("{if bool, c:pred}", ", c:pred" if has_bool else "")
        return [self._operand(part) for part in re.findall(r"\{[^}]*\}|[^,\s][^,]*", text)]

    def _operand(self, text: str):
        if text.startswith("{"):
            return nodes.Vector(tuple(self._operand(part.strip()) for part in text[1:-1].split(",")))
        if text.startswith("="):
            number = text[1:]
            return nodes.Imm(number, float(number) if "." in number else int(number, 0))
        if "|" in text:
            first, second = text.split("|")
            return nodes.Pair(self._operand(first), self._operand(second))
        if text.startswith("_"):
            return nodes.Reg("_")
        return Register("%" + text.split(":")[0], register_bits(self._type(text)))

    def _type(self, text: str) -> str:
        _, _, kind = text.partition("=")[0].partition(":")
        kind = kind or "type"
        if kind == "wide":
            return f"{self.match['type'][0]}{2 * int(self.match['type'][1:])}"
        return self.match[kind] if kind in self.match.form.slots else kind

    @cached_property
    def types(self) -> dict[str, str]:
        """Returns the PTX type of each register, by its name, in order."""
        text = self.operands or self.match.spelling.operands
        names = re.findall(r"[a-z]\w*(?::\w+)?", re.sub(r"=\S+", "", text))
        types = {"%" + name.split(":")[0]: self._type(name) for name in names}
        return {register.name: types[register.name] for register in registers(self.operand_nodes)}

    @property
    def results(self) -> list[str]:
        return [name for name in self.types if name[1] in "dpq"]

    @property
    def sources(self) -> list[str]:
        return [name for name in self.types if name[1] not in "dpq"]


def to_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "[" + ", ".join(to_text(item) for item in value) + "]"
    if isinstance(value, (np.floating, ml_dtypes.bfloat16)):
        return float(value).hex()
    return str(value)


def registers(operands: Sequence) -> list[Register]:
    found: list[Register] = []
    for operand in operands:
        if isinstance(operand, Register):
            found.append(operand)
        elif isinstance(operand, nodes.Vector):
            found += registers(operand.items)
        elif isinstance(operand, nodes.Pair):
            found += registers([operand.first, operand.second])
    return list(dict.fromkeys(found))


def register_bits(kind: str) -> int:
    """Returns the width of a type's register: 32 for 8-bit integers, where their extension shows."""
    return 32 if kind in ("u8", "s8", "b8") else values.bits_of(kind)


class Bench:
    """Compiled functions ``void(char *warp)``, one for each row; compiled when the first of them runs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.names = {row: f"k{index}" for index, row in enumerate(rows)}

    @cached_property
    def slots(self) -> dict[Row, dict[str, int]]:
        return {row: emitter(row)[1] for row in self.names}

    @cached_property
    def engine(self) -> llvm.ExecutionEngine:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly("\n".join(self.function(row, name) for row, name in self.names.items()))
        module.verify()
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=0
        )
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        return engine

    def function(self, row: Row, name: str) -> str:
        lanes, _ = emitter(row)
        inst = Inst(0, row.opcode, row.match, tuple(row.operand_nodes), Register("%g", 1) if row.guarded else None)
        emit(lanes, inst)
        body = [*lanes.functions.values(), f"define void @{name}(ptr %w) {{", *lanes.lines, "ret void", "}", ""]
        return re.sub(r"@(outlined|mask|half)", rf"@{name}_\1", "\n".join(body))

    def file(self, row: Row, generator: np.random.Generator) -> np.ndarray:
        """Returns register files of all warps, [warps, bytes], full of random bits, with full masks."""
        size = self.slots[row]["%end"]
        room = generator.integers(0, 256, WARPS * size + ALIGN, np.uint8)
        start = -room.ctypes.data % ALIGN
        file = room[start : start + WARPS * size].reshape(WARPS, size)
        file[:, :4] = 255
        return file

    def run(self, row: Row, file: np.ndarray) -> None:
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.engine.get_function_address(self.names[row]))
        for warp in file:
            function(warp.ctypes.data)


def emitter(row: Row) -> tuple[Lanes, dict[str, int]]:
    """Returns a `Lanes` with all registers in memory, the mask in the first word, the guard in the second; and the
    registers' offsets."""
    slots, offset = {"%g": 4, "%cc": 8}, ALIGN
    for register in registers(row.operand_nodes):
        slots[register.name] = offset
        offset += ALIGN
    slots["%end"] = offset
    return Lanes(slots, {}), slots


def emit(lanes: Lanes, inst: Inst) -> None:
    lanes.inst, lanes.guarded = inst, inst.guard is not None
    mask = lanes.load("i32", 0)
    if inst.guard is not None:
        mask = lanes.op(f"and i32 {mask}, {lanes.load('i32', lanes.slots['%g'])}")
    lanes.mask, lanes.actives[mask] = mask, lanes.op(f"bitcast i32 {mask} to <32 x i1>")
    MEANINGS[inst.name](lanes, inst)


def view(file: np.ndarray, slots: dict[str, int], name: str, kind: str) -> np.ndarray:
    """Returns the lanes of a register in all warps, [warps, 32], as integers of the register's width."""
    if kind == "pred":
        return np.ascontiguousarray(file[:, slots[name] : slots[name] + 4]).view(np.uint32)
    size = register_bits(kind) // 8
    lanes = np.ascontiguousarray(file[:, slots[name] : slots[name] + LANES * size])
    return lanes.view(f"V{size}" if size == 16 else f"u{size}")


def store_lanes(file: np.ndarray, slots: dict[str, int], name: str, kind: str, data: np.ndarray) -> None:
    data = np.packbits(data.reshape(WARPS, LANES), axis=1, bitorder="little") if kind == "pred" else data
    data = np.ascontiguousarray(data).view(np.uint8).reshape(WARPS, -1)
    file[:, slots[name] : slots[name] + data.shape[1]] = data


def load_lanes(file: np.ndarray, slots: dict[str, int], name: str, kind: str) -> np.ndarray:
    """Returns the lanes of a register, flat, in the `values.DTYPES` of its type; 8-bit values as the register stores
    them."""
    raw = view(file, slots, name, kind)
    if kind == "pred":
        return np.unpackbits(raw.view(np.uint8), axis=1, bitorder="little").reshape(-1).astype(bool)
    return raw.reshape(-1).view(EXTENDED[kind]) if kind in EXTENDED else values.as_type(raw.reshape(-1), kind)


def check(bench: Bench, row: Row) -> None:
    """Run a row on adversarial and random lanes under full and partial masks; assert every result."""
    seed = zlib.crc32(str(row).encode())
    generator = np.random.default_rng(seed)
    slots = bench.slots[row]
    file = bench.file(row, generator)
    kinds = [row.types[name] for name in row.sources]
    inputs = values.inputs(kinds, COUNT, generator)
    for name, kind, data in zip(row.sources, kinds, inputs, strict=True):
        store_lanes(file, slots, name, kind, data.astype(EXTENDED.get(kind, data.dtype)))
    masks = np.where(np.arange(WARPS) % 4 == 3, generator.integers(0, 2**32, WARPS), 2**32 - 1).astype(np.uint32)
    file[:, :4] = masks.view(np.uint8).reshape(WARPS, 4)
    if row.guarded:
        masks &= file[:, 4:8].copy().view(np.uint32).reshape(-1)
    active = np.unpackbits(masks.view(np.uint8), bitorder="little").astype(bool)
    before = file.copy()
    bench.run(row, file)
    with np.errstate(all="ignore"):
        expected = row.reference(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for name, array in zip(row.results, expected, strict=True):
        compare_lanes(row, name, file, before, slots, active, np.asarray(array), inputs)


def compare_lanes(row: Row, name: str, file, before, slots, active, expected, inputs) -> None:
    kind = row.types[name]
    old, new = (view(state, slots, name, kind).reshape(-1) for state in (before, file))
    if kind == "pred":
        old, new = (np.unpackbits(x.view(np.uint8), bitorder="little") for x in (old, new))
    assert np.array_equal(old[~active], new[~active]), f"{row}: inactive lanes of {name} changed"
    got = load_lanes(file, slots, name, kind)
    expected = expected if expected.dtype.kind in "fV" or kind == "pred" else expected.astype(got.dtype)
    expected = np.broadcast_to(expected, got.shape)
    good = row.close(got, expected) if row.close else same(got, expected)
    good = good.reshape(COUNT, -1).all(axis=1) | ~active
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        operands = ", ".join(str(to_text(data[at])) for data in inputs)
        raise AssertionError(
            f"{row} in {np.count_nonzero(~good)} lanes, first {at}: {name} of ({operands}) is "
            f"{to_text(got[at])}, expected {to_text(expected[at])}"
        )


def same(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns where two arrays are equal bit by bit; any NaN equals any other."""
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    if got.dtype.kind == "V" and got.dtype != ml_dtypes.bfloat16:
        return got == expected
    if got.dtype.kind in "biu":
        return got == expected
    pattern = f"u{got.dtype.itemsize}"
    with np.errstate(invalid="ignore"):
        both_nan = np.isnan(got) & np.isnan(expected)
    return both_nan | (np.ascontiguousarray(got).view(pattern) == np.ascontiguousarray(expected).view(pattern))
