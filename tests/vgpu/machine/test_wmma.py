"""wmma: matrices of every shape, type and layout through memory, fragments and MMAs (PTX ISA 9.1 section 9.7.14.4)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.samples import sampled
from tests.vgpu.engines.operands import DTYPES, small_integers, wide
from tests.vgpu.engines.rounding import steps
from tests.vgpu.machine.warp_text import SMEM, run_warp
from warpwright.errors import MemoryFault

Matrix = NDArray[Any]
LARGE = ("m16n16k16", "m8n32k16", "m32n8k16")
AT = {"a": 0, "b": 1024, "c": 2048, "d": 3072}  # bytes in the image
KINDS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "s32": np.int32, "f64": np.float64}
DENSE = "row.col.row.row"  # layouts of A, B, C and D
REGISTERS = {  # of A and B, by PTX ISA 9.1 section 9.7.14.4.1
    "f16": dict.fromkeys(LARGE, (8, 8)),
    "bf16": {"m16n16k16": (4, 4), "m8n32k16": (2, 8), "m32n8k16": (8, 2)},
    "s8": {"m16n16k16": (2, 2), "m8n32k16": (1, 4), "m32n8k16": (4, 1)},
    "tf32": {"m16n16k8": (4, 4)},
    "f64": {"m8n8k4": (1, 1)},
    "s4": {"m8n8k32": (1, 1)},
    "b1": {"m8n8k128": (1, 1)},
}
# for each state space: the address of byte {at} of the image, into %u{n}
SPACES = {
    ".shared": "add.u32 %r{n}, %smem, {at}; cvt.u64.u32 %u{n}, %r{n};",
    ".shared::cta": "add.u32 %r{n}, %smem, {at}; cvt.u64.u32 %u{n}, %r{n};",
    "": "add.u32 %r{n}, %smem, {at}; cvt.u64.u32 %u{n}, %r{n}; cvta.shared.u64 %u{n}, %u{n};",
    ".global": "ld.param.u64 %u{n}, [image]; add.u64 %u{n}, %u{n}, {at};",
    " of global memory": "ld.param.u64 %u{n}, [image]; add.u64 %u{n}, %u{n}, {at};",
}


class Case(NamedTuple):
    """A shape, and the types of A and B, of C and of D."""

    shape: str
    type: str
    c: str
    d: str

    @property
    def extents(self) -> tuple[int, int, int]:
        m, _, rest = self.shape[1:].partition("n")
        n, _, k = rest.partition("k")
        return int(m), int(n), int(k)

    def registers(self, name: str) -> int:
        if name in "ab":
            return REGISTERS[self.type.replace("u", "s")][self.shape]["ab".index(name)]
        m, n, _ = self.extents
        return m * n // (64 if self[2 + "cd".index(name)] == "f16" else 32)

    def type_of(self, name: str) -> str:
        return self.type if name in "ab" else self[2 + "cd".index(name)]

    def vector(self, name: str) -> str:
        kind = {"f32": "f", "f64": "g"}.get(self.type_of(name), "w")
        return "{" + ", ".join(f"%{kind}{name}{i}" for i in range(self.registers(name))) + "}"


CASES = [
    *(Case(shape, "f16", c, d) for shape in LARGE for c in ("f16", "f32") for d in ("f16", "f32")),
    *(Case(shape, "bf16", "f32", "f32") for shape in LARGE),
    Case("m16n16k8", "tf32", "f32", "f32"),
    *(Case(shape, type, "s32", "s32") for shape in LARGE for type in ("s8", "u8")),
    Case("m8n8k4", "f64", "f64", "f64"),
]
LAYOUTS = "row.row.row.col", "row.col.col.row", "col.row.row.row", "col.col.col.col"
FLOATS = [case for case in CASES if case.type in ("f16", "bf16", "tf32")]


def program(case: Case, layouts: str, space: str = ".shared", strides: dict[str, int] | None = None, word: str = "",
            action: str = "") -> str:  # fmt: skip
    """Returns PTX that loads A, B and C, multiplies, and stores D; out of global memory D goes to shared memory too."""
    lines = [f".reg .b32 %w{name}<8>; .reg .f32 %f{name}<8>; .reg .f64 %g{name}<8>;" for name in "abcd"]
    lines += [".reg .b64 %u<8>;"]
    majors, ab = dict(zip("abcd", layouts.split("."), strict=True)), ".".join(layouts.split(".")[:2])
    types = f"{case.d}.{case.c}" if case.type == "f16" else f"{case.d}.{case.type}.{case.type}.{case.c}"
    parts, globally = {name: case.vector(name) for name in "abcd"}, "global" in space

    def move(verb: str, name: str, where: str, part: str, space: str) -> str:
        opcode = f"wmma.{verb}.sync.aligned.{majors[name]}.{case.shape}{space}.{case.type_of(name)}"
        stride = f", {strides[name]}" if strides and name in strides else ""
        return f"{opcode} {part}, [{where}]{stride};" if "load" in verb else f"{opcode} [{where}], {part}{stride};"

    for n, name in enumerate("abcd"):
        lines.append(SPACES[space].format(n=n, at=AT[name]))
    word_of_space = space.removesuffix(" of global memory")
    lines += [move(f"load.{name}", name, f"%u{n}", parts[name], word_of_space) for n, name in enumerate("abc")]
    operands = ", ".join(parts[name] for name in "dabc")
    lines.append(f"wmma.mma{action}.sync.aligned.{ab}.{case.shape}.{types}{word} {operands};")
    lines.append(move("store.d", "d", "%u3", parts["d"], word_of_space))
    if globally:
        lines += ["bar.warp.sync -1;", move("load.c", "d", "%u3", parts["d"], word_of_space)]
        lines += [SPACES[".shared"].format(n=3, at=AT["d"]), move("store.d", "d", "%u3", parts["d"], ".shared")]
    return "\n".join(lines)


def place(image: NDArray[np.uint8], name: str, shape: tuple[int, ...], type: Any, layout: str, stride: int) -> Matrix:
    """Returns a matrix of the image, as a view."""
    lines, count = shape if layout == "row" else shape[::-1]
    size = np.dtype(type).itemsize
    whole = image[AT[name] :].view(type)
    found = np.lib.stride_tricks.as_strided(whole, (lines, count), ((stride or count) * size, size))
    return found if layout == "row" else found.T


def multiply(
    case: Case, a: Matrix, b: Matrix, c: Matrix, layouts: str = DENSE, space: str = ".shared",
    strides: dict[str, int] | None = None, word: str = "", action: str = "", **options: Any,
) -> Matrix:  # fmt: skip
    """Returns D. Elements of less than a byte are packed, in ``a`` along rows and in ``b`` along columns."""
    majors, each = dict(zip("abcd", layouts.split("."), strict=True)), strides or {}
    image = np.random.default_rng(5).integers(0, 256, SMEM, dtype=np.uint8)
    for name, matrix in (("a", a), ("b", b), ("c", c.astype(KINDS[case.c]))):
        place(image, name, matrix.shape, matrix.dtype, majors[name], each.get(name, 0))[:] = matrix
    before = image.copy()
    run_warp(program(case, layouts, space, strides, word, action), np.zeros((32, 1), np.uint32), 0, image, **options)
    d = place(image, "d", case.extents[:2], KINDS[case.d], majors["d"], each.get("d", 0))
    found = d.copy()
    place(before, "d", case.extents[:2], KINDS[case.d], majors["d"], each.get("d", 0))[:] = d
    assert np.array_equal(before, image)  # it stored D and nothing else
    return found


def operands(case: Case, seed: int) -> tuple[Matrix, Matrix, Matrix]:
    """Returns A, B and C with exact sums."""
    random, (m, n, k) = np.random.default_rng(seed), case.extents
    type = "tf32" if case.type == "f64" else case.type
    a, b = small_integers(random, (m, k), type), small_integers(random, (k, n), type)
    if case.type == "f64":
        a, b = a.astype(np.float64), b.astype(np.float64)
    return a, b, random.integers(-9, 9, (m, n))


def exact(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    return a.astype(np.float64) @ b.astype(np.float64) + c


@sampled(
    ("case", "layouts"),
    [(case, layouts) for at, case in enumerate(CASES) for layouts in (*LAYOUTS[at % 2 :], *LAYOUTS[: at % 2])],
    every=2,
    ids=lambda each: "-".join(each) if isinstance(each, Case) else each,
)
def test_every_element_has_its_place(case: Case, layouts: str) -> None:
    a, b, c = operands(case, 1)
    assert np.array_equal(multiply(case, a, b, c, layouts), exact(a, b, c))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[17], CASES[-1]], ids="-".join)
def test_state_spaces(case: Case, space: str) -> None:
    a, b, c = operands(case, 2)
    assert np.array_equal(multiply(case, a, b, c, "col.row.row.row", space), exact(a, b, c))


@pytest.mark.parametrize("layouts", ["row.col.row.col", "col.row.col.row"])
@pytest.mark.parametrize("case", [Case("m16n16k16", "s8", "s32", "s32"), Case("m8n8k4", "f64", "f64", "f64"),
                                  Case("m8n32k16", "f16", "f16", "f16")], ids="-".join)  # fmt: skip
def test_strides_skip_elements(case: Case, layouts: str) -> None:
    """The bytes between the lines of D keep their contents."""
    lines = {"m16n16k16": {"a": 32, "b": 48}, "m8n8k4": {"a": 10, "b": 12, "c": 10}, "m8n32k16": {"a": 24, "d": 40}}
    strides = lines[case.shape]
    if case.shape == "m8n32k16" and layouts.endswith("col"):
        strides = {"a": 24, "d": 8}
    a, b, c = operands(case, 3)
    assert np.array_equal(multiply(case, a, b, c, layouts, strides=strides), exact(a, b, c))


def test_a_stride_in_a_register() -> None:
    case = CASES[0]
    a, b, c = operands(case, 4)
    line = program(case, DENSE, strides={"a": 24}).replace(", 24;", ", %r9;")
    image = np.zeros(SMEM, np.uint8)
    for name, matrix, stride in (("a", a, 24), ("b", b, 0), ("c", c.astype(np.float16), 0)):
        place(image, name, matrix.shape, matrix.dtype, DENSE.split(".")["abc".index(name)], stride)[:] = matrix
    run_warp(f"mov.u32 %r9, 24; {line}", np.zeros((32, 1), np.uint32), 0, image)
    assert np.array_equal(place(image, "d", (16, 16), np.float16, "row", 0), exact(a, b, c))


def normal(case: Case, seed: int) -> tuple[Matrix, Matrix, Matrix]:
    random, (m, n, k) = np.random.default_rng(seed), case.extents
    a, b = (random.normal(size=shape).astype(DTYPES[case.type]) for shape in ((m, k), (k, n)))
    return a, b, random.normal(size=(m, n)).astype(KINDS[case.c])


def truncate(values: Matrix, type: str) -> Matrix:
    return (values.view(np.uint32) & 0xFFFFE000).view(np.float32) if type == "tf32" else values.astype(np.float32)


@pytest.mark.parametrize("case", FLOATS, ids="-".join)
def test_the_sum_is_rounded_to_the_type_of_the_sum_and_to_that_of_d(case: Case) -> None:
    """Sums of f16 are in f32 if C or D is."""
    a, b, c = normal(case, 5)
    sums = np.float16 if (case.c, case.d) == ("f16", "f16") else np.float32
    expected = exact(truncate(a, case.type), truncate(b, case.type), c).astype(sums).astype(KINDS[case.d])
    assert np.array_equal(multiply(case, a, b, c), expected)


@pytest.mark.parametrize("case", [case for case in FLOATS if case.shape != "m32n8k16"], ids="-".join)
def test_rounding_as_hardware(case: Case) -> None:
    """One step of mma.sync, 16 (tf32: 8) products and C in one aligned sum."""
    random = np.random.default_rng(6)
    a, b, c = normal(case, 6)
    if case.type != "f16":
        a, b = wide(random, a.shape, case.type), wide(random, b.shape, case.type)
    sums = "f16" if (case.c, case.d) == ("f16", "f16") else "f32"
    types = (case.type, case.type, sums)
    expected = steps(truncate(a, case.type), truncate(b, case.type).T, c, case.extents[2], types, 25)
    found = multiply(case, a, b, c, numerics="hardware")
    assert np.array_equal(found, expected.astype(KINDS[case.d]))
    if case.d == "f32":
        assert (found != multiply(case, a, b, c)).any()


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[13]], ids="-".join)
def test_infinities_and_nans(case: Case) -> None:
    a, b, c = (np.ones_like(matrix) for matrix in normal(case, 7))
    a[2, 3], a[5, 1], b[1, 4] = np.inf, np.inf, 0
    found = multiply(case, a, b, c)
    assert np.isinf(found[2]).all() and np.isnan(found[5, 4]) and np.isinf(np.delete(found[5], 4)).all()
    assert np.isfinite(np.delete(found, (2, 5), 0)).all()


@pytest.mark.parametrize("word", ["", ".satfinite"])
@pytest.mark.parametrize("shape", LARGE)
def test_integers_wrap_or_saturate(shape: str, word: str) -> None:
    case = Case(shape, "s8", "s32", "s32")
    m, n, k = case.extents
    a, b, c = np.full((m, k), 127, np.int8), np.full((k, n), 127, np.int8), np.full((m, n), 2**31 - 9)
    a[m // 2 :], c[m // 2 :] = -128, -(2**31) + 9
    true = c + a.astype(np.int64) @ b.astype(np.int64)
    expected = np.clip(true, -(2**31), 2**31 - 1) if word else (true + 2**31) % 2**32 - 2**31
    assert np.array_equal(multiply(case, a, b, c, word=word), expected)


def fused(x: float, y: float, z: float, mode: str) -> float:
    """Returns x·y + z rounded once, by exact fractions."""
    true = Fraction(x) * Fraction(y) + Fraction(z)
    near = float(true)
    if mode == "rn" or Fraction(near) == true:
        return near
    down = near if Fraction(near) < true else float(np.nextafter(near, -np.inf))
    up = float(np.nextafter(down, np.inf))
    return {"rm": down, "rp": up, "rz": down if true > 0 else up}[mode]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_double_precision_rounds_every_step(mode: str) -> None:
    """A chain of fma in the order of k, each rounded as the opcode says; sums that cancel among them."""
    random, case = np.random.default_rng(8), Case("m8n8k4", "f64", "f64", "f64")
    a, b, c = random.normal(size=(8, 4)), random.normal(size=(4, 8)), random.normal(size=(8, 8))
    c[:4] = -np.outer(a[:4, 0], b[0]) * (1 + 2.0**-52)
    expected = c.copy()
    for (i, j), k in ((at, k) for k in range(4) for at in np.ndindex(8, 8)):
        expected[i, j] = fused(a[i, k], b[k, j], expected[i, j], mode)
    assert np.array_equal(multiply(case, a, b, c, word=f".{mode}"), expected)
    assert np.abs(expected - (a @ b + c)).max() < 1e-14


@sampled(("type", "word"), [("s4", ""), ("u4", ""), ("u4", ".satfinite"), ("s4", ".satfinite")], every=2)
def test_integers_of_four_bits(type: str, word: str) -> None:
    random, case = np.random.default_rng(9), Case("m8n8k32", type, "s32", "s32")
    low, high = (-8, 8) if type == "s4" else (0, 16)
    a, b = random.integers(low, high, (8, 32)), random.integers(low, high, (32, 8))
    c = random.integers(-99, 99, (8, 8))
    a[0], b[:, 0], c[0, 0] = high - 1, high - 1, 2**31 - 9
    true = a @ b + c
    expected = np.minimum(true, 2**31 - 1) if word else (true + 2**31) % 2**32 - 2**31
    packed = [((x[:, 1::2] & 15) << 4 | (x[:, ::2] & 15)).astype(np.uint8) for x in (a, b.T)]
    found = multiply(case, packed[0], packed[1].T, c, word=word)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("action", ["xor", "and"])
def test_bits(action: str) -> None:
    random, case = np.random.default_rng(10), Case("m8n8k128", "b1", "s32", "s32")
    a, b, c = random.integers(0, 2, (8, 128)), random.integers(0, 2, (128, 8)), random.integers(-99, 99, (8, 8))
    pairs = a[:, :, None] ^ b if action == "xor" else a[:, :, None] & b
    packed = [np.packbits(x.astype(np.uint8), axis=1, bitorder="little") for x in (a, b.T)]
    found = multiply(case, packed[0], packed[1].T, c, action=f".{action}.popc")
    assert np.array_equal(found, pairs.sum(1) + c)


def guarded(lines: str) -> Iterator[str]:
    for line in lines.splitlines():
        yield f"@%p0 {line}" if line.startswith("wmma") else line


def test_a_guard_that_is_false_for_the_warp() -> None:
    """No lane reads or writes, not even at addresses outside memory."""
    text = program(CASES[1], DENSE).replace("3072;", "3072; setp.ne.u32 %p0, %smem, %smem; mov.u64 %u3, -64;")
    image = np.random.default_rng(11).integers(0, 256, SMEM, dtype=np.uint8)
    before = image.copy()
    run_warp("\n".join(guarded(text)), np.zeros((32, 1), np.uint32), 0, image)
    assert np.array_equal(image, before)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (8, "lane 0: address 0x408 is not aligned to the size of the access."),
        (SMEM - 256, "lane 16: address 0x1400 is outside shared memory, bytes 0x400 to 0x1400 of each CTA."),
    ],
)
def test_bad_addresses(place: int, what: str) -> None:
    line = "wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16"
    with pytest.raises(MemoryFault) as caught:
        run_warp(f"add.u32 %r9, %smem, {place}; {line} {{%r1, %r2, %r3, %r4}}, [%r9];", np.zeros((32, 1), np.uint32), 0)
    assert str(caught.value).endswith(f"`{line}`: kernel k, CTA (0, 0, 0), warp 0, {what}")
