"""Synthetic profiles of a load, an mma and an epilogue role with a ring of stages and a ring of accumulators."""

from __future__ import annotations

from dataclasses import replace

from warpwright.vgpu.timing import Conflict, Profile, Role, Span, Stall, Usage

WHERE = {"load": "gemm.py:40", "wait empty": "gemm.py:38", "mma": "gemm.py:52", "wait full": "gemm.py:50"}
ISSUE = 24.0


def timeline(
    stages: int = 8,
    k_blocks: int = 64,
    tiles: int = 1,
    buffers: int = 1,
    latency: float = 900.0,
    interval: float = 130.0,
    mma: float = 256.0,
    epilogue: float = 2200.0,
    ctas: int = 2,
) -> tuple[Span, ...]:
    """Returns the spans of a cluster: TMA starts a box every ``interval`` cycles and completes it after ``latency``."""
    start = 700.0
    spans: list[Span] = []
    filled, issued, queue, core = [start] * stages, start, start, start
    finished = [start] * buffers
    store = start
    for number in range(tiles * k_blocks):
        slot, tile = number % stages, number // k_blocks
        begin = max(issued, filled[slot])
        if begin > issued:
            spans.append(Span("load", 0, "waits ab.empty", issued, begin, WHERE["wait empty"]))
        spans.append(Span("load", 0, f"loads ab[{slot}]", begin, begin + ISSUE, WHERE["load"]))
        issued = begin + ISSUE
        queue = max(queue, issued) + interval
        full = max(queue, issued + latency)
        spans.append(Span("TMA", 0, f"load ab[{slot}]", queue - interval, full, WHERE["load"]))
        spans.append(Span(f"ab[{slot}]", 0, "filling", begin, full, WHERE["load"]))
        ready = max(full, finished[tile % buffers] if number % k_blocks == 0 else 0.0)
        reason = "waits ab.full" if full >= ready else "waits acc.empty"
        if ready > core:
            spans.append(Span("mma", 0, reason, core, ready, WHERE["wait full"]))
        first = max(core, ready)
        if first > full:
            spans.append(Span(f"ab[{slot}]", 0, "full", full, first, WHERE["wait full"]))
        core = first + mma
        spans.append(Span("mma", 0, f"multiplies ab[{slot}]", first, first + ISSUE, WHERE["mma"]))
        spans.append(Span("mma", 0, "waits ab.full", first + ISSUE, core, WHERE["wait full"]))
        spans.append(Span("tensor core", 0, f"mma ab[{slot}]", first, core, WHERE["mma"]))
        spans.append(Span(f"ab[{slot}]", 0, "in use", first, core, WHERE["mma"]))
        filled[slot] = core
        if number % k_blocks == k_blocks - 1:
            spans.append(Span("epilogue", 0, "waits acc.full", store, max(store, core), "gemm.py:70"))
            begin = max(store, core)
            store = begin + epilogue
            spans.append(Span("epilogue", 0, "stores", begin, store, "gemm.py:80"))
            finished[tile % buffers] = store
    other = [replace(span, cta=cta) for cta in range(1, ctas) for span in spans if span.track != "mma"]
    return tuple(spans + other)


def roles_of(spans: tuple[Span, ...], warps: dict[str, int]) -> tuple[Role, ...]:
    """Returns roles with their stalls, from the spans of CTA 0."""
    end = max(span.end for span in spans)
    made = []
    for name, count in warps.items():
        mine = [span for span in spans if span.track == name and span.cta == 0]
        stalls: dict[tuple[str, str], float] = {}
        for span in mine:
            if span.name.startswith("waits"):
                key = span.name, span.where
                stalls[key] = stalls.get(key, 0.0) + span.end - span.start
        waits = tuple(
            Stall(reason, cycles, cycles / end, where)
            for (reason, where), cycles in sorted(stalls.items(), key=lambda item: -item[1])
        )
        made.append(Role(name, count, end, 1 - sum(stall.share for stall in waits), waits))
    return tuple(made)


def profile(*, wasted: float = 0.0, conflicts: tuple[Conflict, ...] = (), **given: object) -> Profile:
    """Returns a Profile of a GEMM of 4096³ on a b200; ``given``: fields of it, or parameters of `timeline`."""
    fields = {name: given.pop(name) for name in tuple(given) if name in Profile.__dataclass_fields__}
    spans = timeline(**given)  # type: ignore[arg-type]
    flops = round(2 * 4096**3 / (1 - wasted))
    made = Profile(
        kernel="gemm_level3",
        device="b200",
        grid=(2048, 1, 1),
        block=(128, 1, 1),
        cluster=(2, 1, 1),
        time_us=464.0,
        cycles=856_000.0,
        clock_mhz=1850.0,
        launch_us=2.5,
        flops=flops,
        wasted_flops=round(flops * wasted),
        tflops=2 * 4096**3 / 464.0 / 1e6,
        bytes_hbm=140_000_000,
        bytes_l2=3_200_000_000,
        l2_hit=0.95,
        usage=Usage(tensor=0.29, l2=0.4, hbm=0.05, shared=0.3, issue=0.04),
        ctas_per_sm=1,
        ctas_fitting=1,
        waves=13.84,
        tail=0.012,
        roles=roles_of(spans, {"load": 1, "mma": 1, "epilogue": 4}),
        spans=spans,
        conflicts=conflicts,
        fast=True,
    )
    return replace(made, **fields)  # type: ignore[arg-type]
