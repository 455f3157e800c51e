"""Figures of the devices, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warpwright.targets.archs import ARCHS, Arch

__all__ = ["DEVICES", "Device", "nearest"]


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU, or a node of several: the figures are those of one of its ``gpus``.

    ``clock_mhz`` is the maximum SM clock, ``bf16_tflops`` the dense peak with float32 accumulation, ``hbm_gbps`` the
    nominal bandwidth in 10^9 bytes a second; sizes are in bytes. ``source`` names the source of each figure.
    """

    name: str
    arch: str
    sms: int
    clock_mhz: int
    bf16_tflops: float
    hbm_bytes: int
    hbm_gbps: float
    l2_bytes: int
    source: Mapping[str, str] = field(compare=False, repr=False)
    gpus: int = 1

    @property
    def chip(self) -> str:
        """The name of the device without the number of GPUs: ``"h200"`` of ``"h200x2"``."""
        return self.name if self.gpus == 1 else self.name.rpartition("x")[0]

    @property
    def limits(self) -> Arch:
        """The limits of the device's target."""
        return ARCHS[self.arch]

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (10, 0) for sm_100a."""
        major, minor = divmod(int("".join(filter(str.isdigit, self.arch))), 10)
        return major, minor

    @property
    def smem_per_block(self) -> int:
        """Maximum shared memory of a block, static and dynamic together, in bytes."""
        return self.limits.smem_per_block

    @property
    def smem_per_sm(self) -> int:
        """Shared memory of one SM, in bytes."""
        return self.limits.smem_per_sm

    @property
    def max_threads_per_block(self) -> int:
        """Maximum threads of a block."""
        return self.limits.max_threads_per_block

    @property
    def max_threads_per_sm(self) -> int:
        """Maximum threads resident on one SM."""
        return self.limits.max_threads_per_sm

    @property
    def max_ctas_per_sm(self) -> int:
        """Maximum CTAs resident on one SM."""
        return self.limits.max_ctas_per_sm

    @property
    def max_cluster_size(self) -> int:
        """Maximum CTAs of a cluster, non-portable sizes included."""
        return self.limits.max_cluster_size

    @property
    def tensor_memory_columns(self) -> int:
        """Columns of tensor memory of an SM; 0 without tensor memory."""
        return self.limits.tensor_memory_columns


def _device(name: str, arch: str, **figures: tuple[Any, str]) -> Device:
    """Returns a device whose figures each stand beside their source."""
    source = {key: text for key, (_, text) in figures.items()}
    return Device(name, arch, source=source, **{key: value for key, (value, _) in figures.items()})


_SHEET, _ONE, _RTX = "NVIDIA data sheet", "NVIDIA data sheet, one GPU", "NVIDIA RTX Blackwell white paper"
_H100, _PRO = "NVIDIA H100 white paper", "NVIDIA RTX Blackwell PRO white paper"

B200 = _device(
    "b200",
    "sm_100a",
    sms=(148, "device query, 74 a die"),
    clock_mhz=(1965, "device query; 1845-1854 measured under load"),
    bf16_tflops=(2250.0, f"{_SHEET}; 8192 FLOP a clock and SM at 1856 MHz"),
    hbm_bytes=(180 * 10**9, _SHEET),
    hbm_gbps=(7670.0, "nominal from memory clock and width; 6750 measured"),
    l2_bytes=(126_500_000, "device query"),
)

GB200 = _device(
    "gb200",
    "sm_100a",
    sms=(152, "device query, 76 a die"),
    clock_mhz=(1965, "assumed as b200"),
    bf16_tflops=(2500.0, f"{_ONE}; 8192 FLOP a clock and SM at 2008 MHz"),
    hbm_bytes=(186 * 10**9, _ONE),
    hbm_gbps=(8000.0, _ONE),
    l2_bytes=(126_500_000, "assumed as b200"),
)

B300 = _device(
    "b300",
    "sm_103a",
    sms=(148, "device query (QuickRunCUDA)"),
    clock_mhz=(2032, "device query (QuickRunCUDA); 1942 measured under load"),
    bf16_tflops=(2250.0, "NVIDIA HGX data sheet, one GPU; 8192 FLOP a clock and SM at 1856 MHz"),
    hbm_bytes=(288 * 10**9, f"{_SHEET}; device query (QuickRunCUDA): 274,113 MiB"),
    hbm_gbps=(7672.0, "memory clock and width by device query (QuickRunCUDA); data sheet 8000; 7170 measured"),
    l2_bytes=(126 * 1024**2, "device query (QuickRunCUDA)"),
)

GB300 = _device(
    "gb300",
    "sm_103a",
    sms=(152, "assumed as gb200"),
    clock_mhz=(2032, "assumed as b300"),
    bf16_tflops=(2500.0, f"{_ONE}; 8192 FLOP a clock and SM at 2008 MHz"),
    hbm_bytes=(288 * 10**9, _ONE),
    hbm_gbps=(8000.0, _ONE),
    l2_bytes=(126 * 1024**2, "assumed as b300"),
)

H200 = _device(
    "h200",
    "sm_90a",
    sms=(132, "device query"),
    clock_mhz=(1980, "device query"),
    bf16_tflops=(989.5, f"{_SHEET}; 4096 FLOP a clock and SM at 1830 MHz"),
    hbm_bytes=(141 * 10**9, _SHEET),
    hbm_gbps=(4800.0, f"{_SHEET}; 4280-4300 measured copying"),
    l2_bytes=(60 * 1024**2, "device query"),
)

H100 = _device(
    "h100",
    "sm_90a",
    sms=(132, f"{_H100}, SXM5"),
    clock_mhz=(1980, f"{_H100}: 1980 MHz, 1830 with tensor cores"),
    bf16_tflops=(989.4, f"{_H100}; 4096 FLOP a clock and SM at 1830 MHz"),
    hbm_bytes=(80 * 1024**3, f"{_H100} (HBM3)"),
    hbm_gbps=(3352.0, f"{_H100}: 3352; data sheet 3350"),
    l2_bytes=(50 * 1024**2, _H100),
)

H100_PCIE = _device(
    "h100_pcie",
    "sm_90a",
    sms=(114, _H100),
    clock_mhz=(1755, "device query (Luo et al., arXiv 2402.13499, H800 PCIe)"),
    bf16_tflops=(756.0, f"{_H100}; 4096 FLOP a clock and SM at 1620 MHz"),
    hbm_bytes=(80 * 1024**3, f"{_H100} (HBM2e)"),
    hbm_gbps=(2039.0, "nominal from memory clock and width; data sheet 2000"),
    l2_bytes=(50 * 1024**2, _H100),
)

H20 = _device(
    "h20",
    "sm_90a",
    sms=(78, "device query (Geekbench 6, public reports of H20 runs)"),
    clock_mhz=(1980, "assumed as h200"),
    bf16_tflops=(148.0, f"{_SHEET}; 1024 FLOP a clock and SM at 1853 MHz; 142 measured with torch"),
    hbm_bytes=(96 * 1024**3, f"{_SHEET} (HBM3)"),
    hbm_gbps=(4000.0, _SHEET),
    l2_bytes=(60 * 1024**2, f"{_SHEET}; device query in public reports"),
)

GH200 = _device(
    "gh200",
    "sm_90a",
    sms=(132, "device query in public reports"),
    clock_mhz=(1980, "assumed as h200"),
    bf16_tflops=(989.5, f"{_SHEET}: 990; 4096 FLOP a clock and SM at 1830 MHz"),
    hbm_bytes=(96 * 1024**3, f"{_SHEET} (HBM3; a later model has 144 GB of HBM3e)"),
    hbm_gbps=(4000.0, f"{_SHEET} (4900 with HBM3e)"),
    l2_bytes=(60 * 1024**2, "assumed as h200, which has as many memory controllers"),
)

RTX5090 = _device(
    "rtx5090",
    "sm_120a",
    sms=(170, _RTX),
    clock_mhz=(2808, "torch.matmul in TF32, 122.2 TFLOPS in public reports, takes no less; 2407 is the boost clock"),
    bf16_tflops=(209.5, f"{_RTX}, float32 accumulation; 512 FLOP a clock and SM at 2407 MHz"),
    hbm_bytes=(32 * 1024**3, f"{_RTX} (GDDR7)"),
    hbm_gbps=(1792.0, f"{_RTX} (GDDR7)"),
    l2_bytes=(96 * 1024**2, _RTX),
)

RTX5080 = _device(
    "rtx5080",
    "sm_120a",
    sms=(84, f"{_RTX}; TechPowerUp"),
    clock_mhz=(2617, f"{_RTX}, boost clock; TechPowerUp"),
    bf16_tflops=(112.6, f"{_RTX}, float32 accumulation; 512 FLOP a clock and SM at 2617 MHz"),
    hbm_bytes=(16 * 1024**3, f"{_RTX} (GDDR7)"),
    hbm_gbps=(960.0, f"{_RTX}: 30 Gbit/s, 256 bits; TechPowerUp"),
    l2_bytes=(64 * 1024**2, f"{_RTX}; TechPowerUp"),
)

RTX5070TI = _device(
    "rtx5070ti",
    "sm_120a",
    sms=(70, f"{_RTX}; device query in public reports"),
    clock_mhz=(2452, f"{_RTX}, boost clock"),
    bf16_tflops=(87.9, f"{_RTX}, float32 accumulation; 512 FLOP a clock and SM at 2452 MHz"),
    hbm_bytes=(16 * 1024**3, f"{_RTX} (GDDR7)"),
    hbm_gbps=(896.0, f"{_RTX}: 28 Gbit/s, 256 bits; public reports of its owners"),
    l2_bytes=(48 * 1024**2, _RTX),
)

RTX_PRO_6000 = _device(
    "rtx_pro_6000",
    "sm_120a",
    sms=(188, f"{_PRO}; device query in public reports"),
    clock_mhz=(2617, f"{_PRO}, boost clock, Workstation Edition"),
    bf16_tflops=(503.8, f"{_PRO}, float32 accumulation; 1024 FLOP a clock and SM at 2617 MHz; 417 measured with torch"),
    hbm_bytes=(96 * 1024**3, f"{_PRO} (GDDR7)"),
    hbm_gbps=(1792.0, f"{_PRO}: 28 Gbit/s, 512 bits; 1535 measured"),
    l2_bytes=(128 * 1024**2, f"{_PRO}; device query in public reports"),
)

# The first device of a family is the default for its targets.
DEVICES = {
    device.name: device
    for device in (
        *(B200, GB200, B300, GB300),
        *(H200, H100, H100_PCIE, H20, GH200),
        *(RTX5090, RTX5080, RTX5070TI, RTX_PRO_6000),
    )
}


def nearest(arch: str, sms: int, hbm_gbps: float) -> Device:
    """Returns the device of the table that a chip of ``arch`` with so many SMs and this bandwidth is most like: of its
    family, and of its target if there is one."""
    family = (each for each in DEVICES.values() if each.limits.family == ARCHS[arch].family)
    return min(family, key=lambda each: (each.arch != arch, abs(each.sms - sms), abs(each.hbm_gbps - hbm_gbps)))
