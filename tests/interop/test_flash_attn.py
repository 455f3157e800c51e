"""The functions of ``flash_attn`` with tensors on the CPU, against float64."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.interop import attention_grad, flash_attn
from warpwright.interop.padding import cumulative_lengths
from warpwright.ops.attention import backward

ERROR = 2.0**-7  # of the greatest element: weights and results are rounded to 8 bits
SLOPES = torch.tensor([[0.5, 0.25], [0.125, 1.0]])


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def inputs(q_len: int = 20, kv_len: int = 30, head_dim: int = 64, batch: int = 2) -> tuple[Any, ...]:
    """Q of two heads, K and V of one."""
    keys = batch, kv_len, 1, head_dim
    return normal(batch, q_len, 2, head_dim), normal(*keys, seed=1), normal(*keys, seed=2)


def exact(q: Any, k: Any, v: Any, causal: bool = False, window: Any = (-1, -1), cap: float = 0, slopes: Any = 0) -> Any:
    """Returns attention in float64, differentiable."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = cap * torch.tanh(scores / cap) if cap else scores
    rows, keys = scores.shape[2:]
    apart = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
    scores = scores - (slopes[..., None, None] if torch.is_tensor(slopes) else 0) * apart.abs()
    left, right = window[0], 0 if causal else window[1]
    hidden = (apart > left if left >= 0 else apart < -keys) | (-apart > right if right >= 0 else apart < -keys)
    return (torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).nan_to_num(0) @ v).transpose(1, 2)


def near(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert not found.numel() or (found.double() - expected).abs().max() <= ERROR * expected.abs().max()


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("q_len", "options"),
    [
        (20, {}),
        (40, {"causal": True}),  # the first ten queries see no key
        (20, {"causal": True, "window_size": (5, -1)}),
        (20, {"window_size": (3, 4), "softmax_scale": 1 / 8}),
    ],
)
def test_it_computes_what_flash_attention_does(q_len: int, options: dict[str, Any]) -> None:
    given = inputs(q_len)
    found = flash_attn.flash_attn_func(*given, **options)
    expected = exact(*given, options.get("causal", False), options.get("window_size", (-1, -1)))
    near(found, expected)
    assert found.is_contiguous() and (q_len == 20 or not found[:, :10].any())


def test_gradients() -> None:
    given = [x.requires_grad_() for x in inputs(30)]
    doubles = [x.detach().double().requires_grad_() for x in given]
    found = torch.autograd.grad(flash_attn.flash_attn_func(*given, causal=True).sum(), given)
    for each, wanted in zip(found, torch.autograd.grad(exact(*doubles, True).sum(), doubles), strict=True):
        near(each, wanted)


@sampled("differentiated", [False, True], keep=[False])
def test_a_soft_cap_and_alibi(differentiated: bool) -> None:
    given = [x.requires_grad_(differentiated) for x in inputs()]
    doubles = [x.detach().double().requires_grad_(differentiated) for x in given]
    found = flash_attn.flash_attn_func(*given, softcap=2.0, alibi_slopes=SLOPES, causal=True)
    expected = exact(*doubles, True, cap=2.0, slopes=SLOPES)
    near(found, expected)
    if differentiated:
        results = (torch.autograd.grad(each.sum(), leaves) for each, leaves in ((found, given), (expected, doubles)))
        for each, wanted in zip(*results, strict=True):
            near(each, wanted)


def test_a_head_dimension_is_filled_up() -> None:
    given = inputs(head_dim=60)
    near(flash_attn.flash_attn_func(*given), exact(*given))


def test_packed_tensors_are_views() -> None:
    q, k, v = inputs(30)
    k, v = (x.expand(-1, -1, 2, -1) for x in (k, v))
    expected, lse, empty = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (lse.shape, lse.dtype, empty.numel()) == ((2, 2, 30), torch.float32, 0)
    qkv, kv = torch.stack((q, k, v), 2), torch.stack((k, v), 2)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, causal=True), expected)


def test_packed_sequences() -> None:
    starts, qkv = torch.tensor([0, 9, 29, 29, 40]).int(), normal(40, 3, 2, 64)
    found = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts, 20, causal=True)
    q, kv = qkv[:, 0], qkv[:, 1:]
    same = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, starts, starts, 20, 20, causal=True)
    assert torch.equal(found, same)
    for first, end in itertools.pairwise(starts):
        near(found[None, first:end], exact(*(x[None, first:end] for x in qkv.unbind(1)), True))


def test_a_cache_is_written_and_read_in_place() -> None:
    q, *cache = inputs(3, 40)
    new = inputs(3, 3)[1:]
    filled, skipped = torch.tensor([7, 25]).int(), torch.tensor([2, 0]).int()
    options: dict[str, Any] = {"causal": True, "return_softmax_lse": True}
    found, lse = flash_attn.flash_attn_with_kvcache(
        q, *cache, *new, cache_seqlens=filled, cache_leftpad=skipped, **options
    )
    assert torch.equal(cache[0][1, 25:28], new[0][1]) and torch.equal(cache[1][0, 7:10], new[1][0])
    for i, (first, end) in enumerate(((2, 10), (0, 28))):
        k, v = (x[i : i + 1, first:end] for x in cache)
        near(found[i : i + 1], exact(q[i : i + 1], k, v, True))
        scores = q[i].double().transpose(0, 1) @ k[0].double().transpose(0, 1).mT / 8
        torch.testing.assert_close(lse[i, :, -1].double(), torch.logsumexp(scores[:, -1], -1), rtol=0, atol=1e-5)


def test_a_cache_of_one_length() -> None:
    q, *cache = inputs(3, 40)
    new = inputs(3, 3)[1:]
    found = flash_attn.flash_attn_with_kvcache(q, *cache, *new, cache_seqlens=7, causal=True)
    assert torch.equal(cache[0][:, 7:10], new[0])
    near(found, exact(q, *(x[:, :10] for x in cache), True))


def test_caches_in_pages() -> None:
    q, *rows = inputs(3, 48)
    new = inputs(3, 3)[1:]
    order = torch.tensor([[4, 0, 2], [1, 5, 3]]).int()
    pages = [torch.empty(6, 16, 1, 64).bfloat16() for _ in rows]
    for array, x in zip(pages, rows, strict=True):
        array[order.long()] = x.unflatten(1, (3, 16))
    options: dict[str, Any] = {"block_table": order, "causal": True}
    lengths = torch.tensor([7, 29]).int()
    found, lse = flash_attn.flash_attn_with_kvcache(
        q, *pages, *new, cache_seqlens=lengths, return_softmax_lse=True, **options
    )
    same = flash_attn.flash_attn_with_kvcache(q, *rows, *new, cache_seqlens=lengths, causal=True)
    assert lse.shape == (2, 2, 3)
    torch.testing.assert_close(found, same, rtol=0, atol=0.01)
    assert all(torch.equal(a[order.long()].flatten(1, 2), b) for a, b in zip(pages, rows, strict=True))
    starts, ends = torch.tensor([0, 3, 6]).int(), torch.tensor([0, 10, 42]).int()
    packed = flash_attn.flash_attn_varlen_func(q.flatten(0, 1), *pages, starts, ends, 3, 32, **options)
    torch.testing.assert_close(packed.unflatten(0, (2, 3)), found, rtol=0, atol=0.01)
    whole = flash_attn.flash_attn_with_kvcache(q, *pages, **options)
    torch.testing.assert_close(whole, flash_attn.flash_attn_func(q, *rows, causal=True), rtol=0, atol=0.01)


def test_lengths_of_a_padded_batch() -> None:
    first, end = torch.tensor([2, 0, 0]).int(), torch.tensor([5, 3, 0]).int()
    cu_q, cu_k = cumulative_lengths((first, end), (first, end), 5, 5)
    assert cu_q.tolist() == [0, 2, 2, 5, 5, 5, 8, 10, 10, 10, 15, 15]
    assert cu_k.tolist() == [0, 0, 2, 5, 5, 5, 8, 8, 10, 10, 10, 15]
    lengths = list(zip(cu_q.diff().tolist(), cu_k.diff().tolist(), strict=True))
    assert [pair for pair in lengths if 0 not in pair] == [(3, 3), (3, 3)]


DROPOUT = (
    "attention: dropout_p=0.1; expected 0.0, for no kernel drops weights: dropout_p=0.0, or torch's own "
    "scaled_dot_product_attention"
)
ORDER = (
    "attention: deterministic=True, and the gradient by q is summed in any order; expected deterministic=False, or "
    "torch's own scaled_dot_product_attention"
)
SHAPE = "attention: alibi_slopes is torch.float32 (3,); expected torch.float32 (2,) or (2, 2), one number for each head"


def test_what_no_kernel_serves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs()
    call = flash_attn.flash_attn_func
    assert refusal(call, q, k, v, 0.1) == DROPOUT
    assert refusal(call, q, k, v, alibi_slopes=torch.ones(3)) == SHAPE
    monkeypatch.setattr(attention_grad, "_target", lambda q: "sm_100a")
    assert refusal(call, q, k.requires_grad_(), v, deterministic=True) == ORDER


def test_gradients_in_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    orders: list[bool] = []

    def note(problem: Any, arch: str, config: Any = None, *more: Any) -> Any:
        orders.append(config is not None and config.ordered)
        return choose(problem, arch, config, *more)

    choose = backward.choose
    monkeypatch.setattr(backward, "choose", note)
    for options in ({}, {"softcap": 3.0}, {"alibi_slopes": SLOPES}):
        for fixed in (False, True):
            out = flash_attn.flash_attn_func(q, k, v, causal=True, deterministic=fixed, **options)
            torch.autograd.grad(out.sum(), q)
    assert orders == [False, True] * 3


def test_what_no_kernel_of_packed_sequences_serves_is_refused() -> None:
    q, k, v = inputs()
    starts = torch.tensor([0, 20]).int()
    given = (*(x[0] for x in (q, k, v)), starts, starts, None, None)
    assert refusal(flash_attn.flash_attn_varlen_func, *given, softcap=1.0) == (
        "attention: given softcap and packed or padded sequences, whose kernel has none; expected one call for each "
        "sequence, q[None, first:end]"
    )
    table = starts[None]
    assert refusal(flash_attn.flash_attn_varlen_func, *given, softcap=1.0, block_table=table) == (
        "attention: given softcap and block_table, whose kernel has none; expected softcap left out, or caches without "
        "pages"
    )
    assert refusal(flash_attn.flash_attn_with_kvcache, q, k, v, block_table=table, cache_leftpad=starts) == (
        "attention: given cache_leftpad, which no kernel reads; expected sequences that begin with the first row of "
        "their pages"
    )
    assert refusal(flash_attn.flash_attn_with_kvcache, q, k, v, k, block_table=table) == (
        "attention: given k alone; expected k and v, the new rows, or neither"
    )
    assert refusal(flash_attn.flash_attn_with_kvcache, q, k, v, rotary_cos=q) == (
        "attention: given rotary_cos, which no kernel reads; expected q and k that are rotated already: apply the "
        "rotation before the call"
    )
    assert refusal(flash_attn.flash_attn_with_kvcache, q, k, v, cache_batch_idx=starts) == (
        "attention: given cache_batch_idx, which no kernel reads; expected caches in the order of q: "
        "k_cache[cache_batch_idx]"
    )


SIGNATURES = {
    "flash_attn_func": "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 "
    "softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False block_table=None",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None "
    "cache_batch_idx=None cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1, -1) "
    "softcap=0.0 rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_are_those_of_flash_attention_2(name: str) -> None:
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    empty = inspect.Parameter.empty
    words = (each.name if each.default is empty else f"{each.name}={each.default}" for each in parameters)
    assert " ".join(words) == SIGNATURES[name]
