"""Launching a kernel: PTX of any origin, or a kernel of the language, with NumPy arguments, on a device."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from warpwright import ptx
from warpwright.arrays.device import DeviceArray, device_array
from warpwright.errors import LaunchError, PtxSyntaxError, UsageError
from warpwright.gpu import Device, LaunchResult
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx import nodes
from warpwright.run.arguments import pass_arguments, typed_arguments
from warpwright.run.devices import resolve

__all__ = ["Entry", "PtxModule", "launch", "load_ptx"]

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Entry:
    """One kernel (``.entry``) of a PTX module, ready to be launched.

    ``block`` and ``cluster`` are what the PTX or the kernel itself demands (None where it leaves them open);
    ``smem`` is the dynamic shared memory in bytes that the kernel asks for.
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


class PtxModule:
    """The kernels of one PTX text, by name: ``module["saxpy"]``, also for a C++ function by its plain name."""

    def __init__(self, module: nodes.Module, source: str) -> None:
        self.module = module
        self.source = source
        functions = [item for item in module.items if isinstance(item, nodes.Function) and item.kind == "entry"]
        self._entries = {function.name: entry_of(module, function) for function in functions}

    def __getitem__(self, name: str) -> Entry:
        plain = [mangled for mangled in self._entries if mangled.startswith(f"_Z{len(name)}{name}")]
        if name in self._entries:
            return self._entries[name]
        if len(plain) == 1:
            return self._entries[plain[0]]
        raise UsageError(f"{self.source} has {self._near(name, plain)}")

    def _near(self, name: str, overloads: list[str]) -> str:
        if overloads:
            return f"{len(overloads)} kernels named {name!r}; write one of {', '.join(overloads)}"
        close = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"no kernel {name!r}; its kernels are {', '.join(self._entries) or '(none)'}{hint}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def load_ptx(path_or_text: str | os.PathLike[str]) -> PtxModule:
    """Read PTX from a file, or from a string that holds the text itself (anything with a line break).

    Raises UsageError for a file that cannot be read, PtxSyntaxError for text that is not PTX.
    """
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return PtxModule(parsed(path_or_text), "this PTX")
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
    return PtxModule(parsed(text), path.name)


parsed = functools.lru_cache(maxsize=32)(ptx.parse)  # a kernel that is launched again is not parsed again


def entry_of(module: nodes.Module, function: nodes.Function) -> Entry:
    """The Entry of a function, with the block and cluster that its directives require."""
    demands = {directive.name: directive.text for directive in function.directives}
    return Entry(module, function, dims(demands.get(".reqntid")), dims(demands.get(".reqnctapercluster")))


def dims(text: str | None) -> Dim3 | None:
    """``"128, 1"`` of a directive as (x, y, z)."""
    return None if text is None else _padded([int(word, 0) for word in text.replace(",", " ").split()])


def entry_point(kernel: Entry | Traced) -> Entry:
    """What is launched for ``kernel``; a kernel of the language goes through the PTX text that it prints."""
    if isinstance(kernel, Traced):
        entry = PtxModule(parsed(kernel.ptx), kernel.entry)[kernel.entry]
        return Entry(entry.module, entry.function, kernel.threads, kernel.cluster, kernel.smem_bytes)
    if isinstance(kernel, Entry):
        return kernel
    raise UsageError(
        f"cannot launch a {type(kernel).__name__}; expected a function decorated with @kernel or load_ptx(path)[name]"
    )


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
) -> LaunchResult:
    """Run ``kernel`` on ``device`` and return when it has finished; arrays in ``args`` then hold what it wrote.

    What the kernel prints goes to standard output at the end, and is ``printed`` of the result.

    ``grid`` counts CTAs, ``block`` threads, ``cluster`` CTAs: a number, or up to three in the order x, y, z. ``smem``
    is dynamic shared memory in bytes. A kernel of the language, or PTX with ``.reqntid``, knows its own ``block``.
    ``args``: one for each ``.param``: a NumPy array of any strides (device pointer; read-only arrays stay
    unwritten), a TensorMap, a Python or NumPy number, or ``bytes`` for a struct. A kernel of the language knows the
    box and swizzle of its tensor maps, so there the array is enough. Arrays of torch, CuPy or another library that
    are on a GPU are used in place, and when all are, the launch is only started: on ``stream`` (of cuda.core, torch or
    CuPy, or the driver's handle), else on the current stream of that library.
    ``device``: a name or a Device; without one, the GPU that holds the arrays, else the first real GPU that runs the
    PTX's target, else the virtual one. ``observers`` watch a virtual GPU.
    ``numerics`` of a virtual GPU's tensor cores (without it, the device's): ``"exact"`` sums the exact products of an
    instruction in float32 or wider; ``"hardware"`` rounds as models of the hardware do. A real GPU rounds as it does.

    Raises LaunchError for a launch the device refuses, UsageError for arguments that do not fit the parameters, and
    a DeviceError for a fault while the kernel runs.
    """
    entry, shape, args = arranged(kernel, grid, block, cluster, args)
    target = resolve(device or holder(args), entry.target, virtual=bool(observers))
    options = _options(stream, numerics, args, target)
    with pass_arguments(entry.name, entry.function.params, args) as passed:
        result = target.launch(
            entry.module,
            entry.name,
            **shape,
            smem=entry.smem if smem is None else smem,
            args=passed,
            observers=observers,
            **options,
        )
    sys.stdout.write(result.printed)
    return result


def arranged(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None,
    cluster: int | Sequence[int] | None,
    args: Sequence[Any],
) -> tuple[Entry, dict[str, Dim3], list[Any]]:
    """What is launched, its grid, block and cluster, and the arguments as its parameters take them."""
    if isinstance(kernel, Kernel):
        kernel = kernel.trace()
    args = [device_array(value) or value for value in args]
    if isinstance(kernel, Traced):
        args = list(typed_arguments(kernel.params, kernel.maps, args))
    entry = entry_point(kernel)
    if block is None and entry.block is None:
        raise LaunchError(f"launch of {entry.name!r} without block=; expected the threads of a CTA, such as block=128")
    shape = {
        "grid": dim3("grid", grid),
        "block": _agreed("block", block, entry.block),
        "cluster": _agreed("cluster", cluster, entry.cluster),
    }
    return entry, shape, args


def holder(args: Iterable[Any]) -> str | None:
    """The GPU that holds the first array that is on one."""
    arrays = [value.array if isinstance(value, TensorMap) else value for value in args]
    return next((f"cuda:{array.ordinal or 0}" for array in arrays if isinstance(array, DeviceArray)), None)


def _options(stream: Any, numerics: str | None, args: Sequence[Any], device: Device) -> dict[str, Any]:
    """``stream`` for a real GPU, ``numerics`` for a virtual one, which sees no memory of real GPUs."""
    if device.name.startswith("cuda"):
        return {"stream": stream}
    if stream is not None:
        raise LaunchError(f"given stream={stream!r} for the virtual {device.name}; expected none; leave stream= out")
    if holder(args):
        raise LaunchError(
            f"given an array on {holder(args)} for the virtual {device.name}; expected NumPy arrays; "
            "copy it to the host, or leave device= out"
        )
    return {"numerics": numerics}


def dim3(name: str, value: int | Sequence[int]) -> Dim3:
    """``value`` as three positive numbers; LaunchError otherwise."""
    try:
        given = [index(n) for n in (value if isinstance(value, Iterable) else (value,))]
    except TypeError:
        given = []
    if not 1 <= len(given) <= 3 or min(given) < 1:
        raise LaunchError(f"{name}={value!r}: expected a positive number, or one to three of them as (x, y, z)")
    return _padded(given)


def _padded(values: Sequence[int]) -> Dim3:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _agreed(name: str, given: int | Sequence[int] | None, demanded: Dim3 | None) -> Dim3:
    """``given``, or what the kernel demands; both together must agree."""
    wanted = demanded if given is None else dim3(name, given)
    if demanded is not None and wanted != demanded:
        raise LaunchError(f"{name}={given!r}: the kernel itself demands {demanded}; leave {name}= out")
    return wanted or (1, 1, 1)
