"""Peers of attention on a real GPU: torch's backends, and the kernels of ``flash-attn-4`` where that is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from warpwright.kernels.attention import Problem
from warpwright.ops.attention import trials

NEWEST = "flash4"  # https://pypi.org/project/flash-attn-4
NAMES = [*trials.PEERS, NEWEST] if find_spec("flash_attn") else [*trials.PEERS]


def attention(name: str, problem: Problem, tensors: Sequence[Any]) -> Any:
    """Returns attention of arrays (batch, heads, tokens, head_dim) by the peer ``name``."""
    if name != NEWEST:
        return trials.peer(name, problem, tensors)
    from flash_attn.cute import flash_attn_func

    options = {"causal": problem.causal, "softmax_scale": problem.factor}
    found = flash_attn_func(*(tensor.transpose(1, 2) for tensor in tensors), **options)
    return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)


def over_the_fastest(times: Mapping[str, float], ours: str) -> float:
    """Returns the speed of ``ours`` over that of the fastest peer."""
    return round(min(times[name] for name in NAMES) / times[ours], 3)
