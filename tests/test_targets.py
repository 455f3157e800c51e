"""Devices and targets."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from warpwright import targets
from warpwright.errors import UsageError


def test_device_names_are_found_in_any_case() -> None:
    assert targets.device("B200") is targets.DEVICES["b200"]


@pytest.mark.parametrize(
    ("name", "sms", "arch"),
    [("b200", 148, "sm_100a"), ("gb200", 152, "sm_100a"), ("h200", 132, "sm_90a"), ("rtx5090", 170, "sm_120a")],
)
def test_published_sizes(name: str, sms: int, arch: str) -> None:
    device = targets.device(name)
    assert (device.sms, device.arch) == (sms, arch)
    assert device.limits is targets.arch(arch)


@pytest.mark.parametrize("name", targets.DEVICES)
def test_every_figure_has_a_source(name: str) -> None:
    device = targets.device(name)
    figures = {field.name for field in fields(device)} - {"name", "arch", "source", "gpus"}
    assert set(device.source) == figures


@pytest.mark.parametrize("name", targets.DEVICES)
def test_peak_is_what_the_tensor_cores_do_in_a_clock(name: str) -> None:
    """The source of a peak says how many FLOP an SM does in a clock, and at which clock; the clock exceeds the maximum
    only where the maximum is assumed. A GeForce board's maximum is up to 1.17 times its boost clock."""
    device = targets.device(name)
    found = re.search(r"(\d+) FLOP a clock and SM at (\d+) MHz", device.source["bf16_tflops"])
    assert found
    flop, mhz = map(int, found.groups())
    assert device.sms * flop * mhz * 1e-6 == pytest.approx(device.bf16_tflops, rel=1e-3)
    assert flop == targets.timing_of(name).mma_flops
    assert 0.85 * device.clock_mhz < mhz <= device.clock_mhz or device.source["clock_mhz"].startswith("assumed")


@pytest.mark.parametrize("name", targets.DEVICES)
def test_the_sms_of_a_device_are_those_of_its_gpcs(name: str) -> None:
    assert sum(targets.timing_of(name).gpcs) == targets.device(name).sms


@pytest.mark.parametrize("name", targets.DEVICES)
def test_the_bandwidth_is_that_of_a_memory_bus(name: str) -> None:
    """No more than 8 stacks of HBM3e (1 TB/s) or 512 bits of GDDR7 at 28 Gbit/s, nor less than half of that."""
    device = targets.device(name)
    most = 1792.0 if device.limits.family == "consumer blackwell" else 8000.0
    assert most / 4 <= device.hbm_gbps <= most


@pytest.mark.parametrize("name", targets.DEVICES)
def test_each_device_is_nearest_to_itself(name: str) -> None:
    device = targets.device(name)
    assert targets.nearest(device.arch, device.sms, device.hbm_gbps) is device


def test_a_chip_that_is_not_in_the_table_is_like_one_of_its_family() -> None:
    assert targets.nearest("sm_90a", 132, 4022.8).name == "gh200"
    assert targets.nearest("sm_120a", 188, 1597.0).name == "rtx_pro_6000"
    assert targets.nearest("sm_100a", 140, 8000.0).name == "b200"


@pytest.mark.parametrize(
    ("arch", "target", "runs"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_80", True),
        ("sm_90a", "sm_100a", False),
        ("sm_90a", "sm_100", False),
        ("sm_100a", "sm_90a", False),
        ("sm_100a", "sm_90", True),
        ("sm_103a", "sm_100f", True),
        ("sm_103a", "sm_100a", False),
        ("sm_103a", "sm_101f", False),
        ("sm_100a", "sm_103f", False),
        ("sm_120a", "sm_100f", False),
        ("sm_120a", "sm_100", True),
        ("sm_90a", "compute_90", False),
    ],
)
def test_targets_that_a_chip_runs(arch: str, target: str, runs: bool) -> None:
    assert targets.runs(target, arch) is runs


def test_shared_memory_limits() -> None:
    assert targets.arch("sm_100a").smem_per_block == 227 * 1024
    assert targets.arch("sm_90a").smem_per_block == 227 * 1024
    assert targets.arch("sm_120a").smem_per_block == 99 * 1024
    for arch in targets.ARCHS.values():
        assert arch.smem_per_block + arch.smem_reserved_per_block == arch.smem_per_sm


def test_only_datacentre_blackwell_has_tensor_memory() -> None:
    with_columns = {name for name, arch in targets.ARCHS.items() if arch.tensor_memory_columns}
    assert with_columns == {"sm_100a", "sm_100f", "sm_103a"}


def test_compute_capabilities() -> None:
    found = {name: targets.device(name).capability for name in ("h200", "b200", "b300", "rtx5090")}
    assert found == {"h200": (9, 0), "b200": (10, 0), "b300": (10, 3), "rtx5090": (12, 0)}


def test_clusters_lie_in_one_gpc() -> None:
    """An H200 runs 66, 30 and 15 clusters of 2, 4 and 8 CTAs (`bench/micro.py`)."""
    assert [targets.timing_of("h200").clusters(ctas) for ctas in (1, 2, 4, 8)] == [132, 66, 30, 15]


@pytest.mark.parametrize(("threads", "smem", "ctas"), [(1024, 1024, 2), (32, 0, 32), (128, 100 << 10, 2)])
def test_ctas_that_fit_on_an_sm(threads: int, smem: int, ctas: int) -> None:
    assert targets.arch("sm_90a").fitting_ctas(threads, smem) == ctas


def test_unknown_names() -> None:
    with pytest.raises(UsageError) as caught:
        targets.device("b100")
    assert str(caught.value) == (
        "given device 'b100'; expected one of b200, gb200, b300, gb300, h200, h100, h100_pcie, h20, gh200, rtx5090, "
        "rtx5080, rtx5070ti, rtx_pro_6000"
    )
    with pytest.raises(UsageError) as caught:
        targets.arch("sm_70")
    assert str(caught.value).startswith("given target 'sm_70'; expected one of sm_90, sm_90a, sm_100")
