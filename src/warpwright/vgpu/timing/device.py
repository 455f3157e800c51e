"""A whole launch on the chip: which clusters share it when, what they find in L2, and how long that takes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpwright.targets import Timing
from warpwright.vgpu.jit.costs import is_memory
from warpwright.vgpu.machine.schedule import ctas_per_sm
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.timing.cache import Visit, look_up
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.neighbours import crowded, handed_out, homes_of
from warpwright.vgpu.timing.registers import pressure
from warpwright.vgpu.timing.replay import Layout, Outcome, Work, replay
from warpwright.vgpu.timing.result import Conflict, Profile, Usage
from warpwright.vgpu.timing.steps import Program
from warpwright.vgpu.timing.units import Memory

if TYPE_CHECKING:
    from warpwright.vgpu.machine.launch import Launch

__all__ = ["chosen_clusters", "profile_of"]

LONGEST = 120_000  # steps that one replay takes on before the rest is extrapolated
WAVES = 2  # waves that are looked at, the first and one from the middle: the first finds L2 cold
SEQUENCES = 2  # different loads of an SM that are replayed
CLOCKS = 2  # replays until clock and time agree
SAME_CLOCK = 0.02
FAR = ("ld_l2", "ld_hbm", "tma_l2", "tma_hbm", "tma_fresh", "tma_late_l2", "tma_late_hbm")  # latencies of `Timing`

Floats = NDArray[np.float64]
Shares = tuple[Floats, Floats, Floats, Floats, Floats]  # the share that misses L2; what `Work` has, in its order


@dataclass(frozen=True, slots=True)
class Places:
    """Where clusters go: ``together`` clusters share the SMs of one, on ``groups`` such sets of ``ranks`` SMs."""

    groups: int
    together: int
    ranks: int

    @property
    def count(self) -> int:
        """Clusters resident at a time."""
        return self.groups * self.together


def places_of(launch: Launch, timing: Timing, columns: int = 0) -> Places:
    """How many clusters are resident, by threads, registers, shared and tensor memory, and the sizes of GPCs."""
    ranks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    limits, program = launch.spec.limits, launch.kernel.program
    together = ctas_per_sm(launch)
    warps = -(-launch.threads // limits.warp_size)
    together = max(1, min(together, limits.registers_per_sm // (pressure(program) * warps * limits.warp_size)))
    if columns:
        together = max(1, min(together, launch.spec.limits.tensor_memory_columns // columns))
    return Places(max(1, sum(sms // ranks for sms in timing.gpcs)), together, ranks)


def chosen_clusters(launch: Launch, timing: Timing) -> Sequence[int] | None:
    """The clusters that stand for a launch: those of the first wave and of a later one."""
    x, y, z = launch.clusters
    count = places_of(launch, timing).count
    if launch.takes_over:
        return range(min(x * y * z, WAVES * count))
    later = later_wave(x * y * z, count)
    return [*range(min(x * y * z, count)), *range(later * count, min(x * y * z, (later + 1) * count))]


def later_wave(clusters: int, count: int) -> int:
    """The wave that stands for all but the first: in the middle, for kernels may count up to their tile."""
    return max(1, -(-clusters // count) // 2)


def taken_up(lengths: Sequence[int], places: int) -> list[int]:
    """The place of each cluster: the next one starts where the first ends, as its length says."""
    free = [(0, place) for place in range(places)]
    found = []
    for length in lengths:
        end, place = heapq.heappop(free)
        found.append(place)
        heapq.heappush(free, (end + length, place))
    return found


@dataclass(frozen=True, slots=True)
class _Load:
    """Clusters that one set of SMs does one after another, as (kind, wave); on how many sets it is so."""

    clusters: tuple[tuple[int, int], ...]
    sets: int


class _Grid:
    """The clusters of a launch: what kind each is, where and in which wave it runs, and what it finds in L2."""

    def __init__(self, capture: Capture) -> None:
        self.launch, self.capture = capture.launch, capture
        self.kinds = list(capture.kinds.values())
        self.kind_of = {number: i for i, kind in enumerate(self.kinds) for number in kind.members}
        columns = max((kind.program.columns for kind in self.kinds), default=0)
        self.places = places_of(self.launch, capture.timing, columns)
        x, y, z = self.launch.clusters
        self.numbers = sorted(self.kind_of) if self.launch.takes_over else range(x * y * z)
        self.later = 1 if self.launch.takes_over else later_wave(x * y * z, self.places.count)
        self.shares = self._shares()
        waves = np.minimum(np.array(self.numbers) // self.places.count, WAVES - 1)
        self.what = [
            (self.kind_of.get(number, self.kind_of[self._stand_in(number)]), wave)
            for number, wave in zip(self.numbers, waves.tolist(), strict=True)
        ]
        self.counts = Counter(self.what)

    def _stand_in(self, number: int) -> int:
        """The recorded cluster of a wave that is looked at that has the place of ``number`` in its own."""
        count = self.places.count
        if number < count:
            return number
        same = self.later * count + number % count
        return same if same in self.kind_of else number % count

    def _shares(self) -> dict[tuple[int, int], Shares]:
        """For each kind and wave what `Work` has of each position, the mean of its clusters."""
        count, timing = self.places.count, self.capture.timing
        starts = (0, self.later * count)
        waves = [[n for n in range(start, start + count) if n in self.kind_of] for start in starts]
        waves = [wave for wave in waves if wave]
        visits = [[self._visit(number) for number in wave] for wave in waves]
        found = look_up(visits, self.launch.spec.l2_bytes)
        homes = homes_of(timing, self.places.ranks)
        resident = min(self.places.together, -(-len(self.numbers) // self.places.groups))
        rows: dict[tuple[int, int], list[Shares]] = defaultdict(list)
        for wave, (numbers, results) in enumerate(zip(waves, found, strict=True)):
            cost, slower = crowded(timing, resident, later=wave > 0)
            own = handed_out(visits[wave], [homes[number % len(homes)] for number in numbers], cost, timing)
            for number, (miss, common, cold, fresh), l2 in zip(numbers, results, own, strict=True):
                rows[self.kind_of[number], wave].append((miss, miss + slower * common, cold, fresh, l2))
        return {key: _mean(each) for key, each in rows.items()}

    def _visit(self, number: int) -> Visit:
        capture, kind = self.capture, self.kinds[self.kind_of[number]]
        program = kind.program
        keys, lines = capture.traffic[number], capture.lines[number]
        return Visit(keys, lines, program.nbytes, program.reads, program.copies, kind.order)

    def share(self, kind: int, wave: int) -> Shares:
        """As `_shares`; a kind that was not seen in a wave finds what it found in another, or what stands for it."""
        same = self.kind_of[self._stand_in(self.kinds[kind].members[0])]
        keys = [(k, w) for k in (kind, same) for w in (wave, 0, 1)]
        return next(self.shares[key] for key in keys if key in self.shares)

    def loads(self) -> list[_Load]:
        """What the sets of SMs do, the longest first."""
        lengths = [self.kinds[kind].program.length for kind, _ in self.what]
        sets: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for what, place in zip(self.what, taken_up(lengths, self.places.count), strict=True):
            sets[place % self.places.groups].append(what)
        counted = Counter(tuple(clusters) for clusters in sets.values())
        loads = [_Load(clusters, count) for clusters, count in counted.items()]
        return sorted(loads, key=lambda load: -self.steps(load))

    def steps(self, load: _Load) -> int:
        return sum(self.kinds[kind].program.length for kind, _ in load.clusters)

    def total(self, measure: NDArray[np.float64]) -> float:
        """A sum over all clusters of what is known of each kind."""
        return float(sum(count * measure[kind] for (kind, _), count in self.counts.items()))


def _mean(rows: list[Shares]) -> Shares:
    miss, hbm, cold, fresh, l2 = (np.mean(column, axis=0) for column in zip(*rows, strict=True))
    return miss, hbm, cold, fresh, l2


@dataclass(frozen=True, slots=True)
class _Timed:
    """A load replayed: cycles until its last cluster is done, and what share of its clusters really ran."""

    load: _Load
    cycles: float
    outcome: Outcome
    scale: float


def profile_of(capture: Capture, fast: bool, sustained: bool = False) -> Profile:
    """The prediction for a recorded launch; ``sustained``: at the clock that the board's power limit allows."""
    launch, timing = capture.launch, capture.timing
    grid, names = _Grid(capture), Names(launch.kernel.program)
    least = _flops(grid) / (timing.mma_flops * launch.spec.sms)
    loads, pace = grid.loads(), _pace(grid, least, least, sustained=False)
    for _ in range(CLOCKS):
        journal = Journal(names, _stride(launch), _sources(launch))
        timed = _replayed(grid, loads, pace.loaded, journal)
        cycles = timed[0].cycles + timing.entry + (timing.cluster_start if grid.places.ranks > 1 else 0.0)
        before, pace = pace, _pace(grid, cycles, _multiplying(timed[0]), sustained)
        if abs(pace.loaded / before.loaded - 1) < SAME_CLOCK:
            break
    return _assembled(grid, timed, journal, cycles, pace, fast)


def _stride(launch: Launch) -> int:
    return -(-launch.shared_limit // 1024) * 1024


def _sources(launch: Launch) -> dict[int, str]:
    """What results come from that warps wait for, by the numbers of instructions."""
    shared = ("shared", "ldmatrix")
    spaces = {inst.index: inst["space"] or inst.name for inst in launch.insts if is_memory(inst)}
    loads = {number: "shared memory" for number, space in spaces.items() if space.startswith(shared)}
    return loads | {inst.index: "waits mma" for inst in launch.insts if inst.name == "mma"}


def _replayed(grid: _Grid, loads: list[_Load], clock: float, journal: Journal) -> list[_Timed]:
    """The longest loads, replayed; the slowest first."""
    others = Journal(journal.names, journal.stride, journal.sources)
    timed = [_perform(grid, load, clock, others if i else journal) for i, load in enumerate(loads[:SEQUENCES])]
    return sorted(timed, key=lambda each: -each.cycles)


def _perform(grid: _Grid, load: _Load, clock: float, journal: Journal) -> _Timed:
    launch, places = grid.launch, grid.places
    timing = _at(grid.capture.timing, clock / launch.spec.clock_mhz)
    active = places.ranks * min(places.groups, len(grid.numbers))
    share = places.ranks / active
    hbm = _reached(grid) / (clock * 1e6)
    own_clock = launch.spec.clock_mhz / clock * share
    gpcs = places.ranks * timing.pair_bytes / 2 * launch.spec.sms / active
    memory = Memory(timing.l2_bytes * own_clock, timing.l2_write_bytes * own_clock, hbm * share, gpcs, timing.sm_bytes)
    per_cta = -(-launch.threads // 32)
    layout = Layout(places.ranks, per_cta, _stride(launch), places.together, active * timing.cta_rate)
    works = [Work(grid.kinds[kind].program, *grid.share(kind, wave)[1:]) for kind, wave in _affordable(grid, load)]
    outcome = replay(works, timing, memory, layout, journal)
    left = len(load.clusters) - len(works)
    ends = sorted(outcome.ends)
    rounds = len(ends) // 2 // places.together * places.together  # those of one SM end together
    rate = (ends[-1] - ends[-1 - rounds]) / rounds if left else 0.0
    return _Timed(load, ends[-1] + left * rate, outcome, len(load.clusters) / len(works))


def _at(timing: Timing, share: float) -> Timing:
    """The costs when SMs run at a ``share`` of their highest clock: L2 and device memory keep their time."""
    return replace(timing, **{name: share * getattr(timing, name) for name in FAR})


def _reached(grid: _Grid) -> float:
    """Bytes of this launch a second from and to device memory, beside what L2 had to write back first."""
    timing, moved = grid.capture.timing, _moved(grid)
    own, writes = moved.missed + moved.written, moved.written + moved.evicted
    mixed = 2 * min(moved.missed, writes) / max(1.0, own + moved.evicted)
    share = timing.hbm_share + mixed * (timing.hbm_mixed_share - timing.hbm_share)
    return grid.launch.spec.hbm_gbps * 1e9 * share * max(1.0, own) / max(1.0, own + moved.evicted)


def _affordable(grid: _Grid, load: _Load) -> tuple[tuple[int, int], ...]:
    """As many of a load's clusters as shall be replayed: all, or a few rounds of those that run together."""
    least, steps = 4 * grid.places.together, 0
    for count, (kind, _) in enumerate(load.clusters):
        steps += grid.kinds[kind].program.length
        if count >= least and count % grid.places.together == 0 and steps > LONGEST:
            return load.clusters[:count]
    return load.clusters


@dataclass(frozen=True, slots=True)
class _Pace:
    """Clocks in MHz: ``loaded`` for the ``cycles`` from the first product of a launch to the last, ``free`` else."""

    free: float
    loaded: float
    cycles: float

    def microseconds(self, cycles: float) -> float:
        return (cycles - self.cycles) / self.free + self.cycles / self.loaded


def _pace(grid: _Grid, cycles: float, multiplying: float, sustained: bool) -> _Pace:
    """Between the first product and the last the clock falls with the power, at once; else it is the highest one.

    ``sustained``: with the power limit of the board, which holds for all of a launch.
    """
    timing, joules = grid.capture.timing, _joules(grid)
    free = float(grid.launch.spec.clock_mhz)
    if sustained:
        free = min(free, _limit(grid, joules, cycles))
    if not multiplying:
        return _Pace(free, free, 0.0)
    loaded = timing.droop_top / (1 + timing.droop * joules * 1e6 / multiplying)
    return _Pace(free, min(timing.tensor_mhz, loaded, free), multiplying)


def _multiplying(timed: _Timed) -> float:
    """Cycles from the first product to the last."""
    outcome = timed.outcome
    return max(0.0, timed.cycles - outcome.first_product - (max(outcome.ends) - outcome.last_product))


def _limit(grid: _Grid, joules: float, cycles: float) -> float:
    """The clock at which the board takes the power that it may, MHz: the voltage falls with it, and so does energy."""
    timing = grid.capture.timing
    top = timing.tensor_mhz if _flops(grid) else float(grid.launch.spec.clock_mhz)
    if not joules:
        return top
    ratio = (timing.sustained_watts - timing.idle_watts) * cycles / (top * 1e6 * joules)
    return float(top * ratio ** (1 / (1 + timing.volts_slope)))


def _joules(grid: _Grid) -> float:
    """What a launch takes beside idle power, at the voltage of the highest clock.

    A byte that L2 sends to several CTAs counts once, and one that SMs of a GPC ask for together takes less power as it
    takes less of L2, but half as much less (clock.same_ab of bench/micro.py).
    """
    timing, moved = grid.capture.timing, _moved(grid)
    near, far = (moved.l2 + moved.handed) / 2, moved.missed + moved.written + moved.evicted
    return 1e-12 * (_flops(grid) * timing.flop_pj + near * timing.l2_pj + far * timing.hbm_pj)


@dataclass(frozen=True, slots=True)
class _Moved:
    """Bytes of a launch: through L2, what these cost it, read, read from device memory, written; ``evicted``: written
    back for others, less what L2 still holds of its own in the end."""

    l2: float
    handed: float
    read: float
    missed: float
    written: float
    evicted: float


def _moved(grid: _Grid) -> _Moved:
    handed = read = missed = written = 0.0
    for (kind, wave), count in grid.counts.items():
        program, (miss, *_, l2) = grid.kinds[kind].program, grid.share(kind, wave)
        reads = np.where(program.reads, program.nbytes, 0)
        handed += count * float((program.nbytes * l2).sum())
        read += count * float(reads.sum())
        missed += count * float((reads * miss).sum())
        written += count * float((program.nbytes - reads).sum())
    size, dirty = grid.launch.spec.l2_bytes, grid.capture.timing.l2_dirty
    evicted = dirty * min(size, missed + written) - min(dirty * size, written)
    return _Moved(read + written, handed, read, missed, written, evicted)


def _flops(grid: _Grid) -> float:
    return grid.total(np.array([_flops_of(kind.program) for kind in grid.kinds]))


def _flops_of(program: Program) -> float:
    total = 0
    for steps in program.warps:
        for step in steps:
            if step.kind == "product":
                total += step.what.flops
            elif step.kind == "group_product":
                total += step.what.flops / 4
            elif step.kind == "warp_product":
                total += step.what.flops
    return total


def _busy(grid: _Grid, timed: list[_Timed], unit: str) -> float:
    """Cycles that all units of a kind serve during the launch, those of loads that were not replayed in proportion."""
    done = steps = 0.0
    for each in timed:
        units = getattr(each.outcome.units, unit)
        flat = units if isinstance(units, list) else [units]
        flat = [unit for row in flat for unit in (row if isinstance(row, list) else [row])]
        done += sum(held.busy for held in flat) * each.scale * each.load.sets
        steps += grid.steps(each.load) * each.load.sets
    whole = grid.total(np.array([kind.program.length for kind in grid.kinds]))
    return done * whole / steps if steps else 0.0


def _assembled(grid: _Grid, timed: list[_Timed], journal: Journal, cycles: float, pace: _Pace, fast: bool) -> Profile:
    launch, timing, places = grid.launch, grid.capture.timing, grid.places
    moved, flops = _moved(grid), _flops(grid)
    multiplied = sum(each.outcome.flops for each in timed)
    wasted = flops * sum(each.outcome.wasted for each in timed) / multiplied if multiplied else 0.0
    inside = pace.microseconds(cycles)
    time_us = timing.launch_us + inside
    hbm = launch.spec.hbm_gbps * 1e3 * time_us
    sms = launch.spec.sms * cycles
    usage = Usage(
        tensor=_busy(grid, timed, "tensor") / sms,
        l2=_busy(grid, timed, "l2") / (min(places.groups, len(grid.numbers)) * cycles),
        hbm=(moved.missed + moved.written) / hbm,
        shared=_busy(grid, timed, "shared") / sms,
        issue=_busy(grid, timed, "schedulers") / (sms * timing.schedulers),
    )
    return Profile(
        kernel=launch.name,
        device=launch.spec.name,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        time_us=time_us,
        cycles=cycles,
        clock_mhz=cycles / inside,
        launch_us=timing.launch_us,
        flops=round(flops),
        wasted_flops=round(wasted),
        tflops=(flops - wasted) / time_us / 1e6,
        bytes_hbm=round(moved.missed + moved.written),
        bytes_l2=round(moved.l2),
        l2_hit=1 - moved.missed / moved.read if moved.read else 0.0,
        usage=usage,
        ctas_per_sm=places.together,
        waves=len(grid.numbers) / places.count,
        tail=_tail(grid, timed),
        roles=journal.roles(),
        spans=tuple(sorted([*journal.spans, *journal.slots(_waits(timed, grid))], key=lambda span: span.start)),
        conflicts=_conflicts(grid, journal.names),
        fast=fast,
    )


def _tail(grid: _Grid, timed: list[_Timed]) -> float:
    """The share of the SMs' time that passes while they have no work left."""
    per_step = timed[0].cycles / max(1, grid.steps(timed[0].load))
    replayed = {each.load: each.cycles for each in timed}
    loads = grid.loads()
    done = sum(load.sets * replayed.get(load, grid.steps(load) * per_step) for load in loads)
    return 1 - done / (grid.places.groups * timed[0].cycles)


def _waits(timed: list[_Timed], grid: _Grid) -> dict[int, int]:
    """For the place of each mbarrier an instruction that waits for it."""
    program = grid.kinds[timed[0].load.clusters[0][0]].program
    return {step.what: step.inst for steps in program.warps for step in steps if step.kind == "wait"}


def _conflicts(grid: _Grid, names: Names) -> tuple[Conflict, ...]:
    """Instructions that take more wavefronts than their bytes need, the worst first."""
    program = max((kind.program for kind in grid.kinds), key=lambda program: program.length)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for steps in program.warps:
        for step in steps:
            if step.kind == "shared_access":
                held = counts[names.places[step.inst]]
                held[0] += step.number
                held[1] += step.nbytes
    rows = [Conflict(where, most, least) for where, (most, least) in counts.items() if most > least]
    return tuple(sorted(rows, key=lambda row: row.least - row.wavefronts))
