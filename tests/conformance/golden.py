"""The stored answers of an H200 (driver 580, CUDA 13.0) to the probes of ``warpwright selftest``.

`test_probes` compares the virtual H200 with them on any machine, and ``tests/gpu`` a real one. ``python -m
tests.conformance.record`` records them again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from warpwright.selftest.answers import Answers
from warpwright.selftest.probes import Probe

GOLDEN = Path(__file__).parent / "golden"


def golden(probe: Probe, folder: Path = GOLDEN) -> Answers:
    """Returns the stored answers of the H200."""
    with np.load(folder / f"{probe.name}.npz") as stored:
        ends = np.cumsum(stored["sizes"])
        return dict(zip(stored["names"].tolist(), np.split(stored["data"], ends[:-1]), strict=True))


def store(path: Path, found: Answers) -> None:
    """Write all answers as one array, a third of the size of separate arrays."""
    parts = list(found.values())
    data = np.concatenate([*parts, np.zeros(0, np.uint8)])
    np.savez_compressed(path, names=np.array(list(found)), sizes=np.array([part.size for part in parts]), data=data)
