"""`ww.attention`: which arrays it takes, which kernel runs and why, and what it refuses, in whole sentences."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv, verify
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.plan import SETTING, choose_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL = Problem(1, 2, 1, 20, 30, 64)
RTX = "rtx5090"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_layouts_and_the_log_sum_exp(layout) -> None:
    problem = Problem(2, 4, 2, 20, 30, 64, causal=True, scale=0.2, window=(11, None))
    given = normal_qkv(problem)
    arrays = given if layout == "bhsd" else [np.ascontiguousarray(x.swapaxes(1, 2)) for x in given]
    out, lse = ww.attention(
        *arrays, causal=True, scale=0.2, window=(11, None), layout=layout, device=RTX, return_lse=True
    )
    verify(problem, given, (out if layout == "bhsd" else out.swapaxes(1, 2), lse))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_arrays_without_a_batch(layout) -> None:
    """(heads, rows, head_dim), also as a transposed view, with rows that no tensor map covers, and with ``out``."""
    problem = Problem(1, 4, 2, 20, 30, 64, causal=True)
    given = normal_qkv(problem)
    arrays = [x[0] if layout == "bhsd" else x[0].swapaxes(0, 1) for x in given]
    arrays[1] = np.concatenate([arrays[1], arrays[1][..., :3]], axis=-1)[..., :64]
    options = {"causal": True, "layout": layout, "device": RTX}
    result, lse = ww.attention(*arrays, **options, return_lse=True)
    assert (result.shape, lse.shape) == (arrays[0].shape, (4, 20))
    verify(problem, given, ((result if layout == "bhsd" else result.swapaxes(0, 1))[None], lse[None]))
    out = np.zeros(arrays[0].shape, BF16)
    assert ww.attention(*arrays, **options, out=out) is out and (out == result).all()
    (launch,) = ww.launches(ww.attention, *arrays, **options)
    assert launch.grid == (1, 4, 1)


@pytest.mark.parametrize("device", [RTX, "h200", "b200", None])
@sampled("setting", ["0", "1"], keep=["1"])
def test_every_device_with_and_without_tma(device, setting, monkeypatch) -> None:
    monkeypatch.setenv(SETTING, setting)
    given = normal_qkv(SMALL)
    out, lse, ran = ww.attention(*given, device=device, return_lse=True, explain=True)
    verify(SMALL, given, (out, lse))
    own = {RTX: "sm120.attention", "h200": "sm90_decode.attention"}.get(device, "sm100_decode.attention")
    assert ran.kernel == (own if setting == "1" else "sm120.attention_cp_async")
    assert ran.tma == (setting == "1") and ran.why.startswith(f"{SETTING}={setting}")


def test_more_queries_on_hopper() -> None:
    """Whose tiles go round, and which fill one each."""
    problem = Problem(1, 67, 67, 65, 70, 64)
    out, lse, ran = ww.attention(*normal_qkv(problem), device="h200", return_lse=True, explain=True)
    verify(problem, normal_qkv(problem), (out, lse))
    assert (ran.kernel, ran.why) == ("sm90.attention", "70 keys are more than 64")


def test_few_queries_on_hopper() -> None:
    """The explanation says how keys are split; a window and a causal mask hide no key from a single query."""
    problem = Problem(2, 6, 2, 1, 300, 64, causal=True, window=(299, 0))
    out, lse, ran = ww.attention(
        *normal_qkv(problem), causal=True, window=(299, 0), device="h200", return_lse=True, explain=True
    )
    verify(problem, normal_qkv(problem), (out, lse))
    assert str(ran) == (
        "sm90_decode.attention on h200: head_dim 64, keys 128, stages 3, places 1, last True, at_once 8, "
        "ctas_per_sm 1; TMA on: 300 keys are more than 64; tiles of queries: 4, CTAs that share out their keys: 12"
    )


def test_the_setting_is_read_at_every_call(monkeypatch) -> None:
    """A published benchmark timed one kernel three times, because the setting had been read only once."""
    given = normal_qkv(SMALL)
    kernels = []
    for value in ("1", "0", "-1", "1"):
        monkeypatch.setenv(SETTING, value)
        kernels.append(ww.attention(*given, device=RTX, explain=True)[1].kernel)
    assert kernels == ["sm120.attention", *["sm120.attention_cp_async"] * 2, "sm120.attention"]


@pytest.mark.parametrize(
    ("kv_len", "arch", "kernel", "why"),
    [
        (512, "sm_120a", "sm120.attention_cp_async", "512 keys are no more than 512"),
        (513, "sm_120a", "sm120.attention", "513 keys are more than 512"),
        (64, "sm_100a", "sm120.attention_cp_async", "64 keys are no more than 64"),
        (65, "sm_100a", "sm100.attention", "65 keys are more than 64"),
        (64, "sm_90a", "sm120.attention_cp_async", "64 keys are no more than 64"),
        (65, "sm_90a", "sm90.attention", "65 keys are more than 64"),
    ],
)
def test_by_itself_it_uses_tma_for_many_keys(kv_len, arch, kernel, why) -> None:
    found = choose_kernel(Problem(1, 1, 1, 8, kv_len, 64), arch, None)
    assert (found.kernel, found.why) == (kernel, why)


@pytest.mark.parametrize(
    ("batch", "q_len", "group", "tma"),
    [(64, 1, 4, True), (64, 16, 4, True), (64, 17, 4, False), (64, 64, 4, False), (64, 65, 4, True), (63, 1, 4, False)],
)
def test_by_itself_it_uses_tma_for_few_keys_of_many_heads(batch, q_len, group, tma) -> None:
    found = choose_kernel(Problem(batch, 4, 4 // group, q_len, 64, 128), "sm_90a", None)
    more = ", but 256 heads are at least 256" if tma else ""
    assert (found.tma, found.why) == (tma, "64 keys are no more than 64" + more)


def test_what_ran_in_one_line() -> None:
    _, ran = ww.attention(*normal_qkv(SMALL), device=RTX, explain=True)
    assert str(ran) == (
        "sm120.attention_cp_async on rtx5090: head_dim 64, tile (64, 64), stages 2, producers 2, consumers 4, threads "
        "192; TMA off: 30 keys are no more than 512"
    )


def test_out_and_arrays_that_need_copies() -> None:
    given = normal_qkv(SMALL)
    columns = [np.asfortranarray(x) for x in given]
    wide = np.zeros((1, 2, 20, 67), BF16)
    out = wide[..., 1:65]
    assert ww.attention(*columns, device=RTX, out=out) is out
    assert np.array_equal(out, ww.attention(*given, device=RTX))
    assert not wide[..., 0].any() and not wide[..., 65:].any()


def test_a_scale_that_changes_is_read_at_every_call() -> None:
    """The current value of an array, not its value in an earlier call."""
    given, scale = normal_qkv(SMALL), np.zeros(())
    for value in (0.25, 0.5):
        scale[...] = value
        verify(replace(SMALL, scale=value), given, ww.attention(*given, scale=scale, device=RTX, return_lse=True))
    window = np.int64(3), None
    verify(replace(SMALL, window=(3, None)), given, ww.attention(*given, window=window, device=RTX, return_lse=True))


def test_keys_of_one_head_may_be_broadcast() -> None:
    problem = Problem(2, 4, 4, 20, 30, 64)
    q, k, v = normal_qkv(problem)
    k, v = (np.broadcast_to(x[:1, :1], x.shape) for x in (k, v))
    verify(problem, (q, k, v), ww.attention(q, k, v, device=RTX, return_lse=True))


@pytest.mark.parametrize("shape", [(0, 2, 5, 64), (1, 0, 5, 64), (1, 2, 0, 64)])
def test_nothing_asked_is_nothing_done(shape) -> None:
    q, k = np.zeros(shape, BF16), np.zeros((shape[0], max(1, shape[1]), 7, 64), BF16)
    out, lse, ran = ww.attention(q, k, k, device=RTX, return_lse=True, explain=True)
    assert (out.shape, lse.shape, ran) == (shape, shape[:3], None)


def array(*shape: int, dtype=BF16):
    return np.zeros(shape, dtype)


Q, K = array(1, 2, 5, 64), array(1, 2, 7, 64)
SHAPES = (
    "expected (batch, heads, rows, head_dim), or with layout='bshd' (batch, rows, heads, head_dim), with or without "
    "the batch"
)
COLUMNS = "expected multiples of 8 up to 192 and 128, by TMA and without functions of scores or masks"
REFUSED = [
    (([1.0], K, K), {}, "attention: q is a list; expected an array of NumPy, torch, CuPy or JAX: np.asarray(q)"),
    ((Q[0, 0], K, K), {}, f"attention: q has shape (5, 64); {SHAPES}"),
    (
        (Q[0], K, K),
        {},
        "attention: k has a batch and q has none; expected one in all arrays or in none: q[None]",
    ),
    (
        (Q[0], K[0], K[0]),
        {"out": Q},
        "attention: out has a batch and q has none; expected one in all arrays or in none: q[None]",
    ),
    (
        (Q.astype(np.float32), K, K),
        {},
        "attention: q is float32; expected bfloat16, float16 or float8_e4m3fn: q.astype(ml_dtypes.bfloat16) "
        "(8 significant bits)",
    ),
    ((Q, K, K[:, :, :3]), {}, "attention: k is 1 × 2 × 7 × 64 and v is 1 × 2 × 3 × 64; expected one shape for both"),
    (
        (Q, array(3, 2, 7, 64), array(3, 2, 7, 64)),
        {},
        "attention: q has a batch of 1 and k of 3; expected the same: expand k and v",
    ),
    (
        (Q, array(1, 2, 7, 128), array(1, 2, 7, 128)),
        {},
        "attention: q has head dimension 64 and k 128; expected the same, for their rows are multiplied",
    ),
    ((Q, K.astype(np.float16), K), {}, "attention: q is bfloat16 and k is float16; expected one dtype for q, k and v"),
    (
        (array(1, 3, 5, 64), K, K),
        {},
        "attention: q has 3 heads and k has 2; expected a multiple of those of k, so that each of its heads serves as "
        "many heads of q",
    ),
    (
        (Q, K[:, :, :0], K[:, :, :0]),
        {},
        "attention: given kv_len=0; expected at least 1: a softmax over no key has no value",
    ),
    (
        (Q, K, K),
        {"scale": float("nan")},
        "attention: scale=nan; expected a number from 2**-126 to 2**126; leave scale= out for 1 / √head_dim",
    ),
    (
        (Q, K, K),
        {"layout": "sbhd"},
        "attention: layout='sbhd'; expected 'bhsd' for (batch, heads, rows, head_dim) or 'bshd' for (batch, rows, "
        "heads, head_dim)",
    ),
    (
        (Q, K, K),
        {"out": array(1, 2, 5, 32)},
        "attention: out is 1 × 2 × 5 × 32 of bfloat16; expected the shape and dtype of q, 1 × 2 × 5 × 64 of bfloat16",
    ),
    (
        (Q, K, K[..., :32]),
        {"device": "h200", "out": Q.copy()},
        "attention: out is 1 × 2 × 5 × 64 of bfloat16; expected the rows of q with the columns of v, 1 × 2 × 5 × 32 of "
        "bfloat16",
    ),
    (
        (Q, K, K[..., :32]),
        {},
        "attention: given keys of 64 and values of 32 columns on rtx5090 (sm_120a); expected one of sm_90a, which have "
        "kernels for them: pad v with zeros to 64",
    ),
    (
        (Q, K, array(1, 2, 7, 256)),
        {"device": "h200"},
        f"attention: q and k have head dimension 64 and v has 256; {COLUMNS}: pad q and k with zeros to 256 and give "
        "scale=64**-0.5",
    ),
    (
        (Q, K, K[..., :32]),
        {"device": "h200", "softcap": 5.0},
        "attention: q and k have head dimension 64 and v has 32, with score_mod, mask_mod, softcap or sinks; "
        f"{COLUMNS}: pad v with zeros to 64",
    ),
    ((Q, K, K), {"out": Q}, "attention: out overlaps q; expected memory of its own: leave out= out"),
    (
        (Q, K, K),
        {"out": np.lib.stride_tricks.as_strided(Q.copy(), strides=(0,) * 4)},
        "attention: out has several elements at one address (strides of (0, 0, 0, 0) bytes); expected an address for "
        "each: leave out= out",
    ),
]


@pytest.mark.parametrize(("arrays", "options", "sentence"), REFUSED, ids=lambda case: str(case)[-30:])
def test_refused(arrays, options, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        ww.attention(*arrays, **{"device": RTX, **options})
    assert str(caught.value) == sentence


def test_values_of_other_columns(monkeypatch) -> None:
    """Also one query, for which other kernels split the keys, and no more keys than the kernel without TMA is for."""
    for q_len in (1, 70):
        problem = Problem(2, 4, 2, q_len, 50, 96, value_dim=40, causal=True)
        given = normal_qkv(problem)
        out, lse, ran = ww.attention(*given, causal=True, return_lse=True, explain=True)
        verify(problem, given, (out, lse))
        assert (ran.kernel, ran.device, ran.why) == ("sm90.attention", "h200", "q and k have 96 columns and v has 40")
    kept = np.full((2, 4, 70, 48), 7.0, out.dtype)
    ww.attention(*given, causal=True, out=kept[..., :40])
    assert np.array_equal(kept[..., :40], out) and (kept[..., 40:] == 7.0).all()
    monkeypatch.setenv(SETTING, "0")
    with pytest.raises(UsageError) as caught:
        ww.attention(*given)
    assert str(caught.value) == (
        "attention: q and k have head dimension 96 and v has 40, and WARPWRIGHT_ATTENTION_TMA=0; "
        f"{COLUMNS}: pad v with zeros to 96"
    )


def test_a_setting_without_meaning(monkeypatch) -> None:
    monkeypatch.setenv(SETTING, "auto")  # a value that PYGPUKIT_FLASH_ATTENTION had
    with pytest.raises(UsageError) as caught:
        ww.attention(Q, K, K, device=RTX)
    assert str(caught.value) == (
        "attention: WARPWRIGHT_ATTENTION_TMA='auto'; expected 0 (off), 1 (on) or -1 (on where it is faster), the "
        "values of PYGPUKIT_FA3_TMA; PYGPUKIT_FA3 and PYGPUKIT_FLASH_ATTENTION have no counterpart: unset it"
    )
