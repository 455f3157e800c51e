"""A rank that dies or hangs: ``python tests/gpu/distributed_killed.py KIND``, on two GPUs.

The next call of rank 0 has to end, and to say which rank is missing, within the time limit or at most two looks of the
watch later. A kind is what rank 1 does after its first calls: ``known`` and ``new``: it ends, and rank 0 makes a call
of the same shape or of another one. The name of an engine: rank 1 comes to the barrier of a call of this engine, and
does nothing more. The program starts a process for each rank, and exits with status 0 if rank 0 ends as it should.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["WARPWRIGHT_TIME_LIMIT"] = "5"

import torch
import torch.distributed as dist

from warpwright.distributed import DistributedTimeout, all_gather_matmul, gather, operators
from warpwright.distributed.problem import describe_gather, describe_scatter
from warpwright.distributed.watch import PERIOD
from warpwright.distributed.workspace import FLAGS, workspace_of

ROWS = 512
GATHER = "rank 0 has waited 5 s in all_gather_matmul of {} rows a rank, K=512, N=1024, bfloat16, and rank 1 "
SCATTER = "rank 0 has waited 5 s in matmul_reduce_scatter of 512 rows a rank, K=512, N=1024, bfloat16, and rank 1 "
SAID = {
    "known": GATHER.format(ROWS) + "made no such call",
    "new": GATHER.format(ROWS // 2) + "made no such call",
    "sends 128x256": GATHER.format(ROWS) + "made no such call",
    "kernel 128x128": SCATTER,  # it lacks a begin or sums, whichever CTA is the first
    **dict.fromkeys(("parts", "copies 128x128"), GATHER.format(ROWS) + "has not sent its part"),
    "adds": SCATTER + "has not sent its part",
}
SECONDS = 90


def run_engine(name: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    if name in gather.ENGINES:
        operators.run_gather(x, [weight], dist.group.WORLD, name)
    else:
        operators.run_scatter(torch.cat([x, x]), weight, dist.group.WORLD, name)


def only_begin(name: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Come to the barrier of a call, and hang."""
    shared, ranks = workspace_of(dist.group.WORLD), dist.get_world_size()
    of_gather = name in gather.ENGINES
    problem = describe_gather(x, [weight], ranks) if of_gather else describe_scatter(torch.cat([x, x]), weight, ranks)
    shared.start(shared.digest(problem), FLAGS, shared.stream())
    torch.cuda.synchronize()
    time.sleep(SECONDS)


def call(kind: str, rank: int, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Make the call of which rank 1 makes nothing, or the beginning."""
    if kind in ("known", "new"):
        if rank == 1:
            os._exit(0)
        all_gather_matmul(x if kind == "known" else x[: ROWS // 2], weight)
    elif rank == 1:
        only_begin(kind, x, weight)
    else:
        run_engine(kind, x, weight)
    torch.cuda.synchronize()


def main_of_rank(rank: int, store: str, kind: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.randn(ROWS, 512, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16).T
    all_gather_matmul(x, weight)
    if kind in SAID and kind not in ("known", "new"):
        run_engine(kind, x, weight)
    torch.cuda.synchronize()
    began = time.monotonic()
    try:
        call(kind, rank, x, weight)
    except DistributedTimeout as error:  # of a new shape, before any work of the GPU
        print(f"after {time.monotonic() - began:.1f} s {type(error).__name__}: {error}", flush=True)
        os._exit(7)
    except Exception as error:
        print(f"after {time.monotonic() - began:.1f} s {type(error).__name__}: {error}", flush=True)
    time.sleep(2 * PERIOD)
    try:
        all_gather_matmul(x, weight)
    except DistributedTimeout as error:
        print(f"the next call raises {type(error).__name__}: {error}", flush=True)
        os._exit(7)
    os._exit(0)


def main() -> int:
    kind, folder = sys.argv[1], tempfile.mkdtemp()
    program = [sys.executable, str(Path(__file__)), kind]
    first, second = (
        subprocess.Popen(
            [*program, str(rank), f"{folder}/store"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    )
    try:
        output = first.communicate(timeout=SECONDS)[0]
    finally:
        first.kill()
        second.kill()
    print(output)
    told = [f"{start}{SAID[kind]}" in output for start in ("warpwright: ", "DistributedTimeout: ")]
    return int(first.returncode != 7 or not all(told[kind == "new" :]))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main_of_rank(int(sys.argv[2]), sys.argv[3], sys.argv[1])
    raise SystemExit(main())
