"""``warpwright tune``: the fastest configuration of the GEMM for given problems, measured on this machine's GPU."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
from rich.markup import escape

from warpwright import cuda
from warpwright.cli.console import emit, json_option, progress, remark, show
from warpwright.cli.ladder import timing
from warpwright.cli.manual import WRONG, manual
from warpwright.cli.problems import is_number
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm90, sm100, sm120
from warpwright.ops.matmul import measurements, trials
from warpwright.ops.matmul.plan import Config
from warpwright.report.tables import table
from warpwright.targets import kernels_of

__all__ = ["command"]

Shape = tuple[int, int, int]

KERNELS: dict[str, Any] = {"sm_90a": sm90, "sm_100a": sm100, "sm_120a": sm120}
DTYPES = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn")}
NOTHING = "nothing was tuned on this machine; warpwright tune 4096x4096x4096 measures a problem"


@click.command(
    "tune",
    epilog=manual(
        WRONG,
        "warpwright tune 16x4096x4096 4096x4096x4096",
        "warpwright tune --file shapes.txt --dtype float8_e4m3fn",
        "warpwright tune --list",
    ),
)
@click.argument("shapes", nargs=-1, metavar="[MxNxK]...")
@click.option("--file", "file", type=click.Path(path_type=Path), help="More shapes, one a line; - is standard input.")
@click.option(
    "--dtype", type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True, help="Dtype of A and B."
)
@click.option("--rounds", type=click.IntRange(min=1), default=30, show_default=True, help="Launches of each candidate.")
@click.option("--device", default="cuda", show_default=True, help="GPU: cuda, or cuda:1.")
@click.option("--list", "listed", is_flag=True, help="Show the stored configurations of every GPU.")
@click.option("--forget", is_flag=True, help="Remove the stored configurations of every GPU.")
@json_option
def command(
    shapes: tuple[str, ...],
    file: Path | None,
    dtype: str,
    rounds: int,
    device: str,
    listed: bool,
    forget: bool,
    as_json: bool,
) -> None:
    """Store the fastest GEMM configuration of a problem.

    The problems are M × N × K, on a real GPU.

    All candidates run alternately in random order, each launch from cold L2; their medians are compared, and every
    result is verified against float64. From then on `warpwright.matmul` takes the stored configuration for the problem,
    and for others whose extents differ by a tenth at most. A configuration for BF16 is used for FP16 too, and one for
    e4m3 for all FP8.
    """
    if listed or forget:
        if shapes or file or (listed and forget):
            raise UsageError("given --list or --forget with other arguments; expected only one of both")
        _list(as_json) if listed else _forget(as_json)
        return
    wanted = parse_shapes([*shapes, *_lines(file)])
    gpu = cuda.device(device)
    if kernels_of(gpu.spec.arch) not in KERNELS:
        raise UsageError(
            f"{gpu.spec.name} is {gpu.spec.arch}; expected one of {', '.join(KERNELS)}: other targets have no "
            "GEMM kernel"
        )
    rows = [row for shape in wanted for row in measure(gpu, shape, dtype, rounds)]
    _store(gpu.spec.name, [entry_of(row) for row in rows if row["kept"]])
    if as_json:
        emit(rows)
    else:
        for m, n, k in wanted:
            mine = [row for row in rows if (row["m"], row["n"], row["k"]) == (m, n, k)]
            columns = [
                {name: value for name, value in row.items() if name not in ("m", "n", "k", "dtype")} for row in mine
            ]
            show(table(columns, f"{m} × {n} × {k}, {dtype}, {gpu.spec.name}, medians of {rounds} from cold L2"))
        show(f"kept in {escape(str(measurements.path()))}")
    if not all(row["verified"] for row in rows):
        remark("not verified: a result differs from the float64 reference by more than the bound")
        click.get_current_context().exit(1)


def measure(gpu: cuda.Device, shape: Shape, dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each candidate, the fastest first; the fastest verified candidate is ``kept``."""
    (m, n, k), size = shape, DTYPES[dtype].itemsize
    before, candidates = candidates_of(gpu, shape, size)
    with progress(len(candidates) + 1) as describe:
        options: dict[str, Any] = {"dtype": DTYPES[dtype], "rounds": rounds, "describe": describe}
        found = trials.measure(gpu, m, n, k, candidates, **options)
    order = sorted(found.each, key=lambda name: (not found.each[name].verdict.verified, found.each[name].seconds))
    return [
        {"m": m, "n": n, "k": k, "dtype": dtype, "config": name, **timing(found, found.each[name], m, n, k)}
        | {
            "chosen_before": candidates[name] == before,
            "kept": name == order[0] and found.each[name].verdict.verified,
            "verified": found.each[name].verdict.verified,
        }
        for name in order
    ]


def candidates_of(gpu: cuda.Device, shape: Shape, size: int) -> tuple[Config, dict[str, Config]]:
    """Returns the configuration that `warpwright.matmul` takes, and those that can be the fastest."""
    (m, n, k), sms, tuned = shape, gpu.spec.sms, measurements.choices(gpu.spec.name, size)
    if kernels_of(gpu.spec.arch) == "sm_100a":
        problem = sm100.Problem(m, n, k, size)
        return sm100.choose(problem, sms=sms, tuned=tuned), dict(sm100.candidates(problem, sms=sms))
    family = KERNELS[kernels_of(gpu.spec.arch)]
    worthwhile = {
        name: config
        for name, config in family.CONFIGS.items()
        if bool(getattr(config, "promoted", size == 1)) == (size == 1) and family.worthwhile(config, m, n, sms=sms)
    }
    return family.choose(m, n, k, size, sms=sms, tuned=tuned), worthwhile


def entry_of(row: dict[str, Any]) -> measurements.Choice:
    """Returns a row as an entry of the table."""
    today = datetime.date.today().isoformat()
    return measurements.Choice(row["m"], row["n"], row["k"], row["dtype"], row["config"], row["us"], today)


def _store(gpu: str, found: list[measurements.Choice]) -> None:
    try:
        measurements.store(gpu, found)
    except OSError as error:
        raise UsageError(
            f"cannot write {measurements.path()}: {error.strerror}; name another folder in WARPWRIGHT_CONFIG"
        ) from None


def parse_shapes(words: Iterable[str]) -> list[Shape]:
    """Parses extents such as ``"4096x4096x4096"``, also with × or commas. Raises UsageError for other text, and for an
    empty ``words``."""
    shapes = []
    for word in words:
        parts = re.split(r"\s*[x×,]\s*|\s+", word.strip())
        if len(parts) != 3 or not all(is_number(part) and int(part) for part in parts):
            raise UsageError(f"given {word!r}; expected M, N and K of a matmul, such as 4096x4096x4096")
        shapes.append((int(parts[0]), int(parts[1]), int(parts[2])))
    if not shapes:
        raise UsageError("no problem is given; expected M, N and K of at least one: warpwright tune 4096x4096x4096")
    return list(dict.fromkeys(shapes))


def _lines(file: Path | None) -> list[str]:
    """Returns the lines of a file without comments (#) and empty lines."""
    if file is None:
        return []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"cannot read shapes from {file}: {reason}; expected lines such as 4096x4096x4096") from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _list(as_json: bool) -> None:
    known = measurements.table()
    rows = [
        {"gpu": gpu, **{name: getattr(choice, name) for name in ("m", "n", "k", "dtype", "config", "us", "measured")}}
        for gpu, choices in known.items()
        for choice in choices
    ]
    if as_json:
        emit(rows)
    elif rows:
        show(table(rows, escape(str(measurements.path()))))
    else:
        show(NOTHING)


def _forget(as_json: bool) -> None:
    count = measurements.forget()
    if as_json:
        emit({"forgotten": count})
    else:
        show(f"forgot {count} problems" if count else NOTHING)
