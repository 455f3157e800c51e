"""One kernel prepared for cheap launches: machine code loaded, attributes set, the parameter buffer laid out."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warpwright.cuda.driver import call, driver
from warpwright.errors import LaunchError, UsageError, WarpwrightError
from warpwright.ptx.nodes import Variable

if TYPE_CHECKING:
    from warpwright.cuda.compile import Cubin

__all__ = ["Function", "layout", "packed"]

Dim3 = tuple[int, int, int]

PORTABLE_CLUSTER = 8
LOG_BYTES = 1 << 14
FLOATS = {"f32": "f", "f64": "d"}
LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def layout(params: Sequence[Variable]) -> tuple[struct.Struct, list[int]]:
    """The parameter buffer as one struct (a value a parameter: int, float or bytes), and each parameter's offset.

    Offsets are those of a C struct with the declared alignments (PTX ISA 9.1 section 5.1.6.1).
    """
    pattern, offsets, end = "<", [], 0
    for param in params:
        element = int(param.type.lstrip("busf")) // 8
        count = param.vector * math.prod(param.dims)
        align = max(param.align or 1, element * param.vector)
        offset = -(-end // align) * align
        single = FLOATS.get(param.type, LETTERS[element])
        pattern += f"{offset - end}x" + (f"{element * count}s" if param.dims or param.vector > 1 else single)
        offsets.append(offset)
        end = offset + element * count
    return struct.Struct(pattern), offsets


def packed(form: struct.Struct, values: Sequence[Any]) -> list[Any]:
    """``values`` with negative integers as their two's complement: nvcc declares ``int`` as ``.u32``."""
    letters = [letter for letter in form.format if letter not in "<x0123456789"]
    return [
        value % (1 << 8 * struct.calcsize(f"<{letter}")) if letter in "BHIQ" else value
        for letter, value in zip(letters, values, strict=True)
    ]


def loaded(bindings: Any, code: bytes, name: str) -> Any:
    """The module of machine code, or of PTX. Raises UsageError with the driver's words for PTX that it refuses."""
    words, names = bytearray(LOG_BYTES), bindings.CUjit_option
    options = [names.CU_JIT_ERROR_LOG_BUFFER, names.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    answer = bindings.cuModuleLoadDataEx(code, len(options), options, [words, LOG_BYTES])
    said = bytes(words).partition(b"\0")[0].decode(errors="replace").strip()
    if answer[0].value and said:
        raise UsageError(f"the driver refuses the PTX of {name!r}: {said}")
    return call(answer, f"loading {name!r}")


class Function:
    """A kernel on one GPU: ``function(grid, values, stream)`` only starts it, in a few microseconds of host time.

    ``values`` has one item a parameter: an int (an address on the GPU, an integer), a float, or ``bytes`` (the 128
    bytes of `cuda.encoded` for a tensor map). Nothing is allocated, copied or waited for, so a launch may be captured
    in a CUDA graph. ``cooperative``: all CTAs are resident together; ``dependent``: the launch may begin before the
    one ahead of it in the stream has ended (``griddepcontrol.wait`` waits for it).

    ``cubin`` holds the assembler's report; ``registers`` and ``local_bytes`` (a thread) are the driver's figures.
    """

    def __init__(
        self,
        context: Any,
        cubin: Cubin,
        name: str,
        params: Sequence[Variable],
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        *,
        cooperative: bool = False,
        dependent: bool = False,
    ) -> None:
        self.cubin, self.name, self.block, self.cluster, self.smem = cubin, name, block, cluster, smem
        self._context, self._context_id = context, int(context)
        self._bindings = driver()
        self.form, offsets = layout(params)
        values = np.zeros(max(1, self.form.size), np.uint8)
        self._values = values.data
        self._places = values.ctypes.data + np.array(offsets, np.uint64)
        self._places_address = self._places.ctypes.data
        self._lock = threading.Lock()
        self._enter()
        self._module = loaded(self._bindings, cubin.code, name)
        try:
            self._function = call(self._bindings.cuModuleGetFunction(self._module, name.encode()), f"loading {name!r}")
            self._set_attributes()
        except WarpwrightError:
            self._bindings.cuModuleUnload(self._module)
            raise
        self._config = self._configuration(cooperative, dependent)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self._attribute("NUM_REGS")

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a CTA."""
        return self._attribute("SHARED_SIZE_BYTES")

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread: stack and spills."""
        return self._attribute("LOCAL_SIZE_BYTES")

    def __call__(self, grid: Dim3, values: Sequence[Any], stream: int = 0) -> None:
        """Start the kernel on ``stream`` (the driver's handle).

        Raises LaunchError for a launch that the driver refuses; a fault while it runs shows at the next wait.
        """
        bindings, config = self._bindings, self._config
        if int(bindings.cuCtxGetCurrent()[1]) != self._context_id:
            self._enter()
        with self._lock:
            try:
                self.form.pack_into(self._values, 0, *values)
            except struct.error:
                self.form.pack_into(self._values, 0, *packed(self.form, values))
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.hStream = stream
            (status,) = bindings.cuLaunchKernelEx(config, self._function, self._places_address, 0)
        if status.value:
            call((status,), f"launch of {self.name!r} with grid={grid}, block={self.block}, cluster={self.cluster}")

    def _enter(self) -> None:
        call(self._bindings.cuCtxSetCurrent(self._context))

    def _attribute(self, name: str) -> int:
        wanted = getattr(self._bindings.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(call(self._bindings.cuFuncGetAttribute(wanted, self._function)))

    def _set_attributes(self) -> None:
        """Opt in to large shared memory and large clusters; load the code now, so that no launch does."""
        bindings, names = self._bindings, self._bindings.CUfunction_attribute
        wanted = {names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: self.smem}
        if math.prod(self.cluster) > PORTABLE_CLUSTER:
            wanted[names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        for attribute, value in wanted.items():
            (status,) = bindings.cuFuncSetAttribute(self._function, attribute, value)
            if status.value:
                raise LaunchError(
                    f"kernel {self.name} with {self.smem} bytes of shared memory: the driver answers {status.name}"
                )
        call(bindings.cuFuncLoad(self._function), f"loading {self.name!r}")

    def _configuration(self, cooperative: bool, dependent: bool) -> Any:
        bindings = self._bindings
        config = bindings.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block
        config.sharedMemBytes = self.smem
        attributes = []
        for wanted, name in (
            (math.prod(self.cluster) > 1, "CLUSTER_DIMENSION"),
            (cooperative, "COOPERATIVE"),
            (dependent, "PROGRAMMATIC_STREAM_SERIALIZATION"),
        ):
            if wanted:
                attribute = bindings.CUlaunchAttribute()
                attribute.id = getattr(bindings.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
                self._fill(name, attribute.value)
                attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _fill(self, name: str, value: Any) -> None:
        if name == "CLUSTER_DIMENSION":
            dims = value.clusterDim
            dims.x, dims.y, dims.z = self.cluster
        elif name == "COOPERATIVE":
            value.cooperative = 1
        else:
            value.programmaticStreamSerializationAllowed = 1
