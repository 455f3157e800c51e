"""`torch.ops.warpwright.matmul` with tensors on the CPU: values, gradients, fake tensors, `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

import warpwright as ww  # noqa: E402
import warpwright.interop.torch  # noqa: E402  (registers the operator)

product = torch.ops.warpwright.matmul


def normal(seed: int, *shape: int, dtype: Any = torch.bfloat16, grad: bool = False) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def near(found: Any, expected: Any) -> None:
    """Equal but for one rounding to bfloat16 and sums in another order."""
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
    ]
    for arguments, keywords in samples:
        results = torch.library.opcheck(product, arguments, keywords, rtol=2e-2, atol=2e-2)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("left", "right"),
    [((24, 40), (40, 16)), ((2, 3, 24, 40), (40, 16)), ((3, 24, 40), (3, 40, 16)), ((2, 1, 24, 40), (3, 40, 16))],
)
def test_gradients_are_those_of_torch(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(1, *left, grad=True), normal(2, *right, grad=True)
    weights = normal(3, *(a.detach() @ b.detach()).shape)
    (product(a, b) * weights).sum().backward()
    found = a.grad, b.grad
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    (a64 @ b64 * weights).sum().backward()
    near(found[0], a64.grad)
    near(found[1], b64.grad)


def test_a_gradient_in_float32_and_one_that_nobody_needs() -> None:
    a, b = normal(1, 24, 40), normal(2, 40, 16, grad=True)
    product(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad is None and b.grad.dtype == torch.bfloat16
    near(b.grad, a.double().sum(0)[:, None].expand(40, 16))


def test_it_compiles_to_one_graph() -> None:
    def layer(a: Any, b: Any) -> Any:
        return torch.relu(product(a, b)) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    a, b = normal(1, 24, 40, grad=True), normal(2, 40, 16)
    assert torch.equal(compiled(a, b), layer(a, b))
    compiled(a, b).sum().backward()
    compiled_gradient, a.grad = a.grad, None
    layer(a, b).sum().backward()
    assert torch.equal(compiled_gradient, a.grad)


def test_a_tensor_that_requires_gradients_is_refused_by_the_plain_function() -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(normal(1, 8, 8, grad=True), normal(2, 8, 8))
    assert str(caught.value) == (
        "given a tensor that requires gradients, which this function does not record; expected x.detach(), "
        "or use torch.ops.warpwright.matmul of warpwright.interop.torch"
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
            "matmul: a is int8; expected bfloat16, float16 or float32: a.bfloat16()",
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
