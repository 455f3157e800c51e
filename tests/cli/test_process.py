"""The process of a command: interrupts, full disks, closed pipes, and what a killed process leaves."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.run.test_limit import ATOMIC, HEAD
from warpwright import folders
from warpwright.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and devices are POSIX's")

# a command that has written half of a file when it comes to an endless kernel
WORK = f"""
import numpy as np
from pathlib import Path
from warpwright import folders, launch, load_ptx
from warpwright.cli import process

write_all = Path.write_bytes

def write_half(path, data):
    if path.parent != Path.cwd():  # machine code, for the cache
        return write_all(path, data)
    path.open("wb").write(data[:5])
    print("ready", flush=True)
    launch(load_ptx({HEAD + ATOMIC!r})["endless"], 1, args=[np.zeros(1, np.uint32)], device="h200")

Path.write_bytes = write_half
process.run(lambda: folders.replace_file(Path("result"), b"0123456789"))
"""


def run(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warpwright", *map(str, words)]
    return subprocess.run(command, text=True, check=False, stderr=subprocess.PIPE, **how)


def stop_work(folder: Path, number: int) -> tuple[int, str, float]:
    """Send a signal to a command amid its work; returns its status, the end of its messages, and seconds."""
    pipe: Any = subprocess.PIPE
    (folder / "result").write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-c", WORK], cwd=folder, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed_sigint
    ) as process:
        assert process.stdout and process.stderr and process.stdout.readline() == "ready\n"
        time.sleep(0.5)  # into native code
        start = time.perf_counter()
        process.send_signal(number)
        try:
            status = process.wait(60)
        finally:
            process.kill()
        return status, process.stderr.read(), time.perf_counter() - start


def _heed_sigint() -> None:
    """A shell's background job, which may run these tests, ignores SIGINT, and so do the processes it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_and_leaves_no_half_file(tmp_path: Path, number: signal.Signals, status: int) -> None:
    found, text, seconds = stop_work(tmp_path, number)
    assert (found, text) == (status, f"warpwright: stopped by {number.name}\n")
    assert seconds < 1
    assert [child.name for child in tmp_path.iterdir()] == ["result"]
    assert (tmp_path / "result").read_bytes() == b"old"


def test_the_next_run_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    assert stop_work(tmp_path, signal.SIGKILL)[:2] == (-signal.SIGKILL, "")
    (left,) = {child.name for child in tmp_path.iterdir()} - {"result"}
    own = tmp_path / f"{folders.PART}{os.getpid()}-7"
    own.touch()  # of a process that runs
    folders.replace_file(tmp_path / "another", b"new")
    assert {child.name for child in tmp_path.iterdir()} == {"result", "another", own.name}
    assert left.startswith(".warpwright-part-") and (tmp_path / "result").read_bytes() == b"old"


def test_a_crash_is_no_finding() -> None:
    code = "from warpwright.cli import process\nprocess.run(lambda: 1 / 0)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 3 and ran.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("words", [["devices"], ["devices", "--json"], ["--help"]])
def test_a_full_disk_and_a_closed_pipe_are_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ran = run(*words, stdout=full)
    assert (ran.returncode, ran.stderr) == (
        3,
        "warpwright: error: cannot write the output: No space left on device\n",
    )
    reader, writer = os.pipe()
    os.close(reader)
    ran = run(*words, stdout=writer)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (3, "warpwright: error: cannot write the output: Broken pipe\n")


def test_a_file_that_cannot_be_written_leaves_the_old_one_whole(tmp_path: Path) -> None:
    a, old = tmp_path / "a.npy", tmp_path / "old.npy"
    np.save(a, np.ones((64, 64), np.float16))
    old.write_bytes(b"old")
    limit = 4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    ran = run(
        "matmul", a, a, "-o", old, cwd=tmp_path, stdout=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (
        2,
        f"warpwright: error: cannot write {old}: File too large; name another file\n",
    )
    assert old.read_bytes() == b"old" and {child.name for child in tmp_path.iterdir()} == {"a.npy", "old.npy"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/file", "No such file or directory; name a file in a folder that exists"),
        (".", "Is a directory; name another file"),
        ("closed/file", "Permission denied; name another file"),
    ],
)
def test_an_output_is_tried_before_the_work(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("closed").mkdir()
    if name.startswith("closed"):
        (tmp_path / name).touch()
        monkeypatch.setattr(folders.os, "access", lambda path, mode: False)  # the user may be root
    path = Path(name)
    for words in (["flow", "--svg"], ["check", "x.toml", "--sarif"], ["profile", "gemm", "--trace"]):
        result = CliRunner().invoke(main, [*words, name])
        message = f"warpwright: error: cannot write {path}: {reason}\n"
        assert (result.exit_code, result.stderr) == (2, message)


def test_a_device_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        folders.try_file(pipe)
        folders.replace_file(pipe, b"data")
        assert reader.stdout and reader.stdout.read() == b"data"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    folders.replace_file(link, b"data")
    assert link.is_symlink() and (tmp_path / "target").read_bytes() == b"data"
