"""The predicted time of each step of `kernels.memory_flow`, beside the figures of the write-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from warpwright import targets
from warpwright.report.flow import PtxStep, Step
from warpwright.report.intervals import intersection, length, union
from warpwright.targets.timing import UNITS
from warpwright.vgpu.timing import Profile

__all__ = ["StepTime", "access_rows", "amount", "source_table", "step_constants", "step_times", "tb_s", "time_rows"]

WARPS = 4  # each loads from its own quarter of tensor memory


@dataclass(frozen=True)
class StepTime:
    """The predicted time of a step: SM cycles and µs. ``issues``: the share of the cycles in which the busiest warp
    issues an instruction."""

    step: Step
    cycles: float
    time_us: float
    issues: float

    @property
    def bytes_per_cycle(self) -> float:
        return self.step.nbytes / self.cycles

    def as_dict(self) -> dict[str, float]:
        """The figures, ready for JSON."""
        figures = {"cycles": self.cycles, "time_us": self.time_us, "issue_share": self.issues}
        return figures | {"bytes_per_cycle": self.bytes_per_cycle, "gb_s": self.gb_s}

    @property
    def gb_s(self) -> float:
        """The payload over the time, 10^9 bytes a second."""
        return self.step.nbytes / self.time_us / 1e3


@dataclass(frozen=True)
class Constant:
    """A constant of the timing model of one device; ``source`` is "status: source", ``status`` "measured", "published"
    or "assumed"."""

    name: str
    value: float
    unit: str
    source: str

    @property
    def status(self) -> str:
        return self.source.partition(":")[0]


def step_times(steps: Sequence[PtxStep], profile: Profile) -> list[StepTime]:
    """Returns the time of each step that ends with a wait; a step begins where the step before it ends."""
    roles, times, begin = [role.name for role in profile.roles], [], 0.0
    busy = [union((s.start, s.end) for s in profile.spans if (s.track, s.name) == (role, "issues")) for role in roles]
    for each in (each for each in steps if each.waits):
        where = each.waits[-1].where
        end = max(span.end for span in profile.spans if span.where == where and span.name != "issues")
        cycles = end - begin
        issues = max(length(intersection(spans, [(begin, end)])) for spans in busy) / cycles
        times.append(StepTime(each.step, cycles, cycles / profile.clock_mhz, issues))
        begin = end
    return times


def amount(time: StepTime) -> str:
    """Returns bytes and predicted cycles of a step."""
    cycles = f"{time.cycles:,.0f} cycles"
    if not time.step.nbytes:
        return cycles
    return f"{time.step.nbytes:,} bytes in {cycles}, {time.bytes_per_cycle:.1f} bytes a cycle"


def constants_of(names: Sequence[str], device: str) -> list[Constant]:
    """Returns constants of the timing model of ``device``, with unit and source."""
    timing = targets.timing_of(device)
    return [Constant(name, getattr(timing, name), UNITS[name], timing.source[name]) for name in names]


def tb_s(rate: str, device: str) -> float:
    """Returns the bandwidth of all SMs, or of device memory, that the constant ``rate`` stands for: TB/s at the highest
    clock."""
    spec, (constant,) = targets.device(device), constants_of([rate], device)
    if rate == "hbm_share":
        return constant.value * spec.hbm_gbps / 1e3
    ports = WARPS if rate == "tmem_bytes" else 1
    return constant.value * ports * spec.sms * spec.clock_mhz / 1e6


def time_rows(times: Sequence[StepTime], profile: Profile) -> list[dict[str, Any]]:
    """Returns a row for each step, one for the launch with the start and the end of the kernel, and one for all."""
    rows = [
        {
            "step": time.step.name,
            "bytes": time.step.nbytes,
            "cycles": round(time.cycles),
            "bytes a cycle": round(time.bytes_per_cycle, 1),
            "GB/s": round(time.gb_s, 1),
            "write-up GB/s": time.step.write_up.gb_s,
            "µs": round(time.time_us, 2),
            "write-up µs": f"{time.step.write_up.time_us:g}" if time.step.write_up.time_us else "",
        }
        for time in times
    ]
    rest = profile.cycles - sum(time.cycles for time in times)
    before = profile.time_us - sum(time.time_us for time in times)
    rows.append(_sum_row("launch", rest, before, ""))
    write_up = sum(time.step.write_up.time_us for time in times)
    return [*rows, _sum_row("all", profile.cycles, profile.time_us, f"{write_up:g}")]


def _sum_row(name: str, cycles: float, time_us: float, write_up: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("bytes", "cycles", "bytes a cycle", "GB/s", "write-up GB/s"), "")
    return {"step": name, **row, "cycles": round(cycles), "µs": round(time_us, 2), "write-up µs": write_up}


def access_rows(times: Sequence[StepTime], device: str) -> list[dict[str, Any]]:
    """Returns a row for registers and for each step with data: latency of one access, bandwidth of all SMs."""
    timing = targets.timing_of(device)
    add = timing.latency["float"], "1", timing.source["latency"].partition(":")[0], "", "", ""
    rows: list[tuple[Any, ...]] = [("registers", *add)]
    for step in (time.step for time in times if time.step.rate):
        latency, rate = constants_of([step.latency, step.rate], device)
        cycles = latency.value, step.write_up.latency, latency.status
        rows.append((step.name, *cycles, round(tb_s(step.rate, device), 1), step.write_up.tb_s, rate.status))
    keys = ("access", "cycles", "write-up cycles", "cycles from", "TB/s", "write-up TB/s", "TB/s from")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def step_constants(step: Step, device: str) -> list[Constant]:
    """Returns the constants that decide the time, the latency and the bandwidth of a step."""
    return constants_of(list(dict.fromkeys(filter(None, (*step.costs, step.latency, step.rate)))), device)


def source_table(times: Sequence[StepTime], device: str, title: str) -> Table:
    """Returns a table of each step's constants; long sources wrap."""
    result = Table("step", "constant", "value", "source", box=box.SIMPLE_HEAD, title=title, title_justify="left")
    result.title_style, result.columns[2].justify = "bold", "right"
    for step in (time.step for time in times):
        for each in step_constants(step, device):
            result.add_row(step.number, each.name, f"{each.value:,g}", each.source)
    return result
