"""``torch.ops.warpwright.matmul(a, b, out_dtype=None)``: `warpwright.matmul` as an operator of torch.

Importing this module registers it. It is differentiable, works under ``torch.compile`` and in CUDA graphs, and runs on
the current stream. Tensors on the CPU are multiplied by the default device, a virtual GPU where there is no real one.
"""

from __future__ import annotations

from typing import Any

import torch

from warpwright import ops

__all__ = ["matmul"]


def _matmul(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``a @ b`` of bfloat16, float16 or float32 tensors (…, M, K) and (…, K, N), as `warpwright.matmul` does it.

    The gradients are two such products, of the operands and the gradient rounded to their dtype.
    """
    return ops.matmul(a, b, out_dtype=out_dtype)


def _fake(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*leading, a.shape[-2], b.shape[-1]), dtype=out_dtype or a.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    gradient = gradient.to(a.dtype)
    return (
        _summed(matmul(gradient, b.mT), a.shape) if needs_a else None,
        _weight_gradient(a, b, gradient) if needs_b else None,
    )


def _weight_gradient(a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """aᵀ · gradient; where all of ``a``'s leading dimensions meet one matrix ``b``, they are part of that sum."""
    if b.ndim == 2:
        a, gradient = a.reshape(-1, a.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    return _summed(matmul(a.mT, gradient), b.shape)


def _summed(gradient: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The gradient of a tensor that was broadcast from ``shape``."""
    return gradient.sum_to_size(shape) if gradient.shape != shape else gradient


matmul = torch.library.custom_op(
    "warpwright::matmul",
    _matmul,
    mutates_args=(),
    schema="(Tensor a, Tensor b, *, ScalarType? out_dtype=None) -> Tensor",
)
matmul.register_fake(_fake)
matmul.register_autograd(_backward, setup_context=_save)
