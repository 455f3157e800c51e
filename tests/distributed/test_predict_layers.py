"""The predicted time of a tensor-parallel layer: the parts that bench/link.py measured, and one layer of each kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # its programs find one another in their own folder

import predict_layers

from warpwright.distributed.facts import FACTS, Fact


def test_a_copy_between_two_gpus_has_the_measured_start_and_rate() -> None:
    start, rate = predict_layers.copy_line()
    assert 9 < start < 11 and 390e3 < rate < 400e3
    assert predict_layers.copy_us(256 << 20) == pytest.approx(685.9, abs=0.1)
    assert predict_layers.answer_us() == pytest.approx(2.49, abs=0.01)


@pytest.mark.parametrize("shape", [(1024, 3584, 5120), (4096, 4096, 2048)])
def test_a_layer_is_predicted_as_it_was_measured(shape: tuple[int, int, int]) -> None:
    fact = next(each for each in FACTS if (each.m, each.n, each.k) == shape)
    parts = predict_layers.predict(fact)
    assert parts.whole == pytest.approx(fact.nccl_us / fact.ratio, rel=0.15)
    assert parts.whole > max(parts.matmul, parts.exchange)


def test_more_ranks_send_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight ranks each computes its rows alone first, and the exchange is longer than the matmul hides."""
    monkeypatch.setattr(predict_layers, "matmul_us", lambda m, n, k: (m / 100.0, 3.0))
    fact = Fact("all_gather_matmul", 2, 4096, 3072, 4096, "parts", 100.0, 1.0)
    two, eight = (predict_layers.predict(fact._replace(ranks=ranks)) for ranks in (2, 8))
    assert eight.matmul == two.matmul / 4
    assert eight.exchange > 1.6 * two.exchange
    assert eight.whole == pytest.approx(3 + predict_layers.answer_us() + eight.exchange + 7 * eight.matmul)
