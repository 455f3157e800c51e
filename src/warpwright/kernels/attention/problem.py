"""An attention problem: its extents, dtype, mask and scale, checked; no array, no device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.errors import UsageError

__all__ = [
    "DTYPES",
    "FLOAT8",
    "GREATEST_SCALE",
    "HEAD_DIMS",
    "HEAD_STEP",
    "LATENT_DIM",
    "LATENT_VALUES",
    "PANEL",
    "SMALLEST_SCALE",
    "LatentProblem",
    "Problem",
    "Window",
    "width_of_gradients",
]

Window = tuple[int | None, int | None]

DTYPES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
HEAD_DIMS = (64, 128, 256)
PANEL = 64  # columns of a tensor map's box: 128 bytes, the span of the swizzle
HEAD_STEP = 8  # elements in 16 bytes, the alignment of a row of a tensor map
LATENT_DIM, LATENT_VALUES = 576, 512  # columns of a latent row, and how many of them are its value
SMALLEST_SCALE, GREATEST_SCALE = 2.0**-126, 2.0**126  # kernels take the scale as float32, times log2 e


@dataclass(frozen=True, slots=True)
class Problem:
    """softmax(``scale`` · Q·Kᵀ)·V under a mask, of Q (batch, heads, q_len, head_dim) and K and V of kv_len rows.

    K and V are (batch, kv_heads, kv_len, head_dim), but V has ``value_dim`` columns if that is given; head h of Q reads
    head h // (heads / kv_heads) of K and V. The mask is aligned bottom-right: the position of query i is key ``i +
    kv_len - q_len``. With ``causal`` a query sees no key after its position; with a ``window`` (left, right) no key
    further away than that on either side (None: any distance). A query that sees no key, or only keys of score -inf,
    has output 0 and log-sum-exp -inf. ``dtype`` is bfloat16, float16 or, for sm_90a, float8_e4m3fn; ``scale`` is 1 /
    √head_dim by default.

    Raises UsageError for extents below 1, heads that kv_heads does not divide, a head dimension above 256 or not a
    multiple of 8, another dtype, a malformed window, and a scale outside 2**-126 to 2**126.
    """

    widest: ClassVar[int] = HEAD_DIMS[-1]

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: np.dtype[Any] = DTYPES[0]
    causal: bool = False
    window: Window | None = None
    scale: float | None = None
    value_dim: int | None = None

    def __post_init__(self) -> None:
        _check_extents(self)
        _check_mask(self.window)
        _check_scale(self.scale)
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.dtype not in (*DTYPES, FLOAT8):
            raise UsageError(f"attention: given {self.dtype}; expected bfloat16 or float16: q.astype(…)")

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def columns(self) -> int:
        """The columns of V and of the output."""
        return self.value_dim or self.head_dim

    @property
    def padded_dim(self) -> int:
        """The head dimension padded to 64, 128 or 256; columns beyond ``head_dim`` are zeros."""
        return next(size for size in HEAD_DIMS if size >= self.head_dim)

    @property
    def factor(self) -> float:
        """The scale, with its default."""
        return 1.0 / math.sqrt(self.head_dim) if self.scale is None else float(self.scale)

    @property
    def offset(self) -> int:
        """The position of query 0 among the keys, negative if there are more queries than keys."""
        return self.kv_len - self.q_len

    @property
    def left(self) -> int | None:
        """How many keys before its position a query sees, None without a bound."""
        return self.window[0] if self.window else None

    @property
    def right(self) -> int | None:
        """How many keys after its position a query sees, None without a bound."""
        bound = self.window[1] if self.window else None
        return 0 if self.causal else bound

    def visible(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the first key and the key after the last (q_len,) that each query sees; equal if it sees none."""
        place = np.arange(self.q_len, dtype=np.int64) + self.offset
        first = np.zeros_like(place) if self.left is None else place - self.left
        stop = np.full_like(place, self.kv_len) if self.right is None else place + self.right + 1
        first, stop = np.clip(first, 0, self.kv_len), np.clip(stop, 0, self.kv_len)
        return first, np.maximum(first, stop)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a visible key in one head."""
        first, stop = self.visible()
        return int((stop - first).sum())

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass: two matrix multiplications over the visible pairs."""
        return 2 * self.batch * self.heads * self.pairs * (self.head_dim + self.columns)


@dataclass(frozen=True, slots=True)
class LatentProblem(Problem):
    """Multi-head latent attention (DeepSeek) after its projections were absorbed: all heads of Q share one head of
    latent rows of 576 columns, which are the keys; their first 512 columns are the values."""

    widest: ClassVar[int] = LATENT_DIM


def width_of_gradients(problem: Problem, widths: Iterable[int]) -> int:
    """Returns the least of the ascending ``widths`` of tiles that has all columns of a head.

    Raises UsageError if a head has more columns than any tile.
    """
    sizes = tuple(widths)
    found = next((size for size in sizes if size >= problem.head_dim), None)
    if found is None:
        raise UsageError(
            f"attention: given gradients of head dimension {problem.head_dim}; expected at most {sizes[-1]}: "
            "torch's own scaled_dot_product_attention has the others"
        )
    return found


def _check_extents(problem: Problem) -> None:
    for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim"):
        extent = getattr(problem, name)
        if extent < 1:
            reason = "a softmax over no key has no value" if name == "kv_len" else "an empty result needs no kernel"
            raise UsageError(f"attention: given {name}={extent}; expected at least 1: {reason}")
    heads, kv_heads, head_dim = problem.heads, problem.kv_heads, problem.head_dim
    if heads % kv_heads:
        raise UsageError(
            f"attention: q has {heads} heads and k has {kv_heads}; expected a multiple of those of k, so that each of "
            f"its heads serves as many heads of q"
        )
    if head_dim > problem.widest or head_dim % HEAD_STEP:
        padded = -(-head_dim // HEAD_STEP) * HEAD_STEP
        mend = f"pad q, k and v with zeros to {padded}" if padded <= HEAD_DIMS[-1] else "split the heads"
        raise UsageError(
            f"attention: given head dimension {head_dim}; expected a multiple of {HEAD_STEP} (rows of 16 bytes) up to "
            f"{HEAD_DIMS[-1]}; {mend}" + (f" and give scale={head_dim}**-0.5" if padded <= HEAD_DIMS[-1] else "")
        )


def _check_mask(window: Any) -> None:
    if window is None:
        return
    bounds = window if isinstance(window, (tuple, list)) else ()
    known = [bound is None or (isinstance(bound, (int, np.integer)) and bound >= 0) for bound in bounds]
    if len(bounds) != 2 or not all(known):
        raise UsageError(
            f"attention: window={window!r}; expected (left, right), each a number of keys from 0 on, or None for any"
        )


def _check_scale(scale: Any) -> None:
    if scale is None:
        return
    if not isinstance(scale, (int, float, np.number)) or not SMALLEST_SCALE <= scale <= GREATEST_SCALE:
        raise UsageError(
            f"attention: scale={scale!r}; expected a number from 2**-126 to 2**126; leave scale= out for 1 / √head_dim"
        )
