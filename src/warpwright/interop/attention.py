"""``torch.ops.warpwright.attention``: `warpwright.attention` as an operator of torch, and a replacement of torch's
``scaled_dot_product_attention``.

`warpwright.interop.torch` imports this module, which registers the operator. It works under ``torch.compile`` and in
CUDA graphs, and runs on the current stream. Tensors on the CPU are computed by the default device, a virtual GPU where
there is no real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet

from warpwright.arrays.libraries import LIBRARIES, tensor_guard
from warpwright.errors import UsageError
from warpwright.interop.attention_grad import (
    DEFAULTS,
    AttentionFunction,
    bind_function,
    has_deterministic_kernel,
    has_gradient_kernel,
)
from warpwright.interop.dispatch import (
    AFTER_AUTOGRAD,
    KERNELS,
    autograd_calls_kernel,
    function_mode_enabled,
    needs_conversion,
    profiler_enabled,
)
from warpwright.kernels.attention.problem import GREATEST_SCALE, SMALLEST_SCALE
from warpwright.ops.attention import forward, plan
from warpwright.ops.attention.backward import GREATEST_HEADS
from warpwright.ops.attention.bound_call import BoundCall
from warpwright.ops.hooks import replace_class
from warpwright.ops.memo import MEMO

__all__ = ["attention", "new_results", "operator", "scaled_dot_product_attention"]

SCHEMA = (
    "attention(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, int? left=None, int? right=None, "
    "str layout='bhsd', bool deterministic=False) -> (Tensor, Tensor)"
)
HALVES = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM, HEAD_STEP = 256, 8
CAPABILITIES = {(9, 0), (10, 0), (12, 0)}  # of GPUs with kernels
Call = Callable[[Sequence[Any]], Any]

torch_attention = torch.nn.functional.scaled_dot_product_attention  # a program may replace it by the function below

_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
attention = torch.ops.warpwright.attention.default


class Operator(type(torch.ops.warpwright.attention)):  # type: ignore[misc]
    """``torch.ops.warpwright.attention``, which runs calls of the memo without torch's dispatcher (`dispatch`)."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = False,
        scale: float | None = None,
        left: int | None = None,
        right: int | None = None,
        layout: str = "bhsd",
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        given, options = (q, k, v), (causal, scale, left, right, layout, deterministic)
        if function_mode_enabled() or profiler_enabled():
            return super().__call__(*given, *options)  # type: ignore[no-any-return]
        kinds = scale.__class__, left.__class__, right.__class__
        key = "operator", options, kinds, plan.read_setting()
        call = MEMO.get(given, key) or _learn_call(given, key, options)
        found: tuple[Tensor, Tensor] | None = None if call is None else call(given)
        return super().__call__(*given, *options) if found is None else found


operator = torch.ops.warpwright.attention
replace_class(operator, Operator)


def _learn_call(given: tuple[Tensor, Tensor, Tensor], key: tuple[Any, ...], options: tuple[Any, ...]) -> Call | None:
    """Returns the operator's call of the memo, and stores it under ``key`` too, for a single lookup next time."""
    call = _memo_call(given, *options)
    if call is not None:
        _put(given, key, call)
    return call


def _memo_call(
    given: tuple[Tensor, Tensor, Tensor],
    causal: Any,
    scale: Any,
    left: Any,
    right: Any,
    layout: Any,
    deterministic: Any = False,
) -> Call | None:
    """Returns the bound call of the operator; None if the memo has none, or torch would convert or refuse an option."""
    if needs_conversion(scale, left, right):
        return None
    options = _options(causal, scale, left, right, layout)
    return MEMO.get(given, ("attention", *options)) or MEMO.get(given, ("recorded", deterministic, options))


def _options(
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    layout: str = "bhsd",
) -> tuple[Any, ...]:
    """Returns the options of `warpwright.attention` by which the memo knows a call of the operator."""
    window = None if left is None and right is None else (left, right)
    return causal, scale, window, layout, None, True, plan.read_setting()


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    layout: str = "bhsd",
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    """Computes attention; returns the result and the log-sum-exp. ``left`` and ``right`` bound the window of keys;
    ``deterministic`` is for the gradients."""
    window = None if left is None and right is None else (left, right)
    found: tuple[Tensor, Tensor] = forward.attention(
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
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    return new_results(q, k, v, layout)


def new_results(q: Tensor, k: Tensor, v: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Returns tensors of the shapes, strides and dtypes of the result and the log-sum-exp, without values."""
    torch._check(q.ndim == 4 and k.shape[:-1] == v.shape[:-1], lambda: f"attention: k is {k.shape} and v is {v.shape}")
    torch._check(q.shape[3] == k.shape[3], lambda: f"attention: q is {q.shape} and k is {k.shape}")
    (batch, first, second, _), columns = q.shape, v.shape[3]
    heads, rows = (first, second) if layout == "bhsd" else (second, first)
    swapped = q.stride(1) < q.stride(2) and first != 1 and second != 1
    shape = (batch, second, first, columns) if swapped else (batch, first, second, columns)
    result = q.new_empty(shape)
    return result.transpose(1, 2) if swapped else result, q.new_empty((batch, heads, rows), dtype=torch.float32)


def _autograd(keys: DispatchKeySet, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Record the call if a gradient is required, or raise if there is no kernel for the gradient; else call the kernel,
    or redispatch if a mode, subclass or transform is active."""
    at_once = autograd_calls_kernel(keys.raw_repr())
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.requires_grad and torch.is_grad_enabled():
            if has_gradient_kernel(q) and q.shape[-1] == v.shape[-1]:
                every = *options, *DEFAULTS[len(options) :]
                return (
                    _record(q, k, v, every)
                    if at_once
                    else AttentionFunction.apply(_compute_below_autograd(keys), every, q, k, v)
                )
            known = ", ".join(f"{target} up to {most}" for target, most in GREATEST_HEADS.items())
            raise UsageError(
                f"attention: {name} requires gradients, for which there are kernels if q and v have the same head "
                f"dimension, on {known}; given {q.shape[-1]} and {v.shape[-1]}; expected {name}.detach(), or torch's "
                "own scaled_dot_product_attention"
            )
    if at_once:
        return _compute(q, k, v, *options)
    found: tuple[Tensor, Tensor] = attention.redispatch(keys & AFTER_AUTOGRAD, q, k, v, *options)
    return found


def _compute_below_autograd(keys: DispatchKeySet) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns a function that redispatches a call below autograd, to be recorded."""

    def compute(*given: Any) -> tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            found: tuple[Tensor, Tensor] = attention.redispatch(keys & AFTER_AUTOGRAD, *given)
        return found

    return compute


def _record(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Runs a call whose gradients autograd records, puts the call into the memo, and returns the result."""
    given = q, k, v
    found: tuple[Tensor, Tensor] = AttentionFunction.apply(_compute, options, *given)
    *shown, deterministic = options
    key = _options(*shown)
    with torch.no_grad():
        bound = MEMO.get(given, ("attention", *key))
    if bound is not None:
        record = bind_function(bound, _compute, options)
        _put(given, ("recorded", deterministic, key), lambda given: record(*given))
    return found


def _put(given: tuple[Tensor, ...], options: tuple[Any, ...], call: Call) -> None:
    """Put ``call`` into the memo for tensors that differ from ``given`` in no more than their addresses. One guard
    compares whether gradients are recorded: that of the first tensor that requires them."""
    if MEMO.get(given, options) is not None:
        return
    recorded = next((x for x in given if x.requires_grad), None)
    found = [LIBRARIES["torch"].guard(x) if x is recorded else tensor_guard(x) for x in given]
    guards = tuple(guard for guard in found if guard is not None)
    if len(guards) == len(given):
        MEMO.put(given, options, guards, call)


for _key in KERNELS:
    _library.impl("attention", _compute, _key.name)
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
    """`torch.nn.functional.scaled_dot_product_attention`, by warpwright's kernels if they support the call.

    The kernels support tensors (batch, heads, rows, head_dim) of bfloat16 or float16 on a Hopper or Blackwell GPU,
    without ``attn_mask`` and dropout; with gradients up to a head dimension of 128, but on sm_100a not if torch may use
    only deterministic algorithms. torch computes all other calls. ``is_causal`` is torch's
    mask, aligned top left: query i sees keys 0 to i. The mask ``causal=True`` of `warpwright.attention` is aligned
    bottom right, which differs if the numbers of queries and keys differ.
    """
    eager, given = not torch.compiler.is_compiling(), (query, key, value)
    if eager and attn_mask is None and dropout_p == 0 and not function_mode_enabled() and not profiler_enabled():
        call = MEMO.get(given, _stand_in_options(is_causal, scale, enable_gqa))
        found: Tensor | None = None if call is None else call(given)
        if found is not None:
            return found
    if not _has_kernels(query.device) or not _supported(query, key, value, attn_mask, dropout_p, scale, enable_gqa):
        return torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    result = _aligned_top_left(query, key, value, is_causal, scale)
    if eager:
        _put_stand_in(given, is_causal, scale, enable_gqa)
    return result


def _stand_in_options(is_causal: bool, scale: float | None, enable_gqa: bool) -> tuple[Any, ...]:
    """Returns the memo's key of a call without its tensors; the classes tell 1 from True, and a tensor from a
    number."""
    kinds = is_causal.__class__, scale.__class__
    return (
        "stand_in",
        is_causal,
        scale,
        enable_gqa,
        kinds,
        torch.are_deterministic_algorithms_enabled(),
        plan.read_setting(),
    )


def _put_stand_in(given: tuple[Tensor, Tensor, Tensor], is_causal: bool, scale: float | None, enable_gqa: bool) -> None:
    """Put the operator's bound call for these tensors into the memo as a call of the function."""
    query, key, _ = given
    rows, keys = query.shape[2], key.shape[2]
    if not is_causal or rows >= keys:
        call = _memo_call(given, *_mask(rows, keys, is_causal, scale), "bhsd")
        if call is not None:
            _put(given, _stand_in_options(is_causal, scale, enable_gqa), _without_lse(call))


def _without_lse(call: Call) -> Call:
    """Returns the call for its result alone; a call that records no gradient needs no log-sum-exp."""
    return replace(call, new_lse=None) if isinstance(call, BoundCall) else lambda given: call(given)[0]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in CAPABILITIES


def _supported(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
) -> bool:
    """Returns whether a kernel computes this call as torch would."""
    four = query.ndim == key.ndim == value.ndim == 4 and key.shape == value.shape
    if attn_mask is not None or dropout_p or not four or 0 in query.shape or 0 in key.shape:
        return False
    differentiable = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    in_order = torch.are_deterministic_algorithms_enabled()
    heads = query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
    head_dim = query.shape[3]
    return (
        (not differentiable or (has_gradient_kernel(query) and (has_deterministic_kernel(query) or not in_order)))
        and heads
        and query.dtype in HALVES
        and query.dtype == key.dtype == value.dtype
        and query.device == key.device == value.device
        and query.shape[0] == key.shape[0]
        and head_dim == key.shape[3]
        and head_dim <= MAX_HEAD_DIM
        and head_dim % HEAD_STEP == 0
        and (scale is None or SMALLEST_SCALE <= scale <= GREATEST_SCALE)
    )


def _aligned_top_left(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    """Returns attention with torch's mask. Both alignments are equal for equal lengths: keys that no query sees are
    cut off, or with more queries than keys ``right`` moves the mask."""
    rows, keys = query.shape[2], key.shape[2]
    if is_causal and rows < keys:
        key, value, keys = key[:, :, :rows], value[:, :, :rows], rows
    found: Tensor = operator(query, key, value, *_mask(rows, keys, is_causal, scale))[0]
    return found


def _mask(rows: int, keys: int, is_causal: bool, scale: float | None) -> tuple[bool, float | None, None, int | None]:
    """Returns the operator's ``causal``, ``scale``, ``left`` and ``right`` for torch's mask, if no key is cut off."""
    more_rows = is_causal and rows > keys
    return is_causal and not more_rows, scale, None, rows - keys if more_rows else None
