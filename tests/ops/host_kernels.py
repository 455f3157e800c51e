"""Attention kernels in NumPy, for plans bound to a GPU whose memory is host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from warpwright.kernels.attention import Problem, reference

__all__ = ["bind_host", "memory"]

FLOAT32 = np.dtype(np.float32)


def memory(pointer: int, layout: Any) -> Any:
    """Returns the array at an address."""
    shape, strides, dtype = layout
    reach = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True)) + dtype.itemsize
    raw = np.frombuffer((ctypes.c_uint8 * reach).from_address(pointer), np.uint8)
    return np.ndarray(shape, dtype, raw, strides=strides)


def bind_host(problem_of: Callable[[Any, Any], Problem], note: Callable[[Any, dict[str, Any], int], None]) -> Any:
    """Stands for `binding.bind`: each launch passes its plan, values and stream to ``note``, and computes with
    NumPy."""

    def bind(plan: Any, layouts: Any, device: Any) -> Any:
        known = dict(layouts)

        def at(values: tuple[Any, ...], stream: int) -> tuple[Any, ...]:
            given = dict(zip(known, values, strict=True))

            def launch() -> None:
                note(plan, given, stream)
                compute(problem_of(plan, known), known, given)

            return (launch,)

        return at

    return bind


def compute(problem: Problem, known: dict[str, Any], given: dict[str, Any]) -> None:
    """Compute attention, with first rows that of packed sequences, or gradients."""
    array = {name: memory(given[name], layout) for name, layout in known.items() if layout and given[name]}
    if "dq" in known:
        found = reference.gradients(problem, *(array[name] for name in ("q", "k", "v", "do")))
        for name, each in zip(("dq", "dk", "dv"), found, strict=True):
            array[name][...] = each
        return
    q, k, v, o = (array[name] for name in "qkvo")
    if "cu_seqlens_q" in array:
        o[...], logs = reference.attention_varlen(problem, q, k, v, array["cu_seqlens_q"], array["cu_seqlens_k"])
    else:
        o[...], logs = reference.attention(problem, q, k, v)
    if "lse" in array:
        array["lse"][...] = logs
