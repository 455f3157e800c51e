"""The parts of a GEMM's predicted time, which add up to it, and the part that changed most between two kernels.

The parts follow the tensor core of one representative CTA. It is busy, or idle: before its first MMA, between two MMAs,
during the epilogue, or after its last MMA. Busy time is useful MMA, dropped MMA (its results are dropped), or slow MMA:
time above the tensor core's own rate, because shared memory delivers operands too slowly. Tail and launch are added.
"""

from __future__ import annotations

from itertools import pairwise

from warpwright import targets
from warpwright.report.format import percent
from warpwright.report.intervals import Extent, intersection, length, union
from warpwright.report.lanes import TENSOR, kind, ring_of
from warpwright.vgpu.timing import Profile, Span

__all__ = ["PARTS", "account", "loss", "reason", "tensor_rate"]

IDLE = ("waits for operands", "epilogue", "first loads")
PARTS = ("useful MMA", "dropped MMA", "slow MMA", *IDLE, "tail", "launch")
MIN_CHANGE = 0.01  # of the time


def account(profile: Profile) -> dict[str, float]:
    """Returns the microseconds of each of `PARTS`; their sum is ``time_us``. Empty for a kernel without MMA."""
    core = union((span.start, span.end) for span in profile.spans if span.cta == 0 and span.track == TENSOR)
    if not core:
        return {}
    cycles = max(span.end for span in profile.spans)
    idle = _idle(profile, core, cycles)
    running = (profile.time_us - profile.launch_us) * (1 - profile.tail)
    busy = min(1.0, profile.ctas_per_sm * length(core) / cycles)
    rest = sum(idle.values())
    scale = running * (1 - busy) / rest if rest else 0.0
    wasted = profile.dropped
    whole = min(running * busy, (profile.time_us - profile.launch_us) * tensor_rate(profile))
    parts = {
        "useful MMA": whole * (1 - wasted),
        "dropped MMA": running * busy * wasted,
        "slow MMA": (running * busy - whole) * (1 - wasted),
        **{part: scale * idle[part] for part in IDLE},
        "tail": (profile.time_us - profile.launch_us) * profile.tail,
        "launch": profile.launch_us,
    }
    return {part: float(cost) for part, cost in parts.items()}


def tensor_rate(profile: Profile) -> float:
    """Returns the flops of a kernel over the peak flops of all tensor cores in the same cycles; 0 to 1.

    The peak is that of the operands' types. For an unknown device, returns the tensor cores' busy share.
    """
    device = targets.find_chip(profile.device)
    if device is None or not profile.cycles:
        return profile.usage.tensor
    peak = targets.timing_of(device.name).mma_flops * profile.rate * device.sms
    return min(1.0, profile.flops / (peak * profile.cycles))


def _idle(profile: Profile, core: list[Extent], cycles: float) -> dict[str, float]:
    """Returns the cycles in which the tensor core is idle, by reason."""
    epilogue = union((span.start, span.end) for span in profile.spans if _is_epilogue(span))
    first, last = core[0][0], core[-1][1]
    gaps = [(before[1], after[0]) for before, after in pairwise(core)]
    in_epilogue = length(intersection(gaps, epilogue))
    return {
        "waits for operands": length(gaps) - in_epilogue,
        "epilogue": in_epilogue + cycles - last,
        "first loads": first,
    }


def _is_epilogue(span: Span) -> bool:
    return span.cta == 0 and kind(span) == "store" and span.track not in ("TMA", TENSOR) and not ring_of(span.track)[0]


def loss(profile: Profile) -> str:
    """Returns the largest part other than useful MMA: ``"dropped MMA 38 %"``; "" for a kernel without MMA."""
    parts = account(profile)
    part = max(PARTS[1:], key=lambda part: parts.get(part, 0.0))
    return f"{part} {percent(parts[part] / profile.time_us)}" if parts else ""


def reason(before: Profile, after: Profile) -> str:
    """Returns what explains the change of time: ``"waits for operands 310 → 42 µs"``, ``"slower: tail …"``.

    It is the part that changed most, or ``"1 → 4 CTAs an SM"`` if more CTAs share an SM and the kernel is faster, or
    fewer and it is slower. Returns "" if the times differ by less than 1 %, or a profile has no MMA.
    """
    old, new = account(before), account(after)
    change = after.time_us - before.time_us
    if not old or not new or abs(change) < MIN_CHANGE * before.time_us:
        return ""
    part = min(PARTS, key=lambda part: (new[part] - old[part]) * (1 if change < 0 else -1))
    shares = [percent(each.dropped) for each in (before, after)]
    ctas = after.ctas_per_sm - before.ctas_per_sm
    if ctas * change < 0:
        text = f"{before.ctas_per_sm} → {after.ctas_per_sm} CTAs an SM"
    elif part == "dropped MMA" and shares[0] != shares[1]:
        text = f"dropped MMA {shares[0]} → {shares[1]}"
    else:
        text = f"{part} {_microseconds(old[part], new[part])}"
    return text if change < 0 else f"slower: {text}"


def _microseconds(old: float, new: float) -> str:
    """Returns ``"310 → 42 µs"``, with three digits, or with four where the two times would look equal."""
    for digits in (3, 4):
        texts = [f"{round(each, max(0, digits - len(str(int(each))))):,.12g}" for each in (old, new)]
        if texts[0] != texts[1]:
            break
    return f"{texts[0]} → {texts[1]} µs"
