"""ww.profile: full against fast, wasted work, determinism, PTX of other compilers, and refused calls."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.foreign.cases import CASES, Case
from tests.foreign.compile import golden
from warpwright import types
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm90, sm100
from warpwright.lang import Global, ctaid, f32, tid
from warpwright.targets import timing_of
from warpwright.vgpu.timing import Profile

VIRTUAL = {"sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx5090"}
BF16 = ml_dtypes.bfloat16


def matrices(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.normal(size=shape).astype(BF16) for shape in ((m, k), (n, k)))
    return a, b, np.zeros((m, n), BF16)


def blackwell(level: int, m: int, n: int, k: int, **more: Any) -> Profile:
    config = sm100.config_of(level)
    plan = sm100.plan_gemm(config, m, n, k)
    kernel = sm100.kernel_of(config).trace(dtype=types.bf16, out=types.bf16)
    return ww.profile(kernel, plan.grid, args=[*matrices(m, n, k), *plan.scalars], device="b200", **more)


def hopper(level: int, m: int, n: int, k: int, **more: Any) -> Profile:
    config = sm90.config_of(level)
    kernel = sm90.kernel_of(config).trace(majors=("k", "k"))
    plan = sm90.plan_gemm(config, m, n, k, sms=132, majors=("k", "k"))
    arrays = matrices(m, n, k)
    uses = [kernel.maps[name] for name in "abd"]
    maps = [ww.TensorMap(x, use.box, swizzle=use.swizzle) for x, use in zip(arrays, uses, strict=True)]
    return ww.profile(kernel, plan.grid, args=[*maps, *plan.scalars], device="h200", **more)


@pytest.mark.parametrize(("make", "level"), [(blackwell, 1), (blackwell, 6), (hopper, 2), (hopper, 7)])
def test_full_and_fast_runs_agree(make: Any, level: int) -> None:
    full, fast = (make(level, 1024, 2048, 512, fast=fast) for fast in (False, True))
    assert (full.fast, fast.fast) == (False, True)
    assert fast.time_us == pytest.approx(full.time_us, rel=0.03)
    assert (fast.flops, fast.wasted_flops) == (full.flops, full.wasted_flops)
    assert fast.bytes_hbm == pytest.approx(full.bytes_hbm, rel=0.03)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_half_of_the_work_of_the_first_blackwell_levels_is_wasted(level: int) -> None:
    profile = blackwell(level, 256, 256, 512)
    assert profile.wasted_flops * 2 == profile.flops
    assert profile.flops == 2 * 2 * 256 * 256 * 512
    useful = (profile.flops - profile.wasted_flops) / profile.time_us / 1e6
    assert profile.tflops == pytest.approx(useful)


@pytest.mark.parametrize("level", [1, 3, 7])
def test_no_work_of_the_hopper_ladder_is_wasted(level: int) -> None:
    profile = hopper(level, 512, 512, 512)
    assert profile.wasted_flops == 0
    assert profile.flops == 2 * 512**3


def test_profiles_are_the_same_each_time() -> None:
    assert blackwell(3, 512, 512, 512) == blackwell(3, 512, 512, 512)


def test_a_full_run_computes_and_a_fast_one_leaves_arrays_alone() -> None:
    config = sm100.config_of(3)
    plan = sm100.plan_gemm(config, 256, 256, 256)
    kernel = sm100.kernel_of(config).trace(dtype=types.bf16, out=types.bf16)
    a, b, d = matrices(256, 256, 256)
    ww.profile(kernel, plan.grid, args=[a, b, d, *plan.scalars], device="b200")
    assert not d.any()
    ww.profile(kernel, plan.grid, args=[a, b, d, *plan.scalars], device="b200", fast=False)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.allclose(d.astype(np.float32), wanted, atol=0.3, rtol=0.02)


def test_more_work_takes_longer_and_power_takes_the_clock_down() -> None:
    short, long = (blackwell(10, 2048, 2048, k) for k in (1024, 4096))
    assert 2 < long.time_us / short.time_us < 4.5
    rested, sustained = (blackwell(10, 2048, 2048, 4096, sustained=word) for word in (False, True))
    assert sustained.clock_mhz <= rested.clock_mhz
    assert sustained.time_us >= rested.time_us


def test_what_a_profile_says() -> None:
    profile = blackwell(6, 1024, 1024, 1024)
    roles = {role.name: role for role in profile.roles}
    assert {"load", "mma", "epilogue"} <= set(roles)
    reasons = {stall.reason for role in profile.roles for stall in role.stalls}
    assert {"waits ab.empty", "waits ab.full", "waits acc.full"} <= reasons
    for role in profile.roles:
        assert role.busy + sum(stall.share for stall in role.stalls) == pytest.approx(1, abs=1e-6)
    assert {"TMA", "tensor core", "load", "mma", "epilogue"} <= {span.track for span in profile.spans}
    assert all(span.end > span.start >= 0 for span in profile.spans)
    assert 0 < profile.usage.tensor < 1
    assert json.loads(json.dumps(profile.as_dict()))["kernel"] == profile.kernel


def test_l2_is_busy_with_what_its_bytes_cost() -> None:
    """SMs of a GPC share many of the bytes, which needs less L2 bandwidth."""
    profile, timing = hopper(3, 1024, 2048, 256), timing_of("h200")
    asked = profile.bytes_l2 / (timing.l2_bytes * profile.cycles)
    assert 0.6 * asked < profile.usage.l2 < 0.9 * asked


@ww.kernel("sm_90a", threads=256)
def copied(x: Global[f32], y: Global[f32]):
    i = ctaid.x * 256 + tid.x
    y[i] = x[i]


def test_a_written_byte_keeps_l2_busy_for_longer_than_a_read_one() -> None:
    grid, timing = 132 * 8, timing_of("h200")
    x, nbytes = np.ones(grid * 256, np.float32), grid * 1024
    profile = ww.profile(copied, grid, args=[x, x.copy()], device="h200")
    assert profile.bytes_l2 == 2 * nbytes
    cycles = nbytes / timing.l2_bytes + nbytes / timing.l2_write_bytes
    assert profile.usage.l2 == pytest.approx(cycles / profile.cycles, rel=0.01)


def test_bank_conflicts_are_found() -> None:
    """Level 6 writes rows of 256 bytes side by side, level 8 swizzles them."""
    assert blackwell(6, 512, 512, 256).conflicts
    assert not blackwell(8, 512, 512, 256).conflicts


PLAIN = ("grid_sum", "bulk_copy", "tma_tile", "mma_matmul", "matmul", "cluster_shift", "async_copy")
LAUNCHES = [
    pytest.param(case, arch, id=f"{case.entry}-{arch}") for case in CASES if case.entry in PLAIN for arch in case.archs
]


@pytest.mark.parametrize(("case", "arch"), LAUNCHES)
def test_ptx_of_others(case: Case, arch: str) -> None:
    args, _ = case.make(np.random.default_rng(len(case.entry)))
    kernel = ww.load_ptx(golden(case.file, arch))[case.entry]
    shape = {"grid": case.grid, "block": case.block, "smem": case.smem, "args": args, "device": VIRTUAL[arch]}
    full, fast = (ww.profile(kernel, **shape, fast=word) for word in (False, True))
    assert full.time_us > full.launch_us
    assert fast.time_us == pytest.approx(full.time_us, rel=0.03)
    assert full.bytes_l2 > 0


def test_a_real_gpu_is_refused() -> None:
    class Real:
        name = "cuda:0"
        spec = ww.device("h200").spec

    kernel = ww.load_ptx(golden("atomics", "sm_90a"))["atomics_global"]
    with pytest.raises(UsageError) as caught:
        ww.profile(kernel, 1, 32, device=Real())  # type: ignore[arg-type]
    assert str(caught.value) == "cannot profile on cuda:0; expected a virtual device, such as device='b200'"


LAPPED = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry lapped(.param .u64 x) {
  .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %rd<1>;
  .shared .align 16 .b8 rows[128];
  .shared .align 8 .b64 full;
  ld.param.u64 %rd0, [x];
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared::cta.b64 [full], 1;
  bar.sync 0;
  mov.u32 %r1, 0;
LOOP:
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [rows], [%rd0], 128, [full];
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 128;
  and.b32 %r2, %r1, 1;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [full], %r2;
  @!%p1 bra WAIT;
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p2, %r1, 4;
  @%p2 bra LOOP;
  st.global.u8 [%rd0], %r1;
  bar.sync 0;
  ret;
}
"""


def test_a_kernel_that_laps_its_mbarrier_is_profiled_fast() -> None:
    """Its first warp could issue all copies before the second warp looks, if copies completed at their issue."""
    x = np.zeros(128, np.uint8)
    fast, full = (
        ww.profile(ww.load_ptx(LAPPED)["lapped"], 1, 64, args=[x], device="h200", fast=fast) for fast in (True, False)
    )
    assert fast.time_us == pytest.approx(full.time_us)


def test_a_fast_profile_of_such_a_kernel_writes_no_array() -> None:
    x = np.zeros(128, np.uint8)
    ww.profile(ww.load_ptx(LAPPED)["lapped"], 1, 64, args=[x], device="h200")
    assert not x.any()


def test_times_are_numbers_of_python() -> None:
    """A replay with NumPy's numbers takes half as long again."""
    found = blackwell(10, 512, 512, 512, fast=True)
    times = [found.time_us, found.cycles, found.clock_mhz, *dataclasses.astuple(found.usage)]
    times += [each.end for each in found.phases]
    assert {type(each) for each in times} == {float}
