"""Errors of tracing: Python control flow on run-time values, lost updates, values out of scope."""

from __future__ import annotations

from tests.lang.helpers import misuse
from warpwright.lang import (
    Break,
    Elif,
    Else,
    Global,
    If,
    f32,
    kernel,
    loop,
    s32,
    select,
    u32,
    var,
)


def test_an_if_on_a_run_time_value_is_refused():
    @kernel("sm_90a")
    def probe(n: u32):
        if n == 3:  # wrong
            pass

    assert misuse(probe) == (
        "given %p0 (pred), a run-time value, where Python needs True or False while the kernel is traced; "
        "write `with If(p):` for a branch or `select(p, x, y)` for a choice"
    )


def test_a_while_on_a_run_time_value_is_refused():
    @kernel("sm_90a")
    def probe(n: u32):
        while n > 3:  # wrong
            pass

    assert misuse(probe) == (
        "given %p0 (pred), a run-time value, where Python needs True or False while the kernel is traced; "
        "write `for _ in loop():` with `Break(when=~p)`"
    )


def test_and_or_not_on_run_time_values_are_refused():
    @kernel("sm_90a")
    def with_and(n: u32):
        assert (n > 1) and (n < 5)  # wrong

    @kernel("sm_90a")
    def with_or(n: u32):
        assert (n > 1) or (n < 5)  # wrong

    @kernel("sm_90a")
    def with_not(n: u32):
        assert not n  # wrong

    @kernel("sm_90a")
    def with_chain(n: u32):
        assert 1 < n < 5  # wrong

    given = ", a run-time value, where Python needs True or False while the kernel is traced; write "
    expected = "%p0 (pred)" + given + "`p & q`, `p | q`, `~p` for and, or, not"
    assert misuse(with_and) == misuse(with_or) == f"given {expected}"
    assert misuse(with_not) == f"given %r0 (u32){given}`p & q`, `p | q`, `~p` for and, or, not"
    assert misuse(with_chain) == f"given %p0 (pred){given}`assert_(p)`"


def test_pythons_range_int_float_and_index_are_refused():
    @kernel("sm_90a")
    def by_range(n: u32):
        for _ in range(n):  # wrong
            pass

    @kernel("sm_90a")
    def by_index(n: u32):
        [1, 2, 3][n]  # wrong

    @kernel("sm_90a")
    def by_int(n: u32):
        int(n)  # wrong

    @kernel("sm_90a")
    def by_float(x: f32):
        float(x)  # wrong

    @kernel("sm_90a")
    def by_iteration(n: u32):
        for _ in n:  # wrong
            pass

    assert misuse(by_range) == "given %r0 (u32) to range(), which runs while the kernel is traced; write loop(n)"
    assert misuse(by_index) == (
        "given %r0 (u32) as a Python index or int, but its value is known only when the kernel runs; "
        "keep run-time indexed data in smem.array(…) or choose with select(…)"
    )
    assert misuse(by_int) == (
        "given %r0 (u32) to int(), but its value is known only when the kernel runs; write x.to(s32)"
    )
    assert misuse(by_float) == (
        "given %f0 (f32) to float() or a function of math, but its value is known only when the kernel runs; "
        "write x.to(f32), or the function of warpwright.lang"
    )
    assert misuse(by_iteration) == (
        "%r0 (u32) is one value and cannot be iterated or unpacked; for a run-time loop write loop(n)"
    )


def test_rebinding_a_run_time_name_in_a_loop_names_var():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[f32]):
        acc = x[0]
        for k in loop(n):  # wrong
            acc = acc + x[k]

    assert misuse(probe) == (
        "acc was %f0 (f32) before a loop (FILE) and is rebound inside it, which PTX does not see; write "
        "acc = var(f32, …) before it and acc.set(…) or acc += … inside, or choose another name than acc"
    )


def test_rebinding_a_python_number_in_a_loop_names_var():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[f32]):
        acc = 0
        for k in loop(n):  # wrong
            acc = acc + x[k]

    assert misuse(probe).startswith("acc was the Python number 0 before a loop (FILE) and is rebound inside it")


def test_rebinding_in_an_if_or_in_a_list_or_across_a_generator_is_found():
    @kernel("sm_90a")
    def in_branch(n: u32):
        low = n + 1
        with If(n > 5):  # wrong
            low = n + 2
        assert low is not None

    @kernel("sm_90a")
    def in_list(n: u32):
        parts = [n + 1, n + 2]
        for k in loop(n):  # wrong
            parts[1] = parts[1] + k

    @kernel("sm_90a")
    def in_generator(n: u32):
        def rows():
            for k in loop(n):  # wrong
                yield k * 2

        total = n + 1
        for row in rows():
            total = total + row

    assert misuse(in_branch).startswith("low was %r1 (u32) before an If (FILE) and is rebound inside it")
    assert misuse(in_list).startswith("parts[1] was %r2 (u32) before a loop (FILE) and is rebound inside it")
    assert misuse(in_generator).startswith("total was %r1 (u32) before a loop (FILE) and is rebound inside it")


def test_a_value_of_a_loop_or_branch_is_not_used_after_it():
    @kernel("sm_90a")
    def after_loop(n: u32, x: Global[u32]):
        for k in loop(n):
            last = k + 1
        x[0] = last  # wrong

    @kernel("sm_90a")
    def after_branch(n: u32, x: Global[u32]):
        with If(n > 3):
            more = n * 7
        x[0] = more + 1  # wrong

    assert misuse(after_loop) == (
        "%r2 (u32) was computed inside a loop (FILE) that has ended; "
        "write x = var(u32, …) before the loop and x.set(…) inside it"
    )
    assert misuse(after_branch) == (
        "%r1 (u32) was computed inside an If (FILE) that has ended; "
        "write x = var(u32, …) before the If and x.set(…) inside it"
    )


def test_the_condition_of_an_elif_is_not_used_after_it():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        with If(n == 3):
            x[0] = 1
        twice = n * 2
        with Elif(twice == 4):
            x[0] = 2
        x[1] = twice  # wrong

    assert misuse(probe).startswith("%r1 (u32) was computed inside an Elif (FILE) that has ended; ")


def test_else_and_elif_stand_directly_after_their_if():
    @kernel("sm_90a")
    def alone(n: u32):
        with Else():  # wrong
            pass

    @kernel("sm_90a")
    def late(n: u32, x: Global[u32]):
        with If(n == 3):
            x[0] = 1
        x[1] = 2
        with Elif(n == 4):  # wrong
            x[0] = 2

    @kernel("sm_90a")
    def deeper(n: u32, x: Global[u32]):
        with If(n == 3):
            x[0] = 1
        for _ in loop(n):
            with Else():  # wrong
                x[0] = 2

    @kernel("sm_90a")
    def twice(n: u32, x: Global[u32]):
        with If(n == 3):
            x[0] = 1
        with Else():
            x[0] = 2
        with Else():  # wrong
            x[0] = 3

    none = "without an If before it; expected `with If(p):` directly above, at the same depth"
    assert misuse(alone) == misuse(deeper) == misuse(twice) == f"given Else {none}"
    assert misuse(late) == "given Elif after other instructions; expected it directly after its If or Elif"


def test_break_outside_a_loop_is_refused():
    @kernel("sm_90a")
    def probe(n: u32):
        Break(when=n == 3)  # wrong

    assert misuse(probe) == "given Break() outside a loop; expected it in the body of `for … in loop(…)`"


def test_pythons_break_out_of_a_loop_is_refused():
    @kernel("sm_90a")
    def probe(n: u32, x: Global[u32]):
        for _ in loop(n):  # wrong
            break
        x[0] = n

    assert misuse(probe) == (
        "a Python break or return leaves the body of loop() while it is traced; write Break(when=p), "
        "and let the body run to its end"
    )


def test_bad_bounds_are_refused():
    @kernel("sm_90a")
    def mixed(n: u32, m: s32):
        for _ in loop(n, m):  # wrong
            pass

    @kernel("sm_90a")
    def real(x: f32):
        for _ in loop(x):  # wrong
            pass

    @kernel("sm_90a")
    def still(n: u32):
        for _ in loop(0, n, 0):  # wrong
            pass

    @kernel("sm_90a")
    def many(n: u32):
        for _ in loop(0, n, 1, 2):  # wrong
            pass

    @kernel("sm_90a")
    def text(n: u32):
        for _ in loop("n"):  # wrong
            pass

    assert misuse(mixed) == "given u32 to s32; expected one type on both sides: write y.to(u32) or x.to(s32)"
    assert misuse(real) == "given %f0 (f32) as a bound of loop(); expected an integer such as u32"
    assert misuse(still) == "given loop(…, step=0); expected a step that is not zero"
    assert misuse(many) == "given loop() with 4 bounds; expected loop(), loop(n) or loop(start, stop[, step])"
    assert misuse(text) == "given 'n' as a bound of loop(); expected a Python int or a run-time integer"


def test_conditions_must_be_predicates():
    @kernel("sm_90a")
    def number(n: u32):
        with If(n):  # wrong
            pass

    @kernel("sm_90a")
    def text(n: u32):
        with If("n"):  # wrong
            pass

    @kernel("sm_90a")
    def constants(n: u32):
        select(n == 3, 1, 2)  # wrong

    assert misuse(number) == "given %r0 (u32) to If; expected a pred: write x != 0"
    assert misuse(text) == "given 'n' to If; expected a run-time pred such as k < n, or a Python bool"
    assert misuse(constants) == ("given select(p, 1, 2) without a type; write select(p, cvt(1, u32), 2)")


def test_a_variable_takes_its_own_type():
    @kernel("sm_90a")
    def initial(n: u32):
        var(f32, n)  # wrong

    @kernel("sm_90a")
    def later(n: u32, x: f32):
        total = var(f32, 0)
        total += n  # wrong

    assert misuse(initial) == "given %r0 (u32) where f32 is expected; write x.to(f32)"
    assert misuse(later) == "given f32 + u32; expected one type on both sides: write y.to(f32) or x.to(u32)"
