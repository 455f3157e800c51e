"""compute-sanitizer over a script's work: memcheck, racecheck and synccheck, each first tested on a planted fault.

Each tool must find its planted fault; only then does a run without findings count.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import handovers
import numpy as np

import warpwright as ww
from warpwright.lang import Global, If, bar, kernel, smem, tid, u32, warp

TOOLS: Mapping[str, list[str]] = {
    "memcheck": ["--report-api-errors", "no"],  # the driver itself asks for functions that may not be there
    "racecheck": ["--print-limit", "100000"],
    "synccheck": [],
}
# more than come of all attention kernels: those beyond ten million it drops, and counts that as one more
ROOM = {"NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS": "100000000"}
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?|hazards?)")
ELSEWHERE = "/usr/local/cuda/bin"
FAR = 1 << 26  # words behind an array, where no other lies
REPORT = re.compile(r"Race reported between \w+ access at (\w+)\+\w+ in (\w+)\.py")  # kernel, and module of the first
WORK, HANDOVERS = "work", "handovers"


@kernel("sm_90a", threads=64)
def outside(out: Global[u32]) -> None:
    """Writes far beyond its array: for memcheck."""
    out[tid.x + FAR] = tid.x


@kernel("sm_90a", threads=64)
def racing(out: Global[u32]) -> None:
    """The warps write the same words without synchronisation: for racecheck."""
    words = smem.array(u32, 32)
    words[tid.x % 32] = tid.x
    out[tid.x] = words[tid.x % 32]


@kernel("sm_90a", threads=64)
def divergent(out: Global[u32]) -> None:
    """Half of a warp skips the barrier of the CTA: for synccheck."""
    with If(tid.x < 48):
        bar.sync()
    out[tid.x] = warp.id


PLANTED = {"memcheck": outside, "racecheck": racing, "synccheck": divergent}


def main(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], bool],
    alike: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Have each tool watch ``work``, which says whether its results are right; leave with 0 where all of it is clean.

    The script that calls this is run again for each tool, with its own options. ``alike`` are modules that hand data
    over, by the kernel of `handovers` that does it as they do: where racecheck reports that one, which is right, its
    reports of what they write are not counted.
    """
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--seconds", type=int, default=900, help="for one tool")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        sys.exit(not work(options) if options.run == WORK else small(options.run))
    clean = True
    for tool in options.tools.split(","):
        planted, _ = watched(tool, tool, min(options.seconds, 60))
        excused = mistaken(options.seconds, alike) if tool == "racecheck" and alike else ()
        findings, output = watched(tool, WORK, options.seconds)
        not_counted = sum(module in excused for _, module in REPORT.findall(output))
        good = planted > 0 and findings == not_counted
        print(f"{tool}: {findings} findings; of the planted fault {planted}: {'clean' if good else 'NOT CLEAN'}")
        if not_counted:
            names = ", ".join(sorted(excused))
            print(f"  {not_counted} not counted, of {names}: the tool reports right kernels that hand data over so")
        if not good:
            print(output)
        clean &= good
    sys.exit(not clean)


def mistaken(seconds: int, alike: Mapping[str, Sequence[str]]) -> set[str]:
    """Returns the modules whose correct way of handing data over racecheck reports."""
    _, output = watched("racecheck", HANDOVERS, min(seconds, 60))
    reported = {kernel for kernel, _ in REPORT.findall(output)}
    return {module for handover, modules in alike.items() if handover in reported for module in modules}


def small(what: str) -> None:
    """Run a planted fault, or the correct kernels."""
    handovers.run("cuda") if what == HANDOVERS else plant(what)


def plant(tool: str) -> None:
    ww.launch(PLANTED[tool], 1, args=[np.zeros(64, np.uint32)], device="cuda")


def watched(tool: str, what: str, seconds: int) -> tuple[int, str]:
    """Returns the findings of ``tool`` in this script with ``--run what`` (-1 if it did not end), and its output."""
    found = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:{ELSEWHERE}")
    if found is None:
        sys.exit(f"compute-sanitizer is neither on PATH nor in {ELSEWHERE}; it comes with the CUDA toolkit")
    command = [found, "--tool", tool, *TOOLS[tool], sys.executable, *sys.argv, "--run", what]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    try:
        env = {**os.environ, **ROOM, "PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env)
    except subprocess.TimeoutExpired:
        return -1, f"not done after {seconds} s"
    output, summary = done.stdout + done.stderr, SUMMARY.search(done.stdout)
    wrong = what in (WORK, HANDOVERS) and done.returncode != 0
    return (-1 if wrong or summary is None else int(summary[1])), output
