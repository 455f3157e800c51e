"""Context-parallel attention in two processes with gloo, against attention of torch in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from torch._subclasses.fake_tensor import FakeTensorMode

from warpwright.distributed import context_parallel_attention, sequence, shard_sequence, unshard_sequence
from warpwright.errors import UsageError

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from warpwright.distributed import (
    context_parallel_attention, context_parallel_attention_varlen, shard_sequence, unshard_sequence
)

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
whole = [torch.randn(2, heads, 24, 8, dtype=torch.float64) for heads in (4, 2, 2)]
direction = torch.randn(2, 4, 24, 8, dtype=torch.float64)
for causal, zigzag in ((True, True), (True, False), (False, True)):
    q, k, v = given = [each.clone().requires_grad_() for each in whole]
    wide = [each.repeat_interleave(2, 1) for each in (k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=causal)
    expected.backward(direction)
    own = [shard_sequence(each, zigzag=zigzag).requires_grad_() for each in whole]
    out = context_parallel_attention(*own, causal=causal, zigzag=zigzag)
    out.backward(shard_sequence(direction, zigzag=zigzag))
    assert torch.allclose(unshard_sequence(out, zigzag=zigzag), expected)
    for part, each in zip(own, given):
        assert torch.allclose(unshard_sequence(part.grad, zigzag=zigzag), each.grad)

lengths = [8, 0, 16, 4]
cu_seqlens = torch.tensor([0, 8, 8, 24, 28], dtype=torch.int32)
packed = [torch.randn(28, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
direction = torch.randn(28, 4, 8, dtype=torch.float64)
for causal, zigzag in ((True, True), (True, False), (False, True)):
    expected = torch.cat([
        torch.nn.functional.scaled_dot_product_attention(
            *(each.transpose(0, 1) for each in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))),
            is_causal=causal).transpose(0, 1)
        for q, k, v in zip(*(each.split(lengths) for each in packed)) if len(q)
    ])
    gradients = torch.autograd.grad(expected, packed, direction)
    divided = {"dim": 0, "zigzag": zigzag, "cu_seqlens": cu_seqlens}
    own = [shard_sequence(each.detach(), **divided).requires_grad_() for each in packed]
    out = context_parallel_attention_varlen(*own, cu_seqlens, causal=causal, zigzag=zigzag)
    out.backward(shard_sequence(direction, **divided))
    assert torch.allclose(unshard_sequence(out, **divided), expected)
    for part, gradient in zip(own, gradients):
        assert torch.allclose(unshard_sequence(part.grad, **divided), gradient)
print("equal")
"""


def test_two_processes_compute_what_one_computes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [process.communicate(timeout=100)[0].strip() for process in processes] == ["equal", "equal"]


def test_fake_results_have_the_layouts_of_their_inputs() -> None:
    """torch.compile traces both operators without a group."""
    with FakeTensorMode():
        q, k, v = given = [
            torch.empty(2, 16, heads, 8, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for heads in (4, 2, 2)
        ]
        out = context_parallel_attention(q, k, v, "0")
        gradients = torch.autograd.grad(out, given, torch.empty_like(out))
    for result, like in zip((out, *gradients), (q, *given), strict=True):
        assert (result.shape, result.stride(), result.dtype) == (like.shape, like.stride(), like.dtype)


@pytest.fixture
def rank_1_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 4)
    monkeypatch.setattr(sequence, "resolve_group", lambda _: group)


@pytest.mark.usefixtures("rank_1_of_4")
def test_a_rank_has_chunks_from_both_ends() -> None:
    positions = torch.arange(16)
    assert shard_sequence(positions, dim=0).tolist() == [2, 3, 12, 13]
    assert shard_sequence(positions, dim=0, zigzag=False).tolist() == [4, 5, 6, 7]
    packed = shard_sequence(positions, dim=0, cu_seqlens=torch.tensor([0, 8, 16]))
    assert packed.tolist() == [1, 9, 6, 14]
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
            lambda: shard_sequence(torch.empty(16), dim=0, cu_seqlens=torch.tensor([0, 12, 16])),
            "shard_sequence: given cu_seqlens [0, 12, 16] for 16 tokens on 4 ranks; expected sums from 0 to 16 of "
            "lengths that are multiples of 8, the number of chunks: pad each sequence",
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
