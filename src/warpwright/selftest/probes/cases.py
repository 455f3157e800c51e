"""A case of a probe, and the general kernel of most probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Case", "everything", "numbered", "sums", "threads_case", "threads_text"]

Array = NDArray[Any]

Dims = int | tuple[int, ...]


def everything(answer: Array) -> Array:
    return answer


@dataclass(frozen=True)
class Case:
    """One launch; the grid is one cluster unless given. ``keep``: what of ``answer`` is stored; with ``refused`` it is
    only whether the launch faults."""

    name: str
    text: str
    args: list[Any]
    answer: Array
    smem: int = 0
    block: Dims = 128
    cluster: Dims = 1
    keep: Callable[[Array], Array] = everything
    grid: Dims = 0
    refused: bool = False


def numbered(shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns an array of distinct numbers other than 0."""
    return (np.arange(np.prod(shape)) % 60000 + 1).astype(dtype).reshape(shape)


def sums(answer: Array) -> Array:
    """Returns a checksum of each row, for answers that are too large to store."""
    return np.array([crc32(np.ascontiguousarray(row).tobytes()) for row in answer], np.uint32)


_PREFACE = """.version {version}
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 arena[];
.visible .entry threads(.param .u64 given, .param .u64 out, .param .u64 after, .param .u32 total)
{demands}{{
    .reg .b32 %i<{inputs}>, %o<{outputs}>, %base, %t, %cta, %threads, %total, %at, %word, %n, %m;
    .reg .b64 %given, %out, %memory, %place, %wide;
    .reg .pred %more, %first;
    ld.param.u64 %given, [given];
    ld.param.u64 %out, [out];
    ld.param.u64 %wide, [after];
    add.u64 %memory, {holder}, %wide;
    ld.param.u32 %total, [total];
    mov.u32 %base, arena;
    mov.u32 %t, %tid.x;
    mov.u32 %threads, %ntid.x;
    setp.eq.u32 %first, %t, 0;
    mov.u32 %n, %ctaid.z;
    mov.u32 %m, %nctaid.y;
    mov.u32 %cta, %ctaid.y;
    mad.lo.u32 %cta, %n, %m, %cta;
    mov.u32 %m, %nctaid.x;
    mov.u32 %n, %ctaid.x;
    mad.lo.u32 %cta, %cta, %m, %n;
    mad.lo.u32 %n, %cta, %threads, %t;
    mad.wide.u32 %given, %n, {given_bytes}, %given;
    mad.wide.u32 %out, %n, {out_bytes}, %out;
    mul.wide.u32 %wide, %cta, %total;
    add.u64 %memory, %memory, %wide;
"""

_WORDS = """
    shl.b32 %at, %t, 2;
{label}:
    setp.lt.u32 %more, %at, %total;
    @!%more bra {label}_END;
    cvt.u64.u32 %wide, %at;
    add.u64 %place, %memory, %wide;
    add.u32 %n, %base, %at;
    {move}
    shl.b32 %word, %threads, 2;
    add.u32 %at, %at, %word;
    bra {label};
{label}_END:
"""
_TAKE = _WORDS.format(label="TAKE", move="ld.global.u32 %word, [%place];\n    st.shared.u32 [%n], %word;")
_DUMP = _WORDS.format(label="DUMP", move="ld.shared.u32 %word, [%n];\n    st.global.u32 [%place], %word;")
_MEET = "    barrier.cluster.arrive;\n    barrier.cluster.wait;\n"


def threads_text(
    body: str, inputs: int, outputs: int, *, dump: bool = False, demands: str = "", version: str = "8.7"
) -> str:
    """Each thread runs ``body`` with ``inputs`` words in %i0, %i1, …, and its words %o0, %o1, … are stored.

    Shared memory from %base on holds the CTA's ``total`` bytes of ``memory``; with ``dump`` they go back at the end.
    """
    text = _PREFACE.format(
        version=version,
        demands=demands,
        holder="%out" if dump else "%given",
        inputs=max(inputs, 1),
        outputs=max(outputs, 1),
        given_bytes=4 * inputs,
        out_bytes=4 * outputs,
    )
    text += "".join(f"    ld.global.b32 %i{n}, [%given+{4 * n}];\n" for n in range(inputs))
    text += "".join(f"    mov.b32 %o{n}, 0xEEEEEEEE;\n" for n in range(outputs))
    text += f"{_TAKE}    fence.proxy.async;\n    bar.sync 0;\n{_MEET}{{\n{body}}}\n{_MEET}"
    text += "".join(f"    st.global.b32 [%out+{4 * n}], %o{n};\n" for n in range(outputs))
    return text + (_DUMP if dump else "") + "    ret;\n}\n"


def threads_case(
    name: str,
    body: str,
    given: Array | None = None,
    outputs: int = 0,
    memory: Array | None = None,
    *,
    dump: bool = False,
    block: int = 32,
    cluster: Dims = 1,
    grid: Dims = 0,
    keep: Callable[[Array], Array] = everything,
    **text: Any,
) -> Case:
    """``given``: words of each thread, (threads in all, words); ``memory``: bytes of the CTAs one after the other.

    The answer is the words of each thread, or with ``dump`` these and then the CTAs' shared memory.
    """
    ctas = int(np.prod(grid or cluster))
    words = np.zeros(0, np.uint32) if given is None else np.ascontiguousarray(given).view(np.uint32).reshape(-1)
    image = np.zeros(0, np.uint32) if memory is None else np.ascontiguousarray(memory).view(np.uint32).reshape(-1)
    answer = np.zeros(ctas * block * outputs, np.uint32)
    before = answer if dump else words
    after = np.concatenate([before, image]) if image.size + before.size else np.zeros(1, np.uint32)
    held = (words, after) if dump else (after, answer)
    total = 4 * image.size // ctas
    demands = str(text.pop("demands", "")) + (".explicitcluster\n" if np.prod(cluster) > 1 else "")
    kernel = threads_text(body, words.size // (ctas * block), outputs, dump=dump, demands=demands, **text)
    source, stored = (array if array.size else np.zeros(1, np.uint32) for array in held)
    args = [source, stored, 4 * before.size, total]
    result = stored if dump else stored.reshape(ctas * block, -1)
    return Case(name, kernel, args, result, 1024 + total, block, cluster, keep, grid)
