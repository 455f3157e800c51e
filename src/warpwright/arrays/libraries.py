"""The libraries of the arrays that operators take and return: NumPy, torch, CuPy, JAX."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.device import DeviceArray, device_array, dtype_of_name
from warpwright.arrays.jax import jax_result, jax_view
from warpwright.errors import UsageError

__all__ = [
    "LIBRARIES",
    "NUMPY",
    "OTHER",
    "Library",
    "View",
    "check_writable",
    "library_of",
    "location",
    "memory_of",
    "overlap",
    "overlaps_itself",
    "tensor_guard",
    "views_of",
]

Shape = tuple[int, ...]
Test = Callable[[int], bool]  # of a stream, by its handle
View = NDArray[Any] | DeviceArray

DLPACK_CPU = 1
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES = (("numpy", "ndarray"), ("torch", "Tensor"), ("cupy", "ndarray"), ("jax", "Array"), ("jax.core", "Tracer"))


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of one array library that an operator needs.

    ``view`` returns an array's memory without a copy, ``pointers`` the function that returns an array's address.
    ``guard`` returns a predicate that is true for values that differ from the array at most in their address; None if
    the library has no such test. ``stream`` returns a function that returns the handle of the current stream on the
    array's device. ``maker`` returns a function that allocates an array of a shape and dtype on the device of another
    array; ``zeros`` returns an array of zeros there. ``allocator`` returns two functions for a number of bytes: one
    allocates them for a stream and returns the address, the other frees the address. ``rounding`` and ``copying`` are
    the code for error messages that rounds to bfloat16 and that makes a dense copy. ``captures`` returns a test whether
    a graph captures the current stream on the array's device: the library's own, or the given one of any stream.
    ``result`` returns a result as an array of the library: where its own arrays cannot be written, new arrays are of
    NumPy.
    """

    name: str
    view: Callable[[Any], View]
    guard: Callable[[Any], Callable[[Any], bool] | None]
    pointers: Callable[[], Callable[[Any], int]]
    stream: Callable[[Any], Callable[[], int]]
    maker: Callable[[Shape, np.dtype[Any], Any], Callable[[], Any]]
    zeros: Callable[[Shape, np.dtype[Any], Any], Any]
    allocator: Callable[[int, Any], tuple[Callable[[int], int], Callable[[int], Any]]]
    rounding: str
    copying: str
    captures: Callable[[Any, Test], Test] = lambda like, test: test
    result: Callable[[Any], Any] = lambda result: result

    @property
    def pointer(self) -> Callable[[Any], int]:
        """The function that returns an array's address."""
        return self.pointers()

    def empty(self, shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
        """Returns an uninitialised array where ``like`` lies."""
        return self.maker(shape, dtype, like)()


def library_of(value: Any) -> Library | None:
    """Returns the library of an array; `OTHER` for an array of another library on a GPU, None for all else."""
    found = _of_type(value.__class__)
    if found is None and device_array(value) is not None:
        return OTHER
    return found


def memory_of(value: Any) -> Any:
    """Returns an array of any library as a DeviceArray or a NumPy array, without a copy; any other value itself."""
    if isinstance(value, np.ndarray | DeviceArray):
        return value
    on_gpu = device_array(value)
    if on_gpu is not None:
        return on_gpu
    library = _of_type(value.__class__)
    if library is not None:
        return library.view(value)
    if hasattr(value, "__array_interface__") and not isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == DLPACK_CPU:
        return np.from_dlpack(value)
    return value


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
                f"{operator}: {name} is a {type(given[name]).__name__}; expected an array of NumPy, torch, CuPy or "
                f"JAX: np.asarray({name})"
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


def overlaps_itself(view: View) -> bool:
    """Returns whether elements may share an address: a stride is less than what the axes of smaller strides span."""
    spanned = view.itemsize
    for stride, extent in sorted(zip(map(abs, view.strides), view.shape, strict=True)):
        if extent > 1 and stride < spanned:
            return view.size > 0
        spanned += (extent - 1) * stride
    return False


def check_writable(operator: str, out: View) -> None:
    """Raise UsageError unless a result can be stored to each element of ``out``."""
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise UsageError(f"{operator}: out is read-only; expected an array that can be written: leave out= out")
    if overlaps_itself(out):
        raise UsageError(
            f"{operator}: out has several elements at one address (strides of {out.strides} bytes); expected an "
            "address for each: leave out= out"
        )


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
    for module, array in TYPES:
        if issubclass(kind, getattr(sys.modules.get(module), array, ())):  # another thread may be importing it
            return LIBRARIES[module.partition(".")[0]]
    return None


def _no_guard(_: Any) -> None:
    """Returns None: launches copy host memory, and arrays of other libraries describe too little of themselves."""


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
    dtype = dtype_of_name(str(tensor.dtype).removeprefix("torch."))
    plain = tensor.detach()
    same = {1: torch.uint8, 2: torch.int16}[dtype.itemsize] if dtype.isbuiltin != 1 else plain.dtype
    array: NDArray[Any] = plain.view(same).numpy().view(dtype)
    return array


def tensor_guard(tensor: Any) -> Callable[[Any], bool] | None:
    """Returns a guard made of torch's own guards for compiled code. They compare the type, shape, strides, dtype,
    device, ``requires_grad`` and the dispatch modes, which must be empty, but not whether gradients are recorded."""
    torch = sys.modules["torch"]
    modes = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack()
    if modes or tensor.__class__ not in (torch.Tensor, torch.nn.Parameter):
        return None
    extents = {"dynamic_dims_sizes": [list(tensor.shape)], "dynamic_dims_strides": [list(tensor.stride())]}
    guard: Callable[[Any], bool] = torch._C._dynamo.guards.TensorGuards(tensor, **extents).check
    return guard


def _torch_guard(tensor: Any) -> Callable[[Any], bool] | None:
    """Returns the `tensor_guard`, which for a tensor that requires gradients also compares whether they are
    recorded."""
    guard = tensor_guard(tensor)
    if guard is None or not tensor.requires_grad:
        return guard
    torch = sys.modules["torch"]
    recorded, now = torch.is_grad_enabled, torch.is_grad_enabled()
    return lambda other: recorded() is now and guard(other)


def _torch_stream(tensor: Any) -> Callable[[], int]:
    """Uses the function that code compiled by torch calls: a Stream object costs microseconds."""
    return functools.partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, tensor.get_device())


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    return getattr(sys.modules["torch"], dtype.name)


def _torch_maker(shape: Shape, dtype: np.dtype[Any], like: Any) -> Callable[[], Any]:
    """Uses ``torch.empty``, or on the current GPU the function of code compiled by torch, which takes half the time."""
    torch, element, device = sys.modules["torch"], _torch_dtype(dtype), like.device
    empty = functools.partial(torch.empty, shape, dtype=element, device=device)
    current = getattr(torch._C, "_cuda_getDevice", None)
    on_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if not like.is_cuda or current is None or on_gpu is None:
        return empty
    strides, ordinal = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))), like.get_device()
    return lambda: on_gpu(shape, strides, element) if current() == ordinal else empty()


def _torch_zeros(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    return like.new_zeros(shape, dtype=_torch_dtype(dtype))


def _torch_allocator(nbytes: int, like: Any) -> tuple[Callable[[int], int], Callable[[int], Any]]:
    """Allocates from torch's pool without a tensor, which would take twice as long."""
    torch, ordinal = sys.modules["torch"], like.get_device()
    raw_alloc, current = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_getDevice

    def allocate(stream: int) -> int:
        if current() == ordinal:
            return int(raw_alloc(nbytes, stream))
        with torch.cuda.device(ordinal):
            return int(raw_alloc(nbytes, stream))

    return allocate, torch._C._cuda_cudaCachingAllocator_raw_delete


def _torch_captures(like: Any, test: Test) -> Test:
    """Uses torch's test of its current stream, which takes less host time than the driver's."""
    if not like.is_cuda:
        return test
    torch, ordinal = sys.modules["torch"], like.get_device()
    captured, current = torch._C._cuda_isCurrentStreamCapturing, torch._C._cuda_getDevice

    def captures(stream: int) -> bool:
        try:
            return bool(captured()) if current() == ordinal else test(stream)
        except RuntimeError:  # CUDA cannot say it of the legacy stream while another stream is captured
            return True

    return captures


def _cupy_allocator(nbytes: int, like: Any) -> tuple[Callable[[int], int], Callable[[int], Any]]:
    """Keeps a reference to each array: CuPy's pool frees memory without references."""
    make, arrays = _cupy_maker((nbytes,), np.dtype(np.uint8), like), dict[int, Any]()

    def allocate(_: int) -> int:
        array = make()
        address = int(array.data.ptr)
        arrays[address] = array
        return address

    return allocate, arrays.pop


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


def _refuse_new_array(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    owner = like.owner if isinstance(like, DeviceArray) else like
    raise UsageError(
        f"given a {type(owner).__name__}, which warpwright cannot allocate or copy; "
        "expected an array of NumPy, torch or CuPy, or matrices that need no copy and out= for the result"
    )


def _refuse_allocation(nbytes: int, like: Any) -> NoReturn:
    raise AssertionError(f"given {type(like).__name__}; expected an array on a GPU, of torch or CuPy")


ROUNDING = ".astype(ml_dtypes.bfloat16)"

OTHER = Library(
    "other",
    _on_gpu,
    _no_guard,
    lambda: lambda _: 0,
    _default_stream,
    _refuse_new_array,
    _refuse_new_array,
    _refuse_allocation,
    ROUNDING,
    "a dense copy",
)
NUMPY = Library(
    "numpy",
    lambda array: array,
    _no_guard,
    lambda: lambda array: int(array.ctypes.data),
    _default_stream,
    lambda shape, dtype, _: functools.partial(np.empty, shape, dtype),
    lambda shape, dtype, _: np.zeros(shape, dtype),
    _refuse_allocation,
    ROUNDING,
    "np.ascontiguousarray({name})",
)
LIBRARIES = {
    "numpy": NUMPY,
    "jax": replace(NUMPY, name="jax", view=jax_view, copying="jnp.array({name})", result=jax_result),
    "torch": Library(
        "torch",
        _torch_view,
        _torch_guard,
        lambda: sys.modules["torch"].Tensor.data_ptr,  # a call of the method itself takes the least host time
        _torch_stream,
        _torch_maker,
        _torch_zeros,
        _torch_allocator,
        ".bfloat16()",
        "{name}.clone()",
        _torch_captures,
    ),
    "cupy": Library(
        "cupy",
        _on_gpu,
        _cupy_guard,
        lambda: lambda array: int(array.data.ptr),
        _cupy_stream,
        _cupy_maker,
        _cupy_zeros,
        _cupy_allocator,
        ROUNDING,
        "{name}.copy()",
    ),
}
