"""compute-sanitizer over attention: ``python tests/gpu/sanitize_attention.py [--tools memcheck,racecheck]``.

Every kernel that a Hopper GPU can run, under memcheck, racecheck and synccheck, with and without a causal mask and in a
window: each configuration of the wgmma kernel, for packed sequences and few queries too, of its backward pass, and of
the mma.sync kernels, compiled for sm_90. Each result is verified against float64. The exit status is 0 only if no tool
has a finding; `sanitizer` explains how the tools themselves are tested.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sanitizer import main

sys.path.append(str(Path(__file__).parents[2]))

import warpwright as ww
from tests.gpu.test_attention_sm120 import ALL, on_gpu
from tests.kernels.attention import attention_helpers, backward_helpers, decode_helpers, varlen_helpers
from tests.kernels.attention.sm90.test_forward import prepare_launch
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import backward_plan as sm90_backward_plan
from warpwright.kernels.attention.sm90 import decode_plan as sm90_decode_plan
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm120 import plan as sm120_plan

MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (70, 20)}]
ALIKE = {  # modules that hand data over, by the small kernel that does it as they do
    "stored": ("steps",),  # sm90/steps.py
    "bulk": ("backward_steps",),
    "copied": ("steps",),  # sm120/steps.py
}
BASE = Problem(1, 4, 2, 200, 330, 64)
Check = Callable[[], None]


def forward(problem: Problem, config: sm90_plan.Config) -> None:
    """The wgmma kernel, with few CTAs, so that each has several tiles."""
    given = attention_helpers.normal_qkv(problem)
    found, kernel, args, (o, lse, _) = prepare_launch(problem, config, given, sms=2)
    ww.launch(kernel, found.grid, args=args, device="cuda")
    attention_helpers.verify(problem, given, (o, lse))


def sequences(problem: Problem, config: sm90_plan.Config) -> None:
    """The same for packed sequences, one of them empty."""
    given = varlen_helpers.pack_sequences(problem, [65, 0, 130], [100, 20, 200])
    grid, kernel, args, (o, lse, _) = varlen_helpers.prepare_launch(problem, config, given, sms=2)
    ww.launch(kernel, grid, args=args, device="cuda")
    varlen_helpers.verify_packed(problem, given, (o, lse))


def few(problem: Problem) -> None:
    """The kernel that splits keys over CTAs."""
    given = attention_helpers.normal_qkv(problem)
    attention_helpers.verify(problem, given, decode_helpers.run_decode(problem, given, device="cuda"))


def backward(problem: Problem) -> None:
    """The backward pass, with the configuration for head dimension and mask."""
    given = backward_helpers.random(problem)
    values = backward_helpers.arrays(problem, given)
    for kernel, grid, args in backward_helpers.launches(problem, values):
        ww.launch(kernel, grid, args=args, device="cuda")
    backward_helpers.verify(problem, given, tuple(values[name] for name in backward_helpers.NAMES))


def with_mma_sync(problem: Problem, config: sm120_plan.Config) -> None:
    given = attention_helpers.normal_qkv(problem)
    attention_helpers.verify(problem, given, on_gpu(problem, config, *given))


def checks() -> Iterator[tuple[str, Check]]:
    """Yields the checks by name."""
    for mask in MASKS:
        for name, config in sm90_plan.CONFIGS.items():
            problem = replace(BASE, head_dim=config.head_dim, **mask)
            yield f"wgmma {name} {mask}", partial(forward, problem, config)
            yield f"wgmma, packed {name} {mask}", partial(sequences, problem, config)
        for head_dim in sm90_decode_plan.CONFIGS:
            for q_len in (1, 20):
                problem = replace(BASE, head_dim=head_dim, q_len=q_len, **mask)
                yield f"few queries {head_dim}, {q_len} {mask}", partial(few, problem)
        for head_dim in sm90_backward_plan.HEAD_DIMS:
            yield f"backward {head_dim} {mask}", partial(backward, replace(BASE, head_dim=head_dim, **mask))
        for name, small in ALL.items():
            problem = replace(BASE, head_dim=small.head_dim, **mask)
            yield f"mma.sync {name} {mask}", partial(with_mma_sync, problem, small)


def verify_all(_: argparse.Namespace) -> bool:
    """Returns whether all results are verified; the work under a tool."""
    wrong = [name for name, check in checks() if not right(name, check)]
    return not wrong


def right(name: str, check: Check) -> bool:
    try:
        check()
    except AssertionError as error:
        print(f"{name}: WRONG: {error}", flush=True)
        return False
    print(f"{name}: right", flush=True)
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    main(parser, verify_all, ALIKE)
