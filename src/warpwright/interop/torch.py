"""``torch.ops.warpwright.matmul``: `warpwright.matmul` as an operator of torch, with its ``bias``, ``activation`` and
scales.

Importing this module registers the operator, and those of attention. It is differentiable, works under
``torch.compile`` and in CUDA graphs, and runs on the current stream. Tensors on the CPU are multiplied by the default
device, a virtual GPU where there is no real one.

Host time: ``torch.library.custom_op`` takes 9 µs a call, kernels that are registered key by key 3, and half a
microsecond more for each keyword-only argument; hence this schema has none. A call of the memo skips torch's dispatcher
(`Operator`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet

from warpwright.errors import UsageError
from warpwright.interop.attention import attention, scaled_dot_product_attention
from warpwright.interop.attention_mla import attention_mla
from warpwright.interop.attention_modified import AttentionMods, attention_modified
from warpwright.interop.attention_paged import attention_paged, attention_paged_append
from warpwright.interop.attention_varlen import attention_varlen
from warpwright.interop.dispatch import (
    AFTER_AUTOGRAD,
    KERNELS,
    autograd_calls_kernel,
    function_mode_enabled,
    profiler_enabled,
)
from warpwright.ops.hooks import replace_class
from warpwright.ops.matmul import call
from warpwright.ops.memo import MEMO

__all__ = [
    "AttentionMods",
    "attention",
    "attention_mla",
    "attention_modified",
    "attention_paged",
    "attention_paged_append",
    "attention_varlen",
    "matmul",
    "scaled_dot_product_attention",
]

SCHEMA = (
    "matmul(Tensor a, Tensor b, Tensor? bias=None, str? activation=None, "
    "Tensor? scale_a=None, Tensor? scale_b=None, ScalarType? out_dtype=None) -> Tensor"
)
OPTIONS = ("bias", "activation", "scale_a", "scale_b", "out_dtype")

_library = torch.library.Library("warpwright", "DEF")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
matmul = torch.ops.warpwright.matmul.default


class Operator(type(torch.ops.warpwright.matmul)):  # type: ignore[misc]
    """``torch.ops.warpwright.matmul``, which runs calls of the memo without torch's dispatcher (`dispatch`): no call in
    the memo records a gradient."""

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        scale_a: Tensor | None = None,
        scale_b: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        if not function_mode_enabled() and not profiler_enabled():
            plain = bias is None and scale_a is None and scale_b is None
            given = (a, b) if plain else (a, b, bias, scale_a, scale_b)
            bound = MEMO.get(given, call.memo_options(activation, out_dtype))
            d: Tensor | None = None if bound is None else bound(a, b, None, bias, scale_a, scale_b)
            if d is not None:
                return d
        return super().__call__(a, b, bias, activation, scale_a, scale_b, out_dtype)


replace_class(torch.ops.warpwright.matmul, Operator)


def _multiply(a: Tensor, b: Tensor, *options: Any) -> Tensor:
    """The kernel; ``options`` are those of `OPTIONS`, without last ones that have their default."""
    return call.matmul(a, b, **dict(zip(OPTIONS, options, strict=False)))


def _fake(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}")
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*leading, a.shape[-2], b.shape[-1]), dtype=out_dtype or _default_dtype(a.dtype))


def _default_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if dtype.itemsize == 1 else dtype


def _autograd(
    keys: DispatchKeySet,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Record the call if a gradient is required; else call the kernel, or redispatch if a mode, subclass or transform
    is active."""
    if (
        a.requires_grad
        or b.requires_grad
        or (bias is not None and bias.requires_grad)
        or (scale_a is not None and scale_a.requires_grad)
        or (scale_b is not None and scale_b.requires_grad)
    ) and torch.is_grad_enabled():
        return _Matmul.apply(keys, a, b, bias, activation, scale_a, scale_b, out_dtype)
    if autograd_calls_kernel(keys.raw_repr()):
        return _multiply(a, b, bias, activation, scale_a, scale_b, out_dtype)
    return matmul.redispatch(keys & AFTER_AUTOGRAD, a, b, bias, activation, scale_a, scale_b, out_dtype)


class _Matmul(torch.autograd.Function):  # type: ignore[misc]
    """Records a matmul; its gradients multiply the operands by the gradient rounded to their dtype, with equal scales.

    The derivative of an activation needs its argument, which is computed again, in float32.
    """

    @staticmethod
    def forward(ctx: Any, keys: DispatchKeySet, a: Tensor, b: Tensor, *given: Any) -> Tensor:
        bias, activation, scale_a, scale_b, _ = given
        _check_differentiable(a=a, b=b, scale_a=scale_a, scale_b=scale_b)
        ctx.activation = activation
        ctx.save_for_backward(a, b, bias, scale_a, scale_b)
        with torch._C._AutoDispatchBelowAutograd():
            return matmul.redispatch(keys & AFTER_AUTOGRAD, a, b, *given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b, bias, scale_a, scale_b = ctx.saved_tensors
        _, needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
        (gradient,), scales = gradients, {"scale_a": scale_a, "scale_b": scale_b}
        if ctx.activation is not None:
            before = matmul(a, b, bias=bias, out_dtype=torch.float32, **scales)
            gradient = DERIVATIVES[ctx.activation](gradient.float(), before)
        rounded = gradient.to(a.dtype) if needs_a or needs_b else gradient
        return (
            None,
            _sum_to_shape(matmul(rounded, b.mT, **scales), a.shape) if needs_a else None,
            _weight_gradient(a, b, rounded, scales) if needs_b else None,
            _bias_gradient(gradient, bias) if needs_bias else None,
            *(None for _ in OPTIONS[1:]),
        )


def _check_differentiable(**operands: Tensor | None) -> None:
    """Raise UsageError for a gradient of anything but a bias or an operand of 16 or 32 bits."""
    for name, tensor in operands.items():
        if tensor is not None and tensor.requires_grad and (tensor.dtype.itemsize == 1 or name.startswith("scale")):
            raise UsageError(
                f"matmul: {name} is {str(tensor.dtype).removeprefix('torch.')} and requires gradients; expected "
                f"gradients only of a bias and of bfloat16, float16 or float32 operands: {name}.detach()"
            )


DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, before: torch.ops.aten.threshold_backward(gradient, before, 0),
    "gelu": lambda gradient, before: torch.ops.aten.gelu_backward(gradient, before),
    "silu": lambda gradient, before: gradient * silu_slope(before, torch.sigmoid(before)),
}


def silu_slope(x: Tensor, gate: Tensor) -> Tensor:
    """Returns the derivative of x · sigmoid(x). aten's own is not differentiable."""
    return gate * (1 + x * (1 - gate))


def _weight_gradient(a: Tensor, b: Tensor, gradient: Tensor, scales: dict[str, Tensor | None]) -> Tensor:
    """Returns aᵀ · gradient; for one matrix ``b`` it sums over all leading dimensions of ``a`` too."""
    if b.ndim == 2:
        a, gradient = a.reshape(-1, a.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    return _sum_to_shape(matmul(a.mT, gradient, **scales), b.shape)


def _bias_gradient(gradient: Tensor, bias: Tensor) -> Tensor:
    """Returns the sum over all rows, in float32."""
    return gradient.reshape(-1, gradient.shape[-1]).sum(0, dtype=torch.float32).to(bias.dtype)


def _sum_to_shape(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Returns the gradient of a tensor that was broadcast from ``shape``."""
    return gradient.sum_to_size(shape) if gradient.shape != shape else gradient


for _key in KERNELS:
    _library.impl("matmul", _multiply, _key.name)
torch.library.register_fake("warpwright::matmul", _fake, lib=_library)
_library.impl("matmul", _autograd, "Autograd", with_keyset=True)
