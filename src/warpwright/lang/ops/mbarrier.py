"""mbarriers: 8-byte objects in shared memory that count arrivals and bytes (PTX ISA 9.1 section 9.7.13.15).

A phase completes when all expected arrivals have happened and all expected bytes have been delivered. A wait takes the
parity of its phase: on a new mbarrier a wait for parity 0 blocks and a wait for parity 1 passes at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.trace import addr, current
from warpwright.ptx import nodes
from warpwright.types import pred, u32

__all__ = ["MAX_COUNT", "RemoteBarrier", "mbarrier"]

BYTES = 8
_WORD = re.compile(r"\w+", re.ASCII)
MAX_COUNT = 2**20 - 1
WaitScope = Literal["cta", "cluster"]


class mbarrier:
    """One mbarrier in this CTA's shared memory that expects ``count`` arrivals a phase (1 to 2**20 - 1).

    ``mbarrier(count)`` allocates one, `array` several in a row; `at_address` takes a computed address. ``name`` appears
    in the labels of waits; ``parity`` is the default of `wait`, which a slot of a ring sets. The constructors emit
    nothing; call `init` before the other methods.
    """

    __slots__ = ("base", "count", "name", "offset", "parity")

    def __init__(self, count: int = 1, *, name: str = "mbarrier") -> None:
        self._set(None, current().allocate(BYTES, BYTES, name), count, name, None)

    def _set(self, base: Expr | None, offset: int, count: int, name: str, parity: Value | None) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise misuse(f"given count={count} to mbarrier {name}; expected 1 to {MAX_COUNT} arrivals a phase")
        if not _WORD.fullmatch(name):
            raise misuse(f"given the name {name!r}; expected letters, digits and underscores, for labels of waits")
        self.base, self.offset, self.count, self.name, self.parity = base, offset, count, name, parity

    @classmethod
    def array(cls, stages: int, count: int = 1, *, name: str = "mbarrier") -> Sequence[mbarrier]:
        """Returns ``stages`` mbarriers of ``count`` arrivals each, 8 bytes apart, as a Python sequence."""
        offset = current().allocate(BYTES * stages, BYTES, name)
        return tuple(cls.at_address(None, offset + BYTES * stage, count, name=name) for stage in range(stages))

    @classmethod
    def at_address(
        cls,
        base: Expr | None,
        offset: int = 0,
        count: int = 1,
        *,
        name: str = "mbarrier",
        parity: Value | None = None,
    ) -> mbarrier:
        """Returns the mbarrier at shared address ``base + offset``; None is the start of the kernel's shared memory."""
        barrier = cls.__new__(cls)
        barrier._set(base, offset, count, name, parity)
        return barrier

    @property
    def operand(self) -> nodes.Address:
        """The address operand ``[base + offset]``."""
        return addr(current().smem_at(0) if self.base is None else self.base, self.offset)

    @property
    def address(self) -> Expr:
        """The shared-space address, u32."""
        if self.base is None:
            return current().smem_at(self.offset)
        return self.base + self.offset if self.offset else self.base

    def at(self, rank: Value) -> RemoteBarrier:
        """Returns the mbarrier at the same offset in CTA ``rank`` of the cluster.

        Issued by each thread for itself.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.9.23 (mapa.shared::cluster.u32).
        """
        base = current().smem_at(0) if self.base is None else self.base
        remote = current().pure("mapa.shared::cluster.u32", u32, base, operand(rank, u32))
        return RemoteBarrier(remote, self.offset, self.name)

    def init(self) -> None:
        """Initialise the mbarrier to phase 0; ``fence.mbarrier_init()`` and a barrier must follow before any use.

        Issued by one thread.
        Completes by itself.
        Targets: sm_80 and later.
        PTX ISA 9.1 section 9.7.13.15.9 (mbarrier.init).
        """
        current().emit("mbarrier.init.shared::cta.b64", self.operand, self.count)

    def inval(self) -> None:
        """Invalidate the mbarrier, so that its 8 bytes are ordinary memory again.

        Issued by one thread, after the last wait and the last arrival.
        Completes by itself.
        Targets: sm_80 and later.
        PTX ISA 9.1 section 9.7.13.15.10 (mbarrier.inval).
        """
        current().emit("mbarrier.inval.shared::cta.b64", self.operand)

    def arrive(self, count: Value = 1) -> None:
        """Arrive ``count`` times (release, CTA scope).

        Issued by each arriving thread.
        Completes by itself.
        Targets: sm_80 and later.
        PTX ISA 9.1 section 9.7.13.15.13 (mbarrier.arrive).
        """
        current().emit("mbarrier.arrive.shared::cta.b64", "_", self.operand, *_count(count))

    def arrive_expect_tx(self, nbytes: Value) -> None:
        """Expect ``nbytes`` more bytes in this phase, then arrive once.

        Issued by one thread, before or after the copies start.
        Completes by itself; the phase by the arrivals and the bytes.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.13 (mbarrier.arrive.expect_tx).
        """
        current().emit("mbarrier.arrive.expect_tx.shared::cta.b64", "_", self.operand, operand(nbytes, u32))

    def expect_tx(self, nbytes: Value) -> None:
        """Expect ``nbytes`` more bytes in this phase without arriving; this alone never completes a phase.

        Issued by one thread that arrives later.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.11 (mbarrier.expect_tx).
        """
        current().emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", self.operand, operand(nbytes, u32))

    def test_wait(self, parity: Value | None = None, *, scope: WaitScope = "cta") -> Expr:
        """Returns a pred, whether the phase of ``parity`` is complete; does not wait.

        Issued by each thread for itself.
        Completes by itself.
        Targets: sm_80 and later.
        PTX ISA 9.1 section 9.7.13.15.16 (mbarrier.test_wait.parity).
        """
        return current().result(_wait_opcode("test_wait", scope), pred, *self._wait_operands("test_wait", parity))

    def try_wait(self, parity: Value | None = None, *, scope: WaitScope = "cta") -> Expr:
        """Returns a pred, whether the phase of ``parity`` is complete, after a wait of at most a hardware time limit.

        Issued by each thread for itself.
        Completes by the phase, or by the time limit.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.16 (mbarrier.try_wait.parity).
        """
        return current().result(_wait_opcode("try_wait", scope), pred, *self._wait_operands("try_wait", parity))

    def wait(self, parity: Value | None = None, *, scope: WaitScope = "cta") -> None:
        """Wait until the phase of ``parity`` is complete: a labelled loop of `try_wait`.

        The default ``scope="cta"`` is enough for bytes that TMA delivered and for results of a committed tensor-core
        operation. ``scope="cluster"`` is for data that threads of another CTA wrote with ordinary stores before they
        arrived; on the GPU it invalidates the L1 cache each time.

        Issued by each thread that needs the phase.
        Completes by the last arrival and the last byte.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.16 (mbarrier.try_wait.parity).
        """
        trace = current()
        label, polled = trace.label(f"wait_{self.name}"), self._wait_operands("wait", parity)
        trace.place(label)
        done = trace.result(_wait_opcode("try_wait", scope), pred, *polled)
        trace.emit("bra", label, guard=~done)

    def _wait_operands(self, name: str, parity: Value | None) -> tuple[nodes.Address, Expr | nodes.Imm]:
        """Returns the operands of a wait: address and parity."""
        parity = self.parity if parity is None else parity
        if parity is None:
            raise misuse(f"given {self.name}.{name}() without a phase; expected a parity, 0 or 1")
        return self.operand, operand(parity, u32)


class RemoteBarrier:
    """An mbarrier of another CTA of the cluster, for `arrive` and `expect_tx` only."""

    __slots__ = ("base", "name", "offset")

    def __init__(self, base: Expr, offset: int, name: str) -> None:
        self.base, self.offset, self.name = base, offset, name

    @property
    def operand(self) -> nodes.Address:
        """The address operand ``[base + offset]``."""
        return addr(self.base, self.offset)

    @property
    def address(self) -> Expr:
        """The shared::cluster address, u32."""
        return self.base + self.offset if self.offset else self.base

    def arrive(self, count: Value = 1, *, scope: WaitScope = "cluster") -> None:
        """Arrive ``count`` times at the other CTA's mbarrier, a release at ``scope``.

        ``scope="cta"`` is enough if the tensor core or TMA has read the memory that TMA overwrites next, and the
        arrival publishes no ordinary access. On Hopper a release to the cluster waits until the whole GPU sees this
        thread's writes.

        Issued by each arriving thread.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.13 (mbarrier.arrive.release.cluster).
        """
        order = ".release.cluster" if scope == "cluster" else ""
        current().emit(f"mbarrier.arrive{order}.shared::cluster.b64", "_", self.operand, *_count(count))

    def arrive_expect_tx(self, nbytes: Value) -> None:
        """Expect ``nbytes`` more bytes at the other CTA's mbarrier, then arrive there once.

        Issued by one thread.
        Completes by itself; the phase by the arrivals and the bytes.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.13 (mbarrier.arrive.expect_tx.release.cluster).
        """
        opcode = "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64"
        current().emit(opcode, "_", self.operand, operand(nbytes, u32))

    def expect_tx(self, nbytes: Value) -> None:
        """Expect ``nbytes`` more bytes at the other CTA's mbarrier without arriving.

        Issued by one thread that arrives later.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.11 (mbarrier.expect_tx.relaxed.cluster).
        """
        current().emit("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64", self.operand, operand(nbytes, u32))


def _wait_opcode(name: str, scope: WaitScope) -> str:
    order = "" if scope == "cta" else f".acquire.{scope}"
    return f"mbarrier.{name}.parity{order}.shared::cta.b64"


def _count(count: Value) -> tuple[Expr | nodes.Imm, ...]:
    if isinstance(count, Expr):
        return (operand(count, u32),)
    if not 1 <= count <= MAX_COUNT:
        raise misuse(f"given {count} arrivals; expected 1 to {MAX_COUNT}")
    return () if count == 1 else (operand(count, u32),)
