"""``torch.ops.warpwright.attention_mla``: `warpwright.attention_mla` as an operator of torch.

`warpwright.interop.torch` imports this module, which registers the operator. It only reads, works under
``torch.compile`` and in CUDA graphs, where pages and lengths may change from replay to replay, and runs on the current
stream. Tensors on the CPU go to the virtual ``h200`` where there is no real Hopper GPU. There are no gradients.
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
from warpwright.kernels.attention.problem import LATENT_DIM, LATENT_VALUES
from warpwright.ops.attention import mla, plan
from warpwright.ops.hooks import replace_class
from warpwright.ops.memo import MEMO

__all__ = ["attention_mla", "operator"]

SCHEMA = (
    "attention_mla(Tensor q, Tensor kv, float scale, Tensor? block_table=None, Tensor? lengths=None, "
    "bool causal=False) -> (Tensor, Tensor)"
)
Two = tuple[Tensor, Tensor]

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
attention_mla = torch.ops.warpwright.attention_mla.default


class Operator(type(torch.ops.warpwright.attention_mla)):  # type: ignore[misc]
    """The operator ``torch.ops.warpwright.attention_mla``. A call with known shapes runs from the memo, without torch's
    dispatcher (`dispatch`)."""

    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        scale: float,
        block_table: Tensor | None = None,
        lengths: Tensor | None = None,
        causal: bool = False,
    ) -> Two:
        found = _from_memo(q, kv, scale, block_table, lengths, causal)
        return super().__call__(q, kv, scale, block_table, lengths, causal) if found is None else found


operator = torch.ops.warpwright.attention_mla
replace_class(operator, Operator)


def _from_memo(
    q: Tensor, kv: Tensor, scale: Any, block_table: Tensor | None, lengths: Tensor | None, causal: Any
) -> Two | None:
    """Returns the results of a call that the memo has; None if it has none, or torch would convert an option."""
    if function_mode_enabled() or profiler_enabled() or needs_conversion(scale, None, None):
        return None
    given = (q, kv, kv, *(array for array in (block_table, lengths) if array is not None))
    kinds = block_table is not None, lengths is not None, False
    call = MEMO.get(given, ("attention_mla", causal, scale, None, True, plan.read_setting(), kinds))
    found: Two | None = None if call is None else call(given)
    return found


def _compute(
    q: Tensor,
    kv: Tensor,
    scale: float,
    block_table: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
) -> Two:
    """Returns the result and the log-sum-exp."""
    options: dict[str, Any] = {"scale": scale, "block_table": block_table, "lengths": lengths, "causal": causal}
    found: Two = mla.attention_mla(q, kv, **options, return_lse=True)
    return found


def _fake(q: Tensor, kv: Tensor, *_: Any, **__: Any) -> Two:
    torch._check(q.ndim == 4 and q.shape[3] == LATENT_DIM, lambda: f"attention: q is {q.shape}")
    torch._check(kv.ndim in (3, 4) and kv.shape[-1] == LATENT_DIM, lambda: f"attention: kv is {kv.shape}")
    sequences, rows, heads, _ = q.shape
    lse = q.new_empty((sequences, heads, rows), dtype=torch.float32)
    return q.new_empty((sequences, rows, heads, LATENT_VALUES)), lse


def _autograd(keys: DispatchKeySet, *given: Any) -> Two:
    """Raise if a gradient is required; else call the kernel, or redispatch if a mode, subclass or transform is
    active."""
    for name, tensor in zip(("q", "kv"), given[:2], strict=True):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                f"attention: {name} requires gradients, for which latent rows have no kernel; expected "
                f"{name}.detach(), or torch.ops.warpwright.attention of keys and values of each head"
            )
    if autograd_calls_kernel(keys.raw_repr()):
        return _compute(*given)
    found: Two = attention_mla.redispatch(keys & AFTER_AUTOGRAD, *given)
    return found


for _key in KERNELS:
    _library.impl("attention_mla", _compute, _key.name)
torch.library.register_fake("warpwright::attention_mla", _fake, lib=_library)
_library.impl("attention_mla", _autograd, "Autograd", with_keyset=True)
