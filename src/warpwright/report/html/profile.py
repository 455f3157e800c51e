"""The page of a profile: predicted time and its parts, timeline, stalls by source line, use of the GPU, advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from warpwright import targets
from warpwright.report.account import account
from warpwright.report.advice import Advice, advice
from warpwright.report.format import base_name, gain_text, headline, percent
from warpwright.report.html.elements import Html, element, section, table
from warpwright.report.html.page import Section, page, read
from warpwright.report.html.sources import excerpt
from warpwright.report.html.stalls import stall_listings
from warpwright.report.html.timeline import slowest, timeline_data
from warpwright.report.html.verdict import badge, verdict_parts
from warpwright.report.published import beyond_published
from warpwright.report.text import grid_row, rank_rows, time_row, usage_row
from warpwright.report.verdict import Verdict as Errors
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.timing import Profile, Region

__all__ = [
    "how_text",
    "parts_bar",
    "parts_key",
    "profile_data",
    "profile_page",
    "profile_sections",
    "scripts",
    "time_tiles",
    "timeline_controls",
]

COLOURS = {
    "useful MMA": "multiply",
    "dropped MMA": "in-use",
    "slow MMA": "filling",
    "waits for operands": "wait",
    "epilogue": "store",
    "first loads": "copy",
    "tail": "other",
    "launch": "full",
}
LEGEND = (
    ("copy", "copies"),
    ("multiply", "multiplies"),
    ("store", "reads accumulators, stores"),
    ("other", "other work"),
    ("wait", "waits"),
    ("filling", "slot: filling"),
    ("full", "slot: full"),
    ("in-use", "slot: in use"),
    ("parity-0", "mbarrier: phase of parity 0"),
    ("parity-1", "of parity 1"),
)
KEYS = (
    "Keys: arrows select an operation, Shift with ← → moves, + − zoom, 0 shows all, Enter goes to the operation that "
    "ended a wait, Escape deselects. Mouse: drag moves, Ctrl with the wheel or a double click zooms."
)
BYTES, COLUMNS = "shared memory", "tensor memory"


def profile_page(
    profile: Profile,
    result: Errors | None = None,
    verdict: Verdict | None = None,
    source: Path | None = None,
    command: str = "",
) -> str:
    """Returns the HTML file of a profile; ``result``: the errors of its result against float64; ``verdict``: of the
    same launch, with its accesses on the timeline; ``source``, ``command``: as in `verdict_page`."""
    title = headline(profile)
    beyond = beyond_published(profile.device, profile.tflops) if profile.rate == 1.0 else ""
    how = ". ".join(filter(None, (how_text(profile), beyond[:1].upper() + beyond[1:])))
    head = Html(element("h1", title) + element("p", how, class_="quiet") + time_tiles(profile))
    sections = list(profile_sections(profile))
    if result is not None:
        errors = section("result", "The result, against float64", table([result.as_row()]))
        sections.append(("result", "Result", errors))
    if verdict is not None:
        found = section(
            "verdict", "Verdict", element("p", badge(verdict.kind)), *verdict_parts(verdict, source, command)
        )
        sections.insert(0, ("verdict", "Verdict", found))
    return page(title, head, sections, profile_data(profile, verdict), scripts())


def profile_data(profile: Profile, verdict: Verdict | None = None) -> dict[str, Any]:
    """Returns the data of the page for its `scripts`."""
    return {"timeline": timeline_data(profile, verdict), "roofline": roofline_data(profile)}


def scripts() -> list[str]:
    """Returns the scripts of the page of a profile."""
    return [read("timeline.js"), read("roofline.js")]


def profile_sections(profile: Profile) -> Iterator[Section]:
    """Yields the sections that the profile has something for, with their anchors and titles."""
    if profile.ranks:
        yield "ranks", "Ranks", section("ranks", "The ranks of the node", *rank_parts(profile))
    parts = account(profile)
    if parts:
        yield "time", "Time", section("time", "Where the time goes", parts_bar(profile), parts_key(parts))
    if profile.spans:
        yield "pipeline", "Timeline", section("pipeline", "Timeline", *timeline_controls())
    stalls = list(stall_listings(profile))
    if stalls:
        yield "stalls", "Stalls", section("stalls", "Stalls by source line", *stalls)
    hints = advice(profile)
    yield "advice", "Advice", section("advice", "Advice", *advice_items(hints))
    yield (
        "use",
        "Use of the GPU",
        section("use", "Use of the GPU", element("div", *use_columns(profile), class_="columns")),
    )
    yield "memory", "Memory", section("memory", "Occupancy and memory", *memory_parts(profile))
    yield "numbers", "Numbers", section("numbers", "Numbers", *number_tables(profile))


def how_text(profile: Profile) -> str:
    """Returns what ran, in a line."""
    x, y, z = profile.grid
    threads = profile.block[0] * profile.block[1] * profile.block[2]
    ran = ("one representative wave ran" if profile.fast else "every CTA ran") + ("; warm loop" if profile.warm else "")
    ctas = f"{x * y * z:,} CTA{'s' * (x * y * z > 1)} of {threads} threads"
    if not profile.ranks:
        return f"{ctas}; {ran} on the virtual GPU"
    which = f"the numbers are those of rank {slowest(profile)}, the slowest of {len(profile.ranks)}"
    return f"{ctas} on each rank; {ran} on the virtual node; {which}"


def rank_parts(profile: Profile) -> Iterator[Html]:
    """Yields the time of each rank, its bytes and its longest stall, then the parts of its time as a bar."""
    yield table(
        list(rank_rows(profile)), "time, and bytes over the link: sent by stores, received by loads of this rank"
    )
    for rank, each in enumerate(profile.ranks):
        if account(each):
            yield element("p", f"rank {rank}: {each.time_us:,.4g} µs")
            yield parts_bar(each)
    yield element(
        "p", "Each rank is predicted as if its flags were set: a wait for another rank is no part of its time.",
        class_="quiet",
    )  # fmt: skip


def time_tiles(profile: Profile) -> Html:
    """Returns the main numbers of a profile as tiles."""
    device = targets.find_chip(profile.device)
    tiles = {"predicted time": f"{profile.time_us:,.4g} µs"}
    if profile.flops:
        share = f" ({percent(profile.tflops / device.bf16_tflops)} of peak)" if device else ""
        tiles |= {f"TFLOPS{share}": f"{profile.tflops:,.4g}", "tensor cores busy": percent(profile.usage.tensor)}
    tiles |= {"device memory busy": percent(profile.usage.hbm), "clock": f"{profile.clock_mhz:,.0f} MHz"}
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in tiles.items()]
    return element("dl", *pairs, class_="tiles")


def parts_bar(profile: Profile) -> Html:
    """Returns the parts of the time as a bar."""
    parts = account(profile)
    bars = [
        element("i", style=f"flex:{cost:.4f};background:var(--{COLOURS[part]})", title=f"{part} {cost:,.1f} µs")
        for part, cost in parts.items()
        if cost > 0
    ]
    text = ", ".join(f"{part} {cost:,.1f} µs" for part, cost in parts.items())
    return element("div", *bars, class_="stack", role="img", aria_label=text)


def parts_key(parts: dict[str, float]) -> Html:
    """Returns the parts of the time with their colours, microseconds and shares."""
    total = sum(parts.values())
    texts = {part: f"{part} {cost:,.1f} µs, {percent(cost / total)}" for part, cost in parts.items() if cost > 0}
    return element("ul", *(element("li", swatch(COLOURS[part]), text) for part, text in texts.items()), class_="key")


def swatch(colour: str) -> Html:
    return element("i", class_="swatch", style=f"background:var(--{colour})", aria_hidden="true")


def timeline_controls() -> Iterator[Html]:
    """Yields the elements that the script of the timeline fills."""
    buttons = [element("button", text, type="button", data_zoom=factor, aria_label=name)
               for text, factor, name in (("+", "2", "zoom in"), ("−", "0.5", "zoom out"))]  # fmt: skip
    windows = {"whole": "whole run", "prologue": "prologue", "steady": "steady state", "epilogue": "epilogue"}
    buttons += [element("button", name, type="button", data_window=key) for key, name in windows.items()]
    buttons.append(element("select", id="rank", aria_label="ranks on the timeline"))
    yield element("div", *buttons, element("span", id="range", class_="quiet", role="status"), class_="controls")
    yield element("div", id="marks", class_="controls")
    yield element("div", element("canvas", aria_hidden="true"), id="overview")
    yield element("div", element("canvas", aria_hidden="true"), id="timeline", role="application", tabindex="0",
                  aria_label=f"Timeline of one cluster. {KEYS}", aria_describedby="details")  # fmt: skip
    yield Html('<div id="tip" hidden></div>')
    yield element("div", id="details", aria_live="polite")
    yield element("ul", *(element("li", swatch(name), text) for name, text in LEGEND), class_="key")
    yield element("p", KEYS, class_="quiet")
    link = element("a", "ui.perfetto.dev", href="https://ui.perfetto.dev", rel="noreferrer")
    yield element("p", "For Perfetto: run the command with ", element("code", "--trace trace.json"), ", open ", link,
                  " and drop the file there.", class_="quiet")  # fmt: skip


def advice_items(hints: Sequence[Advice]) -> Iterator[Html]:
    """Yields the pieces of advice with their lines."""
    if not hints:
        yield element("p", "None: no rule applies.")
    for hint in hints:
        yield element("h3", f"{hint.topic} ({gain_text(hint.gain)})")
        yield element("p", hint.text)
        if hint.where:
            yield excerpt(hint.where)


def use_columns(profile: Profile) -> Iterator[Html]:
    """Yields the shares of the peaks as bars, and the place of the roofline."""
    names = ("tensor cores", "L2", "device memory", "shared memory", "issue slots")
    usage = profile.usage
    shares = dict(zip(names, (usage.tensor, usage.l2, usage.hbm, usage.shared, usage.issue), strict=True))
    cells = [cell for name, share in shares.items() for cell in _bar(name, share)]
    note = element("p", "Share of the peak of all SMs over the whole launch.", class_="quiet")
    yield element("div", element("div", *cells, class_="bars"), note)
    roof = roofline_data(profile)
    if roof:
        yield element("div", element("figure", element("figcaption", roof["text"])), id="roofline")


def _bar(name: str, share: float) -> Iterator[Html]:
    yield element("span", name)
    yield element("div", element("i", style=f"width:{100 * min(share, 1):.1f}%"))
    yield element("span", percent(share))


def roofline_data(profile: Profile) -> dict[str, Any]:
    """Returns the roofs of the device (TFLOPS, TB/s) and the point of the kernel; empty without MMA or bytes."""
    device = targets.find_chip(profile.device)
    if device is None or not profile.flops or not profile.bytes_hbm:
        return {}
    intensity = profile.tflops * profile.time_us * 1e6 / profile.bytes_hbm
    bound = min(device.bf16_tflops, intensity * device.hbm_gbps / 1e3)
    text = (
        f"Roofline of {device.name}: {profile.tflops:,.4g} TFLOPS at {intensity:,.0f} FLOP a byte of device memory, "
        f"{percent(profile.tflops / bound)} of the roof there"
    )
    return {
        "peak": device.bf16_tflops,
        "bandwidth": round(device.hbm_gbps / 1e3, 2),
        "intensity": round(intensity, 2),
        "tflops": round(profile.tflops, 2),
        "label": f"{profile.tflops:,.4g} TFLOPS",
        "text": text,
    }


def memory_parts(profile: Profile) -> Iterator[Html]:
    """Yields the occupancy, and the maps of shared and tensor memory."""
    rows = list(occupancy_rows(profile))
    if rows:
        resident = f"CTAs on an SM at a time: {profile.ctas_per_sm}"
        kept = profile.ctas_fitting != profile.ctas_per_sm
        more = f"; {profile.ctas_fitting} fit, but a CTA keeps its permit to allocate tensor memory" if kept else ""
        yield element("p", f"{resident}{more}.")
        yield table(rows, "what one CTA takes of an SM")
    sizes = {BYTES: profile.resources.shared, COLUMNS: profile.resources.columns}
    for memory, unit in ((BYTES, "bytes"), (COLUMNS, "columns")):
        regions = [region for region in profile.memory if region.memory == memory]
        if regions and sizes[memory]:
            yield element("h3", f"{memory.capitalize()} of a CTA: {sizes[memory]:,} {unit}")
            yield memory_map(regions, sizes[memory], unit)


def occupancy_rows(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yields a row for each resource of an SM: what a CTA takes, what there is, and the CTAs that it is enough for."""
    device, taken = targets.find_chip(profile.device), profile.resources
    if device is None or not taken.threads:
        return
    limits = device.limits
    warps = -(-taken.threads // limits.warp_size)
    for name, need, most in (
        ("threads", taken.threads, limits.max_threads_per_sm),
        ("registers", taken.registers * warps * limits.warp_size, limits.registers_per_sm),
        ("bytes of shared memory", taken.shared, limits.smem_per_sm),
        ("columns of tensor memory", taken.columns, limits.tensor_memory_columns),
    ):
        if need:
            yield {"resource": name, "a CTA": need, "an SM": most, "CTAs that fit": most // need}


def memory_map(regions: Sequence[Region], size: int, unit: str) -> Html:
    """Returns a bar for each name over the extent of the memory."""
    rows = []
    for name, group in groupby(sorted(regions, key=lambda each: (_row_name(each), each.start)), key=_row_name):
        some = list(group)
        bars = [element("i", style=f"left:{100 * each.start / size:.2f}%;width:{100 * each.size / size:.2f}%",
                        title=f"{each.name}: {each.size:,} {unit} from {each.start:,}") for each in some]  # fmt: skip
        text = f"{sum(each.size for each in some):,} {unit} from {some[0].start:,}"
        cells = [element("span", name), element("span", *bars, class_="track"), element("span", text)]
        rows.append((some[0].start, element("li", *cells)))
    return element("ul", *(row for _, row in sorted(rows)), class_="memory")


def _row_name(region: Region) -> str:
    """Returns the name of a region's row: the mbarriers of a ring share one."""
    return region.name.partition("[")[0] if region.name.startswith("mbarrier ") else region.name


def number_tables(profile: Profile) -> Iterator[Html]:
    """Yields the tables that the command prints."""
    yield table([time_row(profile)], "time")
    yield table([usage_row(profile)], "use of the GPU, of its peak")
    yield table([grid_row(profile)], "the grid")
    rows = [
        {"where": base_name(each.where), "wavefronts": each.wavefronts, "least": each.least}
        for each in profile.conflicts[:10]
    ]
    if rows:
        yield table(rows, "bank conflicts of shared memory")
