"""The constants of a Hopper GPU: ``python bench/micro.py [--only tma,sync] [--write measured.json] [--device cuda]``.

Every figure is the cost of an instruction, a barrier, a copy, an MMA or a launch, measured by a small kernel in the
kernel language on the GPU of this machine. None of these kernels is a GEMM, so that `bench/predict.py` can evaluate the
timing model on GEMMs. Cycles are cycles of the SM's clock. The spread is half of the range of the repeats over their
median.

- issue, shared, memory, tma, traffic, starts, sync, wgmma, mma, among, launch, clocks, power: the parts, in this order;
  ``--only`` names some of them

The last lines are the constants of the timing model that follow from the results (bench/constants.py).

- ``--small``: every probe once and tiny, on any device, as a test
- ``--model``: the prediction of ``ww.profile`` for the probes of issue, shared and among on an H200
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from constants import lines
from probes import among, bulk, clocks, issue, launches, memory, mma, power, shared, starts, sync, tensor, traffic
from probes.harness import Bench, Measurement, ModelBench

PARTS: dict[str, Callable[[Bench], Iterator[Measurement]]] = {
    "issue": issue.measure,
    "shared": shared.measure,
    "memory": memory.measure,
    "tma": bulk.measure,
    "traffic": traffic.measure,
    "starts": starts.measure,
    "sync": sync.measure,
    "wgmma": tensor.measure,
    "mma": mma.measure,
    "among": among.measure,
    "launch": launches.measure,
    "clocks": clocks.measure,
    "power": power.measure,
}
MODEL_PARTS = ("issue", "shared", "among")


def line(found: Measurement) -> str:
    return f"{found.name:<46} {found.value:>10.5g} {found.unit:<20} ± {100 * found.spread:4.1f} %  {found.how}"


def provenance(bench: Bench) -> dict[str, Any]:
    """Returns the device and the versions of the measurement."""
    if not bench.real:
        return {"device": f"virtual {bench.device.name}", "command": "python bench/micro.py --small"}
    from warpwright.cuda.driver import version

    return {"device": bench.device.spec.name, "driver": version(), "command": "python bench/micro.py"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--write", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--small", action="store_true", help="every probe once and tiny, on any device, as a test")
    parser.add_argument("--model", action="store_true", help=f"predict instead of measure; of {','.join(MODEL_PARTS)}")
    options = parser.parse_args()
    parts = options.only.split(",")
    if options.model and not set(parts) <= set(MODEL_PARTS):
        parser.error(f"given --model and --only {options.only}; expected --only of {','.join(MODEL_PARTS)}")
    bench = ModelBench("h200") if options.model else Bench(options.device, small=options.small)
    results = []
    for part in parts:
        for found in PARTS[part](bench):
            print(line(found), flush=True)
            results.append(found)
        if options.write:
            content = {**provenance(bench), "results": [found.as_dict() for found in results]}
            options.write.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\nconstants of targets/clocks.py:")
    print("\n".join(lines({found.name: found.value for found in results})))


if __name__ == "__main__":
    main()
