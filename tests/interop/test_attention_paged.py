"""`torch.ops.warpwright.attention_paged` and `attention_paged_append` with tensors on the CPU: values, fake tensors,
`torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from warpwright.errors import UsageError
from warpwright.interop.torch import attention, attention_paged, attention_paged_append

LENGTHS = [40, 9]


def inputs(rows: int = 2) -> tuple[Any, ...]:
    """Returns q, pages of K and V, the block table, the lengths, and the keys in order."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, rows, 4, 64, generator=generator).bfloat16()
    k, v = (torch.randn(2, 48, 2, 64, generator=generator).bfloat16() for _ in range(2))
    table = torch.tensor([[4, 0, 2], [1, 5, 3]]).int()
    pages = [torch.empty(6, 16, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
    for array, x in zip(pages, (k, v), strict=True):
        array[table.long()] = x.unflatten(1, (3, 16))
    return q, *pages, table, torch.tensor(LENGTHS).int(), k, v


def near(found: Any, wanted: Any) -> None:
    out, lse = found
    torch.testing.assert_close(out, wanted[0], rtol=0, atol=0.02)
    torch.testing.assert_close(lse, wanted[1], rtol=0, atol=1e-5)


def sequence(i: int, q: Any, k: Any, v: Any, *options: Any) -> Any:
    """Returns the result of one sequence without its axis, by the operator of dense keys."""
    return [x[0] for x in attention(q[None], k[i, None, : LENGTHS[i]], v[i, None, : LENGTHS[i]], *options, "bshd")]


def test_each_sequence_is_that_of_its_keys_in_order() -> None:
    *given, k, v = inputs()
    options = True, 0.2, 8, None
    out, lse = attention_paged(*given, None, *options)
    assert out.is_contiguous() and lse.shape == (2, 4, 2)
    for i in range(2):
        near((out[i], lse[i]), sequence(i, given[0][i], k, v, *options))
    packed, logs = attention_paged(given[0].flatten(0, 1), *given[1:], torch.tensor([0, 2, 4]).int(), *options)
    assert logs.shape == (4, 4)
    near((packed.view_as(out), logs.view(4, 2, 2).transpose(0, 1)), (out, lse))


def test_new_rows_are_written_and_counted_as_writes() -> None:
    q, k_pages, v_pages, table, lengths, k, v = inputs()
    expected = attention_paged(q, k_pages, v_pages, table, lengths, causal=True)
    new = [torch.stack([x[i, n - 2 : n] for i, n in enumerate(LENGTHS)]) for x in (k, v)]
    pages = [torch.full_like(x, torch.nan) for x in (k_pages, v_pages)]
    for old, x in zip((k_pages, v_pages), pages, strict=True):
        for i, n in enumerate(LENGTHS):
            for row in range(n - 2):
                x[table[i, row // 16], row % 16] = old[table[i, row // 16], row % 16]
    versions = [x._version for x in pages]
    near(attention_paged_append(q, *pages, table, lengths - 2, *new, None, True), expected)
    assert [x._version for x in pages] == [version + 1 for version in versions]
    for old, x in zip((k_pages, v_pages), pages, strict=True):
        for i, n in enumerate(LENGTHS):
            assert torch.equal(x[table[i]].flatten(0, 1)[:n], old[table[i]].flatten(0, 1)[:n])


def new_rows() -> tuple[Any, ...]:
    return tuple(torch.full((2, 1, 2, 64), 0.5).bfloat16() for _ in "kv")


def test_the_operators_are_registered_as_torch_demands() -> None:
    *given, _, _ = inputs()
    packed = given[0].flatten(0, 1), *given[1:], torch.tensor([0, 2, 4]).int()
    for operator, arrays, keywords in (
        (attention_paged, given, {"causal": True, "scale": 0.1, "right": 4}),
        (attention_paged, packed, {}),
        (attention_paged_append, (*given, *new_rows()), {"causal": True}),
    ):
        assert set(torch.library.opcheck(operator, tuple(arrays), keywords).values()) == {"SUCCESS"}


def test_a_step_of_decoding_compiles_to_one_graph() -> None:
    def step(q: Any, k: Any, v: Any, table: Any, lengths: Any, *new: Any) -> Any:
        out, _ = attention_paged_append(q * 2, k, v, table, lengths, *new, None, True)
        again, _ = attention_paged(q * 2, k, v, table, lengths + 1, None, True)
        return out, again

    found = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        *given, _, _ = inputs(1)
        found.append((*run(*given, *new_rows()), *given[1:3]))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    torch.testing.assert_close(found[0][0], found[0][1], rtol=0, atol=0)
    assert (found[0][2] == 0.5).all(-1).sum() == 4  # a row of each sequence and head


def test_gradients_are_refused() -> None:
    *given, _, _ = inputs(1)
    given[0].requires_grad_()
    refused = (
        "attention: q requires gradients, for which keys in pages have no kernel; expected q.detach(), or "
        "torch.ops.warpwright.attention_varlen of packed rows"
    )
    for operator, new in ((attention_paged, ()), (attention_paged_append, new_rows())):
        with pytest.raises(UsageError) as caught:
            operator(*given, *new)
        assert str(caught.value) == refused
        with torch.no_grad():
            operator(*given, *new)
