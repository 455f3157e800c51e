"""The folders of the user's files, and the atomic replacement of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpwright import folders


@pytest.mark.parametrize(
    ("find", "own", "common"),
    [(folders.cache, "WARPWRIGHT_CACHE", "XDG_CACHE_HOME"), (folders.settings, "WARPWRIGHT_CONFIG", "XDG_CONFIG_HOME")],
)
def test_the_folders_of_a_user(monkeypatch: pytest.MonkeyPatch, find, own: str, common: str) -> None:
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setattr(folders.sys, "platform", "linux")
    monkeypatch.setenv(common, "/var/me")
    assert find() == Path("/var/me/warpwright")
    monkeypatch.delenv(common)
    assert find().parts[-2:] in ((".cache", "warpwright"), (".config", "warpwright"))
    monkeypatch.setattr(folders.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert find() == Path("/local/warpwright")
    monkeypatch.setenv(own, "/fast/disk")
    assert find() == Path("/fast/disk")


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    folders.replace_file(path, b"first")
    folders.replace_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_in_its_place_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError):
        folders.replace_file(tmp_path / "file", b"data")
    assert [child.name for child in tmp_path.iterdir()] == ["file"]
