"""Divergent control flow: every lane takes its own path, and every lane makes progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vgpu.helpers import error_message, line_of, out, run
from warpwright.errors import DeviceError

LANE = np.arange(32, dtype=np.uint32)
STORE = "st.global.u32 [%o], %r10;"


def test_lanes_execute_nested_ifs() -> None:
    body = f"""
      mov.u32 %r10, 0;
      setp.ge.u32 %p0, %lane, 16;
      @%p0 bra HIGH;
      and.b32 %r3, %lane, 1; setp.eq.u32 %p1, %r3, 0;
      @%p1 bra EVEN;
      add.u32 %r10, %r10, 1;
      bra.uni LOW_END;
    EVEN: add.u32 %r10, %r10, 10;
      setp.lt.u32 %p2, %lane, 4;
      @!%p2 bra LOW_END;
      add.u32 %r10, %r10, 100;
    LOW_END: add.u32 %r10, %r10, 1000;
      bra.uni END;
    HIGH: mad.lo.u32 %r10, %lane, %lane, %r10;
    END: add.u32 %r10, %r10, 5;
      {STORE} ret;"""
    low = np.where(LANE % 2, 1, 10 + 100 * (LANE < 4)) + 1000
    assert np.array_equal(out(body), np.where(LANE < 16, low, LANE * LANE) + 5)


def test_each_lane_has_its_own_trip_count() -> None:
    """Collatz: no two lanes agree on when to stop."""
    body = f"""
      add.u32 %r3, %t, 1; mov.u32 %r10, 0;
    AGAIN: setp.eq.u32 %p0, %r3, 1;
      @%p0 bra DONE;
      and.b32 %r4, %r3, 1; setp.eq.u32 %p1, %r4, 0;
      shr.u32 %r5, %r3, 1;
      mad.lo.u32 %r6, %r3, 3, 1;
      selp.u32 %r3, %r5, %r6, %p1;
      add.u32 %r10, %r10, 1;
      bra AGAIN;
    DONE: {STORE} ret;"""

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out(body, 128, block=128).tolist() == [steps(n) for n in range(1, 129)]


def test_lanes_take_the_cases_of_a_switch() -> None:
    body = f"""
      rem.u32 %r3, %lane, 5;
      brx.idx %r3, LIST;
    LIST: .branchtargets L0, L1, L2, L1;
      mov.u32 %r10, 99; bra END;
    L2: mov.u32 %r10, 2; bra END;
    L0: mov.u32 %r10, 7;
    L1: add.u32 %r10, %r10, 1;
    END: {STORE} ret;"""
    body = "mov.u32 %r10, 20;" + body
    assert np.array_equal(out(body), np.choose(LANE % 5, [8, 21, 2, 21, 99]))


def test_lanes_that_exit_are_not_waited_for() -> None:
    """The warp and the barrier do not wait for lanes that have exited."""
    body = """
      setp.lt.u32 %p0, %lane, 8;
      @%p0 exit;
      setp.eq.u32 %p1, %lane, 20;
      @%p1 ret;
      bar.warp.sync 0xffffffff;
      bar.sync 0;
      mov.u32 %r10, 1;
      st.global.u32 [%o], %r10;
      ret;"""
    assert np.array_equal(out(body, 64, block=64), np.tile((LANE >= 8) & (LANE != 20), 2))


@pytest.mark.parametrize("first", ["waits", "exits"])
def test_lanes_that_exit_free_those_that_wait_for_them(first: str) -> None:
    """The waiting block may come before or after the exit."""
    wait = "WAIT: bar.warp.sync 0xffffffff; mov.u32 %r10, 3; st.global.u32 [%o], %r10; ret;"
    body = (
        "setp.lt.u32 %p0, %lane, 16; "
        + {
            "waits": f"@!%p0 bra GONE; {wait} GONE: mov.u32 %r3, 0; exit;",
            "exits": f"@%p0 bra WAIT; exit; {wait}",
        }[first]
    )
    assert np.array_equal(out(body), np.where(LANE < 16, 3, 0))


LOCKED = """
  TRY: atom.global.cas.b32 %r3, [%a1], 0, 1;
    setp.ne.u32 %p0, %r3, 0;
    @%p0 bra TRY;
    ld.volatile.global.u32 %r4, [%a0]; add.u32 %r4, %r4, 1; st.volatile.global.u32 [%a0], %r4;
    atom.global.exch.b32 %r5, [%a1], 0;
    ret;"""


def test_lanes_take_a_spin_lock_in_turn() -> None:
    """The lane that has the lock goes on while its neighbours spin, as threads of sm_70 and later do."""
    counter = np.zeros(1, np.uint32)
    run(LOCKED, counter, np.zeros(1, np.uint32), block=64, grid=3)
    assert counter[0] == 192


def test_lanes_take_a_spin_lock_released_first_in_the_text() -> None:
    body = """
      bra TRY;
    HELD: ld.volatile.global.u32 %r4, [%a0]; add.u32 %r4, %r4, 1; st.volatile.global.u32 [%a0], %r4;
      atom.global.exch.b32 %r5, [%a1], 0;
      ret;
    TRY: atom.global.cas.b32 %r3, [%a1], 0, 1;
      setp.eq.u32 %p0, %r3, 0;
      @%p0 bra HELD;
      bra TRY;"""
    counter = np.zeros(1, np.uint32)
    run(body, counter, np.zeros(1, np.uint32), block=64)
    assert counter[0] == 64


def test_three_groups_of_lanes_spin_on_each_other() -> None:
    """The lanes of the lowest block wait rightly; the group in the middle spins for the last one."""
    body = """
      setp.eq.u32 %p0, %lane, 0; @%p0 bra FIRST;
      setp.lt.u32 %p1, %lane, 16; @%p1 bra SECOND;
      mov.u32 %r3, 0;
    COUNT: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 1000; @%p2 bra COUNT;
      st.volatile.global.u32 [%a0+8], %r3;
      bra END;
    FIRST: ld.volatile.global.u32 %r4, [%a0+4]; setp.eq.u32 %p3, %r4, 0; @%p3 bra FIRST;
      st.volatile.global.u32 [%a0], %r4;
      bra END;
    SECOND: ld.volatile.global.u32 %r5, [%a0+8]; setp.eq.u32 %p4, %r5, 0; @%p4 bra SECOND;
      st.volatile.global.u32 [%a0+4], %r5;
    END: ret;"""
    assert out(body, 3).tolist() == [1000, 1000, 1000]


def test_one_lane_runs_a_role_while_its_warp_waits() -> None:
    """Lane 0 serves the other warp at barriers 1 and 2 while lanes 1 to 31 wait at barrier 0 already."""
    body = """
      setp.ne.u32 %p0, %warp, 0; @%p0 bra CONSUMER;
      setp.ne.u32 %p1, %lane, 0; @%p1 bra JOIN;
      mov.u32 %r3, 0;
    SERVE: add.u32 %r3, %r3, 1;
      st.volatile.shared.u32 [flag], %r3;
    ASK: ld.volatile.shared.u32 %r4, [flag+4]; setp.ne.u32 %p2, %r4, %r3; @%p2 bra ASK;
      setp.lt.u32 %p3, %r3, 5; @%p3 bra SERVE;
      bra JOIN;
    CONSUMER: mov.u32 %r3, 0;
    WAIT: add.u32 %r3, %r3, 1;
    LOOK: ld.volatile.shared.u32 %r4, [flag]; setp.ne.u32 %p2, %r4, %r3; @%p2 bra LOOK;
      bar.warp.sync 0xffffffff;
      st.volatile.shared.u32 [flag+4], %r3;
      setp.lt.u32 %p3, %r3, 5; @%p3 bra WAIT;
    JOIN: bar.sync 0;
      ld.shared.u32 %r10, [flag+4];
      st.global.u32 [%o], %r10; ret;"""
    start = "setp.eq.u32 %p9, %t, 0; @%p9 st.shared.v2.u32 [flag], {0, 0}; bar.sync 0;"
    top = ".shared .align 8 .b32 flag[2];"
    assert out(start + body, 64, block=64, top=top).tolist() == [5] * 64


@pytest.mark.parametrize("threads", [1, 31, 33, 95])
def test_the_last_warp_may_be_partial(threads: int) -> None:
    body = """
      activemask.b32 %r10;
      vote.sync.ballot.b32 %r11, 1, 0xffffffff;
      add.u32 %r10, %r10, %r11;
      bar.sync 0;
      st.global.u32 [%o], %r10; ret;"""
    found = out(body, 128, block=threads)
    full, rest = divmod(threads, 32)
    masks = [2 * 0xFFFF_FFFF & 0xFFFF_FFFF] * (32 * full) + [2 * ((1 << rest) - 1)] * rest
    assert found.tolist() == masks + [0] * (128 - threads)


GUARDED = {
    "add": ("add.u32 %r10, %r10, 5;", lambda lane: 105),
    "mov": ("mov.u32 %r10, %lane;", lambda lane: lane),
    "ld": ("ld.global.u32 %r10, [%a1];", lambda lane: 77),
    "ld.v2": ("ld.global.v2.u32 {%r10, %r11}, [%a1];", lambda lane: 77),
    "st": ("st.global.u32 [%o], 9;", lambda lane: 100),
    "atom": ("atom.global.add.u32 %r10, [%a1+8], 0;", lambda lane: 5),
    "selp": ("selp.u32 %r10, 1, 2, %p0;", lambda lane: 1),
    "shfl": ("shfl.sync.idx.b32 %r10, %lane, 8, 31, 0x11111111;", lambda lane: 8),
    "vote": ("vote.sync.ballot.b32 %r10, %p0, 0x11111111;", lambda lane: 0x1111_1111),
    "redux": ("redux.sync.add.u32 %r10, %lane, 0x11111111;", lambda lane: 112),
    "elect": ("elect.sync %r10|%p7, 0x11111111;", lambda lane: 0),
    "bar.warp": ("bar.warp.sync 0x11111111;", lambda lane: 100),
    "trap": ("trap;", None),
}


@pytest.mark.parametrize("name", sorted(set(GUARDED) - {"trap"}))
def test_a_guard_keeps_the_other_lanes_unchanged(name: str) -> None:
    """%p0 holds in every fourth lane."""
    code, expected = GUARDED[name]
    body = f"and.b32 %r3, %lane, 3; setp.eq.u32 %p0, %r3, 0; mov.u32 %r10, 100; @%p0 {code} {STORE} ret;"
    found = out(body, 32, np.array([77, 78, 5], np.uint32))
    assert found.tolist() == [100 if lane % 4 else expected(lane) for lane in range(32)]


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_a_false_guard_does_nothing(name: str) -> None:
    """The instruction does nothing, and no lane waits for lane 0, which spins elsewhere for the others."""
    code, _ = GUARDED[name]
    body = f"""
      setp.ne.u32 %p1, %lane, 0; setp.gt.u32 %p0, %lane, 99; mov.u32 %r10, 100;
      @%p1 bra REST;
    SPIN: ld.volatile.global.u32 %r5, [%a1+12]; setp.eq.u32 %p2, %r5, 0; @%p2 bra SPIN;
      bra END;
    REST: @%p0 {code}
      mov.u32 %r6, 1; st.volatile.global.u32 [%a1+12], %r6;
    END: {STORE} ret;"""
    more = np.array([77, 78, 5, 0], np.uint32)
    assert out(body, 32, more).tolist() == [100] * 32
    assert more.tolist() == [77, 78, 5, 1]


def test_a_guard_applies_to_branch_exit_and_trap() -> None:
    body = f"""
      mov.u32 %r10, 1; setp.eq.u32 %p0, %lane, 3; setp.gt.u32 %p1, %lane, 40;
      @%p1 trap;
      @%p0 bra THREE;
      mov.u32 %r10, 2;
    THREE: {STORE} @!%p0 exit;
      mov.u32 %r10, 30; {STORE} ret;"""
    assert np.array_equal(out(body), np.where(LANE == 3, 30, 2))


def test_trap_ends_the_launch() -> None:
    body = "setp.eq.u32 %p0, %lane, 5; @%p0 trap; ret;"
    assert error_message(DeviceError, body) == (
        f"PTX line {line_of(body, 'trap')}: `trap`: kernel k, CTA (0, 0, 0), warp 0, lane 5: the kernel executed trap."
    )


def test_diverged_lanes_shuffle() -> None:
    """Each half of the warp exchanges with a mask of its own, in its own branch."""
    body = f"""
      setp.lt.u32 %p0, %lane, 16; @!%p0 bra HIGH;
      shfl.sync.down.b32 %r10|%p1, %lane, 1, 31, 0x0000ffff;
      bra END;
    HIGH: shfl.sync.bfly.b32 %r10|%p1, %lane, 3, 31, 0xffff0000;
    END: {STORE} ret;"""
    found = out(body)
    assert found[:15].tolist() == list(range(1, 16))
    assert np.array_equal(found[16:], LANE[16:] ^ 3)


def test_functions_and_scopes_have_their_own_names() -> None:
    """A function called under a guard, twice, with its own registers; a scope that hides a name."""
    top = """.func (.reg .b32 %res) twice (.reg .b32 %x) {
      .reg .b32 %y; .reg .pred %big;
      setp.gt.u32 %big, %x, 20; mov.u32 %res, 500; @%big ret;
      add.u32 %y, %x, %x; mov.u32 %res, %y; ret; }"""
    body = f"""
      mov.u32 %r10, 7; setp.ne.u32 %p0, %lane, 2;
      @%p0 call (%r10), twice, (%lane);
      {{ .reg .b32 %r10; mov.u32 %r10, 12345; }}
      call (%r10), twice, (%r10);
      {STORE} ret;"""
    once = np.where(LANE == 2, 7, np.where(LANE > 20, 500, 2 * LANE))
    assert np.array_equal(out(body, top=top), np.where(once > 20, 500, 2 * once))


# Random structured programs: the same tree as PTX and as a Python function of one lane.

MASK = 0xFFFF_FFFF
REGISTERS = 3


@dataclass(frozen=True)
class Op:
    word: str
    target: int
    left: int
    right: int


@dataclass(frozen=True)
class If:
    left: int
    limit: int
    then: tuple
    other: tuple


@dataclass(frozen=True)
class Loop:
    """(r[left] & 3) + extra times."""

    left: int
    extra: int
    body: tuple


OPS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "xor.b32": lambda a, b: a ^ b,
    "mul.lo.u32": lambda a, b: a * b,
    "max.u32": max,
}
registers = st.integers(0, REGISTERS - 1)
ops = st.builds(Op, st.sampled_from(sorted(OPS)), registers, registers, registers)
programs = st.recursive(
    st.lists(ops, min_size=1, max_size=3).map(tuple),
    lambda inner: st.lists(
        st.one_of(
            ops,
            st.builds(If, registers, st.integers(0, 40), inner, inner),
            st.builds(Loop, registers, st.integers(0, 2), inner),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    max_leaves=6,
)


def to_ptx(tree: tuple, fresh: Callable[[], int]) -> str:
    lines = []
    for node in tree:
        if isinstance(node, Op):
            lines.append(f"{node.word} %v{node.target}, %v{node.left}, %v{node.right};")
        elif isinstance(node, If):
            n = fresh()
            lines.append(
                f"{{ .reg .pred %c; and.b32 %r3, %v{node.left}, 63; setp.lt.u32 %c, %r3, {node.limit}; @!%c bra E{n};"
                f" {to_ptx(node.then, fresh)} bra.uni F{n}; E{n}: {to_ptx(node.other, fresh)} F{n}: }}"
            )
        else:
            n = fresh()
            lines.append(
                f"{{ .reg .b32 %i; .reg .pred %c; and.b32 %i, %v{node.left}, 3; add.u32 %i, %i, {node.extra};"
                f" H{n}: setp.eq.u32 %c, %i, 0; @%c bra X{n}; {to_ptx(node.body, fresh)} sub.u32 %i, %i, 1;"
                f" bra H{n}; X{n}: }}"
            )
    return "\n".join(lines)


def execute(tree: tuple, values: list[int]) -> None:
    for node in tree:
        if isinstance(node, Op):
            values[node.target] = OPS[node.word](values[node.left], values[node.right]) & MASK
        elif isinstance(node, If):
            execute(node.then if values[node.left] & 63 < node.limit else node.other, values)
        else:
            for _ in range((values[node.left] & 3) + node.extra):
                execute(node.body, values)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_structured_programs_equal_their_model(tree: tuple) -> None:
    numbers = iter(range(1000))
    body = f"""
      .reg .b32 %v<{REGISTERS}>;
      mov.u32 %v0, %lane; mul.lo.u32 %v1, %lane, 7; mov.u32 %v2, 3;
      {to_ptx(tree, lambda: next(numbers))}
      xor.b32 %v0, %v0, %v1; add.u32 %r10, %v0, %v2; {STORE} ret;"""
    expected = []
    for lane in range(32):
        values = [lane, 7 * lane, 3]
        execute(tree, values)
        expected.append(((values[0] ^ values[1]) + values[2]) & MASK)
    assert out(body).tolist() == expected
