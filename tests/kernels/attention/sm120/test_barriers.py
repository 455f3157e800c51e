"""Every barrier of the reference kernel is needed: without it the verdict is a race."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import arguments, normal_qkv
from tests.samples import sampled
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.plan import STEPS
from warpwright.run.launch import load_ptx

PROBLEM = Problem(1, 1, 1, 20, 200, 64, causal=True)
STARTS = {"v3": 1, "fewer-syncs": 1}  # bar.sync before the loop, after the initialisation of the mbarriers


def verdict(name: str, missing: int | None):
    """Returns the verdict without barrier ``missing``, counted from the first of the loop, and their number."""
    config = replace(STEPS[name], head_dim=64)
    q, k, v = normal_qkv(PROBLEM)
    arrays = q, k, v, np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    traced, grid, args = arguments(PROBLEM, config, arrays)
    lines = re.findall(r"^\s*bar\.sync .*;$", traced.ptx, re.MULTILINE)
    text = traced.ptx
    if missing is not None:
        places = [found.span() for found in re.finditer(r"^\s*bar\.sync .*;$", text, re.MULTILINE)]
        start, end = places[STARTS[name] + missing]
        text = text[:start] + text[end:]
    args = [
        ww.TensorMap(x, traced.maps[n].box, swizzle=traced.maps[n].swizzle) for n, x in zip("qkvo", args, strict=False)
    ] + args[4:]
    entry = load_ptx(text)[traced.entry]
    return ww.check(entry, grid, smem=traced.smem_bytes, args=args), len(lines) - STARTS[name]


@pytest.mark.parametrize(("name", "barriers"), [("v3", 7), ("fewer-syncs", 4)])
def test_all_barriers_are_enough(name, barriers) -> None:
    found, count = verdict(name, None)
    assert (found.kind, count) == ("clean", barriers)  # those of each block, and one before O is stored


@sampled(
    ("name", "missing"),
    [*(("v3", number) for number in range(7)), *(("fewer-syncs", number) for number in range(4))],
    every=6,
)
def test_without_a_barrier_there_is_a_race(name, missing) -> None:
    found, _ = verdict(name, missing)
    assert "race" in {finding.rule.id for finding in found.findings}
