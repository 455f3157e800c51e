"""The Hopper GEMM on the GPU and on the virtual H200: the same bits, for every shipped configuration."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels.gemm.sm90 import CONFIGS, LEVELS, Config, fit_last, kernel_of, plan_gemm
from warpwright.run.launch import launch
from warpwright.types import of_dtype

SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
BF16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
BF16_LAUNCHES = {name: config for name, config in SHIPPED.items() if not config.promoted and config.slices == 1}
ONE_WIDTH = [name for name, config in BF16_LAUNCHES.items() if not config.last]
SHAPE = (200, 264, 520)
MAJORS = [("k", "k"), ("k", "mn"), ("mn", "k"), ("mn", "mn")]
SMS = 132


def products(
    config: Config,
    dtype: np.dtype[Any],
    out: Any = None,
    majors: tuple[str, str] = ("k", "k"),
    shape: Any = SHAPE,
) -> list[np.ndarray]:
    """D of the GPU and of the virtual H200 with the hardware's arithmetic, as 16- or 32-bit patterns."""
    (m, n, k), out = (config.rows or shape[0], *shape[1:]), np.dtype(out or dtype)
    sms = 6 if config.last else SMS
    config = fit_last(config, m, n, sms=sms, major=majors[1])
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    stored = [x if major == "k" else np.ascontiguousarray(x.T) for x, major in zip((a, b), majors, strict=True)]
    kernel = kernel_of(config).trace(majors=majors, dtype=of_dtype(dtype), out=of_dtype(out))
    plan = plan_gemm(config, m, n, k, sms=sms, majors=majors, out_bytes=out.itemsize)
    results = []
    for device in ("cuda", "h200"):
        d = np.zeros((m, plan.pitch), out)
        options = {"numerics": "hardware"} if device == "h200" else {}
        more = *({"b": stored[1], "d": d}[name] for name in plan.maps), *plan.widths
        launch(kernel, plan.grid, args=[*stored, d, *plan.scalars, *more], device=device, **options)
        results.append(d.view(f"u{out.itemsize}"))
    return results


@pytest.mark.parametrize("dtype", [BF16, FLOAT16])
@pytest.mark.parametrize("name", ONE_WIDTH)
def test_every_configuration_gives_the_same_bits(name: str, dtype: np.dtype[Any]) -> None:
    gpu, virtual = products(SHIPPED[name], dtype)
    assert np.array_equal(gpu, virtual)


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("out", [BF16, FLOAT16, np.float32])
def test_every_layout_and_output_gives_the_same_bits(majors: tuple[str, str], out: Any) -> None:
    gpu, virtual = products(Config(), BF16, out, majors)
    assert np.array_equal(gpu, virtual)


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("out", [BF16, FLOAT16, np.float32])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("128x256 two widths", (1288, 1032, 328)),
        ("128x256 two widths", (1800, 1032, 72)),
        ("128x256 pair two widths", (776, 264, 1032)),
        ("128x256 pair two widths", (1800, 264, 72)),
    ],
)
def test_tiles_of_two_widths_give_the_same_bits(
    name: str, shape: tuple[int, int, int], out: Any, majors: tuple[str, str]
) -> None:
    assert fit_last(SHIPPED[name], *shape[:2], sms=6, major=majors[1]).last
    gpu, virtual = products(SHIPPED[name], BF16, out, majors, shape)
    assert np.array_equal(gpu, virtual)


@pytest.mark.parametrize("name", [name for name, config in SHIPPED.items() if config.pingpong])
@pytest.mark.parametrize("shape", [(1288, 1032, 328), (1800, 1032, 72)])
def test_warpgroups_in_turn_give_the_same_bits(name: str, shape: tuple[int, int, int]) -> None:
    gpu, virtual = products(SHIPPED[name], BF16, shape=shape)
    assert np.array_equal(gpu, virtual)


@pytest.mark.parametrize("name", ["level 8", "64x128 stream rotated", "64x64 split 4"])
def test_so_does_a_larger_product(name: str) -> None:
    gpu, virtual = products(SHIPPED[name], BF16, shape=(512, 512, 1024))
    assert np.array_equal(gpu, virtual)


@pytest.mark.parametrize("name", ["64x64", "64x64 stream", "128x64", "128x256", "128x128"])
def test_blocks_on_their_way_to_d_are_not_overwritten(name: str) -> None:
    """Many tiles a CTA, mostly of a single block a warp, and next to nothing to multiply in between."""
    gpu, virtual = products(SHIPPED[name], BF16, shape=(2048, 4096, 64))
    assert np.array_equal(gpu, virtual)


@pytest.mark.parametrize("batched", ["abd", "ad", "bd"])
@pytest.mark.parametrize(
    "name", ["level 1", "level 2", "level 8", "128x256 alone", "64x64 a CTA a tile", "64x64 split 6"]
)
def test_a_batch_gives_the_same_bits(name: str, batched: str) -> None:
    random, config = np.random.default_rng(2), SHIPPED[name]
    a, b = (random.standard_normal((5, *shape)).astype(BF16) for shape in ((200, 520), (264, 520)))
    a, b = a if "a" in batched else a[0], b if "b" in batched else b[0]
    kernel, plan = kernel_of(config).trace(batched=batched), plan_gemm(config, 200, 264, 520, sms=SMS, batches=5)
    results = []
    for device in ("cuda", "h200"):
        d = np.zeros((5, 200, plan.pitch), BF16)
        options = {"numerics": "hardware"} if device == "h200" else {}
        launch(kernel, plan.grid, args=[a, b, d, *plan.scalars], device=device, **options)
        results.append(d.view(np.uint16))
    assert np.array_equal(*results)


@pytest.mark.parametrize("more", [{}, {"activation": "relu", "scale_a": 0.5}])
@pytest.mark.parametrize("shape", [(65, 70, 8192), (16, 2048, 7168), (500, 520, 8192)])
def test_slices_of_k_give_the_same_bits(shape: tuple[int, int, int], more: dict[str, Any]) -> None:
    m, n, k = shape
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(extents, np.float32).astype(BF16) for extents in ((m, k), (k, n)))
    bias = {"bias": random.standard_normal(n, np.float32)} if more else {}
    devices = "cuda", ww.device("h200", numerics="hardware")
    gpu, virtual = (ww.matmul(a, b, device=device, **more, **bias) for device in devices)
    assert np.array_equal(gpu.view(np.uint16), virtual.view(np.uint16))


@pytest.mark.parametrize("shape", [(1, 1, 8), (16, 1024, 8192), (1000, 3000, 2000), (4096, 4096, 512)])
def test_matmul_is_right(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    random = np.random.default_rng(1)
    a, b = (
        random.standard_normal((m, k), np.float32).astype(BF16),
        random.standard_normal((k, n), np.float32).astype(BF16),
    )
    exact = a.astype(np.float32) @ b.astype(np.float32)
    error = np.linalg.norm(ww.matmul(a, b, device="cuda").astype(np.float32) - exact) / np.linalg.norm(exact)
    assert error < 3e-3
