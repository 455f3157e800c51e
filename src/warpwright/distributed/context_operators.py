"""``torch.ops.warpwright.context_parallel_attention`` and its gradients.

Both work under ``torch.compile``, and in CUDA graphs after a first call with the same shapes. On the host they run in
turn: an all-gather of keys and values, then attention of this rank's queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwright.distributed import context, context_math
from warpwright.distributed.collectives import all_gather, group_name, resolve_group
from warpwright.distributed.context_problem import ContextProblem, describe_context
from warpwright.distributed.sequence import join_ranks
from warpwright.distributed.workspace import Workspace, workspace_of

__all__ = ["context_parallel_attention"]

FORWARD, BACKWARD = "context_parallel_attention", "context_parallel_attention_backward"
Options = tuple[bool, float | None, bool]  # causal, scale, zigzag


def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Any = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    zigzag: bool = True,
) -> Tensor:
    """Returns this rank's rows of softmax(``scale`` · q·kᵀ)·v over the keys of all ranks.

    ``q`` (batch, heads, rows, head_dim), ``k`` and ``v`` (batch, kv_heads, rows, head_dim) are the part of this rank of
    a sequence, as `shard_sequence` returns it with the same ``zigzag``; ``heads`` is a multiple of ``kv_heads``.
    ``causal``: no query sees a key after its own position. The default of ``scale`` is 1 / √head_dim. On GPUs the dtype
    is bfloat16 or float16. The gradients of k and v are sums over ranks, each part rounded to the dtype.

    All ranks of ``group``, at most 8 of one host, call it with equal shapes and options and in one order; it is a
    ProcessGroup or the name of one, by default the world.

    Raises UsageError for shapes and dtypes that do not fit together or differ between ranks, and DistributedTimeout
    when a rank makes no such call within the time limit.
    """
    out: Tensor = torch.ops.warpwright.context_parallel_attention(q, k, v, group_name(group), causal, scale, zigzag)[0]
    return out


_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define(
    f"{FORWARD}(Tensor q, Tensor k, Tensor v, str group, bool causal, float? scale, bool zigzag) -> (Tensor, Tensor)"
)
_library.define(
    f"{BACKWARD}(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, str group, bool causal, float? scale, "
    "bool zigzag) -> (Tensor, Tensor, Tensor)"
)


def _new_results(q: Tensor) -> tuple[Tensor, Tensor]:
    """Returns o and the log-sum-exp, which are not written yet."""
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))


def _bound(kind: Any, operation: str, q: Tensor, k: Tensor, v: Tensor, group: str, options: Options) -> Any:
    """Returns the engine of a call, which the workspace of the group keeps."""
    shared: Workspace = workspace_of(resolve_group(group))
    key = operation, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, options
    run = shared.bound.get(key)
    if run is None:
        problem = describe_context(operation, q, k, v, shared.ranks, *options)
        shared.digest(problem)
        run = shared.bound[key] = kind(shared, problem)
    return run


def _forward(q: Tensor, k: Tensor, v: Tensor, group: str, *options: Any) -> tuple[Tensor, Tensor]:
    run = _bound(context.Forward, FORWARD, q, k, v, group, options)
    out, lse = _new_results(q)
    run(q, k, v, out, lse)
    return out, lse


def _backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, group: str, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    run = _bound(context.Backward, BACKWARD, q, k, v, group, options)
    results = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run((q, k, v, o, lse, do), *results)
    return results


def _gathered(
    operation: str, q: Tensor, k: Tensor, v: Tensor, group: str, options: Options
) -> tuple[ContextProblem, int, list[Tensor]]:
    """Returns the problem, this rank, and keys and values of all ranks."""
    found = resolve_group(group)
    problem = describe_context(operation, q, k, v, found.size(), *options)
    return problem, found.rank(), [join_ranks(all_gather(each, group), 2, problem.zigzag) for each in (k, v)]


def _forward_on_host(q: Tensor, k: Tensor, v: Tensor, group: str, *options: Any) -> tuple[Tensor, Tensor]:
    problem, rank, whole = _gathered(FORWARD, q, k, v, group, options)
    out, lse = _new_results(q)
    for rows, end in problem.calls(rank):
        keys, values = (each[:, :, :end] for each in whole)
        of_rows = q[:, :, rows], keys, values, out[:, :, rows]
        lse[:, :, rows] = context_math.attend(*of_rows, problem.causal, problem.scale)
    return out, lse


def _backward_on_host(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, group: str, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    problem, rank, whole = _gathered(BACKWARD, q, k, v, group, options)
    dq, sums = torch.empty_like(q), [torch.zeros_like(each) for each in whole]
    for rows, end in problem.calls(rank):
        queries, outputs, sums_of_rows, of_outputs = (each[:, :, rows] for each in (q, o, lse, do))
        keys, values = (each[:, :, :end] for each in whole)
        own = queries, keys, values, outputs, sums_of_rows, of_outputs
        of_q, *parts = context_math.differentiate(*own, problem.causal, problem.scale)
        dq[:, :, rows] = of_q
        for total, part in zip(sums, parts, strict=True):
            total[:, :, :end] += part
    dk, dv = (_reduce_scatter(each, problem, group) for each in sums)
    return dq, dk, dv


def _reduce_scatter(sums: Tensor, problem: ContextProblem, group: str) -> Tensor:
    """Returns the sum over ranks of the rows of this rank; ``sums`` has the rows of all."""
    every = range(problem.ranks)
    parts = [torch.cat([sums[:, :, span] for _, _, span in problem.places(rank)], 2) for rank in every]
    flat = torch.stack(parts).view(problem.ranks, -1)
    found = torch.ops._c10d_functional.reduce_scatter_tensor(flat, "sum", problem.ranks, group)
    return torch.ops._c10d_functional.wait_tensor(found).view(parts[0].shape)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, group: str, *options: Any) -> tuple[Tensor, Tensor]:
    return _new_results(q)


def _fake_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, group: str, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, do: Tensor, _: Any) -> tuple[Any, ...]:
    return *torch.ops.warpwright.context_parallel_attention_backward(*ctx.saved_tensors, do, *ctx.options), *4 * (None,)


for _operator, _kernel, _on_host, _fake in (
    (FORWARD, _forward, _forward_on_host, _fake_forward),
    (BACKWARD, _backward, _backward_on_host, _fake_backward),
):
    _library.impl(_operator, _kernel, "CUDA")
    _library.impl(_operator, _on_host, "CPU")
    torch.library.register_fake(f"warpwright::{_operator}", _fake, lib=_library)
torch.library.register_autograd(f"warpwright::{FORWARD}", _gradient, setup_context=_save, lib=_library)
