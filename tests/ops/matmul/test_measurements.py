"""The table of measured configurations: stored, replaced, removed, and damaged tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm90
from warpwright.ops.matmul import measurements
from warpwright.ops.matmul.measurements import Choice

GPU = "NVIDIA H200"
FIRST = Choice(4096, 4096, 4096, "bfloat16", "128x128", 180.5, "2026-11-21")
SECOND = Choice(16, 8192, 8192, "bfloat16", "64x64", 40.25, "2026-11-21")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WARPWRIGHT_CONFIG", str(tmp_path / "new"))
    measurements.choices.cache_clear()
    yield tmp_path / "new" / "tuned.json"
    measurements.choices.cache_clear()


def test_what_is_kept_comes_back_by_gpu_and_replaces_what_was_there(home: Path) -> None:
    assert measurements.choices(GPU) == ()
    measurements.store(GPU, [FIRST, SECOND])
    measurements.store("another", [FIRST])
    assert measurements.choices(GPU) == (SECOND, FIRST)
    better = replace(FIRST, config="128x256", us=170.0)
    measurements.store(GPU, [better])
    assert measurements.table() == {GPU: (SECOND, better), "another": (FIRST,)}
    assert json.loads(home.read_text())["version"] == 1


def test_forgetting_one_gpu_and_all(home: Path) -> None:
    assert measurements.forget() == 0
    measurements.store(GPU, [FIRST, SECOND])
    measurements.store("another", [FIRST])
    assert measurements.forget(GPU) == 2 and measurements.table() == {"another": (FIRST,)}
    assert measurements.forget() == 1 and not home.exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "is damaged: it is no JSON"),
        ("[]", "is of version None; expected 1"),
        ('{"version": 2}', "is of version 2; expected 1"),
        ('{"version": 1, "gpus": []}', "is damaged: expected entries of m, n, k, dtype, config, us, measured"),
        (
            '{"version": 1, "gpus": {"NVIDIA H200": [{"m": 1}]}}',
            "is damaged: expected entries of m, n, k, dtype, config, us, measured",
        ),
        (
            json.dumps({"version": 1, "gpus": {GPU: [dict(zip(FIRST.__slots__, (0, *FIRST.problem), strict=False))]}}),
            "is damaged: expected entries of m, n, k, dtype, config, us, measured",
        ),
    ],
)
def test_a_damaged_table_does_not_stop_a_matmul(home: Path, content: str, what: str) -> None:
    home.parent.mkdir()
    home.write_text(content)
    with pytest.raises(UsageError) as caught:
        measurements.store(GPU, [FIRST])
    assert str(caught.value) == f"{home} {what}"
    with pytest.warns(UserWarning) as warned:
        assert measurements.choices(GPU) == ()
    assert str(warned[0].message) == (
        f"{home} {what}; matmul goes by its built-in facts; warpwright tune --forget removes it"
    )
    assert measurements.forget() == 0 and not home.exists()


def test_the_nearest_fact_counts_and_the_users_before_an_equal_one() -> None:
    fact = next(fact for fact in sm90.FACTS if (fact.m, fact.n, fact.k) == (4096, 4096, 4096))
    other = next(name for name in sm90.CONFIGS if name != fact.config)
    mine = [replace(FIRST, config=other)]
    assert sm90.choose(4096, 4096, 4096) == sm90.CONFIGS[fact.config]
    assert sm90.choose(4096, 4096, 4096, tuned=mine) == sm90.CONFIGS[other]
    assert sm90.choose(4000, 4200, 4096, tuned=mine) == sm90.CONFIGS[other]
    assert sm90.choose(16, 8192, 8192, tuned=mine) == sm90.choose(16, 8192, 8192)
    assert (
        sm90.choose(4096, 4096, 4096, tuned=[replace(FIRST, config="of another version")]) == sm90.CONFIGS[fact.config]
    )


def test_a_fact_counts_for_problems_whose_rows_begin_at_sectors_as_its_own_do() -> None:
    """Rows of 8,144 bytes begin within sectors, which double the work of L2: then multicast decides."""
    mine = [replace(FIRST, m=4096, n=4096, k=4072, config="64x64")]
    assert sm90.choose(4096, 4096, 4072) == sm90.CONFIGS["128x256 pair two widths"]
    assert sm90.choose(4096, 4096, 4072, tuned=mine) == sm90.choose(4096, 4096, 4056, tuned=mine)
    assert sm90.choose(4096, 4096, 4072, tuned=mine) == sm90.CONFIGS["64x64"]
    assert sm90.choose(4096, 4096, 4080, tuned=mine) == sm90.choose(4096, 4096, 4096)


def test_matmul_looks_into_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []
    original = sm90.kernel_of
    monkeypatch.setattr(sm90, "kernel_of", lambda config: used.append(config) or original(config))
    a = np.ones((72, 64), np.float16)
    measurements.store("h200", [Choice(72, 72, 64, "bfloat16", "64x128", 1.0, "2026-11-21")])
    assert (ww.matmul(a, a.T, device="h200") == 64).all()
    measurements.forget()
    assert (ww.matmul(a, a.T, device="h200") == 64).all()
    assert used == [sm90.CONFIGS["64x128"], sm90.choose(72, 72, 64)] and used[0] != used[1]
