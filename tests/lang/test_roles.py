"""Roles: the warps that run them, their labels, the scope of their registers, and errors."""

from __future__ import annotations

import pytest

from tests.lang.helpers import code, misuse
from warpwright.lang import Break, Global, If, ctaid, elect_one, f32, kernel, loop, role, tid, u32, var, warp


def test_a_role_of_one_elected_thread():
    @kernel("sm_100a", threads=128)
    def probe(n: u32, x: Global[u32]):
        @role(warp=1, elect=True, when=n == 0)
        def load():
            x[0] = n
            x[1] = n

    assert code(probe) == [
        "setp.eq.u32 %p0, %r0, 0",
        "mov.u32 %r1, %tid.x",
        "shr.u32 %r2, %r1, 5",
        "setp.eq.u32 %p1, %r2, 1",
        "@!%p1 bra role_load_0_end",
        "@!%p0 bra role_load_0_end",
        "role_load_0:",
        "elect.sync _|%p2, 0xffffffff",
        "@!%p2 bra role_load_0_join",
        "st.global.u32 [%rd0], %r0",
        "st.global.u32 [%rd0+4], %r0",
        "role_load_0_join:",
        "bar.warp.sync 0xffffffff",
        "role_load_0_end:",
    ]


def guards(lines):
    return [line for line in lines if line.startswith(("setp", "and.pred", "or.pred")) or "bra" in line]


def kernel_of(warps, threads=256):
    @kernel("sm_90a", threads=threads)
    def probe(x: Global[u32]):
        @role(warps=warps)
        def epilogue():
            x[0] = 1
            x[1] = 2

    return probe


WARPS = [
    (range(8), []),
    (range(4, 8), ["setp.ge.u32 %p0, %r1, 4", "@!%p0 bra role_epilogue_0_end"]),
    (range(2), ["setp.le.u32 %p0, %r1, 1", "@!%p0 bra role_epilogue_0_end"]),
    ((2, 3), [
        "setp.ge.u32 %p0, %r1, 2",
        "setp.le.u32 %p1, %r1, 3",
        "and.pred %p2, %p0, %p1",
        "@!%p2 bra role_epilogue_0_end",
    ]),
    ((5, 1), [
        "setp.eq.u32 %p0, %r1, 1",
        "setp.eq.u32 %p1, %r1, 5",
        "or.pred %p2, %p1, %p0",
        "@!%p2 bra role_epilogue_0_end",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("warps", "expected"), WARPS)
def test_the_warps_of_a_role(warps, expected):
    lines = code(kernel_of(warps))
    assert guards(lines) == expected
    assert "role_epilogue_0:" in lines, "the label names the role even if nothing jumps there"


def test_two_roles_may_have_the_same_name():
    @kernel("sm_90a", threads=64)
    def probe(x: Global[u32]):
        @role(warp=0)
        def work():
            x[0] = 1

        @role(warp=1)
        def work():  # noqa: F811
            x[1] = 2

        x[2] = 3

    labels = [line for line in code(probe) if line.endswith(":")]
    assert labels == ["role_work_0:", "role_work_0_end:", "role_work_1:", "role_work_1_end:"]


def test_a_role_that_cannot_run_emits_nothing():
    @kernel("sm_90a", threads=64)
    def probe(x: Global[u32], *, store=True):
        @role(warp=0, when=store)
        def work():
            x[0] = 1

    assert code(probe, store=False) == []
    assert any("st.global" in line for line in code(probe))


def test_roles_may_read_values_computed_before_them():
    @kernel("sm_90a", threads=64)
    def probe(x: Global[u32]):
        place = ctaid.x * 2

        @role(warp=0)
        def first():
            x[place] = 1

        @role(warp=1)
        def second():
            x[place + 1] = 2

    assert "shl.b32 %r1, %r0, 1" in code(probe)


def test_in_three_dimensions_the_warp_comes_from_the_linear_index():
    @kernel("sm_90a", threads=(8, 4, 4))
    def probe(x: Global[u32]):
        x[0] = warp.id

    assert code(probe) == [
        "mov.u32 %r0, %tid.z",
        "mov.u32 %r1, %tid.y",
        "mad.lo.u32 %r2, %r0, 4, %r1",
        "mov.u32 %r3, %tid.x",
        "mad.lo.u32 %r4, %r2, 8, %r3",
        "shr.u32 %r5, %r4, 5",
        "st.global.u32 [%rd0], %r5",
    ]


def test_one_elected_thread_without_a_role():
    @kernel("sm_90a", threads=32)
    def probe(x: Global[u32]):
        with If(elect_one()):
            x[0] = 1

    assert code(probe) == ["elect.sync _|%p0, 0xffffffff", "@%p0 st.global.u32 [%rd0], 1"]


def test_a_register_of_another_role_is_refused_and_both_are_named():
    @kernel("sm_90a", threads=64)
    def probe(x: Global[u32]):
        shared = {}

        @role(warp=0)
        def load():
            shared["value"] = tid.x + 1

        @role(warp=1)
        def mma():
            x[0] = shared["value"]  # wrong

    assert misuse(probe) == (
        "%r2 (u32) belongs to role load (FILE) and is used in role mma: other threads run it; "
        "compute it before the roles, or pass it through shared memory"
    )


def test_a_register_of_a_role_is_refused_after_it():
    @kernel("sm_90a", threads=64)
    def probe(x: Global[f32]):
        kept = []

        @role(warp=0)
        def load():
            kept.append(var(f32, 1))

        x[0] = kept[0]  # wrong

    assert misuse(probe) == (
        "%f0 (f32) belongs to role load (FILE) and is used in code outside it: other threads run it; "
        "compute it before the roles, or pass it through shared memory"
    )


def test_a_break_does_not_leave_a_role():
    @kernel("sm_90a", threads=64)
    def probe(n: u32):
        for _ in loop(n):

            @role(warp=0)
            def load():
                Break()  # wrong

    assert misuse(probe) == "given Break() outside a loop; expected it in the body of `for … in loop(…)`"


def test_bad_roles_are_refused():
    @kernel("sm_90a", threads=64)
    def beyond():
        @role(warp=2)  # wrong
        def load(): ...

    @kernel("sm_90a", threads=64)
    def both():
        @role(warp=0, warps=(0, 1))  # wrong
        def load(): ...

    @kernel("sm_90a", threads=64)
    def parameters():
        @role(warp=0)  # wrong
        def load(n): ...

    @kernel("sm_90a", threads=64)
    def generator():
        @role(warp=0)  # wrong
        def load():
            yield

    @kernel("sm_90a", threads=64)
    def nested():
        @role(warp=0)
        def outer():
            @role(warp=0)  # wrong
            def inner(): ...

    @kernel("sm_90a", threads=64)
    def condition(n: u32):
        @role(warp=0, when=n)  # wrong
        def load(): ...

    assert misuse(beyond) == "given role load for warps [2]; expected warps 0 to 1 of the CTA's 64 threads"
    assert misuse(both) == "given role load with warp=0 and warps=(0, 1); expected one of them"
    assert (
        misuse(parameters)
        == "given role load with parameters; expected none: a role reads the names of its enclosing function"
    )
    assert misuse(generator) == "given role load with a yield; expected a plain function"
    assert misuse(nested) == "given role inner inside role outer; expected roles side by side"
    assert misuse(condition) == "given %r0 (u32) to role; expected a pred: write x != 0"
