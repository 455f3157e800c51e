"""``python -m warpwright`` runs the command line."""

from __future__ import annotations

from warpwright.cli import run

run()
