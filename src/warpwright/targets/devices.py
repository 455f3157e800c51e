"""Figures of the devices, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warpwright.targets.archs import ARCHS, Arch

__all__ = ["DEVICES", "Device"]


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU.

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


B200 = Device(
    name="b200",
    arch="sm_100a",
    sms=148,
    clock_mhz=1965,
    bf16_tflops=2250.0,
    hbm_bytes=180 * 10**9,
    hbm_gbps=7670.0,
    l2_bytes=126_500_000,
    source={
        "sms": "device query, 74 a die",
        "clock_mhz": "device query; 1845-1854 measured under load",
        "bf16_tflops": "NVIDIA data sheet; 8192 FLOP a clock and SM at 1850 MHz",
        "hbm_bytes": "NVIDIA data sheet",
        "hbm_gbps": "nominal from memory clock and width; 6750 measured",
        "l2_bytes": "device query",
    },
)

GB200 = Device(
    name="gb200",
    arch="sm_100a",
    sms=152,
    clock_mhz=1965,
    bf16_tflops=2500.0,
    hbm_bytes=186 * 10**9,
    hbm_gbps=8000.0,
    l2_bytes=126_500_000,
    source={
        "sms": "device query, 76 a die",
        "clock_mhz": "assumed as b200",
        "bf16_tflops": "NVIDIA data sheet, one GPU",
        "hbm_bytes": "NVIDIA data sheet, one GPU",
        "hbm_gbps": "NVIDIA data sheet, one GPU",
        "l2_bytes": "assumed as b200",
    },
)

H200 = Device(
    name="h200",
    arch="sm_90a",
    sms=132,
    clock_mhz=1980,
    bf16_tflops=989.5,
    hbm_bytes=141 * 10**9,
    hbm_gbps=4800.0,
    l2_bytes=60 * 1024**2,
    source={
        "sms": "device query",
        "clock_mhz": "device query",
        "bf16_tflops": "NVIDIA data sheet; 4096 FLOP a clock and SM at 1830 MHz",
        "hbm_bytes": "NVIDIA data sheet",
        "hbm_gbps": "NVIDIA data sheet; 4280-4300 measured copying",
        "l2_bytes": "device query",
    },
)

RTX5090 = Device(
    name="rtx5090",
    arch="sm_120a",
    sms=170,
    clock_mhz=2407,
    bf16_tflops=209.5,
    hbm_bytes=32 * 1024**3,
    hbm_gbps=1792.0,
    l2_bytes=96 * 1024**2,
    source={
        "sms": "NVIDIA RTX Blackwell white paper",
        "clock_mhz": "NVIDIA RTX Blackwell white paper, boost clock",
        "bf16_tflops": "NVIDIA RTX Blackwell white paper, float32 accumulation; 512 FLOP a clock and SM",
        "hbm_bytes": "NVIDIA RTX Blackwell white paper (GDDR7)",
        "hbm_gbps": "NVIDIA RTX Blackwell white paper (GDDR7)",
        "l2_bytes": "NVIDIA RTX Blackwell white paper",
    },
)

DEVICES = {device.name: device for device in (B200, GB200, H200, RTX5090)}
