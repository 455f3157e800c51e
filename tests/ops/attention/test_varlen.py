"""`ww.attention_varlen`: which arrays it takes, what ran, and what it refuses, in whole sentences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.varlen_helpers import Packed, pack_sequences, starts, verify_packed
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.plan import SETTING

BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL = Problem(1, 4, 2, 1, 1, 64, causal=True)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


def test_sequences_of_one_launch_and_what_ran() -> None:
    given = pack_sequences(SMALL, [1, 0, 63, 65], [1, 64, 127, 0])
    out, lse, ran = ww.attention_varlen(*given, causal=True, return_lse=True, explain=True)
    verify_packed(SMALL, given, (out, lse))
    assert str(ran) == (
        "sm90.attention_varlen on h200: head_dim 64, tile (128, 128), stages 3, q_stages 2, in_turn False, branches "
        "True, splits False, direct False, sliding False, threads 384; TMA on: 4 sequences are packed"
    )


def test_what_ran_on_sm_120a() -> None:
    given = pack_sequences(SMALL, [1, 0, 63, 65], [1, 64, 127, 0])
    out, lse, ran = ww.attention_varlen(*given, causal=True, return_lse=True, explain=True, device="rtx5090")
    verify_packed(SMALL, given, (out, lse))
    assert str(ran) == (
        "sm120.attention_varlen on rtx5090: head_dim 64, tile (64, 32), stages 2, producers 1, consumers 4, threads "
        "160; TMA on: 4 sequences are packed"
    )


def test_blackwell_and_what_ran() -> None:
    given = pack_sequences(SMALL, [1, 0, 63, 65], [1, 64, 127, 0])
    out, lse, ran = ww.attention_varlen(*given, causal=True, return_lse=True, explain=True, device="b200")
    verify_packed(SMALL, given, (out, lse))
    assert str(ran) == (
        "sm100.attention_varlen on b200: head_dim 64, tiles 2, stages 8, lazy 8.0, polynomials 3, threads 512; TMA on: "
        "4 sequences are packed"
    )


@sampled("device", ["h200", "rtx5090"], keep=["h200"])
def test_a_mask_and_a_scale_of_one_s_own(device) -> None:
    problem = Problem(1, 2, 2, 1, 1, 96, dtype=np.float16, scale=0.3, window=(9, 2))
    given = pack_sequences(problem, [30, 5], [20, 40])
    found = ww.attention_varlen(*given, scale=0.3, window=[9, 2], return_lse=True, device=device)
    verify_packed(problem, given, found)


def test_slices_of_a_projection_out_and_arrays_that_need_copies() -> None:
    given = pack_sequences(SMALL, [20, 30], [20, 30])
    whole = np.zeros((50, 3, 4, 64), BF16)
    for part, array in enumerate((given.q, np.repeat(given.k, 2, 1), np.repeat(given.v, 2, 1))):
        whole[:, part] = array
    wide = np.zeros((50, 4, 67), BF16)
    out = wide[..., 1:65]
    assert ww.attention_varlen(*whole.swapaxes(0, 1), *given[3:], causal=True, out=out) is out
    assert np.array_equal(out, ww.attention_varlen(*given, causal=True))
    assert not wide[..., 0].any() and not wide[..., 65:].any()


def test_no_keys_or_no_queries_at_all() -> None:
    given = pack_sequences(SMALL, [3, 4], [5, 6])
    none = given._replace(k=given.k[:0], v=given.v[:0], cu_k=starts([0, 0]))
    out, lse, ran = ww.attention_varlen(*none, return_lse=True, explain=True)
    assert out.shape == (7, 4, 64) and not out.any() and np.isneginf(lse).all() and ran is None
    nobody = given._replace(q=given.q[:0], cu_q=starts([0, 0]))
    assert ww.attention_varlen(*nobody).shape == (0, 4, 64)


GIVEN = pack_sequences(SMALL, [2, 3], [4, 3])
Q, K, V, CU_Q, CU_K = GIVEN
NUMBERS = "expected sums of lengths: np.cumsum([0, *lengths])"
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"cu_q": [0, 2, 5]}, {}, "attention: cu_seqlens_q is a list; expected an array of NumPy, torch, CuPy or JAX: "
     "np.asarray(cu_seqlens_q)"),
    ({"cu_k": CU_K.astype(np.int64)}, {}, "attention: cu_seqlens_k is int64; expected int32: "
     "cu_seqlens_k.astype(np.int32)"),
    ({"cu_q": CU_Q[None]}, {}, "attention: cu_seqlens_q has shape (1, 3); expected (sequences + 1,), the first row of "
     "each sequence and the end of the last one"),
    ({"cu_q": CU_Q[:1]}, {}, "attention: cu_seqlens_q has shape (1,); expected (sequences + 1,), the first row of each "
     "sequence and the end of the last one"),
    ({"cu_q": CU_Q + 1}, {}, "attention: cu_seqlens_q begins with 1; expected 0, the first row of q"),
    ({"cu_k": starts([4, -2, 5])}, {}, f"attention: cu_seqlens_k falls from 4 to 2 at element 2; {NUMBERS}"),
    ({"cu_k": starts([4, 4])}, {}, "attention: cu_seqlens_k ends with 8; expected 7, the rows of k"),
    ({"cu_k": starts([4, 1, 2])}, {}, "attention: cu_seqlens_q has 2 sequences and cu_seqlens_k 3; expected as many"),
    ({"q": Q[None]}, {}, "attention: q has shape (1, 5, 4, 64); expected three dimensions, (rows, heads, head_dim), "
     "the rows of all sequences one after the other"),
    ({"q": Q.astype(np.float32)}, {}, "attention: q is float32; expected bfloat16 or float16: "
     "q.astype(ml_dtypes.bfloat16) (8 significant bits)"),
    ({"v": V.astype(np.float16)}, {}, "attention: q is bfloat16 and v is float16; expected one dtype for q, k and v"),
    ({"v": V[:3]}, {}, "attention: k is 7 × 2 × 64 and v is 3 × 2 × 64; expected one shape for both"),
    ({"q": Q[..., :32]}, {}, "attention: q has head dimension 32 and k 64; expected the same, for their rows are "
     "multiplied"),
    ({"q": Q[:, :3]}, {}, "attention: q has 3 heads and k has 2; expected a multiple of those of k, so that each of "
     "its heads serves as many heads of q"),
    ({}, {"window": (3, -1)}, "attention: window=(3, -1); expected (left, right), each a number of keys from 0 on, or "
     "None for any"),
    ({}, {"out": Q}, "attention: out overlaps q; expected memory of its own: leave out= out"),
    ({}, {"out": Q[:2].copy()}, "attention: out is 2 × 4 × 64 of bfloat16; expected the shape and dtype of q, "
     "5 × 4 × 64 of bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "options", "sentence"), REFUSED, ids=lambda case: str(case)[-30:])
def test_refused(arrays, options, sentence) -> None:
    given: Packed = GIVEN._replace(**arrays)
    with pytest.raises(UsageError) as caught:
        ww.attention_varlen(*given, **options)
    assert str(caught.value) == sentence


def test_a_setting_that_no_kernel_serves(monkeypatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    with pytest.raises(UsageError) as caught:
        ww.attention_varlen(*GIVEN)
    assert str(caught.value) == (
        "attention: given packed sequences and WARPWRIGHT_ATTENTION_TMA=0; expected 1 or -1, for their kernel copies "
        "by TMA: unset it"
    )
