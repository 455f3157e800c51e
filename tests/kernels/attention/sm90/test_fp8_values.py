"""The launch before FP8 attention on Hopper: its order of keys for every layout of V, checks, ptxas and plan."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.fp8_helpers import E4M3, launches, random_inputs
from tests.races.watched import Watched
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.fp8_plan import CONFIGS, HEAD_DIMS, Fp8Config, plan
from warpwright.kernels.attention.sm90.fp8_values import kernel_of
from warpwright.ptx.ptxas import assemble
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

# The key, within 16, at each position: a thread of a quad has scores of the keys 2c, 2c + 1, 2c + 8 and 2c + 9.
KEY_ORDER = [2 * c + step for c in range(4) for step in (0, 1, 8, 9)]
CONFIG = {width: Fp8Config(width, (64, 32)) for width in HEAD_DIMS}


def transposed(v: np.ndarray, width: int, slabs: int) -> np.ndarray:
    """Returns what the launch writes for V (batch, heads, keys, columns): slabs of 32 keys, swizzled by 32 bytes."""
    batch, heads, keys, columns = v.shape
    padded = np.zeros((batch * heads, slabs * 32, width), np.uint8)
    padded[:, :keys, :columns] = v.view(np.uint8).reshape(-1, keys, columns)
    order = [16 * half + key for half in range(2) for key in KEY_ORDER]
    found = padded.reshape(-1, slabs, 32, width)[:, :, order].swapaxes(2, 3).reshape(-1, slabs, width, 2, 16)
    swapped = np.arange(width) // 4 % 2 == 1  # the chunks of 16 bytes that the swizzle exchanges
    return np.where(swapped[:, None, None], found[..., ::-1, :], found).reshape(-1, slabs, width, 32)


@pytest.mark.parametrize(("width", "columns"), [(64, 48), (64, 64), (128, 80), (128, 128)])
@pytest.mark.parametrize("layout", ["dense", "rows before heads", "rows apart"])
@pytest.mark.parametrize("keys", [1, 70, 300])
def test_keys_are_in_the_order_of_scores(width: int, columns: int, layout: str, keys: int) -> None:
    problem = Problem(2, 2, 2, 64, keys, columns, dtype=E4M3)
    (q, k, v), scales = random_inputs(problem)
    if layout == "rows before heads":
        v = np.ascontiguousarray(v.swapaxes(1, 2)).swapaxes(1, 2)
    if layout == "rows apart":
        v = np.concatenate([v, v], axis=3)[..., :columns]
    (kernel, grid, args), _ = launches(problem, CONFIG[width], (q, k, v), scales)[0]
    ww.launch(kernel, grid, args=args, device="h200")
    assert np.array_equal(args[1], transposed(np.ascontiguousarray(v), width, args[1].shape[1]))


@pytest.mark.parametrize("width", HEAD_DIMS)
def test_the_checks_find_nothing(width: int) -> None:
    problem = Problem(1, 2, 2, 64, 200, width, dtype=E4M3)
    given, scales = random_inputs(problem)
    (kernel, grid, args), _ = launches(problem, CONFIG[width], given, scales)[0]
    watched = Watched(Device(replace(DEVICES["h200"], sms=2)))
    ww.launch(kernel, grid, args=args, device=watched)
    (verdict,) = watched.verdicts
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("width", HEAD_DIMS)
def test_no_spills(width: int) -> None:
    result = assemble(kernel_of(width).trace().ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search("warning", result.log)


def test_a_plan_has_whole_blocks_of_keys() -> None:
    found = plan(Problem(2, 4, 2, 100, 225, 128, dtype=E4M3), sms=132)
    assert found.config == CONFIGS["128: 128x224"]
    assert found.values_shape == (4, 14, 128, 32)
    assert found.values_grid == (4, 2, 2)
