"""Ranks agree on their calls before they wait: two processes of torch.distributed with gloo."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

import torch.distributed as dist

from tests.distributed.host_workspace import run_ranks
from warpwright.distributed.agreement import Agreement, DistributedTimeout, late_rank, time_limit
from warpwright.errors import UsageError
from warpwright.kernels.node import Lack, report_of

PROGRAM = """
import sys
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from warpwright.distributed.agreement import Agreement

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
agreement = Agreement(c10d._get_process_group_store(dist.group.WORLD), rank, 2, 60)
print(agreement.digest("a call"), agreement.digest("a call"), agreement.exchanges)
try:
    agreement.digest(f"rows {rank}")
except Exception as error:
    print(error)
"""


def test_two_processes_agree_or_are_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert outputs[0] == outputs[1]
    first, second, exchanges = outputs[0][0].split()
    assert (first, exchanges) == (second, "1")
    assert outputs[0][1] == (
        "the ranks of a group make different calls; expected one call, with one shape and dtype; rank 0: rows 0; "
        "rank 1: rows 1"
    )


def refusal(agreement: Agreement) -> str:
    with pytest.raises(DistributedTimeout) as caught:
        agreement.digest("a call")
    return str(caught.value)


def test_a_rank_that_makes_no_call_is_named() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    ranks = [Agreement(store, rank, 3, 0.2) for rank in range(2)]
    began = time.monotonic()
    found = run_ranks([partial(refusal, each) for each in ranks])
    assert time.monotonic() - began < 5
    for rank, sentence in enumerate(found):
        assert sentence == (
            f"rank {rank} has waited 0.2 s in a call, and rank 2 made no such call; expected the same calls of all "
            "ranks, in one order; WARPWRIGHT_TIME_LIMIT or the timeout of the group sets the limit"
        )


def test_the_limit_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARPWRIGHT_TIME_LIMIT", raising=False)
    assert time_limit(600.0) == 600
    monkeypatch.setenv("WARPWRIGHT_TIME_LIMIT", "0.2")
    assert time_limit(600.0) == 0.2
    for wrong in ("soon", "0", "nan"):
        monkeypatch.setenv("WARPWRIGHT_TIME_LIMIT", wrong)
        with pytest.raises(UsageError) as caught:
            time_limit(600.0)
        assert str(caught.value) == (
            f"given WARPWRIGHT_TIME_LIMIT={wrong!r}; expected a number of seconds above 0, such as 120"
        )


def test_a_rank_that_never_calls_is_told_so() -> None:
    assert str(late_rank(0, 5, "all_gather_matmul of 128 rows", report_of(Lack.BEGIN, 1))) == (
        "rank 0 has waited 5 s in all_gather_matmul of 128 rows, and rank 1 made no such call; expected the same calls "
        "of all ranks, in one order; look for an error of rank 1, and start all ranks again: the GPU of rank 0 has "
        "stopped; WARPWRIGHT_TIME_LIMIT or the timeout of the group sets the limit"
    )


def test_every_lack_of_a_rank_has_a_sentence() -> None:
    sentences = {str(late_rank(0, 5, "a call", report_of(lack, 3))) for lack in Lack}
    assert len(sentences) == len(Lack)
    assert all(each.startswith("rank 0 has waited 5 s in a call, and rank 3 ") for each in sentences)
