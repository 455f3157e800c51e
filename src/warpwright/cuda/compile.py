"""Compilation of PTX to machine code, by ptxas or the driver, with a cache on disk.

ptxas and the driver assemble a kernel as a whole program. nvJitLink and the driver's linker assemble a relocatable
unit, in which ``setmaxnreg`` is ignored (C7504), so that a kernel may run out of registers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from warpwright import folders
from warpwright.cuda.driver import version
from warpwright.errors import UsageError
from warpwright.ptx.ptxas import assemble, find_ptxas

__all__ = ["Cubin", "Usage", "compile_ptx", "key", "read", "write"]

FORMAT = 2  # version of the cache's files


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of one kernel: registers a thread, and bytes a thread of stack, spill stores and spill loads."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one target, with the assembler's log (empty if the driver assembles)."""

    code: bytes
    log: str

    def usage(self, entry: str) -> Usage | None:
        """Returns the resources of the kernel ``entry``, or None if the log does not list them."""
        part = re.search(rf"'{re.escape(entry)}' for '\w+'\n(.*?)(?=Compiling entry|\Z)", self.log, re.DOTALL)
        found = part and re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
            part[1],
            re.DOTALL,
        )
        if not found:
            return None
        stack, stores, loads, registers = map(int, found.groups())
        return Usage(registers, stack, stores, loads)

    @property
    def warnings(self) -> list[str]:
        """The assembler's warnings, including the one that it serialised wgmma (C7510)."""
        return [line.strip() for line in self.log.splitlines() if "warning" in line.lower() or "(C75" in line]


def compile_ptx(text: str, target: str, folder: Path | None = None) -> Cubin:
    """Compile PTX ``text`` to machine code for ``target`` (``"sm_90a"``), or read it from the cache.

    The cache is ``folder``, else ``cubins`` in WARPWRIGHT_CACHE, else in the user's cache directory; `folders` has its
    rules. Raises UsageError, with the assembler's log, for PTX that the assembler refuses.
    """
    path = (folder or folders.cache() / "cubins") / key(text, target, version(), assembler())
    cubin = read(path)
    if cubin is None:
        cubin = link(text, target)
        write(path, cubin)
    return cubin


def key(text: str, target: str, driver: int, assembler: str) -> str:
    """Returns the name of a cache entry: a digest of everything that determines the machine code."""
    facts = json.dumps([FORMAT, target, driver, assembler])
    return hashlib.sha256(f"{facts}\n{text}".encode()).hexdigest() + ".cubin"


def read(path: Path) -> Cubin | None:
    """Returns a cache entry (one line of JSON, the log, then the code), or None as `folders.read_code`."""
    entry = folders.read_code(path)
    if entry is None:
        return None
    log, _, code = entry.partition(b"\n")
    return Cubin(code, json.loads(log))


def write(path: Path, cubin: Cubin) -> None:
    """Write ``cubin`` to the cache as `folders.write_code`."""
    folders.write_code(path, json.dumps(cubin.log).encode() + b"\n" + cubin.code)


@functools.cache
def assembler() -> str:
    """Returns path and version of ptxas, or "" if there is none of the driver's major release."""
    program = find_ptxas()
    if program is None:
        return ""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.", output)
    matches = release is not None and int(release[1]) == version() // 1000
    return f"{program} {output.splitlines()[-1]}" if matches else ""


def link(text: str, target: str) -> Cubin:
    """Assemble ``text`` by ptxas; without ptxas, return the text itself, which the driver assembles at load time."""
    if not assembler():
        return Cubin(text.encode() + b"\0", "")
    result = assemble(text, target, "-v")
    if not result.ok:
        raise UsageError(f"ptxas refuses this PTX for {target}: {result.log.strip()}")
    return Cubin(result.cubin, result.log)
