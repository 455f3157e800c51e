"""score_mod, mask_mod, soft caps and sinks of a call of attention: the functions of a user, and their arrays."""

from __future__ import annotations

import dis
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from warpwright import types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.arrays.libraries import Library, View, library_of, location
from warpwright.errors import UsageError
from warpwright.kernels.attention.index import EXACT
from warpwright.kernels.attention.mods import NO_MODS, Array, At, Constant, Function, Mods, Place
from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90 import block_lists, modified, sliding
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.lang import Global, If, Kernel, kernel, s32, u32
from warpwright.lang.trace import Traced
from warpwright.ops.attention.plan import COUNTER, SETTING, check_narrow_values, setting
from warpwright.ops.binding import Launch, Plan, geometry
from warpwright.targets import kernels_of

__all__ = [
    "Arrays",
    "Given",
    "check_target",
    "given_mods",
    "list_shape",
    "list_steps",
    "memo_key",
    "plan_lists",
    "plan_modified",
]

ARGUMENTS = {"score_mod": "score, batch, head, q, k", "mask_mod": "batch, head, q, k"}
# Configurations with tiles of 128 queries: their consumers have registers left for the functions.
CONFIG_NAMES = {64: "64: 128x128", 96: "96: 128x128", 128: "128: 128x128", 192: "192: 128x80", 256: "256: 128x64"}


@dataclass(frozen=True, slots=True)
class Given:
    """What a call gives besides q, k and v: ``mods``, and the arrays by their names in a `Plan`."""

    mods: Mods
    arrays: Mapping[str, View]


def given_mods(
    library: Library,
    q: View,
    heads: int,
    *,
    softcap: float | None = None,
    sinks: Any = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
) -> Given | None:
    """Returns what the arguments of `attention` change, None if nothing.

    Raises UsageError for a soft cap that is no positive number, sinks that are not one float32 a head, and functions
    that capture what a kernel cannot know.
    """
    if softcap is None and sinks is None and score_mod is None and mask_mod is None:
        return None
    arrays = Arrays(library, location(q))
    mods = _mods(arrays, softcap, sinks, score_mod, mask_mod)
    named = {f"array{i}": view for i, view in enumerate(arrays.views)}
    return Given(mods, named | ({} if sinks is None else {"sinks": _sinks(library, q, heads, sinks)}))


def memo_key(
    q: Any, softcap: Any, sinks: Any, score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None
) -> tuple[Mods, tuple[Any, ...]]:
    """Returns what the arguments change apart from their arrays, and the arrays: captured ones, then sinks.

    Raises UsageError as `given_mods`, but checks no sinks: the memo compares them with those of an earlier call.
    """
    library = library_of(q)
    if library is None:
        return NO_MODS, ()
    arrays = Arrays(library, None)
    mods = _mods(arrays, softcap, sinks, score_mod, mask_mod)
    return mods, (*arrays.captured, *([] if sinks is None else [sinks]))


def check_target(arch: str, name: str, longest: int) -> None:
    """Raise UsageError for a target that has no kernel for functions of a user, for a setting without TMA, and for an
    array of queries or keys, ``longest`` rows, whose indices are not exact in float32."""
    if longest > EXACT:
        raise UsageError(
            f"attention: given score_mod, mask_mod, softcap or sinks with {longest} queries or keys; expected at most "
            f"{EXACT}, so that indices are exact in float32: divide the sequence"
        )
    if kernels_of(arch) != "sm_90a":
        raise UsageError(
            f"attention: given score_mod, mask_mod, softcap or sinks on {name} ({arch}); expected sm_90a, the only one "
            "with a kernel for them: device='h200'"
        )
    if setting() is False:
        raise UsageError(
            f"attention: given score_mod, mask_mod, softcap or sinks and {SETTING}=0; expected 1 or -1, for their "
            "kernel copies by TMA: unset it"
        )


def _mods(arrays: Arrays, softcap: Any, sinks: Any, score_mod: Any, mask_mod: Any) -> Mods:
    score, mask = arrays.function("score_mod", score_mod), arrays.function("mask_mod", mask_mod)
    cap = None if softcap is None else _soft_cap(softcap)
    return Mods(score, mask, cap, sinks is not None, tuple(arrays.types))


def _soft_cap(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < math.inf:
        raise UsageError(f"attention: softcap={value!r}; expected a positive number, or None for no soft cap")
    return float(value)


def _sinks(library: Library, q: View, heads: int, sinks: Any) -> View:
    view = library.view(sinks) if library_of(sinks) is library else None
    if view is None or view.shape != (heads,) or view.dtype != np.float32 or location(view) != location(q):
        given = type(sinks).__name__ if view is None else f"{view.dtype} {tuple(view.shape)} on {location(view)}"
        raise UsageError(
            f"attention: sinks is {given}; expected float32 ({heads},) on {location(q)}, one number for each head of q"
        )
    if isinstance(view, DeviceArray) and geometry(view)[1] != dense_strides(view.shape, view.itemsize):
        raise UsageError(
            f"attention: sinks has strides of {view.strides} bytes; expected a dense array: "
            f"{library.copying.format(name='sinks')}"
        )
    return view


class Arrays:
    """The arrays that the functions of a call capture, of ``library`` and at ``place``, or anywhere for None."""

    def __init__(self, library: Library, place: str | None) -> None:
        self.library, self.place = library, place
        self.captured: list[Any] = []
        self.views: list[View] = []
        self.types: list[Array] = []
        self._known: dict[int, At] = {}
        self._open: list[FunctionType] = []  # functions whose captured values are being looked up

    def function(self, role: str, given: Callable[..., Any] | None) -> Function | None:
        """Returns ``given`` without its arrays. Raises UsageError if it is no Python function or captures too much."""
        if given is None:
            return None
        if not isinstance(given, FunctionType):
            raise UsageError(
                f"attention: {role}={given!r}; expected a Python function: def {role}({ARGUMENTS[role]}): …"
            )
        code, count = given.__code__, len(ARGUMENTS[role].split(", "))
        takes = code.co_argcount + code.co_kwonlyargcount
        if (
            code.co_argcount - len(given.__defaults__ or ()) > count
            or code.co_argcount < count
            or takes > code.co_argcount
        ):
            raise UsageError(
                f"attention: {role} {given.__name__} takes {takes} arguments; expected {count}: ({ARGUMENTS[role]})"
            )
        return self._function(role, given)

    def _function(self, role: str, given: FunctionType) -> Function:
        if given in self._open:
            raise UsageError(
                f"attention: {role} uses {given.__name__}, which calls itself; expected a loop: for i in …"
            )
        self._open.append(given)
        code, cells = given.__code__, given.__closure__ or ()
        closure = tuple(
            (name, self._value(role, name, cell.cell_contents))
            for name, cell in zip(code.co_freevars, cells, strict=True)
        )
        used = sorted(name for name in _global_names(code) if name in given.__globals__)
        names = tuple((name, self._value(role, name, given.__globals__[name])) for name in used)
        defaults = tuple(self._value(role, "a default", each) for each in given.__defaults__ or ())
        self._open.pop()
        return Function(given.__name__, code, defaults, closure, names, given.__globals__)

    def _value(self, role: str, name: str, value: Any) -> Any:
        if library_of(value) is not None and not isinstance(value, np.generic):
            return self._array(role, name, value)
        if isinstance(value, FunctionType) and not (value.__module__ or "").startswith("warpwright."):
            return self._function(role, value)
        value = value.item() if isinstance(value, np.generic) else value
        if not _constant(value):
            raise UsageError(
                f"attention: {role} captures {name}, a {type(value).__name__}; expected numbers, tuples, functions and "
                f"arrays of {self.library.name}: np.asarray({name})"
            )
        return Constant(value, repr(value) if isinstance(value, (int, float, tuple)) else "")

    def _array(self, role: str, name: str, value: Any) -> At:
        if id(value) in self._known:
            return self._known[id(value)]
        if library_of(value) is not self.library:
            raise UsageError(
                f"attention: {role} captures {name}, an array of another library than q; expected one of "
                f"{self.library.name}"
            )
        view = self.library.view(value)
        if not view.shape:
            raise UsageError(
                f"attention: {role} captures {name}, an array without dimensions; expected a number: {name}.item()"
            )
        if self.place is not None and location(view) != self.place:
            raise UsageError(f"attention: {role} captures {name} on {location(view)}; expected it on {self.place}")
        if isinstance(view, DeviceArray) and geometry(view)[1] != dense_strides(view.shape, view.itemsize):
            raise UsageError(
                f"attention: {role} captures {name} with strides of {view.strides} bytes; expected a dense array: "
                f"{self.library.copying.format(name=name)}"
            )
        boolean = view.dtype == np.bool_
        plain = _as_bytes(view) if boolean else view
        self._known[id(value)] = At(len(self.views))
        self.captured.append(value)
        self.views.append(plain)
        self.types.append(Array(types.of_dtype(plain.dtype), view.size, tuple(view.shape[1:]), boolean))
        return self._known[id(value)]


def _constant(value: Any) -> bool:
    """Returns whether a captured value is part of the kernel's code: it has a hash, and cannot change."""
    known = isinstance(value, (ModuleType, bool, int, float, str, tuple, type(None)))
    return isinstance(value, Hashable) and (known or callable(value))


def _as_bytes(view: View) -> View:
    return replace(view, dtype=np.dtype(np.uint8)) if isinstance(view, DeviceArray) else view.view(np.uint8)


@lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> frozenset[str]:
    """Returns the global names that a function reads, and the functions that are defined in it."""
    inner = [_global_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(own).union(*inner)


def list_shape(problem: Problem, mods: Mods, tile: tuple[int, int] | None = None) -> tuple[int, int, int, int]:
    """Returns (batches, heads, tiles, words) of the lists of key blocks; 1 for what the mask does not depend on. With a
    ``tile`` of the gradients they are lists of tiles of queries, one for each block of keys."""
    queries, keys = tile or _config(problem).tile
    by_batch, by_head = _dependence(mods)
    of_q, of_k = -(-problem.q_len // queries), -(-problem.kv_len // keys)
    tiles, blocks = (of_q, of_k) if tile is None else (of_k, of_q)
    return problem.batch if by_batch else 1, problem.heads if by_head else 1, tiles, blocks + block_lists.HEAD_WORDS


def list_steps(shape: tuple[int, int, int, int]) -> tuple[int, int]:
    """Returns how many lists further that of the next batch is, and that of the next head."""
    batches, heads, tiles, _ = shape
    return heads * tiles if batches > 1 else 0, tiles if heads > 1 else 0


@lru_cache(maxsize=1024)
def plan_lists(problem: Problem, mods: Mods, arch: str) -> Plan:
    """Returns the plan of the launch that writes the list of each tile of queries to the array ``lists``."""
    (batches, heads, tiles, _), config = list_shape(problem, mods), _config(problem)
    found = sm90_plan.plan(problem, sms=1, config=config)
    kernel = block_lists.kernel_of(config.tile, mods).trace(arch, bounds=found.bounds)
    args = "lists", *found.scalars[:4], *mods.params
    return Plan((Launch(kernel, (tiles, heads, batches), args),), config, kernel="sm90.block_lists")


@lru_cache(maxsize=1024)
def plan_modified(problem: Problem, mods: Mods, arch: str, sms: int, workspace: bool) -> Plan:
    """Returns the plan of ``problem`` with ``mods`` on a device of ``sms`` SMs."""
    check_narrow_values(problem, ", with score_mod, mask_mod, softcap or sinks")
    counter, words = ("workspace", COUNTER) if workspace else (0, None)
    if mods == Mods(sinks=True) and sm90_plan.slides(problem):
        return _plan_sliding(problem, arch, sms, counter, words)
    config = _config(problem)
    found = sm90_plan.plan(problem, sms=sms, config=config)
    kernel: Traced = modified.kernel_of(config, mods).trace(
        arch, dtype=types.of_dtype(problem.dtype), bounds=found.bounds
    )
    steps = list_steps(list_shape(problem, mods)) if mods.mask is not None else (0, 0)
    *scalars, scale = found.scalars
    scale = problem.factor if mods.changes_scores else scale
    memory = "sinks" if mods.sinks else 0, "lists" if mods.mask else 0
    args = *"qkvo", "lse", counter, *memory, *scalars, *steps, scale, *mods.params
    why = "score_mod, mask_mod, softcap or sinks are given"
    return Plan((Launch(kernel, found.grid, args),), config, words, kernel="sm90.attention_modified", why=why)


def _plan_sliding(problem: Problem, arch: str, sms: int, counter: str | int, words: int | None) -> Plan:
    """Returns the plan of ``problem`` with sinks in a window of whole key blocks."""
    found = sm90_plan.plan(problem, sms=sms)
    kernel: Traced = sliding.with_sinks(found.config).trace(arch, dtype=types.of_dtype(problem.dtype))
    launch = Launch(kernel, found.grid, (*"qkvo", "lse", counter, *found.scalars, "sinks"))
    return Plan((launch,), found.config, words, kernel="sm90.attention", why="sinks are given")


def _config(problem: Problem) -> sm90_plan.Config:
    name = CONFIG_NAMES[next(size for size in CONFIG_NAMES if size >= problem.head_dim)]
    return replace(sm90_plan.CONFIGS[name], direct=False)


@kernel("sm_90a", threads=32)
def _probe(out: Global[u32], batch: s32, head: s32, q: s32, k: s32, *arrays: Any, mods: Mods = NO_MODS) -> None:
    """Stores a word that depends on what the mask function reads."""
    with If(Place(mods, arrays, batch, head).sees(q, k)):
        out[0] = 1


@lru_cache(maxsize=256)
def _dependence(mods: Mods) -> tuple[bool, bool]:
    """Returns whether the mask function reads the batch, and the head: whether its PTX loads the parameter."""
    probe: Kernel = _probe.with_params(**mods.params)
    text = probe.configure(mods=mods).ptx()
    return "[batch]" in text, "[head]" in text
