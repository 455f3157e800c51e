"""`torch.ops.warpwright.attention_modified` with tensors on the CPU: values, fake tensors, `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

import warpwright as ww
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.interop.torch import AttentionMods, attention_modified
from warpwright.lang import f32

SINKS = torch.tensor([0.5, 2.0])


def inputs() -> list[Any]:
    """Q of two heads, K and V of one."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, rows, 64, generator=generator).bfloat16() for heads, rows in ((2, 20), (1, 30), (1, 30))
    ]


def mods(slopes: Any) -> AttentionMods:
    def score_mod(score: Any, batch: Any, head: Any, q: Any, k: Any) -> Any:
        return score + slopes[head] * (k - q).to(f32)

    def mask_mod(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return k <= q + 5

    return AttentionMods(score_mod, mask_mod)


def exact(q: Any, k: Any, v: Any, slopes: Any, hidden: Any) -> Any:
    """Returns attention in float64 with slopes."""
    apart = torch.arange(30) - torch.arange(20)[:, None]
    scores = q.double() @ k.double().mT / 8 + slopes.double()[:, None, None] * apart
    return torch.softmax(scores.masked_fill(hidden(apart), -torch.inf), -1) @ v.double()


def near(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()


def test_the_operator_is_registered_as_torch_demands() -> None:
    given, keywords = inputs(), {"sinks": SINKS, "softcap": 2.0, "causal": True, "left": 12}
    results = torch.library.opcheck(attention_modified, (*given, []), keywords, rtol=2e-2, atol=2e-2)
    assert set(results.values()) == {"SUCCESS"}
    out, lse = attention_modified(*given, [], **keywords)
    options = {"sinks": SINKS, "softcap": 2.0, "causal": True, "window": (12, None)}
    expected, logs = ww.attention(*given, device="h200", return_lse=True, **options)
    assert torch.equal(out, expected) and torch.equal(lse, logs)


def test_functions_compile_to_one_graph() -> None:
    slopes, given = torch.tensor([0.5, 0.25]), inputs()
    sloped = mods(slopes)

    def model(q: Any, k: Any, v: Any) -> Any:
        return sloped(q * 2, k, v)[0] + 1

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for factor in (1, -1):  # tensors that a function captures may change
        slopes.mul_(factor)
        expected = exact(given[0] * 2, *given[1:], slopes, lambda apart: apart > 5) + 1
        near(compiled(*given), expected)


def test_equal_functions_have_one_key() -> None:
    one, two = mods(torch.tensor([0.5, 0.25])), mods(torch.tensor([1.0, 2.0]))
    assert one.key == two.key and one.captured[0] is not two.captured[0]
    assert one.key.startswith("score_mod_mask_mod_")
    assert AttentionMods(lambda score, b, h, q, k: score * 2.0).key != AttentionMods(lambda s, b, h, q, k: s * 3.0).key


def loss_of(sloped: AttentionMods, q: Any, k: Any, v: Any, sinks: Any) -> Any:
    out, lse = sloped(q * 2, k, v, sinks, 3.0)
    return (out.double() ** 2).sum() + lse.double().sum()


def exact_loss(slopes: Any, q: Any, k: Any, v: Any, sinks: Any) -> Any:
    apart = torch.arange(30) - torch.arange(20)[:, None]
    scores = 3 * torch.tanh((2 * q @ k.mT / 8 + slopes.double()[:, None, None] * apart) / 3)
    scores = scores.masked_fill(apart > 5, -torch.inf)
    scores = torch.cat((scores, sinks[None, :, None, None].expand(1, 2, 20, 1)), -1)
    out = torch.softmax(scores, -1)[..., :-1] @ v
    return (out**2).sum() + torch.logsumexp(scores, -1).sum()


@sampled("compiled", [False, True], keep=[True])
def test_gradients_are_torchs_own(compiled: bool) -> None:
    slopes = torch.tensor([0.5, 0.25])
    given = [x.requires_grad_() for x in (*inputs(), SINKS.clone())]
    sloped = mods(slopes)

    def loss(*leaves: Any) -> Any:
        return loss_of(sloped, *leaves)

    loss = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    found = torch.autograd.grad(loss(*given), given)
    doubles = [x.detach().double().requires_grad_() for x in given]
    expected = torch.autograd.grad(exact_loss(slopes, *doubles), doubles)
    for each, wanted in zip(found, expected, strict=True):
        assert each.shape == wanted.shape and (each.double() - wanted).abs().max() <= 2.0**-6 * wanted.abs().max()


def test_no_gradient_is_lost() -> None:
    q, k, v = inputs()
    slopes = torch.tensor([0.5, 0.25], requires_grad=True)
    with pytest.raises(UsageError) as caught:
        mods(slopes)(q, k, v)
    assert str(caught.value) == (
        "attention: a captured tensor requires gradients, which functions of the user do not have by what they "
        "capture; expected .detach() of it, or another implementation of attention"
    )
    with torch.no_grad():
        assert not mods(slopes)(q, k, v)[0].requires_grad
    wide = [torch.zeros(1, 2, 8, 264, dtype=torch.bfloat16, requires_grad=number == 1) for number in range(3)]
    with pytest.raises(UsageError) as caught:
        attention_modified(*wide, [], softcap=2.0)
    assert str(caught.value) == (
        "attention: k requires gradients, for which there are kernels up to a head dimension of 256; expected "
        "torch.no_grad() around the call, or another implementation of attention"
    )


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        attention_modified(*inputs(), [], functions="alibi")
    assert str(caught.value) == (
        "attention: functions='alibi'; expected '' or the key of an AttentionMods: AttentionMods(score_mod).key"
    )
