"""`warpwright.distributed` on two GPUs or more, in processes of torchrun: ``pytest tests/gpu/test_distributed.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SECONDS = 300
COUNT = torch.cuda.device_count()


@pytest.mark.skipif(COUNT < 2, reason=f"needs two GPUs that NVLink joins; this machine has {COUNT}")
@pytest.mark.parametrize("ranks", sorted({2, COUNT}))
def test_ranks(ranks: int) -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    checks = Path(__file__).parent / "distributed_ranks.py"
    result = subprocess.run([*program, str(checks)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
