"""Races between the GPUs of a node: unordered accesses are found, with the right lines and ranks; ordered accesses are
clean."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.races import global_kernels, node_kernels
from warpwright import Deadlock, PerRank, check, launch
from warpwright.vgpu.checks.findings import Verdict

ROWS, COLUMNS = node_kernels.ROWS, node_kernels.COLUMNS


def _words(ranks: int, count: int = 1) -> PerRank:
    return PerRank([np.zeros(count, np.uint32) for _ in range(ranks)])


def _args(name: str, ranks: int) -> list[Any]:
    boxes = PerRank([np.zeros((ROWS, COLUMNS), np.float32) for _ in range(ranks)])
    floats = PerRank([np.zeros(COLUMNS, np.float32) for _ in range(ranks)])
    return {
        "send_word": [_words(ranks), _words(ranks), _words(ranks)],
        "count_all": [_words(ranks), _words(ranks, 32)],
        "stream_words": [*[_words(ranks) for _ in range(3)], _words(ranks, 4), 3],
        "begin_rounds": [_words(ranks), _words(ranks), 3],
        "pair_sums": [_words(ranks), _words(ranks, 2), _words(ranks)],
        "two_collectives": [_words(ranks, 2), _words(ranks)],
        "send_tile": [boxes, _words(ranks), boxes, floats],
        "load_from_peer": [boxes, boxes, _words(ranks), floats],
    }[name]


# kernel: ranks, rule, text of the lines of the two steps
CASES = {
    "stream_words": (2, "peer-race", "x[1][0] = k", "y[k] = x[1][0]"),
    "pair_sums": (4, "peer-race", "x[x.rank][0] = x.rank", "y[0] = x[other][0]"),
    "send_tile": (2, "peer-race", "tma.store(", "out[0] = y[0]"),
    "load_from_peer": (2, "proxy-fence", "= 1.0", "tma.load("),
}


SCHEDULES = {"stream_words": 6}  # beside the default one, in which rank 0 sends all words before rank 1 reads any


def _check(name: str, ranks: int, off: tuple[str, ...] = (), **config: Any) -> Verdict:
    kernel, explore = getattr(node_kernels, name).configure(**config), SCHEDULES.get(name, 0)
    return check(kernel, grid=1, args=_args(name, ranks), device=f"h200x{ranks}", off=off, explore=explore)


def _lines(verdict: Verdict) -> list[list[str]]:
    """Returns the kernel's text at the lines of each finding."""
    source = inspect.getsource(node_kernels).splitlines()
    return [
        [source[int(step.where.rsplit(":", 1)[1]) - 1].strip() for step in finding.steps]
        for finding in verdict.findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_rule_finds_unordered_accesses(name: str) -> None:
    ranks, rule, first, second = CASES[name]
    verdict = _check(name, ranks, right=False)
    assert {finding.rule.id for finding in verdict.findings} == {rule}, str(verdict)
    assert any(first in a and second in b for a, b in _lines(verdict)), str(verdict)
    assert _check(name, ranks, off=(rule,), right=False).kind == "clean"


@pytest.mark.parametrize("name", [*CASES, "two_collectives", "begin_rounds"])
def test_the_right_kernel_is_clean(name: str) -> None:
    for ranks in {CASES.get(name, (3,))[0], 4}:
        verdict = _check(name, ranks, right=True)
        assert verdict.kind == "clean", str(verdict)


ORDERED = [
    {},
    {"store": ("relaxed", "sys"), "before": "sys"},
    {"load": ("relaxed", "sys"), "after": "sys"},
    {"store": ("volatile", ""), "before": "sys", "load": ("volatile", ""), "after": "sys"},
]
UNORDERED = [
    {"store": ("release", "gpu")},
    {"load": ("acquire", "gpu")},
    {"store": ("release", "gpu"), "load": ("acquire", "gpu")},
    {"store": ("relaxed", "sys"), "before": "gpu"},
    {"load": ("relaxed", "sys"), "after": "gpu"},
    {"store": ("relaxed", "sys")},
]


@pytest.mark.parametrize("config", ORDERED, ids=str)
def test_release_and_acquire_in_system_scope_order_ranks(config: dict[str, Any]) -> None:
    verdict = _check("send_word", 2, **config)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("config", UNORDERED, ids=str)
def test_a_narrower_scope_does_not_order_ranks(config: dict[str, Any]) -> None:
    verdict = _check("send_word", 2, **config)
    assert {finding.rule.id for finding in verdict.findings} == {"peer-race"}, str(verdict)
    assert ["x[after_this][0] = x.rank", "y[0] = x[x.rank][0]"] in _lines(verdict)


def _placed(ranks: int, upwards: bool, count: int) -> PerRank:
    """Returns words of each rank that lie in one block of memory, those of rank 0 first or last."""
    block = np.zeros((ranks, count), np.uint32)
    return PerRank(list(block) if upwards else list(block[::-1]))


@pytest.mark.parametrize("config", [{"store": ("release", "gpu")}, {"store": ("relaxed", "sys")}], ids=str)
def test_the_text_of_a_finding_depends_on_no_schedule_and_no_address(config: dict[str, Any]) -> None:
    texts = set()
    for seed, upwards in [(0, True), (0, False), (5, True), (8, False)]:
        args = [_placed(4, upwards, 1) for _ in range(3)]
        verdict = check(node_kernels.send_word.configure(**config), 1, args=args, device="h200x4", seed=seed)
        texts.add("\n".join(str(replace(finding, seed=0)) for finding in verdict.findings))
    assert len(texts) == 1, "\n\n".join(texts)
    assert "CTA (0, 0, 0) of rank 0, thread 0)\n  second:" in texts.pop()


def test_the_repair_of_a_narrow_flag_names_the_scope_of_the_system() -> None:
    finding = _check("send_word", 2, store=("release", "gpu")).findings[0]
    assert str(finding).splitlines()[3:] == [
        "  a flag that one thread releases and the other acquires is between them, but in scope .gpu, which does not "
        "include both threads",
        "  repair: give the release and the acquire of the flag scope .sys (PTX ISA 8.5, 8.8 and 8.9.4)",
    ]
    assert {step.cta.rank for step in finding.steps} == {0, 1}
    assert {
        step["rank"] for step in _check("send_word", 2, store=("relaxed", "sys")).as_dict()["findings"][0]["steps"]
    } == {0, 1}


def test_without_any_flag_the_ranks_are_named() -> None:
    finding = _check("send_word", 2, store=("relaxed", "sys")).findings[0]
    assert finding.message == "they are on different GPUs, and no release and acquire at sys scope orders them"


def test_atomic_operations_of_two_gpus_need_the_scope_of_the_system() -> None:
    assert _check("count_all", 3).kind == "clean"
    finding = _check("count_all", 3, scope="gpu").findings[0]
    assert (finding.rule.id, finding.message) == (
        "peer-race",
        "both are strong, but scope .gpu does not include both threads",
    )
    assert finding.rule.repair == "give both scope .sys"


def _line(text: str) -> str:
    """Returns the file and line of a text in the kernels."""
    for module in (node_kernels, global_kernels):
        for number, line in enumerate(inspect.getsource(module).splitlines(), 1):
            if text in line:
                return f"{Path(str(module.__file__)).name}:{number}"
    raise AssertionError(text)


def _deadlock(name: str, ranks: int) -> tuple[str, ...]:
    """Returns what the ranks wait for in the deadlock of a wrong kernel."""
    verdict = _check(name, ranks, right=False)
    assert [finding.rule.id for finding in verdict.findings] == ["deadlock"]
    hang = verdict.findings[0].hang
    assert hang is not None
    page = " ".join(str(verdict.findings[0]).split())
    assert all(text in page for text in hang.ranks)
    return hang.ranks


SPIN = "Break(when=ld(pointer, **how) == value)"


def test_ranks_that_disagree_on_the_order_of_collectives_wait_for_one_another() -> None:
    spin, add = _line(SPIN), _line("red.add(flags[rank] + number")
    assert _deadlock("two_collectives", 2) == (
        f"rank 0, cluster 0, waits at {spin} for byte 0 of flags of rank 0, which is 1 and was last written by rank 0 "
        f"at {add}",
        f"rank 1, cluster 0, waits at {spin} for byte 4 of flags of rank 1, which is 1 and was last written by rank 1 "
        f"at {add}",
    )


def test_a_flag_that_is_used_again_too_early_is_missed_by_a_rank() -> None:
    spin, store = _line(SPIN), _line('st(pointer, value, sem="release", scope="sys")')
    assert _deadlock("begin_rounds", 2) == (
        f"rank 1, cluster 0, waits at {spin} for byte 0 of flags of rank 0, which is 3 and was last written by rank 0 "
        f"at {store}",
    )


def test_a_launch_tells_the_ranks_of_a_deadlock() -> None:
    with pytest.raises(Deadlock) as caught:
        launch(
            node_kernels.two_collectives.configure(right=False), 1, args=_args("two_collectives", 2), device="h200x2"
        )
    assert "CTA (0, 0, 0) of rank 0, warp 0, lane 0: runs in circles" in str(caught.value)
    assert "CTA (0, 0, 0) of rank 1, warp 0, lane 0: runs in circles" in str(caught.value)
