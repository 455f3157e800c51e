"""Launches described in a TOML file or on the command line: kernel, grid and arguments. docs/profile.md has both forms.

A file has ``kernel`` (``"file.ptx"``, or ``"file.py:name"`` for a kernel of the language), ``entry``, ``grid``,
``block``, ``cluster``, ``smem``, ``device``, for checks ``explore``, ``seed``, ``depends_on`` and ``off``, a table
``[config]``, one table ``[[args]]`` for each parameter, and one table ``[[memory]]`` for each array that the kernel
reaches through pointers. Of a node (``device = "h200x2"``) every rank has its own arrays, filled one after the other.
A Python file is code: it runs with the rights of the user.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from warpwright import targets, types
from warpwright.errors import UsageError, WarpwrightError
from warpwright.folders import is_own
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.layout.peers import PerRank
from warpwright.layout.tensor_map import TensorMap
from warpwright.run.launch import Entry, load_ptx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["MOST_ELEMENTS", "LaunchSpec", "arguments", "entry_of", "parse_arguments", "read_launch"]

Kinds = Mapping[str, tuple[tuple[type, ...], str]]  # of a key: the types of its value, and an example

_DIMS: tuple[tuple[type, ...], str] = (int, list), "4 or [4, 2, 1]"
TOP: Kinds = {
    "kernel": ((str,), '"file.ptx"'),
    "entry": ((str,), '"gemm"'),
    "grid": _DIMS,
    "block": _DIMS,
    "cluster": _DIMS,
    "smem": ((int,), "1024"),
    "device": ((str,), '"h200"'),
    "explore": ((int,), "20"),
    "seed": ((int,), "7"),
    "depends_on": ((list,), "[0, 2]"),
    "off": ((str, list), '["race"]'),
    "config": ((dict,), "{stages = 4}"),
    "args": ((list,), "[{value = 1}]"),
    "memory": ((list,), '[{name = "x", shape = 64}]'),
}
ARGUMENT: Kinds = {
    "name": ((str,), '"x"'),
    "value": ((int, float, bool), "1000"),
    "dtype": ((str,), '"f32"'),
    "shape": ((int, list), "[64, 32]"),
    "fill": ((str,), '"zeros"'),
    "file": ((str,), '"x.npy"'),
    "same": ((str,), '"x"'),
    "bytes": ((str,), '"00ff"'),
    "fields": ((list,), '["x", 1000, 2.0]'),
    "pointers": ((list,), '["x", "y"]'),
    "map": ((dict,), "{box = [8, 64]}"),
}
MAP: Kinds = {
    "box": ((list,), "[8, 64]"),
    "swizzle": ((int,), "128"),
    "element_strides": ((list,), "[1, 1]"),
    "fill": ((str,), '"zero"'),
    "interleave": ((str,), '"none"'),
    "l2_promotion": ((int,), "128"),
}
FIELD: Kinds = {"dtype": ARGUMENT["dtype"], "value": ARGUMENT["value"]}
KINDS = ("value", "bytes", "fields", "pointers", "same", "file", "shape")
FILLS = ("normal", "zeros", "ones", "index")
SEED = 0
MOST_ELEMENTS = 1 << 40  # of an array: more than any machine has room for
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)")
_ARRAY = re.compile(r"(\w+)\[([\d,\s]+)\]")

Table = Mapping[str, Any]


@dataclass(frozen=True)
class LaunchSpec:
    """A launch for `ww.launch`, `ww.profile` and `ww.check`; ``device`` is None if the file names none.

    ``source``: the PTX file; ``explore`` and ``seed``: the schedules to check; ``depends_on``: numbers of the arguments
    that an earlier launch writes; ``off``: rules that are not checked; ``memory``: that of `ww.launch`.
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
    memory: tuple[Any, ...] | None = None


def read_launch(path: Path, trust: bool = False) -> LaunchSpec:
    """Returns the launch that a file describes; paths in the file are relative to it.

    ``trust``: run a Python file although it is outside the current folder, or another user's.

    Raises UsageError for text that is not TOML, unknown or missing keys, values of a wrong type, files that cannot be
    read, and Python code that is not trusted or that raises an exception.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a launch file (TOML)") from None
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8, too many digits, too deep
        raise UsageError(f"{path.name} is not TOML: {error}") from None
    _check_table(path.name, table, TOP)
    for needed in ("kernel", "grid"):
        if needed not in table:
            raise UsageError(f'{path.name} has no {needed}; expected kernel = "file.ptx" and grid = 4 or [4, 2, 1]')
    here = path.absolute().parent
    kernel = _kernel(here, table["kernel"], table.get("entry"), table.get("config", {}), trust)
    named, random = dict[str, Any](), np.random.default_rng(SEED)
    memory = _values(table.get("memory", []), here, named, random, f"{path.name}: memory")
    ranks = targets.split_node(table.get("device", ""))[1] or 1
    args = _values(table.get("args", []), here, named, random, f"{path.name}: argument", ranks)
    grid, block, cluster, smem = (table.get(name) for name in ("grid", "block", "cluster", "smem"))
    source = here / table["kernel"] if isinstance(kernel, Entry) else None
    how: dict[str, Any] = {n: _parse_count(path.name, n, table[n]) for n in ("explore", "seed") if n in table}
    how |= {
        "depends_on": tuple(_parse_count(path.name, "depends_on", n) for n in table.get("depends_on", ())),
        "off": _parse_names(path.name, "off", table.get("off", [])),
        "memory": tuple(memory) if "memory" in table or _has_pointers(table.get("args", [])) else None,
    }
    shape = grid, block, cluster, smem
    return LaunchSpec(kernel, *shape, tuple(args), table.get("device"), source, **how)


def _has_pointers(tables: Sequence[Table]) -> bool:
    """Returns whether an argument has the addresses of other arguments."""
    return any("fields" in table or "pointers" in table for table in tables)


def _parse_names(file: str, name: str, given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise UsageError(f'{file} has {name} = {given!r}; expected names in quotes, such as {name} = ["race"]')
    return tuple(names)


def _parse_count(file: str, name: str, given: Any) -> int:
    if type(given) is not int or given < 0:
        raise UsageError(f"{file} has {name} = {given!r}; expected 0 or more, such as {name} = {TOP[name][1]}")
    return given


def _kernel(here: Path, text: str, entry: str | None, config: Table, trust: bool) -> Entry | Traced:
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        if config:
            raise UsageError(f"given [config] for {text}; expected it only for a kernel of the language, file.py:name")
        return entry_of(here / text, entry)
    path = here / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"cannot read {path}: no such file; name a Python file with the kernel")
    if not trust:
        _refuse_foreign(path)
    with _errors_of_code(file):
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not isinstance(found, Kernel):
        raise UsageError(f"{file} has no kernel {name!r}; expected a function under @kernel")
    with _errors_of_code(file):
        return found.trace(**config)


def _refuse_foreign(path: Path) -> None:
    """Raise UsageError for a Python file that lies outside the current folder, or that another user owns."""
    path = path.resolve()
    if not path.is_relative_to(Path.cwd()):
        why = f"it is outside the current folder, {Path.cwd()}"
    elif not is_own(path):
        why = "another user owns it"
    else:
        return
    raise UsageError(f"{path} is code that runs with your rights, and {why}; read it, then give --trust")


@contextlib.contextmanager
def _errors_of_code(file: str) -> Iterator[None]:
    """Turns any exception of Python code into a UsageError; errors of this package stay as they are."""
    try:
        yield
    except WarpwrightError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{file} stops with {type(error).__name__}: {error}; mend the Python code") from error


def entry_of(path: Path, name: str | None) -> Entry:
    """Returns the kernel ``name`` of a PTX file, or its only kernel."""
    module = load_ptx(path, whole=True)
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
    """Returns the values that tables of a launch file describe."""
    return _values(tables, here, {}, np.random.default_rng(SEED), label)


def _values(
    tables: Sequence[Table], here: Path, named: dict[str, Any], random: np.random.Generator, label: str, ranks: int = 1
) -> list[Any]:
    """Returns the values of tables, and adds arrays to ``named``; one random generator fills all arrays, in order. With
    several ``ranks`` an array of each."""
    values: list[Any] = []
    for number, table in enumerate(tables):
        where = f"{label} {number}"
        if not isinstance(table, dict):
            raise UsageError(f"{where} is {table!r}; expected a table, such as {{value = {table!r}}}")
        _check_table(where, table, ARGUMENT)
        value = _value(table, here, named, random, where)
        if ranks > 1 and ("shape" in table or "file" in table):
            value = PerRank([value, *(_value(table, here, named, random, where) for _ in range(1, ranks))])
        if "name" in table and isinstance(value, np.ndarray | PerRank):
            named[table["name"]] = value
        values.append(_tensor_map(value, table["map"], where) if "map" in table else value)
    return values


def _value(
    table: Table, here: Path, named: Mapping[str, np.ndarray[Any, Any]], random: np.random.Generator, where: str
) -> Any:
    kinds = [kind for kind in KINDS if kind in table]
    match kinds:
        case ["value"]:
            return table["value"]
        case ["bytes"]:
            return _struct(table["bytes"], where)
        case ["fields"]:
            return _pack_fields(table["fields"], named, where)
        case ["pointers"]:
            return np.array([_address(name, named, where) for name in table["pointers"]], np.uint64)
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
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive of arrays (.npz)")
        return array if dtype is None else array.view(_dtype(dtype, path.name))
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot read {path}: {error}; expected a .npy file written by np.save") from None


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
    if not extents or not all(_has_type(extent, (int,)) and extent > 0 for extent in extents):
        raise UsageError(f"{where} has shape = {given}; expected positive integers, such as [64, 32]")
    if len(extents) > 32 or math.prod(extents) > MOST_ELEMENTS:
        raise UsageError(f"{where} has shape = {given}; expected at most 32 extents and {MOST_ELEMENTS:,} elements")
    return tuple(extents)


def _struct(digits: Any, where: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except (TypeError, ValueError):
        raise UsageError(f"{where} has bytes = {digits!r}; expected pairs of hexadecimal digits in quotes") from None


def _pack_fields(fields: Sequence[Any], named: Mapping[str, Any], where: str) -> bytes:
    """Returns the bytes of a C struct: each field at a multiple of its size, the whole a multiple of the largest."""
    packed, sizes = bytearray(), [1]
    for field in fields:
        data = _field(field, named, where)
        sizes.append(len(data))
        packed += bytes(-len(packed) % len(data)) + data
    return bytes(packed + bytes(-len(packed) % max(sizes)))


def _field(field: Any, named: Mapping[str, Any], where: str) -> bytes:
    """Returns the bytes of a field: the address of a named array, an s32, an f32, or a number of another type."""
    if isinstance(field, str):
        return _address(field, named, where).to_bytes(8, "little")
    plain = "f32" if isinstance(field, float) else "s32"
    table = field if isinstance(field, dict) else {"dtype": plain, "value": field}
    _check_table(where, table, FIELD)
    try:
        dtype, value = _dtype(table["dtype"], where), table["value"]
        with np.errstate(over="raise"):
            return np.array(index(value) if dtype.kind in "iu" else value, dtype).tobytes()
    except (KeyError, TypeError, ArithmeticError):
        raise UsageError(
            f'{where} has a field {field!r}; expected the name of an array, an s32, an f32, or {{dtype = "u64", value '
            "= 1}"
        ) from None


def _address(name: Any, named: Mapping[str, Any], where: str) -> int:
    """Returns the address of a named array."""
    if not isinstance(name, str) or name not in named:
        raise UsageError(f"{where} points to {name!r}; expected the name of an array above it, or of [[memory]]")
    if isinstance(named[name], PerRank):
        raise UsageError(
            f"{where} points to {name!r}, of which every rank has its own; expected a parameter Peers for arrays of a "
            "node, or the device of one GPU"
        )
    return int(named[name].ctypes.data)


def _dtype(name: str, where: str) -> np.dtype[Any]:
    found = types.of_name(name).dtype
    if found is None:
        raise UsageError(f"{where} has dtype {name}, which no array holds; expected f32, bf16, u32 or the like")
    return found


def _tensor_map(value: Any, table: Table, where: str) -> TensorMap | PerRank:
    _check_table(f"{where}, map", table, MAP)
    if isinstance(value, PerRank):
        return PerRank([_tensor_map(each, table, where) for each in value.values])
    if not isinstance(value, np.ndarray) or "box" not in table:
        raise UsageError(f"{where} has a map; expected an array and a box: shape = [64, 64], map = {{box = [8, 64]}}")
    return TensorMap(value, **table)


def _check_table(where: str, table: Table, kinds: Kinds) -> None:
    """Raise UsageError for an unknown key, and for a value of a wrong type."""
    for key, value in table.items():
        if key not in kinds:
            close = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(kinds)}"
            raise UsageError(f"{where} has a key {key!r}; {hint}")
        expected, example = kinds[key]
        if not _has_type(value, expected):
            raise UsageError(f"{where} has {key} = {value!r}; expected a value such as {key} = {example}")


def _has_type(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
