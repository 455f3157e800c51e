"""Predicted `ww.matmul` on a virtual GPU: ``python bench/predict_gemm.py [--device b200] [--write]``. Needs no GPU.

The listed problems of bench/gemm.py in bf16, A (M, K) and B (N, K), and those with published rates of cuBLAS
(``bench/published/cublas_b200.json``, with their sources). ``roofline_us`` is the greater of 2·M·N·K / peak of the
tensor cores and bytes / nominal bandwidth of device memory. ``share`` is that time over the predicted time,
``share_running`` the same without the time of the launch; ``bias_relu`` is what a bias and a relu add. ``floor_us`` is
the least time that the clock's constants leave any kernel, in its parts (`floor_us`); ``of_floor`` is that time over
the predicted time. ``--write`` writes the rows to ``bench/predicted/gemm_DEVICE.json``.

A prediction begins with L2 full of data, part of it dirty, as bench/gemm.py measures: what is read evicts other data,
and dirty lines are written to device memory meanwhile. The published rates are those of repeated launches: beside them
``warm_us`` is the predicted time of a launch in a loop, and ``of_cublas`` compares that time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.kernels.gemm import sm100
from warpwright.targets import DEVICES, Device, timing_of

ROOT = Path(__file__).parent
PUBLISHED = json.loads((ROOT / "published" / "cublas_b200.json").read_text())
LISTED = (
    *((size, size, size) for size in (1024, 2048, 4096, 6144, 8192, 12288, 16384)),
    (8192, 4096, 7168),
    (4096, 7168, 2048),
    (4096, 24576, 1536),
    (16384, 8192, 1024),
    (4096, 4096, 65536),
    (512, 8192, 8192),
    (128, 8192, 8192),
    (64, 7168, 4096),
    (16, 8192, 8192),
)
Shape = tuple[int, int, int]


def roofline_us(spec: Device, m: int, n: int, k: int) -> float:
    """Returns the microseconds of a bf16 problem at the peak of the tensor cores or of device memory."""
    moved = 2 * (m * k + n * k + m * n)
    return max(2 * m * n * k / (spec.bf16_tflops * 1e6), moved / (spec.hbm_gbps * 1e3))


def floor_us(spec: Device, m: int, n: int, k: int) -> dict[str, float]:
    """Returns the microseconds of an isolated launch of a bf16 problem that no kernel can avoid, by the constants of
    `targets.clocks`: the launch; until the first box of an operand has come from device memory; the greater of all MMAs
    on all SMs and of the operands and the dirty lines that they evict at the rate of device memory; the last MMA, its
    sums and their store. Each part begins when the one before has ended."""
    timing, operands, result = timing_of(spec.name), 2 * (m * k + n * k), 2 * m * n
    evicted = timing.l2_dirty * min(spec.l2_bytes, operands + result) - min(timing.l2_dirty * spec.l2_bytes, result)
    memory = (operands + evicted) / (spec.hbm_gbps * 1e3 * timing.hbm_share)
    first = timing.entry + timing.tma_first + timing.tma_hbm
    last = timing.mma_latency + timing.commit + timing.tmem_latency + timing.tma_store + timing.ld_l2 / 2
    return {
        "launch": timing.launch_us,
        "first_load": first / spec.clock_mhz,
        "work": max(2 * m * n * k / (timing.mma_flops * spec.sms * timing.tensor_mhz), memory),
        "last_store": last / spec.clock_mhz,
    }


def predicted_us(device: str, m: int, n: int, k: int, warm: bool = False, **options: Any) -> tuple[str, float, float]:
    """Returns the configuration that `ww.matmul` takes, its predicted microseconds, and the launch's share of them."""
    a, b = (np.zeros((rows, k), ml_dtypes.bfloat16) for rows in (m, n))
    call = ww.launches(ww.matmul, a, b.T, device=device, **options)
    found = [ww.profile(x.kernel, x.grid, args=x.args, device=device, fast=True, warm=warm) for x in call]
    # a second launch starts before the first has ended
    us = found[0].time_us + sum(each.time_us - each.launch_us for each in found[1:])
    ((plan, _),) = call.steps
    name = next(name for name, config in sm100.TILINGS.items() if config == plan.config)
    return name, float(us), float(found[0].launch_us)


def predict(device: str, shape: Shape) -> dict[str, Any]:
    """Returns the row of one problem."""
    m, n, k = shape
    config, us, launch_us = predicted_us(device, *shape)
    bias = np.zeros(n, ml_dtypes.bfloat16)
    _, fused, _ = predicted_us(device, *shape, bias=bias, activation="relu")
    roofline, tera = roofline_us(DEVICES[device], *shape), 2e-6 * m * n * k
    row: dict[str, Any] = {"m": m, "n": n, "k": k, "config": config, "us": round(us, 1), "tflops": round(tera / us, 1)}
    row |= {"roofline_us": round(roofline, 1), "share": round(roofline / us, 3)}
    row |= {"share_running": round(roofline / (us - launch_us), 3), "bias_relu": round(fused / us - 1, 4)}
    floor = floor_us(DEVICES[device], *shape)
    row |= {"floor_us": {part: round(each, 2) for part, each in floor.items()}}
    row |= {"of_floor": round(sum(floor.values()) / us, 3)}
    for each in PUBLISHED:
        if (each["m"], each["n"], each["k"]) == shape:
            _, warm_us, _ = predicted_us(device, *shape, warm=True)
            row |= {"warm_us": round(warm_us, 1), "cublas_tflops": each["tflops"]}
            row |= {"of_cublas": round(tera / warm_us / each["tflops"], 3)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="b200", help="a virtual GPU of sm_100a or sm_103a")
    parser.add_argument("--write", action="store_true", help="write bench/predicted/gemm_DEVICE.json")
    options = parser.parse_args()
    shapes = dict.fromkeys([*LISTED, *((each["m"], each["n"], each["k"]) for each in PUBLISHED)])
    rows = []
    for shape in sorted(shapes, key=lambda shape: shape[0] * shape[1] * shape[2]):
        rows.append(predict(options.device, shape))
        print(json.dumps(rows[-1]), flush=True)
    if options.write:
        path = ROOT / "predicted" / f"gemm_{options.device}.json"
        content = {
            "device": f"virtual {options.device}",
            "command": "python bench/predict_gemm.py --write",
            "rows": rows,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
