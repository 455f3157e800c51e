"""The peers of the benches, QuACK and flash-attn-4, are called rightly: `bench/peers.py` on a virtual GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDED = 3e-3  # mean error over mean value; P and dS are rounded to bfloat16 too


@pytest.mark.parametrize("call", ["bf16", "fp8", "batched", "ALiBi", "documents"])
def test_a_peer_is_right_on_a_virtual_gpu(call: str) -> None:
    library = "flash_attn" if call in ("ALiBi", "documents") else "quack"
    if find_spec(library) is None:
        pytest.skip(f"{library} is an extra: pip install 'warpwright[foreign]'")
    environment = {**os.environ, "PYTHONPATH": f"src{os.pathsep}bench"}
    command = [sys.executable, "-m", "tests.programs.peer_calls", call]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = [float(line) for line in done.stdout.splitlines()]
    assert len(errors) == (8 if library == "flash_attn" else 1)  # O and its gradients of two heads
    assert all(error <= ROUNDED for error in errors), errors
