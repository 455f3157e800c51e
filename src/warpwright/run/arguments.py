"""Kernel arguments: Python values checked against the ``.param`` declarations and converted for a device."""

from __future__ import annotations

import contextlib
import math
import typing
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib import array_utils
from numpy.typing import NDArray

from warpwright import targets
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import View, memory_of, overlaps_itself
from warpwright.errors import UsageError, kind_of
from warpwright.lang import Global, Peers
from warpwright.lang.ops.tma import Map, MapUse, PeerMaps
from warpwright.layout.peers import MAP_BYTES, PEER_MAPS_BYTES, PEERS_BYTES, PerRank, has_all_ranks
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx.nodes import Variable
from warpwright.types import Scalar

__all__ = ["check_ranks", "memory_arrays", "nbytes_of", "pass_arguments", "typed_arguments", "value_of"]

POINTER_TYPES = ("u64", "b64", "s64")
_EDITS: dict[type, str] = {list: ": np.array({x})", tuple: ": np.array({x})", bytes: ": np.frombuffer({x}, np.uint8)"}
_WORDS = {Global: "Global", Map: "tma.Map", Peers: "Peers", PeerMaps: "tma.PeerMaps"}
SHARING_WORK: Any = 100_000


@contextlib.contextmanager
def pass_arguments(
    kernel: str, params: Sequence[Variable], args: Sequence[Any], memory: Sequence[View] | None = None
) -> Iterator[list[Any]]:
    """Yields the arguments as a device takes them; at the exit, also after a fault, packed arrays are written back.

    Arrays stay as they are if they are C-contiguous; of others the kernel gets a packed copy, one for equal views.
    Numbers become int or float, struct parameters ``bytes``; tensor maps stay. With ``memory`` nothing is packed: an
    array argument is the address of its first element.

    Raises UsageError for a packed array that shares memory with another argument: the kernel would see two memories;
    and with ``memory`` for an array with gaps that lie in no other array.
    """
    if len(args) != len(params):
        expected = ", ".join(f"{param.name} ({_declaration(param)})" for param in params) or "none"
        given = f"{len(args)} argument{'s' * (len(args) != 1)}"
        raise UsageError(f"launch of {kernel!r} with {given}; expected {len(params)}: {expected}")
    passed = [_convert(param, value) for param, value in zip(params, args, strict=True)]
    if memory is not None:
        names = [repr(param.name) for param in params] + [f"memory[{number}]" for number in range(len(memory))]
        _check_gaps(kernel, zip(names, [*passed, *memory], strict=True))
        yield passed
        return
    _check_dense(params, passed)
    _check_shared(kernel, params, passed)
    strided = sorted(filter(_needs_packing, passed), key=lambda array: array.flags.writeable)
    packed = {
        _view(array): _pack(array) for array in strided
    }  # of equal views the last, a writable one if there is one
    try:
        yield [packed[_view(value)][1] if _needs_packing(value) else value for value in passed]
    finally:
        for array, copy in packed.values():
            if copy.flags.writeable:
                array[...] = copy


def _check_dense(params: Sequence[Variable], passed: Sequence[Any]) -> None:
    """Raise UsageError for an array of a rank that is not C-contiguous: all ranks must use the same memory."""
    for param, value in zip(params, passed, strict=True):
        for array in value.values if isinstance(value, PerRank) else ():
            if _needs_packing(array):
                given = f"an array of a rank with strides of {array.strides} bytes"
                raise _mismatch(param, given, f"a C-contiguous one: np.ascontiguousarray({param.name})")


def check_ranks(kernel: str, args: Iterable[Any], spec: targets.Device) -> None:
    """Raise UsageError for arguments that do not fit the number of ranks of a virtual device."""
    for value in args:
        if isinstance(value, PerRank) and value.rank is not None:
            raise UsageError(
                f"launch of {kernel!r} on the virtual {spec.name}: given PerRank(…, rank={value.rank}); expected "
                "PerRank(…), for this launch runs all ranks; leave rank= out"
            )
        given = len(value.values) if isinstance(value, PerRank) else 1
        if isinstance(value, PerRank) and given != spec.gpus:
            chip = spec.chip if spec.chip in targets.LINKS else "h200"
            edit = f"device='{chip}x{given}'" if spec.gpus == 1 else f"PerRank of {spec.gpus}"
            raise UsageError(
                f"launch of {kernel!r} on {spec.name}: given PerRank of {given} values for {spec.gpus} "
                f"rank{'s' * (spec.gpus > 1)}; expected {edit}"
            )
        if spec.gpus > 1 and isinstance(value, np.ndarray | TensorMap):
            raise UsageError(
                f"launch of {kernel!r} on {spec.name}: given one array for {spec.gpus} ranks; expected an array of "
                "each rank: ww.PerRank([x0, x1, …])"
            )


def memory_arrays(memory: Any) -> list[View] | None:
    """Returns the arrays of the option ``memory`` of a launch, without a copy; None without the option.

    Raises UsageError for values without memory that a kernel can use.
    """
    if memory is None:
        return None
    if not isinstance(memory, list | tuple):
        raise UsageError(f"given {kind_of(memory)} as memory; expected a list of arrays: memory=[x]")
    return [_memory_array(f"memory[{number}]", value) for number, value in enumerate(memory)]


def _memory_array(name: str, value: Any) -> View:
    """Returns an array of any library, or the bytes of an object that has a buffer, such as a ctypes.Structure."""
    found = memory_of(value)
    if not isinstance(found, np.ndarray | DeviceArray | np.generic):
        with contextlib.suppress(TypeError, ValueError):
            found = np.frombuffer(found, np.uint8)
    if not isinstance(found, np.ndarray | DeviceArray):
        raise UsageError(f"given {name}, {kind_of(value)}; expected an array that a pointer in args points into")
    for given, expected in _unusable(found):
        raise UsageError(f"given {name}, {given}; expected {expected.format(name='x')}")
    return found


def _unusable(array: View) -> Iterator[tuple[str, str]]:
    """Yields what a kernel cannot use of an array, and what is expected."""
    if isinstance(array, np.ma.MaskedArray):
        yield "a masked array", "a plain one, for a kernel sees no mask: {name}.filled(0)"
    if array.dtype.hasobject or not array.dtype.isnative:
        yield f"an array of {array.dtype}", "numbers in native byte order"


def _check_gaps(kernel: str, values: Iterable[tuple[str, Any]]) -> None:
    """Raise UsageError for an array whose bounds have bytes that belong to no array: nothing would write them back."""
    bounds = [(name, each, array_utils.byte_bounds(each)) for name, each in values if isinstance(each, np.ndarray)]
    full = [(low, high) for _, array, (low, high) in bounds if high - low == array.nbytes]
    for name, array, (low, high) in bounds:
        if high - low != array.nbytes and not any(first <= low and high <= last for first, last in full):
            raise UsageError(
                f"launch of {kernel!r} with memory=: given {name}, an array with strides of {array.strides} bytes; "
                "expected also the array that contains the bytes between its elements, as x for x[::2]: memory=[x]"
            )


def _needs_packing(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.flags.c_contiguous


def _view(array: NDArray[Any]) -> Hashable:
    """Returns a key that is equal for views of the same elements."""
    strides = (stride for extent, stride in zip(array.shape, array.strides, strict=True) if extent > 1)
    return array.ctypes.data, array.shape, array.dtype, *strides


def _pack(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns an array and its packed copy, which is read-only if the array is, or if elements share an address."""
    copy = np.array(array, order="C")
    copy.flags.writeable = array.flags.writeable and not overlaps_itself(array)
    return array, copy


def _check_shared(kernel: str, params: Sequence[Variable], passed: Sequence[Any]) -> None:
    """Raise UsageError for an array that is packed and shares memory with another argument, one of them writable."""
    arrays = [(param.name, getattr(value, "array", value)) for param, value in zip(params, passed, strict=True)]
    arrays = [(name, array) for name, array in arrays if isinstance(array, np.ndarray)]
    for name, array in arrays:
        for other_name, other in arrays:
            apart = not _needs_packing(array) or _view(array) == _view(other)
            if not apart and (array.flags.writeable or other.flags.writeable) and _may_share_memory(array, other):
                raise UsageError(
                    f"launch of {kernel!r}: given {name!r}, an array with strides of {array.strides} bytes that shares "
                    f"memory with {other_name!r}; expected a C-contiguous view, or memory of its own: pass a copy, "
                    f"np.ascontiguousarray({name})"
                )


def _may_share_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays share an element, or NumPy cannot tell after `SHARING_WORK` candidates."""
    return np.may_share_memory(a, b, SHARING_WORK)


def typed_arguments(
    params: Sequence[tuple[str, Any]], maps: Mapping[str, MapUse], args: Sequence[Any]
) -> Iterator[Any]:
    """Yields the arguments of a kernel of the language, checked against its element types.

    An array for a tensor-map parameter becomes a tensor map, with the box and swizzle of the tile that the kernel
    copies, or the least box if it copies none. ``params`` are (name, annotation); `pass_arguments` reports surplus
    arguments.

    Raises UsageError for an array of another dtype.
    """
    annotations = dict(enumerate(params))
    for position, value in enumerate(args):
        name, annotation = annotations.get(position, ("", None))
        if isinstance(value, PerRank):
            yield replace(value, values=[_typed_argument(name, annotation, maps, each) for each in value.values])
        else:
            yield _typed_argument(name, annotation, maps, value)


def _typed_argument(name: str, annotation: Any, maps: Mapping[str, MapUse], value: Any) -> Any:
    origin = typing.get_origin(annotation)
    if not isinstance(value, (np.ndarray, DeviceArray)) or origin not in _WORDS:
        return value
    use = maps.get(name) if origin in (Map, PeerMaps) else None
    element = use.dtype if use else typing.get_args(annotation)[0]
    if not _accepts(value.dtype, element):
        raise UsageError(
            f"argument {name!r} ({_WORDS[origin]}[{element.name}]) was given an array of {value.dtype}; "
            f"expected {_astype(name, element.dtype) if element.dtype else f'{element.nbytes} bytes an element'}"
        )
    if use is None and origin in (Map, PeerMaps) and value.shape:  # no copy uses the map: any box will do
        use = MapUse.any(value.shape, value.itemsize, element)
    return TensorMap(value, use.box, swizzle=use.swizzle) if use else value


def _astype(name: str, dtype: np.dtype[Any]) -> str:
    """Returns a dtype and the code that converts the array ``name``."""
    return f"{dtype}: {name}.astype({'np' if dtype.isbuiltin == 1 else 'ml_dtypes'}.{dtype})"


def _accepts(dtype: np.dtype[Any], element: type[Scalar]) -> bool:
    """Returns whether an array of ``dtype`` has values of ``element``; signedness is ignored."""
    if element is Scalar or element.dtype == dtype:
        return True
    same_size = dtype.itemsize == element.nbytes
    return same_size and (element.kind == "bits" or (element.kind in ("unsigned", "signed") and dtype.kind in "iub"))


def _convert(param: Variable, value: Any) -> Any:
    if isinstance(value, PerRank):
        return replace(value, values=[_convert(_of_rank(param, value), each) for each in value.values])
    if nbytes_of(param) in (PEERS_BYTES, PEER_MAPS_BYTES) and isinstance(value, np.ndarray | DeviceArray | TensorMap):
        raise _mismatch(param, "one array", "one of every rank: ww.PerRank([x0, x1])")
    if isinstance(value, TensorMap):
        return _tensor_map(param, value)
    if isinstance(value, DeviceArray):
        return _device_array(param, value)
    if isinstance(value, np.ndarray) and not (param.dims and value.ndim == 0):
        return _array(param, value)
    if param.dims:
        return _struct(param, value)
    return _number(param, value)


def _of_rank(param: Variable, value: PerRank) -> Variable:
    """Returns the parameter that takes one of the values: of a block of all ranks, an address or a tensor map."""
    if not has_all_ranks(nbytes_of(param), value):
        return param
    return replace(param, type="u64", dims=()) if nbytes_of(param) == PEERS_BYTES else replace(param, dims=(MAP_BYTES,))


def _tensor_map(param: Variable, value: TensorMap) -> TensorMap:
    if nbytes_of(param) != MAP_BYTES:
        raise _mismatch(param, "a TensorMap", "a parameter of 128 bytes (.align 64 .b8 name[128])")
    return value


def _array(param: Variable, value: NDArray[Any]) -> NDArray[Any]:
    if param.dims or param.type not in POINTER_TYPES:
        raise _mismatch(param, f"an array of shape {value.shape}", _expected(param))
    for given, expected in _unusable(value):
        raise _mismatch(param, given, expected.format(name=param.name))
    return value


def _device_array(param: Variable, value: DeviceArray) -> DeviceArray:
    """Returns ``value``, which must be dense: kernels use it in place, and a copy would not be written back."""
    if param.dims or param.type not in POINTER_TYPES:
        raise _mismatch(param, f"an array of shape {value.shape}", _expected(param))
    if not value.dense:
        raise _mismatch(
            param,
            f"an array on the GPU with strides of {value.strides} bytes",
            "a C-contiguous one: x.contiguous()",
        )
    return value


def _struct(param: Variable, value: Any) -> bytes:
    try:
        data = value.tobytes() if isinstance(value, np.generic | np.ndarray) else memoryview(value).tobytes()
    except TypeError:
        raise _mismatch(param, kind_of(value), _expected(param)) from None
    if len(data) != nbytes_of(param):
        raise _mismatch(param, f"{kind_of(value)} of {len(data)} bytes", _expected(param))
    return data


def _number(param: Variable, value: Any) -> int | float:
    if param.type[0] == "f":
        return _float(param, value)
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (int, np.integer)):
        return _integer(param, int(value))
    if isinstance(value, np.generic) and param.type[0] == "b" and value.nbytes == nbytes_of(param):
        return int.from_bytes(value.tobytes(), "little")
    shown = f"the {type(value).__name__} {value!r}" if isinstance(value, (float, np.generic)) else kind_of(value)
    edit = _EDITS.get(type(value), "") if param.type in POINTER_TYPES else ""
    raise _mismatch(param, shown, _expected(param) + edit.format(x=param.name))


def _float(param: Variable, value: Any) -> float:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        raise _mismatch(param, kind_of(value), "a float")
    number = float(value)
    if param.type == "f32" and math.isfinite(number) and abs(number) > float(np.finfo(np.float32).max):
        raise _mismatch(param, f"{number!r}", "a float32")
    return number


def _integer(param: Variable, value: int) -> int:
    """Returns ``value`` if its width fits, signed or unsigned: nvcc declares ``int`` as ``.u32``."""
    bits = 8 * nbytes_of(param)
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise _mismatch(param, f"{value}", f"an integer of {bits} bits")
    return value


def _mismatch(param: Variable, given: str, expected: str) -> UsageError:
    return UsageError(f"argument {param.name!r} ({_declaration(param)}) was given {given}; expected {expected}")


def _expected(param: Variable) -> str:
    if param.dims:
        tensor_map = "a TensorMap or " if nbytes_of(param) == MAP_BYTES else ""
        return f"{tensor_map}a struct of {nbytes_of(param)} bytes: bytes, a ctypes.Structure or a NumPy record"
    return "an array or an int" if param.type in POINTER_TYPES else "a float" if param.type[0] == "f" else "an int"


def _declaration(param: Variable) -> str:
    return f".{param.type}" + "".join(f"[{n}]" for n in param.dims)


def nbytes_of(param: Variable) -> int:
    """Returns the bytes of a parameter."""
    return int(param.type.lstrip("busf")) // 8 * param.vector * math.prod(param.dims)


def value_of(param: Variable, data: bytes) -> Any:
    """Returns the argument whose bytes a launch passes: a number, or the bytes of a struct."""
    if param.dims:
        return data
    return np.frombuffer(data, f"{'f' if param.type[0] == 'f' else 'u'}{len(data)}")[0]
