"""A loaded kernel with a low launch overhead: its attributes are set and its parameter buffers are allocated ahead."""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from warpwright.cuda.driver import call, driver
from warpwright.errors import LaunchError, UsageError, WarpwrightError
from warpwright.ptx.nodes import Variable

if TYPE_CHECKING:
    from warpwright.cuda.compile import Cubin

__all__ = ["Function", "Launch", "layout", "wrap_integers"]

Dim3 = tuple[int, int, int]

PORTABLE_CLUSTER = 8
LOG_BYTES = 1 << 14
MAX_CONFIGS = 256  # cached launch configurations of a function
BUFFERS = 64  # parameter buffers that one allocation holds
WORD_BYTES = 8
FLOATS = {"f32": "f", "f64": "d"}
LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def layout(params: Sequence[Variable]) -> tuple[struct.Struct, list[int]]:
    """Returns the parameter buffer as a struct (one int, float or bytes a parameter), and each parameter's offset.

    Offsets are in bytes, as in a C struct with the declared alignments (PTX ISA 9.1 section 5.1.6.1).
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


def wrap_integers(form: struct.Struct, values: Sequence[Any]) -> list[Any]:
    """Returns ``values`` with negative integers in two's complement: nvcc declares ``int`` as ``.u32``."""
    letters = [letter for letter in form.format if letter not in "<x0123456789"]
    return [
        value % (1 << 8 * struct.calcsize(f"<{letter}")) if letter in "BHIQ" else value
        for letter, value in zip(letters, values, strict=True)
    ]


def buffers(form: struct.Struct, offsets: Sequence[int]) -> Iterator[tuple[memoryview, int, int]]:
    """Yields parameter buffers without end, each used once.

    Each item is the memory, the byte offset of the values in it, and the address that ``cuLaunchKernelEx`` takes: the
    address of an array with a pointer to each parameter.
    """
    pointers = max(1, len(offsets))
    words = pointers + -(-form.size // WORD_BYTES)
    while True:
        memory = np.zeros((BUFFERS, words), np.uint64)
        rows = memory.ctypes.data + WORD_BYTES * words * np.arange(BUFFERS, dtype=np.uint64)
        memory[:, : len(offsets)] = rows[:, None] + (np.array(offsets, np.uint64) + WORD_BYTES * pointers)
        for row, address in enumerate(rows.tolist()):
            yield memory.data, WORD_BYTES * (words * row + pointers), address


def load_module(bindings: Any, code: bytes, name: str) -> Any:
    """Load machine code, or PTX. Raises UsageError, with the driver's log, for PTX that the driver refuses."""
    buffer, names = bytearray(LOG_BYTES), bindings.CUjit_option
    options = [names.CU_JIT_ERROR_LOG_BUFFER, names.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    answer = bindings.cuModuleLoadDataEx(code, len(options), options, [buffer, LOG_BYTES])
    log = bytes(buffer).partition(b"\0")[0].decode(errors="replace").strip()
    if answer[0].value and log:
        raise UsageError(f"the driver refuses the PTX of {name!r}: {log}")
    return call(answer, f"loading {name!r}")


@dataclass(slots=True, eq=False)
class Launch:
    """A launch with all its arguments: each call starts the kernel once; calls are safe from any thread.

    ``parameters`` is the address of the array of pointers to the parameters, in ``memory``.
    """

    function: Function
    config: Any
    parameters: int
    memory: memoryview

    def __call__(self) -> None:
        """Start the kernel. Raises LaunchError if the driver refuses; the next synchronisation reports a fault."""
        function = self.function
        function.enter()
        (status,) = function.start(self.config, function.handle, self.parameters, 0)
        if status:
            config = self.config
            grid = config.gridDimX, config.gridDimY, config.gridDimZ
            what = f"launch of {function.name!r} with grid={grid}, block={function.block}, cluster={function.cluster}"
            call((status,), what)


class Function:
    """A kernel on one GPU. ``function(grid, values, stream)`` starts it, in a few microseconds of host time.

    `at` returns a reusable `Launch` with these arguments. ``values`` has one item for each parameter: an int (an
    address on the GPU, or an integer), a float, or ``bytes`` (the 128 bytes of `cuda.encode` for a tensor map). A
    launch allocates nothing, copies nothing and does not synchronise, so a CUDA graph can capture it. ``cooperative``:
    all CTAs are co-resident. ``dependent``: the launch may begin before the previous launch in the stream has ended
    (``griddepcontrol.wait`` waits for that).

    ``cubin`` has the assembler's log; ``registers`` and ``local_bytes`` (a thread) are from the driver.
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
        self.bindings = bindings = driver()
        self.context, self.context_id = context, int(context)
        self.current_context, self.start = bindings.cuCtxGetCurrent, bindings.cuLaunchKernelEx
        self.form, offsets = layout(params)
        self._buffers, self._lock = buffers(self.form, offsets), threading.Lock()
        self.enter()
        self._module = load_module(bindings, cubin.code, name)
        try:
            self.handle = call(bindings.cuModuleGetFunction(self._module, name.encode()), f"loading {name!r}")
            self._set_attributes()
        except WarpwrightError:
            bindings.cuModuleUnload(self._module)
            raise
        configuration = functools.partial(self._configuration, self._launch_attributes(cooperative, dependent))
        self._config = functools.lru_cache(MAX_CONFIGS)(configuration)

    @property
    def registers(self) -> int:
        """Registers a thread."""
        return self._attribute("NUM_REGS")

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a CTA, in bytes."""
        return self._attribute("SHARED_SIZE_BYTES")

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread, in bytes: stack and spills."""
        return self._attribute("LOCAL_SIZE_BYTES")

    def __call__(self, grid: Dim3, values: Sequence[Any], stream: int = 0) -> None:
        """Start the kernel on ``stream`` (the driver's handle). Raises the errors of `Launch`."""
        self.at(grid, values, stream)()

    def at(self, grid: Dim3, values: Sequence[Any], stream: int = 0) -> Launch:
        """Returns the launch with this grid, these values and this stream."""
        with self._lock:
            memory, start, address = next(self._buffers)
        try:
            self.form.pack_into(memory, start, *values)
        except struct.error:
            self.form.pack_into(memory, start, *wrap_integers(self.form, values))
        return Launch(self, self._config(grid, stream), address, memory)

    def enter(self) -> None:
        """Make the GPU's context current in this thread, unless it already is."""
        if int(self.current_context()[1]) != self.context_id:
            call(self.bindings.cuCtxSetCurrent(self.context))

    def _attribute(self, name: str) -> int:
        wanted = getattr(self.bindings.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(call(self.bindings.cuFuncGetAttribute(wanted, self.handle)))

    def _set_attributes(self) -> None:
        """Opt in to large shared memory and large clusters; load the code, so that the first launch does not."""
        bindings, names = self.bindings, self.bindings.CUfunction_attribute
        wanted = {names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: self.smem}
        if math.prod(self.cluster) > PORTABLE_CLUSTER:
            wanted[names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        for attribute, value in wanted.items():
            (status,) = bindings.cuFuncSetAttribute(self.handle, attribute, value)
            if status.value:
                raise LaunchError(
                    f"kernel {self.name} with {self.smem} bytes of shared memory: the driver answers {status.name}"
                )
        call(bindings.cuFuncLoad(self.handle), f"loading {self.name!r}")

    def _configuration(self, attributes: list[Any], grid: Dim3, stream: int) -> Any:
        config = self.bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block
        config.sharedMemBytes, config.hStream = self.smem, stream
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _launch_attributes(self, cooperative: bool, dependent: bool) -> list[Any]:
        bindings, attributes = self.bindings, []
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
        return attributes

    def _fill(self, name: str, value: Any) -> None:
        if name == "CLUSTER_DIMENSION":
            dims = value.clusterDim
            dims.x, dims.y, dims.z = self.cluster
        elif name == "COOPERATIVE":
            value.cooperative = 1
        else:
            value.programmaticStreamSerializationAllowed = 1
