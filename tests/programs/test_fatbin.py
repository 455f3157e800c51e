"""The PTX of fatbins: plain, compressed by zstd and by LZ4, of several targets."""

from __future__ import annotations

import struct
import sys

import pytest

from warpwright.errors import UsageError
from warpwright.programs import fatbin

CUBIN, PTX = 2, 1


def text(target: str) -> str:
    return f".version 8.6\n.target {target}\n.address_size 64\n"


def entry(kind: int, data: bytes, flags: int = 0, whole: int = 0) -> bytes:
    """Returns an entry as nvcc 13.0 writes it: 64 bytes and more of header, data padded to 8 bytes."""
    padded = data + b"\0" * (-len(data) % 8)
    head = struct.pack("<HHIQ4IQ", kind, 0x101, 80, len(padded), len(data) if whole else 0, 64, 9 << 16, 90, 0)
    return (head + struct.pack("<QQQ", flags, 0, whole)).ljust(80, b"\0") + padded


def wrap(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def test_the_text_of_the_target_itself_is_preferred() -> None:
    given = wrap(*(entry(PTX, text(name).encode()) for name in ("sm_80", "sm_90a", "sm_90")), entry(CUBIN, b"\x7fELF"))
    assert fatbin.ptx_for(given, "sm_90a") == text("sm_90a")
    assert fatbin.ptx_for(given, "sm_100a") == text("sm_90")
    assert fatbin.ptx_for(wrap(entry(PTX, text("sm_100f").encode())), "sm_100a") == text("sm_100f")


def test_compressed_texts() -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is an extra: pip install 'warpwright[programs]'")
    lz4 = pytest.importorskip("lz4.block", reason="lz4 is an extra: pip install 'warpwright[programs]'")
    data = text("sm_90a").encode() * 20
    packed = zstandard.ZstdCompressor().compress(data), lz4.compress(data, store_size=False)
    for content, flag in zip(packed, (fatbin.ZSTD, fatbin.LZ4), strict=True):
        assert list(fatbin.texts(wrap(entry(PTX, content, flag, len(data))))) == [data.decode()]


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UsageError) as caught:
        list(fatbin.texts(wrap(entry(PTX, b"1234", fatbin.ZSTD, 100))))
    assert str(caught.value) == (
        "the program's PTX is compressed, and the package zstandard is not installed; pip install "
        "'warpwright[programs]', or compile the program with nvcc --compress-mode=none"
    )


def test_no_text_that_runs() -> None:
    with pytest.raises(UsageError) as caught:
        fatbin.ptx_for(wrap(entry(CUBIN, b"\x7fELF")), "sm_90a")
    assert str(caught.value) == (
        "given a program with machine code only, without PTX; expected PTX for sm_90a: compile it with nvcc "
        "-arch=sm_90a -cudart shared, or name another --device"
    )
    with pytest.raises(UsageError) as caught:
        list(fatbin.texts(b"\x7fELF"))
    assert str(caught.value) == (
        "given machine code without PTX; expected PTX, or a fatbin with PTX: compile the kernels for compute_90a in "
        "place of sm_90a, for example, or call virtual() before NVRTC is loaded"
    )
    with pytest.raises(UsageError) as caught:
        list(fatbin.texts(b"BC\xc0\xde"))
    assert str(caught.value) == "given kernels that begin with 0xdec04342; expected PTX, or a fatbin, 0xba55ed50"


def test_a_text_alone() -> None:
    assert list(fatbin.texts(text("sm_90a").encode() + b"\0")) == [text("sm_90a")]
