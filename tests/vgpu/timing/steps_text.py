"""Hand-written steps of warps, and a chip with round constants for their replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warpwright import targets
from warpwright.targets import Timing
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.replay import Layout, Outcome, Work, replay
from warpwright.vgpu.timing.steps import Access, Box, Mma, Program, Step
from warpwright.vgpu.timing.units import Memory

STRIDE = 1 << 16
CHIP: Timing = replace(
    targets.timing_of("h200"),
    try_wait=10.0, wake=20.0, arrive=5.0, arrive_remote=50.0, bar=7.0, cluster_barrier=30.0, tma_issue=3.0,
    tma_l2=100.0, tma_hbm=400.0, tma_fresh=0.0, tma_late_l2=0.0, tma_late_hbm=0.0, tma_store_bytes=128.0, tma_first=0.0,
    poll=25.0, tma_box=8.0, tma_row=1.0, tma_store=40.0, mma_flops=4096.0,
    mma_least=18.0, mma_issue=2.0, mma_latency=60.0, commit=9.0, tmem_latency=25.0, tmem_bytes=64.0, tmem_store=32.0,
    shared_bytes=128.0, shared_latency=30.0, ld_l2=200.0, ld_hbm=500.0, l1_bytes=64.0, cta_start=70.0, cta_rate=0.0,
)  # fmt: skip


class Names:
    """A stand-in for `names.Names`: all instructions have one role."""

    def __init__(self) -> None:
        self.roles = ["kernel"] * 100
        self.barriers = dict.fromkeys(range(100), "")
        self.places = [f"k.py:{i}" for i in range(100)]

    def waits(self, inst: int, address: int) -> str:
        return f"waits 0x{address:x}"


def step(kind: str, what: Any = None, *, cycles: int = 0, slots: int = 0, inst: int = 0, **more: int) -> Step:
    return Step(kind, cycles, slots, inst, what, more.get("number", 0), more.get("nbytes", 0))


def load(position: int, nbytes: int, requests: int, barrier: int, *, rank: int = 0, offset: int = 4096) -> Step:
    box = Box(position, rank, nbytes, requests, key=position, targets=((rank, offset, barrier),))
    return step("load_box", box)


def mma(n: int, *, rows: int = 128, nbytes: int = 0, left: int = 4096, right: int = 8192) -> Step:
    flops = 2 * rows * n * 16
    return step("mma", Mma(rows, n, nbytes, flops, (0,), ((0, left),), ((0, right),)))


def access(position: int, nbytes: int, lines: int, *, loads: bool = True, again: bool = False, inst: int = 0) -> Step:
    return step("global_access", Access(position, nbytes, lines, loads, again), inst=inst)


def perform(
    *warps: list[Step],
    ranks: int = 1,
    clusters: int = 1,
    together: int = 1,
    positions: int = 64,
    miss: float = 0.0,
    timing: Timing = CHIP,
    memory: Memory | None = None,
    pairs: bool = False,
    enough: float = float("inf"),
) -> tuple[Outcome, Journal]:
    """Replay clusters of these warps, the CTAs' warps one after another."""
    journal = Journal(Names(), STRIDE, {})  # type: ignore[arg-type]
    share, zeros, ones = ([each] * positions for each in (miss, 0.0, 1.0))
    program = Program(list(warps), pairs=pairs)
    works = [Work(program, share, share, zeros, ones, zeros)] * clusters
    layout = Layout(ranks, len(warps) // ranks, STRIDE, together)
    wide = Memory(1e9, 1e9, 1e9, 1e9, 1e9)
    return replay(works, timing, memory or wide, layout, journal, enough=enough), journal


def end_of(*warps: list[Step], **more: Any) -> float:
    """Returns the end of the last cluster."""
    return perform(*warps, **more)[0].ends[-1]
