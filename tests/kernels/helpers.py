"""Run the kernels on the virtual B200, optionally with changed PTX."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.kernels import reference
from warpwright.kernels.gemm.sm100 import Config, config_of, kernel_of, plan_gemm
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.layout.tensor_map import TensorMap
from warpwright.run.launch import launch, load_ptx
from warpwright.targets import DEVICES
from warpwright.types import of_dtype
from warpwright.vgpu import Device

BF16 = ml_dtypes.bfloat16
SENTINEL = 7.0
B200 = DEVICES["b200"]


def normal(seed: int, *shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def gemm(
    level: int | Config,
    a: np.ndarray,
    b: np.ndarray,
    out: Any = None,
    *,
    change=None,
    spare_rows: int = 0,
    observers=(),
    stages: int | None = None,
    sms: int = B200.sms,
    **changes: Any,
) -> np.ndarray:
    """D (M + spare_rows, pitch), filled with SENTINEL before the launch.

    ``change`` rewrites the PTX; ``changes`` replace fields of the configuration. The device is a B200 with ``sms`` SMs.
    """
    dtype = np.dtype(out or a.dtype)
    config = replace(config_of(level), **changes, **({"stages": stages} if stages else {}))
    found = plan_gemm(config, a.shape[0], b.shape[0], a.shape[1], out_bytes=dtype.itemsize, sms=sms)
    d = np.full((a.shape[0] + spare_rows, found.pitch), SENTINEL, dtype)
    boxes = ((a, found.a_box), (b, found.b_box))
    target = d if found.d_box is None else TensorMap(d[: len(a)], found.d_box, swizzle=found.d_swizzle)
    args = [*(TensorMap(x, box, swizzle=found.swizzle) for x, box in boxes), target, *found.scalars]
    traced = kernel_of(config).trace(dtype=of_dtype(a.dtype), out=of_dtype(dtype))
    if change is None:
        launch(traced, found.grid, args=args, device=b200(sms), observers=observers)
    else:
        entry = load_ptx(change(traced.ptx))[traced.entry]
        launch(entry, found.grid, smem=traced.smem_bytes, args=args, device=b200(sms), observers=observers)
    return d


def b200(sms: int) -> Device:
    """A virtual B200 with ``sms`` SMs."""
    return Device(replace(B200, sms=sms))


def check(d: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Assert every element within half a unit in the last place of float64's value, plus the accumulation slack."""
    exact = reference.gemm(a, b)
    allowed = 0.5 * reference.ulp(exact, d.dtype) + reference.accumulation_slack(a, b)
    error = np.abs(d[: len(a), : len(b)].astype(np.float64) - exact)
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert (error <= allowed).all(), f"D{worst} = {d[worst]}, expected {exact[worst]}"


def flow(a: np.ndarray, b: np.ndarray, change=None) -> np.ndarray:
    """D (128, 128) of memory_flow."""
    d = np.full((128, 128), SENTINEL, np.float32)
    if change is None:
        launch(memory_flow, 1, args=arguments(a, b, d), device="b200")
    else:
        traced = memory_flow.trace()
        entry = load_ptx(change(traced.ptx))[traced.entry]
        launch(entry, 1, smem=traced.smem_bytes, args=arguments(a, b, d), device="b200")
    return d


def without(pattern: str, times: int = 1):
    """A change that drops the ``times`` lines that match ``pattern``."""
    return replaced(rf"\n[^\n]*{pattern}[^\n]*;", "", times)


def replaced(pattern: str, by: str, times: int = 1):
    """A change that replaces the ``times`` matches of ``pattern`` by ``by``."""

    def change(ptx: str) -> str:
        text, found = re.subn(pattern, by, ptx)
        assert found == times, f"{pattern} occurs {found} times, not {times}"
        return text

    return change


SPIN = """
    {{ .reg .pred %late, %wait; .reg .b32 %who; .reg .b64 %begun, %now;
    mov.u32 %who, %tid.x; setp.ge.u32 %late, %who, {first}; mov.u64 %begun, %clock64; @!%late bra in_time;
    spin: mov.u64 %now, %clock64; sub.u64 %now, %now, %begun; setp.lt.u64 %wait, %now, 8000000; @%wait bra spin;
    in_time: bar.warp.sync 0xffffffff; }}
"""


def delayed(before: str, first: int = 0, after: str = "", *, last: bool = False):
    """A change that delays the warps from thread ``first`` on before a line that begins with ``before``.

    It is the first such line, the first after a line that begins with ``after``, or the ``last`` one.
    """

    def change(ptx: str) -> str:
        line = f"\n    {before}"
        place = ptx.rindex(line) if last else ptx.index(line, ptx.index(f"\n{after}"))
        return ptx[:place] + SPIN.format(first=first) + ptx[place:]

    return change
