"""Machine code of lane code on disk: a later process loads it, and does not compile it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from warpwright import folders, ptx
from warpwright.kernels.memory_flow import memory_flow
from warpwright.vgpu.jit import runtime
from warpwright.vgpu.jit.compile import emit
from warpwright.vgpu.program.decode import decode

TEXT = "define i32 @kernel() {\nret i32 %d\n}\n"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Returns a list with an item for each compilation; the cache is empty."""
    monkeypatch.setenv("WARPWRIGHT_CACHE", str(tmp_path))
    calls: list[int] = []
    emit = llvm.TargetMachine.emit_object
    monkeypatch.setattr(llvm.TargetMachine, "emit_object", lambda self, code: calls.append(1) or emit(self, code))
    return calls


def load(number: int) -> int:
    return runtime.Engine(TEXT % number, 0).address("kernel")


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "lanes").glob("*"))


def test_equal_text_is_compiled_once(compiled: list[int], tmp_path: Path) -> None:
    assert load(1) and load(1)
    assert len(compiled) == len(entries(tmp_path)) == 1
    assert load(2)
    assert len(compiled) == len(entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 4096])
def test_a_damaged_entry_is_replaced(compiled: list[int], tmp_path: Path, damage: bytes) -> None:
    load(4)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    for text in (damage, whole[:-1], whole[:-1] + b"\xff\xff"):
        entry.write_bytes(text)
        assert load(4) and entry.read_bytes() == whole
    assert len(compiled) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="the rights of a folder are POSIX's")
def test_a_folder_that_others_may_write_is_not_used(compiled: list[int], tmp_path: Path) -> None:
    load(5)
    (tmp_path / "lanes").chmod(0o777)
    assert load(5) and load(6)
    assert len(compiled) == 3 and len(entries(tmp_path)) == 1


def test_a_cache_that_cannot_be_written_is_not_needed(compiled: list[int], tmp_path: Path) -> None:
    (tmp_path / "lanes").write_text("a file in place of the folder")
    assert load(7) and load(7)
    assert len(compiled) == 2


def test_the_text_of_a_kernel_has_no_addresses_of_the_process() -> None:
    program = decode(ptx.parse(memory_flow.trace().ptx), "memory_flow")
    for watched in (False, True):
        first, second = (emit(program, watched, None, watched)[0] for _ in range(2))
        assert first == second and "inttoptr (i64" not in first


def test_the_oldest_entries_go(tmp_path: Path) -> None:
    for age in range(4):
        entry = tmp_path / str(age)
        entry.write_bytes(b"x" * 100)
        os.utime(entry, (1000 - age, 1000 - age))
    folders.remove_oldest(tmp_path, 250)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1"]


def test_an_entry_that_was_read_is_not_the_oldest(tmp_path: Path) -> None:
    for number in range(2):
        folders.write_code(tmp_path / f"ff{number}", bytes(100))
        os.utime(tmp_path / f"ff{number}", (1000 + number, 1000 + number))
    assert folders.read_code(tmp_path / "ff0") == bytes(100)
    folders.remove_oldest(tmp_path, 100 + folders.DIGEST)
    assert [each.name for each in tmp_path.iterdir()] == ["ff0"]


FIRST_CALLS = """
import threading
from warpwright.vgpu.jit import runtime
from warpwright.vgpu.jit.compile import emit
from warpwright.vgpu.program.decode import decode
start, found = threading.Barrier(8), []
def take():
    start.wait()
    found.append(runtime.runtime())
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(set(map(id, found))))
"""


def test_threads_share_one_runtime() -> None:
    """A second engine would replace the symbols of the first, which lane code is linked to."""
    ran = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"
