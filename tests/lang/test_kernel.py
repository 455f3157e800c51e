"""The decorator: parameters, configuration, targets, and errors."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import warpwright as ww
from tests.lang.helpers import code, misuse, sentence
from warpwright.errors import KernelError
from warpwright.lang import (
    Global,
    If,
    bf16,
    cluster,
    e4m3,
    f16,
    f64,
    kernel,
    ld,
    loop,
    pred,
    s8,
    shfl,
    smem,
    tcgen05,
    tid,
    tma,
    u8,
    u16,
    u32,
    u64,
)


@kernel("sm_90a", threads=64)
def configured(x: Global[u32], *, stages=4, name="ab"):
    x[0] = stages


def test_every_kind_of_parameter_is_declared():
    @kernel("sm_90a")
    def probe(a: u8, b: s8, c: u16, d: f16, e: bf16, f: u64, g: f64, h: Global[bf16], m: tma.Map[bf16], q: e4m3):
        h[0] = e

    traced = probe.trace()
    declared = traced.ptx.partition("(\n")[2].partition("\n)")[0].split(",\n")
    assert [line.strip() for line in declared] == [
        ".param .u8 a",
        ".param .s8 b",
        ".param .u16 c",
        ".param .b16 d",
        ".param .b16 e",
        ".param .u64 f",
        ".param .f64 g",
        ".param .u64 .ptr .global .align 16 h",
        ".param .align 64 .b8 m[128]",
        ".param .b8 q",
    ]
    assert code(probe) == ["st.global.b16 [%rd0], %h0"]
    assert traced.params[4] == ("e", bf16)


def test_configuration_specialises_the_text():
    assert code(configured) == ["st.global.u32 [%rd0], 4"]
    assert code(configured, stages=8) == ["st.global.u32 [%rd0], 8"]
    assert configured.configure(stages=2).ptx() == configured.ptx(stages=2)
    assert configured.configure(stages=2).config == {"stages": 2, "name": "ab"}


def test_threads_and_cluster_may_be_configuration():
    @kernel("sm_90a", threads=32)
    def probe(x: Global[u32], *, threads=128, cluster=1):
        x[0] = 1

    assert (probe.trace().threads, probe.trace(threads=256, cluster=2).cluster) == ((128, 1, 1), (2, 1, 1))


def test_unhashable_configuration_is_traced_each_time():
    @kernel("sm_90a")
    def probe(x: Global[u32], *, table=()):
        for place, value in enumerate(table):
            x[place] = value

    assert code(probe, table=[7, 9]) == ["st.global.u32 [%rd0], 7", "st.global.u32 [%rd0+4], 9"]


def test_types_may_be_local_names():
    element = u16

    @kernel("sm_90a")
    def probe(x: Global[element]):
        x[0] = 1

    assert code(probe) == ["st.global.u16 [%rd0], 1"]


def refusal(call):
    with pytest.raises(KernelError) as caught:
        call()
    return sentence(caught.value)


def test_unknown_configuration_is_refused():
    assert refusal(lambda: configured.ptx(stage=3)) == (  # wrong
        "given stage= to kernel configured; its configuration is stages, name; did you mean stages?"
    )
    assert refusal(lambda: configured.configure(x=3)) == (  # wrong
        "given x= to kernel configured; x is a run-time parameter: pass it by position, or in args=[…] of ww.launch"
    )


def test_a_kernel_is_not_called():
    assert refusal(lambda: configured(1)) == (  # wrong
        "given configured(…) as a call; a kernel is launched: configured[grid](…) or "
        "ww.launch(configured, grid=…, args=[…]), or read: configured.ptx()"
    )


def test_targets_are_checked():
    @kernel()
    def anywhere(x: Global[u32]):
        x[0] = 1

    assert refusal(lambda: anywhere.ptx()) == (  # wrong
        "given no target for kernel anywhere; write anywhere.ptx('sm_100a') or @kernel('sm_100a')"
    )
    unknown = refusal(lambda: anywhere.ptx("sm_80"))  # wrong
    assert unknown.startswith("given target 'sm_80' for kernel anywhere; expected one of sm_90, sm_90a, sm_100, ")
    assert refusal(lambda: kernel("b200")).startswith("given @kernel('b200'); expected one of sm_90, ")  # wrong
    assert refusal(lambda: kernel(print)) == (  # wrong
        "given @kernel without parentheses; write @kernel() or @kernel('sm_100a')"
    )


def test_shapes_are_checked():
    @kernel("sm_90a", threads=2048)
    def wide(): ...

    @kernel("sm_120a", cluster=16)
    def many(): ...

    @kernel("sm_90a", threads=(32, 0))
    def none(): ...

    tail = "in all, an int or (x, y, z)"
    assert refusal(lambda: wide.ptx()) == (  # wrong
        f"given threads=2048 for kernel wide; expected 1 to 1024 {tail}"
    )
    assert refusal(lambda: many.ptx()) == f"given cluster=16 for kernel many; expected 1 to 8 {tail}"  # wrong
    assert refusal(lambda: none.ptx()) == f"given threads=(32, 0) for kernel none; expected 1 to 1024 {tail}"  # wrong


def test_ctas_per_sm_is_a_directive_and_is_checked():
    @kernel("sm_90a", threads=256, ctas_per_sm=2)
    def shared(*, ctas_per_sm=2): ...

    @kernel("sm_90a", threads=1024, ctas_per_sm=3)
    def crowded(): ...

    assert ".minnctapersm 2\n" in shared.ptx()
    assert ".minnctapersm 8\n" in shared.configure(ctas_per_sm=8).ptx()
    assert ".minnctapersm" not in shared.configure(ctas_per_sm=None).ptx()
    assert refusal(lambda: crowded.ptx()) == (  # wrong
        "given ctas_per_sm=3 for kernel crowded of 1024 threads; expected 1 to 2 on sm_90a, or None for any number"
    )
    assert refusal(lambda: shared.configure(ctas_per_sm=0).ptx()) == (  # wrong
        "given ctas_per_sm=0 for kernel shared of 256 threads; expected 1 to 8 on sm_90a, or None for any number"
    )
    assert refusal(lambda: shared.configure(ctas_per_sm=7).ptx("sm_120a")) == (  # wrong
        "given ctas_per_sm=7 for kernel shared of 256 threads; expected 1 to 6 on sm_120a, or None for any number"
    )


def test_signatures_are_checked():
    def untyped():
        @kernel("sm_90a")  # wrong
        def probe(n): ...

    def unknown():
        @kernel("sm_90a")  # wrong
        def probe(n: int): ...

    def predicate():
        @kernel("sm_90a")  # wrong
        def probe(n: pred): ...

    def missing():
        @kernel("sm_90a")  # wrong
        def probe(n: Nowhere): ...  # noqa: F821

    def required():
        @kernel("sm_90a")  # wrong
        def probe(n: u32, *, stages): ...

    def starred():
        @kernel("sm_90a")  # wrong
        def probe(**n: u32): ...

    expected = (
        "expected a scalar type (u32, f32, …), Global[T] for an array, tma.Map[T] for a tensor map, or Peers[T] or "
        "tma.PeerMaps[T] for those of all ranks"
    )
    assert refusal(untyped) == "given parameter n without a type; write n: u32, Global[T] or tma.Map[T]"
    assert refusal(unknown) == f"given parameter n: int; {expected}"
    assert refusal(predicate) == f"given parameter n: pred; {expected}"
    assert refusal(missing) == "given parameter n: Nowhere, and name 'Nowhere' is not defined; import the type"
    assert refusal(required) == "given configuration stages without a default; write stages=…"
    assert refusal(starred) == "given parameter **n; expected a fixed list of configuration values"


def test_parameters_that_a_configuration_adds():
    @kernel("sm_90a")
    def probe(out: Global[u32], *more):
        out[0] = more[0][0] + more[1]

    longer = probe.with_params(x=Global[u32], n=u32)
    assert [name for name, _ in longer.trace().params] == ["out", "x", "n"]
    out = np.zeros(1, np.uint32)
    ww.launch(longer, grid=1, args=[out, np.array([5], np.uint32), 7], device="h200")
    assert out[0] == 12
    assert [name for name, _ in probe.params.items()] == ["out"]


def test_an_operation_outside_a_kernel_is_named():
    tail = "called outside a kernel: it emits PTX; move the call into the body of a function under @kernel"
    assert refusal(lambda: smem.array(u32, 4)) == f"smem.array {tail}"  # wrong
    assert refusal(lambda: tcgen05.wait_ld()) == f"tcgen05.wait_ld {tail}"  # wrong
    assert refusal(lambda: tid.x) == f"tid.x {tail}"  # wrong
    assert refusal(lambda: shfl.bfly(None, 1)) == f"shfl.bfly {tail}"  # wrong
    assert refusal(lambda: cluster.sync()) == f"cluster.sync {tail}"  # wrong


def test_a_value_of_another_kernel_is_refused():
    kept = []

    @kernel("sm_90a")
    def first(n: u32):
        kept.append(n)

    @kernel("sm_90a")
    def second(x: Global[u32]):
        x[0] = kept[0]  # wrong

    first.ptx()
    assert misuse(second) == (
        "%r0 (u32) belongs to kernel first and is used in kernel second: a register lives in one trace; "
        "pass the value as a parameter"
    )


def test_an_instruction_that_the_target_lacks_is_refused():
    @kernel()
    def probe(x: Global[u32]):
        tcgen05.wait_ld()  # wrong

    assert misuse(probe, "sm_90a") == (
        "tcgen05.wait::ld needs sm_100a, sm_100f or sm_103a; this kernel is traced for sm_90a: "
        "trace it for a target that has it, or write this step with instructions that sm_90a has"
    )


def test_an_instruction_that_does_not_exist_is_refused():
    @kernel("sm_90a")
    def probe(x: Global[u32]):
        ld(x, sem="acquire")  # wrong

    assert misuse(probe) == (
        "ld.acquire.global.u32 is not an instruction of PTX ISA 9.1; check the spelling and order of its modifiers"
    )


def test_shared_memory_has_the_targets_limit():
    @kernel()
    def probe(x: Global[u32]):
        smem.array(u32, 16 * 1024)
        smem.array(u32, 16 * 1024)  # wrong

    assert misuse(probe, "sm_120a") == (
        "shared memory of kernel probe grows to 131072 bytes with array (65536 bytes); sm_120a has 101376 for a CTA: "
        "use fewer stages or smaller tiles"
    )
    assert probe.trace("sm_90a").smem_bytes == 131072


class Held:
    """An object of the caller."""


@kernel("sm_90a", threads=32)
def looping(out: Global[u32]) -> None:
    for step in loop(0, 4):
        with If(tid.x < step):
            out[tid.x] = step


def test_a_trace_has_no_reference_to_its_callers() -> None:
    """Objects of the caller (a tensor's autograd nodes) are freed with their last reference, before a collection."""

    def call() -> weakref.ref[Held]:
        held = Held()
        looping.ptx("sm_100a")
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
