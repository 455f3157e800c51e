"""The answers of a device to a probe, as bytes, which distinguish NaN patterns; and how two devices' answers differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, DeviceError, LaunchError, UnsupportedInstruction
from warpwright.gpu import Device
from warpwright.run.launch import launch, load_ptx
from warpwright.selftest.probes import Probe
from warpwright.selftest.probes.cases import Case
from warpwright.selftest.probes.refusals import STRICTER
from warpwright.targets import ARCHS

__all__ = ["FAULTS", "GOES_ON", "Answers", "answer", "answers", "differences", "retarget", "some_cases"]

Answer = NDArray[np.uint8]
Answers = dict[str, Answer]

GOES_ON, FAULTS, TOO_LARGE = 0, 1, 2


def some_cases(probe: Probe, most: int) -> list[Case]:
    """Returns so many cases of a probe, at even distances."""
    cases = list(probe.cases())
    return cases[:: -(-len(cases) // most)]


def answers(cases: Iterable[Case], device: Device) -> tuple[Answers, dict[str, str]]:
    """Returns the answer of ``device`` to each case, and the reason where the virtual GPU executes none."""
    tried = {case.name: _attempt(case, device) for case in cases}
    missing = {name: found for name, found in tried.items() if isinstance(found, str)}
    return {name: found for name, found in tried.items() if not isinstance(found, str)}, missing


def _attempt(case: Case, device: Device) -> Answer | str:
    try:
        return answer(case, device)
    except (DescriptorError, UnsupportedInstruction) as error:
        return str(error).rpartition(": ")[2]


def answer(case: Case, device: Device) -> Answer:
    """Returns the answer of ``device`` to a case: with ``refused`` whether the launch faults."""
    module = load_ptx(retarget(case.text, device.spec.arch))
    (name,) = module
    shape: dict[str, Any] = {"block": case.block, "cluster": case.cluster, "smem": case.smem}
    try:
        launch(module[name], case.grid or case.cluster, args=case.args, device=device, **shape)
    except LaunchError:  # more shared memory than the board has
        return np.array([TOO_LARGE], np.uint8)
    except DeviceError:
        if not case.refused:
            raise
        return np.array([FAULTS], np.uint8)
    kept = np.array([GOES_ON], np.uint8) if case.refused else case.keep(case.answer)
    return np.ascontiguousarray(kept).view(np.uint8).reshape(-1)


def retarget(text: str, arch: str) -> str:
    """Returns PTX for ``arch``, with the least version that has it."""
    version = max(re.findall(r"^\.version (\S+)", text, re.MULTILINE)[0], ARCHS[arch].ptx_version)
    text = re.sub(r"^\.version \S+", f".version {version}", text, count=1, flags=re.MULTILINE)
    return re.sub(r"^\.target \w+", f".target {arch}", text, count=1, flags=re.MULTILINE)


def differences(board: Mapping[str, Answer], virtual: Mapping[str, Answer]) -> list[str]:
    """Returns the cases whose answers differ, each with its first different word. The virtual GPU may refuse what PTX
    leaves undefined (`STRICTER`)."""
    found = []
    for name in board.keys() & virtual.keys():
        theirs, ours = board[name], virtual[name]
        if not np.array_equal(theirs, ours) and not (name in STRICTER and theirs[0] == GOES_ON):
            found.append(f"{name}: {_first_difference(theirs, ours)}")
    return sorted(found)


def _first_difference(theirs: Answer, ours: Answer) -> str:
    if TOO_LARGE in (theirs[0], ours[0]) and theirs.size != ours.size:
        return "only one of both launches it"
    if theirs.size != ours.size:
        return f"{theirs.size} bytes on the board, {ours.size} on the virtual GPU"
    if theirs.size == 1:
        kinds = "goes on", "faults", "does not launch"
        return f"the board {kinds[theirs[0]]}, the virtual GPU {kinds[ours[0]]}"
    differing = np.flatnonzero(theirs != ours)
    word = int(differing[0]) // 4
    here, there = (int.from_bytes(each[4 * word : 4 * word + 4].tobytes(), "little") for each in (ours, theirs))
    count = f"{differing.size} bytes differ"
    return f"word {word} is {there:#x} on the board, {here:#x} on the virtual GPU ({count})"
