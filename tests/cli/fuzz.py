"""Random command lines and launch files: ``python -m tests.cli.fuzz [--cases 2000]``. None may end in a traceback.

Values are small, so that a valid case runs in a moment, or absurd.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import hypothesis.strategies as st
import numpy as np
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from tests.run.test_launch_file import COPY, SCALE
from warpwright.cli import COMMANDS, main

__all__ = ["command_lines", "launch_files", "run", "write_files"]

HUGE = str(10**20)
JUNK = [
    "", " ", "-", "--", "-1", "0", "x", "²", "٣", "½", "1e5", "0x10", "nan", "inf", "1,2,3,4", "1x2x3x4x5x6", ",", "8x",
    HUGE, f"{HUGE}x{HUGE}x{HUGE}", f"1-{HUGE}", "9" * 5000, "a" * 300, "\udcff", "é" * 9, "[red]", "../..", ".", "/",
]  # fmt: skip
GOOD = {
    "size": ["8", "16x8x24", "1x1x16x16", "2x16x64", "1x2x16x32x16"],
    "levels": ["1", "3-1", "11"],
    "steps": ["v3", "v4"],
    "level": ["1", "3", "77"],
    "step": ["v3", "rows"],
    "stages": ["1", "2"],
    "device": ["b200", "h200", "rtx5090", "cuda", "cuda:9"],
    "kv_heads": ["1", "2"],
    "window": ["4,-", "-,-"],
    "scale": ["0.5"],
    "dtype": ["bfloat16", "float16"],
    "rounds": ["1"],
    "seed": ["0", "5"],
    "explore": ["0", "1"],
    "limit": ["1", "100000"],
    "off": ["race", "none"],
    "entry": ["scale"],
    "grid": ["1", "2,1,1"],
    "block": ["32", "1024,2"],
    "cluster": ["1", "2"],
    "smem": ["0", "1024", "-1"],
    "arg": ["3", "2.5", "f32[32]", "x.npy", "q9[3]", "f32[0]", f"f32[{HUGE}]", "f32[99999999999999]"],
    "output": ["out.npy", "no/out.npy", "/dev/full", "."],
    "plot": ["out.svg", "out.jpg", "no/out.svg", "/dev/full"],
    "svg": ["out.svg", "/dev/full"],
    "trace": ["out.json", "no/out.json", "/dev/full"],
    "sarif": ["out.sarif", "."],
    "file": ["shapes.txt", "none.txt"],
    "what": ["gemm", "attention", "scale.ptx", "launch.toml", "x.npy", "none.toml"],
    "kernel": ["gemm", "attention", "memory_flow"],
    "shapes": ["8x8x8"],
    "a": ["x.npy", "none.npy"],
    "b": ["x.npy", "scale.ptx"],
}
ALWAYS = ("size", "levels", "steps", "output")  # their defaults take long, or they are required
RARE = ("flow", "bench attention")  # take seconds
SCALARS = st.one_of(
    st.sampled_from([0, 1, 2, 32, -1, 10**20, 10**400, 0.5, True, float("nan"), float("inf")]),
    st.sampled_from(["", "scale.ptx", "copies.py:copy", "copies.py:none", "f32", "bf16", "pred", "x.npy", "normal"]),
    st.sampled_from(["zeros", "index", "00ff", "h200", "race", "é", "none", "128b", "broken.py:copy", "odd.npy"]),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.lists(st.sampled_from([1, 8, 32, 64]), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["box", "swizzle", "times", "fill", "x", "dtype", "value"]), SCALARS, max_size=2),
)
VALID: dict[str, Any] = {"kernel": "scale.ptx", "grid": 1, "block": 32, "device": "h200"}
ARGUMENTS: list[dict[str, Any]] = [{"value": 32}, {"value": 2.0}, {"shape": [32], "fill": "ones"}]
KEYS = [
    "kernel",
    "entry",
    "grid",
    "block",
    "cluster",
    "smem",
    "device",
    "explore",
    "seed",
    "depends_on",
    "off",
    "config",
    "memory",
]
ARGUMENT_KEYS = [
    "name",
    "value",
    "dtype",
    "shape",
    "fill",
    "file",
    "same",
    "bytes",
    "fields",
    "pointers",
    "map",
]


def parameters(name: str) -> list[click.Parameter]:
    """Returns the options and arguments of a command."""
    command: Any = main
    for part in name.split():
        command = command.get_command(click.Context(command), part)
    return list(command.params)


NAMES = *COMMANDS, "ladder attention", "bench gemm", "bench attention"
PARAMETERS = {name: parameters(name) for name in NAMES if name != "selftest"}  # which takes as long as all others


def write_files(folder: Path) -> None:
    """Write the files that command lines and launch files name."""
    (folder / "scale.ptx").write_text(SCALE)
    (folder / "copies.py").write_text(COPY)
    (folder / "broken.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "shapes.txt").write_text("8x8x8\n# nothing\n")
    np.save(folder / "x.npy", np.ones((16, 16), np.float16))
    np.save(folder / "odd.npy", np.ones((3, 5), np.uint8))
    (folder / "launch.toml").write_text(toml(VALID, ARGUMENTS))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draws a command with some of its options and arguments, of right and of wrong values."""
    name = draw(st.sampled_from(RARE if draw(st.integers(0, 49)) == 0 else sorted({*PARAMETERS} - {*RARE})))
    words: list[str] = []
    for option in PARAMETERS[name]:
        flag = isinstance(option, click.Option)
        if flag and option.name not in ALWAYS and draw(st.integers(0, 3)) != 0:
            continue
        words += option.opts[:1] * flag
        if not (flag and getattr(option, "is_flag", False)):
            good, junk = GOOD.get(option.name or "", ["x"]), JUNK
            words.append(draw(st.sampled_from(good if draw(st.integers(0, 9)) else junk)))
    extra = draw(st.sampled_from([[]] * 8 + [["--nothing"], ["x"], ["--help"]]))
    return [*name.split(), *words, *extra]


@st.composite
def launch_files(draw: st.DrawFn) -> str:
    """Draws the text of a launch file: a valid one with some changes."""
    top: dict[str, Any] = dict(VALID)
    arguments: Any = [dict(each) for each in ARGUMENTS]
    for _ in range(draw(st.integers(0, 3))):
        where = draw(st.integers(-1, 2))
        table, keys = (top, KEYS) if where < 0 else (arguments[where], ARGUMENT_KEYS)
        key, how = draw(st.sampled_from([*keys, "gird"])), draw(st.integers(0, 4))
        if how:
            table[key] = draw(VALUES)
        else:
            table.pop(key, None)
    if draw(st.integers(0, 9)) == 0:
        arguments = draw(VALUES)
    text = toml(top, arguments)
    return text if draw(st.integers(0, 9)) else text[: draw(st.integers(0, len(text)))]


def toml(top: dict[str, Any], arguments: Any) -> str:
    """Returns a launch file."""
    rows = [f"{key} = {_value(value)}" for key, value in top.items()]
    return "\n".join([*rows, f"args = {_value(arguments)}"]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else str(value)


def run(words: list[str]) -> int:
    """Run a command line. Returns its status; raises the exception of one that ends in a traceback."""
    result = CliRunner().invoke(main, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2, 3), result.output
    if result.exit_code == 2:
        assert result.stderr.count("\n") <= 30 and result.stderr.strip(), words
    return int(result.exit_code)


def repeat(cases: int, strategy: st.SearchStrategy[Any], body: Callable[[Any], None]) -> None:
    """Run ``body`` on so many cases; raises the smallest failure."""
    given(strategy)(
        settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))(body)
    )()


def fuzz(cases: int) -> Counter[tuple[str, int]]:
    """Run half of the cases as command lines, half as launch files, in a folder of their own. Returns how many ended
    with each status."""
    count: Counter[tuple[str, int]] = Counter()

    def line(words: list[str]) -> None:
        count["command line", run(words)] += 1

    def launch(case: tuple[str, str]) -> None:
        Path("launch.toml").write_text(case[1], encoding="utf-8")
        count["launch file", run([case[0], "launch.toml", "--limit", "100000"])] += 1

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_files(Path(folder))
            repeat(cases - cases // 2, command_lines(), line)
            repeat(cases // 2, st.tuples(st.sampled_from(["profile", "check"]), launch_files()), launch)
        finally:
            os.chdir(here)
    return count


def program() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    for (kind, status), number in sorted(fuzz(parser.parse_args().cases).items()):
        print(f"{number:6} {kind}s ended with status {status}")
    return 0


if __name__ == "__main__":
    sys.exit(program())
