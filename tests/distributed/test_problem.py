"""Problems of calls, and the engines that the table chooses for them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from warpwright.distributed import gather, scatter
from warpwright.distributed.choice import IN_TURN, choose
from warpwright.distributed.facts import FACTS
from warpwright.distributed.problem import Problem, describe_gather, describe_scatter, major_of
from warpwright.errors import UsageError

ENGINES = {"all_gather_matmul": gather.ENGINES, "matmul_reduce_scatter": scatter.ENGINES}


def problem_of(fact: object, **changes: object) -> Problem:
    operation, ranks, m, n, k, *_ = fact  # type: ignore[misc]
    return Problem(operation, ranks, m // ranks, k, (n,), ("k",), torch.bfloat16)._replace(**changes)


@pytest.mark.parametrize("fact", FACTS)
def test_a_measured_problem_has_its_engine(fact: object) -> None:
    assert fact.engine in ENGINES[fact.operation]  # type: ignore[attr-defined]
    assert choose(problem_of(fact), "sm_90a") == fact.engine  # type: ignore[attr-defined]


def test_what_no_kernel_takes_runs_in_turn() -> None:
    problem = problem_of(FACTS[0])
    assert choose(problem, "sm_90a") == FACTS[0].engine != IN_TURN
    assert choose(problem, "sm_100a") == IN_TURN
    for changes in ({"dtype": torch.float32}, {"k": 4097}, {"columns": (3073,)}, {"majors": ("",)}, {"ranks": 1}):
        assert choose(problem._replace(**changes), "sm_90a") == IN_TURN


def test_some_engines_take_weights_along_k_alone() -> None:
    for fact in FACTS:
        other = choose(problem_of(fact, majors=("mn",)), "sm_90a")
        assert not other.startswith("kernel")
        assert not other.endswith("192")


def test_layouts_of_weights() -> None:
    weight = torch.empty(64, 48, dtype=torch.bfloat16)
    assert (major_of(weight), major_of(weight.T)) == ("mn", "k")
    assert major_of(weight[:, :40]) == "mn"
    assert major_of(weight[:, ::2]) == major_of(weight[:, 1:]) == ""


def test_tensors_that_do_not_fit_together() -> None:
    x, weight = torch.empty(8, 64), torch.empty(64, 48)
    assert describe_gather(x, [weight, weight.clone()], 2).columns == (48, 48)
    assert describe_scatter(x, weight, 2).text == "matmul_reduce_scatter of 4 rows a rank, K=64, N=48, float32"
    for call, sentence in (
        (
            lambda: describe_gather(x, [weight.T], 2),
            "all_gather_matmul: given x of shape (8, 64) and a weight of (48, 64); expected (…, K) and (K, N); a "
            "torch.nn.Linear has the transpose: linear.weight.T",
        ),
        (
            lambda: describe_scatter(x, weight.half(), 2),
            "matmul_reduce_scatter: given x of torch.float32 and a weight of torch.float16; expected one dtype",
        ),
        (
            lambda: describe_scatter(x, weight, 3),
            "matmul_reduce_scatter: given 8 rows for 3 ranks; expected a multiple of 3",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == sentence
