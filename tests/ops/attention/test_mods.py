"""`ww.attention` with functions of the scores, mask functions, soft caps and sinks: numbers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv
from tests.samples import sampled
from warpwright.errors import KernelError, UsageError
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.reference import slack
from warpwright.kernels.reference import ulp
from warpwright.lang import f32, rem, s64, select, tanh
from warpwright.ops.attention import mods

PROBLEM = Problem(2, 4, 2, 150, 333, 64)  # tiles and blocks that are not whole, two heads of q for one of k
RANDOM = np.random.default_rng(0)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
BIAS = RANDOM.standard_normal((4, 150, 333)).astype(ml_dtypes.bfloat16)
DOCUMENTS = np.sort(RANDOM.integers(0, 4, 333)).astype(np.int32)
HIDDEN = RANDOM.integers(0, 2, (2, 333)).astype(bool)
WIDE = np.array([200, 100])  # int64: a prefix for each batch
SINKS = np.array([0.0, 2.0, 9.0, -np.inf], np.float32)
WINDOW = 40


def reference(q: Any, k: Any, v: Any, score: Any, mask: Any, cap: float | None, sinks: Any) -> tuple[Any, Any]:
    """Returns output and log-sum-exp in float64; ``score`` and ``mask`` are functions of arrays."""
    keys, values = (np.repeat(x.astype(np.float64), q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = q.astype(np.float64) @ keys.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    indices = np.ogrid[tuple(slice(extent) for extent in scores.shape)]
    scores = score(scores, *indices) if score else scores
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = np.where(mask(*indices), scores, -np.inf) if mask else scores
    extra = np.full((q.shape[1], 1, 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None, None]
    top = np.maximum(scores.max(-1, keepdims=True), extra)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True) + np.exp(extra - top)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    return weights / np.where(total, total, 1.0) @ values, lse


Case = tuple[dict[str, Any], Callable[..., Any] | None, Callable[..., Any] | None]

CASES: dict[str, Case] = {
    "slopes": (
        {"score_mod": lambda score, b, h, q, k: score + SLOPES[h] * (k - q).to(f32)},
        lambda score, b, h, q, k: score + SLOPES.astype(np.float64)[h] * (k - q),
        None,
    ),
    "bias": (
        {"score_mod": lambda score, b, h, q, k: score + BIAS[h, q, k]},
        lambda score, b, h, q, k: score + BIAS.astype(np.float64)[h, q, k],
        None,
    ),
    "causal function": (
        {"score_mod": lambda score, b, h, q, k: select(k <= q, score, float("-inf"))},
        lambda score, b, h, q, k: np.where(k <= q, score, -np.inf),
        None,
    ),
    "soft cap": ({"softcap": 1.5}, None, None),
    "sinks": ({"sinks": SINKS}, None, None),
    "documents": (
        {"mask_mod": lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k]},
        None,
        lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k],
    ),
    "keys of a batch": ({"mask_mod": lambda b, h, q, k: HIDDEN[b, k]}, None, lambda b, h, q, k: HIDDEN[b, k]),
    "prefix of a batch, heads without keys": (
        {"mask_mod": lambda b, h, q, k: ((k.to(s64) < WIDE[b]) | (k <= q)) & (h != 1)},
        None,
        lambda b, h, q, k: ((k < WIDE[b]) | (k <= q)) & (h != 1),
    ),
    "all of them": (
        {
            "mask_mod": lambda b, h, q, k: (k <= q + WINDOW) & (k >= q - WINDOW),
            "score_mod": lambda score, b, h, q, k: score * SLOPES[h],
            "softcap": 2.0,
            "sinks": SINKS,
        },
        lambda score, b, h, q, k: score * SLOPES.astype(np.float64)[h],
        lambda b, h, q, k: abs(k - q) <= WINDOW,
    ),
}


@sampled("name", CASES, every=7)
def test_numbers(name: str) -> None:
    options, score, mask = CASES[name]
    q, k, v = normal_qkv(PROBLEM)
    out = np.full(q.shape, np.nan, q.dtype)
    result, lse = ww.attention(q, k, v, device="h200", return_lse=True, out=out, **options)
    expected, logs = reference(q, k, v, score, mask, options.get("softcap"), options.get("sinks"))
    approximate = 2.0**-9 if "softcap" in options else 2.0**-20  # tanh.approx: relative error 2**-11, times the cap
    bound = slack(PROBLEM, q, k, v) + 2 * approximate * np.abs(v.astype(np.float64)).max() + ulp(expected, q.dtype)
    assert (np.abs(result.astype(np.float64) - expected) <= bound).all()
    assert (np.isneginf(lse) == np.isneginf(logs)).all()
    seen = np.isfinite(logs)
    assert (np.abs(lse[seen] - logs[seen]) <= 1e-4 + 2 * approximate).all()


def test_a_mask_function_and_a_window_hide_keys_together() -> None:
    q, k, v = normal_qkv(PROBLEM)
    result = ww.attention(q, k, v, causal=True, mask_mod=lambda b, h, q, k: rem(k, 3) != 1, device="h200")
    hidden = lambda b, h, q, k: (k % 3 != 1) & (k <= q + PROBLEM.kv_len - PROBLEM.q_len)  # noqa: E731
    expected, _ = reference(q, k, v, None, hidden, None, None)
    assert (np.abs(result.astype(np.float64) - expected) <= slack(PROBLEM, q, k, v) + ulp(expected, q.dtype)).all()


def test_blocks_without_a_visible_key_are_skipped() -> None:
    """Documents of one block each: a tile of queries takes one block of keys, not four."""
    q, k, v = (np.zeros((1, 1, 512, 64), ml_dtypes.bfloat16) for _ in range(3))
    lists, attention = ww.launches(ww.attention, q, k, v, mask_mod=lambda b, h, q, k: q >> 7 == k >> 7, device="h200")
    ww.launch(lists.kernel, lists.grid, args=lists.args, device="h200")

    assert lists.args[0][0, 0, :, 0].tolist() == [1, 1, 1, 1]
    assert attention.kernel.entry == "attention_modified"


def test_equal_functions_share_a_kernel() -> None:
    """A function that is made again, with other arrays of the same extents, is traced once."""
    q, k, v = normal_qkv(PROBLEM)

    def first_launch(slopes: Any) -> Any:
        options = {"score_mod": lambda score, b, h, q, k: score * slopes[h], "device": "h200"}
        return next(iter(ww.launches(ww.attention, q, k, v, **options)))

    one, two = first_launch(SLOPES), first_launch(SLOPES * 2)
    assert one.kernel is two.kernel
    assert (one.args[-1] * 2 == two.args[-1]).all()


def refusal(error: type[Exception], **options: Any) -> str:
    q, k, v = normal_qkv(PROBLEM)
    with pytest.raises(error) as caught:
        ww.attention(q, k, v, **{"device": "h200", **options})
    return str(caught.value)


def test_what_is_refused() -> None:
    assert refusal(UsageError, softcap=0) == (
        "attention: softcap=0; expected a positive number, or None for no soft cap"
    )
    assert refusal(UsageError, sinks=np.zeros(3, np.float32)) == (
        "attention: sinks is float32 (3,) on the host; expected float32 (4,) on the host, one number for each head of q"
    )
    assert refusal(UsageError, sinks=[1.0] * 4) == (
        "attention: sinks is list; expected float32 (4,) on the host, one number for each head of q"
    )
    assert refusal(UsageError, mask_mod="causal") == (
        "attention: mask_mod='causal'; expected a Python function: def mask_mod(batch, head, q, k): …"
    )
    assert refusal(UsageError, mask_mod=lambda q, k: k <= q) == (
        "attention: mask_mod <lambda> takes 2 arguments; expected 4: (batch, head, q, k)"
    )
    numbers = [1, 2]
    assert refusal(UsageError, mask_mod=lambda b, h, q, k: k < numbers[0]) == (
        "attention: mask_mod captures numbers, a list; expected numbers, tuples, functions and arrays of numpy: "
        "np.asarray(numbers)"
    )
    assert refusal(UsageError, softcap=1.0, device="b200") == (
        "attention: given score_mod, mask_mod, softcap or sinks on b200 (sm_100a); expected sm_90a, the only one with "
        "a kernel for them: device='h200'"
    )
    assert refusal(KernelError, mask_mod=lambda b, h, q, k: q - k).endswith(
        "the result of mask_mod; expected one pred: return x != 0 for a number x"
    )
    assert refusal(KernelError, mask_mod=lambda b, h, q, k: None).endswith(
        "given None, the result of mask_mod; expected one pred: return k <= q"
    )
    assert refusal(KernelError, score_mod=lambda score, b, h, q, k: q).endswith(
        "(s32), the result of score_mod; expected one f32: return x.to(f32)"
    )
    assert refusal(KernelError, score_mod=lambda score, b, h, q, k: k <= q).endswith(
        "(pred), the result of score_mod; expected one f32: pass the function as mask_mod= to hide keys, or return "
        "select(condition, score, x)"
    )
    assert refusal(KernelError, score_mod=lambda score, b, h, q, k: 1.0).endswith(
        "given 1.0, the result of score_mod; expected one f32: return score + bias[head, q, k]"
    )
    assert refusal(KernelError, score_mod=lambda score, b, h, q, k: score + BIAS[q, k]).endswith(
        "given 2 indices of an array of 3 dimensions; expected one for each dimension, which loads one element: "
        "bias[head, q, k]"
    )


def test_more_keys_than_exact_indices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 2^24; with a lower one the problem is small."""
    with pytest.raises(UsageError) as error:
        mods.check_target("sm_90a", "h200", 2**24 + 1)
    assert str(error.value) == (
        "attention: given score_mod, mask_mod, softcap or sinks with 16777217 queries or keys; expected at most "
        "16777216, so that indices are exact in float32: divide the sequence"
    )
    mods.check_target("sm_90a", "h200", 2**24)
    monkeypatch.setattr(mods, "EXACT", 332)
    assert refusal(UsageError, softcap=1.0).startswith(
        "attention: given score_mod, mask_mod, softcap or sinks with 333 queries or keys; expected at most 332, "
    )


def test_a_refusal_is_at_the_line_of_the_function() -> None:
    def few_indices(score: Any, batch: Any, head: Any, q: Any, k: Any) -> Any:
        return score + BIAS[q, k]

    def truth(score: Any, batch: Any, head: Any, q: Any, k: Any) -> Any:
        return True

    assert refusal(KernelError, score_mod=few_indices).startswith(
        f"{__file__}:{few_indices.__code__.co_firstlineno + 1}: "
    )
    assert refusal(KernelError, score_mod=truth).startswith(f"{__file__}:{truth.__code__.co_firstlineno}: given True")


def test_helpers_and_constants_of_a_function() -> None:
    """A function may call others, which capture arrays too, and functions of the language."""
    scale = np.float32(0.5)

    def bend(score: Any) -> Any:
        return tanh(score) * scale

    q, k, v = normal_qkv(PROBLEM)
    result = ww.attention(q, k, v, score_mod=lambda score, b, h, q, k: bend(score) + SLOPES[h], device="h200")
    plain = lambda score, b, h, q, k: np.tanh(score) * 0.5 + SLOPES.astype(np.float64)[h]  # noqa: E731
    expected, _ = reference(q, k, v, plain, None, None, None)
    bound = slack(PROBLEM, q, k, v) + 2.0**-10 * np.abs(v.astype(np.float64)).max() + ulp(expected, q.dtype)
    assert (np.abs(result.astype(np.float64) - expected) <= bound).all()
