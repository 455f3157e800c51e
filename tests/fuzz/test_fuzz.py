"""A short part of the fuzzer: no crash, no bare exception, and no disagreement with ptxas without a known reason."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fuzz import pool
from tests.fuzz.mutators import MUTATORS, mutant
from tests.fuzz.table import COLUMNS, disagreements, exit_status, report
from warpwright.ptx.ptxas import find_ptxas

Row = dict[str, Any]


def test_some_mutants() -> None:
    ask = 4 if find_ptxas() else 0
    rows = pool.run(seed=16, processes=1, launch=4, ask=ask, deadline=time.monotonic() + 100, most=165)
    assert exit_status(rows) == 0, report(rows, 0, 16)
    assert len(rows) == 165
    for name in ("load", "refused", "launched", *(("ptxas +", "ptxas -") if ask else ())):
        assert sum(map(COLUMNS[name], rows)) >= 8, name


def test_a_mutant_is_a_function_of_seed_and_number() -> None:
    assert mutant(5, 17) == mutant(5, 17)
    assert mutant(5, 17) != mutant(6, 17)
    assert [mutant(5, number).mutator for number in range(len(MUTATORS))] == list(MUTATORS)


def test_a_process_that_dies_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.sys, "executable", "false")
    rows = pool.run(seed=5, processes=1, launch=1, ask=0, deadline=time.monotonic() + 100, most=2)
    assert [row["load"] for row in rows] == [["crash", "exit status 1"]] * 2
    assert exit_status(rows) == 1
    assert "2 × crash: exit status 1" in report(rows, 0, 5)


def row(load: str, launch: str, ptxas: str, message: str = "Arguments mismatch") -> Row:
    made = {"number": 0, "mutator": "type", "file": "a.ptx", "line": 1, "before": "a", "after": "b"}
    return made | {"load": [load, ""], "launch": [launch, ""], "ptxas": [ptxas, message]}


def test_disagreements_count_only_what_runs() -> None:
    agreed = [row("ok", "ok", "accepted")] * 99
    lax, known = row("ok", "fault", "refused"), row("ok", "ok", "refused", "Unsupported .version 9.9")
    assert exit_status([*agreed, lax]) == 0
    assert exit_status([*agreed, lax, lax]) == 1
    assert exit_status([*agreed, known, known]) == 0
    assert exit_status([*agreed, row("ok", "bare", "accepted")]) == 1
    strict = row("refused", "", "accepted")
    found = disagreements([lax, strict, *agreed])
    assert list(found.values()) == [[lax], [strict]]
