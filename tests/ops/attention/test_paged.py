"""`ww.attention_paged`: what ran, and what it refuses, in whole sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.paged_helpers import fill_pages, verify_paged
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import LIBRARIES
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.paged_arrays import check_arrays
from warpwright.ops.attention.plan import SETTING

SMALL = Problem(2, 4, 2, 1, 64, 64)
GIVEN = fill_pages(SMALL, 32, [64, 20])
NAMES = ("q", "k_pages", "v_pages", "block_table", "lengths")
NEW = np.ones((2, 1, 2, 64), GIVEN.k.dtype)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


def test_what_ran() -> None:
    out, lse, ran = ww.attention_paged(*GIVEN, return_lse=True, explain=True)
    verify_paged(SMALL, GIVEN, (out, lse))
    assert str(ran) == (
        "sm90_paged_decode.attention on h200: head_dim 64, keys 128, stages 3, places 1, last True, at_once 8, "
        "ctas_per_sm 1; TMA on: keys are in pages of 32 rows"
    )


def test_a_result_in_an_array_that_needs_a_copy_and_no_queries() -> None:
    wide = np.zeros((2, 1, 4, 67), GIVEN.q.dtype)
    out = wide[..., 1:65]
    assert ww.attention_paged(*GIVEN, out=out) is out
    assert np.array_equal(out, ww.attention_paged(*GIVEN)) and not wide[..., 65:].any()
    nobody = ww.attention_paged(GIVEN.q[:, :0], *GIVEN[1:])
    assert nobody.shape == (2, 0, 4, 64)


ROWS = (
    "expected dense rows at multiples of 16 bytes, and pages that are a whole number of rows apart, for pages are not "
    "copied"
)
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"q": GIVEN.q[0]},
        "attention: q has shape (1, 4, 64); expected (sequences, q_len, heads, head_dim), or (total_q, heads, "
        "head_dim) with cu_seqlens_q=",
    ),
    ({"cu_seqlens_q": np.zeros(3, np.int32)}, "attention: q has shape (2, 1, 4, 64); expected (total_q, heads, "
     "head_dim) "
     "with cu_seqlens_q"),
    ({"k_pages": GIVEN.k[0]}, "attention: k_pages has shape (32, 2, 64); expected (pages, page_size, kv_heads, "
     "head_dim)"),
    ({"q": GIVEN.q.astype(np.float32)}, "attention: q is float32; expected bfloat16 or float16: "
     "q.astype(ml_dtypes.bfloat16) (8 significant bits)"),
    ({"v_pages": GIVEN.v[:3]}, "attention: k_pages is 6 × 32 × 2 × 64 and v_pages is 3 × 32 × 2 × 64; expected one "
     "shape for both"),
    ({"q": GIVEN.q[..., :32]}, "attention: q has head dimension 32 and k_pages 64; expected the same, for their rows "
     "are multiplied"),
    ({"v_pages": GIVEN.v.astype(np.float16)}, "attention: q is bfloat16 and v_pages is float16; expected one dtype for "
     "q, k_pages and v_pages"),
    ({"out": GIVEN.v.reshape(-1)[:512].reshape(2, 1, 4, 64)}, "attention: out overlaps v_pages; expected memory of its "
     "own: leave out= out"),
    ({"k_pages": GIVEN.k[:, :24], "v_pages": GIVEN.v[:, :24]}, "attention: k_pages has 6 pages of 24 rows; expected at "
     "least one, of a multiple of 16 rows: block_size=16 of the cache"),
    ({"k_pages": GIVEN.k[..., ::-1]}, f"attention: k_pages has strides of (8192, 256, 128, -2) bytes; {ROWS}"),
    ({"lengths": GIVEN.lengths.astype(np.int64)}, "attention: lengths is int64; expected int32: "
     "lengths.astype(np.int32)"),
    ({"block_table": GIVEN.table[:1]}, "attention: block_table has shape (1, 2); expected an entry for each of 2 "
     "sequences"),
    ({"lengths": np.array([65, 1], np.int32)}, "attention: lengths[0] is 65; expected 0 to 64, the rows of 2 "
     "pages of 32"),
    ({"lengths": np.array([64, 33], np.int32)}, "attention: block_table[1, 1] is 1073741824; expected a page "
     "from 0 to 5"),
    ({"k": NEW}, "attention: given k alone; expected k and v, the new rows, or neither"),
    ({"k": NEW, "v": NEW[:1]}, "attention: v is 1 × 1 × 2 × 64; expected 2 × 1 × 2 × 64, new rows of the "
     "sequences of q"),
    ({"k": NEW, "v": NEW.astype(np.float16)}, "attention: v is float16; expected bfloat16, the dtype of the pages"),
    ({"device": "b200"}, "attention: given keys in pages on b200 (sm_100a); expected one of sm_90a, which have kernels "
     "for them: gather the pages, k_pages[block_table[i]].reshape(-1, kv_heads, head_dim), and warpwright.attention"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=lambda case: str(case)[-30:])
def test_refused(changes, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        ww.attention_paged(**(dict(zip(NAMES, GIVEN, strict=True)) | changes))
    assert str(caught.value) == sentence


def test_pages_on_a_gpu_beside_queries_on_the_host() -> None:
    views: dict[str, Any] = dict(zip(NAMES, GIVEN, strict=True))
    views["k_pages"] = DeviceArray(0, GIVEN.k.shape, GIVEN.k.strides, GIVEN.k.dtype, 1, None)
    with pytest.raises(UsageError) as caught:
        check_arrays(LIBRARIES["numpy"], views, "h200")
    assert str(caught.value) == "attention: q is on the host and k_pages on cuda:1; expected all on one device"


def test_a_setting_that_no_kernel_serves(monkeypatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    with pytest.raises(UsageError) as caught:
        ww.attention_paged(*GIVEN)
    assert str(caught.value) == (
        "attention: given keys in pages and WARPWRIGHT_ATTENTION_TMA=0; expected 1 or -1, for their kernels copy by "
        "TMA: unset it"
    )
