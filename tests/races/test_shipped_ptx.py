"""The PTX of shipped configurations has the stored digests, so that a kernel changes only by intention.

This test traces a sample; ``python -m tests.races.shipped_ptx`` traces all.
"""

from __future__ import annotations

import json

from tests.races.shipped_ptx import DIGESTS, digest, texts
from tests.races.test_shipped import SHIPPED

SAMPLE = list(SHIPPED)[::29]


def test_a_sample_has_the_stored_digests(request, check_golden) -> None:
    whole = request.config.getoption("--update-golden")
    found = {name: digest(text) for name, text in texts(SHIPPED if whole else SAMPLE)}
    known = {} if whole else json.loads(DIGESTS.read_text(encoding="utf-8"))
    check_golden(DIGESTS, json.dumps({**known, **found}, indent=1) + "\n")
