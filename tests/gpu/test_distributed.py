"""`warpwright.distributed` on two GPUs or more, in processes of torchrun: ``pytest tests/gpu/test_distributed.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SECONDS = 600
COUNT = torch.cuda.device_count()


@pytest.mark.skipif(COUNT < 2, reason=f"needs two GPUs that NVLink joins; this machine has {COUNT}")
@pytest.mark.parametrize("ranks", sorted({2, COUNT}))
@pytest.mark.parametrize("checks", ["distributed_ranks.py", "context_ranks.py", "../../examples/10_all_gather_gemm.py"])
def test_ranks(checks: str, ranks: int) -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    path = Path(__file__).parent / checks
    result = subprocess.run([*program, str(path)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(COUNT < 2, reason=f"needs two GPUs that NVLink joins; this machine has {COUNT}")
@pytest.mark.parametrize("kind", ["known", "new", "parts", "copies 128x128", "sends 128x256", "adds", "kernel 128x128"])
def test_a_rank_that_dies_or_hangs_ends_the_other_within_the_limit(kind: str) -> None:
    program = [sys.executable, str(Path(__file__).parent / "distributed_killed.py"), kind]
    result = subprocess.run(program, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
