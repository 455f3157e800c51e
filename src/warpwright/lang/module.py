"""From a finished trace to PTX text: passes that shorten the instructions, then declarations and directives."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from warpwright import ptx
from warpwright.lang.trace import SMEM, STACK, Trace
from warpwright.ptx import nodes
from warpwright.targets import ARCHS

__all__ = ["assemble"]

_DECLARED = {
    "p": "pred",
    "h": "b16",
    "rs": "b16",
    "r": "b32",
    "f": "f32",
    "rd": "b64",
    "fd": "f64",
    "rq": "b128",
    "rb": "b8",
}
_NO_RESULT = ("bar.", "barrier.", "nanosleep")  # their first register is read
_REGISTERS = nodes.Label("registers")  # the place of the declarations of registers
_NAME = re.compile(r"%[a-z]+\d+")
_ROLE = re.compile(r"role_\w+_\d+")


def assemble(trace: Trace, params: tuple[nodes.Variable, ...]) -> str:
    """Returns the PTX text of ``trace``; the same trace always gives the same text."""
    body = _drop_labels_and_lines(_predicate(_coalesce(_drop_unread(trace))))
    entry = nodes.Function(
        "entry",
        trace.name,
        params,
        directives=tuple(_directives(trace)),
        body=nodes.Block((*_stack(trace), _REGISTERS, *body, nodes.Instruction("ret"))),
        linkage="visible",
    )
    module = nodes.Module(_version(trace), (trace.arch,), 64, (*_declarations(trace), entry))
    return _number_registers(ptx.to_text(module))


def _version(trace: Trace) -> str:
    return max(
        ARCHS[trace.arch].ptx_version, trace.version or "0", key=lambda text: [int(part) for part in text.split(".")]
    )


def _directives(trace: Trace) -> Iterator[nodes.Directive]:
    yield nodes.Directive(".reqntid", ", ".join(map(str, trace.threads)))
    if trace.cluster != (1, 1, 1):
        yield nodes.Directive(".explicitcluster")
        yield nodes.Directive(".reqnctapercluster", ", ".join(map(str, trace.cluster)))
    few = trace.tensor_memory is not None or any(
        isinstance(item, nodes.Instruction) and item.opcode.startswith("setmaxnreg") for item in trace.items
    )
    if few or trace.ctas_per_sm is not None:
        # setmaxnreg needs the directive, which fixes the registers at launch. A kernel with tensor memory runs few CTAs
        # on an SM; without the directive ptxas saves registers for more CTAs, and spills.
        yield nodes.Directive(".minnctapersm", str(trace.ctas_per_sm or 1))


def _declarations(trace: Trace) -> Iterator[nodes.Item]:
    for number, path in enumerate(trace.files, 1):
        yield nodes.Directive(".file", f'{number} "{path}"')
    if trace.smem_bytes:
        yield nodes.Variable("shared", "b8", SMEM, dims=(0,), align=1024, linkage="extern")
    for function, (types, result) in trace.calls.items():
        params = tuple(nodes.Variable("param", type, f"{function}_{number}") for number, type in enumerate(types))
        returns = (nodes.Variable("param", result, f"{function}_result"),) if result else ()
        yield nodes.Function("func", function, params, returns, linkage="extern")
    for text, name in trace.texts.items():
        octets = [*text.encode(), 0]
        init = nodes.Vector(tuple(nodes.Imm(str(octet), octet) for octet in octets))
        yield nodes.Variable("global", "b8", name, dims=(len(octets),), align=1, init=init)


def _stack(trace: Trace) -> Iterator[nodes.Variable]:
    if trace.stack_bytes:
        yield nodes.Variable("local", "b8", STACK, dims=(trace.stack_bytes,), align=8)


def _number_registers(text: str) -> str:
    """Number the registers in the order in which they appear, and declare each class in place of `_REGISTERS`."""
    head, _, body = text.partition(f"{_REGISTERS.name}:\n")
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def name_of(found: re.Match[str]) -> str:
        name = found[0]
        if name not in names:
            prefix = name[1:].rstrip("0123456789")
            names[name] = f"%{prefix}{counts[prefix]}" if prefix in _DECLARED else name
            counts[prefix] += 1
        return names[name]

    body = _NAME.sub(name_of, body)
    used = ((prefix, type) for prefix, type in _DECLARED.items() if counts[prefix])
    return "".join([head, *(f"    .reg .{type} %{prefix}<{counts[prefix]}>;\n" for prefix, type in used), body])


def _names(item: nodes.Item) -> list[str]:
    """Returns every register of an instruction."""
    found: list[str] = []
    if isinstance(item, nodes.Instruction):
        if item.guard is not None:
            found.append(item.guard.register)
        _add_names(item.operands, found)
    return found


def _add_names(operands: Iterable[nodes.Operand], found: list[str]) -> None:
    for operand in operands:
        if isinstance(operand, nodes.Reg):
            found += _registers_in(operand.name)
        elif isinstance(operand, nodes.Vector):
            _add_names(operand.items, found)
        elif isinstance(operand, nodes.Address):
            _add_names((operand.base, *operand.extra), found)
        elif isinstance(operand, nodes.Pair):
            _add_names((operand.first, operand.second), found)


@lru_cache(maxsize=1 << 14)
def _registers_in(name: str) -> list[str]:
    return _NAME.findall(name)


def _drop_unread(trace: Trace) -> list[nodes.Item]:
    """Drop pure instructions whose result nothing reads. Their registers are written once, before every read."""
    result: list[nodes.Item] = []
    read: set[str] = set()
    for item in reversed(trace.items):
        destination = _destination(item)
        if destination in trace.pure_registers and destination not in read:
            continue
        read.update(_names(item))
        result.append(item)
    return result[::-1]


def _predicate(items: list[nodes.Item]) -> list[nodes.Item]:
    """Replace a branch around one instruction by a guard on that instruction."""
    uses = _label_uses(items)
    result: list[nodes.Item] = []
    for item in items:
        result.append(item)
        branch, inner = _branch_around(result) if isinstance(item, nodes.Label) else (None, None)
        if branch is not None and uses[branch.operands[0].name] == 1:  # type: ignore[union-attr]
            start = next(i for i in reversed(range(len(result))) if result[i] is branch)
            assert branch.guard is not None and inner is not None
            guard = nodes.Guard(branch.guard.register, not branch.guard.negated)
            locs = [item for item in result[start:-1] if isinstance(item, nodes.Loc)]
            result[start:] = [*locs, dataclasses.replace(inner, guard=guard)]
    return result


def _coalesce(items: list[nodes.Item]) -> list[nodes.Item]:
    """Replace ``op b, …; mov a, b`` by ``op a, …`` if no other instruction uses ``b``."""
    mentions = Counter(name for item in items for name in _names(item))
    result: list[nodes.Item] = []
    at = -1  # of the last item that is no line
    for item in items:
        source = _copied_register(item)
        before = result[at] if result else None
        if (
            source
            and mentions[source] == 2
            and isinstance(before, nodes.Instruction)
            and _destination(before) == source
        ):
            assert isinstance(item, nodes.Instruction)
            result[at] = dataclasses.replace(before, operands=(item.operands[0], *before.operands[1:]))
        else:
            at = at if isinstance(item, nodes.Loc) else len(result)
            result.append(item)
    return result


def _copied_register(item: nodes.Item) -> str:
    """Returns the source of an unguarded ``mov`` between registers of one class, else an empty string."""
    if isinstance(item, nodes.Instruction) and item.opcode.startswith("mov.") and item.guard is None:
        target, source = item.operands
        names = [operand.name for operand in (target, source) if isinstance(operand, nodes.Reg)]
        if len({name.rstrip("0123456789") for name in names}) == 1 and len(names) == 2:
            return names[1]
    return ""


def _destination(item: nodes.Item) -> str:
    """Returns the register that is the first operand of an unguarded instruction with a result, or an empty string."""
    if isinstance(item, nodes.Instruction) and item.guard is None and not item.opcode.startswith(_NO_RESULT):
        first = item.operands[0] if item.operands else None
        return first.name if isinstance(first, nodes.Reg) else ""
    return ""


def _branch_around(items: list[nodes.Item]) -> tuple[nodes.Instruction | None, nodes.Instruction | None]:
    """Returns the branch and the instruction if ``items`` end in ``@p bra L; instruction; L:``."""
    code = [item for item in items[-5:] if not isinstance(item, nodes.Loc)][-3:]
    if len(code) == 3 and isinstance(code[2], nodes.Label):
        branch, inner = code[0], code[1]
        if isinstance(branch, nodes.Instruction) and isinstance(inner, nodes.Instruction):
            jumps = (
                branch.opcode == "bra" and branch.guard is not None and branch.operands == (nodes.Reg(code[2].name),)
            )
            if jumps and inner.guard is None:
                return branch, inner
    return None, None


def _label_uses(items: list[nodes.Item]) -> Counter[str]:
    return Counter(
        operand.name
        for item in items
        if isinstance(item, nodes.Instruction) and item.opcode.startswith("bra")
        for operand in item.operands
        if isinstance(operand, nodes.Reg)
    )


def _drop_labels_and_lines(items: list[nodes.Item]) -> list[nodes.Item]:
    """Drop labels that no branch uses and that name no role, and each ``.loc`` that repeats the line before it."""
    uses = _label_uses(items)
    result: list[nodes.Item] = []
    line: nodes.Loc | None = None
    pending: nodes.Loc | None = None
    for item in items:
        if isinstance(item, nodes.Loc):
            pending = item
        elif isinstance(item, nodes.Label):
            if uses[item.name] or _ROLE.fullmatch(item.name):
                result.append(item)
        else:
            if pending is not None and pending != line:
                result.append(pending)
                line = pending
            pending = None
            result.append(item)
    return result
