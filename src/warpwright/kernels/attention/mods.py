"""What a user changes in attention: a function of the scores, a mask function, a soft cap, and sinks.

A function is Python code in the kernel language. It runs while a kernel is traced, and its instructions become part of
the kernel. Arrays that it captures are parameters of the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from warpwright.lang import Expr, Global, Kernel, Pointer, f32, kernel, s32, s64, tanh
from warpwright.lang.affine import Affine, affine
from warpwright.lang.context import misuse
from warpwright.lang.derivative import value_and_slope
from warpwright.types import Scalar

__all__ = ["NO_MODS", "Array", "At", "Constant", "Elements", "Function", "Mods", "Place", "is_affine"]

WIDE = 1 << 31  # elements of an array whose index needs 64 bits


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a function captures: its element type, its number of elements, and its extents but the first."""

    dtype: type[Scalar]
    size: int
    inner: tuple[int, ...]
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class At:
    """Takes the place of a captured array in a `Function`: its index in `Mods.arrays`."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A captured value that becomes part of the kernel. ``text`` tells 1 from 1.0 and from True, which are equal."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function without the arrays that it captures: its code, and what its free and global names mean.

    ``closure`` and ``names`` are (name, value) pairs; a value is a `Constant`, another `Function` or an `At`. Equal
    functions emit the same instructions.
    """

    name: str
    code: CodeType
    defaults: tuple[Any, ...]
    closure: tuple[tuple[str, Any], ...]
    names: tuple[tuple[str, Any], ...]
    scope: dict[str, Any] = field(compare=False, repr=False)

    def bind(self, arrays: Sequence[Elements]) -> Callable[..., Any]:
        """Returns the function with ``arrays`` in place of those that it captures."""

        def bound(value: Any) -> Any:
            if isinstance(value, Function):
                return value.bind(arrays)
            return arrays[value.index] if isinstance(value, At) else value.value

        scope = {**self.scope, **{name: bound(value) for name, value in self.names}}
        cells = tuple(CellType(bound(value)) for _, value in self.closure)
        return FunctionType(self.code, scope, self.name, tuple(map(bound, self.defaults)), cells)


class Elements:
    """A captured array in a kernel: ``bias[head, q, k]`` loads an element.

    Elements of 16-bit floating-point types are converted to f32, 8- and 16-bit integers to s32, truth values to pred;
    the element has the type of the array otherwise.
    """

    def __init__(self, array: Array, pointer: Pointer[Any]) -> None:
        self.array, self.pointer = array, pointer

    def __getitem__(self, index: Any) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        if len(given) != len(self.array.inner) + 1:
            raise misuse(
                f"given {len(given)} indices of an array of {len(self.array.inner) + 1} dimensions; expected one for "
                "each dimension, which loads one element: bias[head, q, k]",
                _line_of(sys._getframe(1)),
            )
        wide = s64 if self.array.size >= WIDE else None
        place = given[0].to(wide) if wide and isinstance(given[0], Expr) else given[0]
        for extent, each in zip(self.array.inner, given[1:], strict=True):
            place = place * extent + (each.to(wide) if wide and isinstance(each, Expr) else each)
        return self._converted(self.pointer[place])

    def _converted(self, value: Expr) -> Any:
        kind, bits = self.array.dtype.kind, self.array.dtype.bits
        if self.array.boolean:
            return value.to(s32) != 0
        if kind == "float" and bits < 32:
            return value.to(f32)
        return value.to(s32) if kind in ("signed", "unsigned") and bits < 32 else value


@dataclass(frozen=True, slots=True)
class Mods:
    """What differs from plain attention, without the arrays, as a key of traced kernels.

    The scores become ``score(s, batch, head, q, k)`` of the scaled score s, then ``softcap`` · tanh(s / softcap). A
    query sees no key for which ``mask(batch, head, q, k)`` is false. With ``sinks`` the sum of weights of a row has one
    more addend, exp(sink of the head). ``arrays`` are those that the functions capture.
    """

    score: Function | None = None
    mask: Function | None = None
    softcap: float | None = None
    sinks: bool = False
    arrays: tuple[Array, ...] = ()

    @property
    def changes_scores(self) -> bool:
        """Whether scores are changed before the softmax."""
        return self.score is not None or self.softcap is not None

    @property
    def indexed(self) -> bool:
        """Whether a function reads the batch, head, query and key of a score."""
        return self.score is not None or self.mask is not None

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the captured arrays with their annotations."""
        return {f"array{i}": Global[each.dtype] for i, each in enumerate(self.arrays)}  # type: ignore[name-defined]

    def elements(self, pointers: Sequence[Pointer[Any]]) -> list[Elements]:
        """Returns the captured arrays at ``pointers``."""
        return [Elements(each, pointer) for each, pointer in zip(self.arrays, pointers, strict=True)]


NO_MODS = Mods()


class Place:
    """A score in a kernel: applies the functions of `Mods` at a batch and head."""

    def __init__(self, mods: Mods, pointers: Sequence[Pointer[Any]], batch: Any, head: Any) -> None:
        arrays = mods.elements(pointers)
        self.mods, self.batch, self.head = mods, batch, head
        self.score_mod = mods.score.bind(arrays) if mods.score else None
        self.mask_mod = mods.mask.bind(arrays) if mods.mask else None

    def score(self, score: Expr, q: Expr, k: Expr) -> Any:
        """Returns the changed score of query ``q`` and key ``k`` (s32), f32."""
        if self.score_mod is not None:
            changed = self.score_mod(score, self.batch, self.head, q, k)
            score = _checked("score_mod", self.score_mod, changed, "f32")
        cap = self.mods.softcap
        return score if cap is None else tanh(score * (1 / cap)) * cap

    def score_and_slope(self, score: Expr, q: Expr, k: Expr) -> tuple[Any, Any]:
        """Returns the changed score and its derivative by ``score``, a float where that is the same everywhere."""
        return value_and_slope(lambda each: self.score(each, q, k), score)

    def affine(self, q: Expr, k: Expr, varying: set[str]) -> Affine | None:
        """Returns the changed score as a sum with the score, as `lang.affine.affine` with ``varying``."""
        return affine(lambda each: self.score(each, q, k), varying)

    def sees(self, q: Expr, k: Expr) -> Any:
        """Returns whether the mask function lets query ``q`` see key ``k`` (s32): a pred, or a bool."""
        assert self.mask_mod is not None
        return _checked("mask_mod", self.mask_mod, self.mask_mod(self.batch, self.head, q, k), "pred")


@kernel("sm_90a", threads=32)
def _probe(out: Global[f32], batch: s32, head: s32, q: s32, k: s32, *arrays: Any, mods: Mods = NO_MODS) -> None:
    """Stores a number if the changed score is no sum with the score."""
    if Place(mods, arrays, batch, head).affine(q, k, {q.reg, k.reg}) is None:
        out[0] = 0.0


@lru_cache(maxsize=256)
def is_affine(mods: Mods) -> bool:
    """Returns whether each changed score is factor · score + addends, with the same factor for all q and k."""
    probe: Kernel = _probe.with_params(**mods.params)
    return mods.changes_scores and "st.global" not in probe.configure(mods=mods).ptx()


def _checked(name: str, function: Callable[..., Any], value: Any, expected: str) -> Any:
    """Returns the result of a user's ``function``. Raises KernelError, at that function, for one of another type."""
    if isinstance(value, bool) and expected == "pred":
        return value
    if not isinstance(value, Expr) or value.type.name != expected:
        message = f"given {value!r}, the result of {name}; expected one {expected}: {_example(name, value)}"
        code = function.__code__
        raise misuse(message, f"{code.co_filename}:{code.co_firstlineno}")
    return value


def _example(name: str, value: Any) -> str:
    """Returns the edit that makes ``value`` a result of ``name``."""
    if name == "mask_mod":
        return "return x != 0 for a number x" if isinstance(value, Expr) else "return k <= q"
    if isinstance(value, bool) or (isinstance(value, Expr) and value.type.name == "pred"):
        return "pass the function as mask_mod= to hide keys, or return select(condition, score, x)"
    return "return x.to(f32)" if isinstance(value, Expr) else "return score + bias[head, q, k]"


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
