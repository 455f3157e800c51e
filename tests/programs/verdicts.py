"""Verdicts on the launches of programs of others, which are right: no finding, and at most five lines of notes; and
the error of their numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import warpwright as ww
from warpwright.run.session import Session
from warpwright.vgpu.checks.findings import note_lines

__all__ = ["check", "checked"]

# FlashAttention-4's gradients for sm_100 have one: the warp that issues MMAs waits for an mbarrier's phase after the
# commit that lets other warps end the next one, so that a late warp would wait for ever.
KNOWN = {"FlashAttentionBackwardSm100": {"mbarrier-lapped"}}
NOTES = 5


@contextlib.contextmanager
def checked(device: str) -> Iterator[Session]:
    """A session that checks each launch; raises AssertionError at its end for a finding or too many notes."""
    with ww.virtual(device, check=True) as session:
        yield session
    assert session.launches
    for launched in session.launches:
        verdict = launched.verdict
        found = {finding.rule.id for finding in verdict.findings}
        assert found in [set(), *(rules for name, rules in KNOWN.items() if name in launched.name)], str(verdict)
        assert len(list(note_lines(verdict.notes))) <= NOTES, str(verdict)


def check(found, exact, bound: float) -> None:
    """Compare with float64: no error is over ``bound`` times the largest exact value."""
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert error <= bound, f"error {error:.1e} of the largest value, bound {bound:.1e}"
