"""A rank that never calls, or stops in a call: the others say which one it is, and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import AllReduce, Gather, Reduce, weaken, with_maps, without_rank
from warpwright.kernels.gemm.sm90.all_gather import all_gather_gemm
from warpwright.kernels.gemm.sm90.all_reduce import gemm_all_reduce
from warpwright.kernels.gemm.sm90.reduce_scatter import ALONE, gemm_reduce_scatter
from warpwright.kernels.node import Lack, lack_of
from warpwright.lang.trace import Traced

pytestmark = pytest.mark.usefixtures("one_worker")
SMALL = replace(ALONE, tile=(128, 128), stages=2)
LIMIT_NS = 2_000_000  # of the virtual GPU, whose time advances when a thread reads it
CASES: dict[str, tuple[Callable[[], Traced], Callable[[], Any]]] = {
    "all-gather": (all_gather_gemm.trace, lambda: Gather(2, 128, 512, 128)),
    "reduce-scatter": (gemm_reduce_scatter.configure(config=SMALL).trace, lambda: Reduce(2, 128, 128, 64, SMALL)),
    "all-reduce": (gemm_all_reduce.configure(config=SMALL).trace, lambda: AllReduce(2, 128, 128, 64, SMALL)),
}


def arguments(name: str, limit_ns: int, **changed: Any) -> tuple[Traced, list[Any], Any]:
    """Returns a traced kernel, its arguments, of which some have other values, and the reports of both ranks."""
    traced, args = CASES[name][0](), CASES[name][1]().args
    places = {parameter: number for number, (parameter, _) in enumerate(traced.params)}
    for parameter, value in {"limit_ns": limit_ns, **changed}.items():
        args[places[parameter]] = value
    return traced, with_maps(traced, args), args[places["report"]].values


def stop(traced: Traced, kernel: Any, args: list[Any], reports: Any) -> dict[int, tuple[Lack, int]]:
    """Returns what each rank lacks that ended a launch."""
    with pytest.raises(ww.DeviceError, match="the kernel executed trap"):
        ww.launch(kernel, 2, smem=traced.smem_bytes, args=args, device="h200x2")
    return {rank: lack_of(int(report[0])) for rank, report in enumerate(reports) if report[0]}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_never_calls_is_named(name: str) -> None:
    traced, args, reports = arguments(name, LIMIT_NS)
    assert stop(traced, without_rank(traced, 1), args, reports) == {0: (Lack.BEGIN, 1)}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_begins_and_sends_nothing_is_named(name: str) -> None:
    traced, args, reports = arguments(name, LIMIT_NS, tiles_m=ww.PerRank([0, 1]))
    kernel = ww.load_ptx(traced.ptx)[traced.entry]
    ((rank, (lack, missing)),) = stop(traced, kernel, args, reports).items()
    assert (rank, missing) == (1, 0)
    assert lack in (Lack.SEND, Lack.STORE if name == "all-reduce" else None)


def test_a_rank_that_stores_no_result_is_named() -> None:
    traced, args, reports = arguments("all-reduce", LIMIT_NS)
    text = weaken(traced.ptx, (r"st\.release\.sys", "// st.release.sys"), 2, 3)
    lacks = stop(traced, ww.load_ptx(text)[traced.entry], args, reports)
    assert lacks.items() <= {0: (Lack.STORE, 1), 1: (Lack.STORE, 0)}.items() and lacks


@pytest.mark.parametrize("name", CASES)
def test_without_a_limit_a_rank_that_never_calls_is_a_deadlock(name: str) -> None:
    traced, args, _ = arguments(name, 0)
    verdict = ww.check(without_rank(traced, 1), 2, smem=traced.smem_bytes, args=args, device="h200x2")
    text = " ".join(next(str(each) for each in verdict.findings if each.rule.id == "deadlock").split())
    assert (
        "rank 0, cluster 0" in text and "of begun of rank 0, which is 0 and which no strong store has written" in text
    )


@pytest.mark.parametrize("name", CASES)
def test_the_checks_find_nothing_in_a_wait_with_a_limit(name: str) -> None:
    traced, args, reports = arguments(name, 10**12)
    kernel = ww.load_ptx(traced.ptx)[traced.entry]
    verdict = ww.check(kernel, 2, smem=traced.smem_bytes, args=args, device="h200x2")
    assert not verdict.findings, str(verdict)
    assert not any(report[0] for report in reports)
