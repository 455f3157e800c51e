"""The cache of machine code and the assembler's log, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warpwright import folders
from warpwright.cuda import compile as compiling
from warpwright.cuda.compile import Cubin, Usage, compile_ptx, key, read, write
from warpwright.cuda.function import load_module
from warpwright.errors import UsageError, WarpwrightError
from warpwright.kernels.gemm.sm90 import Config, kernel_of

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compile time = 2.049 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in 'second'
ptxas info    : Function properties for second
ptxas         .     48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers
"""


def test_the_report_of_each_kernel() -> None:
    cubin = Cubin(b"code", LOG)
    assert cubin.usage("first") == Usage(registers=10, stack=0, spill_stores=0, spill_loads=0)
    assert cubin.usage("second") == Usage(registers=168, stack=48, spill_stores=40, spill_loads=44)
    assert cubin.usage("third") is None
    assert Cubin(b"code", "").usage("first") is None
    assert [line[16:24] for line in cubin.warnings] == ["(C7510) "]


def test_whatever_determines_the_machine_code_determines_the_entry() -> None:
    base = ("text", "sm_90a", 13000, "1.2.0")
    others = [("text2", *base[1:]), ("text", "sm_100a", 13000, "1.2.0"), ("text", "sm_90a", 13010, "1.2.0")]
    names = {key(*facts) for facts in [base, *others, (*base[:3], "1.2.1")]}
    assert len(names) == 5
    assert key(*base) == key(*base)


def test_an_entry_comes_back_whole(tmp_path: Path) -> None:
    path, cubin = tmp_path / "new" / "00entry", Cubin(bytes(range(256)) + b"\n{}\n", LOG)
    write(path, cubin)
    assert read(path) == cubin
    assert [child.name for child in path.parent.iterdir()] == ["00entry"]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"[]\n", lambda data: data[3:]]
)
def test_a_damaged_entry_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage) -> None:
    calls = []
    monkeypatch.setattr(compiling, "version", lambda: 13000)
    monkeypatch.setattr(compiling, "assembler", lambda: "one of them")
    monkeypatch.setattr(compiling, "link", lambda *given: calls.append(given) or Cubin(b"machine code", "log"))
    first = compile_ptx("text", "sm_90a", tmp_path)
    assert compile_ptx("text", "sm_90a", tmp_path) == first
    assert calls == [("text", "sm_90a")]
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compile_ptx("text", "sm_90a", tmp_path) == first
    assert len(calls) == 2
    assert read(entry) == first


@pytest.mark.skipif(sys.platform == "win32", reason="the rights of a folder are POSIX's")
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    path, cubin = tmp_path / "00entry", Cubin(b"code", LOG)
    write(path, cubin)
    tmp_path.chmod(0o777)
    assert read(path) is None
    write(tmp_path / "01entry", cubin)
    assert [child.name for child in tmp_path.iterdir()] == ["00entry"]


@pytest.mark.skipif(sys.platform == "win32", reason="the owner of a folder is POSIX's")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00entry"
    write(path, Cubin(b"code", LOG))
    monkeypatch.setattr(folders.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert read(path) is None


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "CODE_BYTES", 10_000)
    for number in range(40):
        write(tmp_path / f"00{number}", Cubin(bytes(1000), ""))
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 10_000


def test_a_cache_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write(tmp_path / "file" / "00entry", Cubin(b"code", ""))
    assert read(tmp_path / "file" / "00entry") is None


KERNEL = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry done()\n{\n    ret;\n}\n"


@pytest.fixture
def with_ptxas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiling, "version", lambda: 13000)
    compiling.assembler.cache_clear()
    yield
    compiling.assembler.cache_clear()


@pytest.mark.usefixtures("with_ptxas")
def test_ptxas_assembles_and_reports() -> None:
    cubin = compiling.link(KERNEL, "sm_90a")
    assert cubin.code.startswith(b"\x7fELF")
    usage = cubin.usage("done")
    assert usage is not None and usage.spill_stores == 0


@pytest.mark.usefixtures("with_ptxas")
def test_registers_move_between_warpgroups() -> None:
    """A linker ignores setmaxnreg (C7504); the largest tiles need it."""
    cubin = compiling.link(kernel_of(Config()).ptx(), "sm_90a")
    assert cubin.warnings == [] and "C7504" not in cubin.log


@pytest.mark.usefixtures("with_ptxas")
def test_a_refusal_carries_the_log_of_ptxas() -> None:
    with pytest.raises(UsageError) as caught:
        compiling.link(KERNEL.replace("ret;", "add.u32 %r1, 1, 2;"), "sm_90a")
    assert str(caught.value).startswith("ptxas refuses this PTX for sm_90a: ptxas kernel.ptx, line 6; error")
    assert "%r1" in str(caught.value)


@pytest.mark.usefixtures("with_ptxas")
@pytest.mark.parametrize("without", ["a ptxas", "one of the driver's release"])
def test_else_the_driver_assembles(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if without == "a ptxas":
        monkeypatch.setattr(compiling, "find_ptxas", lambda: None)
    else:
        monkeypatch.setattr(compiling, "version", lambda: 12090)
    assert compiling.link(KERNEL, "sm_90a") == Cubin(KERNEL.encode() + b"\0", "")


@pytest.mark.parametrize("words", ["ptxas application ptx input, line 6; error : Unknown symbol '%r1'", ""])
def test_what_the_driver_refuses(words: str) -> None:
    class Bindings:
        CUjit_option = SimpleNamespace(CU_JIT_ERROR_LOG_BUFFER=5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES=6)

        def cuModuleLoadDataEx(self, code: bytes, count: int, options: list[int], values: list[Any]) -> tuple[Any]:
            assert (code, count, options, len(values[0])) == (b"text", 2, [5, 6], values[1])
            values[0][: len(words)] = words.encode()
            return (SimpleNamespace(value=218, name="CUDA_ERROR_INVALID_PTX"),)

    with pytest.raises(WarpwrightError) as caught:
        load_module(Bindings(), b"text", "bad")
    expected = f"the driver refuses the PTX of 'bad': {words}" if words else "loading 'bad': "
    assert str(caught.value).startswith(expected)
