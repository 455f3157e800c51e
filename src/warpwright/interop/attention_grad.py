"""Gradients of ``torch.ops.warpwright.attention``: the operator ``attention_backward``, and its autograd function.

`warpwright.interop.attention` imports this module. The gradients have kernels for `TARGETS`, and for tensors on the CPU
on the virtual ``h200``, up to a head dimension of `GREATEST_HEADS`; they are not differentiable themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from warpwright.errors import UsageError
from warpwright.interop.dispatch import KERNELS, function_mode_enabled, profiler_enabled
from warpwright.ops.attention import varlen_backward
from warpwright.ops.attention.backward import GREATEST_HEADS, ORDERED_HEADS, gradients
from warpwright.ops.memo import MEMO

__all__ = [
    "DEFAULTS",
    "AttentionFunction",
    "has_deterministic_kernel",
    "has_gradient_kernel",
    "has_packed_gradient_kernel",
    "is_deterministic",
    "new_gradient",
]

SCHEMA = (
    "attention_backward(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, "
    "float? scale, int? left, int? right, str layout, bool deterministic=False) -> (Tensor, Tensor, Tensor)"
)
DEFAULTS = (False, None, None, None, "bhsd", False)  # of causal, scale, left, right, layout and deterministic
TARGETS = {
    (9, 0): "sm_90a",
    (10, 0): "sm_100a",
    (12, 0): "sm_120a",
}  # of GPUs with kernels for gradients, by compute capability
Two = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_differentiate = torch.ops.warpwright.attention_backward.default


def has_gradient_kernel(q: Tensor) -> bool:
    """Returns whether the device of ``q`` has a kernel for the gradients of attention."""
    return bool(q.shape[-1] <= GREATEST_HEADS.get(_target(q), 0))


def has_packed_gradient_kernel(q: Tensor) -> bool:
    """Returns whether the device of ``q`` has a kernel for the gradients of packed sequences."""
    return _target(q) in varlen_backward.TARGETS and has_gradient_kernel(q)


def has_deterministic_kernel(q: Tensor) -> bool:
    """Returns whether the device of ``q`` has a gradient kernel for its heads that adds in a fixed order."""
    return bool(q.shape[-1] <= ORDERED_HEADS.get(_target(q), 0))


def _target(q: Tensor) -> str:
    """Returns the target of the kernels for the device of ``q``; "" where there are none."""
    return TARGETS.get(torch.cuda.get_device_capability(q.device), "") if q.is_cuda else "sm_90a"


class AttentionFunction(torch.autograd.Function):  # type: ignore[misc]
    """Computes ``compute`` and saves what its gradients need; ``options`` are all of the operator's, from ``causal``
    on."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Two], options: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor
    ) -> Two:
        return _save(ctx, options, (q, k, v), compute(q, k, v, *options))

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        # `once_differentiable` takes 3 µs and is needed only if the gradients may be differentiated.
        return _gradients_once(ctx, do, dlse) if torch.is_grad_enabled() else _gradients(ctx, do, dlse)


def bind_function(compute: Callable[[Three], Two | None], other: Callable[..., Two], options: tuple[Any, ...]) -> Any:
    """Returns a function of (q, k, v) that computes attention and records it for autograd, as `AttentionFunction` does.

    The other arguments are bound, because each argument of an autograd function takes host time. Where ``compute``
    returns None, ``other`` computes.
    """

    class BoundAttentionFunction(torch.autograd.Function):  # type: ignore[misc]
        """`AttentionFunction` of one call of the memo."""

        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Two:
            given = q, k, v
            return _save(ctx, options, given, compute(given) or other(*given, *options))

        @staticmethod
        def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
            return AttentionFunction.backward(ctx, do, dlse)[2:]

    return super(torch.autograd.Function, BoundAttentionFunction).apply  # does not check for functorch's transforms


def _save(ctx: Any, options: tuple[Any, ...], given: Three, results: Two) -> Two:
    """Save what the gradients need, and return the results."""
    ctx.save_for_backward(*given, *results)
    ctx.options = options
    ctx.set_materialize_grads(False)
    return results


def _gradients(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns the gradients of `AttentionFunction`'s inputs."""
    if do is None and dlse is None:
        return (None,) * 5
    q, k, v, o, lse = ctx.saved_tensors
    given = torch.zeros_like(o) if do is None else do, dlse, q, k, v, o, lse, *ctx.options
    return None, None, *(_from_memo(*given) or _differentiate(*given))


_gradients_once = once_differentiable(_gradients)


def _from_memo(
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
    deterministic: bool,
) -> Three | None:
    """Returns the gradients by a call of the memo, without torch's dispatcher; None if the memo has none."""
    if torch.compiler.is_compiling() or function_mode_enabled() or profiler_enabled():
        return None
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    window = None if left is None and right is None else (left, right)
    given = (q, k, v, o, do, lse) if dlse is None else (q, k, v, o, do, lse, dlse)
    call = MEMO.get(given, ("gradients", causal, scale, window, layout, None, deterministic))
    found: Three | None = None if call is None else call(given)
    return found


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
    deterministic: bool = False,
) -> Three:
    options: dict[str, Any] = {"causal": causal, "scale": scale, "layout": layout}
    options |= {"window": None if left is None and right is None else (left, right)}
    options |= {"deterministic": is_deterministic(deterministic, has_deterministic_kernel(q))}
    dq, dk, dv = gradients(q, k, v, o, lse, do, dlse=dlse, **options)
    return dq, dk, dv


def is_deterministic(given: bool, has_kernel: bool) -> bool:
    """Returns whether sums must have a fixed order: if a call asks for it, or torch does and there is a kernel.

    Without one raises UsageError or warns, as torch expects of an operator whose sums have no fixed order.
    """
    if given or not torch.are_deterministic_algorithms_enabled() or has_kernel:
        return given or torch.are_deterministic_algorithms_enabled()
    text = (
        "attention: the gradient by q is summed in any order, and torch.use_deterministic_algorithms(True) is set; "
        "expected warn_only=True there, or torch's own scaled_dot_product_attention"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise UsageError(text)
    warnings.warn(text, stacklevel=2)
    return False


def _fake(do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Three:
    return new_gradient(q), new_gradient(k), new_gradient(v)


def new_gradient(x: Tensor) -> Tensor:
    """Returns a dense tensor with the shape of ``x`` and its order of axes in memory."""
    batch, first, second, head_dim = x.shape
    swapped = x.stride(1) < x.stride(2) and first != 1 and second != 1
    return x.new_empty((batch, second, first, head_dim)).transpose(1, 2) if swapped else x.new_empty(x.shape)


for _key in KERNELS:
    _library.impl("attention_backward", _backward, _key.name)
torch.library.register_fake("warpwright::attention_backward", _fake, lib=_library)
