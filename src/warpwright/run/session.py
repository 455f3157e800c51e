"""The launches of a program on a virtual GPU: run, and on request checked and profiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from warpwright import display
from warpwright.errors import Deadlock, DescriptorError, DeviceError, LimitReached, UnsupportedInstruction
from warpwright.gpu import Device, LaunchResult
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.run.check import check, merge_verdicts
from warpwright.run.devices import resolve
from warpwright.run.launch import Entry, dim3, entry_point, start
from warpwright.run.profile import profile
from warpwright.vgpu.checks.coverage import Coverage
from warpwright.vgpu.checks.findings import Finding, Verdict
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.timing import Profile

__all__ = ["Launched", "Session"]


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch: the kernel's name, its grid in CTAs, and what was asked for: verdict, predicted time. A
    launch that failed has a verdict in any case."""

    name: str
    grid: tuple[int, ...]
    verdict: Verdict | None
    time_us: float | None

    def _repr_html_(self) -> str:
        return display.html_of(self)


@dataclass
class Session:
    """A program on a virtual GPU: the device, what each launch is asked for, and the launches so far.

    Launches of kernels whose names ``only`` does not match are only run. ``strict`` is that of ``ww.check``.
    ``longest``: the profile of the launch with the longest predicted time. ``devices``: those of the launches, by
    name; `take` may use another than the session's.
    """

    device: Device
    check: bool = False
    profile: bool = False
    only: str = ""
    strict: bool = False
    launches: list[Launched] = field(default_factory=list)
    longest: Profile | None = None
    devices: set[str] = field(default_factory=set)

    def _repr_html_(self) -> str:
        return display.html_of(self)

    @property
    def summary(self) -> str:
        """``"2 launches on b200 and h200x8"``."""
        count = len(self.launches)
        return f"{count} launch{'es' * (count != 1)} on {self.places}"

    @property
    def places(self) -> str:
        """The devices of the launches, or before any launch the session's: ``"b200 and h200x8"``."""
        return " and ".join(sorted(self.devices)) or self.device.name

    def launch(self, entry: Entry, args: Sequence[Any], **how: Any) -> Launched:
        """Run a kernel; check and profile it before, on copies of its memory, if the session does so.

        Raises DeviceError or DescriptorError for a fault or a deadlock of the kernel, which the verdict of the launch
        has too.
        """
        self._run(entry, {**how, "args": args, "device": self.device}, {})
        return self.launches[-1]

    def take(self, kernel: Entry | Traced | Kernel, grid: Any, **how: Any) -> LaunchResult:
        """Run a launch of `ww.launch`, as `launch` does. The session's device takes the place of a real GPU and of the
        default; another virtual GPU runs what names it."""
        traced = kernel.trace() if isinstance(kernel, Kernel) else kernel
        named = getattr(how["device"], "name", how["device"])
        device = self.device if named is None or str(named).startswith("cuda") else resolve(how["device"])
        options = {name: how.pop(name) for name in ("stream", "numerics", "observers")}
        if how["limit"] is None:
            del how["limit"]  # `check` has a limit of its own
        return self._run(traced, {**how, "grid": grid, "device": device}, options)

    def _run(self, kernel: Entry | Traced, given: dict[str, Any], options: dict[str, Any]) -> LaunchResult:
        """Run a launch and store it; ``given`` are arguments of `check` and `profile` too, ``options`` only of
        `start`."""
        name, grid, device = entry_point(kernel).name, dim3("grid", given["grid"]), given["device"].name
        self.devices.add(device)
        asked = re.search(self.only, name) is not None
        verdict = check(kernel, strict=self.strict or None, **given) if self.check and asked else None
        try:
            time_us = self.predict(kernel, given) if self.profile and asked else None
            result = start(kernel, **given, **options)
        except (DeviceError, DescriptorError) as error:
            failure = _verdict_on_failure(name, device, verdict, error)
            self.launches.append(Launched(name, grid, failure, None))
            raise
        self.launches.append(Launched(name, grid, verdict, time_us))
        return result

    def predict(self, entry: Entry | Traced, given: dict[str, Any]) -> float:
        """Returns the predicted time of a launch, µs."""
        predicted = profile(entry, **given)
        if self.longest is None or predicted.time_us > self.longest.time_us:
            self.longest = predicted
        return predicted.time_us


def _verdict_on_failure(
    name: str, device: str, checked: Verdict | None, error: DeviceError | DescriptorError
) -> Verdict:
    """Returns the verdict on a launch that an error stopped: the checker's, if there is one, with the error in it."""
    incomplete = isinstance(error, (UnsupportedInstruction, LimitReached))
    rule = RULES["deadlock" if isinstance(error, Deadlock) else "fault"]
    findings = () if incomplete else (Finding(rule, (), str(error)),)
    verdict = Verdict(name, device, findings, Coverage(0, 0, ()), (str(error),) if incomplete else ())
    if checked is None:
        return verdict
    known = rule.id in [finding.rule.id for finding in checked.findings]  # its repair may be more exact
    return checked if known else merge_verdicts(name, [checked, verdict])
