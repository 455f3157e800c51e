"""`ww.matmul` and `torch.ops.warpwright.matmul` with torch tensors and CuPy arrays on a real GPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
import torch

import warpwright as ww
import warpwright.interop.torch
from warpwright.ops.matmul import call
from warpwright.ops.matmul.bound_call import BoundCall
from warpwright.ops.memo import MEMO

product = torch.ops.warpwright.matmul


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    MEMO.clear()
    yield
    torch.cuda.synchronize()


def kept() -> list[BoundCall]:
    """The calls of the memo."""
    return [bound for variants in MEMO._entries.values() for *_, bound in variants]


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
    monkeypatch.setattr(call, "_copy_operand", None)
    for _ in range(3):
        a, b = (
            normal(*(shape[::-1] if letter == "T" else shape))
            for shape, letter in zip(((264, 520), (520, 328)), layout, strict=True)
        )
        a, b = (x.T if letter == "T" else x for x, letter in zip((a, b), layout, strict=True))
        near(ww.matmul(a, b), exact(a, b))
    assert len(kept()) == 1


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
    assert len(kept()) == 1
    strange = normal(40, 3, 72).transpose(0, 1)
    for _ in range(2):
        near(ww.matmul(strange, w.T), exact(strange, w.T))
    assert len(kept()) == 2


@pytest.mark.parametrize(
    ("left", "right"), [((4, 64, 72), (4, 72, 48)), ((3, 1, 40, 24), (2, 24, 64)), ((40, 24), (3, 24, 64))]
)
def test_a_launch_for_each_product_is_prepared_once(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for _ in range(3):
        a, b = normal(*left), normal(*right)
        near(ww.matmul(a, b), exact(a, b))
        near(ww.matmul(a, b.mT.contiguous().mT), exact(a, b))
    assert len(kept()) == 2


@pytest.mark.parametrize("shape", [(3, 4, 64, 72), (1, 5, 40, 64), (2, 3, 129, 1000)])
def test_a_batch_is_one_prepared_launch(shape: tuple[int, ...]) -> None:
    *leading, _, depth = shape
    for _ in range(3):
        a, b = normal(*shape), normal(*leading, depth, 48)
        near(ww.matmul(a, b), exact(a, b))
        near(ww.matmul(a, b[..., :1, :, :]), exact(a, b[..., :1, :, :]))
    assert len(kept()) == 2
    assert len(kept()[0].offsets) == 1


def test_heads_of_attention_are_a_launch_for_each_sequence() -> None:
    q, k = (normal(2, 104, 3, 64).transpose(1, 2) for _ in range(2))
    for _ in range(2):
        near(ww.matmul(q, k.mT), exact(q, k.mT))
    assert len(kept()[0].offsets) == 2


LONG = [(65, 72, 8192), (16, 2048, 7168), (128, 128, 65536), (512, 512, 8192)]


@pytest.mark.parametrize("shape", LONG)
def test_slices_of_k_always_give_the_same_bits(shape: tuple[int, int, int]) -> None:
    """On any stream, with others beside it, and replayed in a graph."""
    m, n, k = shape
    MEMO.clear()
    a, b = normal(m, k), normal(k, n)
    expected = ww.matmul(a, b)
    near(expected, exact(a, b))
    assert kept()[0].allocator
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for turn in range(30):
        with torch.cuda.stream(streams[turn % 3]):
            found.append(ww.matmul(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second = ww.matmul(a, b), ww.matmul(a, b)
    for _ in range(3):
        first.fill_(0)
        graph.replay()
        beside = ww.matmul(a, b)
        torch.cuda.synchronize()
        assert all(torch.equal(each, expected) for each in (first, second, beside))


def test_parameters_use_the_prepared_launch_too() -> None:
    a, w = normal(40, 72), normal(72, 48, grad=True)
    for _ in range(2):
        near(product(a, w), exact(a, w))
    assert len(kept()) == 1


def test_addresses_that_come_again_with_other_numbers() -> None:
    """A bound launch stores addresses only: the contents of the arrays may change between calls."""
    for turn in range(6):
        a, b = normal(64 + 64 * (turn % 2), 72), normal(72, 48 + 16 * (turn % 3))
        results = [product(a, b) for _ in range(3)]
        for d in results:
            near(d, exact(a, b))
        del a, b, d, results
    assert len(kept()) == 6


def test_what_cannot_be_read_where_it_lies_is_copied_at_each_call() -> None:
    a, b, wide, half = normal(64, 72), normal(72, 48), normal(96), torch.tensor(0.5)
    for turn in range(3):
        bias = wide[::2] if turn else wide[:48]
        near(product(a, b, bias, scale_a=half), 0.5 * exact(a, b) + bias.double())
    assert len(kept()) == 0


def test_each_thread_finds_its_own_way_to_the_gpu() -> None:
    """A new thread has no current context until something makes one; launches of one product are shared."""
    a, b, bias = normal(256, 136), normal(136, 312), normal(312)
    expected = ww.matmul(a, b, bias=bias)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        with torch.cuda.stream(stream):
            found = [product(a, b, bias) for _ in range(50)]
        stream.synchronize()
        return all(torch.equal(each, expected) for each in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


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


def layer_of(a: Any, b: Any, bias: Any, activation: str | None) -> Any:
    sums = a @ b + (0 if bias is None else bias)
    return sums if activation is None else getattr(torch.nn.functional, activation)(sums)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("columns", [80, 77])
def test_the_operator_with_bias_and_activation_and_their_gradients(activation: str | None, columns: int) -> None:
    a, w, bias = normal(3, 96, 128, grad=True), normal(128, columns, grad=True), normal(columns, grad=True)
    weights = normal(3, 96, columns)
    for _ in range(2):
        a.grad = w.grad = bias.grad = None
        d = product(a, w, bias=bias, activation=activation)
        (d * weights).sum().backward()
    a64, w64, bias64 = (x.detach().double().requires_grad_() for x in (a, w, bias))
    exact = layer_of(a64, w64, bias64, activation)
    (exact * weights).sum().backward()
    for found, expected in ((d, exact), (a.grad, a64.grad), (w.grad, w64.grad), (bias.grad, bias64.grad)):
        near(found, expected)


def float8(*shape: int, dtype: Any = torch.float8_e4m3fn) -> Any:
    return torch.randn(shape, device="cuda").to(dtype)


def test_the_operator_with_float8_beside_torch() -> None:
    """Scales on the GPU; sums of 14 bits over 128 of K, so a hundredth of the norm at most."""
    a, w = float8(256, 512), float8(384, 512)
    scale_a, scale_b = (torch.tensor(x, device="cuda") for x in (0.5, 0.125))
    for _ in range(2):
        d = product(a, w.T, scale_a=scale_a, scale_b=scale_b)
    theirs = torch._scaled_mm(a, w.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
    exact = a.double() @ w.double().T / 16
    assert d.dtype == torch.bfloat16
    for found in (d, theirs):
        assert (found.double() - exact).norm() < 0.01 * exact.norm()
    bias = normal(384, grad=True)
    (found,) = torch.autograd.grad(product(a, w.T, bias=bias, activation="silu").sum(), bias)
    bias64 = bias.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(torch.nn.functional.silu(exact * 16 + bias64).sum(), bias64)
    near(found, expected, 0.02)


def test_float8_has_no_gradient() -> None:
    with pytest.raises(ww.UsageError) as caught:
        product(float8(64, 64).requires_grad_(), float8(64, 64).T)
    assert str(caught.value) == (
        "matmul: a is float8_e4m3fn and requires gradients; expected gradients only of a bias and of bfloat16, float16 "
        "or float32 operands: a.detach()"
    )


def test_bias_and_scales_are_read_when_a_graph_runs() -> None:
    a, b, bias, scale = normal(256, 512), normal(512, 384), normal(384), torch.tensor(2.0, device="cuda")
    product(a, b, bias=bias, activation="gelu", scale_a=scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = product(a, b, bias=bias, activation="gelu", scale_a=scale)
    bias.copy_(normal(384))
    scale.fill_(0.25)
    graph.replay()
    near(d, layer_of(a.double() / 4, b.double(), bias.double(), "gelu"))


def test_the_operator_runs_on_the_current_stream() -> None:
    a, b, bias, side = normal(256, 256), normal(256, 256), normal(256), torch.cuda.Stream()
    expected, late = product(a, b, bias=bias), torch.zeros_like(bias)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(bias)
        d = product(a, b, bias=late)
    side.synchronize()
    assert torch.equal(d, expected)


def test_the_operator_is_registered_as_torch_demands() -> None:
    """But for float8, whose schema `opcheck` cannot look at: it multiplies such tensors itself."""
    options = {"bias": normal(40, grad=True), "activation": "silu"}
    scales = {"scale_a": torch.tensor(0.5, device="cuda")}
    checks = "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    for arguments, keywords, first in (
        ((normal(64, 48, grad=True), normal(48, 40, grad=True)), options, 0),
        ((float8(64, 48), float8(40, 48).T), scales, 1),
    ):
        results = torch.library.opcheck(product, arguments, keywords, test_utils=checks[first:], rtol=2e-2, atol=2e-2)
        assert set(results.values()) == {"SUCCESS"}


def test_bias_and_activation_compile_to_one_graph() -> None:
    def layer(a: Any, b: Any, bias: Any) -> Any:
        return product(product(a, b, bias=bias, activation="gelu") + 1, b.T, out_dtype=torch.float32)

    compiled = torch.compile(layer, fullgraph=True)
    a, b, bias = normal(128, 256, grad=True), normal(256, 64), normal(64, grad=True)
    found = []
    for each in (layer, compiled):
        a.grad = bias.grad = None
        d = each(a, b, bias)
        d.sum().backward()
        found.append((d, a.grad, bias.grad))
    for one, other in zip(*found, strict=True):
        near(one, other)


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
