"""`launch`, `load_ptx` and arguments: accepted values, refused values, and the error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from warpwright.errors import LaunchError, PtxSyntaxError, UsageError, WarpwrightError
from warpwright.lang import Global, b32, f32, u32
from warpwright.lang.ops.tma import Map, MapUse
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx.nodes import Variable
from warpwright.run.arguments import pass_arguments, typed_arguments
from warpwright.run.launch import dim3, launch, load_ptx

SAXPY = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry _Z5saxpyifPKfPf(.param .u32 n, .param .f32 alpha, .param .u64 x, .param .u64 y)
{
    ret;
}
.visible .entry fixed() .reqntid 64, 2, 1
{
    ret;
}
"""
N = Variable("param", "u32", "n")
ALPHA = Variable("param", "f32", "alpha")
X = Variable("param", "u64", "x")
STRUCT = Variable("param", "b8", "s", dims=(12,), align=4)
MAP = Variable("param", "b8", "map", dims=(128,), align=64)


def passed(params: list[Variable], *values: Any) -> list[Any]:
    with pass_arguments("kernel", params, values) as result:
        return result


def message(error: type[WarpwrightError], call: Any, *args: Any, **keywords: Any) -> str:
    with pytest.raises(error) as caught:
        call(*args, **keywords)
    return str(caught.value)


def test_numbers_are_checked_against_the_declared_type() -> None:
    assert passed([N, ALPHA], np.int64(7), 2) == [7, 2.0]
    assert passed([N, N], -1, 2**32 - 1) == [-1, 2**32 - 1]
    assert passed([Variable("param", "b16", "h")], np.float16(1.5)) == [0x3E00]
    assert passed([Variable("param", "b16", "h")], ml_dtypes.bfloat16(1.5)) == [0x3FC0]


@pytest.mark.parametrize(
    ("param", "value", "expected"),
    [
        (N, 3.0, "argument 'n' (.u32) was given the float 3.0; expected an int"),
        (N, 2**32, "argument 'n' (.u32) was given 4294967296; expected an integer of 32 bits"),
        (N, -(2**31) - 1, "argument 'n' (.u32) was given -2147483649; expected an integer of 32 bits"),
        (N, "7", "argument 'n' (.u32) was given a str; expected an int"),
        (N, np.zeros((2, 3)), "argument 'n' (.u32) was given an array of shape (2, 3); expected an int"),
        (ALPHA, 1e39, "argument 'alpha' (.f32) was given 1e+39; expected a float32"),
        (ALPHA, True, "argument 'alpha' (.f32) was given a bool; expected a float"),
        (X, [1.0], "argument 'x' (.u64) was given a list; expected an array or an int: np.array(x)"),
        (
            X,
            np.array(["a"], object),
            "argument 'x' (.u64) was given an array of object; expected numbers in native byte order",
        ),
        (
            STRUCT,
            b"abc",
            "argument 's' (.b8[12]) was given bytes of 3 bytes; expected a struct of 12 bytes: bytes, a "
            "ctypes.Structure or a NumPy record",
        ),
        (
            MAP,
            7,
            "argument 'map' (.b8[128]) was given an int; expected a TensorMap or a struct of 128 bytes: bytes, a "
            "ctypes.Structure or a NumPy record",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(param: Variable, value: Any, expected: str) -> None:
    assert message(UsageError, passed, [param], value) == expected


def test_a_wrong_number_of_arguments_names_the_parameters() -> None:
    assert message(UsageError, passed, [N, ALPHA, X], 1, 2.0) == (
        "launch of 'kernel' with 2 arguments; expected 3: n (.u32), alpha (.f32), x (.u64)"
    )


def test_a_strided_array_is_passed_dense_and_written_back() -> None:
    backing = np.arange(12.0).reshape(3, 4)
    with pass_arguments("kernel", [X], [backing[:, ::2]]) as (dense,):
        assert dense.flags.c_contiguous
        dense += 100
    assert backing.tolist() == [[100, 1, 102, 3], [104, 5, 106, 7], [108, 9, 110, 11]]


def test_a_dense_array_is_passed_as_it_is() -> None:
    array = np.arange(4)
    assert passed([X], array)[0] is array


def test_one_array_given_twice_is_one_array_of_the_device() -> None:
    strided = np.arange(8.0)[::2]
    first, second = passed([X, X], strided, strided)
    assert first is second


def test_the_packed_copy_of_a_read_only_array_is_read_only() -> None:
    array = np.arange(4.0)[::2]
    array.flags.writeable = False
    (copy,) = passed([X], array)
    assert copy.flags.c_contiguous and not copy.flags.writeable


def test_a_kernel_is_found_by_its_plain_name_too() -> None:
    assert load_ptx(SAXPY)["saxpy"].name == "_Z5saxpyifPKfPf"
    assert list(load_ptx(SAXPY)) == ["_Z5saxpyifPKfPf", "fixed"]


def test_a_missing_kernel_lists_those_there_are() -> None:
    assert message(UsageError, load_ptx(SAXPY).__getitem__, "fixde") == (
        "this PTX has no kernel 'fixde'; its kernels are _Z5saxpyifPKfPf, fixed; did you mean 'fixed'?"
    )


def test_binary_garbage_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(b"\x7fELF\x02\xff\xfe\x00")
    assert message(PtxSyntaxError, load_ptx, path) == (
        f"{path} is not PTX: byte 5 is 0xff; expected UTF-8 text that begins with .version "
        "(a cubin or fatbin is no text: compile with nvcc -ptx)"
    )


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "none.ptx"
    assert message(UsageError, load_ptx, path) == (
        f"cannot read PTX from {path}: No such file or directory; give a file or the text itself"
    )


@pytest.mark.parametrize("value", [0, (1, 0), (1, 1, 1, 1), "4", 2.0, ()])
def test_a_bad_grid_is_refused(value: Any) -> None:
    assert message(LaunchError, dim3, "grid", value) == (
        f"grid={value!r}: expected a positive integer, or one to three of them as (x, y, z)"
        + ": round up with -(-n // 128)" * (value == 2.0)
    )


def test_a_launch_without_a_block_says_so() -> None:
    kernel = load_ptx(SAXPY)["saxpy"]
    assert message(LaunchError, launch, kernel, 1) == (
        "launch of '_Z5saxpyifPKfPf' without block=; expected the threads of a CTA, such as block=128"
    )


def test_a_block_against_the_kernels_own_is_refused() -> None:
    kernel = load_ptx(SAXPY)["fixed"]
    assert kernel.block == (64, 2, 1)
    assert message(LaunchError, launch, kernel, 1, block=128) == (
        "block=128: the kernel itself demands (64, 2, 1); leave block= out"
    )


def test_something_else_than_a_kernel_is_refused() -> None:
    assert message(UsageError, launch, SAXPY, 1) == (
        "cannot launch a str; expected a function decorated with @kernel or load_ptx(path)[name]"
    )


USES = {"x": MapUse((8, 32), 128, f32)}


def test_a_kernel_of_the_language_makes_its_tensor_maps_itself() -> None:
    array = np.zeros((20, 64), np.float32)
    (made,) = typed_arguments([("x", Map[f32])], USES, [array])
    assert isinstance(made, TensorMap)
    assert (made.array is array, made.box, made.swizzle) == (True, (32, 8), 128)


def test_an_array_of_a_tensor_map_that_no_copy_uses_becomes_one_too() -> None:
    """As after a forgotten ``tma.load``, so that the launch tells of the wait that never ends."""
    array = np.zeros((20, 64), np.float32)
    (made,) = typed_arguments([("x", Map[f32])], {}, [array])
    assert (made.array is array, made.box, made.swizzle) == (True, (4, 1), 0)


def test_a_tensor_map_made_by_hand_stays() -> None:
    given = TensorMap(np.zeros((20, 64), np.float32), (4, 32))
    assert list(typed_arguments([("x", Map[f32])], USES, [given])) == [given]


@pytest.mark.parametrize(
    ("element", "dtype"), [(f32, np.float32), (u32, np.int32), (b32, np.float32), (b32, np.uint32)]
)
def test_an_array_of_the_kernels_element_type_is_taken(element: Any, dtype: Any) -> None:
    array = np.zeros(4, dtype)
    assert next(typed_arguments([("x", Global[element])], {}, [array])) is array


@pytest.mark.parametrize(
    ("annotation", "dtype", "expected"),
    [
        (
            Global[f32],
            np.float64,
            "argument 'x' (Global[f32]) was given an array of float64; expected float32: x.astype(np.float32)",
        ),
        (
            Global[u32],
            np.float32,
            "argument 'x' (Global[u32]) was given an array of float32; expected uint32: x.astype(np.uint32)",
        ),
        (
            Global[b32],
            np.uint8,
            "argument 'x' (Global[b32]) was given an array of uint8; expected uint32: x.astype(np.uint32)",
        ),
        (
            Map[f32],
            np.float16,
            "argument 'x' (tma.Map[f32]) was given an array of float16; expected float32: x.astype(np.float32)",
        ),
    ],
)
def test_an_array_of_another_element_type_is_refused(annotation: Any, dtype: Any, expected: str) -> None:
    def given() -> list[Any]:
        return list(typed_arguments([("x", annotation)], USES, [np.zeros((8, 32), dtype)]))

    assert message(UsageError, given) == expected
