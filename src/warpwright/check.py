"""Whether a kernel is in order: one run on the virtual GPU, with every access and every barrier watched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from warpwright.arguments import pass_arguments
from warpwright.devices import resolve
from warpwright.errors import DescriptorError, DeviceError, UsageError
from warpwright.gpu import Device
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.launch import Entry, arranged
from warpwright.ptx import nodes
from warpwright.vgpu import Device as VirtualDevice
from warpwright.vgpu.checks.findings import Coverage, Verdict
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.watcher import Watcher

__all__ = ["check", "merged"]


def check(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int | None = None,
    args: Sequence[Any] = (),
    device: Device | str | None = None,
    off: str | Iterable[str] = (),
) -> Verdict:
    """Run a launch and say which of its accesses nothing orders, where it stops, and which protocols it breaks.

    The other arguments are those of ``ww.launch``; arrays in ``args`` hold the results afterwards. ``device``: a
    virtual device or its name; without one, the virtual one that runs the PTX's target. ``off``: names of rules that
    are not checked (docs/checks.md lists them).

    Raises UsageError for a real GPU and for an unknown rule, and what ``ww.launch`` raises for a launch that the device
    refuses. A fault or a deadlock while the kernel runs is a finding; an instruction that the device does not execute
    makes the verdict incomplete.
    """
    off = (off,) if isinstance(off, str) else tuple(off)
    unknown = [name for name in off if name not in RULES]
    if unknown:
        raise UsageError(f"given off={unknown[0]!r}; expected one of {', '.join(RULES)}")
    entry, shape, args = arranged(kernel, grid, block, cluster, args)
    target = resolve(device, entry.target, virtual=True)
    if not isinstance(target, VirtualDevice):
        raise UsageError(f"cannot check on {target.name}; expected a virtual device, such as device='b200'")
    watcher = Watcher(frozenset(off))
    error: DeviceError | DescriptorError | None = None
    with pass_arguments(entry.name, entry.function.params, args) as passed:
        try:
            target.launch(
                entry.module,
                entry.name,
                shape["grid"],
                shape["block"],
                shape["cluster"],
                smem=entry.smem if smem is None else smem,
                args=passed,
                watcher=watcher,
            )
        except (DeviceError, DescriptorError) as fault:
            error = fault
    if error is not None and not watcher.started:
        coverage = Coverage(0, _instructions(entry.function.body), ())
        return Verdict(entry.name, target.name, (), coverage, (str(error),))
    return watcher.verdict(target.name, error)


def _instructions(block: nodes.Block | None) -> int:
    """How many there are in a block and those inside it."""
    items = block.items if block else ()
    inside = sum(_instructions(item) for item in items if isinstance(item, nodes.Block))
    return inside + sum(isinstance(item, nodes.Instruction) for item in items)


def merged(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict, called ``name``, on launches of the same device; what several say is said once."""
    parts = [verdict.coverage for verdict in verdicts]
    missed = dict.fromkeys(where for part in parts for where in part.missed)
    coverage = Coverage(sum(part.reached for part in parts), sum(part.present for part in parts), tuple(missed))
    findings = dict.fromkeys(finding for verdict in verdicts for finding in verdict.findings)
    reasons = dict.fromkeys(reason for verdict in verdicts for reason in verdict.reasons)
    return Verdict(name, verdicts[0].device, tuple(findings), coverage, tuple(reasons))
