"""The configuration for a problem, and what its launch needs, computed from the problem alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any, Protocol, TypeVar

from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm90.configs import ATOM_BYTES, CONFIGS, Config
from warpwright.kernels.gemm.sm90.estimate import Problem, candidates, estimate_us, has_whole_panels
from warpwright.kernels.gemm.sm90.facts import FACTS, FP8_FACTS, Fact
from warpwright.kernels.gemm.sm90.rounds import PINGPONG_TILES, fit_last, widths

__all__ = ["NEAR", "Known", "Plan", "choose", "fit_slices", "has_all_rows", "plan_gemm", "with_registers", "worthwhile"]

ROW_BYTES = 16
NEAR = 0.02  # distance of two problems that have one fastest configuration: an extent differs by a tenth at most
EPILOGUE_COLUMNS = 168  # of a tile whose sums leave a consumer registers for an epilogue
FEW_ROWS = 128  # of A: device memory limits such problems, whose facts lie close together


class Known(Protocol):
    """A problem and the name of its fastest configuration."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def config(self) -> str: ...


def choose(
    m: int,
    n: int,
    k: int,
    in_bytes: int = 2,
    *,
    batches: int = 1,
    majors: tuple[str, str] = ("k", "k"),
    sms: int = 132,
    tuned: Sequence[Known] = (),
    slices: bool = True,
) -> Config:
    """Returns the fastest known configuration for ``batches`` D (m, n) = A (m, k) · B (n, k)ᵀ on ``sms`` SMs.

    The fact of a problem that is `NEAR` decides, for at most `FEW_ROWS` rows the nearest fact; otherwise the estimate
    of all candidates does. Where rows in memory begin within sectors of L2, only facts of such problems are near. The
    distance of two problems is the squared Euclidean distance of the logarithms of their extents. ``in_bytes`` is the
    size of an element of A and B: 2, or 1 for FP8, which has facts of its own. ``majors`` names the axis of each
    operand that is dense in memory. ``tuned`` are the user's own facts; at equal distance they win. Without ``slices``
    the configuration needs no scratch memory.
    """
    problem = Problem(m, n, k, in_bytes, batches, majors)
    staged = {name for name, config in CONFIGS.items() if has_all_rows(config, m, majors[0])}
    usable = {name for name in staged if has_whole_panels(CONFIGS[name], problem)}
    known: Sequence[Known] = FACTS if in_bytes > 1 else FP8_FACTS
    facts = [each for each in (*tuned, *known) if each.config in usable]

    def distance(fact: Known) -> float:
        count = fact.batches if isinstance(fact, Fact) else 1
        ratios = m / fact.m, n / fact.n, k / fact.k, batches / count
        return sum(log2(ratio) ** 2 for ratio in ratios)

    def near(fact: Known) -> bool:
        alike = problem._replace(m=fact.m, n=fact.n, k=fact.k).whole_sectors == problem.whole_sectors
        return m <= FEW_ROWS or (distance(fact) <= NEAR and alike)

    nearest = min(filter(near, facts), key=distance, default=None)
    if nearest is not None:
        found = CONFIGS[nearest.config]
    else:
        usual = candidates(problem, slices=slices, sms=sms)
        fitting = (each for each in usual if fit_slices(each, k, in_bytes) is each)
        found = min(fitting, key=lambda each: estimate_us(each, problem, sms=sms))
    return found if slices else _in_one_launch(found)


def with_registers(config: Config) -> Config:
    """Returns ``config`` with registers for an epilogue: a pingpong tile of at most `EPILOGUE_COLUMNS`."""
    return CONFIGS[f"128x{EPILOGUE_COLUMNS} pingpong"] if config.pingpong else config


def has_all_rows(config: Config, m: int, major: str) -> bool:
    """Whether a stage of ``config`` has all ``m`` rows of an A that is dense along ``major``, or the rows of a tile."""
    return not config.rows or (m <= config.rows and major == "k")


def _in_one_launch(config: Config) -> Config:
    """Returns ``config``, or for a configuration with slices of K one that splits K inside a cluster."""
    shares = {1: 1, 2: 2, 3: 2, 4: 4}.get(config.slices, 6)
    return config if shares == 1 else CONFIGS[f"64x64 split {shares}"]


def fit_slices(config: Sliced, k: int, in_bytes: int) -> Sliced:
    """Returns ``config`` with at most a slice for each k-block."""
    blocks = -(-k * in_bytes // (ATOM_BYTES * config.depth))
    return config if config.slices <= blocks else replace(config, slices=blocks)  # type: ignore[type-var]


def worthwhile(config: Config, m: int, n: int, *, sms: int) -> bool:
    """Returns whether ``config`` can be the fastest for D (m, n): slices of K are for few tiles, a stage has all rows
    of A, and tiles of two widths are a gain."""
    tiles = -(-m // config.tile[0]) * -(-n // config.tile[1])
    if config.pingpong:
        return tiles >= PINGPONG_TILES * sms
    if config.last and not fit_last(config, m, n, sms=sms).last:
        return False
    return has_all_rows(config, m, "k") and (config.slices == 1 or tiles * config.slices <= 2 * sms)


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of the Hopper GEMM; its arguments are the tensor maps of A, B and D, then `arguments`.

    ``pitch`` is the number of elements between rows of D: n rounded up to whole 16-byte vectors. D is a buffer of
    shape (m, pitch) whose first n columns are the result. ``tiles`` counts tiles along M and N, k-blocks, and batches.
    ``widths`` are the last arguments of `gemm_two_widths` and `gemm_pingpong`, after more tensor maps of the operands
    that ``maps`` names.
    """

    grid: tuple[int, int, int]
    pitch: int
    tiles: tuple[int, int, int, int]
    maps: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """The arguments after the tensor maps of a kernel without an epilogue."""
        return self.arguments()

    def arguments(
        self, columns: int = 0, bias: Any = 0, scale_a: Any = 0, scale_b: Any = 0, alpha: float = 1.0
    ) -> tuple[Any, ...]:
        """Returns the arguments after the tensor maps.

        ``bias`` has ``columns`` elements, an even number; ``scale_a``, ``scale_b`` and ``alpha`` are factors of the
        sums. ``bias``, ``scale_a`` and ``scale_b`` are arrays or addresses, 0 for none.
        """
        return (*self.tiles, columns, bias, scale_a, scale_b, alpha)


class HasSlices(Protocol):
    """A configuration with slices of K."""

    @property
    def slices(self) -> int: ...
    @property
    def depth(self) -> int: ...


Sliced = TypeVar("Sliced", bound="HasSlices")


class Tiling(Protocol):
    """What a launch needs of a configuration; see `sm90.Config`."""

    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def depth(self) -> int: ...
    @property
    def share(self) -> tuple[int, int]: ...
    @property
    def cluster(self) -> int: ...
    @property
    def persistent(self) -> bool: ...


def plan_gemm(
    config: Tiling,
    m: int,
    n: int,
    k: int,
    *,
    sms: int,
    majors: tuple[str, str] = ("k", "k"),
    in_bytes: int = 2,
    out_bytes: int = 2,
    batches: int = 1,
) -> Plan:
    """Returns the launch of ``config`` for ``batches`` matrices D (m, n) on a device of ``sms`` SMs.

    Persistent clusters all fit at once. Their number is the smallest with the same number of rounds; with tiles of two
    widths it is as many as there are SMs for. ``majors`` names the layouts of A and B in memory: "k" for (rows, k),
    "mn" for (k, rows). ``in_bytes`` is the size of an element of A and B, ``out_bytes`` that of D. Raises UsageError
    for an extent below 1, and for rows in memory that are not a multiple of 16 bytes.
    """
    if min(m, n, k) < 1:
        raise UsageError(f"given M={m}, N={n}, K={k}; expected each at least 1; an empty GEMM needs no kernel")
    step = ROW_BYTES // in_bytes
    for name, rows, letter, major in (("A", m, "M", majors[0]), ("B", n, "N", majors[1])):
        letter, extent = ("K", k) if major == "k" else (letter, rows)
        if extent % step:
            raise UsageError(
                f"given {letter}={extent} along the rows of {name} in memory; expected a multiple of {step} "
                f"(16 bytes); pad {name} with zeros to {letter}={-(-extent // step) * step}"
            )
    extents = (m, config.tile[0]), (n, config.tile[1]), (k, ATOM_BYTES // in_bytes * config.depth)
    tiles_m, tiles_n, tiles_k = (-(-extent // tile) for extent, tile in extents)
    clusters = batches * -(-tiles_m // config.share[0]) * -(-tiles_n // config.share[1])
    rounds = -(-clusters // max(1, sms // config.cluster)) if config.persistent else 1
    vector = ROW_BYTES // out_bytes
    grid = (-(-clusters // rounds) * config.cluster, 1, 1)
    found = Plan(grid, -(-n // vector) * vector, (tiles_m, tiles_n, tiles_k, batches))
    if isinstance(config, Config) and (config.last or config.pingpong):
        grid = (sms // config.cluster * config.cluster, 1, 1) if config.last else grid
        maps = ("b", "d", "d") if config.pingpong else ("b", "d")
        return replace(found, grid=grid, maps=maps, widths=widths(config, m, n, sms=sms))
    return found
