"""Real GPUs as devices: what each of them is, and launching on it what the virtual GPU launches."""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

from warpwright import ptx, targets
from warpwright.arrays.device import DeviceArray
from warpwright.cuda import stream as streams
from warpwright.cuda.compile import compile_ptx
from warpwright.cuda.driver import call, require
from warpwright.cuda.function import Function
from warpwright.cuda.memory import Transfers
from warpwright.errors import LaunchError, UsageError
from warpwright.gpu import Dim3, LaunchResult
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx import nodes

__all__ = ["Device", "device", "devices", "supports"]

KEPT = 256
BF16_FLOP_A_CLOCK = {"hopper": 4096, "blackwell": 8192, "consumer blackwell": 512}


def device(name: str = "cuda") -> Device:
    """The GPU ``"cuda"`` (the first) or ``"cuda:1"``. Raises UsageError where there is none, or one too old."""
    bindings = require()
    found = re.fullmatch(r"cuda(?::(\d+))?", name)
    count = call(bindings.cuDeviceGetCount())
    ordinal = int(found[1] or 0) if found else count
    if ordinal >= count:
        names = ", ".join(f"cuda:{n}" for n in range(count))
        raise UsageError(f"given device {name!r}; expected one of {names}")
    return opened(ordinal)


@functools.cache
def devices() -> tuple[Device, ...]:
    """The GPUs of this machine that kernels can run on; none where CUDA or its packages are missing."""
    try:
        bindings = require()
    except UsageError:
        return ()
    count = call(bindings.cuDeviceGetCount())
    archs = {ordinal: arch_of(bindings, ordinal) for ordinal in range(count)}
    return tuple(opened(ordinal) for ordinal, arch in archs.items() if arch in targets.ARCHS)


def supports(arch: str, target: str) -> bool:
    """Whether a chip of ``arch`` (``"sm_90a"``) runs code for ``target``: its own, its family's, or an older plain one.

    PTX ISA 9.1 section 11.1.2: ``a`` runs on that chip alone, ``f`` on later chips of the family.
    """
    parts = re.fullmatch(r"sm_(\d+)(\d)([af]?)", target)
    if not parts:
        return False
    own = int(arch[3:].rstrip("af"))
    wanted, kind = int(parts[1] + parts[2]), parts[3]
    if kind == "a":
        return own == wanted
    return wanted <= own and (not kind or own // 10 == wanted // 10)


@functools.cache
def opened(ordinal: int) -> Device:
    return Device(ordinal)


class Device:
    """A real GPU, by its number.

    Launches as ``vgpu.Device`` does: NumPy arrays are copied there and back, arrays on the GPU are used in place.
    When all arrays are on the GPU, `launch` only starts the kernel, on the current stream of the arrays' library.
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
    ) -> LaunchResult:
        """Run ``entry`` of ``module``; with NumPy arrays to its end, else only start it.

        ``args``: NumPy or device arrays, TensorMaps, ``bytes``, or numbers typed by the ``.param``s. ``smem`` is
        dynamic shared memory in bytes. ``stream`` is of cuda.core, torch or CuPy, or its handle; `Function` explains
        ``cooperative`` and ``dependent``. Raises LaunchError for a launch that the GPU refuses, DeviceError for a
        fault while it runs.
        """
        if observers:
            raise LaunchError(f"observers watch a virtual GPU; {self.name} is a real one; leave device= out")
        check_grid(grid, cluster)
        arrays = device_arrays(args)
        check_places(self, entry, arrays)
        function = self.function(module, entry, block, cluster, smem, cooperative=cooperative, dependent=dependent)
        handle = streams.current(array.owner for array in arrays) if stream is None else streams.handle(stream)
        call(require().cuCtxSetCurrent(self.context))
        with Transfers(f"launch of {entry!r}", handle, args) as transfers:
            function(grid, [transfers.value(argument) for argument in args], handle)
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
        """``entry`` of ``module``, compiled and loaded; the last ones are kept, by the identity of their module.

        Raises LaunchError for a target or sizes that the GPU does not have.
        """
        key = (id(module), entry, block, cluster, smem, cooperative, dependent)
        found = self._functions.get(key)
        if found is None:
            check_kernel(self, module, entry, block, cluster, smem)
            made = Function(
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
            found = self._functions[key] = (module, made)
            if len(self._functions) > KEPT:
                self._functions.popitem(last=False)
        return found[1]


def device_arrays(args: Sequence[Any]) -> list[DeviceArray]:
    arrays = [argument.array if isinstance(argument, TensorMap) else argument for argument in args]
    return [array for array in arrays if isinstance(array, DeviceArray)]


def check_places(device: Device, entry: str, arrays: Sequence[DeviceArray]) -> None:
    """Another GPU's memory would be a fault in the kernel, after which nothing works in this process."""
    for array in arrays:
        if array.ordinal not in (None, device.ordinal):
            raise LaunchError(
                f"launch of {entry!r} on {device.name}: given an array on cuda:{array.ordinal}; "
                "expected all arrays on one GPU; copy it there"
            )


def params_of(module: nodes.Module, entry: str) -> tuple[nodes.Variable, ...]:
    """The parameters of a kernel."""
    return next(item.params for item in module.items if isinstance(item, nodes.Function) and item.name == entry)


def check_grid(grid: Dim3, cluster: Dim3) -> None:
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid={grid} is not a whole number of clusters {cluster}; round the grid up.")


def check_kernel(device: Device, module: nodes.Module, entry: str, block: Dim3, cluster: Dim3, smem: int) -> None:
    """What the virtual GPU checks too, in its words; the driver's own refusals name no number."""
    spec, target = device.spec, module.target[0]
    if not supports(spec.arch, target):
        raise LaunchError(f"kernel {entry} is for {target}; device {device.name} is {spec.arch}: compile it for that.")
    most = spec.max_threads_per_block
    if prod(block) > most:
        raise LaunchError(f"block={block}: {prod(block)} threads; a CTA has at most {most}.")
    if prod(cluster) > spec.max_cluster_size:
        raise LaunchError(
            f"cluster={cluster}: {prod(cluster)} CTAs; {device.name} has at most {spec.max_cluster_size} in a cluster."
        )
    if smem > spec.smem_per_block:
        raise LaunchError(
            f"kernel {entry} asks for {smem} bytes of shared memory; {device.name} has {spec.smem_per_block} a CTA."
        )


def arch_of(bindings: Any, ordinal: int) -> str:
    """The target of a GPU's own code: ``sm_90a``; without the letter before Hopper."""
    major, minor = (attribute(bindings, ordinal, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def attribute(bindings: Any, ordinal: int, name: str) -> int:
    """One figure of a GPU (``CUdevice_attribute``)."""
    wanted = getattr(bindings.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call(bindings.cuDeviceGetAttribute(wanted, call(bindings.cuDeviceGet(ordinal)))))


def spec_of(bindings: Any, ordinal: int) -> targets.Device:
    """The figures of a GPU, as the driver tells them. Raises UsageError for one older than Hopper."""
    arch = arch_of(bindings, ordinal)
    handle = call(bindings.cuDeviceGet(ordinal))
    name = call(bindings.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
    if arch not in targets.ARCHS:
        raise UsageError(
            f"device 'cuda:{ordinal}' is an {name} ({arch}); expected Hopper or Blackwell; "
            "use a virtual GPU: device='h200'"
        )
    query = functools.partial(attribute, bindings, ordinal)
    sms, clock = query("MULTIPROCESSOR_COUNT"), query("CLOCK_RATE")
    flop = BF16_FLOP_A_CLOCK[targets.ARCHS[arch].family] * sms
    return targets.Device(
        name=name,
        arch=arch,
        sms=sms,
        clock_mhz=clock // 1000,
        bf16_tflops=round(flop * clock / 1e9, 1),
        hbm_bytes=int(call(bindings.cuDeviceTotalMem(handle))),
        hbm_gbps=round(2 * query("MEMORY_CLOCK_RATE") * query("GLOBAL_MEMORY_BUS_WIDTH") / 8e6, 1),
        l2_bytes=query("L2_CACHE_SIZE"),
        source=dict.fromkeys(("sms", "clock_mhz", "hbm_bytes", "l2_bytes"), "device query")
        | {
            "bf16_tflops": f"{flop} FLOP a clock at {clock // 1000} MHz",
            "hbm_gbps": "nominal from memory clock and width",
        },
    )
