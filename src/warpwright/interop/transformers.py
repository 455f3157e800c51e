"""Hugging Face transformers with ``attn_implementation="warpwright"``: `register`.

A model then computes attention by warpwright's kernels, with gradients, sliding windows, grouped heads, soft caps and
sinks. Padding at either end of a sequence is skipped, and its rows have output 0. What no kernel computes raises
UsageError; ``attn_implementation="sdpa"`` or ``"eager"`` computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from warpwright.errors import UsageError
from warpwright.interop import bshd
from warpwright.interop.attention_modified import AttentionMods, attention_modified
from warpwright.interop.bshd import Options
from warpwright.interop.padding import cumulative_lengths

__all__ = ["NAME", "attention", "attention_mask", "register"]

NAME = "warpwright"
# Mask functions of transformers are known by their code: those that a window makes are closures.
CAUSAL, BIDIRECTIONAL = masking_utils.causal_mask_function.__code__, masking_utils.bidirectional_mask_function.__code__
PACKED = masking_utils.packed_sequence_mask_function(None).__code__
REMAPPED = tuple(  # in late releases: of positions that begin again at a packed sequence
    getattr(masking_utils, name)(None, None).__code__
    for name in ("remap_positions_for_packed_sequence",)
    if hasattr(masking_utils, name)
)
WINDOWS = tuple(
    getattr(masking_utils, name)(1).__code__
    for name in ("sliding_window_overlay", "sliding_window_bidirectional_overlay")
    if hasattr(masking_utils, name)
)
BOTH = masking_utils.and_masks().__code__
PACKED_SEQUENCES = (
    "attention: given position_ids of packed sequences; expected one sequence in each row and padding after it, or "
    'attn_implementation="sdpa"'
)
OTHER_MASK = (
    'attention: given a mask by {}; expected causal and sliding-window masks and padding, or attn_implementation="sdpa"'
)
_known_lengths = WeakTensorKeyDictionary()  # of a mask: the same tensor comes to every layer


def register() -> None:
    """Let transformers know ``attn_implementation="warpwright"``: the attention function and the mask function.

    ``AutoModelForCausalLM.from_pretrained(…, attn_implementation="warpwright", dtype="bfloat16")``.
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, attention_mask)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function of a layer: q, k and v (batch, heads, rows, head_dim) to (batch, rows, heads, head_dim).

    ``attention_mask`` is None or what `attention_mask` here returned, (batch, keys) of bool: the keys that are no
    padding. ``s_aux`` are sinks. Packed sequences come with ``cu_seq_lens_q`` and ``cu_seq_lens_k``, in a batch of one.
    """
    _check(dropout, attention_mask, others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    left = None if sliding_window is None or sliding_window >= key.shape[2] else sliding_window - 1
    sinks = None if s_aux is None else s_aux.float()
    options = Options(bool(causal), scaling, left, None if causal else left, softcap, sinks)
    q, k, v = (x.transpose(1, 2) for x in _halves(query, key, value))
    if others.get("cu_seq_lens_q") is not None:
        return _packed(q, k, v, others, options), None
    if attention_mask is None:
        return bshd.attention(q, k, v, options)[0], None
    return _padded(q, k, v, attention_mask, options), None


def _check(dropout: float, mask: Tensor | None, others: dict[str, Any]) -> None:
    if dropout:
        raise UsageError(
            f"attention: dropout={dropout}; expected 0.0, for no kernel drops weights: attention_dropout=0.0 in the "
            'config, or attn_implementation="sdpa"'
        )
    if others.get("output_attentions"):
        raise UsageError(
            "attention: output_attentions=True; expected False, for no kernel stores weights, or "
            'attn_implementation="eager"'
        )
    if others.get("position_bias") is not None:
        raise UsageError('attention: given position_bias, which no kernel adds; expected attn_implementation="sdpa"')
    if mask is not None and (mask.ndim != 2 or mask.dtype != torch.bool):
        raise UsageError(
            f"attention: attention_mask is {mask.dtype} {tuple(mask.shape)}; expected (batch, keys), 1 for tokens and "
            '0 for padding, or attn_implementation="sdpa"'
        )


def _halves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns the tensors, rounded to the dtype of autocast where float32 comes from it."""
    kind = tensors[0].device.type
    if torch.is_autocast_enabled(kind):
        return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)
    return tensors


def _packed(q: Tensor, k: Tensor, v: Tensor, others: dict[str, Any], options: Options) -> Tensor:
    """Returns attention of the packed sequences of a batch of one."""
    lengths = others["cu_seq_lens_q"].int(), others["cu_seq_lens_k"].int()
    return bshd.attention_varlen(q[0], k[0], v[0], *lengths, options)[0][None]


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Returns attention without the padding that ``mask`` marks; padding queries have output 0."""
    recorded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if recorded and (options.changes or (options.causal and q.shape[1] == k.shape[1])):
        return _padded_with_gradients(q, k, v, mask, options)
    if options.changes:
        return _padded_with_changes(q, k, v, mask, options)
    batch, rows = q.shape[:2]
    lengths = _lengths(mask, rows, options.causal or options.left is not None)
    out, _ = bshd.attention_varlen(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *lengths, options)
    return out.unflatten(0, (batch, rows))


def _padded_with_changes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Returns attention with a soft cap or sinks, which packed sequences do not have: a mask function hides padding."""
    first, end = _extent(mask)
    captured = [_first_place(end, q.shape[1], mask.shape[1]), end, first]
    key = _padding_key(options.causal, options.left, options.right)
    changes = options.sinks, options.softcap, key, False, options.scale, None, None, "bshd"
    out: Tensor = attention_modified(q, k, v, captured, *changes)[0]
    return out


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _padding_key(causal: bool, left: int | None, right: int | None) -> str:
    """Returns the key of the mask function for sequences from ``first`` to ``end``."""
    begin, end, first = (torch.zeros(1, dtype=torch.int32) for _ in range(3))  # captured in the order of their names

    def padding(batch: Any, head: Any, q: Any, k: Any) -> Any:
        place, seen = q + begin[0], (k >= first[batch]) & (k < end[batch])
        seen = seen & (k <= place) if causal else seen
        seen = seen if left is None else seen & (k >= place - left)
        return seen if right is None else seen & (k <= place + right)

    return AttentionMods(mask_mod=padding).key


def _lengths(mask: Tensor, rows: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Returns the cumulative lengths of queries and keys, found once for all layers."""
    if torch.compiler.is_compiling():
        return _find_lengths(mask, rows, aligned)
    found: dict[tuple[int, bool], tuple[Tensor, Tensor]] = _known_lengths.setdefault(mask, {})
    if (rows, aligned) not in found:
        found[rows, aligned] = _find_lengths(mask, rows, aligned)
    return found[rows, aligned]


def _find_lengths(mask: Tensor, rows: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """The keys of a sequence are those of the mask. Its queries are all, or where positions count (``aligned``) those
    at the positions of its keys; the last query is at the last key of all sequences."""
    keys = mask.shape[1]
    first, end = _extent(mask)
    zeros = torch.zeros_like(first)
    if not aligned:
        return cumulative_lengths((zeros, zeros + rows), (first, end), rows, keys)
    begin = _first_place(end, rows, keys)
    first_q, end_q = ((each - begin).clamp(0, rows) for each in (first, end))
    return cumulative_lengths((first_q, end_q), (first, end), rows, keys)


def _first_place(end: Tensor, rows: int, keys: int) -> Tensor:
    """Returns the place of query 0 among the keys, (1,): the last query is at the last key of all sequences."""
    return torch.zeros_like(end[:1]) if keys == rows else end.amax(0, keepdim=True) - rows


def _extent(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first token and the end of the tokens of each row, int32; 0 and 0 for a row without tokens."""
    places = torch.arange(mask.shape[1], dtype=torch.int32, device=mask.device)
    end = torch.where(mask, places + 1, 0).amax(1)
    return torch.minimum(torch.where(mask, places, mask.shape[1]).amin(1).int(), end), end


def _padded_with_gradients(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
    """Returns attention of sequences rotated to their first token: a causal mask then hides the padding after them."""
    rows, keys = q.shape[1], k.shape[1]
    if not options.causal or rows != keys:
        raise UsageError(
            f"attention: given padding, {', '.join(options.changes)}, {rows} queries and {keys} keys that require "
            f"gradients, and causal={options.causal}; expected a causal mask and as many queries as keys, "
            'torch.no_grad(), or attn_implementation="sdpa"'
        )
    first, places = _extent(mask)[0][:, None], torch.arange(rows, device=mask.device)
    q, k, v = (_select_rows(x, (places + first) % rows) for x in (q, k, v))
    out = _select_rows(bshd.attention(q, k, v, options)[0], (places - first) % rows)
    return out.masked_fill(~mask[:, :, None, None], 0)


def _select_rows(x: Tensor, index: Tensor) -> Tensor:
    return x.take_along_dim(index[:, :, None, None], 1)


def attention_mask(
    *,
    batch_size: int,
    kv_length: int,
    q_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    cache_position: Tensor | None = None,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor | None:
    """The mask function: None, or (batch, keys) of bool, where keys are padding or empty rows of a static cache.

    Raises UsageError for masks that are neither causal, sliding windows nor padding at the ends of sequences.
    """
    causal, aligned = _check_functions(mask_function)
    if cache_position is not None:  # in early releases of transformers 5
        q_length, q_offset, device = cache_position.shape[0], cache_position[0], cache_position.device
    stop = q_offset + q_length - kv_offset if causal and q_length is not None else kv_length
    mask = None if attention_mask is None else _section(attention_mask, kv_offset, kv_length)
    if isinstance(stop, Tensor) or stop < kv_length:
        seen = torch.arange(kv_length, device=device) < stop
        mask = seen.expand(batch_size, -1) if mask is None else mask & seen.to(mask.device)
    if mask is None or torch.compiler.is_compiling():
        return mask
    if mask.all():
        return None
    _check_ends(mask, q_length == kv_length or not aligned)
    return mask


def _check_functions(function: Callable[..., Any]) -> tuple[bool, bool]:
    """Returns whether a mask is causal, and whether it depends on positions. Raises UsageError unless options of a
    kernel express it."""
    causal = aligned = False
    for each in _parts(function):
        code = each.__code__
        causal, aligned = causal or code is CAUSAL, aligned or code is not BIDIRECTIONAL
        packed = code is PACKED or code in REMAPPED
        if packed and torch.compiler.is_compiling():  # transformers looks at the positions in eager mode only
            numbers = each.__closure__[-1].cell_contents  # of sequences, or positions
            one_sequence = numbers.diff() == (0 if code is PACKED else 1)
            torch._assert_async(one_sequence.all(), PACKED_SEQUENCES)
        elif packed:
            raise UsageError(PACKED_SEQUENCES)
        elif code is not CAUSAL and code is not BIDIRECTIONAL and code not in WINDOWS:
            raise UsageError(OTHER_MASK.format(each.__qualname__))
    return causal, aligned


def _parts(function: Any) -> Iterator[Any]:
    """Yields the mask functions of which transformers takes the intersection."""
    if function.__code__ is BOTH:
        for each in function.__closure__[0].cell_contents:
            yield from _parts(each)
        return
    yield function
    if function.__code__ in REMAPPED:
        yield from _parts(function.__closure__[0].cell_contents)


def _section(mask: Tensor, first: int, length: int) -> Tensor:
    """Returns ``length`` columns from ``first`` on; what lies beyond the end is padding."""
    missing = first + length - mask.shape[1]
    mask = torch.nn.functional.pad(mask.bool(), (0, missing)) if missing > 0 else mask.bool()
    return mask[:, first : first + length]


def _check_ends(mask: Tensor, any_end: bool) -> None:
    """Raise UsageError for padding between tokens, and unless ``any_end`` for sequences with ends of their own."""
    first, end = _extent(mask)
    inside = end - first != mask.sum(1)
    if inside.any():
        raise UsageError(
            f"attention: attention_mask has a 0 between two 1s in row {int(inside.nonzero()[0])}; expected padding "
            'before or after the tokens of a sequence, or attn_implementation="sdpa"'
        )
    if not any_end and not ((end == end.max()) | (end == 0)).all():
        raise UsageError(
            "attention: given padding after tokens, and fewer queries than keys; expected padding before them: "
            'tokenizer.padding_side = "left", or attn_implementation="sdpa"'
        )
