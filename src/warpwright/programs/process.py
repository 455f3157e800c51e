"""Runs a program of CUDA C++ as a process whose CUDA runtime is `runtime.c`, and answers the calls of that runtime."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warpwright.errors import UsageError
from warpwright.programs.c_library import build
from warpwright.programs.calls import Calls, LaunchLimit
from warpwright.programs.memory import SIZE, START

__all__ = ["compile_source", "driver", "run_program"]

HERE = Path(__file__).parent
RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
HEADER = struct.Struct("<iIQ")  # call or error code, padding, bytes that follow
KERNELS, ANY_RUNTIME = b".nv_fatbin", b"libcudart.so"


def compile_source(source: Path, program: Path, arch: str, options: Sequence[str]) -> None:
    """Compile a file of CUDA C++ to a program with source lines and without machine code; it may use the driver's
    functions for tensor maps. Raises UsageError without nvcc, or if nvcc refuses the source."""
    if shutil.which("nvcc") is None:
        raise UsageError(f"{source.name} needs nvcc, which is not on PATH; expected the CUDA toolkit 13 on PATH")
    virtual = arch.replace("sm_", "compute_")
    command = ["nvcc", f"-gencode=arch={virtual},code={virtual}", "-cudart=shared", "-lineinfo", "--compress-mode=none"]
    (program.parent / "libcuda.so").symlink_to(driver())
    command += [f"-L{program.parent}", "-o", str(program), str(source), *options, "-lcuda"]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise UsageError(f"nvcc refuses {source} (its messages stand above); correct them, or pass --nvcc OPTION")


def run_program(command: Sequence[str], calls: Calls) -> int:
    """Run a program to its end. Returns its exit status, negative for a signal; 0 if it reached its limit of launches.

    Raises UsageError for a program with a runtime of its own, UnsupportedInstruction and PtxSyntaxError for its PTX.
    """
    program = find_program(command[0])
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                command,
                executable=program.absolute(),
                env=environment(theirs.fileno(), calls.memory.file),
                pass_fds=(theirs.fileno(), calls.memory.file),
            )
        try:
            while answer_one(ours, calls):
                pass
            return process.wait()
        except LaunchLimit:
            return 0
        finally:
            process.kill()
            process.wait()


def find_program(name: str) -> Path:
    """Returns the path of a program. Raises UsageError if there is none, or if it has a CUDA runtime of its own."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"given {name!r}; expected a program, or a file of CUDA C++ that ends in .cu")
    content = Path(found).read_bytes()
    if KERNELS in content and ANY_RUNTIME not in content:
        raise UsageError(
            f"{name} has a CUDA runtime of its own; expected the shared one, which Warpwright replaces: link it again "
            "with nvcc -cudart shared"
        )
    if ANY_RUNTIME in content and RUNTIME.encode() not in content:
        raise UsageError(f"{name} needs the runtime of another CUDA version; expected CUDA 13: {RUNTIME}")
    return Path(found)


def environment(link: int, memory: int) -> dict[str, str]:
    """Returns the environment of a program: it finds the CUDA runtime there, its socket ``link`` and its ``memory``."""
    version = f"-Wl,--version-script={HERE / 'runtime.map'}"
    runtime = build(HERE / "runtime.c", RUNTIME, f"-Wl,-soname,{RUNTIME}", version, "-ldl")
    folders = [str(runtime.parent), str(driver().parent), os.environ.get("LD_LIBRARY_PATH", "")]
    preload = [str(runtime), str(driver()), os.environ.get("LD_PRELOAD", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
        "LD_PRELOAD": ":".join(filter(None, preload)),
        "WARPWRIGHT_RUN": f"{link} {memory} {START:x} {SIZE:x}",
    }


def driver() -> Path:
    """Returns the library of the driver's functions."""
    sources = str(HERE / "modules.c"), str(HERE / "requests.c")
    return build(HERE / "driver.c", DRIVER, *sources, f"-Wl,-soname,{DRIVER}", "-Wl,-Bsymbolic", "-ldl", "-lpthread")


def answer_one(link: socket.socket, calls: Calls) -> bool:
    """Answer a request. Returns False if the program has ended."""
    head = receive(link, HEADER.size)
    if head is None:
        return False
    call, _, nbytes = HEADER.unpack(head)
    data = receive(link, nbytes)
    if data is None:
        return False
    code, answer = calls.answer(call, data)
    try:
        link.sendall(HEADER.pack(code, 0, len(answer)) + answer)
    except BrokenPipeError:
        return False
    return True


def receive(link: socket.socket, nbytes: int) -> bytes | None:
    """Returns the next bytes, None if the program has ended."""
    parts = bytearray()
    while len(parts) < nbytes:
        part = link.recv(min(nbytes - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
