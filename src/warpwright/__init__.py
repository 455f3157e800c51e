"""Warpwright: asynchronous tensor-core kernels in Python, run and verified on a virtual GPU.

    import warpwright as ww

    ww.launch(kernel, grid=…, args=[…])     run a kernel of the language, or PTX from `ww.load_ptx`
    ww.check(kernel, grid=…, args=[…])      find its races, deadlocks and broken protocols
    ww.profile(kernel, grid=…, args=[…])    predict its time on a chip, and what its warps wait for
    ww.matmul(a, b)                         a GEMM on tensor cores
    ww.attention(q, k, v)                   scaled dot-product attention on tensor cores

The kernel language is `warpwright.lang`.
"""

from __future__ import annotations

from warpwright.errors import (
    Deadlock,
    DescriptorError,
    DeviceError,
    KernelError,
    LaunchError,
    MemoryFault,
    PrecisionWarning,
    ProtocolError,
    PtxSyntaxError,
    UnsupportedInstruction,
    UsageError,
    WarpwrightError,
)
from warpwright.lang import kernel
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.attention.forward import attention
from warpwright.ops.attention.varlen import attention_varlen
from warpwright.ops.launches import launches
from warpwright.ops.matmul.call import matmul
from warpwright.run.check import check
from warpwright.run.devices import device
from warpwright.run.launch import launch, load_ptx
from warpwright.run.profile import profile

__all__ = [
    "Deadlock",
    "DescriptorError",
    "DeviceError",
    "KernelError",
    "LaunchError",
    "MemoryFault",
    "PrecisionWarning",
    "ProtocolError",
    "PtxSyntaxError",
    "TensorMap",
    "UnsupportedInstruction",
    "UsageError",
    "WarpwrightError",
    "attention",
    "attention_varlen",
    "check",
    "device",
    "kernel",
    "launch",
    "launches",
    "load_ptx",
    "matmul",
    "profile",
]

__version__ = "0.2.0"
