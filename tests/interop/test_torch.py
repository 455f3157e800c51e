"""`torch.ops.warpwright.matmul` with tensors on the CPU: values, gradients, fake tensors, `torch.compile`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import warpwright as ww
import warpwright.interop.torch  # registers the operator
from warpwright.arrays.libraries import LIBRARIES
from warpwright.ops.binding import guard_of
from warpwright.ops.matmul import call
from warpwright.ops.matmul.bound_call import BoundCall
from warpwright.ops.memo import ABSENT, MEMO

operator = torch.ops.warpwright.matmul


class Named(torch.Tensor):
    """A tensor of another type."""


def normal(seed: int, *shape: int, dtype: Any = torch.bfloat16, grad: bool = False) -> Any:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return tensor.requires_grad_(grad)


def near(found: Any, expected: Any) -> None:
    """Assert equality up to one rounding to bfloat16 and another order of sums."""
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() <= 2.0**-7 * expected.double().abs().max()


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_tensors_of_the_cpu_go_through_the_virtual_gpu(device: str) -> None:
    a, b = normal(1, 65, 72), normal(2, 40, 72)
    d = ww.matmul(a, b.T, device=device, out_dtype=torch.float32)
    assert isinstance(d, torch.Tensor) and d.dtype == torch.float32 and d.is_contiguous()
    torch.testing.assert_close(d.double(), a.double() @ b.double().T, rtol=0, atol=1e-4)


def test_views_are_read_in_place_and_strange_ones_copied() -> None:
    a, b = normal(1, 64, 48), normal(2, 48, 32)
    wide = torch.zeros(128, 96, dtype=torch.bfloat16)
    wide[::2, ::2] = a
    expected = ww.matmul(a, b, device="h200")
    for left in (wide[::2, ::2], a.T.contiguous().T, a[None].expand(3, 64, 48)[1]):
        assert torch.equal(ww.matmul(left, b, device="h200"), expected)
    row = normal(3, 1, 48)
    assert torch.equal(ww.matmul(row.expand(4, 48), b, device="h200")[3:], ww.matmul(row, b, device="h200"))


def test_out_is_written_in_place() -> None:
    a, b = normal(1, 33, 48), normal(2, 48, 20)
    whole = torch.full((33, 32), 7.0)
    given = whole[:, 8:28]
    assert ww.matmul(a, b, out=given, device="h200") is given
    torch.testing.assert_close(given.double(), a.double() @ b.double(), rtol=0, atol=1e-4)
    assert (whole[:, :8] == 7).all() and (whole[:, 28:] == 7).all()


def test_the_operator_is_registered_as_torch_demands() -> None:
    samples = [
        ((normal(1, 16, 24, grad=True), normal(2, 24, 8, grad=True)), {}),
        ((normal(1, 3, 16, 24), normal(2, 24, 8, grad=True)), {"out_dtype": torch.float32}),
        ((normal(1, 16, 24, grad=True), normal(2, 24, 8)), {"bias": normal(3, 8, grad=True), "activation": "gelu"}),
        ((normal(1, 16, 24), normal(2, 24, 8)), {"scale_a": torch.tensor(0.5), "scale_b": torch.tensor(3.0)}),
    ]
    for arguments, keywords in samples:
        results = torch.library.opcheck(operator, arguments, keywords, rtol=2e-2, atol=2e-2)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("left", "right"),
    [((24, 40), (40, 16)), ((2, 3, 24, 40), (40, 16)), ((3, 24, 40), (3, 40, 16)), ((2, 1, 24, 40), (3, 40, 16))],
)
def test_gradients_are_those_of_torch(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(1, *left, grad=True), normal(2, *right, grad=True)
    weights = normal(3, *(a.detach() @ b.detach()).shape)
    (operator(a, b) * weights).sum().backward()
    found = a.grad, b.grad
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    (a64 @ b64 * weights).sum().backward()
    near(found[0], a64.grad)
    near(found[1], b64.grad)


def test_a_gradient_in_float32_and_one_that_nobody_needs() -> None:
    a, b = normal(1, 24, 40), normal(2, 40, 16, grad=True)
    operator(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad is None and b.grad.dtype == torch.bfloat16
    near(b.grad, a.double().sum(0)[:, None].expand(40, 16))


def layer_of(a: Any, b: Any, bias: Any, activation: str | None, scale: float = 1.0) -> Any:
    """activation(scale · a·b + bias) by torch."""
    sums = scale * (a @ b) + (0 if bias is None else bias)
    return sums if activation is None else getattr(torch.nn.functional, activation)(sums)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_bias_and_activation_and_their_gradients(activation: str | None, with_bias: bool) -> None:
    a, b = normal(1, 2, 24, 40, grad=True), normal(2, 40, 17, grad=True)
    bias = normal(3, 17, dtype=torch.float32, grad=True) if with_bias else None
    options = {"bias": bias, "activation": activation, "out_dtype": torch.float32}
    weights = normal(4, 2, 24, 17, dtype=torch.float32)
    d = operator(a, b, **options)
    (d * weights).sum().backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    bias64 = None if bias is None else bias.detach().double().requires_grad_()
    exact = layer_of(a64, b64, bias64, activation)
    (exact * weights).sum().backward()
    torch.testing.assert_close(d.double(), exact, rtol=0, atol=1e-4)
    near(a.grad, a64.grad)
    near(b.grad, b64.grad)
    if bias is not None:
        assert bias.grad.dtype == torch.float32
        torch.testing.assert_close(bias.grad.double(), bias64.grad, rtol=1e-4, atol=1e-4)


def test_scales_scale_the_gradients_too() -> None:
    a, b, scales = normal(1, 24, 40, grad=True), normal(2, 40, 16, grad=True), (torch.tensor(0.25), torch.tensor(3.0))
    d = operator(a, b, activation="silu", scale_a=scales[0], scale_b=scales[1])
    d.sum().backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    exact = layer_of(a64, b64, None, "silu", 0.75)
    exact.sum().backward()
    for found, expected in ((d, exact), (a.grad, a64.grad), (b.grad, b64.grad)):
        near(found, expected)


def test_a_gradient_of_gradients() -> None:
    a, b = normal(1, 8, 16, grad=True), normal(2, 16, 8, grad=True)
    (first,) = torch.autograd.grad(operator(a, b, activation="silu").sum(), a, create_graph=True)
    first.square().sum().backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    (first64,) = torch.autograd.grad(layer_of(a64, b64, None, "silu").sum(), a64, create_graph=True)
    first64.square().sum().backward()
    assert (a.grad.double() - a64.grad).norm() < 0.03 * a64.grad.norm()
    assert (b.grad.double() - b64.grad).norm() < 0.03 * b64.grad.norm()


def test_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "resolve", lambda _: ww.device("h200"))
    a, b = (normal(i, 32, 64).to(torch.float8_e4m3fn) for i in (1, 2))
    bias = normal(3, 32, grad=True)
    keywords = {"bias": bias, "activation": "relu", "scale_a": torch.tensor(0.5), "scale_b": torch.tensor(0.25)}
    d = operator(a, b.T, **keywords)
    exact = layer_of(a.double(), b.double().T, bias.double(), "relu", 0.125)
    assert d.dtype == torch.bfloat16 and operator(a, b.T, out_dtype=torch.float16).dtype == torch.float16
    near(d, exact)
    (found,) = torch.autograd.grad(d.sum(), bias)
    (expected,) = torch.autograd.grad(exact.sum(), bias)
    near(found, expected)
    for name, given in (("a", (a.requires_grad_(), b.T)), ("b", (a.detach(), b.T.requires_grad_()))):
        with pytest.raises(ww.UsageError) as caught:
            operator(*given)
        assert str(caught.value) == (
            f"matmul: {name} is float8_e4m3fn and requires gradients; expected gradients only of a bias and of "
            f"bfloat16, float16 or float32 operands: {name}.detach()"
        )


def test_a_scale_has_no_gradient() -> None:
    with pytest.raises(ww.UsageError) as caught:
        operator(normal(1, 8, 8), normal(2, 8, 8), scale_b=torch.tensor(2.0, requires_grad=True))
    assert str(caught.value) == (
        "matmul: scale_b is float32 and requires gradients; expected gradients only of a bias and of "
        "bfloat16, float16 or float32 operands: scale_b.detach()"
    )


def test_tensors_that_stand_for_others_reach_no_kernel() -> None:
    """Meta and fake tensors, and a mode that watches, all see one call of the operator."""
    a, b = normal(1, 2, 16, 24), normal(2, 24, 8)
    found = operator(a.to("meta"), b.to("meta"), out_dtype=torch.float16)
    assert (found.shape, found.dtype, found.device.type) == ((2, 16, 8), torch.float16, "meta")
    with FakeTensorMode() as mode:
        fake = operator(*map(mode.from_tensor, (a, b)), activation="relu")
    assert (fake.shape, fake.dtype, fake.device.type) == ((2, 16, 8), torch.bfloat16, "cpu")
    seen: list[Any] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(call)
            return call(*args, **(kwargs or {}))

    with Watch():
        operator(a, b)
    assert seen == [torch.ops.warpwright.matmul.default]
    with pytest.raises(RuntimeError, match=re.escape("matmul: a is (2, 16, 24) and b is (16, 8)")):
        operator(a.to("meta"), b[:16].to("meta"))


@pytest.fixture
def repeated() -> Iterator[list[Any]]:
    """Yields the results of a call in the memo with A (16, 24), B (24, 8), a bias and a scale."""
    results: list[Any] = []
    a, b, bias, one = normal(1, 16, 24), normal(2, 24, 8), normal(3, 8), torch.ones(())
    MEMO.clear()
    put((a, b, bias, one), "relu", results)
    yield results
    MEMO.clear()


def put(given: tuple[Any, Any, Any, Any], activation: Any, results: list[Any]) -> None:
    """Have the memo return a new tensor for A, B, a bias and a scale, and append it to ``results``."""
    a, b, bias, one = given

    def result() -> Any:
        results.append(torch.full((16, 8), 7.0))
        return results[-1]

    arrays, options = (a, b, bias, one, None), call.memo_options(activation, None)
    guards = tuple(ABSENT if value is None else LIBRARIES["torch"].guard(value) for value in arrays)
    MEMO.put(
        arrays, options, guards, BoundCall(no_launch, torch.Tensor.data_ptr, lambda: 0, result, None, (0,) * 4, ())
    )


def no_launch(values: Any, stream: int) -> Any:
    raise AssertionError("a call without matrices starts nothing")


def test_a_call_that_was_made_before_is_made_again(repeated: list[Any]) -> None:
    a, b, bias, one = normal(4, 16, 24), normal(5, 24, 8), normal(6, 8), torch.ones(())
    assert operator(a, b, bias, "relu", one) is repeated[0]
    assert operator(a=a, b=b, bias=bias, activation="relu", scale_a=one) is repeated[1]
    assert ww.matmul(a, b, bias=bias, activation="relu", scale_a=one) is repeated[2]
    others: list[tuple[Any, ...]] = [
        (a, b, torch.nn.Parameter(bias), "relu", one),
        (a, b, bias, "gelu", one),
        (a, b, bias, "relu", None),
        (a, b.T.contiguous().T, bias, "relu", one),
        (a.half(), b.half(), bias, "relu", one),
        (a, b.as_subclass(Named), bias, "relu", one),
    ]
    for given in others:
        near(operator(*given), layer_of(*given[:4]))
    with torch.inference_mode():
        near(operator(a, b, bias, "relu", one), layer_of(a, b, bias, "relu"))
    assert len(repeated) == 3


def test_what_was_made_without_gradients_is_not_made_again_with_them(repeated: list[Any]) -> None:
    given = normal(4, 16, 24), torch.nn.Parameter(normal(5, 24, 8)), normal(6, 8)
    with torch.no_grad():
        put((*given, None), None, repeated)
        assert operator(*given) is repeated[0]
    operator(*given).sum().backward()
    assert given[1].grad is not None and len(repeated) == 1


def test_what_watches_calls_sees_those_that_are_made_again(repeated: list[Any]) -> None:
    given = normal(4, 16, 24), normal(5, 24, 8), normal(6, 8), "relu", torch.ones(())
    seen: list[Any] = []

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(call)
            return call(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(call)
            return call(*args, **(kwargs or {}))

    with Dispatched():
        operator(*given)
        nested = LIBRARIES["torch"].guard(given[0])
    with Called():
        operator(*given)
    assert seen == [torch.ops.warpwright.matmul.default, operator] and nested is None
    with torch.profiler.profile() as profile:
        operator(*given)
    assert "warpwright::matmul" in [event.name for event in profile.events()]
    vmapped = torch.func.vmap(lambda x: operator(x, *given[1:]))(torch.stack([given[0]] * 2))
    assert vmapped.shape == (2, 16, 8)


def test_tensors_that_are_alike() -> None:
    x, of_torch = normal(1, 4, 4), LIBRARIES["torch"].guard
    alike = of_torch(x)
    assert alike(normal(2, 4, 4)) and not any(map(alike, (x.T, x.half(), x[:2], x[:, :2], x.to("meta"), 3, None)))
    assert of_torch(x.as_subclass(Named)) is None
    assert guard_of(x) is None  # no address for a GPU
    weight = torch.nn.Parameter(x)
    with torch.no_grad():
        alike = of_torch(weight)
        assert alike(weight) and not alike(x)
    assert not alike(weight)
    assert torch.func.vmap(lambda y: y + float(of_torch(x) is None))(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_inference_mode() -> None:
    with torch.inference_mode():
        d = operator(normal(1, 8, 8, grad=True), normal(2, 8, 8))
    assert not d.requires_grad and d.is_inference()


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_to_one_graph(dynamic: bool) -> None:
    def layer(a: Any, b: Any, bias: Any) -> Any:
        return operator(torch.relu(operator(a, b)) + 1, b.T, bias=bias, activation="gelu")

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    a, b, bias = normal(1, 24, 40, grad=True), normal(2, 40, 16), normal(3, 40, grad=True)
    gradients = []
    for each in (layer, compiled):
        each(a, b, bias).sum().backward()
        gradients.append((a.grad, bias.grad))
        a.grad = bias.grad = None
    assert torch.equal(compiled(a, b, bias), layer(a, b, bias))
    assert all(map(torch.equal, *gradients))


def test_a_tensor_that_requires_gradients_is_refused_by_the_plain_function() -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(normal(1, 8, 8, grad=True), normal(2, 8, 8))
    assert str(caught.value) == (
        "given a tensor that requires gradients, which this function does not record; expected x.detach(), "
        "or use its operator in torch.ops.warpwright, which warpwright.interop.torch registers"
    )


@pytest.mark.parametrize(
    ("a", "b", "keywords", "expected"),
    [
        (
            torch.zeros(4, 4, device="meta"),
            torch.zeros(4, 4),
            {},
            "given a tensor on meta; expected one on cpu or cuda; move it: x.cuda()",
        ),
        (
            torch.eye(4).half().to_sparse(),
            torch.zeros(4, 4).half(),
            {},
            "given a tensor of layout torch.sparse_coo; expected a dense one; pass x.to_dense()",
        ),
        (
            torch.zeros(4, 4, dtype=torch.int8),
            torch.zeros(4, 4),
            {},
            "matmul: a is int8; expected bfloat16, float16, float32 or float8: a.bfloat16()",
        ),
        (
            torch.zeros(4, 4).half(),
            torch.zeros(4, 4).bfloat16(),
            {},
            "matmul: a is float16 and b is bfloat16; expected one dtype: b.to(a.dtype)",
        ),
        (
            torch.zeros(4, 4).half(),
            torch.zeros(4, 4).half().numpy(),
            {},
            "matmul: a is of torch and b of numpy; expected arrays of one library",
        ),
        (
            torch.zeros(4, 4).half(),
            torch.zeros(4, 4).half(),
            {"out_dtype": torch.int32},
            "matmul: out_dtype=torch.int32; expected ml_dtypes.bfloat16, np.float16 or np.float32",
        ),
    ],
)
def test_what_it_does_not_take_is_one_clear_error(a: Any, b: Any, keywords: dict[str, Any], expected: str) -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(a, b, **keywords)
    assert str(caught.value) == expected


def test_whether_a_graph_captures_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch knows it of the current stream on the current GPU, CUDA's driver of others."""
    current, asked = [1], list[int]()

    def captured() -> bool:
        if len(asked) > 1:
            raise RuntimeError(
                "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
            )
        return True

    def test_of_driver(stream: int) -> bool:
        asked.append(stream)
        return False

    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", captured, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    like = SimpleNamespace(is_cuda=True, get_device=lambda: 1)
    captures = LIBRARIES["torch"].captures(like, test_of_driver)
    assert captures(7) and not asked
    current[0] = 0
    assert not captures(8) and not captures(9) and asked == [8, 9]
    current[0] = 1
    assert captures(7)  # unknown counts as captured
    assert LIBRARIES["torch"].captures(torch.zeros(1), test_of_driver) is test_of_driver
