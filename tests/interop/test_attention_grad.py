"""Gradients of `torch.ops.warpwright.attention` with tensors on the CPU against torch's own; `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from warpwright.errors import UsageError
from warpwright.interop import attention_grad
from warpwright.interop.torch import AttentionMods, attention, attention_varlen
from warpwright.ops.attention import backward, varlen_backward

theirs = torch.nn.functional.scaled_dot_product_attention
ERROR = 2.0**-7  # of the greatest gradient: P, dS, O and the result are rounded to 8 bits


def leaves(q_len: int = 20, kv_len: int = 30, head_dim: int = 64) -> list[Any]:
    """Q of two heads, K and V of one."""
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, q_len, head_dim), (1, 1, kv_len, head_dim), (1, 1, kv_len, head_dim)
    return [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]


def exact(given: list[Any], loss: Any, **options: Any) -> Any:
    """torch's own gradients in float64 of ``loss`` of the output and the log-sum-exp."""
    doubles = [x.detach().double().requires_grad_() for x in given]
    out = theirs(*doubles, enable_gqa=True, **options)
    lse = torch.logsumexp(doubles[0] @ doubles[1].mT / given[0].shape[-1] ** 0.5, -1)
    return torch.autograd.grad(loss(out, lse), doubles)


def near(found: Any, expected: Any) -> None:
    for each, wanted in zip(found, expected, strict=True):
        assert each.shape == wanted.shape and each.dtype == torch.bfloat16
        assert (each.double() - wanted).abs().max() <= ERROR * wanted.abs().max()


def test_gradients_are_torchs_own() -> None:
    given = leaves(40, 40)
    weights = torch.randn(1, 2, 40, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = torch.autograd.grad((attention(*given, True)[0] * weights).sum(), given)
    near(found, exact(given, lambda out, lse: (out * weights).sum(), is_causal=True))


def test_the_log_sum_exp_has_a_gradient_too() -> None:
    given = leaves()

    def loss(out: Any, lse: Any) -> Any:
        return (out.double() ** 2).sum() + (3 * lse.double()).sum()

    near(torch.autograd.grad(loss(*attention(*given)), given), exact(given, loss))
    alone = torch.autograd.grad(attention(*given)[1].sum(), given[:2])
    near(alone, exact(given, lambda out, lse: lse.sum() + 0 * out.sum())[:2])


def test_what_needs_no_gradient_gets_none() -> None:
    q, k, v = leaves()
    attention(q, k.detach(), v)[0].sum().backward()
    assert q.grad is not None and v.grad is not None and k.grad is None


def test_gradients_lie_in_memory_as_what_they_belong_to() -> None:
    given = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in leaves()]
    found = torch.autograd.grad(attention(*given)[0].sum(), given)
    assert found[0].stride() == given[0].stride() != found[0].contiguous().stride()
    near(found, exact(given, lambda out, lse: out.sum()))


def test_it_compiles_with_its_gradients() -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attention(q * 2, k, v, True)[0] ** 2).sum()

    given = leaves()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(each(*given), given) for each in (compiled, loss))
    near(found, [x.double() for x in expected])


def test_gradients_of_gradients_are_refused() -> None:
    given = leaves()
    (first,) = torch.autograd.grad((attention(*given)[0] ** 2).sum(), given[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_batch_of_nothing() -> None:
    q, k, v = (x.detach()[:0].requires_grad_() for x in leaves())
    attention(q, k, v)[0].sum().backward()
    assert (q.grad.shape, k.grad.shape, v.grad.shape) == ((0, 2, 20, 64), (0, 1, 30, 64), (0, 1, 30, 64))
    q, k, v = leaves()
    attention(q[:, :, :0], k, v)[0].sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the gradients of each call from now on have a fixed order."""
    found: list[bool] = []
    for module in (backward, varlen_backward):

        def choose(*given: Any, _own: Any = module.choose) -> Any:
            plan = _own(*given)
            found.append(plan.config.ordered)
            return plan

        monkeypatch.setattr(module, "choose", choose)
    return found


def packed(q: Any, k: Any, v: Any, *options: Any) -> Any:
    """Attention of one packed sequence."""
    starts = [torch.tensor([0, x.shape[2]]).int() for x in (q, k)]
    return attention_varlen(*(x[0].transpose(0, 1) for x in (q, k, v)), *starts, False, None, None, None, *options)


def capped(q: Any, k: Any, v: Any, *options: Any) -> Any:
    """Attention with a soft cap."""
    rest = None, 4.0, "", False, None, None, None, "bhsd", *options
    return torch.ops.warpwright.attention_modified(q, k, v, [], *rest)


def plain(q: Any, k: Any, v: Any, *options: Any) -> Any:
    """Attention."""
    return attention(q, k, v, False, None, None, None, "bhsd", *options)


@pytest.mark.parametrize("function", [plain, packed, capped])
def test_a_fixed_order_on_hopper(function: Any, orders: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    given = leaves()
    found = [torch.autograd.grad(function(*given, *more)[0].sum(), given) for more in ((), (True,))]
    out = function(*given)[0].sum()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    found.append(torch.autograd.grad(out, given))
    assert orders == [False, True, True]
    for each in found[1:]:
        near(each, [x.double() for x in found[0]])


@pytest.mark.parametrize("function", [plain, packed, capped])
def test_wide_heads_have_no_fixed_order(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = leaves(head_dim=136)
    out = function(*given)[0].sum()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(UsageError, match="the gradient by q is summed in any order"):
        torch.autograd.grad(out, given)


def test_a_mask_function_has_no_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    given = leaves()
    out = AttentionMods(mask_mod=lambda batch, head, q, k: q + 5 >= k)(*given)[0].sum()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(UsageError, match="the gradient by q is summed in any order"):
        torch.autograd.grad(out, given)


def test_sums_in_any_order_are_not_passed_off_as_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "attention: the gradient by q is summed in any order, and torch.use_deterministic_algorithms(True) is set; "
        "expected warn_only=True there, or torch's own scaled_dot_product_attention"
    )
    given = leaves()
    out = attention(*given)[0].sum()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(attention_grad, "_target", lambda q: "sm_100a")
    with pytest.raises(UsageError) as caught:
        torch.autograd.grad(out, given, retain_graph=True)
    assert str(caught.value) == text
    monkeypatch.setattr(torch, "is_deterministic_algorithms_warn_only_enabled", lambda: True)
    with pytest.warns(UserWarning) as warned:
        torch.autograd.grad(out, given)
    assert [str(warning.message) for warning in warned] == [text]
