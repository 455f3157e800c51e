"""Traits of an instruction beside its syntax: the words in brackets after its meaning in the tables of forms.

A queue is the unit that performs an instruction, or with which the instruction synchronises:

``tensor``     the fifth-generation tensor core: tcgen05.mma, cp, shift, commit and fence
``tmem``       tensor-memory accesses of warps: tcgen05.ld, st and wait
``copy``       bulk copies and reductions, their groups, st.async, red.async, cluster launch control
``lane-copy``  cp.async, its groups and its arrival at an mbarrier
``wgmma``      the tensor core of a warpgroup
``mbarrier``   mbarriers in shared memory
``barrier``    named barriers of a CTA and the barrier of a cluster
``warp``       exchange between the lanes of a warp
``grid``       dependent grids
``service``    performed by the virtual GPU while lanes wait: allocation, tensor maps, registers, system calls

The other words: ``blocks`` (the issuing thread may wait), ``async`` and ``tensormap`` (the proxy of its accesses, PTX
ISA 9.1 section 8.6), ``read``, ``write`` and ``update`` (the thread's own access to memory), ``jumps`` (the
instruction may branch), ``edits-maps`` (writes a tensor map in memory), ``cancels-clusters`` (may cancel the start of
a cluster of the grid), ``allocates`` (allocates or frees columns of tensor memory) and ``relinquishes`` (gives the
right to allocate them to other CTAs).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QUEUES", "Traits", "traits_of"]

QUEUES = ("tensor", "tmem", "copy", "lane-copy", "wgmma", "mbarrier", "barrier", "warp", "grid", "service")
_PROXIES = ("async", "tensormap")
_ACCESSES = ("read", "write", "update")
_EFFECTS = ("edits-maps", "cancels-clusters", "allocates", "relinquishes")


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of a form; ``queue``, ``access`` and ``effect`` are "" for a form without one."""

    queue: str = ""
    blocks: bool = False
    proxy: str = "generic"
    access: str = ""
    jumps: bool = False
    effect: str = ""


def traits_of(text: str) -> Traits:
    """Parse the traits in ``text``, in any order."""
    words = text.split()
    unknown = set(words) - {*QUEUES, *_PROXIES, *_ACCESSES, *_EFFECTS, "blocks", "jumps"}
    assert not unknown, f"{sorted(unknown)} are not traits"
    queue, proxy, access, effect = (
        next((word for word in words if word in known), default)
        for known, default in ((QUEUES, ""), (_PROXIES, "generic"), (_ACCESSES, ""), (_EFFECTS, ""))
    )
    return Traits(queue, "blocks" in words, proxy, access, "jumps" in words, effect)
