"""The engine of context-parallel attention: copy engines send keys and values while attention of other heads runs.

Keys and values of all ranks lie in the workspace in the order of the sequence, by groups of heads. A rank's queries are
one call or two of each group: each chunk sees all keys up to its own end, so no parts of a softmax are merged. The two
calls are on two streams: tiles of one fill the SMs that the last tiles of the other leave idle.

The backward pass sends keys and values again. A rank has gradients of all keys that its queries see; copy engines send
them to the ranks of these keys, which add them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

from torch import Tensor

from warpwright.distributed.context_problem import ContextProblem, QueryCall
from warpwright.distributed.workspace import Workspace
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.forward import attention

__all__ = ["Backward", "Forward", "attend", "differentiate"]

KEYS_SENT, STARTED, ENDED, SIDE_ENDED, JOINED, SUMS_READY = range(6)  # events
KINDS = 2  # keys and values
Attend = Callable[..., Tensor]
Differentiate = Callable[..., tuple[Tensor, ...]]


def attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float | None) -> Tensor:
    """Write attention to ``out`` by `warpwright.attention`; returns the log-sum-exp of the rows."""
    found: Tensor = attention(q, k, v, causal=causal, scale=scale, out=out, return_lse=True)[1]
    return found


def differentiate(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    """Returns the gradients by q, k and v by the kernels of `warpwright.attention`."""
    return gradients(q, k, v, o, lse, do, causal=causal, scale=scale)


class Exchange:
    """Keys and values of all ranks in the memory of a workspace, and their gradients from all ranks.

    ``gathered`` is (groups, keys and values, batch, sequence, heads of a group, head_dim). ``received``, with
    ``returns``, has the gradients of this rank's rows: (groups, ranks, keys and values, batch, rows, …).
    """

    def __init__(self, shared: Workspace, problem: ContextProblem, returns: bool) -> None:
        self.shared, self.problem, self.rank = shared, problem, shared.rank
        self.side = shared.receives
        heads = problem.kv_heads // problem.groups, problem.head_dim
        all_rows = problem.ranks * problem.rows
        whole = problem.groups, KINDS, problem.batch, all_rows, *heads
        parts = problem.groups, problem.ranks, KINDS, problem.batch, problem.rows, *heads
        offset = prod(whole) * problem.dtype.itemsize
        shared.reserve(offset * (2 if returns else 1))
        self.gathered = shared.view(0, whole, problem.dtype)
        if returns:
            self.received = shared.view(offset, parts, problem.dtype)
        self.flags = problem.groups * problem.ranks * (2 if returns else 1)

    def start(self, k: Tensor, v: Tensor) -> int:
        """Start a call on torch's current stream and send keys and values; returns that stream."""
        stream = self.shared.stream()
        self.shared.start(self.shared.digest(self.problem), self.flags, stream)
        for kind, own in enumerate((k, v)):
            by_group = own.unflatten(1, (self.problem.groups, -1)).movedim(1, 0).transpose(2, 3)
            for rows, _, span in self.problem.places(self.rank):
                self.gathered[:, kind, :, span].copy_(by_group[:, :, rows])
        self.shared.order(stream, self.shared.sends, KEYS_SENT)
        self.shared.order(stream, self.side, STARTED)
        for group in range(self.problem.groups):
            self._send_keys(group)
        return stream

    def _send_keys(self, group: int) -> None:
        """Send the chunks of this rank of a group of heads to all ranks whose queries see them."""
        for peer in self.peers():
            for _, number, span in self.problem.places(self.rank):
                if self.problem.sees(peer, number):
                    for each in self.gathered[group, :, :, span].flatten(0, 1):
                        self._send(each, each, peer)
            self.shared.signal(peer, self.key_flag(group, self.rank), 1, self.shared.sends)

    def send_gradients(self, group: int, sums: tuple[Tensor, Tensor]) -> None:
        """Send gradients of keys and values, each (batch, sequence, heads of a group, head_dim) up to the last key
        that this rank sees, to the ranks of the keys."""
        for peer in self.peers():
            for source, slot in self._chunks_of_gradients(group, peer, sums):
                for batch in range(self.problem.batch):
                    self._send(source[batch], slot[batch], peer)
            self.shared.signal(peer, self.gradient_flag(group, self.rank), 1, self.shared.sends)

    def keep_gradients(self, group: int, sums: tuple[Tensor, Tensor]) -> None:
        """Copy the gradients of this rank's own keys to its own slot, on torch's current stream."""
        for source, slot in self._chunks_of_gradients(group, self.rank, sums):
            slot.copy_(source)

    def _chunks_of_gradients(
        self, group: int, owner: int, sums: tuple[Tensor, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the gradients of the chunks of ``owner`` that this rank sees, and their slots."""
        for rows, number, span in self.problem.places(owner):
            if self.problem.sees(self.rank, number):
                for kind, whole in enumerate(sums):
                    yield whole[:, span], self.received[group, self.rank, kind, :, rows]

    def add_gradients(self, group: int, dk: Tensor, dv: Tensor) -> None:
        """Write the sums of the gradients of all ranks, which have arrived, to the rows of this rank."""
        for rows, number, _ in self.problem.places(self.rank):
            ranks = self.problem.viewers(number)
            for kind, out in enumerate((dk, dv)):
                sums = self.received[group, ranks, kind, :, rows].sum(0)
                self.heads(out, group)[:, :, rows].copy_(sums.transpose(1, 2))

    def peers(self) -> list[int]:
        """Returns the other ranks, in an order in which no two ranks send to one at a time."""
        return [(self.rank - step) % self.problem.ranks for step in range(1, self.problem.ranks)]

    def _send(self, source: Tensor, slot: Tensor, peer: int) -> None:
        """Send a dense tensor to the place that ``slot`` has on this rank, on another one."""
        target = self.shared.pointers[peer] + slot.data_ptr() - self.shared.data.data_ptr()
        self.shared.copy(target, source.data_ptr(), source.numel() * source.itemsize, self.shared.sends)

    def heads(self, x: Tensor, group: int) -> Tensor:
        """Returns the heads of a group of a tensor (batch, heads, …)."""
        return x.unflatten(1, (self.problem.groups, -1))[:, group]

    def keys(self, group: int, call: QueryCall) -> list[Tensor]:
        """Returns the keys and values of a group that the queries of a call see."""
        return [each[:, : call.end].transpose(1, 2) for each in self.gathered[group]]

    def key_flag(self, group: int, source: int) -> int:
        return group * self.problem.ranks + source

    def gradient_flag(self, group: int, source: int) -> int:
        return self.problem.groups * self.problem.ranks + self.key_flag(group, source)

    def wait_keys(self, group: int, stream: int) -> None:
        """Let a stream wait until the keys and values of a group have come from all ranks."""
        for source in self.peers():
            self.shared.wait(self.key_flag(group, source), 1, stream)

    def wait_gradients(self, group: int, stream: int) -> None:
        """Let a stream wait until the gradients of a group have come from all ranks."""
        for source in self.peers():
            self.shared.wait(self.gradient_flag(group, source), 1, stream)

    def calls(self, group: int, stream: int) -> Iterator[tuple[QueryCall, AbstractContextManager[Any]]]:
        """Yields the calls of a group, whose keys their streams wait for, each with the context of its stream."""
        for number, call in enumerate(self.problem.calls(self.rank)):
            self.wait_keys(group, self.side if number else stream)
            yield call, self.shared.beside() if number else nullcontext()

    def end(self, stream: int) -> None:
        """Let the stream of the call wait for the other streams, which use tensors of this call."""
        self.shared.order(self.side, stream, SIDE_ENDED)
        self.shared.order(self.shared.sends, stream, ENDED)


class Forward:
    """Runs calls of a problem; ``attend`` has the arguments of the function above."""

    def __init__(self, shared: Workspace, problem: ContextProblem, attend: Attend = attend) -> None:
        self.exchange, self.problem, self.attend = Exchange(shared, problem, returns=False), problem, attend

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        exchange, problem = self.exchange, self.problem
        stream = exchange.start(k, v)
        for group in range(problem.groups):
            queries, outputs, sums = (exchange.heads(each, group) for each in (q, out, lse))
            for call, context in exchange.calls(group, stream):
                keys, rows = exchange.keys(group, call), call.rows
                with context:
                    found = self.attend(queries[:, :, rows], *keys, outputs[:, :, rows], problem.causal, problem.scale)
                    sums[:, :, rows].copy_(found)
        exchange.end(stream)


class Backward:
    """Runs gradients of a problem; ``differentiate`` has the arguments of the function above."""

    def __init__(
        self, shared: Workspace, problem: ContextProblem, differentiate: Differentiate = differentiate
    ) -> None:
        self.exchange, self.problem = Exchange(shared, problem, returns=True), problem
        self.differentiate = differentiate

    def __call__(self, given: tuple[Tensor, ...], dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Write the gradients; ``given`` is q, k, v, o, lse and the gradient by o."""
        exchange = self.exchange
        stream = exchange.start(given[1], given[2])
        kept = [self._group(group, stream, given, dq) for group in range(self.problem.groups)]
        for group in range(self.problem.groups):
            exchange.wait_gradients(group, stream)
        exchange.end(stream)
        for group in range(self.problem.groups):
            exchange.add_gradients(group, dk, dv)
        del kept  # both streams have used these tensors now

    def _group(self, group: int, stream: int, given: tuple[Tensor, ...], dq: Tensor) -> list[list[Tensor]]:
        """Compute and send the gradients of a group of heads; returns the tensors that streams and copies still use."""
        exchange, found = self.exchange, list[list[Tensor]]()
        q, _, _, *others = given
        queries, outputs, lse, do = (exchange.heads(each, group) for each in (q, *others))
        for call, context in exchange.calls(group, stream):
            keys, rows = exchange.keys(group, call), call.rows
            own = [each[:, :, rows] for each in (outputs, lse, do)]
            with context:
                of_q, *sums = self.differentiate(
                    queries[:, :, rows], *keys, *own, self.problem.causal, self.problem.scale
                )
                exchange.heads(dq, group)[:, :, rows].copy_(of_q)
                found.append([each.transpose(1, 2).contiguous() for each in sums])
        self._join(group, stream, found)
        return found

    def _join(self, group: int, stream: int, found: list[list[Tensor]]) -> None:
        """Add the gradients of the second call to those of the first, which sees all of its keys, and send them."""
        exchange, shared, (whole, *parts) = self.exchange, self.exchange.shared, found
        if parts:
            shared.order(stream, exchange.side, JOINED)
        with shared.beside() if parts else nullcontext():
            for part in parts:
                for total, each in zip(whole, part, strict=True):
                    total[:, : each.shape[1]].add_(each)
            exchange.keep_gradients(group, (whole[0], whole[1]))
        shared.order(exchange.side if parts else stream, shared.sends, SUMS_READY)
        exchange.send_gradients(group, (whole[0], whole[1]))
