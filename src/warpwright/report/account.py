"""Where the time of a product goes, as parts that add up, and which part shrank from one kernel to the next.

The tensor core of one representative CTA is watched: it multiplies, or it idles before its first product, between
products, beside the epilogue, or after its last one. What it multiplies is useful or dropped; what useful products
take beyond the tensor core's own rate, because operands come too slowly from shared memory, are slow products. Tail
and launch come on top.
"""

from __future__ import annotations

from itertools import pairwise

from warpwright import targets
from warpwright.report.format import percent
from warpwright.report.intervals import Extent, common, length, union
from warpwright.report.lanes import TENSOR, kind, ring_of
from warpwright.vgpu.timing import Profile, Span

__all__ = ["PARTS", "account", "loss", "reason", "tensor_rate"]

IDLE = ("waits for operands", "epilogue", "first loads")
PARTS = ("products", "dropped products", "slow products", *IDLE, "tail", "launch")
LEAST_CHANGE = 0.01


def account(profile: Profile) -> dict[str, float]:
    """Microseconds of each of `PARTS`; their sum is ``time_us``. Empty for a kernel without products."""
    core = union((span.start, span.end) for span in profile.spans if span.cta == 0 and span.track == TENSOR)
    if not core:
        return {}
    cycles = max(span.end for span in profile.spans)
    idle = _idle(profile, core, cycles)
    running = (profile.time_us - profile.launch_us) * (1 - profile.tail)
    busy = min(1.0, profile.ctas_per_sm * length(core) / cycles)
    rest = sum(idle.values())
    scale = running * (1 - busy) / rest if rest else 0.0
    wasted = profile.wasted_flops / profile.flops if profile.flops else 0.0
    whole = min(running * busy, (profile.time_us - profile.launch_us) * tensor_rate(profile))
    parts = {
        "products": whole * (1 - wasted),
        "dropped products": running * busy * wasted,
        "slow products": (running * busy - whole) * (1 - wasted),
        **{part: scale * idle[part] for part in IDLE},
        "tail": (profile.time_us - profile.launch_us) * profile.tail,
        "launch": profile.launch_us,
    }
    return {part: float(cost) for part, cost in parts.items()}


def tensor_rate(profile: Profile) -> float:
    """Products over what the tensor cores of all SMs could do at their own rate in the same cycles; 0 to 1.

    16-bit products count as such, FP8 ones as two; without a known device the use of the tensor cores.
    """
    device = targets.DEVICES.get(profile.device)
    if device is None or not profile.cycles:
        return profile.usage.tensor
    return min(1.0, profile.flops / (targets.timing_of(device.name).mma_flops * device.sms * profile.cycles))


def _idle(profile: Profile, core: list[Extent], cycles: float) -> dict[str, float]:
    """Cycles in which the tensor core multiplies nothing, by why."""
    epilogue = union((span.start, span.end) for span in profile.spans if _is_epilogue(span))
    first, last = core[0][0], core[-1][1]
    within = [(before[1], after[0]) for before, after in pairwise(core)]
    beside = length(common(within, epilogue))
    return {
        "waits for operands": length(within) - beside,
        "epilogue": beside + cycles - last,
        "first loads": first,
    }


def _is_epilogue(span: Span) -> bool:
    return span.cta == 0 and kind(span) == "store" and span.track not in ("TMA", TENSOR) and not ring_of(span.track)[0]


def loss(profile: Profile) -> str:
    """The largest part of the time that is no useful product: ``"dropped products 38 %"``; "" without products."""
    parts = account(profile)
    part = max(PARTS[1:], key=lambda part: parts.get(part, 0.0))
    return f"{part} {percent(parts[part] / profile.time_us)}" if parts else ""


def reason(before: Profile, after: Profile) -> str:
    """Which part changed most, the way the whole did: ``"waits for operands 310 → 42 µs"``, ``"slower: tail …"``.

    "" where the times differ by less than 1 %, or a profile has no products.
    """
    old, new = account(before), account(after)
    change = after.time_us - before.time_us
    if not old or not new or abs(change) < LEAST_CHANGE * before.time_us:
        return ""
    part = min(PARTS, key=lambda part: (new[part] - old[part]) * (1 if change < 0 else -1))
    if part == "dropped products":
        share = [each.wasted_flops / each.flops for each in (before, after)]
        text = f"dropped products {percent(share[0])} → {percent(share[1])}"
    else:
        text = f"{part} {old[part]:,.3g} → {new[part]:,.3g} µs"
    return text if change < 0 else f"slower: {text}"
