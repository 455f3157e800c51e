"""D = A·Bᵀ for two matrices in memory: which kernel reads them, and its launch, prepared where arrays are on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warpwright import cuda, targets, tuned, types
from warpwright.arrays import DeviceArray
from warpwright.errors import UsageError
from warpwright.extras import Extras
from warpwright.gpu import Device
from warpwright.kernels import gemm
from warpwright.kernels.gemm.epilogue import Epilogue
from warpwright.kernels.reference import finished
from warpwright.lang.trace import Traced
from warpwright.launch import entry_point, launch
from warpwright.libraries import View
from warpwright.tensormap import TensorMap

__all__ = [
    "DEFAULT_LEVEL",
    "FLOAT8",
    "Family",
    "Operand",
    "Prepared",
    "family_of",
    "geometry",
    "mappable",
    "prepared",
    "reach",
    "round_up",
]

MAP_BYTES = 16  # addresses and strides of tensor maps
DEFAULT_LEVEL = 10
KEPT_ADDRESSES = 1024

BFLOAT16, FLOAT16, FLOAT32 = (np.dtype(each) for each in (ml_dtypes.bfloat16, np.float16, np.float32))
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))

Geometry = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix (rows, K) as it lies in memory: ``view`` is that, or where ``major`` is "mn" its transpose."""

    view: View
    major: str = "k"


@dataclass(frozen=True, slots=True)
class Family:
    """The kernels of one target: the ``majors`` that they read for operands of each dtype, whether D may have gaps
    between its rows (``gaps``), and the launch: ``multiply(a, b, d, level, device, stream, extras)``."""

    majors: Mapping[np.dtype[Any], tuple[str, ...]]
    gaps: bool
    multiply: Callable[[Operand, Operand, View, int | None, Device, int, Extras], None]


def family_of(device: Device) -> Family:
    """The kernels for ``device``. Raises UsageError for a target without any."""
    found = FAMILIES.get(device.spec.arch)
    if found is None:
        raise UsageError(
            f"matmul has no kernel for {device.spec.name} ({device.spec.arch}); expected device='b200', 'gb200', "
            "'h200' or 'cuda'"
        )
    return found


def mappable(view: View) -> bool:
    """Whether a tensor map can cover a matrix: dense rows that begin at multiples of 16 bytes, in ascending order.

    Host memory is copied to the GPU, so there only the distance of rows counts.
    """
    (rows, columns), (row, step) = view.shape, view.strides
    dense = columns == 1 or step == view.itemsize
    spaced = rows == 1 or (row % MAP_BYTES == 0 and row >= columns * view.itemsize)
    return dense and spaced and (not isinstance(view, DeviceArray) or view.pointer % MAP_BYTES == 0)


def blackwell(a: Operand, b: Operand, d: View, level: int | None, device: Device, stream: int, extras: Extras) -> None:
    """Sums by one launch on sm_100a; what follows them is done by NumPy, on the host."""
    if extras.epilogue == gemm.PLAIN:
        blackwell_sums(a, b, d, level, device, stream)
        return
    if isinstance(d, DeviceArray):
        raise UsageError(
            f"matmul: given scales, a bias or an activation for {device.name} ({device.spec.arch}), whose kernels end "
            "with the sums; expected none of them: apply them to the result"
        )
    n = b.view.shape[0]
    sums = np.empty((d.shape[0], round_up(n, FLOAT32.itemsize)), FLOAT32)
    blackwell_sums(a, b, sums, level, device, stream)
    bias = extras.bias[:n] if isinstance(extras.bias, np.ndarray) else None
    with np.errstate(over="ignore"):
        d[:, :n] = finished(sums[:, :n], extras.alpha, bias, extras.activation)


def blackwell_sums(a: Operand, b: Operand, d: View, level: int | None, device: Device, stream: int) -> None:
    """One launch on sm_100a; D is dense, (M, pitch) with at least N columns."""
    (m, k), n = a.view.shape, b.view.shape[0]
    config = gemm.config_for(DEFAULT_LEVEL if level is None else level, m, n, device.spec.sms)
    plan = gemm.plan(config, m, n, round_up(k), out_bytes=d.itemsize, sms=device.spec.sms)
    kernel = gemm.kernel_of(config).trace(dtype=types.of_dtype(a.view.dtype), out=types.of_dtype(d.dtype))
    on_gpu, maps = isinstance(d, DeviceArray), kernel.maps
    args: list[Any] = [
        TensorMap(view, maps[name].box, swizzle=maps[name].swizzle, l2_promotion=plan.l2_promotion)
        if name in maps
        else view
        for name, view in zip("abd", (a.view, b.view, d), strict=True)
    ]
    args += plan.scalars
    launch(kernel, plan.grid, args=args, device=device, stream=stream if on_gpu else None)


def hopper(a: Operand, b: Operand, d: View, level: int | None, device: Device, stream: int, extras: Extras) -> None:
    """One launch on sm_90a; rows of D begin at multiples of 16 bytes."""
    majors = a.major, b.major
    layouts = geometry(a.view), geometry(b.view), geometry(d)
    if isinstance(d, DeviceArray) and isinstance(a.view, DeviceArray) and isinstance(b.view, DeviceArray):
        run = prepared(*layouts, majors, level, device.name, extras.epilogue, extras.columns)
        bias, scale_a, scale_b = (
            each.pointer if isinstance(each, DeviceArray) else 0
            for each in (extras.bias, extras.scale_a, extras.scale_b)
        )
        run(a.view.pointer, b.view.pointer, d.pointer, stream, bias, scale_a, scale_b, extras.alpha)
        return
    kernel, plan = hopper_launch(*layouts, majors, level, device.spec, extras.epilogue)
    given = 0 if extras.bias is None else extras.bias
    more = plan.arguments(extras.columns, given, alpha=extras.alpha)
    launch(kernel, plan.grid, args=[*hopper_maps(kernel, (a.view, b.view, d)), *more], device=device)


FAMILIES = {
    "sm_100a": Family(dict.fromkeys((BFLOAT16, FLOAT16), ("k",)), gaps=False, multiply=blackwell),
    "sm_90a": Family(
        dict.fromkeys((BFLOAT16, FLOAT16), ("k", "mn")) | dict.fromkeys(FLOAT8, ("k",)), gaps=True, multiply=hopper
    ),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch on a real GPU that only lacks addresses: ``maps`` make tensor maps of them, and keep the last ones."""

    function: cuda.Function
    grid: tuple[int, int, int]
    maps: tuple[Callable[[int], bytes], ...]
    scalars: tuple[int, ...]

    def __call__(
        self,
        a: int,
        b: int,
        d: int,
        stream: int,
        bias: int = 0,
        scale_a: int = 0,
        scale_b: int = 0,
        alpha: float = 1.0,
    ) -> None:
        """Start D = A·Bᵀ over the matrices at these addresses, with what the kernel's epilogue takes."""
        map_a, map_b, map_d = self.maps
        values = (map_a(a), map_b(b), map_d(d), *self.scalars, bias, scale_a, scale_b, alpha)
        self.function(self.grid, values, stream)


@functools.lru_cache(maxsize=1024)
def prepared(
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: tuple[str, str],
    level: int | None,
    gpu: str,
    epilogue: Epilogue,
    columns: int,
) -> Prepared:
    """The launch on ``gpu`` for operands, D and a bias of ``columns`` that lie so in memory; the last ones are kept."""
    device = cuda.device(gpu)
    kernel, plan = hopper_launch(a, b, d, majors, level, device.spec, epilogue)
    entry = entry_point(kernel)
    function = device.function(entry.module, entry.name, kernel.threads, kernel.cluster, kernel.smem_bytes)
    nowhere = [DeviceArray(0, *each, None, None) for each in (a, b, d)]
    maps = [
        functools.lru_cache(KEPT_ADDRESSES)(functools.partial(cuda.encode, tensor))
        for tensor in hopper_maps(kernel, nowhere)
    ]
    return Prepared(function, plan.grid, tuple(maps), (*plan.tiles, columns))


def hopper_launch(
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: tuple[str, str],
    level: int | None,
    spec: targets.Device,
    epilogue: Epilogue,
) -> tuple[Traced, gemm.HopperPlan]:
    """Kernel and plan. Beyond an operand's own end its tensor map reads zeros."""
    (m, k), (n, _) = extents(a, majors[0]), extents(b, majors[1])
    size = a[2].itemsize
    if level is None:
        config = gemm.choose(m, n, k, size, tuned=tuned.choices(spec.name) if size > 1 else ())
    else:
        config = gemm.hopper_config(level)
    whole = [round_up(extent, size) for extent in (m, n, k)]
    plan = gemm.hopper_plan(config, *whole, sms=spec.sms, majors=majors, in_bytes=size, out_bytes=d[2].itemsize)
    dtype, b_dtype, out = (types.of_dtype(each[2]) for each in (a, b, d))
    kernel = gemm.hopper_kernel(config)
    return kernel.trace(majors=majors, dtype=dtype, b_dtype=b_dtype, out=out, epilogue=epilogue), plan


def extents(operand: Geometry, major: str) -> tuple[int, ...]:
    """(rows, K) of an operand."""
    return operand[0] if major == "k" else operand[0][::-1]


def hopper_maps(kernel: Traced, views: Sequence[View]) -> list[TensorMap]:
    uses = [kernel.maps[name] for name in "abd"]
    return [
        TensorMap(view, use.box, swizzle=use.swizzle, l2_promotion=gemm.L2_PROMOTION)
        for view, use in zip(views, uses, strict=True)
    ]


def geometry(view: View) -> Geometry:
    return view.shape, view.strides, view.dtype


def reach(layout: Geometry) -> int:
    """Bytes from the first element of an array to the end of its last."""
    shape, strides, dtype = layout
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize


def round_up(extent: int, itemsize: int = 2) -> int:
    """``extent`` elements up to whole 16 bytes."""
    step = MAP_BYTES // itemsize
    return -(-extent // step) * step
