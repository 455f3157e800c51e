"""Instruction descriptors of tcgen05.mma (PTX ISA 9.1 section 9.7.16.4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpwright.errors import DescriptorError

__all__ = ["KINDS", "InstrDescriptor"]

_F8F6F4 = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}

# kind: (codes of the A and B types, codes of the D types, K of a dense instruction in elements)
KINDS: dict[str, tuple[dict[str, int], dict[str, int], int]] = {
    "f16": ({"f16": 0, "bf16": 1}, {"f16": 0, "f32": 1}, 16),
    "tf32": ({"tf32": 2}, {"f32": 1}, 8),
    "f8f6f4": (_F8F6F4, {"f16": 0, "f32": 1}, 32),
    "i8": ({"u8": 0, "s8": 1}, {"s32": 2}, 32),
    "mxf8f6f4": (_F8F6F4, {"f32": 1}, 32),
    "mxf4": ({"e2m1": 1}, {"f32": 1}, 64),
    "mxf4nvf4": ({"e2m1": 1}, {"f32": 1}, 64),
}
_SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
_SCALE_TYPES = {"ue4m3": 0, "ue8m0": 1}
_SHIFTS = {0: 0, 8: 1, 16: 2, 32: 3}


@dataclass(frozen=True, slots=True)
class InstrDescriptor:
    """The instruction descriptor of a tcgen05.mma: types, shape and modifiers.

    ``kind`` is the word after ``kind::``; the types are PTX names or scalar types; with cta_group::2, ``m`` and ``n``
    are the extents of the whole CTA pair. ``a_major`` and ``b_major`` are ``"k"`` or ``"mn"`` (the transpose bits).
    ``max_shift`` is the shift of .ws: 0, 8, 16 or 32. ``sfa_id``, ``sfb_id`` and ``scale_type`` are fields of the
    block-scaled kinds. ``k96`` selects K = 96 of the 4-bit kinds on sm_103a.
    """

    kind: str
    a_type: str
    b_type: str
    d_type: str
    m: int
    n: int
    a_major: str = "k"
    b_major: str = "k"
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    sparse: bool = False
    sparsity_selector: int = 0
    max_shift: int = 0
    sfa_id: int = 0
    sfb_id: int = 0
    scale_type: str = "ue8m0"
    k96: bool = False

    def __post_init__(self) -> None:
        for name in ("a_type", "b_type", "d_type"):
            given: Any = getattr(self, name)
            object.__setattr__(self, name, getattr(given, "name", given))

    @property
    def k(self) -> int:
        """K of one instruction, in elements."""
        if self.k96:
            return 96
        return KINDS[self.kind][2] * (2 if self.sparse else 1)

    def encode(self) -> int:
        """Returns the 32-bit value. Raises DescriptorError for a type that the kind lacks, or a value out of range."""
        _check_fields(self)
        types, d_types, _ = KINDS[self.kind]
        value = self.sparse << 2 | types[self.a_type] << 7 | types[self.b_type] << 10
        value |= self.negate_a << 13 | self.negate_b << 14
        value |= (self.a_major == "mn") << 15 | (self.b_major == "mn") << 16 | self.n >> 3 << 17
        if self.kind not in _SCALED:
            value |= self.sparsity_selector | self.saturate << 3 | d_types[self.d_type] << 4
            return value | self.m >> 4 << 24 | _SHIFTS[self.max_shift] << 30
        value |= self.sfb_id << 4 | _SCALE_TYPES[self.scale_type] << 23
        return value | self.m >> 7 << 27 | self.sfa_id << 29 | self.k96 << 31

    @staticmethod
    def decode(value: int, kind: str) -> InstrDescriptor:
        """Returns the fields of a 32-bit ``value``, as an instruction of ``kind`` decodes them.

        Raises DescriptorError for an unknown kind, a reserved bit that is set, or a type code that the kind lacks.
        """
        if kind not in KINDS:
            raise DescriptorError(f"given kind {kind!r}; expected one of {', '.join(KINDS)}")
        if not 0 <= value < 1 << 32:
            raise DescriptorError(f"given instruction descriptor {value}; expected an unsigned 32-bit value")
        found = _decode_scaled(value, kind) if kind in _SCALED else _decode_plain(value, kind)
        if found.encode() != value:
            raise DescriptorError(
                f"given instruction descriptor 0x{value:08x} for kind::{kind} with reserved bits "
                f"0x{found.encode() ^ value:08x}; expected 0 there; build it with InstrDescriptor(...).encode()"
            )
        return found

    def validate(self, cta_group: int = 1, ws: bool = False) -> None:
        """Raise DescriptorError unless the shape and types are legal for the instruction's cta_group and .ws."""
        _check_fields(self)
        if ws and (cta_group != 1 or self.kind in _SCALED):
            raise DescriptorError(
                f"given .ws with cta_group::{cta_group} and kind::{self.kind}; expected cta_group::1 and a kind "
                "without block scales; drop .ws"
            )
        _check_extent(self, "M", self.m, _legal_m(self, cta_group, ws), cta_group, ws)
        _check_extent(self, "N", self.n, _legal_n(self, cta_group, ws), cta_group, ws)


def _type(codes: dict[str, int], code: int, operand: str, kind: str, value: int) -> str:
    for name, known in codes.items():
        if known == code:
            return name
    raise DescriptorError(
        f"given instruction descriptor 0x{value:08x} with type code {code} for {operand}; expected one of "
        f"{', '.join(f'{known} ({name})' for name, known in codes.items())} with kind::{kind}"
    )


def _decode_plain(value: int, kind: str) -> InstrDescriptor:
    types, d_types, _ = KINDS[kind]
    return InstrDescriptor(
        kind,
        _type(types, value >> 7 & 7, "A", kind, value),
        _type(types, value >> 10 & 7, "B", kind, value),
        _type(d_types, value >> 4 & 3, "D", kind, value),
        m=(value >> 24 & 31) << 4,
        sparsity_selector=value & 3,
        saturate=bool(value >> 3 & 1),
        max_shift=(0, 8, 16, 32)[value >> 30],
        **_common(value),
    )


def _decode_scaled(value: int, kind: str) -> InstrDescriptor:
    types = KINDS[kind][0]
    return InstrDescriptor(
        kind,
        _type(types, value >> 7 & 7, "A", kind, value),
        _type(types, value >> 10 & 7, "B", kind, value),
        "f32",
        m=(value >> 27 & 3) << 7,
        sfb_id=value >> 4 & 3,
        scale_type="ue8m0" if value >> 23 & 1 else "ue4m3",
        sfa_id=value >> 29 & 3,
        k96=bool(value >> 31) and kind != "mxf8f6f4",
        **_common(value),
    )


def _common(value: int) -> dict[str, Any]:
    return {
        "n": (value >> 17 & 63) << 3,
        "a_major": "mn" if value >> 15 & 1 else "k",
        "b_major": "mn" if value >> 16 & 1 else "k",
        "negate_a": bool(value >> 13 & 1),
        "negate_b": bool(value >> 14 & 1),
        "sparse": bool(value >> 2 & 1),
    }


def _check_fields(desc: InstrDescriptor) -> None:
    if desc.kind not in KINDS:
        raise DescriptorError(f"given kind {desc.kind!r}; expected one of {', '.join(KINDS)}")
    types, d_types, _ = KINDS[desc.kind]
    majors = ("k",) if desc.kind in ("mxf4", "mxf4nvf4") else ("k", "mn")
    checks: tuple[tuple[str, object, Any], ...] = (
        ("a_type", desc.a_type, types),
        ("b_type", desc.b_type, types),
        ("d_type", desc.d_type, d_types),
        ("a_major", desc.a_major, majors),
        ("b_major", desc.b_major, majors),
        ("max_shift", desc.max_shift, _SHIFTS),
        ("sparsity_selector", desc.sparsity_selector, range(4)),
        ("sfa_id", desc.sfa_id, range(4)),
        ("sfb_id", desc.sfb_id, range(4)),
        ("scale_type", desc.scale_type, _SCALE_TYPES if desc.kind == "mxf4nvf4" else ("ue8m0",)),
        ("m", desc.m, range(0, 512, 128 if desc.kind in _SCALED else 16)),
        ("n", desc.n, range(0, 512, 8)),
    )
    for name, given, allowed in checks:
        if given not in allowed:
            raise DescriptorError(f"given {name}={given!r} with kind::{desc.kind}; expected {_choices(allowed)}")
    if desc.d_type == "f16" and "bf16" in (desc.a_type, desc.b_type):
        raise DescriptorError("given d_type='f16' with a bf16 operand; expected d_type='f32'; set d_type='f32'")
    if desc.kind == "f16" and desc.a_type != desc.b_type:
        raise DescriptorError(
            f"given a_type={desc.a_type!r} and b_type={desc.b_type!r}; expected the same type with kind::f16"
        )
    if desc.saturate and desc.kind != "i8":
        raise DescriptorError(f"given saturate with kind::{desc.kind}; expected kind::i8; drop saturate")


def _choices(allowed: Any) -> str:
    if isinstance(allowed, range):
        step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
        return f"{allowed[0]} to {allowed[-1]}{step}"
    return "one of " + ", ".join(map(repr, allowed))


def _legal_m(desc: InstrDescriptor, cta_group: int, ws: bool) -> tuple[int, ...]:
    if ws:
        return (32, 64, 128)
    if cta_group == 1:
        return (128,) if desc.kind in _SCALED else (64, 128)
    return (256,) if desc.sparse and desc.kind in _SCALED else (128, 256)


def _legal_n(desc: InstrDescriptor, cta_group: int, ws: bool) -> tuple[int, ...]:
    """Returns the legal values of N (PTX ISA 9.1 table 39); an 8-bit MN-major B doubles the step."""
    if ws:
        return (64, 128) if desc.sparse else (64, 128, 256)
    if desc.kind == "i8":
        return (8, 16, 24, *range(32, 257, 16)) if cta_group == 1 else tuple(range(32, 257, 32))
    step = 8 * cta_group
    if desc.kind in ("f8f6f4", "mxf8f6f4") and desc.b_major == "mn":
        step *= 2
    return tuple(range(step, 257, step))


def _check_extent(
    desc: InstrDescriptor, name: str, given: int, legal: tuple[int, ...], cta_group: int, ws: bool
) -> None:
    if given not in legal:
        suffix = ".ws" if ws else ""
        raise DescriptorError(
            f"given {name}={given} for tcgen05.mma{suffix} kind::{desc.kind} cta_group::{cta_group}; "
            f"expected one of {', '.join(map(str, legal))}"
        )
