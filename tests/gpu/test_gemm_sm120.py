"""The mma.sync GEMM on a real GPU: its PTX for sm_90a, against float64 and the virtual GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.helpers import BF16, normal
from warpwright.kernels.gemm.sm120 import CONFIGS, LEVELS
from warpwright.ops.matmul.call import matmul
from warpwright.report.verdict import judge

SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
DTYPES = [BF16, np.dtype(np.float16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]


def operands(m: int, n: int, k: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    return normal(1, m, k, dtype=dtype), normal(2, n, k, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_configuration_and_type(name: str, dtype: Any) -> None:
    a, b = operands(1336, 1160, 2064, dtype)
    assert judge(matmul(a, b.T, device="cuda", level=SHIPPED[name]), a, b.T).verified


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_every_layout(majors: tuple[str, str], dtype: Any) -> None:
    a, b = operands(1336, 1160, 2064, dtype)
    stored = [x if major == "k" else np.asfortranarray(x) for x, major in zip((a, b), majors, strict=True)]
    assert judge(matmul(stored[0], stored[1].T, device="cuda", level=CONFIGS["128x128"]), a, b.T).verified


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHIPPED)
def test_the_gpu_and_the_virtual_gpu_agree(name: str, dtype: Any) -> None:
    a, b = operands(200, 264, 400, dtype)
    boards = ww.device("cuda"), ww.device("h200", numerics="hardware")
    real, virtual = (matmul(a, b.T, device=board, level=SHIPPED[name]) for board in boards)
    assert np.array_equal(real.view(np.uint16), virtual.view(np.uint16))
