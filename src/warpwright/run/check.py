"""`check`: run a launch on the virtual GPU and find races, deadlocks and broken protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, DeviceError, UsageError
from warpwright.gpu import Device
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.layout.peers import each_value
from warpwright.ptx import nodes
from warpwright.run.arguments import check_ranks, memory_arrays, pass_arguments
from warpwright.run.devices import resolve
from warpwright.run.exploration import Exploration
from warpwright.run.launch import Entry, check_host, check_limit, prepare_launch
from warpwright.vgpu import Device as VirtualDevice
from warpwright.vgpu.checks.coverage import Coverage, merge_coverages
from warpwright.vgpu.checks.findings import Finding, Verdict
from warpwright.vgpu.checks.rules import RULES
from warpwright.vgpu.checks.sync_order import has_choice
from warpwright.vgpu.checks.watcher import Watcher

__all__ = ["LIMIT", "check", "merge_verdicts"]

SCHEDULES = 1_000_000
LIMIT = 2_000_000  # block jumps of a warp, or accesses and barriers of a cluster


def check(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int | None = None,
    args: Sequence[Any] = (),
    device: Device | str | None = None,
    off: str | Iterable[str] = (),
    *,
    depends_on: Iterable[Any] = (),
    explore: int = 0,
    seed: int | None = None,
    limit: int = LIMIT,
    update: bool = False,
    memory: Sequence[Any] | None = None,
    strict: bool | None = None,
) -> Verdict:
    """Run a launch and report unordered accesses, deadlocks, faults and broken protocols.

    The other arguments are those of ``ww.launch``; arrays in ``args`` stay as they are. ``device``: a virtual device or
    its name; the default is the virtual device that runs the PTX's target. ``off``: names of rules that are not checked
    (docs/checks.md lists the rules). ``depends_on``: those of ``args`` and ``memory`` (the arrays, or their numbers
    from 0) that an earlier launch writes which may overlap with this one. ``explore``: the number of additional
    schedules, each from the same arrays, with seeds 1, 2, …; the verdict has the findings of all schedules. ``seed``:
    run only the schedule of this seed; with ``explore``, that many schedules from this seed on. ``limit``: block jumps
    that a warp may make, or accesses and barriers of a cluster, before the verdict is incomplete. ``update``: the
    arrays have the results of the first schedule afterwards, as after a launch: the next launch of a sequence needs
    them. ``strict``: what PTX does not promise is a finding, also where the assembler or the chip is known to keep it;
    by default that is a finding in a kernel of the language and a note in PTX of others, whose source says less than
    its compiler knows.

    Raises UsageError for a real GPU, an unknown rule, an entry of ``depends_on`` that is no argument, or a negative
    number; and as ``ww.launch`` for a launch that the device refuses. A fault or a deadlock of the kernel is a finding;
    an instruction that the device does not execute makes the verdict incomplete.
    """
    off = (off,) if isinstance(off, str) else tuple(off)
    unknown = [name for name in off if name not in RULES]
    if unknown:
        raise UsageError(f"given off={unknown[0]!r}; expected one of {', '.join(RULES)}")
    seeds = _seeds(explore, seed)
    check_limit(limit)
    arrays = memory_arrays(memory)
    earlier = [_argument_number([*args, *(memory or ())], given) for given in depends_on]
    entry, shape, args = prepare_launch(kernel, grid, block, cluster, args)
    strict = not isinstance(kernel, Entry) if strict is None else strict
    target = resolve(device, entry.target, virtual=True)
    if not isinstance(target, VirtualDevice):
        raise UsageError(f"cannot check on {target.name}; expected a virtual device, such as device='b200'")
    check_host([*args, *(arrays or ())], target)
    check_ranks(entry.name, args, target.spec)
    with pass_arguments(entry.name, entry.function.params, args, arrays) as passed:
        how = {"smem": entry.smem if smem is None else smem, "args": passed, "memory": arrays, "limit": limit}
        run = partial(_run, target, entry, shape, how)
        every = [*passed, *(arrays or ())]
        depends = [getattr(value, "array", value) for value in each_value(every[number] for number in earlier)]
        return _run_schedules(entry, target.name, partial(Watcher, frozenset(off), depends, strict), seeds, run, update)


Failure = DeviceError | DescriptorError | None


def _run(
    target: VirtualDevice,
    entry: Entry,
    shape: Mapping[str, Any],
    how: Mapping[str, Any],
    watcher: Watcher,
    seed: int,
    discard: bool,
) -> Failure:
    """Run one schedule; returns the error that stopped it, or None."""
    try:
        target.launch(
            entry.module,
            entry.name,
            shape["grid"],
            shape["block"],
            shape["cluster"],
            listener=watcher,
            seed=seed,
            discard=discard,
            **how,
        )
    except (DeviceError, DescriptorError) as error:
        return error.with_traceback(None)  # its frames refer to the watcher, which refers to the error
    return None


def _run_schedules(
    entry: Entry,
    device: str,
    watch: Callable[..., Watcher],
    seeds: Sequence[int],
    run: Callable[[Watcher, int, bool], Failure],
    update: bool,
) -> Verdict:
    """Returns one verdict on several schedules. The schedule of the first seed runs last: with ``update`` the arrays
    have its results, and its coverage counts the instructions that any schedule reached."""
    watch = partial(watch, explores=len(seeds) > 1)
    verdicts: dict[int, Verdict] = {}
    reached: NDArray[np.int64] | None = None
    exploration = Exploration(seeds)
    for seed in exploration:
        watcher, error = _watch(watch, run, seed, not update or seed != seeds[0])
        if error is not None and not watcher.started:
            coverage = Coverage(0, _count_instructions(entry.function.body), ())
            return Verdict(entry.name, device, (), coverage, (str(error),))
        if reached is not None:
            np.maximum(watcher.reach.marks, reached, out=watcher.reach.marks)
        reached = watcher.reach.marks
        verdict = watcher.verdict(device, error)
        partial_coverage = error is None and seed != seeds[0]  # reasons: lines that no schedule reached yet
        verdicts[seed] = replace(verdict, reasons=()) if partial_coverage else verdict
        if len(seeds) > 1:
            exploration.note(watcher.sync_order.number(), has_choice(watcher.facts))
    verdicts = dict(sorted(verdicts.items()))
    reasons = dict.fromkeys(reason for verdict in verdicts.values() for reason in verdict.reasons)
    findings, notes = (_union(verdicts, part) for part in (attrgetter("findings"), attrgetter("notes")))
    known = {finding.lines for finding in findings}
    return replace(
        verdicts[seeds[0]],
        findings=findings,
        reasons=tuple(reasons),
        seeds=tuple(verdicts),
        notes=tuple(note for note in notes if note.lines not in known),
        orders=max(1, len(exploration.orders)),
        unexplored=exploration.unexplored,
    )


def _watch(
    watch: Callable[..., Watcher], run: Callable[[Watcher, int, bool], Failure], seed: int, discard: bool
) -> tuple[Watcher, Failure]:
    """Run a schedule. If loads read what no thread has written, or stores race, run it again, to see whether that has
    an effect, or whether the values differ; not for a strict check, nor if the arrays have changed."""
    watcher = watch()
    error = run(watcher, seed, discard)
    doubts = watcher.all_doubts() if discard and not watcher.strict else set()
    if doubts:
        watcher = watch(doubted=frozenset(doubts))
        error = run(watcher, seed, discard)
    return watcher, error


def _union(verdicts: Mapping[int, Verdict], part: Callable[[Verdict], Sequence[Finding]]) -> tuple[Finding, ...]:
    """Returns the findings of all schedules with their seeds; of findings at the same lines only the first."""
    findings: list[Finding] = []
    for seed, verdict in verdicts.items():
        known = {finding.lines for finding in findings}
        findings += [replace(finding, seed=seed) for finding in part(verdict) if finding.lines not in known]
    return tuple(findings)


def _seeds(explore: int, seed: int | None) -> tuple[int, ...]:
    """Returns the seeds of the schedules to run; 0 is the default schedule."""
    for name, given in (("explore", explore), ("seed", 0 if seed is None else seed)):
        if given < 0:
            raise UsageError(f"given {name}={given}; expected 0 or more")
    if explore > SCHEDULES:
        raise UsageError(f"given explore={explore}; expected at most {SCHEDULES:,} schedules")
    if seed is None:
        return tuple(range(explore + 1))
    return tuple(range(seed, seed + max(1, explore)))


def _argument_number(args: Sequence[Any], given: Any) -> int:
    """Returns the number of the argument ``given``, which is an array of ``args`` or a number."""
    for number, value in enumerate(args):
        if number == given if isinstance(given, int) else given is value or given is getattr(value, "array", value):
            return number
    raise UsageError(f"given depends_on with {given!r}; expected an array of args or memory, or its number from 0")


def _count_instructions(block: nodes.Block | None) -> int:
    """Returns the number of instructions in a block and its inner blocks."""
    items = block.items if block else ()
    inside = sum(_count_instructions(item) for item in items if isinstance(item, nodes.Block))
    return inside + sum(isinstance(item, nodes.Instruction) for item in items)


def merge_verdicts(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    """Returns one verdict called ``name`` on launches of one device; equal findings and reasons appear once."""
    coverage = merge_coverages([(verdict.kernel, verdict.coverage) for verdict in verdicts])
    findings = dict.fromkeys(finding for verdict in verdicts for finding in verdict.findings)
    notes = dict.fromkeys(note for verdict in verdicts for note in verdict.notes)
    reasons = dict.fromkeys(reason for verdict in verdicts for reason in verdict.reasons)
    seeds = max((verdict.seeds for verdict in verdicts), key=len)
    orders = max(verdict.orders for verdict in verdicts)
    unexplored = tuple(dict.fromkeys(reason for verdict in verdicts for reason in verdict.unexplored))
    return Verdict(
        name, verdicts[0].device, tuple(findings), coverage, tuple(reasons), seeds, tuple(notes), orders, unexplored
    )
