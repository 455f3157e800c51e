"""The plan of D = A·Bᵀ: the GEMM kernel, its configuration and its launches.

An operand or D is one matrix, two dimensions, or a batch of them, three; D is a batch where A or B is one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warpwright import targets, types
from warpwright.arrays.device import dense_strides
from warpwright.errors import UsageError
from warpwright.kernels.gemm import PLAIN, sm90, sm100, sm120
from warpwright.kernels.gemm.epilogue import Epilogue
from warpwright.kernels.gemm.slices import add_slices, sum_grid
from warpwright.kernels.gemm.sm90.estimate import Problem, cut_operand
from warpwright.lang import Kernel
from warpwright.ops.binding import MAP_BYTES, Geometry, Launch, Plan, Stride
from warpwright.ops.matmul import measurements

__all__ = [
    "CONFIGS",
    "FLOAT8",
    "LADDERS",
    "PLAIN",
    "SCRATCH",
    "Config",
    "Family",
    "LadderConfig",
    "Level",
    "choose",
    "family_of",
    "kernels_for",
    "plan_sm90",
    "plan_sm100",
    "plan_sm120",
    "plan_tiling",
    "round_up",
]

MATRIX = 2
ROW_BYTES = 128  # of K in an atom of a stage
SCRATCH = "parts"  # the partial sums of slices of K
EPILOGUE = "bias", "scale_a", "scale_b", "alpha"

BFLOAT16, FLOAT16, FLOAT32 = (np.dtype(each) for each in (ml_dtypes.bfloat16, np.float16, np.float32))
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))

Shape = tuple[int, ...]
Majors = tuple[str, str]
LadderConfig = sm90.Config | sm100.Config | sm120.Config
Config = LadderConfig | sm100.Tiling
Level = int | Config


LADDERS: dict[str, Mapping[int, LadderConfig]] = {
    "sm_100a": sm100.LEVELS,
    "sm_90a": sm90.LEVELS,
    "sm_120a": sm120.LEVELS,
}
CONFIGS: dict[str, Any] = {"sm_100a": sm100.Config | sm100.Tiling, "sm_90a": sm90.Config, "sm_120a": sm120.Config}


@dataclass(frozen=True, slots=True)
class Family:
    """The layouts that the kernels of one target support: the ``majors`` of operands of each dtype ("k": rows are
    dense, "mn": columns are dense), whether rows of D may have ``gaps`` between them, whether the kernels take
    ``batches``, and whether they compute the ``epilogue``."""

    majors: Mapping[np.dtype[Any], tuple[str, ...]]
    gaps: bool
    batches: bool
    epilogue: bool


LADDER = Family(dict.fromkeys((BFLOAT16, FLOAT16), ("k",)), gaps=False, batches=False, epilogue=False)
IN_REGISTERS = Family(
    dict.fromkeys((BFLOAT16, FLOAT16), ("k", "mn")) | dict.fromkeys(FLOAT8, ("k",)),
    gaps=True,
    batches=True,
    epilogue=True,
)
FAMILIES = {
    "sm_100a": Family(dict.fromkeys((BFLOAT16, FLOAT16, *FLOAT8), ("k", "mn")), gaps=True, batches=True, epilogue=True),
    "sm_90a": IN_REGISTERS,
    "sm_120a": IN_REGISTERS,
}


def kernels_for(arch: str, level: Level | None) -> str:
    """Returns the target whose kernels compute a call on ``arch``: its own, or by a mma.sync configuration sm_120a's,
    which any target with TMA runs."""
    return "sm_120a" if isinstance(level, sm120.Config) else targets.kernels_of(arch)


def family_of(spec: targets.Device, level: Level | None = None) -> Family:
    """Returns the kernels for a device: the default ones, or those of the ladder's ``level``, which on Blackwell take
    less. Raises UsageError for a target without any."""
    family = kernels_for(spec.arch, level)
    if family == "sm_100a" and isinstance(level, int | sm100.Config):
        return LADDER
    found = FAMILIES.get(family)
    if found is None:
        raise UsageError(
            f"matmul has no kernel for {spec.name} ({spec.arch}); expected device='b200', 'gb200', 'h200', 'rtx5090' "
            "or 'cuda'"
        )
    return found


@functools.lru_cache(maxsize=1024)
def choose(
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: Majors,
    level: Level | None,
    arch: str,
    sms: int,
    epilogue: Epilogue,
    columns: int,
    tuned: tuple[measurements.Choice, ...],
    scratch: bool,
) -> Plan:
    """Returns the plan for operands and D of these layouts: the configuration of ``level``, or the fastest by the facts
    in ``tuned``, the built-in facts and the estimate. ``columns`` counts the elements of the bias, 0 without one.

    K is cut into slices only for single matrices, and only if ``scratch`` memory can be allocated.
    """
    (m, k), (n, _) = extents(a, majors[0]), extents(b, majors[1])
    family = kernels_for(arch, level)
    if not isinstance(level, int | None | CONFIGS[family]):
        raise _foreign_config(level, family)
    matrix = len(d[0]) == MATRIX
    batches, slices = 1 if matrix else d[0][0], scratch and matrix
    if family == "sm_100a":
        if isinstance(level, int | sm100.Config):
            return plan_sm100(sm100.config_for(level, m, n, sms), a, b, d, sms, arch)
        problem = sm100.Problem(m, n, k, a[2].itemsize, batches, majors)
        tiling = level if isinstance(level, sm100.Tiling) else None
        tiling = tiling or sm100.choose(problem, sms=sms, slices=slices, tuned=tuned)
        return plan_tiling(tiling, a, b, d, majors, sms, arch, epilogue, columns)
    how: dict[str, Any] = {"batches": batches, "majors": majors, "sms": sms, "tuned": tuned, "slices": slices}
    if family == "sm_120a":
        mma_sync = sm120.choose(m, n, k, a[2].itemsize, **how) if level is None else sm120.config_of(level)
        return plan_sm120(mma_sync, a, b, d, majors, sms, arch, epilogue, columns)
    found = sm90.choose(m, n, k, a[2].itemsize, **how) if level is None else sm90.config_of(level)
    if level is None and epilogue != PLAIN:
        found = sm90.with_registers(found)
    return plan_sm90(found, a, b, d, majors, sms, epilogue, columns)


def _foreign_config(given: Any, family: str) -> UsageError:
    module, expected = type(given).__module__.split(".")[3], family.replace("_", "").rstrip("a")
    return UsageError(
        f"matmul: given a Config of kernels.gemm.{module} as level=; expected a level, or a Config of "
        f"warpwright.kernels.gemm.{expected} for this device"
    )


def plan_tiling(
    config: sm100.Tiling,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: Majors,
    sms: int,
    arch: str,
    epilogue: Epilogue = PLAIN,
    columns: int = 0,
) -> Plan:
    """Returns the plan of ``config`` for ``arch``: one launch, or two if a second one adds slices of K.

    Raises UsageError for operands of which ``config`` has no whole panels, and if K is too short for its slices.
    """
    (m, k), (n, _), size = extents(a, majors[0]), extents(b, majors[1]), a[2].itemsize
    padding = config.area if config.direct else (1, 1)
    out = d if config.matrices == 1 else parts_of(config.matrices, d, padding)
    batches = out[0][0] if len(out[0]) > MATRIX else 1
    problem = sm100.Problem(m, n, k, size, 1 if config.matrices > 1 else batches, majors)
    check_tiling(config, problem)
    grid = sm100.grid_of(config, problem, sms), 1, 1
    order, shapes = ("ab", (m, n)) if not config.swapped else ("ba", (n, m))
    each = dict(zip("abd", (a, b, out) if order == "ab" else (b, a, out), strict=True))
    rows = config.tile[0] * config.paired, config.tile[1]
    tiles = [-(-extent // tile) for extent, tile in zip(shapes, rows, strict=True)]
    dtype, b_dtype, of_out = (types.of_dtype(layout[2]) for layout in each.values())
    kernel = sm100.kernel_of(config).trace(
        arch,
        batched="".join(name for name, (shape, *_) in each.items() if len(shape) > MATRIX),
        majors=majors if order == "ab" else majors[::-1],
        dtype=dtype,
        b_dtype=b_dtype,
        out=of_out,
        epilogue=epilogue if config.matrices == 1 else PLAIN,
    )
    blocks = -(-k * size // (ROW_BYTES * config.depth))
    stored, scratch = ("d", {}) if config.matrices == 1 else (SCRATCH, {SCRATCH: out[0]})
    arguments: tuple[Any, ...] = (*order, stored, *tiles, blocks, batches, columns, *EPILOGUE)
    if config.halves:
        arguments = (*arguments, sm100.whole_tiles(config, problem, sms))
    if config.clustered:
        arguments, scratch = (*arguments, SCRATCH), {SCRATCH: (grid[0], config.tile[1], config.tile[0])}
    launches = Launch(kernel, grid, arguments), *add_launch(config.matrices, out, d, arch, epilogue, columns)
    return Plan(launches, config, scratch=scratch, l2_promotion=sm100.L2_PROMOTION)


def check_tiling(config: sm100.Tiling, problem: sm100.Problem) -> None:
    """Raises UsageError if a configuration given as ``level=`` cannot compute a problem."""
    rows, columns = config.area
    if not sm100.has_whole_panels(config, problem):
        dense = " and ".join(
            f"{name} that is dense along {axis}"
            for name, axis, major in zip("AB", "MN", problem.majors, strict=True)
            if major == "mn"
        )
        raise UsageError(
            f"matmul: given level= with tiles of {rows} × {columns} of D, of which an mma takes less than {ROW_BYTES} "
            f"bytes of a row, for an {dense}; expected wider tiles: leave level= out, or pass a copy that is dense "
            "along K"
        )
    least = sm100.least_k(config, problem)
    if problem.k < least:
        raise UsageError(
            f"matmul: given level= with {config.slices} slices of K for K {problem.k}; expected K of at least {least}: "
            "leave level= out, or take fewer slices"
        )


def parts_of(slices: int, d: Geometry, tile: tuple[int, int] = (1, 1)) -> Geometry:
    """Returns the layout of the partial sums of D, whole tiles of ``tile``."""
    height, width = (-(-extent // size) * size for extent, size in zip(d[0], tile, strict=True))
    shape = slices, height, round_up(width)
    return shape, dense_strides(shape, FLOAT32.itemsize), FLOAT32


def add_launch(
    slices: int, parts: Geometry, d: Geometry, arch: str, epilogue: Epilogue, columns: int
) -> tuple[Launch, ...]:
    """Returns the launch that adds the partial sums to D; none for one slice."""
    if slices == 1:
        return ()
    add = add_slices.trace(arch, slices=slices, out=types.of_dtype(d[2]), epilogue=epilogue)
    _, height, width = parts[0]
    sizes = *d[0], width, height * width, Stride("d", 0)
    grid = sum_grid(d[0][0], width), 1, 1
    return (Launch(add, grid, (SCRATCH, "d", *sizes, columns, *EPILOGUE), dependent=True),)


def plan_sm100(config: sm100.Config, a: Geometry, b: Geometry, d: Geometry, sms: int, arch: str) -> Plan:
    """Returns the plan of ``config`` for ``arch``, one launch; D is dense, (M, pitch) with at least N columns."""
    (m, k), (n, _) = a[0], b[0]
    found = sm100.plan_gemm(config, m, n, round_up(k), out_bytes=d[2].itemsize, sms=sms)
    kernel = sm100.kernel_of(config).trace(arch, dtype=types.of_dtype(a[2]), out=types.of_dtype(d[2]))
    launch = Launch(kernel, found.grid, ("a", "b", "d", *found.scalars))
    return Plan((launch,), config, l2_promotion=found.l2_promotion)


def plan_sm90(
    config: sm90.Config,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: Majors,
    sms: int,
    epilogue: Epilogue = PLAIN,
    columns: int = 0,
) -> Plan:
    """Returns the plan of ``config`` for sm_90a: one launch, or two if K is cut into slices."""
    m, k = extents(a, majors[0])
    if not sm90.has_all_rows(config, m, majors[0]):
        raise UsageError(
            f"matmul: given level= with {config.rows} rows of A in a stage for an A of {m} rows that is dense along "
            f"{'K' if majors[0] == 'k' else 'M'}; expected at most {config.rows} rows, dense along K: leave level= out"
        )
    batches = d[0][0] if len(d[0]) > MATRIX else 1
    if config.pingpong and batches > 1:
        raise UsageError(
            f"matmul: given level= with pingpong=True for a batch of {batches} matrices; expected one matrix: leave "
            "level= out"
        )
    if config.pingpong and not sm90.takes_two_widths(config):
        raise UsageError(
            "matmul: given level= with pingpong=True; expected two consumers in persistent CTAs, single or in pairs "
            "that share B, with tiles of a multiple of 8 columns, in pairs of 16, an early ring, 16-bit operands and "
            "tiles stored at once: take CONFIGS['128x200 pingpong']"
        )
    if config.last and not sm90.takes_two_widths(config):
        raise UsageError(
            f"matmul: given level= with last={config.last}, tiles of two widths; expected persistent CTAs, single or "
            "in pairs that share B, with an early ring, two or three consumers, and tiles of a multiple of 128 "
            "columns, in FP8 `promoted` columns: take last=0"
        )
    n = extents(b, majors[1])[0]
    _check_panels(config, Problem(m, n, k, a[2].itemsize, batches, majors))
    config = sm90.fit_slices(config, k, a[2].itemsize)
    config = sm90.fit_last(config, m, n, sms=sms, batches=batches, major=majors[1])
    return _plan(config, sm90.kernel_of(config), "sm_90a", a, b, d, majors, sms, epilogue, columns)


def _check_panels(config: sm90.Config | sm120.Config, problem: Problem) -> None:
    """Raises UsageError where the tiles of ``config`` are no whole panels of an operand whose columns are dense: TMA
    loads such an operand in panels of 64 columns, 128 bytes."""
    cut = cut_operand(config, problem)
    if cut is None:
        return
    (operand, step), (rows, columns) = cut, config.tile
    name, letter = [("A", "M"), ("B", "N")][operand]
    raise UsageError(
        f"matmul: given level= with tiles of {rows} × {columns} for a matrix {name} that is dense along {letter}; "
        f"expected a multiple of {step} along {letter}: leave level= out, or pass a copy that is dense along K"
    )


def plan_sm120(
    config: sm120.Config,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: Majors,
    sms: int,
    arch: str = "sm_120a",
    epilogue: Epilogue = PLAIN,
    columns: int = 0,
) -> Plan:
    """Returns the plan of ``config`` for ``arch``: one launch, or two if K is cut into slices."""
    (m, k), (n, _), size = extents(a, majors[0]), extents(b, majors[1]), a[2].itemsize
    _check_panels(config, Problem(m, n, k, size, 1, majors))
    config = sm90.fit_slices(config, k, size)
    return _plan(config, sm120.kernel_of(config, arch), arch, a, b, d, majors, sms * config.ctas, epilogue, columns)


def _plan(
    config: sm90.Config | sm120.Config,
    kernel: Kernel,
    arch: str,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: Majors,
    places: int,
    epilogue: Epilogue,
    columns: int,
) -> Plan:
    """Returns the plan of a kernel with its sums in registers: one launch, or two if K is cut into slices, whose
    partial sums the second adds. At most ``places`` CTAs run at once.

    Beyond the end of an operand its tensor map reads zeros.
    """
    (m, k), (n, _), size = extents(a, majors[0]), extents(b, majors[1]), a[2].itemsize
    slices = config.slices
    out = d if slices == 1 else parts_of(slices, d)
    each = {"a": a, "b": b, "d": out}
    batched = "".join(name for name, (shape, *_) in each.items() if len(shape) > MATRIX)
    found = sm90.plan_gemm(
        config,
        *(round_up(extent, size) for extent in (m, n, k)),
        sms=places,
        majors=majors,
        in_bytes=size,
        out_bytes=out[2].itemsize,
        batches=out[0][0] if batched else 1,
    )
    dtype, b_dtype, of_out = (types.of_dtype(layout[2]) for layout in each.values())
    at_once = epilogue if slices == 1 else PLAIN
    traced = kernel.trace(
        arch, batched=batched, majors=majors, dtype=dtype, b_dtype=b_dtype, out=of_out, epilogue=at_once
    )
    arguments: tuple[Any, ...] = ("a", "b", SCRATCH if slices > 1 else "d", *found.tiles, columns, *EPILOGUE)
    arguments = (*arguments, *found.maps, *found.widths)
    launches = Launch(traced, found.grid, arguments), *add_launch(slices, out, d, arch, epilogue, columns)
    scratch = {SCRATCH: out[0]} if slices > 1 else {}
    return Plan(launches, config, scratch=scratch, l2_promotion=sm90.L2_PROMOTION)


def extents(operand: Geometry, major: str) -> Shape:
    """Returns (rows, K) of an operand."""
    matrix = operand[0][-MATRIX:]
    return matrix if major == "k" else matrix[::-1]


def round_up(extent: int, itemsize: int = 2) -> int:
    """Returns ``extent`` elements rounded up to whole 16 bytes."""
    step = MAP_BYTES // itemsize
    return -(-extent // step) * step
