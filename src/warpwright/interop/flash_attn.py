"""The functions of the package ``flash_attn``, by warpwright's kernels: ``from warpwright.interop.flash_attn import
flash_attn_func``.

Signatures, shapes and masks are those of FlashAttention 2: tensors (batch, rows, heads, head_dim), packed ones (rows,
heads, head_dim), of bfloat16 or float16. The causal mask is aligned bottom right. A query that sees no key has output
0, and log-sum-exp -∞, where FlashAttention writes +∞. Arguments that no kernel supports raise UsageError.
``max_seqlen_q``, ``max_seqlen_k`` and ``num_splits`` are not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwright.errors import UsageError
from warpwright.interop.attention_grad import has_deterministic_kernel
from warpwright.interop.attention_paged import append_operator, operator
from warpwright.interop.bshd import Options, attention, attention_varlen
from warpwright.interop.padding import cumulative_lengths
from warpwright.ops.attention.paged_arrays import check_both

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Window = tuple[int, int]
EVERYTHING: Window = (-1, -1)
Result = Any  # a tensor, or with the log-sum-exp and the weights that dropout kept


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = EVERYTHING,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """softmax(``softmax_scale`` · q·kᵀ)·v of q (batch, rows, heads, head_dim), differentiable up to a head dimension of
    128. ``softcap`` and ``alibi_slopes`` need a Hopper GPU; the slopes get no gradient. With ``deterministic`` the
    gradients have the same bits in every run, which sm_100a has no kernel for.

    A score gets -slope · |i + rows of k - rows of q - j| for query i and key j from ``alibi_slopes``, float32 (heads,)
    or (batch, heads). ``return_attn_probs`` returns the log-sum-exp (batch, heads, rows) and an empty tensor too.
    """
    _check_dropout(dropout_p)
    _check_order(deterministic, q, k, v)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _result(attention(q, k, v, options), return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """`flash_attn_func` of kv (batch, rows, 2, heads, head_dim), with its other arguments."""
    return flash_attn_func(q, *kv.unbind(-3), *options, **named)


def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Result:
    """`flash_attn_func` of qkv (batch, rows, 3, heads, head_dim), with its other arguments."""
    return flash_attn_func(*qkv.unbind(-3), *options, **named)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = EVERYTHING,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """`flash_attn_func` of packed sequences, by `warpwright.attention_varlen`; the log-sum-exp is (heads, rows).

    With a ``block_table``, (sequences, width), k and v are pages (pages, page_size, kv_heads, head_dim), forward only.
    """
    _check_dropout(dropout_p)
    _check_order(deterministic, q, k, v)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    if block_table is not None:
        lengths = (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).int()
        found = _over_pages(q, k, v, block_table, lengths, options, cu_seqlens_q)
        return _result(found, return_attn_probs)
    return _result(attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, options), return_attn_probs)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Result:
    """`flash_attn_varlen_func` of kv (rows, 2, heads, head_dim), with its other arguments."""
    return flash_attn_varlen_func(q, *kv.unbind(-3), *options, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int | None, *options: Any, **named: Any
) -> Result:
    """`flash_attn_varlen_func` of qkv (rows, 3, heads, head_dim) and one array of lengths, with its other arguments."""
    q, k, v = qkv.unbind(-3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, **named)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = EVERYTHING,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Result:
    """Attention of q (batch, rows, heads, head_dim) over the caches (batch, length, kv_heads, head_dim), forward only;
    with a ``block_table``, (batch, width), over caches in pages, (pages, page_size, kv_heads, head_dim).

    ``k`` and ``v`` are first written into the caches, after the ``cache_seqlens`` rows that are there. With lengths in
    a tensor, or ``cache_leftpad`` rows to skip, the sequences run as packed ones, in place and without waiting.
    """
    _check_absent("rotary_cos", rotary_cos, "q and k that are rotated already: apply the rotation before the call")
    _check_absent("rotary_sin", rotary_sin, "q and k that are rotated already: apply the rotation before the call")
    _check_absent("cache_batch_idx", cache_batch_idx, "caches in the order of q: k_cache[cache_batch_idx]")
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    if block_table is not None:
        _check_absent("cache_leftpad", cache_leftpad, "sequences that begin with the first row of their pages")
        lengths = _lengths(cache_seqlens, q, block_table.shape[1] * k_cache.shape[1])
        found = _over_pages(q, k_cache, v_cache, block_table, lengths, options, new=(k, v))
        return found if return_softmax_lse else found[0]
    filled = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    with torch.no_grad():
        if k is not None and v is not None:
            _write(k_cache, k, filled)
            _write(v_cache, v, filled)
            filled = filled + k.shape[1]
        if isinstance(filled, int) and cache_leftpad is None:
            found = attention(q, k_cache[:, :filled], v_cache[:, :filled], options)
        else:
            found = _over_lengths(q, k_cache, v_cache, cache_leftpad, filled, options)
    return found if return_softmax_lse else found[0]


def _write(cache: Tensor, rows: Tensor, filled: int | Tensor) -> None:
    """Write ``rows`` into the cache from row ``filled`` on."""
    count = rows.shape[1]
    if isinstance(filled, int):
        cache[:, filled : filled + count] = rows
        return
    batch = torch.arange(cache.shape[0], device=cache.device)
    cache[batch[:, None], filled[:, None] + torch.arange(count, device=cache.device)] = rows


def _over_lengths(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor | None, end: int | Tensor, options: Options
) -> tuple[Tensor, Tensor]:
    """Returns attention over the rows from ``first`` to ``end`` of each sequence, and the log-sum-exp."""
    batch, rows, heads, _ = q.shape
    zeros = torch.zeros(batch, dtype=torch.int32, device=q.device)
    ends = zeros + end
    firsts = zeros if first is None else torch.minimum(first, ends)
    lengths = cumulative_lengths((zeros, zeros + rows), (firsts, ends), rows, k.shape[1])
    out, lse = attention_varlen(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *lengths, options)
    return out.unflatten(0, (batch, rows)), lse.view(heads, batch, rows).transpose(0, 1)


def _lengths(filled: int | Tensor | None, q: Tensor, most: int) -> Tensor:
    """Returns the rows in the cache of each sequence, (batch,) of int32."""
    if isinstance(filled, Tensor):
        return filled
    return torch.full((q.shape[0],), most if filled is None else filled, dtype=torch.int32, device=q.device)


def _over_pages(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    lengths: Tensor,
    options: Options,
    cu_seqlens_q: Tensor | None = None,
    new: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor]:
    """Returns attention over keys in pages, into which ``new`` rows are written first, and the log-sum-exp."""
    for name in options.changes:
        raise UsageError(
            f"attention: given {name} and block_table, whose kernel has none; expected {name} left out, or caches "
            "without pages"
        )
    rows = {name: x for name, x in zip("kv", new, strict=True) if x is not None}
    check_both(rows)
    rest = cu_seqlens_q, options.causal, options.scale, options.left, options.right
    with torch.no_grad():
        found: tuple[Tensor, Tensor] = (append_operator if rows else operator)(
            q, k, v, table, lengths, *rows.values(), *rest
        )
    return found


def _options(
    scale: float | None,
    causal: bool,
    window_size: Window,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool = False,
) -> Options:
    left, right = (None if bound < 0 else bound for bound in window_size)
    return Options(causal, scale, left, right, softcap or None, None, alibi_slopes, deterministic)


def _result(found: tuple[Tensor, Tensor], return_attn_probs: bool) -> Result:
    out, lse = found
    return (out, lse, out.new_empty(0)) if return_attn_probs else out


def _check_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise UsageError(
            f"attention: dropout_p={dropout_p}; expected 0.0, for no kernel drops weights: dropout_p=0.0, or torch's "
            "own scaled_dot_product_attention"
        )


def _check_absent(name: str, value: Any, expected: str) -> None:
    if value is not None:
        raise UsageError(f"attention: given {name}, which no kernel reads; expected {expected}")


def _check_order(deterministic: bool, *tensors: Tensor) -> None:
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if deterministic and differentiable and not has_deterministic_kernel(tensors[0]):
        raise UsageError(
            "attention: deterministic=True, and the gradient by q is summed in any order; expected "
            "deterministic=False, or torch's own scaled_dot_product_attention"
        )
