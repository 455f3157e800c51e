"""``torch.ops.warpwright.attention_paged`` and ``torch.ops.warpwright.attention_paged_append``:
`warpwright.attention_paged` as operators of torch.

`warpwright.interop.torch` imports this module, which registers both. ``attention_paged_append`` writes new rows into
the pages first, as its schema says; ``attention_paged`` only reads. Both work under ``torch.compile`` and in CUDA
graphs, where pages and lengths may change from replay to replay, and run on the current stream. Tensors on the CPU go
to the virtual ``h200`` where there is no real Hopper GPU. There are no gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet
from torch.autograd.graph import increment_version

from warpwright.errors import UsageError
from warpwright.interop.dispatch import (
    AFTER_AUTOGRAD,
    KERNELS,
    autograd_calls_kernel,
    function_mode_enabled,
    needs_conversion,
    profiler_enabled,
)
from warpwright.ops.attention import paged, plan
from warpwright.ops.hooks import replace_class
from warpwright.ops.memo import MEMO

__all__ = ["append_operator", "attention_paged", "attention_paged_append", "operator"]

OPTIONS = (
    "Tensor? cu_seqlens_q=None, bool causal=False, float? scale=None, int? left=None, int? right=None) "
    "-> (Tensor, Tensor)"
)
SCHEMA = f"attention_paged(Tensor q, Tensor k_pages, Tensor v_pages, Tensor block_table, Tensor lengths, {OPTIONS}"
APPEND_SCHEMA = (
    "attention_paged_append(Tensor q, Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor block_table, Tensor lengths, "
    f"Tensor k, Tensor v, {OPTIONS}"
)
Two = tuple[Tensor, Tensor]

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_library.define(APPEND_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
attention_paged = torch.ops.warpwright.attention_paged.default
attention_paged_append = torch.ops.warpwright.attention_paged_append.default


class Operator(type(torch.ops.warpwright.attention_paged)):  # type: ignore[misc]
    """The operator ``torch.ops.warpwright.attention_paged``. A call with known shapes runs from the memo, without
    torch's dispatcher (`dispatch`)."""

    def __call__(
        self,
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        cu_seqlens_q: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        left: int | None = None,
        right: int | None = None,
    ) -> Two:
        inputs, options = (q, k_pages, v_pages, block_table, lengths), (cu_seqlens_q, causal, scale, left, right)
        found = _from_memo(inputs, (), *options)
        return super().__call__(*inputs, *options) if found is None else found


class AppendOperator(type(torch.ops.warpwright.attention_paged_append)):  # type: ignore[misc]
    """The operator ``torch.ops.warpwright.attention_paged_append``, as `Operator`."""

    def __call__(
        self,
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        left: int | None = None,
        right: int | None = None,
    ) -> Two:
        inputs, options = (q, k_pages, v_pages, block_table, lengths), (cu_seqlens_q, causal, scale, left, right)
        found = _from_memo(inputs, (k, v), *options)
        if found is None:
            return super().__call__(*inputs, k, v, *options)  # type: ignore[no-any-return]
        increment_version((k_pages, v_pages))
        return found


operator, append_operator = torch.ops.warpwright.attention_paged, torch.ops.warpwright.attention_paged_append
replace_class(operator, Operator)
replace_class(append_operator, AppendOperator)


def _from_memo(
    inputs: tuple[Tensor, ...],
    new: tuple[Tensor, ...],
    cu_seqlens_q: Tensor | None,
    causal: Any,
    scale: Any,
    left: Any,
    right: Any,
) -> Two | None:
    """Returns the results of a call that the memo has; None if it has none, or torch would convert an option."""
    if function_mode_enabled() or profiler_enabled() or needs_conversion(scale, left, right):
        return None
    packed = cu_seqlens_q is not None
    given = (*inputs, cu_seqlens_q, *new) if packed else inputs + new
    window = None if left is None and right is None else (left, right)
    kinds = packed, bool(new), bool(new), False
    call = MEMO.get(given, ("attention_paged", causal, scale, window, None, True, plan.read_setting(), kinds))
    found: Two | None = None if call is None else call(given)
    return found


def _compute(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    cu_seqlens_q: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    *,
    k: Tensor | None = None,
    v: Tensor | None = None,
) -> Two:
    """Returns the result and the log-sum-exp; ``left`` and ``right`` are the window, ``k`` and ``v`` new rows."""
    window = None if left is None and right is None else (left, right)
    options: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "return_lse": True}
    options |= {"cu_seqlens_q": cu_seqlens_q, "k": k, "v": v}
    found: Two = paged.attention_paged(q, k_pages, v_pages, block_table, lengths, **options)
    return found


def _append(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, k: Tensor, v: Tensor, *options: Any
) -> Two:
    return _compute(q, k_pages, v_pages, table, lengths, *options, k=k, v=v)


def _fake(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, cu_seqlens_q: Tensor | None = None, *_: Any
) -> Two:
    packed = cu_seqlens_q is not None
    torch._check(q.ndim == (3 if packed else 4), lambda: f"attention: q is {q.shape}")
    torch._check(k.ndim == 4 and k.shape == v.shape, lambda: f"attention: k_pages is {k.shape}, v_pages {v.shape}")
    torch._check(q.shape[-1] == k.shape[3], lambda: f"attention: q is {q.shape} and k_pages is {k.shape}")
    *sequences, rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((*sequences, heads, rows), dtype=torch.float32)


def _fake_append(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_new: Tensor, v_new: Tensor, *options: Any
) -> Two:
    return _fake(q, k, v, table, lengths, *options)


def _check_gradients(names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                f"attention: {name} requires gradients, for which keys in pages have no kernel; expected "
                f"{name}.detach(), or torch.ops.warpwright.attention_varlen of packed rows"
            )


def _autograd(keys: DispatchKeySet, *given: Any) -> Two:
    """Raise if a gradient is required; else call the kernel, or redispatch if a mode, subclass or transform is
    active."""
    _check_gradients(("q", "k_pages", "v_pages"), given[:3])
    if autograd_calls_kernel(keys.raw_repr()):
        return _compute(*given)
    found: Two = attention_paged.redispatch(keys & AFTER_AUTOGRAD, *given)
    return found


def _autograd_append(keys: DispatchKeySet, *given: Any) -> Two:
    """Raise if a gradient is required; else redispatch."""
    _check_gradients(("q", "k_pages", "v_pages", "k", "v"), (*given[:3], *given[5:7]))
    found: Two = attention_paged_append.redispatch(keys & AFTER_AUTOGRAD, *given)
    return found


def _count_writes(keys: DispatchKeySet, *given: Any) -> Two:
    """Increment the versions of the pages, as torch demands of an operator that writes, and redispatch."""
    increment_version(given[1:3])
    with torch._C._AutoDispatchBelowADInplaceOrView():
        found: Two = attention_paged_append.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *given)
    return found


for _key in KERNELS:
    _library.impl("attention_paged", _compute, _key.name)
    _library.impl("attention_paged_append", _append, _key.name)
torch.library.register_fake("warpwright::attention_paged", _fake, lib=_library)
torch.library.register_fake("warpwright::attention_paged_append", _fake_append, lib=_library)
_library.impl("attention_paged", _autograd, "Autograd", with_keyset=True)
_library.impl("attention_paged_append", _autograd_append, "Autograd", with_keyset=True)
_library.impl("attention_paged_append", _count_writes, "ADInplaceOrView", with_keyset=True)
