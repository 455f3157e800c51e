"""PTX text to machine code, by ptxas or the driver; kept on disk for the next process.

Both assemble a kernel as a whole program. nvJitLink and the driver's linker assemble a unit for linking, in which
``setmaxnreg`` is ignored (C7504), so that a kernel's registers may not suffice.
"""

from __future__ import annotations

import contextlib
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

FORMAT = 1  # of the files in the cache


@dataclass(frozen=True, slots=True)
class Usage:
    """What the assembler says of one kernel: registers a thread, bytes of stack and spills, its warnings."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one target, with the assembler's report (empty where the driver assembles)."""

    code: bytes
    log: str

    def usage(self, entry: str) -> Usage | None:
        """The figures of one kernel; None where the report does not have them."""
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
        """The assembler's warnings, among them that it serialised wgmma (C7510)."""
        return [line.strip() for line in self.log.splitlines() if "warning" in line.lower() or "(C75" in line]


def compile_ptx(text: str, target: str, folder: Path | None = None) -> Cubin:
    """``text`` as machine code for ``target`` (``"sm_90a"``), from the cache where it is there.

    The cache is ``folder``, else WARPWRIGHT_CACHE, else the user's cache directory; an entry that is damaged is made
    again. Raises UsageError with the assembler's words for PTX that it refuses.
    """
    path = (folder or folders.cache()) / key(text, target, version(), assembler())
    cubin = read(path)
    if cubin is None:
        cubin = link(text, target)
        write(path, cubin)
    return cubin


def key(text: str, target: str, driver: int, assembler: str) -> str:
    """The name of a cache entry: a digest of all that decides the machine code."""
    facts = json.dumps([FORMAT, target, driver, assembler])
    return hashlib.sha256(f"{facts}\n{text}".encode()).hexdigest() + ".cubin"


def read(path: Path) -> Cubin | None:
    """A cache entry: one line of JSON, then the code. None where it is missing or damaged."""
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        facts = json.loads(head)
        whole = facts["sha256"] == hashlib.sha256(code).hexdigest()
        return Cubin(code, str(facts["log"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, cubin: Cubin) -> None:
    """Keep ``cubin``, in one step: another process sees nothing or the whole. Without a place to write, nothing."""
    head = json.dumps({"sha256": hashlib.sha256(cubin.code).hexdigest(), "log": cubin.log})
    with contextlib.suppress(OSError):
        folders.replace_file(path, head.encode() + b"\n" + cubin.code)


@functools.cache
def assembler() -> str:
    """The ptxas that serves, with its version; "" where there is none of the driver's major release."""
    program = find_ptxas()
    if program is None:
        return ""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.", told)
    fits = release is not None and int(release[1]) == version() // 1000
    return f"{program} {told.splitlines()[-1]}" if fits else ""


def link(text: str, target: str) -> Cubin:
    """``text`` assembled by ptxas; without one the text itself, which the driver assembles when it is loaded."""
    if not assembler():
        return Cubin(text.encode() + b"\0", "")
    made = assemble(text, target, "-v")
    if not made.ok:
        raise UsageError(f"the assembler refuses this PTX for {target}: {made.log.strip()}")
    return Cubin(made.cubin, made.log)
