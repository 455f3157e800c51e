"""Attention of tensors (batch, rows, heads, head_dim), as other libraries call it: `Options`, `attention` and
`attention_varlen`, which `flash_attn` and `transformers` here share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpwright.errors import UsageError
from warpwright.interop.attention import operator
from warpwright.interop.attention_modified import AttentionMods, attention_modified
from warpwright.interop.attention_varlen import operator as varlen_operator
from warpwright.lang import f32, fma, tanh

__all__ = ["Options", "attention", "attention_varlen"]

HEAD_STEP = 8  # the head dimension of a kernel is a multiple
Two = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Options:
    """The options of a call: of `warpwright.attention`, slopes of ALiBi, (heads,) or (batch, heads) of float32, and
    whether the gradients have the same bits in every run."""

    causal: bool = False
    scale: float | None = None
    left: int | None = None
    right: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    deterministic: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        """The options that are given and that only the kernel with functions of the user has."""
        given = {"softcap": self.softcap, "sinks": self.sinks, "alibi_slopes": self.alibi_slopes}
        return {name: value for name, value in given.items() if value is not None}


def attention(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Two:
    """Returns the result and the log-sum-exp (batch, heads, rows). A head dimension that is no multiple of 8, or that
    differs between q and v, is filled up with zeros."""
    columns = v.shape[-1]
    q, k, v, scale = _same_columns(q, k, v, options.scale)
    if options.changes:
        out, lse = _with_changes(q, k, v, scale, options)
    else:
        rest = options.causal, scale, options.left, options.right, "bshd", options.deterministic
        out, lse = operator(q, k, v, *rest)
    return out[..., :columns], lse


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, options: Options) -> Two:
    """Returns the result and the log-sum-exp (heads, rows) of packed sequences."""
    for name in options.changes:
        raise UsageError(
            f"attention: given {name} and packed or padded sequences, whose kernel has none; expected one call for "
            "each sequence, q[None, first:end]"
        )
    columns = v.shape[-1]
    q, k, v, scale = _same_columns(q, k, v, options.scale)
    rest = options.causal, scale, options.left, options.right, options.deterministic
    out, lse = varlen_operator(q, k, v, cu_q, cu_k, *rest)
    return out[..., :columns], lse


def _same_columns(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor, Tensor, float | None]:
    """Returns q, k and v with the head dimension of a kernel, and the scale of the head dimension of q."""
    head_dim = q.shape[-1]
    columns = -(-max(head_dim, v.shape[-1]) // HEAD_STEP) * HEAD_STEP
    if columns != head_dim and scale is None:
        scale = head_dim**-0.5
    q, k, v = (x if x.shape[-1] == columns else _widen(x, columns) for x in (q, k, v))
    return q, k, v, scale


def _widen(x: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns - x.shape[-1]))


def _with_changes(q: Tensor, k: Tensor, v: Tensor, scale: float | None, options: Options) -> Two:
    """Returns attention with a soft cap, sinks or ALiBi."""
    softcap, key, captured = options.softcap, "", list[Tensor]()
    if options.alibi_slopes is not None:
        captured = _of_alibi(options.alibi_slopes, q, k)
        softcap, key = None, _alibi_key(options.softcap)
    changes = options.sinks, softcap, key, options.causal, scale, options.left, options.right, "bshd"
    found: Two = attention_modified(q, k, v, captured, *changes, options.deterministic)
    return found


def _of_alibi(slopes: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
    """Returns the slopes (batch, heads), and the position of query 0 among the keys."""
    batch, rows, heads, _ = q.shape
    if tuple(slopes.shape) not in ((heads,), (batch, heads)) or slopes.dtype != torch.float32:
        raise UsageError(
            f"attention: alibi_slopes is {slopes.dtype} {tuple(slopes.shape)}; expected torch.float32 ({heads},) or "
            f"({batch}, {heads}), one number for each head"
        )
    offset = torch.full((1,), k.shape[1] - rows, dtype=torch.int32, device=q.device)
    return [slopes.expand(batch, heads).contiguous(), offset]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _alibi_key(cap: float | None) -> str:
    """Returns the key of the function that subtracts slope · |distance of query and key| from the capped score."""
    a_slopes, b_offset = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int32)  # captured in the order of their names

    def alibi(score: Any, batch: Any, head: Any, q: Any, k: Any) -> Any:
        distance = abs((q - k).to(f32) + b_offset[0].to(f32))
        capped = score if cap is None else tanh(score * (1 / cap)) * cap
        return fma(-a_slopes[batch, head], distance, capped)

    return AttentionMods(alibi).key
