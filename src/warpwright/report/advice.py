"""Advice on a kernel, computed from its profile: the cause with its numbers, its source line, and the gain.

A gain is the increase of useful work a second, in percent, if the cause disappeared and nothing else became the limit;
it is at most what the bandwidths allow. Gains of several pieces of advice do not add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from warpwright import targets
from warpwright.report.account import tensor_rate
from warpwright.report.format import clause, percent
from warpwright.report.intervals import Extent, intersection, length, union
from warpwright.report.lanes import TENSOR, kind, ring_of
from warpwright.vgpu.timing import Profile, Role, Span

__all__ = ["Advice", "advice"]

MIN_SHARE = 0.03  # of the time, for a piece of advice
MIN_GAIN = 1.0  # percent
MIN_USE = 0.01  # avoids a division by zero
SAME_TRAFFIC = ("pipeline depth", "epilogue", "tail", "bank conflicts")  # the same bytes would move in less time
BOUND = 0.80  # of a peak bandwidth: a practical maximum
MAX_CONFLICTS = 3


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice: ``topic`` in a word or two, ``text`` as one sentence with numbers and the remedy, ``where``
    as file:line or "", and ``gain`` in percent."""

    topic: str
    text: str
    where: str
    gain: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def advice(profile: Profile) -> list[Advice]:
    """Returns the advice on a profile, largest gain first; empty if no rule applies."""
    room = 100 * (1 / max(profile.usage.l2, profile.usage.hbm, profile.usage.shared, MIN_USE) - 1)
    found = [each for rule in RULES for each in rule(profile)]
    limited = [replace(each, gain=min(each.gain, room)) if each.topic in SAME_TRAFFIC else each for each in found]
    return sorted((each for each in limited if each.gain >= MIN_GAIN), key=lambda each: -each.gain)


def _gain(share: float) -> float:
    """Returns the gain in percent if ``share`` of the time is saved."""
    return 100 * share / (1 - share) if share < 1 else math.inf


def _wasted_mma(profile: Profile) -> Iterator[Advice]:
    share = profile.wasted_flops / profile.flops if profile.flops else 0.0
    if share < MIN_SHARE:
        return
    x, y, z = profile.cluster
    who = f"the {x * y * z} CTAs of a cluster" if x * y * z > 1 else "CTAs"
    text = (
        f"{percent(share)} of tensor-core work computes results that are dropped: {who} multiply the same operands; "
        "give each a tile of its own"
    )
    yield Advice("wasted work", text, _where(profile.spans, lambda span: span.track == TENSOR), _gain(share))


def _padding(profile: Profile) -> Iterator[Advice]:
    share = profile.padded_flops / profile.flops if profile.flops else 0.0
    if share < MIN_SHARE:
        return
    text = (
        f"{percent(share)} of tensor-core work is beyond the edges of the matrices, whose extents are no multiples of "
        "the tile; use smaller tiles, or extents that are multiples of the tile"
    )
    yield Advice("padding", text, _where(profile.spans, lambda span: span.track == TENSOR), _gain(share))


def _bank_conflicts(profile: Profile) -> Iterator[Advice]:
    exposed = _exposed_share(profile, _is_epilogue)
    ctas, cycles = math.prod(profile.cluster), _cycles(profile)
    stores = length(union(_extents(profile.spans, _is_epilogue))) / cycles or 1 - MIN_SHARE
    found = sorted(profile.conflicts, key=lambda each: each.least - each.wavefronts)
    for conflict in found[:MAX_CONFLICTS]:
        extra = (conflict.wavefronts - conflict.least) / ctas / cycles
        if extra < MIN_SHARE / 3:  # several conflicts add up
            continue
        text = (
            f"shared-memory bank conflicts: {conflict.wavefronts:,} wavefronts instead of {conflict.least:,} "
            f"({conflict.wavefronts / conflict.least:.1f} times), {percent(extra)} of the time; swizzle the tile, or "
            "let neighbouring threads access neighbouring 16-byte chunks"
        )
        yield Advice("bank conflicts", text, conflict.where, _gain(exposed * min(extra, stores)))


def _shallow_rings(profile: Profile) -> Iterator[Advice]:
    core = union(_extents(profile.spans, lambda span: span.cta == 0 and span.track == TENSOR))
    for name in sorted({ring for span in profile.spans if (ring := ring_of(span.track)[0])}):
        slots = [span for span in profile.spans if span.cta == 0 and ring_of(span.track)[0] == name]
        filling = sorted(span.end - span.start for span in slots if span.name == "filling")
        using = sorted(span.end - span.start for span in slots if span.name == "in use")
        producer, consumer = _waiting(profile.roles, f"{name}.empty"), _waiting(profile.roles, f"{name}.full")
        if not filling or not using or producer is None or consumer is None:
            continue
        stages = 1 + max(ring_of(span.track)[1] for span in slots)
        latency, use = filling[len(filling) // 4], using[len(using) // 2]
        idle = _idle_between(core) if core else _share(consumer, f"{name}.full")
        needed = math.ceil((latency + use) / (length(core) / len(using) if core else use))
        if needed <= stages or idle < MIN_SHARE or _share(producer, f"{name}.empty") < MIN_SHARE:
            continue
        text = (
            f"ring {name} is too shallow: {clause(consumer.name, f'waits {name}.full')} while "
            f"{clause(producer.name, f'waits {name}.empty')}; "
            f"a slot takes {latency:,.0f} cycles to fill and {use:,.0f} to use: use {needed} stages instead of {stages}"
        )
        if producer is consumer:
            text += "; and one role copies and multiplies: give the copies a role of their own, which runs ahead"
        where = next(stall.where for stall in consumer.stalls if stall.reason == f"waits {name}.full")
        reach = (core[-1][1] - core[0][0]) / _cycles(profile) if core else 1.0
        yield Advice("pipeline depth", text, where, _gain(idle * reach * (1 - stages / needed)))


def _waves_and_tail(profile: Profile) -> Iterator[Advice]:
    device = targets.find_chip(profile.device)
    if device is None:
        return
    ctas, resident = math.prod(profile.grid), device.sms * profile.ctas_per_sm
    running = 1 - profile.launch_us / profile.time_us
    if ctas < device.sms and 1 - ctas / device.sms > MIN_SHARE:
        who = "CTA leaves" if ctas == 1 else "CTAs leave"
        text = (
            f"{ctas} {who} {device.sms - ctas} of {device.sms} SMs idle; use smaller tiles, or split K "
            "over several CTAs"
        )
        yield Advice("idle SMs", text, "", _gain((1 - ctas / device.sms) * running))
    elif profile.tail > MIN_SHARE:
        last = ctas % resident or resident
        text = f"{percent(profile.tail)} of the SMs' time is idle at the end of the launch"
        if profile.waves > 1:
            busy = min(math.ceil(last / profile.ctas_per_sm), device.sms)
            text += (
                f": in the last of {math.ceil(profile.waves)} waves {device.sms - busy} of {device.sms} SMs idle; "
                "choose a tile size that fills whole waves, or a persistent grid"
            )
        else:
            text += "; choose a tile size whose number of tiles is a multiple of the CTAs, or split K of the last tiles"
        yield Advice("tail", text, "", _gain(profile.tail * running))


def _exposed_epilogue(profile: Profile) -> Iterator[Advice]:
    """Epilogues during which the tensor core is idle, except the last epilogue of a launch with one wave."""
    if profile.ctas_per_sm > 1 or not profile.flops:
        return
    core = union(_extents(profile.spans, lambda span: span.cta == 0 and span.track == TENSOR))
    stores = union(_extents(profile.spans, _is_epilogue))
    if not core or not stores:
        return
    last = core[-1][1]
    until = math.inf if profile.waves > 1 else last
    exposed = [(max(start, core[0][0]), min(end, until)) for start, end in stores]
    alone = length(exposed) - length(intersection(exposed, core))
    share = alone / _cycles(profile)
    if share < MIN_SHARE:
        return
    text = (
        f"{percent(share)} of the time the tensor core waits while the epilogue reads and stores the accumulator; "
        "overlap them with a second accumulator in tensor memory, an epilogue role and a persistent loop over tiles"
    )
    yield Advice("epilogue", text, _where(profile.spans, _is_epilogue), _gain(share))


LIMITS = (
    (
        "hbm",
        "device memory",
        "order the tiles so that concurrent tiles share rows and columns, or use larger tiles",
    ),
    ("l2", "L2", "use larger tiles, or let the CTAs of a cluster share loads (multicast)"),
    ("shared", "shared memory", "use larger tiles of the tensor-core instruction, or keep an operand in registers"),
)


def _bandwidth(profile: Profile) -> Iterator[Advice]:
    usage = asdict(profile.usage) | {"tensor": tensor_rate(profile)}
    for name, words, remedy in LIMITS:
        others = max(value for key, value in usage.items() if key != name)
        if usage[name] < BOUND or usage[name] < others:
            continue
        moved = {"hbm": f" for {profile.bytes_hbm / 1e6:,.0f} MB", "l2": f" for {profile.bytes_l2 / 1e6:,.0f} MB"}
        text = f"{words} is the limit: {percent(usage[name])} of its bandwidth{moved.get(name, '')}; {remedy}"
        yield Advice(f"{words} bound", text, "", 100 * (usage[name] / max(others, 0.01) - 1))


def _permit(profile: Profile) -> Iterator[Advice]:
    """CTAs that would fit on an SM, but start one after the other."""
    device = targets.find_chip(profile.device)
    if device is None or profile.ctas_fitting == profile.ctas_per_sm or profile.waves <= 1:
        return
    text = (
        f"an SM runs {profile.ctas_per_sm} CTA at a time, although {profile.ctas_fitting} fit: a CTA keeps its permit "
        "to allocate tensor memory until it exits; execute tcgen05.relinquish_alloc_permit after the last tcgen05.alloc"
    )
    busiest = max(*asdict(profile.usage).values(), MIN_USE)
    yield Advice("occupancy", text, "", 100 * (min(profile.ctas_fitting, 1 / busiest) - 1))


def _latency(profile: Profile) -> Iterator[Advice]:
    """Warps of a full GPU that wait for device memory although it is not busy: too few loads are in flight."""
    device = targets.find_chip(profile.device)
    stalls = [(stall.share, role, stall) for role in profile.roles for stall in role.stalls]
    memory = [each for each in stalls if each[2].reason == "global memory" and each[1].cycles > _cycles(profile) / 2]
    share, role, stall = max(memory, key=lambda each: each[0], default=(0.0, None, None))
    busy = max(profile.usage.hbm, profile.usage.l2)
    if device is None or role is None or stall is None or share < 0.5 or busy > 0.6:
        return
    if math.prod(profile.grid) < device.sms:
        return
    text = (
        f"{clause(role.name, 'waits')} {percent(share)} of the time for global memory, which is "
        f"{percent(profile.usage.hbm)} busy (L2 {percent(profile.usage.l2)}): keep more loads in flight, with more "
        f"CTAs an SM ({profile.ctas_per_sm} now), or wider and more loads a thread"
    )
    yield Advice("memory latency", text, stall.where, min(_gain(min(share, 0.9)), 100 * (BOUND / busy - 1)))


def _launch(profile: Profile) -> Iterator[Advice]:
    share = profile.launch_us / profile.time_us if profile.time_us else 0.0
    if share < 0.2:
        return
    text = (
        f"the launch overhead is {profile.launch_us:.1f} of {profile.time_us:.1f} µs; do more work in one launch, "
        "replay a CUDA graph, or overlap the launch with the previous kernel (griddepcontrol)"
    )
    yield Advice("launch bound", text, "", _gain(min(share, 0.9)))


RULES: Sequence[Callable[[Profile], Iterable[Advice]]] = (
    _wasted_mma,
    _padding,
    _bank_conflicts,
    _shallow_rings,
    _waves_and_tail,
    _exposed_epilogue,
    _bandwidth,
    _permit,
    _latency,
    _launch,
)


def _is_epilogue(span: Span) -> bool:
    return span.cta == 0 and kind(span) == "store" and span.track not in ("TMA", TENSOR)


def _extents(spans: Iterable[Span], select: Callable[[Span], bool]) -> list[Extent]:
    return [(span.start, span.end) for span in spans if select(span)]


def _cycles(profile: Profile) -> float:
    """Returns the cycles that the representative cluster runs."""
    return max((span.end for span in profile.spans), default=0.0) or max(profile.cycles, 1.0)


def _idle_between(core: Sequence[Extent]) -> float:
    """Returns the share of the time between the first and the last MMA without an MMA."""
    return 1 - length(core) / (core[-1][1] - core[0][0])


def _exposed_share(profile: Profile, select: Callable[[Span], bool]) -> float:
    """Returns the share of the selected spans of CTA 0 without an MMA on the tensor core; 1 if there are no spans."""
    own = union(_extents(profile.spans, lambda span: span.cta == 0 and select(span)))
    core = union(_extents(profile.spans, lambda span: span.cta == 0 and span.track == TENSOR))
    return 1 - length(intersection(own, core)) / length(own) if own else 1.0


def _where(spans: Iterable[Span], select: Callable[[Span], bool]) -> str:
    """Returns the source line with the most cycles of the selected spans."""
    cycles: dict[str, float] = {}
    for span in spans:
        if select(span):
            cycles[span.where] = cycles.get(span.where, 0.0) + span.end - span.start
    return max(cycles, key=lambda where: cycles[where], default="")


def _waiting(roles: Iterable[Role], barrier: str) -> Role | None:
    """Returns the role that waits for ``barrier`` the longest, or None."""
    found = [role for role in roles if _share(role, barrier)]
    return max(found, key=lambda role: _share(role, barrier), default=None)


def _share(role: Role, barrier: str) -> float:
    return sum(stall.share for stall in role.stalls if stall.reason == f"waits {barrier}")
