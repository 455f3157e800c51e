"""Run-time values: an `Expr` is one PTX register with its type; its operators emit the instruction of their name.

Both sides of an operator have one type; a Python number takes the type of the other side. Operators on two Python
numbers are Python's own, so constants fold before any instruction is emitted. Integer arithmetic wraps as in PTX;
floating-point ``+ - * /`` round to nearest even and are never contracted (``.rn``): write ``fma`` for a fused multiply
and add.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from warpwright.errors import UsageError
from warpwright.lang import context
from warpwright.lang.context import misuse, source_line
from warpwright.lang.foreign import apply_operator, computed_error, missing
from warpwright.lang.scope import Scope
from warpwright.ptx import nodes
from warpwright.types import Scalar, f32x2, of_dtype, pred, u32

__all__ = [
    "Expr", "Number", "Value", "as_expr", "check_type", "current", "immediate", "is_number", "move_suffix", "operand",
    "same_type",
]  # fmt: skip

Number = int | float


class Tracer(Protocol):
    """What an `Expr` needs of the trace that it belongs to, a ``trace.Trace``."""

    name: str

    def emit(self, opcode: str, *operands: Any) -> None: ...
    def pure(self, opcode: str, type: type[Scalar], *operands: Any) -> Expr: ...
    def fresh(self, type: type[Scalar]) -> Expr: ...
    def use(self, value: Expr) -> Expr: ...
    def cvt(self, value: Any, type: type[Scalar]) -> Expr: ...
    def bitcast(self, value: Expr, type: type[Scalar]) -> Expr: ...


current: Callable[[], Tracer] = context.current
_ARITHMETIC = {"unsigned": "{op}.{t}", "signed": "{op}.{t}", "float": "{op}.rn.{t}"}
_LOGIC = {"unsigned": "{op}.b{n}", "signed": "{op}.b{n}", "bits": "{op}.b{n}", "pred": "{op}.pred"}

# symbol -> (PTX operation, opcode by kind of type)
OPERATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "+": ("add", _ARITHMETIC),
    "-": ("sub", _ARITHMETIC),
    "*": ("mul", {"unsigned": "mul.lo.{t}", "signed": "mul.lo.{t}", "float": "mul.rn.{t}"}),
    "//": ("div", {"unsigned": "div.{t}"}),
    "%": ("rem", {"unsigned": "rem.{t}"}),
    "/": ("div", {"float": "div.rn.{t}"}),
    "&": ("and", _LOGIC),
    "|": ("or", _LOGIC),
    "^": ("xor", _LOGIC),
    "<<": ("shl", {"unsigned": "shl.b{n}", "signed": "shl.b{n}", "bits": "shl.b{n}"}),
    ">>": ("shr", {"unsigned": "shr.{t}", "signed": "shr.{t}", "bits": "shr.{t}"}),
}
COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_SWAPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_IDENTITY = {"+": 0, "-": 0, "*": 1, "//": 1, "/": 1, "|": 0, "^": 0, "<<": 0, ">>": 0}
_COMMUTATIVE = frozenset("+*&|^")
_STORAGE_ONLY = frozenset({"u8", "s8", "b8", "e2m1x2", "e4m3", "e5m2", "ue4m3", "ue8m0", "tf32", "b128"})


class Expr:
    """A run-time value: its scalar ``type`` and its PTX register ``reg``.

    An expression never changes; a `var` does. ``scope`` is where the register may be read. ``negated`` marks a
    predicate that is read as ``!p``; ``factors`` are the operands of an integer product, for a later ``mad``.
    """

    __slots__ = ("factors", "negated", "reg", "scope", "trace", "type")
    mutable = False

    def __init__(self, type: type[Scalar], reg: str, scope: Scope, trace: Tracer, negated: bool = False) -> None:
        self.type, self.reg, self.scope, self.trace, self.negated = type, reg, scope, trace, negated
        self.factors: tuple[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"{'!' if self.negated else ''}{self.reg} ({self.type.name})"

    __hash__ = object.__hash__

    def to(self, type: type[Scalar]) -> Expr:
        """Returns this value converted to ``type``, as by ``cvt``."""
        return self.trace.cvt(self, type)

    def bitcast(self, type: type[Scalar]) -> Expr:
        """Returns the same bits as ``type``, which must have the same size."""
        return self.trace.bitcast(self, type)

    def __add__(self, other: Value) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: Value) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: Value) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: Value) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: Value) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: Value) -> Expr:
        return binary("*", other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return binary("//", self, other)

    def __rfloordiv__(self, other: Value) -> Expr:
        return binary("//", other, self)

    def __mod__(self, other: Value) -> Expr:
        return binary("%", self, other)

    def __rmod__(self, other: Value) -> Expr:
        return binary("%", other, self)

    def __truediv__(self, other: Value) -> Expr:
        return binary("/", self, other)

    def __rtruediv__(self, other: Value) -> Expr:
        return binary("/", other, self)

    def __and__(self, other: Value) -> Any:
        return logic("&", self, other)

    def __rand__(self, other: Value) -> Any:
        return logic("&", other, self)

    def __or__(self, other: Value) -> Any:
        return logic("|", self, other)

    def __ror__(self, other: Value) -> Any:
        return logic("|", other, self)

    def __xor__(self, other: Value) -> Any:
        return logic("^", self, other)

    def __rxor__(self, other: Value) -> Any:
        return logic("^", other, self)

    def __lshift__(self, other: Value) -> Expr:
        return binary("<<", self, other)

    def __rlshift__(self, other: Value) -> Expr:
        return binary("<<", other, self)

    def __rshift__(self, other: Value) -> Expr:
        return binary(">>", self, other)

    def __rrshift__(self, other: Value) -> Expr:
        return binary(">>", other, self)

    def __invert__(self) -> Expr:
        if self.type is pred and not self.mutable:
            return Expr(pred, self.reg, self.scope, self.trace, not self.negated)
        return unary("not", self, {"pred": "not.pred", **dict.fromkeys(("unsigned", "signed", "bits"), "not.b{n}")})

    def __neg__(self) -> Expr:
        return unary("neg", self, {"signed": "neg.{t}", "float": "neg.{t}"})

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return unary("abs", self, {"signed": "abs.{t}", "float": "abs.{t}"})

    def __eq__(self, other: object) -> Any:
        return equality("==", self, other)

    def __ne__(self, other: object) -> Any:
        return equality("!=", self, other)

    def __lt__(self, other: Value) -> Expr:
        return compare("<", self, other)

    def __le__(self, other: Value) -> Expr:
        return compare("<=", self, other)

    def __gt__(self, other: Value) -> Expr:
        return compare(">", self, other)

    def __ge__(self, other: Value) -> Expr:
        return compare(">=", self, other)

    def __bool__(self) -> NoReturn:
        raise misuse(_bool_error(self, source_line()))

    def __index__(self) -> NoReturn:
        if "range(" in source_line():
            raise misuse(
                f"given {self} to range(), which runs while the kernel is traced; write loop({_bound_name(self)})"
            )
        raise misuse(
            f"given {self} as a Python index or int, but its value is known only when the kernel runs; "
            "keep run-time indexed data in smem.array(…) or choose with select(…)"
        )

    def __int__(self) -> NoReturn:
        raise misuse(f"given {self} to int(), but its value is known only when the kernel runs; write x.to(s32)")

    def __float__(self) -> NoReturn:
        raise computed_error(self)

    def __iter__(self) -> NoReturn:
        raise misuse(f"{self} is one value and cannot be iterated or unpacked; for a run-time loop write loop(n)")

    def __getitem__(self, index: object) -> NoReturn:
        raise misuse(
            f"given {self}[…], and it is one value; expected a pointer: a parameter x: Global[f32], or smem.array(…)"
        )

    def __pow__(self, other: object) -> NoReturn:
        raise misuse(f"given {self} ** {other}; PTX has no power: write x * x, or ex2(lg2(x) * y) for f32")

    def __rpow__(self, other: object) -> NoReturn:
        raise misuse(f"given {other} ** {self}; PTX has powers of 2 only: write ex2(x) for f32, or 1 << x")

    if not TYPE_CHECKING:  # a type checker refuses these attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise missing(self, name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        return apply_operator(ufunc, method, inputs, Expr)


Value = Expr | int | float


def _bound_name(value: Expr) -> str:
    return "n" if value.type.kind in ("unsigned", "signed") else "x"


def _bool_error(value: Expr, line: str) -> str:
    given = f"given {value}, a run-time value, where Python needs True or False while the kernel is traced"
    if line.startswith("while"):
        return f"{given}; write `for _ in loop():` with `Break(when=~p)`"
    if line.startswith(("if ", "if(", "elif ")):
        return f"{given}; write `with If(p):` for a branch or `select(p, x, y)` for a choice"
    if any(f" {word} " in f" {line} " for word in ("and", "or", "not")):
        return f"{given}; write `p & q`, `p | q`, `~p` for and, or, not"
    if line.startswith("assert"):
        return f"{given}; write `assert_(p)`"
    return f"{given}; write `with If(p):`, `select(p, x, y)`, or `p & q`, `p | q`, `~p`"


def is_number(value: object) -> bool:
    """Whether ``value`` is a Python or NumPy number."""
    if isinstance(value, int | float | Expr):
        return not isinstance(value, Expr)
    return hasattr(value, "dtype") and getattr(value, "shape", None) == ()


def immediate(value: Any, type: type[Scalar]) -> int | float:
    """Returns ``value`` as a constant of ``type``. Raises KernelError if the type does not have the value."""
    if not is_number(value):
        raise misuse(f"given {value!r}; expected a value of type {type.name} or a Python number")
    if type.kind == "float":
        return float(value)
    if type is pred:
        if value not in (0, 1):
            raise misuse(f"given {value!r} as a pred; expected True, False or a comparison")
        return int(value)
    if int(value) != value or isinstance(value, float):
        raise misuse(
            f"given {value!r} where {type.name} is expected; write an int, or convert the other side with x.to(f32)"
        )
    low, high = integer_range(type)
    if not low <= value <= high:
        raise misuse(f"given {value}; expected a constant of {type.name}, from {low} to {high}")
    return int(value)


def integer_range(type: type[Scalar]) -> tuple[int, int]:
    """Returns the minimum and the maximum of ``type``; bit types also take negative constants of their size."""
    if type.kind == "signed":
        return -(1 << (type.bits - 1)), (1 << (type.bits - 1)) - 1
    return (-(1 << (type.bits - 1)) if type.kind == "bits" else 0), (1 << type.bits) - 1


def check_type(name: str, given: Any) -> None:
    """Raise KernelError unless ``given``, the type that ``name`` takes, is one of the language."""
    if isinstance(given, type) and issubclass(given, Scalar):
        return
    try:
        hint = {float: "f32", int: "s32"}.get(given) or of_dtype(given).name
    except (TypeError, UsageError):
        hint = given if isinstance(given, str) else "f32, u32, …"
    raise misuse(f"given {given!r} to {name}; expected a type of warpwright.lang: write {hint}")


def operand(value: Any, type: type[Scalar]) -> Expr | nodes.Imm:
    """Returns ``value`` as an operand of ``type``: a register of that type, or a constant as PTX text."""
    if isinstance(value, Expr):
        if value.type is not type:
            raise misuse(f"given {value} where {type.name} is expected; write x.to({type.name})")
        return value
    number = immediate(value, type)
    if type.kind != "float":
        return nodes.Imm(str(number), number)
    if type.bits == 16:
        return current().pure("mov.b16", type, nodes.Imm(f"0x{_bits16(number, type):04X}", _bits16(number, type)))
    if type is f32x2:
        both = f"0x{_bits32(number):08X}" + f"{_bits32(number):08X}"
        return current().pure("mov.b64", type, nodes.Imm(both, int(both, 16)))
    if type.bits == 64:
        return nodes.Imm(f"0d{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", float(number))
    if type.name not in ("f32", "tf32"):
        raise misuse(f"given {value!r} as a constant of {type.name}; build it with pack({type.name}, lo, hi)")
    return nodes.Imm(f"0f{_bits32(number):08X}", float(number))


def _bits16(number: float, type: type[Scalar]) -> int:
    return int(np.asarray(number).astype(type.dtype).view(np.uint16))


def _bits32(number: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.uint32))


def as_expr(value: Any, type: type[Scalar]) -> Expr:
    """Returns ``value`` in a register of ``type``; a constant is moved. Raises KernelError for another type."""
    source = operand(value, type)
    if isinstance(source, Expr):
        return source
    if type is pred:
        return current().pure("setp.ne.u32", pred, int(source.value), 0)
    return current().pure(f"mov.{move_suffix(type)}", type, source)


def move_suffix(type: type[Scalar]) -> str:
    """Returns the type suffix of ``mov`` and ``selp`` for values of ``type`` (``b16`` for ``bf16``)."""
    return type.name if type.name in _MOVABLE else f"b{max(type.bits, 16)}"


_MOVABLE = frozenset({"u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64", "f32", "f64", "pred", "b128"})


def same_type(symbol: str, x: Any, y: Any) -> type[Scalar]:
    """Returns the common type of two operands, at least one of them an `Expr`. Raises KernelError if they differ."""
    if isinstance(x, Expr) and isinstance(y, Expr):
        if x.type is not y.type:
            raise misuse(
                f"given {x.type.name} {symbol} {y.type.name}; expected one type on both sides: "
                f"write y.to({x.type.name}) or x.to({y.type.name})"
            )
        return x.type
    known: Expr = x if isinstance(x, Expr) else y
    if not is_number(y if known is x else x):
        raise misuse(f"given {x!r} {symbol} {y!r}; expected two {known.type.name} values or Python numbers")
    return known.type


def logic(symbol: str, x: Any, y: Any) -> Any:
    """Emit ``&``, ``|``, ``^``; a predicate and a Python bool fold to the predicate or to a Python bool."""
    register = x if isinstance(x, Expr) else y
    if register.type is pred and not (isinstance(x, Expr) and isinstance(y, Expr)):
        return _fold_predicate(symbol, x, y)
    return binary(symbol, x, y)


def binary(symbol: str, x: Any, y: Any) -> Expr:
    """Emit ``x symbol y``; returns ``x`` itself if a constant ``y`` is the identity of the operation."""
    current()
    shift = symbol in ("<<", ">>") and isinstance(x, Expr)
    kind = x.type if shift else same_type(symbol, x, y)
    name, forms = OPERATIONS[symbol]
    form = forms.get(kind.kind)
    if form is None or kind.name in _STORAGE_ONLY or (symbol == "/" and kind.name not in ("f32", "f64")):
        raise misuse(_no_operation(symbol, kind))
    if is_number(x) and symbol in _COMMUTATIVE:
        x, y = y, x
    right = u32 if shift else kind
    simpler = _simplify(symbol, x, immediate(y, right), kind) if isinstance(x, Expr) and is_number(y) else None
    if simpler is None and symbol == "+":
        simpler = _multiply_add(x, y, kind)
    if simpler is not None:
        return simpler
    result = current().pure(form.format(op=name, t=kind.name, n=kind.bits), kind, operand(x, kind), operand(y, right))
    if symbol == "*" and kind.kind != "float" and not _any_mutable(x, y):
        result.factors = (x, y)
    return result


def _any_mutable(*values: Any) -> bool:
    return any(isinstance(value, Expr) and value.mutable for value in values)


def _fold_predicate(symbol: str, x: Any, y: Any) -> Any:
    value, constant = (x, bool(immediate(y, pred))) if isinstance(x, Expr) else (y, bool(immediate(x, pred)))
    if symbol == "&":
        return value if constant else False
    if symbol == "|":
        return True if constant else value
    return ~value if constant else value


def _simplify(symbol: str, x: Expr, y: Number, type: type[Scalar]) -> Expr | None:
    """Returns the cheaper form of ``x symbol y`` for a constant ``y``: ``x`` itself, a shift or a mask."""
    if y == 0 and symbol in ("//", "%"):
        raise misuse(f"given {x} {symbol} 0; the divisor must not be zero")
    if not x.mutable and y == _IDENTITY.get(symbol) and not (type.kind == "float" and symbol in "+-"):
        return x
    power = type.kind == "unsigned" and y > 0 and int(y) & (int(y) - 1) == 0
    if not power or symbol not in ("*", "//", "%"):
        return None
    if symbol == "%":
        return binary("&", x, int(y) - 1)
    shifted = binary("<<" if symbol == "*" else ">>", x, int(y).bit_length() - 1)
    if symbol == "*" and not x.mutable:
        shifted.factors = (x, int(y))
    return shifted


def _multiply_add(x: Any, y: Any, type: type[Scalar]) -> Expr | None:
    """Emit integer ``a * b + c`` as one ``mad.lo``; the module drops the product if nothing else reads it."""
    for product, rest in ((x, y), (y, x)):
        if isinstance(product, Expr) and product.factors is not None and product.scope.open:
            a, b = (operand(factor, type) for factor in product.factors)
            a, b = (a, b) if isinstance(a, Expr) else (b, a)
            return current().pure(f"mad.lo.{type.name}", type, a, b, operand(rest, type))
    return None


def _no_operation(symbol: str, type: type[Scalar]) -> str:
    given = f"given {type.name} {symbol} {type.name}"
    if symbol == "/" and type.kind in ("unsigned", "signed"):
        return f"{given}; integers divide with //, and x.to(f32) / y.to(f32) divides as floats"
    if type.kind == "signed" and symbol in ("//", "%"):
        return (
            f"{given}; Python rounds down and PTX toward zero, so the operator is for unsigned types: "
            f"write {'div' if symbol == '//' else 'rem'}(x, y) for PTX's"
        )
    if type.name in _STORAGE_ONLY:
        wider = _arithmetic_type(type)
        return f"{given}; {type.name} is a storage type without arithmetic: convert with x.to({wider}) first"
    if type.kind == "bits":
        return f"{given}; bit types have no arithmetic: write x.bitcast(u{type.bits}) first"
    if type.kind == "float" and symbol == "/":
        return f"{given}; PTX divides f32 and f64: write x.to(f32) / y.to(f32)"
    return f"{given}; PTX has no such operation on {type.name}"


def _arithmetic_type(type: type[Scalar]) -> str:
    return {"unsigned": "u32", "signed": "s32", "bits": "b32", "float": "f32"}[type.kind]


def unary(name: str, x: Expr, forms: dict[str, str]) -> Expr:
    """Emit the one-operand instruction ``name`` of ``x``. Raises KernelError if PTX has none for the type of ``x``."""
    form = forms.get(x.type.kind)
    if form is None or x.type.name in _STORAGE_ONLY:
        hint = (
            "write x.to(s32) first"
            if x.type.kind == "unsigned"
            else f"convert with x.to({_arithmetic_type(x.type)}) first"
            if x.type is not pred
            else "write select(p, 1, 0) first"
        )
        raise misuse(f"given {name} of {x.type.name}; PTX has no such operation: {hint}")
    return current().pure(form.format(t=x.type.name, n=x.type.bits), x.type, x)


def compare(symbol: str, x: Any, y: Any) -> Expr:
    """Emit ``x symbol y`` as a predicate. Unordered floats (NaN) compare as in Python: only ``!=`` is true."""
    current()
    kind = same_type(symbol, x, y)
    if kind is pred or kind.name in _STORAGE_ONLY or (kind.kind == "bits" and symbol not in ("==", "!=")):
        raise misuse(_no_operation(symbol, kind))
    if not isinstance(x, Expr):
        x, y, symbol = y, x, _SWAPPED[symbol]
    name = "neu" if symbol == "!=" and kind.kind == "float" else COMPARISONS[symbol]
    return current().pure(f"setp.{name}.{kind.name}", pred, x, operand(y, kind))


def equality(symbol: str, x: Expr, y: Any) -> Any:
    """Emit ``==`` or ``!=``, also of predicates; a predicate and a Python bool may fold to a Python bool."""
    if x.type is not pred:
        return compare(symbol, x, y)
    same_type(symbol, x, y)
    differ = logic("^", x, y)
    return differ if symbol == "!=" else ~differ
