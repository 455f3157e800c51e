"""`ww.matmul` and `torch.ops.warpwright.matmul` with torch tensors and CuPy arrays on a real GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
import torch

import warpwright as ww
import warpwright.interop.torch
from warpwright import ops

product = torch.ops.warpwright.matmul


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    ops._REPEATS.clear()
    yield
    torch.cuda.synchronize()


def normal(*shape: int, dtype: Any = torch.bfloat16, grad: bool = False) -> Any:
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_(grad)


def near(found: Any, expected: Any, bound: float = 2.0**-7) -> None:
    assert found.shape == expected.shape and found.device == expected.device
    assert (found.double() - expected.double()).abs().max() <= bound * expected.double().abs().max()


def exact(a: Any, b: Any) -> Any:
    return a.double() @ b.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types_in_and_out(dtype: Any, out_dtype: Any) -> None:
    a, b = normal(200, 136, dtype=dtype), normal(136, 312, dtype=dtype)
    d = ww.matmul(a, b, out_dtype=out_dtype)
    assert d.dtype == out_dtype and d.is_contiguous()
    near(d, exact(a, b), 1e-5 if out_dtype == torch.float32 else 2.0**-7)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_no_dense_layout_is_copied_and_a_launch_is_prepared_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_copied", None)
    for _ in range(3):
        a, b = (
            normal(*(shape[::-1] if letter == "T" else shape))
            for shape, letter in zip(((264, 520), (520, 328)), layout, strict=True)
        )
        a, b = (x.T if letter == "T" else x for x, letter in zip((a, b), layout, strict=True))
        near(ww.matmul(a, b), exact(a, b))
    assert len(ops._REPEATS) == 1


@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 520, 264), (65, 63, 7), (129, 257, 72), (300, 1, 64)])
def test_any_extent(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = normal(m, k), normal(k, n)
    for _ in range(2):
        near(ww.matmul(a, b), exact(a, b))


def test_views_that_no_tensor_map_covers_are_copied() -> None:
    wide = normal(256, 513)
    b = normal(256, 64)
    for a in (wide[::2, :512:2], wide[:, 1:257], wide[0, :256].expand(40, 256)):
        near(ww.matmul(a, b), exact(a, b))
    storage = normal(64 * 64 + 1)
    a = storage[1:].view(64, 64)
    near(ww.matmul(storage[:-1].view(64, 64), b[:64]), exact(storage[:-1].view(64, 64), b[:64]))
    near(ww.matmul(a, b[:64]), exact(a, b[:64]))


def test_out_is_written_where_it_lies() -> None:
    a, b = normal(100, 72), normal(72, 40)
    for first in (0, 8, 3):
        whole = torch.full((100, 64), 7.0, device="cuda", dtype=torch.bfloat16)
        given = whole[:, first : first + 40]
        assert ww.matmul(a, b, out=given) is given
        near(given, exact(a, b))
        assert (whole[:, :first] == 7).all() and (whole[:, first + 40 :] == 7).all()


def test_empty_products() -> None:
    assert ww.matmul(normal(0, 8), normal(8, 5)).shape == (0, 5)
    assert torch.equal(ww.matmul(normal(3, 0), normal(0, 5)).float(), torch.zeros(3, 5, device="cuda"))


@pytest.mark.parametrize(
    ("left", "right"), [((3, 40, 24), (24, 33)), ((2, 1, 40, 24), (3, 24, 64)), ((40, 24), (3, 24, 33))]
)
def test_leading_dimensions_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(*left), normal(*right)
    near(ww.matmul(a, b), exact(a, b))


def test_leading_dimensions_of_a_alone_are_one_prepared_launch() -> None:
    for _ in range(3):
        a, w = normal(3, 40, 72), normal(48, 72)
        near(ww.matmul(a, w.T), exact(a, w.T))
    assert len(ops._REPEATS) == 1
    strange = normal(40, 3, 72).transpose(0, 1)
    for _ in range(2):
        near(ww.matmul(strange, w.T), exact(strange, w.T))
    assert len(ops._REPEATS) == 1


@pytest.mark.parametrize(
    ("left", "right"), [((4, 64, 72), (4, 72, 48)), ((3, 1, 40, 24), (2, 24, 64)), ((40, 24), (3, 24, 64))]
)
def test_a_launch_for_each_product_is_prepared_once(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for _ in range(3):
        a, b = normal(*left), normal(*right)
        near(ww.matmul(a, b), exact(a, b))
        near(ww.matmul(a, b.mT.contiguous().mT), exact(a, b))
    assert len(ops._REPEATS) == 2


def test_parameters_use_the_prepared_launch_too() -> None:
    a, w = normal(40, 72), normal(72, 48, grad=True)
    for _ in range(2):
        near(product(a, w), exact(a, w))
    assert len(ops._REPEATS) == 1


def test_float32_is_rounded_and_says_so() -> None:
    a, b = normal(64, 72, dtype=torch.float32), normal(72, 40, dtype=torch.float32)
    with pytest.warns(ww.PrecisionWarning):
        d = ww.matmul(a, b)
    assert d.dtype == torch.float32
    near(d, exact(a.bfloat16(), b.bfloat16()), 1e-5)


def test_it_runs_on_the_current_stream() -> None:
    a, b, side = normal(256, 256), normal(256, 256), torch.cuda.Stream()
    expected = ww.matmul(a, b)
    late = torch.zeros_like(a)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        d = ww.matmul(late, b)
    side.synchronize()
    assert torch.equal(d, expected)


def test_cupy_arrays() -> None:
    a, b = (cupy.random.standard_normal(shape).astype(cupy.float16) for shape in ((100, 72), (72, 41)))
    for left in (a, cupy.asfortranarray(a)):
        for _ in range(2):
            d = ww.matmul(left, b, out_dtype=np.float32)
            assert isinstance(d, cupy.ndarray)
            cupy.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        d = ww.matmul(a, b, out_dtype=np.float32)
    stream.synchronize()
    cupy.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


def test_arrays_of_another_library_are_read_and_written_in_place() -> None:
    class Other:
        def __init__(self, array: Any) -> None:
            self.kept, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    a, b, d = normal(64, 72, dtype=torch.float16), normal(72, 40, dtype=torch.float16), normal(64, 40).half()
    expected = exact(a, b)
    given = Other(d)
    assert ww.matmul(Other(a), Other(b), out=given) is given
    near(d, expected)


def test_numpy_arrays_travel_to_the_gpu_and_back() -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((65, 72), (72, 41)))
    d = ww.matmul(a, b, device="cuda", out_dtype=np.float32)
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


def test_operands_in_two_places_are_one_clear_error() -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(normal(8, 8), normal(8, 8).cpu())
    assert str(caught.value) == "matmul: a is on cuda:0 and b on the host; expected both on one device"


def test_a_product_in_a_cuda_graph() -> None:
    a, b = normal(256, 512), normal(512, 384)
    product(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = product(a, b)
    a.copy_(normal(256, 512))
    graph.replay()
    near(d, exact(a, b))


def test_gradients_are_those_of_torch() -> None:
    a, w = normal(4, 96, 128, grad=True), normal(80, 128, grad=True)
    weights = normal(4, 96, 80)
    (product(a, w.T) * weights).sum().backward()
    a64, w64 = (x.detach().double().requires_grad_() for x in (a, w))
    (a64 @ w64.T * weights).sum().backward()
    near(a.grad, a64.grad)
    near(w.grad, w64.grad)


def test_it_compiles_to_one_graph() -> None:
    def layer(a: Any, b: Any) -> Any:
        return torch.relu(product(a, b)) + 1

    compiled = torch.compile(layer, fullgraph=True)
    a, b = normal(128, 256, grad=True), normal(256, 64)
    near(compiled(a, b), layer(a, b))
    compiled(a, b).sum().backward()
    found, a.grad = a.grad, None
    layer(a, b).sum().backward()
    near(found, a.grad)
