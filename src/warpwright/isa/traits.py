"""What an instruction is, apart from its syntax: the words in brackets behind its meaning in the tables of forms.

A queue is the unit that performs an instruction, or that the instruction synchronises with:

``tensor``     the fifth-generation tensor core: tcgen05.mma, cp, shift, commit and fence
``tmem``       tensor memory as warps access it: tcgen05.ld, st and wait
``copy``       bulk copies and reductions, their groups, st.async, red.async, cluster launch control
``lane-copy``  cp.async, its groups and its arrival at an mbarrier
``wgmma``      the tensor core of a warpgroup
``mbarrier``   mbarriers in shared memory
``barrier``    named barriers of a CTA and the barrier of a cluster
``warp``       exchange between the lanes of a warp
``grid``       dependent grids
``service``    what the virtual GPU does while lanes wait: allocation, tensor maps, registers, system calls

The other words: ``blocks`` (the issuing thread may wait), ``async`` and ``tensormap`` (the proxy of its accesses, PTX
ISA 9.1 section 8.6), ``read``, ``write`` and ``update`` (how the thread itself accesses memory), ``jumps`` (the next
instruction may be another one than the following), ``edits-maps`` (writes a tensor map in memory) and
``cancels-clusters`` (may cancel the start of a cluster of the grid).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QUEUES", "Traits", "traits_of"]

QUEUES = ("tensor", "tmem", "copy", "lane-copy", "wgmma", "mbarrier", "barrier", "warp", "grid", "service")
_PROXIES = ("async", "tensormap")
_ACCESSES = ("read", "write", "update")
_EFFECTS = ("edits-maps", "cancels-clusters")


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of a form; ``queue``, ``access`` and ``effect`` are "" where it has none."""

    queue: str = ""
    blocks: bool = False
    proxy: str = "generic"
    access: str = ""
    jumps: bool = False
    effect: str = ""


def traits_of(text: str) -> Traits:
    """The traits that the words of ``text`` name, in any order."""
    words = text.split()
    unknown = set(words) - {*QUEUES, *_PROXIES, *_ACCESSES, *_EFFECTS, "blocks", "jumps"}
    assert not unknown, f"{sorted(unknown)} are no traits"
    queue, proxy, access, effect = (
        next((word for word in words if word in known), default)
        for known, default in ((QUEUES, ""), (_PROXIES, "generic"), (_ACCESSES, ""), (_EFFECTS, ""))
    )
    return Traits(queue, "blocks" in words, proxy, access, "jumps" in words, effect)
