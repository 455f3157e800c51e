"""One kernel prepared for cheap launches: machine code loaded, attributes set, parameter buffers laid out."""

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

__all__ = ["Function", "Launch", "layout", "packed"]

Dim3 = tuple[int, int, int]

PORTABLE_CLUSTER = 8
LOG_BYTES = 1 << 14
KEPT = 256
ROWS = 64
WORD_BYTES = 8
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


def buffers(form: struct.Struct, offsets: Sequence[int]) -> Iterator[tuple[memoryview, int, int]]:
    """Parameter buffers without end, each used once: memory, where in it the values go, and the address that
    ``cuLaunchKernelEx`` takes: that of a pointer to each parameter."""
    ahead = max(1, len(offsets))
    words = ahead + -(-form.size // WORD_BYTES)
    while True:
        memory = np.zeros((ROWS, words), np.uint64)
        rows = memory.ctypes.data + WORD_BYTES * words * np.arange(ROWS, dtype=np.uint64)
        memory[:, : len(offsets)] = rows[:, None] + (np.array(offsets, np.uint64) + WORD_BYTES * ahead)
        for row, address in enumerate(rows.tolist()):
            yield memory.data, WORD_BYTES * (words * row + ahead), address


def loaded(bindings: Any, code: bytes, name: str) -> Any:
    """The module of machine code, or of PTX. Raises UsageError with the driver's words for PTX that it refuses."""
    words, names = bytearray(LOG_BYTES), bindings.CUjit_option
    options = [names.CU_JIT_ERROR_LOG_BUFFER, names.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    answer = bindings.cuModuleLoadDataEx(code, len(options), options, [words, LOG_BYTES])
    said = bytes(words).partition(b"\0")[0].decode(errors="replace").strip()
    if answer[0].value and said:
        raise UsageError(f"the driver refuses the PTX of {name!r}: {said}")
    return call(answer, f"loading {name!r}")


@dataclass(slots=True, eq=False)
class Launch:
    """A launch of which nothing is open: calling it, as often as one likes and from any thread, starts it.

    ``parameters`` is the address of the pointers to them in ``memory``.
    """

    function: Function
    config: Any
    parameters: int
    memory: memoryview

    def __call__(self) -> None:
        """Raises LaunchError for a launch that the driver refuses; a fault while it runs shows at the next wait."""
        function = self.function
        function.enter()
        (status,) = function.start(self.config, function.handle, self.parameters, 0)
        if status:
            config = self.config
            grid = config.gridDimX, config.gridDimY, config.gridDimZ
            what = f"launch of {function.name!r} with grid={grid}, block={function.block}, cluster={function.cluster}"
            call((status,), what)


class Function:
    """A kernel on one GPU: ``function(grid, values, stream)`` only starts it, in a few microseconds of host time;
    ``at`` makes a `Launch` of the same, to be kept for when they come again.

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
        self.bindings = bindings = driver()
        self.context, self.context_id = context, int(context)
        self.current_context, self.start = bindings.cuCtxGetCurrent, bindings.cuLaunchKernelEx
        self.form, offsets = layout(params)
        self._buffers, self._lock = buffers(self.form, offsets), threading.Lock()
        self.enter()
        self._module = loaded(bindings, cubin.code, name)
        try:
            self.handle = call(bindings.cuModuleGetFunction(self._module, name.encode()), f"loading {name!r}")
            self._set_attributes()
        except WarpwrightError:
            bindings.cuModuleUnload(self._module)
            raise
        made = functools.partial(self._configuration, self._launch_attributes(cooperative, dependent))
        self._config = functools.lru_cache(KEPT)(made)

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
        """Start the kernel on ``stream`` (the driver's handle). Raises as a `Launch` does."""
        self.at(grid, values, stream)()

    def at(self, grid: Dim3, values: Sequence[Any], stream: int = 0) -> Launch:
        """The launch with these values."""
        with self._lock:
            memory, start, address = next(self._buffers)
        try:
            self.form.pack_into(memory, start, *values)
        except struct.error:
            self.form.pack_into(memory, start, *packed(self.form, values))
        return Launch(self, self._config(grid, stream), address, memory)

    def enter(self) -> None:
        """Make the GPU's context that of this thread, where it is another."""
        if int(self.current_context()[1]) != self.context_id:
            call(self.bindings.cuCtxSetCurrent(self.context))

    def _attribute(self, name: str) -> int:
        wanted = getattr(self.bindings.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(call(self.bindings.cuFuncGetAttribute(wanted, self.handle)))

    def _set_attributes(self) -> None:
        """Opt in to large shared memory and large clusters; load the code now, so that no launch does."""
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
