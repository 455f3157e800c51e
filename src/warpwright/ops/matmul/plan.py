"""D = A·Bᵀ for matrices in memory: which kernel reads them, and its launch, prepared where arrays are on a GPU.

An operand or D is one matrix, two dimensions, or a batch of them, three; D is a batch where A or B is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from warpwright import cuda, targets, types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.arrays.libraries import View
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels import gemm
from warpwright.kernels.gemm.epilogue import Epilogue
from warpwright.kernels.reference import finished
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.matmul import measurements as tuned
from warpwright.ops.matmul.epilogue import Extras
from warpwright.run.launch import entry_point, launch

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
    "round_up",
    "start",
]

MAP_BYTES = 16  # addresses and strides of tensor maps
DEFAULT_LEVEL = 10
MATRIX = 2
SLICE_STEP = 16
KEPT_ADDRESSES = 1024

BFLOAT16, FLOAT16, FLOAT32 = (np.dtype(each) for each in (ml_dtypes.bfloat16, np.float16, np.float32))
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))

Shape = tuple[int, ...]
Grid = tuple[int, int, int]
Scratch = Callable[[Shape], View]
Geometry = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Operand:
    """Matrices (rows, K) as they lie in memory: ``view`` is that, or where ``major`` is "mn" their transposes."""

    view: View
    major: str = "k"


@dataclass(frozen=True, slots=True)
class Family:
    """The kernels of one target: the ``majors`` that they read for operands of each dtype, whether D may have gaps
    between its rows (``gaps``), whether they take ``batches``, and the launch: ``multiply(a, b, d, level, device,
    stream, extras, scratch)``, where ``scratch`` makes float32 memory for it, if anything can."""

    majors: Mapping[np.dtype[Any], tuple[str, ...]]
    gaps: bool
    batches: bool
    multiply: Callable[[Operand, Operand, View, int | None, Device, int, Extras, Scratch | None], None]


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
    """Whether a tensor map can cover matrices: dense rows that begin at multiples of 16 bytes, in ascending order.

    Host memory is copied to the GPU, so there only the distance of rows counts.
    """
    (*batch, rows, columns), (*steps, row, step) = view.shape, view.strides
    dense = columns == 1 or step == view.itemsize
    spaced = rows == 1 or (row % MAP_BYTES == 0 and row >= columns * view.itemsize)
    spaced &= all(count == 1 or (far % MAP_BYTES == 0 and far > 0) for count, far in zip(batch, steps, strict=True))
    return dense and spaced and (not isinstance(view, DeviceArray) or view.pointer % MAP_BYTES == 0)


def blackwell(
    a: Operand,
    b: Operand,
    d: View,
    level: int | None,
    device: Device,
    stream: int,
    extras: Extras,
    _scratch: Scratch | None,
) -> None:
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


def hopper(
    a: Operand,
    b: Operand,
    d: View,
    level: int | None,
    device: Device,
    stream: int,
    extras: Extras,
    scratch: Scratch | None,
) -> None:
    """A launch on sm_90a, or two where K is cut into slices; rows of D begin at multiples of 16 bytes."""
    majors, layouts = (a.major, b.major), (geometry(a.view), geometry(b.view), geometry(d))
    if isinstance(d, DeviceArray) and isinstance(a.view, DeviceArray) and isinstance(b.view, DeviceArray):
        run = prepared(*layouts, majors, level, device.name, extras.epilogue, extras.columns, scratch is not None)
        bias, scale_a, scale_b = (
            each.pointer if isinstance(each, DeviceArray) else 0
            for each in (extras.bias, extras.scale_a, extras.scale_b)
        )
        parts = scratch(run.scratch) if scratch and run.scratch else None
        at_parts = parts.pointer if isinstance(parts, DeviceArray) else 0
        places = a.view.pointer, b.view.pointer, d.pointer
        start(run.launches(*places, stream, bias, scale_a, scale_b, extras.alpha, at_parts))
        return
    product = hopper_launch(*layouts, majors, level, device.spec, extras.epilogue, scratch is not None)
    views = [a.view, b.view, d]
    if product.slices > 1:
        views = [*map(restrided, views[:2], product.layouts), np.empty(product.layouts[2][0], FLOAT32)]
    given = 0 if extras.bias is None else extras.bias
    more = extras.columns, given, 0, 0, extras.alpha
    scalars = (*product.plan.tiles, *more)
    launch(product.kernel, product.plan.grid, args=[*hopper_maps(product.kernel, views), *scalars], device=device)
    if product.slices > 1 and isinstance(d, np.ndarray):
        total = np.empty(views[2].shape[1:], d.dtype)
        kernel, grid, sizes = sum_launch(product, geometry(total))
        launch(kernel, grid, args=[views[2], total, *sizes, *more], device=device)
        d[...] = total[:, : d.shape[1]]


FAMILIES = {
    "sm_100a": Family(dict.fromkeys((BFLOAT16, FLOAT16), ("k",)), gaps=False, batches=False, multiply=blackwell),
    "sm_90a": Family(
        dict.fromkeys((BFLOAT16, FLOAT16), ("k", "mn")) | dict.fromkeys(FLOAT8, ("k",)),
        gaps=True,
        batches=True,
        multiply=hopper,
    ),
}


@dataclass(frozen=True, slots=True)
class Total:
    """The second launch on a real GPU where K is cut into slices: it adds up what they left in ``scratch``, float32."""

    function: cuda.Function
    grid: Grid
    scalars: tuple[int, ...]
    scratch: Shape


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A launch on a real GPU that only lacks addresses: ``maps`` make tensor maps of them, and keep the last ones."""

    function: cuda.Function
    grid: Grid
    maps: tuple[Callable[[int], bytes], ...]
    scalars: tuple[int, ...]
    total: Total | None = None

    @property
    def scratch(self) -> Shape | None:
        """The shape of the float32 memory that it takes, if any."""
        return self.total.scratch if self.total else None

    def launches(
        self,
        a: int,
        b: int,
        d: int,
        stream: int,
        bias: int = 0,
        scale_a: int = 0,
        scale_b: int = 0,
        alpha: float = 1.0,
        scratch: int = 0,
    ) -> tuple[cuda.Launch, ...]:
        """Those of D = A·Bᵀ over the matrices at these addresses, with what the kernel's epilogue takes.

        ``scratch`` is the address of its memory. Whoever frees that does it in the order of the stream, as the
        libraries' allocators do, and a CUDA graph keeps what was allocated while it was captured: so no two products
        share it at a time.
        """
        (map_a, map_b, map_d), total = self.maps, self.total
        self.function.enter()  # a new thread has no context yet, without which the driver makes no tensor map
        maps, more = (map_a(a), map_b(b), map_d(scratch if total else d)), (bias, scale_a, scale_b, alpha)
        product = self.function.at(self.grid, (*maps, *self.scalars, *more), stream)
        if total is None:
            return (product,)
        return product, total.function.at(total.grid, (scratch, d, *total.scalars, *more), stream)


def start(launches: Sequence[cuda.Launch]) -> None:
    """One after the other."""
    for launched in launches:
        launched()


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
    scratch: bool,
) -> Prepared:
    """The launch on ``gpu`` for operands, D and a bias of ``columns`` that lie so in memory; the last ones are kept.

    ``scratch`` says whether there may be memory for slices of K.
    """
    device = cuda.device(gpu)
    return loaded(hopper_launch(a, b, d, majors, level, device.spec, epilogue, scratch), d, device, columns)


@dataclass(frozen=True, slots=True)
class Product:
    """A launch: kernel and plan, and what A, B and D look like to its tensor maps.

    With ``slices`` of K those are batches, and D is float32 memory for their products; the ``epilogue`` follows their
    sum, a second launch.
    """

    kernel: Traced
    plan: gemm.HopperPlan
    layouts: tuple[Geometry, Geometry, Geometry]
    slices: int
    epilogue: Epilogue


def hopper_launch(
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: tuple[str, str],
    level: int | None,
    spec: targets.Device,
    epilogue: Epilogue,
    scratch: bool,
) -> Product:
    """The launch that the chooser or ``level`` says. Slices of K are for single matrices, and take ``scratch``."""
    (m, k), (n, _) = extents(a, majors[0]), extents(b, majors[1])
    if level is not None:
        return product_of(gemm.hopper_config(level), a, b, d, majors, spec.sms, epilogue)
    matrix, size = len(d[0]) == MATRIX, a[2].itemsize
    known = tuned.choices(spec.name, size)
    config = gemm.choose(m, n, k, size, batches=1 if matrix else d[0][0], tuned=known)
    slices = slices_of(k, config.slices) if scratch and matrix else 1
    config = replace(config, slices=slices) if slices > 1 else gemm.in_one_launch(config)
    return product_of(config, a, b, d, majors, spec.sms, epilogue)


def product_of(
    config: gemm.HopperConfig,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    majors: tuple[str, str],
    sms: int,
    epilogue: Epilogue = gemm.PLAIN,
) -> Product:
    """The launch of ``config``. Beyond an operand's own end its tensor map reads zeros."""
    (m, k), (n, _), size = extents(a, majors[0]), extents(b, majors[1]), a[2].itemsize
    layouts = a, b, d
    if config.slices > 1:
        left, right = (cut(each, major, config.slices) for each, major in zip((a, b), majors, strict=True))
        layouts = left, right, dense((config.slices, d[0][0], round_up(d[0][1])), FLOAT32)
    batched = "".join(name for name, (shape, *_) in zip("abd", layouts, strict=True) if len(shape) > MATRIX)
    plan = gemm.hopper_plan(
        config,
        *(round_up(extent, size) for extent in (m, n, k // config.slices)),
        sms=sms,
        majors=majors,
        in_bytes=size,
        out_bytes=layouts[2][2].itemsize,
        batches=layouts[2][0][0] if batched else 1,
    )
    dtype, b_dtype, out = (types.of_dtype(each[2]) for each in layouts)
    at_once = epilogue if config.slices == 1 else gemm.PLAIN
    kernel = gemm.hopper_kernel(config).trace(
        batched=batched, majors=majors, dtype=dtype, b_dtype=b_dtype, out=out, epilogue=at_once
    )
    return Product(kernel, plan, layouts, config.slices, epilogue)


def loaded(product: Product, d: Geometry, device: cuda.Device, columns: int = 0) -> Prepared:
    """``product`` on a real GPU, with a bias of ``columns``."""

    def function(kernel: Traced, *, dependent: bool = False) -> cuda.Function:
        entry = entry_point(kernel)
        sizes = kernel.threads, kernel.cluster, kernel.smem_bytes
        return device.function(entry.module, entry.name, *sizes, dependent=dependent)

    nowhere = [DeviceArray(0, *each, None, None) for each in product.layouts]
    maps = [
        functools.lru_cache(KEPT_ADDRESSES)(cuda.MovableMap(tensor)) for tensor in hopper_maps(product.kernel, nowhere)
    ]
    total = None
    if product.slices > 1:
        kernel, grid, scalars = sum_launch(product, d)
        total = Total(function(kernel, dependent=True), grid, (*scalars, columns), product.layouts[2][0])
    plan = product.plan
    return Prepared(function(product.kernel), plan.grid, tuple(maps), (*plan.tiles, columns), total)


def extents(operand: Geometry, major: str) -> tuple[int, ...]:
    """(rows, K) of an operand."""
    matrix = operand[0][-MATRIX:]
    return matrix if major == "k" else matrix[::-1]


def slices_of(k: int, most: int) -> int:
    """How many slices, each a multiple of 16 of K, it is cut into: ``most``, or half as many again and again."""
    while most > 1 and k % (most * SLICE_STEP):
        most //= 2
    return most


def cut(layout: Geometry, major: str, slices: int) -> Geometry:
    """A matrix as a batch: ``slices`` of its K."""
    shape, strides, dtype = layout
    axis = 1 if major == "k" else 0
    extent = shape[axis] // slices
    return (slices, *shape[:axis], extent, *shape[axis + 1 :]), (extent * strides[axis], *strides), dtype


def dense(shape: Shape, dtype: np.dtype[Any]) -> Geometry:
    return shape, dense_strides(shape, dtype.itemsize), dtype


def sum_launch(product: Product, d: Geometry) -> tuple[Traced, Grid, tuple[int, ...]]:
    """The launch that adds up the slices: kernel, grid and the scalars behind the addresses of scratch memory and D."""
    (m, n), (pitch, _), dtype = d
    width = product.layouts[2][0][-1]
    kernel = gemm.add_slices.trace(slices=product.slices, out=types.of_dtype(dtype), epilogue=product.epilogue)
    return kernel, (gemm.sum_grid(m, width), 1, 1), (m, n, width, pitch // dtype.itemsize)


def restrided(view: View, layout: Geometry) -> View:
    """The memory of an array of the host with another shape and strides."""
    shape, strides, _ = layout
    assert isinstance(view, np.ndarray)
    return np.lib.stride_tricks.as_strided(view, shape, strides)


def hopper_maps(kernel: Traced, views: Sequence[View]) -> list[TensorMap]:
    uses = [kernel.maps[name] for name in "abd"]
    return [
        TensorMap(view, use.box, swizzle=use.swizzle, l2_promotion=gemm.L2_PROMOTION)
        for view, use in zip(views, uses, strict=True)
    ]


def geometry(view: View) -> Geometry:
    return view.shape, view.strides, view.dtype


def round_up(extent: int, itemsize: int = 2) -> int:
    """``extent`` elements up to whole 16 bytes."""
    step = MAP_BYTES // itemsize
    return -(-extent // step) * step
