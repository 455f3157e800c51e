"""The mma.sync GEMM on the virtual RTX 5090, against float64: every configuration, also as PTX for sm_90a."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.helpers import BF16, SENTINEL, normal
from tests.samples import sampled
from warpwright.kernels.gemm.sm90 import plan_gemm
from warpwright.kernels.gemm.sm120 import CONFIGS, LEVELS, Config, kernel_of
from warpwright.report.verdict import judge
from warpwright.run.launch import launch
from warpwright.types import of_dtype

SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
WHOLE = [name for name, config in SHIPPED.items() if config.slices == 1]
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def gemm(
    config: Config,
    a: np.ndarray,
    b: np.ndarray,
    sms: int,
    out: Any = BF16,
    majors: tuple[str, str] = ("k", "k"),
    device: str = "rtx5090",
) -> np.ndarray:
    """D (M, N); the row below and the columns beside it must stay as they were."""
    (m, k), n, out = a.shape, b.shape[0], np.dtype(out)
    sizes: dict[str, Any] = {"in_bytes": a.itemsize, "out_bytes": out.itemsize, "majors": majors}
    plan = plan_gemm(config, m, n, k, sms=sms, **sizes)
    d = np.full((m + 1, plan.pitch), SENTINEL, out)
    stored = [np.ascontiguousarray(x if major == "k" else x.T) for x, major in zip((a, b), majors, strict=True)]
    types = {name: of_dtype(np.dtype(x)) for name, x in (("dtype", a.dtype), ("b_dtype", b.dtype), ("out", out))}
    kernel = kernel_of(config).trace("sm_90a" if device == "h200" else "sm_120a", majors=majors, **types)
    launch(kernel, plan.grid, args=[*stored, d[:-1], *plan.scalars], device=device)
    assert (d[-1] == SENTINEL).all()
    return np.ascontiguousarray(d[:-1, :n])


@sampled(("name", "device"), list(product(WHOLE, ("rtx5090", "h200"))), every=3)
def test_every_configuration_covers_every_tile(name: str, device: str) -> None:
    a, b = normal(1, 330, 200), normal(2, 264, 200)
    assert judge(gemm(SHIPPED[name], a, b, 2, device=device), a, b.T).verified


@sampled(
    ("name", "majors"),
    [
        (name, majors)
        for name in WHOLE
        if SHIPPED[name].tile[0] % 64 == 0
        for majors in (("k", "mn"), ("mn", "k"), ("mn", "mn"))
    ],
    every=4,
)
def test_every_layout(name: str, majors: tuple[str, str]) -> None:
    a, b = normal(3, 200, 136, dtype=np.float16), normal(4, 264, 136, dtype=np.float16)
    assert judge(gemm(SHIPPED[name], a, b, 2, np.float32, majors), a, b.T).verified


@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)])
@pytest.mark.parametrize("name", ["128x128", "16x128"])
def test_types_of_8_bits(name: str, types: tuple[Any, Any]) -> None:
    a, b = (normal(seed, 130, 336, dtype=dtype) for seed, dtype in zip((5, 6), types, strict=True))
    assert judge(gemm(CONFIGS[name], a, b, 4, np.float32), a, b.T).verified


def test_nan_and_infinity_stay_in_their_rows_and_columns() -> None:
    a, b = normal(7, 130, 72), normal(8, 136, 72)
    a[5, 3], b[7, 9] = np.nan, np.inf
    d = gemm(CONFIGS["128x128"], a, b, 2).astype(np.float32)
    assert np.isnan(d[5]).all()
    beside = np.delete(np.arange(130), 5)
    assert np.isinf(d[beside, 7]).all()
    assert np.isfinite(np.delete(d[beside], 7, axis=1)).all()


def test_a_launch_on_fewer_sms_gives_the_same_bits() -> None:
    a, b = normal(9, 400, 264), normal(10, 520, 264)
    assert np.array_equal(gemm(CONFIGS["128x128"], a, b, 170), gemm(CONFIGS["128x128"], a, b, 3))
