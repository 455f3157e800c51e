"""Warpwright: asynchronous tensor-core kernels in Python, run and verified on a virtual GPU.

    import warpwright as ww

    ww.launch(kernel, grid=…, args=[…])     run a kernel of the language, or PTX from `ww.load_ptx`
    ww.check(kernel, grid=…, args=[…])      find its races, deadlocks and broken protocols
    ww.profile(kernel, grid=…, args=[…])    predict its time on a chip, and what its warps wait for
    ww.matmul(a, b)                         a GEMM on tensor cores
    ww.quantize(x, "nvfp4")                 a matrix with block scales, which `ww.matmul` takes
    ww.attention(q, k, v)                   scaled dot-product attention on tensor cores
    with ww.virtual("b200"): …              kernels of Triton and Gluon, unmodified, on a virtual GPU

The kernel language is `warpwright.lang`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from warpwright import display

if TYPE_CHECKING:
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
    from warpwright.interop.virtual import virtual
    from warpwright.lang.kernel import kernel
    from warpwright.layout.peers import PerRank
    from warpwright.layout.tensor_map import TensorMap
    from warpwright.ops.attention.forward import attention
    from warpwright.ops.attention.mla import attention_mla
    from warpwright.ops.attention.paged import attention_paged
    from warpwright.ops.attention.varlen import attention_varlen
    from warpwright.ops.launches import launches
    from warpwright.ops.matmul.call import matmul
    from warpwright.ops.matmul.quantized import Quantized, quantize
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
    "PerRank",
    "PrecisionWarning",
    "ProtocolError",
    "PtxSyntaxError",
    "Quantized",
    "TensorMap",
    "UnsupportedInstruction",
    "UsageError",
    "WarpwrightError",
    "attention",
    "attention_mla",
    "attention_paged",
    "attention_varlen",
    "check",
    "device",
    "kernel",
    "launch",
    "launches",
    "load_ptx",
    "matmul",
    "profile",
    "quantize",
    "virtual",
]

__version__ = "0.2.0"

# The home of each name that is no error. A module is imported when its name is first used: the command line, and a
# program that only launches, need a part of the package.
_HOMES = {
    "PerRank": "layout.peers",
    "Quantized": "ops.matmul.quantized",
    "TensorMap": "layout.tensor_map",
    "attention": "ops.attention.forward",
    "attention_mla": "ops.attention.mla",
    "attention_paged": "ops.attention.paged",
    "attention_varlen": "ops.attention.varlen",
    "check": "run.check",
    "device": "run.devices",
    "kernel": "lang.kernel",
    "launch": "run.launch",
    "launches": "ops.launches",
    "load_ptx": "run.launch",
    "matmul": "ops.matmul.call",
    "profile": "run.profile",
    "quantize": "ops.matmul.quantized",
    "virtual": "interop.virtual",
}


def _display(module: str, function: str) -> Callable[..., Any]:
    """Returns a function of a module of `report`, which is imported at its first call."""
    return lambda *args: getattr(import_module(f"warpwright.report.{module}"), function)(*args)


display.FUNCTIONS.update(html=_display("html.notebook", "cell_html"), show=_display("html.notebook", "show_report"))
display.FUNCTIONS.update(progress=_display("progress", "show_bar"))


def __getattr__(name: str) -> Any:
    """Returns a name of ``__all__``, or a module of the package."""
    if name in __all__:
        value = getattr(import_module(f"warpwright.{_HOMES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value
    if name.startswith("_") or find_spec(f"warpwright.{name}") is None:
        raise AttributeError(f"module 'warpwright' has no attribute {name!r}")
    return import_module(f"warpwright.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
