"""Probes of atom and red: their results, and the contents of global and shared memory after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.selftest.probes.cases import Array, Case, threads_case
from warpwright.selftest.probes.warps import special_values

__all__ = ["atomics", "lane_reductions", "vector_atomics"]

SCALARS = (
    *("add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32", "exch.b32", "exch.b64", "exch.b128"),
    *(f"{op}.{type}" for op in ("min", "max") for type in ("u32", "s32", "u64", "s64")),
    *(f"{op}.{type}" for op in ("and", "or", "xor") for type in ("b32", "b64")),
    *("add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2", "add.noftz.bf16", "add.noftz.bf16x2"),
    *("cas.b16", "cas.b32", "cas.b64", "cas.b128"),
)
VECTORS = (
    *("add.v2.f32", "add.v4.f32"),
    *(f"{op}.noftz.v{n}.{type}" for op in ("add", "min", "max") for type in ("f16", "bf16") for n in (2, 4, 8)),
    *(f"{op}.noftz.v{n}.{type}" for op in ("add", "min", "max") for type in ("f16x2", "bf16x2") for n in (2, 4)),
)
DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "f16x2": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "bf16x2": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
SLOT = 16  # bytes of each thread's own memory


def operands(rng: np.random.Generator, type: str, count: int) -> Array:
    """Returns (count, 16) bytes: numbers of all magnitudes; floats include pairs of small and of special values."""
    if type not in DTYPES:
        size = count * SLOT // 8
        wide = rng.integers(0, 2**63, size, np.uint64) >> rng.integers(0, 60, size, np.uint64)
        signed: Array = wide * rng.choice(np.array([1, 2**64 - 1], np.uint64), size)
        return signed.view(np.uint8).reshape(count, SLOT)
    dtype = np.dtype(DTYPES[type])
    made = (rng.standard_normal((count, SLOT // dtype.itemsize)) * 2.0 ** rng.integers(-3, 4)).astype(dtype)
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    small = (rng.integers(-9, 10, made.shape) * float(info.smallest_subnormal)).astype(dtype)
    made = np.where(rng.random(made.shape) < 0.2, small, made)
    made = np.where(rng.random(made.shape) < 0.3, rng.choice(special_values(dtype), made.shape), made)
    return np.ascontiguousarray(made).view(np.uint8)


def atomics() -> Iterator[Case]:
    """Every operation of atom on one value, in both spaces, each thread at its own address."""
    rng = np.random.default_rng(31)
    for op in SCALARS:
        for space in ("global", "shared"):
            yield atomic_case(rng, op, space)


def vector_atomics() -> Iterator[Case]:
    """Vector operations of atom, which exist for global memory only."""
    rng = np.random.default_rng(32)
    for op in VECTORS:
        yield atomic_case(rng, op, "global")


def lane_reductions() -> Iterator[Case]:
    """Every operation of red, and generic addresses."""
    rng = np.random.default_rng(33)
    for op in (
        "add.u32",
        "dec.u32",
        "max.s64",
        "xor.b64",
        *(op for op in SCALARS if op.startswith("add") and "f" in op),
    ):
        for space in ("global", "shared"):
            yield atomic_case(rng, op, space, name="red")
    for op in ("add.f32", "add.noftz.bf16x2", "add.f64", "cas.b128"):
        for space in ("global", "shared"):
            yield atomic_case(rng, op, space, generic=True)


def atomic_case(rng: np.random.Generator, op: str, space: str, name: str = "atom", generic: bool = False) -> Case:
    """Each thread's operand, its place in memory, the old value in %o0 to %o3, the place afterwards in %o4 to %o7."""
    type = op.rpartition(".")[2]
    bits = {"f16x2": 32, "bf16x2": 32}.get(type) or int(type.lstrip("bfus"))
    vector = int(op.split(".v")[1].split(".")[0]) if ".v" in op else 1
    count = 128 if type in DTYPES and vector == 1 else 32
    old, new, third = (operands(rng, type, count) for _ in range(3))
    if op.startswith("cas"):  # half of them find what they compare with
        new[::2] = old[::2]
    given = np.concatenate([new.view(np.uint32), third.view(np.uint32), old.view(np.uint32)], axis=1)
    body = f"    .reg .b{bits} %old<8>, %new<8>, %third<8>;\n    .reg .b16 %half;\n"
    body += PLACES[space] + "".join(unpacked(name, at, bits, vector) for name, at in (("new", 0), ("third", 4)))
    names = [f"{{{', '.join(f'%{name}{n}' for n in range(vector))}}}" for name in ("old", "new")]
    old_name, new_name = names if vector > 1 else ("%old0", "%new0")
    where = "[%place]" if space == "global" or generic else "[%n]"
    last = ", %third0" if op.startswith("cas") else ""
    if generic and space == "shared":
        body += "    cvt.u64.u32 %place, %n;\n    cvta.shared.u64 %place, %place;\n"
    returned = "" if name == "red" else f"{old_name}, "
    body += f"    {name}.relaxed.gpu{'' if generic else '.' + space}.{op} {returned}{where}, {new_name}{last};\n"
    body += ("" if name == "red" else packed(bits, vector)) + LATER[space]
    label = f"{op} {space}{' generic' if generic else ''}"
    return threads_case(label, body, given, 8, np.zeros(count * SLOT, np.uint8), block=count)


# global: the third part of the thread's words; shared: a copy of it in the arena
PLACES = {
    "global": "    add.u64 %place, %given, 32;\n",
    "shared": "    shl.b32 %n, %t, 4;\n    add.u32 %n, %n, %base;\n"
    "    st.shared.v4.b32 [%n], {%i8, %i9, %i10, %i11};\n",
}
LATER = {
    "global": "    ld.global.v4.b32 {%o4, %o5, %o6, %o7}, [%place];\n",
    "shared": "    ld.shared.v4.b32 {%o4, %o5, %o6, %o7}, [%n];\n",
}


def unpacked(name: str, at: int, bits: int, count: int) -> str:
    """Values of ``bits`` out of the words from %i{at} on."""
    if bits == 128:
        low, high = (f"    mov.b64 %{word}, {{%i{n}, %i{n + 1}}};\n" for word, n in (("wide", at), ("memory", at + 2)))
        return f"{low}{high}    mov.b128 %{name}0, {{%wide, %memory}};\n"
    if bits == 64:
        return "".join(
            f"    mov.b64 %{name}{n}, {{%i{at + 2 * n}, %i{at + 2 * n + 1}}};\n" for n in range(min(count, 2))
        )
    if bits == 32:
        return "".join(f"    mov.b32 %{name}{n}, %i{at + n};\n" for n in range(count))
    pairs = [(n, f"{{%{name}{n}, %{name}{n + 1}}}") for n in range(0, count, 2)] if count > 1 else []
    text = "".join(f"    mov.b32 {pair}, %i{at + n // 2};\n" for n, pair in pairs)
    return text or f"    mov.b32 {{%{name}0, %half}}, %i{at};\n"


def packed(bits: int, count: int) -> str:
    """The old values as words %o0 and on."""
    if bits == 128:
        parts = ("    mov.b64 {%o0, %o1}, %wide;\n", "    mov.b64 {%o2, %o3}, %memory;\n")
        return "    mov.b128 {%wide, %memory}, %old0;\n" + "".join(parts)
    if bits == 64:
        return "    mov.b64 {%o0, %o1}, %old0;\n"
    if bits == 32:
        return "".join(f"    mov.b32 %o{n}, %old{n};\n" for n in range(count))
    if count == 1:
        return "    mov.b16 %half, 0;\n    mov.b32 %o0, {%old0, %half};\n"
    return "".join(f"    mov.b32 %o{n // 2}, {{%old{n}, %old{n + 1}}};\n" for n in range(0, count, 2))
