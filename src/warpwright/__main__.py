"""``python -m warpwright``: the command."""

from __future__ import annotations

from warpwright.cli import main

main(prog_name="warpwright")
