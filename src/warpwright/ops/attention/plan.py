"""The plan of an attention: its kernel, configuration and launches.

Q, K, V and O are (batch, heads, rows, head_dim), of any strides with dense rows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpwright import types
from warpwright.arrays.libraries import View
from warpwright.errors import UsageError
from warpwright.kernels.attention.problem import HEAD_STEP, Problem
from warpwright.kernels.attention.sm90 import decode as sm90_decode
from warpwright.kernels.attention.sm90 import decode_plan as sm90_decode_plan
from warpwright.kernels.attention.sm90 import direct as sm90
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm90.plan import NARROW_VALUES
from warpwright.kernels.attention.sm100 import decode as sm100_decode
from warpwright.kernels.attention.sm100 import decode_plan as sm100_decode_plan
from warpwright.kernels.attention.sm100 import kernel as sm100
from warpwright.kernels.attention.sm100 import plan as sm100_plan
from warpwright.kernels.attention.sm120 import kernel as sm120
from warpwright.kernels.attention.sm120 import plan as sm120_plan
from warpwright.lang.trace import Traced
from warpwright.ops.binding import Grid, Launch, Plan, Stride, as_strided
from warpwright.ops.hooks import environment_reader
from warpwright.targets import kernels_of

__all__ = [
    "COUNTER",
    "OWN",
    "SETTING",
    "Choice",
    "Explanation",
    "check_narrow_values",
    "choose",
    "choose_kernel",
    "explain",
    "padding_of",
    "plan_of",
    "plan_of_step",
    "read_setting",
    "setting",
]

SETTING = "WARPWRIGHT_ATTENTION_TMA"
SETTINGS = {"0": False, "1": True, "-1": None}
AUTO_ABOVE = {"sm_90a": 64, "sm_100a": 64, "sm_120a": 512}  # TMA is faster for more keys; measured on an H200 only
MANY_HEADS = 256  # of all sequences: TMA is faster for fewer keys too, as `prefers_tma` says
read_setting = environment_reader(SETTING)  # the value in the environment, unchecked
ARRAYS = "qkvo"
SPLIT_AXES = 5
COUNTER = 1  # words of a counter of tiles

# Targets with kernels of their own: the kernel's name, its plan, and the kernel of a configuration.
OWN: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "sm_90a": ("sm90.attention", sm90_plan.plan, sm90.kernel_of),
    "sm_100a": ("sm100.attention", sm100_plan.plan, sm100.kernel_of),
}


class Split(NamedTuple):
    """Few queries on a target: the kernel's name, whether it suits a problem, its plan, and that of a configuration."""

    kernel: str
    suits: Callable[..., bool]
    plan: Callable[..., Any]
    kernel_of: Callable[..., Any]


SPLIT = {
    "sm_90a": Split("sm90_decode.attention", sm90_decode_plan.suits, sm90_decode_plan.plan, sm90_decode.kernel_of),
    "sm_100a": Split("sm100_decode.attention", sm100_decode_plan.suits, sm100_decode_plan.plan, sm100_decode.kernel_of),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which kernel runs, whether it copies by TMA, and why."""

    kernel: str
    tma: bool
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """How an attention ran: ``kernel`` and its ``config``, ``device``, whether it copied by ``tma``, and ``why``."""

    kernel: str
    config: Any
    device: str
    tma: bool
    why: str

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value}" for name, value in self.config.keywords.items())
        return f"{self.kernel} on {self.device}: {options}; TMA {'on' if self.tma else 'off'}: {self.why}"


def explain(plan: Plan | None, device: str) -> Explanation | None:
    """Returns how ``plan`` runs on ``device``; None without a plan."""
    return None if plan is None else Explanation(plan.kernel, plan.config, device, plan.tma, plan.why)


def setting() -> bool | None:
    """Returns the setting of TMA in the environment: on, off, or None for whichever is faster.

    Raises UsageError for any other value.
    """
    value = os.environ.get(SETTING, "-1")
    if value not in SETTINGS:
        raise UsageError(
            f"attention: {SETTING}={value!r}; expected 0 (off), 1 (on) or -1 (on where it is faster), the values of "
            "PYGPUKIT_FA3_TMA; PYGPUKIT_FA3 and PYGPUKIT_FLASH_ATTENTION have no counterpart: unset it"
        )
    return SETTINGS[value]


def choose_kernel(problem: Problem, arch: str, tma: bool | None) -> Choice:
    """Returns the kernel for ``problem`` on ``arch``, with or without ``tma``; None: whichever is faster.

    Raises UsageError for a target without a kernel.
    """
    own = kernels_of(arch)
    if own not in AUTO_ABOVE:
        known = ", ".join(AUTO_ABOVE)
        raise UsageError(f"attention has no kernel for {arch}; expected {known}: device='h200', or 'cuda'")
    if problem.columns != problem.head_dim:
        check_narrow_values(problem, f", and {SETTING}=0" * (tma is False))
        return Choice(OWN[own][0], True, f"q and k have {problem.head_dim} columns and v has {problem.columns}")
    use, why = prefers_tma(problem, own) if tma is None else (tma, f"{SETTING}={int(tma)}")
    if not use:
        return Choice("sm120.attention_cp_async", False, why)
    return Choice(OWN[own][0] if own in OWN else "sm120.attention", True, why)


def prefers_tma(problem: Problem, own: str) -> tuple[bool, str]:
    """Returns whether the kernels with TMA are faster for ``problem`` than that with cp.async, and why.

    ``own`` is the target that has the kernels. With at most 64 keys, and `MANY_HEADS`, TMA is faster if the queries
    that share a head of keys are at most 64, or if each head has more than 64 queries.
    """
    above, heads = AUTO_ABOVE[own], problem.batch * problem.heads
    if problem.kv_len > above:
        return True, f"{problem.kv_len} keys are more than {above}"
    why = f"{problem.kv_len} keys are no more than {above}"
    if own in SPLIT and heads >= MANY_HEADS and not problem.q_len <= sm90_plan.STRIP < problem.q_len * problem.group:
        return True, f"{why}, but {heads} heads are at least {MANY_HEADS}"
    return False, why


def padding_of(head_dim: int, value_dim: int) -> str:
    """Returns how q, k and v get the same columns."""
    if value_dim < head_dim:
        return f"pad v with zeros to {head_dim}"
    return f"pad q and k with zeros to {value_dim} and give scale={head_dim}**-0.5"


def check_narrow_values(problem: Problem, given: str = "") -> None:
    """Raise UsageError if V has other columns than Q and K, and no kernel has these, or none with what is ``given``."""
    columns, own, most, of_v = problem.head_dim, problem.columns, NARROW_VALUES.head_dim, NARROW_VALUES.columns
    if own == columns or not (given or columns > most or own > of_v or own % HEAD_STEP):
        return
    raise UsageError(
        f"attention: q and k have head dimension {columns} and v has {own}{given}; expected multiples of {HEAD_STEP} "
        f"up to {most} and {of_v}, by TMA and without functions of scores or masks: {padding_of(columns, own)}"
    )


@functools.lru_cache(maxsize=1024)
def choose(problem: Problem, arch: str, sms: int, tma: bool | None, workspace: bool = True) -> Plan:
    """Returns the plan of ``problem`` on a device of ``sms`` SMs; ``workspace``: kernels may take a workspace."""
    choice, dtype, own = choose_kernel(problem, arch, tma), types.of_dtype(problem.dtype), kernels_of(arch)
    same = problem.columns == problem.head_dim
    if choice.tma and same and own in SPLIT and workspace and SPLIT[own].suits(problem, sms=sms):
        return _split_keys(SPLIT[own], problem, arch, sms, choice)
    if choice.tma and own in OWN:
        _, planned, kernel_of = OWN[own]
        found = planned(problem, sms=sms)
        kernel = kernel_of(found.config).trace(arch, dtype=dtype, bounds=found.bounds)
        counted = any(name == "counter" for name, _ in kernel.params)
        words = COUNTER if counted and workspace and found.uneven else None
        return plan_of(problem, choice, kernel, found.grid, found.config, found.scalars, words)
    fallback = sm120_plan.plan(problem, tma=choice.tma, arch=arch)
    return _plan_by(fallback, problem, choice, arch)


def plan_of_step(problem: Problem, step: str, arch: str) -> Plan:
    """Returns the plan of ``problem`` by a step of the sm_120a kernel. Raises UsageError for an unknown step."""
    config = sm120_plan.STEPS.get(step)
    if config is None:
        raise UsageError(f"given step {step}; expected one of {', '.join(sm120_plan.STEPS)}; choose an existing step")
    choice = Choice(f"sm120 step {step}", True, f"step {step}")
    return _plan_by(sm120_plan.plan(problem, config=config), problem, choice, arch)


def _plan_by(found: sm120_plan.Plan, problem: Problem, choice: Choice, arch: str) -> Plan:
    kernel = sm120.kernel_of(found.config).trace(arch=arch, dtype=types.of_dtype(problem.dtype))
    return plan_of(problem, choice, kernel, found.grid, found.config, found.scalars)


def plan_of(
    problem: Problem,
    choice: Choice,
    kernel: Traced,
    grid: Grid,
    config: Any,
    scalars: tuple[int | float, ...],
    words: int | None = None,
    last: tuple[Traced, Grid] | None = None,
) -> Plan:
    """Returns the plan of one kernel, and of ``last``, which combines the partial results in the workspace.

    The parameters of every kernel are Q, K, V and O, for those without a tensor map the strides and the columns, the
    log-sum-exp, the counter or workspace if the kernel has one, and ``scalars``.
    """
    names = [name for name, _ in kernel.params]
    plain = [name for name in ARRAYS if name not in kernel.maps]
    strides = [Stride(name, axis) for name in plain for axis in range(3)]
    memory = ["workspace" if words else 0] * (not {"counter", "workspace"}.isdisjoint(names))
    args = *ARRAYS, *strides, *[problem.head_dim] * bool(plain), "lse", *memory, *scalars
    launches = [Launch(kernel, grid, args)]
    if last is not None:
        launches.append(Launch(*last, args[len(ARRAYS) - 1 : -1], dependent=True))
    split = [name for name, use in kernel.maps.items() if len(use.box) == SPLIT_AXES]
    mapped = functools.partial(_split_heads, split, problem.group) if split else None
    how: dict[str, Any] = {"kernel": choice.kernel, "tma": choice.tma, "why": choice.why}
    return Plan(tuple(launches), config, words, **how, mapped=mapped)


def _split_keys(split: Split, problem: Problem, arch: str, sms: int, choice: Choice) -> Plan:
    """Returns the plan that splits the keys of a tile among CTAs."""
    found = split.plan(problem, sms=sms)
    options: dict[str, Any] = {"dtype": types.of_dtype(problem.dtype), "bounds": found.bounds}
    kernel = split.kernel_of(found.config).trace(arch, **options)
    why = f"{choice.why}; tiles of queries: {found.tiles}, CTAs that share out their keys: {found.grid[0]}"
    combine = sm90_decode.combine_of(found.config)
    last = (combine.trace(arch, **options), found.combine_grid) if found.combine_grid else None
    choice = Choice(split.kernel, True, why)
    return plan_of(problem, choice, kernel, found.grid, found.config, found.scalars, found.words, last)


def _split_heads(names: Sequence[str], group: int, views: Mapping[str, View]) -> Mapping[str, View]:
    """Returns ``views``, of ``names`` (batch, heads, rows, head_dim) as (batch, kv_heads, group, rows, head_dim)."""
    found = dict(views)
    for name in names:
        (batch, heads, *rest), (far, step, *near) = views[name].shape, views[name].strides
        found[name] = as_strided(views[name], (batch, heads // group, group, *rest), (far, group * step, step, *near))
    return found
