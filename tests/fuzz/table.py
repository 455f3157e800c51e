"""What a run of the fuzzer found, as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.fuzz.mutators import MUTATORS
from tests.fuzz.reasons import reason

__all__ = ["disagreements", "exit_status", "report"]

Row = dict[str, Any]
_RAN = ("ok", "fault", "limit")
_BAD = ("crash", "bare", "hang")
_SHARE = 0.01


def _state(row: Row, state: str) -> str:
    return str(row.get(state, [""])[0])


def _ran(row: Row) -> bool:
    return _state(row, "launch") in _RAN


COLUMNS: dict[str, Callable[[Row], bool]] = {
    "mutants": lambda row: True,
    "load": lambda row: _state(row, "load") == "ok",
    "refused": lambda row: _state(row, "load") == "refused",
    "launched": lambda row: "launch" in row,
    "ran": _ran,
    "faults": lambda row: _state(row, "launch") == "fault",
    "limit": lambda row: _state(row, "launch") == "limit",
    "ptxas +": lambda row: _state(row, "ptxas") == "accepted",
    "ptxas -": lambda row: _state(row, "ptxas") == "refused",
    "ran, ptxas -": lambda row: _ran(row) and _state(row, "ptxas") == "refused",
    "bad": lambda row: any(_state(row, state) in _BAD for state in ("load", "launch")),
}


def disagreements(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by what differs: "we run, ptxas refuses" and "we refuse, ptxas accepts"."""
    found: dict[str, list[Row]] = {"we run what ptxas refuses": [], "we refuse what ptxas accepts": []}
    for row in rows:
        if _state(row, "ptxas") == "refused" and _state(row, "load") == "ok" and ("launch" not in row or _ran(row)):
            found["we run what ptxas refuses"].append(row)
        if _state(row, "ptxas") == "accepted" and _state(row, "load") == "refused":
            found["we refuse what ptxas accepts"].append(row)
    return found


def exit_status(rows: list[Row]) -> int:
    """1 if a mutant crashed, hung or raised a bare exception, or if too many disagree with ptxas."""
    ran = [row for row in rows if _ran(row) and "ptxas" in row]
    unknown = [row for row in ran if _state(row, "ptxas") == "refused" and not reason(row)]
    return int(any(COLUMNS["bad"](row) for row in rows) or len(unknown) > _SHARE * len(ran))


def report(rows: list[Row], seconds: float, seed: int) -> str:
    """The table of mutators and outcomes, then every distinct failure and disagreement."""
    lines = [f"seed {seed}: {len(rows):,} mutants in {seconds:.0f} s", "", *_table(rows), ""]
    bad = [row for row in rows if COLUMNS["bad"](row)]
    lines += _groups("crashes, bare exceptions and hangs", bad, _failure)
    for title, found in disagreements(rows).items():
        lines += _groups(title, [row for row in found if not reason(row)], _message)
        lines += _groups(f"{title}, for a known reason", [row for row in found if reason(row)], reason)
    return "\n".join([*lines, *_shares(rows)])


def _table(rows: list[Row]) -> list[str]:
    widths = [max(len(name), 6) for name in COLUMNS]
    lines = [" " * 10 + "  ".join(f"{name:>{width}}" for name, width in zip(COLUMNS, widths, strict=True))]
    for name in [*MUTATORS, "all"]:
        own = [row for row in rows if name in ("all", row["mutator"])]
        counts = [sum(map(test, own)) for test in COLUMNS.values()]
        lines.append(f"{name:10}" + "  ".join(f"{n:>{width},}" for n, width in zip(counts, widths, strict=True)))
    return lines


def _shares(rows: list[Row]) -> list[str]:
    asked = [row for row in rows if "ptxas" in row]
    ran = [row for row in asked if _ran(row)]
    wrong = [row for row in ran if _state(row, "ptxas") == "refused"]
    if not asked:
        return ["ptxas is not installed: nothing was compared"]
    accepted = sum(_state(row, "ptxas") == "accepted" for row in asked) / len(asked)
    unknown = sum(not reason(row) for row in wrong)
    return [
        f"ptxas accepts {accepted:.0%} of the {len(asked):,} mutants that it was asked about",
        f"of {len(ran):,} that ran and that ptxas was asked about, it refuses {len(wrong):,}, {unknown:,} of them for "
        f"no known reason ({unknown / max(1, len(ran)):.2%})",
    ]


def _failure(row: Row) -> str:
    said = next(row[state] for state in ("load", "launch") if _state(row, state) in _BAD)
    text = re.sub(r"0x[0-9a-f]+|%[\w$]+|'[^']*'", "…", str(said[1]))
    return f"{said[0]}: {text[:160]}"


def _message(row: Row) -> str:
    """The message of the one that refuses, without names and numbers: equal for alike disagreements."""
    said = row["ptxas"][1] if row["ptxas"][0] == "refused" else re.sub(r"^\w+: (\S+: )?", "", row["load"][1])
    return re.sub(r"'[^']*'|%[\w$.]+|\b\d+\b|\$\w+", "…", said)[:110]


def _groups(title: str, rows: list[Row], key: Callable[[Row], str]) -> list[str]:
    """Rows alike under one heading each, most frequent first, with one example."""
    counts = Counter(map(key, rows))
    lines = [f"{title}: {len(rows)}"] if rows else []
    for name, count in counts.most_common():
        row = next(row for row in rows if key(row) == name)
        lines.append(f"  {count} × {name}")
        lines.append(f"      mutant {row['number']}, {row['file']}:{row['line']}, {row['mutator']}")
        lines.append(f"      {row['before'][:100]}  →  {row['after'][:100]}")
    return [*lines, ""] if rows else []
