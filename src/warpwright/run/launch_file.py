"""Launches described in a TOML file or on the command line: kernel, grid and arguments. docs/profile.md has both forms.

A file has ``kernel`` (``"file.ptx"``, or ``"file.py:name"`` for a kernel of the language), ``entry``, ``grid``,
``block``, ``cluster``, ``smem``, ``device``, for checks ``explore``, ``seed``, ``depends_on`` and ``off``, a table
``[config]`` and one table ``[[args]]`` for each parameter.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warpwright import types
from warpwright.errors import UsageError
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap
from warpwright.run.launch import Entry, load_ptx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LaunchSpec", "arguments", "entry_of", "parse_arguments", "read_launch"]

TOP = (
    "kernel", "entry", "grid", "block", "cluster", "smem", "device", "explore", "seed", "depends_on", "off", "config",
    "args",
)  # fmt: skip
ARGUMENT = ("name", "value", "dtype", "shape", "fill", "file", "same", "bytes", "map")
MAP = ("box", "swizzle", "element_strides", "fill", "interleave", "l2_promotion")
KINDS = ("value", "bytes", "same", "file", "shape")
FILLS = ("normal", "zeros", "ones", "index")
SEED = 0
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)")
_ARRAY = re.compile(r"(\w+)\[([\d,\s]+)\]")

Table = Mapping[str, Any]


@dataclass(frozen=True)
class LaunchSpec:
    """A launch for `ww.launch`, `ww.profile` and `ww.check`; ``device`` is None if the file names none.

    ``source``: the PTX file; ``explore`` and ``seed``: the schedules to check; ``depends_on``: numbers of the arguments
    that an earlier launch writes; ``off``: rules that are not checked.
    """

    kernel: Entry | Traced
    grid: Any
    block: Any
    cluster: Any
    smem: int | None
    args: tuple[Any, ...]
    device: str | None
    source: Path | None = None
    explore: int = 0
    seed: int | None = None
    depends_on: tuple[int, ...] = ()
    off: tuple[str, ...] = ()


def read_launch(path: Path) -> LaunchSpec:
    """Returns the launch that a file describes; paths in the file are relative to it.

    Raises UsageError for text that is not TOML, unknown or missing keys, and files that cannot be read.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a launch file (TOML)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}") from None
    _check_keys(path.name, table, TOP)
    for needed in ("kernel", "grid"):
        if needed not in table:
            raise UsageError(f'{path.name} has no {needed}; expected kernel = "file.ptx" and grid = 4 or [4, 2, 1]')
    here = path.absolute().parent
    kernel = _kernel(here, str(table["kernel"]), table.get("entry"), table.get("config", {}))
    args = arguments(table.get("args", []), here, f"{path.name}: argument")
    grid, block, cluster, smem = (table.get(name) for name in ("grid", "block", "cluster", "smem"))
    source = here / table["kernel"] if isinstance(kernel, Entry) else None
    how: dict[str, Any] = {n: _parse_count(path.name, n, table[n]) for n in ("explore", "seed") if n in table}
    how |= {
        "depends_on": tuple(table.get("depends_on", ())),
        "off": _parse_names(path.name, "off", table.get("off", [])),
    }
    shape = grid, block, cluster, smem
    return LaunchSpec(kernel, *shape, tuple(args), table.get("device"), source, **how)


def _parse_names(file: str, name: str, given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise UsageError(f'{file} has {name} = {given!r}; expected names in quotes, such as {name} = ["race"]')
    return tuple(names)


def _parse_count(file: str, name: str, given: Any) -> int:
    if not isinstance(given, int) or given < 0:
        raise UsageError(f"{file} has {name} = {given!r}; expected 0 or more, such as {name} = 20")
    return given


def _kernel(here: Path, text: str, entry: str | None, config: Table) -> Entry | Traced:
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        if config:
            raise UsageError(f"given [config] for {text}; expected it only for a kernel of the language, file.py:name")
        return entry_of(here / text, entry)
    found = getattr(_module(here / file), name, None)
    if not isinstance(found, Kernel):
        raise UsageError(f"{file} has no kernel {name!r}; expected a function under @kernel")
    return found.trace(**config)


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"cannot read {path}: no such file; name a Python file with the kernel")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry_of(path: Path, name: str | None) -> Entry:
    """Returns the kernel ``name`` of a PTX file, or its only kernel."""
    module = load_ptx(path)
    if name is None and len(module) != 1:
        raise UsageError(f"{path.name} has {len(module)} kernels; name one of {', '.join(module)} as the entry")
    return module[next(iter(module)) if name is None else name]


def parse_arguments(words: Iterable[str]) -> list[dict[str, Any]]:
    """Parses command-line arguments such as ``1000``, ``2.0``, ``f32[64,32]`` or ``x.npy`` to tables of a launch
    file."""
    tables: list[dict[str, Any]] = []
    for word in words:
        array = _ARRAY.fullmatch(word.strip())
        number = _number(word)
        if array:
            tables.append({"dtype": array[1], "shape": [int(extent) for extent in array[2].split(",")]})
        elif word.endswith(".npy"):
            tables.append({"file": word})
        elif number is not None:
            tables.append({"value": number})
        else:
            raise UsageError(
                f"given --arg {word}; expected a number, an array such as f32[64,32], or a .npy file; tensor maps need "
                "a launch file (TOML)"
            )
    return tables


def _number(word: str) -> int | float | None:
    try:
        return int(word, 0) if _INTEGER.fullmatch(word) else float(word)
    except ValueError:
        return None


def arguments(tables: Sequence[Table], here: Path, label: str = "argument") -> list[Any]:
    """Returns the values that tables of a launch file describe; one random generator fills all arrays, in order."""
    random = np.random.default_rng(SEED)
    named: dict[str, np.ndarray[Any, Any]] = {}
    values: list[Any] = []
    for number, table in enumerate(tables):
        where = f"{label} {number}"
        if not isinstance(table, dict):
            raise UsageError(f"{where} is {table!r}; expected a table: [[args]] and below it value = {table!r}")
        value = _value(table, here, named, random, where)
        if "name" in table and isinstance(value, np.ndarray):
            named[table["name"]] = value
        values.append(_tensor_map(value, table["map"], where) if "map" in table else value)
    return values


def _value(
    table: Table, here: Path, named: Mapping[str, np.ndarray[Any, Any]], random: np.random.Generator, where: str
) -> Any:
    _check_keys(where, table, ARGUMENT)
    kinds = [kind for kind in KINDS if kind in table]
    match kinds:
        case ["value"]:
            return table["value"]
        case ["bytes"]:
            return _struct(table["bytes"], where)
        case ["same"] if table["same"] in named:
            return named[table["same"]]
        case ["same"]:
            raise UsageError(f"{where} is the same as {table['same']!r}; expected the name of an array above it")
        case ["file"]:
            return _load_array(here / table["file"], table.get("dtype"))
        case ["shape"]:
            return _fill_array(table, random, where)
    raise UsageError(f"{where} has {' and '.join(kinds) or 'none'} of {', '.join(KINDS)}; expected exactly one of them")


def _load_array(path: Path, dtype: str | None) -> np.ndarray[Any, Any]:
    """Returns the array of a .npy file; ``dtype`` names its element type if NumPy lacks that type."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"cannot read {path}: {error}; expected a .npy file written by np.save") from None
    return array if dtype is None else array.view(_dtype(dtype, path.name))


def _fill_array(table: Table, random: np.random.Generator, where: str) -> np.ndarray[Any, Any]:
    dtype, shape = _dtype(table.get("dtype", "f32"), where), _shape(table["shape"], where)
    is_float = types.of_dtype(dtype).kind == "float"
    fill = table.get("fill", "normal" if is_float else "zeros")
    if fill not in FILLS:
        raise UsageError(f"{where} has fill = {fill!r}; expected one of {', '.join(FILLS)}")
    if fill == "normal":
        return random.standard_normal(shape, np.float32).astype(dtype)
    if fill == "index":
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return np.ones(shape, dtype) if fill == "ones" else np.zeros(shape, dtype)


def _shape(given: Any, where: str) -> tuple[int, ...]:
    extents = given if isinstance(given, list) else [given]
    if not extents or not all(isinstance(extent, int) and extent > 0 for extent in extents):
        raise UsageError(f"{where} has shape = {given}; expected positive integers, such as [64, 32]")
    return tuple(extents)


def _struct(digits: Any, where: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except (TypeError, ValueError):
        raise UsageError(f"{where} has bytes = {digits!r}; expected pairs of hexadecimal digits in quotes") from None


def _dtype(name: str, where: str) -> np.dtype[Any]:
    found = types.of_name(name).dtype
    if found is None:
        raise UsageError(f"{where} has dtype {name}, which no array holds; expected f32, bf16, u32 or the like")
    return found


def _tensor_map(value: Any, table: Table, where: str) -> TensorMap:
    _check_keys(f"{where}, map", table, MAP)
    if not isinstance(value, np.ndarray) or "box" not in table:
        raise UsageError(f"{where} has a map; expected an array and a box: shape = [64, 64], map = {{box = [8, 64]}}")
    return TensorMap(value, **table)


def _check_keys(where: str, table: Table, keys: Sequence[str]) -> None:
    for key in table:
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(keys)}"
            raise UsageError(f"{where} has a key {key!r}; {hint}")
