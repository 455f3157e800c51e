"""`printf`, `assert_` and `trap`: what ptxas takes, what the virtual GPU prints and stops at."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.lang.helpers import code, misuse
from warpwright.lang import (
    Global,
    If,
    assert_,
    bf16,
    ctaid,
    f16,
    f32,
    f64,
    kernel,
    loop,
    printf,
    s8,
    s16,
    s64,
    tid,
    trap,
    u32,
    u64,
)
from warpwright.vgpu.machine.launch import Launch


@kernel("sm_90a", threads=64)
def report(x: Global[f32], n: u32):
    with If(tid.x < n):
        printf("%u: %6.2f|%s|%lld%%\n", tid.x, x[tid.x], "thirty", tid.x.to(s64) - 5)


def test_every_active_thread_prints(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(64, dtype=np.float32) / 4
    result = report[2](x, 3, device="h200")
    assert result.printed == capsys.readouterr().out
    assert result.printed == "".join(f"{i}: {i / 4:6.2f}|thirty|{i - 5}%\n" for i in range(3)) * 2
    assert ww.check(report, 2, args=[x, 3], device="h200").kind == "clean"
    assert ww.profile(report, 2, args=[x, 3], device="h200").time_us > 0
    assert capsys.readouterr().out == ""


@kernel("sm_90a", threads=1)
def kinds(x: Global[f32], small: s8, short: s16, wide: u64, half: f16, brain: bf16, double: f64):
    printf("%d %d %llu %llx\n", small, short, wide, wide)
    printf("%g %g %g %e\n", half, brain, double, x[0])
    printf("%d %d %*d %.2f %c %lld %g %s %p\n", x[0] < 2.0, 7, 5, -3, 1.5, 65, -(2**40), 2, "Zoë", x)


def test_values_of_every_type_are_passed_as_c_passes_them() -> None:
    code(kinds)
    args = [np.ones(1, np.float32), -3, -300, 2**40, np.float16(1.5), 0x3FC0, 0.1]
    first, second, third = kinds[1](*args, device="h200").printed.splitlines()
    assert first == f"-3 -300 {2**40} {2**40:x}"
    assert second == "1.5 1.5 0.1 1.000000e+00"
    assert third.startswith(f"1 7    -3 1.50 A {-(2**40)} 2 Zoë 0x")


@kernel("sm_90a", threads=32)
def bounded(x: Global[u32], *, message: str = ""):
    printf("thread %d\n", tid.x)
    assert_(x[tid.x] < 5, message)
    x[tid.x] = 9


def test_a_failed_assertion_stops_the_launch_after_what_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code(bounded)
    x = np.zeros(32, np.uint32)
    assert ww.check(bounded, 1, args=[x], device="h200").kind == "clean"
    bounded[1](x, device="h200")
    assert (x == 9).all()
    capsys.readouterr()
    for message, shown in (("", "assert_(x[tid.x] < 5, message)"), ("x is small", "x is small")):
        with pytest.raises(ww.DeviceError) as caught:
            bounded[1](x, message=message, device="h200")
        assert f"kernel bounded, CTA (0, 0, 0), warp 0, lane 0: assertion `{shown}` failed in " in str(caught.value)
        assert capsys.readouterr().out == caught.value.printed == "".join(f"thread {i}\n" for i in range(32))
    (finding,) = ww.check(bounded, 1, args=[x], device="h200").findings
    assert "assertion" in finding.message


def test_the_printed_text_of_a_launch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel("sm_90a", threads=32)
    def endless(n: u32):
        for i in loop(n):
            printf("%d %d\n", ctaid.x, i)

    before = Launch.__init__
    monkeypatch.setattr(Launch, "__init__", lambda self, *a, **k: before(self, *a, **k | {"print_room": 1000}))
    printed = endless[4](100, device="h200").printed
    end = "\n(the launch printed more than 1,048,576 characters; the rest is not kept)\n"
    assert printed.endswith(end) and 1000 <= len(printed) - len(end) < 1500


def test_assertions_during_tracing() -> None:
    @kernel("sm_90a")
    def holds(x: Global[u32]):
        assert_(True)
        x[0] = 1

    @kernel("sm_90a")
    def fails(x: Global[u32]):
        assert_(x is None, "x is given")  # wrong

    assert "__assertfail" not in holds.ptx()
    assert misuse(fails) == "the assertion `x is given` is False while the kernel is traced"


def a_few(x, n):
    printf("%d %d\n", n)  # wrong


def a_float(x, n):
    printf("%d\n", x[0])  # wrong


def an_integer(x, n):
    printf("%f\n", n)  # wrong


def a_narrow(x, n):
    printf("%lld\n", n)  # wrong


def a_wide(x, n):
    printf("%d\n", n.to(u64))  # wrong


def a_number(x, n):
    printf("%s\n", n)  # wrong


def a_string(x, n):
    printf("%d\n", "n")  # wrong


def a_value(x, n):
    printf(n)  # wrong


def a_conversion(x, n):
    printf("%q of 3\n", n)  # wrong


def a_precision(x, n):
    printf("%*.*f\n", 9, 2, x[0])  # wrong


def a_condition(x, n):
    assert_(n)  # wrong


SENTENCES = {
    a_few: "given printf('%d %d\\n') with 1 values; expected 2, one a conversion",
    a_float: "given %f0 (f32) for %d; expected an integer: write %f, or x.to(s32)",
    an_integer: "given %r0 (u32) for %f; expected a float: write %u, or x.to(f32)",
    a_narrow: "given %r0 (u32) for %lld; expected 64 bits: write %u",
    a_wide: "given %rd1 (u64) for %d; expected 32 bits: write %llu",
    a_number: "given %r0 (u32) for %s; expected a Python string: numbers are %d or %f",
    a_string: "given 'n' for %d; expected a number, or %s for a string and %p for a pointer",
    a_value: "given %r0 (u32) to printf; expected a Python string: printf('%d\\n', x)",
    a_conversion: "given the conversion '%q' to printf; expected %d, %u, %x, %lld, %f, %s, %p, …, or %% for %",
    a_precision: "given a precision of * to printf, which CUDA's printf does not read; expected digits: %.2f",
    a_condition: "given %r0 (u32) to assert_; expected a pred: write x != 0",
}


@pytest.mark.parametrize("body", SENTENCES, ids=lambda body: body.__name__)
def test_what_is_no_printf_is_one_sentence(body) -> None:
    body.__annotations__ = {"x": Global[f32], "n": u32}
    assert misuse(kernel("sm_90a")(body)) == SENTENCES[body]


@kernel("sm_90a", threads=32)
def trapped(x: Global[u32]):
    with If(x[tid.x] == 5):
        x[tid.x] = 7
        trap()
    x[tid.x] = 9


def test_a_trap_stops_the_launch_and_no_correct_launch_reaches_it() -> None:
    code(trapped)
    x = np.zeros(32, np.uint32)
    assert ww.check(trapped, 1, args=[x], device="h200").kind == "clean"
    trapped[1](x, device="h200")
    assert (x == 9).all()
    x[7] = 5
    with pytest.raises(ww.DeviceError, match=r"`trap`: kernel trapped, CTA \(0, 0, 0\), warp 0, lane 7"):
        trapped[1](x, device="h200")
