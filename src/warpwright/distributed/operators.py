"""``torch.ops.warpwright.all_gather_matmul`` and ``matmul_reduce_scatter``.

They are differentiable, work under ``torch.compile``, and in CUDA graphs after a first call with the same shapes.

Each is the gradient of the other: with dD = the gradient of D, the gradient of x is dD · weightᵀ, whose rows are summed
and scattered where x was gathered, and gathered where D was scattered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwright.distributed import gather, scatter
from warpwright.distributed.choice import choose
from warpwright.distributed.collectives import all_gather, group_name, resolve_group
from warpwright.distributed.problem import MAP_BYTES, describe_gather, describe_scatter
from warpwright.distributed.workspace import Workspace, workspace_of

__all__ = ["all_gather_matmul", "matmul_reduce_scatter", "run_gather", "run_scatter"]


def all_gather_matmul(
    x: Tensor, weights: Tensor | list[Tensor] | tuple[Tensor, ...], group: Any = None
) -> Tensor | list[Tensor]:
    """Returns ``all_gather(x) @ weight`` for a weight, or a list of these for several, which share one all-gather.

    ``x`` (…, K) is the part of this rank; the parts of all ranks follow one another along the first axis. A weight is
    (K, N), such as ``linear.weight.T``. All ranks of ``group``, at most 8 of one host, call it with equal shapes and
    dtypes and in one order; it is a ProcessGroup or the name of one, by default the world.

    Raises UsageError for shapes and dtypes that do not fit together or differ between ranks, and DistributedTimeout
    when a rank makes no such call within the time limit.
    """
    single = isinstance(weights, Tensor)
    given = [weights] if isinstance(weights, Tensor) else list(weights)
    flat = x.reshape(-1, x.shape[-1])
    if torch.compiler.is_compiling() or _needs_dispatcher(x, *given):
        keep = torch.is_grad_enabled() and any(weight.requires_grad for weight in given)
        products = torch.ops.warpwright.all_gather_matmul(flat, given, group_name(group), keep)[: len(given)]
    else:
        products = run_gather(flat, given, resolve_group(group))
    shaped = [each.view(-1, *x.shape[1:-1], each.shape[-1]) for each in products]
    return shaped[0] if single else shaped


def matmul_reduce_scatter(x: Tensor, weight: Tensor, group: Any = None) -> Tensor:
    """Returns the part of this rank of the sum of ``x @ weight`` of all ranks, scattered along the first axis.

    ``x`` is (…, K) and ``weight`` (K, N) of this rank; the first extent of ``x`` is a multiple of the number of ranks.
    A sum of two ranks is rounded twice, of n ranks n times. Everything else is as in `all_gather_matmul`.
    """
    flat = x.reshape(-1, x.shape[-1])
    if torch.compiler.is_compiling() or _needs_dispatcher(x, weight):
        out = torch.ops.warpwright.matmul_reduce_scatter(flat, weight, group_name(group))
    else:
        out = run_scatter(flat, weight, resolve_group(group))
    return out.view(-1, *x.shape[1:-1], weight.shape[1])


def _needs_dispatcher(*tensors: Tensor) -> bool:
    """Returns whether a gradient, a mode, a subclass or the host needs the operator."""
    recorded = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    plain = all(each.is_cuda and type(each) in (Tensor, torch.nn.Parameter) for each in tensors)
    return bool(recorded or not plain or torch._C._len_torch_dispatch_stack() > 0)


def run_gather(
    x: Tensor, weights: list[Tensor], group: Any, engine: str | None = None, gathered: bool = False
) -> list[Tensor]:
    """Returns the products, with ``gathered`` also x of all ranks; ``engine`` is a name in `gather.ENGINES`, the
    default that of `choose`."""
    shared, x = workspace_of(group), _aligned(x)
    key = engine, x.shape, x.dtype, *map(_layout, weights)
    run = shared.bound.get(key)
    if run is None:
        problem = describe_gather(x, weights, shared.ranks)
        shared.digest(problem)
        run = shared.bound[key] = gather.ENGINES[engine or choose(problem, shared.gpu.spec.arch)](shared, problem)
    products = [x.new_empty(shared.ranks * x.shape[0], weight.shape[1]) for weight in weights]
    whole = run(x, weights, [each.view(shared.ranks, x.shape[0], -1) for each in products])
    if gathered:
        products.append(_copy_gathered(shared, x) if whole is None else whole)
    return products


def _copy_gathered(shared: Workspace, x: Tensor) -> Tensor:
    """Returns x of all ranks, from the memory of a call that has ended and from this rank's part."""
    whole = shared.view(0, (shared.ranks, *x.shape), x.dtype).clone()
    whole[shared.rank] = x
    return whole.view(-1, x.shape[1])


def run_scatter(x: Tensor, weight: Tensor, group: Any, engine: str | None = None) -> Tensor:
    """Returns the part of this rank; ``engine`` is a name in `scatter.ENGINES`, the default that of `choose`."""
    shared, x = workspace_of(group), _aligned(x)
    key = engine, x.shape, x.dtype, _layout(weight)
    run = shared.bound.get(key)
    if run is None:
        problem = describe_scatter(x, weight, shared.ranks)
        shared.digest(problem)
        run = shared.bound[key] = scatter.ENGINES[engine or choose(problem, shared.gpu.spec.arch)](shared, problem)
    out = x.new_empty(x.shape[0] // shared.ranks, weight.shape[1])
    run(x, weight, out)
    return out


def _layout(weight: Tensor) -> tuple[Any, ...]:
    return weight.shape, weight.stride(), weight.dtype, weight.data_ptr() % MAP_BYTES


def _aligned(x: Tensor) -> Tensor:
    """Returns ``x`` as a tensor map covers it."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % MAP_BYTES else x


_library = torch.library.Library("warpwright", "FRAGMENT")
_library.define("all_gather_matmul(Tensor x, Tensor[] weights, str group, bool gathered) -> Tensor[]")
_library.define("matmul_reduce_scatter(Tensor x, Tensor weight, str group) -> Tensor")


def _gather(x: Tensor, weights: list[Tensor], group: str, gathered: bool) -> list[Tensor]:
    """The kernel; with ``gathered`` the last result is x of all ranks."""
    return run_gather(x, weights, resolve_group(group), gathered=gathered)


def _gather_on_host(x: Tensor, weights: list[Tensor], group: str, gathered: bool) -> list[Tensor]:
    whole = all_gather(x, group).flatten(0, 1)
    return [*(whole @ weight for weight in weights), *([whole] if gathered else [])]


def _fake_gather(x: Tensor, weights: list[Tensor], group: str, gathered: bool) -> list[Tensor]:
    rows = x.shape[0] * resolve_group(group).size()
    products = [x.new_empty(rows, weight.shape[1]) for weight in weights]
    return [*products, x.new_empty(rows, x.shape[1])] if gathered else products


def _scatter(x: Tensor, weight: Tensor, group: str) -> Tensor:
    return run_scatter(x, weight, resolve_group(group))


def _scatter_on_host(x: Tensor, weight: Tensor, group: str) -> Tensor:
    sums = (x @ weight).contiguous()
    found = torch.ops._c10d_functional.reduce_scatter_tensor(sums, "sum", resolve_group(group).size(), group)
    return torch.ops._c10d_functional.wait_tensor(found)


def _fake_scatter(x: Tensor, weight: Tensor, group: str) -> Tensor:
    return x.new_empty(x.shape[0] // resolve_group(group).size(), weight.shape[1])


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save the gathered rows where the gradients of weights need them: sending them again would take longer."""
    x, weights, ctx.group, _ = inputs
    ctx.save_for_backward(x, *weights, *output[len(weights) :])
    ctx.count = len(weights)


def _gather_gradient(ctx: Any, given: list[Tensor | None]) -> tuple[Any, ...]:
    (x, *weights), gathered = ctx.saved_tensors[: 1 + ctx.count], ctx.saved_tensors[1 + ctx.count :]
    rows = next(gradient.shape[0] for gradient in given if gradient is not None)
    gradients = [
        weight.new_zeros(rows, weight.shape[1]) if gradient is None else gradient.contiguous()
        for weight, gradient in zip(weights, given, strict=False)
    ]
    of_x, of_weights = None, [None] * len(weights)
    if ctx.needs_input_grad[0]:
        gradient, weight = (each[0] if len(each) == 1 else torch.cat(each, 1) for each in (gradients, weights))
        of_x = torch.ops.warpwright.matmul_reduce_scatter(gradient, weight.T, ctx.group)
    if any(weight.requires_grad for weight in weights):
        whole = gathered[0] if gathered else all_gather(x, ctx.group).flatten(0, 1)
        pairs = zip(weights, gradients, strict=True)
        of_weights = [_weight_gradient(weight, whole, gradient) for weight, gradient in pairs]
    return of_x, of_weights, None, None


def _save_scatter(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, ctx.group = inputs
    ctx.save_for_backward(x, weight)


def _scatter_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, _ = ctx.needs_input_grad
    gradient = gradient.contiguous()
    if not needs_weight:
        found = torch.ops.warpwright.all_gather_matmul(gradient, [weight.T], ctx.group, False)
        return found[0], None, None
    of_x, whole = torch.ops.warpwright.all_gather_matmul(gradient, [weight.T], ctx.group, True)
    return of_x if needs_x else None, _weight_gradient(weight, x, whole), None


def _weight_gradient(weight: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
    """Returns rowsᵀ · gradient with the layout of ``weight``: autograd copies a gradient of another layout."""
    return (gradient.T @ rows).T if weight.stride(0) == 1 else rows.T @ gradient


for _operator, _kernel, _on_host, _fake, _save, _gradient in (
    ("all_gather_matmul", _gather, _gather_on_host, _fake_gather, _save_gather, _gather_gradient),
    ("matmul_reduce_scatter", _scatter, _scatter_on_host, _fake_scatter, _save_scatter, _scatter_gradient),
):
    _library.impl(_operator, _kernel, "CUDA")
    _library.impl(_operator, _on_host, "CPU")
    torch.library.register_fake(f"warpwright::{_operator}", _fake, lib=_library)
    torch.library.register_autograd(f"warpwright::{_operator}", _gradient, setup_context=_save, lib=_library)
