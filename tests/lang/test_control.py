"""The PTX of loops, branches and variables."""

from __future__ import annotations

from tests.lang.helpers import code
from warpwright.lang import (
    Break,
    Elif,
    Else,
    Global,
    If,
    f32,
    kernel,
    ld,
    loop,
    pred,
    s32,
    st,
    u32,
    var,
)


def test_a_loop_with_a_run_time_bound_tests_at_the_top():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        for k in loop(n):
            x[0] = k

    assert code(probe) == [
        "mov.u32 %r1, 0",
        "loop_0:",
        "setp.ge.u32 %p0, %r1, %r0",
        "@%p0 bra loop_0_end",
        "st.global.u32 [%rd0], %r1",
        "add.u32 %r1, %r1, 1",
        "bra loop_0",
        "loop_0_end:",
    ]


def test_a_loop_with_constant_bounds_tests_at_the_bottom():
    @kernel("sm_90a")
    def probe(x: Global[s32]):
        for k in loop(3, -1, -2):
            x[0] = k

    assert code(probe) == [
        "mov.s32 %r0, 3",
        "loop_0:",
        "st.global.s32 [%rd0], %r0",
        "add.s32 %r0, %r0, -2",
        "setp.gt.s32 %p0, %r0, -1",
        "@%p0 bra loop_0",
    ]


def test_a_loop_that_never_runs_emits_nothing():
    @kernel("sm_90a")
    def probe(x: Global[u32]):
        for k in loop(4, 4):
            x[0] = k

    assert code(probe) == []


def test_a_persistent_loop_steps_by_a_run_time_value():
    @kernel("sm_90a")
    def probe(first: u32, count: u32, step: u32, x: Global[u32]):
        for tile in loop(first, count, step):
            x[0] = tile

    lines = code(probe)
    assert lines[0] == "mov.u32 %r3, %r0"
    assert "add.u32 %r3, %r3, %r2" in lines


def test_the_bound_of_a_loop_is_read_once():
    @kernel("sm_90a")
    def probe(n: u32):
        stop = var(u32, n)
        for _ in loop(stop):
            stop += 1

    lines = code(probe)
    assert lines[:2] == ["mov.u32 %r1, %r0", "mov.u32 %r2, 0"]
    assert "setp.ge.u32 %p0, %r2, %r1" in lines
    assert "add.u32 %r0, %r0, 1" in lines


def test_a_break_leaves_the_innermost_loop():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        for k in loop():
            for j in loop(n):
                Break(when=j == 7)
                with If(j == 9):
                    Break()
            Break(when=k == n)
            x[0] = k

    lines = code(probe)
    assert [line for line in lines if "bra" in line] == [
        "@%p0 bra loop_1_end",
        "@%p1 bra loop_1_end",
        "@%p2 bra loop_1_end",
        "bra loop_1",
        "@%p3 bra loop_0_end",
        "bra loop_0",
    ]


def test_a_variable_changes_in_place():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[f32]):
        acc = var(f32, 0)
        count = var(u32, 5)
        for k in loop(n):
            acc += ld(x + k)
            count <<= 1
            count *= 3
        acc.set(acc * 2.0)
        x[count] = acc

    lines = code(probe)
    assert lines[:2] == ["mov.f32 %f0, 0f00000000", "mov.u32 %r1, 5"]
    assert "add.rn.f32 %f0, %f0, %f1" in lines
    assert "shl.b32 %r1, %r1, 1" in lines
    assert "mul.lo.u32 %r1, %r1, 3" in lines
    assert "mul.rn.f32 %f0, %f0, 0f40000000" in lines


def test_a_copy_of_a_variable_keeps_the_old_value():
    @kernel("sm_90a")
    def probe(x: Global[u32]):
        v = var(u32, 1)
        old = v.to(u32)
        same = v + 0
        v += 1
        x[0] = old + same

    assert code(probe) == [
        "mov.u32 %r0, 1",
        "mov.u32 %r1, %r0",
        "add.u32 %r2, %r0, 0",
        "add.u32 %r0, %r0, 1",
        "add.u32 %r3, %r1, %r2",
        "st.global.u32 [%rd0], %r3",
    ]


def test_a_predicate_variable():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        found = var(pred, False)
        for k in loop(4):
            found.set(found | (k == n))
        with If(~found):
            x[0] = 1

    lines = code(probe)
    assert lines[0] == "setp.ne.u32 %p0, 0, 0"
    assert lines[-2:] == ["not.pred %p3, %p0", "@%p3 st.global.u32 [%rd0], 1"]


def test_a_branch_around_one_instruction_is_a_guard():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        with If(n == 3):
            x[0] = n

    assert code(probe) == ["setp.eq.u32 %p0, %r0, 3", "@%p0 st.global.u32 [%rd0], %r0"]


def test_if_elif_else_join_at_the_end():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        with If(n == 1):
            x[0] = 10
        with Elif(x[5] == 2):
            x[1] = 20
        with Else():
            x[2] = 30
        x[3] = 40

    assert code(probe) == [
        "setp.eq.u32 %p0, %r0, 1",
        "@!%p0 bra if_0_elif_1",
        "st.global.u32 [%rd0], 10",
        "bra if_0_end",
        "if_0_elif_1:",
        "ld.global.u32 %r1, [%rd0+20]",
        "setp.eq.u32 %p1, %r1, 2",
        "@!%p1 bra if_0_else",
        "st.global.u32 [%rd0+4], 20",
        "bra if_0_end",
        "if_0_else:",
        "st.global.u32 [%rd0+8], 30",
        "if_0_end:",
        "st.global.u32 [%rd0+12], 40",
    ]


def stores(lines):
    return [line.rpartition(" ")[2] for line in lines if "st.global" in line]


def test_python_bools_decide_while_tracing():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32], *, first=True, second=True):
        with If(first):
            x[0] = 1
        with Elif(second):
            x[0] = 2
        with Elif(n == 3):
            x[0] = 3
        with Else():
            x[0] = 4

    assert code(probe) == ["st.global.u32 [%rd0], 1"]
    assert code(probe, first=False) == ["st.global.u32 [%rd0], 2"]
    lines = code(probe, first=False, second=False)
    assert stores(lines) == ["3", "4"]
    assert lines[1] == "@!%p0 bra if_0_else"


def test_a_certain_elif_ends_a_chain():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        with If(n == 1):
            x[0] = 1
        with Elif(True):
            x[0] = 2
        with Else():
            x[0] = 3

    lines = code(probe)
    assert stores(lines) == ["1", "2"]
    assert lines[1:4] == ["@!%p0 bra if_0_elif_1", "st.global.u32 [%rd0], 1", "bra if_0_end"]


def test_nested_branches_keep_their_own_chain():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        with If(n > 1):
            with If(n > 2):
                x[0] = 1
            with Else():
                x[0] = 2
        with Else():
            x[0] = 3

    lines = code(probe)
    assert stores(lines) == ["1", "2", "3"]
    assert "@!%p0 bra if_0_else" in lines
    assert "@!%p1 bra if_1_else" in lines


def test_names_of_two_loops_in_a_row_may_be_the_same():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        for k in loop(n):
            t = k + 1
            x[0] = t
        for k in loop(n):
            t = k + 2
            x[1] = t

    assert len(stores(code(probe))) == 2


def test_a_body_with_no_instruction_is_legal():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        with If(n == 3):
            pass
        with Else():
            st(x, 1)
        for _ in loop(n):
            pass

    assert stores(code(probe)) == ["1"]
