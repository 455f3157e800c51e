"""Probes of arithmetic, logic, conversions and comparisons, on random and adversarial values.

``instructions.txt`` has one instruction a line, each operand with the type of its values. Results are stored as one
checksum an instruction; every NaN counts as the same value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np

from warpwright.selftest.probes import values
from warpwright.selftest.probes.cases import Array, Case, threads_case

__all__ = ["arithmetic", "flushes", "tf32_nans"]

INSTRUCTIONS = Path(__file__).parent / "instructions.txt"
THREADS = 256
TOGETHER = 16  # instructions a kernel
OPERAND = re.compile(r"([a-z]\w*):(\w+)")
FLOATS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}


def arithmetic() -> Iterator[Case]:
    """Each instruction of arithmetic, logic, conversion and comparison on random and adversarial values."""
    lines = INSTRUCTIONS.read_text().splitlines()
    for first in range(0, len(lines), TOGETHER):
        chosen = lines[first : first + TOGETHER]
        yield arithmetic_case(f"from {lines[first]}", {line: random_values(line) for line in chosen})


def random_values(line: str) -> list[Array]:
    kinds = [kind for _, kind in sources_of(line)]
    return values.inputs(kinds, THREADS, np.random.default_rng(crc32(line.encode())))


def sources_of(line: str) -> list[tuple[str, str]]:
    return [pair for pair in dict.fromkeys(OPERAND.findall(line)) if pair[0][0] not in "dpq"]


def flushes() -> Iterator[Case]:
    """``.ftz`` with results that become normal by rounding: whether the flush or the rounding is first."""
    for kind, (fraction, least) in {"f32": (23, -126), "f16": (10, -14)}.items():
        modes = ("rn", "rz", "rm", "rp") if kind == "f32" else ("rn",)
        held = nearly_normal(fraction, least)
        chosen: dict[str, list[Array]] = {}
        for mode in modes:
            chosen[f"mul.{mode}.ftz.{kind} d:{kind}, a:{kind}, b:{kind}"] = held[:2]
            chosen[f"fma.{mode}.ftz.{kind} d:{kind}, a:{kind}, b:{kind}, c:{kind}"] = held
        for mode in modes if kind == "f32" else ():
            chosen[f"div.{mode}.ftz.f32 d:f32, a:f32, b:f32"] = [held[0], 1 / held[1]]
            chosen[f"rcp.{mode}.ftz.f32 d:f32, a:f32"] = [1 / held[0] * np.float32(2.0**63)]
        yield arithmetic_case(
            kind,
            {
                line: [array.astype(f"f{2 + 2 * (kind == 'f32')}") for array in arrays]
                for line, arrays in chosen.items()
            },
        )


def nearly_normal(fraction: int, least: int) -> list[Array]:
    """a, b, c for which a·b, or a·b + c, is about the least normal number: a little less, in and beyond the bits that
    a normal and a subnormal number have."""
    steps = np.array([0, 1, 2, 3, 5], np.float64) * 2.0**-fraction
    near = np.concatenate([1 + steps, 2 - steps[1:], [1.5]])  # 10 of them
    pairs = np.array([(a, sign * b) for a in near for b in near for sign in (1, -1)])
    a, b = np.resize(pairs, (THREADS, 2)).T
    c = np.resize([0.0, -0.0, 2.0 ** (least - fraction)], THREADS)
    half = least // 2
    far = np.arange(THREADS) >= 200  # a·b is less than a bit of c
    return [
        a * 2.0**half,
        b * 2.0 ** (least - half - 1 - np.where(far, fraction, 0)),
        np.where(far, np.where(b > 0, -1, 1) * 2.0**least, c),
    ]


NANS = np.array(
    [
        sign | 0x7F800000 | low
        for sign in (0, 1 << 31)
        for low in (1, 0xFFF, 0x1000, 0x3FFFFF, 0x400000, 0x7FEFFF, 0x7FF000, 0x7FFFFF, 0x3FF000)
    ],
    np.uint32,
)


def tf32_nans() -> Iterator[Case]:
    """NaN converted to tf32, whose bit pattern can affect later instructions."""
    held = np.resize(NANS, THREADS).view(np.float32)
    forms = ("rn", "rz", "rna", "rn.relu", "rz.relu", "rna.satfinite")
    lines = [f"cvt.{form}.tf32.f32 d:b32, a:f32" for form in forms]
    yield arithmetic_case("all", {line: [held] for line in lines})


def arithmetic_case(name: str, chosen: dict[str, list[Array]]) -> Case:
    """Returns the case of these instructions, with the source values of each thread."""
    body, given, results = "", list[Array](), list[str]()
    for line, held in chosen.items():
        operands = list(dict.fromkeys(OPERAND.findall(line)))
        sources = sources_of(line)
        names = {register: f"%i{2 * (len(given) + n)}" for n, (register, _) in enumerate(sources)}
        names |= {
            register: f"%o{2 * (len(results) + n)}"
            for n, (register, _) in enumerate(pair for pair in operands if pair not in sources)
        }
        given += [words(array, kind) for array, (_, kind) in zip(held, sources, strict=True)]
        results += [kind for register, kind in operands if register[0] in "dpq"]
        body += instruction(line, operands, names)
    keep = partial(checks, kinds=results)
    return threads_case(name, body, np.concatenate(given, axis=1), 2 * len(results), block=THREADS, keep=keep)


def words(array: Array, kind: str) -> Array:
    """Returns values as two words a thread; 8-bit values are sign-extended."""
    if kind == "s8":
        array = array.astype(np.int32)
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(THREADS, -1)
    return np.pad(raw, ((0, 0), (0, 8 - raw.shape[1]))).view(np.uint32)


def width(kind: str) -> int:
    return 32 if kind in ("u8", "s8", "b8") else values.bits_of(kind)


def instruction(line: str, operands: list[tuple[str, str]], names: dict[str, str]) -> str:
    """Returns the instruction with loads of its operands from words and stores of its results to words."""
    before, after = "", ""
    for register, kind in operands:
        word, bits = names[register], width(kind)
        other = f"{word[:2]}{int(word[2:]) + 1}"
        before += f"    .reg .{'pred' if bits == 1 else f'b{bits}'} %{register};\n"
        loads, stores = {
            1: (f"setp.ne.u32 %{register}, {word}, 0;", f"selp.u32 {word}, 1, 0, %{register};"),
            16: (f"cvt.u16.u32 %{register}, {word};", f"cvt.u32.u16 {word}, %{register};"),
            32: (f"mov.b32 %{register}, {word};", f"mov.b32 {word}, %{register};"),
            64: (f"mov.b64 %{register}, {{{word}, {other}}};", f"mov.b64 {{{word}, {other}}}, %{register};"),
        }[bits]
        if register[0] in "dpq":
            after += f"    {stores}\n"
        else:
            before += f"    {loads}\n"
    opcode, _, spelled = line.partition(" ")
    return f"{{\n{before}    {opcode} {OPERAND.sub(lambda found: '%' + found[1], spelled)};\n{after}}}\n"


def checks(answer: Array, kinds: list[str]) -> Array:
    """Returns one checksum a result; of 16-bit results the low half, which is all that PTX defines."""
    found = []
    for n, kind in enumerate(kinds):
        pair = np.ascontiguousarray(answer[:, 2 * n : 2 * n + (2 if width(kind) == 64 else 1)])
        if width(kind) == 16:
            pair = pair.astype(np.uint16)
        found.append(crc32(without_nan(pair, kind).tobytes()))
    return np.array(found, np.uint32)


def without_nan(pair: Array, kind: str) -> Array:
    """Returns the values with every NaN as one pattern."""
    element = values.PACKED.get(kind, kind)
    if element not in FLOATS:
        return pair
    raw = pair.view(FLOATS[element]).copy()
    with np.errstate(invalid="ignore"):
        raw[np.isnan(raw.view(values.DTYPES[element]))] = np.iinfo(raw.dtype).max
    return raw
