"""``torch.ops.warpwright.attention_modified``: `warpwright.attention` with soft caps, sinks and functions of the user
as an operator of torch, and `AttentionMods`, which holds functions for it.

`warpwright.interop.torch` imports this module, which registers the operator and that of its gradients. They work under
``torch.compile`` and in CUDA graphs, on Hopper, gradients up to a head dimension of 128. Tensors on the CPU go to the
virtual ``h200``. An operator takes tensors and numbers, so functions are stored here under a key, and the tensors that
they capture are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet
from torch.autograd.function import once_differentiable

from warpwright.arrays.libraries import LIBRARIES
from warpwright.errors import UsageError
from warpwright.interop.attention import new_results
from warpwright.interop.attention_grad import (
    has_deterministic_kernel,
    has_gradient_kernel,
    is_deterministic,
    new_gradient,
)
from warpwright.interop.dispatch import AFTER_AUTOGRAD, KERNELS
from warpwright.kernels.attention.mods import Function
from warpwright.ops.attention import forward
from warpwright.ops.attention.backward import GREATEST_HEADS, gradients
from warpwright.ops.attention.mods import Arrays

__all__ = ["AttentionMods", "attention_modified"]

SCHEMA = (
    "attention_modified(Tensor q, Tensor k, Tensor v, Tensor[] captured, Tensor? sinks=None, float? softcap=None, "
    "str functions='', bool causal=False, float? scale=None, int? left=None, int? right=None, str layout='bhsd', "
    "bool deterministic=False) -> (Tensor, Tensor)"
)
BACKWARD_SCHEMA = (
    "attention_modified_backward(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    "Tensor[] captured, Tensor? sinks, float? softcap, str functions, bool causal, float? scale, int? left, "
    "int? right, str layout, bool deterministic=False) -> Tensor[]"
)
DEFAULTS = (None, "", False, None, None, None, "bhsd", False)  # of the options from softcap on
Two = tuple[Tensor, Tensor]
Functions = tuple[Function | None, Function | None]

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_library.define(BACKWARD_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_differentiate = torch.ops.warpwright.attention_modified_backward.default
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
        with torch.no_grad():  # captured tensors are read by their addresses
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
    deterministic: bool = False,
) -> Two:
    options = _keywords(q, captured, sinks, softcap, functions, causal, scale, left, right, layout)
    found: Two = forward.attention(q, k, v, return_lse=True, **options)
    return found


def _keywords(
    q: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None,
    softcap: float | None,
    functions: str,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
    layout: str,
) -> dict[str, Any]:
    """Returns the options of the operator as `warpwright.attention` takes them."""
    if functions not in _functions:
        raise UsageError(
            f"attention: functions={functions!r}; expected '' or the key of an AttentionMods: "
            "AttentionMods(score_mod).key"
        )
    score, mask = (None if each is None else each.bind(captured) for each in _functions[functions])
    given: dict[str, Any] = {
        "causal": causal,
        "scale": scale,
        "layout": layout,
        "device": None if q.is_cuda else "h200",
    }
    given |= {"window": None if left is None and right is None else (left, right)}
    return given | {"softcap": softcap, "sinks": sinks, "score_mod": score, "mask_mod": mask}


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
    deterministic: bool = False,
) -> Two:
    return new_results(q, k, v, layout)


def _backward(
    do: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None,
    *options: Any,
) -> list[Tensor]:
    every = *options, *DEFAULTS[len(options) :]
    keywords = _keywords(q, captured, sinks, *every[:-1])
    keywords["deterministic"] = is_deterministic(
        every[-1], keywords["mask_mod"] is None and has_deterministic_kernel(q)
    )
    return list(gradients(q, k, v, o, lse, do, dlse=dlse, **keywords))


def _fake_backward(
    do: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None,
    *_: Any,
) -> list[Tensor]:
    return [*map(new_gradient, (q, k, v)), *([] if sinks is None else [sinks.new_empty(sinks.shape)])]


class ModifiedFunction(torch.autograd.Function):  # type: ignore[misc]
    """Computes ``compute`` and saves what its gradients need; the inputs after ``sinks`` are the captured tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Two],
        options: tuple[Any, ...],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        *captured: Tensor,
    ) -> Two:
        o, lse = compute(q, k, v, list(captured), sinks, *options)
        ctx.save_for_backward(q, k, v, o, lse, sinks, *captured)
        ctx.options = (*options, *DEFAULTS[len(options) :])
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse, sinks, *captured = ctx.saved_tensors
        nothing = (None,) * len(captured)
        if do is None and dlse is None:
            return *((None,) * 6), *nothing
        do = torch.zeros_like(o) if do is None else do
        dq, dk, dv, *rest = _differentiate(do, dlse, q, k, v, o, lse, captured, sinks, *ctx.options)
        return None, None, dq, dk, dv, rest[0] if rest else None, *nothing


def _autograd(
    keys: DispatchKeySet,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    captured: list[Tensor],
    sinks: Tensor | None = None,
    *options: Any,
) -> Two:
    """Record the call if a gradient is required, or raise if there is no kernel for the gradient; else redispatch."""

    def compute(*given: Any) -> Two:
        with torch._C._AutoDispatchBelowAutograd():
            found: Two = attention_modified.redispatch(keys & AFTER_AUTOGRAD, *given)
        return found

    if not torch.is_grad_enabled() or not _requires_gradients(q, k, v, captured, sinks):
        return compute(q, k, v, captured, sinks, *options)
    found: Two = ModifiedFunction.apply(compute, options, q, k, v, sinks, *captured)
    return found


def _requires_gradients(q: Tensor, k: Tensor, v: Tensor, captured: list[Tensor], sinks: Tensor | None) -> bool:
    """Returns whether a gradient is required. Raises UsageError if a required gradient has no kernel."""
    if any(each.requires_grad for each in captured):
        raise UsageError(
            "attention: a captured tensor requires gradients, which functions of the user do not have by what they "
            "capture; expected .detach() of it, or another implementation of attention"
        )
    found = [name for name, x in (("q", q), ("k", k), ("v", v), ("sinks", sinks)) if x is not None and x.requires_grad]
    if found and not has_gradient_kernel(q):
        raise UsageError(
            f"attention: {found[0]} requires gradients, for which there are kernels up to a head dimension of "
            f"{GREATEST_HEADS['sm_90a']}; expected torch.no_grad() around the call, or another implementation of "
            "attention"
        )
    return bool(found)


for _key in KERNELS:
    _library.impl("attention_modified", _compute, _key.name)
    _library.impl("attention_modified_backward", _backward, _key.name)
torch.library.register_fake("warpwright::attention_modified", _fake, lib=_library)
torch.library.register_fake("warpwright::attention_modified_backward", _fake_backward, lib=_library)
_library.impl("attention_modified", _autograd, "Autograd", with_keyset=True)
