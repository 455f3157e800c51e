"""``torch.ops.warpwright.attention``: `warpwright.attention` as an operator of torch, and a function that stands in for
torch's own ``scaled_dot_product_attention``.

`warpwright.interop.torch` imports this module, which registers the operator. It works under ``torch.compile`` and in
CUDA graphs, and runs on the current stream. Tensors on the CPU are computed by the default device, a virtual GPU where
there is no real one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from warpwright import sdpa
from warpwright.errors import UsageError
from warpwright.interop.attention_grad import recorded, trainable
from warpwright.kernels.attention.problem import GREATEST_SCALE, SMALLEST_SCALE

__all__ = ["attention", "scaled_dot_product_attention"]

SCHEMA = (
    "attention(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, int? left=None, int? right=None, "
    "str layout='bhsd') -> (Tensor, Tensor)"
)
AFTER_AUTOGRAD = torch._C._after_autograd_keyset
HALVES = (torch.bfloat16, torch.float16)
GREATEST_HEAD, HEAD_STEP = 256, 8
CAPABILITIES = {(9, 0), (10, 0), (12, 0)}  # of GPUs that there are kernels for

theirs = torch.nn.functional.scaled_dot_product_attention  # now: the name may come to stand for the function here

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
attention = torch.ops.warpwright.attention.default


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    layout: str = "bhsd",
) -> tuple[Tensor, Tensor]:
    """The result and the log-sum-exp; ``left`` and ``right`` are the window."""
    window = None if left is None and right is None else (left, right)
    found: tuple[Tensor, Tensor] = sdpa.attention(
        q, k, v, causal=causal, scale=scale, window=window, layout=layout, return_lse=True
    )
    return found


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    layout: str = "bhsd",
) -> tuple[Tensor, Tensor]:
    torch._check(q.ndim == 4 and k.shape == v.shape, lambda: f"attention: k is {k.shape} and v is {v.shape}")
    torch._check(q.shape[3] == k.shape[3], lambda: f"attention: q is {q.shape} and k is {k.shape}")
    batch, first, second, _ = q.shape
    heads, rows = (first, second) if layout == "bhsd" else (second, first)
    turned = q.stride(1) < q.stride(2) and first != 1 and second != 1
    made = q.new_empty((batch, second, first, q.shape[3])).transpose(1, 2) if turned else q.new_empty(q.shape)
    return made, q.new_empty((batch, heads, rows), dtype=torch.float32)


def _autograd(keys: DispatchKeySet, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Record the call where a gradient is wanted, or refuse to lose it; else hand on."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.requires_grad and torch.is_grad_enabled():
            if trainable(q):
                return recorded(keys, q, k, v, *options)
            raise UsageError(
                f"attention: {name} requires gradients, for which there is a kernel on Hopper and up to a head "
                f"dimension of 128; expected {name}.detach(), or torch's own scaled_dot_product_attention"
            )
    found: tuple[Tensor, Tensor] = attention.redispatch(keys & AFTER_AUTOGRAD, q, k, v, *options)
    return found


for _key in (DispatchKey.CPU, DispatchKey.CUDA):
    _library.impl("attention", _attend, _key.name)
torch.library.register_fake("warpwright::attention", _fake, lib=_library)
_library.impl("attention", _autograd, "Autograd", with_keyset=True)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, by warpwright's kernels where they serve, else by torch's.

    They serve tensors (batch, heads, rows, head_dim) of bfloat16 or float16 on a Hopper or Blackwell GPU, without
    ``attn_mask`` and dropout; with gradients on Hopper, up to a head dimension of 128, but where torch is to use
    deterministic algorithms only. ``is_causal`` is torch's mask, aligned top left: query i sees keys 0 to i. That is
    another one than ``causal=True`` of `warpwright.attention`, which is aligned bottom right, where there are more keys
    than queries, or fewer.
    """
    here = query.is_cuda and _has_kernels(query.device)
    if not here or not _served(query, key, value, attn_mask, dropout_p, scale, enable_gqa):
        return theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return _aligned_top_left(query, key, value, is_causal, scale)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) in CAPABILITIES


def _served(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
) -> bool:
    """Whether a kernel computes this as torch would."""
    four = query.ndim == key.ndim == value.ndim == 4 and key.shape == value.shape
    if attn_mask is not None or dropout_p or not four or 0 in query.shape or 0 in key.shape:
        return False
    differentiable = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    in_order = torch.are_deterministic_algorithms_enabled()
    heads = query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
    head_dim = query.shape[3]
    return (
        (not differentiable or (trainable(query) and not in_order))
        and heads
        and query.dtype in HALVES
        and query.dtype == key.dtype == value.dtype
        and query.device == key.device == value.device
        and query.shape[0] == key.shape[0]
        and head_dim == key.shape[3]
        and head_dim <= GREATEST_HEAD
        and head_dim % HEAD_STEP == 0
        and (scale is None or SMALLEST_SCALE <= scale <= GREATEST_SCALE)
    )


def _aligned_top_left(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    """Bottom right is top left where lengths are equal: keys that no query sees go, or the bound moves."""
    rows, keys = query.shape[2], key.shape[2]
    if is_causal and rows < keys:
        key, value = key[:, :, :rows], value[:, :, :rows]
    behind = is_causal and rows > keys
    return attention(query, key, value, is_causal and not behind, scale, None, rows - keys if behind else None)[0]
