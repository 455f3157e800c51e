"""wgmma: every type, major-ness and swizzle, both sources of A; asynchrony at the worst that PTX allows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.machine.warpgroup_text import (
    B_AT,
    SIZES,
    SMEM,
    Operand,
    a_registers,
    from_registers,
    integers,
    mma,
    place,
    run,
    to_registers,
)
from warpwright.vgpu.machine.events import EventLog

FINISH = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
POISON = 0xFFFF_FFFF

TYPES = [
    ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("tf32", "tf32", "f32"),
    ("e4m3", "e5m2", "f32"), ("e5m2", "e4m3", "f16"), ("s8", "u8", "s32"), ("u8", "s8", "s32"),
]  # fmt: skip
LAYOUTS = [("k", "k", 128), ("k", "k", 64), ("k", "k", 32), ("k", "k", 0)]
MAJORS = [(a, b, mode) for mode in (128, 64, 32, 0) for a, b in (("mn", "k"), ("k", "mn"), ("mn", "mn"))]
CASES = [(*types, *layout) for types in TYPES for layout in LAYOUTS]
CASES += [(t, t, "f32", *layout) for t in ("f16", "bf16") for layout in MAJORS]


def shape_of(types: tuple[str, str, str], n: int) -> str:
    return f"m64n{n}k{32 // SIZES[types[0]]}.{types[2]}.{types[0]}.{types[1]}"


def tail(types: tuple[str, str, str], majors: tuple[str, ...], scale: str = "1", signs: str = "1, 1") -> str:
    if types[2] == "s32":
        return scale
    bits = "".join(f", {int(major == 'mn')}" for major in majors) if SIZES[types[0]] == 2 else ""
    return f"{scale}, {signs}{bits}"


def exact(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[np.float64]:
    return a.astype(np.float64) @ b.astype(np.float64).T + c


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_wgmma_places_every_element(case: tuple[Any, ...]) -> None:
    """Small integers: an element out of place changes the result."""
    types, (a_major, b_major, mode), n, random = (
        case[:3],
        case[3:],
        24 if case[4] == "k" else 64,
        np.random.default_rng(1),
    )
    k = 32 // SIZES[types[0]]
    a, b = integers(random, (64, k), types[0]), integers(random, (n, k), types[1])
    c = random.integers(-8, 8, (64, n))
    image, words = np.zeros(SMEM, np.uint8), to_registers(c, types[2])
    da = place(image, 0, a, Operand(types[0], a_major, mode))
    db = place(image, B_AT, b, Operand(types[1], b_major, mode))
    run(
        mma(shape_of(types, n), words.shape[1], tail=tail(types, (a_major, b_major))) + FINISH,
        image,
        words,
        da=da,
        db=db,
    )
    assert np.array_equal(from_registers(words, n, types[2]), exact(a, b, c))


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("b_major", ["k", "mn"])
def test_wgmma_reads_a_from_registers(types: tuple[str, str, str], b_major: str) -> None:
    if b_major == "mn" and SIZES[types[0]] != 2:
        b_major = "k"
    n, random = 64, np.random.default_rng(2)
    k = 32 // SIZES[types[0]]
    a, b = integers(random, (64, k), types[0]), integers(random, (n, k), types[1])
    image, words = np.zeros(SMEM, np.uint8), to_registers(np.zeros((64, n)), types[2])
    db = place(image, B_AT, b, Operand(types[1], b_major))
    line = mma(shape_of(types, n), words.shape[1], a="{%a0, %a1, %a2, %a3}", tail=tail(types, (b_major,)))
    run(line + FINISH, image, words, left=a_registers(a, types[0]), db=db)
    assert np.array_equal(from_registers(words, n, types[2]), exact(a, b, np.zeros((64, n))))


@pytest.mark.parametrize("n", [8, 16, 104, 256])
@pytest.mark.parametrize(("signs", "factor"), [("1, 1", 1), ("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)])
def test_wgmma_applies_extent_and_signs(n: int, signs: str, factor: int) -> None:
    types, random = ("bf16", "bf16", "f32"), np.random.default_rng(n)
    a, b, c = integers(random, (64, 16), "bf16"), integers(random, (n, 16), "bf16"), random.integers(-8, 8, (64, n))
    image, words = np.zeros(SMEM, np.uint8), to_registers(c, "f32")
    da, db = place(image, 0, a, Operand("bf16")), place(image, B_AT, b, Operand("bf16"))
    run(mma(shape_of(types, n), n // 2, tail=tail(types, ("k", "k"), signs=signs)) + FINISH, image, words, da=da, db=db)
    assert np.array_equal(from_registers(words, n, "f32"), factor * exact(a, b, 0 * c) + c)


@pytest.mark.parametrize("scale", ["0", "%p1"])
def test_scale_d_drops_the_old_accumulator(scale: str) -> None:
    random = np.random.default_rng(3)
    a, b = integers(random, (64, 16), "f16"), integers(random, (16, 16), "f16")
    image, words = np.zeros(SMEM, np.uint8), np.full((128, 8), POISON, np.uint32)
    da, db = place(image, 0, a, Operand("f16")), place(image, B_AT, b, Operand("f16"))
    lines = f"setp.ne.u32 %p1, %smem, %smem;\n{mma('m64n16k16.f32.f16.f16', 8, tail=f'{scale}, 1, 1, 0, 0')}"
    run(lines + FINISH, image, words, da=da, db=db)
    assert np.array_equal(from_registers(words, 16, "f32"), exact(a, b, np.zeros((64, 16))))


def test_integer_sums_saturate_or_wrap() -> None:
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    for word, expected in ((".satfinite", 2**31 - 1), ("", 2**31 - 8 + 32 * 127**2 - 2**32)):
        image, words = np.zeros(SMEM, np.uint8), to_registers(np.full((64, 8), 2**31 - 8), "s32")
        da, db = place(image, 0, a, Operand("s8")), place(image, B_AT, b, Operand("s8"))
        run(mma(f"m64n8k32.s32.s8.s8{word}", 4, tail="1") + FINISH, image, words, da=da, db=db)
        assert (from_registers(words, 8, "s32") == expected).all()


def test_tf32_ignores_low_bits() -> None:
    random = np.random.default_rng(4)
    a, b = random.normal(size=(64, 8)).astype(np.float32), random.normal(size=(16, 8)).astype(np.float32)
    image, words = np.zeros(SMEM, np.uint8), to_registers(np.zeros((64, 16)), "f32")
    da, db = place(image, 0, a, Operand("tf32")), place(image, B_AT, b, Operand("tf32"))
    run(mma("m64n16k8.f32.tf32.tf32", 8, tail="1, 1, 1") + FINISH, image, words, da=da, db=db)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)]
    assert np.allclose(from_registers(words, 16, "f32"), exact(*cut, np.zeros((64, 16))), rtol=0, atol=1e-6)
    assert not np.allclose(from_registers(words, 16, "f32"), exact(a, b, np.zeros((64, 16))), rtol=0, atol=1e-6)


def bf16_case(seed: int = 5, n: int = 16) -> tuple[Any, ...]:
    """Returns operands of 64 × 64 and n × 64 for four instructions, image and descriptors."""
    random = np.random.default_rng(seed)
    a, b = integers(random, (64, 64), "bf16"), integers(random, (n, 64), "bf16")
    image = np.zeros(SMEM, np.uint8)
    da, db = place(image, 0, a, Operand("bf16")), place(image, B_AT, b, Operand("bf16"))
    return a, b, image, da, db


def steps(count: int, first: int = 0, d: int = 8) -> str:
    """Returns instructions along K, 32 bytes apart inside the swizzle atom, in a cycle."""
    lines = []
    for i in range(count):
        lines.append(f"add.u64 %q2, %da, {2 * (i % 4)}; add.u64 %q3, %db, {2 * (i % 4)};")
        lines.append(mma("m64n16k16.f32.bf16.bf16", d, "%q2", "%q3", first=first))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("count", [4, 300])
def test_a_chain_of_wgmma_is_in_order(count: int) -> None:
    """300 are more than a warp's log has room for: the first complete before the wait."""
    a, b, image, da, db = bf16_case()
    words = to_registers(np.ones((64, 16)), "f32")
    run(steps(count) + FINISH, image, words, da=da, db=db)
    assert np.array_equal(from_registers(words, 16, "f32"), exact(a, b, 0) * (count // 4) + 1)


def test_two_accumulators_alternate() -> None:
    a, b, image, da, db = bf16_case()
    words = np.zeros((128, 16), np.uint32)
    alternation = "".join(steps(1, 0) + steps(1, 8) for _ in range(2))
    run(alternation + FINISH, image, words, da=da, db=db)
    first, second = (from_registers(words[:, half : half + 8].copy(), 16, "f32") for half in (0, 8))
    assert np.array_equal(first, exact(a[:, :16], b[:, :16], 0) * 2) and np.array_equal(second, first)


def test_overlapping_accumulators_keep_their_order() -> None:
    """Registers 4 to 7 belong to both."""
    a, b, image, da, db = bf16_case()
    words = np.zeros((128, 12), np.uint32)
    run(steps(1, 0) + steps(1, 4) + FINISH, image, words, da=da, db=db)
    one = to_registers(exact(a[:, :16], b[:, :16], 0), "f32").view(np.float32)
    expected = np.zeros((128, 12), np.float32)
    expected[:, :8] += one
    expected[:, 4:] += one
    assert np.array_equal(words.view(np.float32), expected)


def test_an_accumulator_is_undefined_until_the_wait() -> None:
    _, _, image, da, db = bf16_case()
    words = np.zeros((128, 8), np.uint32)
    run(steps(4) + "wgmma.commit_group.sync.aligned;", image, words, da=da, db=db)
    assert (words == POISON).all() and np.isnan(words.view(np.float32)).all()


def test_a_wait_ignores_uncommitted_wgmma() -> None:
    _, _, image, da, db = bf16_case()
    words = np.zeros((128, 8), np.uint32)
    run(steps(4) + "wgmma.wait_group.sync.aligned 0;", image, words, da=da, db=db)
    assert (words == POISON).all()


def test_wait_group_counts_groups() -> None:
    """After wait_group 1 the older accumulator is complete and the newer one still in flight."""
    a, b, image, da, db = bf16_case()
    words = np.zeros((128, 16), np.uint32)
    commit = "wgmma.commit_group.sync.aligned;\n"
    run(steps(4, 0) + commit + steps(4, 8) + commit + "wgmma.wait_group.sync.aligned 1;", image, words, da=da, db=db)
    assert np.array_equal(from_registers(words[:, :8].copy(), 16, "f32"), exact(a, b, 0))
    assert (words[:, 8:] == POISON).all()


def test_wait_group_counts_empty_groups() -> None:
    a, b, image, da, db = bf16_case()
    words, commit = np.zeros((128, 8), np.uint32), "wgmma.commit_group.sync.aligned;\n"
    run(steps(4) + commit * 2 + "wgmma.wait_group.sync.aligned 1;", image, words, da=da, db=db)
    assert np.array_equal(from_registers(words, 16, "f32"), exact(a, b, 0))


def test_an_accumulator_of_a_later_group_stays_undefined() -> None:
    """The same accumulator in two groups: after wait_group 1 it is still in flight in the second."""
    a, b, image, da, db = bf16_case()
    words, commit = np.zeros((128, 8), np.uint32), "wgmma.commit_group.sync.aligned;\n"
    lines = steps(4) + commit + steps(4) + commit + "wgmma.wait_group.sync.aligned 1;\n"
    run(lines, image, words, da=da, db=db)
    assert (words == POISON).all()
    words = np.zeros((128, 8), np.uint32)
    run(lines + "wgmma.wait_group.sync.aligned 0;", image, words, da=da, db=db)
    assert np.array_equal(from_registers(words, 16, "f32"), 2 * exact(a, b, 0))


def test_shared_memory_is_read_late() -> None:
    """The warpgroup overwrites A with zeros between issue and wait."""
    _, _, image, da, db = bf16_case()
    words = np.zeros((128, 8), np.uint32)
    erase = """bar.sync 0;
  mad.lo.u32 %r6, %tid, 64, %smem; mov.b32 %r7, 0;
  st.shared.v4.b32 [%r6], {%r7, %r7, %r7, %r7}; st.shared.v4.b32 [%r6+16], {%r7, %r7, %r7, %r7};
  st.shared.v4.b32 [%r6+32], {%r7, %r7, %r7, %r7}; st.shared.v4.b32 [%r6+48], {%r7, %r7, %r7, %r7};
  bar.sync 0;
"""
    run(steps(4) + erase + FINISH, image, words, da=da, db=db)
    assert (from_registers(words, 16, "f32") == 0).all()


def test_registers_of_a_are_read_late() -> None:
    random = np.random.default_rng(6)
    a, b = integers(random, (64, 16), "f16"), integers(random, (16, 16), "f16")
    image, words = np.zeros(SMEM, np.uint8), np.zeros((128, 8), np.uint32)
    db = place(image, B_AT, b, Operand("f16"))
    line = mma("m64n16k16.f32.f16.f16", 8, a="{%a0, %a1, %a2, %a3}", tail="1, 1, 1, 0")
    run(f"{line}\nmov.b32 %a0, 0;\n{FINISH}", image, words, left=a_registers(a, "f16"), db=db)
    overwritten = a.copy()
    for t in range(128):
        overwritten[16 * (t // 32) + t % 32 // 4, 2 * (t % 4) : 2 * (t % 4) + 2] = 0
    assert np.array_equal(from_registers(words, 16, "f32"), exact(overwritten, b, np.zeros((64, 16))))


def test_wide_values_are_near() -> None:
    random = np.random.default_rng(7)
    a, b = ((random.normal(size=(rows, 64)) * 2.0 ** random.integers(-6, 6, (rows, 64))) for rows in (64, 16))
    a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    image, words = np.zeros(SMEM, np.uint8), np.zeros((128, 8), np.uint32)
    da, db = place(image, 0, a, Operand("bf16")), place(image, B_AT, b, Operand("bf16"))
    run(steps(4) + FINISH, image, words, da=da, db=db)
    bound = 64 * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T)
    assert (np.abs(from_registers(words, 16, "f32") - exact(a, b, 0)) <= bound).all()


def test_every_warp_has_events() -> None:
    _, _, image, da, db = bf16_case()
    log = EventLog()
    run(steps(4) + FINISH, image, np.zeros((128, 8), np.uint32), da=da, db=db, observers=[log])
    issued, completed = ([e for e in log.events if e.kind == kind] for kind in ("issue", "complete"))
    assert [sum(e.warp == w for e in issued) for w in range(4)] == [4] * 4
    assert sorted(e.number for e in completed) == sorted(e.number for e in issued)
    assert all(e.inst is not None and e.inst.name == "wgmma.mma_async" for e in issued + completed)
