"""Loads, stores and atomics in every space, and the generic addresses that reach them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import out, run

RANDOM = np.random.default_rng(7)
SPACES = ["global", "shared", "local", "generic global", "generic shared", "generic local"]
# 256 bits at once only in the global space (PTX ISA 9.7.9.8).
ACCESSES = [
    *[
        (space, bits, vector)
        for space in SPACES
        for bits in (8, 16, 32, 64)
        for vector in ("", "v2", "v4")
        if vector != "v4" or bits < 64
    ],
    ("global", 64, "v4"),
    ("global", 32, "v8"),
]


def place(space: str) -> tuple[str, str, str]:
    """Returns where a thread has its 64 bytes: code that puts the address in %d0, the space's suffix, variables."""
    kind = space.split()[-1]
    offset = "mul.wide.u32 %d1, %t, 64;"
    if kind == "global":
        return f"{offset} add.u64 %d0, %a2, %d1;", "" if " " in space else ".global", ""
    if kind == "shared":
        code = f"{offset} mov.u64 %d0, room; add.u64 %d0, %d0, %d1;"
        return (
            code + ("cvta.shared.u64 %d0, %d0;" if " " in space else ""),
            "" if " " in space else ".shared",
            (".shared .align 64 .b8 room[4096];"),
        )
    code = ".local .align 64 .b8 mine[64]; mov.u64 %d0, mine;"
    return code + ("cvta.local.u64 %d0, %d0;" if " " in space else ""), "" if " " in space else ".local", ""


def register(bits: int, i: int) -> str:
    return {8: f"%h{i}", 16: f"%h{i}", 32: f"%r{20 + i}", 64: f"%d{20 + i}", 128: f"%q{i}"}[bits]


@pytest.mark.parametrize(("space", "bits", "vector"), ACCESSES)
def test_stores_and_loads_keep_values(space: str, bits: int, vector: str) -> None:
    """Load from the input, store to the space, load from there, store to the output, for 64 threads."""
    count = int(vector[1:] or 1)
    code, suffix, top = place(space)
    names = [register(bits, i) for i in range(count)]
    again = [register(bits, 8 + i) for i in range(count)]
    group, back = (f"{{{', '.join(n)}}}" if vector else n[0] for n in (names, again))
    kind = f"{'.' + vector if vector else ''}.b{bits}"
    body = f"""
      {code}
      mul.wide.u32 %d2, %t, {bits * count // 8}; add.u64 %d3, %a1, %d2; add.u64 %d4, %a0, %d2;
      ld.global{kind} {group}, [%d3];
      st{suffix}{kind} [%d0+32], {group};
      bar.sync 0;
      ld{suffix}{kind} {back}, [%d0+32];
      st.global{kind} [%d4], {back};
      ret;"""
    data = RANDOM.integers(0, 256, 64 * bits * count // 8, dtype=np.uint8)
    found = out(body, data.size, data, np.zeros(4096, np.uint8), dtype=np.uint8, block=64, top=top)
    assert np.array_equal(found, data)


@pytest.mark.parametrize("space", ["global", "shared", "generic local"])
def test_128_bit_registers_keep_values(space: str) -> None:
    code, suffix, top = place(space)
    body = f"""
      {code}
      mul.wide.u32 %d2, %t, 16; add.u64 %d3, %a1, %d2; add.u64 %d4, %a0, %d2;
      ld.global.b128 %q0, [%d3]; st{suffix}.b128 [%d0+16], %q0;
      ld{suffix}.b128 %q1, [%d0+16]; mov.b128 {{%d5, %d6}}, %q1; mov.b128 %q2, {{%d6, %d5}};
      st.global.b128 [%d4], %q2; ret;"""
    data = RANDOM.integers(0, 2**64, (64, 2), dtype=np.uint64)
    found = out(body, 128, data, np.zeros(4096, np.uint8), dtype=np.uint64, block=64, top=top)
    assert np.array_equal(found.reshape(64, 2), data[:, ::-1])


@pytest.mark.parametrize(("kind", "dtype"), [("s8", np.int8), ("u8", np.uint8), ("s16", np.int16), ("u16", np.uint16)])
def test_loads_extend(kind: str, dtype: type) -> None:
    """A narrow load fills a wider register by its sign."""
    data = RANDOM.integers(-128 if "s" in kind else 0, 127, 32).astype(dtype)
    data[:2] = [np.iinfo(dtype).max, np.iinfo(dtype).min]
    body = f"""mul.wide.u32 %d2, %t, {data.itemsize}; add.u64 %d3, %a1, %d2;
      ld.global.{kind} %r3, [%d3]; st.global.u32 [%o], %r3; ret;"""
    assert np.array_equal(out(body, 32, data), data.astype(np.int32).view(np.uint32))


def test_a_warp_gathers_and_scatters() -> None:
    """One instruction gathers from three arrays, and one scatters in reverse."""
    arrays = [RANDOM.integers(0, 2**32, 40, dtype=np.uint32) for _ in range(3)]
    body = """
      rem.u32 %r3, %lane, 3; setp.eq.u32 %p1, %r3, 1; setp.eq.u32 %p2, %r3, 2;
      mov.u64 %d0, %a1; @%p1 mov.u64 %d0, %a2; @%p2 mov.u64 %d0, %a3;
      mul.wide.u32 %d1, %lane, 4; add.u64 %d0, %d0, %d1;
      ld.u32 %r10, [%d0+4];
      sub.u32 %r4, 31, %lane; mul.wide.u32 %d1, %r4, 4; add.u64 %d1, %a0, %d1;
      st.u32 [%d1], %r10; ret;"""
    assert out(body, 32, *arrays).tolist() == [int(arrays[i % 3][i + 1]) for i in range(31, -1, -1)]


def test_module_variables_are_initialised() -> None:
    top = """
      .const .align 4 .u32 table[2][3] = {{10, 11, 12}, {13}};
      .global .align 8 .f32 pair[2] = {1.5, 0f40200000};
      .global .align 8 .u64 pointer[2] = {pair, generic(pair)+4};
      .global .u8 bytes[5] = {1, 2, 0xff, 4};
      .global .align 4 .u32 counter;
      .const .s16 minus = -2;"""
    body = """
      mul.wide.u32 %d0, %lane, 4; mov.u64 %d1, table; add.u64 %d1, %d1, %d0; setp.lt.u32 %p0, %lane, 6;
      @%p0 ld.const.u32 %r10, [%d1]; @%p0 st.global.u32 [%o], %r10; @%p0 exit;
      setp.ne.u32 %p0, %lane, 6; @%p0 exit;
      ld.global.u64 %d2, [pointer]; ld.global.f32 %f0, [%d2]; st.global.f32 [%a0+24], %f0;
      ld.global.u64 %d2, [pointer+8]; ld.f32 %f0, [%d2]; st.global.f32 [%a0+28], %f0;
      ld.global.u8 %r10, [bytes+2]; st.global.u32 [%a0+32], %r10;
      ld.global.u8 %r10, [bytes+4]; st.global.u32 [%a0+36], %r10;
      atom.global.add.u32 %r10, [counter], 5; ld.global.u32 %r11, [counter]; add.u32 %r10, %r10, %r11;
      st.global.u32 [%a0+40], %r10;
      ld.const.s16 %r10, [minus]; st.global.u32 [%a0+44], %r10;
      cvta.const.u64 %d3, table; ld.u32 %r10, [%d3+8]; st.global.u32 [%a0+48], %r10; ret;"""
    found = out(body, 13, top=top)
    assert found[:6].tolist() == [10, 11, 12, 13, 0, 0]
    assert found[6:8].view(np.float32).tolist() == [1.5, 2.5]
    assert found[8:].tolist() == [255, 0, 5, 2**32 - 2, 12]
    assert np.array_equal(out(body, 13, top=top), found), "a launch finds its variables as they are declared"


def test_each_thread_has_its_local_array() -> None:
    """The index of the accesses differs from lane to lane."""
    body = """
      .local .align 4 .u32 mine[8]; .local .align 8 .b8 other[8];
      mov.u32 %r3, 0; mov.u32 %r6, mine;
    FILL: mad.lo.u32 %r4, %r3, 100, %t; mad.lo.u32 %r5, %r3, 4, %r6; st.local.u32 [%r5], %r4;
      add.u32 %r3, %r3, 1; setp.lt.u32 %p0, %r3, 8; @%p0 bra FILL;
      st.local.u32 [other+4], 7;
      and.b32 %r3, %t, 7; mad.lo.u32 %r5, %r3, 4, %r6; ld.local.u32 %r10, [%r5];
      st.global.u32 [%o], %r10; ret;"""
    assert out(body, 96, block=96).tolist() == [100 * (t % 8) + t for t in range(96)]


def test_parameters_have_addresses() -> None:
    """`mov` returns the address of a parameter in the param space; `cvta.param` makes it generic."""
    body = """
      mov.u64 %d0, a2; mul.wide.u32 %d1, %lane, 4; setp.gt.u32 %p0, %lane, 1; @%p0 exit;
      add.u64 %d2, %d0, %d1; ld.param.u32 %r10, [%d2+-4];
      cvta.param.u64 %d3, %d0; add.u64 %d3, %d3, %d1; ld.u32 %r11, [%d3+-4]; add.u32 %r10, %r10, %r11;
      st.global.u32 [%o], %r10; ret;"""
    assert out(body, 2, 111, 222).tolist() == [222, 444]


def test_isspacep_tells_the_space_of_an_address() -> None:
    body = """
      .local .align 4 .u32 mine;
      mov.u64 %d0, mine; cvta.local.u64 %d1, %d0; mov.u64 %d2, ours; cvta.shared.u64 %d3, %d2; mov.u32 %r10, 0;
      isspacep.local %p0, %d1; @%p0 or.b32 %r10, %r10, 1; isspacep.shared %p0, %d1; @%p0 or.b32 %r10, %r10, 2;
      isspacep.global %p0, %d1; @%p0 or.b32 %r10, %r10, 4; isspacep.shared %p0, %d3; @%p0 or.b32 %r10, %r10, 8;
      isspacep.shared::cta %p0, %d3; @%p0 or.b32 %r10, %r10, 16; isspacep.local %p0, %d3; @%p0 or.b32 %r10, %r10, 32;
      isspacep.global %p0, %a0; @%p0 or.b32 %r10, %r10, 64; isspacep.shared %p0, %a0; @%p0 or.b32 %r10, %r10, 128;
      isspacep.shared::cluster %p0, %d3; @%p0 or.b32 %r10, %r10, 256;
      cvta.to.local.u64 %d4, %d1; cvta.to.shared.u64 %d5, %d3; setp.eq.u64 %p0, %d4, %d0; @%p0 or.b32 %r10, %r10, 512;
      setp.eq.u64 %p0, %d5, %d2; @%p0 or.b32 %r10, %r10, 1024;
      st.global.u32 [%o], %r10; ret;"""
    assert set(out(body, top=".shared .align 4 .u32 ours;").tolist()) == {1 | 8 | 16 | 64 | 256 | 512 | 1024}


INTEGERS = {
    "add.u32": (np.uint32, lambda m, x: m + x),
    "add.s32": (np.int32, lambda m, x: m + x),
    "add.u64": (np.uint64, lambda m, x: m + x),
    "min.u32": (np.uint32, min), "max.u32": (np.uint32, max), "min.s32": (np.int32, min), "max.s32": (np.int32, max),
    "min.u64": (np.uint64, min), "max.s64": (np.int64, max), "min.s64": (np.int64, min),
    "and.b32": (np.uint32, lambda m, x: m & x), "or.b32": (np.uint32, lambda m, x: m | x),
    "xor.b32": (np.uint32, lambda m, x: m ^ x), "xor.b64": (np.uint64, lambda m, x: m ^ x),
    "inc.u32": (np.uint32, lambda m, x: 0 if m >= x else m + 1),
    "dec.u32": (np.uint32, lambda m, x: x if m == 0 or m > x else m - 1),
    "exch.b32": (np.uint32, lambda m, x: x), "exch.b64": (np.uint64, lambda m, x: x),
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared", "generic shared"])
@pytest.mark.parametrize("op", sorted(INTEGERS))
def test_atom_combines_integers(op: str, space: str) -> None:
    """Lanes in order on four cells: every lane's old value, and the final cells."""
    dtype, function = INTEGERS[op]
    info = np.iinfo(dtype)
    start = RANDOM.integers(info.min, info.max, 4, dtype=dtype, endpoint=True)
    operands = RANDOM.integers(info.min, info.max, 32, dtype=dtype, endpoint=True)
    if op[:3] in ("inc", "dec"):
        start, operands = np.array([0, 5, 9, 2**32 - 1], dtype), RANDOM.integers(0, 6, 32, dtype=dtype)
    bits = 8 * dtype().itemsize
    value, old = ("%r3", "%r4") if bits == 32 else ("%d3", "%d4")
    move = "cvta.shared.u64 %d0, %d0;" if "generic" in space else ""
    suffix = f".{space}" if " " not in space else ""
    enter = f"mov.u64 %d0, cells; {move}" if "shared" in space else "mov.u64 %d0, %a2;"
    body = f"""
      {enter}
      and.b32 %r5, %lane, 3; mul.wide.u32 %d1, %r5, {bits // 8}; add.u64 %d0, %d0, %d1; add.u64 %d2, %a2, %d1;
      mul.wide.u32 %d1, %lane, {bits // 8}; add.u64 %d5, %a1, %d1; add.u64 %d6, %a0, %d1;
      ld.global.b{bits} {value}, [%d2]; st{suffix}.b{bits} [%d0], {value}; bar.sync 0;
      ld.global.b{bits} {value}, [%d5];
      atom{suffix}.{op} {old}, [%d0], {value};
      st.global.b{bits} [%d6], {old}; bar.sync 0;
      ld{suffix}.b{bits} {value}, [%d0]; st.global.b{bits} [%d2], {value}; ret;"""
    cells, wanted = [int(x) for x in start], []
    for lane in range(32):
        wanted.append(cells[lane % 4])
        cells[lane % 4] = int(
            np.array(function(cells[lane % 4], int(operands[lane])) & (2**bits - 1), f"u{bits // 8}").view(dtype)
        )
    found = out(body, 32, operands, start, dtype=dtype, top=".shared .align 8 .b8 cells[32];")
    assert found.tolist() == wanted
    assert start.tolist() == cells


@pytest.mark.parametrize(
    ("kind", "dtype", "register"),
    [("f32", np.float32, "%f0"), ("f64", np.float64, "%g0"), ("noftz.f16", np.float16, "%h0")],
)
def test_atom_add_rounds_each_float_sum(kind: str, dtype: type, register: str) -> None:
    """Each addition rounds to the type; lanes go in order."""
    operands = RANDOM.standard_normal(32).astype(dtype)
    size = operands.itemsize
    body = f"""
      mul.wide.u32 %d1, %lane, {size}; add.u64 %d2, %a1, %d1;
      ld.global.b{8 * size} {register}, [%d2]; red.global.add.{kind} [%a0], {register}; ret;"""
    total = dtype(0)
    for value in operands:
        total = dtype(total + value)
    assert out(body, 1, operands, dtype=dtype)[0] == total


def test_atom_adds_packed_halves_and_vectors() -> None:
    pairs = RANDOM.standard_normal((32, 2)).astype(np.float16)
    body = """ld.global.b32 %r3, [%d2]; atom.global.add.noftz.f16x2 %r4, [%a0], %r3; ret;"""
    found = out("mul.wide.u32 %d1, %lane, 4; add.u64 %d2, %a1, %d1;" + body, 2, pairs, dtype=np.float16)
    total = np.zeros(2, np.float16)
    for pair in pairs:
        total += pair
    assert np.array_equal(found, total)
    fours = RANDOM.standard_normal((32, 4)).astype(np.float32)
    body = """mul.wide.u32 %d1, %lane, 16; add.u64 %d2, %a1, %d1; ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d2];
      red.global.v4.f32.add [%a0], {%f0, %f1, %f2, %f3};
      atom.global.v2.f32.add {%f4, %f5}, [%a0+16], {%f0, %f1}; ret;"""
    total = np.zeros(4, np.float32)
    for four in fours:
        total += four
    assert np.array_equal(out(body, 6, fours, dtype=np.float32), [*total, *total[:2]])


def test_one_lane_wins_compare_and_swap() -> None:
    """One lane of those that share a cell wins, at 16, 32 and 64 bits."""
    for bits, cell, old, new in [(16, "%h", "%h1", "%h2"), (32, "%r", "%r20", "%r21"), (64, "%d", "%d20", "%d21")]:
        body = f"""
          cvt.u{bits}.u32 {new}, %lane; add.u{bits} {new}, {new}, 100; mov.u{bits} {cell}9, 0;
          atom.global.cas.b{bits} {old}, [%a1], {cell}9, {new};
          cvt.u32.u{bits} %r10, {old}; st.global.u32 [%o], %r10; ret;"""
        counter = np.zeros(1, f"u{bits // 8}")
        assert out(body, 32, counter).tolist() == [0] + [100] * 31
        assert counter[0] == 100


def test_ctas_add_to_one_word() -> None:
    counts = np.zeros(2, np.uint64)
    body = """atom.global.add.u64 %d1, [%a0], 1; red.relaxed.gpu.global.add.u64 [%a0+8], 3;
      atom.acq_rel.sys.global.max.u64 %d1, [%a0], 1; ret;"""
    run(body, counts, grid=40, block=256)
    assert counts.tolist() == [40 * 256, 3 * 40 * 256]


def test_ctas_add_to_one_half() -> None:
    sums = np.zeros(2, np.float16)
    body = """mov.b16 %h0, 0x3c00; mov.b16 %h1, 0xbc00; red.global.add.noftz.f16 [%a0], %h0;
      red.global.add.noftz.f16 [%a0+2], %h1; ret;"""
    run(body, sums, grid=40)
    assert sums.tolist() == [40 * 32, -40 * 32]


def test_sums_of_generic_addresses_flush_in_global_memory_only() -> None:
    """As an H200 does: subnormal numbers stay in shared memory."""
    tiny = np.array([1, 1], np.uint32).view(np.float32)
    body = """.shared .align 4 .b32 cell; mov.u64 %d1, cell; cvta.shared.u64 %d1, %d1; st.u32 [%d1], 1;
      atom.add.f32 %f1, [%d1], 0f00000002; atom.add.f32 %f1, [%a0], 0f00000002; ld.u32 %r2, [%d1];
      st.global.u32 [%a0+4], %r2; ret;"""
    run(body, tiny, block=1)
    assert tiny.view(np.uint32).tolist() == [0, 3]


def test_hints_change_nothing() -> None:
    body = """
      createpolicy.fractional.L2::evict_last.b64 %d5, 1.0;
      ld.global.nc.L1::no_allocate.L2::128B.u32 %r3, [%a1]; ld.global.L2::cache_hint.u32 %r4, [%a1+4], %d5;
      prefetch.global.L2 [%a1]; ld.relaxed.gpu.global.u32 %r5, [%a1+8]; ld.acquire.sys.global.u32 %r6, [%a1+12];
      add.u32 %r3, %r3, %r4; add.u32 %r5, %r5, %r6; add.u32 %r10, %r3, %r5;
      st.release.gpu.global.u32 [%o], %r10; membar.gl; fence.acq_rel.gpu; ret;"""
    assert set(out(body, 32, np.array([1, 20, 300, 4000], np.uint32)).tolist()) == {4321}
