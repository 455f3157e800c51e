"""Trace a few lines as a kernel and return the PTX that they emit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from warpwright.lang import Global, f32, kernel, tma, u32
from warpwright.ptx.ptxas import assemble
from warpwright.types import Scalar


def text(body: Callable[..., None], *, arch: str = "sm_100a", cluster: int = 1, threads: int = 128) -> str:
    """Returns the PTX of a kernel whose body is ``body(a, x, n)``: a tensor map, a pointer to f32, a u32."""

    @kernel(arch, cluster=cluster, threads=threads)
    def snippet(a: tma.Map[Scalar], x: Global[f32], n: u32) -> None:
        body(a, x, n)

    return snippet.ptx()


def emit(body: Callable[..., None], **options: Any) -> list[str]:
    """Returns the instructions and labels of ``body`` without ``ret`` and parameter loads; ptxas must accept them."""
    ptx = text(body, **options)
    assert assemble(ptx, options.get("arch", "sm_100a")).errors == {}
    return instructions(ptx)


def instructions(ptx: str) -> list[str]:
    """Returns the instruction and label lines of the only kernel of ``ptx``, in order."""
    body = ptx[ptx.index("\n{") + 2 : ptx.rindex("}")]
    lines = [line.strip().rstrip(";") for line in body.splitlines() if line.strip()]
    skipped = (".reg", ".loc", "ld.param", "ret")
    return [line for line in lines if not line.startswith(skipped)]


def opcodes(lines: list[str]) -> list[str]:
    """Returns the opcodes of ``lines`` without guards; labels end in a colon."""
    return [re.sub(r"^@!?%\w+ ", "", line).split(" ")[0] for line in lines]
