"""Packed sequences of context-parallel attention: each sequence is divided among the ranks.

Keys arrive chunk by chunk, a chunk of all sequences. A call copies those that it sees into the order of sequences, for
kernels of packed sequences, and the gradients back.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from warpwright.distributed.context_problem import ContextProblem, fixed_order
from warpwright.distributed.sequence import packed_order
from warpwright.ops.attention.varlen import attention_varlen
from warpwright.ops.attention.varlen_backward import gradients_varlen

__all__ = ["Packed", "attend", "differentiate"]


def attend(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, out: Tensor, causal: bool, scale: float | None
) -> Tensor:
    """Write attention of packed sequences to ``out``; returns the log-sum-exp (heads, rows)."""
    found: Tensor = attention_varlen(q, k, v, cu_q, cu_k, causal=causal, scale=scale, out=out, return_lse=True)[1]
    return found


def differentiate(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients by q, k and v of `attend`."""
    given = q, k, v, o, lse, do, cu_q, cu_k
    return gradients_varlen(*given, causal=causal, scale=scale, deterministic=fixed_order())


class Packed:
    """The functions `attend` and `differentiate` of an engine for packed sequences, whose kernels are given.

    ``cu_seqlens`` has the sums of the lengths of the whole sequences. A call that sees n chunks has n times the rows of
    a chunk of each sequence as keys.
    """

    def __init__(
        self,
        cu_seqlens: Tensor,
        problem: ContextProblem,
        rank: int,
        kernels: tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, ...]]] = (attend, differentiate),
    ) -> None:
        self.chunk, self.kernels = problem.chunk, kernels
        chunks = problem.ranks * problem.rows // problem.chunk
        self.starts = cu_seqlens // chunks
        ends = {call.end for call in problem.calls(rank)}
        self.keys = {
            end: (packed_order(cu_seqlens, chunks, end // self.chunk, end), self.starts * (end // self.chunk))
            for end in ends
        }

    def attend(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float | None) -> Tensor:
        """Write attention of a chunk of all sequences; the tensors are (1, heads, rows, head_dim)."""
        order, cu_k = self.keys[k.shape[2]]
        keys, values = (_rows_first(each).index_select(0, order) for each in (k, v))
        run, rows = self.kernels[0], (_rows_first(q), keys, values, self.starts, cu_k, _rows_first(out))
        return run(*rows, causal, scale).unsqueeze(0)

    def differentiate(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, dq: Tensor, causal: bool,
        scale: float | None,
    ) -> Callable[[], list[Tensor]]:  # fmt: skip
        """Returns a function that writes ``dq`` and returns the gradients by k and v, in the order of chunks."""

        def end() -> list[Tensor]:
            order, cu_k = self.keys[k.shape[2]]
            keys, values = (_rows_first(each).index_select(0, order) for each in (k, v))
            rows = _rows_first(q), keys, values, _rows_first(o), lse[0].contiguous(), _rows_first(do)
            of_q, *sums = self.kernels[1](*rows, self.starts, cu_k, causal, scale)
            dq.copy_(_heads_first(of_q))
            back = order.argsort()
            return [_heads_first(each.index_select(0, back)) for each in sums]

        return end


def _rows_first(x: Tensor) -> Tensor:
    """Returns a tensor (1, heads, rows, head_dim) as (rows, heads, head_dim)."""
    return x[0].transpose(0, 1)


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).unsqueeze(0)
