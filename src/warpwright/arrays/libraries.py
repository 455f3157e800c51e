"""The array libraries whose arrays operators take and return: NumPy, torch, CuPy."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.device import DeviceArray, device_array, dtype_named
from warpwright.errors import UsageError

__all__ = ["LIBRARIES", "OTHER", "Library", "View", "library_of", "location", "overlap", "views_of"]

Shape = tuple[int, ...]
View = NDArray[Any] | DeviceArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class Library:
    """What an operator needs of one library.

    ``view`` is an array's memory, without a copy, and ``pointer`` its address. ``guard`` returns a function that tells
    whether a value differs from the given array in no more than its address; None where nothing can tell. ``stream``
    returns a function that returns the handle of the library's current stream where the array lies, ``maker`` one that
    makes an array of a shape and dtype there; ``zeros`` makes one of zeros. ``lender`` returns two functions: one
    returns the address of so many bytes, given the stream that uses them, one gives them back. ``rounding`` and
    ``copying`` are what a user writes to round to bfloat16 and to get a dense copy.
    """

    name: str
    view: Callable[[Any], View]
    guard: Callable[[Any], Callable[[Any], bool] | None]
    pointer: Callable[[Any], int]
    stream: Callable[[Any], Callable[[], int]]
    maker: Callable[[Shape, np.dtype[Any], Any], Callable[[], Any]]
    zeros: Callable[[Shape, np.dtype[Any], Any], Any]
    lender: Callable[[int, Any], tuple[Callable[[int], int], Callable[[int], Any]]]
    rounding: str
    copying: str

    def empty(self, shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
        """Returns an uninitialised array where ``like`` lies."""
        return self.maker(shape, dtype, like)()


def library_of(value: Any) -> Library | None:
    """Returns the library of an array; `OTHER` for an array of another library on a GPU, None for all else."""
    found = _of_type(value.__class__)
    if found is None and device_array(value) is not None:
        return OTHER
    return found


def views_of(
    operator: str, arrays: Mapping[str, Any], optional: Collection[str] = ()
) -> tuple[Library, dict[str, View]]:
    """Returns the library of all arrays of a call, and the memory of each; an ``optional`` array may be None.

    Raises UsageError for a value that is no array, and for arrays of two libraries.
    """
    given = {name: value for name, value in arrays.items() if value is not None or name not in optional}
    found = {name: library_of(value) for name, value in given.items()}
    first, common = next(iter(found.items()))
    for name, library in found.items():
        if library is None:
            raise UsageError(
                f"{operator}: {name} is a {type(given[name]).__name__}; expected an array of NumPy, torch or CuPy: "
                f"np.asarray({name})"
            )
        if library is not common:
            raise UsageError(
                f"{operator}: {first} is of {_module(given[first])} and {name} of {_module(given[name])}; expected "
                "arrays of one library"
            )
    shared = common or OTHER
    return shared, {name: shared.view(value) for name, value in given.items()}


def location(view: View) -> str:
    """Returns where an array is: ``"the host"`` or ``"cuda:0"``."""
    return f"cuda:{view.ordinal or 0}" if isinstance(view, DeviceArray) else "the host"


def overlap(a: View, b: View) -> bool:
    """Returns whether two arrays share an element."""
    return location(a) == location(b) and np.shares_memory(_addresses(a), _addresses(b))


def _addresses(view: View) -> NDArray[Any]:
    """Returns a NumPy array at the addresses of ``view``, which must not be read."""
    if isinstance(view, np.ndarray):
        return view
    data, typestr = (view.pointer, True), f"|V{view.itemsize}"
    memory = {"data": data, "shape": view.shape, "strides": view.strides, "typestr": typestr, "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=memory))


def _module(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


@functools.cache
def _of_type(kind: type) -> Library | None:
    for library, array in (("numpy", "ndarray"), ("torch", "Tensor"), ("cupy", "ndarray")):
        module = sys.modules.get(library)
        if module is not None and issubclass(kind, getattr(module, array)):
            return LIBRARIES[library]
    return None


def _no_guard(_: Any) -> None:
    """Every launch copies host memory, and arrays of other libraries describe too little of themselves."""


def _torch_view(tensor: Any) -> View:
    if tensor.device.type not in ("cpu", "cuda"):
        raise UsageError(f"given a tensor on {tensor.device}; expected one on cpu or cuda; move it: x.cuda()")
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise UsageError(f"given a tensor of layout {tensor.layout}; expected a dense one; pass x.to_dense()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            "given a tensor that requires gradients, which this function does not record; expected x.detach(), "
            "or use its operator in torch.ops.warpwright, which warpwright.interop.torch registers"
        )
    on_gpu = device_array(tensor)
    if on_gpu is not None:
        return on_gpu
    dtype = dtype_named(str(tensor.dtype).removeprefix("torch."))
    plain = tensor.detach()
    same = {1: torch.uint8, 2: torch.int16}[dtype.itemsize] if dtype.isbuiltin != 1 else plain.dtype
    array: NDArray[Any] = plain.view(same).numpy().view(dtype)
    return array


def _torch_guard(tensor: Any) -> Callable[[Any], bool] | None:
    """By torch's guards, which decide whether code that it compiled may run: they compare the type, all that describes
    the memory, whether it requires gradients, and through which modes a call goes; here, through none. They do not
    compare whether gradients are recorded, which must be as it is now where there would be some."""
    torch = sys.modules["torch"]
    modes = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack()
    if modes or tensor.__class__ not in (torch.Tensor, torch.nn.Parameter):
        return None
    extents = {"dynamic_dims_sizes": [list(tensor.shape)], "dynamic_dims_strides": [list(tensor.stride())]}
    guard: Callable[[Any], bool] = torch._C._dynamo.guards.TensorGuards(tensor, **extents).check
    if not tensor.requires_grad:
        return guard
    recorded, now = torch.is_grad_enabled, torch.is_grad_enabled()
    return lambda other: recorded() is now and guard(other)


def _torch_stream(tensor: Any) -> Callable[[], int]:
    """By the function that code which torch compiles calls, since a Stream object costs microseconds."""
    return functools.partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, tensor.get_device())


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    return getattr(sys.modules["torch"], dtype.name)


def _torch_maker(shape: Shape, dtype: np.dtype[Any], like: Any) -> Callable[[], Any]:
    """``torch.empty``; on the current GPU what code that torch compiles calls, which takes half the time."""
    torch, element, device = sys.modules["torch"], _torch_dtype(dtype), like.device
    made = functools.partial(torch.empty, shape, dtype=element, device=device)
    current = getattr(torch._C, "_cuda_getDevice", None)
    on_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if not like.is_cuda or current is None or on_gpu is None:
        return made
    strides, ordinal = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))), like.get_device()
    return lambda: on_gpu(shape, strides, element) if current() == ordinal else made()


def _torch_zeros(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    return like.new_zeros(shape, dtype=_torch_dtype(dtype))


def _torch_lender(nbytes: int, like: Any) -> tuple[Callable[[int], int], Callable[[int], Any]]:
    """From torch's own pool, without a tensor around the memory, which would take twice as long."""
    torch, ordinal = sys.modules["torch"], like.get_device()
    take, current = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_getDevice

    def lend(stream: int) -> int:
        if current() == ordinal:
            return int(take(nbytes, stream))
        with torch.cuda.device(ordinal):
            return int(take(nbytes, stream))

    return lend, torch._C._cuda_cudaCachingAllocator_raw_delete


def _cupy_lender(nbytes: int, like: Any) -> tuple[Callable[[int], int], Callable[[int], Any]]:
    """Its pool takes memory back when nothing refers to it."""
    make, lent = _cupy_maker((nbytes,), np.dtype(np.uint8), like), dict[int, Any]()

    def lend(_: int) -> int:
        array = make()
        address = int(array.data.ptr)
        lent[address] = array
        return address

    return lend, lent.pop


def _cupy_guard(array: Any) -> Callable[[Any], bool]:
    def signature(array: Any) -> Any:
        return array.shape, array.strides, array.dtype, array.device.id

    kind, known = array.__class__, signature(array)
    return lambda other: other.__class__ is kind and signature(other) == known


def _cupy_stream(array: Any) -> Callable[[], int]:
    cupy, device = sys.modules["cupy"], array.device

    def current() -> int:
        with device:
            return int(cupy.cuda.get_current_stream().ptr)

    return current


def _cupy_maker(shape: Shape, dtype: np.dtype[Any], like: Any) -> Callable[[], Any]:
    cupy, device = sys.modules["cupy"], like.device

    def make() -> Any:
        with device:
            return cupy.empty(shape, dtype)

    return make


def _cupy_zeros(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    with like.device:
        return sys.modules["cupy"].zeros(shape, dtype)


def _on_gpu(value: Any) -> DeviceArray:
    found = device_array(value)
    assert found is not None
    return found


def _default_stream(_: Any) -> Callable[[], int]:
    return lambda: 0


def _none_made(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    owner = like.owner if isinstance(like, DeviceArray) else like
    raise UsageError(
        f"given a {type(owner).__name__}, which warpwright has no way to make or copy; "
        "expected an array of NumPy, torch or CuPy, or matrices that need no copy and out= for the result"
    )


def _nothing_lent(nbytes: int, like: Any) -> NoReturn:
    raise AssertionError(f"given {type(like).__name__}; expected an array on a GPU, of torch or CuPy")


ROUNDING = ".astype(ml_dtypes.bfloat16)"

OTHER = Library(
    "other",
    _on_gpu,
    _no_guard,
    lambda _: 0,
    _default_stream,
    _none_made,
    _none_made,
    _nothing_lent,
    ROUNDING,
    "a dense copy",
)
LIBRARIES = {
    "numpy": Library(
        "numpy",
        lambda array: array,
        _no_guard,
        lambda array: int(array.ctypes.data),
        _default_stream,
        lambda shape, dtype, _: functools.partial(np.empty, shape, dtype),
        lambda shape, dtype, _: np.zeros(shape, dtype),
        _nothing_lent,
        ROUNDING,
        "np.ascontiguousarray({name})",
    ),
    "torch": Library(
        "torch",
        _torch_view,
        _torch_guard,
        lambda tensor: tensor.data_ptr(),
        _torch_stream,
        _torch_maker,
        _torch_zeros,
        _torch_lender,
        ".bfloat16()",
        "{name}.clone()",
    ),
    "cupy": Library(
        "cupy",
        _on_gpu,
        _cupy_guard,
        lambda array: int(array.data.ptr),
        _cupy_stream,
        _cupy_maker,
        _cupy_zeros,
        _cupy_lender,
        ROUNDING,
        "{name}.copy()",
    ),
}
