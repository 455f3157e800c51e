"""A rank that dies: ``python tests/gpu/distributed_killed.py RANK STORE known|new``, one process for each of two ranks.

Rank 1 ends after its first call; the next call of rank 0, of the same shape ("known") or of another one ("new"), has to
end within the time limit and say so. ``tests/gpu/test_distributed.py`` starts both.
"""

from __future__ import annotations

import os
import sys

os.environ["WARPWRIGHT_TIME_LIMIT"] = "5"

import torch
import torch.distributed as dist

from warpwright.distributed import all_gather_matmul


def main() -> int:
    rank, store, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16).T
    all_gather_matmul(x, weight)
    torch.cuda.synchronize()
    if rank == 1:
        os._exit(0)
    try:
        all_gather_matmul(x if kind == "known" else x[:256], weight)
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(7)
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
