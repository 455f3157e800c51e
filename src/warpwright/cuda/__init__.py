"""A real GPU through the CUDA driver: the packages cuda-core and cuda-bindings (``pip install 'warpwright[cuda]'``).

`Device` launches what the virtual GPU launches; `Function` is one kernel prepared for many cheap launches.
"""

from __future__ import annotations

from warpwright.cuda.device import Device, device, devices, supports
from warpwright.cuda.function import Function, Launch
from warpwright.cuda.tensor_map import MovableMap, encode, encoded
from warpwright.cuda.timing import Times, measure, medians, sustained, times

__all__ = [
    "Device",
    "Function",
    "Launch",
    "MovableMap",
    "Times",
    "device",
    "devices",
    "encode",
    "encoded",
    "measure",
    "medians",
    "supports",
    "sustained",
    "times",
]
