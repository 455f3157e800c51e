"""One launch while it runs: the compiled kernel, its geometry, its arguments in memory, its special registers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright import types
from warpwright.arrays.device import spans
from warpwright.errors import LaunchError
from warpwright.layout.peers import PerRank, each_value, has_all_ranks, pack_peers
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx.names import kernel_name
from warpwright.targets import Device as Spec
from warpwright.vgpu.jit.compile import KERNELS, Kernel, marks_of
from warpwright.vgpu.jit.costs import is_memory
from warpwright.vgpu.machine.events import Listener
from warpwright.vgpu.machine.maps import Maps
from warpwright.vgpu.machine.memory import GlobalMemory
from warpwright.vgpu.machine.pending import Pending, shuffled
from warpwright.vgpu.program.program import Inst, Param

__all__ = ["PRINTED_TOO_MUCH", "Dim3", "Launch", "Owner", "RankCta"]

Dim3 = tuple[int, int, int]
PRINT_CHARACTERS = 1 << 20  # of a launch, as CUDA's printf buffer has bytes
PRINTED_TOO_MUCH = f"\n(the launch printed more than {PRINT_CHARACTERS:,} characters; the rest is not kept)\n"


@lru_cache(maxsize=KERNELS)
def _draws(kernel: Kernel) -> list[bool]:
    return [
        inst.traits.access == "update" and bool(inst.find("d")) and not inst["space"].startswith("shared")
        for inst in kernel.program.insts
    ]


@lru_cache(maxsize=KERNELS)
def _has_tmem(kernel: Kernel) -> bool:
    traits = [inst.traits for inst in kernel.program.insts]
    return any(each.queue in ("tensor", "tmem") or each.effect == "allocates" for each in traits)


class RankCta(tuple[int, int, int]):
    """The grid coordinates of a CTA on one rank of a node: as text, ``(0, 0, 0) of rank 1``."""

    rank: int

    def __new__(cls, coordinates: Iterable[int], rank: int = 0) -> RankCta:
        found = super().__new__(cls, coordinates)
        found.rank = rank
        return found

    def __repr__(self) -> str:
        return f"{tuple(self)} of rank {self.rank}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankCta) and (tuple(self), self.rank) == (tuple(other), other.rank)

    def __hash__(self) -> int:
        return hash((tuple(self), self.rank))


class Owner(NamedTuple):
    """The virtual addresses from ``low`` to ``high`` of an array of a node: its parameter, and the rank that has it."""

    low: int
    high: int
    name: str
    rank: int


@dataclass(slots=True)
class Launch:
    """One launch while it runs: the compiled kernel, its geometry, its global memory.

    On a node every rank has the whole grid: with n clusters a rank, cluster i of rank r has the number r * n + i.
    ``listener`` follows the launch; ``chosen``: the clusters to run, None for all. ``limit``: block jumps
    that a warp may make; ``seed``: of the schedule, 0 for the one that always runs; ``slice``: block jumps of a warp's
    turn. ``stopped``: an interrupt ends the launch. ``marks``: the blocks and guards that lane code for checks has
    marked.
    """

    kernel: Kernel
    spec: Spec
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic: int
    listener: Listener[Launch, Any] | None = None
    numerics: str = "exact"
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    maps: Maps = field(init=False)
    printed: list[tuple[int, str]] = field(default_factory=list)
    print_room: int = PRINT_CHARACTERS
    table: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    params: list[tuple[int, int]] = field(default_factory=list)  # of each rank: address and host address of its block
    insts: list[Inst] = field(default_factory=list)
    pending: Pending | None = None
    owners: list[Owner] = field(default_factory=list)
    chosen: Sequence[int] | None = None
    limit: int | None = None
    seed: int = 0
    slice: int = 0
    stopped: bool = False
    marks: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.maps = Maps(self.memory)
        self.marks = np.zeros(marks_of(self.kernel.program), np.int64)

    @property
    def name(self) -> str:
        """The kernel's name, for messages."""
        return kernel_name(self.kernel.program.name)

    @property
    def text(self) -> str:
        """The text that the kernel has printed, in order of clusters."""
        text = "".join(text for _, text in sorted(self.printed, key=lambda row: row[0]))
        return text if self.print_room > 0 else text + PRINTED_TOO_MUCH

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def shared_limit(self) -> int:
        """One past the last offset of shared memory: the reserve, static variables, dynamic memory."""
        program = self.kernel.program
        return max(program.shared_bytes, program.dynamic_offset + self.dynamic)

    @property
    def shared_stride(self) -> int:
        """Bytes from a CTA's shared memory to that of the next CTA of its cluster."""
        return -(-self.shared_limit // 1024) * 1024

    @property
    def explicit(self) -> bool:
        """Whether the launch has cluster dimensions."""
        program = self.kernel.program
        return self.cluster != (1, 1, 1) or program.cluster is not None or program.explicit_cluster

    @property
    def takes_over(self) -> bool:
        """Whether running clusters may take over the work of others that have not started."""
        return any(inst.traits.effect == "cancels-clusters" for inst in self.insts)

    @property
    def timed(self) -> bool:
        """Whether lane code leaves rows for timing."""
        return self.listener is not None and self.listener.timing is not None

    @property
    def records(self) -> bool:
        """Whether lane code leaves rows, for timing or for checks."""
        return self.listener is not None and (self.listener.accesses or self.timed)

    @property
    def by_turns(self) -> bool:
        """Whether clusters run in turns, in one order: by a seed, in step, or because the listener asks for it."""
        return self.seed > 0 or self.in_step or (self.listener is not None and self.listener.in_turn)

    @property
    def in_step(self) -> bool:
        """Whether all resident clusters run together, a round each: those of a timed launch that hand out work by
        atomic operations. If each cluster ran to its end at once, the first would take all of the work."""
        return self.timed and any(self.draws) and not (self.listener and self.listener.represents)

    @property
    def has_tmem(self) -> bool:
        """Whether an instruction uses, allocates or frees tensor memory."""
        return _has_tmem(self.kernel)

    @property
    def computes(self) -> bool:
        """Whether engines move data and multiply; with numerics="none" they only signal."""
        return self.numerics != "none"

    @property
    def writes_global(self) -> bool:
        """Whether lanes may write global memory, or engines data there."""
        return self.computes or any(
            inst.traits.effect == "edits-maps"
            or (
                inst.traits.access in ("write", "update") and not inst["space"].startswith(("shared", "local", "param"))
            )
            for inst in self.insts
        )

    @property
    def loads_global(self) -> bool:
        """Whether lanes may load global memory. Atomic operations are not loads: see `draws`."""
        return any(
            is_memory(inst) and inst.traits.access == "read" and not inst["space"].startswith("shared")
            for inst in self.insts
        )

    @property
    def draws(self) -> list[bool]:
        """For each instruction whether it updates global memory and returns the value before, as an atomic operation
        does by which clusters draw the number of their next tile."""
        return _draws(self.kernel)

    @property
    def numbers(self) -> Sequence[int]:
        """The clusters to run, in order."""
        count, ranks = self.clusters_a_rank, self.spec.gpus
        if self.seed and not self.takes_over:
            return shuffled(ranks * count, self.seed)
        if self.chosen is not None:
            return self.chosen
        return range(count) if ranks == 1 else [rank * count + i for i in range(count) for rank in range(ranks)]

    @property
    def clusters_a_rank(self) -> int:
        """The clusters of the grid, which every rank of a node has."""
        x, y, z = self.clusters
        return x * y * z

    @property
    def clusters(self) -> Dim3:
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    def live_mask(self, warp: int) -> int:
        """Returns the lanes of a warp that have a thread."""
        return (1 << min(32, self.threads - 32 * warp)) - 1

    def first_cta(self, number: int) -> Dim3:
        """Returns the grid coordinates of the first CTA of a cluster; clusters count along x first."""
        rank, number = divmod(number, self.clusters_a_rank)
        x, y, _ = self.clusters
        place = (number % x, number // x % y, number // (x * y))
        first = tuple(p * c for p, c in zip(place, self.cluster, strict=True))
        cta = first[0], first[1], first[2]
        return cta if self.spec.gpus == 1 else RankCta(cta, rank)

    def cta_of(self, first: Dim3, rank: int) -> Dim3:
        """Returns the grid coordinates of a CTA of the cluster whose first CTA is ``first``."""
        inside = self._inside(rank)
        cta = first[0] + inside[0], first[1] + inside[1], first[2] + inside[2]
        return RankCta(cta, first.rank) if isinstance(first, RankCta) else cta

    def _inside(self, rank: int) -> Dim3:
        x, y, _ = self.cluster
        return rank % x, rank // x % y, rank // (x * y)

    def fixed_specials(self, rank: int, warp: int) -> dict[str, Any]:
        """Returns the special registers that are the same in every cluster (PTX ISA 9.1 chapter 10)."""
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
        """Returns the special registers that depend on the place of a CTA in the grid."""
        cta = self.cta_of(first, rank)
        values: dict[str, Any] = {f"%ctaid.{axis}": cta[i] for i, axis in enumerate("xyz")}
        values |= {f"%clusterid.{axis}": first[i] // self.cluster[i] for i, axis in enumerate("xyz")}
        linear = cta[0] + self.grid[0] * (cta[1] + self.grid[1] * cta[2])
        return values | {"%smid": linear % self.spec.sms}

    def bind(self, args: Sequence[Any], memory: Sequence[NDArray[Any]] | None = None, *, discard: bool = False) -> None:
        """Allocate the arguments and write the parameter block. With ``memory``, arrays have their host addresses; a
        module variable in one of its arrays has the value there, not its initial one. ``discard``: what the kernel
        writes does not reach the arrays."""
        program = self.kernel.program
        self._check_count(args)
        kept = [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in memory or ()]
        for variable in program.variables:
            if not any(first <= variable.address < end for first, end in kept):
                self.memory.place(variable.address, variable.data)
        given = list(each_value((*args, *(memory or ()))))
        values = [getattr(value, "array", value) for value in given]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        self._check_room(arrays)
        if memory is None:
            read = arrays if self.computes or self.loads_global else [x for x in given if isinstance(x, np.ndarray)]
            # A fresh copy of a large array takes the operating system longer than its bytes take to move.
            writes = "all" if discard or self.listener is not None else "parts"
            self.memory.upload(arrays, copy=writes if self.writes_global else "none", read=read)
        else:
            self.memory.map_host(arrays, copy=self.listener is not None)
        blocks = [self.memory.reserve(self._block(args, rank)) for rank in range(self.spec.gpus)]
        self.table = self.memory.table
        if memory is not None:
            self.memory.check_apart()
        self.owners = list(self._owned(args))
        self.params = [(base, self.memory.view(base).ctypes.data) for base in blocks]

    def _owned(self, args: Sequence[Any]) -> Iterator[Owner]:
        """Yields the arrays of every rank."""
        for param, value in zip(self.kernel.program.params, args, strict=True):
            for rank, each in enumerate(value.values if isinstance(value, PerRank) else ()):
                array = getattr(each, "array", each)
                if isinstance(array, np.ndarray) and array.size:
                    low = self.memory.address(array)
                    yield Owner(low, low + array.nbytes, param.name, rank)

    def owner(self, address: int) -> str:
        """Returns ``"byte 4 of flags of rank 1"`` for a virtual address of a node."""
        found = next((each for each in self.owners if each.low <= address < each.high), None)
        return f"byte {address - found.low} of {found.name} of rank {found.rank}" if found else "global memory"

    def _block(self, args: Sequence[Any], rank: int) -> bytes:
        """Returns the parameter block of a rank."""
        params = self.kernel.program.params
        block = bytearray(max(16, sum(p.nbytes + p.align for p in params)))
        for param, value in zip(params, args, strict=True):
            block[param.offset : param.offset + param.nbytes] = self._param_bytes(param, value, rank)
        return bytes(block)

    def _check_count(self, args: Sequence[Any]) -> None:
        params = self.kernel.program.params
        if len(args) != len(params):
            names = ", ".join(p.name for p in params) or "none"
            raise LaunchError(f"kernel {self.name} takes {len(params)} arguments ({names}); {len(args)} are given.")

    def _check_room(self, arrays: Sequence[NDArray[Any]]) -> None:
        needed, room = sum(span.high - span.low for span in spans(arrays)), self.spec.gpus * self.spec.hbm_bytes
        if needed > room:
            raise LaunchError(
                f"kernel {self.name} is given arrays of {needed:,} bytes; {self.spec.name} has {room:,} bytes of "
                "memory; use smaller arrays"
            )

    def _param_bytes(self, param: Param, value: Any, rank: int) -> bytes:
        """Returns the bytes of an argument on a rank. Raises LaunchError if its parameter has another size."""
        if isinstance(value, PerRank):
            if has_all_ranks(param.nbytes, value):
                return pack_peers([self._encode(param, each) for each in value.values], rank)
            value = value.values[rank]
        data = self._encode(param, value)
        if len(data) != param.nbytes:
            kind = "array" if isinstance(value, np.ndarray) else type(value).__name__
            size = f"{param.nbytes} bytes (.{param.type}); {kind} takes {len(data)}"
            raise LaunchError(f"argument {param.name} of kernel {self.name} is {size}.")
        return data

    def _encode(self, param: Param, value: Any) -> bytes:
        if isinstance(value, TensorMap):
            return self.maps.bind(value)
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
