"""Gradients of attention of packed sequences against float64, sequence by sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.backward_helpers import resident, verify
from tests.kernels.attention.varlen_helpers import Packed, pack_sequences
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem, reference
from warpwright.ops.attention.varlen_backward import describe, gradients_varlen

PLAIN = {"causal": False, "scale": None, "window": None}
ANY = 1  # the lengths are those of the sequences


def arrays(problem: Problem, given: Packed) -> dict[str, Any]:
    q, k, v, cu_q, cu_k = given
    o, lse = reference.attention_varlen(problem, q, k, v, cu_q, cu_k)
    do = np.random.default_rng(1).standard_normal(q.shape).astype(q.dtype)
    found = {"q": q, "k": k, "v": v, "o": o.astype(q.dtype), "do": do, "lse": lse.astype(np.float32)}
    return found | {"dlse": np.zeros(lse.shape, np.float32), "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}


def run(problem: Problem, values: dict[str, Any], launch: Any = ww.launch, **order: bool) -> Any:
    """Returns the gradients; results and the memory between the launches are NaN before."""
    options = {"causal": problem.causal, "scale": problem.scale, "window": problem.window, "device": "h200"}
    call = describe(**values, **options, **order)
    ((plan, memory),) = call.steps
    for array in (*call.result, *(memory[name] for name in plan.scratch)):
        array[...] = np.nan
    for each in call:
        launch(each.kernel, each.grid, args=each.args, device="h200")
    return call.result


def verify_packed(problem: Problem, given: Packed, do: Any, found: Any) -> None:
    """Assert that gradients are right for each sequence, and 0 for queries without keys and keys without queries."""
    unused = [np.ones(len(x), bool) for x in found]
    for each, rows, keys in reference.sequences(problem, given.cu_q, given.cu_k):
        own = rows, keys, keys
        inputs = [x[part].swapaxes(0, 1)[None] for x, part in zip((*given[:3], do), (*own, rows), strict=True)]
        verify(each, tuple(inputs), tuple(x[part].swapaxes(0, 1)[None] for x, part in zip(found, own, strict=True)))
        for mask, part in zip(unused, own, strict=True):
            mask[part] = False
    assert not any(x[mask].any() for x, mask in zip(found, unused, strict=True))


def check(kernel: Any, grid: Any, args: Any, device: Any) -> None:
    verdict = ww.check(kernel, grid, args=args, device=device, update=True)
    assert verdict.kind == "clean", verdict


LENGTHS = [1, 70, 0, 33, 140], [5, 150, 20, 0, 129]


@sampled(
    ("problem", "launch"),
    [
        (Problem(1, 8, 4, ANY, ANY, 64, causal=True), check),
        (Problem(1, 2, 2, ANY, ANY, 64, window=(30, 9), dtype=np.float16), ww.launch),
        (Problem(1, 2, 1, ANY, ANY, 104, scale=0.2), ww.launch),
        (Problem(1, 4, 2, ANY, ANY, 256, causal=True), check),
        (Problem(1, 2, 2, ANY, ANY, 192, window=(30, 9), dtype=np.float16), ww.launch),
        (Problem(1, 8, 4, ANY, ANY, 96, causal=True), check),
    ],
    every=3,
)
def test_agrees_with_float64(problem: Problem, launch: Any) -> None:
    given = pack_sequences(problem, *LENGTHS)
    values = arrays(problem, given)
    with resident(1):
        verify_packed(problem, given, values["do"], run(problem, values, launch))


@sampled(
    ("problem", "launch"),
    [
        (Problem(1, 10, 10, ANY, ANY, 64, causal=True), check),
        (Problem(1, 3, 3, ANY, ANY, 128, window=(30, 9)), ww.launch),
        (Problem(1, 4, 2, ANY, ANY, 96), ww.launch),
    ],
    every=2,
)
def test_a_fixed_order_agrees_with_float64(problem: Problem, launch: Any) -> None:
    given = pack_sequences(problem, [1, 70, 0, 33, 340], [5, 150, 20, 0, 429])
    values = arrays(problem, given)
    with resident(1):
        verify_packed(problem, given, values["do"], run(problem, values, launch, deterministic=True))


@sampled("wrong", [[0, 1000, 40, 100], [-5, 30, 10**9, 2], [50, 60, 90, 2**31 - 1]], every=3)
def test_wrong_offsets_touch_no_other_memory(monkeypatch: pytest.MonkeyPatch, wrong: list[int]) -> None:
    """Offsets in GPU memory are not checked; the virtual GPU reports a box or a store beyond the arrays."""
    problem = Problem(1, 2, 1, ANY, ANY, 64, causal=True)
    given = pack_sequences(problem, [40, 30, 30], [40, 30, 30])
    values = arrays(problem, given)
    monkeypatch.setattr("warpwright.ops.attention.varlen.check_starts", lambda *_: None)
    for names in (["cu_seqlens_q"], ["cu_seqlens_k"], ["cu_seqlens_q", "cu_seqlens_k"]):
        run(problem, values | dict.fromkeys(names, np.array(wrong, np.int32)))


def test_what_is_refused() -> None:
    given = pack_sequences(Problem(1, 2, 1, ANY, ANY, 64), [3, 4], [5, 6])
    values = arrays(Problem(1, 2, 1, ANY, ANY, 64), given)
    with pytest.raises(UsageError) as caught:
        describe(**values | {"lse": np.zeros((7, 2), np.float32)}, **PLAIN, device="h200")
    assert str(caught.value) == "attention: lse is 7 × 2 of float32; expected 2 × 7 of float32"
    with pytest.raises(UsageError) as caught:
        describe(**values, **PLAIN, device="rtx5090")
    assert str(caught.value) == (
        "attention: given gradients of packed sequences on rtx5090 (sm_120a); expected one of sm_90a, which have "
        "kernels for them: warpwright.ops.attention.backward.gradients for each sequence"
    )


def test_rows_of_any_stride_and_no_rows() -> None:
    problem = Problem(1, 2, 1, ANY, ANY, 64)
    given = pack_sequences(problem, [9, 20], [30, 7])
    values = arrays(problem, given)
    names = "q", "k", "v", "o", "lse", "do", "cu_seqlens_q", "cu_seqlens_k"
    wide = np.zeros((*values["do"].shape, 2), values["do"].dtype)
    wide[..., 0] = values["do"]
    found = gradients_varlen(*(values[name] if name != "do" else wide[..., 0] for name in names), device="h200")
    verify_packed(problem, given, values["do"], found)
    empty = np.zeros((0, 2, 64), given.q.dtype)
    none, starts = np.zeros((2, 0), np.float32), np.zeros(3, np.int32)
    dq, dk, _ = gradients_varlen(empty, given.k, given.v, empty, none, empty, starts, given.cu_k, device="h200")
    assert dq.shape == (0, 2, 64) and dk.shape == given.k.shape and not dk.any()
