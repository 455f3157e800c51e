"""``torch.ops.warpwright.attention_varlen``: `warpwright.attention_varlen` as an operator of torch.

`warpwright.interop.torch` imports this module, which registers the operator and that of its gradients, which have
kernels for Hopper. They work under ``torch.compile`` and in CUDA graphs, where lengths may change from replay to
replay, and run on the current stream. Tensors on the CPU go to the virtual ``h200`` where there is no real Hopper GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet
from torch.autograd.function import once_differentiable

from warpwright.errors import UsageError
from warpwright.interop.attention_grad import has_deterministic_kernel, has_packed_gradient_kernel, is_deterministic
from warpwright.interop.dispatch import (
    AFTER_AUTOGRAD,
    KERNELS,
    autograd_calls_kernel,
    function_mode_enabled,
    needs_conversion,
    profiler_enabled,
)
from warpwright.ops.attention import plan, varlen
from warpwright.ops.attention.backward import GREATEST_HEADS
from warpwright.ops.attention.varlen_backward import gradients_varlen
from warpwright.ops.hooks import replace_class
from warpwright.ops.memo import MEMO

__all__ = ["attention_varlen", "operator"]

SCHEMA = (
    "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, bool causal=False, "
    "float? scale=None, int? left=None, int? right=None, bool deterministic=False) -> (Tensor, Tensor)"
)
BACKWARD_SCHEMA = (
    "attention_varlen_backward(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, bool causal, float? scale, int? left, int? right, "
    "bool deterministic=False) -> (Tensor, Tensor, Tensor)"
)
DEFAULTS = (False, None, None, None, False)  # of causal, scale, left, right and deterministic

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_library.define(BACKWARD_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_differentiate = torch.ops.warpwright.attention_varlen_backward.default
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
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if not function_mode_enabled() and not profiler_enabled() and not needs_conversion(scale, left, right):
            window = None if left is None and right is None else (left, right)
            given = q, k, v, cu_seqlens_q, cu_seqlens_k
            options = "attention_varlen", causal, scale, window, None, True, plan.read_setting()
            call = MEMO.get(given, options)
            found: tuple[Tensor, Tensor] | None = None if call is None else call(given)
            if found is not None:
                return found
        rest = causal, scale, left, right, deterministic
        return super().__call__(q, k, v, cu_seqlens_q, cu_seqlens_k, *rest)  # type: ignore[no-any-return]


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
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the result and the log-sum-exp; ``left`` and ``right`` are the window, ``deterministic`` is for the
    gradients."""
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


def _backward(
    do: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    options: dict[str, Any] = {"causal": causal, "scale": scale}
    options |= {"window": None if left is None and right is None else (left, right)}
    options |= {"deterministic": is_deterministic(deterministic, has_deterministic_kernel(q))}
    return gradients_varlen(q, k, v, o, lse, do, cu_seqlens_q, cu_seqlens_k, dlse=dlse, **options)


def _fake_backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


class VarlenFunction(torch.autograd.Function):  # type: ignore[misc]
    """Computes ``compute`` and saves what its gradients need; ``options`` are the operator's, from ``causal`` on."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Any], options: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, *cu: Tensor
    ) -> tuple[Tensor, Tensor]:
        o, lse = compute(q, k, v, *cu, *options)
        ctx.save_for_backward(q, k, v, o, lse, *cu)
        ctx.options = (*options, *DEFAULTS[len(options) :])
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse, *cu = ctx.saved_tensors
        if do is None and dlse is None:
            return (None,) * 7
        do = torch.zeros_like(o) if do is None else do
        return None, None, *_differentiate(do, dlse, q, k, v, o, lse, *cu, *ctx.options), None, None


def _autograd(
    keys: DispatchKeySet, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    """Record the call if a gradient is required, or raise if there is no kernel for the gradient; else call the kernel,
    or redispatch if a mode, subclass or transform is active."""

    def compute(*given: Any) -> tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            found: tuple[Tensor, Tensor] = attention_varlen.redispatch(keys & AFTER_AUTOGRAD, *given)
        return found

    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.requires_grad and torch.is_grad_enabled():
            if has_packed_gradient_kernel(q):
                recorded: tuple[Tensor, Tensor] = VarlenFunction.apply(compute, options, q, k, v, cu_q, cu_k)
                return recorded
            raise UsageError(
                f"attention: {name} requires gradients, for which packed sequences have kernels for sm_90a and up to a "
                f"head dimension of {GREATEST_HEADS['sm_90a']}; expected {name}.detach(), or "
                "torch.ops.warpwright.attention for each sequence"
            )
    if autograd_calls_kernel(keys.raw_repr()):
        return _compute(q, k, v, cu_q, cu_k, *options)
    return compute(q, k, v, cu_q, cu_k, *options)


for _key in KERNELS:
    _library.impl("attention_varlen", _compute, _key.name)
    _library.impl("attention_varlen_backward", _backward, _key.name)
torch.library.register_fake("warpwright::attention_varlen", _fake, lib=_library)
torch.library.register_fake("warpwright::attention_varlen_backward", _fake_backward, lib=_library)
_library.impl("attention_varlen", _autograd, "Autograd", with_keyset=True)
