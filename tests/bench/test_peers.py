"""Peers of the benches: a table shows what a peer refuses, and compares ours with the faster one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

import attention_mla  # noqa: E402
import attention_mods  # noqa: E402
import gemm  # noqa: E402
import peers  # noqa: E402


def test_the_reason_of_a_refusal_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise NotImplementedError("not on Hopper\nfor a reason")

    runs = {"refusing": refuse, "quick": int}
    assert peers.usable(runs) == peers.usable(runs) == {"quick": int}
    assert capsys.readouterr().err == "refusing is left out: NotImplementedError: not on Hopper\n"


def test_ours_is_compared_with_the_faster_peer() -> None:
    times, names = {"ours": 2.0, "cublas": 3.0, "fast": 0.5}, ["cublas", "quack"]
    assert peers.ratios(times | {"quack": 1.0}, names) == {"ratio": 0.5, "/ cublas": 1.5, "/ quack": 0.5}
    assert peers.ratios(times, names) == {"ratio": 1.5, "/ cublas": 1.5, "/ quack": "-"}
    assert peers.ratios(times, ["cublas"]) == {"ratio": 1.5}


def test_a_summary_leaves_out_what_a_peer_refuses() -> None:
    rows = [{"ratio": 0.5, "/ flex": 2.0, "/ flash4": 0.5}, {"ratio": 2.0, "/ flex": 2.0, "/ flash4": "-"}]
    assert peers.summary(rows, ["flex", "flash4"]).splitlines() == [
        "ours / the faster of flex, flash4: geometric mean 1.000 of 2, least 0.500",
        "ours / flex: geometric mean 2.000 of 2, least 2.000",
        "ours / flash4: geometric mean 0.500 of 1, least 0.500",
    ]
    assert (
        peers.summary(rows[1:], ["flex", "flash4"]).splitlines()[2]
        == "ours / flash4: geometric mean nan of 0, least nan"
    )


def test_a_peer_without_a_time_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "PEERS", ["cublas", "quack"])
    assert gemm.speeds({"ours": 2.0, "cublas": 3.0}, 6.0) == {"ours": 3.0, "cublas": 2.0, "quack": "-"}
    monkeypatch.setattr(attention_mods, "PEERS", ["flex", "flash4"])
    row = attention_mods.row_of("causal", {"ours": 2.0, "flex": 3.0, "plain": 1.0, "lists": 1.0}, 6.0)
    assert (row["ours"], row["flex"], row["flash4"], row["ratio"], row["/ flash4"]) == (3.0, 2.0, "-", 1.5, "-")


def test_a_peer_far_slower_than_ours_has_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"rows": 1.0, "pages": 1.0, "near": 9.0, "far": 11.0}

    def medians(runs: dict[str, object], *, rounds: int, stream: int) -> dict[str, float]:
        return {name: took[name] + rounds / 1000 for name in runs}

    monkeypatch.setattr(attention_mla.cuda, "medians", medians)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    found = attention_mla.seconds({"rows": int, "pages": int}, {"near": int, "far": int}, 30)
    assert found == {"rows": 1.03, "pages": 1.03, "near": 9.03, "far": 11.003}


def test_a_wrong_result_is_not_right() -> None:
    wanted = [torch.ones(8, dtype=torch.float64), torch.full((8,), 4.0, dtype=torch.float64)]
    assert attention_mods.is_right([wanted[0] * 1.001, wanted[1]], wanted)
    assert not attention_mods.is_right([wanted[0], wanted[1] * 1.02], wanted)
    assert not attention_mods.is_right([wanted[0] * torch.nan, wanted[1]], wanted)
