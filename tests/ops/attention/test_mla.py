"""`ww.attention_mla`: what ran, and what it refuses, in whole sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.mla_helpers import SCALE, fill_rows, latent_problem, verify_mla
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import LIBRARIES
from warpwright.errors import UsageError
from warpwright.ops.attention.mla_arrays import check_arrays
from warpwright.ops.attention.plan import SETTING

SMALL = latent_problem(2, 16, 1, 64)
GIVEN = fill_rows(SMALL, 32, [64, 20])
WHOLE = fill_rows(SMALL, 0, [64, 20])
PAGES: dict[str, Any] = {"q": GIVEN.q, "kv": GIVEN.k, "block_table": GIVEN.table, "lengths": GIVEN.lengths}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


def test_what_ran() -> None:
    out, lse, ran = ww.attention_mla(**PAGES, scale=SCALE, return_lse=True, explain=True)
    verify_mla(SMALL, GIVEN, (out, lse))
    assert str(ran) == (
        "sm90.attention_mla on h200: head_dim 512, keys 32, stages 4, places 1, last False, at_once 8, "
        "ctas_per_sm 1, weight_stages 2, q_steps 6; TMA on: latent rows are in pages of 32 rows"
    )


def test_an_axis_of_one_head_may_be_left_out() -> None:
    found = [ww.attention_mla(**PAGES | {"kv": kv}, scale=SCALE) for kv in (GIVEN.k, GIVEN.k[:, :, 0])]
    assert np.array_equal(*found)


def test_a_result_in_an_array_that_needs_a_copy_and_no_sequences() -> None:
    wide = np.zeros((2, 1, 16, 515), GIVEN.q.dtype)
    out = wide[..., 1:513]
    assert ww.attention_mla(**PAGES, scale=SCALE, out=out) is out
    assert np.array_equal(out, ww.attention_mla(**PAGES, scale=SCALE)) and not wide[..., 513:].any()
    assert ww.attention_mla(GIVEN.q[:0], WHOLE.k[:0], scale=SCALE).shape == (0, 1, 16, 512)


OF_Q = (
    "expected (sequences, q_len, heads, 576), 512 columns for the latent row and 64 for positions, and at most 64 "
    "queries a sequence: for prompts, project the latent rows to keys and values of each head, and warpwright.attention"
)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": GIVEN.q[..., :512]}, f"attention: q has shape (2, 1, 16, 512); {OF_Q}"),
    ({"q": np.zeros((2, 65, 16, 576), GIVEN.q.dtype)}, f"attention: q has shape (2, 65, 16, 576); {OF_Q}"),
    ({"kv": np.zeros((2, 32, 2, 576), GIVEN.q.dtype)}, "attention: kv has shape (2, 32, 2, 576); expected (pages, "
     "page_size, 576), one head of latent rows for all of q: torch.cat([latent, positions], -1)"),
    ({"kv": WHOLE.k[..., :512], "block_table": None}, "attention: kv has shape (2, 64, 1, 512); expected (sequences, "
     "rows, 576), one head of latent rows for all of q: torch.cat([latent, positions], -1)"),
    ({"lengths": None}, "attention: given block_table and no lengths; expected lengths=, the keys of each sequence"),
    ({"kv": WHOLE.k[:1], "block_table": None}, "attention: q has 2 sequences and kv 1; expected the same, or "
     "block_table= for latent rows in pages"),
    ({"q": GIVEN.q.astype(np.float32)}, "attention: q is float32; expected bfloat16 or float16: "
     "q.astype(ml_dtypes.bfloat16) (8 significant bits)"),
    ({"q": GIVEN.q.astype(np.float16)}, "attention: q is float16 and kv is bfloat16; expected one dtype"),
    ({"kv": GIVEN.k[:, :24]}, "attention: kv has 6 pages of 24 rows; expected at least one, of a multiple of 16 rows: "
     "block_size=16 of the cache"),
    ({"kv": WHOLE.k[..., ::-1], "block_table": None}, "attention: kv has strides of (73728, 1152, 1152, -2) bytes; "
     "expected dense rows at multiples of 16 bytes, and sequences that are a whole number of rows apart, for sequences "
     "are not copied"),
    ({"lengths": GIVEN.lengths.astype(np.int64)}, "attention: lengths is int64; expected int32: "
     "lengths.astype(np.int32)"),
    ({"lengths": np.array([65, 1], np.int32)}, "attention: lengths[0] is 65; expected 0 to 64, the rows of 2 pages of "
     "32"),
    ({"kv": WHOLE.k, "block_table": None, "lengths": np.array([65, 1], np.int32)}, "attention: lengths[0] is 65; "
     "expected 0 to 64, the rows of a sequence"),
    ({"lengths": np.array([64, 33], np.int32)}, "attention: block_table[1, 1] is 1073741824; expected a page from 0 to "
     "5"),
    ({"out": np.zeros((2, 1, 16, 576), GIVEN.q.dtype)}, "attention: out is 2 × 1 × 16 × 576 of bfloat16; expected the "
     "rows of q with the first 512 columns of kv, 2 × 1 × 16 × 512 of bfloat16"),
    ({"out": GIVEN.k.reshape(-1)[: 32 * 512].reshape(2, 1, 16, 512)}, "attention: out overlaps kv; expected memory of "
     "its own: leave out= out"),
    ({"device": "b200"}, "attention: given latent rows on b200 (sm_100a); expected one of sm_90a, which have kernels "
     "for them: project the latent rows to keys and values of each head, and warpwright.attention"),
    ({"scale": None}, "attention: scale=None; expected a number, that of the heads before the projection: 192**-0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=lambda case: str(case)[-30:])
def test_refused(changes, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        ww.attention_mla(**PAGES | {"scale": SCALE} | changes)
    assert str(caught.value) == sentence


def test_latent_rows_on_a_gpu_beside_queries_on_the_host() -> None:
    rows = DeviceArray(0, GIVEN.k.shape, GIVEN.k.strides, GIVEN.k.dtype, 1, None)
    with pytest.raises(UsageError) as caught:
        check_arrays(LIBRARIES["numpy"], PAGES | {"kv": rows}, "h200")
    assert str(caught.value) == "attention: q is on the host and kv on cuda:1; expected all on one device"


def test_a_setting_that_no_kernel_serves(monkeypatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    with pytest.raises(UsageError) as caught:
        ww.attention_mla(**PAGES, scale=SCALE)
    assert str(caught.value) == (
        "attention: given latent rows and WARPWRIGHT_ATTENTION_TMA=0; expected 1 or -1, for their kernel copies by "
        "TMA: unset it"
    )
