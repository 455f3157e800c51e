"""The virtual GPU as a device: check a launch, place its memory, run its clusters on all cores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from warpwright.arrays.device import refuse_written
from warpwright.errors import DeviceError, LaunchError
from warpwright.gpu import LaunchResult
from warpwright.layout.peers import PerRank, each_value
from warpwright.ptx import nodes
from warpwright.targets import DEVICES, Timing, runs
from warpwright.targets import Device as Spec
from warpwright.vgpu.jit.compile import Kernel, compile_program
from warpwright.vgpu.jit.costs import costs_of
from warpwright.vgpu.jit.runtime import COMPILER
from warpwright.vgpu.machine.events import Event, Listener, Observer
from warpwright.vgpu.machine.launch import Dim3, Launch
from warpwright.vgpu.machine.schedule import run_clusters
from warpwright.vgpu.machine.tape import CAPACITY, ROWS_OF_ONE
from warpwright.vgpu.program.decode import decode
from warpwright.vgpu.program.program import Param, Program, Variable

__all__ = ["Device", "LaunchResult"]

_CACHED = 64
_SLICE, _NODE_SLICE = 20_000, 1_000  # block jumps: on a node clusters spin until those of other ranks have run
_CHECKED_SLICE = 5_000
_STEP = 64  # block jumps: clusters in step should not get far ahead where they wait for nothing
_Key = tuple[int, str, bool, bool, frozenset[int], int, bool]
_Cached = tuple[nodes.Module, Kernel, Timing | None]
_kernels: OrderedDict[_Key, _Cached] = OrderedDict()  # written under `COMPILER`


def _compiled(module: nodes.Module, entry: str, listener: Listener[Launch, Any] | None, signals: bool) -> Kernel:
    """Returns the machine code of a kernel for a listener. ``signals``: engines move and multiply nothing. The last
    ones are cached by the identity of their module: to hash a tree of a hundred thousand nodes would cost as much as a
    launch."""
    asks = listener or Listener[Launch, Any]()
    key = (id(module), entry, asks.events, asks.accesses, asks.doubted, id(asks.timing), signals)
    found = _kernels.get(key)
    if found is None:
        with COMPILER:
            found = _kernels.get(key) or _compile(module, entry, asks, key)
    return found[1]


def _compile(module: nodes.Module, entry: str, asks: Listener[Launch, Any], key: _Key) -> _Cached:
    program = decode(module, entry)
    costs = costs_of(program, asks.timing) if asks.timing else None
    kernel = compile_program(program, asks.events, costs, asks.accesses, asks.doubted, key[-1])
    _kernels[key] = found = module, kernel, asks.timing
    if len(_kernels) > _CACHED:
        _kernels.popitem(last=False)
    return found


class _Observers(Listener[Launch, Any]):
    """Passes the events of a launch on to its observers."""

    events = True

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def launched(self, launch: Launch) -> None:
        for observer in self.observers:
            observer.launched(launch.kernel.program)

    def event(self, event: Event) -> None:
        for observer in self.observers:
            observer.event(event)


class Device:
    """A virtual GPU, or a virtual node of several GPUs.

    ``Device(targets.device("b200"))`` runs PTX for the chip's own target and its family on the CPU; on
    ``targets.device("b200x8")`` eight ranks run a launch, each with the whole grid and with its values of the `PerRank`
    arguments, in one address space. Raises, from
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
        listener: Listener[Launch, Any] | None = None,
        limit: int | None = None,
        seed: int = 0,
        discard: bool = False,
        memory: Sequence[NDArray[Any]] | None = None,
    ) -> LaunchResult:
        """Run ``entry`` of ``module`` to its end; arrays in ``args`` are written back, also after a fault.

        ``args``: NumPy arrays (device pointers), TensorMaps, ``bytes``, or numbers typed by the ``.param``s. ``smem``
        is dynamic shared memory in bytes. ``numerics``: ``"exact"`` sums an instruction's exact products in float32 or
        wider; ``"hardware"`` aligns, cuts off and rounds them as tensor cores do (`engines.hardware`); without it, the
        device's. ``observers`` get the events of the launch; ``listener`` follows it for timing or for checks. Give
        one of the two. With a listener for timing ``numerics`` may be ``"none"``: engines only signal, they move and
        multiply nothing, and nothing is written back. ``limit``: block jumps that a warp may make; beyond
        them LimitReached is raised. ``seed``: a schedule other than the one that always runs (`explore`). ``discard``:
        do not write back. ``memory``: arrays that the kernel reaches through pointers; with it, also if it is empty,
        all arrays have their host addresses.
        """
        if observers and listener:
            raise LaunchError("observers= and listener= are both given; a launch has one listener: leave one out.")
        listener = _Observers(observers) if observers else listener
        how = numerics or self.numerics
        kernel = _compiled(module, entry, listener, how == "none")
        launch = Launch(kernel, self.spec, grid, block, cluster, smem, listener, how)
        launch.insts, launch.limit, launch.seed = kernel.program.insts, limit, seed
        launch.slice = _SLICE if self.spec.gpus == 1 else _NODE_SLICE
        self._check(launch)
        launch.bind(args, memory, discard=discard)
        if listener is not None:
            launch.chosen = listener.launched(launch)
            launch.slice = _slice(launch, listener)
        try:
            run_clusters(launch)
            _check_variables(launch)
        except DeviceError as error:
            error.printed = launch.text
            raise
        finally:
            launch.listener = None  # it refers to the launch
            written = launch.memory.download(discard=discard) if launch.computes else []
        if written:
            names = [
                name for param, value in zip(kernel.program.params, args, strict=True) for name in _names(param, value)
            ]
            names += [f"memory[{number}]" for number in range(len(memory or ()))]
            arrays = [getattr(value, "array", value) for value in each_value(args)]
            refuse_written(entry, names, [*arrays, *(memory or ())], written)
        return LaunchResult(launch.text)

    def _check(self, launch: Launch) -> None:
        limits, program = self.spec.limits, launch.kernel.program
        if not runs(program.arch, self.spec.arch):
            given = f"device {self.name} is {self.spec.arch}: compile it for that{_other_device(program.arch)}"
            raise LaunchError(f"kernel {launch.name} is for {program.arch}; {given}.")
        _check_extents("grid", launch.grid, limits.max_grid_dim)
        _check_extents("block", launch.block, limits.max_block_dim)
        _check_extents("cluster", launch.cluster, limits.max_grid_dim)
        if launch.dynamic < 0:
            raise LaunchError(f"smem={launch.dynamic}: expected a number of bytes.")
        _check_node(launch)
        if launch.numerics not in ("exact", "hardware") and not (launch.timed and launch.numerics == "none"):
            raise LaunchError(f"numerics={launch.numerics!r}: expected 'exact' or 'hardware'.")
        _check_threads(launch, limits.max_threads_per_block)
        _check_cluster(launch, limits.max_cluster_size)
        used = launch.shared_limit - 1024
        if used > limits.smem_per_block:
            limit = f"{self.name} has {limits.smem_per_block} a CTA"
            raise LaunchError(f"kernel {launch.name} asks for {used} bytes of shared memory; {limit}.")


def _names(param: Param, value: Any) -> list[str]:
    """Returns the names of the values of an argument."""
    if isinstance(value, PerRank):
        return [f"argument {param.name!r} of rank {rank}" for rank in range(len(value.values))]
    return [f"argument {param.name!r}"]


def _check_node(launch: Launch) -> None:
    """Raises LaunchError on a node for a kernel with a variable in global memory that has no initial value."""
    shared = [variable for variable in launch.kernel.program.variables if not any(variable.data)]
    if launch.spec.gpus > 1 and shared:
        raise _refuse_variable(launch, shared[0], "has")


def _check_variables(launch: Launch) -> None:
    """Raises LaunchError on a node if a variable in global memory has another value than its initial one."""
    for variable in launch.kernel.program.variables if launch.spec.gpus > 1 else ():
        if launch.memory.view(variable.address)[: len(variable.data)].tobytes() != variable.data:
            raise _refuse_variable(launch, variable, "writes")


def _refuse_variable(launch: Launch, variable: Variable, verb: str) -> LaunchError:
    return LaunchError(
        f"kernel {launch.name} {verb} the variable {variable.name} in global memory, of which every GPU of a node has "
        f"a copy of its own; {launch.spec.name} has one; pass an array of each rank as an argument"
    )


def _slice(launch: Launch, listener: Listener[Launch, Any]) -> int:
    """Returns the block jumps of a warp's turn."""
    return _checked_slice(launch.kernel.program) if listener.accesses else _STEP if launch.in_step else launch.slice


def _checked_slice(program: Program) -> int:
    """Returns so few block jumps that their rows fit into the buffer, however long the blocks are."""
    longest = max(len(block.insts) for block in program.blocks)
    return max(1, min(_CHECKED_SLICE, CAPACITY // 2 // (ROWS_OF_ONE * max(1, longest))))


def _other_device(target: str) -> str:
    """Returns the part of an error that names the first virtual GPU that runs code for ``target``, if there is one."""
    name = next((spec.name for spec in DEVICES.values() if runs(target, spec.arch)), None)
    return f", or launch it on device {name!r}" if name else ""


def _check_extents(what: str, given: Dim3, most: Dim3) -> None:
    if any(not 1 <= extent <= limit for extent, limit in zip(given, most, strict=True)):
        raise LaunchError(f"{what}={given}: expected 1 to {most[0]}, 1 to {most[1]} and 1 to {most[2]}.")


def _check_threads(launch: Launch, most: int) -> None:
    program = launch.kernel.program
    if launch.threads > most:
        raise LaunchError(f"block={launch.block}: {launch.threads} threads; a CTA has at most {most}.")
    if program.reqntid and program.reqntid != launch.block:
        raise LaunchError(f"block={launch.block}: kernel {launch.name} requires {program.reqntid} (.reqntid).")
    if program.maxntid and launch.threads > program.maxntid[0] * program.maxntid[1] * program.maxntid[2]:
        raise LaunchError(f"block={launch.block}: kernel {launch.name} allows at most {program.maxntid} (.maxntid).")


def _check_cluster(launch: Launch, most: int) -> None:
    program = launch.kernel.program
    size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    if size > most:
        raise LaunchError(f"cluster={launch.cluster}: {size} CTAs; {launch.spec.name} has at most {most} in a cluster.")
    if program.cluster and program.cluster != launch.cluster:
        needed = f"{program.cluster} (.reqnctapercluster)"
        raise LaunchError(f"cluster={launch.cluster}: kernel {launch.name} requires {needed}.")
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchError(f"grid={launch.grid} is not a whole number of clusters {launch.cluster}; round the grid up.")
