"""Hypothesis strategies that build every node of the syntax tree, in the form in which the parser builds it."""

from __future__ import annotations

import string
import struct

from hypothesis import strategies as st

from warpwright.ptx import nodes

LETTERS = string.ascii_letters
FOLLOW = LETTERS + string.digits + "_$"
RESERVED = {"generic", "call", "_"}
TYPES = ["b8", "b16", "u32", "s64", "f32", "f64", "b128", "f16x2", "bf16", "pred"]
SPACES = ["global", "shared", "local", "const", "param"]

identifiers = st.builds(
    str.__add__, st.sampled_from(["a", "Z", "%r", "$L__", "_x", "%"]), st.text(FOLLOW, min_size=1, max_size=6)
).filter(lambda name: name not in RESERVED)
registers = st.one_of(identifiers, st.sampled_from(["_", "%tid.x", "%r1.b0", "%cluster_ctarank"]))
offsets = st.integers(-(1 << 31), 1 << 31)
lines = st.integers(1, 1 << 20)


def float_imm(value: float) -> nodes.Imm:
    return nodes.Imm(f"0d{struct.pack('>d', value).hex().upper()}", value)


immediates = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1).map(lambda n: nodes.Imm(str(n), n)),
    st.integers(0, (1 << 64) - 1).map(lambda n: nodes.Imm(f"0x{n:X}", n)),
    st.floats().map(float_imm),
    st.sampled_from([nodes.Imm("WARP_SZ", 32), nodes.Imm("1.5", 1.5), nodes.Imm("0b101", 5), nodes.Imm("7U", 7)]),
)
plain_registers = st.builds(nodes.Reg, registers)
signed_registers = st.one_of(
    st.builds(nodes.Reg, identifiers, negated=st.just(True)), st.builds(nodes.Reg, identifiers, minus=st.just(True))
)
symbols = st.builds(nodes.Symbol, identifiers, offsets.filter(bool))
scalars = st.one_of(plain_registers, immediates)
vectors = st.builds(nodes.Vector, st.lists(scalars, min_size=1, max_size=8).map(tuple))
addresses = st.builds(
    nodes.Address,
    st.one_of(st.builds(nodes.Reg, identifiers)),
    offsets,
    st.lists(st.one_of(scalars, vectors), max_size=2).map(tuple),
    st.booleans(),
)
immediate_addresses = st.builds(nodes.Address, st.integers(0, 1 << 32).map(lambda n: nodes.Imm(str(n), n)))
pairs = st.builds(nodes.Pair, st.one_of(plain_registers, vectors), plain_registers)
operands = st.one_of(scalars, signed_registers, symbols, vectors, addresses, immediate_addresses, pairs)

opcodes = st.sampled_from(
    [
        "add.s32",
        "ld.global.v4.f32",
        "ret",
        "bra",
        "tcgen05.mma.cta_group::2.kind::f16",
        "not_yet.known.x3",
        "setp.lt.f32",
    ]
)
guards = st.none() | st.builds(nodes.Guard, identifiers, st.booleans())
plain_instructions = st.builds(nodes.Instruction, opcodes, st.lists(operands, max_size=5).map(tuple), guards)
argument_lists = st.builds(nodes.Vector, st.lists(scalars, max_size=3).map(tuple))
calls = st.builds(
    lambda results, function, args, prototype, guard: nodes.Instruction(
        "call.uni", (results, nodes.Reg(function), args, *prototype), guard
    ),
    argument_lists,
    identifiers,
    argument_lists,
    st.lists(st.builds(nodes.Reg, identifiers), max_size=1),
    guards,
)

tails = st.sampled_from(
    ["", "function_name $L__info_string0, inlined_at 1 20 5", "function_name A + 4, inlined_at 2 3 0"]
)
locs = st.builds(nodes.Loc, lines, lines, lines, tails)
sized_registers = st.builds(
    lambda type_, name, count: nodes.RegDecl(type_, (name,), count),
    st.sampled_from(TYPES),
    identifiers,
    st.integers(0, 1 << 20),
)
named_registers = st.builds(
    lambda type_, names, vector: nodes.RegDecl(type_, tuple(names), None, vector),
    st.sampled_from(TYPES),
    st.lists(identifiers, min_size=1, max_size=4),
    st.sampled_from([1, 2, 4]),
)
masked = st.builds(nodes.Symbol, identifiers, offsets, st.booleans(), st.sampled_from(["0xFF", "0xFF00"]))
generic = st.builds(nodes.Symbol, identifiers, offsets, st.just(True))
values = st.recursive(
    st.one_of(immediates, st.builds(nodes.Reg, identifiers), symbols, masked, generic),
    lambda inner: st.builds(nodes.Vector, st.lists(inner, max_size=4).map(tuple)),
    max_leaves=8,
)
dims = st.lists(st.integers(1, 1 << 20), max_size=3).map(tuple)


def variables(linkages: list[str]) -> st.SearchStrategy[nodes.Variable]:
    """Variables of any space, with initialisers."""
    return st.builds(
        nodes.Variable,
        st.sampled_from(SPACES),
        st.sampled_from(TYPES),
        identifiers,
        st.one_of(dims, st.just((0,))),
        st.none() | st.sampled_from([1, 4, 128]),
        st.sampled_from([1, 2, 4]),
        st.none() | values,
        st.sampled_from(linkages),
        st.sampled_from(["", ".attribute(.managed)"]),
    )


parameters = st.builds(
    nodes.Variable,
    st.sampled_from(["param", "reg"]),
    st.sampled_from(TYPES),
    identifiers,
    dims,
    st.none() | st.just(16),
    attributes=st.sampled_from(["", ".ptr .global .align 16", ".ptr .shared"]),
)
directives = st.sampled_from(
    [
        nodes.Directive(".pragma", '"nounroll"'),
        nodes.Directive(".branchtargets", "$L1, $L2"),
        nodes.Directive(".calltargets", "one, two"),
    ]
)
files = st.builds(nodes.Directive, st.just(".file"), lines.map(lambda n: f'{n} "/a/b  c.cu", 1, 2'))
prototypes = st.builds(
    nodes.CallProto, identifiers, st.sampled_from(["() _ ()", "(.param .b32 _) _ (.param .b64 _, .param .b8 _[16])"])
)
sections = st.builds(nodes.Section, st.just(".debug_str"), st.sampled_from(["", "\n.b8 95,0\n$L__s:\n.b32 $L__s-1\n"]))
labels = st.builds(nodes.Label, identifiers)

statements = st.one_of(
    plain_instructions, calls, labels, locs, sized_registers, named_registers, directives, prototypes
) | variables([""])
blocks = st.recursive(
    st.builds(nodes.Block, st.lists(statements, max_size=6).map(tuple)),
    lambda inner: st.builds(nodes.Block, st.lists(st.one_of(statements, inner), max_size=4).map(tuple)),
    max_leaves=6,
)
linkages = st.sampled_from(["", "visible", "weak", "extern"])
function_directives = st.lists(
    st.sampled_from(
        [
            nodes.Directive(".maxntid", "128, 1, 1"),
            nodes.Directive(".explicitcluster"),
            nodes.Directive(".pragma", '"a", "b"'),
            nodes.Directive(".noreturn"),
        ]
    ),
    max_size=3,
).map(tuple)
parameter_lists = st.lists(parameters, max_size=3).map(tuple)
entries = st.builds(
    nodes.Function,
    st.just("entry"),
    identifiers,
    parameter_lists,
    directives=function_directives,
    body=blocks,
    linkage=linkages,
)
functions = st.builds(
    nodes.Function,
    st.just("func"),
    identifiers,
    parameter_lists,
    st.lists(parameters, max_size=1).map(tuple),
    function_directives,
    st.none() | blocks,
    linkages,
)
modules = st.builds(
    nodes.Module,
    st.sampled_from(["7.8", "8.7", "9.0"]),
    st.sampled_from([("sm_90a",), ("sm_100a", "debug")]),
    st.just(64),
    st.lists(
        st.one_of(entries, functions, files, sections, variables(["", "visible", "extern", "weak", "common"])),
        max_size=4,
    ).map(tuple),
)
