"""Attention problems: the options of commands, and the text that describes a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.problem import DTYPES
from warpwright.report.format import percent
from warpwright.run.launch_file import MOST_ELEMENTS

__all__ = [
    "PROBLEM_OPTIONS",
    "SIZE_HELP",
    "check_elements",
    "counted",
    "extents",
    "is_number",
    "mask_of",
    "parse_heads",
    "parse_window",
    "problem_of",
    "problem_options",
    "summary_of",
]

SIZE_HELP = "HEADSxLENGTHxDIM, BATCHxHEADSxLENGTHxDIM, or BATCHxHEADSxQUERIESxKEYSxDIM"
DTYPE_NAMES = {dtype.name: dtype for dtype in DTYPES}
PROBLEM_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "kv_heads": ("heads of keys and values (default: as many as of queries).", {"type": click.IntRange(min=1)}),
    "causal": (
        "causal mask, aligned bottom right: a query sees no later key.",
        {"is_flag": True, "default": None},
    ),
    "window": ("keys to the left and right that a query sees; - for all: 128,-.", {"metavar": "LEFT,RIGHT"}),
    "scale": ("factor of the scores (default 1 / √DIM).", {"type": float}),
    "dtype": (f"dtype of the arrays (default {DTYPES[0].name}).", {"type": click.Choice(list(DTYPE_NAMES))}),
}

Command = Callable[..., None]


def problem_options(of: str = "") -> Callable[[Command], Command]:
    """Returns a decorator that adds the options of a problem, except its size; absent options are None. ``of`` begins
    each help text if the command has other problems too."""

    def describe(command: Command) -> Command:
        for name, (text, kind) in reversed(PROBLEM_OPTIONS.items()):
            words = of + text if of else text[0].upper() + text[1:]
            command = click.option(f"--{name.replace('_', '-')}", help=words, **kind)(command)
        return command

    return describe


def problem_of(size: str, options: Mapping[str, Any]) -> Problem:
    """Returns the problem of a size and the options of `problem_options`."""
    given = parse_heads(size)
    return replace(
        given,
        kv_heads=options["kv_heads"] or given.heads,
        causal=bool(options["causal"]),
        window=parse_window(options["window"]),
        scale=options["scale"],
        dtype=DTYPE_NAMES.get(options["dtype"], given.dtype),
    )


def is_number(text: str) -> bool:
    """Returns whether ``text`` is a number of at most 18 of the digits 0 to 9."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def check_elements(count: int) -> None:
    """Raise UsageError for a problem whose arrays have more elements than any machine has room for."""
    if count > MOST_ELEMENTS:
        raise UsageError(
            f"given arrays of {count:,} elements; expected at most {MOST_ELEMENTS:,}; choose a smaller size"
        )


def parse_heads(text: str) -> Problem:
    """Parses (batch, heads, length, head_dim) such as ``"1x16x1024x128"``; three numbers lack the batch, of five the
    third and fourth are the numbers of queries and keys."""
    parts = text.lower().split("x")
    if len(parts) not in (3, 4, 5) or not all(is_number(part) for part in parts):
        raise UsageError(f"given --size {text}; expected {SIZE_HELP}, such as 16x1024x128")
    batch, heads, q_len, *more = map(int, ["1", *parts] if len(parts) == 3 else parts)
    kv_len, head_dim = (q_len, *more)[-2:]
    return Problem(batch, heads, heads, q_len, kv_len, head_dim)


def parse_window(text: str | None) -> tuple[int | None, int | None] | None:
    """Parses ``"128,-"`` as (128, None)."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part == "-" or is_number(part) for part in parts):
        raise UsageError(f"given --window {text}; expected LEFT,RIGHT, numbers of keys or - for all, such as 128,0")
    left, right = (None if part == "-" else int(part) for part in parts)
    return left, right


def mask_of(problem: Problem) -> str:
    """Returns the mask as text, empty without a mask."""
    bounds = ["-" if bound is None else str(bound) for bound in problem.window or ()]
    return ", ".join(["causal"] * problem.causal + [f"window {','.join(bounds)}"] * bool(bounds))


def extents(problem: Problem) -> str:
    """Returns heads and lengths as text."""
    shared = "" if problem.group == 1 else f", {problem.kv_heads} head{'s' * (problem.kv_heads > 1)} of keys"
    lengths = f"{problem.q_len} × {problem.kv_len}"
    return f"{problem.batch} × {problem.heads} heads of {problem.head_dim}, {lengths}{shared}"


def counted(problem: Problem) -> str:
    """Returns as text which pairs of a query and a key TFLOPS count: S² is queries × keys."""
    share = problem.pairs / (problem.q_len * problem.kv_len)
    return "TFLOPS count " + ("all of S²" if share == 1 else f"the visible {percent(share)} of S²")


def summary_of(problem: Problem) -> str:
    """Returns extents, mask and dtype as text."""
    return f"{extents(problem)}, mask {mask_of(problem) or 'none'}, {problem.dtype.name}"
