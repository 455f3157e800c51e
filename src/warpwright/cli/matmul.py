"""``warpwright matmul``: a GEMM of two .npy files, verified against float64."""

from __future__ import annotations

import io
import time
import warnings
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from warpwright.cli.console import OutputFile, device_option, emit, exit_unless, json_option, progress, remark, show
from warpwright.cli.manual import WRONG, manual
from warpwright.errors import PrecisionWarning, UsageError
from warpwright.gpu import Device
from warpwright.ops.matmul.call import matmul
from warpwright.report.output import write_file
from warpwright.report.tables import table
from warpwright.report.verdict import judge
from warpwright.run import devices

__all__ = ["command", "read_matrix"]

Array = NDArray[Any]


@click.command(
    "matmul",
    epilog=manual(
        WRONG,
        "warpwright matmul A.npy B.npy -o D.npy",
        "warpwright matmul A.npy B.npy -o D.npy --level 3 --device h200",
    ),
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OutputFile(), help="File for the result (.npy).")
@click.option("--level", type=int, help="Level of the device's GEMM ladder (default: the best for these extents).")
@device_option
@json_option
def command(a: Path, b: Path, output: Path, level: int | None, device: str, as_json: bool) -> None:
    """Multiply two matrices of .npy files.

    A is M × K, B is K × N. The result is verified against float64.
    """
    target = devices.device(device)
    left, right = read_matrix(a), read_matrix(b)
    with progress() as describe, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrecisionWarning)
        describe(f"{' × '.join(map(str, left.shape))} times {' × '.join(map(str, right.shape))} on {device}")
        result, row = _run(left, right, target, level)
    for message in {str(item.message) for item in caught if item.category is PrecisionWarning}:
        remark(message)
    write_matrix(output, result)
    (m, k), n = left.shape, right.shape[1]
    row = {"m": m, "n": n, "k": k, "dtype": str(result.dtype), "level": level or "best", "device": device, **row}
    if as_json:
        emit({**row, "output": str(output)})
    else:
        show(table([row], escape(str(output))))
    finite = int(np.isfinite(result.astype(np.float32)).sum())
    if not finite and result.size:
        exit_unless(False, "no element of the result is finite, and a NaN or an infinity agrees with any error")
    if finite < result.size and row["verified"]:
        remark(f"{result.size - finite:,} of {result.size:,} elements are NaN or infinite, as in the reference")
    exit_unless(bool(row["verified"]))


def _run(a: Array, b: Array, device: Device, level: int | None) -> tuple[Array, dict[str, Any]]:
    """Multiply; returns the result, and its verdict with the wall time without verification."""
    start = time.perf_counter()
    result = matmul(a, b, device=device, level=level)
    seconds = time.perf_counter() - start
    return result, {**judge(result, *_kernel_operands(a, b)).as_row(), "wall_s": round(seconds, 3)}


def _kernel_operands(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the operands of the kernel: float32 is rounded to bfloat16."""
    if a.dtype != np.float32:
        return a, b
    with np.errstate(over="ignore"):
        return a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)


def read_matrix(path: Path) -> Array:
    """Read the array of a .npy file. NumPy saves bfloat16 as two-byte records (``V2``), which are read as bfloat16."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; expected a .npy file written by np.save"
        ) from None
    except (ValueError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is empty"
        raise UsageError(f"{path} is not a complete .npy file: {reason}; write it again with np.save") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} is an archive of arrays (.npz); expected one array in a .npy file written by np.save")
    if array.dtype == np.dtype("V2"):
        remark(f"{path} has two-byte records (V2), as NumPy saves bfloat16: read as bfloat16")
        return array.view(ml_dtypes.bfloat16)
    return array


def write_matrix(path: Path, array: Array) -> None:
    """Save ``array`` to exactly ``path``. Raises UsageError if that fails."""
    saved = io.BytesIO()
    np.save(saved, array)
    write_file(path, saved.getvalue())
