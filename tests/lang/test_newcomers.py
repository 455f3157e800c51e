"""What people write who know NumPy, Numba or Triton: each is one sentence that names the edit, or works."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.lang.helpers import code, misuse
from warpwright.errors import KernelError
from warpwright.lang import Global, If, bf16, f32, kernel, role, s32, smem, tid, tma, u32, var


def numpy_sine(x, n):
    np.sin(x[0])  # wrong


def numpy_maximum(x, n):
    np.maximum(x[0], 0)  # wrong


def numpy_reduction(x, n):
    np.add.reduce(np.array([1, 2]), initial=0) + np.hypot(x[0], 1)  # wrong


def math_sine(x, n):
    math.sin(x[0])  # wrong


def math_exponential(x, n):
    math.exp(x[0])  # wrong


def type_of_a_constant(x, n):
    f32(3)  # wrong


def type_of_a_value(x, n):
    f32(n)  # wrong


def power(x, n):
    x[0] ** 2  # wrong


def power_of_two(x, n):
    2**n  # wrong


def element_of_a_value(x, n):
    n[0]  # wrong


def shape(x, n):
    x.shape[0]  # wrong


def astype(x, n):
    n.astype(f32)  # wrong


def assign(x, n):
    n.set(3)  # wrong


def iterate_pointer(x, n):
    for _ in x:  # wrong
        pass


def total_of_pointer(x, n):
    sum(x)  # wrong


def numpy_type(x, n):
    n.to(np.float32)  # wrong


def python_type(x, n):
    var(float, 0)  # wrong


def type_as_text(x, n):
    x[0].bitcast("u32")  # wrong


def array_of_numpy_type(x, n):
    smem.array(np.int32, 4)  # wrong


def return_value(x, n):
    if n is None:
        return 3
    return x[0]  # wrong


def return_in_a_branch(x, n):
    with If(tid.x >= n):
        return  # wrong
    x[tid.x] = 1.0


def return_of_a_role(x, n):
    @role(warp=0)
    def load():
        return 3  # wrong


TRACED = "which runs while the kernel is traced; write"
VALUE = "given %f0 (f32) to"
SHAPE = "it has no shape: pass the size as a parameter n: u32"
NO_END = "Pointer[f32] in global memory at %rd0 (u64)+0 has no end and cannot be iterated; write `for i in loop(n):`"
SENTENCES = {
    numpy_sine: f"{VALUE} np.sin, {TRACED} sin(x)",
    numpy_maximum: f"{VALUE} np.maximum, {TRACED} max(x, y)",
    numpy_reduction: f"{VALUE} np.hypot, {TRACED} it with the functions of warpwright.lang: sin(x), ex2(x), "
    "select(p, x, y), …",
    math_sine: f"{VALUE} math.sin, {TRACED} sin(x)",
    math_exponential: f"{VALUE} math.exp, {TRACED} ex2(x * 1.442695)",
    type_of_a_constant: "given f32(…), and f32 is a type; write cvt(3, f32) for a constant, x.to(f32) for a run-time "
    "value, or var(f32, 3) for a variable",
    type_of_a_value: "given f32(x), and f32 is a type; write x.to(f32) to convert a run-time value",
    power: "given %f0 (f32) ** 2; PTX has no power: write x * x, or ex2(lg2(x) * y) for f32",
    power_of_two: "given 2 ** %r0 (u32); PTX has powers of 2 only: write ex2(x) for f32, or 1 << x",
    element_of_a_value: "given %r0 (u32)[…], and it is one value; expected a pointer: a parameter x: Global[f32], or "
    "smem.array(…)",
    shape: f"given .shape of Pointer[f32] in global memory at %rd0 (u64)+0; {SHAPE}",
    astype: "given .astype of %r0 (u32); write x.to(f32)",
    assign: "given .set of %r0 (u32); only a variable changes: write x = var(u32, …)",
    iterate_pointer: f"{NO_END} and x[i]",
    total_of_pointer: f"{NO_END} and x[i]",
    numpy_type: "given <class 'numpy.float32'> to cvt; expected a type of warpwright.lang: write f32",
    python_type: "given <class 'float'> to var; expected a type of warpwright.lang: write f32",
    type_as_text: "given 'u32' to bitcast; expected a type of warpwright.lang: write u32",
    array_of_numpy_type: "given <class 'numpy.int32'> to smem.array; expected a type of warpwright.lang: write s32",
    return_value: "given the return value %f0 (f32) of return_value, and a kernel returns nothing; store it: "
    "out[i] = value",
    return_in_a_branch: "given a return inside `with If(…)`, which ends the trace and not the thread; write the rest "
    "of return_in_a_branch in `with If(…)` of the opposite condition",
    return_of_a_role: "given the return value 3 of load, and a kernel returns nothing; store it: out[i] = value",
}


@pytest.mark.parametrize("body", SENTENCES, ids=lambda body: body.__name__)
def test_one_sentence_names_the_edit(body):
    body.__annotations__.update(x=Global[f32], n=u32)
    assert misuse(kernel("sm_90a")(body)) == SENTENCES[body]


def test_a_tensor_map_is_not_iterated():
    @kernel("sm_90a")
    def probe(m: tma.Map[f32]):
        list(m)  # wrong

    assert misuse(probe) == ("Map[f32] m has no end and cannot be iterated; write `for k in loop(n):` and map[row, k]")


def test_a_kernel_with_a_yield_is_refused():
    def probe(x: Global[f32]):
        yield x

    with pytest.raises(KernelError) as caught:
        kernel("sm_90a")(probe)
    assert str(caught.value).endswith("given kernel probe with a yield or async; expected a plain def")


def test_returns_that_end_a_kernel_are_fine():
    @kernel("sm_90a")
    def probe(x: Global[u32], *, early: bool = False):
        def one():
            return 1

        if early:
            return
        with If(tid.x == 0):
            x[0] = one()

    assert len(probe.ptx()) > len(probe.ptx(early=True))


def test_numpy_numbers_and_arrays_take_part_in_operators():
    def body(three):
        @kernel("sm_90a")
        def probe(x: Global[f32], n: s32):
            y = three * x[0] - three
            x[1] = y
            with If(np.less(n, 5) if isinstance(three, np.generic) else n < 5):
                x[2] = y

        return code(probe)

    assert body(np.float32(3)) == body(3.0) == body(np.array(3.0))

    @kernel("sm_90a")
    def rows(x: Global[f32]):
        for i, value in enumerate(np.array([2.0, 3.0]) * x[0]):
            x[i] = value

    opcodes = sorted(line.split()[0] for line in code(rows))
    assert opcodes == ["ld.global.f32", "mul.rn.f32", "mul.rn.f32", "st.global.f32", "st.global.f32"]


def test_a_missing_attribute_stays_an_attribute_error():
    @kernel("sm_90a")
    def probe(x: Global[bf16], n: u32):
        assert not hasattr(n, "shape") and not hasattr(x, "nonsense") and getattr(x, "size", None) is None
        x[0] = 0.0

    assert probe.ptx()
