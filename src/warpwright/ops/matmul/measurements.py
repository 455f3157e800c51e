"""The fastest GEMM configurations that ``warpwright tune`` measured on this machine's GPU.

One JSON file, ``tuned.json`` in `folders.settings`: a version, and for the name of each GPU the measured problems.
`warpwright.matmul` looks here first.
"""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from warpwright import folders
from warpwright.errors import UsageError

__all__ = ["Choice", "choices", "forget", "path", "store", "table"]

VERSION = 1
Table = dict[str, tuple["Choice", ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest ``config`` (a name of `kernels.gemm.CONFIGS`) for A (m, k) and B (n, k) of ``dtype``: its median time
    from cold L2 in microseconds, and the day it was measured."""

    m: int
    n: int
    k: int
    dtype: str
    config: str
    us: float
    measured: str

    @property
    def problem(self) -> tuple[int, int, int, str]:
        return self.m, self.n, self.k, self.dtype


def path() -> Path:
    """Returns the path of the file with the table."""
    return folders.settings() / "tuned.json"


@functools.cache
def choices(gpu: str, in_bytes: int = 2) -> tuple[Choice, ...]:
    """Returns the choices for a GPU of that name and elements of ``in_bytes``; the file is read once a process.

    A damaged file counts as empty, with a warning, so that a matmul does not fail.
    """
    try:
        found = table().get(gpu, ())
    except UsageError as error:
        warnings.warn(f"{error}; matmul goes by its built-in facts; warpwright tune --forget removes it", stacklevel=2)
        return ()
    return tuple(filter(lambda choice: choice.dtype.startswith("float8") == (in_bytes == 1), found))


def table() -> Table:
    """Returns all choices by the name of their GPU. Raises UsageError for a file of another version, or a damaged
    one."""
    try:
        content = json.loads(path().read_bytes())
    except OSError:
        return {}
    except ValueError:
        raise UsageError(f"{path()} is damaged: it is no JSON") from None
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise UsageError(f"{path()} is of version {version}; expected {VERSION}")
    try:
        return {gpu: tuple(_choice(**entry) for entry in entries) for gpu, entries in content["gpus"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        names = ", ".join(field.name for field in fields(Choice))
        raise UsageError(f"{path()} is damaged: expected entries of {names}") from None


def _choice(m: int, n: int, k: int, dtype: str, config: str, us: float, measured: str) -> Choice:
    if min(m, n, k) < 1:
        raise ValueError
    return Choice(m, n, k, str(dtype), str(config), float(us), str(measured))


def store(gpu: str, found: Sequence[Choice]) -> None:
    """Store choices for a GPU; they replace choices for the same problems. Raises OSError, and UsageError as
    `table`."""
    known = table()
    merged = {choice.problem: choice for choice in (*known.get(gpu, ()), *found)}
    _write({**known, gpu: tuple(merged[problem] for problem in sorted(merged))})


def forget(gpu: str | None = None) -> int:
    """Remove the choices of a GPU, or the whole file, damaged or not; returns their number. Raises OSError."""
    known: Table = {}
    with contextlib.suppress(UsageError):
        known = table()
    if gpu is None:
        path().unlink(missing_ok=True)
        choices.cache_clear()
        return sum(map(len, known.values()))
    gone = known.pop(gpu, ())
    if gone:
        _write(known)
    return len(gone)


def _write(known: Table) -> None:
    gpus = {gpu: [asdict(choice) for choice in found] for gpu, found in sorted(known.items())}
    folders.replace_file(path(), json.dumps({"version": VERSION, "gpus": gpus}, indent=1).encode())
    choices.cache_clear()
