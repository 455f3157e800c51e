"""The rules that a board was asked about: its answers beside those of its virtual GPU, and how both are stored."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from warpwright import cuda
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.selftest.answers import Answers, answers, differences, some_cases
from warpwright.selftest.ask import collect
from warpwright.selftest.probes import Probe, probes_of

__all__ = ["ANSWERED", "DIFFERENT", "SAME", "UNANSWERED", "ask_board", "compare", "pack", "read_report", "unpack"]

SAME, ANSWERED, DIFFERENT, UNANSWERED = "same", "answered", "different", "unanswered"
PROCESSES = 8
CASES = 3  # of each probe on a virtual GPU
FORMAT = 1  # of a report; a reader of another number does not know its fields

Asked = tuple[Answers, Sequence[str]]  # answers, and cases without one: "case: reason"


def ask_board(device: Device, describe: Callable[[str], None]) -> dict[str, Asked]:
    """Returns the answers of ``device`` to each probe that it can answer: a real GPU's from processes of their own, a
    virtual one's to a few cases."""
    probes = probes_of(device.spec.arch)
    if not isinstance(device, cuda.Device):
        return {probe.name: (_few(probe, device, describe), ()) for probe in probes}
    with ThreadPoolExecutor(PROCESSES) as pool:
        asked = pool.map(lambda probe: collect(probe, device.name), probes)
        found: dict[str, Asked] = {}
        for probe, each in zip(probes, asked, strict=True):
            describe(f"asks about {probe.name}")
            found[probe.name] = each
        return found


def _few(probe: Probe, device: Device, describe: Callable[[str], None]) -> Answers:
    describe(f"asks about {probe.name}")
    return answers(some_cases(probe, CASES), device)[0]


def compare(asked: Mapping[str, Asked], virtual: Device | None, arch: str) -> Iterator[dict[str, Any]]:
    """Yields a row for each rule of ``asked``: whether ``virtual`` gives the same answers; None if it was not asked."""
    for probe in probes_of(arch):
        if probe.name in asked:
            found, failures = asked[probe.name]
            cases = [case for case in probe.cases() if case.name in found] if virtual else []
            ours, missing = answers(cases, virtual) if virtual else ({}, {})
            different = differences(found, ours)
            status = DIFFERENT if different else UNANSWERED if failures else SAME if virtual else ANSWERED
            yield {
                "rule": probe.name,
                "asks": probe.rule,
                "page": probe.page,
                "cases": len(found),
                "status": status,
                "differences": different,
                "unanswered": list(failures),
                "not_executed": missing,
            }


def pack(asked: Mapping[str, Asked]) -> dict[str, Any]:
    """Returns answers as values of JSON; the bytes of a probe are one compressed text."""
    return {
        name: {
            "cases": {case: answer.size for case, answer in found.items()},
            "data": base64.b64encode(zlib.compress(b"".join(each.tobytes() for each in found.values()))).decode(),
            "unanswered": list(failures),
        }
        for name, (found, failures) in asked.items()
    }


def unpack(packed: Mapping[str, Any]) -> dict[str, Asked]:
    """Returns the answers that `pack` stored."""
    found: dict[str, Asked] = {}
    for name, each in packed.items():
        data = np.frombuffer(zlib.decompress(base64.b64decode(each["data"])), np.uint8)
        ends = np.cumsum(list(each["cases"].values()), dtype=np.int64)
        found[name] = dict(zip(each["cases"], np.split(data, ends[:-1]), strict=True)), each["unanswered"]
    return found


def read_report(path: Path) -> dict[str, Any]:
    """Returns a report of ``warpwright selftest -o``. Raises UsageError for another file."""
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = report["format"] == FORMAT and bool(report["device"]["arch"]) and "answers" in report
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read {path}: {error}; expected a report of warpwright selftest -o FILE") from None
    if not known:
        raise UsageError(f"{path} has format {report['format']}; expected {FORMAT}: record it with this version")
    return report
