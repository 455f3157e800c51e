"""Helpers of the language tests: the instructions of a kernel, and the error that tracing it raises."""

from __future__ import annotations

import linecache
import re
import sys

import pytest

from warpwright.errors import KernelError
from warpwright.lang import Kernel
from warpwright.ptx.ptxas import assemble

PLACE = re.compile(r"/[^:()]*\.py:\d+")


def code(kernel: Kernel, arch: str | None = None, **config: object) -> list[str]:
    """Returns labels and instructions without declarations, prologue, ``.loc`` and ``ret``; ptxas must accept them."""
    traced = kernel.trace(arch, **config)
    assembly = assemble(traced.ptx, traced.arch)
    assert assembly.ok, f"{assembly.log}\n{traced.ptx}"
    body = traced.ptx.partition("\n{\n")[2].rpartition("}")[0].splitlines()
    lines = [line.strip().rstrip(";") for line in body]
    return [line for line in lines if line != "ret" and not line.startswith((".reg", ".loc", "ld.param"))]


def misuse(kernel: Kernel, arch: str | None = None, **config: object) -> str:
    """Returns the error of tracing ``kernel``, source lines as ``FILE``; it points at the line marked ``# wrong``."""
    with pytest.raises(KernelError) as caught:
        kernel.trace(arch, **config)
    return sentence(caught.value)


def sentence(error: KernelError) -> str:
    """Returns the message without its source line, after a check that this line is marked ``# wrong``."""
    path, _, line = error.where.rpartition(":")
    source = linecache.getline(path, int(line))
    if sys.version_info < (3, 11) and source.lstrip().startswith("def "):  # there a decorator's call has the line below
        source = linecache.getline(path, int(line) - 1)
    assert "# wrong" in source, f"the error points at {error.where}: {source}{error}"
    return PLACE.sub("FILE", str(error).removeprefix(f"{error.where}: "))
