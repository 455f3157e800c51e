"""malloc and free of kernels (CUDA C++ Programming Guide, "Dynamic global memory allocation and operations").

The heap is a variable of the module. Its first word is the offset of the block where the next search starts. Blocks lie
one after another: a header of two words, bytes and whether the block is in use, then the bytes. A search starts after
the last block found: freed memory is used again as late as possible, for checks know no order between the threads that
have it one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import MemoryFault
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.memory_map import HEAP

__all__ = ["allocate", "free"]

WORD, HEAD = 8, 2  # bytes of a word; words of a header, and of the head of the heap
BYTES, USED = 0, 1  # words of a header
IN_USE = int.from_bytes(b"malloc", "little")  # a word that programs hardly write by chance

Words = NDArray[np.int64]


def allocate(cluster: ClusterFabric, op: Op, nbytes: int) -> int:
    """Returns the address of new memory, a multiple of 16; 0 if the heap has no room. Raises MemoryFault for a heap
    whose headers a kernel has overwritten."""
    with cluster.launch.memory.lock:
        start, words = _heap(cluster)
        need = -(-max(nbytes, 1) // 16) * 2
        try:
            at = _find(words, need)
        except IndexError:
            text = "the heap of malloc is damaged: a kernel has written outside the memory that malloc gave it."
            raise cluster.failure(MemoryFault, op, text) from None
        if at:
            _take(words, at, need)
        return start + (at + HEAD) * WORD if at else 0


def free(cluster: ClusterFabric, op: Op, address: int) -> None:
    """Free memory. Raises MemoryFault for an address that malloc did not return, or that is free."""
    if not address:
        return
    with cluster.launch.memory.lock:
        start, words = _heap(cluster)
        place, rest = divmod(address - start, WORD)
        at = place - HEAD
        if rest or not HEAD <= at < len(words) or words[at + USED] != IN_USE:
            text = f"free of 0x{address:x}; expected an address that malloc returned and that is not free yet."
            raise cluster.failure(MemoryFault, op, text)
        words[at + USED] = 0


def _heap(cluster: ClusterFabric) -> tuple[int, Words]:
    """The address of the heap, and its words; a new heap is one free block."""
    heap = next(each for each in cluster.launch.kernel.program.variables if each.name == HEAP)
    words: Words = cluster.launch.memory.view(heap.address)[: len(heap.data)].view(np.int64)
    if not words[0]:
        words[0], words[HEAD + BYTES] = HEAD, len(heap.data) - 2 * HEAD * WORD
    return heap.address, words


def _find(words: Words, need: int) -> int:
    """The first free block with ``need`` words, from the end of the last search on, then from the start; else 0."""
    first = int(words[0])
    found = _search(words, first, len(words), need) or _search(words, HEAD, first, need)
    if not found:  # what lies around the end of the last search may be one block
        words[0] = HEAD
        found = _search(words, HEAD, len(words), need)
    return found


def _search(words: Words, at: int, stop: int, need: int) -> int:
    """The first free block with ``need`` words between two places; free blocks are joined on the way."""
    while at < stop:
        after = _end(words, at)
        while not words[at + USED] and after != stop and not words[after + USED]:
            after = _end(words, after)
            words[at + BYTES] = (after - at - HEAD) * WORD
        if not words[at + USED] and after - at - HEAD >= need:
            return at
        at = after
    return 0


def _end(words: Words, at: int) -> int:
    """The place after a block. Raises IndexError if there is no header at its place."""
    if HEAD <= at <= len(words) - HEAD:
        size, used = words[at : at + HEAD].tolist()
        end: int = at + HEAD + size // WORD
        if size > 0 and size % 16 == 0 and end <= len(words) and used in (0, IN_USE):
            return end
    raise IndexError


def _take(words: Words, at: int, need: int) -> None:
    """Use a block. The words that it does not need become a free block, where the next search starts."""
    end, after = _end(words, at), at + HEAD + need
    if end - after > HEAD:
        words[at + BYTES] = need * WORD
        words[after + BYTES], words[after + USED] = (end - after - HEAD) * WORD, 0
        end = after
    words[at + USED], words[0] = IN_USE, end if end < len(words) else HEAD
