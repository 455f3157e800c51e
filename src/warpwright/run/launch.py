"""`launch`: run PTX of any origin, or a kernel of the language, on a device."""

from __future__ import annotations

import contextlib
import difflib
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from warpwright import ptx
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import View, memory_of
from warpwright.errors import LaunchError, PtxSyntaxError, UsageError, WarpwrightError, kind_of
from warpwright.gpu import Device, LaunchResult
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.layout.peers import each_value
from warpwright.ptx import nodes
from warpwright.run.arguments import check_ranks, memory_arrays, pass_arguments, typed_arguments
from warpwright.run.devices import resolve

__all__ = ["Entry", "Launcher", "PtxModule", "launch", "load_ptx"]

Dim3 = tuple[int, int, int]
_doors: list[Callable[..., LaunchResult]] = []  # the last one takes the launches


@dataclass(frozen=True)
class Entry:
    """One kernel (``.entry``) of a PTX module, ready to be launched.

    ``block`` and ``cluster`` are the sizes that the PTX or the kernel requires, None without a requirement; ``smem`` is
    the dynamic shared memory of the kernel in bytes.
    """

    module: nodes.Module
    function: nodes.Function
    block: Dim3 | None = None
    cluster: Dim3 | None = None
    smem: int = 0

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def target(self) -> str:
        return self.module.target[0]

    def __repr__(self) -> str:
        return f"Entry({self.name}({', '.join(param.name for param in self.function.params)}) for {self.target})"

    def __getitem__(self, key: Any) -> Launcher:
        return launcher(self, key)


class PtxModule:
    """The kernels of one PTX text by name: ``module["saxpy"]`` finds a C++ function by its unmangled name too.

    Of a text of several kernels, ``module["saxpy"]`` checks the kernel's body and those of the functions that it needs,
    and raises PtxSyntaxError for what ptxas refuses. ``variables``: the address of the module's first variable;
    ``heap``: the bytes from which malloc of a kernel allocates.
    """

    def __init__(self, text: str, source: str, file: str = "<ptx>", variables: int = 0, heap: int = 0) -> None:
        self.source = source
        self._text, self._file, self._variables, self._heap = text, file, variables, heap
        functions = [item for item in ptx.load_outline(text, file).items if isinstance(item, nodes.Function)]
        self._entries: dict[str, Entry | None] = {item.name: None for item in functions if item.kind == "entry"}

    def __getitem__(self, name: str) -> Entry:
        plain = [mangled for mangled in self._entries if mangled.startswith(f"_Z{len(name)}{name}")]
        if name in self._entries:
            return self._load(name)
        if len(plain) == 1:
            return self._load(plain[0])
        raise UsageError(f"{self.source} has {self._near(name, plain)}")

    def _load(self, name: str) -> Entry:
        found = self._entries[name]
        if found is None:
            module = ptx.load_kernel(self._text, name, self._file)
            if self._variables:
                module = replace(module, variables=self._variables, heap=self._heap)
            found = self._entries[name] = entry_of(module, _function(module, name))
        return found

    def _near(self, name: str, overloads: list[str]) -> str:
        if overloads:
            return f"{len(overloads)} kernels named {name!r}; write one of {', '.join(overloads)}"
        close = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"no kernel {name!r}; its kernels are {', '.join(self._entries) or '(none)'}{hint}"

    def __repr__(self) -> str:
        return f"PtxModule({self.source}: {reprlib.repr(list(self._entries))})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def load_ptx(path_or_text: str | os.PathLike[str], *, whole: bool = False) -> PtxModule:
    """Read PTX from a file, or from a string of PTX text (any string with a line break).

    A text of one kernel is checked at once. Of a text of several kernels the bodies are not read, for a library has
    dozens: ``module[name]`` checks a kernel and the functions that it needs. ``whole``: check all of them at once.

    Raises UsageError for a file that cannot be read, and PtxSyntaxError, with line and column, for text that is not PTX
    or that ptxas refuses: operands of other types, names that are declared twice or not at all, values out of range,
    instructions that the target lacks.
    """
    if not isinstance(path_or_text, str | os.PathLike):
        edit = ": data.decode()" if isinstance(path_or_text, bytes | bytearray) else ""
        raise UsageError(
            f"given {kind_of(path_or_text)} to load_ptx; expected the path of a PTX file, or PTX text as a str{edit}"
        )
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return _module(path_or_text, "this PTX", "<ptx>", whole)
    path = Path(path_or_text)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read PTX from {path}: {error.strerror}; give a file or the text itself") from None
    except UnicodeDecodeError as error:
        found = path.read_bytes()[error.start]
        raise PtxSyntaxError(
            f"{path} is not PTX: byte {error.start} is 0x{found:02x}; expected UTF-8 text that begins with .version "
            "(a cubin or fatbin is no text: compile with nvcc -ptx)"
        ) from None
    return _module(text, path.name, path.name, whole)


def _module(text: str, source: str, file: str, whole: bool) -> PtxModule:
    if whole:
        ptx.load_once(text, file)
    return PtxModule(text, source, file)


def entry_of(module: nodes.Module, function: nodes.Function) -> Entry:
    """Returns the Entry of a function, with the block and cluster that its directives require."""
    required = {directive.name: directive.text for directive in function.directives}
    return Entry(module, function, parse_dims(required.get(".reqntid")), parse_dims(required.get(".reqnctapercluster")))


def _function(module: nodes.Module, name: str) -> nodes.Function:
    return next(item for item in module.items if isinstance(item, nodes.Function) and item.name == name)


def parse_dims(text: str | None) -> Dim3 | None:
    """Parses the sizes of a directive, such as ``"128, 1"``, as (x, y, z)."""
    return None if text is None else _pad([int(word, 0) for word in text.replace(",", " ").split()])


def entry_point(kernel: Entry | Traced) -> Entry:
    """Returns the Entry of ``kernel``; for a kernel of the language, that of its PTX text."""
    if isinstance(kernel, Traced):
        module = ptx.load_once(kernel.ptx)
        function = _function(module, kernel.entry)
        return Entry(module, function, kernel.threads, kernel.cluster, kernel.smem_bytes)
    if isinstance(kernel, Entry):
        return kernel
    raise UsageError(
        f"cannot launch {kind_of(kernel)}; expected a function decorated with @kernel or load_ptx(path)[name]"
    )


@dataclass(frozen=True, slots=True)
class Launcher:
    """``kernel[grid, block]``, a launch that lacks its arguments: ``kernel[grid, block](x, n)`` runs it.

    ``grid`` may be a function of the kernel's configuration, as in Triton. ``block`` sets the configuration value
    ``threads`` of a kernel that has one; else it must be the block of the kernel, or may be left out.
    """

    kernel: Entry | Kernel
    grid: Any
    block: int | Sequence[int] | None

    def __call__(
        self,
        *args: Any,
        device: Device | str | None = None,
        stream: Any = None,
        smem: int | None = None,
        memory: Sequence[Any] | None = None,
        **config: Any,
    ) -> LaunchResult:
        """Run the kernel as `launch` does, with other values of its configuration."""
        kernel, block = self.kernel, self.block
        if isinstance(kernel, Entry) and config:
            raise UsageError(f"given {next(iter(config))}= to {kernel.name}[…](…); PTX takes its arguments by position")
        if isinstance(kernel, Kernel):
            threads = {"threads": block} if "threads" in kernel.config and block is not None else {}
            kernel = kernel.configure(**threads, **config)
            self._check_block(kernel.trace().threads)
        grid = self.grid(getattr(kernel, "config", {})) if callable(self.grid) else self.grid
        return launch(kernel, grid, block, smem=smem, args=args, device=device, stream=stream, memory=memory)

    def _check_block(self, threads: Dim3) -> None:
        if self.block is None or dim3("block", self.block) == threads:
            return
        name, fixed = self.kernel.name, threads[0] if threads[1:] == (1, 1) else threads
        edit = f"write {name}[{self.grid}], or @kernel(threads={self.block})"
        if isinstance(self.grid, int) and isinstance(self.block, int):
            edit += f"; a grid of {self.grid} × {self.block} CTAs is {name}[({self.grid}, {self.block}), {fixed}]"
        raise LaunchError(f"given {name}[{self.grid}, {self.block}] for a kernel of {fixed} threads; {edit}")


def launcher(kernel: Entry | Kernel, key: Any) -> Launcher:
    """Returns ``kernel[key]``; ``key`` is a grid, a grid and a block, or the three extents of a grid."""
    values = key if isinstance(key, tuple) else (key,)
    if len(values) == 3 and all(isinstance(value, int) for value in values):
        values = (values,)
    if len(values) not in (1, 2):
        raise LaunchError(
            f"given {kernel.name}[{', '.join(map(repr, values))}]; expected {kernel.name}[grid] or "
            f"{kernel.name}[grid, block], with a number or (x, y, z) for each"
        )
    grid, block = (*values, None)[:2]
    for name, value in (("grid", grid), ("block", block)):
        if value is not None and not (name == "grid" and callable(value)):
            dim3(name, value)
    return Launcher(kernel, grid, block)


Kernel.launcher = staticmethod(launcher)


def launch(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int | None = None,
    args: Sequence[Any] = (),
    device: Device | str | None = None,
    observers: Sequence[Any] = (),
    stream: Any = None,
    numerics: str | None = None,
    limit: int | None = None,
    memory: Sequence[Any] | None = None,
) -> LaunchResult:
    """Run ``kernel`` on ``device``, wait until it has finished, and copy its results to the arrays in ``args``.

    The text that the kernel prints goes to standard output at the end, and is ``printed`` of the result.

    ``grid`` counts CTAs, ``block`` threads, ``cluster`` CTAs: a number, or up to three in the order x, y, z. ``smem``
    is dynamic shared memory in bytes. A kernel of the language, or PTX with ``.reqntid``, needs no ``block``.
    ``args`` has a value for each ``.param``: an array of NumPy, torch, CuPy or another library (device pointer), a
    TensorMap, a Python or NumPy number, or for a struct ``bytes``, a ctypes.Structure or a NumPy record; on a node
    (``device="h200x2"``) a `PerRank` of such values. A kernel of the language has the box and swizzle of its tensor
    maps, so it takes the array. Arrays of the host are copied to the
    device and back; those that share memory share it there too. Of an array that is not C-contiguous the kernel gets a
    packed copy. Arrays on a GPU are used in place; if all arrays are on a GPU, the launch is started without waiting:
    on ``stream`` (of cuda.core, torch or CuPy, or the driver's handle), else on the current stream of that library.
    ``device``: a name or a Device; the default is the GPU of the arrays, else the first real GPU that runs the PTX's
    target, else the virtual GPU of that target. ``observers`` follow a launch on a virtual GPU.
    ``numerics`` of a virtual GPU's tensor cores (default: those of the device): ``"exact"`` sums the exact products of
    an instruction in float32 or wider; ``"hardware"`` rounds as models of the hardware do. A real GPU ignores it.
    ``limit`` of a virtual GPU: block jumps (iterations of a loop, at least one each) that a warp may make; a kernel
    that does not end reaches the limit. The default is no limit.
    ``memory``: arrays, or objects with a buffer, that the kernel reaches through pointers in structs, in tables or in
    numbers. With it, also if it is empty, every array of the launch has its own address of the host
    (``x.ctypes.data``, ``x.data_ptr()``), and none is packed; without it a virtual GPU places the arrays at addresses
    of its own, always the same. A real GPU accepts arrays in its memory only; the default device of ``memory`` with
    arrays on the host is a virtual GPU.

    Raises LaunchError for a launch that the device refuses, UsageError for arguments that do not fit the parameters or
    that share memory where one must be packed, UsageError after the launch if the kernel wrote a read-only array (all
    other results are stored), LimitReached, and another DeviceError for a fault of the kernel.
    """
    run = _doors[-1] if _doors and not observers else start
    return run(
        kernel,
        grid,
        block=block,
        cluster=cluster,
        smem=smem,
        args=args,
        device=device,
        observers=observers,
        stream=stream,
        numerics=numerics,
        limit=limit,
        memory=memory,
    )


@contextlib.contextmanager
def redirect(door: Callable[..., LaunchResult]) -> Iterator[None]:
    """Let ``door`` take the launches inside the context, but for those with observers: it has the parameters and the
    result of `launch`, and calls `start`."""
    _doors.append(door)
    try:
        yield
    finally:
        _doors.remove(door)


def start(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int | None = None,
    args: Sequence[Any] = (),
    device: Device | str | None = None,
    observers: Sequence[Any] = (),
    stream: Any = None,
    numerics: str | None = None,
    limit: int | None = None,
    memory: Sequence[Any] | None = None,
) -> LaunchResult:
    """Run ``kernel`` as `launch` does, past every door."""
    check_limit(limit)
    entry, shape, args = prepare_launch(kernel, grid, block, cluster, args)
    arrays = memory_arrays(memory)
    target = _device_for(device, entry.target, args, arrays, bool(observers))
    if not target.name.startswith("cuda"):
        check_ranks(entry.name, args, target.spec)
    options = _options(stream, numerics, limit, [*args, *(arrays or ())], target)
    options |= shape | {"smem": entry.smem if smem is None else smem, "observers": observers}
    if arrays is not None:
        options["memory"] = arrays
    try:
        with pass_arguments(entry.name, entry.function.params, args, arrays) as passed:
            result = target.launch(entry.module, entry.name, args=passed, **options)
    except WarpwrightError as error:
        sys.stdout.write(error.printed)
        raise
    sys.stdout.write(result.printed)
    return result


def prepare_launch(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None,
    cluster: int | Sequence[int] | None,
    args: Sequence[Any],
) -> tuple[Entry, dict[str, Dim3], list[Any]]:
    """Returns the Entry, its grid, block and cluster, and the arguments, with arrays converted to tensor maps."""
    if isinstance(kernel, Kernel):
        kernel = kernel.trace()
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise UsageError(f"given {kind_of(args)} as args; expected a list with a value for each parameter: args=[x, n]")
    args = [memory_of(value) for value in args]
    if isinstance(kernel, Traced):
        args = list(typed_arguments(kernel.params, kernel.maps, args))
    entry = entry_point(kernel)
    if block is None and entry.block is None:
        raise LaunchError(f"launch of {entry.name!r} without block=; expected the threads of a CTA, such as block=128")
    shape = {
        "grid": dim3("grid", grid),
        "block": _choose_dims("block", block, entry.block),
        "cluster": _choose_dims("cluster", cluster, entry.cluster),
    }
    return entry, shape, args


def gpu_of(args: Iterable[Any]) -> str | None:
    """Returns the name of the GPU of the first array on a GPU; None if all arrays are on the host."""
    arrays = [getattr(value, "array", value) for value in each_value(args)]
    return next((f"cuda:{array.ordinal or 0}" for array in arrays if isinstance(array, DeviceArray)), None)


def _device_for(
    device: Device | str | None, target: str, args: Sequence[Any], memory: Sequence[View] | None, observed: bool
) -> Device:
    """Returns the device of a launch. Raises LaunchError for a real GPU whose kernel would follow pointers to the host:
    with ``memory``, and an array on the host."""
    at_host = memory is not None and _on_host(args, memory)
    given = gpu_of([*args, *(memory or ())]) if device is None else device
    found = resolve(given, target, virtual=observed or at_host)
    if at_host and found.name.startswith("cuda"):
        raise LaunchError(
            f"given memory= and an array on the host for {found.name}, whose kernels cannot follow pointers to the "
            "host; expected all arrays in its memory; copy them there, or launch on a virtual GPU: device='h200'"
        )
    return found


def _on_host(args: Iterable[Any], memory: Iterable[View]) -> bool:
    """Returns whether an array of a launch is on the host; an array without dimensions is the value of a struct."""
    arrays = (getattr(value, "array", value) for value in each_value((*args, *memory)))
    return any(isinstance(array, np.ndarray) and array.ndim for array in arrays)


def check_limit(limit: int | None) -> None:
    """Raise UsageError for a limit of block jumps that is not a positive integer."""
    if limit is not None and (not isinstance(limit, int) or not 0 < limit < 1 << 63):
        raise UsageError(f"given limit={limit!r}; expected a positive number of jumps, such as limit=2_000_000")


def _options(
    stream: Any, numerics: str | None, limit: int | None, args: Sequence[Any], device: Device
) -> dict[str, Any]:
    """Returns the option ``stream`` of a real GPU, or ``numerics`` and ``limit`` of a virtual GPU, which cannot read
    GPU memory."""
    if device.name.startswith("cuda"):
        if limit is not None:
            raise LaunchError(
                f"given limit={limit} for {device.name}; expected it for a virtual GPU only; leave limit= out"
            )
        return {"stream": stream}
    if stream is not None:
        raise LaunchError(f"given stream={stream!r} for the virtual {device.name}; expected none; leave stream= out")
    check_host(args, device)
    return {"numerics": numerics, "limit": limit}


def check_host(args: Sequence[Any], device: Device) -> None:
    """Raise LaunchError for an array on a GPU, which the virtual ``device`` cannot read."""
    if gpu_of(args):
        raise LaunchError(
            f"given an array on {gpu_of(args)} for the virtual {device.name}; expected arrays on the host; "
            "copy it to the host, or launch it without device="
        )


def dim3(name: str, value: int | Sequence[int]) -> Dim3:
    """Returns ``value`` as three positive numbers. Raises LaunchError for any other value."""
    try:
        given = [index(n) for n in (value if isinstance(value, Iterable) else (value,))]
    except TypeError:
        given = []
    if not 1 <= len(given) <= 3 or min(given) < 1:
        edit = ": round up with -(-n // 128)" if isinstance(value, float) else ""
        raise LaunchError(f"{name}={value!r}: expected a positive integer, or one to three of them as (x, y, z){edit}")
    return _pad(given)


def _pad(values: Sequence[int]) -> Dim3:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _choose_dims(name: str, given: int | Sequence[int] | None, required: Dim3 | None) -> Dim3:
    """Returns ``given``, or the size that the kernel requires. Raises LaunchError if both differ."""
    dims = required if given is None else dim3(name, given)
    if required is not None and dims != required:
        raise LaunchError(f"{name}={given!r}: the kernel itself demands {required}; leave {name}= out")
    return dims or (1, 1, 1)
