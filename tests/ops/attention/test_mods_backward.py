"""Gradients of attention with functions of the scores, mask functions, soft caps and sinks, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv
from tests.kernels.attention.backward_helpers import resident
from tests.ops.attention.test_mods import BIAS, CASES, SINKS
from tests.ops.attention.test_mods import SLOPES as FACTORS
from tests.samples import sampled
from warpwright.errors import KernelError, UsageError
from warpwright.kernels.attention import Problem
from warpwright.kernels.reference import FLOAT32_STEP, MMA_K, ulp
from warpwright.lang import If, f32, fma, sqrt, tanh, var
from warpwright.ops.attention import mods
from warpwright.ops.attention.backward import describe, gradients

PROBLEM = Problem(2, 4, 2, 70, 140, 64)  # tiles and blocks that are not whole, two heads of q for one of k
HALF = 2.0**-9  # half a unit in the last place of bfloat16, relative
TANH = 2.0**-10  # largest error of tanh.approx, relative
EXTRA: dict[str, Any] = {
    "curved": (
        {"score_mod": lambda score, b, h, q, k: score * score * 0.25 + tanh(score) - abs(score)},
        lambda score, b, h, q, k: score * score * 0.25 + np.tanh(score) - np.abs(score),
        None,
    ),
    # NaN for hidden keys, and for queries after the last one of `PROBLEM` if their indices go on.
    "sum": (
        {
            "score_mod": lambda score, b, h, q, k: (
                fma(score, FACTORS[h], BIAS[h, q, k])
                - sqrt((q - k).to(f32)) * 0.5
                + FACTORS[h] * sqrt((69 - q).to(f32))
            ),
            "mask_mod": lambda b, h, q, k: k <= q,
        },
        lambda score, b, h, q, k: (
            (score + np.sqrt(69.0 - q)) * FACTORS.astype(np.float64)[h]
            + BIAS.astype(np.float64)[h, q, k]
            - 0.5 * np.sqrt(np.maximum(q - k, 0))
        ),
        lambda b, h, q, k: k <= q,
    ),
}
SLOPES: dict[str, Any] = {  # derivatives of the score functions, 1 of the others
    "causal function": lambda score, b, h, q, k: (k <= q) + 0 * score,
    "all of them": lambda score, b, h, q, k: np.array([0.5, 0.25, 0.125, 0.0625])[h] + 0 * score,
    "sum": lambda score, b, h, q, k: FACTORS.astype(np.float64)[h] + 0 * score,
    "curved": lambda score, b, h, q, k: score * 0.5 + 1 - np.tanh(score) ** 2 - np.sign(score),
}
APPROXIMATE = {"soft cap": 1.5, "all of them": 2.0, "curved": 1.0}  # factor of tanh.approx


class Exact(NamedTuple):
    """Output and log-sum-exp; gradients in float64 and the largest errors before results are rounded: dQ, dK, dV, and
    for sinks d_sink."""

    out: Any
    lse: Any
    values: list[Any]
    bounds: list[Any]


def reference(problem: Problem, given: Any, name: str, options: dict[str, Any], score: Any, mask: Any) -> Exact:
    """P, dS and O are rounded to bfloat16, and scores summed in float32, which is a relative error of P; `TANH` is one
    of a capped score, and an absolute one of its derivative."""
    q, k, v, do = (x.astype(np.float64) for x in given)
    keys, values = (np.repeat(x, problem.group, axis=1) for x in (k, v))
    scores = q @ keys.swapaxes(-1, -2) * problem.factor
    indices = np.ogrid[tuple(slice(extent) for extent in scores.shape)]
    slope = SLOPES[name](scores, *indices) if name in SLOPES else np.ones_like(scores)
    scores = score(scores, *indices) if score else scores
    if cap := options.get("softcap"):
        scores = cap * np.tanh(scores / cap)
        slope = slope * (1 - (scores / cap) ** 2)
    first, stop = problem.visible()
    seen = (indices[3] >= first[:, None]) & (indices[3] < stop[:, None])
    seen = seen & mask(*indices) if mask else seen
    scores = np.where(seen, scores, -np.inf)
    sinks = np.full(problem.heads, -np.inf) if "sinks" not in options else options["sinks"].astype(np.float64)
    top = np.maximum(scores.max(-1, keepdims=True), sinks[:, None, None])
    top = np.where(np.isfinite(top), top, 0.0)
    weights, sink = np.exp(scores - top), np.exp(sinks[:, None, None] - top)
    total = weights.sum(-1, keepdims=True) + sink
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0].astype(np.float32)
    total = np.where(total, total, 1.0)
    weights, sink = weights / total, sink / total
    by_weights = do @ values.swapaxes(-1, -2)
    mean = (weights * by_weights).sum(-1, keepdims=True)
    ds = weights * (by_weights - mean) * slope * problem.factor

    factor = APPROXIMATE.get(name, 0.0)
    largest = (np.abs(q) @ np.abs(keys).swapaxes(-1, -2)).max() * problem.factor
    relative = 2 * HALF + factor * TANH + 4 * (largest + 1) * (problem.head_dim // MMA_K + 4) * FLOAT32_STEP
    of_mean = (weights @ np.abs(values) * np.abs(do)).sum(-1, keepdims=True)
    size = weights * (np.abs(do) @ np.abs(values).swapaxes(-1, -2) + of_mean) * problem.factor
    of_ds = size * (relative * np.abs(slope) + factor * 2 * TANH)

    def summed(x: Any) -> Any:
        return x.reshape(problem.batch, problem.kv_heads, problem.group, *x.shape[2:]).sum(2)

    found = [ds @ keys, summed(ds.swapaxes(-1, -2) @ q), summed(weights.swapaxes(-1, -2) @ do)]
    bounds = [
        of_ds @ np.abs(keys),
        summed(of_ds.swapaxes(-1, -2) @ np.abs(q)),
        summed(weights.swapaxes(-1, -2) @ np.abs(do)) * relative,
    ]
    if "sinks" in options:
        found.append(-(sink * mean).sum((0, 2, 3)))
        bounds.append((sink * (relative * of_mean + 2 * HALF * np.abs(mean))).sum((0, 2, 3)))
    return Exact((weights @ values).astype(given[0].dtype), lse, found, bounds)


def verify(found: Any, exact: Exact) -> None:
    """Assert that the gradients equal those in float64 up to the rounding of their dtype."""
    for each, wanted, bound in zip(found, exact.values, exact.bounds, strict=True):
        allowed = bound + 0.5 * ulp(np.where(wanted == 0, 2.0**-24, wanted), each.dtype) + 1e-6
        assert (np.abs(each.astype(np.float64) - wanted) <= allowed).all()


def random(problem: Problem) -> tuple[Any, ...]:
    q, k, v = normal_qkv(problem)
    return q, k, v, np.random.default_rng(5).standard_normal(q.shape).astype(q.dtype)


def differentiate(problem: Problem, given: Any, options: dict[str, Any], exact: Exact, launch: Any = ww.launch) -> Any:
    """Returns the gradients; results and the memory between the launches are NaN before."""
    q, k, v, do = given
    keywords = {"causal": problem.causal, "window": problem.window, "scale": None, "layout": "bhsd", "device": "h200"}
    call = describe(q, k, v, exact.out, exact.lse, do, dlse=np.zeros_like(exact.lse), **keywords, **options)
    ((plan, values),) = call.steps
    for array in (*call.result, *(values[name] for name in plan.scratch if name != "lists")):
        array[...] = np.nan
    for each in call:
        launch(each.kernel, each.grid, args=each.args, device="h200")
    return call.result


def run(problem: Problem, name: str, case: Any, launch: Any = ww.launch) -> None:
    options, score, mask = case
    given = random(problem)
    exact = reference(problem, given, name, options, score, mask)
    verify(differentiate(problem, given, options, exact, launch), exact)


@sampled(
    ("name", "head_dim"),
    [
        *((name, 64) for name in (*CASES, *EXTRA)),
        ("all of them", 128),
        ("soft cap", 128),
        ("all of them", 96),
        ("all of them", 256),
        ("curved", 192),
        ("slopes", 128),
        ("sum", 128),
        ("sum", 96),
        ("sum", 192),
    ],
    keep=[("all of them", 64), ("sum", 64)],
)
def test_numbers(name: str, head_dim: int) -> None:
    run(replace(PROBLEM, head_dim=head_dim), name, {**CASES, **EXTRA}[name])


def test_sinks_and_soft_caps_in_a_sliding_window() -> None:
    problem = replace(PROBLEM, batch=1, window=(40, None), causal=True)
    run(problem, "soft cap", ({"softcap": 1.5, "sinks": SINKS}, None, None))


def test_the_bounds_tell_gradients_with_and_without_a_cap_apart() -> None:
    given = random(PROBLEM)
    plain, capped = (reference(PROBLEM, given, "soft cap", each, None, None) for each in ({}, {"softcap": 1.5}))
    found = [each.astype(given[0].dtype) for each in plain.values]
    verify(found, plain)
    with pytest.raises(AssertionError):
        verify(found, capped)


def documents(batch: Any, head: Any, q: Any, k: Any) -> Any:
    return (q >> 7 == k >> 7) & (q < 256)


def test_tiles_that_see_no_key_of_a_block_are_skipped() -> None:
    """Documents of one tile each, of which the last one sees nothing: a block of keys takes one tile of queries."""
    q, k, v, o, do = (np.zeros((1, 1, 384, 64), ml_dtypes.bfloat16) for _ in range(5))
    options = {"causal": False, "window": None, "scale": None, "layout": "bhsd", "device": "h200"}
    call = describe(q, k, v, o, np.zeros((1, 1, 384), np.float32), do, dlse=None, mask_mod=documents, **options)
    lists, *_ = call
    ww.launch(lists.kernel, lists.grid, args=lists.args, device="h200")
    assert (lists.args[0][0, 0, :, :3] == [[1, 0, 0], [1, 0, 1], [1, 1, 1 << 31]]).all()


def check(kernel: Any, grid: Any, args: Any, device: Any) -> None:
    verdict = ww.check(kernel, grid, args=args, device=device, update=True)
    assert verdict.kind == "clean", verdict


@sampled("head_dim", [64, 256], keep=[64])
def test_the_verdict_is_clean(head_dim: int) -> None:
    """A mask of all kinds of blocks, a function of the score, a cap and sinks together."""

    def seen(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return (k < 128) | ((k < 256) & (q < 128) & ((k + q) & 1 == 0))

    options, score, _ = CASES["all of them"]
    problem = replace(PROBLEM, q_len=140, kv_len=300, head_dim=head_dim)
    with resident(1):
        run(problem, "all of them", (options | {"mask_mod": seen}, score, seen), check)


def refusal(error: type[Exception], **options: Any) -> str:
    q, k, v, do = random(replace(PROBLEM, batch=1, heads=2, kv_heads=2, q_len=8, kv_len=8))
    with pytest.raises(error) as caught:
        gradients(q, k, v, q, np.zeros(q.shape[:3], np.float32), do, **{"device": "h200", **options})
    return str(caught.value)


def test_more_keys_than_exact_indices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mods, "EXACT", 7)
    assert refusal(UsageError, softcap=1.0).startswith(
        "attention: given score_mod, mask_mod, softcap or sinks with 8 queries or keys; expected at most 7, "
    )


def branch(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    found = var(f32, score)
    with If(k > q):
        found.set(0.0)
    return found


def growing(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    found = var(f32, score)
    found += 1.0
    return found


def test_what_is_refused() -> None:
    assert refusal(UsageError, softcap=1.0, device="rtx5090") == (
        "attention: given score_mod, mask_mod, softcap or sinks on rtx5090 (sm_120a); expected sm_90a, the only one "
        "with a kernel for them: device='h200'"
    )
    assert refusal(KernelError, score_mod=branch).endswith(
        "given a function of the score with If or loop; expected select(p, x, y), which has a slope"
    )
    assert refusal(KernelError, score_mod=growing).endswith(
        "given a function of the score that changes a variable; expected y = …, a new value"
    )
