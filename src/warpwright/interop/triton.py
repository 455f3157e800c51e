"""A driver of Triton whose GPU is a virtual one: it launches the PTX that Triton compiles, Gluon's too.

Triton compiles for the driver's target, loads the kernel by the driver's ``utils`` and launches it with its
``launcher_cls`` (``triton.backends.driver``). The arguments of a kernel are those of its signature without constants,
then the addresses of two scratch memories.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import _allocation
from triton.runtime.cache import get_cache_manager

from warpwright.errors import UsageError
from warpwright.interop.memory import Memory, whole
from warpwright.layout.tensor_map import SWIZZLES, TensorMap
from warpwright.layout.tensor_map_bytes import TYPES
from warpwright.run.launch import Entry, load_ptx
from warpwright.targets import TIMINGS
from warpwright.types import tf32

__all__ = ["Driver", "opened"]

FIRST = 1000  # numbers of virtual GPUs for Triton; real ones count from 0


# In machine code, of a function: EIATTR_REGCOUNT (0x2f) with 8 bytes, the symbol and the registers of a thread.
_REGISTERS = re.compile(rb"\x04\x2f\x08\x00.{4}(.{4})", re.DOTALL)


def _registers(binary: bytes) -> int:
    """Returns the registers of a thread of a kernel in machine code, by which programs compute how many CTAs fit."""
    return max(int.from_bytes(count, "little") for count in _REGISTERS.findall(binary))


class Driver(DriverBase):  # type: ignore[misc]
    """What Triton asks a driver, answered for the virtual GPU of a `Session`."""

    def __init__(self, session: Any) -> None:
        self.session = session
        spec = session.device.spec
        self.capability: tuple[int, int] = spec.capability
        self.number: int = 10 * self.capability[0] + self.capability[1]
        self.utils = SimpleNamespace(
            load_binary=lambda name, binary, shared, device: (
                name,
                name,
                _registers(binary),
                0,
                spec.max_threads_per_block,
            ),
            unload_module=lambda module: None,
            get_device_properties=lambda device: {
                "max_shared_mem": spec.smem_per_block,
                "multiprocessor_count": spec.sms,
                "max_num_regs": 65536,
                "warpSize": 32,
                "sm_clock_rate": 1000 * spec.clock_mhz,
            },
            cuOccupancyMaxActiveClusters=lambda function, smem, *shape: TIMINGS[spec.name].clusters(math.prod(shape)),
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Launcher:
        """Returns the launcher of a compiled kernel."""
        return Launcher(source, metadata)

    @classmethod
    def is_active(cls) -> bool:
        """Returns False: the driver is chosen by `virtual`, not by what the machine has."""
        return False

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.number, 32)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self.capability

    def get_current_device(self) -> int:
        """Returns a number for each target: Triton keeps compiled kernels by it."""
        return FIRST + self.number

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_empty_cache_for_benchmark(self) -> None:
        pass

    def clear_cache(self, cache: None) -> None:
        pass

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """Returns a function that predicts the milliseconds of a call, which autotuning compares."""
        return _predict


class Launcher:
    """Launches one compiled kernel in the session of the active driver; ``metadata`` is Triton's."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata
        self.signature = tuple(source.signature.values())

    @cached_property
    def entry(self) -> Entry:
        """The kernel, parsed from the PTX that Triton has cached."""
        name = self.metadata.name
        path = get_cache_manager(self.metadata.hash).get_file(f"{name}.ptx")
        if path is None:
            raise UsageError(f"the cache of Triton has no PTX of {name}; remove the cache (~/.triton/cache), run again")
        return load_ptx(path)[name]

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: Any,
        packed: Any,
        launch_metadata: Any,
        enter: Callable[[Any], Any] | None,
        leave: Callable[[Any], Any] | None,
        *args: Any,
    ) -> None:
        """Launch the kernel, as CudaLauncher of Triton does."""
        metadata, ctas = self.metadata, grid_x * grid_y * grid_z * self.metadata.num_ctas
        if enter is not None:
            enter(launch_metadata)
        scratch = [
            _scratch(ctas * size, align, allocator, stream)
            for size, align, allocator in (
                (metadata.global_scratch_size, metadata.global_scratch_align, _allocation._allocator),
                (metadata.profile_scratch_size, metadata.profile_scratch_align, _allocation._profile_allocator),
            )
        ]
        memory = Memory()
        values = [*self._values(memory, args), *map(memory.pointer, scratch)]
        triton.runtime.driver.active.session.launch(
            self.entry,
            values,
            grid=(grid_x * metadata.num_ctas, grid_y, grid_z),
            block=32 * metadata.num_warps,
            cluster=metadata.num_ctas,
            smem=metadata.shared,
            memory=memory.arrays(),
        )
        if leave is not None:
            leave(launch_metadata)

    def _values(self, memory: Memory, args: Sequence[Any]) -> Iterator[Any]:
        metas = iter(getattr(self.metadata, "tensordesc_meta", None) or ())
        return _flatten(self.signature, args, metas, memory)


def _predict(call: Callable[[], Any], *, quantiles: Sequence[float] = (0.5,), **_: Any) -> list[float]:
    """Returns the predicted milliseconds of the launches of ``call``, once for each quantile, as Triton's benchmark
    function does."""
    session = triton.runtime.driver.active.session
    asked, first, session.profile = session.profile, len(session.launches), True
    try:
        call()
    finally:
        session.profile = asked
    return [sum(each.time_us for each in session.launches[first:]) / 1e3] * len(quantiles)


def _flatten(signature: Any, values: Any, metas: Iterator[Any], memory: Memory) -> Iterator[Any]:
    """Yields the values of the kernel's parameters; ``metas`` describe its tensor descriptors in order."""
    for type, value in zip(signature, values, strict=True):
        if isinstance(type, tuple):
            yield from _flatten(type, value, metas, memory)
        elif type.startswith("tensordesc"):
            yield from _descriptor(value, next(metas, None), memory)
        elif type.startswith("*"):
            yield memory.pointer(value)
        elif type != "constexpr":
            yield float(value) if "f" in type else int(value)


def _descriptor(value: Any, meta: dict[str, Any] | None, memory: Memory) -> list[Any]:
    """Returns the parameters of a tensor descriptor: a tensor map, or without ``meta`` its fields; its geometry."""
    shape, strides, nan = list(value.shape), list(value.strides), value.padding == "nan"
    if meta is None:
        start = memory.pointer(value.base)
        return [start, *shape, *strides, int(nan), int(value.round_f32_to_tf32), *shape, *strides]
    memory.pointer(value.base)
    element = tf32 if value.round_f32_to_tf32 else TYPES[meta["elem_type"]][0]
    packed = 2 if meta["fp4_padded"] else 1
    nbytes = meta["elem_size"]
    tensor_map = TensorMap(
        _from(value.base).view(element.dtype or np.uint8),
        meta["block_size"],
        swizzle=tuple(SWIZZLES)[meta["swizzle"]],
        fill="nan" if nan else "zero",
        dims=[shape[-1] * packed, *shape[-2::-1]],
        strides=[stride * nbytes for stride in strides[-2::-1]],
        dtype=element,
        **(_of_images(value) if meta.get("is_im2col") else {}),
    )
    return [tensor_map, *shape, *strides]


def _of_images(value: Any) -> dict[str, Any]:
    """Returns the further arguments of a TensorMap for a TensorDescriptorIm2Col."""
    corners = value.pixel_box_lower_corner, value.pixel_box_upper_corner
    return {"element_strides": value.element_strides or [1] * len(value.shape), "corners": corners}


def _from(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns a tensor's memory, from its first element to the end of its storage, as an array of bytes."""
    return whole(tensor)[tensor.storage_offset() * tensor.element_size() :]


def _scratch(nbytes: int, align: int, allocator: Any, stream: int) -> Any:
    """Returns scratch memory by the allocator that the program has set; None for no bytes."""
    return allocator.get()(nbytes, align, stream) if nbytes else None


@contextlib.contextmanager
def opened(session: Any) -> Iterator[None]:
    """Triton compiles for the session's virtual GPU and launches there."""
    drivers = triton.runtime.driver
    before = drivers._active  # None before the first kernel: `active` would look for a GPU
    drivers.set_active(Driver(session))
    try:
        yield
    finally:
        drivers.set_active(before)
