"""``warpwright selftest`` on this machine's board: it follows every rule, in ten minutes, near the predicted times."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from warpwright.cli import main


def test_the_board_follows_every_rule(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = CliRunner().invoke(main, ["selftest", "--device", "cuda", "-o", str(path)])
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text(encoding="utf-8"))
    assert {row["status"] for row in report["rules"]} == {"same"}
    assert report["seconds"] <= 600
    errors = [abs(row["error"]) for row in report["ladder"]]
    assert sum(errors) / len(errors) <= 0.15
