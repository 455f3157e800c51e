"""The PTX in a fatbin: the container of nvcc's output for several targets.

NVIDIA does not document the container. Source: fatbins of nvcc 13.0 and 12.9 and their text by ``cuobjdump``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from warpwright.errors import UsageError
from warpwright.targets import runs

__all__ = ["ptx_for", "texts"]

MAGIC = 0xBA55ED50
ELF = 0x464C457F  # machine code begins so
PTX = 1  # the kind of an entry
LZ4, ZSTD = 1 << 13, 1 << 15  # flags of a compressed entry


def texts(fatbin: bytes) -> Iterator[str]:
    """Yields the PTX texts of a fatbin, or the bytes if they are a text. Raises UsageError for other bytes, or for a
    compressed text without the package that decompresses it."""
    magic, _, at, nbytes = struct.unpack_from("<IHHQ", fatbin.ljust(16, b"\0"))
    if magic != MAGIC and b".version" in fatbin:
        yield fatbin.rstrip(b"\0").decode()
        return
    if magic == ELF:
        raise UsageError(
            "given machine code without PTX; expected PTX, or a fatbin with PTX: compile the kernels for compute_90a "
            "in place of sm_90a, for example, or call virtual() before NVRTC is loaded"
        )
    if magic != MAGIC:
        raise UsageError(f"given kernels that begin with {magic:#x}; expected PTX, or a fatbin, {MAGIC:#x}")
    end = at + nbytes
    while at < end:
        kind, _, head, size = struct.unpack_from("<HHIQ", fatbin, at)
        if kind == PTX:
            (packed,) = struct.unpack_from("<I", fatbin, at + 16)
            flags, _, whole = struct.unpack_from("<QQQ", fatbin, at + 40)
            data = fatbin[at + head : at + head + (packed or size)]
            yield _unpack(data, flags, whole).rstrip(b"\0").decode()
        at += head + size


def _unpack(data: bytes, flags: int, nbytes: int) -> bytes:
    if flags & ZSTD:
        return bytes(_package("zstandard").ZstdDecompressor().decompress(data, max_output_size=nbytes))
    if flags & LZ4:
        return bytes(_package("lz4.block").decompress(data, uncompressed_size=nbytes))
    return data


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(
            f"the program's PTX is compressed, and the package {name.partition('.')[0]} is not installed; pip install "
            "'warpwright[programs]', or compile the program with nvcc --compress-mode=none"
        ) from None


def ptx_for(fatbin: bytes, arch: str) -> str:
    """Returns the PTX of a fatbin that fits a target best: its own, its family's, or the newest plain one before it.

    Raises UsageError if there is none.
    """
    found = {_target(text): text for text in texts(fatbin)}
    fitting = [name for name in found if runs(name, arch)]
    if fitting:
        return found[max(fitting, key=lambda name: (name == arch, name.endswith("f"), int(name[3:].rstrip("af"))))]
    given = f"PTX for {', '.join(found)}" if found else "machine code only, without PTX"
    raise UsageError(
        f"given a program with {given}; expected PTX for {arch}: compile it with nvcc -arch={arch} -cudart shared, or "
        "name another --device"
    )


def _target(text: str) -> str:
    found = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    return found[1] if found else ""
