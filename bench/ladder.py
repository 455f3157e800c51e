"""The predicted Blackwell ladder beside the published rates: ``python bench/ladder.py [--predict] [--write FILE]``.

Levels 1 to 10 at M = N = K = 4096 and 8192 on the virtual B200, fast mode, each launch as one of many in a loop: the
published rates (``warpwright.report.published``) are those of 100 launches of a GB200. Nothing is fitted to them.
``--predict`` predicts anew, some minutes; otherwise the predictions are read from ``bench/predicted/ladder.json``. Exit
status 1 if levels 2 to 9 miss a goal: a difference of at most 40 % each and 20 % on average, level 3 at 4096 at least
1.4 times level 2, and each step in the published direction: as the write-up of the higher level measured both, if it
did. A step that is published as less than 2 % is predicted as less than 5 % in either direction.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from warpwright.cli.ladder_table import beside_published, predict_levels
from warpwright.kernels.gemm.sm100 import LEVELS
from warpwright.report.published import DISAGREEMENTS, PUBLISHED
from warpwright.run.devices import device

STORED = Path(__file__).parent / "predicted" / "ladder.json"
SIZES = (4096, 8192)
COMPARED = range(2, 10)
WORST_GOAL, MEAN_GOAL, STEP_GOAL = 0.40, 0.20, 1.4
SAME, SAME_GOAL = 0.02, 0.05  # a step that is published as no step, and the largest prediction for it

Rows = list[dict[str, Any]]


def predict(levels: Sequence[int], size: int) -> Rows:
    """Returns level, size and predicted TFLOPS of each level."""
    rows = predict_levels(device("b200"), [(level, LEVELS[level]) for level in levels], size, 0, fast=True, warm=True)
    return [{"level": row["level"], "size": size, "tflops": round(row["tflops"], 1)} for row in rows]


def misses(rows: Rows) -> list[str]:
    """Returns the goals that predictions of all levels miss, in words."""
    found = []
    for size in sorted({row["size"] for row in rows}):
        rates = {row["level"]: row["tflops"] for row in rows if row["size"] == size}
        errors = {level: rates[level] / PUBLISHED[level][size] - 1 for level in COMPARED}
        found += [f"level {n} at {size}: {error:+.0%}" for n, error in errors.items() if abs(error) > WORST_GOAL]
        mean = fmean(map(abs, errors.values()))
        found += [f"mean at {size}: {mean:.0%}"] if mean > MEAN_GOAL else []
        for level in COMPARED[1:]:
            lower = DISAGREEMENTS.get(level - 1, PUBLISHED[level - 1]).get(size, PUBLISHED[level - 1][size])
            published = PUBLISHED[level][size] / lower - 1
            ours = rates[level] / rates[level - 1] - 1
            if published * ours <= 0 if abs(published) >= SAME else abs(ours) > SAME_GOAL:
                found.append(f"level {level - 1} to {level} at {size}: {ours:+.0%}, published {published:+.0%}")
        if size == SIZES[0] and rates[3] < STEP_GOAL * rates[2]:
            found.append(f"level 3 at {size} is {rates[3] / rates[2]:.2f} times level 2")
    return found


def table(rows: Rows) -> str:
    lines = ["| level | size | published | predicted | difference |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        beside = beside_published(LEVELS[row["level"]], row["size"], row["tflops"])
        published = f"{beside['published']:,.0f}" if "published" in beside else ""
        difference = f"{beside['difference']:+.0%}" if published else ""
        lines.append(f"| {row['level']} | {row['size']} | {published} | {row['tflops']:,.0f} | {difference} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", action="store_true", help="predict anew")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the predictions")
    options = parser.parse_args()
    if options.predict:
        rows = [row for size in SIZES for row in predict(list(LEVELS), size)]
    else:
        rows = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    if options.write:
        options.write.parent.mkdir(exist_ok=True)
        content = {"device": "virtual b200", "command": "python bench/ladder.py --predict", "rows": rows}
        options.write.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    found = misses(rows)
    print(*found or ["every goal is met"], sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
