"""The syntax tree of a PTX module: immutable data without behaviour.

Names follow the PTX ISA 9.1 document (chapters 4, 5 and 11). ``line`` of a node is its 1-based line in the PTX text (0
for a node built in memory). Equality ignores lines, so ``parse(to_text(module)) == module`` holds for every layout of
the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "Address",
    "Block",
    "CallProto",
    "Directive",
    "Function",
    "Guard",
    "Imm",
    "Instruction",
    "Item",
    "Label",
    "Loc",
    "Module",
    "Operand",
    "Pair",
    "Reg",
    "RegDecl",
    "Section",
    "Symbol",
    "Variable",
    "Vector",
]


@dataclass(frozen=True, slots=True)
class Reg:
    """A name used as an operand: register, special register (``%tid.x``), variable, label, function or the sink ``_``.

    ``negated`` is the ``!`` of a predicate operand (``!%p1``), ``minus`` the ``-`` that ``vmad`` allows (``-%r1``).
    A selector is part of the name: ``%r1.b0``, ``%v.x``.
    """

    name: str
    negated: bool = False
    minus: bool = False


@dataclass(frozen=True, slots=True)
class Imm:
    """A constant. ``text`` is one literal as written, with its sign (``0x10``, ``-7``, ``0f3F800000``, ``WARP_SZ``).

    ``value`` is its Python value: int for integers, float for decimal and ``0f``/``0d`` constants. Equality compares
    ``text``, so that the printer reproduces bit patterns exactly. The parser folds a constant expression (PTX ISA
    4.5): ``1 << 4`` becomes ``Imm("16", 16)``.
    """

    text: str
    value: int | float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol's address with an offset, ``generic(name)+offset``, or masked bytes of it, ``0xFF00(name)``.

    ``mask`` is the text of the byte mask before the parentheses, empty without a mask. A bare name is a Reg.
    """

    name: str
    offset: int = 0
    generic: bool = False
    mask: str = ""


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, c}``: a vector operand, TMA coordinates, or an initialiser list."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``, or ``[base, {coords}]`` of tensor instructions (``extra`` holds what follows the comma).

    ``base`` is a Reg (register or symbol) or an Imm. ``offset`` is in bytes (tensor memory: columns).
    ``unified`` is the suffix ``.unified`` of ``ld`` and ``st``.
    """

    base: Reg | Imm
    offset: int = 0
    extra: tuple[Operand, ...] = ()
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two results of one instruction (shfl, elect.sync, setp)."""

    first: Operand
    second: Operand


Operand = Reg | Imm | Symbol | Vector | Address | Pair


@dataclass(frozen=True, slots=True)
class Guard:
    """``@p`` or ``@!p`` before an instruction."""

    register: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``opcode`` with all modifiers, dot-joined as written (``ld.global.v4.f32``).

    The operands of ``call`` are: a Vector of results (may be empty), a Reg with the function or with the register that
    holds its address, a Vector of arguments (may be empty), and for an indirect call a Reg with the prototype or the
    table of targets.
    """

    opcode: str
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    name: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Loc:
    """``.loc file row column``: the source position of the instructions up to the next ``.loc``.

    ``tail`` is the optional rest as text: ``function_name $L__info_string0, inlined_at 1 20 5``.
    """

    file: int
    row: int
    column: int
    tail: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RegDecl:
    """``.reg .type %name<count>;`` (``count`` set: ``%name0 …``, one name) or ``.reg .type a, b;`` (``count`` None).

    ``type`` is without the dot (``b32``); ``vector`` is 2 or 4 for ``.v2`` and ``.v4``.
    """

    type: str
    names: tuple[str, ...]
    count: int | None = None
    vector: int = 1
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable declaration in any state space, or a parameter of a kernel or function.

    ``space`` and ``type`` are without the dot; ``space`` is ``global``, ``shared``, ``const``, ``local``, ``param``,
    ``tex``, or ``reg`` for register parameters of a ``.func``. ``dims`` is () for a scalar, (0,) for ``name[]``.
    ``init`` is an Imm, a Reg (address of a symbol), a Symbol, a Vector of these or None. ``linkage`` is ``extern``,
    ``visible``, ``weak``, ``common`` or empty. ``attributes`` holds further words in order (``.ptr .global .align 1``,
    ``.attribute(.managed)``).
    """

    space: str
    type: str
    name: str
    dims: tuple[int, ...] = ()
    align: int | None = None
    vector: int = 1
    init: Operand | None = None
    linkage: str = ""
    attributes: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Directive:
    """Any other directive: ``.file``, ``.pragma``, ``.maxntid``, ``.branchtargets``, ``.alias`` …

    ``name`` has its leading dot; ``text`` is the rest without the terminating ``;``, in the printer's spacing.
    """

    name: str
    text: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CallProto:
    """``name: .callprototype (ret) _ (params);``; ``text`` is the rest after ``.callprototype``."""

    name: str
    text: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Section:
    """``.section NAME { … }`` (debug data): ``name`` with its dot, the body as text without comments."""

    name: str
    text: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """``{ … }``: a scope."""

    items: tuple[Item, ...]
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Function:
    """An ``.entry`` or ``.func`` (``kind`` is ``entry`` or ``func``); ``body`` is None for a declaration.

    ``directives`` are between the parameters and the body (``.reqntid`` …); ``linkage`` is as in Variable.
    """

    kind: str
    name: str
    params: tuple[Variable, ...] = ()
    returns: tuple[Variable, ...] = ()
    directives: tuple[Directive, ...] = ()
    body: Block | None = None
    linkage: str = ""
    line: int = field(default=0, compare=False)


Item = Instruction | Label | Loc | RegDecl | Variable | Directive | CallProto | Section | Block | Function


@dataclass(frozen=True, slots=True)
class Module:
    """A whole module: ``.version``, ``.target`` words (``("sm_100a", "debug")``), ``.address_size``, then the items.

    ``source`` names the text in messages, and ``variables`` is the address of the first variable of the module, 0 if
    the device may choose it; ``heap``: the bytes from which malloc allocates, 0 for 8 MiB. Equality ignores the three.
    """

    version: str
    target: tuple[str, ...]
    address_size: int
    items: tuple[Item, ...]
    source: str = field(default="<ptx>", compare=False)
    variables: int = field(default=0, compare=False)
    heap: int = field(default=0, compare=False)
