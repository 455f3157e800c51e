"""The engine of context-parallel attention: copy engines send keys and values while attention of other heads runs.

Keys and values of all ranks lie in the workspace in the order of the sequence, by groups of heads. A rank's queries are
one call or two of each group: each chunk sees all keys up to its own end, so no parts of a softmax are merged. The
calls of several groups are on streams of their own: tiles of one call fill the SMs that the last tiles of another leave
idle, which in turn would cost a tenth of the time (docs/log/2026-11.md).

The backward pass sends keys and values again, while the launches that read none of them run for all calls. A rank has
gradients of all keys that its queries see; copy engines send them to the ranks of these keys, which add them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from warpwright.distributed.context_problem import ContextProblem, QueryCall, fixed_order
from warpwright.distributed.workspace import Workspace
from warpwright.ops.attention.backward import begin_gradients
from warpwright.ops.attention.forward import attention

__all__ = ["Backward", "Forward", "attend", "differentiate"]

FORK, JOIN, KEYS = 0, 1, 2  # events: the last of the first group of heads, whose own keys are in their places
KINDS = 2  # keys and values
Attend = Callable[..., Tensor]
Sums = Sequence[Tensor]  # gradients by k and v
Differentiate = Callable[..., Callable[[], Sums]]


def attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float | None) -> Tensor:
    """Write attention to ``out`` by `warpwright.attention`; returns the log-sum-exp of the rows."""
    found: Tensor = attention(q, k, v, causal=causal, scale=scale, out=out, return_lse=True)[1]
    return found


def differentiate(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, dq: Tensor, causal: bool, scale: float | None
) -> Callable[[], Sums]:
    """Start what the kernels of the gradients of `warpwright.attention` compute without keys; the function returned
    starts the rest, which writes ``dq``, and returns the gradients by k and v."""
    given = q, k, v, o, lse, do
    end = begin_gradients(*given, dq=dq, causal=causal, scale=scale, deterministic=fixed_order())
    return lambda: end()[1:]


class Exchange:
    """Keys and values of all ranks in the memory of a workspace, and with ``returns`` their gradients from all ranks.

    ``gathered`` is (groups, keys and values, batch, heads of a group, sequence, head_dim). ``received`` has the
    gradients of this rank's rows: (groups, ranks, keys and values, batch, heads of a group, rows, head_dim).
    """

    def __init__(self, shared: Workspace, problem: ContextProblem, returns: bool) -> None:
        self.shared, self.problem, self.rank, self.own = shared, problem, shared.rank, list[Tensor]()
        heads = problem.batch, problem.kv_heads // problem.groups
        whole = problem.groups, KINDS, *heads, problem.ranks * problem.rows, problem.head_dim
        parts = problem.groups, problem.ranks, KINDS, *heads, problem.rows, problem.head_dim
        offset = prod(whole) * problem.dtype.itemsize
        shared.reserve(offset * (2 if returns else 1))
        self.gathered = shared.view(0, whole, problem.dtype)
        if returns:
            self.received = shared.view(offset, parts, problem.dtype)
        self.flags = problem.groups * problem.ranks * (2 if returns else 1)
        # The others in an order in which no two ranks send to one rank at a time.
        self.peers = [(self.rank - step) % problem.ranks for step in range(1, problem.ranks)]

    def start(self, k: Tensor, v: Tensor) -> None:
        """Start a call on torch's current stream, and send keys and values; other streams of the call follow it."""
        shared, main = self.shared, self.shared.stream()
        shared.start(shared.digest(self.problem), self.flags, main)
        # Kept until the end: copies of other streams read them.
        self.own = own = [each if _dense_heads(each) else each.contiguous() for each in (k, v)]
        for other in self._streams():
            shared.order(main, other, FORK)
        for group in range(self.problem.groups):
            self._send_keys(group, [self.heads(each, group) for each in own])
            shared.record(KEYS + group, shared.receives)

    def end(self) -> None:
        """Let torch's current stream wait for all streams of the call, which use tensors of the caller."""
        for other in self._streams():
            self.shared.order(other, self.shared.stream(), JOIN)
        self.own = []

    def calls(self, group: int) -> Iterator[tuple[int, QueryCall, list[Tensor]]]:
        """Yields the calls of a group, with the number of a stream of ``side`` and the keys and values that the call
        reads."""
        calls = self.problem.calls(self.rank)
        for number, call in enumerate(calls, group * len(calls)):
            keys = [each[:, :, : call.end] for each in self.gathered[group]]
            yield number % len(self.shared.side), call, keys

    def heads(self, x: Tensor, group: int) -> Tensor:
        """Returns the heads of a group of a tensor (batch, heads, …)."""
        return x.unflatten(1, (self.problem.groups, -1))[:, group]

    def wait_keys(self, group: int) -> None:
        """Let torch's current stream wait until the keys and values of a group have come from all ranks."""
        self.shared.follow(KEYS + group, self.shared.stream())
        for source in self.peers:
            self.shared.wait(self._key_flag(group, source), 1, source, self.shared.stream())

    def wait_gradients(self, group: int) -> None:
        """Let torch's current stream wait until the gradients of a group have come from all ranks."""
        for source in self.peers:
            self.shared.wait(self._gradient_flag(group, source), 1, source, self.shared.stream())

    def send_gradients(self, group: int, sums: Sums) -> None:
        """Send gradients of keys and values, each (batch, heads of a group, sequence, head_dim) up to the last key
        that this rank sees, to the ranks of the keys."""
        for peer in self.peers:
            for source, slot in self._gradients_of(group, peer, sums):
                self._copy(source, slot, peer, self.shared.sends)
            self.shared.signal(peer, self._gradient_flag(group, self.rank), 1, self.shared.sends)

    def keep_gradients(self, group: int, sums: Sums) -> None:
        """Copy the gradients of this rank's own keys to its own slot."""
        for source, slot in self._gradients_of(group, self.rank, sums):
            self._copy(source, slot, self.rank, self.shared.receives)

    def add_gradients(self, group: int, dk: Tensor, dv: Tensor) -> None:
        """Write the sums of the gradients of all ranks, which have arrived, to the rows of this rank."""
        for rows, number, _ in self.problem.places(self.rank):
            ranks = self.problem.viewers(number)
            for kind, out in enumerate((dk, dv)):
                torch.sum(self.received[group, ranks, kind, :, :, rows], 0, out=self.heads(out, group)[:, :, rows])

    def _streams(self) -> tuple[int, ...]:
        return self.shared.sends, self.shared.receives, *self.shared.side

    def _send_keys(self, group: int, own: list[Tensor]) -> None:
        """Copy the chunks of this rank of a group of heads to their places, and those of all ranks whose queries see
        them."""
        chunks = [
            (each[:, :, rows], self.gathered[group, kind, :, :, span], number)
            for kind, each in enumerate(own)
            for rows, number, span in self.problem.places(self.rank)
        ]
        for peer in self.peers:
            for source, place, number in chunks:
                if self.problem.sees(peer, number):
                    self._copy(source, place, peer, self.shared.sends)
            self.shared.signal(peer, self._key_flag(group, self.rank), 1, self.shared.sends)
        for source, place, _ in chunks:
            self._copy(source, place, self.rank, self.shared.receives)

    def _gradients_of(self, group: int, owner: int, sums: Sums) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the gradients of the chunks of ``owner`` that this rank sees, and their slots."""
        for rows, number, span in self.problem.places(owner):
            if self.problem.sees(self.rank, number):
                for kind, whole in enumerate(sums):
                    yield whole[:, :, span], self.received[group, self.rank, kind, :, :, rows]

    def _copy(self, source: Tensor, slot: Tensor, rank: int, stream: int) -> None:
        """Copy a tensor (batch, heads, rows, head_dim) to the place on ``rank`` that ``slot`` has on this rank."""
        offset, nbytes = (
            self.shared.pointers[rank] - self.shared.data.data_ptr(),
            source[0, 0].numel() * source.itemsize,
        )
        for one, other in zip(source, slot, strict=True):
            to, of = ((each.data_ptr(), each.stride(0) * each.itemsize) for each in (other, one))
            self.shared.copy_rows((to[0] + offset, to[1]), of, nbytes, len(one), stream)

    def _key_flag(self, group: int, source: int) -> int:
        return group * self.problem.ranks + source

    def _gradient_flag(self, group: int, source: int) -> int:
        return self.problem.groups * self.problem.ranks + self._key_flag(group, source)


def _dense_heads(x: Tensor) -> bool:
    """Returns whether the rows of each head lie one after the other, and no two heads share memory."""
    _, head, row, step = x.stride()
    return bool(step == 1 and row == x.shape[3] and head >= x.shape[2] * row)


class Forward:
    """Runs calls of a problem."""

    def __init__(self, shared: Workspace, problem: ContextProblem) -> None:
        self.exchange, self.problem = Exchange(shared, problem, returns=False), problem

    def __call__(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        """Write ``out`` and ``lse``; ``attend`` has the arguments of the function above."""
        exchange, problem = self.exchange, self.problem
        exchange.start(k, v)
        for group in range(problem.groups):
            queries, outputs, sums = (exchange.heads(each, group) for each in (q, out, lse))
            for stream, (rows, _), keys in exchange.calls(group):
                with exchange.shared.beside(stream):
                    exchange.wait_keys(group)
                    found = attend(queries[:, :, rows], *keys, outputs[:, :, rows], problem.causal, problem.scale)
                    sums[:, :, rows].copy_(found)
        exchange.end()


class Backward:
    """Runs gradients of a problem."""

    def __init__(self, shared: Workspace, problem: ContextProblem) -> None:
        self.exchange, self.problem = Exchange(shared, problem, returns=True), problem

    def __call__(
        self, differentiate: Differentiate, given: tuple[Tensor, ...], dq: Tensor, dk: Tensor, dv: Tensor
    ) -> None:
        """Write the gradients; ``given`` is q, k, v, o, lse and the gradient by o, and ``differentiate`` has the
        arguments of the function above."""
        exchange, groups = self.exchange, range(self.problem.groups)
        exchange.start(given[1], given[2])
        begun = [list(self._begin(differentiate, group, given, dq)) for group in groups]
        kept = [self._end(group, calls) for group, calls in enumerate(begun)]
        with exchange.shared.receiving():
            for group in groups:
                exchange.wait_gradients(group)
                exchange.add_gradients(group, dk, dv)
        exchange.end()
        del begun, kept  # no stream uses these tensors any more

    def _begin(
        self, differentiate: Differentiate, group: int, given: tuple[Tensor, ...], dq: Tensor
    ) -> Iterator[tuple[int, Callable[[], Sums]]]:
        """Start what the calls of a group of heads compute without keys; yields their streams and their ends."""
        exchange, problem = self.exchange, self.problem
        q, _, _, *others = given
        queries, *results = (exchange.heads(each, group) for each in (q, *others, dq))
        for stream, (rows, _), keys in exchange.calls(group):
            own = [each[:, :, rows] for each in results]
            with exchange.shared.beside(stream):
                end = differentiate(queries[:, :, rows], *keys, *own, problem.causal, problem.scale)
            yield stream, end

    def _end(self, group: int, calls: list[tuple[int, Callable[[], Sums]]]) -> list[list[Tensor]]:
        """Compute and send the gradients of a group of heads; returns the tensors that streams and copies still use."""
        found = list[list[Tensor]]()
        for stream, end in calls:
            with self.exchange.shared.beside(stream):
                self.exchange.wait_keys(group)
                found.append([each.contiguous() for each in end()])
        self._join(group, [stream for stream, _ in calls], found)
        return found

    def _join(self, group: int, streams: list[int], found: list[list[Tensor]]) -> None:
        """Add the gradients of the second call to those of the first one, which sees all of its keys; send the sums."""
        exchange, shared, (whole, *parts) = self.exchange, self.exchange.shared, found
        first, last = (shared.side[number] for number in (streams[0], streams[-1]))
        if parts:
            shared.order(first, last, JOIN)
        with shared.beside(streams[-1]):
            for part in parts:
                for total, each in zip(whole, part, strict=True):
                    total[:, :, : each.shape[2]].add_(each)
        shared.order(last, shared.sends, JOIN)
        shared.order(last, shared.receives, JOIN)
        exchange.keep_gradients(group, whole)
        exchange.send_gradients(group, whole)
