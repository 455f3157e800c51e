"""What a program asks the CUDA runtime (`runtime.c`) and driver (`driver.c`), answered for a virtual GPU."""

from __future__ import annotations

import contextlib
import io
import math
import re
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright import ptx
from warpwright.errors import (
    AssertionFault,
    DescriptorError,
    DeviceError,
    LaunchError,
    LimitReached,
    MemoryFault,
    PtxSyntaxError,
    UnsupportedInstruction,
    UsageError,
)
from warpwright.layout.tensor_map_bytes import encode, fields_of_driver
from warpwright.programs.attributes import STATIC_SMEM_LIMIT, device_attributes
from warpwright.programs.fatbin import ptx_for
from warpwright.programs.memory import DEVICE, SIZE, DeviceMemory
from warpwright.programs.properties import ERRORS, TOO_LARGE, device_properties, function_attributes
from warpwright.ptx.names import kernel_name
from warpwright.run.arguments import nbytes_of, value_of
from warpwright.run.launch import Entry, PtxModule
from warpwright.run.session import Session
from warpwright.targets import TIMINGS, Device
from warpwright.vgpu.program.decode import module_variables, static_shared
from warpwright.vgpu.program.memory_map import HEAP, HEAP_BYTES
from warpwright.vgpu.program.scope import align_of, round_up

__all__ = ["CALLS", "Calls", "LaunchLimit"]

HEADER = Path(__file__).with_name("runtime.h")
_NAMES = re.search(r"enum \{(.*?)\}", HEADER.read_text(encoding="utf-8"), re.DOTALL)
CALLS = tuple(name.strip().lower() for name in (_NAMES[1] if _NAMES else "").split(","))

INVALID_VALUE, OUT_OF_MEMORY, INVALID_SYMBOL = 1, 2, 13
NO_BINARY, INVALID_PTX, NOT_FOUND = 209, 218, 500
FAILURE = 719
CODES = {MemoryFault: 700, LimitReached: 702, AssertionFault: 710}
DYNAMIC_SMEM = 8  # cudaFuncAttributeMaxDynamicSharedMemorySize
MOST_PRINTED = (1 << 22) - 1  # bytes of a launch's text that the program has room for
LEAST_HEAP = 4096  # bytes; a heap has a multiple
REGISTERS = 168  # of a thread, as told to programs: a virtual GPU allocates none

Answer = tuple[int, bytes]


class LaunchLimit(Exception):
    """The program has made as many launches as the user allows."""


class NoRoom(Exception):
    """Device memory has no room for the variables of a module."""


class Loaded(NamedTuple):
    """What a module of the program has. ``variables``: address and bytes by name."""

    kernels: PtxModule
    variables: dict[str, tuple[int, int]]


class Calls:
    """The answers to one program. ``limit``: launches that it may make."""

    set_smem = "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {})"

    def __init__(self, session: Session, limit: int | None) -> None:
        self.session, self.limit = session, limit
        self.fatbins: dict[int, bytes] = {}
        self.modules: dict[int, Loaded] = {}  # those of which the program has used something
        self.functions: dict[int, tuple[int, str]] = {}
        self.symbols: dict[int, tuple[int, str]] = {}
        self.dynamic: dict[int, int] = {}
        self.launches = 0
        self.heap = HEAP_BYTES
        self.started = time.perf_counter()

    def answer(self, call: int, data: bytes) -> Answer:
        """Returns the error code and the bytes of an answer."""
        serve: Callable[[bytes], Answer] = getattr(self, f"_{CALLS[call]}")
        try:
            return serve(data)
        except NoRoom as error:
            self._tell(str(error))
            return OUT_OF_MEMORY, b""

    @property
    def spec(self) -> Device:
        """The virtual GPU."""
        return self.session.device.spec

    @cached_property
    def memory(self) -> DeviceMemory:
        """The program's device memory."""
        return DeviceMemory(self.spec.hbm_bytes)

    def _reach(self, params: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        """Returns the memory that a launch may reach; ``params`` are the bytes of its arguments."""
        return self.memory.arrays()

    def _allocate(self, data: bytes) -> Answer:
        address = self.memory.allocate(*struct.unpack("<2Q", data))
        return (0 if address else OUT_OF_MEMORY), struct.pack("<Q", address)

    def _free(self, data: bytes) -> Answer:
        (address,) = struct.unpack("<Q", data)
        return (0 if self.memory.free(address) else INVALID_VALUE), b""

    def _check_range(self, data: bytes) -> Answer:
        address, nbytes = struct.unpack("<2Q", data)
        inside = self.memory.start <= address < self.memory.start + SIZE
        return (INVALID_VALUE if inside and self.memory.find(address, nbytes) is None else 0), b""

    def _owns(self, data: bytes) -> Answer:
        start = self.memory.find(struct.unpack("<Q", data)[0], 1)
        if start is None:
            return INVALID_VALUE, b""
        return 0, struct.pack("<3Q", self.memory.kinds[start], start, self.memory.sizes[start])

    def _memory_info(self, data: bytes) -> Answer:
        return 0, struct.pack("<2Q", self.memory.room - self.memory.used, self.memory.room)

    def _module(self, data: bytes) -> Answer:
        (handle,) = struct.unpack_from("<Q", data)
        self.fatbins[handle] = data[8:]
        return 0, b""

    def _function(self, data: bytes) -> Answer:
        module, function = struct.unpack_from("<2Q", data)
        self.functions[function] = module, data[16:].decode()
        return 0, b""

    def _variable(self, data: bytes) -> Answer:
        module, symbol, managed = struct.unpack_from("<3Q", data)
        self.symbols[symbol] = module, data[24:].decode()
        return self._symbol(struct.pack("<Q", symbol)) if managed else (0, b"")

    def _symbol(self, data: bytes) -> Answer:
        module, name = self.symbols.get(struct.unpack("<Q", data)[0], (0, ""))
        if not module:
            return INVALID_SYMBOL, b""
        return 0, struct.pack("<2Q", *self._load(module).variables[name])

    def _load(self, handle: int) -> Loaded:
        """Returns a module with its kernels, and with its variables in device memory."""
        if handle not in self.modules:
            text = ptx_for(self.fatbins[handle], self.spec.arch)
            variables = self._place(replace(ptx.load_outline(text, "<ptx>"), heap=self.heap))
            first = min((address for address, _ in variables.values()), default=0)
            module = PtxModule(text, "the program's PTX", variables=first, heap=self.heap)
            self.modules[handle] = Loaded(module, variables)
        return self.modules[handle]

    def _place(self, outline: Any) -> dict[str, tuple[int, int]]:
        """Place the variables of a module one after another. Returns their addresses and bytes by name.

        Raises NoRoom."""
        variables, found = module_variables(outline), {}
        if variables:
            nbytes = variables[-1].address + len(variables[-1].data) - variables[0].address
            at = self.memory.allocate(nbytes)
            if not at:
                left = self.memory.room - self.memory.used
                raise NoRoom(
                    f"the variables of a module take {nbytes:,} bytes of device memory, and {left:,} are left; free "
                    "memory before the first use of the module, or allocate less"
                )
            self.memory.sizes.pop(at)  # each variable is an allocation
            variables = module_variables(replace(outline, variables=at))
        for variable in variables:
            nbytes = len(variable.data)
            self.memory.sizes[variable.address], self.memory.kinds[variable.address] = nbytes, DEVICE
            if variable.name != HEAP:  # which is zero, and may be large
                self.memory.array(variable.address, nbytes)[:] = np.frombuffer(variable.data, np.uint8)
            found[variable.name] = variable.address, nbytes
        return found

    def _entry(self, function: int) -> Entry:
        if function not in self.functions:
            raise UsageError(
                "the program launches a function that is not a kernel of its own; expected a kernel that nvcc compiled "
                "with it"
            )
        module, name = self.functions[function]
        return self._load(module).kernels[name]

    def _image(self, data: bytes) -> Answer:
        """Load a module: a fatbin or a PTX text."""
        handle = len(self.fatbins) + 1
        self.fatbins[handle] = data
        try:
            self._load(handle)
        except (PtxSyntaxError, UsageError) as error:
            self._tell(str(error))
            return (INVALID_PTX if isinstance(error, PtxSyntaxError) else NO_BINARY), b""
        return 0, struct.pack("<Q", handle)

    def _kernel(self, data: bytes) -> Answer:
        module, name = struct.unpack_from("<Q", data)[0], data[8:].decode()
        if name not in self._load(module).kernels:
            return NOT_FOUND, b""
        function = len(self.functions) + 1
        self.functions[function] = module, name
        return 0, struct.pack("<Q", function)

    def _global(self, data: bytes) -> Answer:
        module = self._load(*struct.unpack_from("<Q", data))
        found = module.variables.get(data[8:].decode())
        return (0, struct.pack("<2Q", *found)) if found else (NOT_FOUND, b"")

    def _parameter_places(self, data: bytes) -> Answer:
        places: list[int] = []
        for param in self._entry(*struct.unpack("<Q", data)).function.params:
            places += [round_up(sum(places[-2:]), align_of(param)), nbytes_of(param)]
        return 0, struct.pack(f"<{len(places)}I", *places)

    def _launch(self, data: bytes) -> Answer:
        function, smem, *shape, cooperative = struct.unpack_from("<2Q9Ii", data)
        if self.limit is not None and self.launches >= self.limit:
            raise LaunchLimit
        self.launches += 1
        entry, at, given = self._entry(function), struct.calcsize("<2Q9Ii"), []
        for param in entry.function.params:
            given.append(data[at : at + nbytes_of(param)])
            at += nbytes_of(param)
        args = [value_of(param, each) for param, each in zip(entry.function.params, given, strict=True)]
        if smem > self.dynamic.get(function, STATIC_SMEM_LIMIT):
            return self._refuse_smem(entry, smem, self.dynamic.get(function, STATIC_SMEM_LIMIT))
        grid, block, cluster = (tuple(shape[i : i + 3]) for i in (0, 3, 6))
        if cooperative and math.prod(grid) > self.spec.sms * self._fitting(function, math.prod(block), smem):
            return TOO_LARGE, b""
        shape_of_cluster = entry.cluster if cluster == (1, 1, 1) else cluster
        memory = self._reach(given)
        return self._run(entry, args, grid=grid, block=block, cluster=shape_of_cluster, smem=smem, memory=memory)

    def _refuse_smem(self, entry: Entry, smem: int, most: int) -> Answer:
        self._tell(
            f"kernel {kernel_name(entry.name)} is launched with {smem:,} bytes of dynamic shared memory; expected at "
            f"most {most:,}: call {self.set_smem.format(smem)} before"
        )
        return INVALID_VALUE, b""

    def _run(self, entry: Entry, args: list[Any], **how: Any) -> Answer:
        printed, code = io.StringIO(), 0
        try:
            with contextlib.redirect_stdout(printed):
                self.session.launch(entry, args, **how)
        except UnsupportedInstruction:
            raise
        except LaunchError as error:
            self._tell(str(error))
            code = INVALID_VALUE
        except (DeviceError, DescriptorError) as error:
            verdict = self.session.launches[-1].verdict
            reported = verdict is not None and any(finding.hang for finding in verdict.findings)
            self._tell(str(error).splitlines()[0] if reported else str(error))
            code = _code_of(error)
        return code, printed.getvalue().encode()[:MOST_PRINTED] + b"\0"

    def _tell(self, text: str) -> None:
        print(f"warpwright: error: {text}", file=sys.stderr, flush=True)

    def _device_properties(self, data: bytes) -> Answer:
        return 0, device_properties(self.spec)

    def _device_attribute(self, data: bytes) -> Answer:
        (attribute,) = struct.unpack("<i", data)
        return 0, struct.pack("<i", device_attributes(self.spec).get(attribute, 0))

    def _function_properties(self, data: bytes) -> Answer:
        (function,) = struct.unpack("<Q", data)
        entry = self._entry(function)
        dynamic = self.dynamic.get(function, STATIC_SMEM_LIMIT)
        return 0, function_attributes(self.spec, static_shared(entry.module, entry.name), dynamic, REGISTERS)

    def _set_attribute(self, data: bytes) -> Answer:
        function, attribute, value = struct.unpack("<3q", data)
        if attribute == DYNAMIC_SMEM:
            entry = self._entry(function)
            if value > self.spec.smem_per_block - static_shared(entry.module, entry.name):
                return INVALID_VALUE, b""
            self.dynamic[function] = value
        return 0, b""

    def _fitting(self, function: int, threads: int, smem: int) -> int:
        """CTAs of a kernel that fit on an SM, whatever registers they take."""
        entry, limits = self._entry(function), self.spec.limits
        used = static_shared(entry.module, entry.name) + smem + limits.smem_reserved_per_block
        return limits.fitting_ctas(max(1, threads), used)

    def _occupancy(self, data: bytes) -> Answer:
        return 0, struct.pack("<i", self._fitting(*struct.unpack("<3q", data)))

    def _active_clusters(self, data: bytes) -> Answer:
        function, threads, smem, ctas = struct.unpack("<4q", data)
        return 0, struct.pack("<i", TIMINGS[self.spec.name].clusters(ctas) * self._fitting(function, threads, smem))

    def _largest_cluster(self, data: bytes) -> Answer:
        return 0, struct.pack("<i", self.spec.max_cluster_size)

    def _encode_map(self, data: bytes) -> Answer:
        address, *rest = struct.unpack_from("<10Q16I7i", data)
        dims, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
        rank, code, interleave, swizzle, l2_promotion, fill, im2col = rest[19:26]
        lower, upper = (tuple(corner[: rank - 2]) for corner in (rest[26:29], rest[29:]))
        try:
            fields = fields_of_driver(
                code, swizzle, address=address, rank=rank, strides=tuple(strides[: rank - 1]), dims=tuple(dims[:rank]),
                steps=tuple(steps[:rank]), box=tuple(box[: 2 if im2col else rank]), interleave=interleave, fill=fill,
                l2_promotion=l2_promotion, corners=(lower, upper) if im2col else (),
            )  # fmt: skip
            return 0, encode(fields)
        except (UsageError, IndexError) as error:
            self._tell(f"cuTensorMapEncode{'Im2col' if im2col else 'Tiled'}: {error}")
            return INVALID_VALUE, b""

    def _set_heap(self, data: bytes) -> Answer:
        """Set the bytes from which malloc of kernels allocates, before a kernel with malloc is loaded."""
        (nbytes,) = struct.unpack("<Q", data)
        if nbytes > self.memory.room or any(HEAP in loaded.variables for loaded in self.modules.values()):
            return INVALID_VALUE, b""
        self.heap = max(round_up(nbytes, LEAST_HEAP), LEAST_HEAP)
        return 0, b""

    def _heap_size(self, data: bytes) -> Answer:
        return 0, struct.pack("<Q", self.heap)

    def _time_ms(self, data: bytes) -> Answer:
        """The predicted time of the launches if they are profiled, else the host's time."""
        predicted = sum(each.time_us or 0 for each in self.session.launches) / 1e3
        return 0, struct.pack("<d", predicted if self.session.profile else 1e3 * (time.perf_counter() - self.started))

    def _error_name(self, data: bytes) -> Answer:
        return 0, _error(data)[0].encode()

    def _driver_error_name(self, data: bytes) -> Answer:
        return 0, _error(data)[1].encode()

    def _error_string(self, data: bytes) -> Answer:
        return 0, _error(data)[2].encode()

    def _refuse(self, data: bytes) -> Answer:
        self._tell(f"the program calls {data.decode()}, which a virtual GPU does not have; the call fails")
        return 0, b""


def _error(data: bytes) -> tuple[str, str, str]:
    (code,) = struct.unpack("<i", data)
    return ERRORS.get(code, (f"cudaError {code}", f"CUDA_ERROR {code}", f"error {code}"))


def _code_of(error: DeviceError | DescriptorError) -> int:
    """Returns the error of the CUDA runtime for a fault."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), FAILURE)
