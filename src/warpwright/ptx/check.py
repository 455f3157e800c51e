"""The check of a parsed module: what ptxas refuses raises PtxSyntaxError with line and column.

Names are declared once and before their use, in scopes (PTX ISA 9.1 section 4.2); instructions have operands of the
types that the table in `isa` gives (section 9.4); headers, alignments, initial values and directives are valid
(sections 5 and 11).
"""

from __future__ import annotations

from typing import NoReturn

from warpwright.errors import PtxSyntaxError
from warpwright.isa.operands import REGISTERS, bits_of, has_value, takes_register
from warpwright.ptx import nodes
from warpwright.ptx.declaration_rules import check_directive, check_header, check_variable
from warpwright.ptx.operand_rules import Kind, broken_rule, values_of
from warpwright.ptx.parser import parse
from warpwright.ptx.places import Fault, column_of
from warpwright.ptx.printer import instruction_text, operand_text
from warpwright.ptx.special_registers import special_bits

__all__ = ["check", "load_module"]

_DIGITS = "0123456789"


class _Scope:
    """The kinds of the names of one ``{ }``, numbered registers by prefix and .param variables; `find` and `param` look
    in the scopes around it too."""

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.kinds: dict[str, str] = {}
        self.numbered: dict[str, tuple[int, str]] = {}
        self.params: dict[str, nodes.Variable] = {}
        self.known: dict[int, Kind] = {}

    def declare(self, name: str, kind: str, line: int, what: str) -> None:
        if self._own(name) is not None:
            raise Fault(line, name, f"a second {what} {name}", "another name: it is declared in this scope already")
        self.kinds[name] = kind
        self.known.clear()

    def find(self, name: str) -> str | None:
        found = self._own(name)
        return self.parent.find(name) if found is None and self.parent else found

    def param(self, name: str) -> nodes.Variable | None:
        """Returns the .param variable of a name that `find` knows as one."""
        found = self.params.get(name)
        return self.parent.param(name) if found is None and self.parent else found

    def _own(self, name: str) -> str | None:
        found = self.kinds.get(name)
        if found is None and name and name[-1] in _DIGITS:
            prefix = name.rstrip(_DIGITS)
            count, kind = self.numbered.get(prefix, (0, ""))
            found = kind if int(name[len(prefix) :]) < count else None
        return found


def load_module(text: str, *, source: str = "<ptx>") -> nodes.Module:
    """Parse and check PTX text. Raises PtxSyntaxError, with line and column."""
    module = parse(text, source=source)
    check(module, text)
    return module


def check(module: nodes.Module, text: str) -> None:
    """Raises PtxSyntaxError, with line and column, for the first rule that ``module``, parsed from ``text``, breaks."""
    try:
        check_header(module, text)
        _Module(module).check()
    except Fault as fault:
        column = column_of(text, fault.line, fault.name)
        message = f"found {fault.found}, expected {fault.wanted}."
        raise PtxSyntaxError(message, line=fault.line, column=column, source=module.source) from None


class _Module:
    """State of one check: module scope, functions by name, and the target."""

    def __init__(self, module: nodes.Module) -> None:
        self.module = module
        self.target = module.target[0]
        self.scope = _Scope(None)
        self.functions: dict[str, nodes.Function] = {}

    def check(self) -> None:
        for item in self.module.items:
            if isinstance(item, nodes.Variable):
                self._variable(item, self.scope, "module")
            elif isinstance(item, nodes.Function):
                self._function(item)
            elif isinstance(item, nodes.Directive):
                check_directive(item, "module")
                if item.name == ".target":
                    self.target = item.text.split(",")[0]

    def _variable(self, item: nodes.Variable, scope: _Scope, where: str) -> None:
        check_variable(item, where)
        extern = where == "module" and item.linkage == "extern"
        if not (extern and item.name in scope.kinds):
            scope.declare(item.name, f"&{item.space}", item.line, "variable")
        if item.space == "param":
            scope.params[item.name] = item
        if item.init is not None:
            self._initial(item, item.init)

    def _initial(self, item: nodes.Variable, value: nodes.Operand) -> None:
        """Names in an initial value are variables or functions that are declared above."""
        for part in dict.fromkeys(value.items) if isinstance(value, nodes.Vector) else (value,):
            if isinstance(part, nodes.Vector):
                self._initial(item, part)
            elif isinstance(part, nodes.Reg | nodes.Symbol):
                if self.scope.kinds.get(part.name) not in _ADDRESSES:
                    wanted = "the name of a function or of a .global or .const variable declared above"
                    raise Fault(item.line, part.name, part.name, wanted)
                if item.type not in ("u8" if getattr(part, "mask", "") else "", "u32", "u64"):
                    raise Fault(item.line, part.name, f"an address for .{item.type}", "a variable of type .u64 or .u32")

    def _function(self, item: nodes.Function) -> None:
        before = self.functions.get(item.name)
        if before is None or (before.body is None and item.body is not None):
            self.functions[item.name] = item
        if before is None:
            self.scope.declare(item.name, "&func", item.line, "function")
        elif before.body and item.body:
            raise Fault(item.line, item.name, f"a second function {item.name}", "another name")
        elif _prototype(before) != _prototype(item):
            raise Fault(item.line, item.name, f"{item.name} with other parameters", "those of its first declaration")
        scope = _Scope(self.scope)
        for variable in (*item.params, *item.returns):
            check_variable(variable, item.kind)
            kind = _register_kind(variable) if variable.space == "reg" else f"&{variable.space}"
            scope.declare(variable.name, kind, variable.line, "parameter")
            scope.params[variable.name] = variable
        for directive in item.directives:
            check_directive(directive, item.kind)
        if item.body is not None:
            self._block(item.body, scope)

    def _block(self, block: nodes.Block, scope: _Scope) -> None:
        labels = [item for item in block.items if isinstance(item, nodes.Label)]
        for label in labels:
            scope.declare(label.name, ":", label.line, "label")
        for item in block.items:
            if isinstance(item, nodes.Instruction):
                self._instruction(item, scope)
            elif isinstance(item, nodes.Block):
                self._block(item, _Scope(scope))
            elif isinstance(item, nodes.RegDecl):
                _registers(item, scope)
            elif isinstance(item, nodes.Variable):
                self._variable(item, scope, "body")
            elif isinstance(item, nodes.CallProto):
                scope.declare(item.name, ":", item.line, "prototype")
            elif isinstance(item, nodes.Directive):
                check_directive(item, "body")
                _branch_targets(item, scope)

    def _instruction(self, item: nodes.Instruction, scope: _Scope) -> None:
        guard = item.guard
        if guard is not None and scope.find(guard.register) != "pred":
            raise Fault(item.line, guard.register, f"{guard.register} as the guard", "a register of type .pred")
        if item.opcode.partition(".")[0] == "call":
            return self._call(item, scope)
        kinds = tuple([scope.known.get(id(each)) or _kind(each, scope, item) for each in item.operands])
        rule = broken_rule(item.opcode, kinds, self.target)
        if rule is not None:
            _refuse(item, kinds, rule)
        if "#integer" in kinds:
            _values(item, kinds)

    def _call(self, item: nodes.Instruction, scope: _Scope) -> None:
        results, function, args, *_ = item.operands
        assert isinstance(function, nodes.Reg) and isinstance(results, nodes.Vector) and isinstance(args, nodes.Vector)
        kind = scope.find(function.name)
        if kind in ("u64", "s64", "b64"):
            return
        callee = self.functions.get(function.name)
        if callee is None or callee.kind != "func":
            raise Fault(item.line, function.name, function.name, "a function (.func) that is declared above")
        for given, formal in ((results.items, callee.returns), (args.items, callee.params)):
            if len(given) != len(formal):
                found = f"{len(given)} values in parentheses for {function.name}"
                raise Fault(item.line, function.name, found, f"{len(formal)}")
            for value, variable in zip(given, formal, strict=True):
                _argument(value, variable, scope, item)


def _prototype(item: nodes.Function) -> list[list[tuple[str, str, tuple[int, ...]]]]:
    return [[(each.space, each.type, each.dims) for each in part] for part in (item.params, item.returns)]


_ADDRESSES = ("&global", "&const", "&func")


def _register_kind(item: nodes.RegDecl | nodes.Variable) -> str:
    return f"v{item.vector}.{item.type}" if item.vector > 1 else item.type


def _registers(item: nodes.RegDecl, scope: _Scope) -> None:
    kind = _register_kind(item)
    if item.type not in REGISTERS or (item.vector > 1 and item.type == "pred"):
        raise Fault(item.line, item.type, f"registers of type .{item.type}", "a type that registers have, such as .b32")
    if item.count is None:
        for name in item.names:
            scope.declare(name, kind, item.line, "register")
        return
    prefix = item.names[0]
    if prefix in scope.numbered:
        raise Fault(item.line, prefix, f"a second {prefix}<…>", "another name: it is declared in this scope already")
    scope.numbered[prefix] = item.count, kind
    scope.known.clear()


def _branch_targets(item: nodes.Directive, scope: _Scope) -> None:
    if item.name == ".branchtargets":
        for label in item.text.split(","):
            if scope.find(label.strip()) != ":":
                raise Fault(item.line, label.strip(), label.strip(), "a label of this function")


def _argument(value: nodes.Operand, formal: nodes.Variable, scope: _Scope, item: nodes.Instruction) -> None:
    """An argument is a .param variable of the formal's type, a register of its size, or a constant."""
    kind = "_" if isinstance(value, nodes.Reg) and value.name == "_" else _kind(value, scope, item)
    wanted = formal.type if formal.type == "pred" else f"b{bits_of(formal.type)}"
    text = operand_text(value)
    if kind in REGISTERS and not formal.dims and not takes_register(wanted, str(kind), False):
        raise Fault(item.line, text, f"{text} of type .{kind}", f"a value of type .{formal.type}")
    variable = scope.param(text) if kind == "&param" else None
    if variable is not None and formal.space == "param" and _place(variable) != _place(formal):
        raise Fault(item.line, text, f"{text}, {_declared(variable)}", f"a variable {_declared(formal)}")


def _place(variable: nodes.Variable) -> tuple[int, int, tuple[int, ...]]:
    """Returns the bits of an element, the alignment and the extents: equal for an argument and its formal."""
    bits = bits_of(variable.type)
    return bits, variable.align or bits // 8, variable.dims


def _declared(variable: nodes.Variable) -> str:
    extents = "".join(f"[{size}]" for size in variable.dims)
    return f".align {_place(variable)[1]} .{variable.type}{extents}"


def _kind(operand: nodes.Operand, scope: _Scope, item: nodes.Instruction) -> Kind:
    """The kind of an operand (see `operand_rules`). Kinds of names are remembered: equal operands are one object."""
    kind = _new_kind(operand, scope, item)
    scope.known[id(operand)] = kind
    return kind


def _new_kind(operand: nodes.Operand, scope: _Scope, item: nodes.Instruction) -> Kind:
    if isinstance(operand, nodes.Reg):
        sign = "!" * operand.negated + "-" * operand.minus
        name = sign + _name(operand.name, scope, item)
        return ("{", *[name[3:]] * int(name[1])) if name[:3] in ("v2.", "v4.") else name
    if isinstance(operand, nodes.Imm):
        return _constant(operand)
    if isinstance(operand, nodes.Vector):
        return ("{", *[_kind(each, scope, item) for each in operand.items])
    if isinstance(operand, nodes.Pair):
        return ("|", _kind(operand.first, scope, item), _kind(operand.second, scope, item))
    if isinstance(operand, nodes.Address):
        return ("[", _kind(operand.base, scope, item), *[_kind(each, scope, item) for each in operand.extra])
    return _name(operand.name, scope, item)


_ELEMENTS = frozenset({".x", ".y", ".z", ".w", ".r", ".g", ".b", ".a"})


def _name(name: str, scope: _Scope, item: nodes.Instruction) -> str:
    if name == "_":
        return "_"
    kind = scope.find(name)
    if kind is not None:
        return kind
    bits = special_bits(name)
    if bits:
        return f"%{bits}"
    base = scope.find(name.partition(".")[0]) if "." in name else None
    if base is not None:  # %v.x is an element of a vector; %r1.b0 a byte for video instructions
        return base[3:] if base[0] == "v" and name[-2:] in _ELEMENTS else "~"
    raise Fault(item.line, name, f"the name {name}", "a name that is declared above")


def _constant(operand: nodes.Imm) -> str:
    prefix = operand.text.lstrip("-")[:2].lower()
    if isinstance(operand.value, int):
        return "#integer"
    return f"#{prefix}" if prefix in ("0f", "0d") else "#decimal"


def _values(item: nodes.Instruction, kinds: tuple[Kind, ...]) -> None:
    for at, values in values_of(item.opcode, kinds):
        operand = item.operands[at]
        if isinstance(operand, nodes.Imm) and not has_value(values, int(operand.value)):
            wanted = (
                f"a multiple of {values[:-1]}" if values[-1] == "n" else values.replace("/", ", ").replace("..", " to ")
            )
            _refuse(item, kinds, (at, wanted))


def _refuse(item: nodes.Instruction, kinds: tuple[Kind, ...], rule: tuple[int, str]) -> NoReturn:
    at, wanted = rule
    if at < 0:
        raise Fault(item.line, item.opcode, f"`{instruction_text(item)}`", wanted)
    text, kind = operand_text(item.operands[at]), kinds[at]
    typed = f" of type .{kind}" if isinstance(kind, str) and kind[0].isalpha() else ""
    raise Fault(item.line, text, f"{text}{typed} as operand {at + 1} of {item.opcode}", wanted)
