"""``torch.ops.warpwright.attention_modified``: `warpwright.attention` with soft caps, sinks and functions of the user
as an operator of torch, and `AttentionMods`, which holds functions for it.

`warpwright.interop.torch` imports this module, which registers the operator. It works under ``torch.compile`` and in
CUDA graphs, on Hopper and without gradients. Tensors on the CPU go to the virtual ``h200``. An operator takes tensors
and numbers, so functions are stored here under a key, and the tensors that they capture are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet

from warpwright.arrays.libraries import LIBRARIES
from warpwright.errors import UsageError
from warpwright.interop.attention import new_results
from warpwright.interop.dispatch import AFTER_AUTOGRAD, KERNELS
from warpwright.kernels.attention.mods import Function
from warpwright.ops.attention import forward
from warpwright.ops.attention.mods import Arrays

__all__ = ["AttentionMods", "attention_modified"]

SCHEMA = (
    "attention_modified(Tensor q, Tensor k, Tensor v, Tensor[] captured, Tensor? sinks=None, float? softcap=None, "
    "str functions='', bool causal=False, float? scale=None, int? left=None, int? right=None, str layout='bhsd') "
    "-> (Tensor, Tensor)"
)
Two = tuple[Tensor, Tensor]
Functions = tuple[Function | None, Function | None]

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
attention_modified = torch.ops.warpwright.attention_modified.default

_functions: dict[str, Functions] = {"": (None, None)}
_keys: dict[Functions, str] = {}


class AttentionMods:
    """A ``score_mod`` and a ``mask_mod`` of `warpwright.attention` for torch: ``alibi = AttentionMods(score_mod)``,
    then ``alibi(q, k, v, causal=True)``, also inside ``torch.compile``.

    Returns the result and the log-sum-exp. The functions are read once; the tensors that they capture are read at every
    call, so their values may change. ``key`` and ``captured`` are the arguments ``functions`` and ``captured`` of
    ``torch.ops.warpwright.attention_modified``.
    """

    def __init__(self, score_mod: Callable[..., Any] | None = None, mask_mod: Callable[..., Any] | None = None) -> None:
        arrays = Arrays(LIBRARIES["torch"], None)
        with torch.no_grad():  # the operator refuses tensors that require gradients
            functions = arrays.function("score_mod", score_mod), arrays.function("mask_mod", mask_mod)
        names = "_".join(each.name for each in functions if each is not None)
        self.key = _keys.setdefault(functions, f"{names}_{len(_keys)}")
        self.captured: list[Tensor] = arrays.captured
        _functions[self.key] = functions

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        softcap: float | None = None,
        causal: bool = False,
        scale: float | None = None,
        left: int | None = None,
        right: int | None = None,
        layout: str = "bhsd",
    ) -> Two:
        options = sinks, softcap, self.key, causal, scale, left, right, layout
        found: Two = attention_modified(q, k, v, self.captured, *options)
        return found


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None = None,
    softcap: float | None = None,
    functions: str = "",
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    layout: str = "bhsd",
) -> Two:
    if functions not in _functions:
        raise UsageError(
            f"attention: functions={functions!r}; expected '' or the key of an AttentionMods: "
            "AttentionMods(score_mod).key"
        )
    score, mask = (None if each is None else each.bind(captured) for each in _functions[functions])
    window = None if left is None and right is None else (left, right)
    found: Two = forward.attention(
        q,
        k,
        v,
        causal=causal,
        scale=scale,
        window=window,
        layout=layout,
        device=None if q.is_cuda else "h200",
        return_lse=True,
        softcap=softcap,
        sinks=sinks,
        score_mod=score,
        mask_mod=mask,
    )
    return found


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None = None,
    softcap: float | None = None,
    functions: str = "",
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    layout: str = "bhsd",
) -> Two:
    return new_results(q, k, v, layout)


def _autograd(
    keys: DispatchKeySet,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None = None,
    *options: Any,
) -> Two:
    """Raise if a gradient is required; else redispatch."""
    named = [("q", q), ("k", k), ("v", v), ("sinks", sinks), *(("a captured tensor", each) for each in captured)]
    for name, tensor in named:
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                f"attention: {name} requires gradients, which soft caps, sinks and functions of the user do not have; "
                "expected torch.no_grad() around the call, or another implementation of attention"
            )
    found: Two = attention_modified.redispatch(keys & AFTER_AUTOGRAD, q, k, v, captured, sinks, *options)
    return found


for _key in KERNELS:
    _library.impl("attention_modified", _compute, _key.name)
torch.library.register_fake("warpwright::attention_modified", _fake, lib=_library)
_library.impl("attention_modified", _autograd, "Autograd", with_keyset=True)
