"""PyTorch's fused operators by this package: axes, reductions and what stays PyTorch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from torch.distributed import _symmetric_memory

from warpwright.distributed import symm_mem

RANKS = 2


@pytest.fixture
def two_equal_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks have the same tensors, so each can compute what the other sends."""

    def run_gather(x: Any, weights: list[Any], group: Any, gathered: bool = False) -> list[Any]:
        whole = torch.cat([x] * RANKS)
        return [*(whole @ weight for weight in weights), *([whole] if gathered else [])]

    monkeypatch.setattr(symm_mem, "run_gather", run_gather)
    monkeypatch.setattr(symm_mem, "run_scatter", lambda x, weight, group: RANKS * (x @ weight).chunk(RANKS)[0])
    monkeypatch.setattr(symm_mem, "workspace_of", lambda group: SimpleNamespace(ranks=RANKS))
    monkeypatch.setattr(symm_mem, "_group", lambda name: None)


@pytest.mark.usefixtures("two_equal_ranks")
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_are_gathered_and_scattered_along_an_axis(axis: int) -> None:
    x, weights = torch.randn(4, 6, 8), [torch.randn(8, 3), torch.randn(8, 5)]
    whole = torch.cat([x] * RANKS, axis)
    found, products = symm_mem._gather(x, weights, axis, "0")
    assert torch.equal(found, whole)
    for product, weight in zip(products, weights, strict=True):
        assert torch.allclose(product, whole @ weight, atol=1e-5)
    assert symm_mem._gather(x, weights, axis, "0", return_A=False)[0] is None
    sums = RANKS * (x @ weights[0]).chunk(RANKS, axis)[0]
    assert torch.allclose(symm_mem._scatter(x, weights[0], "sum", axis, "0"), sums, atol=1e-5)
    assert torch.allclose(symm_mem._scatter(x, weights[0], "avg", axis, "0"), sums / RANKS, atol=1e-5)


def test_a_gather_along_k_stays_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(_symmetric_memory, "_fused_all_gather_matmul", lambda *args, **_: calls.append(args))
    monkeypatch.setattr(_symmetric_memory, "_fused_matmul_reduce_scatter", lambda *args: calls.append(args))
    x, weight = torch.randn(4, 8), torch.randn(16, 3)
    symm_mem._gather(x, [weight], -1, "0")
    symm_mem._scatter(x, weight, "sum", 1, "0")
    symm_mem._scatter(x, weight, "max", 0, "0")
    assert [args[2:4] for args in calls] == [(-1, "0"), ("sum", 1), ("max", 0)]
