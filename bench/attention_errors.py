"""Errors of attention on a real Hopper GPU beside cuDNN's and FlashAttention's: ``python bench/attention_errors.py``.

All implementations read the same bfloat16 arrays and are compared with float64, draw by draw. Each of them rounds P and
O to bfloat16, so single errors differ by chance. A row has, over ``--seeds`` draws, the ratio of our mean error to
cuDNN's, and the ratio of the means of the maximum errors of the draws, each with its standard error (a jackknife over
draws), and the ratio of the maximum error of all draws. ``no larger``: neither of the first two is above 1 by more than
three standard errors, which happens by chance once in 740 comparisons; "-" for a single key, for which cuDNN has no
kernel. The lines below the table count the rows in which our error is larger, by any amount.

- random: the problems of ``bench/attention.py``, standard normal; 16384 rows of each are compared
- lengths: 1, 63, 64, 65, 127, 129 and 1000 queries and keys, causal or not, and queries other than keys
- adversarial: one-hot keys, scores of hundreds, scores that grow block by block, scores of -inf, +inf and NaN. A result
  that is not finite in float64 must be the same in ours; ``cudnn same`` says whether it is in cuDNN's
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from attention import TOKENS, problems, table

import warpwright as ww
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.trials import PEERS, peer

LENGTHS = (1, 63, 64, 65, 127, 129, 1000)
UNEQUAL = ((1, 1000), (65, 129), (129, 64), (1000, 127))
HEAD_DIMS = (64, 128, 256)
OURS, PEER = "ours", "cudnn"
Tensors = list[torch.Tensor]
Change = Callable[[Problem, Tensors], None]


@dataclass(frozen=True)
class Case:
    """Standard normal Q, K and V of ``problem``, modified by ``change``; ``heads`` are compared."""

    name: str
    problem: Problem
    change: Change | None = None
    heads: int = 1


def random_cases() -> Iterator[Case]:
    for problem in problems(list(HEAD_DIMS), [512, 1024, 2048, 4096, 8192, 16384]):
        yield Case("normal", problem, heads=TOKENS // problem.q_len)


def length_cases() -> Iterator[Case]:
    for head_dim in HEAD_DIMS:
        for length in LENGTHS:
            for causal in (False, True):
                yield Case("length", Problem(4, 8, 8, length, length, head_dim, causal=causal), heads=32)
        for q_len, kv_len in UNEQUAL:
            yield Case("lengths", Problem(4, 8, 8, q_len, kv_len, head_dim), heads=32)


def one_hot(problem: Problem, given: Tensors) -> None:
    """Each query has one key with a score far above the others."""
    q, k, _ = given
    unit = torch.eye(problem.head_dim, device=q.device, dtype=q.dtype)
    k.copy_(24 * unit[torch.arange(problem.kv_len) % problem.head_dim])
    q.copy_(24 * unit[torch.randperm(problem.q_len) % problem.head_dim])


def large(problem: Problem, given: Tensors) -> None:
    """Scores of hundreds."""
    given[0].mul_(20)
    given[1].mul_(8)


def growing(problem: Problem, given: Tensors) -> None:
    """Scores grow from the last key to the first, in the order of the blocks: every block rescales the sums."""
    keys = torch.linspace(60, 1, problem.kv_len, device=given[1].device)
    given[1].mul_(keys[:, None].bfloat16())


def minus_infinity(problem: Problem, given: Tensors) -> None:
    """Every third key has the score -inf for all queries."""
    q, k, _ = given
    q[..., 0] = q[..., 0].abs() + 1
    k[..., ::3, 0] = -math.inf


def rows_of_minus_infinity(problem: Problem, given: Tensors) -> None:
    """A query whose scores are all -inf."""
    q, k, _ = given
    k[..., 0] = k[..., 0].abs() + 1
    q[..., 5, 0] = -math.inf


def plus_infinity(problem: Problem, given: Tensors) -> None:
    q, k, _ = given
    k[..., 0] = k[..., 0].abs() + 1
    q[..., 5, 0] = math.inf


def nan_query(problem: Problem, given: Tensors) -> None:
    given[0][..., 9, 3] = math.nan


def nan_key(problem: Problem, given: Tensors) -> None:
    given[1][..., problem.kv_len // 2, 3] = math.nan


def nan_value(problem: Problem, given: Tensors) -> None:
    given[2][..., problem.kv_len // 2, 3] = math.nan


CHANGES: tuple[Change, ...] = (
    one_hot,
    large,
    growing,
    minus_infinity,
    rows_of_minus_infinity,
    plus_infinity,
    nan_query,
    nan_key,
    nan_value,
)


def adversarial_cases() -> Iterator[Case]:
    for change in CHANGES:
        for head_dim in HEAD_DIMS:
            for causal in (False, True) if change is not nan_value else (False,):  # hidden, it counts in its tile
                problem = Problem(4, 8, 8, 300, 300, head_dim, causal=causal)
                yield Case(change.__name__.replace("_", " "), problem, change, heads=32)


CASES = {"random": random_cases, "lengths": length_cases, "adversarial": adversarial_cases}


def exact(problem: Problem, tensors: Tensors) -> torch.Tensor:
    """Returns attention in float64, (heads, rows, head_dim). A query whose scores are all -inf has the output 0."""
    q, k, v = (tensor.double() for tensor in tensors)
    scores = (q @ k.mT).mul_(problem.factor)
    if problem.causal:
        scores.masked_fill_(torch.ones(scores.shape[1:], device=q.device, dtype=torch.bool).triu_(1), -math.inf)
    maxima = scores.amax(-1, keepdim=True)
    weights = scores.sub_(torch.where(maxima == -math.inf, 0.0, maxima)).exp_()
    total = weights.sum(-1, keepdim=True)
    return (weights @ v).div_(torch.where(total == 0, 1.0, total))


@dataclass
class Errors:
    """Mean and maximum error of each draw of one implementation; ``same``: not finite exactly where float64 is not."""

    means: list[float]
    maxima: list[float]
    same: bool = True

    def add(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        finite = wanted.isfinite()
        kinds = [test(found) == test(wanted) for test in (torch.isnan, torch.isposinf, torch.isneginf)]
        self.same &= bool(torch.stack([kind.all() for kind in kinds]).all())
        off = (found.double() - wanted).abs()[finite]
        self.means.append(float(off.mean()) if off.numel() else 0.0)
        self.maxima.append(float(off.max()) if off.numel() else 0.0)


def compare(case: Case, seeds: int) -> tuple[dict[str, Errors], str]:
    """Returns the errors of all implementations, and the name of our kernel."""
    problem, errors = case.problem, {name: Errors([], []) for name in (OURS, *PEERS)}
    of_q, of_k = ((problem.batch, problem.heads, rows, problem.head_dim) for rows in (problem.q_len, problem.kv_len))
    ran = ""
    for seed in range(seeds):
        torch.manual_seed(seed)
        given = [torch.randn(shape, device="cuda").bfloat16() for shape in (of_q, of_k, of_k)]
        if case.change:
            case.change(problem, given)
        chosen = torch.linspace(0, problem.batch * problem.heads - 1, case.heads).long()
        wanted = exact(problem, [tensor.flatten(0, 1)[chosen] for tensor in given])
        out = torch.full_like(given[0], math.nan)
        explanation = ww.attention(*given, causal=problem.causal, out=out, explain=True)[1]
        ran = f"{explanation.kernel} {'x'.join(map(str, explanation.config.tile))}"
        errors[OURS].add(out.flatten(0, 1)[chosen], wanted)
        for name in PEERS:
            if name != PEER or problem.kv_len > 1:  # cuDNN has no kernel for a single key
                errors[name].add(peer(name, problem, given).flatten(0, 1)[chosen], wanted)
    return errors, ran


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Returns the ratio of the means and its jackknife standard error; NaN without a peer."""
    count, sums = len(ours), (sum(ours), sum(theirs))
    if not theirs:
        return math.nan, 0.0
    if not sums[1]:
        return (math.inf if sums[0] else 1.0), 0.0
    if count == 1:
        return sums[0] / sums[1], math.inf
    left_out = [(sums[0] - a) / (sums[1] - b) for a, b in zip(ours, theirs, strict=True)]
    middle = sum(left_out) / count
    return sums[0] / sums[1], math.sqrt((count - 1) / count * sum((each - middle) ** 2 for each in left_out))


def row_of(case: Case, seeds: int) -> dict[str, Any]:
    errors, ran = compare(case, seeds)
    ours, theirs, flash = errors[OURS], errors[PEER], errors["flash"]
    problem = case.problem
    row: dict[str, Any] = {"case": case.name, "d": problem.head_dim, "q": problem.q_len, "kv": problem.kv_len}
    row |= {"causal": problem.causal, "kernel": ran}
    compares = bool(theirs.means)
    no_larger = True
    for name, mine, other in (("mean", ours.means, theirs.means), ("greatest", ours.maxima, theirs.maxima)):
        found, spread = ratio(mine, other)
        no_larger &= not found > 1 + 3 * spread
        row |= {
            name: float(f"{sum(mine) / seeds:.3e}"),
            f"{name} ratio": round(found, 4),
            f"± {name}": round(spread, 4),
        }
    row |= {"of all": round(max(ours.maxima) / (max(theirs.maxima) or 1.0), 3) if compares else math.nan}
    row |= {"flash ratio": round(ratio(flash.means, theirs.means)[0], 4), "same": ours.same}
    return row | {"cudnn same": theirs.same if compares else "-", "no larger": no_larger if compares else "-"}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the number of rows with a peer, the number of rows in which our error is larger (and by more than three
    standard errors), and the geometric means of the ratios."""
    rows = [row for row in rows if row["no larger"] != "-"]
    found: dict[str, Any] = {"cases": len(rows)}
    for name, column, spread in (
        ("mean error", "mean ratio", "± mean"),
        ("greatest of a draw, on average", "greatest ratio", "± greatest"),
        ("greatest of all draws", "of all", None),
    ):
        ratios = [row[column] for row in rows]
        above = [row for row in rows if row[column] > 1]
        each = {"larger": len(above)}
        if spread:
            each |= {"by three standard errors": sum(row[column] > 1 + 3 * row[spread] for row in above)}
        logs = [math.log(each) for each in ratios if 0 < each < math.inf]
        found[name] = each | {"geometric mean": round(math.exp(sum(logs) / max(len(logs), 1)), 4)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row_of(case, options.seeds) for name in options.cases.split(",") for case in CASES[name]()]
    if options.json:
        print(json.dumps({"rows": rows, "ours beside cudnn's": summary(rows)}, indent=1))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {options.seeds} draws\n\n{table(rows)}\n")
        print("\n".join(f"{name}: {value}" for name, value in summary(rows).items()))
    sys.exit(not all(row["same"] and row["no larger"] for row in rows))


if __name__ == "__main__":
    main()
