"""Gradients of ``torch.ops.warpwright.attention``: the operator ``attention_backward``, and what records a call.

`warpwright.interop.attention` imports this module. The gradients have a kernel on Hopper, and on its virtual GPU for
tensors on the CPU, up to a head dimension of 128; they are not differentiable themselves.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd.function import once_differentiable

from warpwright.errors import UsageError
from warpwright.sdpa_backward import GREATEST_HEAD, gradients

__all__ = ["recorded", "trainable"]

SCHEMA = (
    "attention_backward(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, "
    "float? scale, int? left, int? right, str layout) -> (Tensor, Tensor, Tensor)"
)
DEFAULTS = (False, None, None, None, "bhsd")  # of causal, scale, left, right and layout
AFTER_AUTOGRAD = torch._C._after_autograd_keyset
HOPPER = (9, 0)
Three = tuple[Tensor, Tensor, Tensor]

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))


def trainable(q: Tensor) -> bool:
    """Whether gradients of attention with queries ``q`` have a kernel where they are."""
    hopper = not q.is_cuda or torch.cuda.get_device_capability(q.device) == HOPPER
    return bool(hopper and q.shape[-1] <= GREATEST_HEAD)


def recorded(keys: DispatchKeySet, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Attention whose gradients can be asked for later; ``options`` are those of the operator from ``causal`` on."""
    found: tuple[Tensor, Tensor] = _Attention.apply(keys, q, k, v, *options, *DEFAULTS[len(options) :])
    return found


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, keys: DispatchKeySet, *given: Any) -> tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            o, lse = torch.ops.warpwright.attention.default.redispatch(keys & AFTER_AUTOGRAD, *given)
        ctx.save_for_backward(*given[:3], o, lse)
        ctx.options = given[3:]
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        if do is None and dlse is None:
            return (None,) * (4 + len(DEFAULTS))
        do = torch.zeros_like(o) if do is None else do
        found = torch.ops.warpwright.attention_backward.default(do, dlse, q, k, v, o, lse, *ctx.options)
        wanted = ctx.needs_input_grad[1:4]
        return (None, *(each if needed else None for each, needed in zip(found, wanted, strict=True)), *(None,) * 5)


def _backward(
    do: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
    layout: str,
) -> Three:
    if torch.are_deterministic_algorithms_enabled():
        _object_to_any_order()
    window = None if left is None and right is None else (left, right)
    return gradients(q, k, v, o, lse, do, dlse=dlse, causal=causal, scale=scale, window=window, layout=layout)


def _object_to_any_order() -> None:
    """What torch asks of operators whose sums come in any order where that is not wanted."""
    text = (
        "attention: the gradient by q is summed in any order, and torch.use_deterministic_algorithms(True) is set; "
        "expected warn_only=True there, or torch's own scaled_dot_product_attention"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise UsageError(text)
    warnings.warn(text, stacklevel=2)


def _fake(do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Three:
    return _made(q), _made(k), _made(v)


def _made(x: Tensor) -> Tensor:
    """A dense tensor whose axes lie in memory in the order of those of ``x``."""
    batch, first, second, head_dim = x.shape
    turned = x.stride(1) < x.stride(2) and first != 1 and second != 1
    return x.new_empty((batch, second, first, head_dim)).transpose(1, 2) if turned else x.new_empty(x.shape)


for _key in (DispatchKey.CPU, DispatchKey.CUDA):
    _library.impl("attention_backward", _backward, _key.name)
torch.library.register_fake("warpwright::attention_backward", _fake, lib=_library)
