"""Rows of lane code that is compiled for timing; other lane code writes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright import ptx, targets
from warpwright.targets import Timing
from warpwright.vgpu import Device
from warpwright.vgpu.jit.compile import emit
from warpwright.vgpu.jit.costs import NEED, before_waits, costs_of, elapsed, merged_extrema, merged_tests
from warpwright.vgpu.machine.tape import Tape
from warpwright.vgpu.program.decode import decode
from warpwright.vgpu.timing.rows import _elapsed as rows_elapsed

SHARED = ".shared .align 8 .b64 bar;"
WORDS = ("@row", "@spend", "@signal", "@cluster_arrive")


class Rows(Tape):
    """A listener that stores the rows of cluster 0 as (opcode, cycles, slots, first word, second word)."""

    def __init__(self) -> None:
        super().__init__()
        self.timing: Timing = targets.timing_of("b200")
        self.rows: list[tuple[str, int, int, int, int]] = []
        self.records = 0

    def launched(self, launch: Any) -> Sequence[int] | None:
        self.insts, self.memory = launch.insts, launch.memory
        return None

    def recorded(self, cluster: Any, rows: Any, records: Any) -> None:
        if cluster.number == 0:
            self.records = len(records)
            for head, stamp, a, b, _ in rows.tolist():
                number = head & 0xFFFF_FFFF
                name = "need" if number & NEED else self.insts[number].opcode
                self.rows.append((name, *elapsed(stamp, 0)[:2], a, b))


def record_rows(
    body: str, args: tuple[Any, ...] = (), *, block: int = 32, smem: int = 0, numerics: str = "exact"
) -> Rows:
    rows = Rows()
    top = ".extern .shared .align 1024 .b8 mem[];" if smem else ""
    module = ptx.parse(text(body, args, top))
    device = Device(targets.device("b200"))
    device.launch(module, "k", (1, 1, 1), (block, 1, 1), smem=smem, args=args, listener=rows, numerics=numerics)
    return rows


def accesses(body: str, *, smem: int = 0) -> list[tuple[int, int]]:
    """Returns the words of the rows of memory accesses: (sectors | lines << 24) or (wavefronts | least << 24)."""
    found = record_rows(body, (np.zeros(4096, np.uint32),), smem=smem).rows
    return [(a & 0xFF_FFFF, a >> 24 & 0xFF_FFFF) for name, _, _, a, _ in found if name.startswith(("ld.g", "st."))]


@pytest.mark.parametrize(
    ("address", "sectors", "lines"),
    [
        ("mul.wide.u32 %d0, %t, 4;", 4, 1),
        ("mul.wide.u32 %d0, %t, 8;", 8, 2),
        ("mul.wide.u32 %d0, %t, 32;", 32, 8),
        ("mul.wide.u32 %d0, %t, 128;", 32, 32),
        ("mov.u64 %d0, 0;", 1, 1),
        ("xor.b32 %r0, %t, 21; mul.wide.u32 %d0, %r0, 4;", 4, 1),
    ],
)
def test_rows_count_sectors_and_lines(address: str, sectors: int, lines: int) -> None:
    assert accesses(f"{address} add.s64 %d0, %d0, %a0; ld.global.u32 %r1, [%d0];") == [(sectors, lines)]


@pytest.mark.parametrize(
    ("stride", "type", "wavefronts", "least"),
    [(4, "u32", 1, 1), (8, "u32", 2, 1), (128, "u32", 32, 1), (0, "u32", 1, 1), (132, "u32", 1, 1),
     (8, "u64", 2, 2), (16, "v4.u32", 4, 4), (128, "v4.u32", 32, 4), (144, "v4.u32", 4, 4), (2, "u16", 1, 1)],
)  # fmt: skip
def test_rows_count_wavefronts(stride: int, type: str, wavefronts: int, least: int) -> None:
    value = {"u64": "%d1", "v4.u32": "{%r1, %r1, %r1, %r1}", "u16": "%h1"}.get(type, "%r1")
    body = f"mov.u32 %r0, mem; mad.lo.u32 %r0, %t, {stride}, %r0; st.shared.{type} [%r0], {value};"
    assert accesses(body, smem=8192) == [(wavefronts, least)]


@pytest.mark.parametrize(
    ("line", "sectors"),
    [
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.bf16 {%r0, %r1, %r2, %r3}, [%a0];", [(16, 4)]),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.bf16 {%r0, %r1, %r2, %r3}, [%a0], 64;", [(16, 16)]),
        ("wmma.store.d.sync.aligned.row.m8n32k16.global.f32 [%a0], {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7};",
         [(16, 4), (16, 4)]),
    ],
)  # fmt: skip
def test_wmma_moves_the_sectors_of_its_matrix(line: str, sectors: list[tuple[int, int]]) -> None:
    rows = record_rows(line, (np.zeros(4096, np.uint32),)).rows
    assert [(a & 0xFF_FFFF, a >> 24) for name, _, _, a, _ in rows if name.startswith("wmma")] == sectors


def test_wmma_takes_the_time_of_its_products() -> None:
    """The last of a chain of four begins after three latencies; that of two chains of two after one latency and the
    two m16n8k16 of the one before."""
    registers = [f"{{{', '.join(f'%f{8 * at + i}' for i in range(8))}}}" for at in range(2)]
    a, b = (f"{{{', '.join(f'%r{first + i}' for i in range(4))}}}" for first in (0, 4))
    mma = "wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32"
    cycles = []
    for names in ((0, 0, 0, 0), (0, 1, 0, 1)):
        body = " ".join(f"{mma} {registers[at]}, {a}, {b}, {registers[at]};" for at in names)
        kernel = ww.load_ptx(text(body, target="sm_90a"))["k"]
        cycles.append(ww.profile(kernel, 1, block=32, args=[], device="h200").cycles)
    timing = targets.timing_of("h200")
    assert cycles[0] - cycles[1] == pytest.approx(2 * timing.latency["mma"] - 2 * timing.slots["mma"], abs=1)


WAIT = """
  mov.u32 %r0, mem;
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra WAIT;
  mbarrier.init.shared::cta.b64 [%r0], 1;
WAIT: bar.sync 0;
  setp.lt.u32 %p1, %t, 32;
  setp.eq.u32 %p3, %t, 32;
  @%p1 bra LOOP;
  @%p3 mbarrier.arrive.shared::cta.b64 %d0, [%r0];
  bra END;
LOOP: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0], 0;
  @!%p2 bra LOOP;
END: ret;
"""


def test_waits_that_fail_leave_no_row_and_cost_nothing() -> None:
    """Warp 0 waits first and fails, then warp 1 arrives: one row, with the stamp of an immediate pass."""
    rows = record_rows(WAIT, block=64, smem=64).rows
    waits = [row for row in rows if row[0].startswith("mbarrier.try_wait")]
    bars = [row for row in rows if row[0] == "bar.sync"]
    assert len(waits) == 1
    assert waits[0][3:] == (1024, 0)
    assert 0 < waits[0][1] - bars[0][1] < 30


APART = f"""
  mov.u32 %r0, mem;
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra MEET;
  mbarrier.init.shared::cta.b64 [%r0], 1;
  mbarrier.init.shared::cta.b64 [%r0+8], 1;
MEET: bar.sync 0;
  setp.ge.u32 %p1, %t, 32;
  @%p1 bra OTHER;
  @%p0 bra SECOND;
FIRST: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0], 0;
  @!%p2 bra FIRST;
  {"add.u32 %r1, %r1, 1;" * 40}
SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+8], 0;
  @!%p2 bra SECOND;
  bra END;
OTHER: setp.ne.u32 %p3, %t, 32;
  @%p3 bra END;
  mbarrier.arrive.shared::cta.b64 %d0, [%r0];
  mbarrier.arrive.shared::cta.b64 %d0, [%r0+8];
END: ret;
"""


def test_lanes_that_wait_ahead_do_not_turn_time_back() -> None:
    """Lane 0 fails a wait; the other lanes fail the next wait, and repeat it when lane 0 has passed the first."""
    waits = [row for row in record_rows(APART, block=64, smem=64).rows if row[0].startswith("mbarrier.try_wait")]
    assert [row[3:] for row in waits] == [(1024, 0), (1032, 0), (1032, 0)]
    first, others, last = (row[1] for row in waits)
    assert first + 200 < others <= last < first + 300


def test_a_row_joins_the_arrivals_of_lanes() -> None:
    body = """
  mov.u32 %r0, mem; setp.eq.u32 %p0, %t, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r0], 32;
  bar.warp.sync 0xffffffff;
  mbarrier.arrive.shared::cta.b64 %d0, [%r0];
"""
    rows = [row for row in record_rows(body, smem=64).rows if row[0].startswith("mbarrier.")]
    assert [row[3:] for row in rows] == [(1024, 32), (1024, 32)]


def test_a_warp_waits_for_loads_where_it_uses_them() -> None:
    """Two loads are in flight together; the store needs their sum, and waits for both."""
    body = """
  ld.global.u32 %r0, [%o]; ld.global.u32 %r1, [%o+128]; add.u32 %r2, %r0, %r1; st.global.u32 [%o], %r2;
"""
    names = [row[0] for row in record_rows(body, (np.zeros(64, np.uint32),)).rows]
    assert names == ["ld.global.u32", "ld.global.u32", "need", "need", "st.global.u32"]


def test_counters_grow_with_issued_instructions() -> None:
    few = "add.u32 %r0, %r0, 1;" * 10
    short, long = (record_rows(f"{few * n} bar.sync 0;").rows[0] for n in (1, 20))
    assert long[2] - short[2] == 190
    assert long[1] >= long[2]


def test_exponentials_of_a_maximum_wait_for_the_maximum() -> None:
    """Comparisons one after the other, then eight cycles for each power of a difference; or both at a time."""
    top = "max.f32 %f0, %f0, %f1;" * 16
    powers = "".join(f"sub.f32 %f{i}, %f{i}, %f{{}}; ex2.approx.ftz.f32 %f{i}, %f{i};" for i in range(2, 8)) * 3
    separate, together = (
        record_rows(f"{top} {powers.replace('{}', name)} bar.sync 0;").rows[0][1] for name in ("1", "0")
    )
    assert together - separate == pytest.approx(16 * 4, abs=8)


def test_packed_arithmetic_takes_two_cycles_of_its_pipe() -> None:
    """128 results a cycle and SM: 32 pairs of a scheduler in two cycles."""
    pair, single = (
        record_rows(".reg .b64 %q<4>; " + f"{op} " * 40 + "bar.sync 0;").rows[0][1]
        for op in ("fma.rn.f32x2 %q0, %q1, %q2, %q3;", "fma.rn.f32 %f0, %f1, %f2, %f3;")
    )
    assert 80 <= pair < 90 and 40 <= single < 50


def test_counters_of_a_warp_wrap() -> None:
    before, after = (1 << 21) - 3 | 5 << 21, 4 | 9 << 21 | 2 << 42
    assert elapsed(after + (1 << 21) - before, 7 | 3 << 21) == (7, 4, 2, 7, 3)
    cluster = np.array([[0, (1 << 64) - 1, 0, 0, 1], [0, 1, 0, 0, 3], [1 << 32, 2, 0, 0, 4 << 21]], np.uint64)
    assert rows_elapsed(cluster.view(np.int64)).tolist()[1:] == [[2, 0, 0, 2, 0], [2, 0, 0, 0, 4]]


def test_counters_of_pipes_and_of_runs() -> None:
    """Of four fma without a dependency three follow another one; a comparison takes two cycles of its pipe."""
    lines = "".join(f"fma.rn.f32 %f{i}, %f1, %f2, %f3; " for i in range(4, 8))
    counts = []
    for body in ("", lines + "setp.lt.f32 %p0, %f1, %f2; ex2.approx.ftz.f32 %f0, %f1;"):
        program = decode(ptx.parse(text(body, ())), "k")
        totals = costs_of(program, targets.timing_of("h200")).total.values()
        counts.append(np.sum([elapsed(total & (1 << 64) - 1, total >> 64) for total in totals], axis=0))
    assert (counts[1] - counts[0]).tolist()[1:] == [4 + 2 - 3, 8, 2, 3]


def test_lane_code_without_timing_has_no_timing_code() -> None:
    program = decode(ptx.parse(text(WAIT, (), ".extern .shared .align 1024 .b8 mem[];")), "k")
    plain, _ = emit(program)
    again, _ = emit(program, False, None)
    timed, _ = emit(program, False, costs_of(program, targets.timing_of("b200")))
    body = plain[plain.index("define i32 @kernel") :]
    assert plain == again
    assert not any(word in body for word in WORDS)
    assert "@row_wait" in timed[timed.index("define i32 @kernel") :]


@pytest.mark.parametrize(
    ("lines", "merged"),
    [
        ("max.s32 %r4, %r0, %r1; max.s32 %r5, %r4, %r2; max.s32 %r6, %r5, %r3; max.s32 %r7, %r6, %r0;", 2),
        ("max.u32 %r4, %r0, %r1; max.u32 %r5, %r4, %r2; max.u32 %r6, %r5, %r3;", 1),
        ("max.s32 %r4, %r0, %r1; min.s32 %r5, %r4, %r2;", 0),
        ("max.s32 %r4, %r0, %r1; max.s32 %r5, %r4, %r2; add.s32 %r6, %r4, 1;", 0),
        ("max.s32 %r4, %r0, %r1; @%p0 max.s32 %r5, %r4, %r2;", 0),
        ("max.s32 %r4, %r0, %r1; bra NEXT; NEXT: max.s32 %r5, %r4, %r2;", 0),
    ],
)
def test_two_integer_extrema_are_one_instruction(lines: str, merged: int) -> None:
    """As ptxas 13.0 makes VIMNMX3 of them, in a block and where the first result has no other use."""
    assert len(list(merged_extrema(decode(ptx.parse(text(lines, ())), "k")))) == merged


def test_a_chip_without_that_instruction_issues_every_extremum() -> None:
    chain = "max.s32 %r4, %r0, %r1; max.s32 %r5, %r4, %r2; max.s32 %r6, %r5, %r3; max.s32 %r7, %r6, %r0;"
    program = decode(ptx.parse(text(chain, ())), "k")
    totals = (costs_of(program, targets.timing_of(name)).total.values() for name in ("b200", "rtx5090"))
    slots = [sum(int(elapsed(total, 0)[1]) for total in each) for each in totals]
    assert slots[1] - slots[0] == 2


def bit_tests(count: int) -> str:
    """Returns tests of the low bits of a word, each by registers of its own."""
    return "".join(f"and.b32 %b{n}, %r0, {1 << n}; setp.ne.u32 %p0, %b{n}, 0; " for n in range(count))


@pytest.mark.parametrize(
    ("lines", "merged"),
    [
        ("and.b32 %r4, %r0, 16; setp.ne.u32 %p0, %r4, 0;", 1),
        ("and.b32 %r4, %r0, 24; setp.ne.u32 %p0, %r4, 0;", 0),
        ("and.b32 %r4, %r0, 16; setp.ne.u32 %p0, %r4, 1;", 0),
        ("and.b32 %r4, %r0, 16; setp.ne.u32 %p0, %r4, 0; add.u32 %r5, %r4, 1;", 0),
        ("and.b32 %r4, %r0, 16; bra NEXT; NEXT: setp.ne.u32 %p0, %r4, 0;", 0),
        (".reg .b32 %b<32>; " + bit_tests(7), 7),
        (".reg .b32 %b<32>; " + bit_tests(8), 14),
        (".reg .b32 %b<32>; " + bit_tests(32), 56),
    ],
)
def test_tests_of_bits_are_fewer_instructions(lines: str, merged: int) -> None:
    """As ptxas 13.0 makes LOP3 with a predicate of one test, and R2P of many."""
    assert len(list(merged_tests(decode(ptx.parse(text(lines, ())), "k")))) == merged


WAITING = ".reg .b64 %m<2>; WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0; @!%p0 bra WAIT; "
MULTIPLY = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %m0, %m1, 1, 1, 1, 0, 0; "
    "bra NEXT; NEXT: add.u32 %r7, %r0, 1;"
)


@pytest.mark.parametrize(
    ("lines", "before"),
    [
        ("shl.b32 %r4, %r0, 3; add.u32 %r5, %r4, %r1; mov.b64 %m0, {%r5, %r1}; " + MULTIPLY, 3),
        ("ld.shared.u32 %r4, [%r1]; add.u32 %r5, %r4, 1; add.u32 %r6, %r0, 1; add.u32 %r7, %r5, %r6; " + MULTIPLY, 1),
        ("@%p0 add.u32 %r4, %r0, 1; add.u32 %r5, %r4, 1; " + MULTIPLY, 0),
        ("add.u32 %r4, %r4, 1; add.u32 %r5, %r4, 1; " + MULTIPLY, 0),
        ("add.f32 %f0, %f1, %f2; cvt.rn.f32.u32 %f3, %r0; " + MULTIPLY, 0),
        ("add.u32 %r4, %r0, 1;", 0),
    ],
)
def test_descriptors_after_a_wait_are_computed_before_it(lines: str, before: int) -> None:
    """As ptxas 13.0 does with integers that depend on nothing later than the wait, where wgmma follows."""
    program = decode(ptx.parse(text(WAITING + lines, ()).replace("sm_100a", "sm_90a")), "k")
    assert len(list(before_waits(program))) == before


def test_a_run_without_values_keeps_arrays_unchanged() -> None:
    out = np.arange(32, dtype=np.uint32)
    record_rows("st.global.u32 [%o], 7;", (out,), numerics="none")
    assert out.tolist() == list(range(32))
    record_rows("st.global.u32 [%o], 7;", (out,))
    assert out.tolist() == [7] * 32


@pytest.mark.parametrize(
    ("body", "numerics", "copied"),
    [
        ("ld.global.u32 %r3, [%o];", "none", False),
        ("ld.global.u32 %r3, [%o];", "exact", True),
        ("st.global.u32 [%o], 7;", "none", True),
        ("st.u32 [%o], 7;", "none", True),
        ("red.global.add.u32 [%o], 7;", "none", True),
    ],
)
def test_a_run_without_values_copies_the_arrays_only_if_lanes_write(body: str, numerics: str, copied: bool) -> None:
    array = np.zeros(32, np.uint32)
    memory = record_rows(body, (array,), numerics=numerics).memory
    assert np.shares_memory(memory.view(memory.address(array)), array) is not copied


def test_a_warp_that_initialises_an_mbarrier_sets_one_count() -> None:
    """All lanes give the same count: the barrier has that count, not the sum of the lanes."""
    body = """
      mov.u32 %r3, bar; setp.eq.u32 %p0, %warp, 0; @!%p0 bra GO; mbarrier.init.shared.b64 [%r3], 64;
      GO: bar.sync 0; mbarrier.arrive.shared.b64 %d1, [%r3];
      WAIT: mbarrier.try_wait.shared.b64 %p1, [%r3], %d1; @!%p1 bra WAIT; st.global.u32 [%o], %t; ret;"""
    array = np.zeros(64, np.uint32)
    kernel = ww.load_ptx(text(body, (array,), SHARED))["k"]
    launch: dict[str, Any] = {"grid": 1, "block": 64, "args": [array]}
    assert ww.profile(kernel, **launch).cycles > 0
    assert ww.check(kernel, **launch).kind == "clean"
    twice = ww.load_ptx(text(body.replace("64;", "64; mbarrier.init.shared.b64 [%r3], 64;", 1), (array,), SHARED))["k"]
    assert [finding.rule.id for finding in ww.check(twice, **launch).findings] == ["mbarrier-live"]
