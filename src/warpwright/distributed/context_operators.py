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
from warpwright.distributed.packed import Packed
from warpwright.distributed.sequence import join_ranks
from warpwright.distributed.workspace import Workspace, workspace_of

__all__ = ["context_parallel_attention", "context_parallel_attention_varlen"]

FORWARD, BACKWARD = "context_parallel_attention", "context_parallel_attention_backward"
Three = tuple[Tensor, Tensor, Tensor]
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
    options = None, group_name(group), causal, scale, zigzag
    out: Tensor = torch.ops.warpwright.context_parallel_attention(q, k, v, *options)[0]
    return out


def context_parallel_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    group: Any = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    zigzag: bool = True,
) -> Tensor:
    """Returns this rank's rows of `context_parallel_attention` of packed sequences, each divided among the ranks.

    ``q`` is (rows, heads, head_dim), ``k`` and ``v`` are (rows, kv_heads, head_dim): the part of this rank, as
    `shard_sequence` returns it with ``dim=0`` and the same ``cu_seqlens``. ``cu_seqlens`` (sequences + 1) of int32 has
    the sums of the lengths of the whole sequences, from 0 to the number of tokens of all ranks, on the device of q. A
    length is a multiple of the number of chunks, 2 · ranks in zigzag, else ``ranks``: pad each sequence. On a GPU the
    lengths are not checked. Gradients need a Hopper GPU. All else is as in `context_parallel_attention`.
    """
    rows = (each.transpose(0, 1).unsqueeze(0) for each in (q, k, v))
    options = cu_seqlens, group_name(group), causal, scale, zigzag
    out: Tensor = torch.ops.warpwright.context_parallel_attention(*rows, *options)[0]
    return out.squeeze(0).transpose(0, 1)


_library = torch.library.Library("warpwright", "FRAGMENT")
_OPTIONS = "Tensor? cu_seqlens, str group, bool causal, float? scale, bool zigzag"
_library.define(f"{FORWARD}(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(
    f"{BACKWARD}(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)


def _new_results(q: Tensor) -> tuple[Tensor, Tensor]:
    """Returns o and the log-sum-exp, which are not written yet."""
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))


def _engine(
    kind: Any, operation: str, three: Three, cu_seqlens: Tensor | None, group: str, options: Options
) -> tuple[Any, ContextProblem, int]:
    """Returns the engine of a call, which the workspace of the group keeps, its problem and this rank."""
    shared: Workspace = workspace_of(resolve_group(group))
    layouts = [(each.shape, each.dtype) for each in (*three, *([] if cu_seqlens is None else [cu_seqlens]))]
    key = operation, *layouts, options
    run = shared.bound.get(key)
    if run is None:
        problem = describe_context(operation, *three, shared.ranks, *options, cu_seqlens)
        shared.digest(problem)
        run = shared.bound[key] = kind(shared, problem)
    return run, run.problem, shared.rank


def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, group: str, *options: Any
) -> tuple[Tensor, Tensor]:
    run, problem, rank = _engine(context.Forward, FORWARD, (q, k, v), cu_seqlens, group, options)
    attend = context.attend if cu_seqlens is None else Packed(cu_seqlens, problem, rank).attend
    out, lse = _new_results(q)
    run(attend, q, k, v, out, lse)
    return out, lse


def _backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, cu_seqlens: Tensor | None, group: str,
    *options: Any,
) -> Three:  # fmt: skip
    run, problem, rank = _engine(context.Backward, BACKWARD, (q, k, v), cu_seqlens, group, options)
    differentiate = context.differentiate if cu_seqlens is None else Packed(cu_seqlens, problem, rank).differentiate
    results = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run(differentiate, (q, k, v, o, lse, do), *results)
    return results


def _gathered(
    operation: str, three: Three, cu_seqlens: Tensor | None, group: str, options: Options
) -> tuple[ContextProblem, int, list[Tensor]]:
    """Returns the problem, this rank, and keys and values of all ranks."""
    found = resolve_group(group)
    problem = describe_context(operation, *three, found.size(), *options, cu_seqlens)
    return problem, found.rank(), [join_ranks(all_gather(each, group), 2, problem.zigzag) for each in three[1:]]


def _on_host(cu_seqlens: Tensor | None, problem: ContextProblem, rank: int) -> tuple[Any, Any]:
    """Returns the functions of calls in plain torch."""
    if cu_seqlens is None:
        return context_math.attend, context_math.at_the_end(context_math.differentiate)
    found = Packed(cu_seqlens, problem, rank, (context_math.attend_packed, context_math.differentiate_packed))
    return found.attend, found.differentiate


def _forward_on_host(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, group: str, *options: Any
) -> tuple[Tensor, Tensor]:
    problem, rank, whole = _gathered(FORWARD, (q, k, v), cu_seqlens, group, options)
    attend, _ = _on_host(cu_seqlens, problem, rank)
    out, lse = _new_results(q)
    for rows, end in problem.calls(rank):
        keys = [each[:, :, :end] for each in whole]
        lse[:, :, rows] = attend(q[:, :, rows], *keys, out[:, :, rows], problem.causal, problem.scale)
    return out, lse


def _backward_on_host(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, cu_seqlens: Tensor | None, group: str,
    *options: Any,
) -> Three:  # fmt: skip
    problem, rank, whole = _gathered(BACKWARD, (q, k, v), cu_seqlens, group, options)
    _, differentiate = _on_host(cu_seqlens, problem, rank)
    dq, sums = torch.empty_like(q), [torch.zeros_like(each) for each in whole]
    for rows, end in problem.calls(rank):
        queries, *own = (each[:, :, rows] for each in (q, o, lse, do, dq))
        keys = [each[:, :, :end] for each in whole]
        parts = differentiate(queries, *keys, *own, problem.causal, problem.scale)()
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


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _new_results(q)


def _fake_backward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Three:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_seqlens, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, cu_seqlens)
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, do: Tensor, _: Any) -> tuple[Any, ...]:
    *saved, cu_seqlens = ctx.saved_tensors
    options = cu_seqlens, *ctx.options
    return *torch.ops.warpwright.context_parallel_attention_backward(*saved, do, *options), *5 * (None,)


for _operator, _kernel, _kernel_on_host, _fake in (
    (FORWARD, _forward, _forward_on_host, _fake_forward),
    (BACKWARD, _backward, _backward_on_host, _fake_backward),
):
    _library.impl(_operator, _kernel, "CUDA")
    _library.impl(_operator, _kernel_on_host, "CPU")
    torch.library.register_fake(f"warpwright::{_operator}", _fake, lib=_library)
torch.library.register_autograd(f"warpwright::{FORWARD}", _gradient, setup_context=_save, lib=_library)
