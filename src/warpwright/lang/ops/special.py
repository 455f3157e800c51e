"""Special registers by their PTX names: ``tid.x``, ``ctaid.y``, ``clock64()`` (PTX ISA 9.1 section 10).

The kernel's directives fix ``ntid`` and ``cluster_nctaid``, so these are Python ints and fold into constants.
"""

from __future__ import annotations

from warpwright.lang.expr import Expr
from warpwright.lang.trace import current
from warpwright.types import Scalar, u32, u64

__all__ = [
    "Dimensions", "FixedDimensions", "clock64", "cluster_ctaid", "cluster_nctaid", "clusterid", "ctaid", "globaltimer",
    "lanemask_lt", "nclusterid", "nctaid", "ntid", "read", "smid", "tid",
]  # fmt: skip


def read(name: str, type: type[Scalar] = u32) -> Expr:
    """Returns the special register ``%name``, which is constant for a thread."""
    return current().pure(f"mov.{type.name}", type, f"%{name}")


class Dimensions:
    """A special register with components ``x``, ``y`` and ``z`` (u32)."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    @property
    def x(self) -> Expr:
        return read(f"{self.namespace}.x")

    @property
    def y(self) -> Expr:
        return read(f"{self.namespace}.y")

    @property
    def z(self) -> Expr:
        return read(f"{self.namespace}.z")


class FixedDimensions:
    """Dimensions that the kernel's directives fix, as Python ints; ``field`` is their name in the trace."""

    def __init__(self, namespace: str, field: str) -> None:
        self.namespace, self.field = namespace, field

    def _dimension(self, axis: int) -> int:
        values: tuple[int, int, int] = getattr(current(), self.field)
        return values[axis]

    @property
    def x(self) -> int:
        return self._dimension(0)

    @property
    def y(self) -> int:
        return self._dimension(1)

    @property
    def z(self) -> int:
        return self._dimension(2)


tid = Dimensions("tid")
ctaid = Dimensions("ctaid")
nctaid = Dimensions("nctaid")
clusterid = Dimensions("clusterid")
nclusterid = Dimensions("nclusterid")
cluster_ctaid = Dimensions("cluster_ctaid")
ntid = FixedDimensions("ntid", "threads")
cluster_nctaid = FixedDimensions("cluster_nctaid", "cluster")


def smid() -> Expr:
    """Returns the SM that runs this CTA (u32).

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 10.11 (mov).
    """
    return read("smid")


def lanemask_lt() -> Expr:
    """Returns the mask (u32) of the lanes below this one.

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 10.16 (mov).
    """
    return read("lanemask_lt")


def clock64() -> Expr:
    """Returns the SM's cycle counter (u64); each call reads it again.

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 10.24 (mov).
    """
    return current().result("mov.u64", u64, "%clock64")


def globaltimer() -> Expr:
    """Returns the device's nanosecond timer (u64); each call reads it again.

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 10.27 (mov).
    """
    return current().result("mov.u64", u64, "%globaltimer")
