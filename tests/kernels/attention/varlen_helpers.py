"""Packed sequences of any lengths: arrays, launches of the kernel, and comparison with float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from tests.kernels.attention.attention_helpers import SENTINEL, normal_qkv, verify
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.reference import sequences
from warpwright.layout.tensor_map import ragged
from warpwright.ops.attention.varlen import OWN
from warpwright.types import of_dtype


class Packed(NamedTuple):
    """Q, K and V of sequences that follow each other, and the offsets of the sequences."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cu_q: np.ndarray
    cu_k: np.ndarray


def starts(lengths: list[int]) -> np.ndarray:
    return np.array([0, *accumulate(lengths)], np.int32)


def pack_sequences(problem: Problem, q_lens: list[int], k_lens: list[int], seed: int = 0) -> Packed:
    """Returns sequences of normally distributed numbers, with heads, head dimension and dtype of ``problem``."""
    cu_q, cu_k = starts(q_lens), starts(k_lens)
    whole = replace(problem, batch=1, q_len=int(cu_q[-1]), kv_len=int(cu_k[-1]))
    return Packed(*(x[0].swapaxes(0, 1).copy() for x in normal_qkv(whole, seed)), cu_q, cu_k)


def verify_packed(problem: Problem, given: Packed, found: Any) -> None:
    """Assert that output (total_q, heads, head_dim) and log-sum-exp (heads, total_q) are right for each sequence."""
    out, lse = found
    unused = np.ones(len(out), bool)
    for each, rows, keys in sequences(problem, given.cu_q, given.cu_k):
        unused[rows] = False
        arrays = (x.swapaxes(0, 1)[None] for x in (given.q[rows], given.k[keys], given.v[keys]))
        verify(each, tuple(arrays), (out[rows].swapaxes(0, 1)[None], lse[None, :, rows]))
    assert not out[unused].any() and np.isneginf(lse[:, unused]).all()


def prepare_launch(
    problem: Problem, config: Any, given: Packed, sms: int = 3, arch: str = "sm_90a", target: str = ""
) -> tuple[tuple[int, int, int], Any, list[Any], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns grid, kernel, arguments and results: O, the log-sum-exp, and the counter, of the kernel for ``arch``
    compiled for ``target``."""
    q, k, v, cu_q, cu_k = given
    _, plan_varlen, kernel_of = OWN[arch]
    found = plan_varlen(replace(problem, batch=len(cu_q) - 1), len(q), len(k), sms=sms, config=config)
    kernel = kernel_of(config).trace(target or arch, dtype=of_dtype(problem.dtype), bounds=found.bounds)
    o, lse = np.full(q.shape, SENTINEL, q.dtype), np.full(q.shape[1::-1], SENTINEL, np.float32)
    counter, uses = np.zeros(1, np.uint32), [kernel.maps[name] for name in "qkvo"]
    maps = [ragged(x.swapaxes(0, 1), use.box, swizzle=use.swizzle) for x, use in zip((q, k, v, o), uses, strict=True)]
    counted = [counter] * ("counter" in dict(kernel.params))
    return found.grid, kernel, [*maps, lse, *counted, cu_q, cu_k, *found.scalars], (o, lse, counter)
