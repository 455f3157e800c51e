"""The places in the text of a finding, as the console and a SARIF report show them."""

from __future__ import annotations

import pytest

from warpwright.report.findings import locations_of, shorten_paths
from warpwright.vgpu.checks.findings import Finding, Rule

FOLDERS = ["/home/me", "/home/me/my kernels/of July", "/a b"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_path_is_shortened_in_any_folder(folder: str) -> None:
    """The words around a path are no folders of it, also where they have strokes."""
    text = f"load and/or {folder}/k.py:12 wait for 1 / 2 of its bytes ({folder}/ring.py:3)"
    assert shorten_paths(text) == "load and/or k.py:12 wait for 1 / 2 of its bytes (ring.py:3)"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_finding_without_steps_is_where_its_message_says(folder: str) -> None:
    message = f"{folder}/k.py:12: global memory ends there ({folder}/ring.py:3)"
    found = Finding(Rule("fault", "a fault", "", ""), (), message)
    assert locations_of(found) == [(f"{folder}/k.py", 12), (f"{folder}/ring.py", 3)]
