"""`torch.ops.warpwright.attention_mla` with tensors on the CPU: values, fake tensors, `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from warpwright.errors import UsageError
from warpwright.interop.torch import attention_mla

LENGTHS, SCALE = [40, 9], 192**-0.5


def inputs(rows: int = 2) -> tuple[Any, ...]:
    """Returns q, pages of latent rows, the block table, the lengths, and the rows in order."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, rows, 4, 576, generator=generator).bfloat16()
    whole = torch.randn(2, 48, 576, generator=generator).bfloat16()
    table = torch.tensor([[4, 0, 2], [1, 5, 3]]).int()
    pages = torch.empty(6, 16, 576, dtype=torch.bfloat16)
    pages[table.long()] = whole.unflatten(1, (3, 16))
    return q, pages, table, torch.tensor(LENGTHS).int(), whole


def wanted(q: Any, whole: Any) -> Any:
    """Returns the result in float64, whose last query is at the last key."""
    out = torch.zeros(*q.shape[:3], 512, dtype=torch.float64)
    for i, length in enumerate(LENGTHS):
        keys = whole[i, :length].double()
        scores = torch.einsum("qhd,kd->hqk", q[i].double(), keys) * SCALE
        hidden = torch.arange(length) > torch.arange(q.shape[1])[:, None] + length - q.shape[1]
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        out[i] = torch.einsum("hqk,kd->qhd", weights, keys[:, :512])
    return out


def test_pages_and_whole_rows_agree_with_float64() -> None:
    q, pages, table, lengths, whole = inputs()
    out, lse = attention_mla(q, pages, SCALE, table, lengths, True)
    assert out.shape == (2, 2, 4, 512) and lse.shape == (2, 4, 2) and out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wanted(q, whole), rtol=0, atol=0.02)
    again, logs = attention_mla(q, whole[:, :, None], SCALE, lengths=lengths, causal=True)
    assert torch.equal(again, out) and torch.equal(logs, lse)


def test_the_operator_is_registered_as_torch_demands() -> None:
    q, pages, table, lengths, whole = inputs()
    for given in ((q, pages, SCALE, table, lengths, True), (q, whole, SCALE)):
        assert set(torch.library.opcheck(attention_mla, given).values()) == {"SUCCESS"}


def test_a_step_of_decoding_compiles_to_one_graph() -> None:
    def step(q: Any, *given: Any) -> Any:
        out, lse = attention_mla(q * 2, *given)
        return out + 1, lse

    q, pages, table, lengths, _ = inputs(1)
    given = q, pages, SCALE, table, lengths
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert all(torch.equal(*pair) for pair in zip(step(*given), compiled(*given), strict=True))


def test_gradients_are_refused() -> None:
    q, *given, _ = inputs(1)
    q.requires_grad_()
    with pytest.raises(UsageError) as caught:
        attention_mla(q, given[0], SCALE, *given[1:])
    assert str(caught.value) == (
        "attention: q requires gradients, for which latent rows have no kernel; expected q.detach(), or "
        "torch.ops.warpwright.attention of keys and values of each head"
    )
    with torch.no_grad():
        attention_mla(q, given[0], SCALE, *given[1:])
