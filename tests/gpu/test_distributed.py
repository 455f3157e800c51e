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
@pytest.mark.parametrize("checks", ["distributed_ranks.py", "context_ranks.py", "../../examples/10_all_gather_gemm.py"])
def test_ranks(checks: str, ranks: int) -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    path = Path(__file__).parent / checks
    result = subprocess.run([*program, str(path)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(COUNT < 2, reason=f"needs two GPUs that NVLink joins; this machine has {COUNT}")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("known", "has not come to the barrier within the time limit"),
        (
            "new",
            "rank 0 has waited 5 s in all_gather_matmul of 256 rows a rank, K=512, N=1024, bfloat16, and rank 1 ",
        ),
    ],
)
def test_a_rank_that_dies_ends_the_other_within_the_limit(kind: str, said: str, tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parent / "distributed_killed.py")]
    first, second = (
        subprocess.Popen(
            [*program, str(rank), str(tmp_path / "store"), kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    )
    output = first.communicate(timeout=90)[0]
    second.wait(10)
    assert first.returncode == 7, output
    assert said in output
