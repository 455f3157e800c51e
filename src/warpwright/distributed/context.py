"""The engine of context-parallel attention: copy engines send keys and values while attention of other heads runs.

Keys and values of all ranks lie in the workspace in the order of the sequence, by groups of heads. A rank's queries are
one call or two of each group: each chunk sees all keys up to its own end, so no parts of a softmax are merged. The
calls of several groups are on streams of their own: tiles of one call fill the SMs that the last tiles of another leave
idle, which in turn would cost a tenth of the time (docs/log/2026-11.md).

The backward pass sends keys and values again. A rank has gradients of all keys that its queries see; copy engines send
them to the ranks of these keys, which add them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from torch import Tensor

from warpwright.distributed.context_problem import ContextProblem, QueryCall, fixed_order
from warpwright.distributed.workspace import Workspace
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.forward import attention

__all__ = ["Backward", "Forward", "attend", "differentiate"]

FORK, JOIN = 0, 1  # events
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
    return gradients(q, k, v, o, lse, do, causal=causal, scale=scale, deterministic=fixed_order())


class Exchange:
    """Keys and values of all ranks in the memory of a workspace, and with ``returns`` their gradients from all ranks.

    ``gathered`` is (groups, keys and values, batch, sequence, heads of a group, head_dim). ``received`` has the
    gradients of this rank's rows: (groups, ranks, keys and values, batch, rows, heads of a group, head_dim).
    """

    def __init__(self, shared: Workspace, problem: ContextProblem, returns: bool) -> None:
        self.shared, self.problem, self.rank, self.main = shared, problem, shared.rank, 0
        heads = problem.kv_heads // problem.groups, problem.head_dim
        whole = problem.groups, KINDS, problem.batch, problem.ranks * problem.rows, *heads
        parts = problem.groups, problem.ranks, KINDS, problem.batch, problem.rows, *heads
        offset = prod(whole) * problem.dtype.itemsize
        shared.reserve(offset * (2 if returns else 1))
        self.gathered = shared.view(0, whole, problem.dtype)
        if returns:
            self.received = shared.view(offset, parts, problem.dtype)
        self.flags = problem.groups * problem.ranks * (2 if returns else 1)
        # The others in an order in which no two ranks send to one rank at a time.
        self.peers = [(self.rank - step) % problem.ranks for step in range(1, problem.ranks)]

    def start(self, k: Tensor, v: Tensor) -> None:
        """Start a call on torch's current stream, and send keys and values."""
        shared, self.main = self.shared, self.shared.stream()
        shared.start(shared.digest(self.problem), self.flags, self.main)
        for group in range(self.problem.groups):
            self._copy_keys(group, k, v)
            for other in (shared.sends,) if group else self._streams():
                shared.order(self.main, other, FORK)
            self._send_keys(group)

    def end(self) -> None:
        """Let torch's current stream wait for all streams of the call, which use tensors of the caller."""
        for other in self._streams():
            self.shared.order(other, self.shared.stream(), JOIN)

    def calls(self, group: int) -> Iterator[tuple[int, QueryCall, list[Tensor]]]:
        """Yields the calls of a group, with the number of a stream of ``side`` and the keys and values that the call
        reads."""
        calls = self.problem.calls(self.rank)
        for number, call in enumerate(calls, group * len(calls)):
            keys = [each[:, : call.end].transpose(1, 2) for each in self.gathered[group]]
            stream = number % len(self.shared.side)
            if group:
                self.shared.order(self.main, self.shared.side[stream], FORK)
            yield stream, call, keys

    def heads(self, x: Tensor, group: int) -> Tensor:
        """Returns the heads of a group of a tensor (batch, heads, …)."""
        return x.unflatten(1, (self.problem.groups, -1))[:, group]

    def wait_keys(self, group: int) -> None:
        """Let torch's current stream wait until the keys and values of a group have come from all ranks."""
        for source in self.peers:
            self.shared.wait(self._key_flag(group, source), 1, source, self.shared.stream())

    def wait_gradients(self, group: int) -> None:
        """Let torch's current stream wait until the gradients of a group have come from all ranks."""
        for source in self.peers:
            self.shared.wait(self._gradient_flag(group, source), 1, source, self.shared.stream())

    def send_gradients(self, group: int, sums: list[Tensor]) -> None:
        """Send gradients of keys and values, each (batch, sequence, heads of a group, head_dim) up to the last key
        that this rank sees, to the ranks of the keys."""
        for peer in self.peers:
            for source, slot in self._gradients_of(group, peer, sums):
                for batch in range(self.problem.batch):
                    self._send(source[batch], slot[batch], peer)
            self.shared.signal(peer, self._gradient_flag(group, self.rank), 1, self.shared.sends)

    def keep_gradients(self, group: int, sums: list[Tensor]) -> None:
        """Copy the gradients of this rank's own keys to its own slot, on torch's current stream."""
        for source, slot in self._gradients_of(group, self.rank, sums):
            slot.copy_(source)

    def add_gradients(self, group: int, dk: Tensor, dv: Tensor) -> None:
        """Write the sums of the gradients of all ranks, which have arrived, to the rows of this rank."""
        for rows, number, _ in self.problem.places(self.rank):
            ranks = self.problem.viewers(number)
            for kind, out in enumerate((dk, dv)):
                sums = self.received[group, ranks, kind, :, rows].sum(0)
                self.heads(out, group)[:, :, rows].copy_(sums.transpose(1, 2))

    def _streams(self) -> tuple[int, ...]:
        return self.shared.sends, self.shared.receives, *self.shared.side

    def _copy_keys(self, group: int, k: Tensor, v: Tensor) -> None:
        """Copy this rank's keys and values of a group of heads to their places, on torch's current stream."""
        for kind, own in enumerate((k, v)):
            for rows, _, span in self.problem.places(self.rank):
                self.gathered[group, kind, :, span].copy_(self.heads(own, group)[:, :, rows].transpose(1, 2))

    def _send_keys(self, group: int) -> None:
        """Send the chunks of this rank of a group of heads to all ranks whose queries see them."""
        for peer in self.peers:
            for _, number, span in self.problem.places(self.rank):
                if self.problem.sees(peer, number):
                    for each in self.gathered[group, :, :, span].flatten(0, 1):
                        self._send(each, each, peer)
            self.shared.signal(peer, self._key_flag(group, self.rank), 1, self.shared.sends)

    def _gradients_of(self, group: int, owner: int, sums: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the gradients of the chunks of ``owner`` that this rank sees, and their slots."""
        for rows, number, span in self.problem.places(owner):
            if self.problem.sees(self.rank, number):
                for kind, whole in enumerate(sums):
                    yield whole[:, span], self.received[group, self.rank, kind, :, rows]

    def _send(self, source: Tensor, slot: Tensor, peer: int) -> None:
        """Send a dense tensor to the place that ``slot`` has on this rank, on another one."""
        target = self.shared.pointers[peer] + slot.data_ptr() - self.shared.data.data_ptr()
        self.shared.copy(target, source.data_ptr(), source.numel() * source.itemsize, self.shared.sends)

    def _key_flag(self, group: int, source: int) -> int:
        return group * self.problem.ranks + source

    def _gradient_flag(self, group: int, source: int) -> int:
        return self.problem.groups * self.problem.ranks + self._key_flag(group, source)


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
        kept = [self._group(differentiate, group, given, dq) for group in groups]
        with exchange.shared.receiving():
            for group in groups:
                exchange.wait_gradients(group)
                exchange.add_gradients(group, dk, dv)
        exchange.end()
        del kept  # no stream uses these tensors any more

    def _group(
        self, differentiate: Differentiate, group: int, given: tuple[Tensor, ...], dq: Tensor
    ) -> list[list[Tensor]]:
        """Compute and send the gradients of a group of heads; returns the tensors that streams and copies still use."""
        exchange, problem = self.exchange, self.problem
        q, _, _, *others = given
        queries, *results = (exchange.heads(each, group) for each in (q, *others))
        streams, found = list[int](), list[list[Tensor]]()
        for stream, (rows, _), keys in exchange.calls(group):
            with exchange.shared.beside(stream):
                exchange.wait_keys(group)
                own = [each[:, :, rows] for each in results]
                of_q, *sums = differentiate(queries[:, :, rows], *keys, *own, problem.causal, problem.scale)
                exchange.heads(dq, group)[:, :, rows].copy_(of_q)
                found.append([each.transpose(1, 2).contiguous() for each in sums])
            streams.append(stream)
        self._join(group, streams, found)
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
                    total[:, : each.shape[1]].add_(each)
            exchange.keep_gradients(group, whole)
        shared.order(last, shared.sends, JOIN)
        shared.order(last, shared.receives, JOIN)
        exchange.send_gradients(group, whole)
