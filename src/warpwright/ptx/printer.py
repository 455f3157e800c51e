"""The printer of a syntax tree as PTX text: ``parse(to_text(module)) == module``."""

from __future__ import annotations

from collections.abc import Iterator

from .nodes import (
    Address,
    Block,
    CallProto,
    Directive,
    Function,
    Guard,
    Imm,
    Instruction,
    Item,
    Label,
    Loc,
    Module,
    Operand,
    Pair,
    Reg,
    RegDecl,
    Section,
    Symbol,
    Variable,
    Vector,
)

__all__ = ["instruction_text", "operand_text", "to_text"]

_INDENT = "    "
_ENDED_BY_LINE = (".file", ".target")


def to_text(module: Module) -> str:
    """Returns the PTX text of ``module``, one item a line; parsing it returns an equal module."""
    head = [f".version {module.version}", f".target {', '.join(module.target)}", f".address_size {module.address_size}"]
    return "\n".join([*head, "", *_lines(module.items, "")]) + "\n"


def operand_text(node: Operand) -> str:
    """Returns the PTX text of one operand."""
    if isinstance(node, Reg):
        return f"{'!' * node.negated}{'-' * node.minus}{node.name}"
    if isinstance(node, Imm):
        return node.text
    if isinstance(node, Address):
        return _address(node)
    if isinstance(node, Vector):
        return "{" + _list(node.items) + "}"
    if isinstance(node, Pair):
        return f"{operand_text(node.first)}|{operand_text(node.second)}"
    return _symbol(node)


def instruction_text(node: Instruction) -> str:
    """Returns the PTX text of one instruction, with its guard and ``;``."""
    operands = _call(node) if node.opcode.split(".")[0] == "call" else _list(node.operands)
    return f"{_guard(node.guard)}{node.opcode}{' ' * bool(operands)}{operands};"


def _list(nodes: tuple[Operand, ...]) -> str:
    return ", ".join(map(operand_text, nodes))


def _plus(offset: int) -> str:
    return f"+{offset}" if offset else ""


def _address(node: Address) -> str:
    extra = f", {_list(node.extra)}" if node.extra else ""
    return f"[{operand_text(node.base)}{_plus(node.offset)}{extra}]{'.unified' * node.unified}"


def _symbol(node: Symbol) -> str:
    name = f"generic({node.name})" if node.generic else node.name
    text = f"{name}{_plus(node.offset)}"
    return f"{node.mask}({text})" if node.mask else text


def _guard(guard: Guard | None) -> str:
    return f"@{'!' * guard.negated}{guard.register} " if guard else ""


def _call(node: Instruction) -> str:
    results, function, args, *prototype = node.operands
    parts = [f"({_list(part.items)})" if isinstance(part, Vector) and part.items else "" for part in (results, args)]
    texts = [parts[0], operand_text(function), parts[1], *map(operand_text, prototype)]
    return ", ".join(filter(None, texts))


def _lines(items: tuple[Item, ...], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Instruction):
            yield indent + instruction_text(item)
        elif isinstance(item, Block):
            yield from _block(item, indent)
        elif isinstance(item, Function):
            yield from _function(item, indent)
        elif isinstance(item, Label):
            yield f"{item.name}:"
        else:
            yield indent + _statement(item)


def _statement(item: Loc | RegDecl | Variable | Directive | CallProto | Section) -> str:
    if isinstance(item, Loc):
        return f".loc {item.file} {item.row} {item.column}{', ' * bool(item.tail)}{item.tail}"
    if isinstance(item, RegDecl):
        return _registers(item)
    if isinstance(item, Variable):
        return _variable(item) + ";"
    if isinstance(item, CallProto):
        return f"{item.name}: .callprototype {item.text};"
    if isinstance(item, Section):
        return f".section {item.name}\n{{{item.text}}}"
    return _directive(item) + ("" if item.name in _ENDED_BY_LINE else ";")


def _directive(item: Directive) -> str:
    return f"{item.name} {item.text}".rstrip()


def _registers(item: RegDecl) -> str:
    names = ", ".join(item.names) + (f"<{item.count}>" if item.count is not None else "")
    return f".reg {_vector(item.vector)}.{item.type} {names};"


def _vector(length: int) -> str:
    return f".v{length} " if length > 1 else ""


def _variable(item: Variable) -> str:
    before, pointer, after = item.attributes.partition(".ptr")
    words = [
        f".{item.linkage}" if item.linkage else "",
        f".{item.space}",
        before.strip(),
        f".align {item.align}" if item.align is not None else "",
        _vector(item.vector).strip(),
        f".{item.type}",
        pointer + after,
        item.name + "".join(f"[{size or ''}]" for size in item.dims),
    ]
    value = f" = {operand_text(item.init)}" if item.init is not None else ""
    return " ".join(filter(None, words)) + value


def _block(item: Block, indent: str) -> Iterator[str]:
    yield indent + "{"
    yield from _lines(item.items, indent + _INDENT)
    yield indent + "}"


def _function(item: Function, indent: str) -> Iterator[str]:
    linkage = f".{item.linkage} " if item.linkage else ""
    returns = f"({', '.join(map(_variable, item.returns))}) " if item.returns else ""
    params = ",\n".join(f"{indent}{_INDENT}{_variable(param)}" for param in item.params)
    listed = f"\n{params}\n{indent}" if params else ""
    words = [_directive(each) + ";" * (each.name == ".pragma") for each in item.directives]
    head = [f"{linkage}.{item.kind} {returns}{item.name}({listed})", *words]
    yield ""
    yield from (indent + line for line in head[:-1])
    yield indent + head[-1] + (";" if item.body is None else "")
    if item.body is not None:
        yield from _block(item.body, indent)
