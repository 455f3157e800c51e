"""Problems of attention: refused ones with whole sentences, and the keys that a query sees."""

from __future__ import annotations

import numpy as np
import pytest

from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem

GIVEN = {"batch": 1, "heads": 4, "kv_heads": 2, "q_len": 5, "kv_len": 7, "head_dim": 64}
REFUSED = [
    (
        {"heads": 3},
        "attention: q has 3 heads and k has 2; expected a multiple of those of k, so that each of its heads serves as "
        "many heads of q",
    ),
    (
        {"kv_len": 0},
        "attention: given kv_len=0; expected at least 1: a softmax over no key has no value",
    ),
    (
        {"q_len": 0},
        "attention: given q_len=0; expected at least 1: an empty result needs no kernel",
    ),
    (
        {"head_dim": 20},
        "attention: given head dimension 20; expected a multiple of 8 (rows of 16 bytes) up to 256; pad q, k and v "
        "with zeros to 24 and give scale=20**-0.5",
    ),
    (
        {"head_dim": 320},
        "attention: given head dimension 320; expected a multiple of 8 (rows of 16 bytes) up to 256; split the heads",
    ),
    (
        {"dtype": np.float32},
        "attention: given float32; expected bfloat16 or float16: q.astype(…)",
    ),
    (
        {"scale": float("inf")},
        "attention: scale=inf; expected a number from 2**-126 to 2**126; leave scale= out for 1 / √head_dim",
    ),
    (
        {"scale": -1.0},
        "attention: scale=-1.0; expected a number from 2**-126 to 2**126; leave scale= out for 1 / √head_dim",
    ),
    (
        {"scale": 1e39},
        "attention: scale=1e+39; expected a number from 2**-126 to 2**126; leave scale= out for 1 / √head_dim",
    ),
    (
        {"scale": "big"},
        "attention: scale='big'; expected a number from 2**-126 to 2**126; leave scale= out for 1 / √head_dim",
    ),
    (
        {"window": 5},
        "attention: window=5; expected (left, right), each a number of keys from 0 on, or None for any",
    ),
    (
        {"window": (-1, 3)},
        "attention: window=(-1, 3); expected (left, right), each a number of keys from 0 on, or None for any",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=lambda case: str(case)[:24])
def test_refused(change, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        Problem(**{**GIVEN, **change})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("head_dim", "padded"), [(8, 64), (64, 64), (80, 128), (96, 128), (192, 256), (256, 256)])
def test_other_head_dimensions_are_padded(head_dim, padded) -> None:
    assert Problem(**{**GIVEN, "head_dim": head_dim}).padded_dim == padded


@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask", "expected"),
    [
        (3, 5, {}, [(0, 5), (0, 5), (0, 5)]),
        (3, 5, {"causal": True}, [(0, 3), (0, 4), (0, 5)]),
        (4, 2, {"causal": True}, [(0, 0), (0, 0), (0, 1), (0, 2)]),
        (3, 5, {"causal": True, "window": (1, None)}, [(1, 3), (2, 4), (3, 5)]),
        (3, 5, {"window": (1, 1)}, [(1, 4), (2, 5), (3, 5)]),
        (3, 5, {"window": (None, 1)}, [(0, 4), (0, 5), (0, 5)]),
        (5, 1, {"window": (0, 0)}, [(0, 0), (0, 0), (0, 0), (0, 0), (0, 1)]),
    ],
)
def test_which_keys_a_query_sees(q_len, kv_len, mask, expected) -> None:
    problem = Problem(1, 1, 1, q_len, kv_len, 64, **mask)
    first, stop = problem.visible()
    seen = [(0, 0) if a == b else (a, b) for a, b in zip(first.tolist(), stop.tolist(), strict=True)]
    assert seen == expected
    assert problem.pairs == sum(b - a for a, b in expected)
    assert problem.flops == 4 * 64 * problem.pairs
