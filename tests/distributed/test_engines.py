"""The engines of copies and matmuls on ranks of the host, against float64."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from tests.distributed.host_workspace import run_ranks, workspaces
from warpwright.distributed import gather, scatter
from warpwright.distributed.problem import describe_gather, describe_scatter

BOUND = 1e-5  # of float32 sums of a few hundred products, of the largest value


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found.double() - expected).abs().max() <= BOUND * expected.abs().max())


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_gets_the_product_of_all_rows(ranks: int) -> None:
    shared = workspaces(ranks, 1 << 20)
    for call in range(2):  # the second finds flags and data of the first
        x = [_random(10 * call + rank, 40, 64) for rank in range(ranks)]
        weights = [[_random(50 + rank, 64, 24), _random(70 + rank, 64, 8)] for rank in range(ranks)]
        outs = [[torch.full((ranks, 40, each.shape[1]), torch.nan) for each in of] for of in weights]
        problems = [describe_gather(x[rank], weights[rank], ranks) for rank in range(ranks)]
        run_ranks(
            [
                partial(gather.ENGINES["parts"](shared[rank], problems[rank]), x[rank], weights[rank], outs[rank])
                for rank in range(ranks)
            ]
        )
        whole = torch.stack(x).double()
        for rank in range(ranks):
            for weight, out in zip(weights[rank], outs[rank], strict=True):
                assert _close(out, whole @ weight.double())


@pytest.mark.parametrize("engine", ["parts", "adds", "halves", "whole"])
@pytest.mark.parametrize(("ranks", "rows"), [(2, 1300), (3, 100)])
def test_every_rank_gets_its_rows_of_the_sum(ranks: int, rows: int, engine: str) -> None:
    columns = 33 * 256  # a chunk is 512 rows
    shared = workspaces(ranks, (ranks - 1) * rows * columns * 4)
    for call in range(2):
        x = [_random(10 * call + rank, ranks * rows, 8) for rank in range(ranks)]
        weights = [_random(50 + rank, 8, columns) for rank in range(ranks)]
        outs = [torch.full((rows, columns), torch.nan) for _ in range(ranks)]
        problems = [describe_scatter(x[rank], weights[rank], ranks) for rank in range(ranks)]
        run_ranks(
            [
                partial(scatter.ENGINES[engine](shared[rank], problems[rank]), x[rank], weights[rank], outs[rank])
                for rank in range(ranks)
            ]
        )
        expected = sum(a.double() @ b.double() for a, b in zip(x, weights, strict=True))
        for rank in range(ranks):
            assert _close(outs[rank], expected[rank * rows : (rank + 1) * rows])
