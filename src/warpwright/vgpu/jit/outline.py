"""Long arithmetic as functions of the kernel's module: each is emitted once, however many instructions need it.

LLVM selects machine instructions for vectors of 32 lanes slowly: a conversion to bf16 takes 1 ms and an exponential,
which is 32 calls of the host's library, 3 ms for every instruction (AVX2). A call takes 0.1 ms.
"""

from __future__ import annotations

import re

from warpwright.vgpu.jit.lanes import Lanes, Meaning
from warpwright.vgpu.program.program import Inst, Register, results, shape, sources

__all__ = ["outlined"]

_LONG = 8  # operations that take LLVM as long as a call
_SLOW = re.compile(r"@llvm\.(?:exp2|log2|sin|cos|tanh)\.| [us](?:div|rem) ")  # 32 scalar calls or operations
_WIDE = re.compile(r"<32 x (?:i64|double)>|<64 x (?:i32|float)>")


def outlined(meaning: Meaning) -> Meaning:
    """Wrap the meaning of instructions with one result that reads nothing but its operands."""

    def emit(lanes: Lanes, inst: Inst) -> None:
        registers, found = _distinct(sources(inst)), results(inst)
        if len(found) != 1 or any(each.bits == 1 for each in (*registers, *found)):
            meaning(lanes, inst)
            return
        key = inst.opcode, shape(inst)
        if key not in lanes.functions:
            lanes.functions[key] = _function(lanes, inst, meaning, registers, found[0])
        function = lanes.functions[key]
        if not function:
            meaning(lanes, inst)
            return
        name = function.partition("(")[0].split("@")[1]
        arguments = ", ".join(["ptr %w", *(f"<32 x i{x.bits}> {lanes.register(x)}" for x in registers)])
        lanes.assign(found[0], lanes.op(f"call <32 x i{found[0].bits}> @{name}({arguments})"))

    return emit


def _distinct(registers: list[Register]) -> list[Register]:
    return list({register.name: register for register in registers}.values())


def _function(lanes: Lanes, inst: Inst, meaning: Meaning, registers: list[Register], result: Register) -> str:
    """Returns the text of a function that computes the instruction; empty if a call takes longer to compile."""
    outer = lanes.lines, lanes.values, lanes.local, lanes.guarded
    lanes.lines, lanes.guarded = [], False
    lanes.values = {register.name: f"%x{number}" for number, register in enumerate(registers)}
    lanes.local = dict.fromkeys([*lanes.values, result.name], True)
    try:
        meaning(lanes, inst)
        body, value = lanes.lines, lanes.values[result.name]
    finally:
        lanes.lines, lanes.values, lanes.local, lanes.guarded = outer
    if sum(1 + 2 * len(_WIDE.findall(line)) + _LONG * bool(_SLOW.search(line)) for line in body) <= _LONG:
        return ""
    parameters = ", ".join(["ptr %w", *(f"<32 x i{x.bits}> %x{number}" for number, x in enumerate(registers))])
    head = f"define internal <32 x i{result.bits}> @outlined{len(lanes.functions)}({parameters}) {{"
    return "\n".join([head, *body, f"ret <32 x i{result.bits}> {value}", "}"])
