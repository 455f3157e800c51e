"""Verdicts on the launches of programs of others, which are right: no finding, and at most five lines of notes; and
the error of their numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import warpwright as ww
from warpwright.run.session import Session
from warpwright.vgpu.checks.findings import note_lines

__all__ = ["check", "checked"]

NOTES = 5


@contextlib.contextmanager
def checked(device: str) -> Iterator[Session]:
    """A session that checks each launch; raises AssertionError at its end for a finding or too many notes."""
    with ww.virtual(device, check=True) as session:
        yield session
    assert session.launches
    for launched in session.launches:
        verdict = launched.verdict
        assert not verdict.findings, str(verdict)
        assert len(list(note_lines(verdict.notes))) <= NOTES, str(verdict)


def check(found, exact, bound: float) -> None:
    """Compare with float64: no error is over ``bound`` times the largest exact value."""
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert error <= bound, f"error {error:.1e} of the largest value, bound {bound:.1e}"
