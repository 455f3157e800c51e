"""The PTX that the fuzzer mutates: every file under ``tests``, and kernels that this package ships."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from warpwright.cli.ptx import trace

__all__ = ["DEVICES", "corpus"]

ROOT = Path(__file__).parent.parent
DEVICES = {"sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx5090"}
_LARGEST = 25_000  # bytes: a larger file takes too long for one more mutant of the same lines
_OPTIONS = {"level": None, "step": None, "size": None, "device": None}
_SHIPPED = {
    "memory_flow": {},
    "gemm.h200": {"device": "h200", "size": "512"},
    "gemm.b200": {"device": "b200", "size": "512", "level": 3},
    "attention.rtx5090": {"device": "rtx5090", "size": "1x128x64"},
}


@cache
def corpus() -> dict[str, str]:
    """Returns the texts by name, in a fixed order."""
    files = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.ptx"))}
    shipped = {f"shipped/{name}": trace(name.split(".")[0], _OPTIONS | given).ptx for name, given in _SHIPPED.items()}
    return {name: _version(text) for name, text in (files | shipped).items() if len(text) <= _LARGEST}


def _version(text: str) -> str:
    """Lower a ``.version`` that is newer than ptxas 13.0: it would refuse every mutant."""
    return text.replace(".version 9.4", ".version 9.0", 1)
