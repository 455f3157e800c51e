"""What the tests of kernels on nodes share: arrays of all ranks, and edited PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

import warpwright as ww
from warpwright.kernels.gemm.sm90.all_gather import SENDING
from warpwright.kernels.gemm.sm90.configs import Config
from warpwright.kernels.gemm.sm90.reduce_scatter import ALONE as REDUCE_CONFIG
from warpwright.lang.trace import Traced

__all__ = [
    "BF16",
    "FP8",
    "AllReduce",
    "Gather",
    "Reduce",
    "check_text",
    "random_arrays",
    "weaken",
    "with_maps",
    "without_rank",
]

BF16, FP8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
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


def without_rank(traced: Traced, rank: int) -> Any:
    """Returns a kernel whose threads exit at once on one rank: it never makes the call."""
    peers = next(name for name, kind in traced.params if "Peers" in str(kind))
    gone = f"""{{
    .reg .pred %gone;
    .reg .b32 %mine;
    ld.param.u32 %mine, [{peers}+64];
    setp.eq.u32 %gone, %mine, {rank};
    @%gone exit;
    }}
"""
    text, edits = re.subn(r"( +\.reg \.b64 %rd<\d+>;\n)", rf"\g<1>{gone}", traced.ptx)
    assert edits == 1
    return ww.load_ptx(text)[traced.entry]


def with_maps(traced: Traced, args: Sequence[Any]) -> list[Any]:
    """Returns the arguments of a kernel for its PTX text, with tensor maps in place of arrays."""
    edited = list(args)
    for number, (parameter, _) in enumerate(traced.params):
        if parameter in traced.maps:
            use = traced.maps[parameter]
            maps = [ww.TensorMap(array, use.box, swizzle=use.swizzle) for array in args[number].values]
            edited[number] = ww.PerRank(maps)
    return edited


def check_text(traced: Traced, text: str, grid: int, args: Sequence[Any], device: str) -> ww.Verdict:
    """Returns the verdict on the text of a kernel that was edited."""
    kernel = ww.load_ptx(text)[traced.entry]
    return ww.check(kernel, grid, smem=traced.smem_bytes, args=with_maps(traced, args), device=device)


class Gather:
    """The arrays of all ranks for an all-gather and GEMM: ``rows`` of A in each."""

    def __init__(
        self, ranks: int, rows: int, n: int, k: int, config: Config = SENDING, chunk: int = 1, group: int = 1
    ) -> None:
        self.a, self.b = random_arrays(ranks, (rows, k)), random_arrays(ranks, (n, k), seed=1)
        self.d = filled(ranks, (ranks, rows, n))
        tiles = -(-rows // config.tile[0]), -(-n // config.tile[1]), -(-k // 64)
        flags = counters(ranks, ranks * tiles[0]), counters(ranks, ranks), counters(ranks, 2), counters(ranks, 1)
        arrays = self.a, filled(ranks, (ranks, rows, k)), *flags
        self.args = [*map(ww.PerRank, arrays), 0, *map(ww.PerRank, (self.b, self.d)), *tiles, chunk, group]

    def error(self) -> float:
        """Returns the largest error of D, as a share of the largest result."""
        whole = np.stack(self.a).astype(np.float64)
        expected = np.array([whole @ b.astype(np.float64).T for b in self.b])
        return float(np.abs(np.array(self.d).astype(np.float64) - expected).max() / np.abs(expected).max())


class Reduce:
    """The arrays of all ranks for a GEMM and reduce-scatter: ``rows`` of D in each."""

    def __init__(
        self,
        ranks: int,
        rows: int,
        n: int,
        k: int,
        config: Config = REDUCE_CONFIG,
        dtype: Any = BF16,
        partial: Any = np.float32,
    ) -> None:
        (tile_m, tile_n), depth = config.tile, config.depth * 128 // np.dtype(dtype).itemsize
        tiles = -(-rows // tile_m), -(-n // tile_n), -(-k // depth)
        entries = (ranks - 1) * tiles[0] * tiles[1]
        self.a = random_arrays(ranks, (ranks, rows, k), dtype)
        self.b = random_arrays(ranks, (n, k), dtype)
        self.d = filled(ranks, (rows, n), BF16 if np.dtype(dtype) == FP8 else dtype)
        partials = filled(ranks, (entries, tile_m * tile_n), partial)
        flags = counters(ranks, entries), counters(ranks, ranks), counters(ranks, 2), counters(ranks, 1)
        self.args = [*map(ww.PerRank, (self.a, self.b, self.d, partials, *flags)), 0, *tiles, 0, 0, 1.0]

    def sums(self) -> NDArray[np.float64]:
        """Returns the sums of each rank, (ranks, owners, rows, N)."""
        parts = [a.astype(np.float64) @ b.astype(np.float64).T for a, b in zip(self.a, self.b, strict=True)]
        return np.array(parts)

    def errors(self, sums: NDArray[np.float64], d_error: float, partial_error: float) -> float:
        """Returns the largest error of D, as a share of its bound: the roundings of D and of the partial sums."""
        expected = sums.sum(axis=0)
        accumulated = 2.0**-14 * np.abs(sums).max()
        bound = d_error * np.abs(expected) + partial_error * np.abs(sums).sum(axis=0) + accumulated
        return float((np.abs(np.array(self.d).astype(np.float64) - expected) / bound).max())


class AllReduce(Reduce):
    """The arrays of all ranks for a GEMM and all-reduce: ``rows`` of D of each rank, all of them on every rank."""

    def __init__(self, ranks: int, rows: int, n: int, k: int, config: Config = REDUCE_CONFIG) -> None:
        super().__init__(ranks, rows, n, k, config)
        self.d = filled(ranks, (ranks, rows, n))
        tiles_m, tiles_n, _ = self.args[9:12]
        self.args[2] = ww.PerRank(self.d)
        self.args.insert(7, ww.PerRank(counters(ranks, ranks * tiles_m * tiles_n)))
