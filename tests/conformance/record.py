"""``python -m tests.conformance.record [probe …]``: ask a real GPU and store its answers in ``golden/``."""

from __future__ import annotations

import sys

import numpy as np

from tests.conformance.probes import GOLDEN, PROBES, answers


def main(names: list[str]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    for probe in PROBES:
        if not names or probe.name in names:
            found = answers(probe, "cuda")
            np.savez_compressed(GOLDEN / f"{probe.name}.npz", allow_pickle=False, **found)
            print(f"{probe.name}: {len(found)} answers")


if __name__ == "__main__":
    main(sys.argv[1:])
