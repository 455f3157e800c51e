"""The virtual GPU as a device: check a launch, place its memory, run its clusters on all cores."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright import types
from warpwright.arrays.device import spans
from warpwright.errors import LaunchError
from warpwright.gpu import LaunchResult
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx import nodes
from warpwright.targets import Device as Spec
from warpwright.targets import Timing
from warpwright.vgpu.checks.watcher import Watcher
from warpwright.vgpu.engines.op import BoundMap
from warpwright.vgpu.jit.compile import Kernel, compile_program
from warpwright.vgpu.jit.costs import costs_of
from warpwright.vgpu.machine.events import Observer
from warpwright.vgpu.machine.explore import shuffled
from warpwright.vgpu.machine.maps import MAP_BYTES, ChangedMaps
from warpwright.vgpu.machine.memory import GlobalMemory
from warpwright.vgpu.machine.pending import Pending
from warpwright.vgpu.machine.schedule import run_clusters
from warpwright.vgpu.machine.tape import CAPACITY, ROWS_OF_ONE, Recorder
from warpwright.vgpu.program.decode import decode
from warpwright.vgpu.program.program import Inst, Param, Program

__all__ = ["Device", "Launch", "LaunchResult"]

Dim3 = tuple[int, int, int]

_FAMILIES = {"sm_100a": ("sm_100", "sm_100f"), "sm_90a": ("sm_90",), "sm_120a": ("sm_120", "sm_120f")}


@dataclass(slots=True)
class Launch:
    """One launch while it runs: the compiled kernel, its geometry, its global memory.

    ``recorder`` gets the rows of each cluster, ``chosen`` are the clusters to run (all of them when None). ``limit``:
    jumps that a warp may make without waiting; ``seed``: of the schedule, 0 for the one that always runs; ``slice``:
    block jumps of a warp's turn.
    """

    kernel: Kernel
    spec: Spec
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic: int
    observers: tuple[Observer, ...]
    numerics: str = "exact"
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    maps: list[BoundMap] = field(default_factory=list)
    changed: ChangedMaps = field(default_factory=ChangedMaps)
    printed: list[tuple[int, str]] = field(default_factory=list)
    table: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    params_base: int = 0
    params_host: int = 0
    insts: list[Inst] = field(default_factory=list)
    pending: Pending | None = None
    recorder: Recorder | None = None
    chosen: Sequence[int] | None = None
    watcher: Watcher | None = None
    limit: int | None = None
    seed: int = 0
    slice: int = 20_000

    MAP_MAGIC = b"tensrmap"

    @property
    def name(self) -> str:
        return self.kernel.program.name

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def shared_limit(self) -> int:
        """One past the last offset of shared memory: the reserve, static variables, dynamic memory."""
        program = self.kernel.program
        return max(program.shared_bytes, program.dynamic_offset + self.dynamic)

    @property
    def explicit(self) -> bool:
        """Whether the launch has cluster dimensions."""
        program = self.kernel.program
        return self.cluster != (1, 1, 1) or program.cluster is not None or program.explicit_cluster

    @property
    def takes_over(self) -> bool:
        """Whether running clusters may take over the work of others that have not started."""
        return any(inst.name.startswith("clusterlaunchcontrol.try_cancel") for inst in self.insts)

    @property
    def by_turns(self) -> bool:
        """Whether clusters run by turns, in one order: that of a seed, or because those of a watched launch order one
        another, or learn from one another, or go on in step."""
        return self.seed > 0 or self.in_step or (self.watcher is not None and self.watcher.globals.in_turn)

    @property
    def in_step(self) -> bool:
        """Whether all clusters that a chip holds go on together, a round each: those of a recorded launch that
        hand out work by atomic operations. If each ran to its end at once, the first would take all of it."""
        return self.recorder is not None and any(
            inst.name == "atom" and not inst["space"].startswith("shared") for inst in self.insts
        )

    @property
    def has_tmem(self) -> bool:
        return any(inst.name.startswith("tcgen05.") for inst in self.insts)

    @property
    def computes(self) -> bool:
        """Whether engines move data and multiply; with numerics="none" they only signal."""
        return self.numerics != "none"

    @property
    def numbers(self) -> Sequence[int]:
        """The clusters to run."""
        x, y, z = self.clusters
        if self.seed and not self.takes_over:
            return shuffled(x * y * z, self.seed)
        return range(x * y * z) if self.chosen is None else self.chosen

    @property
    def clusters(self) -> Dim3:
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    def live_mask(self, warp: int) -> int:
        """The lanes of a warp that have a thread."""
        return (1 << min(32, self.threads - 32 * warp)) - 1

    def first_cta(self, number: int) -> Dim3:
        """Grid coordinates of the first CTA of a cluster; clusters count along x first."""
        x, y, _ = self.clusters
        place = (number % x, number // x % y, number // (x * y))
        first = tuple(p * c for p, c in zip(place, self.cluster, strict=True))
        return first[0], first[1], first[2]

    def cta_of(self, first: Dim3, rank: int) -> Dim3:
        inside = self._inside(rank)
        return first[0] + inside[0], first[1] + inside[1], first[2] + inside[2]

    def _inside(self, rank: int) -> Dim3:
        x, y, _ = self.cluster
        return rank % x, rank // x % y, rank // (x * y)

    def fixed_specials(self, rank: int, warp: int) -> dict[str, Any]:
        """Special registers that are the same in every cluster (PTX ISA 9.1 chapter 10)."""
        lane = np.arange(32, dtype=np.uint32)
        thread = 32 * warp + lane
        x, y, _ = self.block
        one = np.uint32(1)
        values: dict[str, Any] = {
            "%tid.x": thread % x, "%tid.y": thread // x % y, "%tid.z": thread // (x * y), "%laneid": lane,
            "%warpid": warp, "%nwarpid": -(-self.threads // 32), "%nsmid": self.spec.sms, "%gridid": 0,
            "%cluster_ctarank": rank, "%cluster_nctarank": self.cluster[0] * self.cluster[1] * self.cluster[2],
            "%lanemask_eq": one << lane, "%lanemask_lt": (one << lane) - one,
            "%lanemask_le": ((one << lane) - one) | one << lane, "%lanemask_gt": ~(((one << lane) - one) | one << lane),
            "%lanemask_ge": ~((one << lane) - one),
            "%dynamic_smem_size": self.dynamic, "%total_smem_size": -(-(self.shared_limit - 1024) // 128) * 128,
            "%aggr_smem_size": self.shared_limit, "%is_explicit_cluster": 0xFFFF_FFFF if self.explicit else 0,
        }  # fmt: skip
        for i, axis in enumerate("xyz"):
            values[f"%ntid.{axis}"] = self.block[i]
            values[f"%nctaid.{axis}"] = self.grid[i]
            values[f"%nclusterid.{axis}"] = self.clusters[i]
            values[f"%cluster_nctaid.{axis}"] = self.cluster[i]
            values[f"%cluster_ctaid.{axis}"] = self._inside(rank)[i]
        return values

    def grid_specials(self, first: Dim3, rank: int) -> dict[str, Any]:
        """Special registers that tell where in the grid a CTA is."""
        cta = self.cta_of(first, rank)
        values: dict[str, Any] = {f"%ctaid.{axis}": cta[i] for i, axis in enumerate("xyz")}
        values |= {f"%clusterid.{axis}": first[i] // self.cluster[i] for i, axis in enumerate("xyz")}
        linear = cta[0] + self.grid[0] * (cta[1] + self.grid[1] * cta[2])
        return values | {"%smid": linear % self.spec.sms}

    def bind(self, args: Sequence[Any]) -> None:
        """Copy the arguments to the device and write the parameter block."""
        program = self.kernel.program
        self._check_count(args)
        for variable in program.variables:
            self.memory.place(variable.address, variable.data)
        given = [value.array if isinstance(value, TensorMap) else value for value in args]
        arrays = [value for value in given if isinstance(value, np.ndarray)]
        self._check_room(arrays)
        self.memory.upload(arrays)
        block = bytearray(max(16, sum(p.nbytes + p.align for p in program.params)))
        for param, value in zip(program.params, args, strict=True):
            block[param.offset : param.offset + param.nbytes] = self._fitting(param, value)
        self.params_base = self.memory.reserve(bytes(block))
        self.table = self.memory.table
        self.params_host = self.memory.view(self.params_base).ctypes.data

    def _check_count(self, args: Sequence[Any]) -> None:
        params = self.kernel.program.params
        if len(args) != len(params):
            names = ", ".join(p.name for p in params) or "none"
            raise LaunchError(f"kernel {self.name} takes {len(params)} arguments ({names}); {len(args)} are given.")

    def _check_room(self, arrays: Sequence[NDArray[Any]]) -> None:
        needed, room = sum(span.high - span.low for span in spans(arrays)), self.spec.hbm_bytes
        if needed > room:
            raise LaunchError(
                f"kernel {self.name} is given arrays of {needed:,} bytes; {self.spec.name} has {room:,} bytes of "
                "memory; use smaller arrays"
            )

    def _fitting(self, param: Param, value: Any) -> bytes:
        """The bytes of an argument, as many as its parameter has."""
        data = self._encode(param, value)
        if len(data) != param.nbytes:
            kind = "array" if isinstance(value, np.ndarray) else type(value).__name__
            size = f"{param.nbytes} bytes (.{param.type}); {kind} takes {len(data)}"
            raise LaunchError(f"argument {param.name} of kernel {self.name} is {size}.")
        return data

    def map_bytes_of(self, number: int) -> bytes:
        """What stands for a tensor map in memory."""
        return (self.MAP_MAGIC + struct.pack("<Q", number)).ljust(MAP_BYTES, b"\0")

    def _encode(self, param: Param, value: Any) -> bytes:
        if isinstance(value, TensorMap):
            address = self.memory.address(value.array)
            data = self.memory.view(address)
            self.maps.append(BoundMap(value, data, data.ctypes.data))
            return self.map_bytes_of(len(self.maps) - 1)
        if isinstance(value, np.ndarray):
            return struct.pack("<Q", self.memory.address(value))
        if isinstance(value, bytes):
            return value
        scalar = types.of_name(param.type)
        if scalar.kind == "float":
            return bytes(np.asarray(value).astype(scalar.dtype).tobytes())
        if int(value) != value:
            what = f"{value}; expected an integer (.{param.type})"
            raise LaunchError(f"argument {param.name} of kernel {self.name} is {what}.")
        return (int(value) % (1 << 8 * param.nbytes)).to_bytes(param.nbytes, "little")


_KEPT = 64
_WATCHED_SLICE = 5_000
_STEP = 64  # block jumps: clusters in step should not get far ahead where they wait for nothing
_kernels: OrderedDict[tuple[int, str, bool, bool, int], tuple[nodes.Module, Kernel, Timing | None]] = OrderedDict()


def _compiled(
    module: nodes.Module, entry: str, observed: bool, timing: Timing | None = None, watched: bool = False
) -> Kernel:
    """The machine code of a kernel; the last ones are kept, by the identity of their module (hashing a tree of a
    hundred thousand nodes would cost as much as a launch)."""
    key = (id(module), entry, observed, watched, id(timing))
    if key not in _kernels:
        program = decode(module, entry)
        costs = costs_of(program, timing) if timing else None
        _kernels[key] = (module, compile_program(program, observed, costs, watched), timing)
        if len(_kernels) > _KEPT:
            _kernels.popitem(last=False)
    return _kernels[key][1]


class Device:
    """A virtual GPU.

    ``Device(targets.device("b200"))`` runs PTX for the chip's own target and its family on the CPU. Raises, from
    `launch`, LaunchError for a launch that the chip refuses and a DeviceError for a fault while the kernel runs.
    """

    def __init__(self, spec: Spec, numerics: str = "exact") -> None:
        self.spec = spec
        self.numerics = numerics

    @property
    def name(self) -> str:
        return self.spec.name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def launch(
        self,
        module: nodes.Module,
        entry: str,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        args: Sequence[Any] = (),
        observers: Sequence[Observer] = (),
        *,
        numerics: str | None = None,
        recorder: Recorder | None = None,
        watcher: Watcher | None = None,
        limit: int | None = None,
        seed: int = 0,
        discard: bool = False,
    ) -> LaunchResult:
        """Run ``entry`` of ``module`` to its end; arrays in ``args`` are written back, also after a fault.

        ``args``: NumPy arrays (device pointers), TensorMaps, ``bytes``, or numbers typed by the ``.param``s. ``smem``
        is dynamic shared memory in bytes. ``numerics``: ``"exact"`` sums an instruction's exact products in float32 or
        wider; ``"hardware"`` aligns, cuts off and rounds them as tensor cores do (`engines.hardware`); without it, the
        device's. ``recorder`` gets the rows that timing is computed from, and chooses the clusters that run; with it,
        ``"none"``: engines only signal, they move and multiply nothing, and nothing is written back. ``limit``: jumps
        that a warp may make without waiting; beyond them LimitReached is raised. ``seed``: a schedule other than the
        one that always runs (`explore`). ``discard``: do not write back.
        """
        kernel = _compiled(module, entry, bool(observers), recorder.timing if recorder else None, watcher is not None)
        launch = Launch(kernel, self.spec, grid, block, cluster, smem, tuple(observers), numerics or self.numerics)
        launch.insts = kernel.program.insts
        launch.recorder = recorder
        launch.watcher = watcher
        launch.limit, launch.seed = limit, seed
        if watcher is not None:
            watcher.launched(launch)
            launch.slice = _watched_slice(kernel.program)
        self._check(launch)
        launch.bind(args)
        if recorder is not None:
            launch.chosen = recorder.launched(launch)
            launch.slice = _STEP if launch.in_step else launch.slice
        for observer in observers:
            observer.launched(kernel.program)
        try:
            run_clusters(launch)
        finally:
            if launch.computes and not discard:
                launch.memory.download()
        return LaunchResult("".join(text for _, text in sorted(launch.printed, key=lambda row: row[0])))

    def _check(self, launch: Launch) -> None:
        limits, program = self.spec.limits, launch.kernel.program
        if not _runs(program.arch, self.spec.arch):
            held = f"device {self.name} is {self.spec.arch}: compile it for that"
            raise LaunchError(f"kernel {program.name} is for {program.arch}; {held}.")
        _check_extents("grid", launch.grid, limits.max_grid_dim)
        _check_extents("block", launch.block, limits.max_block_dim)
        _check_extents("cluster", launch.cluster, limits.max_grid_dim)
        if launch.dynamic < 0:
            raise LaunchError(f"smem={launch.dynamic}: expected a number of bytes.")
        if launch.numerics not in ("exact", "hardware") and not (launch.recorder and launch.numerics == "none"):
            raise LaunchError(f"numerics={launch.numerics!r}: expected 'exact' or 'hardware'.")
        _check_threads(launch, limits.max_threads_per_block)
        _check_cluster(launch, limits.max_cluster_size)
        used = launch.shared_limit - 1024
        if used > limits.smem_per_block:
            held = f"{self.name} has {limits.smem_per_block} a CTA"
            raise LaunchError(f"kernel {program.name} asks for {used} bytes of shared memory; {held}.")


def _watched_slice(program: Program) -> int:
    """Block jumps of a warp's turn that leave no more rows than there is room for, whatever the blocks."""
    longest = max(len(block.insts) for block in program.blocks)
    return max(1, min(_WATCHED_SLICE, CAPACITY // 2 // (ROWS_OF_ONE * max(1, longest))))


def _runs(target: str, arch: str) -> bool:
    """Whether a chip of ``arch`` runs code for ``target``: its own, its family's, and plain ones up to its own."""
    if target == arch or target in _FAMILIES.get(arch, ()):
        return True
    return not target.endswith(("a", "f")) and int(target[3:]) <= int(arch[3:].rstrip("af"))


def _check_extents(what: str, given: Dim3, most: Dim3) -> None:
    if any(not 1 <= extent <= limit for extent, limit in zip(given, most, strict=True)):
        raise LaunchError(f"{what}={given}: expected 1 to {most[0]}, 1 to {most[1]} and 1 to {most[2]}.")


def _check_threads(launch: Launch, most: int) -> None:
    program = launch.kernel.program
    if launch.threads > most:
        raise LaunchError(f"block={launch.block}: {launch.threads} threads; a CTA has at most {most}.")
    if program.reqntid and program.reqntid != launch.block:
        raise LaunchError(f"block={launch.block}: kernel {program.name} requires {program.reqntid} (.reqntid).")
    if program.maxntid and launch.threads > program.maxntid[0] * program.maxntid[1] * program.maxntid[2]:
        raise LaunchError(f"block={launch.block}: kernel {program.name} allows at most {program.maxntid} (.maxntid).")


def _check_cluster(launch: Launch, most: int) -> None:
    program = launch.kernel.program
    size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    if size > most:
        raise LaunchError(f"cluster={launch.cluster}: {size} CTAs; {launch.spec.name} has at most {most} in a cluster.")
    if program.cluster and program.cluster != launch.cluster:
        needed = f"{program.cluster} (.reqnctapercluster)"
        raise LaunchError(f"cluster={launch.cluster}: kernel {program.name} requires {needed}.")
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchError(f"grid={launch.grid} is not a whole number of clusters {launch.cluster}; round the grid up.")
