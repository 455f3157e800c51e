"""``python -m warpwright`` runs the command line."""

from __future__ import annotations

from warpwright.cli import main

main(prog_name="warpwright")
