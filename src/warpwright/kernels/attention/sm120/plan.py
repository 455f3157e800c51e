"""Configurations of the mma.sync attention as data, their shared memory, and the launch of one: no device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from warpwright.errors import UsageError
from warpwright.kernels.attention.problem import PANEL, Problem

__all__ = [
    "CONFIGS",
    "CP_ASYNC",
    "EARLIER",
    "OVER",
    "STEPS",
    "UNBOUNDED",
    "WIDE",
    "Config",
    "Piece",
    "Plan",
    "VarlenPlan",
    "bounds_of",
    "check_grid",
    "layout",
    "plan",
    "plan_varlen",
]

LANES = 32
STORE_ROWS = 16
TILE_ALIGN = 1024
BARRIER_BYTES = 8
ELEMENT, FLOAT = 2, 4
UNBOUNDED = 1 << 30
MAX_GRID_YZ = 65535


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of `sm120.kernel` ("registers", "cp.async") or `sm120.reference_kernel` ("meeting", "shared").

    ``tile`` is (queries of a CTA, keys of a block), ``stages`` are those of the rings of K and of V, ``producers`` the
    loading warps (with TMA one thread of them loads), ``consumers`` the computing warps. The reference kernels split
    rows of scores over ``softmax`` warps; with ``helpers`` their producers compute too. ``expected`` is the gain that
    the author of the published kernel expected of this step.
    """

    kernel: str = "registers"
    head_dim: int = 128
    tile: tuple[int, int] = (64, 32)
    stages: int = 2
    producers: int = 1
    consumers: int = 4
    softmax: int = 0
    helpers: bool = False
    summary: str = ""
    expected: str = ""

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return LANES * (self.producers + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes: the sum of its `layout`."""
        return sum(piece.nbytes for piece in layout(self))

    @property
    def keywords(self) -> dict[str, Any]:
        """The options of the kernel and the number of threads by name, for reports."""
        names = "head_dim tile stages producers consumers threads"
        names += {"meeting": " softmax helpers", "shared": " softmax"}.get(self.kernel, "")
        return {name: getattr(self, name) for name in names.split()}


class Piece(NamedTuple):
    """A part of a CTA's shared memory: its ``nbytes``, and ``shape``, their factors."""

    name: str
    shape: str
    nbytes: int


def layout(config: Config) -> tuple[Piece, ...]:
    """Returns the shared memory of a CTA, piece by piece in the order of addresses."""
    (rows, keys), columns, stages = config.tile, config.head_dim, config.stages
    staged = keys * columns * ELEMENT * stages
    shape = f"{stages} stages × {keys} × {columns} × {ELEMENT} B"
    q = Piece("Q, then O", f"{rows} × {columns} × {ELEMENT} B", rows * columns * ELEMENT)
    tiles = [q, Piece("K", shape, staged), Piece("V", shape, staged)]
    if config.kernel in ("registers", "cp.async"):
        barriers = 1 + 4 * stages
        control = [Piece("mbarriers", f"{barriers} × {BARRIER_BYTES} B", barriers * BARRIER_BYTES)]
    else:
        barriers, statistics = 1 + 2 * stages, 2 * rows
        control = [
            Piece("mbarriers", f"{barriers} × {BARRIER_BYTES} B", barriers * BARRIER_BYTES),
            Piece("row maxima and sums", f"{statistics} × {FLOAT} B", statistics * FLOAT),
        ]
        tiles = [
            Piece("scores, then weights", f"{rows} × {keys} × {FLOAT} B", rows * keys * FLOAT),
            Piece("sums of O", f"{rows} × {columns} × {FLOAT} B", rows * columns * FLOAT),
            *tiles,
        ]
    used = sum(piece.nbytes for piece in control)
    return (*control, Piece("alignment", f"to {TILE_ALIGN} B", -used % TILE_ALIGN), *tiles)


_V3 = Config("meeting", 128, (32, 64), 2, 4, 8, softmax=1, summary="v3 as published: 4 + 8 warps, softmax by one warp")
_ROWS = replace(_V3, softmax=8, summary="rows of scores spread over all consumer warps", expected="8–32×")
STEPS = {
    "v3": _V3,
    "rows": _ROWS,
    "helpers": replace(
        _ROWS, softmax=12, helpers=True, summary="producers help: all 12 warps compute", expected="1.3×"
    ),
    "two-ten": replace(
        _ROWS, producers=2, consumers=10, softmax=10, summary="2 producers, 10 consumers", expected="1.3×"
    ),
    "fewer-syncs": replace(
        _ROWS,
        kernel="shared",
        summary="three barriers of the consumers a tile, mask and softmax joined",
        expected="1.2–1.5×",
    ),
    "registers": Config(
        "registers", 128, (128, 64), 2, 1, 8, summary="scores and outputs stay in registers: no barrier among warps"
    ),
    "two-ctas": Config(
        "registers", 128, (64, 32), 2, 1, 4, summary="smaller tiles: two CTAs an SM, softmax beside multiplication"
    ),
}

OVER = {
    "rows": "v3",
    "helpers": "rows",
    "two-ten": "rows",
    "fewer-syncs": "rows",
    "registers": "fewer-syncs",
    "two-ctas": "registers",
}
"""The step that each step changes."""

_V2 = replace(_V3, tile=(64, 64), stages=3, summary="published before v3: 64 queries; does not fit")
_V1 = replace(_V2, stages=4, summary="published before v2: four stages, and weights beside the scores")
EARLIER = {"v1": (_V1, (Piece("weights", "64 × 64 × 2 B", 64 * 64 * ELEMENT),)), "v2": (_V2, ())}
"""Published layouts of shared memory before v3: a configuration, and the pieces that it has more."""

CONFIGS = {
    64: Config("registers", 64, (64, 32), 2, 1, 4),
    128: replace(STEPS["two-ctas"], summary=""),
    256: Config("registers", 256, (64, 32), 2, 1, 4),
}
WIDE = {**CONFIGS, 128: replace(STEPS["registers"], summary="")}  # where an SM has 228 KB of shared memory
CP_ASYNC = {
    64: Config("cp.async", 64, (64, 64), 2, 2, 4),
    128: Config("cp.async", 128, (64, 32), 2, 2, 4),
    256: Config("cp.async", 256, (64, 32), 2, 2, 4),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of ``kernel_of(config)``.

    Arguments in order, with TMA: maps of q, k, v and o, each of an array (batch, heads, rows, head_dim) of any strides
    with dense rows, in boxes ``q_box``, ``kv_box``, ``kv_box`` and ``o_box`` with a swizzle of 128 bytes. With
    cp.async: the four addresses, then for each the strides of batch, head and row in elements, and head_dim. Then the
    address of the log-sum-exp (batch, heads, q_len) of float32, or 0, and ``scalars``.
    """

    config: Config
    grid: tuple[int, int, int]
    q_box: tuple[int, int, int, int]
    kv_box: tuple[int, int, int, int]
    o_box: tuple[int, int, int, int]
    scalars: tuple[int | float, ...]


def plan(problem: Problem, *, tma: bool = True, arch: str = "sm_120a", config: Config | None = None) -> Plan:
    """Returns the launch for ``problem`` by ``config`` or else the fastest one for ``arch``, with or without ``tma``.

    Raises UsageError for a configuration of another head dimension, and for more heads or batches than a grid holds.
    """
    known = CP_ASYNC if not tma else CONFIGS if arch.startswith("sm_120") else WIDE
    found = config or known[problem.padded_dim]
    if found.head_dim < problem.head_dim:
        raise UsageError(
            f"attention: given head dimension {problem.head_dim} for a configuration of {found.head_dim}; expected at "
            f"most {found.head_dim}: leave config= out"
        )
    check_grid(problem)
    queries, keys = found.tile
    return Plan(
        config=found,
        grid=(-(-problem.q_len // queries), problem.heads, problem.batch),
        q_box=(1, 1, queries, PANEL),
        kv_box=(1, 1, keys, PANEL),
        o_box=(1, 1, STORE_ROWS, PANEL),
        scalars=(problem.q_len, problem.kv_len, *bounds_of(problem), problem.group, problem.factor * math.log2(math.e)),
    )


def check_grid(problem: Problem) -> None:
    """Raise UsageError for more heads or batches than a grid holds."""
    if max(problem.heads, problem.batch) > MAX_GRID_YZ:
        raise UsageError(
            f"attention: given batch={problem.batch} and heads={problem.heads}; expected at most {MAX_GRID_YZ} each; "
            "split the batch"
        )


def bounds_of(problem: Problem) -> list[int]:
    """Returns how many keys to its left and to its right a query sees, `UNBOUNDED` for any number."""
    return [UNBOUNDED if bound is None else min(bound, UNBOUNDED) for bound in (problem.left, problem.right)]


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """One launch of `sm120.varlen.kernel_of(config)` configured with ``bounds`` and ``dtype``.

    Arguments in order: ragged maps of q, k, v and o, each of an array (heads, rows, head_dim); the address of the
    log-sum-exp (heads, total_q) of float32, or 0; the addresses of ``cu_q`` and ``cu_k``, u32 of one element more than
    there are sequences; then ``scalars``.
    """

    config: Config
    bounds: tuple[bool, bool]
    grid: tuple[int, int, int]
    scalars: tuple[int | float, ...]


def plan_varlen(problem: Problem, total_q: int, total_k: int, *, sms: int, config: Config | None = None) -> VarlenPlan:
    """Returns the launch for ``problem.batch`` packed sequences of ``total_q`` queries and ``total_k`` keys in all.

    The grid has a CTA for each tile that sequences of any lengths may have; it does not depend on ``sms``.
    """
    dense = plan(replace(problem, batch=1), config=config)
    tiles = total_q // dense.config.tile[0] + problem.batch
    return VarlenPlan(
        config=dense.config,
        bounds=(problem.left is not None, problem.right is not None),
        grid=(tiles, problem.heads, 1),
        scalars=(problem.batch, total_q, total_k, *dense.scalars[2:]),
    )
