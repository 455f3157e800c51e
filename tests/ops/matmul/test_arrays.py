"""`ww.matmul`: which arrays it takes, where their memory is, `out`, and leading dimensions."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.samples import sampled
from warpwright import cuda
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import OTHER, Library, library_of, overlap
from warpwright.cuda import driver
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm90
from warpwright.ops.binding import mappable
from warpwright.ops.matmul import call
from warpwright.ops.matmul.plan import FAMILIES
from warpwright.report.verdict import judge

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)


class Elsewhere:
    """An array of an unknown library in the memory of a GPU, by its interface alone."""

    def __init__(self, shape: tuple[int, ...], *, pointer: int = 4096, strides: Any = None, ordinal: int = 0) -> None:
        self.dtype, self.device = FLOAT16, type("Device", (), {"id": ordinal})()
        data = (pointer, False)
        self.__cuda_array_interface__ = {
            "data": data,
            "shape": shape,
            "typestr": "<f2",
            "strides": strides,
            "version": 3,
        }


def normal(*shape: int, dtype: Any = BFLOAT16) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 40, 24), (24, 33)),
        ((40, 24), (3, 24, 33)),
        ((2, 1, 40, 24), (3, 24, 33)),
        ((2, 3, 1, 7), (2, 3, 7, 5)),
        ((3, 1, 40, 24), (3, 1, 24, 16)),
        ((2, 3, 40, 24), (3, 24, 16)),
        ((1, 40, 24), (1, 1, 24, 16)),
        ((0, 4, 8), (8, 8)),
    ],
)
def test_leading_dimensions_broadcast(device: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(*left), normal(*right)
    d = ww.matmul(a, b, device=device, out_dtype=np.float32)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert d.shape == exact.shape
    np.testing.assert_allclose(d, exact, rtol=0, atol=1e-5)


def test_leading_dimensions_of_a_alone_are_one_launch() -> None:
    assert len(list(ww.launches(ww.matmul, normal(3, 2, 40, 24), normal(24, 16), device="h200"))) == 1
    ladder = ww.launches(ww.matmul, normal(3, 40, 24), normal(3, 24, 16), device="b200", level=10)
    assert len(list(ladder)) == 3


def transposed(*shape: int) -> Any:
    """Random matrices whose columns are dense."""
    *leading, rows, columns = shape
    return normal(*leading, columns, rows).swapaxes(-1, -2)


def heads(batch: int, head: int, rows: int, columns: int) -> Any:
    """Random matrices as attention has them: the heads of a row side by side."""
    return normal(batch, rows, head, columns).transpose(0, 2, 1, 3)


@pytest.mark.parametrize(
    ("a", "b", "launches"),
    [
        (normal(3, 40, 24), normal(3, 24, 16), 1),
        (transposed(3, 40, 24), transposed(3, 24, 16), 1),
        (normal(2, 3, 40, 24), normal(2, 3, 24, 16), 1),
        (normal(40, 24), normal(2, 3, 24, 16), 1),
        (normal(2, 3, 40, 24), normal(24, 16), 1),
        (normal(2, 3, 40, 24), normal(3, 24, 16), 2),
        (normal(2, 1, 40, 24), normal(2, 3, 24, 16), 2),
        (np.broadcast_to(normal(40, 24), (3, 40, 24)), normal(3, 24, 16), 1),
        (np.broadcast_to(normal(40, 24), (3, 40, 24)), np.broadcast_to(normal(24, 16), (3, 24, 16)), 1),
        (normal(40, 24), np.broadcast_to(normal(24, 16), (3, 24, 16)), 1),
        (heads(2, 3, 40, 24), heads(2, 3, 40, 24).swapaxes(-1, -2), 2),
        (heads(1, 3, 40, 24), heads(1, 3, 40, 24).swapaxes(-1, -2), 1),
        (normal(4, 40, 24)[::2], normal(2, 24, 16), 1),
        (normal(2, 40, 24)[::-1], normal(2, 24, 16), 1),
        (normal(2, 40, 23), normal(2, 23, 15), 1),
    ],
)
def test_what_lies_at_one_stride_is_one_launch(a: Any, b: Any, launches: int) -> None:
    d = ww.matmul(a, b, device="h200", out_dtype=np.float32)
    np.testing.assert_allclose(d, np.matmul(a.astype(np.float64), b.astype(np.float64)), rtol=0, atol=1e-5)
    assert len(list(ww.launches(ww.matmul, a, b, device="h200"))) == launches


@pytest.mark.parametrize(("step", "width"), [(1, 16), (2, 16), (1, 24), (1, 19)])
def test_a_batch_is_written_where_out_lies(step: int, width: int) -> None:
    """Every second matrix, gaps between rows, rows that no tensor map covers."""
    a, b, whole = normal(3, 40, 24), normal(3, 24, 16), np.full((6, 40, width), 7, BFLOAT16)
    given = whole[: 3 * step : step, :, :16]
    ww.matmul(a, b, out=given, device="h200")
    for i in range(3):
        assert judge(np.ascontiguousarray(given[i]), a[i], b[i]).verified
    given[...] = 7
    assert (whole == 7).all()


@sampled("layout", ["NN", "NT", "TN", "TT"], keep=["NT", "TN"])
@pytest.mark.parametrize("out_dtype", [BFLOAT16, np.float32])
def test_few_tiles_and_a_long_k_are_cut_into_slices(layout: str, out_dtype: Any) -> None:
    a, b = (
        (transposed if letter == "T" else normal)(*shape)
        for letter, shape in zip(layout, ((65, 8192), (8192, 70)), strict=True)
    )
    whole = np.full((65, 96), 7, out_dtype)
    d = ww.matmul(a, b, out=whole[:, 8:78], device="h200")
    assert judge(np.ascontiguousarray(d), a, b).verified
    assert (np.delete(whole, range(8, 78), axis=1) == 7).all()
    entries = [each.kernel.entry for each in ww.launches(ww.matmul, a, b, device="h200")]
    assert entries == ["gemm", "add_slices"]


def test_a_cluster_shares_the_k_of_a_batch() -> None:
    """Slices of K are for one matrix: their sums are a batch."""
    a, b = normal(2, 65, 8192), normal(2, 8192, 70)
    d = ww.matmul(a, b, device="h200", out_dtype=np.float32)
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=3e-3)
    assert [each.kernel.entry for each in ww.launches(ww.matmul, a, b, device="h200")] == ["gemm_split"]


@sampled("slices", [3, 5, 8], keep=[3])
@pytest.mark.parametrize("k", [8200, 680, 136])
def test_slices_of_any_k(k: int, slices: int) -> None:
    """Slices are of whole k-blocks of 128 columns, the last one of fewer; 136 columns are two k-blocks."""
    a, b = normal(65, k), normal(k, 70)
    config = dataclasses.replace(sm90.CONFIGS["64x64 stream, 2 slices"], slices=slices)
    call = ww.launches(ww.matmul, a, b, device="h200", level=config)
    assert [each.kernel.entry for each in call] == ["gemm", "add_slices"]
    assert judge(ww.matmul(a, b, device="h200", level=config), a, b).verified


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize(("first", "last"), [(0, 40), (8, 48), (3, 43)])
def test_out_is_written_where_it_lies(device: str, first: int, last: int) -> None:
    a, b, whole = normal(33, 72), normal(72, 40), np.full((33, 64), 7, BFLOAT16)
    assert ww.matmul(a, b, out=whole[:, first:last], device=device).base is whole
    assert judge(whole[:, first:last], a, b).verified
    assert (np.delete(whole, range(first, last), axis=1) == 7).all()


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 8)])
def test_out_of_an_empty_sum_is_zeros(m: int, n: int, k: int) -> None:
    given = np.full((m, n), 7, BFLOAT16)
    assert ww.matmul(normal(m, k), normal(k, n), out=given, device="h200") is given
    assert not given.astype(np.float32).any()


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("wide", [False, True])
def test_hopper_copies_no_dense_layout(layout: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows have gaps, in multiples of 16 bytes."""
    monkeypatch.setattr(call, "_copy_operand", None)
    a, b = normal(48, 72), normal(72, 40)

    def laid(matrix: Any, letter: str) -> Any:
        stored = matrix.T if letter == "T" else matrix
        backing = np.zeros((stored.shape[0], stored.shape[1] + 16 * wide), BFLOAT16)
        backing[:, : stored.shape[1]] = stored
        view = backing[:, : stored.shape[1]]
        return view.T if letter == "T" else view

    assert judge(ww.matmul(laid(a, layout[0]), laid(b, layout[1]), device="h200"), a, b).verified


@pytest.mark.parametrize(
    ("shape", "strides", "pointer", "expected"),
    [
        ((4, 16), (32, 2), 4096, True),
        ((4, 16), (48, 2), 4096, True),
        ((4, 16), (32, 2), 4098, False),
        ((4, 16), (34, 2), 4096, False),
        ((4, 16), (32, 4), 4096, False),
        ((4, 16), (0, 2), 4096, False),
        ((4, 16), (-32, 2), 4096, False),
        ((1, 5), (10, 2), 4096, True),
        ((4, 1), (16, 99), 4096, True),
    ],
)
def test_what_a_tensor_map_covers(shape: Any, strides: Any, pointer: int, expected: bool) -> None:
    assert mappable(DeviceArray(pointer, shape, strides, FLOAT16, 0, None)) is expected


def test_the_library_of_an_array() -> None:
    numpy = library_of(normal(1, 1))
    assert isinstance(numpy, Library) and numpy.name == "numpy"
    assert library_of(Elsewhere((4, 4))) is OTHER
    assert library_of([1.0]) is None and library_of(3) is None


def test_arrays_that_interleave_do_not_overlap() -> None:
    a = normal(8, 32)
    assert not overlap(a[:, :16], a[:, 16:]) and overlap(a[:, :17], a[:, 16:])
    left, right = (DeviceArray(pointer, (8, 16), (64, 2), FLOAT16, 0, None) for pointer in (4096, 4128))
    assert not overlap(left, right) and overlap(left, left.T)


HALF, WHOLE = normal(4, 4, dtype=FLOAT16), normal(8, 8, dtype=FLOAT16)
READ_ONLY = np.broadcast_to(HALF, (4, 4))
FITS = "expected memory of its own: leave out= out"


@pytest.mark.parametrize(
    ("a", "b", "keywords", "expected"),
    [
        (HALF, Elsewhere((4, 4)), {}, "matmul: a is of numpy and b of tests; expected arrays of one library"),
        (
            Elsewhere((4, 4)),
            Elsewhere((4, 4), ordinal=1),
            {},
            "matmul: a is on cuda:0 and b on cuda:1; expected both on one device",
        ),
        (
            Elsewhere((4, 4)),
            Elsewhere((4, 4)),
            {"out": Elsewhere((4, 4), pointer=8192, ordinal=1)},
            "matmul: a is on cuda:0 and out on cuda:1; expected all on one device",
        ),
        (
            Elsewhere((4, 4)),
            Elsewhere((4, 4)),
            {"device": "h200"},
            "matmul: a is on cuda:0 and device='h200'; expected that GPU: leave device= out, "
            "or pass copies on the host",
        ),
        (
            Elsewhere((2, 4, 4)),
            Elsewhere((4, 4)),
            {},
            "matmul: a has shape (2, 4, 4); expected two dimensions of an array of its library",
        ),
        (HALF, HALF, {"out": HALF}, f"matmul: out overlaps a; {FITS}"),
        (WHOLE[4:, 4:], WHOLE[:4, :4], {"out": WHOLE[2:6, 3:7]}, f"matmul: out overlaps a; {FITS}"),
        (HALF, WHOLE[:4, :4], {"out": WHOLE[3:7, 1:5]}, f"matmul: out overlaps b; {FITS}"),
        (
            HALF,
            HALF.copy(),
            {"out": READ_ONLY},
            "matmul: out is read-only; expected an array that can be written: leave out= out",
        ),
        (
            HALF,
            HALF.copy(),
            {"out": np.lib.stride_tricks.as_strided(WHOLE[0].copy(), (4, 4), (0, 2))},
            "matmul: out has several elements at one address (strides of (0, 2) bytes); expected an address for each: "
            "leave out= out",
        ),
        (HALF, HALF, {"out": WHOLE}, "matmul: out is 8 × 8 of float16; expected 4 × 4 of float16"),
        (
            HALF,
            HALF,
            {"out": np.zeros((4, 4), np.float32), "out_dtype": FLOAT16},
            "matmul: out is 4 × 4 of float32; expected 4 × 4 of float16",
        ),
        (
            HALF,
            HALF,
            {"out": np.zeros((4, 4), np.int8)},
            "matmul: out is int8; expected ml_dtypes.bfloat16, np.float16 or np.float32",
        ),
        (
            HALF,
            HALF,
            {"out": [[0.0]]},
            "matmul: out is a list; expected an array of NumPy, torch, CuPy or JAX: np.asarray(out)",
        ),
    ],
)
def test_what_does_not_fit_together_is_one_clear_error(a: Any, b: Any, keywords: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, b, **keywords)
    assert str(caught.value) == expected


@pytest.mark.parametrize(("pointer", "strides"), [(4098, (32, 2)), (4096, (30, 2)), (4096, (64, 4))])
def test_an_unaligned_array_of_an_unknown_library_is_refused(pointer: int, strides: tuple[int, int]) -> None:
    array = Elsewhere((8, 16), pointer=pointer, strides=strides)
    view = OTHER.view(array)
    with pytest.raises(UsageError) as caught:
        call._copy_operand(OTHER, FAMILIES["sm_90a"], "a", array, view)
    assert str(caught.value) == (
        f"matmul: a is at {pointer:#x} with strides of {strides} bytes; expected 16-bit elements whose rows or "
        "columns are dense and begin at multiples of 16 bytes; pass a copy"
    )


def test_an_array_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        OTHER.empty((4, 4), FLOAT16, Elsewhere((4, 4)))
    assert str(caught.value) == (
        "given a Elsewhere, which warpwright cannot allocate or copy; expected an array of NumPy, torch or CuPy, "
        "or matrices that need no copy and out= for the result"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("cuda") is not None and bool(cuda.devices()), reason="this machine has a GPU"
)
@pytest.mark.parametrize("arrays", ["host", "GPU"])
def test_a_machine_without_a_gpu_says_so(arrays: str) -> None:
    operand = HALF if arrays == "host" else Elsewhere((4, 4))
    with pytest.raises(UsageError) as caught:
        ww.matmul(operand, operand, device="cuda")
    reasons = "this machine has no CUDA driver", "the driver finds no GPU", "the driver answers CUDA_ERROR_NO_DEVICE"
    without = [driver.NO_GPU.format(reason=why) for why in reasons]
    assert str(caught.value) in (driver.EXTRA, *without)
