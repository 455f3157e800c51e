"""Peers of the benches: QuACK and flash-attn-4 are called rightly, and a table shows what a peer refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

import attention_mods  # noqa: E402
import gemm  # noqa: E402
import peers  # noqa: E402

ROOT = Path(__file__).parents[2]
ROUNDED = 3e-3  # mean error over mean value; P and dS are rounded to bfloat16 too


@pytest.mark.parametrize("call", ["bf16", "fp8", "batched", "ALiBi", "documents"])
def test_a_peer_is_right_on_a_virtual_gpu(call: str) -> None:
    library = "flash_attn" if call in ("ALiBi", "documents") else "quack"
    if find_spec(library) is None:
        pytest.skip(f"{library} is an extra: pip install 'warpwright[foreign]'")
    environment = {**os.environ, "PYTHONPATH": f"src{os.pathsep}bench"}
    command = [sys.executable, "-m", "tests.bench.peer_calls", call]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = [float(line) for line in done.stdout.splitlines()]
    assert len(errors) == (8 if library == "flash_attn" else 1)  # O and its gradients of two heads
    assert all(error <= ROUNDED for error in errors), errors


def test_the_reason_of_a_refusal_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise NotImplementedError("not on Hopper\nfor a reason")

    runs = {"refusing": refuse, "quick": int}
    assert peers.usable(runs) == peers.usable(runs) == {"quick": int}
    assert capsys.readouterr().err == "refusing is left out: NotImplementedError: not on Hopper\n"


def test_gemm_is_compared_with_the_faster_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "PEERS", ["cublas", "quack"])
    monkeypatch.setattr(gemm, "RATIOS", {"ratio": gemm.PEERS, "over_cublas": ["cublas"]})
    times = {"ours": 2.0, "cublas": 3.0, "fast": 0.5}
    assert gemm.ratios(times | {"quack": 1.0}) == {"ratio": 0.5, "over_cublas": 1.5}
    assert gemm.ratios(times) == {"ratio": 1.5, "over_cublas": 1.5}
    assert gemm.speeds(times, 6.0) == {"ours": 3.0, "cublas": 2.0, "fast": 12.0, "quack": "-"}


def test_attention_is_compared_with_the_faster_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_mods, "PEERS", ["flex", "flash4"])
    over = {"ratio": attention_mods.PEERS, "/ flex": ["flex"], "/ flash4": ["flash4"]}
    monkeypatch.setattr(attention_mods, "RATIOS", over)
    times = {"ours": 2.0, "flex": 3.0, "plain": 1.0, "lists": 1.0}
    row = attention_mods.row_of("causal", times | {"flash4": 1.0}, 6.0)
    assert (row["ours"], row["flex"], row["flash4"]) == (3.0, 2.0, 6.0)
    assert (row["ratio"], row["/ flex"], row["/ flash4"]) == (0.5, 1.5, 0.5)
    row = attention_mods.row_of("causal", times, 6.0)
    assert (row["flash4"], row["ratio"], row["/ flex"], row["/ flash4"]) == ("-", 1.5, 1.5, "-")


def test_a_wrong_result_is_not_right() -> None:
    wanted = [torch.ones(8, dtype=torch.float64), torch.full((8,), 4.0, dtype=torch.float64)]
    assert attention_mods.is_right([wanted[0] * 1.001, wanted[1]], wanted)
    assert not attention_mods.is_right([wanted[0], wanted[1] * 1.02], wanted)
    assert not attention_mods.is_right([wanted[0] * torch.nan, wanted[1]], wanted)
