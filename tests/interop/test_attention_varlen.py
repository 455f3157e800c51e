"""`torch.ops.warpwright.attention_varlen` with tensors on the CPU: values, fake tensors, `torch.compile`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.interop.torch import attention, attention_varlen


def inputs(q_lens: tuple[int, ...] = (9, 20), k_lens: tuple[int, ...] = (30, 7)) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(n), 2, 64, generator=generator).bfloat16() for n in (q_lens, k_lens, k_lens))
    return q, k, v, *(torch.tensor([0, *n]).cumsum(0).int() for n in (q_lens, k_lens))


def test_each_sequence_is_by_itself() -> None:
    q, k, v, *cu = inputs()
    out, lse = attention_varlen(q, k, v, *cu, True, 0.2, 8)
    assert out.is_contiguous() and lse.dtype == torch.float32
    for (a, b), (c, d) in zip(*(itertools.pairwise(x) for x in cu), strict=True):
        alone, logs = attention(q[None, a:b], k[None, c:d], v[None, c:d], True, 0.2, 8, None, "bshd")
        assert (out[a:b].float() - alone[0].float()).abs().max() < 0.02
        torch.testing.assert_close(lse[:, a:b], logs[0], rtol=0, atol=1e-5)


def test_the_operator_is_registered_as_torch_demands() -> None:
    for keywords in ({}, {"causal": True, "scale": 0.1, "right": 4}):
        results = torch.library.opcheck(attention_varlen, inputs(), keywords)
        assert set(results.values()) == {"SUCCESS"}


def test_it_compiles_to_one_graph() -> None:
    def model(q: Any, k: Any, v: Any, *cu: Any) -> Any:
        return attention_varlen(q * 2, k, v, *cu, True)[0] + 1

    arrays = inputs()
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(*arrays)
    assert torch.equal(found, model(*arrays))


@sampled("compiled", [False, True], keep=[True])
def test_gradients_are_those_of_each_sequence(compiled: bool) -> None:
    q, k, v, *cu = inputs()
    given = [x.requires_grad_() for x in (q, k, v)]

    def loss(*leaves: Any) -> Any:
        out, lse = attention_varlen(*leaves, *cu, True, 0.2, 8)
        return (out.double() ** 2).sum() + lse[:, :9].double().sum()

    run = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    found = torch.autograd.grad(run(*given), given)
    total = torch.zeros((), dtype=torch.float64)
    for (a, b), (c, d) in zip(*(itertools.pairwise(x) for x in cu), strict=True):
        alone, logs = attention(q[None, a:b], k[None, c:d], v[None, c:d], True, 0.2, 8, None, "bshd")
        total = total + (alone.double() ** 2).sum() + (logs.double().sum() if a == 0 else 0)
    for each, wanted in zip(found, torch.autograd.grad(total, given), strict=True):
        assert each.shape == wanted.shape and (each - wanted).abs().max() <= 2.0**-6 * wanted.abs().max()


def test_no_gradient_is_lost() -> None:
    q, k, v = (torch.zeros(8, 2, 264, dtype=torch.bfloat16) for _ in range(3))
    cu = torch.tensor([0, 8]).int()
    with pytest.raises(UsageError) as caught:
        attention_varlen(q, k, v.requires_grad_(), cu, cu)
    assert str(caught.value) == (
        "attention: v requires gradients, for which packed sequences have kernels for sm_90a and up to a head "
        "dimension of 256; expected v.detach(), or torch.ops.warpwright.attention for each sequence"
    )
    with torch.no_grad():
        attention_varlen(*(x[..., :256] for x in (q, k, v)), cu, cu)
