"""Other schedules find mistakes that the default schedule hides, and a seed reproduces a schedule.

``python -m tests.races.test_explore [SEEDS]`` runs every level of both ladders on SEEDS schedules (20): some minutes.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.races import deadlock_kernels, kernels, schedule_kernels
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.lang import Kernel
from warpwright.ops.launches import launches
from warpwright.ops.matmul.call import matmul
from warpwright.run import exploration
from warpwright.run.check import check
from warpwright.targets import DEVICES
from warpwright.vgpu import Device
from warpwright.vgpu.checks import watch
from warpwright.vgpu.checks.findings import Verdict

WORDS, BOX = np.zeros(512, np.uint32), np.ones((32, 32), np.float32)
# kernel: arguments, rules that the default schedule does not find and others do
HIDDEN: dict[str, tuple[list[Any], set[str]]] = {
    "skip_wait": ([WORDS], {"race", "uninitialised"}),
    "skip_arrival": ([BOX], {"deadlock"}),
    "out_of_order": ([BOX], {"race"}),
    "slow_waiter": ([5], {"deadlock"}),
}
SEEDS = 12


def _check(name: str, *, right: bool = False, **how: Any) -> Verdict:
    off = () if right else "mbarrier-lapped"  # this rule finds `slow_waiter` from one schedule
    return check(getattr(schedule_kernels, name).configure(right=right), 1, args=HIDDEN[name][0], off=off, **how)


def _rules(verdict: Verdict) -> set[str]:
    return {finding.rule.id for finding in verdict.findings}


@pytest.mark.parametrize("name", HIDDEN)
def test_another_schedule_finds_a_hidden_mistake(name: str) -> None:
    assert _check(name).kind == "clean"
    verdict = _check(name, explore=SEEDS)
    assert _rules(verdict) == HIDDEN[name][1]
    assert verdict.seeds == tuple(range(SEEDS + 1))
    assert all(finding.seed for finding in verdict.findings)


@pytest.mark.parametrize("name", HIDDEN)
def test_a_seed_runs_the_same_schedule_again(name: str) -> None:
    explored = _check(name, explore=SEEDS)
    for found in explored.findings:
        first, second = (_check(name, seed=found.seed) for _ in range(2))
        assert first == second
        assert found in first.findings
        assert first.seeds == (found.seed,)


@pytest.mark.parametrize("name", HIDDEN)
def test_the_correct_kernel_is_clean_on_every_schedule(name: str) -> None:
    verdict = _check(name, right=True, explore=2 * SEEDS)
    assert verdict.kind == "clean", str(verdict)


def test_another_schedule_turns_a_lapped_phase_into_a_deadlock() -> None:
    wrong = kernels.lapped_waiter.configure(right=False)
    assert _rules(check(wrong, 1, args=[5])) == {"mbarrier-lapped"}
    verdict = check(wrong, 1, args=[5], explore=SEEDS)
    (found,) = (finding for finding in verdict.findings if finding.rule.id == "deadlock")
    assert "had ended when watch tested phase" in found.rule.repair
    assert f"  in the schedule of seed {found.seed}; to run it again: seed={found.seed}\n" in str(found)
    assert str(verdict).startswith(
        f"lapped_waiter on h200: findings; 49 of 49 instructions reached; {SEEDS + 1} schedules with 4 orders of "
        "synchronisation\n"
    )


@pytest.mark.parametrize(
    ("kernel", "args", "orders"),
    [
        (schedule_kernels.skip_wait, [WORDS], 2),  # two atomic operations
        (schedule_kernels.out_of_order, [BOX], 2),  # copies complete in two phases
        (schedule_kernels.out_of_order.configure(right=True), [BOX], 1),
        (schedule_kernels.slow_waiter, [5], 8),  # a wait misses a phase
        (schedule_kernels.slow_waiter.configure(right=True), [5], 1),
        (schedule_kernels.crossed_locks.configure(right=True), [WORDS], 2),  # either warp may be first
    ],
)
def test_schedules_with_one_order_of_synchronisation_count_once(kernel: Kernel, args: list[Any], orders: int) -> None:
    assert check(kernel, 1, args=args, explore=2 * SEEDS).orders == orders


def test_accesses_that_commute_have_one_order() -> None:
    """Two warps add to a word; a third one polls it."""
    kernel = schedule_kernels.counted
    assert check(kernel, 1, args=[WORDS], explore=2 * SEEDS).orders == 1
    assert check(kernel.configure(numbers=True), 1, args=[WORDS], explore=2 * SEEDS).orders == 2


def test_a_launch_without_choice_runs_twice() -> None:
    verdict = check(schedule_kernels.increment, 1, args=[np.zeros(64, np.uint32)], explore=SEEDS)
    assert (verdict.kind, verdict.seeds, verdict.orders) == ("clean", (0, 1), 1)
    assert str(verdict).splitlines()[1] == (
        "2 of 13 schedules ran: this launch has one order of synchronisation, in every schedule"
    )


def test_an_exploration_ends_without_new_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "_FRUITLESS", 5)
    kernel = schedule_kernels.slow_waiter.configure(right=True)
    verdict = check(kernel, 1, args=[5], explore=SEEDS)
    assert (verdict.kind, verdict.seeds) == ("clean", (0, *range(1, 7)))
    assert verdict.unexplored == (
        "7 of 13 schedules ran: the last 5 had no new order of synchronisation; further ones may still have one",
    )


def test_an_exploration_ends_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "SECONDS", 0.0)
    verdict = _check("skip_wait", explore=SEEDS)
    assert (verdict.kind, verdict.seeds) == ("clean", (0,))
    assert str(verdict).splitlines() == [
        "skip_wait on h200: clean; 30 of 30 instructions reached; 1 schedule with 1 order of synchronisation",
        "1 of 13 schedules ran in 0 s, the time of an exploration; to run the others: explore=12, seed=1",
    ]
    assert _check("skip_wait", explore=SEEDS, seed=1).seeds == (1,)


def test_a_deadlock_of_locks_is_proved_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt to acquire a lock leaves two rows; few of them are judged."""
    judged, apply_row = [], watch.apply_row
    monkeypatch.setattr(watch, "apply_row", lambda known, row: judged.append(apply_row(known, row)))
    verdict = check(schedule_kernels.crossed_locks, 1, args=[WORDS], seed=51, limit=100_000)
    assert _rules(verdict) == {"deadlock"}, str(verdict)
    assert len(judged) < 2_000, len(judged)


def test_schedules_interleave_clusters() -> None:
    """Clusters that run one after the other do not show the mistake."""
    words = np.zeros(64, np.uint32)
    off = ("grid-race",)
    assert check(schedule_kernels.shared_counter, 4, args=[words], off=off, seed=0).findings == ()
    verdict = check(schedule_kernels.shared_counter, 4, args=[words], off=off, explore=2 * SEEDS)
    assert _rules(verdict) == {"deadlock"}
    seed = verdict.findings[0].seed
    assert check(schedule_kernels.shared_counter, 4, args=[words], off=off, seed=seed).findings == verdict.findings
    right = schedule_kernels.shared_counter.configure(right=True)
    assert check(right, 4, args=[words], off=off, explore=2 * SEEDS).kind == "clean"


def test_coverage_joins_all_schedules() -> None:
    """The default schedule misses a branch that another schedule takes."""
    alone, explored = (
        check(schedule_kernels.order_dependent_store, 1, args=[WORDS.copy()], explore=count) for count in (0, SEEDS)
    )
    assert (alone.kind, explored.kind, len(explored.seeds)) == ("incomplete", "clean", SEEDS + 1)
    assert alone.coverage.reached < explored.coverage.reached == explored.coverage.present


def test_a_check_leaves_the_arrays_as_they_were() -> None:
    counters, strided = np.zeros(64, np.uint32), np.zeros(128, np.uint32)
    check(schedule_kernels.increment, 1, args=[counters], explore=3)
    check(schedule_kernels.increment, 1, args=[strided[::2]])
    assert not counters.any() and not strided.any()


def test_updated_arrays_have_the_results_of_the_first_schedule() -> None:
    """Every schedule begins with the same arrays."""
    counters = np.zeros(64, np.uint32)
    check(schedule_kernels.increment, 1, args=[counters], explore=3, update=True)
    assert counters.tolist() == [1] * 64
    check(schedule_kernels.increment, 1, args=[counters], seed=5, update=True)
    assert counters.tolist() == [2] * 64


@pytest.mark.parametrize("seed", [None, 3])
def test_a_kernel_over_the_limit_of_jumps_is_incomplete(seed: int | None) -> None:
    verdict = check(deadlock_kernels.poll_phase, 1, args=[4_000_000_000], limit=1_000_000, seed=seed)
    assert verdict.kind == "incomplete"
    assert verdict.reasons == (
        "kernel poll_phase did not end within 1,000,000 jumps of a warp; give a higher limit, or "
        "choose a smaller problem.",
    )
    assert check(deadlock_kernels.poll_phase, 1, args=[40_000], limit=1_000_000, seed=seed).kind == "clean"


@pytest.mark.parametrize("seed", [None, 3])
def test_a_kernel_over_the_limit_of_accesses_is_incomplete(seed: int | None) -> None:
    """A warp loops for ever, and stores 40 times in every iteration."""
    verdict = check(schedule_kernels.store_for_ever, 1, args=[4_000_000_000], limit=20_000, seed=seed)
    assert verdict.kind == "incomplete"
    assert verdict.reasons == (
        "kernel store_for_ever did not end within 20,000 accesses and barriers; give a higher limit, or choose a "
        "smaller problem.",
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"explore": -1}, "given explore=-1; expected 0 or more"),
        ({"seed": -2}, "given seed=-2; expected 0 or more"),
        ({"limit": 0}, "given limit=0; expected a positive number of jumps, such as limit=2_000_000"),
    ],
)
def test_check_refuses_impossible_options(how: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(schedule_kernels.increment, 1, args=[WORDS], **how)
    assert str(caught.value) == message


def _explore_gemm(device: str, level: int, shape: tuple[int, int, int], sms: int, count: int) -> tuple[Verdict, bool]:
    """Returns the verdict on a GEMM (M, N, K), and whether its result is correct."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    target = Device(replace(DEVICES[device], sms=sms))

    call = launches(matmul, a, b.T, device=target, level=level)
    verdicts = [
        check(each.kernel, each.grid, args=each.args, device=target, explore=count, update=True) for each in call
    ]
    expected = a.astype(np.float32) @ b.T.astype(np.float32)
    return verdicts[0], bool(np.allclose(call.result.astype(np.float32), expected, atol=0.5))


def _explore_flow(count: int) -> tuple[Verdict, bool]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    d = np.zeros((128, 128), np.float32)
    verdict = check(memory_flow, 1, args=arguments(a, b, d), explore=count, update=True)
    return verdict, bool(np.allclose(d, a.astype(np.float32) @ b.T.astype(np.float32), atol=1e-2))


LADDERS = {
    **{f"blackwell {level}": ("b200", level, (256, 256, 192), 8) for level in (1, 2, 3, 4)},
    **{f"blackwell {level}": ("b200", level, (512, 384, 256), 4) for level in (5, 6, 8, 10)},
    "blackwell 7": ("b200", 7, (1024, 384, 384), 4),
    "blackwell 9": ("b200", 9, (1024, 768, 384), 4),
    **{f"hopper {level}": ("h200", level, (128, 128, 256), 4) for level in (1, 2, 3)},
    **{f"hopper {level}": ("h200", level, (512, 512, 384), 4) for level in (4, 5, 6, 7, 8)},
}


@sampled("name", ["blackwell 2", "blackwell 7", "hopper 1", "hopper 4"], keep=["blackwell 2", "hopper 1"])
def test_a_gemm_is_clean_on_other_schedules(name: str) -> None:
    verdict, right = _explore_gemm(*LADDERS[name], 3)
    assert verdict.findings == (), str(verdict)
    assert right


def test_memory_flow_is_clean_on_other_schedules() -> None:
    verdict, right = _explore_flow(SEEDS)
    assert verdict.kind == "clean", str(verdict)
    assert right


def main(count: int) -> None:
    gemms = {name: functools.partial(_explore_gemm, *launch, count) for name, launch in LADDERS.items()}
    for name, run in {"memory_flow": functools.partial(_explore_flow, count), **gemms}.items():
        verdict, right = run()
        print(f"{name:12} {verdict.kind}{verdict.schedules}{'' if right else '; WRONG NUMBERS'}", flush=True)
        print(*verdict.findings, sep="\n", end="\n" * bool(verdict.findings))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
