"""Our bytes of tensor maps are those that the CUDA driver 13.0 wrote on an H200."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conformance.tensor_maps import differences

RECORDED = Path(__file__).parent / "golden" / "tensor_maps.json"


def test_our_bytes_are_those_that_the_driver_wrote() -> None:
    """`tensor_maps` recorded them: single changes of a map, of tile mode and of im2col mode, and random maps."""
    rows = json.loads(RECORDED.read_text(encoding="utf-8"))
    known = [row for row in rows if len(row["bytes"]) == 256]
    wrong = [row["name"] for row in known if differences(row["fields"], row["bytes"])]
    assert sum("pixels" in row["fields"] for row in known) == 66
    assert len(known) == 363 + 66 and not wrong
