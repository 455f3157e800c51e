"""Real GPUs, through the CUDA driver. Needs cuda-core and cuda-bindings (``pip install 'warpwright[cuda]'``).

`Device` takes the same launches as the virtual GPU; `Function` is one loaded kernel with a low launch overhead.
"""

from __future__ import annotations

from warpwright.cuda.device import Device, device, devices
from warpwright.cuda.function import Function, Launch
from warpwright.cuda.tensor_map import MovableMap, encode, encode_fields
from warpwright.cuda.timing import Times, measure, medians, sustained_seconds, times

__all__ = [
    "Device",
    "Function",
    "Launch",
    "MovableMap",
    "Times",
    "device",
    "devices",
    "encode",
    "encode_fields",
    "measure",
    "medians",
    "sustained_seconds",
    "times",
]
