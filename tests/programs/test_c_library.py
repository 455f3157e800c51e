"""C sources are compiled once, to a folder where no other user may write."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

import pytest

from warpwright.errors import UsageError
from warpwright.programs.c_library import COMPILERS, build

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler is on PATH")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARPWRIGHT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


def test_a_library_is_compiled_once(source: Path) -> None:
    path = build(source, "libanswer.so")
    assert ctypes.CDLL(str(path)).answer() == 42
    before = path.stat().st_mtime_ns
    assert build(source, "libanswer.so") == path and path.stat().st_mtime_ns == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of folders")
def test_a_folder_of_others_is_refused(source: Path) -> None:
    folder = build(source, "libanswer.so").parent
    os.chmod(folder, 0o777)
    with pytest.raises(UsageError) as caught:
        build(source, "libanswer.so")
    assert str(caught.value) == (
        f"answer.c is compiled to {folder}, where another user may write; expected a folder of the user alone: chmod "
        f"go-w {folder}, or set WARPWRIGHT_CACHE to another folder"
    )


def test_the_compiler_refuses_a_source(source: Path) -> None:
    source.write_text("int answer(void) { return }\n")
    with pytest.raises(UsageError) as caught:
        build(source, "libanswer.so")
    assert f"refuses {source}: " in str(caught.value)
    assert str(caught.value).endswith("; set CC to another compiler")
