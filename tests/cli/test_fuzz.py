"""Command lines and launch files of wrong values end with one line; `tests.cli.fuzz` makes more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.fuzz import fuzz, write_files
from warpwright.cli import main

HUGE = 10**20


def test_random_command_lines_and_launch_files_have_no_traceback() -> None:
    count = fuzz(160)
    assert sum(count.values()) >= 160
    assert {status for _, status in count} >= {0, 2}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["profile", "gemm", "--size", HUGE], "expected M = N = K such as 4096, or MxNxK such as 4096x512x8192"),
        (["profile", "gemm", "--size", "²"], "expected M = N = K such as 4096, or MxNxK such as 4096x512x8192"),
        (["profile", "gemm", "--size", 10**10], "given arrays of 300,000,000,000,000,000,000 elements; expected at "
        "most 1,099,511,627,776; choose a smaller size"),
        (["check", "attention", "--size", "9x999999999999x64"], "choose a smaller size"),
        (["ladder", "--stages", f"1-{10**12}"], "is a range of more than 100 numbers; write a shorter one, such as "
        "1-3"),
        (["check", "gemm", "--explore", HUGE], f"given explore={HUGE}; expected at most 1,000,000 schedules"),
        (["check", "gemm", "--limit", HUGE], f"given limit={HUGE}; expected a positive number of jumps, such as "
        "limit=2_000_000"),
        (["profile", "scale.ptx", "--grid", 1, "--arg", f"f32[{HUGE}]"], "expected at most 32 extents and "
        "1,099,511,627,776 elements"),
        (["profile", "gemm", "--limit", 5], "given --limit; the option does not apply to gemm; leave it out"),
        (["check", "broken.toml"], "broken.py stops with SystemExit: 3; mend the Python code"),
    ],
)  # fmt: skip
def test_absurd_values_are_one_line(
    words: list[object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    (tmp_path / "broken.toml").write_text('kernel = "broken.py:copy"\ngrid = 1\n')
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert result.stderr.endswith(f"{sentence}\n")
