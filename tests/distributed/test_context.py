"""The engine of context-parallel attention on ranks of the host, against float64; the kernels of a virtual H200."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from tests.distributed.host_workspace import run_ranks, workspaces
from warpwright.distributed import context, context_math, context_problem, packed
from warpwright.distributed.context_problem import QueryCall, describe_context
from warpwright.distributed.packed import Packed
from warpwright.distributed.sequence import chunks_of, join_ranks, packed_order
from warpwright.distributed.workspace import MAX_PITCH, Workspace
from warpwright.errors import UsageError
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.forward import attention
from warpwright.ops.attention.varlen import attention_varlen
from warpwright.ops.attention.varlen_backward import gradients_varlen

BATCH, HEADS, KV_HEADS = 2, 4, 2
NBYTES = 1 << 22


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _shards(whole: torch.Tensor, ranks: int, zigzag: bool) -> list[torch.Tensor]:
    """Returns the parts of all ranks; in memory rows come before heads on every other one."""
    chunks = whole.chunk(ranks * (2 if zigzag else 1), 2)
    parts = [torch.cat([chunks[number] for number in chunks_of(rank, ranks, zigzag)], 2) for rank in range(ranks)]
    return [each.transpose(1, 2).contiguous().transpose(1, 2) if rank % 2 else each for rank, each in enumerate(parts)]


def _late(copy: Any) -> Any:
    """Returns a copy that arrives late: a rank without a wait reads what was there before."""

    def run(*given: Any) -> None:
        time.sleep(1e-3)
        copy(*given)

    return run


def _run(
    inputs: list[torch.Tensor],
    ranks: int,
    causal: bool,
    zigzag: bool,
    attend: Any,
    differentiate: Any,
    times: int = 1,
    cu_seqlens: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Returns o and the gradients of q, k and v of the whole sequence; ``inputs`` are q, k, v and the gradient of o.

    With ``cu_seqlens`` the inputs are packed, and the two functions are those of packed sequences.
    """
    if cu_seqlens is not None:
        chunks, tokens = ranks * (2 if zigzag else 1), inputs[0].shape[2]
        order = packed_order(cu_seqlens, chunks, chunks, tokens)
        inputs, kernels = [each[:, :, order.argsort()] for each in inputs], (attend, differentiate)
    shared = workspaces(ranks, NBYTES)
    shared[-1].copy = _late(shared[-1].copy)  # type: ignore[method-assign]
    parts = list(zip(*(_shards(each, ranks, zigzag) for each in inputs), strict=True))
    options = ranks, causal, None, zigzag, cu_seqlens
    for _ in range(times):  # later calls find the flags of the ones before
        results = [[torch.full_like(each, torch.nan) for each in (q, q, k, v)] for q, k, v, _ in parts]
        lses = [
            torch.full(q.shape[:3], torch.nan, dtype=torch.promote_types(q.dtype, torch.float32)) for q, *_ in parts
        ]
        forward, backward = [], []
        for rank, ((q, k, v, do), (o, *grads), lse) in enumerate(zip(parts, results, lses, strict=True)):
            run = context.Forward(shared[rank], describe_context("forward", q, k, v, *options))
            if cu_seqlens is not None:
                packed = Packed(cu_seqlens, run.problem, rank, kernels)
                attend, differentiate = packed.attend, packed.differentiate
            forward.append(partial(run, attend, q, k, v, o, lse))
            run = context.Backward(shared[rank], describe_context("backward", q, k, v, *options))
            begin = differentiate if cu_seqlens is not None else context_math.at_the_end(differentiate)
            backward.append(partial(run, begin, (q, k, v, o, lse, do), *grads))
        for calls in (forward, backward):
            for each in shared:
                each.data.fill_(0xFF)
            run_ranks(calls)
    whole = [join_ranks(torch.stack(each), 2, zigzag) for each in zip(*results, strict=True)]
    return whole if cu_seqlens is None else [each[:, :, order] for each in whole]


def _virtual(call: Any) -> Any:
    """Returns a function of attention or its gradients on the virtual H200, as the engine calls it."""

    def run(*given: Any) -> Any:
        *arrays, causal, scale = given
        options = {"causal": causal, "scale": scale, "device": "h200"}
        if call in (attention, attention_varlen):
            return call(*arrays[:-1], **options, out=arrays[-1], return_lse=True)[1]
        return call(*arrays, **options)

    return run


def _require_roundings(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """In bf16: roundings of results and of P, and of the parts of gradients of keys."""
    for result, right in zip(found, expected, strict=True):
        error = float((result.double() - right).abs().max() / right.abs().max())
        assert error <= 3 * 2.0**-9


def _reference(inputs: list[torch.Tensor], causal: bool) -> list[torch.Tensor]:
    q, k, v, do = (each.double() for each in inputs)
    out = torch.empty_like(q)
    lse = context_math.attend(q, k, v, out, causal, None)
    return [out, *context_math.differentiate(q, k, v, out, lse, do, causal, None)]


def test_the_reference_is_that_of_torch() -> None:
    q, k, v = (_random(seed, 1, heads, 9, 8).requires_grad_() for seed, heads in enumerate((4, 2, 2)))
    do, wide = _random(3, 1, 4, 9, 8), [each.repeat_interleave(2, 1) for each in (k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=True)
    expected.backward(do)
    found = _reference([each.detach() for each in (q, k, v, do)], True)
    for one, other in zip(found, (expected, q.grad, k.grad, v.grad), strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("ranks", "causal", "zigzag"),
    [(2, True, True), (3, True, True), (8, True, True), (3, True, False), (2, False, True)],
)
def test_every_rank_gets_its_rows(
    ranks: int, causal: bool, zigzag: bool, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_problem, "GROUP_BYTES", 1 if groups > 1 else 1 << 30)
    shapes = [(BATCH, heads, 6 * ranks, 8) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    inputs = [_random(seed, *shape) for seed, shape in enumerate(shapes)]
    # Without a causal mask the engine takes the rows of a rank as one chunk.
    found = _run(inputs, ranks, causal, zigzag and causal, context_math.attend, context_math.differentiate, 2)
    for result, expected in zip(found, _reference(inputs, causal), strict=True):
        assert torch.allclose(result, expected, atol=1e-12)


def test_the_kernels_of_hopper_on_two_ranks() -> None:
    inputs = [_random(seed, 1, heads, 384, 64).bfloat16() for seed, heads in enumerate((2, 1, 1, 2))]
    found = _run(inputs, 2, True, True, _virtual(attention), _virtual(gradients))
    _require_roundings(found, _reference(inputs, True))


def _packed_reference(inputs: list[torch.Tensor], cu_seqlens: torch.Tensor, causal: bool) -> list[torch.Tensor]:
    q, k, v, do = (each.double()[0].transpose(0, 1) for each in inputs)
    out = torch.empty_like(q)
    lse = context_math.attend_packed(q, k, v, cu_seqlens, cu_seqlens, out, causal, None)
    found = context_math.differentiate_packed(q, k, v, out, lse, do, cu_seqlens, cu_seqlens, causal, None)
    return [each.transpose(0, 1).unsqueeze(0) for each in (out, *found)]


@pytest.mark.parametrize(("causal", "zigzag"), [(True, True), (True, False), (False, True)])
def test_packed_sequences(causal: bool, zigzag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_problem, "GROUP_BYTES", 1)
    cu_seqlens = torch.tensor([0, 12, 12, 36, 42], dtype=torch.int32)
    inputs = [_random(seed, 1, heads, 42, 8) for seed, heads in enumerate((4, 2, 2, 4))]
    kernels = context_math.attend_packed, context_math.differentiate_packed
    found = _run(inputs, 3, causal, zigzag, *kernels, 2, cu_seqlens)
    for result, expected in zip(found, _packed_reference(inputs, cu_seqlens, causal), strict=True):
        assert torch.allclose(result, expected, atol=1e-12)


def test_the_kernels_of_hopper_for_packed_sequences() -> None:
    cu_seqlens = torch.tensor([0, 200, 200, 384], dtype=torch.int32)
    inputs = [_random(seed, 1, heads, 384, 64).bfloat16() for seed, heads in enumerate((2, 1, 1, 2))]
    kernels = _virtual(attention_varlen), _virtual(gradients_varlen)
    found = _run(inputs, 2, True, True, *kernels, cu_seqlens=cu_seqlens)
    _require_roundings(found, _packed_reference(inputs, cu_seqlens, True))


@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_have_a_fixed_order_where_torch_asks_for_it(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(*_: Any, deterministic: bool, **__: Any) -> tuple[torch.Tensor, ...]:
        orders.append(deterministic)
        return ()

    orders: list[bool] = []
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: enabled)
    monkeypatch.setattr(context, "begin_gradients", note)
    monkeypatch.setattr(packed, "gradients_varlen", note)
    each = torch.empty(1, 2, 8, 64)
    context.differentiate(*[each] * 7, True, None)
    packed.differentiate(*[each] * 8, True, None)
    assert orders == [enabled] * 2


def test_rows_too_far_apart_for_one_copy_are_copied_one_by_one() -> None:
    copies = list[tuple[int, ...]]()
    shared: Any = SimpleNamespace(copy=lambda *given: copies.append(given))
    Workspace.copy_rows(shared, (1000, MAX_PITCH + 1), (7, 64), 32, 3, 5)
    Workspace.copy_rows(shared, (1000, 0), (7, 0), 32, 1, 5)
    far = MAX_PITCH + 1
    assert copies == [(1000, 7, 32, 5), (1000 + far, 71, 32, 5), (1000 + 2 * far, 135, 32, 5), (1000, 7, 32, 5)]


def test_calls_and_chunks() -> None:
    q, k = torch.empty(1, 4, 64, 8), torch.empty(1, 2, 64, 8)
    problem = describe_context("attention", q, k, k, 4, True, None, True)
    packed = describe_context("attention", q, k, k, 2, False, None, True, torch.tensor([0, 96, 128]))
    assert packed.calls(0) == [QueryCall(slice(32, 64), 128), QueryCall(slice(0, 32), 128)]
    assert packed.text.endswith("causal=False, scale=None, zigzag=True, 2 packed sequences")
    assert [problem.chunks(rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert problem.calls(1) == [QueryCall(slice(32, 64), 224), QueryCall(slice(0, 32), 64)]
    assert [problem.viewers(chunk) for chunk in (0, 3, 4, 6)] == [slice(0, 4), slice(0, 4), slice(0, 4), slice(0, 2)]
    work = [sum(call.end for call in problem.calls(rank)) for rank in range(4)]
    assert len(set(work)) == 1
    assert problem._replace(zigzag=False).viewers(1) == slice(1, 4)
    assert problem._replace(causal=False, zigzag=False).calls(1) == [QueryCall(slice(0, 64), 256)]


def test_groups_of_heads_have_megabytes() -> None:
    q, k = (torch.empty(1, heads, 32768, 128, dtype=torch.bfloat16, device="meta") for heads in (32, 8))
    problem = describe_context("attention", q, k, k, 2, True, None, True)
    assert problem.groups == 4
    assert problem._replace(kv_heads=6).groups == 3
    assert problem._replace(rows=2048).groups == 1
    assert problem._replace(rows=4096).groups == 2


def test_tensors_that_do_not_fit_together() -> None:
    q, k = torch.empty(1, 4, 63, 8), torch.empty(1, 2, 63, 8)
    for call, sentence in (
        (
            lambda: describe_context("attention", q, k, k[..., :4], 2, True, None, True),
            "attention: given q of shape (1, 4, 63, 8), k of (1, 2, 63, 8) and v of (1, 2, 63, 4); expected (batch, "
            "heads, rows, head_dim) and twice (batch, kv_heads, rows, head_dim), with heads a multiple of kv_heads",
        ),
        (
            lambda: describe_context("attention", q, k, k.half(), 2, True, None, True),
            "attention: given q of torch.float32, k of torch.float32 and v of torch.float16; expected one dtype",
        ),
        (
            lambda: describe_context("attention", q, k, k, 2, True, None, True),
            "attention: given 63 rows; expected two chunks of equal length, as shard_sequence makes them, or "
            "zigzag=False",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == sentence
