"""The array libraries whose arrays an operation takes and gives back: NumPy, torch, CuPy."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.arrays import DeviceArray, device_array, dtype_named
from warpwright.errors import UsageError

__all__ = ["LIBRARIES", "OTHER", "Library", "View", "library_of"]

Shape = tuple[int, ...]
View = NDArray[Any] | DeviceArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class Library:
    """What an operation needs of one library.

    ``view`` is an array's memory, without a copy; ``signature`` all that decides how it is read, but its address:
    equal for arrays that one prepared launch fits; ``pointer`` that address; ``stream`` the handle of the stream on
    which the library works now, given an array. ``empty`` and ``zeros`` make an array where a given one is;
    ``rounding`` and ``copying`` are what a user writes to round to bfloat16 and to get a dense copy.
    """

    name: str
    view: Callable[[Any], View]
    signature: Callable[[Any], Any]
    pointer: Callable[[Any], int]
    stream: Callable[[Any], int]
    empty: Callable[[Shape, np.dtype[Any], Any], Any]
    zeros: Callable[[Shape, np.dtype[Any], Any], Any]
    rounding: str
    copying: str


def library_of(value: Any) -> Library | None:
    """The library of an array; `OTHER` for one of another library on a GPU, None for all else."""
    found = _of_type(value.__class__)
    if found is None and device_array(value) is not None:
        return OTHER
    return found


@functools.cache
def _of_type(kind: type) -> Library | None:
    for library, array in (("numpy", "ndarray"), ("torch", "Tensor"), ("cupy", "ndarray")):
        module = sys.modules.get(library)
        if module is not None and issubclass(kind, getattr(module, array)):
            return LIBRARIES[library]
    return None


def _numpy_signature(array: NDArray[Any]) -> None:
    """None: nothing is prepared for memory of the host, which every launch copies."""


def _torch_view(tensor: Any) -> View:
    if tensor.device.type not in ("cpu", "cuda"):
        raise UsageError(f"given a tensor on {tensor.device}; expected one on cpu or cuda; move it: x.cuda()")
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise UsageError(f"given a tensor of layout {tensor.layout}; expected a dense one; pass x.to_dense()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            "given a tensor that requires gradients, which this function does not record; expected x.detach(), "
            "or use torch.ops.warpwright.matmul of warpwright.interop.torch"
        )
    on_gpu = device_array(tensor)
    if on_gpu is not None:
        return on_gpu
    dtype = dtype_named(str(tensor.dtype).removeprefix("torch."))
    plain = tensor.detach()
    same = {1: torch.uint8, 2: torch.int16}[dtype.itemsize] if dtype.isbuiltin != 1 else plain.dtype
    array: NDArray[Any] = plain.view(same).numpy().view(dtype)
    return array


def _torch_signature(tensor: Any) -> Any:
    if not tensor.is_cuda or (tensor.requires_grad and sys.modules["torch"].is_grad_enabled()):
        return None
    try:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    except RuntimeError:  # a sparse one has no strides
        return None


def _torch_stream(tensor: Any) -> int:
    """By the function that code which torch compiles calls, since a Stream object costs microseconds."""
    handle: int = sys.modules["torch"]._C._cuda_getCurrentRawStream(tensor.get_device())
    return handle


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    return getattr(sys.modules["torch"], dtype.name)


def _torch_empty(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    return _torch_new(shape, dtype)(like)


@functools.lru_cache(maxsize=1024)
def _torch_new(shape: Shape, dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """Like `Tensor.new_empty`; on the current GPU by what code that torch compiles calls, in half the time."""
    torch, element = sys.modules["torch"], _torch_dtype(dtype)
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    current = getattr(torch._C, "_cuda_getDevice", None)
    on_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)

    def make(like: Any) -> Any:
        if current is not None and on_gpu is not None and like.is_cuda and like.get_device() == current():
            return on_gpu(shape, strides, element)
        return like.new_empty(shape, dtype=element)

    return make


def _torch_zeros(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    return like.new_zeros(shape, dtype=_torch_dtype(dtype))


def _cupy_signature(array: Any) -> Any:
    return array.shape, array.strides, array.dtype, array.device.id


def _cupy_stream(array: Any) -> int:
    with array.device:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)


def _cupy_made(function: str) -> Callable[[Shape, np.dtype[Any], Any], Any]:
    def make(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
        with like.device:
            return getattr(sys.modules["cupy"], function)(shape, dtype)

    return make


def _on_gpu(value: Any) -> DeviceArray:
    found = device_array(value)
    assert found is not None
    return found


def _none_made(shape: Shape, dtype: np.dtype[Any], like: Any) -> Any:
    owner = like.owner if isinstance(like, DeviceArray) else like
    raise UsageError(
        f"given a {type(owner).__name__}, which warpwright has no way to make or copy; "
        "expected an array of NumPy, torch or CuPy, or matrices that need no copy and out= for the result"
    )


ROUNDING = ".astype(ml_dtypes.bfloat16)"

OTHER = Library(
    "other", _on_gpu, lambda _: None, lambda _: 0, lambda _: 0, _none_made, _none_made, ROUNDING, "a dense copy"
)
LIBRARIES = {
    "numpy": Library(
        "numpy",
        lambda array: array,
        _numpy_signature,
        lambda array: int(array.ctypes.data),
        lambda _: 0,
        lambda shape, dtype, _: np.empty(shape, dtype),
        lambda shape, dtype, _: np.zeros(shape, dtype),
        ROUNDING,
        "np.ascontiguousarray({name})",
    ),
    "torch": Library(
        "torch",
        _torch_view,
        _torch_signature,
        lambda tensor: tensor.data_ptr(),
        _torch_stream,
        _torch_empty,
        _torch_zeros,
        ".bfloat16()",
        "{name}.clone()",
    ),
    "cupy": Library(
        "cupy",
        _on_gpu,
        _cupy_signature,
        lambda array: int(array.data.ptr),
        _cupy_stream,
        _cupy_made("empty"),
        _cupy_made("zeros"),
        ROUNDING,
        "{name}.copy()",
    ),
}
