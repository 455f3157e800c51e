"""Devices and targets."""

from __future__ import annotations

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
    figures = {field.name for field in fields(device)} - {"name", "arch", "source"}
    assert set(device.source) == figures


@pytest.mark.parametrize(("name", "flop_a_clock"), [("b200", 8192), ("gb200", 8192), ("h200", 4096), ("rtx5090", 512)])
def test_peak_is_what_the_tensor_cores_do_in_a_clock(name: str, flop_a_clock: int) -> None:
    device = targets.device(name)
    at_full_clock = device.sms * flop_a_clock * device.clock_mhz * 1e6 / 1e12
    assert 0.85 * at_full_clock < device.bf16_tflops <= 1.06 * at_full_clock


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
    found = {name: targets.device(name).capability for name in ("h200", "b200", "rtx5090")}
    assert found == {"h200": (9, 0), "b200": (10, 0), "rtx5090": (12, 0)}


def test_clusters_lie_in_one_gpc() -> None:
    """An H200 runs 66, 30 and 15 clusters of 2, 4 and 8 CTAs (`bench/micro.py`)."""
    assert [targets.timing_of("h200").clusters(ctas) for ctas in (1, 2, 4, 8)] == [132, 66, 30, 15]


@pytest.mark.parametrize(("threads", "smem", "ctas"), [(1024, 1024, 2), (32, 0, 32), (128, 100 << 10, 2)])
def test_ctas_that_fit_on_an_sm(threads: int, smem: int, ctas: int) -> None:
    assert targets.arch("sm_90a").fitting_ctas(threads, smem) == ctas


def test_unknown_names() -> None:
    with pytest.raises(UsageError) as caught:
        targets.device("b100")
    assert str(caught.value) == "given device 'b100'; expected one of b200, gb200, h200, rtx5090"
    with pytest.raises(UsageError) as caught:
        targets.arch("sm_70")
    assert str(caught.value).startswith("given target 'sm_70'; expected one of sm_90, sm_90a, sm_100")
