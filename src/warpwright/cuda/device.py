"""Real GPUs as devices: their figures, and launches with the same arguments as on the virtual GPU."""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from warpwright import ptx, targets
from warpwright.arrays.device import DeviceArray, refuse_written
from warpwright.cuda import stream as streams
from warpwright.cuda.compile import compile_ptx
from warpwright.cuda.driver import call, require
from warpwright.cuda.function import Function, layout
from warpwright.cuda.memory import Transfers
from warpwright.errors import LaunchError, UsageError
from warpwright.gpu import Dim3, LaunchResult
from warpwright.layout.peers import ADDRESS_BYTES, PerRank, has_all_ranks, pack_peers
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx import nodes

__all__ = ["Device", "device", "devices"]

MAX_FUNCTIONS = 256  # loaded kernels of a device, least recently added first out


def device(name: str = "cuda") -> Device:
    """Returns the GPU ``"cuda"`` (the first) or ``"cuda:1"``. Raises UsageError if it is missing or too old."""
    bindings = require()
    found = re.fullmatch(r"cuda(?::(\d+))?", name)
    count = call(bindings.cuDeviceGetCount())
    ordinal = int(found[1] or 0) if found else count
    if ordinal >= count:
        names = ", ".join(f"cuda:{n}" for n in range(count))
        raise UsageError(f"given device {name!r}; expected one of {names}")
    return open_device(ordinal)


@functools.cache
def devices() -> tuple[Device, ...]:
    """Returns the supported GPUs of this machine; empty if CUDA or its packages are missing."""
    try:
        bindings = require()
    except UsageError:
        return ()
    count = call(bindings.cuDeviceGetCount())
    archs = {ordinal: arch_of(bindings, ordinal) for ordinal in range(count)}
    return tuple(open_device(ordinal) for ordinal, arch in archs.items() if arch in targets.ARCHS)


@functools.cache
def open_device(ordinal: int) -> Device:
    return Device(ordinal)


class Device:
    """The GPU with the driver's index ``ordinal``.

    `launch` takes the arguments of ``vgpu.Device.launch``. It copies NumPy arrays to the GPU and back, and uses arrays
    on the GPU in place. If all arrays are on the GPU, `launch` is asynchronous: it starts the kernel on the current
    stream of the arrays' library.
    """

    def __init__(self, ordinal: int) -> None:
        bindings = require()
        self.ordinal = ordinal
        self.spec = spec_of(bindings, ordinal)
        self.context = call(bindings.cuDevicePrimaryCtxRetain(call(bindings.cuDeviceGet(ordinal))))
        self._functions: OrderedDict[tuple[Any, ...], tuple[nodes.Module, Function]] = OrderedDict()

    @property
    def name(self) -> str:
        return f"cuda:{self.ordinal}"

    def __repr__(self) -> str:
        return f"Device({self.name!r}, {self.spec.name!r})"

    def launch(
        self,
        module: nodes.Module,
        entry: str,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        args: Sequence[Any] = (),
        observers: Sequence[Any] = (),
        *,
        stream: Any = None,
        cooperative: bool = False,
        dependent: bool = False,
        memory: Sequence[DeviceArray] = (),
    ) -> LaunchResult:
        """Start ``entry`` of ``module``; with NumPy arguments, wait for its end and copy them back.

        ``args``: NumPy or device arrays, TensorMaps, ``bytes``, or numbers, which take the type of their ``.param``.
        ``smem`` is dynamic shared memory in bytes. ``stream`` is a stream of cuda.core, torch or CuPy, or its handle.
        `Function` explains ``cooperative`` and ``dependent``. ``memory``: arrays on this GPU that the kernel reaches
        through pointers. Raises LaunchError for a launch that the GPU refuses, DeviceError for a fault of the kernel.
        """
        if observers:
            raise LaunchError(
                f"given observers for {self.name}, a real GPU; expected a virtual GPU; leave device= out, or pass "
                "device='h200'"
            )
        check_grid(grid, cluster)
        own = [own_value(entry, argument) for argument in args]
        arrays = device_arrays([*own, *memory])
        check_ordinals(self, entry, arrays)
        function = self.function(module, entry, block, cluster, smem, cooperative=cooperative, dependent=dependent)
        handle = streams.current(array.owner for array in arrays) if stream is None else streams.handle(stream)
        call(require().cuCtxSetCurrent(self.context))
        with Transfers(f"launch of {entry!r}", handle, own) as transfers:
            values = (value_of(entry, *each, transfers) for each in zip(params_of(module, entry), args, strict=True))
            function(grid, list(values), handle)
        if transfers.written:
            hosts = (argument.array if isinstance(argument, TensorMap) else argument for argument in own)
            refuse_written(
                entry, (f"argument {param.name!r}" for param in params_of(module, entry)), hosts, transfers.written
            )
        return LaunchResult()

    def function(
        self,
        module: nodes.Module,
        entry: str,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        *,
        cooperative: bool = False,
        dependent: bool = False,
    ) -> Function:
        """Returns ``entry`` of ``module``, compiled and loaded; cached by the identity of ``module``.

        Raises LaunchError for a target or a size that the GPU does not support.
        """
        key = (id(module), entry, block, cluster, smem, cooperative, dependent)
        found = self._functions.get(key)
        if found is None:
            check_kernel(self, module, entry, block, cluster, smem)
            function = Function(
                self.context,
                compile_ptx(ptx.to_text(module), self.spec.arch),
                entry,
                params_of(module, entry),
                block,
                cluster,
                smem,
                cooperative=cooperative,
                dependent=dependent,
            )
            found = self._functions[key] = (module, function)
            if len(self._functions) > MAX_FUNCTIONS:
                self._functions.popitem(last=False)
        return found[1]


def own_value(entry: str, argument: Any) -> Any:
    """Returns an argument, of one with a value for every rank that of this GPU's rank.

    Raises LaunchError for values of all ranks without the rank, and for an array of the host.
    """
    if not isinstance(argument, PerRank):
        return argument
    if argument.rank is None:
        raise LaunchError(
            f"launch of {entry!r} on a real GPU: given {argument!r}; expected the rank of this GPU: "
            "ww.PerRank([x0, x1], rank=0)"
        )
    if any(isinstance(getattr(each, "array", each), np.ndarray) for each in argument.values):
        raise LaunchError(
            f"launch of {entry!r} on a real GPU: given {argument!r} with an array of the host; expected the arrays of "
            "all ranks as this GPU addresses them: buffers of PyTorch's symmetric memory"
        )
    return argument.values[argument.rank]


def value_of(entry: str, param: nodes.Variable, argument: Any, transfers: Transfers) -> Any:
    """Returns an argument as `Function` takes it; for a parameter with the memory of all ranks its block."""
    form, _ = layout([param])
    if not isinstance(argument, PerRank) or not has_all_ranks(form.size, argument):
        return transfers.value(own_value(entry, argument))
    parts = [transfers.value(each) for each in argument.values]
    packed = [part if isinstance(part, bytes) else part.to_bytes(ADDRESS_BYTES, "little") for part in parts]
    return pack_peers(packed, argument.rank or 0)


def device_arrays(args: Sequence[Any]) -> list[DeviceArray]:
    arrays = [argument.array if isinstance(argument, TensorMap) else argument for argument in args]
    return [array for array in arrays if isinstance(array, DeviceArray)]


def check_ordinals(device: Device, entry: str, arrays: Sequence[DeviceArray]) -> None:
    """Raises LaunchError for an array on another GPU: the kernel's fault would end all CUDA work of this process."""
    for array in arrays:
        if array.ordinal not in (None, device.ordinal):
            raise LaunchError(
                f"launch of {entry!r} on {device.name}: given an array on cuda:{array.ordinal}; "
                f"expected all arrays on {device.name}; copy it there"
            )


def params_of(module: nodes.Module, entry: str) -> tuple[nodes.Variable, ...]:
    """Returns the parameters of the kernel ``entry``."""
    return next(item.params for item in module.items if isinstance(item, nodes.Function) and item.name == entry)


def check_grid(grid: Dim3, cluster: Dim3) -> None:
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid={grid} is not a whole number of clusters {cluster}; round the grid up.")


def check_kernel(device: Device, module: nodes.Module, entry: str, block: Dim3, cluster: Dim3, smem: int) -> None:
    """Raises LaunchError, with the numbers that the driver's errors omit, for a target or size of no such GPU."""
    spec, target = device.spec, module.target[0]
    if not targets.runs(target, spec.arch):
        raise LaunchError(f"kernel {entry} is for {target}; device {device.name} is {spec.arch}: compile it for that.")
    limit = spec.max_threads_per_block
    if prod(block) > limit:
        raise LaunchError(f"block={block}: {prod(block)} threads; a CTA has at most {limit}.")
    if prod(cluster) > spec.max_cluster_size:
        raise LaunchError(
            f"cluster={cluster}: {prod(cluster)} CTAs; {device.name} has at most {spec.max_cluster_size} in a cluster."
        )
    if smem > spec.smem_per_block:
        raise LaunchError(
            f"kernel {entry} asks for {smem} bytes of shared memory; {device.name} has {spec.smem_per_block} a CTA."
        )


def arch_of(bindings: Any, ordinal: int) -> str:
    """Returns the architecture of a GPU: ``sm_90a``; without the letter before Hopper."""
    major, minor = (attribute(bindings, ordinal, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def attribute(bindings: Any, ordinal: int, name: str) -> int:
    """Returns one ``CUdevice_attribute`` of a GPU."""
    wanted = getattr(bindings.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call(bindings.cuDeviceGetAttribute(wanted, call(bindings.cuDeviceGet(ordinal)))))


def spec_of(bindings: Any, ordinal: int) -> targets.Device:
    """Returns the figures of a GPU from the driver. Raises UsageError for a GPU older than Hopper."""
    arch = arch_of(bindings, ordinal)
    handle = call(bindings.cuDeviceGet(ordinal))
    name = call(bindings.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
    if arch not in targets.ARCHS:
        raise UsageError(
            f"device 'cuda:{ordinal}' is {name} ({arch}); expected Hopper or Blackwell; "
            "use a virtual GPU: device='h200'"
        )
    query = functools.partial(attribute, bindings, ordinal)
    sms, clock = query("MULTIPROCESSOR_COUNT"), query("CLOCK_RATE")
    gbps = round(2 * query("MEMORY_CLOCK_RATE") * query("GLOBAL_MEMORY_BUS_WIDTH") / 8e6, 1)
    alike = targets.nearest(arch, sms, gbps).name
    flop = round(targets.timing_of(alike).mma_flops) * sms
    return targets.Device(
        name=name,
        arch=arch,
        sms=sms,
        clock_mhz=clock // 1000,
        bf16_tflops=round(flop * clock / 1e9, 1),
        hbm_bytes=int(call(bindings.cuDeviceTotalMem(handle))),
        hbm_gbps=gbps,
        l2_bytes=query("L2_CACHE_SIZE"),
        source=dict.fromkeys(("sms", "clock_mhz", "hbm_bytes", "l2_bytes"), "device query")
        | {
            "bf16_tflops": f"{flop} FLOP a clock at {clock // 1000} MHz, as {alike}",
            "hbm_gbps": "nominal from memory clock and width",
        },
    )
