"""A profile as tables and text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from warpwright import targets
from warpwright.report.account import account
from warpwright.report.format import base_name, clause, gain_text, headline, percent
from warpwright.report.published import beyond_published
from warpwright.report.tables import table
from warpwright.vgpu.timing import Profile, Role

__all__ = ["grid_row", "main_stall", "profile_tables", "rank_rows", "time_row", "usage_row"]

MAX_STALLS = 4
MIN_SHARE = 0.01
MMA_ROLES = re.compile(r"mma|multipl|product|consum", re.IGNORECASE)


def main_stall(profile: Profile) -> str:
    """Returns the longest stall of the MMA roles, or of the longest role without one: ``"mma waits ab.full 41 %"``."""
    found = [role for role in profile.roles if MMA_ROLES.search(role.name)]
    roles = found or sorted(profile.roles, key=lambda role: -role.cycles)[:1]
    stalls = [(stall.share, clause(role.name, stall.reason)) for role in roles for stall in role.stalls]
    share, stall = max(stalls, default=(0.0, ""))
    return f"{stall} {percent(share)}" if stall else ""


def profile_tables(profile: Profile, advice: Sequence[Any] = ()) -> Iterator[RenderableType]:
    """Yields the output of ``warpwright profile``: time, use of the GPU, grid, parts of the time, stalls, advice."""
    yield f"[bold]{_title(profile)}[/bold]"
    yield table([time_row(profile)])
    beyond = beyond_published(profile.device, profile.tflops) if profile.rate == 1.0 else ""
    if beyond:
        yield f"[dim]{escape(beyond)}[/dim]"
    if profile.ranks:
        yield table(list(rank_rows(profile)), "the ranks of the node")
    yield table([usage_row(profile)], "use of the GPU, of its peak")
    yield table([grid_row(profile)], "the grid")
    parts = account(profile)
    if parts:
        yield table([{part: round(cost, 1) for part, cost in parts.items()}], "where the time goes, µs")
    shortest = MIN_SHARE * max((role.cycles for role in profile.roles), default=0.0)
    roles = [row for role in profile.roles if role.cycles >= shortest for row in _stalls(role)]
    if roles:
        yield table(roles, "where the time of each role goes")
    yield from _advice_lines(advice)


def _title(profile: Profile) -> str:
    how = ("one representative wave" if profile.fast else "every CTA") + (", in a warm loop" if profile.warm else "")
    return escape(f"{headline(profile)} ({how})")


def time_row(profile: Profile) -> dict[str, Any]:
    """Returns the predicted time and what the tensor cores do in it, as a row of a table."""
    row: dict[str, Any] = {
        "time_us": profile.time_us,
        "cycles": round(profile.cycles),
        "clock_mhz": round(profile.clock_mhz),
        "launch_us": profile.launch_us,
    }
    if not profile.flops:
        return row
    device = targets.find_chip(profile.device)
    row |= {"tflops": profile.tflops}
    if device is not None:
        row |= {"of_peak": percent(profile.tflops / device.bf16_tflops)}
    return row | {"dropped_work": percent(profile.dropped)}


def usage_row(profile: Profile) -> dict[str, Any]:
    """Returns the shares of the peaks and the bytes moved, as a row of a table."""
    usage = profile.usage
    row = {
        "tensor cores": percent(usage.tensor),
        "L2": percent(usage.l2),
        "device memory": percent(usage.hbm),
        "shared memory": percent(usage.shared),
        "issue slots": percent(usage.issue),
        "L2 hits": percent(profile.l2_hit),
        "L2 MB": round(profile.bytes_l2 / 1e6, 1),
        "device memory MB": round(profile.bytes_hbm / 1e6, 1),
    }
    if not profile.ranks:
        return row
    return row | {"sent MB": round(profile.bytes_sent / 1e6, 1), "received MB": round(profile.bytes_received / 1e6, 1)}


def rank_rows(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yields a row for each rank of a node."""
    for rank, each in enumerate(profile.ranks):
        yield {
            "rank": rank,
            "time_us": each.time_us,
            "of the slowest": percent(each.time_us / profile.time_us),
            "tensor cores": percent(each.usage.tensor),
            "device memory": percent(each.usage.hbm),
            "sent MB": round(each.bytes_sent / 1e6, 1),
            "received MB": round(each.bytes_received / 1e6, 1),
            "longest stall": main_stall(each),
        }


def grid_row(profile: Profile) -> dict[str, Any]:
    """Returns the launch and how its CTAs fill the GPU, as a row of a table."""
    return {
        "grid": _dims(profile.grid),
        "block": _dims(profile.block),
        "cluster": _dims(profile.cluster),
        "CTAs an SM": profile.ctas_per_sm,
        "waves": round(profile.waves, 2),
        "tail": percent(profile.tail),
    }


def _dims(dims: tuple[int, int, int]) -> str:
    return " × ".join(map(str, dims[: 1 + max((axis for axis in range(3) if dims[axis] > 1), default=0)]))


def _stalls(role: Role) -> Iterator[dict[str, Any]]:
    """Yields a row for each long stall of a role; the first row has the role."""
    stalls = [stall for stall in role.stalls if stall.share >= MIN_SHARE][:MAX_STALLS]
    head = {"role": role.name, "warps": str(role.warps), "issues": percent(role.busy)}
    if not stalls:
        yield {**head, "stall": "", "share": "", "where": ""}
    for stall in stalls:
        yield {**head, "stall": stall.reason, "share": percent(stall.share), "where": escape(base_name(stall.where))}
        head = dict.fromkeys(head, "")


def _advice_lines(advice: Sequence[Any]) -> Iterator[str]:
    if not advice:
        yield "[bold]Advice:[/bold] none."
    for number, each in enumerate(advice, 1):
        where = f" [dim]({escape(base_name(each.where))})[/dim]" if each.where else ""
        yield f"[bold]{number}. {each.topic}[/bold] ({gain_text(each.gain)}): {escape(each.text)}{where}"
