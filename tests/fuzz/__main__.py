"""Mutates all PTX of the repository, loads every mutant, launches some, and compares with ptxas where it is installed.

``python -m tests.fuzz --minutes 20 --seed 1 --processes 2`` prints a table of mutators and outcomes, and every distinct
crash, bare exception, hang and disagreement with ptxas, with the line that was changed. The status is 1 if there is a
crash, a bare exception or a hang, or if more than 1 % of what runs is refused by ptxas for no known reason.
``--mutant N`` shows one mutant.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.mutators import mutant
from tests.fuzz.pool import run
from tests.fuzz.table import exit_status, report
from warpwright.ptx.ptxas import find_ptxas

MOST_MUTANTS = 10**9


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20, help="time for all processes (default 20)")
    parser.add_argument("--mutants", type=int, default=MOST_MUTANTS, help="end after so many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--launch", type=int, default=7, help="launch one in N of the mutants that load (default 7)")
    parser.add_argument("--ask", type=int, default=6, help="ask ptxas about one in N, and about all that are launched")
    parser.add_argument("--mutant", type=int, help="print the text of one mutant and end")
    options = parser.parse_args()
    if options.mutant is not None:
        print(mutant(options.seed, options.mutant).text, end="")
        return 0
    ask = options.ask if find_ptxas() else 0
    started = time.monotonic()
    deadline = started + 60 * options.minutes
    rows = run(options.seed, options.processes, options.launch, ask, deadline, options.mutants)
    print(report(rows, time.monotonic() - started, options.seed))
    return exit_status(rows)


if __name__ == "__main__":
    sys.exit(main())
