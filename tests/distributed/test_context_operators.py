"""Context-parallel attention in two processes with gloo, against attention of torch in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from warpwright.distributed import sequence, shard_sequence, unshard_sequence
from warpwright.errors import UsageError

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from warpwright.distributed import context_parallel_attention, shard_sequence, unshard_sequence

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
whole = [torch.randn(2, heads, 24, 8, dtype=torch.float64) for heads in (4, 2, 2)]
direction = torch.randn(2, 4, 24, 8, dtype=torch.float64)
compiled = torch.compile(context_parallel_attention, fullgraph=True, backend="aot_eager")
for causal, zigzag, run in (
    (True, True, context_parallel_attention), (True, False, context_parallel_attention),
    (False, True, context_parallel_attention), (True, True, compiled),
):
    q, k, v = given = [each.clone().requires_grad_() for each in whole]
    wide = [each.repeat_interleave(2, 1) for each in (k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=causal)
    expected.backward(direction)
    own = [shard_sequence(each, zigzag=zigzag).requires_grad_() for each in whole]
    out = run(*own, causal=causal, zigzag=zigzag)
    out.backward(shard_sequence(direction, zigzag=zigzag))
    assert torch.allclose(unshard_sequence(out, zigzag=zigzag), expected)
    for part, each in zip(own, given):
        assert torch.allclose(unshard_sequence(part.grad, zigzag=zigzag), each.grad)
print("equal")
"""


def test_two_processes_compute_what_one_computes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [process.communicate(timeout=100)[0].strip() for process in processes] == ["equal", "equal"]


@pytest.fixture
def rank_1_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 4)
    monkeypatch.setattr(sequence, "resolve_group", lambda _: group)


@pytest.mark.usefixtures("rank_1_of_4")
def test_a_rank_has_chunks_from_both_ends() -> None:
    positions = torch.arange(16)
    assert shard_sequence(positions, dim=0).tolist() == [2, 3, 12, 13]
    assert shard_sequence(positions, dim=0, zigzag=False).tolist() == [4, 5, 6, 7]
    parts = torch.stack([positions[[2 * r, 2 * r + 1, 14 - 2 * r, 15 - 2 * r]] for r in range(4)])
    assert torch.equal(sequence.join_ranks(parts, 0, True), positions)


@pytest.mark.usefixtures("rank_1_of_4")
def test_lengths_are_whole_chunks() -> None:
    calls: list[tuple[Any, str]] = [
        (
            lambda: shard_sequence(torch.empty(12), dim=0),
            "shard_sequence: given a sequence of 12 for 4 ranks; expected a multiple of 8, the number of chunks",
        ),
        (
            lambda: unshard_sequence(torch.empty(3), dim=0),
            "unshard_sequence: given a part of 3; expected a multiple of 2",
        ),
    ]
    for call, sentence in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == sentence
