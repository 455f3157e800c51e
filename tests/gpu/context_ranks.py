"""Checks of context-parallel attention on real GPUs: ``torchrun --nproc-per-node 2 tests/gpu/context_ranks.py``.

Each check prints its name; the first that fails ends the program. ``tests/gpu/test_distributed.py`` runs it.
"""

from __future__ import annotations

import math
import os

os.environ.setdefault("WARPWRIGHT_TIME_LIMIT", "20")

import torch
import torch.distributed as dist
from torch import Tensor

from warpwright.distributed import (
    all_gather_matmul,
    context_math,
    context_parallel_attention,
    context_parallel_attention_varlen,
    context_problem,
    shard_sequence,
    unshard_sequence,
)
from warpwright.distributed.workspace import workspace_of
from warpwright.errors import UsageError

BOUND = (
    3 * 2.0**-8
)  # of the largest value: roundings to bfloat16 of P, of results and of the parts of gradients of keys
SHAPES = (  # batch, heads, kv_heads, rows of a rank, head_dim
    (1, 8, 2, 1024, 128),
    (2, 4, 4, 384, 64),
    (2, 6, 3, 200, 96),
    (1, 16, 8, 2048, 128),
)


def random(*shape: int) -> Tensor:
    """Returns the same numbers on every rank."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def sequence(batch: int, heads: int, kv_heads: int, rows: int, head_dim: int) -> list[Tensor]:
    """Returns q, k, v and the gradient of o of the whole sequence."""
    tokens = dist.get_world_size() * rows
    return [random(batch, count, tokens, head_dim) for count in (heads, kv_heads, kv_heads, heads)]


def reference(given: list[Tensor], causal: bool, scale: float | None) -> list[Tensor]:
    """Returns o and the gradients by q, k and v in float32."""
    q, k, v, do = (each.float() for each in given)
    out = torch.empty_like(q)
    lse = context_math.attend(q, k, v, out, causal, scale)
    return [out, *context_math.differentiate(q, k, v, out, lse, do, causal, scale)]


def poison() -> None:
    workspace_of(dist.group.WORLD).data.fill_(0xFF)
    torch.cuda.synchronize()
    dist.barrier()


def require_close(found: Tensor, expected: Tensor, what: str) -> None:
    error = float((found.float() - expected).abs().max() / expected.abs().max())
    assert error <= BOUND and not math.isnan(error), f"{what}: an error of {error:.2e}; the bound is {BOUND:.2e}"


def step(given: list[Tensor], causal: bool, scale: float | None, zigzag: bool) -> list[Tensor]:
    """Returns o and the gradients of the whole sequence, computed by all ranks."""
    q, k, v, do = (shard_sequence(each, zigzag=zigzag) for each in given)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    out = context_parallel_attention(*leaves, causal=causal, scale=scale, zigzag=zigzag)
    results = [out, *torch.autograd.grad(out, leaves, do)]
    return [unshard_sequence(each, zigzag=zigzag) for each in results]


def check_results() -> None:
    for least in (1, context_problem.GROUP_BYTES):  # so small problems have several groups of heads too
        context_problem.GROUP_BYTES = least
        workspace_of(dist.group.WORLD).bound.clear()
        for shape in SHAPES:
            for causal, scale, zigzag in ((True, None, True), (True, 0.1, False), (False, None, True)):
                given = sequence(*shape)
                poison()
                found, expected = step(given, causal, scale, zigzag), reference(given, causal, scale)
                for name, one, other in zip(("o", "dq", "dk", "dv"), found, expected, strict=True):
                    require_close(one, other, f"{name} of {shape}, causal={causal}, zigzag={zigzag}, groups of {least}")


def check_layouts() -> None:
    """Heads and rows exchanged in memory, as a projection writes them; fp16."""
    given = [random(2, 512 * dist.get_world_size(), heads, 128).half().transpose(1, 2) for heads in (8, 2, 2, 8)]
    found, expected = step(given, True, None, True), reference(given, True, None)
    for one, other in zip(found, expected, strict=True):
        require_close(one, other, "heads and rows exchanged")


def check_packed() -> None:
    """Packed sequences, one of them empty, causal and not."""
    unit = 2 * dist.get_world_size()
    lengths = [unit * 100, 0, unit * 7, unit * 300]
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    for causal in (True, False):
        q, k, v, do = given = [random(sum(lengths), heads, 128) for heads in (8, 2, 2, 8)]
        leaves = [shard_sequence(each, dim=0, cu_seqlens=cu_seqlens).requires_grad_() for each in (q, k, v)]
        out = context_parallel_attention_varlen(*leaves, cu_seqlens, causal=causal)
        results = [out, *torch.autograd.grad(out, leaves, shard_sequence(do, dim=0, cu_seqlens=cu_seqlens))]
        q, k, v, do = (each.float() for each in given)
        o = torch.empty_like(q)
        lse = context_math.attend_packed(q, k, v, cu_seqlens, cu_seqlens, o, causal, None)
        expected = o, *context_math.differentiate_packed(q, k, v, o, lse, do, cu_seqlens, cu_seqlens, causal, None)
        for one, other in zip(results, expected, strict=True):
            require_close(unshard_sequence(one, dim=0, cu_seqlens=cu_seqlens), other, f"packed, causal={causal}")


def check_many_calls() -> None:
    """Calls of two shapes without synchronisation between them, matmuls of the same workspace among them."""
    sequences = [sequence(*SHAPES[number % 2]) for number in range(10)]
    x, weight = random(256, 512), random(1024, 512).T
    found = []
    for given in sequences:
        found.append(step(given, True, None, True))
        all_gather_matmul(x, weight)
    for given, results in zip(sequences, found, strict=True):
        for one, other in zip(results, reference(given, True, None), strict=True):
            require_close(one, other, "many calls")


def check_graph() -> None:
    """A captured call follows its inputs."""
    shape = SHAPES[0]
    q, k, v, _ = (shard_sequence(each) for each in sequence(*shape))
    context_parallel_attention(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = context_parallel_attention(q, k, v)
    for _ in range(5):
        given = sequence(*shape)
        for target, source in zip((q, k, v), given, strict=False):
            target.copy_(shard_sequence(source))
        graph.replay()
        require_close(unshard_sequence(out), reference(given, True, None)[0], "graph")


def check_compile() -> None:
    given = sequence(*SHAPES[0])
    own = [shard_sequence(each) for each in given[:3]]
    compiled = torch.compile(lambda q, k, v: context_parallel_attention(q, k, 2 * v) + 1, fullgraph=True)
    expected = 2 * reference(given, True, None)[0] + 1
    require_close(unshard_sequence(compiled(*own)), expected, "compile")


def check_disagreement() -> None:
    q = random(1, 2, 64 + 64 * dist.get_rank(), 64)
    try:
        context_parallel_attention(q, q, q)
    except UsageError as error:
        assert "the ranks of a group make different calls" in str(error), error
    else:
        raise AssertionError("ranks with different rows were not told so")


CHECKS = (check_results, check_layouts, check_packed, check_many_calls, check_disagreement, check_compile, check_graph)


def main() -> int:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    torch.manual_seed(0)
    for check in CHECKS:
        check()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"{check.__name__}: ok", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
