"""`torch.ops.warpwright.attention` with tensors on the CPU: values, fake tensors, `torch.compile`, torch's own mask."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

import warpwright as ww
from warpwright import interop
from warpwright.errors import UsageError
from warpwright.interop.torch import attention, scaled_dot_product_attention

theirs = torch.nn.functional.scaled_dot_product_attention


def normal(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(q_len: int = 20, kv_len: int = 30, heads: int = 2, kv_heads: int = 2, head_dim: int = 64) -> tuple[Any, ...]:
    shape = 1, kv_heads, kv_len, head_dim
    return normal(1, heads, q_len, head_dim), normal(*shape, seed=1), normal(*shape, seed=2)


def near(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    assert (found.double() - expected.double()).abs().max() <= 2.0**-7 * expected.double().abs().max()


def test_the_plain_function_takes_tensors_and_gives_them() -> None:
    q, k, v = inputs()
    out, lse = ww.attention(q, k, v, device="rtx5090", return_lse=True)
    assert isinstance(out, torch.Tensor) and out.is_contiguous() and lse.dtype == torch.float32
    near(out, theirs(q.float(), k.float(), v.float()))
    expected = torch.logsumexp(q.double() @ k.double().mT / 8, -1)
    torch.testing.assert_close(lse.double(), expected, rtol=0, atol=1e-5)


def test_the_result_lies_in_memory_as_the_queries_do() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs())
    out = ww.attention(q, k, v, device="rtx5090")
    assert out.stride() == q.stride()
    assert torch.equal(out, ww.attention(*(x.contiguous() for x in (q, k, v)), device="rtx5090"))


def test_values_of_other_columns() -> None:
    q, k, v = inputs(head_dim=64)
    v = v[..., :40]
    near(attention(q, k, v)[0], theirs(q.float(), k.float(), v.float()))
    turned = *(x.transpose(1, 2) for x in (q, k, v)), True, None, None, None, "bshd"
    assert set(torch.library.opcheck(attention, turned, rtol=2e-2, atol=2e-2).values()) == {"SUCCESS"}
    with pytest.raises(UsageError) as caught:
        attention(q, k, v.clone().requires_grad_())
    assert str(caught.value) == (
        "attention: v requires gradients, for which there are kernels if q and v have the same head dimension, on "
        "sm_90a up to 256, sm_100a up to 128, sm_120a up to 128; given 64 and 40; expected v.detach(), or torch's own "
        "scaled_dot_product_attention"
    )


def test_the_operator_is_registered_as_torch_demands() -> None:
    turned = tuple(x.transpose(1, 2) for x in inputs())
    swapped = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs())
    samples = [(inputs(), {}), (turned, {"causal": True, "layout": "bshd"}), (swapped, {"left": 3, "scale": 0.1})]
    for arguments, keywords in samples:
        results = torch.library.opcheck(attention, arguments, keywords, rtol=2e-2, atol=2e-2)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 20), (20, 33), (33, 20)])
def test_a_causal_mask_of_torch_is_aligned_top_left(q_len, kv_len) -> None:
    q, k, v = inputs(q_len, kv_len)
    found = interop.attention._aligned_top_left(q, k, v, True, None)
    near(found, theirs(q.float(), k.float(), v.float(), is_causal=True))
    if q_len != kv_len:
        ours = attention(q, k, v, True)[0]
        assert (ours.float() - found.float()).abs().max() > 0.1


def test_what_the_kernels_do_not_serve_is_torchs() -> None:
    q, k, v = inputs()
    mask = torch.zeros(20, 30, dtype=torch.bfloat16)
    assert torch.equal(scaled_dot_product_attention(q, k, v), theirs(q, k, v))  # on the CPU
    served = interop.attention._supported
    assert served(q, k, v, None, 0.0, None, False)
    refused = [
        (q, k, v, mask, 0.0, None, False),
        (q, k, v, None, 0.1, None, False),
        (q, k, v, None, 0.0, -1.0, False),
        (q, k, v, None, 0.0, float("inf"), False),
        (q.float(), k.float(), v.float(), None, 0.0, None, False),
        (q, k, v[..., :32], None, 0.0, None, False),
        (q, k[:, :1], v[:, :1], None, 0.0, None, False),
        (q[0], k[0], v[0], None, 0.0, None, False),
        (q, k[:, :, :0], v[:, :, :0], None, 0.0, None, False),
        (*(x.requires_grad_() for x in inputs(head_dim=192)[:2]), inputs(head_dim=128)[2], None, 0.0, None, False),
        (*inputs(head_dim=20), None, 0.0, None, False),
    ]
    assert not any(served(*arguments) for arguments in refused)
    with torch.no_grad():
        assert served(*(x.requires_grad_() for x in inputs(head_dim=192)), None, 0.0, None, False)
    assert served(q.requires_grad_(), k[:, :1], v[:, :1], None, 0.0, None, True)


def test_gradients_in_a_fixed_order_are_torchs_where_there_is_no_kernel(monkeypatch) -> None:
    q, k, v = inputs()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert interop.attention._supported(q, k, v.requires_grad_(), None, 0.0, None, False)
    monkeypatch.setattr(interop.attention_grad, "_target", lambda q: "sm_100a")
    assert interop.attention._supported(q, k, v.detach(), None, 0.0, None, False)
    assert not interop.attention._supported(q, k, v, None, 0.0, None, False)


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), False), ((9, 0), True), ((12, 0), True)])
def test_gpus_without_kernels_are_torchs(capability, expected, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert interop.attention._has_kernels(torch.device("cuda:0")) is expected


def test_the_stand_in_has_the_signature_of_torchs_function() -> None:
    theirs_too = torch.ops.aten.scaled_dot_product_attention.default._schema.arguments
    known = {name: each.default for name, each in inspect.signature(scaled_dot_product_attention).parameters.items()}
    assert list(known) == [each.name for each in theirs_too]
    empty = inspect.Parameter.empty
    assert list(known.values()) == [x.default_value if x.has_default_value() else empty for x in theirs_too]


def test_it_compiles_to_one_graph() -> None:
    def model(q: Any, k: Any, v: Any) -> Any:
        return attention(q * 2, k, v, True)[0] + 1

    arrays = inputs()
    near(torch.compile(model, fullgraph=True, backend="aot_eager")(*arrays), model(*arrays))


def test_no_gradient_is_lost() -> None:
    (q, k, _), (_, _, v) = inputs(head_dim=192), inputs(head_dim=128)
    with pytest.raises(UsageError) as caught:
        attention(q, k.requires_grad_(), v)
    assert str(caught.value) == (
        "attention: k requires gradients, for which there are kernels if q and v have the same head dimension, on "
        "sm_90a up to 256, sm_100a up to 128, sm_120a up to 128; given 192 and 128; expected k.detach(), or torch's "
        "own scaled_dot_product_attention"
    )
    with torch.no_grad():
        attention(q, k, v)
