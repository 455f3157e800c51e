"""``torch.ops.warpwright.attention_varlen``: `warpwright.attention_varlen` as an operator of torch.

`warpwright.interop.torch` imports this module, which registers the operator. It works under ``torch.compile`` and in
CUDA graphs, where lengths may change from replay to replay, and runs on the current stream. Tensors on the CPU go to
the virtual ``h200`` where there is no real Hopper GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet

from warpwright.errors import UsageError
from warpwright.interop.dispatch import (
    AFTER_AUTOGRAD,
    KERNELS,
    autograd_calls_kernel,
    function_mode_enabled,
    needs_conversion,
    profiler_enabled,
)
from warpwright.ops.attention import plan, varlen
from warpwright.ops.hooks import replace_class
from warpwright.ops.memo import MEMO

__all__ = ["attention_varlen", "operator"]

SCHEMA = (
    "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, bool causal=False, "
    "float? scale=None, int? left=None, int? right=None) -> (Tensor, Tensor)"
)

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
attention_varlen = torch.ops.warpwright.attention_varlen.default


class Operator(type(torch.ops.warpwright.attention_varlen)):  # type: ignore[misc]
    """The operator ``torch.ops.warpwright.attention_varlen``. A call with known shapes runs from the memo, without
    torch's dispatcher (`dispatch`)."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        causal: bool = False,
        scale: float | None = None,
        left: int | None = None,
        right: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        if not function_mode_enabled() and not profiler_enabled() and not needs_conversion(scale, left, right):
            window = None if left is None and right is None else (left, right)
            given = q, k, v, cu_seqlens_q, cu_seqlens_k
            options = "attention_varlen", causal, scale, window, None, True, plan.read_setting()
            call = MEMO.get(given, options)
            found: tuple[Tensor, Tensor] | None = None if call is None else call(given)
            if found is not None:
                return found
        return super().__call__(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale, left, right)  # type: ignore[no-any-return]


operator = torch.ops.warpwright.attention_varlen
replace_class(operator, Operator)


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the result and the log-sum-exp; ``left`` and ``right`` are the window."""
    window = None if left is None and right is None else (left, right)
    found: tuple[Tensor, Tensor] = varlen.attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal=causal, scale=scale, window=window, return_lse=True
    )
    return found


def _fake(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    torch._check(q.ndim == 3 and k.shape == v.shape, lambda: f"attention: k is {k.shape} and v is {v.shape}")
    torch._check(q.shape[2] == k.shape[2], lambda: f"attention: q is {q.shape} and k is {k.shape}")
    rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, rows), dtype=torch.float32)


def _autograd(keys: DispatchKeySet, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Raise if a gradient is required; else call the kernel, or redispatch if a mode, subclass or transform is
    active."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                f"attention: {name} requires gradients, which packed sequences do not have; expected {name}.detach(), "
                "or torch.ops.warpwright.attention for each sequence"
            )
    if autograd_calls_kernel(keys.raw_repr()):
        return _compute(q, k, v, *options)
    found: tuple[Tensor, Tensor] = attention_varlen.redispatch(keys & AFTER_AUTOGRAD, q, k, v, *options)
    return found


for _key in KERNELS:
    _library.impl("attention_varlen", _compute, _key.name)
torch.library.register_fake("warpwright::attention_varlen", _fake, lib=_library)
_library.impl("attention_varlen", _autograd, "Autograd", with_keyset=True)
