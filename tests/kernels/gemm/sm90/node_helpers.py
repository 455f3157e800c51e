"""What the tests of kernels on nodes share: arrays of all ranks, and edited PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

import warpwright as ww
from warpwright.lang.trace import Traced

__all__ = ["BF16", "check_text", "counters", "filled", "random_arrays", "weaken"]

BF16 = np.dtype(ml_dtypes.bfloat16)
Arrays = list[NDArray[Any]]


def random_arrays(ranks: int, shape: tuple[int, ...], dtype: DTypeLike = BF16, seed: int = 0) -> Arrays:
    """Returns an array of random numbers for each rank."""
    random = np.random.default_rng([seed, ranks, *shape])
    return [random.standard_normal(shape, np.float32).astype(dtype) for _ in range(ranks)]


def filled(ranks: int, shape: tuple[int, ...], dtype: DTypeLike = BF16) -> Arrays:
    """Returns an array of NaN for each rank."""
    return [np.full(shape, np.nan, dtype) for _ in range(ranks)]


def counters(ranks: int, count: int) -> Arrays:
    """Returns counters or flags, all 0, for each rank."""
    return [np.zeros(count, np.uint32) for _ in range(ranks)]


def weaken(text: str, edit: tuple[str, str], number: int, each: int) -> str:
    """Returns PTX with an edit, a pattern and its replacement, of match ``number`` of every ``each`` matches."""
    pattern, replacement = edit
    found = list(re.finditer(pattern, text))
    assert found and len(found) % each == 0
    for match in reversed(found[number::each]):
        text = text[: match.start()] + match.expand(replacement) + text[match.end() :]
    return text


def check_text(traced: Traced, text: str, grid: int, args: Sequence[Any], device: str) -> ww.Verdict:
    """Returns the verdict on the text of a kernel that was edited."""
    kernel = ww.load_ptx(text)[traced.entry]
    edited = list(args)
    for number, (parameter, _) in enumerate(traced.params):
        if parameter in traced.maps:
            use = traced.maps[parameter]
            maps = [ww.TensorMap(array, use.box, swizzle=use.swizzle) for array in args[number].values]
            edited[number] = ww.PerRank(maps)
    return ww.check(kernel, grid, smem=traced.smem_bytes, args=edited, device=device)
